//! The guest's side of one connection: one command, its streams and its end.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

use crate::protocol::{Decoder, Frame, Kind, ProtocolError, VERSION, write_frame};

const CHUNK: usize = 32 << 10;
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Why a session ended early.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The host does not keep to the protocol.
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
    /// The host asked for something at the wrong time.
    #[error("unexpected {0:?} frame")]
    Unexpected(Kind),
    /// The host hung up.
    #[error("the host hung up")]
    HungUp,
    /// A system call failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Serves one connection to its end. `power_off` carries out that request, and returns only when it failed.
pub fn serve(socket: OwnedFd, power_off: &dyn Fn() -> io::Error) -> Result<(), SessionError> {
    let mut socket = File::from(socket);
    let mut decoder = Decoder::default();
    write_frame(&mut socket, Kind::Hello, &VERSION.to_le_bytes())?;
    let request = loop {
        if let Some(frame) = decoder.next_frame()? {
            break frame;
        }
        receive(&mut socket, &mut decoder)?;
    };
    match request.kind {
        Kind::Run => match start(&request.payload) {
            Ok(child) => Running::new(socket, decoder, child)?.follow(),
            Err(e) => Ok(write_frame(
                &mut socket,
                Kind::Failed,
                format!("starting /bin/sh: {e}").as_bytes(),
            )?),
        },
        Kind::PowerOff => {
            let e = power_off();
            Ok(write_frame(
                &mut socket,
                Kind::Failed,
                format!("power-off: {e}").as_bytes(),
            )?)
        }
        kind => Err(SessionError::Unexpected(kind)),
    }
}

fn receive(socket: &mut File, decoder: &mut Decoder) -> Result<(), SessionError> {
    let mut buffer = [0; CHUNK];
    match socket.read(&mut buffer) {
        Ok(0) => Err(SessionError::HungUp),
        Ok(n) => {
            decoder.push(&buffer[..n]);
            Ok(())
        }
        Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(()),
        Err(e) => Err(e.into()),
    }
}

fn start(command: &[u8]) -> io::Result<Child> {
    use std::os::unix::ffi::OsStrExt;
    let mut shell = Command::new("/bin/sh");
    shell.arg("-c").arg(std::ffi::OsStr::from_bytes(command));
    shell
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    // A group of its own, so that all of it can be killed.
    shell.process_group(0);
    for (name, value) in [("PATH", DEFAULT_PATH), ("HOME", "/root")] {
        if std::env::var_os(name).is_none() {
            shell.env(name, value);
        }
    }
    shell.spawn()
}

/// A command that runs. Dropped before the command's end is known, it kills the command.
struct Running {
    socket: File,
    decoder: Decoder,
    child: Child,
    exit: OwnedFd,
    stdin: Option<ChildStdin>,
    stdout: Option<ChildStdout>,
    stderr: Option<ChildStderr>,
    /// Input that the command has not taken, and whether its end is behind it.
    input: Vec<u8>,
    input_ended: bool,
    ended: bool,
}

