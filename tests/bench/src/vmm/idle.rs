//! Processor time of VMs that do nothing: at a shell, and with an RDMA device that has a link to another VM's.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use scenarios::vm::{Lab, emulated};

use super::monitor::{LONGARM, QEMU};
use super::usage::{cpu_time, settle};
use crate::options::Options;
use crate::samples::Samples;
use crate::table::{Axis, Row, Table};

/// Length of a round.
const ROUND: [Duration; 2] = [Duration::from_secs(10), Duration::from_secs(5)];

/// Boots all of them, and looks at them at the same time, round after round: they hardly disturb one another.
pub fn measure(lab: &Lab, options: &Options) -> Result<Table> {
    let booted = [LONGARM.boot(lab)?.0, QEMU.boot(lab)?.0];
    let (a, b) = lab.boot_pair(&[])?;
    let mut pids = Vec::new();
    for vm in &booted {
        pids.push(vm.pid().context("it is a process")?);
    }
    for vm in [&a, &b] {
        pids.push(vm.pid().context("it is a process")?);
    }
    for pid in &pids {
        settle(*pid)?;
    }
    let window = options.time(ROUND[usize::from(emulated())]);
    let mut rounds = Vec::new();
    for _ in 0..options.rounds {
        rounds.push(round(&pids, window)?);
    }
    let samples = |n: usize| Samples::of(&rounds, |round: &Vec<f64>| round[n]);
    let [longarm, qemu, rdma] = [0, 1, 2].map(samples);
    let mut table = Table::new(
        "idle",
        "Processor time of an idle VM, beside that of QEMU's microvm",
        Axis::Ratio,
    );
    for (case, ours) in [("at a shell", longarm), ("with a linked RDMA device", rdma)] {
        table.push(Row::measured(case, &ours, "ms/s").against(QEMU.name, &ours, &qemu));
    }
    Ok(table)
}

/// Milliseconds of processor time a second that each process had in a round.
fn round(pids: &[u32], window: Duration) -> Result<Vec<f64>> {
    let read = || pids.iter().map(|pid| cpu_time(*pid)).collect();
    let (before, from): (Result<Vec<_>>, _) = (read(), Instant::now());
    thread::sleep(window);
    let (after, seconds): (Result<Vec<_>>, _) = (read(), from.elapsed().as_secs_f64());
    let used = after?.into_iter().zip(before?);
    Ok(used
        .map(|(after, before)| after.saturating_sub(before).as_secs_f64() * 1e3 / seconds)
        .collect())
}
