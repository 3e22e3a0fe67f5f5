//! What queue pairs that carry bulk do to others: to the latency of small messages, and to each other's share. And what the small
//! messages do to bulk.

use std::time::Duration;

use anyhow::Result;

use super::drive::{Load, Op};
use super::end::Shape;
use super::latency::{PERCENTILES, Percentile};
use super::rig::{Latency, Rig, Shared};
use crate::options::{Options, size_label};
use crate::samples::{Samples, interleaved};
use crate::table::{Axis, Row, Table, Target};

/// What the other queue pair carries: operation, size, depth.
const BULK: [(Op, usize, u32); 5] = [
    (Op::Write, 4096, 128),
    (Op::Write, 65_536, 16),
    (Op::Write, 1 << 20, 16),
    (Op::Read, 65_536, 16),
    (Op::Send, 65_536, 16),
];

/// The highest that the p99 of small messages may rise beside bulk, as a ratio to what it is without.
const MOST: f64 = 3.0;

/// Measures what is selected.
pub fn table(options: &Options) -> Table {
    let title = "WRITE of 8 B, post to CQE, while another queue pair carries bulk";
    let mut table = Table::new("fairness", title, Axis::Ratio);
    for (op, size, depth) in BULK {
        let labels = ["fairness", op.label(), &size_label(size as u64)].map(str::to_owned);
        table.case(options, &labels, || {
            beside(options, Load::new(op, size, depth))
        });
    }
    table.case(options, &["fairness", "shares"], || shares(options));
    table
}

fn beside(options: &Options, bulk: Load) -> Result<Vec<Row>> {
    let time = options.time(Duration::from_millis(300));
    let rig = Shared::new(Rig::new(&Shape::inline(options, 2, bulk.depth))?);
    let small = Load::one_by_one(Op::Write, 8);
    let results = interleaved(
        options.rounds,
        &mut [
            Box::new(|| rig.borrow_mut().latency_beside(small, bulk, time)),
            Box::new(|| Ok((rig.borrow_mut().latency(small, time)?, 0.0))),
            Box::new(|| {
                let alone = rig.borrow_mut().stream_beside(bulk, 1, time)?;
                Ok((Latency::default(), alone.gbps))
            }),
        ],
    )?;
    let case = format!(
        "beside {} of {}, depth {}",
        bulk.op.name(),
        size_label(bulk.size as u64),
        bulk.depth
    );
    let row = |(percentile, figure): Percentile| {
        let [ours, alone] = [0, 1].map(|n| Samples::of(&results[n], |(small, _)| figure(small)));
        let row = Row::measured(format!("{percentile} {case}"), &ours, "us")
            .size(8)
            .qps(2);
        let row = row.against("alone", &ours, &alone);
        if percentile == "p99" {
            row.target(Target::AtMost(MOST))
        } else {
            row
        }
    };
    let mut rows: Vec<Row> = PERCENTILES[..2].iter().copied().map(row).collect();
    let [ours, alone] = [0, 2].map(|n| Samples::of(&results[n], |(_, gbps)| *gbps));
    let row = Row::measured(
        format!("bulk: {} beside 8 B", bulk.op.name()),
        &ours,
        "Gb/s",
    );
    let row = row.size(bulk.size as u64).qps(2).depth(bulk.depth);
    rows.push(row.against("alone", &ours, &alone));
    Ok(rows)
}

/// Of several queue pairs that all carry the same, what the slowest gets.
fn shares(options: &Options) -> Result<Vec<Row>> {
    let time = options.time(Duration::from_millis(200));
    let (qps, depth) = (64, 16);
    let rig = Shared::new(Rig::new(&Shape::inline(options, qps, depth))?);
    let load = Load::new(Op::Write, 4096, depth);
    let results = interleaved(
        options.rounds,
        &mut [Box::new(|| rig.borrow_mut().shares(load, time))],
    )?;
    let mut rows = Vec::new();
    type Extreme = fn(&Vec<u64>) -> f64;
    let figures: [(&str, Extreme); 2] = [
        ("slowest queue pair", |counts| {
            counts.iter().min().map_or(0.0, |n| *n as f64)
        }),
        ("fastest queue pair", |counts| {
            counts.iter().max().map_or(0.0, |n| *n as f64)
        }),
    ];
    let mean = Samples::of(&results[0], |counts| {
        counts.iter().sum::<u64>() as f64 / counts.len() as f64
    });
    for (case, figure) in figures {
        let ours = Samples::of(&results[0], figure);
        let row = Row::measured(case, &ours, "messages")
            .size(4096)
            .qps(qps)
            .depth(depth);
        rows.push(row.against("mean", &ours, &mean));
    }
    Ok(rows)
}
