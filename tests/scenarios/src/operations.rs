//! Every transport and operation between two VMs, what arrives checked on both: rdma-core's suite runs on one device only.

use std::time::Duration;

use anyhow::{Result, ensure};

use crate::account::Account;
use crate::verbs::roce_v2_index;
use crate::vm::{Lab, Vm};

/// Runs in both guests (package python3-pyverbs).
const PROGRAM: &str = include_str!("operations.py");

/// Messages of UC in each direction that the far side has to drop: for a window that is gone.
const TO_NOWHERE: u64 = 1;

/// In both directions; nothing is left behind or lost.
pub fn operations(lab: &Lab) -> Result<()> {
    let (a, b) = lab.boot_pair(&[])?;
    for vm in [&a, &b] {
        vm.exec(
            &format!("cat >/tmp/operations.py <<'END'\n{PROGRAM}\nEND"),
            30,
        )?
        .ok("the program")?;
    }
    let before = Account::of(&b)?;
    let mut again = 0;
    for (client, server) in [(&a, &b), (&b, &a)] {
        let mut serving = server.start(&command(server)?)?;
        serving.wait_for("listening", Duration::from_secs(60))?;
        let asked = client.exec(&format!("{} {}", command(client)?, server.address()), 200)?;
        let served = serving.finish(Duration::from_secs(30))?;
        ensure!(
            asked.stdout.ends_with("all operations\n"),
            "from {} to {}:\n{}{}\nfar side:\n{}{}",
            client.name,
            server.name,
            asked.stdout,
            asked.stderr,
            served.stdout,
            served.stderr
        );
        for line in asked.stdout.lines() {
            println!("operations: {} to {}: {line}", client.name, server.name);
            let sent_again = line.split_once(" sent again").map(|(before, _)| before);
            let count = sent_again.and_then(|before| before.rsplit(' ').next());
            again += count.map_or(Ok(0), str::parse::<u64>)?;
        }
    }
    let mut dropped = 0;
    for vm in [&a, &b] {
        let lost = vm.loss()?;
        ensure!(lost == 0, "{}: {lost} lost", vm.name);
        dropped += vm.counter("tx_discarded")? + vm.counter("rx_discarded")?;
    }
    let unseen = again + 2 * TO_NOWHERE;
    ensure!(
        unseen <= dropped,
        "{unseen} messages of UC and UD did not arrive, and the devices know of {dropped}"
    );
    before.is_met_again(&b)?;
    Ok(())
}

fn command(vm: &Vm) -> Result<String> {
    let gid = roce_v2_index(vm)?;
    Ok(format!(
        "python3 -B /tmp/operations.py $(ls /sys/class/infiniband | head -n 1) {gid}"
    ))
}
