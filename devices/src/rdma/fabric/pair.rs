//! Two fabrics in one process, for tests, joined by bounded queues, with faults to order: what a link over TCP does rarely and by chance
//! happens here when a test says so.
//!
//! Frames of a lane never overtake one another. A payload is moved when the receiving side polls, from memory to memory.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use vmm_sys_util::timerfd::TimerFd;

use super::frame::FrameHeader;
use super::loopback::LocalQueue;
use super::queue::{FrameQueue, Mover};
use super::{Fabric, Gid, PeerId, SendError, Sink};
use crate::rdma::memory::Segment;

/// The other side, as either side names it.
pub const OTHER: PeerId = PeerId(1);

/// Frames that one poll takes in.
const FRAMES_PER_POLL: usize = 256;
/// Payload bytes that one poll takes in, give or take a frame.
const BYTES_PER_POLL: usize = 1 << 20;

/// One side of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The first fabric that [`pair`] returns.
    Left,
    /// The second.
    Right,
}

impl Side {
    fn index(self) -> usize {
        self as usize
    }
}

/// What is on its way to one side by one lane.
#[derive(Default)]
struct Lane {
    queue: FrameQueue,
    mover: Mover,
    /// When each queued frame may be taken in.
    due: VecDeque<Instant>,
}

impl Lane {
    /// Whether the first frame may be taken in; if only time keeps it, how much.
    fn first_due(&self, now: Instant, held: &[u8]) -> Result<FrameHeader, Option<Duration>> {
        let (Some(header), Some(due)) = (self.queue.first(), self.due.front()) else {
            return Err(None);
        };
        if held.contains(&header.kind) {
            return Err(None);
        }
        match due.saturating_duration_since(now) {
            Duration::ZERO => Ok(*header),
            wait => Err(Some(wait)),
        }
    }
}

/// What is on its way to one side, and that side's view of the link.
struct End {
    lanes: Vec<Lane>,
    /// The lane that a poll takes from first.
    first: usize,
    held: Vec<u8>,
    delay: Duration,
    /// Payload bytes that one poll moves.
    pace: usize,
    /// Payload bytes until the sender dies.
    sender_dies_after: Option<usize>,
    /// Times the link came up and went down again that this side was not told of yet.
    untold_losses: u32,
    told_up: bool,
    last_heard: Option<Instant>,
    /// GIDs that this side announced, and whether the other was told.
    gids: Vec<Gid>,
    routes_changed: bool,
    timer: TimerFd,
    signalled: bool,
}

impl End {
    fn new(lanes: u8) -> io::Result<Self> {
        Ok(End {
            lanes: (0..lanes).map(|_| Lane::default()).collect(),
            first: 0,
            held: Vec::new(),
            delay: Duration::ZERO,
            pace: usize::MAX,
            sender_dies_after: None,
            untold_losses: 0,
            told_up: false,
            last_heard: None,
            gids: Vec::new(),
            routes_changed: false,
            timer: TimerFd::new()?,
            signalled: false,
        })
    }

    /// Makes the side's descriptor readable.
    fn wake(&mut self) {
        if !self.signalled {
            self.signalled = true;
            self.arm(Duration::from_nanos(1));
        }
    }

    fn arm(&mut self, after: Duration) {
        self.timer
            .reset(after.max(Duration::from_nanos(1)), None)
            .expect("a timer descriptor takes any positive time");
    }

    fn drop_frames(&mut self) {
        for lane in &mut self.lanes {
            lane.queue.clear();
            lane.mover.reset();
            lane.due.clear();
        }
    }
}

struct Shared {
    ends: [End; 2],
    up: bool,
    dead: Option<Side>,
}

