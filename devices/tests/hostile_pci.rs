//! A guest that pokes at everything: configuration space, BARs, MSI-X, queues and rings full of nonsense, against real devices on a
//! real root bus. Nothing may panic or hang, and afterwards a well-behaved driver must find a device that works.
//!
//! `LONGARM_HOSTILE_ROUNDS` sets the number of rounds, `LONGARM_HOSTILE_SEED` the seed, which a failure prints.

use std::io::{self, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use devices::GuestRam;
use devices::bus::{Bus, BusDevice};
use devices::interrupt::{IoEvents, MsiController, MsiGroup, MsiMessage};
use devices::pci::{Ecam, PciRoot};
use devices::virtio::VirtioDevice;
use devices::virtio::block::Block;
use devices::virtio::net::{Backend, Net};
use devices::virtio::pci::VirtioPci;
use devices::virtio::rng::Rng;
use devices::virtio::vsock::Vsock;
use vm_memory::{Bytes, GuestAddress};
use vmm_sys_util::eventfd::EventFd;

const MEMORY: u64 = 4 << 20;
const WINDOW: std::ops::RangeInclusive<u64> = 0x40_0000_0000..=0x40_3fff_ffff;
const DEVICES: u64 = 4;
const RNG_SLOT: u64 = 1;
const PATIENCE: Duration = Duration::from_secs(60);

struct NoInterrupts(AtomicU32);
impl MsiGroup for NoInterrupts {
    fn set(&self, _: u16, _: Option<MsiMessage>) -> io::Result<()> {
        // Sometimes the hypervisor has no room.
        if self.0.fetch_add(1, Ordering::Relaxed).is_multiple_of(7) {
            Err(io::ErrorKind::OutOfMemory.into())
        } else {
            Ok(())
        }
    }
    fn trigger(&self, _: u16) {}
}
struct Controller;
impl MsiController for Controller {
    fn allocate(&self, _: u16) -> io::Result<Arc<dyn MsiGroup>> {
        Ok(Arc::new(NoInterrupts(AtomicU32::new(1))))
    }
}
struct Events(AtomicU32);
impl IoEvents for Events {
    fn register(&self, _: u64, _: &EventFd) -> io::Result<()> {
        if self.0.fetch_add(1, Ordering::Relaxed).is_multiple_of(5) {
            Err(io::ErrorKind::StorageFull.into())
        } else {
            Ok(())
        }
    }
    fn unregister(&self, _: u64, _: &EventFd) -> io::Result<()> {
        Ok(())
    }
}

struct Cable(UnixDatagram);
impl Backend for Cable {
    fn send(&mut self, frame: &[u8]) -> io::Result<()> {
        self.0.send(frame).map(|_| ())
    }
    fn receive(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        Ok(self.0.recv(buffer).ok())
    }
    fn wait_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// xorshift64*: the same sequence for the same seed, everywhere.
struct Random(u64);
impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
    /// A number as an attacker would choose it.
    fn nasty(&mut self) -> u64 {
        let n = self.next();
        match n % 8 {
            0 => 0,
            1 => u64::MAX,
            2 => 1 << (n >> 8 & 63),
            3 => (1u64 << (n >> 8 & 63)).wrapping_sub(1),
            4 => n >> 8 & 0xff,
            5 => n >> 8 & 0xffff,
            6 => ((n >> 8) % MEMORY) & !0xf,
            _ => n.rotate_left(13),
        }
    }
    /// Below `limit`, but once in `n` as an attacker would choose it.
    fn mostly_below(&mut self, limit: u64, n: u64) -> u64 {
        if self.one_in(n) {
            self.nasty()
        } else {
            self.below(limit)
        }
    }
}

struct Machine {
    memory: Arc<GuestRam>,
    bus: Arc<Bus>,
    ecam: Ecam,
    peer: UnixDatagram,
    dir: PathBuf,
    _listener: UnixListener,
}

impl Machine {
    fn new() -> Self {
        let dir = std::env::temp_dir().join(format!("longarm-hostile-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        std::fs::write(dir.join("disk"), vec![7; 1 << 20]).unwrap();
        let listener = UnixListener::bind(dir.join("vsock_5")).unwrap();
        let (cable, peer) = UnixDatagram::pair().unwrap();
        cable.set_nonblocking(true).unwrap();
        peer.set_nonblocking(true).unwrap();
        let memory =
            Arc::new(GuestRam::from_ranges(&[(GuestAddress(0), MEMORY as usize)]).unwrap());
        let bus = Arc::new(Bus::new());
        let root = Arc::new(PciRoot::new(bus.clone(), WINDOW));
        let io: Arc<dyn IoEvents> = Arc::new(Events(AtomicU32::new(1)));
        let mac = "02:00:00:00:00:01".parse().unwrap();
        let all: [Arc<Mutex<dyn VirtioDevice>>; DEVICES as usize] = [
            Arc::new(Mutex::new(Rng::new())),
            Arc::new(Mutex::new(
                Block::open(&dir.join("disk"), false, "disk").unwrap(),
            )),
            Arc::new(Mutex::new(
                Net::new(mac, Some(9000), Box::new(Cable(cable))).unwrap(),
            )),
            Arc::new(Mutex::new(Vsock::new(3, &dir.join("vsock")).unwrap())),
        ];
        for device in all {
            let function = VirtioPci::new(device, memory.clone(), &Controller, io.clone()).unwrap();
            root.add(Arc::new(Mutex::new(function))).unwrap();
        }
        Self {
            memory,
            bus,
            ecam: Ecam(root),
            peer,
            dir,
            _listener: listener,
        }
    }

    fn config_write(&mut self, slot: u64, register: u64, data: &[u8]) {
        self.ecam.write(slot << 15 | register, data);
    }

    /// Where the registers say that BAR 0 lies.
    fn bar(&mut self, slot: u64) -> u64 {
        let mut raw = [0; 8];
        self.ecam.read(slot << 15 | 0x10, &mut raw);
        u64::from_le_bytes(raw) & !0xf
    }

    fn set(&mut self, slot: u64, at: u64, len: usize, value: u64) {
        let bar = self.bar(slot);
        self.bus
            .write(bar.wrapping_add(at), &value.to_le_bytes()[..len]);
    }

    fn get(&mut self, slot: u64, at: u64, len: usize) -> u64 {
        let mut raw = [0; 8];
        let bar = self.bar(slot);
        self.bus.read(bar.wrapping_add(at), &mut raw[..len]);
        u64::from_le_bytes(raw)
    }

    /// BAR 0 back to where it can be decoded, and decoded.
    fn place(&mut self, slot: u64) {
        self.config_write(slot, 4, &[0, 0]);
        let home = WINDOW.start() + slot * (4 << 20);
        self.config_write(slot, 0x10, &home.to_le_bytes());
        self.config_write(slot, 4, &[2, 0]);
    }

    /// A driver's start, with queues where `place` says; every other thing is right.
    fn start(&mut self, slot: u64, mut place: impl FnMut(u64) -> [u64; 3]) {
        self.set(slot, 0x14, 1, 0);
        self.set(slot, 0x14, 1, 3);
        self.set(slot, 0x08, 4, 0);
        self.set(slot, 0x0c, 4, 0);
        self.set(slot, 0x08, 4, 1);
        self.set(slot, 0x0c, 4, 1);
        self.set(slot, 0x14, 1, 0xb);
        for queue in 0..self.get(slot, 0x12, 2).min(8) {
            let [desc, driver, device] = place(queue);
            self.set(slot, 0x16, 2, queue);
            self.set(slot, 0x18, 2, 16);
            self.set(slot, 0x20, 8, desc);
            self.set(slot, 0x28, 8, driver);
            self.set(slot, 0x30, 8, device);
            self.set(slot, 0x1c, 2, 1);
        }
        self.set(slot, 0x14, 1, 0xf);
    }

    fn put<T: vm_memory::ByteValued>(&self, at: u64, value: T) {
        self.memory.write_obj(value, GuestAddress(at)).unwrap();
    }

    /// Descriptors and rings that a mad driver would make, at `base`, for a queue of 16.
    fn fill_rings(&self, random: &mut Random, base: u64) {
        for n in 0..16 {
            let at = base + 16 * n;
            let inside = random.below(MEMORY);
            self.put(
                at,
                if random.one_in(4) {
                    random.nasty()
                } else {
                    inside
                },
            );
            self.put(at + 8, random.mostly_below(9000, 3) as u32);
            self.put(at + 12, random.mostly_below(4, 8) as u16);
            self.put(at + 14, random.mostly_below(16, 8) as u16);
            self.put(base + 0x104 + 2 * n, random.mostly_below(16, 8) as u16);
        }
        self.put(base + 0x102, random.mostly_below(17, 8) as u16);
        self.put(base + 0x100, random.below(2) as u16);
    }

    /// Headers that devices will read, all over memory.
    fn fill_headers(&self, random: &mut Random) {
        for _ in 0..64 {
            let at = random.below(MEMORY - 64);
            if random.one_in(2) {
                // A block request.
                self.put(at, random.below(9) as u32);
                self.put(at + 8, random.mostly_below(2048, 3));
            } else {
                // A vsock packet.
                self.put(at, 3u64);
                self.put(at + 8, 2u64);
                self.put(at + 16, random.below(4) as u32);
                self.put(at + 20, 5u32);
                self.put(at + 24, random.nasty() as u32);
                self.put(at + 28, 1u16);
                self.put(at + 30, random.below(9) as u16);
                self.put(at + 36, random.nasty());
            }
        }
    }

    fn poke(&mut self, random: &mut Random) {
        let slot = random.below(DEVICES + 1);
        let len = 1 << random.below(4);
        let value = random.nasty();
        match random.below(10) {
            0 => {
                let register = random.below(0x120);
                self.config_write(slot, register, &value.to_le_bytes()[..len]);
            }
            1 => self.config_write(slot, 4, &(random.below(8) as u16).to_le_bytes()),
            2 => self.config_write(slot, 0x42, &[value as u8, value as u8 & 0xc0]),
            3 => {
                let at = 0x8000 + random.below(0x100);
                self.set(slot, at, len, value);
            }
            4..7 => {
                let at = random.below(0x40);
                self.set(slot, at, len, value);
            }
            7 => {
                let at = 0x3000 + 4 * random.below(4);
                self.set(slot, at, 2, 0);
            }
            8 => {
                let at = random.below(0x1_0010);
                self.get(slot, at, len);
            }
            _ => {
                let at = random.below(0x1_0010);
                self.set(slot, at, len, value);
            }
        }
    }

    fn round(&mut self, random: &mut Random) {
        for _ in 0..random.below(200) {
            self.poke(random);
        }
        self.fill_headers(random);
        for slot in 1..=DEVICES {
            self.place(slot);
            let mut bases = [0; 8];
            for base in &mut bases {
                *base = random.below(MEMORY - 0x1000) & !0xfff;
                self.fill_rings(random, *base);
            }
            let mad = random.one_in(6);
            self.start(slot, |queue| {
                let base = bases[queue as usize];
                if mad {
                    [random.nasty(), random.nasty(), random.nasty()]
                } else {
                    [base, base + 0x100, base + 0x200]
                }
            });
            for queue in 0..3 {
                self.set(slot, 0x3000 + 4 * queue, 2, queue);
            }
            let _ = self
                .peer
                .send(&vec![slot as u8; 14 + random.below(3000) as usize]);
            if let Ok(mut caller) = UnixStream::connect(self.dir.join("vsock")) {
                let _ = caller.write_all(b"CONNECT 3\nhello");
            }
            let mut sink = [0; 64];
            while self.peer.recv(&mut sink).is_ok() {}
            if random.one_in(4) {
                std::thread::sleep(Duration::from_micros(random.below(500)));
            }
        }
    }

    /// A well-behaved driver of the rng device gets its bytes.
    fn check_alive(&mut self) {
        // None may write to memory any more, ours in particular.
        for slot in 1..=DEVICES {
            self.place(slot);
            self.set(slot, 0x14, 1, 0);
            assert_eq!(self.get(slot, 0x14, 1), 0, "reset is answered");
        }
        self.put(0x1000, 0x3000u64);
        self.put(0x1008, 64u32);
        self.put(0x100c, 2u16);
        self.put(0x1100, 0u16);
        self.put(0x1104, 0u16);
        self.put(0x1202, 0u16);
        self.put(0x1102, 1u16);
        self.start(RNG_SLOT, |_| [0x1000, 0x1100, 0x1200]);
        assert_eq!(self.get(RNG_SLOT, 0x14, 1), 0xf);
        self.set(RNG_SLOT, 0x3000, 2, 0);
        let end = Instant::now() + PATIENCE;
        while self
            .memory
            .load::<u16>(GuestAddress(0x1202), Ordering::Acquire)
            .unwrap()
            != 1
        {
            assert!(
                Instant::now() < end,
                "the device no longer serves a good driver"
            );
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn a_hostile_guest_neither_panics_nor_hangs_the_devices() {
    let rounds = number("LONGARM_HOSTILE_ROUNDS").unwrap_or(150);
    let seed = number("LONGARM_HOSTILE_SEED").unwrap_or_else(|| std::process::id().into()) | 1;
    println!("seed {seed}");
    let (tx, progress) = mpsc::channel();
    let guest = std::thread::spawn(move || {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let mut machine = Machine::new();
        for round in 0..rounds {
            machine.round(&mut random);
            machine.check_alive();
            tx.send(round).unwrap();
        }
    });
    for _ in 0..rounds {
        if let Err(e) = progress.recv_timeout(PATIENCE) {
            assert_eq!(
                e,
                mpsc::RecvTimeoutError::Disconnected,
                "a round hangs (seed {seed})"
            );
            break;
        }
    }
    assert!(guest.join().is_ok(), "a round failed (seed {seed})");
}
