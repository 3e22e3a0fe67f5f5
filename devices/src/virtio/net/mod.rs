//! Network device (virtio 1.2, 5.1): one pair of queues, no offloads, any MTU that a frame can have.
//!
//! Receive buffers are not merged: a driver's buffer must hold a whole frame. Linux sees to that, given the MTU.

mod backend;
mod fabric;
mod tap;
#[cfg(test)]
mod tests;

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use virtio_bindings::virtio_ids::VIRTIO_ID_NET;
use virtio_bindings::virtio_net::{
    VIRTIO_NET_F_MAC, VIRTIO_NET_F_MTU, VIRTIO_NET_F_STATUS, VIRTIO_NET_S_LINK_UP,
};
use vmm_sys_util::epoll::EventSet;

pub use self::backend::Backend;
pub use self::tap::Tap;
use super::queue::{Chain, DeviceQueue, QueueError};
use super::worker::{Poller, Worker};
use super::{
    ActivateError, Activation, COMMON_FEATURES, VirtioDevice, VirtioInterrupt, read_config_image,
};
use crate::bus::lock;

const QUEUE_SIZES: [u16; 2] = [256, 256];
const RX: u16 = 0;
const TX: u16 = 1;
/// `struct virtio_net_hdr`, with `num_buffers`, as all modern devices have it.
const HEADER: usize = 12;
/// An Ethernet header.
const MIN_FRAME: usize = 14;
/// An Ethernet header, a VLAN tag, and the largest packet that IP knows.
const MAX_FRAME: usize = 18 + 65535;
/// Frames moved in one direction before the other has its turn.
const BATCH: usize = 64;
/// The MTUs that may be told to a driver: from the least that IPv4 allows to what fits a frame.
const MTU: std::ops::RangeInclusive<u16> = 68..=65521;

const TOKEN_RX: u64 = 0;
const TOKEN_TX: u64 = 1;
const TOKEN_BACKEND: u64 = 2;

/// An Ethernet address, written `02:00:00:00:00:01`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MacAddress(pub [u8; 6]);

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// Not an address that an interface can have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no MAC address of an interface: six bytes in hexadecimal with colons between, not a multicast one, not all zero"
)]
pub struct BadMac(String);

impl FromStr for MacAddress {
    type Err = BadMac;

    fn from_str(text: &str) -> Result<Self, BadMac> {
        let bad = || BadMac(text.into());
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let part = parts
                .next()
                .filter(|p| p.len() == 2 && p.bytes().all(|b| b.is_ascii_hexdigit()));
            *byte = u8::from_str_radix(part.ok_or_else(bad)?, 16).map_err(|_| bad())?;
        }
        if parts.next().is_some() || bytes[0] & 1 != 0 || bytes == [0; 6] {
            return Err(bad());
        }
        Ok(Self(bytes))
    }
}

/// An MTU that no frame can carry, or that IP does not allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("MTU {0}: must be {first} to {last}", first = MTU.start(), last = MTU.end())]
pub struct BadMtu(u16);

/// The state of the cable, which the host may change at any time.
pub struct Link {
    up: AtomicBool,
    interrupt: Mutex<Option<Arc<dyn VirtioInterrupt>>>,
}

impl Link {
    /// Plugs the cable in, or pulls it: frames are dropped both ways, and the driver is told.
    pub fn set(&self, up: bool) {
        if self.up.swap(up, Ordering::AcqRel) != up
            && let Some(interrupt) = &*lock(&self.interrupt)
        {
            interrupt.config();
        }
    }

    /// Whether the cable is plugged in.
    pub fn is_up(&self) -> bool {
        self.up.load(Ordering::Acquire)
    }
}

/// What a device has carried and lost since it was made.
#[derive(Debug, Default)]
pub struct NetCounters {
    /// Frames from the driver that were handed to the backend.
    pub tx_frames: AtomicU64,
    /// Frames from the driver that were not: malformed, link down, or the backend failed.
    pub tx_dropped: AtomicU64,
    /// Frames from the backend that the driver got.
    pub rx_frames: AtomicU64,
    /// Frames from the backend that the driver did not get: its buffer too short, or the link down.
    pub rx_dropped: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// The device.
pub struct Net {
    mac: MacAddress,
    mtu: Option<u16>,
    link: Arc<Link>,
    counters: Arc<NetCounters>,
    backend: Arc<Mutex<Box<dyn Backend>>>,
    worker: Option<Worker>,
}

impl Net {
    /// A device with address `mac`, the link up. `mtu`, if given, is told to the driver as the largest that works.
    pub fn new(
        mac: MacAddress,
        mtu: Option<u16>,
        backend: Box<dyn Backend>,
    ) -> Result<Self, BadMtu> {
        if let Some(mtu) = mtu.filter(|m| !MTU.contains(m)) {
            return Err(BadMtu(mtu));
        }
        Ok(Self {
            mac,
            mtu,
            link: Arc::new(Link {
                up: AtomicBool::new(true),
                interrupt: Mutex::new(None),
            }),
            counters: Arc::default(),
            backend: Arc::new(Mutex::new(backend)),
            worker: None,
        })
    }

