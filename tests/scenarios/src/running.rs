//! Something that runs, here or in a guest: what it prints while it does, its end, and what it left behind.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use longarm_agent::client::{Client, HangUp};

use crate::vm::patient;

/// Status of a command whose end nobody saw.
const LOST: i32 = -1;

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
    what: What,
    lines: Receiver<String>,
    stdout: String,
    stderr: Option<JoinHandle<String>>,
}

/// What runs.
enum What {
    Process(Child),
    /// A session with a guest's agent, and the thread that follows it to the command's end.
    Session {
        hang_up: HangUp,
        end: Option<JoinHandle<i32>>,
    },
}

/// Standard output of a session, line by line.
struct Lines {
    to: Sender<String>,
    begun: Vec<u8>,
}

impl Lines {
    fn pass_on(&mut self) {
        let line = String::from_utf8_lossy(&std::mem::take(&mut self.begun)).into_owned();
        // Whoever no longer reads does not want to know.
        let _ = self.to.send(line);
    }
}

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for &byte in bytes {
            match byte {
                b'\n' => self.pass_on(),
                _ => self.begun.push(byte),
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        if !self.begun.is_empty() {
            self.pass_on();
        }
    }
}

impl Running {
    /// Starts a program of this machine.
    pub fn process(mut command: Command) -> Result<Running> {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting {:?}", command.get_program()))?;
        let (to, lines) = mpsc::channel();
        let mut pipe = child.stdout.take().context("stdout is piped")?;
        thread::spawn(move || {
            io::copy(
                &mut pipe,
                &mut Lines {
                    to,
                    begun: Vec::new(),
                },
            )
        });
        let mut pipe = child.stderr.take().context("stderr is piped")?;
        let stderr = thread::spawn(move || {
            let mut bytes = Vec::new();
            // What came before an error is still worth showing.
            let _ = pipe.read_to_end(&mut bytes);
            String::from_utf8_lossy(&bytes).into_owned()
        });
        Ok(Running {
            what: What::Process(child),
            lines,
            stdout: String::new(),
            stderr: Some(stderr),
        })
    }

    /// Starts a command in a guest, by its agent.
    pub fn session(client: Client, command: &str) -> Result<Running> {
        let hang_up = client.hang_up()?;
        let (to, lines) = mpsc::channel();
        let (status, ended) = mpsc::channel();
        let command = command.to_owned();
        let stderr = thread::spawn(move || {
            let mut errors = Vec::new();
            let result = client.run(
                &command,
                None,
                &mut Lines {
                    to,
                    begun: Vec::new(),
                },
                &mut errors,
            );
            let mut errors = String::from_utf8_lossy(&errors).into_owned();
            let code = match result {
                Ok(end) => end.code().into(),
                Err(error) => {
                    errors += &format!("{error}\n");
                    LOST
                }
            };
            // Received below.
            let _ = status.send(code);
            errors
        });
        let end = Some(thread::spawn(move || ended.recv().unwrap_or(LOST)));
        Ok(Running {
            what: What::Session { hang_up, end },
            lines,
            stdout: String::new(),
            stderr: Some(stderr),
        })
    }

    /// Waits until a line of its standard output contains `text`.
    pub fn wait_for(&mut self, text: &str, limit: Duration) -> Result<()> {
        let end = Instant::now() + patient(limit);
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
                    let output = self.end();
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
        let limit = patient(limit);
        let end = Instant::now() + limit;
        while self.is_running() {
            if Instant::now() > end {
                let output = self.end();
                bail!(
                    "still running after {limit:?}; output so far:\n{}{}",
                    output.stdout,
                    output.stderr
                );
            }
            thread::sleep(Duration::from_millis(2));
        }
        Ok(self.collect())
    }

    /// Whether it has not ended yet.
    pub fn is_running(&mut self) -> bool {
        match &mut self.what {
            What::Process(child) => matches!(child.try_wait(), Ok(None)),
            What::Session { end, .. } => end.as_ref().is_some_and(|end| !end.is_finished()),
        }
    }

    /// Whether its process, of this machine, has not ended; a session is never there.
    pub fn is_there(&self) -> bool {
        let stat = self
            .pid()
            .map(|pid| fs::read_to_string(format!("/proc/{pid}/stat")));
        // Nobody has waited for one that has ended.
        stat.is_some_and(|stat| stat.is_ok_and(|stat| !stat.contains(") Z ")))
    }

    /// Its process, if it is one of this machine.
    pub fn pid(&self) -> Option<u32> {
        match &self.what {
            What::Process(child) => Some(child.id()),
            What::Session { .. } => None,
        }
    }

    /// Ends it at once.
    pub fn kill(&mut self) {
        match &mut self.what {
            // It may have ended by itself.
            What::Process(child) => drop(child.kill()),
            What::Session { hang_up, .. } => hang_up.hang_up(),
        }
    }

    /// Kills it and gives what it printed.
    pub fn end(&mut self) -> Output {
        self.kill();
        self.collect()
    }

    fn collect(&mut self) -> Output {
        let status = match &mut self.what {
            What::Process(child) => child
                .wait()
                .ok()
                .and_then(|s| s.code().or_else(|| s.signal().map(|n| 128 + n))),
            What::Session { end, .. } => end.take().and_then(|end| end.join().ok()),
        };
        for line in self.lines.iter() {
            self.stdout += &line;
            self.stdout.push('\n');
        }
        let stderr = self
            .stderr
            .take()
            .and_then(|reader| reader.join().ok())
            .unwrap_or_default();
        Output {
            status: status.unwrap_or(LOST),
            stdout: std::mem::take(&mut self.stdout),
            stderr,
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}
