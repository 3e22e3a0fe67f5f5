//! A test that hangs is a test that fails: within a time limit, and saying which.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// Long enough for a test of seconds on a machine that is loaded beyond its processors.
const LIMIT: Duration = Duration::from_secs(300);

/// Ends the process when it is not dropped in time.
pub struct Watchdog {
    done: Option<Sender<()>>,
}

impl Watchdog {
    /// Starts one for a test of seconds.
    pub fn new(what: &str) -> Watchdog {
        Watchdog::lasting(what, Duration::ZERO)
    }

    /// Starts one for a test that means to take `time`.
    pub fn lasting(what: &str, time: Duration) -> Watchdog {
        let limit = time + LIMIT;
        let (done, wait) = channel();
        let what = what.to_owned();
        std::thread::spawn(move || {
            if wait.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                eprintln!("{what}: not done after {limit:?}; ending the process");
                std::process::abort();
            }
        });
        Watchdog { done: Some(done) }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        if let Some(done) = self.done.take() {
            let _ = done.send(());
        }
    }
}
