//! What a monitor is to its device: it takes commands and doorbells there, and gives the device time; in the caller's thread, one
//! step at a time, or in a thread of the device's own that sleeps as a monitor's does.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use devices::rdma::device::{RdmaDevice, Sleep};
use devices::rdma::events::{AsyncEvent, EventSink};
use devices::rdma::memory::{DmaSpace, Segment};
use vm_memory::{GuestAddress, GuestMemoryBackend as _};
use vmm_sys_util::eventfd::EventFd;

use crate::doorbell::Doorbells;
use crate::events::Events;
use crate::memory::GuestMemory;

/// The platform's translation: DMA addresses lie [`crate::memory::DMA_OFFSET`] above physical ones.
pub struct OffsetDma {
    /// The memory.
    pub memory: Arc<GuestMemory>,
    /// What is translated comes in pieces that end at multiples of this many bytes.
    pub piece: u64,
}

impl DmaSpace for OffsetDma {
    fn translate(&self, dma: u64, len: u64, out: &mut Vec<Segment>) -> bool {
        let Some(physical) = self.memory.dma_to_physical(dma, len) else {
            return false;
        };
        if len == 0 {
            return true;
        }
        let (mut at, end) = (physical, physical + len);
        while at < end {
            let next = (at / self.piece + 1).saturating_mul(self.piece).min(end);
            let Ok(base) = self.memory.ram().get_host_address(GuestAddress(at)) else {
                return false;
            };
            out.push(Segment {
                base,
                len: (next - at) as usize,
            });
            at = next;
        }
        true
    }
}

/// The guest's event queues.
pub struct Sink(pub Arc<Events>);

impl EventSink for Sink {
    fn asynchronous(&mut self, event: AsyncEvent) -> bool {
        self.0.put_asynchronous((event.kind as u32, event.handle))
    }
    fn completion(&mut self, vector: u16, cqn: u32, sequence: u32) -> bool {
        self.0.put_completion((vector, cqn, sequence))
    }
}

/// A command on its way to a device's thread.
struct Order {
    request: Vec<u8>,
    room: usize,
    reply: SyncSender<Vec<u8>>,
}

/// Runs a device.
pub enum Host {
    /// In the caller's thread.
    Stepped(Box<Stepped>),
    /// In a thread of its own.
    Threaded(Threaded),
}

/// A device that moves when [`Host::step`] says so.
pub struct Stepped {
    device: Mutex<RdmaDevice>,
    bells: Arc<Doorbells>,
}

/// A device with a thread.
pub struct Threaded {
    orders: Mutex<std::sync::mpsc::Sender<Order>>,
    bells: Arc<Doorbells>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// How long one call into a device may take. Everything it does for a queue is bounded; this is generous for a loaded machine.
pub const BOUND: Duration = Duration::from_secs(60);

impl Host {
    /// A device that is stepped.
    pub fn stepped(device: RdmaDevice, bells: Arc<Doorbells>) -> Host {
        Host::Stepped(Box::new(Stepped {
            device: Mutex::new(device),
            bells,
        }))
    }

    /// A device on a thread that polls for `spin` after it last had work and then sleeps.
    pub fn threaded(device: RdmaDevice, bells: Arc<Doorbells>, spin: Duration) -> Host {
        let (orders, inbox) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let thread = std::thread::Builder::new()
            .name("rdma".into())
            .spawn({
                let (stop, bells) = (stop.clone(), bells.clone());
                move || run(device, &bells, &inbox, &stop, spin)
            })
            .expect("a thread");
        Host::Threaded(Threaded {
            orders: Mutex::new(orders),
            bells,
            stop,
            thread: Some(thread),
        })
    }

