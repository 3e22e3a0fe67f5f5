//! vCPU threads: they run the guest, hand its accesses to the buses, and can be held and let go.

use std::cell::Cell;
use std::io;
use std::os::unix::thread::JoinHandleExt;
use std::ptr;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use api::control::VcpuStats;
use devices::bus::{Bus, lock};
use kvm_ioctls::{VcpuExit, VcpuFd};
use vmm_sys_util::signal::{Killable, SIGRTMIN, register_signal_handler};

use crate::kvm_stats::KvmStats;
use crate::outcome::{Outcome, OutcomeCell};

/// Bytes of stack of a vCPU thread: device code runs on it.
const STACK: usize = 512 << 10;

/// What the threads are told to do.
const RUN: u8 = 0;
const HOLD: u8 = 1;
const END: u8 = 2;

/// `KVM_SYSTEM_EVENT_*`.
const SYSTEM_EVENT_SHUTDOWN: u32 = 1;
const SYSTEM_EVENT_RESET: u32 = 2;
const SYSTEM_EVENT_CRASH: u32 = 3;

thread_local! {
    /// The `immediate_exit` byte of this thread's vCPU: while it is set, KVM leaves the guest at once.
    static IMMEDIATE_EXIT: Cell<*mut u8> = const { Cell::new(ptr::null_mut()) };
}

/// Signal handler of a kick. Setting the byte here closes the gap between a thread's last look at its orders and its entry
/// into the guest.
extern "C" fn on_kick(_: libc::c_int, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
    let byte = IMMEDIATE_EXIT.get();
    if !byte.is_null() {
        // SAFETY: the pointer is set by the vCPU's own thread, on which this handler runs, to a byte of the mapped `kvm_run`,
        // and cleared before that mapping goes.
        unsafe { ptr::write_volatile(byte, 1) };
    }
}

/// The address spaces that a vCPU's accesses go to.
#[derive(Clone)]
pub struct Buses {
    /// Port I/O.
    pub ports: Arc<Bus>,
    /// Memory-mapped I/O.
    pub memory: Arc<Bus>,
}

struct Counters {
    port_io: AtomicU64,
    mmio: AtomicU64,
    other: AtomicU64,
    /// KVM's own, where it has any.
    kvm: Option<KvmStats>,
}

impl Counters {
    fn new(vcpu: &VcpuFd) -> Self {
        let kvm = KvmStats::open(vcpu);
        Self {
            port_io: AtomicU64::new(0),
            mmio: AtomicU64::new(0),
            other: AtomicU64::new(0),
            kvm: kvm
                .inspect_err(|e| log::debug!("no KVM statistics: {e}"))
                .ok(),
        }
    }
}

struct Orders {
    order: AtomicU8,
    /// How many threads stand still.
    held: Mutex<usize>,
    changed: Condvar,
    counters: Vec<Counters>,
}

impl Orders {
    fn wait<'a>(&self, held: MutexGuard<'a, usize>) -> MutexGuard<'a, usize> {
        self.changed
            .wait(held)
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits while the threads are to be held; false when they are to end.
    fn may_run(&self) -> bool {
        if self.order.load(Ordering::Acquire) == RUN {
            return true;
        }
        let mut held = lock(&self.held);
        *held += 1;
        self.changed.notify_all();
        let run = loop {
            match self.order.load(Ordering::Acquire) {
                RUN => break true,
                END => break false,
                _ => {
                    held = self.wait(held);
                }
            }
        };
        *held -= 1;
        run
    }
}

/// The vCPUs of a machine.
pub struct Vcpus {
    orders: Arc<Orders>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Vcpus {
    /// Starts a thread per vCPU; they are held until [`resume`](Self::resume).
    ///
    /// # Errors
    /// When the host gives no thread or signal.
    pub fn start(
        vcpus: Vec<VcpuFd>,
        buses: &Buses,
        outcome: &Arc<OutcomeCell>,
    ) -> io::Result<Self> {
        register_signal_handler(SIGRTMIN(), on_kick).map_err(io::Error::from)?;
        let orders = Arc::new(Orders {
            order: AtomicU8::new(HOLD),
            held: Mutex::new(0),
            changed: Condvar::new(),
            counters: vcpus.iter().map(Counters::new).collect(),
        });
        // Made first, so that threads are ended when a later one cannot be started.
        let this = Self {
            orders,
            threads: Mutex::new(Vec::new()),
        };
        for (id, vcpu) in vcpus.into_iter().enumerate() {
            let thread = Thread {
                id,
                vcpu,
                buses: buses.clone(),
                orders: this.orders.clone(),
                outcome: outcome.clone(),
            };
            let thread = thread::Builder::new()
                .name(format!("vcpu{id}"))
                .stack_size(STACK)
                .spawn(move || thread.run())?;
            lock(&this.threads).push(thread);
        }
        Ok(this)
    }

    /// Lets the threads run.
    pub fn resume(&self) {
        {
            let _held = lock(&self.orders.held);
            if self.orders.order.load(Ordering::Acquire) == END {
                return;
            }
            self.orders.order.store(RUN, Ordering::Release);
        }
        self.orders.changed.notify_all();
    }

    /// Holds the threads; returns when all of them have left the guest.
    pub fn pause(&self) {
        let threads = lock(&self.threads);
        let mut held = lock(&self.orders.held);
        if self.orders.order.load(Ordering::Acquire) == END {
            return;
        }
        self.orders.order.store(HOLD, Ordering::Release);
        kick(&threads);
        while *held < threads.len() && self.orders.order.load(Ordering::Acquire) == HOLD {
            held = self.orders.wait(held);
        }
    }

    /// Ends the threads; returns when the last one is gone.
    pub fn end(&self) {
        let mut threads = lock(&self.threads);
        {
            let _held = lock(&self.orders.held);
            self.orders.order.store(END, Ordering::Release);
            kick(&threads);
        }
        self.orders.changed.notify_all();
        for thread in threads.drain(..) {
            if thread.join().is_err() {
                log::error!("a vCPU thread panicked");
            }
        }
    }

    /// Whether the threads are held.
    pub fn paused(&self) -> bool {
        self.orders.order.load(Ordering::Acquire) == HOLD
    }

    /// Counters of exits, a set per vCPU.
    pub fn stats(&self) -> Vec<VcpuStats> {
        let read = |c: &AtomicU64| c.load(Ordering::Relaxed);
        self.orders
            .counters
            .iter()
            .map(|c| VcpuStats {
                port_io: read(&c.port_io),
                mmio: read(&c.mmio),
                other: read(&c.other),
                kvm: c.kvm.as_ref().map(KvmStats::read).unwrap_or_default(),
            })
            .collect()
    }
}

impl Drop for Vcpus {
    fn drop(&mut self) {
        self.end();
    }
}

fn kick(threads: &[JoinHandle<()>]) {
    for thread in threads {
        // A thread that has ended already cannot be kicked, and need not be.
        let _ = Kick(thread).kill(SIGRTMIN());
    }
}

struct Kick<'a>(&'a JoinHandle<()>);

