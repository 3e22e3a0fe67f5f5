//! Suite `vmm`: what a VM costs that does nothing yet, beside QEMU's microvm machine with the same kernel, initial RAM disk, root
//! disk and devices: time to the first user process, memory beside guest memory, processor time while idle.

mod idle;
mod monitor;
mod usage;

use anyhow::Result;

use self::monitor::{Booted, LONGARM, Monitor, QEMU};
use crate::options::Options;
use crate::place;
use crate::report::Report;
use crate::samples::{Samples, interleaved};
use crate::table::{Axis, Row, Table};

/// A figure of a boot, what tables call it, and its unit.
type Figure = (&'static str, fn(&Booted) -> f64, &'static str);

const BOOT: [Figure; 2] = [
    (
        "start to the first user process",
        |boot| boot.init.as_secs_f64(),
        "s",
    ),
    (
        "start to a guest that is set up",
        |boot| boot.ready.as_secs_f64(),
        "s",
    ),
];

const MIB: f64 = 1024.0;

const MEMORY: [Figure; 3] = [
    (
        "proportional (PSS)",
        |boot| boot.memory.pss as f64 / MIB,
        "MiB",
    ),
    ("resident (RSS)", |boot| boot.memory.rss as f64 / MIB, "MiB"),
    ("private", |boot| boot.memory.private as f64 / MIB, "MiB"),
];

/// Runs the suite: false if a figure was refused, which none is here.
pub fn run(options: &Options) -> Result<bool> {
    let lab = place::lab(options)?;
    let wanted = |label| options.only.wants(&[label]);
    let [boot, memory, idle] = ["boot", "memory", "idle"].map(wanted);
    if options.list {
        println!("boot\nmemory\nidle");
        return Ok(true);
    }
    place::network(&monitor::TAPS, monitor::MTU)?;
    let mut report = Report::new(&options.out, "vmm")?;
    if boot || memory {
        let subject = |monitor: Monitor| -> Box<dyn FnMut() -> Result<Booted> + '_> {
            let lab = &lab;
            Box::new(move || Ok(monitor.boot(lab)?.1))
        };
        let rounds = interleaved(options.rounds, &mut [subject(LONGARM), subject(QEMU)])?;
        let tables = [
            (boot, "boot", "Time of a boot", &BOOT[..]),
            (
                memory,
                "memory",
                "Memory of the process beside guest memory",
                &MEMORY[..],
            ),
        ];
        for (_, name, title, figures) in tables.into_iter().filter(|table| table.0) {
            report.add(&table(name, title, figures, &rounds))?;
        }
    }
    if idle {
        report.add(&idle::measure(&lab, options)?)?;
    }
    Ok(report.finish())
}

fn table(name: &str, title: &str, figures: &[Figure], rounds: &[Vec<Booted>]) -> Table {
    let title = format!("{title}, beside QEMU's microvm with the same guest and devices");
    let mut table = Table::new(name, title, Axis::Ratio);
    for (case, figure, unit) in figures {
        let [ours, reference] = [0, 1].map(|n| Samples::of(&rounds[n], figure));
        table.push(Row::measured(*case, &ours, unit).against(QEMU.name, &ours, &reference));
    }
    table
}
