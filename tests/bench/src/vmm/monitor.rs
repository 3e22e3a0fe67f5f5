//! The two monitors, started for the same guest with the same devices.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use scenarios::running::Running;
use scenarios::vm::{Lab, tail};

use super::usage::{Memory, settle};

/// Taps of the two monitors.
pub const TAPS: [&str; 2] = ["tap0", "tap1"];
/// Their MTU.
pub const MTU: u32 = 1500;
/// Guest memory, MiB.
pub const MEMORY_MIB: u64 = 512;

/// The line of the first user process, and that of a guest that is set up: modules loaded, interfaces up.
const INIT: &str = "bench-init";
const READY: &str = "bench-ready";
const LIMIT: Duration = Duration::from_secs(120);
/// How often the console is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// A monitor.
#[derive(Clone, Copy)]
pub struct Monitor {
    /// As tables call it.
    pub name: &'static str,
    tap: &'static str,
    command: fn(&Lab, &str, &Path) -> Command,
}

/// The one under test.
pub const LONGARM: Monitor = Monitor {
    name: "Longarm",
    tap: TAPS[0],
    command: longarm,
};

/// What it is measured against.
pub const QEMU: Monitor = Monitor {
    name: "QEMU microvm",
    tap: TAPS[1],
    command: qemu,
};

/// What a boot took.
#[derive(Clone, Copy, Debug)]
pub struct Booted {
    /// From the start of the process to the first line of the guest's first user process.
    pub init: Duration,
    /// To the line that the guest writes when it is set up.
    pub ready: Duration,
    /// Of the process once the guest is idle, beside guest memory.
    pub memory: Memory,
}

impl Monitor {
    /// Boots a guest until it is idle at a shell. The VM ends when the first part is dropped.
    pub fn boot(self, lab: &Lab) -> Result<(Running, Booted)> {
        // Not below `lab.out`: in the lab that is a file system that does not show at once what another process wrote.
        let console = std::env::temp_dir().join(format!("bench-{}.log", self.tap));
        File::create(&console)?;
        let command = (self.command)(lab, self.tap, &console);
        let started = Instant::now();
        let mut running = Running::process(command)?;
        let booted = watch(&mut running, &console, started);
        let booted = booted.with_context(|| format!("{}{}", self.name, tail(&console)));
        match booted {
            Ok(booted) => Ok((running, booted)),
            Err(error) => {
                let output = running.end();
                Err(error.context(output.stderr))
            }
        }
    }
}

fn watch(running: &mut Running, console: &Path, started: Instant) -> Result<Booted> {
    let init = wait_for(console, INIT, started)?;
    let ready = wait_for(console, READY, started)?;
    let pid = running.pid().context("it is a process")?;
    settle(pid)?;
    Ok(Booted {
        init,
        ready,
        memory: Memory::beside_guest(pid, MEMORY_MIB)?,
    })
}

/// Waits until the console has a line; how long after `started` that was.
fn wait_for(console: &Path, line: &str, started: Instant) -> Result<Duration> {
    loop {
        let text = fs::read(console)?;
        let took = started.elapsed();
        if String::from_utf8_lossy(&text).lines().any(|l| l == line) {
            return Ok(took);
        }
        ensure!(took < LIMIT, "no line {line:?} after {LIMIT:?}");
        thread::sleep(LOOK_EVERY);
    }
}

/// Kernel command line of both: what Longarm gives a kernel by itself, and a first process that says that it runs before it does what
/// the initial RAM disk's own would.
fn cmdline() -> String {
    format!(
        "console=ttyS0 panic=-1 pci=noearly root=/dev/vda ro quiet longarm.shell longarm.echo={READY} \
         rdinit=/bin/busybox -- sh -c \"echo {INIT}; exec /init\""
    )
}

fn file(lab: &Lab, name: &str) -> PathBuf {
    lab.image.join(name)
}

fn longarm(lab: &Lab, tap: &str, console: &Path) -> Command {
    let mut command = Command::new(&lab.longarm);
    command.arg("run").arg("--image").arg(&lab.image);
    command
        .args(["--memory", &format!("{MEMORY_MIB}M")])
        .args(["--net", &format!("tap={tap}")])
        .args(["--serial", &format!("file={}", console.display())])
        .args(["--cmdline", &cmdline()]);
    command
}

/// QEMU's smallest machine that this guest boots on: its disk is on PCI, and the distribution's kernel has virtio-mmio as a module
/// only. Guest memory is a memfd, as Longarm's is. What can be left out is.
fn qemu(lab: &Lab, tap: &str, console: &Path) -> Command {
    let mut command = Command::new("qemu-system-x86_64");
    command
        .args(["-nodefaults", "-no-user-config", "-no-reboot"])
        // Threads get names, by which vCPUs are known.
        .args(["-name", "bench,debug-threads=on"])
        .args(["-display", "none", "-cpu", "host", "-smp", "1"])
        .args([
            "-machine",
            "microvm,accel=kvm,pcie=on,pit=off,pic=off,rtc=off,isa-serial=on,memory-backend=ram",
        ])
        .args(["-m", &format!("{MEMORY_MIB}M")])
        .args([
            "-object",
            &format!("memory-backend-memfd,id=ram,size={MEMORY_MIB}M,share=on"),
        ])
        .arg("-kernel")
        .arg(file(lab, "vmlinuz"))
        .arg("-initrd")
        .arg(file(lab, "initrd"))
        .args(["-append", &cmdline()])
        .args([
            "-blockdev",
            &format!(
                "driver=file,node-name=root,read-only=on,filename={}",
                file(lab, "root.img").display()
            ),
        ])
        .args(["-device", "virtio-blk-pci,drive=root"])
        .args([
            "-netdev",
            &format!("tap,id=net,ifname={tap},script=no,downscript=no"),
        ])
        .args(["-device", "virtio-net-pci,netdev=net,romfile="])
        .args(["-device", "virtio-rng-pci"])
        .args(["-serial", &format!("file:{}", console.display())]);
    command
}
