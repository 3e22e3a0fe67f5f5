//! The fabric over TCP: a link of a few connections to each peer, non-blocking sockets in an epoll of the fabric's own (`docs/fabric.md`).
//!
//! | module | holds |
//! | --- | --- |
//! | `config` | what the fabric is told at start |
//! | `control` | frames between the fabrics themselves: GIDs, signs of life, Ethernet |
//! | `hello` | the first frame of a link |
//! | `lanes` | the further connections of a link |
//! | `lifecycle` | links: accepted, dialled, greeted, timed, ended |
//! | `link` | the state of one link |
//! | `peers`, `routes` | who was met, and what leads there |
//! | `receive`, `transmit` | the two halves of the data path |
//! | `socket` | system calls |
//! | `turns` | which connections are read from and written to in a poll |
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
mod lanes;
mod lifecycle;
mod link;
mod peers;
mod receive;
mod routes;
mod socket;
#[cfg(test)]
mod tests;
mod transmit;
mod turns;

pub use config::{MAX_LANES, TcpConfig, TcpError, Timing};

use lifecycle::Target;
use link::Link;
use peers::Peers;
use receive::MAX_GIDS;
use routes::Routes;
use socket::Vectors;
use turns::Turns;

/// What an epoll event is about; links have the top bit set.
const LISTENER: u64 = 0;
const TIMER: u64 = 1;
const ETHERNET: u64 = 2;
const LINK: u64 = 1 << 63;
/// Events taken from the epoll at a time.
const EVENTS: usize = 32;

/// The fabric over TCP.
pub struct TcpFabric {
    config: TcpConfig,
    epoll: Epoll,
    events: [EpollEvent; EVENTS],
    listener: Option<TcpListener>,
    /// When to watch the listener again, if it rests.
    accept_again: Option<Instant>,
    timer: TimerFd,
    /// The timer ran out, or what it waits for has changed.
    maintenance_due: bool,
    links: Vec<Option<Link>>,
    generation: u32,
    turns: Turns,
    /// When a frame of a queue pair last passed on a first lane.
    passed: Option<Instant>,
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
            listener,
            accept_again: None,
            timer,
            maintenance_due: false,
            links: Vec::new(),
            generation: 0,
            turns: Turns::new(),
            passed: None,
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

    /// A lane of the link in use to a peer.
    fn link(&self, peer: PeerId, lane: u8) -> Option<&Link> {
        let link = self.links[self.peers.get(peer)?.slot(lane)?].as_ref()?;
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
        let slot = peer.slot(header.lane).ok_or(SendError::Down)?;
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
        match header.lane {
            0 => self.passed = Some(self.now),
            _ => link.unanswered = true,
        }
        self.turns.add_unsent(slot, link);
        Ok(())
    }

    fn can_send(&self, peer: PeerId, lane: u8) -> bool {
        match peer {
            PeerId::LOCAL => self.local.can_send(),
            _ => self
                .link(peer, lane)
                .is_some_and(|link| link.transmit.has_room()),
        }
    }

    fn lanes(&self, peer: PeerId) -> u8 {
        self.peers.get(peer).map_or(1, |peer| peer.lanes)
    }

    fn max_payload(&self, _peer: PeerId) -> u32 {
        MAX_PAYLOAD
    }

    fn is_up(&self, peer: PeerId) -> bool {
        peer == PeerId::LOCAL || self.link(peer, 0).is_some()
    }

    fn last_heard(&self, peer: PeerId) -> Option<Instant> {
        if peer == PeerId::LOCAL {
            return Some(Instant::now());
        }
        let peer = self.peers.get(peer)?;
        let lanes = peer.slots().filter_map(|slot| self.links[slot].as_ref());
        lanes.map(|link| link.heard).chain(peer.heard).max()
    }

    fn flush(&mut self) {
        self.write_unsent();
    }

    fn poll(&mut self, sink: &mut dyn Sink) -> bool {
        let mut worked = self.local.poll(sink);
        if std::mem::take(&mut self.routes_changed) {
            sink.routes_changed();
            worked = true;
        }
        worked |= self.choose();
        if worked || self.turns.any() {
            self.now = Instant::now();
        }
        worked |= self.read_ready(sink);
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
        self.end_turn() || worked
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
            let link = self.links[slot].as_ref();
            if link.is_none_or(|link| link.lane > 0 || link.peer().is_none()) {
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
