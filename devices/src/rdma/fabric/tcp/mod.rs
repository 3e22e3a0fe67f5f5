//! The fabric over TCP: one link to each peer, non-blocking sockets in an epoll of the fabric's own (`docs/fabric.md`).
//!
//! | module | holds |
//! | --- | --- |
//! | `config` | what the fabric is told at start |
//! | `control` | frames between the fabrics themselves: GIDs, signs of life, Ethernet |
//! | `hello` | the first frame of a link |
//! | `lifecycle` | links: accepted, dialled, greeted, timed, ended |
//! | `link` | the state of one link |
//! | `peers`, `routes` | who was met, and what leads there |
//! | `receive`, `transmit` | the two halves of the data path |
//! | `socket` | system calls |
//!
//! Sockets are watched edge-triggered: each is read until it has no more and written until it takes no more, a bounded amount at a time,
//! and what is left is remembered, not asked for again.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::Instant;

use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::timerfd::TimerFd;

use super::ethernet::{EthernetPort, MAX_FRAME, Switch};
use super::frame::{FrameHeader, MAX_PAYLOAD, kind};
use super::loopback::LocalQueue;
use super::{Fabric, Gid, PeerId, SendError, Sink};
use crate::rdma::memory::Segment;
use crate::rdma::stats::Stats;

mod config;
mod control;
mod hello;
mod lifecycle;
mod link;
mod peers;
mod receive;
mod routes;
mod socket;
#[cfg(test)]
mod tests;
mod transmit;

pub use config::{TcpConfig, TcpError, Timing};

use lifecycle::Target;
use link::{Link, LinkEnd, Phase};
use peers::Peers;
use receive::{Input, MAX_GIDS};
use routes::Routes;
use socket::Vectors;

/// What an epoll event is about; links have the top bit set.
const LISTENER: u64 = 0;
const TIMER: u64 = 1;
const ETHERNET: u64 = 2;
const LINK: u64 = 1 << 63;
/// Events taken from the epoll at a time.
const EVENTS: usize = 32;
/// Reads from one link in one poll.
const READS_PER_POLL: usize = 8;
/// Bytes read from one link in one poll, give or take a read.
const BYTES_PER_POLL: usize = 512 << 10;
/// Polls that go to links known to be readable before the epoll is asked again.
const POLLS_PER_WAIT: u32 = 16;
/// Polls that go to the hot link alone before the epoll is asked again.
const HOT_POLLS_PER_WAIT: u32 = 4;
/// Polls without success after which a link is hot no more.
const HOT_POLLS: u32 = 256;

/// The fabric over TCP.
pub struct TcpFabric {
    config: TcpConfig,
    epoll: Epoll,
    events: [EpollEvent; EVENTS],
    polls_since_wait: u32,
    listener: Option<TcpListener>,
    /// When to watch the listener again, if it rests.
    accept_again: Option<Instant>,
    timer: TimerFd,
    /// The timer ran out, or what it waits for has changed.
    maintenance_due: bool,
    links: Vec<Option<Link>>,
    generation: u32,
    /// Links to read from; the second is kept for its memory.
    ready: Vec<usize>,
    ready_spare: Vec<usize>,
    /// The link that something came on last, if no other did since: it is read without asking the epoll, which saves a system call
    /// where every microsecond counts. And how often that gave nothing.
    hot: Option<usize>,
    cold_polls: u32,
    /// Links to write to, of the same kind.
    unsent: Vec<usize>,
    unsent_spare: Vec<usize>,
    /// Links that wait for room in their socket: the epoll is asked in every poll then.
    blocked: usize,
    /// Some link has an end.
    any_end: bool,
    targets: Vec<Target>,
    jitter: u64,
    peers: Peers,
    routes: Routes,
    routes_changed: bool,
    switch: Switch,
    local: LocalQueue,
    stats: Arc<Stats>,
    vectors: Vectors,
    /// Where discarded payloads go, and where an Ethernet frame is looked at.
    scratch: Box<[u8]>,
    /// As of the last time that something happened.
    now: Instant,
}

