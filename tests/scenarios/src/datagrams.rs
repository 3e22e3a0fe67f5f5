//! The unacknowledged transports, by stock tools between two VMs.

use std::time::Duration;

use anyhow::{Result, ensure};

use crate::perftest::Run;
use crate::verbs::one_pingpong;
use crate::vm::{Lab, Vm};

/// What a command may take.
const LIMIT: Duration = Duration::from_secs(60);

/// UC and UD: the pingpongs, which check contents, and perftest. Receives are posted for all that is sent: nothing is repeated here.
pub fn datagrams(lab: &Lab) -> Result<()> {
    let (a, b) = lab.boot_pair(&[])?;
    for (port, tool) in [(18_700, "ibv_uc_pingpong"), (18_710, "ibv_ud_pingpong")] {
        one_pingpong(tool, "", port, &a, &b)?;
        one_pingpong(tool, "-e", port + 1, &b, &a)?;
        one_pingpong(tool, "", port + 2, &a, &a)?;
    }
    for (port, tool, options) in [
        (18_760, "ib_send_bw", "-c UD -r 512"),
        (18_761, "ib_send_lat", "-c UD"),
        (18_762, "ib_send_bw", "-c UC -r 512"),
        (18_763, "ib_write_bw", "-c UC"),
    ] {
        perftest(tool, options, port, &a, &b)?;
    }
    for vm in [&a, &b] {
        ensure!(vm.loss()? == 0, "{}: {}", vm.name, vm.stats()?);
    }
    Ok(())
}

/// A short run of a perftest tool.
fn perftest(tool: &'static str, options: &str, port: u16, a: &Vm, b: &Vm) -> Result<()> {
    let run = Run {
        tool,
        size: 1000,
        iterations: 400,
        options: options.into(),
    };
    let outcome = run.between(a, b, port, LIMIT)?;
    ensure!(outcome.ok(), "{tool} {options}:\n{}", outcome.text());
    Ok(())
}
