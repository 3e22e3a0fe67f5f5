//! Fabrics over real sockets, and peers that misbehave.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::hello::Hello;
use super::{TcpConfig, TcpError, TcpFabric, Timing};
use crate::rdma::fabric::frame::{FrameHeader, HEADER_LEN, kind};
use crate::rdma::fabric::test_utils::{Event, TestSink, segment};
use crate::rdma::fabric::{Fabric, PeerId, Placement, SendError, Sink};
use crate::rdma::stats::{PeerSnapshot, Stats};
use crate::rdma::test_utils::Random;

/// How long anything may take before a test fails.
const PATIENCE: Duration = Duration::from_secs(20);

fn any_port() -> TcpConfig {
    TcpConfig {
        listen: Some("127.0.0.1:0".parse().unwrap()),
        ..TcpConfig::new().unwrap()
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

    fn address(&self) -> std::net::SocketAddr {
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
        let header = FrameHeader {
            kind,
            length: payload.len() as u32,
            ..FrameHeader::default()
        };
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
    let mut config = TcpConfig::new().unwrap();
    config.peers = vec![left.address()];
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
    let mut stream = TcpStream::connect(node.address()).unwrap();
    stream
        .write_all(&Hello::new(instance, 65_536).encode())
        .unwrap();
    run(&mut [node], |nodes| nodes[0].linked());
    let mut hello = [0; 80];
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.read_exact(&mut hello).unwrap();
    assert_eq!(hello[0], kind::HELLO);
    stream
}

fn bytes(seed: usize, length: usize) -> Vec<u8> {
    (0..length)
        .map(|i| (i.wrapping_mul(31) ^ (i >> 8) ^ seed.wrapping_mul(17)) as u8)
        .collect()
}

#[test]
fn frames_of_all_sizes_cross_both_ways_in_order() {
    let (mut left, mut right) = linked();
    let sizes = [
        0, 1, 47, 48, 49, 64, 256, 257, 4095, 4096, 4097, 65_535, 65_536,
    ];
    let mut payloads: Vec<Vec<u8>> = (0..200)
        .map(|i| bytes(i, sizes[i * 7 % sizes.len()]))
        .collect();
    let expected = payloads.clone();
    let mut sent = [0, 0];
    run(&mut [&mut left, &mut right], |nodes| {
        for (node, sent) in nodes.iter_mut().zip(&mut sent) {
            while *sent < payloads.len() && node.send(kind::WRITE, &mut payloads[*sent]).is_ok() {
                *sent += 1;
            }
        }
        nodes
            .iter()
            .all(|node| node.sink.frames() == expected.len())
    });
    assert_eq!(left.sink.payloads(), expected);
    assert_eq!(right.sink.payloads(), expected);
    let counters = right.counters();
    // The GIDs, and what was sent.
    assert_eq!(counters.rx_frames, 201);
    assert_eq!(counters.tx_frames, 201);
    let bytes: usize = expected.iter().map(|payload| payload.len() + 48).sum();
    assert_eq!(counters.rx_bytes, bytes as u64 + 48 + 80);
    assert_eq!(counters.tx_bytes, counters.rx_bytes);
}

#[test]
fn small_frames_share_system_calls_and_large_ones_are_not_staged() {
    let (mut left, mut right) = linked();
    let before = left.counters();
    let mut payload = bytes(1, 64);
    for _ in 0..1000 {
        left.send(kind::WRITE, &mut payload).unwrap();
    }
    left.fabric.flush();
    run(&mut [&mut left, &mut right], |nodes| {
        nodes[1].sink.frames() == 1000
    });
    let after = left.counters();
    assert!(after.tx_calls - before.tx_calls <= 4);
    assert!(right.counters().rx_calls < 20);

    let before = right.counters();
    let mut payload = bytes(2, 65_536);
    let mut sent = 0;
    run(&mut [&mut left, &mut right], |nodes| {
        while sent < 200 && nodes[0].send(kind::WRITE, &mut payload).is_ok() {
            sent += 1;
        }
        nodes[1].sink.frames() == 1200
    });
    let after = right.counters();
    // Of 13 MB, what came before the fabric expected large ones.
    assert!(after.rx_staged - before.rx_staged < 2 * 65_536);
}

#[test]
fn every_boundary_of_partial_reads_and_writes_is_survived() {
    // Buffers far smaller than the frames, so that every call is cut short somewhere.
    let (mut left, mut right) = linked_with(|config| config.send_buffer = Some(1));
    let sizes = [0, 1, 100, 300, 1000, 5000, 20_000];
    let mut payloads: Vec<Vec<u8>> = (0..150)
        .map(|i| bytes(i, sizes[i * 5 % sizes.len()] + i))
        .collect();
    let expected = payloads.clone();
    let mut sent = [0, 0];
    run(&mut [&mut left, &mut right], |nodes| {
        for (node, sent) in nodes.iter_mut().zip(&mut sent) {
            if *sent < payloads.len() && node.send(kind::SEND, &mut payloads[*sent]).is_ok() {
                *sent += 1;
            }
        }
        nodes.iter().all(|node| node.sink.frames() == 150)
    });
    assert_eq!(left.sink.payloads(), expected);
    assert_eq!(right.sink.payloads(), expected);
}

#[test]
fn a_stream_cut_at_every_place_is_put_together() {
    let mut node = Node::new(any_port());
    let mut stream = stranger(&mut node, [9; 16]);
    stream.set_nodelay(true).unwrap();
    let mut wire = Vec::new();
    let mut expected = Vec::new();
    for (i, (frame_kind, length)) in [
        (kind::WRITE, 3),
        (kind::ACK, 0),
        (kind::ATOMIC, 16),
        (kind::SEND, 70),
    ]
    .into_iter()
    .enumerate()
    {
        let header = FrameHeader {
            kind: frame_kind,
            length,
            ..FrameHeader::default()
        };
        let payload = bytes(i, length as usize);
        wire.extend(header.encode());
        wire.extend(&payload);
        expected.push(payload);
    }
    let mut frames = 0;
    for cut in 1..wire.len() {
        stream.write_all(&wire[..cut]).unwrap();
        let fed = node.counters().rx_bytes;
        run(&mut [&mut node], |nodes| {
            nodes[0].counters().rx_bytes >= fed + cut as u64
        });
        stream.write_all(&wire[cut..]).unwrap();
        frames += 4;
        run(&mut [&mut node], |nodes| nodes[0].sink.frames() == frames);
        let payloads = node.sink.payloads();
        assert_eq!(payloads[frames - 4..], expected, "cut at {cut}");
    }
}

#[test]
fn either_may_start_first() {
    // The address of a fabric that is not there yet.
    let address = Node::new(any_port()).address();
    let mut config = TcpConfig::new().unwrap();
    config.peers = vec![address];
    let mut early = Node::new(config);
    idle(&mut [&mut early], Duration::from_millis(150));
    assert!(!early.linked());
    let mut config = any_port();
    config.listen = Some(address);
    let mut late = Node::new(config);
    run(&mut [&mut early, &mut late], |nodes| {
        nodes.iter().all(|node| node.linked())
    });
}

#[test]
fn two_that_dial_one_another_keep_one_link() {
    for round in 0..8u8 {
        let addresses = [
            Node::new(any_port()).address(),
            Node::new(any_port()).address(),
        ];
        let node = |me: usize, instance: u8| {
            let mut config = any_port();
            config.listen = Some(addresses[me]);
            config.peers = vec![addresses[1 - me]];
            config.instance = [instance; 16];
            Node::new(config)
        };
        let mut left = node(0, round % 2 + 1);
        let mut right = node(1, 5 - round % 2 * 5);
        idle(
            &mut [&mut left, &mut right],
            Duration::from_millis(100 + 20 * u64::from(round)),
        );
        let links = |node: &Node| node.fabric.links.iter().flatten().count();
        run(&mut [&mut left, &mut right], |nodes| {
            let settled = |node: &Node| {
                let mut targets = node.fabric.targets.iter();
                links(node) == 1 && targets.all(|target| target.instance.is_some())
            };
            nodes.iter().all(|node| node.linked() && settled(node))
        });
        // Once everyone knows who is where, that is the end of it.
        let made = |node: &Node| node.fabric.generation;
        let before = [made(&left), made(&right)];
        idle(&mut [&mut left, &mut right], Duration::from_millis(100));
        assert_eq!([made(&left), made(&right)], before);
        let mut payload = vec![round; 100];
        left.send(kind::SEND, &mut payload).unwrap();
        let mut answer = vec![round; 50];
        right.send(kind::SEND, &mut answer).unwrap();
        run(&mut [&mut left, &mut right], |nodes| {
            nodes.iter().all(|node| node.sink.frames() == 1)
        });
        for node in [&left, &right] {
            assert_eq!(links(node), 1);
            assert_eq!(node.peers().count(), 1);
        }
    }
}

#[test]
fn dialling_oneself_is_noticed_and_given_up() {
    let address = Node::new(any_port()).address();
    let mut config = any_port();
    config.listen = Some(address);
    config.peers = vec![address];
    let mut node = Node::new(config);
    idle(&mut [&mut node], Duration::from_millis(300));
    assert_eq!(node.fabric.links.iter().flatten().count(), 0);
    assert!(node.sink.events.is_empty());
    assert!(!node.poll());
}

#[test]
fn a_taken_address_is_named() {
    let node = Node::new(any_port());
    let mut config = any_port();
    config.listen = Some(node.address());
    let error = TcpFabric::new(config, Arc::default()).err().unwrap();
    assert!(matches!(error, TcpError::Listen { .. }));
    assert!(error.to_string().contains(&node.address().to_string()));
}

#[test]
fn a_peer_that_comes_back_is_the_same_and_another_one_there_is_not() {
    let (mut left, mut right) = linked();
    let first = left.peer();
    let at_right = right.peer();
    // The link breaks.
    for link in right.fabric.links.iter().flatten() {
        link.stream.shutdown(Shutdown::Both).unwrap();
    }
    run(&mut [&mut left, &mut right], |nodes| {
        nodes.iter().all(|node| {
            let peer = node.counters();
            (peer.links_up, peer.links_lost) == (2, 1)
        })
    });
    assert_eq!(left.count(&Event::Down(first)), 1);
    assert_eq!(left.count(&Event::Up(first)), 2);
    assert_eq!(right.count(&Event::Up(at_right)), 2);
    // The monitor ends, and another begins at the same address.
    let address = left.address();
    drop(left);
    run(&mut [&mut right], |nodes| !nodes[0].linked());
    assert_eq!(right.count(&Event::Down(at_right)), 2);
    let mut config = any_port();
    config.listen = Some(address);
    let mut left = Node::new(config);
    run(&mut [&mut left, &mut right], |nodes| {
        nodes.iter().all(|node| node.linked())
    });
    assert_ne!(right.peer(), at_right);
    assert!(!right.fabric.is_up(at_right));
    let header = FrameHeader {
        kind: kind::ACK,
        ..FrameHeader::default()
    };
    assert_eq!(
        right.fabric.send(at_right, &header, &[], &[]),
        Err(SendError::Down)
    );
}

#[test]
fn a_peer_dies_in_the_middle_of_a_frame() {
    for given in [1, 47, 48, 49, 1000, 9999] {
        let mut node = Node::new(any_port());
        let mut stream = stranger(&mut node, [9; 16]);
        let peer = node.peer();
        let header = FrameHeader {
            kind: kind::WRITE,
            length: 10_000,
            ..FrameHeader::default()
        };
        let mut wire = header.encode().to_vec();
        wire.extend(bytes(3, 10_000));
        stream.write_all(&wire[..given]).unwrap();
        drop(stream);
        run(&mut [&mut node], |nodes| !nodes[0].linked());
        assert_eq!(node.count(&Event::Down(peer)), 1);
        assert_eq!(node.sink.frames(), 0);
        assert!(node.fabric.last_heard(peer).is_some());
    }
}

#[test]
fn tx_frames_before_the_end_of_a_link_arrive() {
    let mut node = Node::new(any_port());
    let mut stream = stranger(&mut node, [9; 16]);
    let header = FrameHeader {
        kind: kind::SEND,
        length: 1000,
        ..FrameHeader::default()
    };
    for i in 0..300 {
        stream.write_all(&header.encode()).unwrap();
        stream.write_all(&bytes(i, 1000)).unwrap();
    }
    stream.shutdown(Shutdown::Write).unwrap();
    run(&mut [&mut node], |nodes| !nodes[0].linked());
    assert_eq!(node.sink.frames(), 300);
}

#[test]
fn garbage_ends_the_link_that_it_came_on_and_no_other() {
    let hello = Hello::new([9; 16], 65_536).encode().to_vec();
    let frame = |header: FrameHeader| header.encode().to_vec();
    let of = |kind: u8, length: u32| {
        frame(FrameHeader {
            kind,
            length,
            ..FrameHeader::default()
        })
    };
    let mut reserved = of(kind::ACK, 0);
    reserved[2] = 1;
    let mut flags = of(kind::ACK, 0);
    flags[1] = 0x80;
    let mut version = hello.clone();
    version[HEADER_LEN + 4..HEADER_LEN + 8].copy_from_slice(&[7, 0, 7, 0]);
    let greeted = |rest: Vec<u8>| [hello.clone(), rest].concat();
    let cases = [
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: none\r\n\r\n".to_vec(),
        of(kind::SEND, 0),
        of(kind::HELLO, 31),
        of(kind::HELLO, 1025),
        version,
        greeted(hello.clone()),
        greeted(of(0x99, 0)),
        greeted(of(0, 0)),
        greeted(of(kind::ACK, 1)),
        greeted(of(kind::ATOMIC, 15)),
        greeted(of(kind::ATOMIC_DATA, 16)),
        greeted(of(kind::GID_ADD, 17)),
        greeted(of(kind::GID_ADD, 16 * 1025)),
        greeted(of(kind::ETHERNET, 13)),
        greeted(of(kind::WRITE, (1 << 20) + 1)),
        greeted(of(kind::WRITE, u32::MAX)),
        greeted(reserved),
        greeted(flags),
    ];
    let (mut node, mut friend) = linked();
    for (number, garbage) in cases.into_iter().enumerate() {
        let mut stream = TcpStream::connect(node.address()).unwrap();
        stream.write_all(&garbage).unwrap();
        stream.set_nonblocking(true).unwrap();
        let mut buffer = [0; 1000];
        run(&mut [&mut node], |_| {
            loop {
                match stream.read(&mut buffer) {
                    Ok(0) => return true,
                    Ok(_) => (),
                    Err(error) => return error.kind() != std::io::ErrorKind::WouldBlock,
                }
            }
        });
        assert_eq!(node.sink.frames(), 0, "case {number}");
    }
    friend.send(kind::SEND, &mut [1, 2, 3]).unwrap();
    run(&mut [&mut node, &mut friend], |nodes| {
        nodes[0].sink.frames() == 1
    });
    assert_eq!(node.links(), 1);
}

#[test]
fn who_says_nothing_is_asked_and_then_lost() {
    let timing = Timing {
        ping: Duration::from_millis(50),
        loss: Duration::from_millis(250),
        handshake: Duration::from_millis(200),
        ..Timing::default()
    };
    let mut config = any_port();
    config.timing = timing;
    let mut node = Node::new(config);
    // One that never says HELLO.
    let mut mute = TcpStream::connect(node.address()).unwrap();
    // One that does, and answers nothing.
    let mut silent = stranger(&mut node, [9; 16]);
    let peer = node.peer();
    let start = Instant::now();
    run(&mut [&mut node], |nodes| !nodes[0].linked());
    assert!(start.elapsed() >= Duration::from_millis(200));
    assert_eq!(node.count(&Event::Down(peer)), 1);
    let mut got = Vec::new();
    silent.read_to_end(&mut got).unwrap();
    assert_eq!(got[0], kind::GID_ADD);
    assert_eq!(got[HEADER_LEN], kind::PING);
    run(&mut [&mut node], |nodes| {
        nodes[0].fabric.links.iter().flatten().count() == 0
    });
    got.clear();
    let _ = mute.read_to_end(&mut got);
    assert_eq!(got.len(), 80);
}

#[test]
fn an_idle_link_stays_up_by_pings() {
    let (mut left, mut right) = linked_with(|config| {
        config.timing.ping = Duration::from_millis(30);
        config.timing.loss = Duration::from_millis(400);
    });
    let start = Instant::now();
    run(&mut [&mut left, &mut right], |_| {
        start.elapsed() > Duration::from_millis(900)
    });
    assert!(left.linked() && right.linked());
    assert_eq!(left.counters().links_up, 1);
    assert!(left.counters().tx_frames > 5);
}

#[test]
fn a_queue_that_fills_says_so_and_keeps_room_for_acknowledgements() {
    let mut node = Node::new(any_port());
    let mut stream = stranger(&mut node, [9; 16]);
    let peer = node.peer();
    let mut payload = bytes(1, 65_536);
    let mut sent = 0;
    loop {
        match node.send(kind::WRITE, &mut payload) {
            Ok(()) => sent += 1,
            Err(SendError::Full) => {
                let before = node.counters().tx_bytes;
                node.fabric.flush();
                if node.counters().tx_bytes == before {
                    break;
                }
            }
            Err(SendError::Down) => panic!("link lost"),
        }
    }
    assert!(!node.fabric.can_send(peer) && node.fabric.is_up(peer));
    let ack = FrameHeader {
        kind: kind::ACK,
        ..FrameHeader::default()
    };
    let mut acks = 0;
    while acks < 10_000 && node.fabric.send(peer, &ack, &[], &[]).is_ok() {
        acks += 1;
    }
    assert_eq!(acks, 10_000);
    while node.fabric.send(peer, &ack, &[], &[]).is_ok() {
        acks += 1;
    }
    // It has a bound, and what was taken arrives.
    let total = 48 + sent * (65_536 + 48) + acks * 48;
    let reader = std::thread::spawn(move || {
        let mut got = vec![0; total];
        stream.read_exact(&mut got).unwrap();
        (stream, got)
    });
    run(&mut [&mut node], |nodes| {
        nodes[0].fabric.can_send(peer) && nodes[0].counters().tx_bytes >= 80 + total as u64
    });
    let (_stream, got) = reader.join().unwrap();
    assert_eq!(got[48 + 48..48 + 48 + 65_536], payload);
    assert_eq!(got[total - 48], kind::ACK);
}

#[test]
fn queued_payloads_are_copied_when_memory_is_let_go_of() {
    let mut node = Node::new(any_port());
    let mut stream = stranger(&mut node, [9; 16]);
    let mut sent = Vec::new();
    let mut buffers = Vec::new();
    // More than the socket takes, so that the first queued frame is half sent.
    for i in 0.. {
        let mut buffer = bytes(i, 30_000 + i);
        if node.send(kind::WRITE, &mut buffer).is_err() {
            let before = node.counters().tx_bytes;
            node.fabric.flush();
            if node.counters().tx_bytes == before {
                break;
            }
            continue;
        }
        sent.push(buffer.clone());
        buffers.push(buffer);
    }
    node.fabric.forget_memory();
    buffers.iter_mut().for_each(|buffer| buffer.fill(0));
    let expected = sent.clone();
    let reader = std::thread::spawn(move || {
        let mut skipped = [0; 48];
        stream.read_exact(&mut skipped).unwrap();
        for payload in &expected {
            let mut got = vec![0; HEADER_LEN + payload.len()];
            stream.read_exact(&mut got).unwrap();
            assert!(got[HEADER_LEN..] == payload[..]);
        }
        stream
    });
    let total: usize = sent.iter().map(|payload| payload.len() + 48).sum();
    run(&mut [&mut node], |nodes| {
        nodes[0].counters().tx_bytes >= 80 + 48 + total as u64
    });
    reader.join().unwrap();
}

#[test]
fn a_payload_that_is_being_read_is_asked_for_anew() {
    let mut node = Node::new(any_port());
    let mut stream = stranger(&mut node, [9; 16]);
    let header = FrameHeader {
        kind: kind::WRITE,
        length: 50_000,
        ..FrameHeader::default()
    };
    let payload = bytes(4, 50_000);
    stream.write_all(&header.encode()).unwrap();
    let mut at = 0;
    for part in [0, 10_000, 20_000] {
        stream.write_all(&payload[at..at + part]).unwrap();
        at += part;
        let fed = 80 + 48 + at as u64;
        run(&mut [&mut node], |nodes| {
            nodes[0].counters().rx_bytes >= fed
        });
        node.fabric.forget_memory();
        node.sink.move_memory();
    }
    // The last time, the device has no use for it any more, and is not asked again.
    node.sink.discard = true;
    stream.write_all(&payload[at..at + 5000]).unwrap();
    at += 5000;
    let fed = 80 + 48 + at as u64;
    run(&mut [&mut node], |nodes| {
        nodes[0].counters().rx_bytes >= fed
    });
    node.fabric.forget_memory();
    node.sink.discard = false;
    stream.write_all(&payload[at..]).unwrap();
    run(&mut [&mut node], |nodes| nodes[0].sink.frames() == 1);
    assert_eq!(node.sink.skips, [10_000, 30_000]);
    assert!(matches!(
        node.sink.events.last(),
        Some(Event::Frame {
            placement: Placement::Discard,
            ..
        })
    ));
    // The stream is still understood.
    stream.write_all(&header.encode()).unwrap();
    stream.write_all(&payload).unwrap();
    run(&mut [&mut node], |nodes| nodes[0].sink.frames() == 2);
    assert_eq!(node.sink.payloads()[1], payload);
}

/// A sink whose segments are no memory.
struct NoMemory;

impl Sink for NoMemory {
    fn place(
        &mut self,
        _: PeerId,
        header: &FrameHeader,
        skip: u32,
        into: &mut Vec<crate::rdma::memory::Segment>,
    ) -> Placement {
        into.push(crate::rdma::memory::Segment {
            base: std::ptr::without_provenance_mut(4096),
            len: (header.length - skip) as usize,
        });
        Placement::Into
    }
    fn frame(&mut self, _: PeerId, _: &FrameHeader, _: Placement, _: &[u8]) {
        panic!("nothing can have been placed");
    }
    fn peer_up(&mut self, _: PeerId) {}
    fn peer_down(&mut self, _: PeerId) {}
    fn routes_changed(&mut self) {}
}

#[test]
fn memory_that_is_not_there_ends_the_link_and_not_the_process() {
    let mut node = Node::new(any_port());
    let mut stream = stranger(&mut node, [9; 16]);
    let header = FrameHeader {
        kind: kind::WRITE,
        length: 50_000,
        ..FrameHeader::default()
    };
    stream.write_all(&header.encode()).unwrap();
    let fed = node.counters().rx_bytes;
    let deadline = Instant::now() + PATIENCE;
    // The header alone first: what is staged would be copied by us.
    while node.counters().rx_bytes < fed + 48 || node.fabric.poll(&mut NoMemory) {
        node.fabric.poll(&mut NoMemory);
        assert!(Instant::now() < deadline);
    }
    stream.write_all(&bytes(1, 50_000)).unwrap();
    while node.linked() {
        node.fabric.poll(&mut NoMemory);
        assert!(Instant::now() < deadline);
    }
    // The same for what is to be sent.
    let _stream = stranger(&mut node, [8; 16]);
    let peer = node.peer();
    let nowhere = crate::rdma::memory::Segment {
        base: std::ptr::without_provenance_mut(4096),
        len: 5000,
    };
    let header = FrameHeader {
        kind: kind::WRITE,
        length: 5000,
        ..FrameHeader::default()
    };
    node.fabric.send(peer, &header, &[], &[nowhere]).unwrap();
    run(&mut [&mut node], |nodes| !nodes[0].linked());
}

#[test]
fn gids_are_learned_kept_up_to_date_and_moved() {
    let (mut left, mut right) = linked();
    let (a, b, c) = ([1; 16], [2; 16], [3; 16]);
    left.fabric.announce(&[a, b]);
    assert_eq!(left.fabric.route(&a), Some(PeerId::LOCAL));
    run(&mut [&mut left, &mut right], |nodes| {
        nodes[1].fabric.route(&b).is_some()
    });
    assert_eq!(right.fabric.route(&a), Some(right.peer()));
    assert!(right.count(&Event::Routes) >= 1);
    left.fabric.announce(&[b, c]);
    run(&mut [&mut left, &mut right], |nodes| {
        nodes[1].fabric.route(&c).is_some()
    });
    assert_eq!(right.fabric.route(&a), None);
    // A third announces b: it has it now.
    let mut config = TcpConfig::new().unwrap();
    config.listen = Some("127.0.0.1:0".parse().unwrap());
    let mut third = Node::new(config);
    third.fabric.announce(&[b]);
    let first = right.peer();
    let mut config = TcpConfig::new().unwrap();
    config.peers = vec![third.address(), left.address()];
    let mut fourth = Node::new(config);
    run(&mut [&mut left, &mut third, &mut fourth], |nodes| {
        nodes[2].fabric.route(&b).is_some() && nodes[2].fabric.route(&c).is_some()
    });
    let owner = fourth.fabric.route(&c).unwrap();
    // While the link is lost the route stays; what the peer no longer announces when it is back goes.
    for link in left.fabric.links.iter().flatten() {
        link.stream.shutdown(Shutdown::Both).unwrap();
    }
    left.fabric.announce(&[a]);
    run(&mut [&mut left, &mut right, &mut fourth], |nodes| {
        nodes[1].fabric.route(&a).is_some() && nodes[2].fabric.route(&a).is_some()
    });
    assert_eq!(right.fabric.route(&a), Some(first));
    assert_eq!(right.fabric.route(&c), None);
    assert_eq!(fourth.fabric.route(&a), Some(owner));
    assert_ne!(fourth.fabric.route(&b), Some(owner));
}

#[test]
fn eight_peers_share_one_fabric_fairly() {
    let mut hub = Node::new(any_port());
    let mut spokes: Vec<Node> = (0..8)
        .map(|_| {
            let mut config = TcpConfig::new().unwrap();
            config.peers = vec![hub.address()];
            Node::new(config)
        })
        .collect();
    let mut nodes: Vec<&mut Node> = spokes.iter_mut().collect();
    nodes.push(&mut hub);
    run(&mut nodes, |nodes| {
        nodes[8].links() == 8 && nodes[..8].iter().all(|n| n.linked())
    });
    let mut payloads: Vec<Vec<u8>> = (0..8).map(|i| bytes(i, 40_000)).collect();
    let mut sent = [0; 8];
    run(&mut nodes, |nodes| {
        for (i, sent) in sent.iter_mut().enumerate() {
            while *sent < 50 && nodes[i].send(kind::WRITE, &mut payloads[i]).is_ok() {
                *sent += 1;
            }
        }
        nodes[8].sink.frames() == 400
    });
    assert_eq!(hub.peers().count(), 8);
    for peer in hub.peers() {
        assert_eq!(peer.rx_frames, 51);
    }
    for (event, _) in hub.sink.events.iter().zip(0..) {
        if let Event::Frame { payload, .. } = event {
            assert!(payloads.contains(payload));
        }
    }
}

#[test]
fn ethernet_is_flooded_until_learned_and_never_goes_from_peer_to_peer() {
    let mut hub = Node::new(any_port());
    let mut spokes: Vec<Node> = (0..2)
        .map(|_| {
            let mut config = TcpConfig::new().unwrap();
            config.peers = vec![hub.address()];
            Node::new(config)
        })
        .collect();
    let at_hub = hub.fabric.ethernet_port().unwrap();
    let ports: Vec<_> = spokes
        .iter_mut()
        .map(|spoke| spoke.fabric.ethernet_port().unwrap())
        .collect();
    let mut nodes: Vec<&mut Node> = spokes.iter_mut().collect();
    nodes.push(&mut hub);
    run(&mut nodes, |nodes| nodes[2].links() == 2);
    let frame = |to: u8, from: u8, length: usize| {
        let mut frame = bytes(1, length);
        frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, to]);
        frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, from]);
        frame
    };
    let mut buffer = vec![0; 70_000];
    let mut receive = |port: &crate::rdma::fabric::ethernet::EthernetPort| {
        port.receive(&mut buffer)
            .map(|length| buffer[..length].to_vec())
    };
    // Not known: both get it.
    let unknown = frame(10, 2, 1514);
    assert!(at_hub.send(&[&unknown]));
    let mut got = [None, None];
    run(&mut nodes, |_| {
        for (got, port) in got.iter_mut().zip(&ports) {
            *got = got.take().or_else(|| receive(port));
        }
        got.iter().all(Option::is_some)
    });
    assert_eq!(got, [Some(unknown.clone()), Some(unknown)]);
    // The first answers, jumbo sized, and is known from then on.
    let answer = frame(2, 10, 9014);
    assert!(ports[0].send(&[&answer[..100], &answer[100..]]));
    let mut got = None;
    run(&mut nodes, |_| {
        got = receive(&at_hub);
        got.is_some()
    });
    assert_eq!(got, Some(answer));
    let known = frame(10, 2, 60);
    assert!(at_hub.send(&[&known]));
    let mut got = None;
    run(&mut nodes, |_| {
        got = receive(&ports[0]);
        got.is_some()
    });
    assert_eq!(got, Some(known));
    // The second sends to the first: the hub has no say in that.
    assert!(ports[1].send(&[&frame(10, 11, 60)]));
    let filtered = |nodes: &[&mut Node]| nodes[2].stats.snapshot().ethernet.filtered;
    run(&mut nodes, |nodes| filtered(nodes) == 1);
    assert_eq!(receive(&ports[0]), None);
    assert_eq!(receive(&ports[1]), None);
    assert_eq!(receive(&at_hub), None);
}

