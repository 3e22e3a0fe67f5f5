//! Over TCP: peers that come and go, and the order in which a link tells of them.

use std::time::{Duration, Instant};

use conformance::layout::{qp_type, send, wc, wqe_flag};
use conformance::node::{Node, QpOptions};
use conformance::rings::SendWr;
use conformance::side::{SideOptions, connected, success};
use conformance::watchdog::Watchdog;
use conformance::world::{Kind, Options, World, node, tcp_fabric};
use devices::rdma::stats::{PeerSnapshot, Stats};

use super::SOON;

#[test]
fn over_tcp_a_peer_that_dies_means_retry_exceeded_and_one_that_returns_is_found_again() {
    let _watchdog = Watchdog::new("tcp peer");
    let options = Options {
        pages: 8192,
        ..Default::default()
    };
    let large = SideOptions {
        mr_len: 4 << 20,
        contiguous: true,
        ..Default::default()
    };
    for steps in [0, 3, 10] {
        let (left, left_stats, address) = tcp_fabric(&[]);
        let near = node(0, left, left_stats, &options);
        let mut far = None;
        for round in 0..2u64 {
            let (right, right_stats, _) = tcp_fabric(&[address]);
            far.replace(node(1, right, right_stats, &options));
            let world = World::of(
                vec![near.clone(), far.clone().expect("just made")],
                Kind::Tcp,
            );
            let (mut a, b) = connected(&world, &large, &SOON);
            let small = SendWr {
                flags: wqe_flag::SIGNALED,
                inline: Some(&[round as u8; 8]),
                rkey: b.mr.key,
                remote_addr: b.mr.iova,
                ..Default::default()
            };
            // Links and routes take their time; a QP whose timer ran out meanwhile is none that we look for.
            world.until("the route to the peer", || {
                let (mut probe, target) = connected(&world, &SideOptions::default(), &SOON);
                let (rkey, remote_addr) = (target.mr.key, target.mr.iova);
                probe.send(&SendWr {
                    rkey,
                    remote_addr,
                    ..small
                });
                let cqe = world.until("success or the end of patience", || probe.poll());
                (cqe.status == wc::SUCCESS).then_some(())
            });
            a.send(&small);
            success(&world, &mut a, "the peer answers");
            assert_eq!(b.mr.read(0, 8), [round as u8; 8]);
            let sges = [a.mr.sge(0, 4 << 20)];
            a.send(&SendWr {
                wr_id: 1,
                inline: None,
                sges: &sges,
                ..small
            });
            for _ in 0..steps {
                world.step();
            }
            // The monitor there dies, sockets and all.
            drop((b, world));
            far = None;
            let world = World::of(vec![near.clone()], Kind::Tcp);
            let cqe = world.until("the end of a WRITE to the dead", || a.poll());
            assert_eq!((cqe.wr_id, cqe.status), (1, wc::RETRY_EXC_ERR), "{cqe:?}");
        }
    }
}

#[test]
fn over_tcp_the_first_message_may_come_with_the_route_that_it_needs() {
    let _watchdog = Watchdog::new("first message");
    let options = Options::default();
    for qp_type in [qp_type::RC, qp_type::UC] {
        let (left, left_stats, address) = tcp_fabric(&[]);
        let (right, right_stats, _) = tcp_fabric(&[address]);
        let (far_stats, near_stats) = (left_stats.clone(), right_stats.clone());
        let far = node(0, left, left_stats, &options);
        let near = node(1, right, right_stats, &options);
        let world = World::of(vec![near.clone(), far.clone()], Kind::Tcp);
        let qp = QpOptions {
            kind: qp_type,
            ..Default::default()
        };
        let sides = SideOptions {
            qp,
            ..Default::default()
        };
        let (mut a, mut b) = connected(&world, &sides, &SOON);
        b.recv(1, 0, 8);
        let started = Instant::now();
        let alone = |node: &Node, stats: &Stats, done: fn(&PeerSnapshot) -> bool| {
            while !stats.snapshot().peers.values().any(done) {
                assert!(started.elapsed() < Duration::from_secs(60), "no link");
                for _ in 0..100 {
                    node.host.step();
                }
            }
        };
        // The near side says HELLO, and sees no answer before the far side has the link in use and has said what its GIDs are.
        while far_stats.snapshot().peers.is_empty() {
            near.host.step();
            for _ in 0..200 {
                far.host.step();
            }
        }
        alone(&far, &far_stats, |peer| {
            peer.links_up == 1 && peer.tx_frames > 0
        });
        // The near side's GIDs and its first message leave before the far side looks again.
        alone(&near, &near_stats, |peer| peer.rx_frames > 0);
        a.send(&SendWr::signaled(7, send::SEND).with_inline(&[1; 8]));
        alone(&near, &near_stats, |peer| peer.tx_frames > 1);
        assert_eq!(success(&world, &mut b, "the message").wr_id, 1);
        assert_eq!(success(&world, &mut a, "its completion").wr_id, 7);
        assert_eq!(far.counters().rx_discarded, 0, "QP type {qp_type}");
        assert_eq!(near.counters().retries, 0, "QP type {qp_type}");
    }
}
