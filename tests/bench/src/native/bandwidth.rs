//! Bandwidth of every operation over sizes, numbers of queue pairs and queue depths, and the rate of small messages.

use std::time::Duration;

use anyhow::Result;

use super::drive::{Load, Op};
use super::end::Shape;
use super::rig::{Rig, Shared, Stream, memory_copy};
use crate::options::{Options, size_label};
use crate::samples::{Samples, interleaved};
use crate::table::{Axis, Row, Table};

const SIZES: [usize; 7] = [8, 64, 512, 4096, 16_384, 65_536, 1 << 20];
const QPS: [u32; 3] = [1, 8, 64];
const DEPTHS: [u32; 3] = [1, 16, 128];

/// Bytes under way at a time at most: more would only fill and empty queues for the whole sample.
const UNDER_WAY: usize = 512 << 20;

/// One call that gives one sample.
type Subject<'a> = Box<dyn FnMut() -> Result<Stream> + 'a>;

fn time(options: &Options) -> Duration {
    options.time(Duration::from_millis(80))
}

/// A table for each operation.
pub fn tables(options: &Options) -> Vec<Table> {
    let mut tables = Op::ALL.map(|op| {
        let title = format!(
            "bandwidth of {}, driver and device on one thread",
            op.name()
        );
        Table::new(op.label(), title, Axis::Size)
    });
    for size in SIZES {
        for qps in QPS {
            for depth in DEPTHS {
                if size * qps as usize * depth as usize <= UNDER_WAY {
                    group(options, size, qps, depth, &mut tables);
                }
            }
        }
    }
    tables.into()
}

/// Measures all operations of one shape in turn, beside the references.
fn group(options: &Options, size: usize, qps: u32, depth: u32, tables: &mut [Table; 4]) {
    let labels = |op: Op| {
        let shape = [
            size_label(size as u64),
            format!("{qps}qp"),
            format!("depth{depth}"),
        ];
        let mut labels = vec!["bandwidth".to_owned(), op.label().to_owned()];
        labels.extend(shape);
        labels
    };
    let wanted: Vec<usize> = (0..4)
        .filter(|n| options.wants(&labels(Op::ALL[*n])))
        .collect();
    if wanted.is_empty() {
        return;
    }
    let (results, references) = match measure(options, size, qps, depth, &wanted) {
        Ok(results) => results,
        Err(error) => {
            for n in wanted {
                tables[n].refuse(labels(Op::ALL[n]).join(" "), &error);
            }
            return;
        }
    };
    let gbps = |rounds: &Vec<Stream>| Samples::of(rounds, |stream| stream.gbps);
    for (place, n) in wanted.into_iter().enumerate() {
        let ours = gbps(&results[place]);
        let first = results.len() - references.len();
        for (reference, rounds) in references.iter().zip(&results[first..]) {
            let row = Row::measured(Op::ALL[n].name(), &ours, "Gb/s");
            let row = row.size(size as u64).qps(qps).depth(depth);
            tables[n].push(row.against(reference, &ours, &gbps(rounds)));
        }
    }
}

fn measure(
    options: &Options,
    size: usize,
    qps: u32,
    depth: u32,
    wanted: &[usize],
) -> Result<(Vec<Vec<Stream>>, Vec<&'static str>)> {
    let time = time(options);
    let shape = Shape::inline(options, qps, depth);
    let rig = Shared::new(Rig::new(&shape)?);
    let rig = &rig;
    let mut subjects: Vec<Subject<'_>> = Vec::new();
    for n in wanted {
        let load = Load::new(Op::ALL[*n], size, depth);
        subjects.push(Box::new(move || rig.borrow_mut().stream(load, time)));
    }
    let mut references = vec!["tcp", "tcp batched", "memcpy"];
    subjects.push(Box::new(|| rig.borrow_mut().tcp(size, 1, time)));
    subjects.push(Box::new(|| {
        rig.borrow_mut().tcp(size, depth.max(16) as usize, time)
    }));
    subjects.push(Box::new(|| memory_copy(size, time / 4)));
    if depth == 1 {
        references.push("tcp ping-pong");
        subjects.push(Box::new(|| {
            let trip = rig.borrow_mut().ping_pong(size, 8, time)?;
            Ok(Stream::of_trips(size, trip.mean))
        }));
    }
    Ok((interleaved(options.rounds, &mut subjects)?, references))
}

/// Messages in a second of small WRITEs: every one signalled as above, one of 16 signalled, and with the bytes in the WQE.
pub fn rate(options: &Options) -> Table {
    let title = "rate of small WRITEs at depth 128, driver and device on one thread";
    let mut table = Table::new("rate", title, Axis::Qps);
    for size in [8, 64] {
        for qps in QPS {
            let labels = ["rate".to_owned(), size.to_string(), format!("{qps}qp")];
            table.case(options, &labels, || rates(options, size, qps));
        }
    }
    table
}

fn rates(options: &Options, size: usize, qps: u32) -> Result<Vec<Row>> {
    let depth = 128;
    let time = time(options);
    let shape = Shape::inline(options, qps, depth);
    let rig = Shared::new(Rig::new(&shape)?);
    let rig = &rig;
    let stream = |signal, inline| -> Subject<'_> {
        let load = Load {
            signal,
            inline,
            ..Load::new(Op::Write, size, depth)
        };
        Box::new(move || rig.borrow_mut().stream(load, time))
    };
    let results = interleaved(
        options.rounds,
        &mut [
            stream(1, false),
            stream(16, false),
            stream(16, true),
            Box::new(|| rig.borrow_mut().tcp(size, 1, time)),
            Box::new(|| rig.borrow_mut().tcp(size, depth as usize, time)),
        ],
    )?;
    let rates: Vec<Samples> = results
        .iter()
        .map(|rounds| Samples::of(rounds, |s| s.rate / 1e6))
        .collect();
    let mut rows = Vec::new();
    for (n, how) in [
        "all signalled",
        "1 of 16 signalled",
        "1 of 16 signalled, inline",
    ]
    .iter()
    .enumerate()
    {
        for (reference, name) in [(3, "tcp"), (4, "tcp batched")] {
            let name = format!("{name}, {size} B");
            let row = Row::measured(format!("WRITE {size} B, {how}"), &rates[n], "M/s");
            let row = row.size(size as u64).qps(qps).depth(depth);
            rows.push(row.against(&name, &rates[n], &rates[reference]));
        }
    }
    Ok(rows)
}
