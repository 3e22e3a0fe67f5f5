//! `longarm-bench`: runs one suite of benchmarks. `tests/bench.sh` builds it and runs them all.

use std::process::ExitCode;

use anyhow::{Context, Result};
use conformance::counting::Counting;
use longarm_bench::options::Options;
use longarm_bench::{growth, guest, native, vmm};

/// Allocations and the memory of objects are among the figures.
#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A suite's name, and what runs it: false if a figure was refused.
type Suite = (&'static str, fn(&Options) -> Result<bool>);

const SUITES: &[Suite] = &[
    ("native", native::run),
    ("growth", growth::run),
    ("guest", guest::run),
    ("vmm", vmm::run),
];

const USAGE: &str = "longarm-bench SUITE [--only WORD,...] [--rounds N] [--seconds S] [--lanes N] [--out DIR] [--list]";

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let names: Vec<&str> = SUITES.iter().map(|(name, _)| *name).collect();
            eprintln!(
                "longarm-bench: {error:#}\nusage: {USAGE}\nsuites: {}",
                names.join(", ")
            );
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<bool> {
    let mut words = std::env::args().skip(1);
    let name = words.next().context("which suite?")?;
    if name == native::peer::SUITE {
        native::peer::run()?;
        return Ok(true);
    }
    let suite = SUITES.iter().find(|suite| suite.0 == name);
    let (_, suite) = suite.with_context(|| format!("no suite named {name:?}"))?;
    suite(&Options::parse(words)?)
}
