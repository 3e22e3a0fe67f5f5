//! Which connections have their turn in a poll: to be read from, and to be written to.
//!
//! First lanes go first. While frames pass on any of them, the others move a little at a time ([`SHARED_BYTES`]), reading and writing, so that
//! what is little never waits for long: neither in a socket behind bulk, nor for a processor that is busy with it.

use std::io;
use std::time::Duration;

use vmm_sys_util::epoll::EventSet;

use super::link::{Link, LinkEnd, Phase};
use super::receive::Input;
use super::transmit::Written;
use super::{ETHERNET, LINK, LISTENER, TIMER, TcpFabric};
use crate::rdma::fabric::frame::kind;
use crate::rdma::fabric::{PeerId, Sink};

/// Reads from one connection in one poll.
const READS_PER_POLL: usize = 8;
/// Bytes read from one first lane in one poll, give or take a read.
const FIRST_BYTES: usize = 512 << 10;
/// Bytes read from one further lane in one poll, and written to all, while nothing passes on first lanes.
const ALONE_BYTES: usize = 256 << 10;
/// Bytes read from all further lanes in one poll, and written, while something does.
const SHARED_BYTES: usize = 20 << 10;
/// So long after a frame of a queue pair passed on a first lane, another is expected.
const IN_A_HURRY: Duration = Duration::from_millis(20);
/// Polls that go to connections known to be readable before the epoll is asked again.
const POLLS_PER_WAIT: u32 = 16;
/// Polls that go to the hot connection alone before the epoll is asked again.
const HOT_POLLS_PER_WAIT: u32 = 4;
/// Polls without success after which a connection is hot no more.
const HOT_POLLS: u32 = 256;
/// Times that another lane of a link that ends is still read from: more than its socket may hold.
const LAST_READS: usize = 128;

/// Whose turn it is. Lists hold slots; the second of a kind is kept for its memory.
#[derive(Default)]
pub(super) struct Turns {
    polls_since_wait: u32,
    /// Connections to read from.
    first_ready: Vec<usize>,
    first_ready_spare: Vec<usize>,
    further_ready: Vec<usize>,
    further_ready_spare: Vec<usize>,
    /// Connections to write to.
    first_unsent: Vec<usize>,
    first_unsent_spare: Vec<usize>,
    further_unsent: Vec<usize>,
    /// Bytes that may be written to further lanes before the next poll.
    write_left: usize,
    /// Something came on a first lane, so further lanes are passed over: whoever waits for it has the thread next. Never twice in a row.
    passed_over: bool,
    /// Routes came in this poll.
    routes_came: bool,
    /// The connection that something came on last, if no other did since: it is read without asking the epoll, which saves a system call
    /// where every microsecond counts. And how often that gave nothing.
    hot: Option<usize>,
    cold_polls: u32,
    /// Connections that wait for room in their socket: the epoll is asked in every poll then.
    blocked: usize,
}

impl Turns {
    pub(super) fn new() -> Self {
        Turns {
            polls_since_wait: POLLS_PER_WAIT,
            write_left: ALONE_BYTES,
            ..Turns::default()
        }
    }

    /// The connection is to be written to.
    #[inline]
    pub(super) fn add_unsent(&mut self, slot: usize, link: &mut Link) {
        if link.writable && !link.in_unsent {
            link.in_unsent = true;
            match link.lane {
                0 => self.first_unsent.push(slot),
                _ => self.further_unsent.push(slot),
            }
        }
    }

    fn add_ready(&mut self, slot: usize, link: &mut Link) {
        link.readable = true;
        if !link.in_ready {
            link.in_ready = true;
            match link.lane {
                0 => self.first_ready.push(slot),
                _ => self.further_ready.push(slot),
            }
        }
    }

    /// The connection is no more, or is another lane from now on.
    pub(super) fn forget(&mut self, slot: usize, link: &mut Link) {
        for list in [
            &mut self.first_ready,
            &mut self.further_ready,
            &mut self.first_unsent,
            &mut self.further_unsent,
        ] {
            list.retain(|other| *other != slot);
        }
        (link.in_ready, link.in_unsent) = (false, false);
        self.hot = self.hot.filter(|hot| *hot != slot);
        if std::mem::take(&mut link.blocked) {
            self.blocked -= 1;
        }
    }

    /// Something waits to be read or written that the epoll will not tell of.
    pub(super) fn any(&self) -> bool {
        !(self.first_ready.is_empty()
            && self.further_ready.is_empty()
            && self.first_unsent.is_empty()
            && self.further_unsent.is_empty())
    }
}

