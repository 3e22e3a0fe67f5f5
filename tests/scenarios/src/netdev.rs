//! The life of the interface that an RDMA device is paired with: events and GID table as the kernel expects them, traffic in between.
//!
//! `ibv_asyncwatch` is the witness of events, `rdma link` and sysfs those of port and GID table.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::account::Account;
use crate::faults::{clear_log, long_run, quiet_log, wait_for_traffic};
use crate::meeting::Meeting;
use crate::objects::{check_objects, dma_buf_between_machines, install_verbs_life};
use crate::running::Running;
use crate::vm::{Lab, Vm};

/// What an event or a command may take.
const LIMIT: Duration = Duration::from_secs(60);
/// GIDs as sysfs writes them.
const FIRST_IPV4: &str = "0000:0000:0000:0000:0000:ffff:0a00:0001";
const SECOND_IPV4: &str = "0000:0000:0000:0000:0000:ffff:0a00:0101";
const GLOBAL_IPV6: &str = "fd00:0000:0000:0000:0000:0000:0000:0001";
const VLAN_IPV4: &str = "0000:0000:0000:0000:0000:ffff:0a01:0001";
const LINK_LOCAL: &str = "fe80:0000:0000:0000:0000:00ff:fe00:00aa";

/// All of it between two VMs, after what one of them shows by itself.
pub fn device_life(lab: &Lab) -> Result<()> {
    let (a, b) = lab.boot_pair(&[])?;
    clear_log(&a)?;
    let mut failed = Vec::new();
    let base = [Account::of(&a)?, Account::of(&b)?];
    check_objects(lab, &a, &mut failed)?;
    install_verbs_life(lab, &b)?;
    checks!(failed, (&a, &b); dma_buf_between_machines);

    let mut events = a.start("stdbuf -oL ibv_asyncwatch")?;
    events.wait_for("async event", LIMIT)?;
    // One run of traffic goes through all of this. It would end with the first completion that is an error.
    let (mut client, mut server) = long_run(&a, &b, "ib_write_bw", 18_750, 900)?;
    checks!(failed, (&a, &mut events);
        semantics_44_down_and_up,
        semantics_44_mtu,
        semantics_44_addresses,
        semantics_44_address_in_use,
        semantics_44_mac_address,
        semantics_44_vlan,
    );
    wait_for_traffic(&a).context("the run did not last")?;
    for side in [&mut client, &mut server] {
        side.end();
    }
    checks!(failed, (&a, &b); semantics_44_traffic_by_every_address);
    checks!(failed, (&a, &b, &mut events); semantics_44_interface_goes_and_comes);
    events.end();
    checks!(failed, (&a, &b); namespaces);
    for (vm, base) in [&a, &b].into_iter().zip(&base) {
        base.is_met_again(vm)?;
    }
    quiet_log(&a)?;
    ensure!(failed.is_empty(), "{}", failed.join(", "));
    Ok(())
}

/// Waits until the port is in this state, by `rdma link` and by `ibv_devinfo`.
fn port_is(vm: &Vm, state: &str) -> Result<()> {
    vm.eventually(&format!(
        "rdma link show | grep -q 'state {state} ' && ibv_devinfo | grep -q 'PORT_{state} '"
    ))
}

/// Waits until the GID is in the table this often.
fn gid_is_there(vm: &Vm, gid: &str, times: u32) -> Result<()> {
    vm.eventually(&format!(
        "[ \"$(cat /sys/class/infiniband/*/ports/1/gids/* | grep -c '^{gid}$')\" = {times} ]"
    ))
    .with_context(|| format!("GID {gid} {times} times"))
}

fn change(vm: &Vm, commands: &str) -> Result<()> {
    vm.exec(&format!("set -e; {commands}"), 60)?
        .ok(commands)
        .map(drop)
}

