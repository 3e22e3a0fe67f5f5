//! A 16550A serial port: what the guest writes goes to a sink, what the host types is queued for the guest.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use vm_superio::serial::NoEvents;
use vm_superio::{Serial, Trigger};
use vmm_sys_util::eventfd::EventFd;

use crate::bus::{BusDevice, lock};

/// Bytes of input kept for a guest that does not read.
const INPUT_LIMIT: usize = 64 << 10;

struct Line(EventFd);

impl Trigger for Line {
    type E = io::Error;
    fn trigger(&self) -> io::Result<()> {
        self.0.write(1)
    }
}

struct State {
    uart: Serial<Line, NoEvents, Box<dyn Write + Send>>,
    waiting: VecDeque<u8>,
}

impl State {
    /// Gives the UART as much of the waiting input as its FIFO takes. In loopback mode it takes none, and keeps no account.
    fn feed(&mut self) {
        let room = self.uart.fifo_capacity().min(self.waiting.len());
        if room > 0 {
            let chunk: Vec<u8> = self.waiting.iter().take(room).copied().collect();
            if let Ok(taken) = self.uart.enqueue_raw_bytes(&chunk) {
                self.waiting.drain(..taken);
            }
        }
    }
}

/// The port as the guest sees it: 8 ports of I/O space.
pub struct SerialPort(Arc<Mutex<State>>);

/// The host's end of the port, to type into it.
#[derive(Clone)]
pub struct SerialConsole(Arc<Mutex<State>>);

impl SerialPort {
    /// Where the first serial port (COM1, `ttyS0`, interrupt 4) lies.
    pub const COM1: u64 = 0x3f8;
    /// Ports.
    pub const LEN: u64 = 8;

    /// A port that signals `interrupt` (edge) and writes to `out`. A failing `out` loses output, and nothing else.
    pub fn new(interrupt: EventFd, out: Box<dyn Write + Send>) -> Self {
        let uart = Serial::new(Line(interrupt), out);
        Self(Arc::new(Mutex::new(State {
            uart,
            waiting: VecDeque::new(),
        })))
    }

    /// The host's end.
    pub fn console(&self) -> SerialConsole {
        SerialConsole(self.0.clone())
    }
}

impl SerialConsole {
    /// Queues `bytes` for the guest to read. Returns how many were taken: fewer when the guest has not read for long.
    pub fn input(&self, bytes: &[u8]) -> usize {
        let mut state = lock(&self.0);
        let taken = bytes.len().min(INPUT_LIMIT - state.waiting.len());
        state.waiting.extend(&bytes[..taken]);
        state.feed();
        taken
    }
}

impl BusDevice for SerialPort {
    fn read(&mut self, offset: u64, data: &mut [u8]) {
        data.fill(0xff);
        if let [byte] = data {
            let mut state = lock(&self.0);
            *byte = state.uart.read(offset as u8);
            if offset == 0 {
                state.feed();
            }
        }
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        if let [byte] = data
            && let Err(e) = lock(&self.0).uart.write(offset as u8, *byte)
        {
            log::debug!("serial port: {e}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);
    impl Write for Sink {
        fn write(&mut self, data: &[u8]) -> io::Result<usize> {
            lock(&self.0).extend(data);
            Ok(data.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn output_reaches_the_sink() {
        let sink = Sink::default();
        let mut port = SerialPort::new(
            EventFd::new(libc::EFD_NONBLOCK).unwrap(),
            Box::new(sink.clone()),
        );
        port.write(0, b"h");
        port.write(0, b"xx");
        port.write(0, b"i");
        assert_eq!(*lock(&sink.0), b"hi");
    }

    #[test]
    fn input_longer_than_the_fifo_arrives_whole_and_with_an_interrupt() {
        let interrupt = EventFd::new(libc::EFD_NONBLOCK).unwrap();
        let mut port = SerialPort::new(interrupt.try_clone().unwrap(), Box::new(io::sink()));
        port.write(1, &[1]);
        let text: Vec<u8> = (0..200).collect();
        assert_eq!(port.console().input(&text), 200);
        assert!(interrupt.read().unwrap() > 0);
        let mut got = Vec::new();
        loop {
            let mut byte = [0];
            port.read(5, &mut byte);
            if byte[0] & 1 == 0 {
                break;
            }
            port.read(0, &mut byte);
            got.push(byte[0]);
        }
        assert_eq!(got, text);
    }

    #[test]
    fn a_guest_that_never_reads_costs_a_bounded_buffer() {
        let port = SerialPort::new(
            EventFd::new(libc::EFD_NONBLOCK).unwrap(),
            Box::new(io::sink()),
        );
        let console = port.console();
        let mut taken = 0;
        for _ in 0..100 {
            taken += console.input(&[0; 4096]);
        }
        assert!((INPUT_LIMIT..INPUT_LIMIT + 100).contains(&taken), "{taken}");
    }
}