#[test]
fn ethernet_does_not_starve_behind_rdma_and_is_dropped_beyond_its_room() {
    let mut node = Node::new(any_port());
    let port = node.fabric.ethernet_port().unwrap();
    let _stream = stranger(&mut node, [9; 16]);
    let mut payload = bytes(1, 65_536);
    // The peer reads nothing: the queue fills.
    while node.send(kind::WRITE, &mut payload).is_ok() || {
        let before = node.counters().tx_bytes;
        node.fabric.flush();
        node.counters().tx_bytes > before
    } {}
    let frame = bytes(2, 9014);
    let mut offered = 0;
    run(&mut [&mut node], |nodes| {
        offered += usize::from(port.send(&[&frame]));
        nodes[0].counters().ethernet_dropped > 0
    });
    assert!(offered > 20, "{offered} frames found room");
    assert!(node.linked());
}

#[test]
fn both_queue_pairs_may_be_here() {
    let mut node = Node::new(any_port());
    let header = FrameHeader {
        kind: kind::SEND,
        length: 4,
        ..FrameHeader::default()
    };
    node.fabric
        .send(PeerId::LOCAL, &header, &[1, 2, 3, 4], &[])
        .unwrap();
    assert!(node.poll());
    assert_eq!(node.sink.payloads(), [[1, 2, 3, 4]]);
}