impl TcpFabric {
    /// Whether frames pass on first lanes.
    fn in_a_hurry(&self) -> bool {
        self.passed
            .is_some_and(|passed| self.now.saturating_duration_since(passed) < IN_A_HURRY)
    }

    /// Decides what this poll reads from. True if the epoll told of something.
    pub(super) fn choose(&mut self) -> bool {
        let turns = &mut self.turns;
        turns.polls_since_wait += 1;
        if !turns.first_ready.is_empty() && turns.further_ready.is_empty() {
            let due = turns.blocked > 0 || turns.polls_since_wait >= POLLS_PER_WAIT;
            return due && self.wait();
        }
        if turns.blocked == 0
            && turns.further_ready.is_empty()
            && turns.polls_since_wait < HOT_POLLS_PER_WAIT
            && let Some(slot) = turns.hot
            && let Some(link) = &mut self.links[slot]
        {
            // What comes after an attempt in vain is told by the epoll all the same.
            turns.add_ready(slot, link);
            turns.cold_polls += 1;
            if turns.cold_polls > HOT_POLLS {
                turns.hot = None;
            }
            return false;
        }
        self.wait()
    }

    /// Notes what has become readable and writable.
    fn wait(&mut self) -> bool {
        self.turns.polls_since_wait = 0;
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
                self.turns.blocked -= 1;
            }
            if link.phase == Phase::Connecting {
                self.connected(slot);
            } else if !link.transmit.is_empty() {
                self.turns.add_unsent(slot, link);
            }
        }
        let Some(link) = &mut self.links[slot] else {
            return;
        };
        if events.intersects(EventSet::IN | ended) && link.phase != Phase::Connecting {
            self.turns.add_ready(slot, link);
        }
    }

    /// Reads from what is ready. True if anything came or is left.
    pub(super) fn read_ready(&mut self, sink: &mut dyn Sink) -> bool {
        let mut worked = false;
        let mut came_first = false;
        if !self.turns.first_ready.is_empty() {
            let spare = std::mem::take(&mut self.turns.first_ready_spare);
            let mut ready = std::mem::replace(&mut self.turns.first_ready, spare);
            let alone = ready.len() == 1 && self.turns.further_ready.is_empty();
            for slot in ready.drain(..) {
                let came = self.read_from(slot, alone, READS_PER_POLL, FIRST_BYTES, sink);
                came_first |= came;
            }
            worked |= came_first || !self.turns.first_ready.is_empty();
            self.turns.first_ready_spare = ready;
        }
        if std::mem::take(&mut self.turns.routes_came) {
            // Nor does what comes by another lane go ahead of them.
            return true;
        }
        let hurry = self.in_a_hurry();
        self.turns.passed_over = hurry && came_first && !self.turns.passed_over;
        if self.turns.further_ready.is_empty() || self.turns.passed_over {
            return worked || !self.turns.further_ready.is_empty();
        }
        if hurry {
            let slot = self.turns.further_ready.remove(0);
            worked |= self.read_from(slot, false, 1, SHARED_BYTES, sink);
        } else {
            let spare = std::mem::take(&mut self.turns.further_ready_spare);
            let mut ready = std::mem::replace(&mut self.turns.further_ready, spare);
            let alone = ready.len() == 1 && self.turns.first_ready.is_empty();
            for slot in ready.drain(..) {
                worked |= self.read_from(slot, alone, READS_PER_POLL, ALONE_BYTES, sink);
            }
            self.turns.further_ready_spare = ready;
        }
        worked
    }

    /// Reads from one that was on a list, and puts it back if there may be more. True if anything came.
    fn read_from(
        &mut self,
        slot: usize,
        alone: bool,
        reads: usize,
        bytes: usize,
        sink: &mut dyn Sink,
    ) -> bool {
        if let Some(link) = &mut self.links[slot] {
            link.in_ready = false;
        }
        let (came, more) = self.take_in(slot, reads, bytes, sink);
        if came {
            self.turns.hot = alone.then_some(slot);
            self.turns.cold_polls = 0;
        }
        if more && let Some(link) = &mut self.links[slot] {
            self.turns.add_ready(slot, link);
        }
        came
    }

    /// Reads from a connection, a bounded amount: whether anything came, and whether there may be more.
    fn take_in(
        &mut self,
        slot: usize,
        most_reads: usize,
        most_bytes: usize,
        sink: &mut dyn Sink,
    ) -> (bool, bool) {
        let (mut reads, mut bytes) = (0, 0);
        let mut control = false;
        let mut staged = None;
        loop {
            let link = match &mut self.links[slot] {
                Some(link) if link.end.is_none() => link,
                _ => return (true, false),
            };
            // What an earlier turn left is work too.
            let staged = *staged.get_or_insert(link.receive.staged());
            let peer = link.peer().unwrap_or(PeerId::LOCAL);
            let stats = self.peers.get(peer).map(|peer| &*peer.stats);
            match link.receive.advance(peer, sink, stats) {
                Ok(Input::Control(header)) => {
                    control = true;
                    self.control(slot, &header, sink);
                    if matches!(header.kind, kind::GID_ADD | kind::GID_DEL) {
                        // What comes behind it may count on the new routes, which the device follows between polls.
                        self.turns.routes_came = true;
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
            if !link.readable || reads >= most_reads || bytes >= most_bytes {
                if bytes > 0 && link.lane == 0 && !control {
                    self.passed = Some(self.now);
                }
                let came = bytes > 0 || link.receive.staged() != staged;
                return (came, link.readable);
            }
            let result = link.receive.read(
                &link.stream,
                &mut self.vectors,
                &mut self.scratch,
                most_bytes,
            );
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
                    link.unanswered = false;
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

    /// Takes in what has come on a lane whose link ends for what became of another.
    pub(super) fn read_last(&mut self, slot: usize, sink: &mut dyn Sink) {
        let Some(link) = &mut self.links[slot] else {
            return;
        };
        link.readable = true;
        for _ in 0..LAST_READS {
            if !self.take_in(slot, READS_PER_POLL, FIRST_BYTES, sink).1 {
                break;
            }
        }
    }

    /// Writes what is queued on a connection, at most `limit` bytes. Gives how many, and whether more is to be written.
    fn write_some(&mut self, slot: usize, limit: usize) -> (usize, bool) {
        let Some(link) = &mut self.links[slot] else {
            return (0, false);
        };
        if link.end.is_some() || link.phase == Phase::Connecting {
            return (0, false);
        }
        let peer = link.peer().and_then(|peer| self.peers.get(peer));
        let stats = peer.map(|peer| &*peer.stats);
        let before = link.transmit.sent();
        let result = link
            .transmit
            .write(&link.stream, &mut self.vectors, limit, stats);
        let written = (link.transmit.sent() - before) as usize;
        match result {
            Ok(how) => {
                link.writable = how != Written::Blocked;
                if how == Written::Blocked && !link.blocked {
                    link.blocked = true;
                    self.turns.blocked += 1;
                }
                (written, how == Written::Limit)
            }
            Err(error) => {
                self.end(slot, error.into());
                (written, false)
            }
        }
    }

    /// Writes what is queued on a connection.
    pub(super) fn write(&mut self, slot: usize) {
        self.write_some(slot, usize::MAX);
    }

    /// Writes what is queued: on first lanes all of it, on others as much as is left for this poll.
    pub(super) fn write_unsent(&mut self) {
        let spare = std::mem::take(&mut self.turns.first_unsent_spare);
        let mut unsent = std::mem::replace(&mut self.turns.first_unsent, spare);
        for slot in unsent.drain(..) {
            if let Some(link) = &mut self.links[slot] {
                link.in_unsent = false;
                if link.writable {
                    self.write(slot);
                }
            }
        }
        self.turns.first_unsent_spare = unsent;
        let mut turns = self.turns.further_unsent.len();
        while turns > 0 && self.turns.write_left > 0 {
            turns -= 1;
            let slot = self.turns.further_unsent.remove(0);
            if let Some(link) = &mut self.links[slot] {
                link.in_unsent = false;
                if !link.writable {
                    continue;
                }
                let (written, more) = self.write_some(slot, self.turns.write_left);
                self.turns.write_left -= written.min(self.turns.write_left);
                if more && let Some(link) = &mut self.links[slot] {
                    self.turns.add_unsent(slot, link);
                }
            }
        }
    }

    /// Ends the turn of a poll: what its owner sends before the next one has as much room anew. True if something is left for the next.
    pub(super) fn end_turn(&mut self) -> bool {
        self.turns.write_left = match self.in_a_hurry() {
            true if self.turns.passed_over => 0,
            true => SHARED_BYTES,
            false => ALONE_BYTES,
        };
        self.turns.any()
    }
}
