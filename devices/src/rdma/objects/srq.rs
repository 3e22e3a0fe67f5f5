//! Shared receive queues: section 6.1. Receives that the QPs of one owner take from one ring, each as its messages come.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::queue::{ReceiveQueue, ReceiveWqe, RingFault, RingPlace};
use super::slab::{HandleLayout, Slab};
use super::turns::{Turn, Turns};
use crate::rdma::events::{EventKind, Events, Raised};
use crate::rdma::memory::{RingMemory, Scope, access};
use crate::rdma::wire::{Le32, Sge, SrqAttributesBody, Status, srq_control};

/// Receives and SGEs that all SRQs of a device together keep of QPs that went without using them.
const MAX_RETURNED: usize = 1 << 16;

/// What CREATE_SRQ asks for; its memory is mapped and its places are checked.
pub(crate) struct SrqRequest {
    pub scope: Scope,
    pub xrc: Xrc,
    pub max_sge: u32,
    pub ring: SrqRing,
}

/// What an XRC SRQ has beside what others have; all 0 of those.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Xrc {
    /// Its domain.
    pub xrcd: u32,
    /// The CQ that its receives complete on.
    pub cqn: u32,
}

/// An SRQ that is gone, and what it held.
pub(super) struct Gone {
    pub pd: u32,
    pub xrc: Xrc,
    /// List entries that its memory was registered with.
    pub entries: u64,
}

/// The memory of an SRQ.
pub(crate) struct SrqRing {
    pub memory: RingMemory,
    /// Of the control block.
    pub control: u64,
    pub place: RingPlace,
}

/// A shared receive queue.
struct Srq {
    scope: Scope,
    xrc: Xrc,
    max_sge: u32,
    memory: Arc<RingMemory>,
    control: u64,
    place: RingPlace,
    queue: ReceiveQueue,
    /// Receives that QPs took and did not use; they are taken first.
    returned: VecDeque<(ReceiveWqe, Box<[Sge]>)>,
    turns: Turns,
    /// SRQ_LIMIT is raised when fewer receives than this wait; 0 never.
    limit: u32,
    /// The producer index lied: it gives no more receives.
    failed: bool,
    raised: Raised,
    /// References by QPs.
    users: u32,
}

/// A QP that wants a receive.
pub struct Taker<'a> {
    /// The CQ that the receive completes on, unless the SRQ has one.
    pub cqn: u32,
    /// Its place, if it was refused before.
    pub turn: &'a mut Turn,
    /// Where SGEs go.
    pub sges: &'a mut Vec<Sge>,
    /// The time.
    pub now: Instant,
    /// How long its peer waits if it is refused; None if that does not come again.
    pub comes_again: Option<Duration>,
}

/// All shared receive queues of a device.
pub struct Srqs {
    table: Slab<Box<Srq>>,
    /// Room taken of [`MAX_RETURNED`].
    returned: usize,
}

impl Srqs {
    pub(super) fn new(limit: u32) -> Self {
        Srqs {
            table: Slab::new(HandleLayout::index_low(1, limit, 24), limit),
            returned: 0,
        }
    }

    /// SRQs that exist.
    pub fn len(&self) -> u32 {
        self.table.len()
    }

