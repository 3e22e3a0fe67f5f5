//! Links: accepted, dialled, greeted, timed and ended (`docs/fabric.md`, section 1).

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use vmm_sys_util::epoll::{ControlOperation, EpollEvent, EventSet};

use super::config::Timing;
use super::hello::Hello;
use super::link::{Link, LinkEnd, Phase, Whole};
use super::peers::hexadecimal;
use super::receive::MAX_FRAME_PAYLOAD;
use super::{LINK, LISTENER, MAX_LANES, TcpFabric, socket};
use crate::rdma::fabric::frame::kind;
use crate::rdma::fabric::{PeerId, Sink};

/// Connections taken from the listener in one poll.
const ACCEPTS_PER_POLL: usize = 16;
/// Links at a time, without their further lanes.
const MAX_LINKS: usize = 256;
/// Links at a time that the other side made and that have not said HELLO.
const MAX_STRANGERS: usize = 64;
/// How long the listener rests after the host gave no connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(500);
/// A link that was up for this long makes the next pause before dialling a short one again.
const STABLE: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dialling {
    /// Until that time.
    Pause(Instant),
    /// A link of ours is on its way or in use.
    Linked,
    /// The peer behind the address has another link.
    Served,
    /// The address is our own: never again.
    Own,
}

/// An address to dial.
pub(super) struct Target {
    address: SocketAddr,
    state: Dialling,
    pause: Duration,
    /// Who answered there last.
    pub(super) instance: Option<[u8; 16]>,
    /// The present trouble was logged.
    complained: bool,
}

impl Target {
    /// An address that is to be dialled now.
    pub(super) fn new(address: SocketAddr, now: Instant, timing: &Timing) -> Self {
        Target {
            address,
            state: Dialling::Pause(now),
            pause: timing.redial_min,
            instance: None,
            complained: false,
        }
    }
}

