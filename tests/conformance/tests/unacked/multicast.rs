//! Multicast: to every member on every device that is linked.

use std::time::Duration;

use conformance::layout::{DatagramAddress, MULTICAST_QPN, Status, qp_type, send, state};
use conformance::node::KERNEL;
use conformance::on_every_fabric;
use conformance::rings::SendWr;
use conformance::side::{Connection, Side, connected, silence, success};
use conformance::watchdog::Watchdog;
use conformance::world::{Kind, Options, World, node, tcp_fabric};

use super::{address, datagram_side, options, to_rts};

const SHORT: Duration = Duration::from_millis(30);

/// 239.1.1.n as a GID.
fn group(n: u8) -> [u8; 16] {
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 1, 1, n]
}

fn to(group: [u8; 16]) -> DatagramAddress {
    DatagramAddress {
        dest_qpn: MULTICAST_QPN,
        qkey: Connection::default().qkey,
        dgid: group,
        hop_limit: 1,
        ..Default::default()
    }
}

fn join(side: &Side, group: [u8; 16]) {
    side.node
        .attach_mcast(side.context, side.qp.qpn, group)
        .expect("ATTACH_MCAST");
}

fn post(side: &mut Side, group: [u8; 16], text: &[u8]) {
    side.send(
        &SendWr::signaled(1, send::SEND)
            .with_inline(text)
            .to(to(group)),
    );
}

on_every_fabric! {
    fn every_member_gets_a_copy_the_sender_too(world: &World) {
        let (mut a, mut b) = (datagram_side(world.a()), datagram_side(world.b()));
        let mut c = datagram_side(world.b());
        let mut outsider = datagram_side(world.b());
        for side in [&a, &b, &c] {
            join(side, group(1));
        }
        world.settle();
        for side in [&mut a, &mut b, &mut c, &mut outsider] {
            side.recv(9, 0, 100);
            side.recv(10, 200, 100);
        }
        post(&mut a, group(1), b"to all");
        let mut own = 0;
        for _ in 0..2 {
            let cqe = success(world, &mut a, "send and receive of the sender");
            own += u32::from(!cqe.is_send());
        }
        assert_eq!(own, 1);
        for side in [&mut b, &mut c] {
            let cqe = success(world, side, "a member");
            assert_eq!((cqe.byte_len, cqe.src_qpn), (46, a.qp.qpn));
            assert_eq!(side.mr.read(40, 6), b"to all");
            assert_eq!(side.mr.read(36, 4), [239, 1, 1, 1], "the group is the destination in the header");
        }
        silence(world, &mut outsider, SHORT, "a QP that is no member");
        // One leaves.
        b.node.detach_mcast(b.context, b.qp.qpn, group(1)).expect("DETACH_MCAST");
        post(&mut a, group(1), b"again");
        success(world, &mut c, "a member that stayed");
        silence(world, &mut b, SHORT, "a member that left");
        assert_eq!(a.node.counters().tx_discarded, 0);
    }

    fn a_sender_that_blocks_loopback_gets_what_others_send_and_nothing_of_its_own(world: &World) {
        let mut blocks = options(qp_type::UD);
        blocks.qp.block_loopback = true;
        let (mut a, mut near) = (Side::new(world.a(), &blocks), datagram_side(world.a()));
        to_rts(&a);
        let mut b = datagram_side(world.b());
        for side in [&a, &near, &b] {
            join(side, group(1));
        }
        world.settle();
        for side in [&mut a, &mut near, &mut b] {
            side.recv(9, 0, 100);
            side.recv(10, 200, 100);
        }
        post(&mut a, group(1), b"to others");
        assert!(success(world, &mut a, "the send").is_send());
        for side in [&mut near, &mut b] {
            assert_eq!(success(world, side, "another member").byte_len, 49);
        }
        silence(world, &mut a, SHORT, "its own datagram");
        post(&mut near, group(1), b"of its device");
        assert_eq!(success(world, &mut a, "a member of the same device").byte_len, 53);
        post(&mut b, group(1), b"of another");
        assert_eq!(success(world, &mut a, "a member elsewhere").byte_len, 50);
        // Sent to itself and to no group, it arrives.
        a.recv(11, 400, 100);
        a.send(&SendWr::signaled(1, send::SEND).with_inline(b"me").to(address(&a)));
        let mut own = 0;
        for _ in 0..2 {
            own += u32::from(!success(world, &mut a, "send and receive").is_send());
        }
        assert_eq!(own, 1);
        // Nothing that is connected has such a flag.
        blocks.qp.kind = qp_type::RC;
        let refused = a.node.create_qp(a.context, a.pd, a.cq.cqn, a.cq.cqn, &blocks.qp).map(drop);
        assert_eq!(refused, Err(Status::Invalid));
    }

    fn groups_of_others_and_wrong_qkeys_are_left_alone(world: &World) {
        let (mut a, mut b) = (datagram_side(world.a()), datagram_side(world.b()));
        join(&b, group(1));
        join(&b, [0xff, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5]);
        world.settle();
        b.recv(1, 0, 100);
        post(&mut a, group(2), b"to nobody");
        success(world, &mut a, "the send");
        assert_eq!(a.node.counters().tx_discarded, 1, "no member, nobody to send to");
        a.send(&SendWr::signaled(1, send::SEND).with_inline(b"x").to(DatagramAddress { qkey: 1, ..to(group(1)) }));
        success(world, &mut a, "the send");
        silence(world, &mut b, SHORT, "a datagram for others");
        assert_eq!(b.node.counters().qkey_errors, 1);
        post(&mut a, [0xff, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5], b"IPv6");
        assert_eq!(success(world, &mut b, "an IPv6 group").byte_len, 44);
    }

    fn attaching_is_checked(world: &World) {
        let side = datagram_side(world.a());
        let (node, me, qpn) = (&side.node, side.context, side.qp.qpn);
        assert_eq!(node.attach_mcast(me, qpn, node.gid), Err(Status::Invalid), "not a group");
        assert_eq!(node.attach_mcast(me, 0x777, group(1)), Err(Status::NotFound));
        assert_eq!(node.attach_mcast(KERNEL, qpn, group(1)), Err(Status::Denied));
        assert_eq!(node.detach_mcast(me, qpn, group(1)), Err(Status::NotFound));
        join(&side, group(1));
        assert_eq!(node.attach_mcast(me, qpn, group(1)), Err(Status::Exists));
        let (rc, _other) = connected(world, &options(qp_type::RC), &Connection::default());
        assert_eq!(rc.node.attach_mcast(rc.context, rc.qp.qpn, group(1)), Err(Status::Invalid), "not a datagram QP");
        node.detach_mcast(me, qpn, group(1)).expect("DETACH_MCAST");
        // Membership ends with the QP.
        join(&side, group(1));
        node.destroy_qp(me, qpn).expect("DESTROY_QP");
        assert_eq!(node.detach_mcast(me, qpn, group(1)), Err(Status::NotFound));
        world.settle();
        let mut b = datagram_side(world.b());
        post(&mut b, group(1), b"gone");
        success(world, &mut b, "the send");
        assert_eq!(b.node.counters().tx_discarded, 1);
    }
}