impl TcpFabric {
    /// Listens, and begins to dial, as configured. Its peers' counters appear in `stats` under their instances.
    pub fn new(config: TcpConfig, stats: Arc<Stats>) -> Result<Self, TcpError> {
        let epoll = Epoll::new()?;
        let timer = TimerFd::new().map_err(io::Error::from)?;
        let listener = match config.listen {
            Some(address) => {
                let wrong = |source| TcpError::Listen { address, source };
                let listener = TcpListener::bind(address).map_err(wrong)?;
                listener.set_nonblocking(true).map_err(wrong)?;
                Some(listener)
            }
            None => None,
        };
        let watch = |fd, token| {
            epoll.ctl(
                ControlOperation::Add,
                fd,
                EpollEvent::new(EventSet::IN, token),
            )
        };
        watch(timer.as_raw_fd(), TIMER)?;
        if let Some(listener) = &listener {
            watch(listener.as_raw_fd(), LISTENER)?;
        }
        let mut addresses = config.peers.clone();
        addresses.sort_unstable();
        addresses.dedup();
        let now = Instant::now();
        let targets = addresses.into_iter();
        let targets = targets.map(|address| Target::new(address, now, &config.timing));
        let mut seed = [0; 8];
        seed.copy_from_slice(&config.instance[..8]);
        let mut fabric = TcpFabric {
            targets: targets.collect(),
            jitter: u64::from_le_bytes(seed),
            config,
            epoll,
            events: [EpollEvent::default(); EVENTS],
            polls_since_wait: POLLS_PER_WAIT,
            listener,
            accept_again: None,
            timer,
            maintenance_due: false,
            links: Vec::new(),
            generation: 0,
            ready: Vec::new(),
            ready_spare: Vec::new(),
            hot: None,
            cold_polls: 0,
            unsent: Vec::new(),
            unsent_spare: Vec::new(),
            blocked: 0,
            any_end: false,
            peers: Peers::default(),
            routes: Routes::default(),
            routes_changed: false,
            switch: Switch::default(),
            local: LocalQueue::default(),
            stats,
            vectors: Vectors::new(),
            scratch: vec![0; MAX_FRAME].into_boxed_slice(),
            now,
        };
        fabric.maintain();
        Ok(fabric)
    }

    /// The address that the fabric listens on, with the port that was found if any would do.
    pub fn local_address(&self) -> Option<SocketAddr> {
        self.listener.as_ref()?.local_addr().ok()
    }

    /// The port for the local network interface; there is one, so an earlier one is cut off.
    pub fn ethernet_port(&mut self) -> io::Result<EthernetPort> {
        let port = self.switch.make_port(self.stats.clone())?;
        if let Some(fd) = self.switch.wait_fd() {
            self.epoll.ctl(
                ControlOperation::Add,
                fd,
                EpollEvent::new(EventSet::IN, ETHERNET),
            )?;
        }
        Ok(port)
    }

    /// Decides what this poll reads from. True if the epoll told of something.
    fn choose(&mut self) -> bool {
        self.polls_since_wait += 1;
        if !self.ready.is_empty() {
            let due = self.blocked > 0 || self.polls_since_wait >= POLLS_PER_WAIT;
            return due && self.wait();
        }
        if self.blocked == 0
            && self.polls_since_wait < HOT_POLLS_PER_WAIT
            && let Some(slot) = self.hot
            && let Some(link) = &mut self.links[slot]
        {
            // What comes after an attempt in vain is told by the epoll all the same.
            link.readable = true;
            link.in_ready = true;
            self.ready.push(slot);
            self.cold_polls += 1;
            if self.cold_polls > HOT_POLLS {
                self.hot = None;
            }
            return false;
        }
        self.wait()
    }

    /// Notes what has become readable and writable.
    fn wait(&mut self) -> bool {
        self.polls_since_wait = 0;
        let Ok(count) = self.epoll.wait(0, &mut self.events) else {
            // A signal; nothing is lost, for the events are still there.
            return false;
        };
        for index in 0..count {
            let event = self.events[index];
            match event.data() {
                LISTENER => self.accept(),
                TIMER => self.maintenance_due = true,
                ETHERNET => (),
                token => self.link_event(token, event.event_set()),
            }
        }
        count > 0
    }

