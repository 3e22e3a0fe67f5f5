//! A driver's side of a virtqueue, for tests.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use virtio_queue::{Queue, QueueT};
use vm_memory::{Bytes, GuestAddress};
use vmm_sys_util::eventfd::EventFd;

use super::queue::DeviceQueue;
use super::{Activation, ActiveQueue, Doorbells, VirtioInterrupt};
use crate::GuestRam;
use crate::bus::lock;

/// A descriptor that the device reads.
pub(crate) const R: u16 = 0;
/// A descriptor that the device writes.
pub(crate) const W: u16 = 2;
const NEXT: u16 = 1;
const RING_BYTES: u64 = 0x1_0000;
const MEMORY: usize = 16 << 20;

/// Counts what a device raises.
#[derive(Default)]
pub(crate) struct Interrupts {
    queues: [AtomicUsize; 8],
    configs: AtomicUsize,
    resets: AtomicUsize,
}

impl Interrupts {
    pub(crate) fn raised(&self, queue: usize) -> usize {
        self.queues[queue].load(Ordering::SeqCst)
    }
    pub(crate) fn configs(&self) -> usize {
        self.configs.load(Ordering::SeqCst)
    }
    pub(crate) fn resets_asked(&self) -> usize {
        self.resets.load(Ordering::SeqCst)
    }
}

impl VirtioInterrupt for Interrupts {
    fn queue(&self, index: u16) {
        self.queues[usize::from(index)].fetch_add(1, Ordering::SeqCst);
    }
    fn config(&self) {
        self.configs.fetch_add(1, Ordering::SeqCst);
    }
    fn needs_reset(&self) {
        self.resets.fetch_add(1, Ordering::SeqCst);
    }
}

struct NoDoorbells;
impl Doorbells for NoDoorbells {
    fn attach(&self, _: u32, _: EventFd) -> std::io::Result<()> {
        Err(std::io::ErrorKind::InvalidInput.into())
    }
    fn detach(&self, _: u32) {}
}

/// One queue of a driver. Queue `n` keeps its rings at `MEMORY - (n + 1) * RING_BYTES`.
pub(crate) struct Driver {
    pub(crate) memory: Arc<GuestRam>,
    pub(crate) interrupt: Arc<Interrupts>,
    pub(crate) kick: EventFd,
    base: u64,
    size: u16,
    next_descriptor: u16,
    avail: u16,
    seen: u16,
}

impl Driver {
    pub(crate) fn new(size: u16) -> Self {
        let memory = Arc::new(GuestRam::from_ranges(&[(GuestAddress(0), MEMORY)]).unwrap());
        Self::on(memory, Arc::default(), size, 0)
    }

    fn on(memory: Arc<GuestRam>, interrupt: Arc<Interrupts>, size: u16, index: u64) -> Self {
        Self {
            memory,
            interrupt,
            kick: EventFd::new(libc::EFD_NONBLOCK).unwrap(),
            base: MEMORY as u64 - (index + 1) * RING_BYTES,
            size,
            next_descriptor: 0,
            avail: 0,
            seen: 0,
        }
    }

    /// The queues of one device.
    pub(crate) fn queues(sizes: &[u16]) -> Vec<Self> {
        let first = Self::new(sizes[0]);
        let (memory, interrupt) = (first.memory.clone(), first.interrupt.clone());
        let rest = sizes[1..].iter().enumerate();
        let rest = rest.map(|(i, &s)| Self::on(memory.clone(), interrupt.clone(), s, i as u64 + 1));
        std::iter::once(first).chain(rest).collect()
    }

    pub(crate) fn activation(drivers: &[Self], features: u64) -> Activation {
        Activation {
            memory: drivers[0].memory.clone(),
            features,
            queues: drivers.iter().map(|d| Some(d.active_queue())).collect(),
            interrupt: drivers[0].interrupt.clone(),
            doorbells: Arc::new(NoDoorbells),
        }
    }

    fn avail_ring(&self) -> u64 {
        self.base + 16 * u64::from(self.size)
    }
    fn used_ring(&self) -> u64 {
        self.base + RING_BYTES / 2
    }

