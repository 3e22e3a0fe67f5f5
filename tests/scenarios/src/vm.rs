//! A running `longarm`, as a user's script would handle it: started, asked over its control socket, ended by its id.

use std::fs::{self, File};
use std::io;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use api::control::VmInfo;
use longarm_agent::PORT;
use longarm_agent::client::Client;
use serde_json::Value;
use vmm::control;

use crate::running::{Output, Running};

/// How long a guest may take until its agent answers.
const BOOT_LIMIT: Duration = Duration::from_secs(120);
/// How often it is looked meanwhile whether the guest is there at all.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// Where the things under test are, and where results go.
#[derive(Clone)]
pub struct Lab {
    /// The `longarm` binary.
    pub longarm: PathBuf,
    /// Directory of the guest image: kernel, initrd, root disk.
    pub image: PathBuf,
    /// Serial logs, sockets and results go below this directory.
    pub out: PathBuf,
}

/// What a scenario wants of a VM beside the defaults (one vCPU, 512 MiB, no devices).
#[derive(Clone, Default)]
pub struct VmSpec {
    /// Names its files, and the guest.
    pub name: String,
    /// More arguments for `longarm run`.
    pub args: Vec<String>,
    /// Words for the guest's kernel command line.
    pub cmdline: String,
}

impl VmSpec {
    /// A VM that only boots.
    pub fn new(name: &str) -> Self {
        VmSpec {
            name: name.into(),
            ..Default::default()
        }
    }

    /// Adds arguments.
    pub fn args(mut self, args: &[&str]) -> Self {
        self.args.extend(args.iter().map(|arg| arg.to_string()));
        self
    }

    /// Adds an RDMA device on a TCP fabric, its network device, and the guest's address.
    pub fn fabric(mut self, listen: u16, peers: &[u16], address: &str) -> Self {
        let peers: String = peers
            .iter()
            .map(|port| format!(",peer=127.0.0.1:{port}"))
            .collect();
        // A VM that comes back has the address that its neighbours remember.
        let mac = format!("02:00:00:00:{:02x}:{:02x}", listen >> 8, listen & 0xff);
        self.args
            .extend(["--net".into(), format!("fabric,mac={mac}")]);
        self.args.extend([
            "--rdma".into(),
            format!("fabric=tcp,listen=127.0.0.1:{listen}{peers}"),
        ]);
        self.cmdline += &format!(" longarm.ip={address}");
        self
    }
}

/// A virtual machine.
pub struct Vm {
    /// Its name, as in its files.
    pub name: String,
    /// What it was started with, to start the like of it again.
    pub spec: VmSpec,
    /// Its control socket.
    pub control: PathBuf,
    serial: PathBuf,
    monitor: Running,
}

impl Lab {
    /// Starts a VM; [`Vm::ready`] waits until commands can run in it.
    pub fn boot(&self, spec: VmSpec) -> Result<Vm> {
        fs::create_dir_all(&self.out)?;
        let file = |suffix: &str| self.out.join(format!("{}.{suffix}", spec.name));
        let serial = file("serial.log");
        // Not below `out`: in the lab that may be a file system without sockets.
        let control =
            std::env::temp_dir().join(format!("longarm-{}-{}.sock", std::process::id(), spec.name));
        let _ = fs::remove_file(&control);
        File::create(&serial)?;
        let mut command = Command::new(&self.longarm);
        command.arg("run").arg("--image").arg(&self.image);
        if !spec.args.iter().any(|arg| arg == "--memory") {
            command.args(["--memory", "512M"]);
        }
        command
            .arg("--control")
            .arg(&control)
            .arg("--serial")
            .arg(format!("file={}", serial.display()))
            .arg("--append")
            .arg(format!(
                "longarm.hostname={}{} {}",
                spec.name,
                spec.cmdline,
                more_words()
            ))
            .args(&spec.args);
        let monitor = Running::process(command)?;
        Ok(Vm {
            name: spec.name.clone(),
            spec,
            control,
            serial,
            monitor,
        })
    }