impl Running {
    fn new(socket: File, decoder: Decoder, mut child: Child) -> Result<Self, SessionError> {
        let (stdin, stdout, stderr) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take());
        for fd in [
            stdin.as_ref().map(AsFd::as_fd),
            stdout.as_ref().map(AsFd::as_fd),
            stderr.as_ref().map(AsFd::as_fd),
        ] {
            fd.map_or(Ok(()), set_nonblocking)?;
        }
        let exit = pidfd(&child)?;
        Ok(Self {
            socket,
            decoder,
            child,
            exit,
            stdin,
            stdout,
            stderr,
            input: Vec::new(),
            input_ended: false,
            ended: false,
        })
    }

    fn follow(mut self) -> Result<(), SessionError> {
        loop {
            self.take_frames()?;
            let ready = self.wait()?;
            if ready.hung_up {
                return Err(SessionError::HungUp);
            }
            if ready.socket {
                receive(&mut self.socket, &mut self.decoder)?;
            }
            if ready.exit {
                let status = self.child.wait()?;
                self.ended = true;
                // What the command wrote is in the pipes; what its background processes will write is not waited for.
                while self.pump_output()? {}
                return self.report(status);
            }
            self.pump_output()?;
        }
    }

    /// Waits until there is something to do.
    fn wait(&self) -> io::Result<Ready> {
        let poll_fd = |fd: Option<BorrowedFd<'_>>, events| libc::pollfd {
            // A negative descriptor is skipped.
            fd: fd.map_or(-1, |fd| fd.as_raw_fd()),
            events,
            revents: 0,
        };
        // While input waits for the command, no more is taken from the host.
        let socket_events = if self.input.is_empty() {
            libc::POLLIN
        } else {
            0
        };
        let writable = self
            .stdin
            .as_ref()
            .filter(|_| !self.input.is_empty())
            .map(AsFd::as_fd);
        let mut fds = [
            poll_fd(Some(self.socket.as_fd()), socket_events),
            poll_fd(Some(self.exit.as_fd()), libc::POLLIN),
            poll_fd(self.stdout.as_ref().map(AsFd::as_fd), libc::POLLIN),
            poll_fd(self.stderr.as_ref().map(AsFd::as_fd), libc::POLLIN),
            poll_fd(writable, libc::POLLOUT),
        ];
        // SAFETY: `fds` is an array of the length given.
        if unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, -1) } < 0 {
            let e = io::Error::last_os_error();
            return if e.kind() == io::ErrorKind::Interrupted {
                Ok(Ready::default())
            } else {
                Err(e)
            };
        }
        Ok(Ready {
            socket: fds[0].revents & libc::POLLIN != 0,
            hung_up: fds[0].revents & (libc::POLLHUP | libc::POLLERR) != 0
                && fds[0].revents & libc::POLLIN == 0,
            exit: fds[1].revents != 0,
        })
    }

    fn take_frames(&mut self) -> Result<(), SessionError> {
        // One piece of input at a time bounds what is kept. When the command has taken it, the next may be here already, and
        // nothing more come.
        self.feed();
        while self.input.is_empty()
            && let Some(frame) = self.decoder.next_frame()?
        {
            self.take_frame(frame)?;
            self.feed();
        }
        Ok(())
    }

    fn take_frame(&mut self, frame: Frame) -> Result<(), SessionError> {
        match (frame.kind, frame.number()) {
            (Kind::Stdin, _) if frame.payload.is_empty() => self.input_ended = true,
            (Kind::Stdin, _) if self.stdin.is_some() && !self.input_ended => {
                self.input = frame.payload
            }
            // The command has closed its input.
            (Kind::Stdin, _) => {}
            (Kind::Signal, Some(signal)) => self.kill(signal as libc::c_int),
            (kind, _) => return Err(SessionError::Unexpected(kind)),
        }
        Ok(())
    }

    /// Gives the command what input it takes.
    fn feed(&mut self) {
        while !self.input.is_empty() {
            let Some(stdin) = &mut self.stdin else {
                self.input.clear();
                break;
            };
            match stdin.write(&self.input) {
                Ok(n) => drop(self.input.drain(..n)),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => self.stdin = None,
            }
        }
        if self.input_ended {
            self.stdin = None;
        }
    }

    /// Passes on a piece of each output. Returns whether there was any.
    fn pump_output(&mut self) -> Result<bool, SessionError> {
        let out = pump(&mut self.stdout, &mut self.socket, Kind::Stdout)?;
        let err = pump(&mut self.stderr, &mut self.socket, Kind::Stderr)?;
        Ok(out || err)
    }

    fn report(&mut self, status: ExitStatus) -> Result<(), SessionError> {
        let (kind, number) = match (status.code(), status.signal()) {
            (Some(code), _) => (Kind::Exited, code as u32),
            (None, signal) => (Kind::Signalled, signal.unwrap_or(0) as u32),
        };
        Ok(write_frame(&mut self.socket, kind, &number.to_le_bytes())?)
    }

    /// Sends a signal to the command's process group.
    fn kill(&self, signal: libc::c_int) {
        // SAFETY: a system call without pointers. The child is not yet waited for, so its number is its own.
        unsafe { libc::kill(-(self.child.id() as libc::pid_t), signal) };
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.ended {
            self.kill(libc::SIGKILL);
            let _ = self.child.wait();
        }
    }
}

#[derive(Default)]
struct Ready {
    socket: bool,
    hung_up: bool,
    exit: bool,
}

fn pump<R: Read>(from: &mut Option<R>, to: &mut File, kind: Kind) -> Result<bool, SessionError> {
    let Some(stream) = from else { return Ok(false) };
    let mut buffer = [0; CHUNK];
    match stream.read(&mut buffer) {
        Ok(0) => *from = None,
        Ok(n) => {
            write_frame(to, kind, &buffer[..n])?;
            return Ok(true);
        }
        Err(e)
            if matches!(
                e.kind(),
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
            ) => {}
        Err(e) => return Err(e.into()),
    }
    Ok(false)
}

fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: a system call on an open descriptor, without pointers.
    let flags = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) };
    if flags < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: as above.
    if unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// A descriptor that becomes readable when `child` ends.
fn pidfd(child: &Child) -> io::Result<OwnedFd> {
    // SAFETY: a system call without pointers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, child.id() as libc::pid_t, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just made and belongs to nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as libc::c_int) })
}
