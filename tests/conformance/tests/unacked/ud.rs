//! Datagrams from one QP to another.

use std::time::Duration;

use conformance::layout::{
    DatagramAddress, Sge, Status, cqe_flag, mask, qp_type, send, state, wc, wc_opcode, wqe_flag,
};
use conformance::node::{KERNEL, QpOptions};
use conformance::on_every_fabric;
use conformance::random::payload;
use conformance::rings::SendWr;
use conformance::side::{Connection, Side, silence, success, to_state};
use conformance::watchdog::Watchdog;
use conformance::world::{Kind, Options, World, gid};
use devices::rdma::wire::feature;

use super::{address, datagram_side, linked, options, to_rts};

const GRH: usize = 40;

/// Waits until nothing is under way any more.
const SHORT: Duration = Duration::from_millis(30);

/// What the header of a datagram between two nodes of the tests says: IPv4 addresses 10.77.0.1 and 10.77.0.2.
fn expected_grh(from: &Side, to: &Side, length: usize) -> Vec<u8> {
    let total = 20 + 8 + 12 + 8 + length.next_multiple_of(4) + 4;
    let mut ip = vec![0x45, 0x21];
    ip.extend_from_slice(&(total as u16).to_be_bytes());
    ip.extend_from_slice(&[0, 0, 0x40, 0, 63, 17, 0, 0]);
    ip.extend_from_slice(&from.node.gid[12..]);
    ip.extend_from_slice(&to.node.gid[12..]);
    let words = ip.chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1]));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    ip[10..12].copy_from_slice(&(!sum as u16).to_be_bytes());
    [vec![0; 20], ip].concat()
}

