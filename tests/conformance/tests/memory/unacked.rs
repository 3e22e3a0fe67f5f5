//! Windows, fast registration and invalidation on UC: a peer that is refused is not told, and the connection goes on.

use conformance::layout::{Cqe, QpAttributes, access, mask, qp_type, send, state, wc, wc_opcode};
use conformance::memory::PAGE;
use conformance::node::{KERNEL, QpOptions};
use conformance::rings::SendWr;
use conformance::side::{Connection, Side, SideOptions, connect, connected, success};
use conformance::world::{Kind, World};
use devices::rdma::fabric::pair::Side as Wire;

use super::windows::{another, next, region};
use super::{EVERY, done, watched, works, write};

const FULL: u32 = access::LOCAL_WRITE | access::MW_BIND;
const WRITE: u32 = access::REMOTE_WRITE;
/// What is written again and again, so that a byte of an older WRITE is none of a newer one.
const LEN: usize = 8;

fn options() -> SideOptions {
    SideOptions {
        qp: QpOptions {
            kind: qp_type::UC,
            ..QpOptions::default()
        },
        mr_len: 256 << 10,
        ..SideOptions::default()
    }
}

/// Processes with UC QPs. What is sent before there is a link is lost.
fn sides(world: &World) -> (Side, Side) {
    let sides = connected(world, &options(), &Connection::default());
    world.settle();
    sides
}

/// WRITEs `LEN` bytes of `value` to a key of the far side: it completes at home whatever becomes of it, and has arrived or was dropped when
/// this returns. How many messages the far device dropped.
fn sends(world: &World, a: &mut Side, (key, addr): (u32, u64), value: u8) -> u64 {
    let far = world.b().clone();
    let before = far.counters();
    a.mr.write(0, &[value; LEN]);
    let sges = [a.mr.sge(0, LEN)];
    works(world, a, &write(&sges, key, addr));
    world.settle();
    let after = far.counters();
    let dropped = after.rx_discarded - before.rx_discarded;
    assert_eq!(after.access_errors - before.access_errors, dropped);
    dropped
}

/// Takes a side's QP from SQE back to RTS.
fn go_on(side: &Side) {
    assert_eq!(side.state(), state::SQE);
    let attributes = QpAttributes {
        qpn: side.qp.qpn,
        mask: mask::STATE,
        state: state::RTS,
        ..QpAttributes::default()
    };
    side.node
        .modify_qp(side.qp.context, &attributes)
        .expect("SQE to RTS");
}

/// Posts a work request that is to fail and a SEND behind it, which flushes. The failure.
fn fails(world: &World, side: &mut Side, wr: &SendWr<'_>) -> Cqe {
    side.send(wr);
    side.send(&SendWr::signaled(wr.wr_id + 1, send::SEND));
    let cqe = world.until("a refusal", || side.poll());
    assert_eq!(cqe.wr_id, wr.wr_id);
    let behind = world.until("a flush", || side.poll());
    assert_eq!(
        (behind.wr_id, behind.status),
        (wr.wr_id + 1, wc::WR_FLUSH_ERR)
    );
    cqe
}

#[test]
fn semantics_37_windows_of_type_1_on_uc_have_a_new_rkey_for_each_bind() {
    for kind in EVERY {
        let (world, _watchdog) = watched(kind);
        let (mut a, mut b) = sides(&world);
        let node = b.node.clone();
        let mr = region(&node, &b, FULL);
        let window = node.alloc_mw(b.context, b.pd, 1).expect("ALLOC_MW");
        let mut key = window;
        for at in [0, 4000, 7992] {
            let old = key;
            key = next(key);
            let bind = SendWr::bind(at, key, &mr, at, LEN as u64, WRITE);
            let cqe = works(&world, &mut b, &bind);
            assert_eq!((cqe.opcode, cqe.wr_id), (wc_opcode::BIND_MW, at));
            let value = at as u8 | 1;
            assert_eq!(sends(&world, &mut a, (key, mr.iova + at), value), 0);
            assert_eq!(mr.read(at as usize, LEN), [value; LEN]);
            // The key before it leads nowhere, and no further than its bytes does this one.
            assert_eq!(sends(&world, &mut a, (old, mr.iova + at), 0xee), 1);
            assert_eq!(sends(&world, &mut a, (key, mr.iova + at + 1), 0xee), 1);
            assert_eq!(mr.read(at as usize, LEN), [value; LEN]);
        }
        // Every QP of the PD may use it.
        let mut other = another(&world, &b);
        world.settle();
        assert_eq!(
            sends(&world, &mut other.near, (key, mr.iova + 7992), 0x5a),
            0
        );
        assert_eq!(mr.read(7992, LEN), [0x5a; LEN]);
        drop(other);
        let last = next(key);
        works(&world, &mut b, &SendWr::bind(9, last, &mr, 0, 0, 0));
        for key in [key, last] {
            assert_eq!(sends(&world, &mut a, (key, mr.iova + 7992), 0xee), 1);
        }
        assert_eq!(mr.read(7992, LEN), [0x5a; LEN]);
        node.dereg_mr(b.context, mr.key).expect("nothing is bound");
        assert_eq!((a.state(), b.state()), (state::RTS, state::RTS));
    }
}

