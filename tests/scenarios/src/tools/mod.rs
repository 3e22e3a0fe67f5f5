//! Stock tools between two VMs, from tables: every run is judged by both exit statuses, by what the tool says of its data where it
//! checks them, and by the loss counters; all together by what they leave in the guests.

mod cm;
mod perftest;
mod verbs;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::account::Account;
use crate::meeting::{Meeting, Outcome, Planned, in_turn};
use crate::vm::{Lab, Vm};

/// What a run may take.
const LIMIT: Duration = Duration::from_secs(60);

/// A run of a tool.
struct Entry {
    meeting: Meeting,
    /// Each must stand in what the client or the server prints.
    says: &'static [&'static str],
    /// Belongs to the short list.
    short: bool,
}

/// The short list: of every kind of run beyond what other scenarios have, one.
pub fn short(lab: &Lab) -> Result<()> {
    let (a, b) = lab.boot_pair(&[])?;
    let entries = perftest::reliable().chain(perftest::others());
    let entries = entries.chain(verbs::pingpongs(&a)?);
    run(&a, &b, entries.filter(|entry| entry.short))
}

/// All runs of the perftest tools whose names begin so.
pub fn perftest(lab: &Lab, tools: &str) -> Result<()> {
    let (a, b) = lab.boot_pair(&[])?;
    let entries = perftest::reliable().chain(perftest::others());
    run(
        &a,
        &b,
        entries.filter(|entry| entry.meeting.server.starts_with(tools)),
    )
}

/// `ib_send_bw` and `ib_send_lat` over RC, without shared receive queues; the rest of their runs is [`perftest_send`]'s.
pub fn perftest_send_rc(lab: &Lab) -> Result<()> {
    let (a, b) = lab.boot_pair(&[])?;
    let sends = |entry: &Entry| entry.meeting.server.starts_with("ib_send");
    run(&a, &b, perftest::reliable().filter(sends))
}

/// `ib_send_bw` and `ib_send_lat` over UC and UD, multicast, with shared receive queues, with short and long messages.
pub fn perftest_send(lab: &Lab) -> Result<()> {
    let (a, b) = lab.boot_pair(&[])?;
    let sends = |entry: &Entry| entry.meeting.server.starts_with("ib_send");
    run(&a, &b, perftest::others().filter(sends))
}

/// The tools of rdmacm-utils: those that are quick.
pub fn rdma_cm(lab: &Lab) -> Result<()> {
    let (a, b) = lab.boot_pair(&[])?;
    run(&a, &b, cm::utilities().filter(|entry| entry.short))
}

/// The tools of rdmacm-utils, all; and a file that `rcopy` copies.
pub fn rdmacm_utils(lab: &Lab) -> Result<()> {
    let (a, b) = lab.boot_pair(&[])?;
    run(&a, &b, cm::utilities())?;
    cm::copied_file(&a, &b)
}

/// The pingpongs of ibverbs-utils; qperf; fio over RDMA with verification.
pub fn other_tools(lab: &Lab) -> Result<()> {
    let (a, b) = lab.boot_pair(&["--memory", "1G"])?;
    let pingpongs = verbs::pingpongs(&a)?;
    run(&a, &b, pingpongs.chain(verbs::qperf()).chain(verbs::fio()))
}

/// A perftest that knows the device (`resources/upstream`) sends inline and posts by `ibv_wr_*`. `LONGARM_PERFTEST` names the image
/// with its tools.
pub fn perftest_patched(lab: &Lab) -> Result<()> {
    let image = std::env::var("LONGARM_PERFTEST").context("LONGARM_PERFTEST is not set")?;
    let (a, b) = lab.boot_pair(&["--disk", &format!("{image},ro")])?;
    for vm in [&a, &b] {
        let command = "mkdir /tmp/patched && mount -t squashfs /dev/vdb /tmp/patched && cp /tmp/patched/* /usr/bin/";
        vm.exec(command, 30)?.ok(command)?;
    }
    run(&a, &b, perftest::patched())
}

/// Runs the entries between the VMs, in turn from either side.
fn run(a: &Vm, b: &Vm, entries: impl Iterator<Item = Entry>) -> Result<()> {
    let started = Instant::now();
    for vm in [a, b] {
        vm.exec("modprobe rdma_ucm", 30)?.ok("modprobe rdma_ucm")?;
    }
    let before = [Account::of(a)?, Account::of(b)?];
    let ways = [(a, b), (b, a)].into_iter().cycle();
    let entries = entries.zip(ways).map(|(entry, (client, server))| {
        let planned = Planned {
            meeting: entry.meeting,
            client,
            server,
        };
        (planned, entry.says)
    });
    let (planned, says): (Vec<_>, Vec<_>) = entries.unzip();
    let mut complaints = Vec::new();
    let mut last = started;
    in_turn(&planned, LIMIT, |place, outcome, lost| {
        let this = &planned[place];
        let what = format!("{} {}", this.direction(), this.meeting.client);
        println!("{:6.1} s  {what}", last.elapsed().as_secs_f64());
        last = Instant::now();
        if let Err(error) = judge(&outcome, lost, says[place]) {
            println!("FAILED: {error}\n{}", outcome.text());
            complaints.push(format!("{what}: {error}"));
        }
        Ok(())
    })?;
    if !complaints.is_empty() {
        bail!(
            "{} runs failed:\n{}",
            complaints.len(),
            complaints.join("\n")
        );
    }
    before[0].is_met_again(a)?;
    before[1].is_met_again(b)?;
    println!(
        "{} runs, every rc 0, every loss counter 0, {:.0} s",
        planned.len(),
        started.elapsed().as_secs_f64()
    );
    Ok(())
}

fn judge(outcome: &Outcome, lost: [u64; 2], says: &[&str]) -> Result<()> {
    ensure!(
        outcome.ok() && lost == [0, 0],
        "status {} and {}, loss counters {lost:?}, of client and server",
        outcome.client.status,
        outcome.server.status
    );
    let printed = [&outcome.client.stdout, &outcome.server.stdout];
    for wanted in says {
        ensure!(
            printed.iter().any(|text| text.contains(wanted)),
            "nobody says {wanted:?}"
        );
    }
    Ok(())
}

/// The RDMA objects of a VM: CQs stay with the device, in a pool from which kernel users take them.
pub fn objects(vm: &Vm) -> Result<Vec<String>> {
    let all = vm.exec("rdma resource", 30)?.ok("rdma resource")?.stdout;
    let mut words: Vec<String> = all.split_whitespace().map(String::from).collect();
    if let Some(cq) = words.iter().position(|word| word == "cq") {
        words.drain(cq..cq + 2);
    }
    Ok(words)
}
