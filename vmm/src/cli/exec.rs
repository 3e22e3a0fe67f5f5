//! Running commands in a guest, by the agent in it.

use std::io::{self, IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use api::control::VmInfo;
use longarm_agent::PORT;
use longarm_agent::client::{Client, ClientError};

use crate::control;
use crate::outcome::{EXIT_EXEC, Outcome, OutcomeCell};

const STACK: usize = 256 << 10;
/// How long the guest may take to switch itself off after the command.
const POWER_OFF_PATIENCE: Duration = Duration::from_secs(15);
/// How long a machine whose agent is gone may take to say why.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// Between two looks for a control socket that is not there yet.
const RETRY: Duration = Duration::from_millis(50);

/// Connects to the agent and runs `command`, its output on ours. Returns its status as a shell would give it.
fn run_in_guest(vsock: &Path, patience: Duration, command: &str) -> Result<i32, ClientError> {
    let client = Client::connect(vsock, PORT, patience)?;
    log::debug!("the guest's agent answers");
    // What is typed at a terminal is for the console, or for the user's shell, unless somebody redirects it.
    let stdin = io::stdin();
    let stdin = (!stdin.is_terminal()).then(|| Box::new(stdin) as Box<dyn Read + Send>);
    let status = client.run(command, stdin, &mut io::stdout(), &mut io::stderr())?;
    Ok(status.code().into())
}

/// The command of `longarm run --exec`, in a thread of its own.
#[derive(Clone, Default)]
pub struct Exec {
    status: Arc<Mutex<Option<i32>>>,
}

impl Exec {
    /// Runs `command` as soon as the agent behind `vsock` answers, then has the guest switch itself off. `patience` bounds the
    /// wait for the agent.
    ///
    /// # Errors
    /// When the host gives no thread.
    pub fn start(
        &self,
        vsock: PathBuf,
        command: String,
        patience: Duration,
        outcome: Arc<OutcomeCell>,
    ) -> io::Result<()> {
        let this = self.clone();
        thread::Builder::new()
            .name("exec".into())
            .stack_size(STACK)
            .spawn(move || this.run(&vsock, &command, patience, &outcome))
            .map(drop)
    }

    fn run(&self, vsock: &Path, command: &str, patience: Duration, outcome: &OutcomeCell) {
        match run_in_guest(vsock, patience, command) {
            Ok(status) => {
                *self.status.lock().unwrap_or_else(PoisonError::into_inner) = Some(status);
                let asked = Client::connect(vsock, PORT, POWER_OFF_PATIENCE)
                    .and_then(Client::power_off)
                    .map_err(|e| log::warn!("switching the guest off: {e}"));
                if asked.is_ok() {
                    outcome.wait(Some(Instant::now() + POWER_OFF_PATIENCE));
                }
                outcome.report(Outcome::Exec(status));
            }
            Err(e) => {
                // When the guest ended under the command, that is the better answer.
                outcome.wait(Some(Instant::now() + LAST_WORDS));
                outcome.report(Outcome::ExecFailed(e.to_string()));
            }
        }
    }

    /// What the end of the machine means when it was to run a command.
    pub fn judge(&self, outcome: Outcome) -> Outcome {
        let status = *self.status.lock().unwrap_or_else(PoisonError::into_inner);
        match (outcome, status) {
            (Outcome::PowerOff, Some(status)) => Outcome::Exec(status),
            (Outcome::PowerOff, None) => {
                Outcome::ExecFailed("the guest switched itself off before the command ended".into())
            }
            (other, _) => other,
        }
    }
}

/// `longarm exec`; returns the exit status.
pub fn exec(control: &Path, wait: u64, command: &str) -> i32 {
    let start = Instant::now();
    let patience = Duration::from_secs(wait);
    let left = || patience.saturating_sub(start.elapsed());
    let result = find_vsock(control, &left)
        .and_then(|vsock| run_in_guest(&vsock, left(), command).map_err(|e| e.to_string()));
    match result {
        Ok(status) => status,
        Err(e) => {
            eprintln!("longarm: exec: {e}");
            EXIT_EXEC
        }
    }
}

/// The vsock socket of the machine, which may only just be starting.
fn find_vsock(control: &Path, left: &dyn Fn() -> Duration) -> Result<PathBuf, String> {
    loop {
        match control::get::<VmInfo>(control, "/vm") {
            Ok(info) => {
                return info.vsock.ok_or_else(|| {
                    "the machine has no vsock device; start it with --vsock auto".into()
                });
            }
            Err(control::ClientError::Connect { .. }) if !left().is_zero() => thread::sleep(RETRY),
            Err(e) => return Err(e.to_string()),
        }
    }
}

/// Has the guest switch itself off; false when its agent does not answer soon.
pub fn power_off(vsock: &Path) -> bool {
    Client::connect(vsock, PORT, LAST_WORDS)
        .and_then(Client::power_off)
        .map_err(|e| log::debug!("{e}"))
        .is_ok()
}