    pub(crate) fn active_queue(&self) -> ActiveQueue {
        let mut queue = Queue::new(self.size).unwrap();
        queue
            .try_set_desc_table_address(GuestAddress(self.base))
            .unwrap();
        queue
            .try_set_avail_ring_address(GuestAddress(self.avail_ring()))
            .unwrap();
        queue
            .try_set_used_ring_address(GuestAddress(self.used_ring()))
            .unwrap();
        queue.set_ready(true);
        ActiveQueue {
            queue,
            kick: self.kick.try_clone().unwrap(),
        }
    }

    pub(crate) fn device_queue(&self) -> DeviceQueue {
        DeviceQueue::new(
            0,
            self.active_queue(),
            self.memory.clone(),
            self.interrupt.clone(),
        )
    }

    pub(crate) fn raw_descriptor(&self, at: u16, addr: u64, len: u32, flags: u16, next: u16) {
        let place = self.base + 16 * u64::from(at);
        self.memory.write_obj(addr, GuestAddress(place)).unwrap();
        self.memory.write_obj(len, GuestAddress(place + 8)).unwrap();
        self.memory
            .write_obj(flags, GuestAddress(place + 12))
            .unwrap();
        self.memory
            .write_obj(next, GuestAddress(place + 14))
            .unwrap();
    }

    pub(crate) fn set_avail_idx(&mut self, idx: u16) {
        self.avail = idx;
        self.memory
            .store(idx, GuestAddress(self.avail_ring() + 2), Ordering::Release)
            .unwrap();
    }

    pub(crate) fn make_available(&mut self, head: u16) {
        let slot = u64::from(self.avail % self.size);
        self.memory
            .write_obj(head, GuestAddress(self.avail_ring() + 4 + 2 * slot))
            .unwrap();
        self.set_avail_idx(self.avail.wrapping_add(1));
    }

    /// Makes a chain of `(address, length, direction)` available; returns its head.
    pub(crate) fn add(&mut self, chain: &[(u64, u32, u16)]) -> u16 {
        let head = self.next_descriptor;
        for (i, &(addr, len, direction)) in chain.iter().enumerate() {
            let at = self.next_descriptor;
            self.next_descriptor = (at + 1) % self.size;
            let next = if i + 1 < chain.len() { NEXT } else { 0 };
            self.raw_descriptor(at, addr, len, direction | next, self.next_descriptor);
        }
        self.make_available(head);
        head
    }

    /// Adds a chain and notifies.
    pub(crate) fn send(&mut self, chain: &[(u64, u32, u16)]) -> u16 {
        let head = self.add(chain);
        self.kick.write(1).unwrap();
        head
    }

    /// The chains that the device gave back since the last call: head and length.
    pub(crate) fn used(&mut self) -> Vec<(u32, u32)> {
        let idx: u16 = self
            .memory
            .load(GuestAddress(self.used_ring() + 2), Ordering::Acquire)
            .unwrap();
        let mut out = Vec::new();
        while self.seen != idx {
            let at = self.used_ring() + 4 + 8 * u64::from(self.seen % self.size);
            let id = self.memory.read_obj(GuestAddress(at)).unwrap();
            out.push((id, self.memory.read_obj(GuestAddress(at + 4)).unwrap()));
            self.seen = self.seen.wrapping_add(1);
        }
        out
    }

    /// Waits, no longer than [`PATIENCE`], until the device gave `count` chains back.
    pub(crate) fn wait_used(&mut self, count: usize) -> Vec<(u32, u32)> {
        let mut out = Vec::new();
        wait_until(|| {
            out.extend(self.used());
            out.len() >= count
        });
        out
    }

    pub(crate) fn bytes(&self, at: u64, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        self.memory.read_slice(&mut out, GuestAddress(at)).unwrap();
        out
    }

    pub(crate) fn put(&self, at: u64, data: &[u8]) {
        self.memory.write_slice(data, GuestAddress(at)).unwrap();
    }
}

/// How long a device's thread may take on a loaded machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Waits, no longer than [`PATIENCE`], until `done`.
pub(crate) fn wait_until(mut done: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < end, "timed out");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A directory that goes away with the test.
pub(crate) struct TempDir(pub(crate) std::path::PathBuf);

impl TempDir {
    pub(crate) fn new() -> Self {
        static NEXT: Mutex<u32> = Mutex::new(0);
        let mut next = lock(&NEXT);
        *next += 1;
        let path =
            std::env::temp_dir().join(format!("longarm-devices-{}-{}", std::process::id(), *next));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