/// The interface goes down and comes up again: PORT_ERR and PORT_ACTIVE.
fn semantics_44_down_and_up(a: &Vm, events: &mut Running) -> Result<()> {
    change(a, "ip link set eth0 down")?;
    events.wait_for("IBV_EVENT_PORT_ERR", LIMIT)?;
    port_is(a, "DOWN")?;
    change(a, "ip link set eth0 up")?;
    events.wait_for("IBV_EVENT_PORT_ACTIVE", LIMIT)?;
    port_is(a, "ACTIVE")
}

/// The active MTU is the largest that fits the interface's.
fn semantics_44_mtu(a: &Vm, _events: &mut Running) -> Result<()> {
    for (mtu, active) in [(1000, "512"), (600, "256"), (1500, "1024")] {
        change(a, &format!("ip link set eth0 mtu {mtu}"))?;
        a.eventually(&format!(
            "ibv_devinfo | grep 'active_mtu:' | grep -q '[^0-9]{active} '"
        ))
        .with_context(|| format!("MTU {mtu}: not {active}"))?;
    }
    Ok(())
}

/// Addresses of IPv4 and IPv6 become GIDs and cease to be, several to the port, with GID_CHANGE each time.
fn semantics_44_addresses(a: &Vm, events: &mut Running) -> Result<()> {
    const ADDRESSES: [(&str, &str, &str); 2] = [
        ("10.0.1.1/24", "", SECOND_IPV4),
        ("fd00::1/64", "nodad", GLOBAL_IPV6),
    ];
    for (address, flags, gid) in ADDRESSES {
        for (verb, flags, times) in [("add", flags, 1), ("del", "", 0), ("add", flags, 1)] {
            change(a, &format!("ip addr {verb} {address} dev eth0 {flags}"))?;
            events.wait_for("IBV_EVENT_GID_CHANGE", LIMIT)?;
            gid_is_there(a, gid, times)?;
        }
    }
    Ok(())
}

/// The address by which the run's queue pairs are connected goes: they stay connected.
fn semantics_44_address_in_use(a: &Vm, events: &mut Running) -> Result<()> {
    change(a, "ip addr del 10.0.0.1/24 dev eth0")?;
    events.wait_for("IBV_EVENT_GID_CHANGE", LIMIT)?;
    gid_is_there(a, FIRST_IPV4, 0)?;
    wait_for_traffic(a)?;
    change(a, "ip addr add 10.0.0.1/24 dev eth0")?;
    gid_is_there(a, FIRST_IPV4, 1)
}

/// Another MAC address: the default GID follows it, and the pairing stays.
fn semantics_44_mac_address(a: &Vm, events: &mut Running) -> Result<()> {
    let before = a
        .exec("cat /sys/class/net/eth0/address", 10)?
        .ok("the MAC address")?;
    change(a, "ip link set eth0 address 02:00:00:00:00:aa")?;
    events.wait_for("IBV_EVENT_GID_CHANGE", LIMIT)?;
    gid_is_there(a, LINK_LOCAL, 1)?;
    a.eventually("rdma link show | grep -q 'netdev eth0'")?;
    a.eventually("ping -c 1 -W 1 -q 10.0.0.2 >/dev/null")?;
    change(a, &format!("ip link set eth0 address {}", before.stdout))?;
    gid_is_there(a, LINK_LOCAL, 0)
}

/// A VLAN's address is a GID of the port, whose interface is the VLAN's.
fn semantics_44_vlan(a: &Vm, events: &mut Running) -> Result<()> {
    change(a, &vlan(1))?;
    events.wait_for("IBV_EVENT_GID_CHANGE", LIMIT)?;
    gid_is_there(a, VLAN_IPV4, 1)?;
    a.eventually(
        "grep -s . /sys/class/infiniband/*/ports/1/gid_attrs/ndevs/* | grep -q ':vlan7$'",
    )?;
    change(a, "ip link del vlan7")?;
    gid_is_there(a, VLAN_IPV4, 0)?;
    change(a, &vlan(1))?;
    gid_is_there(a, VLAN_IPV4, 1)
}

/// Commands that give a VM an address in VLAN 7.
fn vlan(host: u32) -> String {
    format!(
        "ip link add link eth0 name vlan7 type vlan id 7; ip addr add 10.1.0.{host}/24 dev vlan7; ip link set vlan7 up"
    )
}

