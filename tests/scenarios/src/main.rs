//! `longarm-scenarios`: boots guests and judges Longarm by what stock tools in them say.
//!
//! Runs where `/dev/kvm` boots stock kernels: under `tests/lab.sh`.

/// Carries out checks with these arguments, each whatever became of those before it, and notes the names of those that failed.
macro_rules! checks {
    ($failed:ident, $arguments:tt; $($name:ident),+ $(,)?) => {
        $(
            match $name $arguments {
                Ok(()) => println!("{} ok", stringify!($name)),
                Err(error) => {
                    println!("{} failed: {error:#}", stringify!($name));
                    $failed.push(stringify!($name));
                }
            }
        )+
    };
}

mod account;
mod connections;
mod datagrams;
mod faults;
mod kernel;
mod life;
mod netdev;
mod nfs;
mod nvme;
mod objects;
mod operations;
mod shared;
mod sweep;
mod tools;
mod verbs;
mod verbs_suite;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

// The modules above know them by these names.
use scenarios::{meeting, perftest, running, vm};
use vm::Lab;

/// A scenario's name, what it does, and the seconds it may take.
type Scenario = (&'static str, fn(&Lab) -> Result<()>, u64);

const SCENARIOS: &[Scenario] = &[
    ("wrong-options", life::wrong_options, 120),
    ("exec", life::exec, 120),
    ("config-and-tap", life::config_and_tap, 200),
    ("exit-codes", life::exit_codes, 300),
    ("shapes", life::shapes, 600),
    ("disks", life::disks, 120),
    ("overhead", life::overhead, 180),
    ("devinfo", verbs::devinfo, 180),
    ("pingpong", verbs::pingpong, 300),
    ("datagrams", datagrams::datagrams, 300),
    ("rdma-cm", tools::rdma_cm, 300),
    ("srq", shared::srq, 300),
    ("tools", tools::short, 300),
    ("device-life", netdev::device_life, 600),
    ("sweep", sweep::sweep, 900),
    ("dead-peer", faults::dead_peer, 300),
    ("paused-target", faults::paused_target, 300),
    ("killed-process", faults::semantics_42_killed_process, 400),
    ("unbind", faults::semantics_45_unbind, 400),
    ("kernel-verbs", kernel::kernel_verbs, 300),
];

/// Those that take long or need packages beyond the usual image's: run when named, not listed.
const APART: &[Scenario] = &[
    ("verbs-suite", verbs_suite::verbs_suite, 1100),
    ("operations", operations::operations, 400),
    ("perftest-send-rc", tools::perftest_send_rc, 400),
    ("perftest-send", tools::perftest_send, 600),
    (
        "perftest-write",
        |lab| tools::perftest(lab, "ib_write"),
        600,
    ),
    ("perftest-read", |lab| tools::perftest(lab, "ib_read"), 600),
    (
        "perftest-atomic",
        |lab| tools::perftest(lab, "ib_atomic"),
        600,
    ),
    ("rdmacm-utils", tools::rdmacm_utils, 400),
    ("other-tools", tools::other_tools, 600),
    ("perftest-patched", tools::perftest_patched, 600),
    ("nfs", nfs::nfs, 900),
    ("nvme", nvme::nvme, 500),
    ("connections", connections::connections, 600),
    ("killed-often", faults::semantics_42_killed_often, 1300),
];

const USAGE: &str = "longarm-scenarios --longarm BINARY --image DIR --out DIR NAME... | --list";

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("longarm-scenarios: {error:#}\nusage: {USAGE}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<bool> {
    let (mut longarm, mut image, mut out) = (None, None, None);
    let mut chosen = Vec::new();
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--list" => {
                SCENARIOS.iter().for_each(|(name, ..)| println!("{name}"));
                return Ok(true);
            }
            "--longarm" | "--image" | "--out" => {
                let value = PathBuf::from(
                    words
                        .next()
                        .with_context(|| format!("{word} wants a value"))?,
                );
                match word.as_str() {
                    "--longarm" => longarm = Some(value),
                    "--image" => image = Some(value),
                    _ => out = Some(value),
                }
            }
            name => match SCENARIOS
                .iter()
                .chain(APART)
                .find(|(known, ..)| *known == name)
            {
                Some(scenario) => chosen.push(*scenario),
                None => bail!("no scenario {name:?}; --list names them"),
            },
        }
    }
    let lab = Lab {
        longarm: longarm.context("--longarm is missing")?,
        image: image.context("--image is missing")?,
        out: out.context("--out is missing")?,
    };
    std::fs::create_dir_all(&lab.out).with_context(|| format!("--out: {}", lab.out.display()))?;
    let mut left: Vec<&str> = chosen.iter().map(|(name, ..)| *name).collect();
    note(&lab, "left", &left)?;
    let mut failed = Vec::new();
    note(&lab, "failed", &failed)?;
    for &(name, scenario, seconds) in &chosen {
        let started = Instant::now();
        failed.push(name);
        let limit = Watchdog::start(
            &lab,
            failed.clone(),
            vm::patient(Duration::from_secs(seconds)),
        );
        let here = Lab {
            out: lab.out.join(name),
            ..lab.clone()
        };
        std::fs::create_dir_all(&here.out)
            .with_context(|| format!("--out: {}", here.out.display()))?;
        let result = scenario(&here);
        drop(limit);
        let took = started.elapsed().as_secs_f64();
        match result {
            Ok(()) => {
                println!("ok      {name} ({took:.1} s)");
                failed.pop();
                left.retain(|other| *other != name);
                note(&lab, "left", &left)?;
            }
            Err(error) => {
                println!("FAILED  {name} ({took:.1} s): {error:#}");
                note(&lab, "failed", &failed)?;
            }
        }
    }
    println!(
        "scenarios: {} passed, {} failed",
        chosen.len() - failed.len(),
        failed.len()
    );
    Ok(failed.is_empty())
}

/// Writes names of scenarios to a file, so that they are known even if the lab itself goes down: `left` is what has not passed, `failed`
/// what of that was to blame for it.
fn note(lab: &Lab, file: &str, names: &[&str]) -> Result<()> {
    let path = lab.out.join(file);
    let lines: String = names.iter().map(|name| format!("{name}\n")).collect();
    std::fs::write(&path, lines).with_context(|| path.display().to_string())
}

/// Ends the whole process when a scenario hangs in spite of its own limits.
struct Watchdog(Option<std::sync::mpsc::Sender<()>>);

impl Watchdog {
    /// `failed` are the scenarios that will have failed then; the last of them is what hangs.
    fn start(lab: &Lab, failed: Vec<&'static str>, limit: Duration) -> Watchdog {
        let (alive, gone) = std::sync::mpsc::channel::<()>();
        let lab = lab.clone();
        std::thread::spawn(move || {
            if gone.recv_timeout(limit) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                let name = failed.last().unwrap_or(&"");
                println!("FAILED  {name}: hung for {limit:?}");
                let _ = note(&lab, "failed", &failed);
                std::process::exit(1);
            }
        });
        Watchdog(Some(alive))
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.0.take();
    }
}
