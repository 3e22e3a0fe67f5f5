//! A QP that is destroyed with its posts in it: what a device fetches at the doorbell has left by then.

use conformance::layout::{Sge, qp_type, send, wc};
use conformance::node::QpOptions;
use conformance::on_every_fabric;
use conformance::random::payload;
use conformance::rings::SendWr;
use conformance::side::{Connection, Side, SideOptions, connected, success};
use conformance::watchdog::Watchdog;
use conformance::world::{Kind, World};

use super::{address, linked};

/// More than an unreliable QP sends in one turn. Of a reliable one no more is asked than is under way before it may change its lane.
const fn posts(kind: u32) -> u64 {
    if kind == qp_type::RC { 10 } else { 100 }
}

const SIZE: usize = 1000;

/// Two sides of a type, the far one with receives for that many.
fn pair_of(world: &World, kind: u32) -> (Side, Side) {
    let options = SideOptions {
        qp: QpOptions {
            kind,
            sq_entries: 128,
            rq_entries: 128,
            ..Default::default()
        },
        mr_len: 256 << 10,
        ..Default::default()
    };
    let (a, mut b) = connected(world, &options, &Connection::default());
    world.settle();
    for n in 0..posts(kind) {
        b.recv(n, n as usize * 1100, 1100);
    }
    (a, b)
}

on_every_fabric! {
    fn what_was_posted_before_destroy_qp_is_sent(world: &World) {
        for (kind, grh) in [(qp_type::UD, 40), (qp_type::UC, 0), (qp_type::RC, 0)] {
            let (mut a, mut b) = pair_of(world, kind);
            let data = payload(kind.into(), SIZE);
            a.mr.write(0, &data);
            let before = a.node.counters();
            // Whether the device sleeps or is at work, it has not looked.
            if kind == qp_type::UC {
                world.quiet();
            }
            for n in 0..posts(kind) {
                let sges = [a.mr.sge(0, SIZE)];
                let wr = SendWr { flags: 0, ..SendWr::signaled(n, send::SEND).with_sges(&sges) };
                a.send(&if kind == qp_type::UD { wr.to(address(&b)) } else { wr });
            }
            a.node.destroy_qp(a.context, a.qp.qpn).expect("DESTROY_QP");
            // The device is done with the memory.
            a.mr.buffer.fill(0xee);
            for n in 0..posts(kind) {
                let cqe = success(world, &mut b, &format!("message {n} of the QP of type {kind} that is gone"));
                assert_eq!((cqe.wr_id, cqe.byte_len as usize), (n, grh + SIZE), "type {kind}");
                assert_eq!(b.mr.read(n as usize * 1100 + grh, SIZE), data);
            }
            let after = a.node.counters();
            assert_eq!(after.tx_discarded, before.tx_discarded);
            assert_eq!(after.lost + after.cq_overflows, 0);
        }
    }

    fn destroy_qp_stops_at_what_fails_at_home(world: &World) {
        let (mut a, mut b) = linked(world);
        b.recv(1, 0, 100);
        b.recv(2, 0, 100);
        let bad = [Sge { lkey: a.mr.key ^ 0x100, ..a.mr.sge(0, 8) }];
        a.send(&SendWr::signaled(1, send::SEND).with_inline(b"good").to(address(&b)));
        a.send(&SendWr::signaled(2, send::SEND).with_sges(&bad).to(address(&b)));
        a.send(&SendWr::signaled(3, send::SEND).with_inline(b"behind it").to(address(&b)));
        a.node.destroy_qp(a.context, a.qp.qpn).expect("DESTROY_QP");
        let written = [a.poll(), a.poll(), a.poll()].map(|cqe| cqe.map(|cqe| (cqe.wr_id, cqe.status)));
        assert_eq!(written, [Some((1, wc::SUCCESS)), Some((2, wc::LOC_PROT_ERR)), None]);
        assert_eq!(success(world, &mut b, "the good one").wr_id, 1);
        world.settle();
        assert!(b.poll().is_none());
        assert_eq!(a.node.counters().tx_discarded, 0);
    }
}

#[test]
fn what_the_fabric_has_no_room_for_at_destroy_qp_is_counted() {
    let _watchdog = Watchdog::new("destroy, full");
    let world = World::new(Kind::Pair);
    let options = SideOptions {
        qp: QpOptions {
            kind: qp_type::UC,
            ..Default::default()
        },
        mr_len: 256 << 10,
        ..Default::default()
    };
    let (mut a, mut b) = connected(&world, &options, &Connection::default());
    world.settle();
    let sges = [a.mr.sge(0, 200_000)];
    for n in 0..20 {
        b.recv(n, 0, 200_000);
        a.send(&SendWr::signaled(n, send::SEND).with_sges(&sges));
    }
    a.node.destroy_qp(a.context, a.qp.qpn).expect("DESTROY_QP");
    let lost = a.node.counters().tx_discarded;
    assert!((10..20).contains(&lost), "{lost} of 20 found no room");
    world.settle();
    let mut whole = 0;
    while let Some(cqe) = b.poll() {
        assert_eq!((cqe.status, cqe.byte_len), (wc::SUCCESS, 200_000));
        whole += 1;
    }
    assert_eq!(whole, 20 - lost, "what found room arrived");
}
