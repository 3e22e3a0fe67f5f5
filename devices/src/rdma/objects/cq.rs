//! Completion queues: section 7. One ring each; overflow and arming are decided here.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use zerocopy::{Immutable, IntoBytes, transmute};

use super::slab::{HandleLayout, Slab};
use crate::rdma::events::{EventKind, EventSink, Events, Raised};
use crate::rdma::memory::{RingMemory, access};
use crate::rdma::stats::Stats;
use crate::rdma::wire::{CQE_PHASE, CQE_SIZE, Cqe, Le32, Le64, cq_control, cqe_status};
use moderation::{Held, Moderation};

mod moderation;
mod resize;

/// The CQ takes no completion: it overflowed, now or before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the completion queue overflowed")]
pub struct Overflow;

/// A CQE as it lies in the ring.
#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct Slot {
    cqe: Cqe,
    phase: Le32,
}

/// Of them, the last is written last: it ends in the phase.
const SLOT_WORDS: usize = CQE_SIZE as usize / 8;
const _: () = assert!(std::mem::offset_of!(Slot, phase) == CQE_PHASE as usize);

/// Nothing was written since arming was last looked at.
const WRITTEN_NONE: u32 = 0;

/// A completion queue.
struct Cq {
    context: u32,
    vector: u16,
    ring: CqRing,
    /// Free-running index of the next CQE.
    producer: u32,
    /// The process's index as last read.
    consumer: u32,
    error: bool,
    /// What was written since arming was last looked at: [`cq_control::ARM_SOLICITED`] for solicited and failed ones,
    /// [`cq_control::ARM_ANY`] for others.
    written: u32,
    /// The sequence that fired last.
    fired: Option<u32>,
    /// An event that waits for delivery.
    event: Option<u32>,
    /// Of its events, if any.
    moderation: Option<Moderation>,
    raised: Raised,
    /// References by QPs.
    users: u32,
}

/// Where CQEs go: checked, so that control block and ring lie inside the memory, at multiples of 64.
pub(crate) struct CqRing {
    pub entries: u32,
    pub memory: RingMemory,
    /// Offset of the control block.
    pub control: u64,
    /// Offset of CQE 0.
    pub ring: u64,
}

/// What CREATE_CQ asks for, checked.
pub(crate) struct CqRequest {
    pub context: u32,
    pub vector: u16,
    pub ring: CqRing,
}

/// All completion queues of a device.
pub struct Cqs {
    table: Slab<Box<Cq>>,
    /// CQs with `written` not none.
    touched: Vec<u32>,
    /// CQs with an `event`.
    waiting: VecDeque<u32>,
    /// CQs that overflowed and whose QPs have not been told.
    failed: Vec<u32>,
    /// Events that moderation holds back.
    held: Held,
    stats: Arc<Stats>,
    /// Nanoseconds that CQEs get as their time; set once a round.
    pub timestamp: u64,
}

impl Cqs {
    pub(crate) fn new(limit: u32, stats: Arc<Stats>) -> Self {
        Cqs {
            table: Slab::new(HandleLayout::index_low(1, limit, 32), limit),
            touched: Vec::new(),
            waiting: VecDeque::new(),
            failed: Vec::new(),
            held: Held::default(),
            stats,
            timestamp: 0,
        }
    }

    /// CQs that exist.
    pub fn len(&self) -> u32 {
        self.table.len()
    }