    /// Whether there are no SRQs.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn create(&mut self, request: SrqRequest) -> Option<u32> {
        let memory = Arc::new(request.ring.memory);
        let (control, place) = (request.ring.control, request.ring.place);
        let srqn = self.table.insert_with(|_| {
            Box::new(Srq {
                scope: request.scope,
                xrc: request.xrc,
                max_sge: request.max_sge,
                queue: ReceiveQueue::new(
                    memory.clone(),
                    place,
                    control + srq_control::PRODUCER,
                    request.max_sge,
                    request.scope,
                    0,
                ),
                memory,
                control,
                place,
                returned: VecDeque::new(),
                turns: Turns::default(),
                limit: 0,
                failed: false,
                raised: Raised::default(),
                users: 0,
            })
        })?;
        if let Some(srq) = self.table.get(srqn) {
            srq.publish();
        }
        Some(srqn)
    }

    /// The owner of an SRQ.
    pub(super) fn owner(&self, srqn: u32) -> Option<u32> {
        Some(self.table.get(srqn)?.scope.context)
    }

    /// What it has as an XRC SRQ; None for no such SRQ.
    pub(super) fn xrc(&self, srqn: u32) -> Option<Xrc> {
        Some(self.table.get(srqn)?.xrc)
    }

    /// As whom an SRQ of this domain looks memory up.
    #[inline]
    pub(crate) fn scope_in(&self, xrcd: u32, srqn: u32) -> Option<Scope> {
        let srq = self.table.get(srqn)?;
        (srq.xrc.xrcd == xrcd).then_some(srq.scope)
    }

    /// References by QPs.
    pub(super) fn users(&self, srqn: u32) -> u32 {
        self.table.get(srqn).map_or(0, |srq| srq.users)
    }

    /// Counts a reference.
    pub(super) fn hold(&mut self, srqn: u32) {
        if let Some(srq) = self.table.get_mut(srqn) {
            srq.users += 1;
        }
    }

    /// Counts a reference off.
    pub(super) fn release(&mut self, srqn: u32) {
        if let Some(srq) = self.table.get_mut(srqn) {
            srq.users = srq.users.saturating_sub(1);
        }
    }

    /// SRQs of a context.
    pub(super) fn owned_by(&self, context: u32) -> Vec<u32> {
        self.table
            .iter()
            .filter(|(_, srq)| srq.scope.context == context)
            .map(|(srqn, _)| srqn)
            .collect()
    }

    /// Removes an SRQ and its events.
    pub(super) fn destroy(&mut self, srqn: u32, events: &mut Events) -> Option<Gone> {
        let mut srq = self.table.remove(srqn)?;
        events.forget(&mut srq.raised, srqn);
        self.returned -= srq.returned.iter().map(room).sum::<usize>();
        Some(Gone {
            pd: srq.scope.pd,
            xrc: srq.xrc,
            entries: srq.memory.entries(),
        })
    }

    /// Goes on in another ring, whose receives are those of the old one. Returns the list entries that the old memory was registered
    /// with.
    ///
    /// # Errors
    /// `NotFound`; `Invalid` when the ring holds fewer receives than wait, by the producer index that it begins with.
    pub(super) fn resize(&mut self, srqn: u32, ring: SrqRing) -> Result<u64, Status> {
        let srq = self.table.get_mut(srqn).ok_or(Status::NotFound)?;
        let memory = Arc::new(ring.memory);
        srq.queue
            .move_to(
                memory.clone(),
                ring.place,
                ring.control + srq_control::PRODUCER,
            )
            .map_err(|RingFault| Status::Invalid)?;
        let old = srq.memory.entries();
        (srq.memory, srq.control, srq.place) = (memory, ring.control, ring.place);
        srq.publish();
        Ok(old)
    }

    /// The place of its ring.
    pub(crate) fn place(&self, srqn: u32) -> Option<RingPlace> {
        Some(self.table.get(srqn)?.place)
    }

    /// Arms the limit, or disarms it with 0. If fewer receives wait already, the event comes at once.
    pub(super) fn set_limit(&mut self, srqn: u32, limit: u32, events: &mut Events) {
        if let Some(srq) = self.table.get_mut(srqn) {
            srq.limit = limit;
            srq.check_limit(srqn, events);
        }
    }

    /// The reply to QUERY_SRQ.
    pub(super) fn describe(&self, srqn: u32) -> Option<SrqAttributesBody> {
        let srq = self.table.get(srqn)?;
        Some(SrqAttributesBody {
            srq: Le32::new(srqn),
            entries: Le32::new(srq.place.entries),
            max_sge: Le32::new(srq.max_sge),
            limit: Le32::new(srq.limit),
        })
    }

    /// Takes the next receive for a QP and puts its SGEs in place of what is in `sges`. None when none is posted, or none that is not kept
    /// for others. Below the limit that tells so.
    ///
    /// # Errors
    /// When the producer index cannot be, now or before: the QP has to fail, and the SRQ has.
    pub(crate) fn next(
        &mut self,
        srqn: u32,
        taker: &mut Taker<'_>,
        events: &mut Events,
    ) -> Result<Option<ReceiveWqe>, RingFault> {
        let srq = self.table.get_mut(srqn).ok_or(RingFault)?;
        if srq.failed {
            return Err(RingFault);
        }
        let (queue, kept) = (&mut srq.queue, srq.returned.len() as u32);
        // An index that cannot be is found below.
        let available = || queue.waiting().unwrap_or(u32::MAX).saturating_add(kept);
        if !srq.turns.take(taker.turn, available, taker.now) {
            srq.refuse(taker);
            return Ok(None);
        }
        let mut wqe = if let Some(kept) = srq.returned.pop_front() {
            self.returned -= room(&kept);
            taker.sges.clear();
            taker.sges.extend_from_slice(&kept.1);
            kept.0
        } else {
            match srq.queue.next(taker.sges) {
                Ok(Some(wqe)) => wqe,
                Ok(None) => {
                    srq.refuse(taker);
                    return Ok(None);
                }
                Err(fault) => {
                    srq.fail(srqn, events);
                    return Err(fault);
                }
            }
        };
        // The device has its copy: the slot is the process's again.
        srq.publish();
        srq.check_limit(srqn, events);
        wqe.cqn = match srq.xrc {
            Xrc { cqn: 0, .. } => taker.cqn,
            Xrc { cqn, .. } => cqn,
        };
        Ok(Some(wqe))
    }

    /// A QP that was refused will not ask again.
    pub(crate) fn leave(&mut self, srqn: u32, turn: &mut Turn) {
        if let Some(srq) = self.table.get_mut(srqn) {
            srq.turns.leave(turn);
        }
    }

    /// A QP that took a receive has no use for it: the next message gets it.
    pub(crate) fn give_back(&mut self, srqn: u32, wqe: ReceiveWqe, sges: &[Sge]) {
        let Some(srq) = self.table.get_mut(srqn) else {
            return;
        };
        let kept = (wqe, Box::from(sges));
        // What there is no room for is lost, which the verbs allow.
        if self.returned + room(&kept) <= MAX_RETURNED {
            self.returned += room(&kept);
            srq.returned.push_back(kept);
        }
    }
}

