//! Moderation of completion events: an event waits for more completions, but not for long.

use std::collections::BTreeSet;

use super::{Cq, Cqs};

/// How the events of a CQ are moderated.
#[derive(Debug)]
pub(super) struct Moderation {
    /// An event waits until so many completions came since the last one,
    count: u32,
    /// or so many nanoseconds have passed.
    period: u64,
    /// The CQ's producer when it last had an event.
    since: u32,
    /// When the event that is held back goes out, and its sequence.
    held: Option<(u64, u32)>,
}

impl Moderation {
    /// The producer's indices became smaller by so much.
    pub(super) fn shift(&mut self, by: u32) {
        self.since = self.since.wrapping_sub(by);
    }
}

/// Events that are held back, in order of time: at most one of each CQ.
#[derive(Debug, Default)]
pub(super) struct Held(BTreeSet<(u64, u32)>);

impl Held {
    /// Drops a CQ's event.
    pub(super) fn forget(&mut self, moderation: &Moderation, cqn: u32) {
        if let Some((until, _)) = moderation.held {
            self.0.remove(&(until, cqn));
        }
    }

    /// A CQ whose event has waited long enough.
    pub(super) fn expired(&mut self, now: u64) -> Option<u32> {
        let &(until, cqn) = self.0.first()?;
        if until > now {
            return None;
        }
        self.0.pop_first();
        Some(cqn)
    }
}

impl Cqs {
    /// Lets the events of a CQ wait for `count` completions, at most `period` microseconds. Nothing waits if either is 0.
    pub(crate) fn moderate(&mut self, cqn: u32, count: u16, period: u16) {
        let Some(cq) = self.table.get_mut(cqn) else {
            return;
        };
        let old = cq.moderation.take();
        if let Some(old) = &old {
            self.held.forget(old, cqn);
        }
        // What waits already waits no longer.
        if let Some((_, sequence)) = old.as_ref().and_then(|old| old.held) {
            cq.fire(cqn, sequence, &mut self.waiting);
        }
        cq.moderation = (count > 0 && period > 0).then(|| Moderation {
            count: count.into(),
            period: u64::from(period) * 1000,
            since: cq.producer,
            held: None,
        });
    }

    /// When the next event that is held back goes out, in nanoseconds of the device's clock.
    pub fn next_held(&self) -> Option<u64> {
        self.held.0.first().map(|&(until, _)| until)
    }
}

impl Cq {
    /// Whether an event under this sequence has to wait. If not, it goes out now.
    pub(super) fn holds(&mut self, cqn: u32, sequence: u32, held: &mut Held, now: u64) -> bool {
        let Some(moderation) = &mut self.moderation else {
            return false;
        };
        if self.producer.wrapping_sub(moderation.since) >= moderation.count {
            held.forget(moderation, cqn);
            moderation.held = None;
            moderation.since = self.producer;
            return false;
        }
        if moderation.held.is_none() {
            let until = now.saturating_add(moderation.period);
            moderation.held = Some((until, sequence));
            held.0.insert((until, cqn));
        }
        true
    }

    /// Takes the sequence of an event that has waited long enough.
    pub(super) fn held(&mut self) -> Option<u32> {
        let moderation = self.moderation.as_mut()?;
        moderation.since = self.producer;
        moderation.held.take().map(|(_, sequence)| sequence)
    }
}