    /// Whether there are no CQs.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn create(&mut self, request: CqRequest) -> Option<u32> {
        self.table.insert_with(|_| {
            Box::new(Cq {
                context: request.context,
                vector: request.vector,
                ring: request.ring,
                producer: 0,
                consumer: 0,
                error: false,
                written: WRITTEN_NONE,
                fired: None,
                event: None,
                moderation: None,
                raised: Raised::default(),
                users: 0,
            })
        })
    }

    /// The owner of a CQ.
    pub(crate) fn owner(&self, cqn: u32) -> Option<u32> {
        Some(self.table.get(cqn)?.context)
    }

    /// References by QPs.
    pub(crate) fn users(&self, cqn: u32) -> u32 {
        self.table.get(cqn).map_or(0, |cq| cq.users)
    }

    /// Counts a reference.
    pub(crate) fn hold(&mut self, cqn: u32) {
        if let Some(cq) = self.table.get_mut(cqn) {
            cq.users += 1;
        }
    }

    /// Counts a reference off.
    pub(crate) fn release(&mut self, cqn: u32) {
        if let Some(cq) = self.table.get_mut(cqn) {
            cq.users = cq.users.saturating_sub(1);
        }
    }

    /// Removes a CQ and all that waits for it. Returns the list entries that its memory was registered with.
    pub(crate) fn destroy(&mut self, cqn: u32, events: &mut Events) -> u64 {
        let Some(mut cq) = self.table.remove(cqn) else {
            return 0;
        };
        events.forget(&mut cq.raised, cqn);
        if cq.written != WRITTEN_NONE {
            self.touched.retain(|n| *n != cqn);
        }
        if cq.event.is_some() {
            self.waiting.retain(|n| *n != cqn);
        }
        if cq.error {
            self.failed.retain(|n| *n != cqn);
        }
        if let Some(moderation) = &cq.moderation {
            self.held.forget(moderation, cqn);
        }
        cq.ring.memory.entries()
    }

    /// CQs of a context.
    pub(crate) fn owned_by(&self, context: u32) -> Vec<u32> {
        self.table
            .iter()
            .filter(|(_, cq)| cq.context == context)
            .map(|(cqn, _)| cqn)
            .collect()
    }

    /// Whether a CQ overflowed.
    pub fn has_failed(&self, cqn: u32) -> bool {
        self.table.get(cqn).is_some_and(|cq| cq.error)
    }

    /// Writes a CQE. `solicited` says that the process may have asked to hear of this one; failures are heard of in any case.
    ///
    /// # Errors
    /// When the ring is full or the process's index is not one that it can have: nothing is written, the CQ is in error from now on, and
    /// the device tells the QPs bound to it (see [`Cqs::take_failed`]). And always after that.
    #[inline(always)]
    pub fn complete(
        &mut self,
        cqn: u32,
        cqe: &Cqe,
        solicited: bool,
        events: &mut Events,
    ) -> Result<(), Overflow> {
        let Some(cq) = self.table.get_mut(cqn) else {
            return Err(Overflow);
        };
        if cq.error {
            return Err(Overflow);
        }
        if !cq.has_room() {
            cq.error = true;
            // SAFETY: a word of the control block.
            unsafe {
                let flags = cq.ring.control_word(cq_control::FLAGS);
                access::store32(flags, cq_control::FLAG_ERROR);
            }
            events.raise(&mut cq.raised, EventKind::CqErr, cqn);
            self.failed.push(cqn);
            self.stats.device.cq_overflows.add(1);
            return Err(Overflow);
        }
        cq.put(cqe, self.timestamp);
        if cq.written == WRITTEN_NONE {
            self.touched.push(cqn);
        }
        let kind = if solicited || cqe.status != cqe_status::SUCCESS {
            cq_control::ARM_SOLICITED
        } else {
            cq_control::ARM_ANY
        };
        cq.written |= kind;
        self.stats.device.completions.add(1);
        Ok(())
    }

    /// A CQ whose QPs must be told that it failed; each comes once.
    pub(crate) fn take_failed(&mut self) -> Option<u32> {
        self.failed.pop()
    }

    /// Looks whether the CQs written to are armed, and prepares their events. Called after each batch of completions.
    pub fn check_armed(&mut self) {
        if !self.touched.is_empty() {
            // Orders the CQEs before the look at `arm`; the process fences between its store to `arm` and its look at the ring.
            fence(Ordering::SeqCst);
            for cqn in self.touched.drain(..) {
                if let Some(cq) = self.table.get_mut(cqn)
                    && let Some(sequence) = cq.satisfied()
                    && !cq.holds(cqn, sequence, &mut self.held, self.timestamp)
                {
                    cq.fire(cqn, sequence, &mut self.waiting);
                }
            }
        }
        while let Some(cqn) = self.held.expired(self.timestamp) {
            if let Some(cq) = self.table.get_mut(cqn)
                && let Some(sequence) = cq.held()
            {
                cq.fire(cqn, sequence, &mut self.waiting);
            }
        }
    }

    /// Delivers the events that the sink takes. True if it took any.
    pub(crate) fn deliver(&mut self, sink: &mut dyn EventSink) -> bool {
        let mut any = false;
        // An event that has no buffer must not hold up those of other vectors.
        for _ in 0..self.waiting.len() {
            let Some(cqn) = self.waiting.pop_front() else {
                break;
            };
            let Some(cq) = self.table.get_mut(cqn) else {
                continue;
            };
            let Some(sequence) = cq.event else {
                continue;
            };
            if sink.completion(cq.vector, cqn, sequence) {
                cq.event = None;
                any = true;
            } else {
                self.waiting.push_back(cqn);
            }
        }
        any
    }

    /// Whether completion events wait for a buffer, or for [`Cqs::check_armed`].
    pub fn has_events(&self) -> bool {
        !self.waiting.is_empty() || !self.touched.is_empty()
    }
}

