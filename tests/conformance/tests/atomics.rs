//! Atomics, where they were negotiated, and their refusal where they were not.

use conformance::layout::{access, send, state, wc, wc_opcode, wqe_flag};
use conformance::on_every_fabric;
use conformance::rings::SendWr;
use conformance::side::{Connection, Side, SideOptions, connected, sides, success};
use conformance::watchdog::Watchdog;
use conformance::world::{Kind, Options, World};
use devices::rdma::wire::feature;

fn atomic(a: &mut Side, b: &Side, opcode: u8, offset: u64, compare_add: u64, swap: u64) {
    let sges = [a.mr.sge(0, 8)];
    a.send(&SendWr {
        wr_id: 1,
        opcode,
        flags: wqe_flag::SIGNALED,
        sges: &sges,
        rkey: b.mr.key,
        remote_addr: b.mr.iova + offset,
        compare_add,
        swap,
        ..Default::default()
    });
}

fn word(side: &Side, at: usize) -> u64 {
    u64::from_le_bytes(side.mr.read(at, 8).try_into().expect("eight bytes"))
}

on_every_fabric! {
    fn atomics_change_the_word_and_return_what_was_there(world: &World) {
        let (mut a, b) = sides(world);
        for offset in [0u64, 8, 4088] {
            let at = offset as usize;
            b.mr.write(at, &100u64.to_le_bytes());
            atomic(&mut a, &b, send::FETCH_AND_ADD, offset, 23, 0);
            let cqe = success(world, &mut a, "FETCH_AND_ADD");
            assert_eq!((cqe.opcode, cqe.byte_len), (wc_opcode::FETCH_ADD, 8));
            assert_eq!((word(&a, 0), word(&b, at)), (100, 123));
            atomic(&mut a, &b, send::FETCH_AND_ADD, offset, u64::MAX, 0);
            success(world, &mut a, "wrapping");
            assert_eq!((word(&a, 0), word(&b, at)), (123, 122));
            atomic(&mut a, &b, send::CMP_AND_SWP, offset, 5, 9);
            let cqe = success(world, &mut a, "CMP_AND_SWP that does not match");
            assert_eq!(cqe.opcode, wc_opcode::COMP_SWAP);
            assert_eq!((word(&a, 0), word(&b, at)), (122, 122));
            atomic(&mut a, &b, send::CMP_AND_SWP, offset, 122, 0x0102_0304_0506_0708);
            success(world, &mut a, "CMP_AND_SWP that matches");
            assert_eq!((word(&a, 0), word(&b, at)), (122, 0x0102_0304_0506_0708));
        }
    }

    fn many_atomics_add_up(world: &World) {
        let (mut a, b) = sides(world);
        b.mr.write(0, &[0; 8]);
        for _ in 0..20 {
            for _ in 0..32 {
                atomic(&mut a, &b, send::FETCH_AND_ADD, 0, 3, 0);
            }
            for _ in 0..32 {
                success(world, &mut a, "one of many");
            }
        }
        assert_eq!(word(&b, 0), 20 * 32 * 3);
    }

    fn semantics_11_bad_atomics_are_refused_and_change_nothing(world: &World) {
        for (what, offset, bits) in [("unaligned", 4u64, access::ALL), ("no right of the QP", 0, access::ALL & !access::REMOTE_ATOMIC), ("past the end", (64 << 10) - 4, access::ALL), ("far away", 1 << 40, access::ALL)] {
            let (mut a, b) = connected(world, &SideOptions::default(), &Connection { access: bits, ..Default::default() });
            b.mr.buffer.fill(0x11);
            a.mr.buffer.fill(0x22);
            atomic(&mut a, &b, send::FETCH_AND_ADD, offset, 1, 0);
            let cqe = world.until(what, || a.poll());
            assert!(matches!(cqe.status, wc::REM_ACCESS_ERR | wc::REM_INV_REQ_ERR), "{what}: {cqe:?}");
            assert_eq!((a.state(), b.state()), (state::ERR, state::ERR), "{what}");
            assert!(b.mr.buffer.holds_only(0x11) && a.mr.buffer.holds_only(0x22), "{what}: something changed");
        }
        // A region without the right.
        let (mut a, b) = sides(world);
        let buffer = b.node.memory.scattered(4096);
        buffer.fill(0x11);
        let bits = access::ALL & !access::REMOTE_ATOMIC;
        let plain = b.node.reg_mr(b.context, b.pd, buffer, 0, 4096, bits).expect("a region");
        let sges = [a.mr.sge(0, 8)];
        a.send(&SendWr { opcode: send::CMP_AND_SWP, sges: &sges, rkey: plain.key, remote_addr: plain.iova, compare_add: 0x1111_1111_1111_1111, swap: 5, ..Default::default() });
        let cqe = world.until("no right of the region", || a.poll());
        assert_eq!(cqe.status, wc::REM_ACCESS_ERR, "{cqe:?}");
        assert!(plain.buffer.holds_only(0x11));
    }
}

#[test]
fn semantics_13_opcodes_that_were_not_negotiated_fail_at_home() {
    let _watchdog = Watchdog::new("no atomics");
    let options = Options {
        features: feature::USER_DOORBELL,
        pages: 8192,
        ..Default::default()
    };
    let world = World::with(Kind::Pair, &options);
    for opcode in [
        send::CMP_AND_SWP,
        send::FETCH_AND_ADD,
        send::LOCAL_INV,
        send::BIND_MW,
        send::SEND_INV,
        send::REG_MR,
        10,
        31,
        255,
    ] {
        let (mut a, b) = sides(&world);
        b.mr.buffer.fill(0x11);
        atomic(&mut a, &b, opcode, 0, 1, 0);
        let cqe = world.until("an opcode that was not negotiated", || a.poll());
        assert_eq!(cqe.status, wc::LOC_QP_OP_ERR, "opcode {opcode}: {cqe:?}");
        assert_eq!(
            (a.state(), b.state()),
            (state::ERR, state::RTS),
            "opcode {opcode}"
        );
        assert!(b.mr.buffer.holds_only(0x11));
    }
}