on_every_fabric! {
    fn semantics_31_datagrams_carry_grh_source_and_service_level(world: &World) {
        let (mut a, mut b) = linked(world);
        for (n, size) in [0usize, 1, 8, 100, 257, 1024, 4095, 4096].into_iter().enumerate() {
            let data = payload(n as u64, size);
            a.mr.write(0, &data);
            b.mr.buffer.fill(0xee);
            b.recv(70 + n as u64, 5, GRH + size);
            let sges = [a.mr.sge(0, size / 2), a.mr.sge(size / 2, size - size / 2)];
            a.send(&SendWr::signaled(n as u64, send::SEND).with_sges(&sges).to(address(&b)));
            let cqe = success(world, &mut a, "the send");
            assert_eq!((cqe.wr_id, cqe.opcode), (n as u64, wc_opcode::SEND));
            let cqe = success(world, &mut b, "the receive");
            assert_eq!((cqe.wr_id, cqe.opcode), (70 + n as u64, wc_opcode::RECV));
            assert_eq!(cqe.byte_len as usize, GRH + size, "the 40 bytes count");
            assert_eq!((cqe.src_qpn, cqe.sl), (a.qp.qpn, 5));
            assert_eq!(cqe.flags, cqe_flag::GRH | cqe_flag::ETHERNET);
            assert_eq!((cqe.smac, cqe.vlan), ([2, 0, 0, 0, 0, a.node.gid[15]], 0xffff));
            assert_eq!(b.mr.read(5, GRH), expected_grh(&a, &b, size));
            assert_eq!(b.mr.read(5 + GRH, size), data);
            assert!(b.mr.read(5 + GRH + size, 64).iter().all(|b| *b == 0xee));
        }
        let (sent, received) = (a.node.counters(), b.node.counters());
        assert_eq!((sent.tx_messages, sent.tx_bytes), (8, 9581));
        assert_eq!((received.rx_messages, received.rx_bytes), (8, 9581));
        assert_eq!((sent.lost, sent.tx_discarded, received.rx_discarded), (0, 0, 0));
    }

    fn semantics_30_immediate_data_of_a_datagram(world: &World) {
        let (mut a, mut b) = linked(world);
        b.recv(1, 0, 100);
        a.send(&SendWr {
            imm: [0x81, 2, 3, 4],
            flags: wqe_flag::SIGNALED | wqe_flag::SOLICITED,
            ..SendWr::signaled(9, send::SEND_IMM).with_inline(b"inline").to(address(&b))
        });
        success(world, &mut a, "the send");
        let cqe = success(world, &mut b, "the receive");
        assert_eq!(cqe.flags & cqe_flag::WITH_IMM, cqe_flag::WITH_IMM);
        assert_eq!((cqe.imm, cqe.byte_len), ([0x81, 2, 3, 4], 46));
        // Immediate data has a header of 4 bytes.
        assert_eq!(b.mr.read(0, GRH), expected_grh(&a, &b, 4 + 6));
        assert_eq!(b.mr.read(GRH, 6), b"inline");
    }

    fn semantics_31_a_wrong_qkey_is_dropped_and_counted(world: &World) {
        let (mut a, mut b) = linked(world);
        b.recv(1, 0, 100);
        a.send(&SendWr::signaled(1, send::SEND).with_inline(b"x").to(DatagramAddress { qkey: 5, ..address(&b) }));
        success(world, &mut a, "an unacknowledged send");
        silence(world, &mut b, SHORT, "a wrong Q_Key reached the process");
        let counters = b.node.counters();
        assert_eq!((counters.qkey_errors, counters.rx_discarded), (1, 1));
        // Bit 31: the QP's own Q_Key, whatever the rest says.
        a.send(&SendWr::signaled(2, send::SEND).with_inline(b"y").to(DatagramAddress { qkey: 0x8000_0005, ..address(&b) }));
        success(world, &mut a, "the QP's own Q_Key");
        assert_eq!(success(world, &mut b, "the receive").wr_id, 1);
        assert_eq!((a.state(), b.state()), (state::RTS, state::RTS));
    }

    fn semantics_31_what_is_too_long_for_the_receive_is_dropped_and_the_qp_survives(world: &World) {
        let (mut a, mut b) = linked(world);
        b.mr.buffer.fill(0xee);
        b.recv(1, 0, GRH + 10);
        let long = [a.mr.sge(0, 11)];
        a.send(&SendWr::signaled(1, send::SEND).with_sges(&long).to(address(&b)));
        success(world, &mut a, "the long one");
        silence(world, &mut b, SHORT, "a datagram that does not fit");
        assert!(b.mr.buffer.holds_only(0xee));
        assert_eq!(b.node.counters().rx_discarded, 1);
        let fits = [a.mr.sge(0, 10)];
        a.send(&SendWr::signaled(2, send::SEND).with_sges(&fits).to(address(&b)));
        assert_eq!(success(world, &mut b, "the receive is still there").wr_id, 1);
        assert_eq!(b.state(), state::RTS);
        // And what was held for one that did not fit flushes once.
        b.recv(2, 0, GRH);
        a.send(&SendWr::signaled(3, send::SEND).with_sges(&fits).to(address(&b)));
        silence(world, &mut b, SHORT, "a datagram that does not fit");
        to_state(&b.node, &b.qp, state::ERR).expect("to ERR");
        let cqe = world.until("the flush", || b.poll());
        assert_eq!((cqe.wr_id, cqe.status), (2, wc::WR_FLUSH_ERR));
        silence(world, &mut b, SHORT, "a receive flushed twice");
    }

    fn datagrams_without_a_receive_or_a_destination_are_dropped(world: &World) {
        let (mut a, mut b) = linked(world);
        let mut nowhere = gid(77);
        let one = |to| SendWr::signaled(1, send::SEND).with_inline(b"z").to(to);
        a.send(&one(address(&b)));
        success(world, &mut a, "to a QP without receives");
        a.send(&one(DatagramAddress { dest_qpn: 0x777, ..address(&b) }));
        success(world, &mut a, "to no QP");
        a.send(&one(DatagramAddress { dest_qpn: 0xff_ffff, ..address(&b) }));
        success(world, &mut a, "to a group that is none");
        world.settle();
        assert_eq!(b.node.counters().rx_discarded, 3);
        a.send(&one(DatagramAddress { dgid: nowhere, ..address(&b) }));
        success(world, &mut a, "to a GID that nobody has");
        nowhere[12] = 239;
        a.send(&one(DatagramAddress { dgid: nowhere, ..address(&b) }));
        success(world, &mut a, "to a group without members");
        a.send(&one(DatagramAddress { sgid_index: 9, ..address(&b) }));
        success(world, &mut a, "from an address that is gone");
        assert_eq!(a.node.counters().tx_discarded, 3);
        b.recv(5, 0, 100);
        a.send(&one(address(&b)));
        assert_eq!(success(world, &mut b, "all goes on").wr_id, 5);
    }

    fn semantics_09_what_fails_at_home_on_ud_leads_to_sqe_and_receives_go_on(world: &World) {
        let (mut a, mut b) = linked(world);
        let good = [a.mr.sge(0, 8)];
        let bad = [Sge { lkey: a.mr.key ^ 0x100, ..a.mr.sge(0, 8) }];
        let long = [a.mr.sge(0, 4097)];
        let cases = [
            (SendWr::signaled(2, send::SEND).with_sges(&bad), wc::LOC_PROT_ERR),
            (SendWr::signaled(2, send::SEND).with_sges(&long), wc::LOC_LEN_ERR),
            (SendWr::signaled(2, send::WRITE).with_sges(&good), wc::LOC_QP_OP_ERR),
            (SendWr::signaled(2, send::READ).with_sges(&good), wc::LOC_QP_OP_ERR),
            (SendWr { flags: 0, ..SendWr::signaled(2, 77).with_sges(&good) }, wc::LOC_QP_OP_ERR),
        ];
        for (n, (wr, status)) in cases.into_iter().enumerate() {
            b.recv(1, 0, 100);
            a.send(&SendWr::signaled(1, send::SEND).with_sges(&good).to(address(&b)));
            a.send(&wr.to(address(&b)));
            a.send(&SendWr::signaled(3, send::SEND).with_sges(&good).to(address(&b)));
            let done: Vec<_> = (0..3).map(|_| world.until("three completions", || a.poll())).map(|c| (c.wr_id, c.status)).collect();
            assert_eq!(done, [(1, wc::SUCCESS), (2, status), (3, wc::WR_FLUSH_ERR)], "case {n}");
            assert_eq!(a.state(), state::SQE, "case {n}");
            success(world, &mut b, "what was sent before");
            // What is posted in SQE flushes; receives are still served.
            a.send(&SendWr::signaled(4, send::SEND).with_sges(&good).to(address(&b)));
            let cqe = world.until("a send posted in SQE", || a.poll());
            assert_eq!((cqe.wr_id, cqe.status), (4, wc::WR_FLUSH_ERR));
            a.recv(5, 1000, 100);
            b.send(&SendWr::signaled(6, send::SEND).with_inline(b"back").to(address(&a)));
            success(world, &mut b, "the way back");
            assert_eq!(success(world, &mut a, "a receive in SQE").wr_id, 5);
            // Back to RTS, all works again.
            a.node.modify_qp(a.qp.context, &conformance::layout::QpAttributes {
                qpn: a.qp.qpn, mask: mask::STATE | mask::CUR_STATE, state: state::RTS, cur_state: state::SQE, ..Default::default()
            }).expect("SQE to RTS");
        }
        silence(world, &mut b, SHORT, "something of a failed send arrived");
    }

    fn semantics_08_a_receive_with_a_bad_lkey_on_ud(world: &World) {
        let (mut a, mut b) = linked(world);
        let bad = Sge { lkey: b.mr.key ^ 0x100, ..b.mr.sge(0, 100) };
        b.qp.post_recv(1, &[bad]).expect("room");
        b.recv(2, 0, 100);
        a.send(&SendWr::signaled(1, send::SEND).with_inline(b"x").to(address(&b)));
        success(world, &mut a, "the sender does not notice");
        let cqe = world.until("the receive", || b.poll());
        assert_eq!((cqe.wr_id, cqe.status), (1, wc::LOC_PROT_ERR));
        let cqe = world.until("the next", || b.poll());
        assert_eq!((cqe.wr_id, cqe.status), (2, wc::WR_FLUSH_ERR));
        assert_eq!((a.state(), b.state()), (state::RTS, state::ERR));
    }

    fn semantics_01_datagrams_complete_in_the_order_of_posting(world: &World) {
        let (mut a, mut b) = linked(world);
        let (mut sent, mut done, mut received) = (0u64, 0u64, 0u64);
        for n in 0..32 {
            b.recv(n, n as usize * 4200, 4200);
        }
        while received < 2000 {
            // No faster than receives are posted: what is unreliable is dropped otherwise.
            while sent < 2000 && sent - received < 32 {
                let sges = [a.mr.sge(0, 1 + (sent * 37 % 4000) as usize)];
                if a.qp.post_send(&SendWr::signaled(sent, send::SEND).with_sges(&sges).to(address(&b))).is_err() {
                    break;
                }
                sent += 1;
            }
            world.step();
            while let Some(cqe) = a.poll() {
                let own = cqe.is_send();
                assert!(own && cqe.status == wc::SUCCESS && cqe.wr_id == done);
                done += 1;
            }
            while let Some(cqe) = b.poll() {
                assert_eq!((cqe.status, cqe.wr_id), (wc::SUCCESS, received % 32));
                assert_eq!(u64::from(cqe.byte_len), 41 + received * 37 % 4000);
                b.recv(received % 32, (received % 32) as usize * 4200, 4200);
                received += 1;
            }
        }
        assert_eq!(b.node.counters().rx_discarded, 0);
    }

    fn what_a_qp_was_sent_before_it_was_ready_is_dropped(world: &World) {
        let (mut a, mut b) = (datagram_side(world.a()), Side::new(world.b(), &options(qp_type::UD)));
        world.settle();
        let steps = Connection::default().steps(&b.qp, 0, (0, [0; 16]));
        b.node.modify_qp(b.qp.context, &steps[0]).expect("INIT");
        b.recv(1, 0, 100);
        a.send(&SendWr::signaled(1, send::SEND).with_inline(b"early").to(address(&b)));
        success(world, &mut a, "the send");
        silence(world, &mut b, SHORT, "a datagram in INIT");
        b.node.modify_qp(b.qp.context, &steps[1]).expect("RTR");
        a.send(&SendWr::signaled(1, send::SEND).with_inline(b"in RTR").to(address(&b)));
        assert_eq!(success(world, &mut b, "a datagram in RTR").byte_len, 46);
    }
}