    /// The cable.
    pub fn link(&self) -> Arc<Link> {
        self.link.clone()
    }

    /// The counters.
    pub fn counters(&self) -> Arc<NetCounters> {
        self.counters.clone()
    }
}

impl VirtioDevice for Net {
    fn device_type(&self) -> u32 {
        VIRTIO_ID_NET
    }

    fn features(&self) -> u64 {
        let mtu = if self.mtu.is_some() {
            1 << VIRTIO_NET_F_MTU
        } else {
            0
        };
        COMMON_FEATURES | mtu | 1 << VIRTIO_NET_F_MAC | 1 << VIRTIO_NET_F_STATUS
    }

    fn queue_max_sizes(&self) -> &[u16] {
        &QUEUE_SIZES
    }

    fn read_config(&self, offset: u64, data: &mut [u8]) {
        // struct virtio_net_config: mac at 0, status at 6, max_virtqueue_pairs at 8, mtu at 10.
        let mut config = [0; 12];
        config[..6].copy_from_slice(&self.mac.0);
        let status = if self.link.is_up() {
            VIRTIO_NET_S_LINK_UP as u16
        } else {
            0
        };
        config[6..8].copy_from_slice(&status.to_le_bytes());
        config[8..10].copy_from_slice(&1u16.to_le_bytes());
        config[10..].copy_from_slice(&self.mtu.unwrap_or(0).to_le_bytes());
        read_config_image(&config, offset, data);
    }

    fn write_config(&mut self, _offset: u64, _data: &[u8]) {}

    fn activate(&mut self, mut activation: Activation) -> Result<(), ActivateError> {
        let (rx, tx) = (activation.device_queue(RX)?, activation.device_queue(TX)?);
        let (backend, link, counters) = (
            self.backend.clone(),
            self.link.clone(),
            self.counters.clone(),
        );
        let run = move |poller| {
            let cable = Cable {
                link,
                counters,
                buffer: vec![0; MAX_FRAME],
                chain: Chain::default(),
            };
            cable.run(&poller, rx, tx, &mut **lock(&backend));
        };
        self.worker = Some(Worker::spawn("net", run)?);
        *lock(&self.link.interrupt) = Some(activation.interrupt);
        Ok(())
    }

    fn reset(&mut self) {
        *lock(&self.link.interrupt) = None;
        self.worker = None;
    }
}

/// What keeps a direction from going on at once.
#[derive(Debug, PartialEq, Eq)]
enum Moved {
    /// There may be more.
    More,
    /// The source has nothing.
    Dry,
    /// The driver has no buffer for what comes in.
    NoBuffer,
    /// The backend gives nothing any more.
    Broken,
}

/// The device's thread.
struct Cable {
    link: Arc<Link>,
    counters: Arc<NetCounters>,
    buffer: Vec<u8>,
    chain: Chain,
}

impl Cable {
    fn run(
        mut self,
        poller: &Poller,
        mut rx: DeviceQueue,
        mut tx: DeviceQueue,
        backend: &mut dyn Backend,
    ) {
        for (fd, token) in [
            (rx.kick_fd(), TOKEN_RX),
            (tx.kick_fd(), TOKEN_TX),
            (backend.wait_fd(), TOKEN_BACKEND),
        ] {
            if let Err(e) = poller.add(fd, token, EventSet::IN) {
                return log::error!("virtio-net: {e}");
            }
        }
        let mut ready = Vec::new();
        let (mut watching, mut broken) = (true, false);
        loop {
            let sent = match self.transmit(&mut tx, backend) {
                Ok(moved) => moved,
                Err(e) => return tx.fail(&e),
            };
            let received = if broken {
                Moved::Broken
            } else {
                match self.receive(&mut rx, backend) {
                    Ok(moved) => moved,
                    Err(e) => return rx.fail(&e),
                }
            };
            // Without a buffer to put it into, a frame that waits is no reason to wake up.
            let watch = matches!(received, Moved::More | Moved::Dry);
            let changed = if received == Moved::Broken && !broken {
                broken = true;
                poller.remove(backend.wait_fd())
            } else if watch != watching && !broken {
                let events = if watch {
                    EventSet::IN
                } else {
                    EventSet::empty()
                };
                poller.modify(backend.wait_fd(), TOKEN_BACKEND, events)
            } else {
                Ok(())
            };
            if let Err(e) = changed {
                return log::error!("virtio-net: {e}");
            }
            watching = watch;
            let more = sent == Moved::More || received == Moved::More;
            if !poller.wait(if more { 0 } else { -1 }, &mut ready) {
                return;
            }
            for (token, _) in &ready {
                match *token {
                    TOKEN_RX => rx.clear_kick(),
                    TOKEN_TX => tx.clear_kick(),
                    _ => {}
                }
            }
        }
    }

