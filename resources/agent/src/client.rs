//! The host's side: finds the agent of a VM through its vsock socket, and runs commands.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use crate::protocol::{Frame, Kind, VERSION, read_frame, write_frame};

const RETRY: Duration = Duration::from_millis(50);
/// Longest line that the monitor answers with: `OK 4294967295\n`.
const MAX_LINE: usize = 16;

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// It exited with this status.
    Exited(u8),
    /// This signal ended it.
    Signalled(u8),
}

impl Status {
    /// The status as a shell gives it: 128 plus the signal's number for a command that a signal ended.
    pub fn code(self) -> u8 {
        match self {
            Self::Exited(code) => code,
            Self::Signalled(signal) => signal.wrapping_add(128),
        }
    }
}

/// Why a command could not be run, or its end is not known.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The agent did not answer in time.
    #[error("no agent behind {path} after {seconds:.1} s: {last}", path = .path.display())]
    NoAgent {
        /// The VM's vsock socket.
        path: PathBuf,
        /// How long it was tried.
        seconds: f64,
        /// What went wrong the last time.
        last: io::Error,
    },
    /// The agent refused or failed.
    #[error("the guest's agent: {0}")]
    Refused(String),
    /// The agent sent what it may not send.
    #[error("the guest's agent sent an unexpected {0:?} frame")]
    Unexpected(Kind),
    /// The connection broke: the guest is gone, or its agent.
    #[error("the connection to the guest's agent was lost: {0}")]
    Lost(io::Error),
    /// Output could not be passed on.
    #[error("writing the command's output: {0}")]
    Output(io::Error),
}

/// Ends a session from another thread than the one that runs it: the agent then kills the command.
#[derive(Debug)]
pub struct HangUp(UnixStream);

impl HangUp {
    /// Ends the session; nothing happens if it has ended.
    pub fn hang_up(&self) {
        // It fails only where there is nothing left to end.
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

/// A session with an agent, nothing asked yet.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
}

impl Client {
    /// Connects to `port` of the VM whose vsock socket is `path`; tries until the agent answers or `timeout` has passed.
    pub fn connect(path: &Path, port: u32, timeout: Duration) -> Result<Self, ClientError> {
        let start = Instant::now();
        loop {
            match Self::try_connect(path, port, start + timeout) {
                Ok(stream) => return Ok(Self { stream }),
                Err(last) if start.elapsed() + RETRY >= timeout => {
                    let seconds = start.elapsed().as_secs_f64();
                    return Err(ClientError::NoAgent {
                        path: path.into(),
                        seconds,
                        last,
                    });
                }
                Err(_) => thread::sleep(RETRY),
            }
        }
    }

    fn try_connect(path: &Path, port: u32, deadline: Instant) -> io::Result<UnixStream> {
        let mut stream = UnixStream::connect(path)?;
        // Until the guest's driver runs, nobody answers; the monitor keeps the caller waiting.
        let rest = deadline
            .saturating_duration_since(Instant::now())
            .max(Duration::from_millis(1));
        stream.set_read_timeout(Some(rest))?;
        stream.write_all(format!("CONNECT {port}\n").as_bytes())?;
        let mut line = Vec::new();
        let mut byte = [0];
        while line.len() < MAX_LINE && stream.read(&mut byte)? == 1 {
            if byte[0] == b'\n' && line.starts_with(b"OK ") {
                // The agent says hello at once, if it is one.
                match read_frame(&mut stream)? {
                    Some(Frame {
                        kind: Kind::Hello,
                        payload,
                    }) if payload == VERSION.to_le_bytes() => {
                        stream.set_read_timeout(None)?;
                        return Ok(stream);
                    }
                    _ => {
                        return Err(io::Error::new(
                            io::ErrorKind::InvalidData,
                            "it is no agent of this version",
                        ));
                    }
                }
            }
            line.push(byte[0]);
        }
        Err(io::Error::new(
            io::ErrorKind::ConnectionRefused,
            "nothing listens on the port in the guest",
        ))
    }

    /// What ends this session from elsewhere.
    pub fn hang_up(&self) -> Result<HangUp, ClientError> {
        self.stream
            .try_clone()
            .map(HangUp)
            .map_err(ClientError::Lost)
    }

    /// Runs `command` with `/bin/sh -c`, passes its output on as it comes, and returns how it ended.
    ///
    /// `stdin` is read in a thread, which ends when it meets its end or the command does; without it the command reads nothing.
    pub fn run(
        mut self,
        command: &str,
        stdin: Option<Box<dyn Read + Send>>,
        stdout: &mut dyn Write,
        stderr: &mut dyn Write,
    ) -> Result<Status, ClientError> {
        let mut writer = self.stream.try_clone().map_err(ClientError::Lost)?;
        // An agent that is gone cannot be written to, but what it said before it went is still there to read; `follow` meets the end.
        if write_frame(&mut writer, Kind::Run, command.as_bytes()).is_ok() {
            match stdin {
                Some(from) => drop(thread::spawn(move || feed(from, &mut writer))),
                None => feed(Box::new(io::empty()), &mut writer),
            }
        }
        let result = self.follow(stdout, stderr);
        // Ends the feeding thread's writes.
        let _ = self.stream.shutdown(Shutdown::Both);
        result
    }

    fn follow(
        &mut self,
        stdout: &mut dyn Write,
        stderr: &mut dyn Write,
    ) -> Result<Status, ClientError> {
        loop {
            let frame = read_frame(&mut self.stream).map_err(ClientError::Lost)?;
            let frame =
                frame.ok_or_else(|| ClientError::Lost(io::ErrorKind::UnexpectedEof.into()))?;
            let number = frame.number().and_then(|n| u8::try_from(n).ok());
            match (frame.kind, number) {
                (Kind::Stdout, _) => pass_on(stdout, &frame.payload)?,
                (Kind::Stderr, _) => pass_on(stderr, &frame.payload)?,
                (Kind::Exited, Some(code)) => return Ok(Status::Exited(code)),
                (Kind::Signalled, Some(signal)) => return Ok(Status::Signalled(signal)),
                (Kind::Failed, _) => return Err(refused(&frame)),
                (kind, _) => return Err(ClientError::Unexpected(kind)),
            }
        }
    }

    /// Asks the guest to write out its file systems and switch itself off. Returns when the agent is gone, or has refused.
    pub fn power_off(mut self) -> Result<(), ClientError> {
        write_frame(&mut self.stream, Kind::PowerOff, &[]).map_err(ClientError::Lost)?;
        match read_frame(&mut self.stream) {
            Ok(Some(frame)) if frame.kind == Kind::Failed => Err(refused(&frame)),
            Ok(Some(frame)) => Err(ClientError::Unexpected(frame.kind)),
            Ok(None) | Err(_) => Ok(()),
        }
    }
}

fn refused(frame: &Frame) -> ClientError {
    ClientError::Refused(String::from_utf8_lossy(&frame.payload).into_owned())
}

fn pass_on(to: &mut dyn Write, bytes: &[u8]) -> Result<(), ClientError> {
    to.write_all(bytes)
        .and_then(|()| to.flush())
        .map_err(ClientError::Output)
}

fn feed(mut from: Box<dyn Read + Send>, to: &mut UnixStream) {
    let mut buffer = [0; 16 << 10];
    loop {
        let n = match from.read(&mut buffer) {
            Ok(n) => n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            // The command sees the end of its input.
            Err(_) => 0,
        };
        if write_frame(to, Kind::Stdin, &buffer[..n]).is_err() || n == 0 {
            return;
        }
    }
}
