//! Who is to have the next receives of a shared receive queue that has run empty.
//!
//! A queue pair that was refused has to wait before it asks again, and one that had a receive goes on sending: without turns the same few
//! would find whatever is posted. So each that was refused has one receive kept for it, first come first served, for as long as it can be
//! expected to come again. While nobody was refused, and as long as there are more receives than are kept, all take what there is.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// How much later than it was told to come a queue pair may come.
const SLACK: Duration = Duration::from_millis(2);

/// A queue pair's place among those that wait; none until it is refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turn(Option<u64>);

/// Those that wait, in order. At most one for each queue pair.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// Number of the place, and until when it is kept.
    waiting: VecDeque<(u64, Instant)>,
    next: u64,
}

impl Turns {
    /// Whether somebody with this place, or without one, may take one of `available` receives. If so the place is free.
    #[inline]
    pub fn take(&mut self, turn: &mut Turn, available: impl FnOnce() -> u32, now: Instant) -> bool {
        while self.waiting.front().is_some_and(|(_, until)| *until < now) {
            self.waiting.pop_front();
        }
        if self.waiting.is_empty() {
            *turn = Turn(None);
            return true;
        }
        let place = self.place(*turn);
        let ahead = place.unwrap_or(self.waiting.len());
        if available() as usize <= ahead {
            return false;
        }
        if let Some(place) = place {
            self.waiting.remove(place);
        }
        *turn = Turn(None);
        true
    }

    /// Somebody was refused and told to come again after `delay`: it gets a place, or keeps the one it has.
    pub fn refuse(&mut self, turn: &mut Turn, now: Instant, delay: Duration) {
        let until = now + delay + SLACK;
        if let Some(place) = self.place(*turn) {
            self.waiting[place].1 = until;
            return;
        }
        *turn = Turn(Some(self.next));
        self.waiting.push_back((self.next, until));
        self.next += 1;
    }

    /// Somebody will not come again.
    pub fn leave(&mut self, turn: &mut Turn) {
        if let Some(place) = self.place(*turn) {
            self.waiting.remove(place);
        }
        *turn = Turn(None);
    }

    fn place(&self, turn: Turn) -> Option<usize> {
        let number = turn.0?;
        self.waiting
            .binary_search_by_key(&number, |(number, _)| *number)
            .ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DELAY: Duration = Duration::from_micros(10);

    #[test]
    fn those_that_were_refused_come_first_and_in_order() {
        let now = Instant::now();
        let mut turns = Turns::default();
        let (mut a, mut b, mut c) = (Turn::default(), Turn::default(), Turn::default());
        assert!(turns.take(&mut c, || 1, now), "nobody waits");
        turns.refuse(&mut a, now, DELAY);
        turns.refuse(&mut b, now, DELAY);
        assert!(!turns.take(&mut c, || 2, now));
        assert!(!turns.take(&mut b, || 1, now));
        turns.refuse(&mut c, now, DELAY);
        assert!(turns.take(&mut a, || 1, now));
        assert!(!turns.take(&mut a, || 2, now), "once");
        assert!(
            turns.take(&mut c, || 2, now),
            "one is kept for the one ahead"
        );
        assert!(turns.take(&mut b, || 1, now));
        assert!(turns.take(&mut a, || 1, now));
    }

    #[test]
    fn nobody_waits_for_one_that_does_not_come_again() {
        let now = Instant::now();
        let mut turns = Turns::default();
        let (mut gone, mut late, mut other) = Default::default();
        turns.refuse(&mut gone, now, DELAY);
        turns.refuse(&mut late, now, DELAY);
        turns.leave(&mut gone);
        assert!(!turns.take(&mut other, || 1, now + SLACK));
        assert!(turns.take(&mut other, || 1, now + 2 * SLACK));
        // It lost its place, and may have another.
        turns.refuse(&mut other, now, DELAY);
        assert!(!turns.take(&mut late, || 1, now));
        turns.refuse(&mut late, now, DELAY);
        assert!(turns.take(&mut other, || 1, now));
        assert!(turns.take(&mut late, || 1, now));
    }

    #[test]
    fn a_place_is_kept_as_long_as_its_owner_asks_in_time() {
        let now = Instant::now();
        let mut turns = Turns::default();
        let (mut first, mut second) = Default::default();
        turns.refuse(&mut first, now, DELAY);
        for n in 1..10 {
            turns.refuse(&mut first, now + SLACK * n, DELAY);
        }
        turns.refuse(&mut second, now + SLACK * 9, DELAY);
        assert!(!turns.take(&mut second, || 1, now + SLACK * 9));
        assert_eq!(turns.waiting.len(), 2);
        assert!(turns.take(&mut first, || 1, now + SLACK * 9));
    }
}