#[test]
fn semantics_37_windows_of_type_2_on_uc_are_tied_to_their_qp() {
    for kind in EVERY {
        let (world, _watchdog) = watched(kind);
        let (mut a, mut b) = sides(&world);
        let node = b.node.clone();
        let mr = region(&node, &b, FULL);
        let key = node.alloc_mw(b.context, b.pd, 2).expect("ALLOC_MW");
        works(&world, &mut b, &SendWr::bind(0, key, &mr, 0, 8000, WRITE));
        assert_eq!(sends(&world, &mut a, (key, mr.iova + 77), 3), 0);
        assert_eq!(mr.read(77, LEN), [3; LEN]);
        // Another QP of the PD can neither use nor invalidate it, whatever its transport.
        let mut other = another(&world, &b);
        world.settle();
        assert_eq!(sends(&world, &mut other.near, (key, mr.iova + 77), 0xee), 1);
        let cqe = fails(&world, &mut other.far, &SendWr::invalidate(5, key));
        assert_eq!(cqe.status, wc::MW_BIND_ERR);
        assert_eq!(mr.read(77, LEN), [3; LEN]);
        // It is not bound again before it is invalidated.
        let again = SendWr::bind(1, next(key), &mr, 0, 16, WRITE);
        assert_eq!(fails(&world, &mut b, &again).status, wc::MW_BIND_ERR);
        go_on(&b);
        assert_eq!(sends(&world, &mut a, (key, mr.iova), 4), 0);
        works(&world, &mut b, &SendWr::invalidate(2, key));
        works(&world, &mut b, &SendWr { wr_id: 3, ..again });
        assert_eq!(sends(&world, &mut a, (next(key), mr.iova), 6), 0);
        assert_eq!(mr.read(0, LEN), [6; LEN]);
    }
}

#[test]
fn semantics_38_a_bind_that_fails_on_uc_takes_the_qp_to_sqe_and_receives_go_on() {
    for kind in EVERY {
        let (world, _watchdog) = watched(kind);
        let (mut a, mut b) = sides(&world);
        let node = b.node.clone();
        let unbindable = region(&node, &b, access::LOCAL_WRITE);
        let window = node.alloc_mw(b.context, b.pd, 1).expect("ALLOC_MW");
        let key = next(window);
        let bind = SendWr::bind(7, key, &unbindable, 0, 8, WRITE);
        assert_eq!(fails(&world, &mut b, &bind).status, wc::MW_BIND_ERR);
        assert_eq!(b.state(), state::SQE);
        b.recv(1, 0, 100);
        a.send(&SendWr::signaled(1, send::SEND).with_inline(b"on"));
        success(&world, &mut a, "a SEND to a QP in SQE");
        success(&world, &mut b, "a receive in SQE");
        assert_eq!(sends(&world, &mut a, (key, unbindable.iova), 0xee), 1);
        node.dereg_mr(b.context, unbindable.key)
            .expect("nothing is bound");
        go_on(&b);
        let mr = region(&node, &b, FULL);
        works(&world, &mut b, &SendWr::bind(9, key, &mr, 0, 8, WRITE));
        assert_eq!(sends(&world, &mut a, (key, mr.iova), 1), 0);
        assert_eq!(mr.read(0, LEN), [1; LEN]);
    }
}

