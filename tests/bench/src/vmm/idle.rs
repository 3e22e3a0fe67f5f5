//! Processor time of VMs that do nothing: at a shell, and with an RDMA device that has a link to another VM's.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use scenarios::vm::{Lab, emulated};

use super::monitor::{LONGARM, QEMU};
use super::usage::{CpuTime, settle};
use crate::options::Options;
use crate::samples::Samples;
use crate::table::{Axis, Row, Table};

/// Length of a round.
const ROUND: [Duration; 2] = [Duration::from_secs(10), Duration::from_secs(4)];

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
    let mut table = Table::new(
        "idle",
        "Processor time of an idle VM, beside that of QEMU's microvm",
        Axis::Ratio,
    );
    for (part, what) in ["", ", all but the vCPU"].into_iter().enumerate() {
        let samples = |vm: usize| Samples::of(&rounds, |round: &Round| round[vm][part]);
        let [longarm, qemu, rdma] = [0, 1, 2].map(samples);
        for (case, ours) in [("at a shell", longarm), ("with a linked RDMA device", rdma)] {
            let row = Row::measured(format!("{case}{what}"), &ours, "ms/s");
            // Nothing can be a multiple of nothing.
            table.push(match qemu.median() > 0.0 {
                true => row.against(QEMU.name, &ours, &qemu),
                false => row,
            });
        }
    }
    Ok(table)
}

/// Milliseconds of processor time a second, by VM: of all threads, and of those that run no vCPU.
type Round = Vec<[f64; 2]>;

fn round(pids: &[u32], window: Duration) -> Result<Round> {
    let read = || pids.iter().map(|pid| CpuTime::of(*pid)).collect();
    let (before, from): (Result<Vec<_>>, _) = (read(), Instant::now());
    thread::sleep(window);
    let (after, seconds): (Result<Vec<_>>, _) = (read(), from.elapsed().as_secs_f64());
    let both = after?.into_iter().zip(before?);
    Ok(both
        .map(|(after, before)| after.rate(before, seconds))
        .collect())
}
