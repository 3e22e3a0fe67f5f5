//! Signals that tell us to end.

use std::io;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::thread;

use crate::outcome::{Outcome, OutcomeCell};

const STACK: usize = 64 << 10;
const SIGNALS: [libc::c_int; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];

/// Blocked signals, to be waited for.
pub struct Signals {
    set: libc::sigset_t,
}

impl Signals {
    /// Blocks the signals in this thread, and in all that it starts from now on.
    pub fn block() -> Self {
        let mut set = MaybeUninit::uninit();
        // SAFETY: `set` is initialised by sigemptyset, and valid for the calls after it.
        let set = unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            for signal in SIGNALS {
                libc::sigaddset(set.as_mut_ptr(), signal);
            }
            set.assume_init()
        };
        // SAFETY: the set is initialised, and no old set is asked for.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) };
        Self { set }
    }

    /// Reports the first of them to `outcome`, from a thread of its own.
    ///
    /// # Errors
    /// When the host gives no thread.
    pub fn watch(self, outcome: Arc<OutcomeCell>) -> io::Result<()> {
        thread::Builder::new()
            .name("signals".into())
            .stack_size(STACK)
            .spawn(move || {
                let mut signal = 0;
                // SAFETY: the set is initialised, and the pointer is to an int.
                if unsafe { libc::sigwait(&self.set, &mut signal) } == 0 {
                    outcome.report(Outcome::Signal(signal));
                }
            })
            .map(drop)
    }
}