impl Shared {
    fn cut(&mut self) {
        self.up = false;
        for end in &mut self.ends {
            end.drop_frames();
            if end.told_up {
                end.told_up = false;
                end.untold_losses += 1;
            }
            end.wake();
        }
    }
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    // A test that panicked in its sink has failed already.
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One of two fabrics that are joined.
pub struct PairFabric {
    shared: Arc<Mutex<Shared>>,
    side: Side,
    local: LocalQueue,
    wait_fd: RawFd,
}

/// Orders faults. May be used from any thread; they take effect at once.
#[derive(Clone)]
pub struct PairControl {
    shared: Arc<Mutex<Shared>>,
}

/// Two fabrics that are each other's only peer, the link between them up, and the means to disturb it. Fails when no descriptors are to
/// be had.
pub fn pair() -> io::Result<(PairFabric, PairFabric, PairControl)> {
    pair_with(1)
}

/// As [`pair`], with so many lanes, at least 1. Each poll begins with another of them, so frames of different lanes overtake one another.
pub fn pair_with(lanes: u8) -> io::Result<(PairFabric, PairFabric, PairControl)> {
    let mut ends = [End::new(lanes)?, End::new(lanes)?];
    ends.iter_mut().for_each(End::wake);
    let wait_fds = [ends[0].timer.as_raw_fd(), ends[1].timer.as_raw_fd()];
    let shared = Arc::new(Mutex::new(Shared {
        ends,
        up: true,
        dead: None,
    }));
    let fabric = |side: Side| PairFabric {
        shared: shared.clone(),
        side,
        local: LocalQueue::default(),
        wait_fd: wait_fds[side.index()],
    };
    let fabrics = (fabric(Side::Left), fabric(Side::Right));
    Ok((fabrics.0, fabrics.1, PairControl { shared }))
}

impl PairControl {
    /// Keeps back frames of `kind` on their way to `to`, and all that come behind them, until [`PairControl::release`].
    pub fn hold(&self, to: Side, kind: u8) {
        lock(&self.shared).ends[to.index()].held.push(kind);
    }

    /// Ends all that [`PairControl::hold`] began for that side.
    pub fn release(&self, to: Side) {
        let mut shared = lock(&self.shared);
        let end = &mut shared.ends[to.index()];
        end.held.clear();
        end.wake();
    }

    /// Frames sent to `to` from now on take that long.
    pub fn delay(&self, to: Side, time: Duration) {
        lock(&self.shared).ends[to.index()].delay = time;
    }

    /// Lets no poll of `to` take in more than `bytes` of payload, at least 1, so that payloads arrive in parts.
    pub fn pace(&self, to: Side, bytes: usize) {
        lock(&self.shared).ends[to.index()].pace = bytes.max(1);
    }

    /// Loses the link, with everything under way.
    pub fn cut(&self) {
        lock(&self.shared).cut();
    }

    /// Brings the link back, unless one side is dead.
    pub fn restore(&self) {
        let mut shared = lock(&self.shared);
        shared.up = shared.dead.is_none();
        shared.ends.iter_mut().for_each(End::wake);
    }

    /// `who` dies: the link goes down and never comes back, and the dead fabric does nothing any more.
    pub fn kill(&self, who: Side) {
        let mut shared = lock(&self.shared);
        shared.dead = Some(who);
        shared.cut();
    }

    /// `who` dies when `bytes` more of payload, at least 1, have come from it: in the middle of a frame, if that is where they end.
    pub fn kill_after(&self, who: Side, bytes: usize) {
        let other = 1 - who.index();
        lock(&self.shared).ends[other].sender_dies_after = Some(bytes.max(1));
    }

    /// Frames on their way to `to`, those held back included.
    pub fn in_flight(&self, to: Side) -> usize {
        let shared = lock(&self.shared);
        let lanes = shared.ends[to.index()].lanes.iter();
        lanes.map(|lane| lane.due.len()).sum()
    }
}

impl PairFabric {
    fn me(&self) -> usize {
        self.side.index()
    }

    /// Takes in what is due; true if there was anything.
    fn take_in(&mut self, sink: &mut dyn Sink) -> bool {
        let me = self.me();
        let now = Instant::now();
        let mut shared = lock(&self.shared);
        let mut worked = false;
        let mut bytes = 0;
        let end = &mut shared.ends[me];
        end.first = (end.first + 1) % end.lanes.len();
        let mut number = end.first;
        for _ in 0..FRAMES_PER_POLL {
            let end = &mut shared.ends[me];
            let budget = end.pace.min(BYTES_PER_POLL);
            let lane = &mut end.lanes[number];
            let Ok(header) = lane.first_due(now, &end.held) else {
                number = (number + 1) % end.lanes.len();
                if number == end.first {
                    break;
                }
                continue;
            };
            if bytes >= budget {
                break;
            }
            worked = true;
            end.last_heard = Some(now);
            let left = header.length as usize - lane.mover.done();
            let mut limit = left;
            if end.pace != usize::MAX {
                limit = limit.min(budget - bytes);
            }
            if let Some(life) = end.sender_dies_after {
                limit = limit.min(life);
            }
            if lane.mover.step(&mut lane.queue, OTHER, sink, limit) {
                lane.due.pop_front();
            }
            bytes += limit;
            if let Some(life) = &mut end.sender_dies_after {
                *life -= limit;
                if *life == 0 {
                    shared.dead = Some([Side::Right, Side::Left][me]);
                    shared.cut();
                    break;
                }
            }
        }
        worked
    }