#[test]
fn semantics_40_after_local_inv_completes_on_uc_the_key_fails_at_once() {
    for kind in EVERY {
        let (world, _watchdog) = watched(kind);
        let a = Side::in_context(world.a(), KERNEL, &options());
        let b = Side::in_context(world.b(), KERNEL, &options());
        connect((&a.node, &a.qp), (&b.node, &b.qp), &Connection::default());
        let (mut a, mut b) = (a, b);
        world.settle();
        let memory = b.node.memory.scattered(2 * PAGE);
        let fast = b.node.fast_mr(b.pd, 8).expect("ALLOC_MR");
        fast.fill(&memory.dma_pages());
        for tag in [1, 1, 200] {
            let key = fast.key(tag);
            let rights = access::LOCAL_WRITE | access::REMOTE_WRITE;
            let register = fast.register(key, 2, 0, 8192, rights);
            let cqe = works(&world, &mut b, &register);
            assert_eq!(cqe.opcode, wc_opcode::REG_MR);
            assert_eq!(sends(&world, &mut a, (key, 4092), tag), 0);
            assert_eq!(memory.read(4092, LEN), [tag; LEN]);
            // What is before an invalidation still has the bytes, and completes before it.
            a.recv(0, 0, 300);
            let local = [conformance::layout::Sge {
                addr: 4092,
                length: LEN as u32,
                lkey: key,
            }];
            b.send(&SendWr::signaled(1, send::SEND).with_sges(&local));
            b.send(&SendWr::invalidate(2, key));
            for (wr_id, opcode) in [(1, wc_opcode::SEND), (2, wc_opcode::LOCAL_INV)] {
                let cqe = success(&world, &mut b, "a SEND, then the invalidation");
                assert_eq!((cqe.wr_id, cqe.opcode), (wr_id, opcode));
            }
            success(&world, &mut a, "the receive");
            assert_eq!(a.mr.read(0, LEN), [tag; LEN]);
            assert_eq!(sends(&world, &mut a, (key, 4092), 0xee), 1);
            assert_eq!(memory.read(4092, LEN), [tag; LEN]);
        }
    }
}

/// A WRITE through a window is on its way when the window ends: nothing of it is placed any more, and what follows arrives.
#[test]
fn a_write_under_way_on_uc_ends_with_its_window() {
    let (world, _watchdog) = watched(Kind::Pair);
    let (mut a, mut b) = sides(&world);
    let node = b.node.clone();
    let buffer = node.memory.scattered(256 << 10);
    let mr = node
        .reg_mr(b.context, b.pd, buffer, 0, 256 << 10, FULL)
        .expect("a region");
    mr.buffer.fill(0);
    let key = node.alloc_mw(b.context, b.pd, 2).expect("ALLOC_MW");
    let bind = SendWr::bind(0, key, &mr, 0, 256 << 10, WRITE);
    works(&world, &mut b, &bind);
    a.mr.buffer.fill(0x77);
    // The far side takes in a few bytes a poll, so that the message is under way for long.
    world.control().pace(Wire::Right, 1000);
    let sges = [a.whole()];
    a.send(&write(&sges, key, mr.iova));
    world.until("some bytes", || (mr.read(0, 1) == [0x77]).then_some(()));
    works(&world, &mut b, &SendWr::invalidate(1, key));
    let placed = mr.read(0, 256 << 10);
    assert!(placed.contains(&0), "the message was not under way");
    world.control().pace(Wire::Right, usize::MAX);
    success(&world, &mut a, "the WRITE");
    world.settle();
    assert!(
        mr.read(0, 256 << 10) == placed,
        "the end of a window's WRITE was placed after the window"
    );
    let cqe = done(&world, &mut b, &SendWr::bind(2, key, &mr, 8, 8, WRITE));
    assert_eq!(cqe.status, wc::SUCCESS);
    assert_eq!(sends(&world, &mut a, (key, mr.iova + 8), 0x11), 0);
    assert_eq!(mr.read(8, LEN), [0x11; LEN]);
}
