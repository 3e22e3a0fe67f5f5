//! Timers of queue pairs: at most one per QP, in order of time.
//!
//! A QP that waits for several things arms its timer for the first of them and looks at all when it goes off, so acknowledgements that
//! arrive in time cost nothing here.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Armed timers. The size is bounded by the number of QPs.
#[derive(Debug, Default)]
pub struct Timers {
    armed: BTreeSet<(Instant, u32)>,
}

impl Timers {
    /// Lets the QP's timer go off at `at` or earlier. `slot` is where the QP keeps what is armed.
    pub fn arm(&mut self, slot: &mut Option<Instant>, qpn: u32, at: Instant) {
        match *slot {
            Some(earlier) if earlier <= at => return,
            Some(later) => {
                self.armed.remove(&(later, qpn));
            }
            None => {}
        }
        self.armed.insert((at, qpn));
        *slot = Some(at);
    }

    /// Takes the QP's timer away.
    pub fn cancel(&mut self, slot: &mut Option<Instant>, qpn: u32) {
        if let Some(at) = slot.take() {
            self.armed.remove(&(at, qpn));
        }
    }

    /// A QP whose timer has run out; its owner empties the slot.
    pub fn expired(&mut self, now: Instant) -> Option<u32> {
        let &(at, qpn) = self.armed.first()?;
        if at > now {
            return None;
        }
        self.armed.pop_first();
        Some(qpn)
    }

    /// When the next timer goes off.
    pub fn next(&self) -> Option<Instant> {
        self.armed.first().map(|&(at, _)| at)
    }
}

/// The RNR timer's encoding, in units of 10 microseconds (InfiniBand, 9.7.5.2.8).
const RNR_TIMER_10US: [u32; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

/// How long to wait after an RNR NAK; only the low five bits count.
pub fn rnr_delay(encoding: u32) -> Duration {
    Duration::from_micros(u64::from(RNR_TIMER_10US[(encoding & 31) as usize]) * 10)
}

/// The local acknowledgement timeout, 4.096 us * 2^n; None for n = 0, which means for ever. Only the low five bits count.
pub fn ack_timeout(encoding: u8) -> Option<Duration> {
    match encoding & 31 {
        0 => None,
        n => Some(Duration::from_nanos(4096 << n)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_earlier_time_moves_a_timer() {
        let mut timers = Timers::default();
        let (mut slot, start) = (None, Instant::now());
        let ms = |n| start + Duration::from_millis(n);
        timers.arm(&mut slot, 7, ms(20));
        timers.arm(&mut slot, 7, ms(30));
        assert_eq!(timers.next(), Some(ms(20)));
        timers.arm(&mut slot, 7, ms(10));
        assert_eq!(timers.next(), Some(ms(10)));
        assert_eq!(timers.expired(ms(9)), None);
        assert_eq!(timers.expired(ms(10)), Some(7));
        assert_eq!(timers.expired(ms(1000)), None);
    }

    #[test]
    fn a_cancelled_timer_does_not_go_off() {
        let mut timers = Timers::default();
        let (mut slot, now) = (None, Instant::now());
        timers.arm(&mut slot, 1, now);
        timers.cancel(&mut slot, 1);
        assert_eq!((slot, timers.expired(now)), (None, None));
    }

    #[test]
    fn encodings_match_the_infiniband_tables() {
        assert_eq!(rnr_delay(0), Duration::from_micros(655_360));
        assert_eq!(rnr_delay(1), Duration::from_micros(10));
        assert_eq!(rnr_delay(12), Duration::from_micros(640));
        assert_eq!(rnr_delay(31), Duration::from_micros(491_520));
        assert_eq!(ack_timeout(0), None);
        assert_eq!(ack_timeout(14), Some(Duration::from_nanos(67_108_864)));
        assert_eq!(ack_timeout(31), Some(Duration::from_nanos(4096 << 31)));
    }
}