    fn link_event(&mut self, token: u64, events: EventSet) {
        let slot = (token & 0xffff_ffff) as usize;
        let generation = ((token & !LINK) >> 32) as u32;
        let Some(link) = self.links.get_mut(slot).and_then(Option::as_mut) else {
            return;
        };
        if link.generation != generation || link.end.is_some() {
            return;
        }
        let ended = EventSet::READ_HANG_UP | EventSet::HANG_UP | EventSet::ERROR;
        if events.intersects(ended) {
            link.closing = true;
        }
        if events.intersects(EventSet::OUT | EventSet::HANG_UP | EventSet::ERROR) {
            link.writable = true;
            if std::mem::take(&mut link.blocked) {
                self.blocked -= 1;
            }
            if link.phase == Phase::Connecting {
                self.connected(slot);
            } else if !link.transmit.is_empty() && !link.in_unsent {
                link.in_unsent = true;
                self.unsent.push(slot);
            }
        }
        let Some(link) = &mut self.links[slot] else {
            return;
        };
        if events.intersects(EventSet::IN | ended) && link.phase != Phase::Connecting {
            link.readable = true;
            if !link.in_ready {
                link.in_ready = true;
                self.ready.push(slot);
            }
        }
    }

    /// Reads from a link, a bounded amount: whether anything came, and whether there may be more.
    fn take_in(&mut self, slot: usize, sink: &mut dyn Sink) -> (bool, bool) {
        let (mut reads, mut bytes) = (0, 0);
        loop {
            let link = match &mut self.links[slot] {
                Some(link) if link.end.is_none() => link,
                _ => return (true, false),
            };
            let peer = link.peer().unwrap_or(PeerId::LOCAL);
            let stats = self.peers.get(peer).map(|peer| &*peer.stats);
            match link.receive.advance(peer, sink, stats) {
                Ok(Input::Control(header)) => {
                    self.control(slot, &header, sink);
                    if matches!(header.kind, kind::GID_ADD | kind::GID_DEL) {
                        // What comes behind it may count on the new routes, which the device follows between polls.
                        return (true, true);
                    }
                    continue;
                }
                Ok(Input::Wanting) => (),
                Err(malformed) => {
                    self.end(slot, LinkEnd::Malformed(malformed));
                    return (true, false);
                }
            }
            if !link.readable || reads >= READS_PER_POLL || bytes >= BYTES_PER_POLL {
                return (bytes > 0, link.readable);
            }
            let result = link
                .receive
                .read(&link.stream, &mut self.vectors, &mut self.scratch);
            if let Some(stats) = stats {
                stats.rx_calls.add(1);
            }
            match result {
                Ok((0, _)) => {
                    self.end(slot, LinkEnd::Closed);
                    return (true, false);
                }
                Ok((count, drained)) => {
                    reads += 1;
                    bytes += count;
                    link.heard = self.now;
                    link.received += count as u64;
                    // What is asked is answered: it is asked again when its time comes, not when the answer would have been overdue.
                    self.maintenance_due |= link.pinged.take().is_some();
                    // A socket with an end to tell is read until it tells it.
                    link.readable = !drained || link.closing;
                    if let Some(stats) = stats {
                        stats.rx_bytes.add(count as u64);
                    }
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => link.readable = false,
                    io::ErrorKind::Interrupted => reads += 1,
                    _ => {
                        self.end(slot, error.into());
                        return (true, false);
                    }
                },
            }
        }
    }

    /// Writes what is queued on a link.
    fn write(&mut self, slot: usize) {
        let Some(link) = &mut self.links[slot] else {
            return;
        };
        if link.end.is_some() || link.phase == Phase::Connecting {
            return;
        }
        let peer = link.peer().and_then(|peer| self.peers.get(peer));
        let stats = peer.map(|peer| &*peer.stats);
        match link.transmit.write(&link.stream, &mut self.vectors, stats) {
            Ok(all) => {
                link.writable = all;
                if !all && !link.blocked {
                    link.blocked = true;
                    self.blocked += 1;
                }
            }
            Err(error) => self.end(slot, error.into()),
        }
    }

    /// The link in use to a peer.
    fn link(&self, peer: PeerId) -> Option<&Link> {
        let link = self.links[self.peers.get(peer)?.link?].as_ref()?;
        link.end.is_none().then_some(link)
    }
}