#[test]
fn groups_are_bounded() {
    let _watchdog = Watchdog::new("groups");
    let world = World::new(Kind::Loopback);
    let side = datagram_side(world.a());
    let limit = side.node.limits().max_mcast_grp;
    assert!((1..=4096).contains(&limit));
    let gid = |n: u32| {
        let mut gid = group(0);
        gid[13..].copy_from_slice(&n.to_be_bytes()[1..]);
        gid
    };
    for n in 0..limit {
        join(&side, gid(n));
    }
    let one_more = side
        .node
        .attach_mcast(side.context, side.qp.qpn, gid(limit));
    assert_eq!(one_more, Err(Status::NoResource));
    assert!(side.node.limits().max_mcast_qp > 0);
    side.node
        .destroy_context(side.context)
        .expect("DESTROY_CONTEXT");
    let side = datagram_side(world.a());
    join(&side, gid(limit));
}

/// Three devices in a full mesh: every one of them hears every other.
#[test]
fn multicast_reaches_all_peers_of_the_fabric() {
    let _watchdog = Watchdog::new("three nodes");
    let (first, first_stats, at_first) = tcp_fabric(&[]);
    let (second, second_stats, at_second) = tcp_fabric(&[at_first]);
    let (third, third_stats, _) = tcp_fabric(&[at_first, at_second]);
    let fabrics = [
        (first, first_stats),
        (second, second_stats),
        (third, third_stats),
    ];
    let made = Options {
        pages: 8192,
        ..Default::default()
    };
    let nodes = fabrics
        .into_iter()
        .enumerate()
        .map(|(n, (fabric, stats))| node(n as u8, fabric, stats, &made))
        .collect();
    let world = World::of(nodes, Kind::Tcp);
    let mut sides: Vec<Side> = world.nodes().iter().map(datagram_side).collect();
    for side in &sides {
        join(side, group(7));
    }
    world.settle();
    for sender in 0..3 {
        for side in &mut sides {
            side.recv(sender as u64, 0, 100);
        }
        let qpn = sides[sender].qp.qpn;
        post(&mut sides[sender], group(7), &[sender as u8; 10]);
        for (n, side) in sides.iter_mut().enumerate() {
            let mut left = if n == sender { 2 } else { 1 };
            while left > 0 {
                let cqe = success(&world, side, "a copy");
                if !cqe.is_send() {
                    assert_eq!((cqe.src_qpn, cqe.byte_len), (qpn, 50));
                    assert_eq!(side.mr.read(40, 10), [sender as u8; 10]);
                }
                left -= 1;
            }
        }
    }
    assert!(sides.iter().all(|side| side.state() == state::RTS));
}
