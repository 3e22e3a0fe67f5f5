//! How a machine ends, and what the process says about it.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Instant;

use devices::legacy::GuestEvent;

/// Status when nothing could be started because of what was asked: a wrong option or value.
pub const EXIT_USAGE: i32 = 2;
/// Status when the machine could not be started or met an error of the host.
pub const EXIT_FAILURE: i32 = 70;
/// Status when `--exec` or `longarm exec` could not run the command in the guest.
pub const EXIT_EXEC: i32 = 125;

/// Why a machine ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The guest powered itself off, or the control socket stopped it.
    PowerOff,
    /// The guest reset itself: reset register, keyboard controller or triple fault. It is not started again.
    Reset,
    /// The guest's kernel panicked and said so.
    Panic,
    /// The time given by `--timeout` ran out.
    Timeout,
    /// We were told to end by a signal.
    Signal(i32),
    /// The command of `--exec` ended with this status.
    Exec(i32),
    /// The command of `--exec` could not be run.
    ExecFailed(String),
    /// The hypervisor or a device cannot go on.
    Failure(String),
}

impl Outcome {
    /// The exit status of the process.
    ///
    /// | status | meaning |
    /// | --- | --- |
    /// | 0 | power-off; with `--exec`, the command's success |
    /// | 1 to 255 with `--exec` | the command's own status |
    /// | 2 | a wrong option or value |
    /// | 66 | the guest reset itself (a triple fault included) |
    /// | 67 | the guest's kernel panicked |
    /// | 70 | the machine could not be started, or an error of the host |
    /// | 124 | `--timeout` ran out |
    /// | 125 | `--exec` could not run the command |
    /// | 128 + N | ended by signal N |
    pub fn exit_status(&self) -> i32 {
        match self {
            Self::PowerOff => 0,
            Self::Reset => 66,
            Self::Panic => 67,
            Self::Timeout => 124,
            Self::Signal(signal) => 128 + signal,
            Self::Exec(status) => *status,
            Self::ExecFailed(_) => EXIT_EXEC,
            Self::Failure(_) => EXIT_FAILURE,
        }
    }

    /// One line for the user, where the status alone does not say enough.
    pub fn message(&self) -> Option<String> {
        match self {
            Self::PowerOff | Self::Exec(_) => None,
            Self::Reset => Some("the guest reset itself".into()),
            Self::Panic => Some("the guest's kernel panicked".into()),
            Self::Timeout => Some("the time given by --timeout ran out".into()),
            Self::Signal(signal) => Some(format!("ended by signal {signal}")),
            Self::ExecFailed(why) => Some(format!("--exec: {why}")),
            Self::Failure(why) => Some(why.clone()),
        }
    }
}

/// What an event that the guest raised means for the machine. A crash kernel that took over runs on.
pub fn of_guest_event(event: GuestEvent) -> Option<Outcome> {
    match event {
        GuestEvent::PowerOff => Some(Outcome::PowerOff),
        GuestEvent::Reset => Some(Outcome::Reset),
        GuestEvent::Panic => Some(Outcome::Panic),
        GuestEvent::CrashLoaded => None,
    }
}

/// Where threads report the end of the machine. The first report counts.
#[derive(Debug, Default)]
pub struct OutcomeCell {
    outcome: Mutex<Option<Outcome>>,
    reported: Condvar,
}

impl OutcomeCell {
    /// Reports `outcome`, unless another one was reported before.
    pub fn report(&self, outcome: Outcome) {
        let mut slot = self.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        if slot.is_none() {
            log::debug!("the machine ends: {outcome:?}");
            *slot = Some(outcome);
            self.reported.notify_all();
        }
    }

    /// Waits for a report, at most until `deadline`, which is a [`Outcome::Timeout`] itself.
    pub fn wait(&self, deadline: Option<Instant>) -> Outcome {
        let mut slot = self.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(outcome) = &*slot {
                return outcome.clone();
            }
            slot = match deadline {
                None => self
                    .reported
                    .wait(slot)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Outcome::Timeout;
                    }
                    self.reported
                        .wait_timeout(slot, left)
                        .unwrap_or_else(PoisonError::into_inner)
                        .0
                }
            };
        }
    }

    /// What was reported so far.
    pub fn get(&self) -> Option<Outcome> {
        self.outcome
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_first_report_counts() {
        let cell = OutcomeCell::default();
        cell.report(Outcome::Panic);
        cell.report(Outcome::Reset);
        assert_eq!(cell.wait(None), Outcome::Panic);
    }

    #[test]
    fn waiting_ends_at_the_deadline() {
        let cell = OutcomeCell::default();
        let soon = Instant::now() + Duration::from_millis(10);
        assert_eq!(cell.wait(Some(soon)), Outcome::Timeout);
    }

    #[test]
    fn every_end_of_the_guest_has_its_own_status() {
        let ends = [
            Outcome::PowerOff,
            Outcome::Reset,
            Outcome::Panic,
            Outcome::Timeout,
            Outcome::ExecFailed(String::new()),
            Outcome::Failure(String::new()),
            Outcome::Signal(15),
        ];
        let mut statuses: Vec<_> = ends.iter().map(Outcome::exit_status).collect();
        statuses.push(EXIT_USAGE);
        statuses.sort_unstable();
        statuses.dedup();
        assert_eq!(statuses.len(), ends.len() + 1);
    }
}
