//! What goes wrong around a transfer: a peer that dies, a target that stands still, a process that is killed, a driver that goes.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::account::Account;
use crate::meeting::{Ready, serve};
use crate::objects::{holder, install_verbs_life};
use crate::perftest::Run;
use crate::running::{Output, Running};
use crate::vm::{Lab, Vm};

/// Seconds of a tool that is ended before: more than a busy machine needs until then.
const LONG: u32 = 30;

/// Starts a tool that runs for `seconds` between the VMs; gives both sides.
pub fn long_run(
    client: &Vm,
    server: &Vm,
    tool: &str,
    port: u16,
    seconds: u32,
) -> Result<(Running, Running)> {
    let command = format!("{tool} -F -p {port} -s 65536 -D {seconds}");
    let mut serving = server.start(&serve(&command, Ready::Tcp(port)))?;
    serving.wait_for("listening", Duration::from_secs(30))?;
    let running = client.start(&format!("{command} {}", server.address()))?;
    wait_for_traffic(client)?;
    Ok((running, serving))
}

/// Waits until the VM's device completes work.
pub fn wait_for_traffic(vm: &Vm) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(30);
    let start = vm.counter("completions")?;
    while vm.counter("completions")? < start + 10 {
        ensure!(
            Instant::now() < end,
            "no traffic in {} within 30 s",
            vm.name
        );
        sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// The peer's monitor is killed in the middle of RDMA WRITEs: the requester says RETRY_EXC (12), never success. The peer comes back
/// and is found again.
pub fn dead_peer(lab: &Lab) -> Result<()> {
    let (a, mut b) = lab.boot_pair(&[])?;
    let (client, _server) = long_run(&a, &b, "ib_write_bw", 18_700, LONG)?;
    b.crash();
    retries_ran_out(client.finish(Duration::from_secs(60))?)?;
    ensure!(
        a.counter("timeouts")? >= 1,
        "the device did not count the timeout"
    );

    let b = lab.boot(b.spec.clone())?;
    b.ready()?;
    a.reach(&b)?;
    let run = Run {
        tool: "ib_write_bw",
        size: 4096,
        iterations: 200,
        options: String::new(),
    };
    let outcome = run.between(&a, &b, 18_701, Duration::from_secs(60))?;
    ensure!(
        outcome.ok(),
        "with the peer that came back:\n{}",
        outcome.text()
    );
    Ok(())
}

/// A tool ended because its peer was gone.
fn retries_ran_out(output: Output) -> Result<()> {
    ensure!(
        output.status != 0,
        "success though the peer was gone:\n{}",
        output.stdout
    );
    let text = output.stdout + &output.stderr;
    ensure!(
        text.contains("status 12") || text.contains("transport retry counter exceeded"),
        "not RETRY_EXC:\n{text}"
    );
    Ok(())
}

/// The target's vCPUs are paused: WRITE and READ still complete, for they need no CPU of the target's guest. The requester's are:
/// its device carries out what was posted, and the run goes on afterwards.
pub fn paused_target(lab: &Lab) -> Result<()> {
    let (a, b) = lab.boot_pair(&[])?;
    for (port, tool) in [(18_710, "ib_write_bw"), (18_711, "ib_read_bw")] {
        let (client, server) = long_run(&a, &b, tool, port, 12)?;
        b.pause()?;
        sleep(Duration::from_millis(300));
        wait_for_traffic(&a).with_context(|| format!("{tool} while the target is paused"))?;
        b.resume()?;
        client.finish(Duration::from_secs(60))?.ok(tool)?;
        server.finish(Duration::from_secs(60))?.ok(tool)?;
    }
    let (client, server) = long_run(&a, &b, "ib_send_bw", 18_712, 4)?;
    a.pause()?;
    sleep(Duration::from_secs(1));
    a.resume()?;
    client.finish(Duration::from_secs(60))?.ok("ib_send_bw")?;
    server.finish(Duration::from_secs(60))?.ok("ib_send_bw")?;
    Ok(())
}

/// A process killed in the middle of its transfers leaves nothing behind in its guest, and its peer gets an error.
pub fn semantics_42_killed_process(lab: &Lab) -> Result<()> {
    killed(lab, 3)
}

/// The same many times.
pub fn semantics_42_killed_often(lab: &Lab) -> Result<()> {
    killed(lab, 50)
}

fn killed(lab: &Lab, rounds: u16) -> Result<()> {
    let (a, b) = lab.boot_pair(&[])?;
    let base = [Account::of(&a)?, Account::of(&b)?];
    for round in 0..rounds {
        let victim = if round % 2 == 0 { &a } else { &b };
        let (client, server) = long_run(&a, &b, "ib_write_bw", 18_800 + round, LONG)?;
        victim.exec("pkill -KILL ib_write_bw", 10)?.ok("pkill")?;
        let survivor = if victim.name == "a" { server } else { client };
        // The survivor of a killed client waits for it on TCP, which the guest's kernel closes.
        let output = survivor.finish(Duration::from_secs(40))?;
        ensure!(
            output.status != 0,
            "the survivor of round {round} succeeded:\n{}",
            output.stdout
        );
        base[0].is_met_again(&a)?;
        base[1].is_met_again(&b)?;
    }
    Ok(())
}

/// The driver is unbound under traffic, with processes that have the device open, then bound again; and its module removed and
/// loaded again. The processes are told, their verbs fail with EIO and do no harm, the peer's queue pairs do not wait for ever,
/// the kernel has nothing to complain of, and the device works again.
pub fn semantics_45_unbind(lab: &Lab) -> Result<()> {
    let (a, b) = lab.boot_pair(&[])?;
    clear_log(&a)?;

    install_verbs_life(lab, &a)?;
    let mut holder = holder(&a)?;
    let mut watcher = a.start("stdbuf -oL ibv_asyncwatch")?;
    watcher.wait_for("async event", Duration::from_secs(20))?;
    let (mut client, server) = long_run(&a, &b, "ib_write_bw -b", 18_730, LONG)?;
    a.exec(
        "cd /sys/bus/virtio/drivers/virtio_rdma && basename virtio* > /tmp/unbound && cat /tmp/unbound > unbind",
        30,
    )?
    .ok("unbinding the driver")?;
    watcher.wait_for("DEVICE_FATAL", Duration::from_secs(20))?;
    holder.wait_for("gone", Duration::from_secs(20))?;
    holder.finish(Duration::from_secs(20))?.ok("verbs-life")?;
    let left = a.exec("ls /sys/class/infiniband", 10)?.stdout;
    ensure!(left.trim().is_empty(), "the device is still there: {left}");
    // perftest looks at its rings only, and they stand still.
    for running in [&mut client, &mut watcher] {
        running.end();
    }
    retries_ran_out(server.finish(Duration::from_secs(20))?).context("the driver's peer")?;
    works_again(
        &a,
        &b,
        "cat /tmp/unbound > /sys/bus/virtio/drivers/virtio_rdma/bind",
        18_731,
    )?;

    // A module in use does not go; its users must be gone first, which takes a moment.
    let (mut client, mut server) = long_run(&a, &b, "ib_write_bw", 18_740, LONG)?;
    client.end();
    server.end();
    a.exec(
        "for i in $(seq 20); do rmmod virtio_rdma && exit 0; sleep 0.5; done; exit 1",
        30,
    )?
    .ok("removing the module")?;
    works_again(&a, &b, "modprobe virtio_rdma", 18_741)?;

    quiet_log(&a)
}

/// Forgets what the guest's kernel has said so far.
pub fn clear_log(vm: &Vm) -> Result<()> {
    vm.exec("dmesg --clear", 10)?.ok("dmesg").map(drop)
}

/// Fails if the guest's kernel has complained since.
pub fn quiet_log(vm: &Vm) -> Result<()> {
    let log = vm.exec("dmesg", 10)?.ok("dmesg")?.stdout;
    for word in [
        "] BUG ",
        "BUG:",
        "WARNING:",
        "Oops",
        "Call Trace",
        "blocked for more",
    ] {
        ensure!(
            !log.contains(word),
            "the kernel of {} complained:\n{log}",
            vm.name
        );
    }
    Ok(())
}

/// Brings the driver back, and uses the device.
fn works_again(a: &Vm, b: &Vm, back: &str, port: u16) -> Result<()> {
    a.exec(back, 30)?.ok("bringing the driver back")?;
    a.exec(
        "for i in $(seq 50); do ibv_devinfo 2>/dev/null | grep -q PORT_ACTIVE && exit 0; sleep 0.2; done; exit 1",
        40,
    )?
    .ok("the port after the driver came back")?;
    let run = Run {
        tool: "ib_write_bw",
        size: 4096,
        iterations: 200,
        options: String::new(),
    };
    let outcome = run.between(a, b, port, Duration::from_secs(60))?;
    ensure!(
        outcome.ok(),
        "after the driver came back:\n{}",
        outcome.text()
    );
    Ok(())
}