#[test]
fn mutated_streams_end_links_and_nothing_else() {
    let mut node = Node::new(any_port());
    let mut random = Random(2_463_534_242);
    let kinds = [
        kind::PING,
        kind::PONG,
        kind::GID_ADD,
        kind::GID_DEL,
        kind::ETHERNET,
        kind::SEND,
        kind::WRITE,
        kind::READ,
        kind::READ_DATA,
        kind::ATOMIC,
        kind::ATOMIC_DATA,
        kind::ACK,
        kind::NAK,
    ];
    for _ in 0..300 {
        let mut wire = Hello::new([random.index(4) as u8; 16], 65_536)
            .encode()
            .to_vec();
        for _ in 0..random.index(20) {
            let frame_kind = kinds[random.index(kinds.len())];
            let length = match frame_kind {
                kind::GID_ADD | kind::GID_DEL => 16 * random.index(20),
                kind::ETHERNET => 14 + random.index(2000),
                kind::SEND | kind::WRITE | kind::READ_DATA => random.index(10_000),
                kind::ATOMIC => 16,
                kind::ATOMIC_DATA => 8,
                _ => 0,
            };
            let header = FrameHeader {
                kind: frame_kind,
                length: length as u32,
                ..FrameHeader::default()
            };
            wire.extend(header.encode());
            wire.extend(bytes(length, length));
        }
        for _ in 0..random.index(4) {
            let at = random.index(wire.len());
            wire[at] ^= 1 << random.index(8);
        }
        wire.truncate(wire.len() - random.index(2) * random.index(wire.len()));
        let mut stream = TcpStream::connect(node.address()).unwrap();
        // Fails where the link was ended before all was written.
        let _ = stream.write_all(&wire);
        let _ = stream.shutdown(Shutdown::Write);
        let before = node.fabric.generation;
        run(&mut [&mut node], |nodes| {
            let fabric = &nodes[0].fabric;
            fabric.generation > before && fabric.links.iter().all(Option::is_none)
        });
    }
    assert!(node.sink.frames() > 500, "{} frames", node.sink.frames());
    assert!(node.peers().count() >= 4);
    let _stream = stranger(&mut node, [99; 16]);
}
