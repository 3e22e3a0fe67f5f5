//! Fabrics over real sockets, and peers that misbehave.

mod frames;
mod lanes;
mod links;
mod peers;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use super::hello::{FRAME_LEN, Hello};
use super::{TcpConfig, TcpFabric};
use crate::rdma::fabric::frame::{FrameHeader, kind};
use crate::rdma::fabric::test_utils::{Event, TestSink, segment};
use crate::rdma::fabric::{Fabric, PeerId, SendError};
use crate::rdma::stats::{PeerSnapshot, Stats};

/// How long anything may take before a test fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// Without PINGs, which a test that stood still would find among the frames that it counts. Links have a single lane, so that connections can be
/// counted, unless a test wants more.
fn config() -> TcpConfig {
    let mut config = TcpConfig::new().unwrap();
    (config.timing.ping, config.timing.loss) = (PATIENCE, 2 * PATIENCE);
    config.lanes = 1;
    config
}

/// Listens on an address that no other test has, so that nobody takes the port when a test gives it up for a while.
fn any_port() -> TcpConfig {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let [.., a, b] = std::process::id().to_be_bytes();
    let host = [127, 128 | a, b, NEXT.fetch_add(1, Ordering::Relaxed)];
    TcpConfig {
        listen: Some(SocketAddr::from((host, 0))),
        ..config()
    }
}

fn dialling(peers: &[SocketAddr]) -> TcpConfig {
    TcpConfig {
        peers: peers.to_vec(),
        ..config()
    }
}

struct Node {
    fabric: TcpFabric,
    stats: Arc<Stats>,
    sink: TestSink,
}

impl Node {
    fn new(config: TcpConfig) -> Self {
        let stats = Arc::new(Stats::default());
        Node {
            fabric: TcpFabric::new(config, stats.clone()).unwrap(),
            stats,
            sink: TestSink::default(),
        }
    }

    fn address(&self) -> SocketAddr {
        self.fabric.local_address().unwrap()
    }

    fn poll(&mut self) -> bool {
        self.fabric.poll(&mut self.sink)
    }

    /// The peer that is up.
    fn peer(&self) -> PeerId {
        let up = |event: &&Event| matches!(event, Event::Up(peer) if self.fabric.is_up(*peer));
        match self.sink.events.iter().rev().find(up) {
            Some(Event::Up(peer)) => *peer,
            _ => panic!("no peer is up"),
        }
    }

    fn linked(&self) -> bool {
        self.links() > 0
    }

    fn links(&self) -> usize {
        self.peers()
            .filter(|peer| peer.links_up > peer.links_lost)
            .count()
    }

    fn peers(&self) -> impl Iterator<Item = PeerSnapshot> {
        self.stats.snapshot().peers.into_values()
    }

    /// Of the only peer.
    fn counters(&self) -> PeerSnapshot {
        self.peers().next().unwrap()
    }

    fn count(&self, event: &Event) -> usize {
        self.sink.events.iter().filter(|e| *e == event).count()
    }

    fn send(&mut self, kind: u8, payload: &mut [u8]) -> Result<(), SendError> {
        let header = header_of(kind, payload.len() as u32);
        let peer = self.peer();
        self.fabric.send(peer, &header, &[], &[segment(payload)])
    }
}

/// Polls until the condition holds; sleeps as the device does, so that a descriptor that is not signalled shows.
fn run(nodes: &mut [&mut Node], mut until: impl FnMut(&mut [&mut Node]) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !until(nodes) {
        assert!(Instant::now() < deadline, "waited in vain");
        let mut worked = false;
        for node in nodes.iter_mut() {
            worked |= node.poll();
        }
        if !worked {
            let mut fds: Vec<libc::pollfd> = nodes
                .iter()
                .map(|node| libc::pollfd {
                    fd: node.fabric.wait_fd(),
                    events: libc::POLLIN,
                    revents: 0,
                })
                .collect();
            // SAFETY: the list has as many entries as is said.
            let ready = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, 5000) };
            assert!(ready > 0, "nothing woke anybody");
        }
    }
}

/// Polls for a while, to see that nothing more happens.
fn idle(nodes: &mut [&mut Node], time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        for node in nodes.iter_mut() {
            node.poll();
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Two fabrics with a link; the first listens.
fn linked_with(change: impl Fn(&mut TcpConfig)) -> (Node, Node) {
    let mut config = any_port();
    change(&mut config);
    let mut left = Node::new(config);
    let mut config = dialling(&[left.address()]);
    change(&mut config);
    let mut right = Node::new(config);
    run(&mut [&mut left, &mut right], |nodes| {
        nodes.iter().all(|node| node.linked())
    });
    (left, right)
}

fn linked() -> (Node, Node) {
    linked_with(|_| ())
}

/// A peer made by hand: connected, its HELLO sent and the other's read.
fn stranger(node: &mut Node, instance: [u8; 16]) -> TcpStream {
    stranger_saying(node, &Hello::new(instance, 65_536).encode())
}

/// A peer made by hand that says this first.
fn stranger_saying(node: &mut Node, hello: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(node.address()).unwrap();
    stream.write_all(hello).unwrap();
    run(&mut [node], |nodes| nodes[0].linked());
    let mut hello = [0; FRAME_LEN];
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.read_exact(&mut hello).unwrap();
    assert_eq!(hello[0], kind::HELLO);
    stream
}

/// A header that says no more than type and length.
fn header_of(kind: u8, length: u32) -> FrameHeader {
    FrameHeader {
        kind,
        length,
        ..FrameHeader::default()
    }
}

fn bytes(seed: usize, length: usize) -> Vec<u8> {
    (0..length)
        .map(|i| (i.wrapping_mul(31) ^ (i >> 8) ^ seed.wrapping_mul(17)) as u8)
        .collect()
}
