//! How fast frames cross the fabric over loopback TCP, beside bare TCP that moves the same bytes in the same run.
//!
//!     cargo run --release -p devices --example fabric_speed [SECONDS PER ROUND]
//!
//! Bare TCP writes each message with one call and reads what there is. Rounds of both alternate; the median of five is shown, with the
//! processor time of the whole process per GiB, which a busy machine disturbs less.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use devices::rdma::fabric::frame::{FrameHeader, kind};
use devices::rdma::fabric::tcp::{TcpConfig, TcpFabric};
use devices::rdma::fabric::{Fabric, PeerId, Placement, Sink};
use devices::rdma::memory::Segment;
use devices::rdma::stats::{PeerSnapshot, Stats};

const ROUNDS: usize = 5;
/// Where payloads come from and go to: more than one message, so that it is not all in the nearest cache.
const MEMORY: usize = 1 << 20;

struct Memory {
    bytes: Vec<u8>,
    at: usize,
}

impl Memory {
    fn new() -> Self {
        Memory {
            bytes: vec![1; MEMORY],
            at: 0,
        }
    }

    fn next(&mut self, len: usize) -> Segment {
        if self.at + len > MEMORY {
            self.at = 0;
        }
        let base = self.bytes[self.at..].as_mut_ptr();
        self.at += len;
        Segment { base, len }
    }
}

struct Target {
    memory: Memory,
    peer: Option<PeerId>,
    frames: u64,
}

impl Target {
    fn new() -> Self {
        Target {
            memory: Memory::new(),
            peer: None,
            frames: 0,
        }
    }
}

impl Sink for Target {
    fn place(
        &mut self,
        _: PeerId,
        header: &FrameHeader,
        _: u32,
        into: &mut Vec<Segment>,
    ) -> Placement {
        into.push(self.memory.next(header.length as usize));
        Placement::Into
    }
    fn frame(&mut self, _: PeerId, _: &FrameHeader, _: Placement, _: &[u8]) {
        self.frames += 1;
    }
    fn peer_up(&mut self, peer: PeerId) {
        self.peer = Some(peer);
    }
    fn peer_down(&mut self, _: PeerId) {
        self.peer = None;
    }
    fn routes_changed(&mut self) {}
}

fn sleep(fd: RawFd) {
    let mut poll = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one valid pollfd.
    unsafe { libc::poll(&mut poll, 1, 50) };
}

struct Node {
    fabric: TcpFabric,
    target: Target,
    stats: Arc<Stats>,
}

impl Node {
    fn new(config: TcpConfig) -> Self {
        let stats = Arc::new(Stats::default());
        Node {
            fabric: TcpFabric::new(config, stats.clone()).expect("fabric"),
            target: Target::new(),
            stats,
        }
    }

    fn counters(&self) -> PeerSnapshot {
        self.stats
            .snapshot()
            .peers
            .into_values()
            .next()
            .expect("a peer")
    }
}

fn nodes() -> (Node, Node) {
    let mut config = TcpConfig::new().expect("randomness");
    config.listen = Some(([127, 0, 0, 1], 0).into());
    let mut left = Node::new(config);
    let mut config = TcpConfig::new().expect("randomness");
    config.peers = left.fabric.local_address().into_iter().collect();
    let mut right = Node::new(config);
    while left.target.peer.is_none() || right.target.peer.is_none() {
        left.fabric.poll(&mut left.target);
        right.fabric.poll(&mut right.target);
    }
    (left, right)
}