#[test]
fn the_gsi_qp_is_number_1_the_kernels_and_the_only_one() {
    let _watchdog = Watchdog::new("GSI");
    let world = World::new(Kind::Pair);
    let gsi = QpOptions {
        kind: qp_type::GSI,
        ..Default::default()
    };
    let make = |n: usize| {
        let mut side = Side::in_context(&world.nodes()[n], KERNEL, &options(qp_type::UD));
        let (pd, cq) = (side.pd, side.cq.cqn);
        let created = side.node.create_qp(KERNEL, pd, cq, cq, &gsi);
        side.qp = created.expect("a GSI QP");
        to_rts(&side);
        side
    };
    let (mut a, mut b) = (make(0), make(1));
    assert_eq!((a.qp.qpn, b.qp.qpn), (1, 1));
    let again = a
        .node
        .create_qp(KERNEL, a.pd, a.cq.cqn, a.cq.cqn, &gsi)
        .err();
    assert_eq!(again, Some(Status::Exists));
    let user = a.node.create_context().expect("a context");
    let (pd, cq) = (
        a.node.create_pd(user).expect("a PD"),
        a.node.create_cq(user, 16, 0).expect("a CQ"),
    );
    let denied = a.node.create_qp(user, pd, cq.cqn, cq.cqn, &gsi).err();
    assert_eq!(denied, Some(Status::Denied));
    b.recv(1, 0, 300);
    a.send(
        &SendWr::signaled(1, send::SEND)
            .with_inline(b"a MAD")
            .to(address(&b)),
    );
    success(&world, &mut a, "the send");
    let cqe = success(&world, &mut b, "the receive");
    assert_eq!((cqe.src_qpn, cqe.byte_len), (1, 45));
    for side in [&a, &b] {
        side.node.destroy_qp(KERNEL, 1).expect("DESTROY_QP");
        assert_eq!(
            side.node.query_qp(KERNEL.handle, 1).err(),
            Some(Status::NotFound)
        );
    }
    let cq = a.cq.cqn;
    let next = a.node.create_qp(KERNEL, a.pd, cq, cq, &gsi);
    assert_eq!(next.expect("another, later").qpn, 1);
}