/// A connection to an address of the other VM, contents checked; `within` goes before the client's command.
fn rping(a: &Vm, b: &Vm, address: &str, within: &str) -> Result<()> {
    Meeting::by_cm(
        &format!("rping -s -V -C 3 -a {address}"),
        &format!("{within}rping -c -V -C 3 -a {address}"),
    )
    .between(a, b, LIMIT)?
    .all_well()
}

/// Each of the addresses that came carries connections, contents checked.
fn semantics_44_traffic_by_every_address(a: &Vm, b: &Vm) -> Result<()> {
    change(
        b,
        &format!(
            "ip addr add 10.0.1.2/24 dev eth0; ip addr add fd00::2/64 dev eth0 nodad; {}",
            vlan(2)
        ),
    )?;
    for address in ["10.0.1.2", "fd00::2", "10.1.0.2"] {
        a.eventually(&format!("ping -c 1 -W 1 -q {address} >/dev/null"))?;
        rping(a, b, address, "").with_context(|| address.to_owned())?;
    }
    Ok(())
}

/// The interface's own driver goes: no port, no GIDs. It comes back, and both do.
fn semantics_44_interface_goes_and_comes(a: &Vm, b: &Vm, events: &mut Running) -> Result<()> {
    change(
        a,
        "cd /sys/bus/virtio/drivers/virtio_net; basename virtio* >/tmp/gone; cat /tmp/gone >unbind",
    )?;
    events.wait_for("IBV_EVENT_PORT_ERR", LIMIT)?;
    a.eventually("rdma link show | grep -q 'state DOWN ' && ! rdma link show | grep -q netdev")?;
    a.eventually("! grep -q '[1-9a-f]' /sys/class/infiniband/*/ports/1/gids/*")?;
    change(
        a,
        "cat /tmp/gone >/sys/bus/virtio/drivers/virtio_net/bind; ip link set eth0 up; ip addr add 10.0.0.1/24 dev eth0",
    )?;
    events.wait_for("IBV_EVENT_PORT_ACTIVE", LIMIT)?;
    port_is(a, "ACTIVE")?;
    a.reach(b)?;
    rping(a, b, "10.0.0.2", "")
}

/// The RDMA device in a network namespace: seen in all while they are shared, in its own alone while they are not.
fn namespaces(a: &Vm, b: &Vm) -> Result<()> {
    change(
        a,
        "rdma system show | grep -q 'netns shared'; ip netns add inner; ip netns exec inner rdma dev show vrdma0; \
         ip netns del inner",
    )?;
    // The kernel changes the mode while there is no other namespace; one that is deleted goes a little later.
    a.eventually("rdma system set netns exclusive")?;
    change(
        a,
        "ip netns add inner; ! ip netns exec inner rdma dev show vrdma0 || exit 1; \
         rdma dev set vrdma0 netns inner; ! rdma dev show vrdma0 || exit 1; ! ibv_devinfo || exit 1; \
         ip link set eth0 netns inner; ip netns exec inner sh -ec 'ip link set lo up; ip link set eth0 up; \
         ip addr add 10.0.0.1/24 dev eth0'",
    )?;
    a.eventually(
        "ip netns exec inner sh -c 'rdma link show | grep \"state ACTIVE\" | grep -q \"netdev eth0\" && \
         ibv_devinfo -v | grep -q ::ffff:10.0.0.1'",
    )?;
    a.eventually("ip netns exec inner ping -c 1 -W 1 -q 10.0.0.2 >/dev/null")?;
    rping(a, b, "10.0.0.2", "ip netns exec inner ")?;
    // With the namespace both devices come back to the first one.
    change(a, "ip netns del inner")?;
    a.eventually("rdma dev show vrdma0 && ip link show eth0 && rdma system set netns shared")?;
    change(a, "ip link set eth0 up; ip addr add 10.0.0.1/24 dev eth0")?;
    port_is(a, "ACTIVE")?;
    a.reach(b)?;
    rping(a, b, "10.0.0.2", "")
}
