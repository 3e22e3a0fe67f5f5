//! Links of several connections: how lanes join, what goes by which, and what ends them.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};

use super::*;
use crate::rdma::fabric::ethernet::EthernetPort;
use crate::rdma::fabric::frame::HEADER_LEN;

/// Two fabrics that would have so many lanes, with a link; the first listens.
fn laned(lanes: [u8; 2]) -> (Node, Node) {
    let mut config = any_port();
    config.lanes = lanes[0];
    let mut left = Node::new(config);
    let mut config = dialling(&[left.address()]);
    config.lanes = lanes[1];
    let mut right = Node::new(config);
    let both = lanes[0].min(lanes[1]);
    run(&mut [&mut left, &mut right], |nodes| {
        nodes.iter().all(|node| node.lanes() == both)
    });
    (left, right)
}

impl Node {
    /// Lanes to the only peer, 0 without a link.
    fn lanes(&self) -> u8 {
        match self.linked() {
            true => self.fabric.lanes(self.peer()),
            false => 0,
        }
    }

    fn send_by(&mut self, lane: u8, payload: &mut [u8]) -> Result<(), SendError> {
        let header = FrameHeader {
            lane,
            ..header_of(kind::WRITE, payload.len() as u32)
        };
        let peer = self.peer();
        self.fabric.send(peer, &header, &[], &[segment(payload)])
    }

    /// The payloads that came by a lane.
    fn came_by(&self, lane: u8) -> Vec<Vec<u8>> {
        let by = |event: &Event| match event {
            Event::Frame {
                header, payload, ..
            } if header.lane == lane => Some(payload.clone()),
            _ => None,
        };
        self.sink.events.iter().filter_map(by).collect()
    }

    fn connections(&self) -> usize {
        self.fabric.links.iter().flatten().count()
    }
}

/// Says HELLO on a connection of its own, as a lane of a link.
fn lane_of(node: &Node, instance: [u8; 16], link: u32, lane: u8) -> TcpStream {
    let mut stream = TcpStream::connect(node.address()).unwrap();
    let hello = Hello {
        lanes: 3,
        lane,
        link,
        ..Hello::new(instance, 65_536)
    };
    stream.write_all(&hello.encode()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// A peer made by hand whose link, number 7, would have three lanes.
fn laned_stranger(node: &mut Node, instance: [u8; 16]) -> TcpStream {
    let hello = Hello {
        lanes: 3,
        link: 7,
        ..Hello::new(instance, 65_536)
    };
    stranger_saying(node, &hello.encode())
}

/// Whether the other side has closed, all that it sent before read.
fn is_closed(stream: &mut TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    let mut buffer = [0; 4096];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return true,
            Ok(_) => (),
            Err(error) => return error.kind() != std::io::ErrorKind::WouldBlock,
        }
    }
}

#[test]
fn each_lane_carries_its_frames_in_order_both_ways() {
    let (mut left, mut right) = laned([3, 3]);
    assert_eq!([left.connections(), right.connections()], [3, 3]);
    let mut payloads: Vec<Vec<u8>> = (0..300)
        .map(|i| bytes(i, [1, 100, 5000, 65_536][i * 7 % 4]))
        .collect();
    let expected = payloads.clone();
    let mut sent = [0, 0];
    run(&mut [&mut left, &mut right], |nodes| {
        for (node, sent) in nodes.iter_mut().zip(&mut sent) {
            while *sent < payloads.len()
                && node
                    .send_by((*sent % 3) as u8, &mut payloads[*sent])
                    .is_ok()
            {
                *sent += 1;
            }
        }
        nodes.iter().all(|node| node.sink.frames() == 300)
    });
    for node in [&left, &right] {
        for lane in 0..3 {
            let those = expected.iter().skip(lane.into()).step_by(3);
            assert!(node.came_by(lane).iter().eq(those), "lane {lane}");
        }
        let counters = node.counters();
        assert_eq!((counters.lanes_up, counters.links_up), (2, 1));
    }
    // There is no such lane.
    assert_eq!(left.send_by(3, &mut [1]), Err(SendError::Down));
    assert!(!left.fabric.can_send(left.peer(), 3));
}

