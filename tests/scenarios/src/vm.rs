//! A running `longarm`, as a user's script would handle it: started, asked over its control socket, ended by its id.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

/// Where the things under test are, and where results go.
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
        self.args
            .extend(["--net".into(), "fabric".into(), "--rdma".into()]);
        self.args
            .push(format!("fabric=tcp,listen=127.0.0.1:{listen}{peers}"));
        self.cmdline += &format!(" longarm.ip={address}");
        self
    }
}

/// What a command in a guest left behind.
#[derive(Debug)]
pub struct Output {
    /// Its exit status as `longarm exec` passed it on.
    pub status: i32,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

impl Output {
    /// Fails unless the command succeeded; the message holds what it printed.
    pub fn ok(self, what: &str) -> Result<Output> {
        ensure!(
            self.status == 0,
            "{what}: status {}\n{}{}",
            self.status,
            self.stdout,
            self.stderr
        );
        Ok(self)
    }
}

/// A command that runs in a guest, or a `longarm` of ours.
pub struct Running {
    child: Child,
    lines: Receiver<String>,
    stdout: String,
    stderr: Option<JoinHandle<String>>,
}

impl Running {
    fn start(mut command: Command) -> Result<Running> {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting {:?}", command.get_program()))?;
        let (sender, lines) = mpsc::channel();
        let stdout = child.stdout.take().context("stdout is piped")?;
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let mut pipe = child.stderr.take().context("stderr is piped")?;
        let stderr = thread::spawn(move || {
            let mut bytes = Vec::new();
            // What came before an error is still worth showing.
            let _ = pipe.read_to_end(&mut bytes);
            String::from_utf8_lossy(&bytes).into_owned()
        });
        Ok(Running {
            child,
            lines,
            stdout: String::new(),
            stderr: Some(stderr),
        })
    }

    /// Waits until a line of its standard output contains `text`.
    pub fn wait_for(&mut self, text: &str, limit: Duration) -> Result<()> {
        let end = Instant::now() + limit;
        loop {
            match self
                .lines
                .recv_timeout(end.saturating_duration_since(Instant::now()))
            {
                Ok(line) => {
                    self.stdout += &line;
                    self.stdout.push('\n');
                    if line.contains(text) {
                        return Ok(());
                    }
                }
                Err(_) => {
                    self.kill();
                    let (_, output) = self.collect();
                    bail!(
                        "waited for {text:?} in vain; output so far:\n{}{}",
                        output.stdout,
                        output.stderr
                    );
                }
            }
        }
    }

    /// Waits for its end; past the limit it is killed, which is an error.
    pub fn finish(mut self, limit: Duration) -> Result<Output> {
        let end = Instant::now() + limit;
        while self.child.try_wait()?.is_none() {
            if Instant::now() > end {
                self.kill();
                let (_, output) = self.collect();
                bail!(
                    "still running after {limit:?}; output so far:\n{}{}",
                    output.stdout,
                    output.stderr
                );
            }
            thread::sleep(Duration::from_millis(5));
        }
        let (status, mut output) = self.collect();
        output.status = status
            .and_then(|s| s.code().or_else(|| s.signal().map(|n| 128 + n)))
            .unwrap_or(-1);
        Ok(output)
    }

    /// Ends it at once.
    pub fn kill(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
    }

    fn collect(&mut self) -> (Option<ExitStatus>, Output) {
        let status = self.child.wait().ok();
        for line in self.lines.iter() {
            self.stdout += &line;
            self.stdout.push('\n');
        }
        let stderr = self
            .stderr
            .take()
            .and_then(|reader| reader.join().ok())
            .unwrap_or_default();
        (
            status,
            Output {
                status: -1,
                stdout: std::mem::take(&mut self.stdout),
                stderr,
            },
        )
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
        let _ = self.child.wait();
    }
}

/// A virtual machine.
pub struct Vm {
    /// Its name, as in its files.
    pub name: String,
    longarm: PathBuf,
    control: PathBuf,
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
            .arg(format!("longarm.hostname={}{}", spec.name, spec.cmdline))
            .args(&spec.args);
        let monitor = Running::start(command)?;
        Ok(Vm {
            name: spec.name,
            longarm: self.longarm.clone(),
            control,
            serial,
            monitor,
        })
    }

