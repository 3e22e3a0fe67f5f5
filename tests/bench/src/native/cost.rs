//! What a message costs the machine: processor time, system calls, allocations.

use std::time::Duration;

use anyhow::Result;

use super::drive::{Load, Op};
use super::end::Shape;
use super::rig::{Rig, Shared, beside_tcp};
use crate::options::{Options, size_label};
use crate::samples::Samples;
use crate::table::{Axis, Row, Table};

/// Size and depth.
const SHAPES: [(usize, u32); 4] = [(64, 128), (4096, 16), (4096, 128), (65_536, 16)];

/// Measures what is selected.
pub fn table(options: &Options) -> Table {
    let title =
        "what a message costs both processes together, driver and device on one thread that polls";
    let mut table = Table::new("cost", title, Axis::Ratio);
    for (size, depth) in SHAPES {
        for op in [Op::Write, Op::Read, Op::Send] {
            let labels = ["cost", op.label(), &size_label(size as u64)].map(str::to_owned);
            table.case(options, &labels, || measure(options, op, size, depth));
        }
    }
    table
}

fn measure(options: &Options, op: Op, size: usize, depth: u32) -> Result<Vec<Row>> {
    let time = options.time(Duration::from_millis(100));
    let shape = Shape::inline(options, 1, depth);
    let load = Load::new(op, size, depth);
    let rig = Shared::new(Rig::new(&shape)?);
    let run = || beside_tcp(&rig, load, options.rounds, time);
    let results = run()?;
    // Counting slows calls down: what is counted is not timed.
    rig.borrow_mut().count_calls = true;
    let counted = run()?;
    let place = |case: &str, samples: &Samples, unit| {
        Row::measured(format!("{}: {case}", op.name()), samples, unit)
            .size(size as u64)
            .qps(1)
            .depth(depth)
    };
    let [ours, tcp] = [0, 1].map(|n| Samples::of(&results[n], |s| s.processor));
    let mut rows = vec![place("processor time", &ours, "s/GiB").against("tcp", &ours, &tcp)];
    if counted
        .iter()
        .flatten()
        .all(|stream| stream.calls.is_some())
    {
        let [ours, tcp] = [0, 1].map(|n| Samples::of(&counted[n], |s| s.calls.unwrap_or(f64::NAN)));
        rows.push(place("system calls", &ours, "1/message").against("tcp", &ours, &tcp));
    } else {
        eprintln!("system calls are not counted: that takes root and the kernel's tracepoints");
    }
    let [ours, tcp] = [0, 1].map(|n| Samples::of(&results[n], |s| s.transfers));
    let case = "system calls that send or receive";
    rows.push(place(case, &ours, "1/message").against("tcp", &ours, &tcp));
    let ours = Samples::of(&results[0], |s| s.allocations);
    rows.push(place("allocations", &ours, "1/message"));
    Ok(rows)
}
