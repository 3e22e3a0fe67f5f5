//! Stock verbs tools against the device.

use std::time::Duration;

use anyhow::{Result, ensure};

use crate::meeting::{Meeting, Ready};
use crate::vm::{Lab, Vm};

/// `ibv_devinfo -v` shows an active port with RoCE v2 GIDs, IPv4 and link-local IPv6.
pub fn devinfo(lab: &Lab) -> Result<()> {
    let (a, _b) = lab.boot_pair(&[])?;
    let info = a.exec("ibv_devinfo -v", 30)?.ok("ibv_devinfo")?.stdout;
    for wanted in [
        "state:			PORT_ACTIVE",
        "link_layer:		Ethernet",
        "RoCE v2",
        "10.0.0.1",
        "fe80:",
    ] {
        ensure!(
            info.contains(wanted),
            "ibv_devinfo does not say {wanted:?}:\n{info}"
        );
    }
    Ok(())
}

/// `ibv_rc_pingpong -c`, which checks contents, polling and with completion events, between VMs and within one.
pub fn pingpong(lab: &Lab) -> Result<()> {
    let (a, b) = lab.boot_pair(&[])?;
    pingpong_between(&a, &b)
}

/// The same on Debian 12: kernel 6.1 and rdma-core 44.
pub fn pingpong_between(a: &Vm, b: &Vm) -> Result<()> {
    for (port, options) in [(18_600, ""), (18_610, "-e")] {
        for (offset, client, server) in [(0, a, b), (1, b, a), (2, a, a)] {
            one_pingpong("ibv_rc_pingpong", options, port + offset, client, server)?;
        }
    }
    Ok(())
}

/// One run of a pingpong that checks contents.
pub fn one_pingpong(tool: &str, options: &str, port: u16, client: &Vm, server: &Vm) -> Result<()> {
    let meeting = pingpong_meeting(tool, options, port, roce_v2_index(client)?);
    let what = format!("{} {}->{}", meeting.client, client.name, server.name);
    let outcome = meeting.between(client, server, Duration::from_secs(60))?;
    ensure!(outcome.ok(), "{what}:\n{}", outcome.text());
    Ok(())
}

/// Both sides of a pingpong that checks contents, with the GID of this index.
pub fn pingpong_meeting(tool: &str, options: &str, port: u16, index: u32) -> Meeting {
    let command = format!("{tool} -c -g {index} -p {port} -n 200 {options}");
    Meeting {
        client: format!("{command} @server"),
        server: command,
        ready: Ready::Tcp(port),
        serves_on: false,
    }
}

/// Index of the GID that a VM's IPv4 address became.
pub fn roce_v2_index(vm: &Vm) -> Result<u32> {
    let listing = vm
        .exec("cd /sys/class/infiniband/*/ports/1/gids && grep -l '0000:0000:0000:0000:0000:ffff:0a00' *", 10)?
        .ok("the GID of the IPv4 address")?;
    Ok(listing
        .stdout
        .lines()
        .next()
        .unwrap_or_default()
        .trim()
        .parse()?)
}