    /// Tells the sink what became of the link; true if there was anything to tell.
    fn tell(&mut self, sink: &mut dyn Sink) -> bool {
        let me = self.me();
        let mut shared = lock(&self.shared);
        let up = shared.up;
        let routes_changed = std::mem::take(&mut shared.ends[me].routes_changed);
        let end = &mut shared.ends[me];
        let losses = std::mem::take(&mut end.untold_losses);
        let came_up = up && !end.told_up;
        end.told_up = up;
        if losses > 0 {
            sink.peer_down(OTHER);
        }
        if came_up {
            end.last_heard = Some(Instant::now());
            sink.peer_up(OTHER);
        }
        if routes_changed || came_up {
            sink.routes_changed();
        }
        losses > 0 || came_up || routes_changed
    }

    /// Sets the descriptor for the time when nothing more is to be done now.
    fn rest(&mut self) {
        let me = self.me();
        let mut shared = lock(&self.shared);
        let end = &mut shared.ends[me];
        let now = Instant::now();
        let waits = end.lanes.iter().map(|lane| {
            let due = lane.first_due(now, &end.held);
            due.map_or_else(|wait| wait, |_| Some(Duration::ZERO))
        });
        match waits.flatten().min() {
            Some(Duration::ZERO) => end.wake(),
            Some(wait) => {
                end.signalled = false;
                end.arm(wait);
            }
            None if end.signalled => {
                end.signalled = false;
                end.timer
                    .clear()
                    .expect("a timer descriptor can be cleared");
            }
            None => (),
        }
    }
}

impl Fabric for PairFabric {
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
        let mut shared = lock(&self.shared);
        if peer != OTHER || !shared.up {
            return Err(SendError::Down);
        }
        let end = &mut shared.ends[1 - self.side.index()];
        let lane = &mut end.lanes[usize::from(header.lane)];
        lane.queue.push(header, inline, payload)?;
        lane.due.push_back(Instant::now() + end.delay);
        end.wake();
        Ok(())
    }

    fn lanes(&self, peer: PeerId) -> u8 {
        match peer {
            PeerId::LOCAL => 1,
            _ => lock(&self.shared).ends[self.me()].lanes.len() as u8,
        }
    }

    fn can_send(&self, peer: PeerId, lane: u8) -> bool {
        if peer == PeerId::LOCAL {
            return self.local.can_send();
        }
        let shared = lock(&self.shared);
        let lanes = &shared.ends[1 - self.me()].lanes;
        peer == OTHER && shared.up && lanes[usize::from(lane)].queue.has_room()
    }

    fn is_up(&self, peer: PeerId) -> bool {
        peer == PeerId::LOCAL || (peer == OTHER && lock(&self.shared).up)
    }

    fn last_heard(&self, peer: PeerId) -> Option<Instant> {
        match peer {
            PeerId::LOCAL => Some(Instant::now()),
            OTHER => lock(&self.shared).ends[self.me()].last_heard,
            _ => None,
        }
    }

    fn flush(&mut self) {}

    fn poll(&mut self, sink: &mut dyn Sink) -> bool {
        let mut worked = self.local.poll(sink);
        if lock(&self.shared).dead == Some(self.side) {
            return worked;
        }
        worked |= self.tell(sink);
        worked |= self.take_in(sink);
        // The other side may have died meanwhile.
        worked |= self.tell(sink);
        self.rest();
        worked
    }

    fn forget_memory(&mut self) {
        self.local.forget_memory();
        let mut shared = lock(&self.shared);
        let me = self.me();
        for lane in &mut shared.ends[me].lanes {
            lane.mover.forget_memory();
        }
        for lane in &mut shared.ends[1 - me].lanes {
            lane.queue.forget_memory();
        }
    }

