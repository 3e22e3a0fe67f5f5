//! Receiver not ready, and flushing.

use std::time::{Duration, Instant};

use conformance::layout::{Status, send, state, wc, wqe_flag};
use conformance::node::QpOptions;
use conformance::on_every_fabric;
use conformance::random::payload;
use conformance::rings::SendWr;
use conformance::side::{Connection, SideOptions, connected, sides, success, to_state};
use conformance::world::World;

on_every_fabric! {
    fn semantics_14_seven_rnr_retries_mean_for_ever(world: &World) {
        let (mut a, mut b) = sides(world);
        for (round, opcode) in [send::SEND, send::SEND_IMM, send::WRITE_IMM].into_iter().enumerate() {
            let data = payload(round as u64, 9000);
            a.mr.write(0, &data);
            let sges = [a.mr.sge(0, 9000)];
            for n in 0..3 {
                a.send(&SendWr::signaled(n, opcode).with_sges(&sges).at(&b.mr, 0));
            }
            // More refusals than any other number of retries would outlast.
            let before = a.node.counters().rnr_nak_received;
            world.until("refusals", || {
                assert!(a.poll().is_none(), "no receive, no completion");
                (a.node.counters().rnr_nak_received >= before + 10).then_some(())
            });
            for n in 0..3 {
                b.recv(n, 0, 9000);
            }
            for n in 0..3 {
                assert_eq!(success(world, &mut a, "the send").wr_id, n);
                assert_eq!(success(world, &mut b, "the receive").wr_id, n);
            }
            assert_eq!(b.mr.read(0, 9000), data);
        }
        assert!(b.node.counters().rnr_nak_sent >= 30);
    }

    fn semantics_14_rnr_retries_run_out_and_the_peer_stays(world: &World) {
        for retries in [0, 1, 3] {
            // Timer 14 of the InfiniBand encoding: 1.28 ms.
            let connection = Connection { rnr_retry: retries, min_rnr_timer: 14, ..Default::default() };
            let (mut a, mut b) = connected(world, &SideOptions::default(), &connection);
            let started = Instant::now();
            a.send(&SendWr { wr_id: 1, opcode: send::SEND, inline: Some(&[1]), ..Default::default() });
            a.send(&SendWr { wr_id: 2, opcode: send::SEND, inline: Some(&[1]), ..Default::default() });
            let cqe = world.until("the end of the retries", || a.poll());
            assert_eq!((cqe.wr_id, cqe.status), (1, wc::RNR_RETRY_EXC_ERR), "{cqe:?}");
            let least = Duration::from_micros(1280) * u32::from(retries);
            assert!(started.elapsed() >= least, "{retries} retries took {:?}, at least {least:?} expected", started.elapsed());
            let cqe = world.until("the one behind it", || a.poll());
            assert_eq!((cqe.wr_id, cqe.status), (2, wc::WR_FLUSH_ERR));
            assert_eq!((a.state(), b.state()), (state::ERR, state::RTS), "the peer stays");
            assert!(b.poll().is_none());
        }
    }

    fn semantics_16_to_err_flushes_everything_once_and_what_is_posted_later(world: &World) {
        let (mut a, mut b) = sides(world);
        // SENDs that wait for receives which never come.
        for n in 0..10 {
            a.send(&SendWr { wr_id: n, opcode: send::SEND, flags: if n % 2 == 0 { wqe_flag::SIGNALED } else { 0 }, inline: Some(&[1]), ..Default::default() });
        }
        for n in 0..7 {
            a.recv(100 + n, 0, 64);
        }
        world.step();
        to_state(&a.node, &a.qp, state::ERR).expect("ERR");
        let check = |a: &mut conformance::side::Side, sends: std::ops::Range<u64>, recvs: std::ops::Range<u64>| {
            let (mut next_send, mut next_recv) = (sends.start, recvs.start);
            while next_send != sends.end || next_recv != recvs.end {
                let cqe = world.until("a flushed request", || a.poll());
                assert_eq!(cqe.status, wc::WR_FLUSH_ERR, "{cqe:?}");
                if cqe.is_send() {
                    assert_eq!(cqe.wr_id, next_send, "in order, signalled or not");
                    next_send += 1;
                } else {
                    assert_eq!(cqe.wr_id, next_recv);
                    next_recv += 1;
                }
            }
            world.settle();
            assert!(a.poll().is_none(), "each once");
        };
        check(&mut a, 0..10, 100..107);
        for n in 10..13 {
            a.send(&SendWr { wr_id: n, opcode: send::WRITE, inline: Some(&[1]), ..Default::default() });
        }
        check(&mut a, 10..13, 107..107);
        for n in 107..110 {
            a.recv(n, 0, 64);
        }
        check(&mut a, 13..13, 107..110);
        assert!(b.poll().is_none());
        assert!(a.node.counters().flushed >= 23);
        // ERR to RESET, and it works again.
        for side in [&mut a, &mut b] {
            to_state(&side.node, &side.qp, state::RESET).expect("RESET");
            side.qp.reset_indices();
        }
        conformance::side::connect((&a.node, &a.qp), (&b.node, &b.qp), &Connection::default());
        b.recv(1, 0, 64);
        a.send(&SendWr::signaled(50, send::SEND).with_inline(&[1]));
        let cqe = success(world, &mut a, "after RESET");
        assert_eq!((cqe.wr_id, cqe.wqe_index), (50, 0), "indices start again");
        success(world, &mut b, "its receive");
    }

    fn semantics_20_reset_discards_what_was_posted(world: &World) {
        let (mut a, mut b) = sides(world);
        for n in 0..5 {
            a.send(&SendWr::signaled(n, send::SEND).with_inline(&[1]));
            a.recv(n, 0, 8);
        }
        world.step();
        to_state(&a.node, &a.qp, state::RESET).expect("RESET");
        a.qp.reset_indices();
        for n in 0..5 {
            b.recv(n, 0, 8);
        }
        world.settle();
        assert!(a.poll().is_none(), "no completions for discarded work");
        assert_eq!(a.state(), state::RESET);
        assert_eq!(a.qp.flags() & 3, 3, "4.8: NEED_KICK flags are set again");
    }

    fn semantics_21_receives_are_taken_in_init(world: &World) {
        let options = SideOptions::default();
        let connection = Connection::default();
        let mut a = conformance::side::Side::new(world.a(), &options);
        a.node.modify_qp(a.context.handle, &connection.init(a.qp.qpn)).expect("INIT");
        a.recv(1, 0, 8);
        world.settle();
        assert!(a.poll().is_none());
        to_state(&a.node, &a.qp, state::ERR).expect("ERR");
        let cqe = world.until("the flushed receive", || a.poll());
        assert_eq!((cqe.wr_id, cqe.status), (1, wc::WR_FLUSH_ERR));
    }

    fn semantics_21_sends_in_sqd_wait_for_rts(world: &World) {
        let (mut a, b) = sides(world);
        to_state(&a.node, &a.qp, state::SQD).expect("SQD");
        b.mr.buffer.fill(0);
        a.send(&SendWr::signaled(1, send::WRITE).with_inline(&[7]).at(&b.mr, 0));
        world.settle();
        assert!(a.poll().is_none());
        assert!(b.mr.buffer.holds_only(0));
        to_state(&a.node, &a.qp, state::RTS).expect("RTS");
        success(world, &mut a, "back in RTS");
        assert_eq!(b.mr.read(0, 1), [7]);
    }

    fn a_destroyed_qp_leaves_no_completions_behind(world: &World) {
        let (mut a, mut b) = sides(world);
        for n in 0..4 {
            a.send(&SendWr::signaled(n, send::SEND).with_inline(&[1]));
            a.recv(n, 0, 8);
        }
        world.step();
        a.node.destroy_qp(a.context, a.qp.qpn).expect("DESTROY_QP");
        a.qp.buffer.fill(0x55);
        for n in 0..4 {
            b.recv(n, 0, 8);
        }
        world.settle();
        assert!(a.cq.poll().is_none());
        assert!(a.qp.buffer.holds_only(0x55), "its rings are not touched any more");
        assert_eq!(a.node.query_qp(a.context.handle, a.qp.qpn).err(), Some(Status::NotFound));
        a.node.destroy_cq(a.context, a.cq.cqn).expect("no QP refers to it");
    }

    fn the_peer_of_a_qp_in_err_gets_an_error_and_never_success(world: &World) {
        let connection = Connection { timeout: 10, retry_cnt: 3, ..Default::default() };
        let options = SideOptions { qp: QpOptions { signal_all: true, ..Default::default() }, ..Default::default() };
        let (mut a, mut b) = connected(world, &options, &connection);
        b.recv(1, 0, 64);
        to_state(&b.node, &b.qp, state::ERR).expect("ERR");
        a.send(&SendWr { wr_id: 1, opcode: send::SEND, inline: Some(&[1]), ..Default::default() });
        let cqe = world.until("the send to a QP in ERR", || a.poll());
        assert_eq!(cqe.status, wc::RETRY_EXC_ERR, "{cqe:?}");
        let cqe = world.until("the receive", || b.poll());
        assert_eq!(cqe.status, wc::WR_FLUSH_ERR);
    }
}
