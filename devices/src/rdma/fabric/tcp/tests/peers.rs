//! More than two: routes by GID, fairness, and Ethernet among them.

use std::net::Shutdown;

use super::*;
use crate::rdma::fabric::ethernet::EthernetPort;
use crate::rdma::fabric::frame::kind;
use crate::rdma::fabric::test_utils::Event;
use crate::rdma::fabric::{Fabric, PeerId};

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
    let mut third = Node::new(any_port());
    third.fabric.announce(&[b]);
    let first = right.peer();
    let mut fourth = Node::new(dialling(&[third.address(), left.address()]));
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
        .map(|_| Node::new(dialling(&[hub.address()])))
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
        .map(|_| Node::new(dialling(&[hub.address()])))
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
    let mut receive = |port: &EthernetPort| {
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