    fn announce(&mut self, gids: &[Gid]) {
        let mut shared = lock(&self.shared);
        shared.ends[self.side.index()].gids = gids.to_vec();
        for end in &mut shared.ends {
            end.routes_changed = true;
            end.wake();
        }
    }

    fn route(&self, gid: &Gid) -> Option<PeerId> {
        let shared = lock(&self.shared);
        if shared.ends[self.me()].gids.contains(gid) {
            return Some(PeerId::LOCAL);
        }
        shared.ends[1 - self.me()]
            .gids
            .contains(gid)
            .then_some(OTHER)
    }

    fn members(&self, gid: &Gid, into: &mut Vec<PeerId>) {
        let shared = lock(&self.shared);
        let me = self.me();
        for (who, peer) in [(me, PeerId::LOCAL), (1 - me, OTHER)] {
            if shared.ends[who].gids.contains(gid) && (who == me || shared.up) {
                into.push(peer);
            }
        }
    }

    fn wait_fd(&self) -> RawFd {
        self.wait_fd
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rdma::fabric::Placement;
    use crate::rdma::fabric::frame::kind;
    use crate::rdma::fabric::test_utils::{Event, TestSink, segment};

    struct Ends {
        left: PairFabric,
        right: PairFabric,
        control: PairControl,
        at_left: TestSink,
        at_right: TestSink,
    }

    /// A pair whose sides know that the link is up.
    fn ends() -> Ends {
        let (mut left, mut right, control) = pair().unwrap();
        let (mut at_left, mut at_right) = (TestSink::default(), TestSink::default());
        assert!(left.poll(&mut at_left) && right.poll(&mut at_right));
        assert_eq!(at_left.events, [Event::Up(OTHER), Event::Routes]);
        at_left.events.clear();
        at_right.events.clear();
        Ends {
            left,
            right,
            control,
            at_left,
            at_right,
        }
    }

    fn frame(kind: u8, seq: u32, length: usize) -> FrameHeader {
        FrameHeader {
            kind,
            seq,
            length: length as u32,
            ..FrameHeader::default()
        }
    }

    fn readable(fd: RawFd) -> bool {
        let mut poll = libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one valid pollfd.
        unsafe { libc::poll(&mut poll, 1, 0) == 1 }
    }

    #[test]
    fn frames_cross_in_both_directions_and_wake_the_receiver() {
        let mut ends = ends();
        let mut payload = vec![3; 70];
        assert!(!readable(ends.right.wait_fd()));
        ends.left
            .send(
                OTHER,
                &frame(kind::SEND, 1, 70),
                &[],
                &[segment(&mut payload)],
            )
            .unwrap();
        std::thread::sleep(Duration::from_millis(1));
        assert!(readable(ends.right.wait_fd()));
        ends.right
            .send(OTHER, &frame(kind::ACK, 2, 0), &[], &[])
            .unwrap();
        assert!(ends.right.poll(&mut ends.at_right));
        assert!(!ends.right.poll(&mut ends.at_right));
        assert!(!readable(ends.right.wait_fd()));
        assert!(ends.left.poll(&mut ends.at_left));
        assert_eq!(ends.at_right.payloads(), [payload]);
        assert_eq!(ends.at_left.frames(), 1);
    }

    #[test]
    fn a_held_frame_keeps_back_all_behind_it() {
        let mut ends = ends();
        ends.control.hold(Side::Right, kind::ACK);
        for (seq, kind) in [kind::SEND, kind::ACK, kind::SEND].into_iter().enumerate() {
            ends.left
                .send(OTHER, &frame(kind, seq as u32, 0), &[], &[])
                .unwrap();
        }
        while ends.right.poll(&mut ends.at_right) {}
        assert_eq!(ends.at_right.frames(), 1);
        assert_eq!(ends.control.in_flight(Side::Right), 2);
        assert!(!readable(ends.right.wait_fd()));
        ends.control.release(Side::Right);
        while ends.right.poll(&mut ends.at_right) {}
        assert_eq!(ends.at_right.frames(), 3);
    }

    #[test]
    fn a_lost_link_loses_what_was_under_way_and_comes_back() {
        let mut ends = ends();
        ends.left
            .send(OTHER, &frame(kind::SEND, 1, 2), &[1, 2], &[])
            .unwrap();
        ends.control.cut();
        assert!(!ends.left.is_up(OTHER) && !ends.left.can_send(OTHER, 0));
        assert_eq!(
            ends.left.send(OTHER, &frame(kind::SEND, 1, 0), &[], &[]),
            Err(SendError::Down)
        );
        ends.control.restore();
        while ends.right.poll(&mut ends.at_right) {}
        while ends.left.poll(&mut ends.at_left) {}
        let expected = [Event::Down(OTHER), Event::Up(OTHER), Event::Routes];
        assert_eq!(ends.at_left.events, expected);
        assert_eq!(ends.at_right.events, expected);
    }

    #[test]
    fn a_peer_dies_in_the_middle_of_a_frame() {
        let mut ends = ends();
        let mut payload = vec![3; 1000];
        ends.control.kill_after(Side::Left, 1500);
        for seq in 0..2 {
            ends.left
                .send(
                    OTHER,
                    &frame(kind::WRITE, seq, 1000),
                    &[],
                    &[segment(&mut payload)],
                )
                .unwrap();
        }
        while ends.right.poll(&mut ends.at_right) {}
        assert_eq!(ends.at_right.payloads(), [payload]);
        assert_eq!(ends.at_right.placed, 2);
        assert_eq!(ends.at_right.events.last(), Some(&Event::Down(OTHER)));
        ends.control.restore();
        assert!(!ends.right.poll(&mut ends.at_right) && !ends.right.is_up(OTHER));
        assert!(!ends.left.poll(&mut ends.at_left));
    }

    #[test]
    fn memory_is_let_go_of_in_the_middle_of_a_frame_on_both_sides() {
        let mut ends = ends();
        let data: Vec<u8> = (0..1000).map(|i| i as u8).collect();
        let mut payload = data.clone();
        ends.control.pace(Side::Right, 300);
        ends.left
            .send(
                OTHER,
                &frame(kind::WRITE, 1, 1003),
                &[9, 9, 9],
                &[segment(&mut payload)],
            )
            .unwrap();
        ends.right.poll(&mut ends.at_right);
        ends.left.forget_memory();
        payload.fill(0);
        ends.right.poll(&mut ends.at_right);
        ends.right.forget_memory();
        ends.at_right.move_memory();
        while ends.right.poll(&mut ends.at_right) {}
        assert_eq!(ends.at_right.skips, [600]);
        assert_eq!(ends.at_right.payloads()[0][3..], data);
    }

    #[test]
    fn a_delayed_frame_waits_and_wakes_when_due() {
        let mut ends = ends();
        ends.control.delay(Side::Right, Duration::from_millis(20));
        ends.left
            .send(OTHER, &frame(kind::SEND, 1, 0), &[], &[])
            .unwrap();
        while ends.right.poll(&mut ends.at_right) {}
        assert_eq!(ends.at_right.frames(), 0);
        let mut poll = libc::pollfd {
            fd: ends.right.wait_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one valid pollfd.
        assert_eq!(unsafe { libc::poll(&mut poll, 1, 5000) }, 1);
        assert!(ends.right.poll(&mut ends.at_right));
        assert_eq!(ends.at_right.frames(), 1);
    }

    #[test]
    fn gids_lead_to_the_side_that_announced_them() {
        let mut ends = ends();
        ends.left.announce(&[[1; 16]]);
        ends.right.poll(&mut ends.at_right);
        assert_eq!(ends.at_right.events, [Event::Routes]);
        assert_eq!(ends.right.route(&[1; 16]), Some(OTHER));
        assert_eq!(ends.left.route(&[1; 16]), Some(PeerId::LOCAL));
        ends.left.announce(&[]);
        assert_eq!(ends.right.route(&[1; 16]), None);
    }

    #[test]
    fn both_queue_pairs_may_be_on_one_side() {
        let mut ends = ends();
        ends.left
            .send(PeerId::LOCAL, &frame(kind::SEND, 1, 1), &[8], &[])
            .unwrap();
        ends.left.poll(&mut ends.at_left);
        assert_eq!(ends.at_left.payloads(), [[8]]);
        assert!(matches!(
            ends.at_left.events[0],
            Event::Frame {
                peer: PeerId::LOCAL,
                placement: Placement::Into,
                ..
            }
        ));
    }
}