impl CqRing {
    /// Address of a word of the control block.
    fn control_word(&self, word: u64) -> *mut u8 {
        self.memory.at(self.control + word)
    }

    /// Address of the slot that a free-running index leads to.
    #[inline]
    fn slot(&self, index: u32) -> *mut u8 {
        let slot = index & (self.entries - 1);
        self.memory.at(self.ring + u64::from(slot) * CQE_SIZE)
    }

    /// Writes a CQE under the phase of its index. Inlined up to where the CQE is made, so that its words are put together in registers.
    #[inline(always)]
    fn write(&self, index: u32, cqe: &Cqe) {
        let pass = index / self.entries;
        let slot = Slot {
            cqe: *cqe,
            phase: Le32::new(pass.wrapping_add(1) & 1),
        };
        let words: [u64; SLOT_WORDS] = transmute!(slot);
        // SAFETY: the ring lies inside the registered memory at a multiple of 64 (checked at creation), so that a CQE is in one piece of
        // 64 bytes, 64-aligned.
        unsafe { access::write_words(self.slot(index), &words) };
    }
}

impl Cq {
    /// The sequence under which the process asked to hear of what was written since this was last looked at, if it did and has not
    /// heard yet.
    fn satisfied(&mut self) -> Option<u32> {
        let written = std::mem::replace(&mut self.written, WRITTEN_NONE);
        // SAFETY: a word of the control block.
        let arm = unsafe { access::load32(self.ring.control_word(cq_control::ARM)) };
        let (kind, sequence) = (arm & 3, arm >> 2);
        let satisfied = match kind {
            cq_control::ARM_SOLICITED => written & cq_control::ARM_SOLICITED != 0,
            cq_control::ARM_ANY => true,
            _ => false,
        };
        (satisfied && self.fired != Some(sequence)).then_some(sequence)
    }

    /// Makes an event.
    fn fire(&mut self, cqn: u32, sequence: u32, waiting: &mut VecDeque<u32>) {
        self.fired = Some(sequence);
        if self.event.replace(sequence).is_none() {
            waiting.push_back(cqn);
        }
    }

    /// Whether another CQE fits.
    #[inline]
    fn has_room(&mut self) -> bool {
        let unread = self.producer.wrapping_sub(self.consumer);
        unread < self.ring.entries
            || self
                .look_at_consumer()
                .is_some_and(|unread| unread < self.ring.entries)
    }

    /// Reads the process's index, and says how many CQEs are unread. None when the index is not one that it can have.
    fn look_at_consumer(&mut self) -> Option<u32> {
        // SAFETY: a word of the control block.
        let consumer = unsafe { access::load32(self.ring.control_word(cq_control::CONSUMER)) };
        let unread = self.producer.wrapping_sub(self.consumer);
        if consumer.wrapping_sub(self.consumer) > unread {
            return None;
        }
        self.consumer = consumer;
        Some(self.producer.wrapping_sub(consumer))
    }