// SAFETY: the handle is that of a thread that was not joined yet, for as long as the reference lives.
unsafe impl Killable for Kick<'_> {
    fn pthread_handle(&self) -> libc::pthread_t {
        self.0.as_pthread_t()
    }
}

struct Thread {
    id: usize,
    vcpu: VcpuFd,
    buses: Buses,
    orders: Arc<Orders>,
    outcome: Arc<OutcomeCell>,
}

impl Thread {
    fn run(mut self) {
        let byte: *mut u8 = &mut self.vcpu.get_kvm_run().immediate_exit;
        IMMEDIATE_EXIT.set(byte);
        while self.orders.may_run() {
            if let Err(end) = self.enter() {
                self.outcome.report(end);
                // The machine is over; what the vCPU would do next is of no use. It waits to be ended.
                self.wait_for_end();
                break;
            }
        }
        IMMEDIATE_EXIT.set(ptr::null_mut());
        if let Ok(regs) = self.vcpu.get_regs() {
            let (rip, flags) = (regs.rip, regs.rflags);
            log::debug!(
                "vCPU {} ended at instruction {rip:#x}, flags {flags:#x}",
                self.id
            );
        }
    }

    fn wait_for_end(&self) {
        let mut held = lock(&self.orders.held);
        *held += 1;
        self.orders.changed.notify_all();
        while self.orders.order.load(Ordering::Acquire) != END {
            held = self.orders.wait(held);
        }
    }

    /// Runs the guest until it needs us once.
    fn enter(&mut self) -> Result<(), Outcome> {
        let counters = &self.orders.counters[self.id];
        let count = |c: &AtomicU64| c.fetch_add(1, Ordering::Relaxed);
        match self.vcpu.run() {
            Ok(VcpuExit::IoIn(port, data)) => {
                count(&counters.port_io);
                self.buses.ports.read(port.into(), data);
            }
            Ok(VcpuExit::IoOut(port, data)) => {
                count(&counters.port_io);
                self.buses.ports.write(port.into(), data);
            }
            Ok(VcpuExit::MmioRead(addr, data)) => {
                count(&counters.mmio);
                self.buses.memory.read(addr, data);
            }
            Ok(VcpuExit::MmioWrite(addr, data)) => {
                count(&counters.mmio);
                self.buses.memory.write(addr, data);
            }
            Ok(VcpuExit::Shutdown) => {
                log::info!("vCPU {}: triple fault", self.id);
                return Err(Outcome::Reset);
            }
            Ok(VcpuExit::SystemEvent(kind, _)) => {
                return Err(match kind {
                    SYSTEM_EVENT_SHUTDOWN => Outcome::PowerOff,
                    SYSTEM_EVENT_RESET => Outcome::Reset,
                    SYSTEM_EVENT_CRASH => Outcome::Panic,
                    other => self.failure(&format!("unknown system event {other}")),
                });
            }
            Ok(VcpuExit::Hlt | VcpuExit::Intr | VcpuExit::IrqWindowOpen) => {
                count(&counters.other);
            }
            Ok(VcpuExit::InternalError) => return Err(self.internal_error()),
            Ok(exit) => {
                let exit = format!("{exit:?}");
                return Err(self.failure(&exit));
            }
            Err(e) if [libc::EINTR, libc::EAGAIN].contains(&e.errno()) => {
                count(&counters.other);
                // Cleared before the orders are looked at: a kick from now on sets it again.
                self.vcpu.set_kvm_immediate_exit(0);
            }
            Err(e) => return Err(self.failure(&e.to_string())),
        }
        Ok(())
    }

    fn internal_error(&mut self) -> Outcome {
        let run = self.vcpu.get_kvm_run();
        // SAFETY: this union member is the one that is valid after an exit with `KVM_EXIT_INTERNAL_ERROR`.
        let (suberror, data) = unsafe {
            let internal = &run.__bindgen_anon_1.internal;
            (internal.suberror, internal.data)
        };
        self.failure(&format!("internal error {suberror}, {data:x?}"))
    }

    fn failure(&self, what: &str) -> Outcome {
        let rip = self.vcpu.get_regs().map_or(0, |r| r.rip);
        Outcome::Failure(format!(
            "vCPU {} cannot go on at instruction {rip:#x}: {what}",
            self.id
        ))
    }
}
