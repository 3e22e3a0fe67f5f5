//! What an error does to both queue pairs: points 6, 8, 12, 16, 17 and 43.

use conformance::layout::{Sge, access, event, qp_type, send, state, wc};
use conformance::on_every_fabric;
use conformance::rings::SendWr;
use conformance::side::{Side, sides, success, to_state};
use conformance::world::World;

use super::{GRH, KINDS, addressed, sides_of};

/// What the next `count` completions say.
fn completions(world: &World, side: &mut Side, count: usize) -> Vec<(u64, u8)> {
    (0..count)
        .map(|_| world.until("a completion", || side.poll()))
        .map(|cqe| (cqe.wr_id, cqe.status))
        .collect()
}

on_every_fabric! {
    fn semantics_06_both_qps_go_to_err_and_the_rest_flushes_in_order(world: &World) {
        for cause in 0..5 {
            let (mut a, mut b) = sides(world);
            let region = |rights| b.node.reg_mr(b.context, b.pd, b.node.memory.scattered(4096), 0, 4096, rights).expect("a region");
            let (closed, gone) = (region(access::LOCAL_WRITE), region(access::ALL));
            b.node.dereg_mr(b.context, gone.key).expect("DEREG_MR");
            let other_pd = b.node.create_pd(b.context).expect("a PD");
            let foreign = b.node.mr(b.context, other_pd, 4096);
            let (rkey, remote_addr) = match cause {
                0 => (b.mr.key ^ 0x100, b.mr.iova),
                1 => (b.mr.key, b.mr.iova + b.mr.len - 7),
                2 => (closed.key, closed.iova),
                3 => (gone.key, gone.iova),
                _ => (foreign.key, foreign.iova),
            };
            for n in 0..4 {
                b.recv(100 + n, 0, 64);
            }
            let sges = [a.mr.sge(0, 8)];
            let good = |wr_id| SendWr::signaled(wr_id, send::SEND).with_sges(&sges);
            a.send(&good(0));
            a.send(&SendWr { rkey, remote_addr, ..SendWr::signaled(1, send::WRITE).with_sges(&sges) });
            for n in 2..6 {
                a.send(&good(n));
            }
            for n in 0..2 {
                a.recv(100 + n, 0, 64);
            }
            let flushed = |wr_id| (wr_id, wc::WR_FLUSH_ERR);
            let mut near = completions(world, &mut a, 8);
            // The two queues of a QP have no order to each other.
            near.sort_unstable();
            let wanted = [(0, wc::SUCCESS), (1, wc::REM_ACCESS_ERR), flushed(2), flushed(3), flushed(4), flushed(5), flushed(100), flushed(101)];
            assert_eq!(near, wanted, "cause {cause}");
            let far = completions(world, &mut b, 4);
            assert_eq!(far, [(100, wc::SUCCESS), flushed(101), flushed(102), flushed(103)], "cause {cause}");
            assert_eq!((a.state(), b.state()), (state::ERR, state::ERR), "cause {cause}");
            world.settle();
            assert!(a.poll().is_none() && b.poll().is_none(), "cause {cause}: each once");
        }
    }

    fn semantics_08_a_receive_with_a_bad_lkey_on_uc(world: &World) {
        let (mut a, mut b) = sides_of(world, qp_type::UC);
        let bad = Sge { lkey: b.mr.key ^ 0x100, ..b.mr.sge(0, 100) };
        b.qp.post_recv(1, &[bad]).expect("room");
        b.recv(2, 0, 100);
        a.send(&SendWr::signaled(1, send::SEND).with_inline(b"x"));
        success(world, &mut a, "the sender does not notice");
        assert_eq!(completions(world, &mut b, 2), [(1, wc::LOC_PROT_ERR), (2, wc::WR_FLUSH_ERR)]);
        assert_eq!((a.state(), b.state()), (state::RTS, state::ERR));
    }

    fn semantics_12_messages_of_no_bytes_on_uc_and_ud(world: &World) {
        let (mut a, mut b) = sides_of(world, qp_type::UC);
        a.send(&SendWr { rkey: 0x00de_ad00, remote_addr: 0x1234, ..SendWr::signaled(1, send::WRITE) });
        success(world, &mut a, "zero bytes");
        world.settle();
        let counters = b.node.counters();
        assert_eq!((counters.access_errors, counters.rx_discarded), (0, 0), "their key is not looked at");
        for kind in [qp_type::UC, qp_type::UD] {
            (a, b) = sides_of(world, kind);
            let header = if kind == qp_type::UD { GRH } else { 0 };
            b.recv(3, 0, header);
            b.recv(4, 0, header);
            for wr_id in [3, 4] {
                a.send(&addressed(SendWr::signaled(wr_id, send::SEND), &b));
                success(world, &mut a, "a SEND of nothing");
                let cqe = success(world, &mut b, "a receive each");
                assert_eq!((cqe.wr_id, cqe.byte_len as usize), (wr_id, header), "type {kind}");
            }
        }
    }

    fn semantics_16_every_work_request_flushes_once_on_uc_and_ud(world: &World) {
        for kind in [qp_type::UC, qp_type::UD] {
            let (mut a, b) = sides_of(world, kind);
            let flushed = |ids: std::ops::Range<u64>| ids.map(|wr_id| (wr_id, wc::WR_FLUSH_ERR)).collect::<Vec<_>>();
            for n in 0..5 {
                a.recv(n, 0, 64);
            }
            to_state(&a.node, &a.qp, state::ERR).expect("ERR");
            assert_eq!(completions(world, &mut a, 5), flushed(0..5), "type {kind}");
            // What is posted later as well, signalled or not.
            for n in 5..8 {
                a.recv(n, 0, 64);
            }
            assert_eq!(completions(world, &mut a, 3), flushed(5..8), "type {kind}");
            for n in 8..12 {
                let wr = SendWr { flags: (n % 2) as u8, ..SendWr::signaled(n, send::SEND).with_inline(&[1]) };
                a.send(&addressed(wr, &b));
            }
            assert_eq!(completions(world, &mut a, 4), flushed(8..12), "type {kind}");
            world.settle();
            assert!(a.poll().is_none(), "type {kind}: each once");
            assert_eq!(b.state(), state::RTS, "type {kind}: nobody else is concerned");
        }
    }

    fn semantics_17_violations_raise_the_responder_s_event_and_no_other(world: &World) {
        let word = 8;
        for (what, opcode, at, key, raised) in [
            ("a bad rkey", send::WRITE, 0, 0x100, event::QP_ACCESS_ERR),
            ("out of range", send::READ, (64 << 10) - 4, 0, event::QP_ACCESS_ERR),
            ("an atomic that is not aligned", send::FETCH_AND_ADD, 4, 0, event::QP_REQ_ERR),
        ] {
            let (mut a, b) = sides(world);
            for side in [&a, &b] {
                side.node.events.take_asynchronous();
            }
            let sges = [a.mr.sge(0, word)];
            a.send(&SendWr { rkey: b.mr.key ^ key, ..SendWr::signaled(1, opcode).with_sges(&sges).at(&b.mr, at) });
            assert_ne!(world.until(what, || a.poll()).status, wc::SUCCESS, "{what}");
            world.settle();
            let (near, far) = (a.node.events.take_asynchronous(), b.node.events.take_asynchronous());
            // Over loopback both have one queue of events.
            let all = [near, far].concat();
            assert_eq!(all, [(raised, b.qp.qpn)], "{what}");
        }
    }

    fn semantics_43_what_a_drain_waits_for_flushes_in_every_state(world: &World) {
        // ib_drain_qp: to ERR, then one marked work request on each queue, whose completions it waits for.
        for kind in KINDS {
            for from in [state::RESET, state::INIT, state::RTR, state::RTS, state::SQD, state::SQE, state::ERR] {
                if (kind, from) == (qp_type::RC, state::SQE) {
                    continue;
                }
                let (mut a, b) = crate::states::in_state(world, kind, from);
                to_state(&a.node, &a.qp, state::ERR).expect("ERR");
                while a.poll().is_some() {}
                a.recv(70, 0, 8);
                a.send(&addressed(SendWr::signaled(71, send::SEND), &b));
                let mut done = completions(world, &mut a, 2);
                done.sort_unstable();
                assert_eq!(done, [(70, wc::WR_FLUSH_ERR), (71, wc::WR_FLUSH_ERR)], "type {kind} from state {from}");
                for side in [a, b] {
                    side.node.destroy_context(side.context).expect("DESTROY_CONTEXT");
                }
            }
        }
    }
}
