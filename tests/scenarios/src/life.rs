//! The monitor itself: boots of every shape, `--exec`, exit codes, memory beside the guest's.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::account::private_kib;
use crate::running::Output;
use crate::vm::{Lab, VmSpec, emulated};

/// VM memory that the issue allows beside guest RAM.
const OVERHEAD_LIMIT_KIB: u64 = 8 * 1024;

fn run(lab: &Lab, args: &[&str]) -> Result<Output> {
    let image = lab.image.to_str().context("the image's path is UTF-8")?;
    let mut words = vec!["run", "--image", image];
    words.extend(args);
    lab.longarm(&words, Duration::from_secs(150))
}

/// `--exec`: the command's own status, its output and its errors apart, nothing of the console among them.
pub fn exec(lab: &Lab) -> Result<()> {
    let output = run(
        lab,
        &[
            "--memory",
            "256M",
            "--exec",
            "echo out; echo err >&2; exit 7",
        ],
    )?;
    ensure!(
        output.status == 7,
        "status {} instead of 7: {output:?}",
        output.status
    );
    ensure!(output.stdout == "out\n", "stdout is {:?}", output.stdout);
    ensure!(output.stderr == "err\n", "stderr is {:?}", output.stderr);
    Ok(())
}

/// Reset, power-off and panic of the guest, and a time limit, each end the monitor with its own documented status.
pub fn exit_codes(lab: &Lab) -> Result<()> {
    for (command, wanted) in EXIT_CODES {
        let vm = lab.boot(VmSpec::new("exit"))?;
        vm.ready()?;
        // The guest goes down under the command, whose own end says nothing.
        let mut asked = vm.start(command)?;
        let output = vm.wait(Duration::from_secs(60))?;
        asked.kill();
        ensure!(
            output.status == *wanted,
            "{command}: status {} instead of {wanted}: {output:?}",
            output.status
        );
    }
    let output = run(lab, &["--memory", "256M", "--timeout", "3"])?;
    ensure!(output.status == 124, "timeout: {output:?}");
    Ok(())
}

/// What a guest does, and the monitor's exit status then (README).
const EXIT_CODES: &[(&str, i32)] = &[
    ("echo o > /proc/sysrq-trigger", 0),
    ("echo b > /proc/sysrq-trigger", 66),
    ("echo c > /proc/sysrq-trigger", 67),
];

/// 1 to 32 vCPUs, and memory from 128 MiB to beyond the hole below 4 GiB: the guest sees what it was given.
pub fn shapes(lab: &Lab) -> Result<()> {
    // 32 vCPUs that wait for one another take turns on the emulated lab's one: they do not get through their boot.
    let most = if emulated() { "8" } else { "32" };
    if emulated() {
        println!("skipped 32 vCPUs: 8 are what the emulated lab can carry");
    }
    for (cpus, memory, mib) in [
        ("1", "128M", 128),
        ("2", "3G", 3072),
        ("4", "5G", 5120),
        (most, "1G", 1024),
    ] {
        let started = Instant::now();
        let report = "nproc; grep MemTotal /proc/meminfo";
        let output =
            run(lab, &["--cpus", cpus, "--memory", memory, "--exec", report])?.ok("boot")?;
        let mut words = output.stdout.split_whitespace();
        ensure!(
            words.next() == Some(cpus),
            "--cpus {cpus}: the guest sees {:?}",
            output.stdout
        );
        let kib: u64 = words.nth(1).context("MemTotal")?.parse()?;
        ensure!(
            kib > mib * 1024 * 3 / 5 && kib <= mib * 1024,
            "--memory {memory}: the guest sees {kib} KiB"
        );
        println!(
            "{cpus} vCPUs, {memory}: boot, command and power-off in {:.1} s",
            started.elapsed().as_secs_f64()
        );
    }
    Ok(())
}

/// A second disk, read-write: what the guest wrote is in the file; read-only: the guest cannot write.
pub fn disks(lab: &Lab) -> Result<()> {
    let (path, locked) = (lab.out.join("disk.raw"), lab.out.join("locked.raw"));
    fs::write(&path, vec![0; 1 << 20])?;
    fs::write(&locked, vec![7; 1 << 20])?;
    let disk = path.to_str().context("UTF-8")?;
    let read_only = format!("{},ro", locked.display());
    let script = "printf longarm | dd of=/dev/vdb bs=512 seek=9 conv=notrunc,fsync 2>/dev/null && \
                  ! printf x | dd of=/dev/vdc conv=notrunc,fsync 2>/dev/null";
    run(
        lab,
        &["--disk", disk, "--disk", &read_only, "--exec", script],
    )?
    .ok("writing to the disks")?;
    let bytes = fs::read(&path)?;
    ensure!(
        &bytes[9 * 512..9 * 512 + 7] == b"longarm",
        "the write did not reach the file"
    );
    ensure!(
        fs::read(&locked)?.iter().all(|&byte| byte == 7),
        "the read-only disk was written"
    );
    Ok(())
}