    /// Boots VMs `a` and `b`, joined by a fabric, at 10.0.0.1 and 10.0.0.2, and waits until both answer.
    ///
    /// The emulated lab loses a guest now and then: TCG gets one wrong, and its kernel dies. While it boots, before our driver is in it,
    /// that is no fault of ours, and it boots again, twice at most; it is told.
    pub fn boot_pair(&self, args: &[&str]) -> Result<(Vm, Vm)> {
        self.boot_two(args, args)
    }

    /// [`Lab::boot_pair`], with arguments for each.
    pub fn boot_two(&self, args_a: &[&str], args_b: &[&str]) -> Result<(Vm, Vm)> {
        for _ in 0..2 {
            let (a, b) = self.start_two(args_a, args_b)?;
            match a.ready().and_then(|()| b.ready()) {
                Err(error) if emulated() && (a.died_early() || b.died_early()) => {
                    println!("retried a boot: {error:#}");
                }
                result => {
                    result?;
                    a.reach(&b)?;
                    return Ok((a, b));
                }
            }
        }
        let (a, b) = self.start_two(args_a, args_b)?;
        a.ready()?;
        b.ready()?;
        a.reach(&b)?;
        Ok((a, b))
    }

    fn start_two(&self, args_a: &[&str], args_b: &[&str]) -> Result<(Vm, Vm)> {
        let (left, right) = (free_port()?, free_port()?);
        let a = self.boot(
            VmSpec::new("a")
                .args(args_a)
                .fabric(left, &[right], "10.0.0.1/24"),
        )?;
        let b = self.boot(
            VmSpec::new("b")
                .args(args_b)
                .fabric(right, &[left], "10.0.0.2/24"),
        )?;
        Ok((a, b))
    }

    /// Runs `longarm` with these arguments to its end.
    pub fn longarm(&self, args: &[&str], limit: Duration) -> Result<Output> {
        let mut command = Command::new(&self.longarm);
        command.args(args);
        Running::process(command)?.finish(limit)
    }
}

impl Vm {
    /// Waits until the guest's agent answers.
    pub fn ready(&self) -> Result<()> {
        self.exec("true", 120)?
            .ok("the guest does not answer")
            .map(|_| ())
    }

    /// Runs a command in the guest to its end.
    pub fn exec(&self, command: &str, seconds: u64) -> Result<Output> {
        self.start(command)?
            .finish(Duration::from_secs(seconds))
            .with_context(|| format!("in {}: {command}{}", self.name, self.log_tail()))
    }

    /// Waits until a command in the guest succeeds; tries for a while.
    pub fn eventually(&self, condition: &str) -> Result<()> {
        let script = format!(
            "for i in $(seq 150); do {{ {condition}; }} && exit 0; sleep 0.1; done; exit 1"
        );
        self.exec(&script, 90)?.ok(condition).map(drop)
    }

    /// Copies a program of this machine into the guest, as `path`.
    pub fn install(&self, program: &Path, path: &str) -> Result<()> {
        let file = File::open(program).with_context(|| program.display().to_string())?;
        let command = format!("cat >{path} && chmod 755 {path}");
        let status = self.agent(&command)?.run(
            &command,
            Some(Box::new(file)),
            &mut io::sink(),
            &mut io::sink(),
        )?;
        ensure!(status.code() == 0, "{command}: {status:?}");
        Ok(())
    }