fn processor_time() -> f64 {
    // SAFETY: all bytes zero is a valid rusage, and the kernel fills it.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

/// Messages per second, and processor seconds per GiB.
#[derive(Clone, Copy)]
struct Figure {
    rate: f64,
    processor: f64,
}

fn figure(messages: u64, size: usize, time: Duration, processor: f64) -> Figure {
    let gib = messages as f64 * size as f64 / f64::from(1 << 30);
    Figure {
        rate: messages as f64 / time.as_secs_f64(),
        processor: processor / gib,
    }
}

fn by_fabric(size: usize, time: Duration) -> (Figure, String) {
    let (mut sender, mut receiver) = nodes();
    let stop = Arc::new(AtomicBool::new(false));
    let (before, start) = (processor_time(), Instant::now());
    let sending = {
        let stop = stop.clone();
        std::thread::spawn(move || {
            let header = FrameHeader {
                kind: kind::WRITE,
                length: size as u32,
                ..FrameHeader::default()
            };
            let peer = sender.target.peer.expect("link");
            let mut memory = Memory::new();
            let mut sent = 0u64;
            while !stop.load(Ordering::Relaxed) {
                // As an engine does: some work of each queue pair, then a flush.
                let mut batch = 0;
                while batch < 128 && sender.fabric.can_send(peer) {
                    let payload = [memory.next(size)];
                    sender
                        .fabric
                        .send(peer, &header, &[], &payload)
                        .expect("room");
                    batch += 1;
                }
                sent += batch;
                sender.fabric.flush();
                let worked = sender.fabric.poll(&mut sender.target);
                if batch == 0 && !worked {
                    sleep(sender.fabric.wait_fd());
                }
            }
            (sender, sent)
        })
    };
    while start.elapsed() < time {
        if !receiver.fabric.poll(&mut receiver.target) {
            sleep(receiver.fabric.wait_fd());
        }
    }
    let (elapsed, used) = (start.elapsed(), processor_time() - before);
    let frames = receiver.target.frames;
    stop.store(true, Ordering::Relaxed);
    let (sender, sent) = sending.join().expect("sender");
    let (to, from) = (receiver.counters(), sender.counters());
    let note = format!(
        "{:.3} send and {:.3} receive calls per message, {:.1} % staged",
        from.tx_calls as f64 / sent as f64,
        to.rx_calls as f64 / frames as f64,
        to.rx_staged as f64 * 100.0 / to.rx_bytes as f64,
    );
    (figure(frames, size, elapsed, used), note)
}

fn by_tcp(size: usize, time: Duration) -> Figure {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    let address = listener.local_addr().expect("address");
    let mut sender = TcpStream::connect(address).expect("connect");
    sender.set_nodelay(true).expect("nodelay");
    let (mut receiver, _) = listener.accept().expect("accept");
    let (before, start) = (processor_time(), Instant::now());
    let sending = std::thread::spawn(move || {
        let payload = vec![1; MEMORY];
        let mut at = 0;
        while sender.write_all(&payload[at..at + size]).is_ok() {
            at += size;
            if at + size > MEMORY {
                at = 0;
            }
        }
    });
    let mut into = vec![0; MEMORY];
    let (mut at, mut bytes) = (0, 0);
    while start.elapsed() < time {
        let len = size.max(65_536);
        bytes += receiver.read(&mut into[at..at + len]).expect("read") as u64;
        at += len;
        if at + len > MEMORY {
            at = 0;
        }
    }
    let (elapsed, used) = (start.elapsed(), processor_time() - before);
    drop(receiver);
    sending.join().expect("sender");
    figure(bytes / size as u64, size, elapsed, used)
}

/// Microseconds of a round trip of 8 bytes, both ends polling.
fn round_trip_by_fabric(time: Duration) -> f64 {
    let (mut here, mut there) = nodes();
    let stop = Arc::new(AtomicBool::new(false));
    let header = FrameHeader {
        kind: kind::WRITE,
        length: 8,
        ..FrameHeader::default()
    };
    let answering = {
        let stop = stop.clone();
        std::thread::spawn(move || {
            let peer = there.target.peer.expect("link");
            let mut answered = 0;
            while !stop.load(Ordering::Relaxed) {
                there.fabric.poll(&mut there.target);
                while answered < there.target.frames {
                    answered += 1;
                    there
                        .fabric
                        .send(peer, &header, &[0; 8], &[])
                        .expect("room");
                    there.fabric.flush();
                }
            }
        })
    };
    let peer = here.target.peer.expect("link");
    let start = Instant::now();
    let mut trips = 0;
    while start.elapsed() < time {
        here.fabric.send(peer, &header, &[0; 8], &[]).expect("room");
        here.fabric.flush();
        trips += 1;
        while here.target.frames < trips {
            here.fabric.poll(&mut here.target);
        }
    }
    let elapsed = start.elapsed();
    stop.store(true, Ordering::Relaxed);
    answering.join().expect("answers");
    elapsed.as_secs_f64() * 1e6 / trips as f64
}

fn round_trip_by_tcp(time: Duration) -> f64 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    let address = listener.local_addr().expect("address");
    let mut here = TcpStream::connect(address).expect("connect");
    let (mut there, _) = listener.accept().expect("accept");
    for stream in [&here, &there] {
        stream.set_nodelay(true).expect("nodelay");
        stream.set_nonblocking(true).expect("nonblocking");
    }
    fn spin(stream: &mut TcpStream) -> bool {
        let mut bytes = [0; 8];
        loop {
            match stream.read(&mut bytes) {
                Ok(count) => return count > 0,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => (),
                Err(_) => return false,
            }
        }
    }
    let answering = std::thread::spawn(move || {
        while spin(&mut there) {
            there.write_all(&[0; 8]).expect("write");
        }
    });
    let start = Instant::now();
    let mut trips = 0u64;
    while start.elapsed() < time {
        here.write_all(&[0; 8]).expect("write");
        spin(&mut here);
        trips += 1;
    }
    let elapsed = start.elapsed();
    drop(here);
    answering.join().expect("answers");
    elapsed.as_secs_f64() * 1e6 / trips as f64
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let seconds = std::env::args().nth(1).and_then(|text| text.parse().ok());
    let time = Duration::from_secs_f64(seconds.unwrap_or(0.4));
    for size in [64, 1024, 4096, 16_384, 65_536] {
        let mut rates = [Vec::new(), Vec::new(), Vec::new()];
        let mut processor = [Vec::new(), Vec::new(), Vec::new()];
        let mut note = String::new();
        for _ in 0..ROUNDS {
            let tcp = by_tcp(size, time);
            let (fabric, said) = by_fabric(size, time);
            note = said;
            let ratio = Figure {
                rate: fabric.rate / tcp.rate,
                processor: fabric.processor / tcp.processor,
            };
            for (place, figure) in [fabric, tcp, ratio].into_iter().enumerate() {
                rates[place].push(figure.rate);
                processor[place].push(figure.processor);
            }
        }
        let [fabric, tcp, ratio] = rates.map(median);
        let [fabric_time, tcp_time, time_ratio] = processor.map(median);
        println!(
            "{size:>6} B: fabric {:8.0} k/s {:6.2} Gb/s {fabric_time:5.2} s/GiB, tcp {:8.0} k/s {:6.2} Gb/s {tcp_time:5.2} s/GiB, \
             ratio {ratio:.2} of the rate, {time_ratio:.2} of the time; {note}",
            fabric / 1e3,
            fabric * size as f64 * 8e-9,
            tcp / 1e3,
            tcp * size as f64 * 8e-9,
        );
    }
    let mut trips = [Vec::new(), Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        let (tcp, fabric) = (round_trip_by_tcp(time), round_trip_by_fabric(time));
        for (place, figure) in [fabric, tcp, fabric / tcp].into_iter().enumerate() {
            trips[place].push(figure);
        }
    }
    let [fabric, tcp, ratio] = trips.map(median);
    println!("8 B round trip: fabric {fabric:.1} us, tcp {tcp:.1} us, ratio {ratio:.2}");
}