#[test]
fn a_link_has_as_many_lanes_as_both_would_have() {
    for (lanes, both) in [([4, 2], 2), ([2, 4], 2), ([1, 4], 1), ([4, 1], 1)] {
        let (mut left, mut right) = laned(lanes);
        assert_eq!(
            [left.connections(), right.connections()],
            [both, both],
            "{lanes:?}"
        );
        left.send_by(both as u8 - 1, &mut [1, 2, 3]).unwrap();
        run(&mut [&mut left, &mut right], |nodes| {
            nodes[1].sink.frames() == 1
        });
    }
}

#[test]
fn what_is_little_does_not_wait_behind_bulk() {
    let (mut left, mut right) = laned([2, 2]);
    let peer = left.peer();
    let mut payload = bytes(1, 65_536);
    // As much as lane, socket and the other's socket take.
    loop {
        let before = left.counters().tx_bytes;
        while left.send_by(1, &mut payload).is_ok() {}
        left.poll();
        if left.counters().tx_bytes == before {
            break;
        }
    }
    assert!(!left.fabric.can_send(peer, 1) && left.fabric.can_send(peer, 0));
    left.send_by(0, &mut [5]).unwrap();
    left.fabric.flush();
    // The left does not go on, so all that it has queued is still to come.
    run(&mut [&mut right], |nodes| !nodes[0].came_by(0).is_empty());
    assert_eq!(right.came_by(0), [[5]]);
    let lane = left.fabric.peers.get(peer).unwrap().slot(1).unwrap();
    let queued = |node: &Node| node.fabric.links[lane].as_ref().unwrap().transmit.queued();
    assert!(queued(&left) > 0);
    run(&mut [&mut left, &mut right], |nodes| queued(nodes[0]) == 0);
}

#[test]
fn a_lane_that_is_lost_takes_its_link_with_it_and_both_come_back() {
    let (mut left, mut right) = laned([3, 3]);
    for lane in 0..3 {
        let at_left = left.peer();
        let slot = right.fabric.peers.get(right.peer()).unwrap().slot(lane);
        // What was sent before on other lanes still arrives.
        for other in (0..3).filter(|other| *other != lane) {
            right.send_by(other, &mut [lane, other]).unwrap();
        }
        right.fabric.flush();
        let link = right.fabric.links[slot.unwrap()].as_ref().unwrap();
        link.stream.shutdown(Shutdown::Both).unwrap();
        let before = left.count(&Event::Down(at_left));
        run(&mut [&mut left, &mut right], |nodes| {
            let back = |node: &Node| node.counters().links_up == u64::from(lane) + 2;
            nodes.iter().all(|node| back(node) && node.lanes() == 3)
        });
        assert_eq!(left.peer(), at_left);
        assert_eq!(left.count(&Event::Down(at_left)), before + 1);
        for other in (0..3).filter(|other| *other != lane) {
            assert_eq!(left.came_by(other).last(), Some(&vec![lane, other]));
        }
        assert_eq!([left.connections(), right.connections()], [3, 3]);
    }
}

#[test]
fn two_that_dial_one_another_keep_one_link_with_its_lanes() {
    for round in 0..4u8 {
        let addresses = [(); 2].map(|()| Node::new(any_port()).address());
        let [mut left, mut right] = [0, 1].map(|me: usize| {
            let mut config = any_port();
            config.lanes = 3;
            config.listen = Some(addresses[me]);
            config.peers = vec![addresses[1 - me]];
            config.instance = [if (me == 0) == (round % 2 == 0) { 1 } else { 2 }; 16];
            Node::new(config)
        });
        run(&mut [&mut left, &mut right], |nodes| {
            nodes
                .iter()
                .all(|node| (node.lanes(), node.connections()) == (3, 3))
        });
        left.send_by(2, &mut [round]).unwrap();
        run(&mut [&mut left, &mut right], |nodes| {
            nodes[1].sink.frames() == 1
        });
    }
}

#[test]
fn monitors_without_lanes_are_given_none() {
    let mut config = any_port();
    config.lanes = 4;
    let mut node = Node::new(config);
    // A HELLO as of before there were lanes.
    let mut hello = Hello::new([9; 16], 65_536).encode().to_vec();
    hello.truncate(HEADER_LEN + 32);
    (hello[4], hello[HEADER_LEN + 28]) = (32, 0);
    let mut old = stranger_saying(&mut node, &hello);
    assert_eq!(node.lanes(), 1);
    old.write_all(&header_of(kind::SEND, 0).encode()).unwrap();
    run(&mut [&mut node], |nodes| nodes[0].sink.frames() == 1);
    // One that we dial is dialled once.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut config = dialling(&[listener.local_addr().unwrap()]);
    config.lanes = 4;
    let mut node = Node::new(config);
    let (mut old, _) = listener.accept().unwrap();
    old.write_all(&hello).unwrap();
    old.write_all(&header_of(kind::GID_ADD, 0).encode())
        .unwrap();
    old.write_all(&header_of(kind::SEND, 0).encode()).unwrap();
    run(&mut [&mut node], |nodes| nodes[0].sink.frames() == 1);
    listener.set_nonblocking(true).unwrap();
    idle(&mut [&mut node], Duration::from_millis(100));
    assert!(listener.accept().is_err());
    assert_eq!(node.connections(), 1);
}