impl TcpFabric {
    /// Takes a bounded number of connections from the listener.
    pub(super) fn accept(&mut self) {
        for _ in 0..ACCEPTS_PER_POLL {
            let Some(listener) = &self.listener else {
                return;
            };
            match listener.accept() {
                Ok((stream, address)) => {
                    let stranger = |link: &&Link| {
                        let theirs = link.target.is_none() && link.whole.is_none();
                        theirs && link.phase == Phase::Greeting
                    };
                    let strangers = self.links.iter().flatten().filter(stranger).count();
                    if strangers >= MAX_STRANGERS {
                        log::warn!(
                            "fabric: {address}: refused, {strangers} others are to say HELLO"
                        );
                        continue;
                    }
                    let made = socket::prepare(&stream, self.config.send_buffer)
                        .and_then(|()| self.add_link(stream, address, Phase::Greeting, None, None));
                    if let Err(error) = made {
                        log::warn!("fabric: {address}: cannot be accepted: {error}");
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => (),
                Err(error) => {
                    // Most likely out of descriptors. The listener stays readable meanwhile, which must not keep us awake.
                    log::warn!("fabric: cannot accept: {error}; trying again in {ACCEPT_PAUSE:?}");
                    self.listen(false);
                    self.accept_again = Some(Instant::now() + ACCEPT_PAUSE);
                    self.maintenance_due = true;
                    return;
                }
            }
        }
    }

    /// Watches the listener, or does not.
    fn listen(&mut self, watched: bool) {
        let Some(listener) = &self.listener else {
            return;
        };
        let events = match watched {
            true => EventSet::IN,
            false => EventSet::empty(),
        };
        let set = self.epoll.ctl(
            ControlOperation::Modify,
            listener.as_raw_fd(),
            EpollEvent::new(events, LISTENER),
        );
        if let Err(error) = set {
            log::error!("fabric: listener cannot be watched: {error}");
        }
    }

    /// Keeps a connection; `lane` says what it will be a further lane of, and which, if we dialled it as one.
    pub(super) fn add_link(
        &mut self,
        stream: TcpStream,
        address: SocketAddr,
        phase: Phase,
        target: Option<usize>,
        lane: Option<(Whole, u8)>,
    ) -> io::Result<()> {
        let slot = self
            .links
            .iter()
            .position(Option::is_none)
            .unwrap_or(self.links.len());
        let most = MAX_LINKS * usize::from(self.lanes());
        if slot >= most {
            return Err(io::Error::other(format!("there are {most} connections")));
        }
        self.generation = (self.generation + 1) & 0x7fff_ffff;
        let token = LINK | u64::from(self.generation) << 32 | slot as u64;
        let events =
            EventSet::IN | EventSet::OUT | EventSet::READ_HANG_UP | EventSet::EDGE_TRIGGERED;
        self.epoll.ctl(
            ControlOperation::Add,
            stream.as_raw_fd(),
            EpollEvent::new(events, token),
        )?;
        let mut link = Link::new(stream, address, phase, target, self.generation);
        let mut hello = Hello {
            lanes: self.lanes(),
            ..Hello::new(self.config.instance, MAX_FRAME_PAYLOAD)
        };
        if target.is_some() {
            hello.link = link.number;
        }
        if let Some((whole, lane)) = lane {
            (link.whole, link.lane) = (Some(whole), lane);
            // A link of ours has its generation for a number.
            (hello.link, hello.lane) = (whole.generation, lane);
        }
        link.transmit.push_bytes(&hello.encode());
        if slot == self.links.len() {
            self.links.push(None);
        }
        self.links[slot] = Some(link);
        self.maintenance_due = true;
        Ok(())
    }

    /// Connections that we would have in a link.
    fn lanes(&self) -> u8 {
        self.config.lanes.clamp(1, MAX_LANES)
    }

    fn dial(&mut self, target: usize) {
        let address = self.targets[target].address;
        let dialled = socket::dial(address, self.config.send_buffer).and_then(|stream| {
            self.add_link(stream, address, Phase::Connecting, Some(target), None)
        });
        match dialled {
            Ok(()) => self.targets[target].state = Dialling::Linked,
            Err(error) => self.dialled_in_vain(target, &error.into()),
        }
    }

    /// A link that was dialled ended before it was in use.
    fn dialled_in_vain(&mut self, target: usize, reason: &LinkEnd) {
        let jitter = self.next_jitter();
        let longest = self.config.timing.redial_max;
        let target = &mut self.targets[target];
        if !target.complained {
            target.complained = true;
            log::warn!("fabric: {}: {reason}; dialling on", target.address);
        }
        target.state = Dialling::Pause(Instant::now() + target.pause.mul_f64(jitter));
        target.pause = (target.pause * 2).min(longest);
        self.maintenance_due = true;
    }

    /// Between 0.75 and 1.25, so that two who dial one another do not stay in step.
    fn next_jitter(&mut self) -> f64 {
        // A step of a linear congruential generator (Knuth's MMIX).
        self.jitter = self
            .jitter
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        0.75 + (self.jitter >> 33) as f64 / (1u64 << 32) as f64
    }

    /// The socket of a dialled link became writable: it is connected, or has failed.
    pub(super) fn connected(&mut self, slot: usize) {
        let Some(link) = &mut self.links[slot] else {
            return;
        };
        match link.stream.take_error() {
            Ok(None) => {
                link.phase = Phase::Greeting;
                self.turns.add_unsent(slot, link);
            }
            Ok(Some(error)) | Err(error) => self.end(slot, error.into()),
        }
    }

    /// The peer's HELLO came.
    pub(super) fn greet(&mut self, slot: usize, sink: &mut dyn Sink) {
        // Ours goes out first, for the peer must know who we are even where its link is refused.
        self.write(slot);
        let Some(link) = &self.links[slot] else {
            return;
        };
        if let Err(error) = socket::fit_to_this_host(&link.stream, self.config.send_buffer) {
            log::debug!("fabric: {}: {error}", link.address);
        }
        let hello = match Hello::decode(link.receive.control()) {
            Ok(hello) => hello,
            Err(reason) => return self.end(slot, LinkEnd::Hello(reason)),
        };
        let dialled = link.target;
        if let Some(target) = dialled {
            self.targets[target].instance = Some(hello.instance);
        }
        if hello.instance == self.config.instance {
            return self.end(slot, LinkEnd::Own);
        }
        if link.whole.is_some() || hello.lane > 0 {
            return self.join(slot, &hello);
        }
        let Some((id, forgotten)) = self.peers.meet(hello.instance, &self.stats) else {
            return self.end(slot, LinkEnd::TooMany);
        };
        if let Some(forgotten) = forgotten {
            self.routes.retain(forgotten, &[]);
        }
        let other = self.peers.get(id).and_then(|peer| peer.link);
        if let Some(other) = other {
            let other_dialled = self.links[other].as_ref().and_then(|link| link.target);
            // Both sides keep the link that the lower instance dialled; of two by the same side, the later, since that side has given
            // the earlier one up.
            let kept = dialled.is_some() == other_dialled.is_some()
                || dialled.is_some() == (self.config.instance < hello.instance);
            if !kept {
                return self.end(slot, LinkEnd::Duplicate);
            }
            self.end(other, LinkEnd::Duplicate);
            self.lose(other, id, sink);
        }
        self.adopt(slot, id, &hello, sink);
    }

    /// Takes a link into use.
    fn adopt(&mut self, slot: usize, id: PeerId, hello: &Hello, sink: &mut dyn Sink) {
        let lanes = self.lanes().min(hello.lanes);
        let (Some(link), Some(peer)) = (&mut self.links[slot], self.peers.get_mut(id)) else {
            return;
        };
        link.phase = Phase::Up(id);
        peer.link = Some(slot);
        peer.further = vec![None; usize::from(lanes) - 1];
        peer.lanes = 1;
        if link.target.is_none() {
            link.number = hello.link;
        }
        peer.max_frame = hello.max_frame;
        peer.stats.links_up.add(1);
        peer.stats.rx_bytes.add(link.received);
        peer.stats.tx_bytes.add(link.transmit.sent());
        log::info!(
            "fabric: {}: link to {} is up, as peer {}",
            link.address,
            hexadecimal(&hello.instance),
            id.0
        );
        for target in &mut self.targets {
            if target.instance == Some(hello.instance) {
                target.complained = false;
            }
        }
        let gids = self.routes.own().to_vec();
        self.push_control(slot, kind::GID_ADD, gids.as_flattened());
        self.maintenance_due = true;
        sink.peer_up(id);
        sink.routes_changed();
    }

    /// Marks a link as ended; [`TcpFabric::reap`] does the rest.
    pub(super) fn end(&mut self, slot: usize, reason: LinkEnd) {
        if let Some(link) = &mut self.links[slot]
            && link.end.is_none()
        {
            link.end = Some(reason);
            self.any_end = true;
        }
    }

    /// Takes a link out of use.
    pub(super) fn lose(&mut self, slot: usize, id: PeerId, sink: &mut dyn Sink) {
        let (Some(link), Some(peer)) = (&self.links[slot], self.peers.get_mut(id)) else {
            return;
        };
        if peer.link != Some(slot) {
            return;
        }
        let mut heard = link.heard;
        for lane in peer.slots().filter_map(|slot| self.links[slot].as_ref()) {
            heard = heard.max(lane.heard);
            peer.stats.tx_unsent.add(lane.transmit.queued() as u64);
        }
        peer.link = None;
        peer.heard = Some(heard);
        peer.stats.links_lost.add(1);
        self.end_lanes(slot, id);
        self.switch.forget(id);
        sink.peer_down(id);
        // Another that announced the same GID may have it now.
        sink.routes_changed();
    }

    /// Ends the links that are marked, and sees to it that they are dialled again.
    pub(super) fn reap(&mut self, sink: &mut dyn Sink) {
        for slot in 0..self.links.len() {
            let Some(link) = &self.links[slot] else {
                continue;
            };
            if link.end.is_none() {
                continue;
            }
            if let Phase::Up(id) = link.phase {
                self.lose_whole(slot, id, sink);
            }
            if let Some(link) = &mut self.links[slot] {
                self.turns.forget(slot, link);
            }
            if let Some(Link {
                stream,
                address,
                phase,
                target,
                whole,
                born,
                end: Some(reason),
                ..
            }) = self.links[slot].take()
            {
                // Closing would do so too, were the descriptor not shared; a failure means that it is gone already.
                let _ = self.epoll.ctl(
                    ControlOperation::Delete,
                    stream.as_raw_fd(),
                    EpollEvent::default(),
                );
                drop(stream);
                match whole.filter(|_| !matches!(phase, Phase::Up(_))) {
                    Some(whole) => self.lane_missing(whole, address, &reason),
                    None => self.ended(address, phase, target, born, &reason),
                }
            }
        }
        self.maintenance_due = true;
    }

    /// What follows from the end of a link for those to be dialled.
    fn ended(
        &mut self,
        address: SocketAddr,
        phase: Phase,
        target: Option<usize>,
        born: Instant,
        reason: &LinkEnd,
    ) {
        let was_up = matches!(phase, Phase::Up(_));
        match reason {
            LinkEnd::Duplicate | LinkEnd::Own | LinkEnd::Whole => {
                log::debug!("fabric: {address}: closed: {reason}")
            }
            _ if was_up => log::warn!("fabric: {address}: link lost: {reason}"),
            _ if target.is_none() => log::warn!("fabric: {address}: link ends: {reason}"),
            // Told when it is dialled again.
            _ => (),
        }
        if let Some(index) = target {
            let target = &mut self.targets[index];
            target.state = Dialling::Served;
            if matches!(reason, LinkEnd::Own) {
                log::warn!("fabric: peer {address} is this monitor itself; not dialled again");
                target.state = Dialling::Own;
            } else if was_up && born.elapsed() >= STABLE {
                target.pause = self.config.timing.redial_min;
            }
        }
        // Whoever has no link any more, or never had one, is dialled again.
        for index in 0..self.targets.len() {
            let Target {
                state, instance, ..
            } = self.targets[index];
            let linked = instance.is_some_and(|instance| self.peers.is_linked(&instance));
            if state == Dialling::Served && !linked {
                self.targets[index].complained |= was_up;
                self.dialled_in_vain(index, reason);
            }
        }
    }

    /// Does what time asks for: dials, asks, gives up. Sets the timer for the next time.
    pub(super) fn maintain(&mut self) {
        let now = Instant::now();
        let timing = self.config.timing;
        let mut next: Option<Instant> = None;
        let mut at = |time: Instant| next = Some(next.map_or(time, |next| next.min(time)));
        for index in 0..self.targets.len() {
            let Target {
                state, instance, ..
            } = self.targets[index];
            let Dialling::Pause(until) = state else {
                continue;
            };
            if instance.is_some_and(|instance| self.peers.is_linked(&instance)) {
                self.targets[index].state = Dialling::Served;
            } else if until <= now {
                self.dial(index);
            }
            if let Dialling::Pause(until) = self.targets[index].state {
                at(until);
            }
        }
        for slot in 0..self.links.len() {
            match self.links[slot].as_ref().and_then(|link| link.lanes_due) {
                Some(time) if time <= now => self.dial_lanes(slot),
                Some(time) => at(time),
                None => (),
            }
        }
        match self.accept_again {
            Some(time) if time <= now => {
                self.accept_again = None;
                self.listen(true);
            }
            Some(time) => at(time),
            None => (),
        }
        for slot in 0..self.links.len() {
            let Some(link) = &mut self.links[slot] else {
                continue;
            };
            if link.end.is_some() {
                continue;
            }
            let Phase::Up(_) = link.phase else {
                let until = link.born + timing.handshake;
                if until <= now {
                    self.end(slot, LinkEnd::NoHello(timing.handshake));
                } else {
                    at(until);
                }
                continue;
            };
            // Only a link that was asked is given up, and only by one who looks for the answer in time: it may be us who slept.
            let patience = timing.loss.saturating_sub(timing.ping);
            let late = timing.ping / 10;
            match link.pinged.map(|pinged| pinged + patience) {
                Some(until) if now < until => at(until),
                Some(until) if now < until + late => {
                    let silence = now - link.heard;
                    self.end(slot, LinkEnd::Silent(silence));
                }
                // A further lane may be silent when nothing is to be answered: whether the peer is there the first one tells.
                None if link.lane > 0 && !link.unanswered => (),
                None if now < link.heard + timing.ping => at(link.heard + timing.ping),
                _ => {
                    link.pinged = Some(now);
                    at(now + patience);
                    self.push_control(slot, kind::PING, &[]);
                }
            }
        }
        // What was added meanwhile has been looked at, or has its time further on than what is set now.
        let set = match next {
            // A time of zero would stop the timer.
            Some(next) => {
                let wait = next.saturating_duration_since(now);
                self.timer.reset(wait.max(Duration::from_micros(1)), None)
            }
            None => self.timer.clear(),
        };
        if let Err(error) = set {
            log::error!("fabric: timer cannot be set: {error}");
        }
    }
}
