//! Unreliable connections.

use std::time::Duration;

use conformance::layout::{
    QpAttributes, Sge, access, cqe_flag, event, mask, qp_type, send, state, wc, wc_opcode, wqe_flag,
};
use conformance::on_every_fabric;
use conformance::random::payload;
use conformance::rings::SendWr;
use conformance::side::{Connection, Side, connected, silence, success};
use conformance::watchdog::Watchdog;
use conformance::world::{Kind, World};
use devices::rdma::fabric::frame::kind;
use devices::rdma::fabric::pair::Side as Wire;

use super::options;

const SHORT: Duration = Duration::from_millis(30);

fn sides(world: &World) -> (Side, Side) {
    let sides = connected(world, &options(qp_type::UC), &Connection::default());
    // What is sent before there is a link is lost.
    world.settle();
    sides
}

on_every_fabric! {
    fn uc_sends_and_writes_of_every_size_arrive_whole(world: &World) {
        let (mut a, mut b) = sides(world);
        for (n, size) in [0usize, 1, 64, 257, 4096, 65_536, 65_537, 200_000].into_iter().enumerate() {
            let data = payload(n as u64, size);
            a.mr.write(3, &data);
            b.mr.buffer.fill(0xee);
            b.recv(50, 9, size);
            let sges = [a.mr.sge(3, size)];
            a.send(&SendWr::signaled(1, send::SEND).with_sges(&sges));
            assert_eq!(success(world, &mut a, "a SEND").opcode, wc_opcode::SEND);
            let cqe = success(world, &mut b, "the receive");
            assert_eq!((cqe.wr_id, cqe.opcode, cqe.byte_len as usize), (50, wc_opcode::RECV, size));
            assert_eq!((cqe.src_qpn, cqe.flags), (a.qp.qpn, 0));
            assert_eq!(b.mr.read(9, size), data);

            b.mr.buffer.fill(0xee);
            b.recv(51, 0, 0);
            a.send(&SendWr { imm: [9, 8, 7, 6], flags: wqe_flag::SIGNALED | wqe_flag::SOLICITED, ..SendWr::signaled(2, send::WRITE_IMM).with_sges(&sges).at(&b.mr, 100) });
            assert_eq!(success(world, &mut a, "a WRITE").opcode, wc_opcode::RDMA_WRITE);
            let cqe = success(world, &mut b, "the receive of a WRITE with immediate");
            assert_eq!((cqe.opcode, cqe.byte_len as usize, cqe.imm), (wc_opcode::RECV_RDMA_WITH_IMM, size, [9, 8, 7, 6]));
            assert_ne!(cqe.flags & cqe_flag::WITH_IMM, 0);
            assert_eq!(b.mr.read(100, size), data);
        }
        assert_eq!(b.node.counters().rx_discarded, 0);
        assert_eq!(a.node.counters().tx_discarded, 0);
    }

    fn semantics_13_reads_and_atomics_on_uc_fail_at_home(world: &World) {
        for opcode in [send::READ, send::CMP_AND_SWP, send::FETCH_AND_ADD, send::SEND_INV] {
            let (mut a, mut b) = sides(world);
            b.mr.buffer.fill(0xee);
            let sges = [a.mr.sge(0, 8)];
            a.send(&SendWr::signaled(1, opcode).with_sges(&sges).at(&b.mr, 0));
            let cqe = world.until("an opcode that UC has not", || a.poll());
            assert_eq!(cqe.status, wc::LOC_QP_OP_ERR, "opcode {opcode}");
            assert_eq!((a.state(), b.state()), (state::SQE, state::RTS));
            // SQE: back to RTS, and on.
            a.node.modify_qp(a.qp.context, &QpAttributes { qpn: a.qp.qpn, mask: mask::STATE, state: state::RTS, ..Default::default() }).expect("SQE to RTS");
            b.recv(1, 0, 10);
            a.send(&SendWr::signaled(2, send::SEND).with_inline(b"on"));
            success(world, &mut a, "after SQE");
            success(world, &mut b, "after SQE");
        }
    }

    fn uc_messages_without_a_receive_are_dropped(world: &World) {
        let (mut a, mut b) = sides(world);
        a.send(&SendWr::signaled(1, send::SEND).with_inline(b"lost"));
        success(world, &mut a, "a SEND that nobody waits for");
        a.send(&SendWr::signaled(2, send::WRITE_IMM).with_inline(b"lost").at(&b.mr, 0));
        success(world, &mut a, "a WRITE with immediate that nobody waits for");
        world.settle();
        assert_eq!(b.node.counters().rx_discarded, 2);
        b.recv(7, 0, 10);
        a.send(&SendWr::signaled(3, send::SEND).with_inline(b"found"));
        assert_eq!(success(world, &mut b, "the next").byte_len, 5);
        assert_eq!((a.state(), b.state()), (state::RTS, state::RTS));
        assert!(b.node.events.take_asynchronous().is_empty());
    }

    fn semantics_10_refused_writes_on_uc_are_dropped_and_the_connection_goes_on(world: &World) {
        let (mut a, mut b) = sides(world);
        b.mr.buffer.fill(0xee);
        let sges = [a.mr.sge(0, 100)];
        for (rkey, at) in [(b.mr.key ^ 0x100, 0), (b.mr.key, b.mr.len), (b.mr.key, b.mr.len - 99)] {
            a.send(&SendWr { rkey, remote_addr: b.mr.iova + at, ..SendWr::signaled(1, send::WRITE).with_sges(&sges) });
            success(world, &mut a, "a WRITE that is refused in silence");
        }
        b.recv(1, 0, 10);
        a.send(&SendWr::signaled(2, send::SEND).with_inline(b"goes on"));
        success(world, &mut b, "the next message");
        assert_eq!(b.mr.read(7, 100), [0xee; 100]);
        let counters = b.node.counters();
        assert_eq!((counters.access_errors, counters.rx_discarded), (3, 3));
        // The QP's own access flags.
        let closed = Connection { access: access::LOCAL_WRITE, ..Default::default() };
        let (mut a, mut b) = connected(world, &options(qp_type::UC), &closed);
        world.settle();
        b.mr.buffer.fill(0xee);
        a.send(&SendWr::signaled(1, send::WRITE).with_inline(b"no").at(&b.mr, 0));
        success(world, &mut a, "a WRITE that the QP does not allow");
        silence(world, &mut b, SHORT, "a WRITE makes no completion");
        assert!(b.mr.buffer.holds_only(0xee));
    }

    fn semantics_07_receive_buffer_too_small_on_uc(world: &World) {
        let (mut a, mut b) = sides(world);
        b.recv(1, 0, 3);
        a.send(&SendWr::signaled(1, send::SEND).with_inline(b"four"));
        success(world, &mut a, "the sender does not notice");
        let cqe = world.until("the receive", || b.poll());
        assert_eq!((cqe.wr_id, cqe.status), (1, wc::LOC_LEN_ERR));
        assert_eq!((a.state(), b.state()), (state::RTS, state::ERR));
    }

    fn semantics_09_a_bad_local_key_on_uc(world: &World) {
        let (mut a, mut b) = sides(world);
        b.recv(1, 0, 100);
        let bad = [Sge { lkey: a.mr.key ^ 0x100, ..a.mr.sge(0, 8) }];
        a.send(&SendWr::signaled(1, send::SEND).with_sges(&bad));
        a.send(&SendWr::signaled(2, send::SEND).with_inline(b"flushed"));
        let cqe = world.until("the bad one", || a.poll());
        assert_eq!((cqe.wr_id, cqe.status), (1, wc::LOC_PROT_ERR));
        let cqe = world.until("the one behind it", || a.poll());
        assert_eq!((cqe.wr_id, cqe.status), (2, wc::WR_FLUSH_ERR));
        silence(world, &mut b, SHORT, "something was sent");
        assert_eq!((a.state(), b.state()), (state::SQE, state::RTS));
    }

    fn semantics_01_completions_come_in_the_order_of_posting_on_uc(world: &World) {
        let (mut a, mut b) = sides(world);
        for n in 0..40 {
            b.recv(n, 0, 70_000);
        }
        let sizes = [5usize, 70_000, 1, 0];
        for n in 0..40u64 {
            let sges = [a.mr.sge(0, sizes[n as usize % 4])];
            a.send(&SendWr { flags: if n % 5 == 4 { wqe_flag::SIGNALED } else { 0 }, ..SendWr::signaled(n, send::SEND).with_sges(&sges) });
        }
        for n in 0..40 {
            let cqe = success(world, &mut b, "receives in order");
            assert_eq!((cqe.wr_id, cqe.byte_len as usize), (n, sizes[n as usize % 4]));
        }
        for n in 0..8 {
            assert_eq!(success(world, &mut a, "every fifth").wr_id, n * 5 + 4);
        }
    }

    fn semantics_21_uc_drains_in_sqd(world: &World) {
        let (mut a, mut b) = sides(world);
        b.recv(1, 0, 200_000);
        b.recv(2, 0, 200_000);
        let sges = [a.mr.sge(0, 200_000)];
        a.send(&SendWr::signaled(1, send::SEND).with_sges(&sges));
        world.step();
        a.node.modify_qp(a.qp.context, &QpAttributes { qpn: a.qp.qpn, mask: mask::STATE | mask::EN_SQD_ASYNC, state: state::SQD, en_sqd_async: 1, ..Default::default() }).expect("to SQD");
        a.send(&SendWr::signaled(2, send::SEND).with_inline(b"waits"));
        world.settle();
        let drained = a.node.events.take_asynchronous();
        assert_eq!(drained, [(event::SQ_DRAINED, a.qp.qpn)]);
        let first = success(world, &mut a, "what was begun");
        assert_eq!(first.wr_id, 1);
        success(world, &mut b, "what was begun arrives");
        silence(world, &mut a, SHORT, "something new was begun in SQD");
        a.node.modify_qp(a.qp.context, &QpAttributes { qpn: a.qp.qpn, mask: mask::STATE, state: state::RTS, ..Default::default() }).expect("to RTS");
        assert_eq!(success(world, &mut a, "after SQD").wr_id, 2);
    }
}

