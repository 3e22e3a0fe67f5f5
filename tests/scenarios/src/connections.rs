//! The unacknowledged transports, and connections that the kernel's CM makes, by stock tools between two VMs.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

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
        for counter in ["lost", "tx_discarded", "qkey_errors"] {
            let count = vm.counter(counter)?;
            ensure!(count == 0, "{}: {counter} is {count}", vm.name);
        }
    }
    Ok(())
}

/// rdma_cm over RC and UD, multicast, and perftest with connections made by it.
pub fn rdma_cm(lab: &Lab) -> Result<()> {
    let (a, b) = lab.boot_pair(&[])?;
    for vm in [&a, &b] {
        vm.exec("modprobe rdma_ucm", 30)?.ok("modprobe rdma_ucm")?;
    }
    let before = resources(&b)?;
    // Contents are checked by -V.
    meet(
        &a,
        &b,
        "rping -s -V -C 30 -S 5000",
        "rping -c -V -C 30 -S 5000 -a 10.0.0.2",
    )?;
    meet(&b, &a, "rping -s -V -C 5", "rping -c -V -C 5 -a 10.0.0.1")?;
    meet(
        &a,
        &b,
        "ucmatose -c 5 -C 20 -S 2000",
        "ucmatose -c 5 -C 20 -S 2000 -s 10.0.0.2",
    )?;
    meet(&a, &b, "udaddy -c 5 -C 10", "udaddy -c 5 -C 10 -s 10.0.0.2")?;
    for tool in ["ib_send_bw", "ib_write_lat"] {
        let command = format!("{tool} -F -R -s 1000 -n 400");
        meet(&a, &b, &command, &format!("{command} 10.0.0.2"))?;
    }
    multicast(&a, &b)?;
    let after = resources(&b)?;
    ensure!(
        before == after,
        "resources before:\n{before}\nand after:\n{after}"
    );
    Ok(())
}

/// `mckey`: one VM sends to a group that the other has joined.
fn multicast(a: &Vm, b: &Vm) -> Result<()> {
    let receiver = b.start("mckey -m 239.7.7.7 -b 10.0.0.2")?;
    // The sender waits by itself before it sends; the receiver has joined by then.
    a.exec("mckey -s -m 239.7.7.7 -b 10.0.0.1", 60)?
        .ok("mckey -s")?;
    receiver.finish(LIMIT)?.ok("mckey, the receiver")?;
    Ok(())
}

/// Runs a server that listens by the CM, and its client.
fn meet(client: &Vm, server: &Vm, serving: &str, asking: &str) -> Result<()> {
    let wrapped = format!(
        "{serving} & server=$!; until rdma resource show cm_id | grep -q 'state LISTEN'; do \
         kill -0 $server 2>/dev/null || break; sleep 0.05; done; echo listening; wait $server"
    );
    let mut running = server.start(&wrapped)?;
    running
        .wait_for("listening", LIMIT)
        .with_context(|| serving.to_owned())?;
    client.exec(asking, 60)?.ok(asking)?;
    running.finish(LIMIT)?.ok(serving)?;
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

/// What `rdma resource` counts in a VM.
pub fn resources(vm: &Vm) -> Result<String> {
    Ok(vm.exec("rdma resource", 30)?.ok("rdma resource")?.stdout)
}