impl Fabric for TcpFabric {
    fn send(
        &mut self,
        peer: PeerId,
        header: &FrameHeader,
        inline: &[u8],
        payload: &[Segment],
    ) -> Result<(), SendError> {
        if peer == PeerId::LOCAL {
            return self.local.send(header, inline, payload);
        }
        let peer = self.peers.get(peer).ok_or(SendError::Down)?;
        let slot = peer.link.ok_or(SendError::Down)?;
        let link = match &mut self.links[slot] {
            Some(link) if link.end.is_none() => link,
            _ => return Err(SendError::Down),
        };
        let room = match header.length {
            0 => link.transmit.has_room_for_header(),
            _ => link.transmit.has_room(),
        };
        if !room {
            return Err(SendError::Full);
        }
        debug_assert!(header.length <= peer.max_frame);
        link.transmit.push(header, inline, payload);
        peer.stats.tx_frames.add(1);
        if link.writable && !link.in_unsent {
            link.in_unsent = true;
            self.unsent.push(slot);
        }
        Ok(())
    }

    fn can_send(&self, peer: PeerId) -> bool {
        match peer {
            PeerId::LOCAL => self.local.can_send(),
            _ => self.link(peer).is_some_and(|link| link.transmit.has_room()),
        }
    }

    fn max_payload(&self, _peer: PeerId) -> u32 {
        MAX_PAYLOAD
    }

    fn is_up(&self, peer: PeerId) -> bool {
        peer == PeerId::LOCAL || self.link(peer).is_some()
    }

    fn last_heard(&self, peer: PeerId) -> Option<Instant> {
        if peer == PeerId::LOCAL {
            return Some(Instant::now());
        }
        match self.link(peer) {
            Some(link) => Some(link.heard),
            None => self.peers.get(peer)?.heard,
        }
    }

    fn flush(&mut self) {
        let spare = std::mem::take(&mut self.unsent_spare);
        let mut unsent = std::mem::replace(&mut self.unsent, spare);
        for slot in unsent.drain(..) {
            if let Some(link) = &mut self.links[slot] {
                link.in_unsent = false;
                if link.writable {
                    self.write(slot);
                }
            }
        }
        self.unsent_spare = unsent;
    }

    fn poll(&mut self, sink: &mut dyn Sink) -> bool {
        let mut worked = self.local.poll(sink);
        if std::mem::take(&mut self.routes_changed) {
            sink.routes_changed();
            worked = true;
        }
        worked |= self.choose();
        if worked || !self.ready.is_empty() {
            self.now = Instant::now();
        }
        if !self.ready.is_empty() {
            let alone = self.ready.len() == 1;
            let spare = std::mem::take(&mut self.ready_spare);
            let mut ready = std::mem::replace(&mut self.ready, spare);
            for slot in ready.drain(..) {
                let (came, more) = self.take_in(slot, sink);
                worked |= came || more;
                if came {
                    self.hot = alone.then_some(slot);
                    self.cold_polls = 0;
                }
                if more {
                    self.ready.push(slot);
                } else if let Some(link) = &mut self.links[slot] {
                    link.in_ready = false;
                }
            }
            self.ready_spare = ready;
        }
        worked |= self.carry_ethernet();
        if std::mem::take(&mut self.maintenance_due) {
            self.maintain();
        }
        self.flush();
        while std::mem::take(&mut self.any_end) {
            worked = true;
            self.reap(sink);
        }
        if std::mem::take(&mut self.maintenance_due) {
            self.maintain();
        }
        worked
    }

    fn forget_memory(&mut self) {
        self.local.forget_memory();
        for link in self.links.iter_mut().flatten() {
            link.transmit.forget_memory();
            link.receive.forget_memory();
        }
    }

    fn announce(&mut self, gids: &[Gid]) {
        let gids = &gids[..gids.len().min(MAX_GIDS)];
        let (new, gone) = self.routes.set_own(gids);
        self.routes_changed |= !new.is_empty() || !gone.is_empty();
        for slot in 0..self.links.len() {
            if self.links[slot].as_ref().and_then(Link::peer).is_none() {
                continue;
            }
            for (kind, gids) in [(kind::GID_DEL, &gone), (kind::GID_ADD, &new)] {
                if !gids.is_empty() {
                    self.push_control(slot, kind, gids.as_flattened());
                }
            }
        }
    }

    fn route(&self, gid: &Gid) -> Option<PeerId> {
        self.routes.get(gid, |peer| self.is_up(peer))
    }

    fn members(&self, gid: &Gid, into: &mut Vec<PeerId>) {
        let up = |peer: &PeerId| self.is_up(*peer);
        into.extend(self.routes.all(gid).filter(up));
    }

    fn wait_fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }
}
