//! No VM: two processes, each a whole device with engine and TCP fabric, driven by the software driver as fast as a provider would.

mod bandwidth;
pub mod control;
mod cost;
pub mod drive;
pub mod end;
mod fairness;
mod latency;
pub mod peer;
pub mod process;
mod respond;
pub mod rig;
mod targets;
pub mod tcp;
mod threads;

use anyhow::Result;

use crate::options::Options;
use crate::report::Report;

/// The suite.
pub fn run(options: &Options) -> Result<bool> {
    options.nothing_else()?;
    let mut report = Report::new(&options.out, "native")?;
    report.add(&targets::table(options))?;
    for table in bandwidth::tables(options) {
        report.add(&table)?;
    }
    report.add(&bandwidth::rate(options))?;
    report.add(&latency::table(options))?;
    report.add(&threads::table(options))?;
    report.add(&cost::table(options))?;
    report.add(&fairness::table(options))?;
    report.add(&control::table(options))?;
    Ok(report.finish())
}