#[test]
fn a_lane_joins_the_link_that_it_names_and_no_other() {
    let mut config = any_port();
    config.lanes = 3;
    let mut node = Node::new(config);
    let mut first = laned_stranger(&mut node, [9; 16]);
    // Somebody else, another link, a lane that the link has not.
    for (instance, link, lane) in [([8; 16], 7, 1), ([9; 16], 6, 1)] {
        let mut stream = lane_of(&node, instance, link, lane);
        run(&mut [&mut node], |_| is_closed(&mut stream));
    }
    let mut lanes = [2, 1].map(|lane| {
        assert_eq!(node.lanes(), 1);
        let stream = lane_of(&node, [9; 16], 7, lane);
        let peers = u64::from(3 - lane);
        run(&mut [&mut node], |nodes| {
            nodes[0].counters().lanes_up == peers
        });
        stream
    });
    assert_eq!(node.lanes(), 3);
    // It has that lane.
    let mut stream = lane_of(&node, [9; 16], 7, 1);
    run(&mut [&mut node], |_| is_closed(&mut stream));
    assert_eq!(node.counters().links_lost, 0);
    // GIDs go by the first lane only.
    lanes[0]
        .write_all(&header_of(kind::GID_ADD, 0).encode())
        .unwrap();
    run(&mut [&mut node], |nodes| !nodes[0].linked());
    run(&mut [&mut node], |_| is_closed(&mut first));
    for lane in &mut lanes {
        run(&mut [&mut node], |_| is_closed(lane));
    }
    assert_eq!(node.connections(), 0);
}

#[test]
fn a_lane_is_asked_only_while_it_owes_something() {
    let mut config = any_port();
    config.lanes = 3;
    config.timing.ping = Duration::from_millis(100);
    config.timing.loss = Duration::from_millis(300);
    let mut node = Node::new(config);
    let mut first = laned_stranger(&mut node, [9; 16]);
    let mut lanes = [1, 2].map(|lane| lane_of(&node, [9; 16], 7, lane));
    run(&mut [&mut node], |nodes| nodes[0].lanes() == 3);
    let alive = header_of(kind::PONG, 0).encode();
    let start = Instant::now();
    run(&mut [&mut node], |_| {
        first.write_all(&alive).unwrap();
        start.elapsed() > Duration::from_millis(600)
    });
    assert!(node.linked());
    let mut got = [0; FRAME_LEN + 1];
    for lane in &mut lanes {
        lane.set_nonblocking(true).unwrap();
        // The HELLO, and no PING.
        assert_eq!(lane.read(&mut got).unwrap(), FRAME_LEN);
    }
    // The second does not answer what it is sent.
    node.send_by(2, &mut [1]).unwrap();
    run(&mut [&mut node], |nodes| {
        // Fails when the link is lost.
        let _ = first.write_all(&alive);
        !nodes[0].linked()
    });
}

#[test]
fn ethernet_crosses_once_whatever_the_lanes() {
    let (mut left, mut right) = laned([3, 3]);
    let ports = [&mut left, &mut right].map(|node| node.fabric.ethernet_port().unwrap());
    let mut frame = bytes(1, 1514);
    frame[..6].copy_from_slice(&[0xff; 6]);
    frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
    assert!(ports[0].send(&[&frame]));
    run(&mut [&mut left, &mut right], |nodes| {
        nodes[1].counters().ethernet_rx > 0
    });
    idle(&mut [&mut left, &mut right], Duration::from_millis(20));
    let mut buffer = vec![0; 70_000];
    let mut receive = |port: &EthernetPort| port.receive(&mut buffer);
    assert_eq!(receive(&ports[1]), Some(1514));
    assert_eq!(receive(&ports[1]), None);
    assert_eq!(left.counters().ethernet_tx, 1);
}
