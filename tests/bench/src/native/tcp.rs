//! Bare TCP over loopback between the same two processes: what the fabric is measured against.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::drive::Places;
use super::end::FOOTPRINT;
use super::process::{Meter, Usage};
use crate::samples::median;

/// A way to move messages over bare TCP. Which one is quickest depends on the size, and by a factor of 3, so a reference is the
/// quickest of all of them ([`quickest`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Way {
    /// TCP_NODELAY: what a call writes is sent at once.
    pub nodelay: bool,
    /// The receiver looks for more all the time; otherwise it sleeps in `read`.
    pub spin: bool,
}

impl Way {
    /// All of them.
    pub const ALL: [Way; 4] = [
        way(true, true),
        way(true, false),
        way(false, true),
        way(false, false),
    ];
}

const fn way(nodelay: bool, spin: bool) -> Way {
    Way { nodelay, spin }
}

/// The quickest ways found so far, by bytes of a message and bytes of a call.
static QUICKEST: Mutex<BTreeMap<(usize, usize), Way>> = Mutex::new(BTreeMap::new());

/// The quickest way for messages of `size` bytes, `call` bytes to a call: tried out once with `gbps`, the median of three rounds.
pub fn quickest(size: usize, call: usize, mut gbps: impl FnMut(Way) -> Result<f64>) -> Result<Way> {
    let mut known = QUICKEST.lock().expect("the ways found");
    if let Some(way) = known.get(&(size, call)) {
        return Ok(*way);
    }
    let mut figures = Way::ALL.map(|way| (way, Vec::new()));
    for _ in 0..3 {
        for (way, figures) in &mut figures {
            figures.push(gbps(*way)?);
        }
    }
    let medians = figures.map(|(way, figures)| (way, median(&figures)));
    let best = medians.into_iter().max_by(|a, b| a.1.total_cmp(&b.1));
    let (way, _) = best.context("no way at all")?;
    known.insert((size, call), way);
    Ok(way)
}

/// What a receiver saw.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Received {
    /// Bytes that came after the first stretch.
    pub bytes: u64,
    /// In this time.
    pub elapsed: Duration,
    /// Bytes that came in all.
    pub total: u64,
    /// What the receiver took, from the first byte to the last.
    pub usage: Usage,
}

/// Listens on a port of 127.0.0.1.
pub fn listen() -> Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind("127.0.0.1:0").context("listen")?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}

/// What a receiver is to do.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Reception {
    /// Bytes of a message.
    pub size: usize,
    /// The first stretch, which does not count.
    pub warm_up: Duration,
    /// Spin, and do not sleep.
    pub spin: bool,
    /// Count system calls.
    pub count_calls: bool,
}

/// Reads all that comes on the next connection into memory as large as a device's, until it ends.
pub fn sink(listener: &TcpListener, reception: &Reception) -> Result<Received> {
    let Reception {
        size,
        warm_up,
        spin,
        count_calls,
    } = *reception;
    let (mut stream, _) = listener.accept().context("accept")?;
    stream.set_nonblocking(spin)?;
    let mut memory = vec![0; FOOTPRINT];
    let mut places = Places::new(size.max(65_536));
    let len = size.max(65_536);
    let (mut bytes, mut total, mut reads) = (0, 0, 0);
    let mut from = None;
    let mut last = Instant::now();
    let begun = last;
    let mut meter = Meter::start(count_calls);
    loop {
        let at = places.take();
        let count = read(&mut stream, &mut memory[at..at + len])?;
        let now = Instant::now();
        if count == 0 {
            break;
        }
        total += count as u64;
        reads += 1;
        if from.is_some() {
            bytes += count as u64;
            last = now;
        } else if now - begun >= warm_up {
            from = Some(now);
        }
    }
    // On a machine that has no time for us all may have come in the first stretch.
    let from = from.unwrap_or_else(|| {
        bytes = total;
        last = Instant::now();
        begun
    });
    Ok(Received {
        bytes,
        elapsed: last - from,
        total,
        usage: Usage {
            transfers: reads,
            ..meter.usage()
        },
    })
}

/// Writes messages for a time, `call` bytes a call. Calls.
pub fn source(address: SocketAddr, call: usize, time: Duration, nodelay: bool) -> Result<u64> {
    let mut stream = TcpStream::connect(address).context("connect")?;
    stream.set_nodelay(nodelay)?;
    let memory = vec![0x5a; FOOTPRINT];
    let mut places = Places::new(call);
    let begun = Instant::now();
    let mut calls = 0;
    while begun.elapsed() < time {
        let at = places.take();
        stream.write_all(&memory[at..at + call]).context("write")?;
        calls += 1;
    }
    Ok(calls)
}

/// Reads what there is, spinning where the stream does not block.
fn read(stream: &mut TcpStream, into: &mut [u8]) -> Result<usize> {
    loop {
        match stream.read(into) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            read => return read.context("read"),
        }
    }
}

/// Fills `bytes`. False at the end of the stream.
fn fill(stream: &mut TcpStream, bytes: &mut [u8]) -> Result<bool> {
    let mut at = 0;
    while at < bytes.len() {
        match read(stream, &mut bytes[at..])? {
            0 => return Ok(false),
            count => at += count,
        }
    }
    Ok(true)
}

fn write_spinning(stream: &mut TcpStream, mut bytes: &[u8]) -> Result<()> {
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error).context("write"),
        }
    }
    Ok(())
}

/// Answers each `size` bytes of the next connection with `answer` bytes, spinning, until it ends.
pub fn echo(listener: &TcpListener, size: usize, answer: usize) -> Result<()> {
    let (mut stream, _) = listener.accept().context("accept")?;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    let (mut came, sent) = (vec![0; size], vec![0; answer]);
    while fill(&mut stream, &mut came)? {
        write_spinning(&mut stream, &sent)?;
    }
    Ok(())
}

/// Whether a sample of times is complete: the time is over, unless nothing was measured in it, or there is no room for more.
pub fn enough(elapsed: Duration, time: Duration, times: &[u64], room: usize) -> bool {
    (elapsed >= time && !times.is_empty()) || times.len() == room
}

/// Sends `size` bytes and waits, spinning, for `answer` bytes, again and again. Nanoseconds of each trip, after a first stretch, go
/// to `times`, as many as it has room for in `time`.
pub fn ping_pong(
    address: SocketAddr,
    (size, answer): (usize, usize),
    (warm_up, time): (Duration, Duration),
    times: &mut Vec<u64>,
) -> Result<()> {
    let mut stream = TcpStream::connect(address).context("connect")?;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    let (sent, mut came) = (vec![0; size], vec![0; answer]);
    let begun = Instant::now();
    loop {
        let from = Instant::now();
        if enough(from - begun, warm_up + time, times, times.capacity()) {
            return Ok(());
        }
        write_spinning(&mut stream, &sent)?;
        if !fill(&mut stream, &mut came)? {
            bail!("the far end is gone");
        }
        if from - begun >= warm_up {
            times.push(from.elapsed().as_nanos() as u64);
        }
    }
}