    /// The address that perftest's own exchange uses.
    pub fn address(&self) -> &'static str {
        if self.name == "a" {
            "10.0.0.1"
        } else {
            "10.0.0.2"
        }
    }

    /// Waits until there is IP to the other VM.
    pub fn reach(&self, other: &Vm) -> Result<()> {
        let command = format!(
            "for i in $(seq 100); do ping -c 1 -W 1 -q {} >/dev/null && exit 0; sleep 0.1; done; exit 1",
            other.address()
        );
        self.exec(&command, 120)?
            .ok("no IP between the two VMs")
            .map(drop)
    }

    /// Starts a command in the guest, once its agent answers.
    pub fn start(&self, command: &str) -> Result<Running> {
        Running::session(self.agent(command)?, command)
    }

    /// A session with the guest's agent for this command, which is not yet started.
    fn agent(&self, command: &str) -> Result<Client> {
        let end = Instant::now() + patient(BOOT_LIMIT);
        let vsock = self.vsock(end)?;
        loop {
            match Client::connect(&vsock, PORT, LOOK_EVERY) {
                Ok(client) => return Ok(client),
                Err(error) if Instant::now() > end || !self.monitor.is_there() => {
                    let tail = self.log_tail();
                    return Err(error)
                        .with_context(|| format!("in {}: {command}{tail}", self.name));
                }
                Err(_) => (),
            }
        }
    }

    /// Whether the guest is gone, and had not come as far as loading our driver.
    fn died_early(&self) -> bool {
        let log = fs::read(&self.serial).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        !self.monitor.is_there() && !log.contains("virtio_rdma")
    }

    /// The socket towards the guest's agent; the monitor may only just be starting.
    fn vsock(&self, end: Instant) -> Result<PathBuf> {
        loop {
            match control::get::<VmInfo>(&self.control, "/vm") {
                Ok(info) => return info.vsock.context("the VM has no vsock device"),
                Err(error) if Instant::now() > end || !self.monitor.is_there() => {
                    return Err(error.into());
                }
                Err(_) => thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    /// All counters, as `longarm stats --json` gives them.
    pub fn stats(&self) -> Result<Value> {
        control::get(&self.control, "/stats")
            .with_context(|| format!("stats of {}{}", self.name, self.log_tail()))
    }

    /// The RDMA device's counter of this name.
    pub fn counter(&self, name: &str) -> Result<u64> {
        let stats = self.stats()?;
        stats
            .pointer(&format!("/rdma/0/device/{name}"))
            .and_then(Value::as_u64)
            .with_context(|| format!("no counter {name} in {stats}"))
    }

    /// How many objects of each kind the RDMA device has.
    pub fn device_objects(&self) -> Result<Value> {
        let stats = self.stats()?;
        stats
            .pointer("/rdma/0/objects")
            .cloned()
            .with_context(|| format!("no objects in {stats}"))
    }

    /// Sum of the counters that mean that something was lost, or not sent at all.
    pub fn loss(&self) -> Result<u64> {
        ["lost", "cq_overflows", "tx_discarded", "qkey_errors"]
            .into_iter()
            .map(|name| self.counter(name))
            .sum()
    }

    /// Stops the vCPUs; devices go on.
    pub fn pause(&self) -> Result<()> {
        self.put("/vm/pause")
    }

    /// Lets the vCPUs run again.
    pub fn resume(&self) -> Result<()> {
        self.put("/vm/resume")
    }

    fn put(&self, target: &str) -> Result<()> {
        control::request(&self.control, "PUT", target)
            .map(drop)
            .with_context(|| format!("{target} of {}{}", self.name, self.log_tail()))
    }

    /// Kills the monitor, as a crash of the host would.
    pub fn crash(&mut self) {
        self.monitor.end();
    }

    /// The monitor's process id.
    pub fn pid(&self) -> Option<u32> {
        self.monitor.pid()
    }

    /// Waits for the monitor's end.
    pub fn wait(self, limit: Duration) -> Result<Output> {
        self.monitor.finish(limit)
    }

    /// The end of the serial log, for messages.
    pub fn log_tail(&self) -> String {
        tail(&self.serial)
    }
}

/// The last 40 lines of a log, framed for an error message.
pub fn tail(path: &Path) -> String {
    let text = fs::read(path)
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    format!(
        "\n--- end of {} ---\n{}\n---",
        path.display(),
        lines[lines.len().saturating_sub(40)..].join("\n")
    )
}

/// Whether this is the emulated lab, where a VM has a small part of one slow processor.
pub fn emulated() -> bool {
    std::env::var_os("LONGARM_LAB").is_some()
}

/// A limit of time, longer where everything is slow by nature, and the more so beside other work.
pub fn patient(limit: Duration) -> Duration {
    limit * if emulated() { 3 } else { 1 }
}

/// Words that LONGARM_GUEST_APPEND adds to every guest's kernel command line: the kernel's own checks, say.
fn more_words() -> String {
    std::env::var("LONGARM_GUEST_APPEND").unwrap_or_default()
}

/// A TCP port on loopback that is free now.
pub fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}