/// What a kept receive takes of [`MAX_RETURNED`].
fn room((_, sges): &(ReceiveWqe, Box<[Sge]>)) -> usize {
    1 + sges.len()
}

impl Srq {
    /// Tells the process which slots it may use again.
    #[inline]
    fn publish(&self) {
        // SAFETY: the control block lies inside the registered memory at a multiple of 64 (checked at creation), and the index at a
        // multiple of 64 from there.
        unsafe {
            let consumer = self.memory.at(self.control + srq_control::CONSUMER);
            access::store32(consumer, self.queue.taken());
        }
    }

    fn refuse(&mut self, taker: &mut Taker<'_>) {
        if let Some(delay) = taker.comes_again {
            self.turns.refuse(taker.turn, taker.now, delay);
        }
    }

    fn fail(&mut self, srqn: u32, events: &mut Events) {
        self.failed = true;
        // SAFETY: as in `publish`; the flags lie at a multiple of 4.
        unsafe {
            let flags = self.memory.at(self.control + srq_control::FLAGS);
            access::store32(flags, srq_control::FLAG_ERROR);
        }
        events.raise(&mut self.raised, EventKind::SrqErr, srqn);
    }

    #[inline]
    fn check_limit(&mut self, srqn: u32, events: &mut Events) {
        if self.limit == 0 {
            return;
        }
        let kept = self.returned.len() as u64;
        // A wrong index is found when a receive is taken.
        let below = self
            .queue
            .waiting()
            .is_ok_and(|waiting| u64::from(waiting) + kept < self.limit.into());
        if below {
            self.limit = 0;
            events.raise_again(&mut self.raised, EventKind::SrqLimit, srqn);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rdma::events::{AsyncEvent, EventSink};
    use crate::rdma::memory::RingBuffer;
    use crate::rdma::test_utils::FakeRam;
    use crate::rdma::wire::{Le16, Le64, ReceiveWqeHeader};
    use zerocopy::IntoBytes;

    const BASE: u64 = 0x4000;
    const CONTROL: u64 = 0x1000;
    const ENTRIES: u32 = 8;
    const STRIDE: u32 = 32;

    #[derive(Default)]
    struct Collect(Vec<(EventKind, u32)>);
    impl EventSink for Collect {
        fn asynchronous(&mut self, event: AsyncEvent) -> bool {
            self.0.push((event.kind, event.handle));
            true
        }
        fn completion(&mut self, _: u16, _: u32, _: u32) -> bool {
            false
        }
    }

    struct Rig {
        ram: FakeRam,
        srqs: Srqs,
        events: Events,
        srqn: u32,
        sges: Vec<Sge>,
        turn: Turn,
    }

    fn ring(ram: &FakeRam, base: u64, entries: u32) -> SrqRing {
        let buffer = RingBuffer {
            length: 0x2000,
            page_shift: 12,
            offset: 0,
        };
        SrqRing {
            memory: RingMemory::map(ram, buffer, &[base, base + 0x1000]).unwrap(),
            control: CONTROL,
            place: RingPlace {
                offset: 0,
                entries,
                stride: STRIDE,
            },
        }
    }

    impl Rig {
        fn new() -> Self {
            let ram = FakeRam::new(0x10000);
            let mut srqs = Srqs::new(4);
            let request = SrqRequest {
                scope: Scope {
                    context: 3,
                    pd: 5,
                    qp: 0,
                },
                xrc: Xrc::default(),
                max_sge: 1,
                ring: ring(&ram, BASE, ENTRIES),
            };
            let srqn = srqs.create(request).unwrap();
            Rig {
                ram,
                srqs,
                events: Events::default(),
                srqn,
                sges: Vec::new(),
                turn: Turn::default(),
            }
        }

        /// Fills the slots of these indices, and posts up to the last.
        fn post(&self, base: u64, entries: u32, indices: std::ops::Range<u32>) {
            for index in indices.clone() {
                let header = ReceiveWqeHeader {
                    wr_id: Le64::new(index.into()),
                    num_sge: Le16::new(1),
                    ..ReceiveWqeHeader::default()
                };
                let slot = base + u64::from(index % entries * STRIDE);
                let sge = Sge {
                    length: Le32::new(index),
                    ..Sge::default()
                };
                self.ram
                    .write(slot, &[header.as_bytes(), sge.as_bytes()].concat());
            }
            self.ram.write32(base + CONTROL, indices.end);
        }

        fn next(&mut self) -> Result<Option<ReceiveWqe>, RingFault> {
            let mut taker = Taker {
                cqn: 7,
                turn: &mut self.turn,
                sges: &mut self.sges,
                now: Instant::now(),
                comes_again: Some(Duration::ZERO),
            };
            self.srqs.next(self.srqn, &mut taker, &mut self.events)
        }

        fn took(&mut self) -> u64 {
            let wqe = self.next().unwrap().expect("a receive");
            assert_eq!(
                (wqe.cqn, wqe.scope),
                (
                    7,
                    Scope {
                        context: 3,
                        pd: 5,
                        qp: 0
                    }
                ),
                "{wqe:?}"
            );
            assert_eq!(u64::from(self.sges[0].length.get()), wqe.wr_id);
            wqe.wr_id
        }

        fn consumer(&self, base: u64) -> u32 {
            self.ram.read32(base + CONTROL + 64)
        }

        fn raised(&mut self) -> Vec<(EventKind, u32)> {
            let mut sink = Collect::default();
            self.events.deliver(&mut sink);
            sink.0
        }
    }

    #[test]
    fn slots_are_the_process_s_again_when_they_are_taken() {
        let mut rig = Rig::new();
        assert_eq!(rig.next(), Ok(None));
        rig.post(BASE, ENTRIES, 0..3);
        for n in 0..3 {
            assert_eq!(u64::from(rig.consumer(BASE)), n);
            assert_eq!(rig.took(), n);
        }
        assert_eq!(rig.consumer(BASE), 3);
        assert_eq!(rig.next(), Ok(None));
    }

    #[test]
    fn the_limit_fires_once_below_it_and_at_once_when_it_is_below_already() {
        let mut rig = Rig::new();
        let limit = (EventKind::SrqLimit, rig.srqn);
        rig.post(BASE, ENTRIES, 0..5);
        rig.srqs.set_limit(rig.srqn, 4, &mut rig.events);
        rig.took();
        assert_eq!(rig.raised(), [], "four wait");
        rig.took();
        assert_eq!(rig.raised(), [limit]);
        assert_eq!(rig.srqs.describe(rig.srqn).unwrap().limit.get(), 0);
        rig.took();
        assert_eq!(rig.raised(), []);
        rig.srqs.set_limit(rig.srqn, 3, &mut rig.events);
        assert_eq!(rig.raised(), [limit], "two wait");
        // What is posted meanwhile counts, seen or not.
        rig.srqs.set_limit(rig.srqn, 2, &mut rig.events);
        rig.post(BASE, ENTRIES, 5..7);
        rig.took();
        rig.took();
        assert_eq!(rig.raised(), []);
        rig.took();
        // An event that nobody has taken stands for the next one too.
        rig.srqs.set_limit(rig.srqn, 8, &mut rig.events);
        assert_eq!(rig.raised(), [limit]);
    }

    #[test]
    fn an_index_that_lies_fails_the_queue_for_good_and_is_told_once() {
        let mut rig = Rig::new();
        rig.ram.write32(BASE + CONTROL, ENTRIES + 1);
        assert_eq!(rig.next(), Err(RingFault));
        rig.post(BASE, ENTRIES, 0..1);
        assert_eq!(rig.next(), Err(RingFault));
        assert_eq!(rig.ram.read32(BASE + CONTROL + 68), 1);
        assert_eq!(rig.raised(), [(EventKind::SrqErr, rig.srqn)]);
    }

    #[test]
    fn a_receive_that_was_given_back_comes_first() {
        let mut rig = Rig::new();
        rig.post(BASE, ENTRIES, 0..3);
        let wqe = rig.next().unwrap().unwrap();
        let sges = rig.sges.clone();
        rig.srqs.give_back(rig.srqn, wqe, &sges);
        for n in 0..3 {
            assert_eq!(rig.took(), n);
        }
        assert_eq!(rig.srqs.returned, 0);
        // They are not kept without bound.
        for _ in 0..MAX_RETURNED {
            rig.srqs.give_back(rig.srqn, wqe, &sges);
        }
        assert_eq!(rig.srqs.returned, MAX_RETURNED);
        assert!(rig.srqs.destroy(rig.srqn, &mut rig.events).is_some());
        assert_eq!(rig.srqs.returned, 0);
    }

    #[test]
    fn another_ring_goes_on_where_the_old_one_was() {
        let mut rig = Rig::new();
        rig.post(BASE, ENTRIES, 0..8);
        for n in 0..5 {
            assert_eq!(rig.took(), n);
        }
        let new = BASE + 0x4000;
        rig.post(new, 2, 6..8);
        let small = ring(&rig.ram, new, 2);
        assert_eq!(rig.srqs.resize(rig.srqn, small), Err(Status::Invalid));
        assert_eq!(rig.took(), 5);
        let small = ring(&rig.ram, new, 2);
        assert_eq!(rig.srqs.resize(rig.srqn, small), Ok(2));
        assert_eq!(rig.consumer(new), 6);
        assert_eq!((rig.took(), rig.took()), (6, 7));
        assert_eq!(rig.next(), Ok(None));
        assert_eq!(rig.srqs.describe(rig.srqn).unwrap().entries.get(), 2);
    }
}
