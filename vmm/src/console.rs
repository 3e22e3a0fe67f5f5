//! The serial console on our standard input and output, or in a file.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use api::SerialConfig;
use devices::legacy::SerialConsole;

use crate::outcome::{Outcome, OutcomeCell};

const STACK: usize = 128 << 10;
/// Ctrl-A, the key that makes the next one a command to us: `x` ends the machine, Ctrl-A sends the key itself.
const ESCAPE: u8 = 1;

/// Where the guest's console output goes. The guest writes single bytes, and each would cost a system call: they are held back
/// until their line ends, there is 1 KiB of them, or [`LULL`] went by, so that a prompt shows as well.
pub struct Sink(Option<Arc<Output>>);

const HOLD: usize = 1 << 10;
/// How long a line without an end is held back: too short for whoever reads it to notice.
const LULL: Duration = Duration::from_millis(20);

/// Shared by the guest's end, which fills it, and the thread that looks for what was left there.
struct Output {
    held: Mutex<Held>,
    filled: Condvar,
}

struct Held {
    file: File,
    bytes: Vec<u8>,
    /// The thread waits to be told of the next byte. While it looks by itself, nobody tells it: that is a system call too.
    idle: bool,
    closed: bool,
}

impl Held {
    /// What cannot be written is lost: keeping it would take memory without end.
    fn write_out(&mut self) -> io::Result<()> {
        let result = self.file.write_all(&self.bytes);
        self.bytes.clear();
        result
    }
}

impl Output {
    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes what stays, until the sink is closed.
    fn follow(&self) {
        let mut held = self.lock();
        loop {
            held.idle = true;
            held = self
                .filled
                .wait_while(held, |held| held.bytes.is_empty() && !held.closed)
                .unwrap_or_else(PoisonError::into_inner);
            held.idle = false;
            (held, _) = self
                .filled
                .wait_timeout_while(held, LULL, |held| !held.closed)
                .unwrap_or_else(PoisonError::into_inner);
            if let Err(error) = held.write_out() {
                log::debug!("console output: {error}");
            }
            if held.closed {
                return;
            }
        }
    }
}

impl Sink {
    /// Opens what `config` names.
    ///
    /// # Errors
    /// When the file cannot be made, or the host gives no thread.
    pub fn open(config: &SerialConfig) -> io::Result<Self> {
        let file = match config {
            SerialConfig::Off => return Ok(Self(None)),
            // SAFETY: descriptor 1 is our standard output; the duplicate is owned by the new file alone.
            SerialConfig::Stdio => unsafe { File::from_raw_fd(dup(1)?) },
            SerialConfig::File(path) => OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .open(path)?,
        };
        let output = Arc::new(Output {
            held: Mutex::new(Held {
                file,
                bytes: Vec::new(),
                idle: false,
                closed: false,
            }),
            filled: Condvar::new(),
        });
        let followed = output.clone();
        thread::Builder::new()
            .name("console-out".into())
            .stack_size(STACK)
            .spawn(move || followed.follow())?;
        Ok(Self(Some(output)))
    }
}

impl Write for Sink {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        if let Some(output) = &self.0 {
            let mut held = output.lock();
            held.bytes.extend_from_slice(data);
            if data.contains(&b'\n') || held.bytes.len() >= HOLD {
                held.write_out()?;
            } else if held.idle {
                held.idle = false;
                output.filled.notify_one();
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
        if let Some(output) = &self.0 {
            let mut held = output.lock();
            // Nobody is left to tell.
            let _ = held.write_out();
            held.closed = true;
            output.filled.notify_one();
        }
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
    use std::path::Path;
    use std::time::Instant;

    use super::*;

    #[test]
    fn escape_x_ends_and_escape_twice_is_the_key_itself() {
        let mut keys = Keys::default();
        assert_eq!(keys.take(b"ab"), (b"ab".to_vec(), false));
        assert_eq!(keys.take(&[ESCAPE]), (vec![], false));
        assert_eq!(keys.take(&[ESCAPE, b'c']), (vec![ESCAPE, b'c'], false));
        assert_eq!(keys.take(&[b'd', ESCAPE, b'x', b'e']), (vec![b'd'], true));
    }

    /// Waits until the file holds `wanted`.
    fn wait_for(path: &Path, wanted: &[u8]) {
        let end = Instant::now() + Duration::from_secs(60);
        while std::fs::read(path).unwrap() != wanted {
            assert!(Instant::now() < end, "{:?}", std::fs::read(path).unwrap());
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_prompt_shows_without_an_end_of_its_line() {
        let path = std::env::temp_dir().join(format!("longarm-prompt-{}", std::process::id()));
        let mut sink = Sink::open(&SerialConfig::File(path.clone())).unwrap();
        let mut wanted = Vec::new();
        // The second and third time the thread that looks has been idle.
        for text in ["login: ", "user\nPassword: ", "\n# "] {
            for byte in text.bytes() {
                sink.write_all(&[byte]).unwrap();
            }
            wanted.extend(text.bytes());
            wait_for(&path, &wanted);
        }
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn the_file_has_every_byte_when_the_sink_is_gone() {
        let path = std::env::temp_dir().join(format!("longarm-console-{}", std::process::id()));
        let mut sink = Sink::open(&SerialConfig::File(path.clone())).unwrap();
        for b in b"line\nrest" {
            sink.write_all(&[*b]).unwrap();
        }
        drop(sink);
        assert_eq!(std::fs::read(&path).unwrap(), b"line\nrest");
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn what_cannot_be_written_takes_no_memory() {
        let mut sink = Sink::open(&SerialConfig::File("/dev/full".into())).unwrap();
        let output = sink.0.clone().unwrap();
        for _ in 0..100 {
            // It fails whenever it is written through.
            let _ = sink.write(&[b'x'; 100]);
        }
        assert!(output.lock().bytes.len() < HOLD);
    }
}
