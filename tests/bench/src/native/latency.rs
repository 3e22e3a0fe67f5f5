//! Time from post to completion of one message at a time, both ends polling.

use std::time::Duration;

use anyhow::Result;

use super::drive::{Load, Op};
use super::end::Shape;
use super::rig::{Latency, Rig, Shared};
use crate::options::{Options, size_label};
use crate::samples::{Samples, interleaved};
use crate::table::{Axis, Row, Table};

const SIZES: [usize; 7] = [8, 64, 512, 4096, 65_536, 262_144, 1 << 20];

/// Bytes of an acknowledgement, as the ping-pong has it.
const ANSWER: usize = 8;

/// A percentile's name, and where it is.
pub type Percentile = (&'static str, fn(&Latency) -> f64);

/// The percentiles that tables show.
pub const PERCENTILES: [Percentile; 3] = [
    ("p50", |l| l.p50),
    ("p99", |l| l.p99),
    ("p99.9", |l| l.p999),
];

/// Measures what is selected.
pub fn table(options: &Options) -> Table {
    let title =
        "from post to CQE, one message at a time, driver and device on one thread that polls";
    let mut table = Table::new("latency", title, Axis::Size);
    for size in SIZES {
        let labels = |op: Op| ["latency", op.label(), &size_label(size as u64)].map(str::to_owned);
        let wanted: Vec<Op> = Op::ALL
            .into_iter()
            .filter(|op| options.wants(&labels(*op)))
            .collect();
        if wanted.is_empty() {
            continue;
        }
        match measure(options, size, &wanted) {
            Ok(rows) => rows.into_iter().for_each(|row| table.push(row)),
            Err(error) => table.refuse(format!("latency {size}"), error),
        }
    }
    table
}

fn measure(options: &Options, size: usize, ops: &[Op]) -> Result<Vec<Row>> {
    let time = options.time(Duration::from_millis(150));
    let shape = Shape::inline(options, 1, 1);
    let rig = Shared::new(Rig::new(&shape)?);
    let rig = &rig;
    let mut subjects: Vec<Box<dyn FnMut() -> Result<Latency> + '_>> = Vec::new();
    for op in ops {
        let load = Load::one_by_one(*op, size);
        subjects.push(Box::new(move || rig.borrow_mut().latency(load, time)));
    }
    // Bytes go the way that those of the operation go.
    subjects.push(Box::new(|| rig.borrow_mut().ping_pong(size, ANSWER, time)));
    subjects.push(Box::new(|| rig.borrow_mut().ping_pong(ANSWER, size, time)));
    let results = interleaved(options.rounds, &mut subjects)?;
    let mut rows = Vec::new();
    for (percentile, figure) in PERCENTILES {
        let samples: Vec<Samples> = results
            .iter()
            .map(|rounds| Samples::of(rounds, figure))
            .collect();
        for (n, op) in ops.iter().enumerate() {
            let (place, way) = match op {
                Op::Read => (ops.len() + 1, "back"),
                _ => (ops.len(), "there"),
            };
            let name = format!("tcp ping-pong {percentile}, {way}");
            let row = Row::measured(format!("{} {percentile}", op.name()), &samples[n], "us");
            let row = row.size(size as u64).qps(1).depth(1);
            rows.push(row.against(&name, &samples[n], &samples[place]));
        }
    }
    Ok(rows)
}
