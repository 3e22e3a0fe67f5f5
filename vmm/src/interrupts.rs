//! Message-signalled interrupts and I/O events, by KVM: irqfds with a routing table, and ioeventfds.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use arch::x86_64::{irq, layout};
use devices::bus::lock;
use devices::interrupt::{IoEvents, MsiController, MsiGroup, MsiMessage};
use kvm_bindings::{KvmIrqRouting, kvm_irq_routing_entry};
use kvm_ioctls::{IoEventAddress, NoDatamatch, VmFd};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

/// Interrupt numbers that KVM can route (`KVM_MAX_IRQ_ROUTES`).
const GSI_END: u32 = 4096;

/// The machine's interrupt numbers: I/O APIC pins first, then messages.
pub struct KvmInterrupts {
    vm: Arc<VmFd>,
    routes: Mutex<Routes>,
}

struct Routes {
    table: BTreeMap<u32, kvm_irq_routing_entry>,
    free: Vec<u32>,
    next: u32,
}

impl Routes {
    fn take(&mut self) -> Option<u32> {
        self.free.pop().or_else(|| {
            (self.next < GSI_END).then(|| {
                self.next += 1;
                self.next - 1
            })
        })
    }

    fn commit(&self, vm: &VmFd) -> io::Result<()> {
        let entries: Vec<_> = self.table.values().copied().collect();
        let table = KvmIrqRouting::from_entries(&entries)
            .map_err(|_| io::Error::other("more interrupt routes than KVM takes"))?;
        vm.set_gsi_routing(&table).map_err(io::Error::from)
    }
}

impl KvmInterrupts {
    /// Takes over the routing table of `vm`, which has in-kernel interrupt controllers.
    pub fn new(vm: Arc<VmFd>) -> io::Result<Arc<Self>> {
        let routes = Routes {
            table: (0..layout::IOAPIC_PINS)
                .map(|pin| (pin, irq::ioapic_route(pin)))
                .collect(),
            free: Vec::new(),
            next: layout::IOAPIC_PINS,
        };
        routes.commit(&vm)?;
        Ok(Arc::new(Self {
            vm,
            routes: Mutex::new(routes),
        }))
    }

    /// An event descriptor that raises `pin` of the I/O APIC, as an edge.
    pub fn pin(&self, pin: u32) -> io::Result<EventFd> {
        let fd = EventFd::new(EFD_NONBLOCK)?;
        self.vm.register_irqfd(&fd, pin).map_err(io::Error::from)?;
        Ok(fd)
    }
}

/// Hands out [`MsiGroup`]s. Kept apart from [`KvmInterrupts`] because a group needs to hold on to it.
#[derive(Clone)]
pub struct KvmMsi(pub Arc<KvmInterrupts>);

impl MsiController for KvmMsi {
    fn allocate(&self, vectors: u16) -> io::Result<Arc<dyn MsiGroup>> {
        let mut group = Group {
            interrupts: self.0.clone(),
            vectors: Vec::with_capacity(vectors.into()),
        };
        for _ in 0..vectors {
            let fd = EventFd::new(EFD_NONBLOCK)?;
            let gsi = lock(&self.0.routes)
                .take()
                .ok_or_else(|| io::Error::other("no interrupt numbers left"))?;
            group.vectors.push(Vector {
                gsi,
                fd,
                connected: AtomicBool::new(false),
                message: Mutex::new(None),
            });
        }
        Ok(Arc::new(group))
    }
}

struct Vector {
    gsi: u32,
    fd: EventFd,
    connected: AtomicBool,
    /// Taken before the routes, never after.
    message: Mutex<Option<MsiMessage>>,
}

struct Group {
    interrupts: Arc<KvmInterrupts>,
    vectors: Vec<Vector>,
}

impl Group {
    fn connect(&self, vector: &Vector, message: MsiMessage) -> io::Result<()> {
        let vm = &self.interrupts.vm;
        {
            let mut routes = lock(&self.interrupts.routes);
            let route = irq::msi_route(vector.gsi, message.address, message.data);
            let before = routes.table.insert(vector.gsi, route);
            if let Err(e) = routes.commit(vm) {
                match before {
                    Some(before) => routes.table.insert(vector.gsi, before),
                    None => routes.table.remove(&vector.gsi),
                };
                return Err(e);
            }
        }
        if !vector.connected.load(Ordering::Acquire) {
            // What was signalled while nobody listened is the caller's to remember, not ours to deliver.
            let _ = vector.fd.read();
            vm.register_irqfd(&vector.fd, vector.gsi)
                .map_err(io::Error::from)?;
            vector.connected.store(true, Ordering::Release);
        }
        Ok(())
    }

    fn disconnect(&self, vector: &Vector) -> io::Result<()> {
        if vector.connected.swap(false, Ordering::AcqRel) {
            self.interrupts
                .vm
                .unregister_irqfd(&vector.fd, vector.gsi)
                .map_err(io::Error::from)?;
            // The stale route leads nowhere now; it leaves KVM's table with the next change.
            lock(&self.interrupts.routes).table.remove(&vector.gsi);
        }
        Ok(())
    }
}

impl MsiGroup for Group {
    fn set(&self, vector: u16, message: Option<MsiMessage>) -> io::Result<()> {
        let vector = self
            .vectors
            .get(usize::from(vector))
            .ok_or(io::ErrorKind::InvalidInput)?;
        let mut current = lock(&vector.message);
        if *current == message {
            return Ok(());
        }
        match message {
            Some(message) => self.connect(vector, message)?,
            None => self.disconnect(vector)?,
        }
        *current = message;
        Ok(())
    }

    fn trigger(&self, vector: u16) {
        if let Some(vector) = self.vectors.get(usize::from(vector))
            && vector.connected.load(Ordering::Acquire)
            && let Err(e) = vector.fd.write(1)
        {
            log::warn!("interrupt {}: {e}", vector.gsi);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for vector in &self.vectors {
            if let Err(e) = self.disconnect(vector) {
                log::warn!("giving back interrupt {}: {e}", vector.gsi);
            }
        }
        let mut routes = lock(&self.interrupts.routes);
        routes.free.extend(self.vectors.iter().map(|v| v.gsi));
    }
}

/// I/O events by KVM's ioeventfds.
pub struct KvmIoEvents(pub Arc<VmFd>);

impl IoEvents for KvmIoEvents {
    fn register(&self, addr: u64, fd: &EventFd) -> io::Result<()> {
        self.0
            .register_ioevent(fd, &IoEventAddress::Mmio(addr), NoDatamatch)
            .map_err(io::Error::from)
    }

    fn unregister(&self, addr: u64, fd: &EventFd) -> io::Result<()> {
        self.0
            .unregister_ioevent(fd, &IoEventAddress::Mmio(addr), NoDatamatch)
            .map_err(io::Error::from)
    }
}
