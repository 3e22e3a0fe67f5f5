//! Completion queues: section 7. One ring each; overflow and arming are decided here.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use zerocopy::IntoBytes;

use super::slab::{HandleLayout, Slab};
use crate::rdma::events::{EventKind, EventSink, Events, Raised};
use crate::rdma::memory::{RingMemory, access};
use crate::rdma::stats::Stats;
use crate::rdma::wire::{CQE_PHASE, CQE_SIZE, Cqe, Le64, cq_control, cqe_status};

/// The CQ takes no completion: it overflowed, now or before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the completion queue overflowed")]
pub struct Overflow;

/// Arm kind that a batch of CQEs satisfies at most.
const WRITTEN_NONE: u32 = 0;

/// A completion queue.
struct Cq {
    context: u32,
    vector: u16,
    entries: u32,
    memory: RingMemory,
    control: u64,
    ring: u64,
    /// Free-running index of the next CQE.
    producer: u32,
    /// The process's index as last read.
    consumer: u32,
    error: bool,
    /// What was written since arming was last looked at: none, unsolicited only, or solicited and failed too, by the arm kind that
    /// asks for at least that ([`cq_control::ARM_ANY`] alone, or [`cq_control::ARM_SOLICITED`] too).
    written: u32,
    /// The sequence that fired last.
    fired: Option<u32>,
    /// An event that waits for delivery.
    event: Option<u32>,
    raised: Raised,
    /// References by QPs.
    users: u32,
}

/// What CREATE_CQ asks for, checked.
pub(crate) struct CqRequest {
    pub context: u32,
    pub vector: u16,
    pub entries: u32,
    pub memory: RingMemory,
    pub control: u64,
    pub ring: u64,
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
                entries: request.entries,
                memory: request.memory,
                control: request.control,
                ring: request.ring,
                producer: 0,
                consumer: 0,
                error: false,
                written: WRITTEN_NONE,
                fired: None,
                event: None,
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

    /// Removes a CQ and all that waits for it.
    pub(crate) fn destroy(&mut self, cqn: u32, events: &mut Events) {
        let Some(mut cq) = self.table.remove(cqn) else {
            return;
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
    #[inline]
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
            // SAFETY: the control block lies inside the registered memory at a multiple of 64 (checked at creation), and its flags at a
            // multiple of 64 from there.
            unsafe {
                let flags = cq.memory.at(cq.control + cq_control::FLAGS);
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
        if self.touched.is_empty() {
            return;
        }
        // Orders the CQEs before the look at `arm`; the process fences between its store to `arm` and its look at the ring.
        fence(Ordering::SeqCst);
        for cqn in self.touched.drain(..) {
            let Some(cq) = self.table.get_mut(cqn) else {
                continue;
            };
            let written = std::mem::replace(&mut cq.written, WRITTEN_NONE);
            // SAFETY: as in `complete`; `arm` lies at a multiple of 4.
            let arm = unsafe { access::load32(cq.memory.at(cq.control + cq_control::ARM)) };
            let (kind, sequence) = (arm & 3, arm >> 2);
            let satisfied = match kind {
                cq_control::ARM_SOLICITED => written & cq_control::ARM_SOLICITED != 0,
                cq_control::ARM_ANY => true,
                _ => false,
            };
            if satisfied && cq.fired != Some(sequence) {
                cq.fired = Some(sequence);
                if cq.event.replace(sequence).is_none() {
                    self.waiting.push_back(cqn);
                }
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

impl Cq {
    /// Whether another CQE fits.
    #[inline]
    fn has_room(&mut self) -> bool {
        if self.producer.wrapping_sub(self.consumer) < self.entries {
            return true;
        }
        // SAFETY: as in `Cqs::complete`; `consumer` lies at a multiple of 4.
        let consumer =
            unsafe { access::load32(self.memory.at(self.control + cq_control::CONSUMER)) };
        let unread = self.producer.wrapping_sub(self.consumer);
        if consumer.wrapping_sub(self.consumer) > unread {
            return false;
        }
        self.consumer = consumer;
        self.producer.wrapping_sub(consumer) < self.entries
    }

    #[inline]
    fn put(&mut self, cqe: &Cqe, timestamp: u64) {
        let slot = self.producer & (self.entries - 1);
        let pass = self.producer / self.entries;
        let at = self.memory.at(self.ring + u64::from(slot) * CQE_SIZE);
        let cqe = Cqe {
            timestamp: Le64::new(timestamp),
            ..*cqe
        };
        // SAFETY: the ring lies inside the registered memory at a multiple of 64 (checked at creation), so that a CQE is in one piece of
        // 64 bytes, 64-aligned.
        unsafe {
            access::write(at, cqe.as_bytes());
            access::store32(
                at.wrapping_add(CQE_PHASE as usize),
                pass.wrapping_add(1) & 1,
            );
        }
        self.producer = self.producer.wrapping_add(1);
    }
}
