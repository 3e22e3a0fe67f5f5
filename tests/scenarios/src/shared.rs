//! Shared receive queues, by stock tools between two VMs and within one.

use std::time::Duration;

use anyhow::{Result, ensure};

use crate::perftest::Run;
use crate::tools::resources;
use crate::verbs::one_pingpong;
use crate::vm::Lab;

/// What a run may take.
const LIMIT: Duration = Duration::from_secs(60);

/// `ibv_srq_pingpong`, which checks contents over 16 QPs, and perftest with a shared queue and many QPs.
pub fn srq(lab: &Lab) -> Result<()> {
    let (a, b) = lab.boot_pair(&[])?;
    let before = resources(&b)?;
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
        let run = Run {
            tool,
            size: 1000,
            iterations: 100,
            options: options.into(),
        };
        let outcome = run.between(&a, &b, port, LIMIT)?;
        ensure!(outcome.ok(), "{tool} {options}:\n{}", outcome.text());
    }
    for vm in [&a, &b] {
        let count = vm.counter("lost")?;
        ensure!(count == 0, "{}: lost is {count}", vm.name);
    }
    let after = resources(&b)?;
    ensure!(
        before == after,
        "resources before:\n{before}\nand after:\n{after}"
    );
    Ok(())
}
