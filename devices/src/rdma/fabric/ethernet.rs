//! The fabric as an Ethernet switch: a port for the local interface, whose other end lives in another thread, and the table that says
//! to which peer an address leads (`docs/fabric.md`, section 5).

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

use super::PeerId;
use crate::rdma::stats::Stats;

/// Longest Ethernet frame that is carried, without FCS.
pub const MAX_FRAME: usize = 65_536;
/// Length of an Ethernet header: no shorter frame is carried.
pub const MIN_FRAME: usize = 14;
/// Bytes that wait for either side before frames are dropped.
const QUEUE_BYTES: usize = 1 << 20;
/// Frames that wait for either side before frames are dropped.
const QUEUE_FRAMES: usize = 4096;
/// Addresses that are remembered.
const TABLE_ENTRIES: usize = 4096;
/// How long an address that is not heard of is remembered.
const AGEING: Duration = Duration::from_secs(300);

/// A MAC address.
pub type Mac = [u8; 6];

#[derive(Default)]
struct Frames {
    bytes: VecDeque<u8>,
    lengths: VecDeque<usize>,
}

/// Frames on their way from one thread to another.
struct Channel {
    frames: Mutex<Frames>,
    /// Frames may wait; lets the reader look without the lock.
    waiting: AtomicBool,
    event: EventFd,
}