/// A link is lost in the middle of a message: neither a completion at the receiver nor a receive is lost, and what follows arrives.
#[test]
fn semantics_33_a_lost_middle_drops_the_message_and_the_receive_is_used_again() {
    let _watchdog = Watchdog::new("lost middle");
    let world = World::new(Kind::Pair);
    let (mut a, mut b) = sides(&world);
    b.recv(1, 0, 250_000);
    b.recv(2, 0, 250_000);
    let control = world.control();
    // The far side takes in a few bytes a poll, so that the message is under way for long.
    control.pace(Wire::Right, 1000);
    let sges = [a.mr.sge(0, 250_000)];
    a.send(&SendWr::signaled(1, send::SEND).with_sges(&sges));
    for _ in 0..40 {
        world.step();
    }
    assert!(b.poll().is_none());
    control.cut();
    control.pace(Wire::Right, usize::MAX);
    assert_eq!(success(&world, &mut a, "a message given up").wr_id, 1);
    // While there is no link, messages are given up at once.
    a.send(&SendWr::signaled(2, send::SEND).with_inline(b"lost too"));
    assert_eq!(success(&world, &mut a, "a message without a link").wr_id, 2);
    assert!(a.node.counters().tx_discarded >= 1);
    control.restore();
    world.settle();
    silence(&world, &mut b, SHORT, "a message that was lost completed");
    a.send(&SendWr::signaled(3, send::SEND).with_inline(b"found"));
    let cqe = success(&world, &mut b, "the next message");
    assert_eq!((cqe.wr_id, cqe.byte_len), (1, 5), "the receive is reused");
    assert_eq!((a.state(), b.state()), (state::RTS, state::RTS));
}

