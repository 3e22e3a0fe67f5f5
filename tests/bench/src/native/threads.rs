//! The device on a thread of its own, as in the monitor: what handing work from thread to thread costs.

use std::time::Duration;

use anyhow::Result;

use super::drive::{Load, Op};
use super::end::Shape;
use super::latency::{PERCENTILES, Percentile};
use super::rig::{Rig, Shared, Stream, beside_ping_pong, beside_tcp};
use crate::options::{Options, size_label};
use crate::samples::Samples;
use crate::table::{Axis, Row, Table};

/// How long the thread looks for work before it sleeps, as in the monitor.
const PATIENCE: Duration = Duration::from_micros(50);

/// Size and depth.
const SHAPES: [(usize, u32); 3] = [(64, 128), (4096, 128), (65_536, 16)];

fn shape(options: &Options, depth: u32) -> Shape {
    Shape {
        thread: Some(PATIENCE),
        ..Shape::inline(options, 1, depth)
    }
}

/// Measures what is selected.
pub fn table(options: &Options) -> Table {
    let title = "the device on a thread of its own, which sleeps after 50 us without work, two for each process";
    let mut table = Table::new("threads", title, Axis::Ratio);
    for (size, depth) in SHAPES {
        // A SEND wants a receiver that is not kept from its processor by the threads that spin there.
        for op in [Op::Write, Op::Read] {
            let labels = ["threads", op.label(), &size_label(size as u64)];
            table.case(options, &labels, || stream(options, op, size, depth));
        }
    }
    table.case(options, &["threads", "write", "latency"], || {
        latency(options)
    });
    table
}

fn stream(options: &Options, op: Op, size: usize, depth: u32) -> Result<Vec<Row>> {
    let time = options.time(Duration::from_millis(150));
    let rig = Shared::new(Rig::new(&shape(options, depth))?);
    let load = Load::new(op, size, depth);
    let results = beside_tcp(&rig, load, options.rounds, time)?;
    let row = |case: &str, unit, figure: fn(&Stream) -> f64| {
        let [ours, tcp] = [0, 1].map(|n| Samples::of(&results[n], figure));
        Row::measured(format!("{}{case}", op.name()), &ours, unit)
            .size(size as u64)
            .qps(1)
            .depth(depth)
            .against("tcp", &ours, &tcp)
    };
    Ok(vec![
        row("", "Gb/s", |s| s.gbps),
        row(": processor time", "s/GiB", |s| s.processor),
    ])
}

fn latency(options: &Options) -> Result<Vec<Row>> {
    let time = options.time(Duration::from_millis(200));
    let rig = Shared::new(Rig::new(&shape(options, 1))?);
    let results = beside_ping_pong(&rig, options.rounds, time)?;
    let row = |(percentile, figure): Percentile| {
        let [ours, tcp] = [0, 1].map(|n| Samples::of(&results[n], figure));
        Row::measured(format!("WRITE, post to CQE, {percentile}"), &ours, "us")
            .size(8)
            .qps(1)
            .depth(1)
            .against("tcp ping-pong", &ours, &tcp)
    };
    Ok(PERCENTILES.into_iter().map(row).collect())
}