    /// Carries a command to the device and its reply back.
    pub fn command(&self, request: &[u8], room: usize) -> Vec<u8> {
        match self {
            Host::Stepped(host) => {
                let mut reply = Vec::new();
                host.device
                    .lock()
                    .expect("the device")
                    .command(request, &mut reply, room);
                reply
            }
            Host::Threaded(host) => {
                let (reply, answer) = sync_channel(1);
                let order = Order {
                    request: request.to_vec(),
                    room,
                    reply,
                };
                host.orders
                    .lock()
                    .expect("the orders")
                    .send(order)
                    .expect("the device's thread lives");
                host.bells.wake.write(1).expect("an eventfd takes a wake");
                answer
                    .recv_timeout(BOUND)
                    .expect("the device answers in bounded time")
            }
        }
    }

    /// One round of a device that is stepped: doorbells, poll, and what comes before sleep when there was no work. True if there was
    /// work. A device with a thread has its own rounds.
    pub fn step(&self) -> bool {
        match self {
            Host::Stepped(host) => {
                let mut device = host.device.lock().expect("the device");
                let started = Instant::now();
                let worked = round(&mut device, &host.bells);
                assert!(
                    started.elapsed() < BOUND,
                    "a round took {:?}",
                    started.elapsed()
                );
                worked || device.before_sleep() == Sleep::No
            }
            Host::Threaded(host) => {
                assert!(
                    !host.thread.as_ref().is_some_and(JoinHandle::is_finished),
                    "the device's thread has ended"
                );
                false
            }
        }
    }

    /// One round of a device that is stepped, as its thread makes while it does not mean to sleep: the device does not ask to be
    /// kicked. True if there was work. A device with a thread has its own rounds.
    #[inline]
    pub fn poll(&self) -> bool {
        match self {
            Host::Stepped(host) => round(&mut host.device.lock().expect("the device"), &host.bells),
            Host::Threaded(_) => {
                std::hint::spin_loop();
                false
            }
        }
    }

    /// Looks at a device that is stepped.
    pub fn with_device<T>(&self, look: impl FnOnce(&mut RdmaDevice) -> T) -> T {
        match self {
            Host::Stepped(host) => look(&mut host.device.lock().expect("the device")),
            Host::Threaded(_) => panic!("the device belongs to its thread"),
        }
    }
}

impl Drop for Threaded {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.bells.wake.write(1).expect("an eventfd takes a wake");
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
            && !std::thread::panicking()
        {
            panic!("the device panicked");
        }
    }
}

fn round(device: &mut RdmaDevice, bells: &Doorbells) -> bool {
    bells.drain(|page| device.doorbell(page));
    device.poll()
}

fn run(
    mut device: RdmaDevice,
    bells: &Doorbells,
    inbox: &Receiver<Order>,
    stop: &AtomicBool,
    spin: Duration,
) {
    let mut last_work = Instant::now();
    while !stop.load(Ordering::Acquire) {
        let mut worked = false;
        while let Ok(order) = inbox.try_recv() {
            let mut reply = Vec::new();
            device.command(&order.request, &mut reply, order.room);
            // Whoever asked may have given up.
            let _ = order.reply.send(reply);
            worked = true;
        }
        worked |= round(&mut device, bells);
        if worked {
            last_work = Instant::now();
            continue;
        }
        if last_work.elapsed() < spin {
            std::hint::spin_loop();
            continue;
        }
        if let Sleep::Until(until) = device.before_sleep() {
            wait(&[device.wait_fd(), bells.wake.as_raw_fd()], until);
            drain(&bells.wake);
        }
    }
}

fn drain(wake: &EventFd) {
    // Fails when nothing was written, which is as well.
    let _ = wake.read();
}

fn wait(fds: &[RawFd; 2], until: Option<Instant>) {
    let mut poll = fds.map(|fd| libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    });
    let timeout = until.map_or(Duration::from_millis(100), |until| {
        until.saturating_duration_since(Instant::now())
    });
    let timeout = libc::timespec {
        tv_sec: timeout.as_secs() as i64,
        tv_nsec: timeout.subsec_nanos().into(),
    };
    // SAFETY: an array of two pollfds and a timespec that live through the call.
    unsafe { libc::ppoll(poll.as_mut_ptr(), 2, &timeout, std::ptr::null()) };
}
