//! No VM: two processes, each a whole device with engine and TCP fabric, driven by the software driver as fast as a provider would.

pub mod drive;
pub mod end;
pub mod peer;
pub mod process;
pub mod rig;
mod targets;
pub mod tcp;

use anyhow::Result;

use crate::options::Options;
use crate::report::Report;

/// The suite.
pub fn run(options: &Options) -> Result<bool> {
    options.nothing_else()?;
    let mut report = Report::new(&options.out, "native")?;
    report.add(&targets::table(options))?;
    Ok(report.finish())
}
