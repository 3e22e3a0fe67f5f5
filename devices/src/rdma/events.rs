//! Events towards the driver: section 8.
//!
//! An event waits where it arose until the driver has a buffer for it. What may wait is bounded by objects: an asynchronous event is raised
//! once for an object until that is reset, and a CQ has one completion event at most.

use std::collections::VecDeque;

/// Types of asynchronous events. The number is what goes to the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum EventKind {
    /// The CQ overflowed.
    CqErr = 1,
    /// The QP failed.
    QpFatal = 2,
    /// The QP got a request that is invalid.
    QpReqErr = 3,
    /// The QP got a request that it must refuse.
    QpAccessErr = 4,
    /// The first message came before the QP was in RTS.
    CommEst = 5,
    /// The send queue is drained.
    SqDrained = 6,
    /// A QP with an SRQ in ERR took its last receive.
    LastWqeReached = 7,
    /// The SRQ failed.
    SrqErr = 8,
    /// The SRQ fell below its limit.
    SrqLimit = 9,
    /// The port came up.
    PortActive = 10,
    /// The port went down.
    PortErr = 11,
    /// The device failed.
    DeviceFatal = 12,
}

/// An asynchronous event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AsyncEvent {
    /// What happened.
    pub kind: EventKind,
    /// CQN, QPN, SRQ or port, as the type has it.
    pub handle: u32,
}

/// Where events go: the driver's event queues.
pub trait EventSink: Send {
    /// Delivers an asynchronous event. False when there is no buffer for it now; the device tries again in a later poll.
    fn asynchronous(&mut self, event: AsyncEvent) -> bool;

    /// Delivers a completion event for a vector. False as above.
    fn completion(&mut self, vector: u16, cqn: u32, sequence: u32) -> bool;

    /// A context got this doorbell page. False when the page cannot be made to work; the context then is not made.
    fn open_doorbell(&mut self, page: u32) -> bool {
        let _ = page;
        true
    }

    /// The context of this doorbell page ended.
    fn close_doorbell(&mut self, page: u32) {
        let _ = page;
    }
}

/// The types that an object has raised.
#[derive(Clone, Copy, Debug, Default)]
pub struct Raised(u32);

/// Asynchronous events that wait for delivery.
#[derive(Debug, Default)]
pub struct Events {
    waiting: VecDeque<AsyncEvent>,
}

impl Events {
    /// Raises an event for the object that `raised` belongs to, unless it was raised before.
    pub fn raise(&mut self, raised: &mut Raised, kind: EventKind, handle: u32) {
        let bit = 1 << kind as u32;
        if raised.0 & bit == 0 {
            raised.0 |= bit;
            self.waiting.push_back(AsyncEvent { kind, handle });
        }
    }

    /// Raises an event that may come again and again, unless one that was raised before still waits: that stands for both.
    pub fn raise_again(&mut self, raised: &mut Raised, kind: EventKind, handle: u32) {
        raised.0 |= 1 << kind as u32;
        let event = AsyncEvent { kind, handle };
        if !self.waiting.contains(&event) {
            self.waiting.push_back(event);
        }
    }

    /// Drops the events of an object that ended or was reset; they can be raised again.
    pub fn forget(&mut self, raised: &mut Raised, handle: u32) {
        if raised.0 == 0 {
            return;
        }
        // No type is raised for objects of two kinds, whose handles may be the same.
        let bits = raised.0;
        self.waiting
            .retain(|event| event.handle != handle || bits & 1 << event.kind as u32 == 0);
        *raised = Raised::default();
    }

    /// Delivers what the sink takes. True if it took anything.
    pub fn deliver(&mut self, sink: &mut dyn EventSink) -> bool {
        let mut any = false;
        while let Some(event) = self.waiting.front() {
            if !sink.asynchronous(*event) {
                break;
            }
            self.waiting.pop_front();
            any = true;
        }
        any
    }

    /// Whether events wait.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Sink {
        room: usize,
        got: Vec<AsyncEvent>,
    }
    impl EventSink for Sink {
        fn asynchronous(&mut self, event: AsyncEvent) -> bool {
            if self.got.len() == self.room {
                return false;
            }
            self.got.push(event);
            true
        }
        fn completion(&mut self, _: u16, _: u32, _: u32) -> bool {
            false
        }
    }

    #[test]
    fn an_event_is_raised_once_until_reset_and_waits_for_room() {
        let (mut events, mut qp) = (Events::default(), Raised::default());
        let mut sink = Sink {
            room: 0,
            got: Vec::new(),
        };
        events.raise(&mut qp, EventKind::QpFatal, 7);
        events.raise(&mut qp, EventKind::QpFatal, 7);
        assert!(!events.deliver(&mut sink));
        sink.room = 8;
        assert!(events.deliver(&mut sink));
        assert_eq!(sink.got.len(), 1);
        events.raise(&mut qp, EventKind::QpFatal, 7);
        assert!(events.is_empty());
        events.forget(&mut qp, 7);
        events.raise(&mut qp, EventKind::QpFatal, 7);
        assert!(!events.is_empty());
    }

    #[test]
    fn forgetting_a_qp_leaves_the_events_of_a_cq_with_the_same_number() {
        let mut events = Events::default();
        let (mut qp, mut cq) = (Raised::default(), Raised::default());
        events.raise(&mut cq, EventKind::CqErr, 7);
        events.raise(&mut qp, EventKind::QpFatal, 7);
        events.forget(&mut qp, 7);
        let mut sink = Sink {
            room: 8,
            got: Vec::new(),
        };
        events.deliver(&mut sink);
        assert_eq!(sink.got[0].kind, EventKind::CqErr);
        assert_eq!(sink.got.len(), 1);
    }
}