    /// From the driver to the backend.
    fn transmit(
        &mut self,
        tx: &mut DeviceQueue,
        backend: &mut dyn Backend,
    ) -> Result<Moved, QueueError> {
        tx.disable_notification()?;
        let mut moved = 0;
        while moved < BATCH && tx.pop(&mut self.chain)? {
            moved += 1;
            match self.send(tx, backend) {
                Ok(true) => count(&self.counters.tx_frames),
                Ok(false) => count(&self.counters.tx_dropped),
                Err(e) => {
                    log::debug!("virtio-net: frame dropped: {e}");
                    count(&self.counters.tx_dropped);
                }
            }
            tx.push(&self.chain, 0)?;
        }
        if moved > 0 {
            tx.signal()?;
        }
        Ok(if moved == BATCH || tx.enable_notification()? {
            Moved::More
        } else {
            Moved::Dry
        })
    }

    fn send(
        &mut self,
        tx: &DeviceQueue,
        backend: &mut dyn Backend,
    ) -> Result<bool, Box<dyn std::error::Error>> {
        // The header asks for offloads, none of which is offered, and says nothing else.
        let len = self.chain.readable.len().saturating_sub(HEADER);
        if !(MIN_FRAME..=MAX_FRAME).contains(&len) || !self.link.is_up() {
            return Ok(false);
        }
        let frame = &mut self.buffer[..len];
        self.chain.readable.read(tx.memory(), HEADER, frame)?;
        backend.send(frame)?;
        Ok(true)
    }

    /// From the backend to the driver.
    fn receive(
        &mut self,
        rx: &mut DeviceQueue,
        backend: &mut dyn Backend,
    ) -> Result<Moved, QueueError> {
        let mut used = 0;
        let mut moved = Moved::More;
        for _ in 0..BATCH {
            if !rx.pop(&mut self.chain)? {
                // A buffer that came while notifications were off is found on the next round.
                moved = if rx.enable_notification()? {
                    Moved::More
                } else {
                    Moved::NoBuffer
                };
                break;
            }
            let len = match backend.receive(&mut self.buffer) {
                Ok(Some(len)) => len,
                Ok(None) => {
                    rx.unpop();
                    moved = Moved::Dry;
                    break;
                }
                Err(e) => {
                    log::error!("virtio-net: nothing more is received until the next reset: {e}");
                    rx.unpop();
                    moved = Moved::Broken;
                    break;
                }
            };
            if self.put(rx, len)? {
                used += 1;
            }
        }
        if used > 0 {
            rx.signal()?;
        }
        Ok(moved)
    }

    /// Puts the frame of `len` bytes in the buffer into the chain, or drops it. Returns whether the chain was given back.
    fn put(&mut self, rx: &mut DeviceQueue, len: usize) -> Result<bool, QueueError> {
        if self.chain.writable.len() < HEADER + MIN_FRAME {
            // No frame ever fits; keeping it would stop the queue.
            count(&self.counters.rx_dropped);
            rx.push(&self.chain, 0)?;
            return Ok(true);
        }
        let fits = len <= self.buffer.len() && HEADER + len <= self.chain.writable.len();
        if !fits || !self.link.is_up() {
            count(&self.counters.rx_dropped);
            rx.unpop();
            return Ok(false);
        }
        let mut header = [0; HEADER];
        // num_buffers
        header[10] = 1;
        let written = self.chain.writable.write(rx.memory(), 0, &header);
        let written = written.and_then(|()| {
            self.chain
                .writable
                .write(rx.memory(), HEADER, &self.buffer[..len])
        });
        match written {
            Ok(()) => {
                count(&self.counters.rx_frames);
                rx.push(&self.chain, HEADER + len)?;
            }
            Err(e) => {
                log::debug!("virtio-net: frame lost: {e}");
                count(&self.counters.rx_dropped);
                rx.push(&self.chain, 0)?;
            }
        }
        Ok(true)
    }
}
