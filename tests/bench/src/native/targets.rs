//! The ratios that the TCP fabric is to reach, each measured as it is stated.

use std::time::Duration;

use anyhow::Result;

use super::drive::{Load, Op};
use super::end::Shape;
use super::rig::{Latency, Rig, Shared, Stream, beside_ping_pong, beside_tcp};
use crate::options::{Options, size_label};
use crate::samples::Samples;
use crate::table::{Axis, Row, Table, Target};

/// A stream against bare TCP with one write a message.
struct Case {
    op: Op,
    size: usize,
    depth: u32,
    /// The least ratio.
    target: f64,
}

const STREAMS: [Case; 5] = [
    stream(Op::Write, 65_536, 16, 0.90),
    stream(Op::Read, 65_536, 16, 0.90),
    stream(Op::Write, 4096, 128, 0.90),
    stream(Op::Read, 4096, 128, 0.90),
    stream(Op::Write, 64, 128, 4.0),
];

const fn stream(op: Op, size: usize, depth: u32, target: f64) -> Case {
    Case {
        op,
        size,
        depth,
        target,
    }
}

/// The highest that the ratio of an 8-byte WRITE's latency to a ping-pong may be.
const LATENCY: f64 = 1.25;

/// Measures what is selected.
pub fn table(options: &Options) -> Table {
    let mut table = Table::new("targets", "the TCP fabric against its targets", Axis::Ratio);
    for case in &STREAMS {
        let labels = ["targets", case.op.label(), &size_label(case.size as u64)].map(str::to_owned);
        table.case(options, &labels, || Ok(vec![measure(case, options)?]));
    }
    let labels = ["targets", "write", "8", "latency"];
    table.case(options, &labels, || Ok(vec![latency(options)?]));
    table
}

fn time(options: &Options) -> Duration {
    options.time(Duration::from_millis(400))
}

fn measure(case: &Case, options: &Options) -> Result<Row> {
    let shape = Shape::inline(options, 1, case.depth);
    let rig = Shared::new(Rig::new(&shape)?);
    let load = Load::new(case.op, case.size, case.depth);
    let time = time(options);
    let results = beside_tcp(&rig, load, options.rounds, time)?;
    let small = case.size < 1024;
    let figure = |s: &Stream| if small { s.rate / 1e6 } else { s.gbps };
    let [ours, tcp] = [0, 1].map(|n| Samples::of(&results[n], figure));
    let unit = if small { "M/s" } else { "Gb/s" };
    Ok(Row::measured(case.op.name(), &ours, unit)
        .size(case.size as u64)
        .qps(1)
        .depth(case.depth)
        .against("tcp, a write each", &ours, &tcp)
        .target(Target::AtLeast(case.target)))
}

fn latency(options: &Options) -> Result<Row> {
    let shape = Shape::inline(options, 1, 1);
    let rig = Shared::new(Rig::new(&shape)?);
    let time = time(options);
    let results = beside_ping_pong(&rig, options.rounds, time)?;
    let [ours, tcp] = [0, 1].map(|n| Samples::of(&results[n], |l: &Latency| l.p50));
    Ok(Row::measured("WRITE, post to CQE", &ours, "us")
        .size(8)
        .qps(1)
        .depth(1)
        .against("tcp ping-pong", &ours, &tcp)
        .target(Target::AtMost(LATENCY)))
}