    /// Boots VMs `a` and `b`, joined by a fabric, at 10.0.0.1 and 10.0.0.2, and waits until both answer.
    pub fn boot_pair(&self, args: &[&str]) -> Result<(Vm, Vm)> {
        let (left, right) = (free_port()?, free_port()?);
        let a = self.boot(
            VmSpec::new("a")
                .args(args)
                .fabric(left, &[right], "10.0.0.1/24"),
        )?;
        let b = self.boot(
            VmSpec::new("b")
                .args(args)
                .fabric(right, &[left], "10.0.0.2/24"),
        )?;
        a.ready()?;
        b.ready()?;
        a.exec(
            "for i in $(seq 100); do ping -c 1 -W 1 -q 10.0.0.2 >/dev/null && exit 0; done; exit 1",
            120,
        )?
        .ok("no IP between the two VMs")?;
        Ok((a, b))
    }

    /// Runs `longarm` with these arguments to its end.
    pub fn longarm(&self, args: &[&str], limit: Duration) -> Result<Output> {
        let mut command = Command::new(&self.longarm);
        command.args(args);
        Running::start(command)?.finish(limit)
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

    /// Starts a command in the guest.
    pub fn start(&self, command: &str) -> Result<Running> {
        let mut exec = Command::new(&self.longarm);
        exec.args(["exec", "--control"])
            .arg(&self.control)
            .arg("--")
            .arg(command);
        Running::start(exec)
    }

    /// `longarm stats`, parsed.
    pub fn stats(&self) -> Result<Value> {
        let output = self.ask(&["stats", "--json"])?;
        serde_json::from_str(&output.stdout)
            .with_context(|| format!("stats are not JSON: {}", output.stdout))
    }

    /// The RDMA device's counter of this name.
    pub fn counter(&self, name: &str) -> Result<u64> {
        let stats = self.stats()?;
        stats
            .pointer(&format!("/rdma/0/device/{name}"))
            .and_then(Value::as_u64)
            .with_context(|| format!("no counter {name} in {stats}"))
    }

    /// Sum of the counters that mean that something was lost.
    pub fn loss(&self) -> Result<u64> {
        let stats = self.stats()?;
        let mut sum = 0;
        for name in ["lost", "cq_overflows"] {
            let value = stats
                .pointer(&format!("/rdma/0/device/{name}"))
                .and_then(Value::as_u64);
            sum += value.with_context(|| format!("no counter {name} in {stats}"))?;
        }
        Ok(sum)
    }

    /// Stops the vCPUs; devices go on.
    pub fn pause(&self) -> Result<()> {
        self.ask(&["pause"]).map(|_| ())
    }

    /// Lets the vCPUs run again.
    pub fn resume(&self) -> Result<()> {
        self.ask(&["resume"]).map(|_| ())
    }

    /// Kills the monitor, as a crash of the host would.
    pub fn crash(&mut self) {
        self.monitor.kill();
        let _ = self.monitor.child.wait();
    }

    /// The monitor's process id.
    pub fn pid(&self) -> u32 {
        self.monitor.child.id()
    }

    /// Waits for the monitor's end.
    pub fn wait(self, limit: Duration) -> Result<Output> {
        self.monitor.finish(limit)
    }

    /// The end of the serial log, for messages.
    pub fn log_tail(&self) -> String {
        tail(&self.serial)
    }

    fn ask(&self, words: &[&str]) -> Result<Output> {
        let mut command = Command::new(&self.longarm);
        command
            .arg(words[0])
            .arg("--control")
            .arg(&self.control)
            .args(&words[1..]);
        Running::start(command)?
            .finish(Duration::from_secs(30))?
            .ok(&format!(
                "longarm {} for {}{}",
                words.join(" "),
                self.name,
                self.log_tail()
            ))
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

/// A TCP port on loopback that is free now.
pub fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}