    #[inline(always)]
    fn put(&mut self, cqe: &Cqe, timestamp: u64) {
        let cqe = Cqe {
            timestamp: Le64::new(timestamp),
            ..*cqe
        };
        self.ring.write(self.producer, &cqe);
        self.producer = self.producer.wrapping_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rdma::events::AsyncEvent;
    use crate::rdma::memory::RingBuffer;
    use crate::rdma::test_utils::FakeRam;
    use crate::rdma::wire::cqe_opcode;

    const RING: u64 = 0x1000;
    const CONTROL: u64 = 0x2fc0;
    const ENTRIES: u32 = 4;

    #[derive(Default)]
    struct Sink {
        closed: bool,
        fired: Vec<(u16, u32, u32)>,
    }
    impl EventSink for Sink {
        fn asynchronous(&mut self, _: AsyncEvent) -> bool {
            false
        }
        fn completion(&mut self, vector: u16, cqn: u32, sequence: u32) -> bool {
            if !self.closed {
                self.fired.push((vector, cqn, sequence));
            }
            !self.closed
        }
    }

    struct Rig {
        ram: FakeRam,
        cqs: Cqs,
        events: Events,
        sink: Sink,
        cqn: u32,
    }

    impl Rig {
        /// A CQ of 4 entries in pages that do not follow one another; its control block lies across two of them.
        fn new() -> Self {
            let ram = FakeRam::new(0x10_000);
            let buffer = RingBuffer {
                length: 0x4000,
                page_shift: 12,
                offset: 0,
            };
            let memory = RingMemory::map(&ram, buffer, &[0x5000, 0x1000, 0x9000, 0x3000]).unwrap();
            let mut cqs = Cqs::new(8, Arc::default());
            let cqn = cqs
                .create(CqRequest {
                    context: 0,
                    vector: 3,
                    ring: CqRing {
                        entries: ENTRIES,
                        memory,
                        control: CONTROL,
                        ring: RING,
                    },
                })
                .unwrap();
            Rig {
                ram,
                cqs,
                events: Events::default(),
                sink: Sink::default(),
                cqn,
            }
        }

        fn complete(&mut self, wr_id: u64, status: u8, solicited: bool) -> Result<(), Overflow> {
            let cqe = Cqe {
                wr_id: Le64::new(wr_id),
                status,
                opcode: cqe_opcode::RECV,
                ..Cqe::default()
            };
            self.cqs
                .complete(self.cqn, &cqe, solicited, &mut self.events)
        }

        fn ok(&mut self, solicited: bool) {
            self.complete(0, cqe_status::SUCCESS, solicited).unwrap();
        }

        /// The wr_id and phase of a slot.
        fn slot(&self, slot: u64) -> (u32, u32) {
            let at = 0x1000 + slot * CQE_SIZE;
            (self.ram.read32(at), self.ram.read32(at + CQE_PHASE))
        }

        fn consume(&self, consumer: u32) {
            self.ram.write32(0x9fc0, consumer);
        }

        fn arm(&self, sequence: u32, kind: u32) {
            self.ram.write32(0x9fc4, sequence << 2 | kind);
        }

        /// Sequences of the events that fire now.
        fn fired(&mut self) -> Vec<u32> {
            self.cqs.check_armed();
            self.cqs.deliver(&mut self.sink);
            let cqn = self.cqn;
            let fired = std::mem::take(&mut self.sink.fired);
            fired
                .into_iter()
                .map(|(vector, n, sequence)| {
                    assert_eq!((vector, n), (3, cqn));
                    sequence
                })
                .collect()
        }
    }

    #[test]
    fn each_pass_over_the_ring_has_its_phase() {
        let mut rig = Rig::new();
        for i in 0..12_u32 {
            rig.complete(u64::from(i) + 100, cqe_status::SUCCESS, false)
                .unwrap();
            let phase = (i / ENTRIES + 1) & 1;
            assert_eq!(rig.slot(u64::from(i % ENTRIES)), (i + 100, phase));
            rig.consume(i + 1);
        }
    }

    #[test]
    fn a_full_ring_stays_intact_and_fails_once() {
        let mut rig = Rig::new();
        for i in 1..=4 {
            rig.complete(i, cqe_status::SUCCESS, false).unwrap();
        }
        assert_eq!(rig.complete(5, 0, false), Err(Overflow));
        assert_eq!(rig.complete(6, 0, false), Err(Overflow));
        for i in 0..4 {
            assert_eq!(rig.slot(i), (i as u32 + 1, 1));
        }
        assert_eq!(rig.ram.read32(0x3000), cq_control::FLAG_ERROR);
        assert_eq!(rig.cqs.take_failed(), Some(rig.cqn));
        assert_eq!(rig.cqs.take_failed(), None);
        assert_eq!(rig.cqs.stats.device.cq_overflows.get(), 1);
        rig.consume(4);
        assert_eq!(rig.complete(7, 0, false), Err(Overflow));
        assert!(rig.cqs.has_failed(rig.cqn));
    }

    #[test]
    fn the_last_free_slot_is_used_and_consuming_one_makes_room_for_one() {
        let mut rig = Rig::new();
        for i in 0..4 {
            rig.complete(i, 0, false).unwrap();
        }
        rig.consume(1);
        rig.complete(4, 0, false).unwrap();
        assert_eq!(rig.slot(0), (4, 0));
        assert_eq!(rig.complete(5, 0, false), Err(Overflow));
    }

    #[test]
    fn a_consumer_that_lies_is_a_fault() {
        for lie in [5, 1000, u32::MAX] {
            let mut rig = Rig::new();
            for i in 0..4 {
                rig.complete(i, 0, false).unwrap();
            }
            rig.consume(lie);
            assert_eq!(rig.complete(4, 0, false), Err(Overflow), "{lie}");
        }
        // Back behind what it said before.
        let mut rig = Rig::new();
        for i in 0..4 {
            rig.complete(i, 0, false).unwrap();
        }
        rig.consume(3);
        for i in 0..3 {
            rig.complete(i, 0, false).unwrap();
        }
        rig.consume(2);
        assert_eq!(rig.complete(7, 0, false), Err(Overflow));
    }

    #[test]
    fn a_cq_that_is_not_armed_fires_nothing() {
        let mut rig = Rig::new();
        rig.ok(true);
        assert!(rig.cqs.has_events());
        assert!(rig.fired().is_empty());
        assert!(!rig.cqs.has_events());
    }

    #[test]
    fn arming_for_any_fires_once_for_each_sequence() {
        let mut rig = Rig::new();
        rig.arm(0, cq_control::ARM_ANY);
        assert!(rig.fired().is_empty());
        rig.ok(false);
        assert_eq!(rig.fired(), [0]);
        rig.ok(false);
        assert!(rig.fired().is_empty());
        rig.arm(1, cq_control::ARM_ANY);
        rig.ok(false);
        assert_eq!(rig.fired(), [1]);
    }

    #[test]
    fn arming_for_solicited_fires_for_solicited_and_failed_ones_only() {
        let mut rig = Rig::new();
        rig.arm(5, cq_control::ARM_SOLICITED);
        rig.ok(false);
        assert!(rig.fired().is_empty());
        rig.ok(true);
        assert_eq!(rig.fired(), [5]);
        rig.arm(6, cq_control::ARM_SOLICITED);
        rig.complete(1, cqe_status::WR_FLUSH_ERR, false).unwrap();
        assert_eq!(rig.fired(), [6]);
    }

    #[test]
    fn a_batch_fires_for_the_strongest_of_its_completions() {
        let mut rig = Rig::new();
        rig.arm(1, cq_control::ARM_SOLICITED);
        rig.ok(true);
        rig.ok(false);
        assert_eq!(rig.fired(), [1]);
    }

    #[test]
    fn an_event_without_room_waits_and_is_the_only_one() {
        let mut rig = Rig::new();
        rig.sink.closed = true;
        rig.arm(1, cq_control::ARM_ANY);
        rig.ok(false);
        assert!(rig.fired().is_empty());
        rig.arm(2, cq_control::ARM_ANY);
        rig.ok(false);
        assert!(rig.fired().is_empty());
        assert!(rig.cqs.has_events());
        rig.sink.closed = false;
        assert_eq!(rig.fired(), [2]);
        assert!(!rig.cqs.has_events());
    }

    #[test]
    fn a_destroyed_cq_leaves_no_event_behind() {
        let mut rig = Rig::new();
        rig.sink.closed = true;
        rig.arm(1, cq_control::ARM_ANY);
        rig.ok(false);
        rig.fired();
        for i in 0..4 {
            let _ = rig.complete(i, 0, false);
        }
        let cqn = rig.cqn;
        rig.cqs.destroy(cqn, &mut rig.events);
        rig.sink.closed = false;
        assert!(rig.fired().is_empty());
        assert!(rig.events.is_empty());
        assert_eq!(rig.cqs.take_failed(), None);
        assert_eq!(rig.complete(1, 0, false), Err(Overflow));
    }

    #[test]
    fn free_running_indices_wrap_without_a_break() {
        let mut rig = Rig::new();
        let near = u32::MAX - 5;
        let cq = rig.cqs.table.get_mut(rig.cqn).unwrap();
        (cq.producer, cq.consumer) = (near, near);
        for i in 0..12_u32 {
            let index = near.wrapping_add(i);
            rig.ok(false);
            let slot = u64::from(index & (ENTRIES - 1));
            assert_eq!(rig.slot(slot).1, (index / ENTRIES + 1) & 1);
            rig.consume(index.wrapping_add(1));
        }
    }
}
