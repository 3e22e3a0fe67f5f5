//! Shared receive queues, by stock tools between two VMs and within one.

use std::time::Duration;

use anyhow::{Result, ensure};

use crate::account::Account;
use crate::meeting::{Ready, serve};
use crate::objects::{VERBS_LIFE, install_verbs_life};
use crate::perftest::Run;
use crate::verbs::{one_pingpong, roce_v2_index};
use crate::vm::{Lab, Vm};

/// What a run may take.
const LIMIT: Duration = Duration::from_secs(60);

/// XRC: perftest's operations, and `ibv_xsrq_pingpong`, whose server sends each client's messages by the connections of all: the clients
/// are processes of one VM and share a domain by a file.
fn extended(a: &Vm, b: &Vm) -> Result<()> {
    for (port, options, client, server) in [(18_940, "", a, b), (18_941, "-e", a, a)] {
        let index = roce_v2_index(a)?;
        let command = format!("ibv_xsrq_pingpong -g {index} -p {port} -n 50 {options}");
        let mut serving = server.start(&serve(&format!("{command} -c 2"), Ready::Tcp(port)))?;
        serving.wait_for("listening", LIMIT)?;
        let what = format!("{command} {}->{}", client.name, server.name);
        let clients = [(); 2].map(|()| client.start(&format!("{command} {}", server.address())));
        for running in clients {
            running?.finish(LIMIT)?.ok(&format!("client of {what}"))?;
        }
        serving.finish(LIMIT)?.ok(&format!("server of {what}"))?;
    }
    for (port, tool, options) in [
        (18_942, "ib_send_bw", "-c XRC -q 8"),
        (18_943, "ib_write_bw", "-c XRC -q 4"),
        (18_944, "ib_read_bw", "-c XRC"),
        (18_945, "ib_atomic_bw", "-c XRC"),
        (18_946, "ib_send_lat", "-c XRC -e"),
    ] {
        perftest(tool, options, port, a, b)?;
    }
    Ok(())
}

/// A run of a perftest tool from `a` to `b` that has to end well on both sides.
fn perftest(tool: &'static str, options: &str, port: u16, a: &Vm, b: &Vm) -> Result<()> {
    let run = Run {
        tool,
        size: if tool == "ib_atomic_bw" { 8 } else { 1000 },
        iterations: 100,
        options: options.into(),
    };
    let outcome = run.between(a, b, port, LIMIT)?;
    ensure!(outcome.ok(), "{tool} {options}:\n{}", outcome.text());
    Ok(())
}

/// `ibv_srq_pingpong`, which checks contents over 16 QPs, and perftest with a shared queue and many QPs.
pub fn srq(lab: &Lab) -> Result<()> {
    let (a, b) = lab.boot_pair(&[])?;
    let before = Account::of(&b)?;
    for (port, options, client, server) in [
        (18_900, "", &a, &b),
        (18_901, "-e", &b, &a),
        (18_902, "", &a, &a),
    ] {
        one_pingpong("ibv_srq_pingpong", options, port, client, server)?;
    }
    for (port, tool, options) in [
        (18_930, "ib_send_bw", "--use-srq"),
        (18_931, "ib_send_bw", "--use-srq -q 64"),
        (18_932, "ib_send_bw", "--use-srq -q 8 -e"),
        (18_933, "ib_send_lat", "--use-srq"),
        (18_934, "ib_send_bw", "-q 64"),
        (18_935, "ib_write_bw", "-q 64"),
    ] {
        perftest(tool, options, port, &a, &b)?;
    }
    extended(&a, &b)?;
    // One that a process makes and another opens (`ibv_open_qp`).
    install_verbs_life(lab, &b)?;
    let what = format!("{VERBS_LIFE} shared-target");
    b.exec(&what, 60)?.ok(&what)?;
    for vm in [&a, &b] {
        let count = vm.counter("lost")?;
        ensure!(count == 0, "{}: lost is {count}", vm.name);
    }
    before.is_met_again(&b)
}