impl Channel {
    fn new() -> io::Result<Self> {
        Ok(Channel {
            frames: Mutex::default(),
            waiting: AtomicBool::new(false),
            event: EventFd::new(EFD_NONBLOCK | EFD_CLOEXEC)?,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Frames> {
        // Nothing is called under the lock that could leave the queue half changed.
        self.frames.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a frame, if there is room; wakes the reader if it may sleep.
    fn push(&self, parts: &[&[u8]]) -> bool {
        let length = parts.iter().map(|part| part.len()).sum();
        let mut frames = self.lock();
        if frames.bytes.len() + length > QUEUE_BYTES || frames.lengths.len() >= QUEUE_FRAMES {
            return false;
        }
        for part in parts {
            frames.bytes.extend(*part);
        }
        frames.lengths.push_back(length);
        let first = !self.waiting.swap(true, Ordering::AcqRel);
        drop(frames);
        if first {
            // Fails only when the counter is full, and then it is readable.
            let _ = self.event.write(1);
        }
        true
    }

    /// Takes the first frame into `buffer`, as much of it as fits; its length.
    fn pop(&self, buffer: &mut [u8]) -> Option<usize> {
        if !self.waiting.load(Ordering::Acquire) {
            return None;
        }
        let mut frames = self.lock();
        let Some(length) = frames.lengths.pop_front() else {
            // Under the lock, so that a frame queued from now on signals again.
            let _ = self.event.read();
            self.waiting.store(false, Ordering::Release);
            return None;
        };
        let (head, tail) = frames.bytes.as_slices();
        let from_head = length.min(head.len()).min(buffer.len());
        buffer[..from_head].copy_from_slice(&head[..from_head]);
        let from_tail = length.min(buffer.len()) - from_head;
        buffer[from_head..from_head + from_tail].copy_from_slice(&tail[..from_tail]);
        frames.bytes.drain(..length);
        Some(length)
    }
}

struct Port {
    to_fabric: Channel,
    to_interface: Channel,
    stats: Arc<Stats>,
}

/// The local interface's end of the switch port, for the thread that runs the interface. Neither side ever waits for the other: a queue
/// that is full drops the frame and counts it.
pub struct EthernetPort {
    port: Arc<Port>,
}

impl EthernetPort {
    /// Sends a frame (without FCS), given in parts. False if it was dropped: the queue is full, or it is no frame of
    /// [`MIN_FRAME`] to [`MAX_FRAME`] bytes.
    pub fn send(&self, parts: &[&[u8]]) -> bool {
        let length = parts.iter().map(|part| part.len()).sum();
        let sent = (MIN_FRAME..=MAX_FRAME).contains(&length) && self.port.to_fabric.push(parts);
        if !sent {
            self.port.stats.ethernet.tx_dropped.add(1);
        }
        sent
    }

    /// Takes a frame that came. Its length, which is more than `buffer` holds if the frame was cut; `None` if none waits.
    pub fn receive(&self, buffer: &mut [u8]) -> Option<usize> {
        self.port.to_interface.pop(buffer)
    }

    /// Becomes readable when a frame comes, and stays so until [`EthernetPort::receive`] has returned `None`.
    pub fn wait_fd(&self) -> RawFd {
        self.port.to_interface.event.as_raw_fd()
    }
}

/// Where a frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Destination {
    /// To one peer.
    Peer(PeerId),
    /// From the local interface to all peers.
    AllPeers,
    /// To the local interface.
    Interface,
    /// Nowhere.
    Nowhere,
}

/// The switch itself, in the fabric's thread.
#[derive(Default)]
pub(super) struct Switch {
    table: HashMap<Mac, (PeerId, Instant)>,
    port: Option<Arc<Port>>,
}

impl Switch {
    /// Makes the port for the local interface, in the place of an earlier one.
    pub(super) fn make_port(&mut self, stats: Arc<Stats>) -> io::Result<EthernetPort> {
        let port = Arc::new(Port {
            to_fabric: Channel::new()?,
            to_interface: Channel::new()?,
            stats,
        });
        self.port = Some(port.clone());
        Ok(EthernetPort { port })
    }

    /// Becomes readable when the local interface has sent.
    pub(super) fn wait_fd(&self) -> Option<RawFd> {
        let port = self.port.as_ref()?;
        Some(port.to_fabric.event.as_raw_fd())
    }

    /// The next frame from the local interface, and its length.
    pub(super) fn take_outgoing(&self, buffer: &mut [u8]) -> Option<usize> {
        self.port.as_ref()?.to_fabric.pop(buffer)
    }

    /// Hands a frame to the local interface, or drops it.
    pub(super) fn deliver(&self, frame: &[u8]) -> bool {
        let Some(port) = &self.port else {
            return false;
        };
        let delivered = port.to_interface.push(&[frame]);
        match delivered {
            true => port.stats.ethernet.rx_frames.add(1),
            false => port.stats.ethernet.rx_dropped.add(1),
        }
        delivered
    }

    /// Learns where the frame came from ([`PeerId::LOCAL`]: the local interface) and says where it goes.
    pub(super) fn forward(&mut self, from: PeerId, frame: &[u8], now: Instant) -> Destination {
        let (Some(target), Some(source)) = (mac(frame, 0), mac(frame, 6)) else {
            return Destination::Nowhere;
        };
        self.learn(from, source, now);
        let known = self.look_up(target, now);
        match (from, known) {
            (PeerId::LOCAL, Some(PeerId::LOCAL)) => Destination::Nowhere,
            (PeerId::LOCAL, Some(peer)) => Destination::Peer(peer),
            (PeerId::LOCAL, None) => Destination::AllPeers,
            // What came from a peer never goes to another.
            (_, None | Some(PeerId::LOCAL)) => Destination::Interface,
            (_, Some(_)) => Destination::Nowhere,
        }
    }

    fn learn(&mut self, from: PeerId, source: Mac, now: Instant) {
        if source[0] & 1 != 0 || source == [0; 6] {
            return;
        }
        if self.table.len() >= TABLE_ENTRIES && !self.table.contains_key(&source) {
            self.table.retain(|_, (_, heard)| fresh(*heard, now));
            if self.table.len() >= TABLE_ENTRIES {
                return;
            }
        }
        self.table.insert(source, (from, now));
    }

    fn look_up(&self, target: Mac, now: Instant) -> Option<PeerId> {
        let (peer, heard) = self.table.get(&target)?;
        fresh(*heard, now).then_some(*peer)
    }

    /// Forgets the addresses behind a peer whose link is lost.
    pub(super) fn forget(&mut self, gone: PeerId) {
        self.table.retain(|_, (peer, _)| *peer != gone);
    }
}

fn fresh(heard: Instant, now: Instant) -> bool {
    now.saturating_duration_since(heard) < AGEING
}

fn mac(frame: &[u8], at: usize) -> Option<Mac> {
    frame.get(at..at + 6)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Mac = [2, 0, 0, 0, 0, 1];
    const THERE: Mac = [2, 0, 0, 0, 0, 2];
    const BROADCAST: Mac = [0xff; 6];
    const PEER: PeerId = PeerId(1);
    const SECOND: PeerId = PeerId(2);

    fn frame(to: Mac, from: Mac) -> Vec<u8> {
        let mut frame = vec![0; 60];
        frame[..6].copy_from_slice(&to);
        frame[6..12].copy_from_slice(&from);
        frame
    }

    #[test]
    fn an_unknown_address_is_flooded_and_a_learned_one_is_not() {
        let mut switch = Switch::default();
        let now = Instant::now();
        let out = frame(THERE, HERE);
        assert_eq!(
            switch.forward(PeerId::LOCAL, &out, now),
            Destination::AllPeers
        );
        assert_eq!(
            switch.forward(PEER, &frame(HERE, THERE), now),
            Destination::Interface
        );
        assert_eq!(
            switch.forward(PeerId::LOCAL, &out, now),
            Destination::Peer(PEER)
        );
        let broadcast = frame(BROADCAST, HERE);
        assert_eq!(
            switch.forward(PeerId::LOCAL, &broadcast, now),
            Destination::AllPeers
        );
    }

    #[test]
    fn nothing_goes_from_peer_to_peer() {
        let mut switch = Switch::default();
        let now = Instant::now();
        switch.forward(SECOND, &frame(HERE, THERE), now);
        assert_eq!(
            switch.forward(PEER, &frame(THERE, [2; 6]), now),
            Destination::Nowhere
        );
        assert_eq!(
            switch.forward(PEER, &frame(BROADCAST, [2; 6]), now),
            Destination::Interface
        );
    }

    #[test]
    fn an_address_moves_ages_and_goes_with_its_peer() {
        let mut switch = Switch::default();
        let now = Instant::now();
        let out = frame(THERE, HERE);
        switch.forward(PEER, &frame(HERE, THERE), now);
        switch.forward(SECOND, &frame(HERE, THERE), now);
        assert_eq!(
            switch.forward(PeerId::LOCAL, &out, now),
            Destination::Peer(SECOND)
        );
        assert_eq!(
            switch.forward(PeerId::LOCAL, &out, now + AGEING),
            Destination::AllPeers
        );
        switch.forward(SECOND, &frame(HERE, THERE), now);
        switch.forget(SECOND);
        assert_eq!(
            switch.forward(PeerId::LOCAL, &out, now),
            Destination::AllPeers
        );
    }

    #[test]
    fn the_table_is_bounded_and_makes_room_by_age() {
        let mut switch = Switch::default();
        let now = Instant::now();
        for number in 0..TABLE_ENTRIES as u32 + 10 {
            let [a, b, c, d] = number.to_be_bytes();
            switch.forward(PEER, &frame(HERE, [2, 9, a, b, c, d]), now);
        }
        assert_eq!(switch.table.len(), TABLE_ENTRIES);
        switch.forward(PEER, &frame(HERE, THERE), now + AGEING);
        assert_eq!(switch.table.len(), 1);
    }

    #[test]
    fn group_addresses_are_not_learned_and_runts_go_nowhere() {
        let mut switch = Switch::default();
        let now = Instant::now();
        switch.forward(PEER, &frame(HERE, BROADCAST), now);
        switch.forward(PEER, &frame(HERE, [0; 6]), now);
        assert!(switch.table.is_empty());
        assert_eq!(switch.forward(PEER, &[0; 11], now), Destination::Nowhere);
    }

    #[test]
    fn frames_pass_the_port_whole_in_order_and_signalled() {
        let mut switch = Switch::default();
        let stats = Arc::new(Stats::default());
        let port = switch.make_port(stats.clone()).unwrap();
        let mut buffer = [0; 100];
        assert!(switch.take_outgoing(&mut buffer).is_none());
        assert!(port.send(&[&[1; 10], &[2; 10]]));
        assert!(port.send(&[&[3; 14]]));
        assert!(!port.send(&[&[3; 13]]));
        assert!(!port.send(&[&vec![3; MAX_FRAME + 1]]));
        assert_eq!(stats.ethernet.tx_dropped.get(), 2);
        assert_eq!(switch.take_outgoing(&mut buffer), Some(20));
        assert_eq!(buffer[..20], [[1; 10], [2; 10]].concat());
        assert_eq!(switch.take_outgoing(&mut buffer), Some(14));
        assert_eq!(switch.take_outgoing(&mut buffer), None);
        assert!(port.port.to_fabric.event.read().is_err());
        assert!(switch.deliver(&[7; 200]));
        assert_eq!(port.receive(&mut buffer), Some(200));
        assert_eq!(buffer, [7; 100]);
        assert_eq!(port.receive(&mut buffer), None);
    }

    #[test]
    fn a_full_queue_drops_and_counts() {
        let mut switch = Switch::default();
        let stats = Arc::new(Stats::default());
        let port = switch.make_port(stats.clone()).unwrap();
        let frame = vec![1; 9014];
        let mut taken = 0;
        while switch.deliver(&frame) {
            taken += 1;
        }
        assert_eq!(taken, QUEUE_BYTES / frame.len());
        assert_eq!(stats.ethernet.rx_dropped.get(), 1);
        let mut buffer = vec![0; 9014];
        for _ in 0..taken {
            assert_eq!(port.receive(&mut buffer), Some(9014));
            assert_eq!(buffer, frame);
        }
        assert!(switch.deliver(&frame));
    }
}
