//! `longarm run`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use api::{SerialConfig, VmConfig};
use log::LevelFilter;

use super::exec::Exec;
use super::mac;
use super::signals::Signals;
use crate::console::{self, RawTerminal};
use crate::control::Server;
use crate::logger;
use crate::machine::Machine;
use crate::outcome::{EXIT_FAILURE, EXIT_USAGE, Outcome};

/// How long `--exec` waits for the guest's agent: for ever, in effect. `--timeout` ends the wait by ending the machine.
const AGENT_PATIENCE: Duration = Duration::from_secs(365 * 24 * 3600);

/// Runs the machine to its end; returns the exit status.
pub fn run(mut config: VmConfig, level: LevelFilter) -> i32 {
    logger::init(level);
    one_arena();
    // Before any thread is started: they inherit the mask.
    let signals = Signals::block();
    if let Err(e) = mac::assign(&mut config) {
        return fail(EXIT_FAILURE, &format!("/dev/urandom: {e}"));
    }
    let machine = match Machine::new(&config) {
        Ok(machine) => Arc::new(machine),
        Err(e) => return fail(e.exit_status(), &e.to_string()),
    };
    let terminal = match config.serial() {
        SerialConfig::Stdio => RawTerminal::enter(),
        _ => None,
    };
    let exec = config.exec.is_some().then(Exec::default);
    let outcome = match start(&config, &machine, signals, exec.as_ref()) {
        Ok(_server) => {
            machine.resume();
            // A deadline too far to be expressed is none.
            let deadline = config
                .timeout
                .and_then(|s| Instant::now().checked_add(Duration::from_secs(s)));
            machine.outcome().wait(deadline)
        }
        Err(failure) => Outcome::Failure(failure),
    };
    machine.end();
    drop(terminal);
    let outcome = match exec {
        Some(exec) => exec.judge(outcome),
        None => outcome,
    };
    if let Some(message) = outcome.message() {
        eprintln!("longarm: {message}");
    }
    outcome.exit_status()
}

/// Starts what surrounds the machine.
fn start(
    config: &VmConfig,
    machine: &Arc<Machine>,
    signals: Signals,
    exec: Option<&Exec>,
) -> Result<Option<Server>, String> {
    let outcome = machine.outcome();
    signals
        .watch(outcome.clone())
        .map_err(|e| format!("waiting for signals: {e}"))?;
    if config.serial() == SerialConfig::Stdio {
        console::feed(machine.console().clone(), outcome.clone())
            .map_err(|e| format!("--serial stdio: {e}"))?;
    }
    if let (Some(exec), Some(command), Some(vsock)) = (exec, &config.exec, machine.info().vsock) {
        exec.start(vsock, command.clone(), AGENT_PATIENCE, outcome.clone())
            .map_err(|e| format!("--exec: {e}"))?;
    }
    match &config.control {
        None => Ok(None),
        Some(path) => Server::start(path, machine.clone())
            .map(Some)
            .map_err(|e| format!("--control {}: {e}", path.display())),
    }
}

/// One heap for all threads: each further one would cost memory beside the guest's, and no thread allocates on a fast path.
fn one_arena() {
    // SAFETY: called before any other thread exists.
    unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
}

fn fail(status: i32, message: &str) -> i32 {
    debug_assert!(status == EXIT_USAGE || status == EXIT_FAILURE);
    eprintln!("longarm: {message}");
    status
}