/// A machine as a file, on huge pages where the host has some free, and a network device on a tap interface that the host answers on.
pub fn config_and_tap(lab: &Lab) -> Result<()> {
    let (image, file) = (lab.image.display(), lab.out.join("vm.json"));
    let hugepages = huge_pages(128)?;
    if !hugepages {
        println!("skipped huge pages: fewer than 128 are free here");
    }
    let config = serde_json::json!({
        "kernel": format!("{image}/vmlinuz"),
        "initrd": format!("{image}/initrd"),
        "append": "longarm.ip=10.9.0.2/24",
        "memory": { "size": "256M", "hugepages": hugepages },
        "disks": [{ "path": format!("{image}/root.img"), "readonly": true }],
        "net": [{ "backend": { "tap": "longarm0" } }],
        "serial": "off",
        "exec": "ping -c 3 -i 0.2 -W 10 -q 10.9.0.1",
    });
    fs::write(&file, config.to_string())?;
    // A network of its own, which is gone with the command.
    let script = "ip tuntap add dev longarm0 mode tap && ip addr add 10.9.0.1/24 dev longarm0 && \
                  ip link set longarm0 up && exec \"$0\" run --config \"$1\"";
    let output = Command::new("unshare")
        .args(["--net", "sh", "-c", script])
        .args([&lab.longarm, &file])
        .output()
        .context("unshare")?;
    let (stdout, stderr) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    ensure!(
        output.status.success(),
        "ping from guest to host, over tap: {}\n{stdout}{stderr}",
        output.status
    );
    ensure!(
        stdout.contains(" 0% packet loss"),
        "packets were lost:\n{stdout}"
    );
    Ok(())
}

/// Whether so many huge pages are free. The emulated lab, a machine of its own, is told to have them.
fn huge_pages(wanted: u64) -> Result<bool> {
    if emulated() {
        fs::write("/proc/sys/vm/nr_hugepages", (wanted + 16).to_string())?;
    }
    let meminfo = fs::read_to_string("/proc/meminfo")?;
    let free = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("HugePages_Free:"));
    Ok(free
        .and_then(|free| free.trim().parse::<u64>().ok())
        .is_some_and(|free| free >= wanted))
}

/// A wrong word is answered by one line that names it and says what is allowed.
pub fn wrong_options(lab: &Lab) -> Result<()> {
    for (args, words) in [
        (
            &["run", "--image", "/nonexistent"][..],
            &["/nonexistent"][..],
        ),
        (
            &["run", "--kernel", "k", "--cpus", "33"],
            &["--cpus", "33", "32"],
        ),
        (
            &["run", "--kernel", "k", "--memory", "1T"],
            &["--memory", "1T", "512G"],
        ),
        (
            &["run", "--kernel", "k", "--net", "fabric"],
            &["--net", "--rdma"],
        ),
        (
            &["run", "--kernel", "k", "--rdma", "fabric=smoke"],
            &["--rdma", "smoke", "tcp"],
        ),
        (
            &["run", "--kernel", "k", "--rdma", "fabric=tcp,listen=here"],
            &["--rdma", "here", "ADDR:PORT"],
        ),
        (&["run", "--frobnicate"], &["--frobnicate"]),
    ] {
        let output = lab.longarm(args, Duration::from_secs(20))?;
        ensure!(
            output.status == 2 || output.status == 70,
            "{args:?}: status {}",
            output.status
        );
        ensure!(
            output.stderr.lines().count() == 1,
            "{args:?}: not one line: {:?}",
            output.stderr
        );
        for word in words {
            ensure!(
                output.stderr.contains(word),
                "{args:?}: no {word:?} in {:?}",
                output.stderr
            );
        }
    }
    Ok(())
}

/// Memory of the monitor beside guest RAM, for a VM with one rdma and one net device.
pub fn overhead(lab: &Lab) -> Result<()> {
    let (a, _b) = lab.boot_pair(&[])?;
    let kib = private_kib(a.pid().context("it is a process")?)?;
    println!("monitor's memory beside guest RAM: {kib} KiB (limit {OVERHEAD_LIMIT_KIB} KiB)");
    ensure!(kib <= OVERHEAD_LIMIT_KIB, "{kib} KiB beside guest RAM");
    let control = a.control.to_str().context("UTF-8")?;
    let table = lab
        .longarm(&["stats", "--control", control], Duration::from_secs(30))?
        .ok("longarm stats")?;
    for name in ["rdma0.device.lost", "rdma0.peers", "net0"] {
        ensure!(
            table.stdout.contains(name),
            "longarm stats does not say {name}:\n{}",
            table.stdout
        );
    }
    Ok(())
}
