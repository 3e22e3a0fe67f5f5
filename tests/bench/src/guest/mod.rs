//! Suite `guest`: perftest between two VMs, on the virtio-rdma device and on soft-RoCE (`rdma_rxe`) over network interfaces of the
//! very same VMs, and what a message costs in VM exits.

mod exits;
mod pair;
mod perftest;

use anyhow::Result;

use self::pair::Pair;
use self::perftest::SERIES;
use crate::options::Options;
use crate::place;
use crate::report::Report;

/// Runs the suite: false if a figure was refused.
pub fn run(options: &Options) -> Result<bool> {
    let lab = place::lab(options)?;
    let wanted = SERIES.iter().filter(|series| series.wanted(&options.only));
    if options.list {
        wanted.for_each(|series| series.list(&options.only));
        exits::list(&options.only);
        return Ok(true);
    }
    let pair = Pair::boot(&lab)?;
    let mut report = Report::new(&options.out, "guest")?;
    for series in wanted {
        report.add(&series.measure(&pair, options)?)?;
    }
    report.add(&exits::measure(&pair, options)?)?;
    Ok(report.finish())
}
