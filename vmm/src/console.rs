//! The serial console on our standard input and output, or in a file.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::Arc;
use std::thread;

use api::SerialConfig;
use devices::legacy::SerialConsole;

use crate::outcome::{Outcome, OutcomeCell};

const STACK: usize = 128 << 10;
/// Ctrl-A, the key that makes the next one a command to us: `x` ends the machine, Ctrl-A sends the key itself.
const ESCAPE: u8 = 1;

/// Where the guest's console output goes. What does not end a line is held back until it does, or until the writer has 1 KiB:
/// the guest writes single bytes, and each would cost a system call.
pub struct Sink {
    file: Option<File>,
    held: Vec<u8>,
    interactive: bool,
}

const HOLD: usize = 1 << 10;

impl Sink {
    /// Opens what `config` names.
    ///
    /// # Errors
    /// When the file cannot be made.
    pub fn open(config: &SerialConfig) -> io::Result<Self> {
        let file = match config {
            SerialConfig::Off => None,
            // SAFETY: descriptor 1 is our standard output; the duplicate is owned by the new file alone.
            SerialConfig::Stdio => Some(unsafe { File::from_raw_fd(dup(1)?) }),
            SerialConfig::File(path) => Some(
                OpenOptions::new()
                    .write(true)
                    .create(true)
                    .truncate(true)
                    .open(path)?,
            ),
        };
        Ok(Self {
            interactive: *config == SerialConfig::Stdio && is_terminal(1),
            file,
            held: Vec::new(),
        })
    }

    fn write_held(&mut self) -> io::Result<()> {
        match &mut self.file {
            Some(file) => file.write_all(&self.held)?,
            None => return Ok(()),
        }
        self.held.clear();
        Ok(())
    }
}

impl Write for Sink {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        if self.file.is_some() {
            self.held.extend_from_slice(data);
            let whole = data.contains(&b'\n') || self.held.len() >= HOLD;
            if self.interactive || whole {
                self.write_held()?;
            }
        }
        Ok(data.len())
    }

    /// Does nothing: the device flushes after every byte.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        let _ = self.write_held();
    }
}

fn dup(fd: i32) -> io::Result<i32> {
    // SAFETY: duplicates a descriptor, touches no memory.
    let new = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3) };
    if new < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(new)
}

fn is_terminal(fd: i32) -> bool {
    // SAFETY: asks about a descriptor, touches no memory.
    unsafe { libc::isatty(fd) == 1 }
}

/// Our terminal in raw mode, until dropped.
pub struct RawTerminal {
    before: libc::termios,
}

impl RawTerminal {
    /// Puts standard input into raw mode if it is a terminal.
    pub fn enter() -> Option<Self> {
        if !is_terminal(0) {
            return None;
        }
        let mut before = MaybeUninit::<libc::termios>::uninit();
        // SAFETY: the pointer is to a termios, which a successful call fills.
        if unsafe { libc::tcgetattr(0, before.as_mut_ptr()) } != 0 {
            return None;
        }
        // SAFETY: filled by the call above.
        let before = unsafe { before.assume_init() };
        let mut raw = before;
        // SAFETY: both calls are given a valid termios.
        unsafe {
            libc::cfmakeraw(&mut raw);
            libc::tcsetattr(0, libc::TCSANOW, &raw);
        }
        Some(Self { before })
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        // SAFETY: given a valid termios, as it was read from the same terminal.
        unsafe { libc::tcsetattr(0, libc::TCSANOW, &self.before) };
    }
}

/// Passes standard input to the guest, a read at a time, from a thread of its own.
///
/// # Errors
/// When the host gives no thread.
pub fn feed(console: SerialConsole, outcome: Arc<OutcomeCell>) -> io::Result<()> {
    thread::Builder::new()
        .name("console".into())
        .stack_size(STACK)
        .spawn(move || {
            let mut keys = Keys::default();
            let mut buffer = [0; 256];
            // SAFETY: descriptor 0 stays open for the life of the process; the file is never dropped.
            let stdin = std::mem::ManuallyDrop::new(unsafe { File::from_raw_fd(0) });
            debug_assert_eq!(stdin.as_raw_fd(), 0);
            let terminal = is_terminal(0);
            loop {
                match (&*stdin).read(&mut buffer) {
                    Ok(0) => break,
                    Ok(n) if !terminal => type_in(&console, &buffer[..n]),
                    Ok(n) => {
                        let (text, end) = keys.take(&buffer[..n]);
                        type_in(&console, &text);
                        if end {
                            outcome.report(Outcome::PowerOff);
                            break;
                        }
                    }
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(e) => {
                        log::warn!("standard input: {e}");
                        break;
                    }
                }
            }
        })
        .map(drop)
}

fn type_in(console: &SerialConsole, text: &[u8]) {
    let taken = console.input(text);
    if taken < text.len() {
        log::debug!(
            "the guest does not read its console: {} bytes lost",
            text.len() - taken
        );
    }
}

/// Finds our own commands among the keys.
#[derive(Default)]
struct Keys {
    escaped: bool,
}

impl Keys {
    /// What is for the guest, and whether the machine is to end.
    fn take(&mut self, keys: &[u8]) -> (Vec<u8>, bool) {
        let mut text = Vec::with_capacity(keys.len());
        for &key in keys {
            match (self.escaped, key) {
                (false, ESCAPE) => self.escaped = true,
                (false, key) => text.push(key),
                (true, b'x') => return (text, true),
                (true, key) => {
                    self.escaped = false;
                    if key != ESCAPE {
                        text.push(ESCAPE);
                    }
                    text.push(key);
                }
            }
        }
        (text, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escape_x_ends_and_escape_twice_is_the_key_itself() {
        let mut keys = Keys::default();
        assert_eq!(keys.take(b"ab"), (b"ab".to_vec(), false));
        assert_eq!(keys.take(&[ESCAPE]), (vec![], false));
        assert_eq!(keys.take(&[ESCAPE, b'c']), (vec![ESCAPE, b'c'], false));
        assert_eq!(keys.take(&[b'd', ESCAPE, b'x', b'e']), (vec![b'd'], true));
    }

    #[test]
    fn the_file_gets_every_byte_in_the_end() {
        let path = std::env::temp_dir().join(format!("longarm-console-{}", std::process::id()));
        let mut sink = Sink::open(&SerialConfig::File(path.clone())).unwrap();
        for b in b"line\nrest" {
            sink.write_all(&[*b]).unwrap();
        }
        assert_eq!(std::fs::read(&path).unwrap(), b"line\n");
        drop(sink);
        assert_eq!(std::fs::read(&path).unwrap(), b"line\nrest");
        std::fs::remove_file(path).unwrap();
    }
}
