//! Connections by the kernel's RDMA CM in numbers: hundreds alive at once, thousands one after the other, and nothing left of them.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::account::{Account, Footprint};
use crate::meeting::{Ready, serve};
use crate::vm::{Lab, Vm};

/// What a step of a round may take.
const LIMIT: Duration = Duration::from_secs(60);

/// 2,000 connections opened and closed, 500 alive at once, the VMs client and server in turn. No object is left of a round. What else a VM
/// has grows while each is client and server for the first time, for tables keep the room that they once needed, and not after that.
pub fn connections(lab: &Lab) -> Result<()> {
    let (a, b) = lab.boot_pair(&[])?;
    for vm in [&a, &b] {
        vm.exec("modprobe rdma_ucm", 30)?.ok("modprobe rdma_ucm")?;
    }
    // What the first use brings and leaves is there from now on.
    round(&a, &b, 10)?;
    round(&b, &a, 10)?;
    let accounts = [Account::of(&a)?, Account::of(&b)?];
    let mut footprints = None;
    for (client, server) in [(&a, &b), (&b, &a), (&a, &b), (&b, &a)] {
        round(client, server, 500)?;
        for (vm, account) in [&a, &b].into_iter().zip(&accounts) {
            account.is_met_again(vm)?;
        }
        let Some(before) = &footprints else {
            if client.name == b.name {
                footprints = Some([Footprint::of(&a)?, Footprint::of(&b)?]);
            }
            continue;
        };
        for (vm, before) in [&a, &b].into_iter().zip(before) {
            let now = before.is_met_again(vm)?;
            println!("{}: {now}; after the first two rounds {before}", vm.name);
        }
    }
    Ok(())
}

/// Connections of one process in `client` with one in `server`, `alive` of them at once, messages both ways on each.
///
/// The server sends when it has one connection more, and that one is opened when the others have been seen.
fn round(client: &Vm, server: &Vm, alive: u64) -> Result<()> {
    let tool = "stdbuf -oL ucmatose -C 4 -S 200";
    let lost = client.loss()? + server.loss()?;
    let command = format!("{tool} -c {}", alive + 1);
    let mut serving = server.start(&serve(&command, Ready::Cm))?;
    serving.wait_for("listening", LIMIT)?;
    let started = Instant::now();
    let mut running = client.start(&format!("{tool} -c {alive} -s {}", server.address()))?;
    running.wait_for("receiving data transfers", LIMIT)?;
    let opened = started.elapsed().as_secs_f64();
    for vm in [client, server] {
        vm.eventually(&format!(
            "[ $(rdma resource show qp | grep -c 'state RTS.* comm ucmatose') = {alive} ]"
        ))
        .with_context(|| format!("{}: not {alive} connections alive", vm.name))?;
    }
    let seen = Instant::now();
    let last = format!("{tool} -c 1 -s {}", server.address());
    client.exec(&last, 60)?.ok(&last)?;
    for (side, running) in [("client", running), ("server", serving)] {
        let output = running.finish(LIMIT)?.ok(side)?;
        ensure!(
            output.stdout.contains("data transfers complete"),
            "{side}: {}",
            output.stdout
        );
    }
    println!(
        "{}->{}: {alive} connections opened in {opened:.1} s, {:.0} a second, used and closed in {:.1} s",
        client.name,
        server.name,
        alive as f64 / opened,
        seen.elapsed().as_secs_f64()
    );
    let lost = client.loss()? + server.loss()? - lost;
    ensure!(lost == 0, "{lost} losses");
    Ok(())
}
