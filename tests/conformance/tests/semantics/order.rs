//! Order of completions and of memory: points 2 to 5.

use conformance::layout::{Sge, qp_type, send, wc, wqe_flag};
use conformance::on_every_fabric;
use conformance::random::payload;
use conformance::rings::SendWr;
use conformance::side::{Connection, SideOptions, connected, sides, success};
use conformance::watchdog::Watchdog;
use conformance::world::{Kind, World};
use devices::rdma::fabric::frame::kind as frame;
use devices::rdma::fabric::pair::Side::Left;

use super::{KINDS, addressed, sides_of};

on_every_fabric! {
    fn semantics_02_an_unsignalled_failure_completes_all_the_same(world: &World) {
        for kind in KINDS {
            let (mut a, mut b) = sides_of(world, kind);
            b.recv(1, 0, 100);
            let good = [a.mr.sge(0, 8)];
            let bad = [Sge { lkey: a.mr.key ^ 0x100, ..a.mr.sge(0, 8) }];
            let quiet = |wr_id, sges| SendWr { flags: 0, ..SendWr::signaled(wr_id, send::SEND).with_sges(sges) };
            a.send(&addressed(quiet(1, &good), &b));
            success(world, &mut b, "what was good");
            a.send(&addressed(quiet(2, &bad), &b));
            a.send(&addressed(quiet(3, &good), &b));
            let done: Vec<_> = (0..2).map(|_| world.until("two completions", || a.poll())).map(|cqe| (cqe.wr_id, cqe.status)).collect();
            assert_eq!(done, [(2, wc::LOC_PROT_ERR), (3, wc::WR_FLUSH_ERR)], "type {kind}: the success has no completion, the failures have");
            assert_eq!(a.qp.sq_retired, a.qp.sq_producer, "type {kind}: all are done with");
            world.settle();
            assert!(a.poll().is_none(), "type {kind}");
        }
    }

    fn semantics_02_a_signalled_success_retires_all_before_it_on_uc_and_ud(world: &World) {
        for kind in [qp_type::UC, qp_type::UD] {
            let (mut a, b) = sides_of(world, kind);
            for round in 0..8u64 {
                for n in 0..10 {
                    let flags = if n == 9 { wqe_flag::SIGNALED } else { 0 };
                    let wr = SendWr { flags, ..SendWr::signaled(round * 10 + n, send::SEND).with_inline(&[7; 8]) };
                    a.send(&addressed(wr, &b));
                }
                assert_eq!(success(world, &mut a, "the signalled one").wr_id, round * 10 + 9);
                assert_eq!(a.qp.sq_retired, a.qp.sq_producer, "type {kind}: it retires all before it");
            }
            world.settle();
            assert!(a.poll().is_none(), "type {kind}");
        }
    }

    fn semantics_04_a_write_is_visible_before_what_follows_it_on_uc(world: &World) {
        let (mut a, mut b) = sides_of(world, qp_type::UC);
        for round in 0..20u8 {
            let size = 40_000;
            a.mr.write(0, &vec![round + 1; size]);
            b.recv(1, 60_000, 16);
            let sges = [a.mr.sge(0, size)];
            a.send(&SendWr { flags: 0, ..SendWr::signaled(1, send::WRITE).with_sges(&sges).at(&b.mr, 0) });
            let opcode = if round % 2 == 0 { send::SEND } else { send::WRITE_IMM };
            a.send(&SendWr::signaled(2, opcode).at(&b.mr, 0));
            success(world, &mut b, "what follows the WRITE");
            assert!(b.mr.read(0, size).iter().all(|byte| *byte == round + 1));
            success(world, &mut a, "both are sent");
        }
    }

    fn semantics_05_reads_and_atomics_beyond_the_limit_wait(world: &World) {
        let connection = Connection { max_rd_atomic: 1, ..Default::default() };
        let (mut a, b) = connected(world, &SideOptions::default(), &connection);
        let data = payload(3, 4000);
        b.mr.write(4096, &data);
        let (word, text) = ([a.mr.sge(0, 8)], [a.mr.sge(4096, 4000)]);
        for n in 0..32 {
            let wr = if n % 2 == 0 {
                SendWr { compare_add: 5, ..SendWr::signaled(n, send::FETCH_AND_ADD).with_sges(&word).at(&b.mr, 0) }
            } else {
                SendWr::signaled(n, send::READ).with_sges(&text).at(&b.mr, 4096)
            };
            a.send(&wr);
        }
        for n in 0..32 {
            assert_eq!(success(world, &mut a, "one of many").wr_id, n);
        }
        assert_eq!(b.mr.read(0, 8), (16u64 * 5).to_le_bytes());
        assert_eq!(a.mr.read(0, 8), (15u64 * 5).to_le_bytes());
        assert_eq!(a.mr.read(4096, 4000), data);
    }
}

/// The answer of a READ or atomic is held back: a fenced SEND waits for it, one that is not fenced does not.
#[test]
fn semantics_03_a_fence_waits_for_reads_and_atomics_and_only_a_fence_does() {
    let _watchdog = Watchdog::new("fence");
    for (opcode, answer) in [
        (send::READ, frame::READ_DATA),
        (send::FETCH_AND_ADD, frame::ATOMIC_DATA),
        (send::CMP_AND_SWP, frame::ATOMIC_DATA),
    ] {
        for fence in [0, wqe_flag::FENCE] {
            let world = World::new(Kind::Pair);
            let (mut a, mut b) = sides(&world);
            b.mr.write(0, &[0x77; 8]);
            b.recv(1, 100, 8);
            world.control().hold(Left, answer);
            let word = [a.mr.sge(0, 8)];
            a.send(&SendWr::signaled(1, opcode).with_sges(&word).at(&b.mr, 0));
            a.send(&SendWr {
                flags: wqe_flag::SIGNALED | fence,
                ..SendWr::signaled(2, send::SEND).with_sges(&word)
            });
            world.settle();
            assert_eq!(
                b.cq.ready(),
                fence == 0,
                "opcode {opcode}, fence {fence}: whether the SEND came while the answer was held"
            );
            assert!(a.poll().is_none(), "nothing overtakes the first");
            world.control().release(Left);
            for wr_id in [1, 2] {
                assert_eq!(success(&world, &mut a, "in order").wr_id, wr_id);
            }
            success(&world, &mut b, "the SEND");
            let brought = if fence == 0 { [0; 8] } else { [0x77; 8] };
            assert_eq!(b.mr.read(100, 8), brought, "opcode {opcode}");
        }
    }
}