#[test]
fn semantics_09_a_bad_local_key_on_uc_without_a_link() {
    let _watchdog = Watchdog::new("UC without a link");
    let world = World::new(Kind::Pair);
    for size in [8, 200_000] {
        let (mut a, _b) = sides(&world);
        world.control().cut();
        let good = [a.mr.sge(0, size)];
        a.send(&SendWr::signaled(1, send::SEND).with_sges(&good));
        success(&world, &mut a, "a message without a link");
        let bad = [Sge {
            lkey: a.mr.key ^ 0x100,
            ..good[0]
        }];
        a.send(&SendWr::signaled(2, send::SEND).with_sges(&bad));
        let cqe = world.until("the bad one", || a.poll());
        assert_eq!((cqe.wr_id, cqe.status), (2, wc::LOC_PROT_ERR));
        assert_eq!(a.state(), state::SQE);
        world.control().restore();
    }
}

#[test]
fn a_uc_peer_that_takes_nothing_in_costs_messages_and_not_the_device() {
    let _watchdog = Watchdog::new("UC full");
    let world = World::new(Kind::Pair);
    let (mut a, mut b) = sides(&world);
    world.control().hold(Wire::Right, kind::SEND);
    let sges = [a.mr.sge(0, 200_000)];
    for n in 0..20 {
        a.send(&SendWr::signaled(n, send::SEND).with_sges(&sges));
    }
    for n in 0..20 {
        assert_eq!(success(&world, &mut a, "sent or given up").wr_id, n);
    }
    let lost = a.node.counters().tx_discarded;
    assert!((10..20).contains(&lost), "{lost} of 20 given up");
    for n in 0..20 {
        b.recv(n, 0, 200_000);
    }
    world.control().release(Wire::Right);
    world.settle();
    let mut whole = 0;
    while let Some(cqe) = b.poll() {
        assert_eq!((cqe.status, cqe.byte_len), (wc::SUCCESS, 200_000));
        whole += 1;
    }
    assert_eq!(whole, 20 - lost, "what was not given up arrived");
}