#[test]
fn without_the_features_there_are_no_such_qps_and_no_groups() {
    let _watchdog = Watchdog::new("no UD");
    let world = World::with(
        Kind::Pair,
        &Options {
            features: feature::USER_DOORBELL,
            pages: 8192,
            ..Default::default()
        },
    );
    let node = world.a();
    let cq = node.create_cq(KERNEL, 16, 0).expect("a CQ").cqn;
    let pd = node.create_pd(KERNEL).expect("a PD");
    for kind in [qp_type::GSI, qp_type::UC, qp_type::UD] {
        let qp = QpOptions {
            kind,
            ..Default::default()
        };
        let refused = node.create_qp(KERNEL, pd, cq, cq, &qp).err();
        assert_eq!(refused, Some(Status::Unsupported), "type {kind}");
    }
    let mut group = node.gid;
    group[12] = 239;
    assert_eq!(
        node.attach_mcast(KERNEL, 2, group),
        Err(Status::Unsupported)
    );
    assert_eq!(node.limits().max_mcast_grp, 0);
}

#[test]
fn a_peer_that_takes_nothing_in_costs_datagrams_and_not_the_queue() {
    let _watchdog = Watchdog::new("full");
    let world = World::new(Kind::Pair);
    let (mut a, b) = (datagram_side(world.a()), datagram_side(world.b()));
    let mut here = datagram_side(world.a());
    // Only the near side runs: the far one's queue fills.
    let (sges, mut posted) = ([a.mr.sge(0, 4096)], 0);
    let end = std::time::Instant::now() + Duration::from_secs(60);
    while a.node.counters().tx_discarded < 3 {
        assert!(std::time::Instant::now() < end, "nothing is given up");
        let to = SendWr::signaled(posted, send::SEND)
            .with_sges(&sges)
            .to(address(&b));
        if a.qp.post_send(&to).is_ok() {
            posted += 1;
        }
        world.a().host.step();
        while let Some(cqe) = a.poll() {
            assert_eq!(cqe.status, wc::SUCCESS);
        }
    }
    assert!(posted > 200, "{posted} datagrams filled the queue");
    // Those behind it, to others, are held up for that long and no longer.
    here.recv(1, 0, 100);
    loop {
        let to = SendWr::signaled(0, send::SEND)
            .with_inline(b"here")
            .to(address(&here));
        let done = a.qp.post_send(&to).is_ok();
        world.a().host.step();
        while a.poll().is_some() {}
        if done {
            break;
        }
    }
    success(&world, &mut here, "a datagram to somebody else");
}
