//! How links begin and end, and peers that do not keep to the protocol.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::hello::Hello;
use super::super::{TcpError, TcpFabric, Timing};
use super::*;
use crate::rdma::fabric::frame::{HEADER_LEN, kind};
use crate::rdma::fabric::test_utils::Event;
use crate::rdma::fabric::{Fabric, SendError};
use crate::rdma::test_utils::Random;

#[test]
fn either_may_start_first() {
    // The address of a fabric that is not there yet.
    let address = Node::new(any_port()).address();
    let mut early = Node::new(dialling(&[address]));
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
    let header = header_of(kind::ACK, 0);
    assert_eq!(
        right.fabric.send(at_right, &header, &[], &[]),
        Err(SendError::Down)
    );
}

#[test]
fn garbage_ends_the_link_that_it_came_on_and_no_other() {
    let hello = Hello::new([9; 16], 65_536).encode().to_vec();
    let of = |kind: u8, length: u32| header_of(kind, length).encode().to_vec();
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
    assert_eq!(got.len(), FRAME_LEN);
}

#[test]
fn an_idle_link_stays_up_by_pings() {
    let (mut left, mut right) = linked_with(|config| {
        config.timing.ping = Duration::from_millis(30);
        // Longer than this machine may leave the test without time between question and answer.
        config.timing.loss = PATIENCE;
    });
    // Each is asked and answers: the link is never silent for long.
    run(&mut [&mut left, &mut right], |nodes| {
        nodes.iter().all(|node| node.counters().rx_frames > 20)
    });
    assert!(left.linked() && right.linked());
    assert_eq!(left.counters().links_up, 1);
}

#[test]
fn a_link_outlives_monitors_that_stood_still_between_question_and_answer() {
    let (mut left, mut right) = linked_with(|config| {
        config.timing.ping = Duration::from_millis(1);
        config.timing.loss = Duration::from_millis(300);
    });
    let asked = |node: &Node| {
        node.fabric
            .links
            .iter()
            .flatten()
            .any(|link| link.pinged.is_some())
    };
    run(&mut [&mut left], |nodes| asked(nodes[0]));
    std::thread::sleep(Duration::from_millis(700));
    for _ in 0..100 {
        left.poll();
    }
    run(&mut [&mut left, &mut right], |nodes| {
        nodes.iter().all(|node| node.counters().rx_frames > 20)
    });
    for node in [&left, &right] {
        assert_eq!(
            (node.counters().links_up, node.counters().links_lost),
            (1, 0)
        );
    }
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
            let header = header_of(frame_kind, length as u32);
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
