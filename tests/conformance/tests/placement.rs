//! Atomic write and flush, where they were negotiated, and their refusal where they were not (section 5.2).

use conformance::layout::{
    Sge, Status, access, event, qp_type, send, state, wc, wc_opcode, wqe_flag,
};
use conformance::node::{Mr, QpOptions};
use conformance::on_every_fabric;
use conformance::random::payload;
use conformance::rings::SendWr;
use conformance::side::{Connection, Side, SideOptions, connected, success};
use conformance::watchdog::Watchdog;
use conformance::world::{Kind, Options, World};
use devices::rdma::device::DeviceConfig;
use devices::rdma::fabric::frame::kind as frame;
use devices::rdma::fabric::pair::Side::Left;
use devices::rdma::wire::feature;

const FLUSHABLE: u32 = access::LOCAL_WRITE | access::REMOTE_WRITE | access::FLUSH_GLOBAL;

/// Placement and selectivity of a flush.
const GLOBAL: u64 = 1;
const PERSISTENT: u64 = 2;
const REGION: u64 = 1 << 8;

/// Every right of a queue pair.
const OPEN: u32 = access::ALL | access::FLUSH_GLOBAL | access::FLUSH_PERSISTENT;

fn sides(world: &World) -> (Side, Side) {
    sides_with(world, OPEN)
}

fn sides_with(world: &World, bits: u32) -> (Side, Side) {
    let connection = Connection {
        access: bits,
        ..Default::default()
    };
    connected(world, &SideOptions::default(), &connection)
}

/// A region that may be flushed, not at the start of a page.
fn flushable(side: &Side, bits: u32) -> Mr {
    let buffer = side.node.memory.scattered(8192);
    side.node
        .reg_mr(side.context, side.pd, buffer, 96, 5000, bits)
        .expect("a region")
}

fn store(wr_id: u64, to: &Mr, at: u64, value: u64) -> SendWr<'static> {
    SendWr {
        compare_add: value,
        ..SendWr::signaled(wr_id, send::ATOMIC_WRITE).at(to, at)
    }
}

fn flush(wr_id: u64, of: &Mr, at: u64, length: u64, how: u64) -> SendWr<'static> {
    SendWr {
        compare_add: length,
        swap: how,
        ..SendWr::signaled(wr_id, send::FLUSH).at(of, at)
    }
}

/// What a request comes to.
fn status(world: &World, side: &mut Side, wr: &SendWr<'_>) -> u8 {
    side.send(wr);
    world.until("a completion", || side.poll()).status
}

on_every_fabric! {
    fn an_atomic_write_stores_its_word_after_what_was_before_it(world: &World) {
        let (mut a, b) = sides(world);
        let data = payload(1, 40_000);
        a.mr.write(0, &data);
        let sges = [a.mr.sge(0, 40_000)];
        for n in 0..20u64 {
            // The word lies in what is written before it, and is read after it.
            let (at, value) = (8 * n, 0x0102_0304_0506_0708 + n);
            a.send(&SendWr { flags: 0, ..SendWr::signaled(0, send::WRITE).with_sges(&sges).at(&b.mr, 0) });
            a.send(&store(1, &b.mr, at, value));
            let back = [a.mr.sge(50_000, 8)];
            a.send(&SendWr::signaled(2, send::READ).with_sges(&back).at(&b.mr, at));
            let cqe = success(world, &mut a, "the atomic write");
            assert_eq!((cqe.wr_id, cqe.opcode, cqe.byte_len), (1, wc_opcode::ATOMIC_WRITE, 0));
            success(world, &mut a, "the READ");
            assert_eq!(a.mr.read(50_000, 8), value.to_le_bytes());
            assert_eq!(b.mr.read(8 * n as usize + 8, 1000), data[8 * n as usize + 8..][..1000]);
        }
        // More than may be under way.
        for n in 0..30 {
            a.send(&store(n, &b.mr, 8 * n, n));
        }
        for n in 0..30 {
            assert_eq!(success(world, &mut a, "one of many").wr_id, n);
            assert_eq!(b.mr.read(8 * n as usize, 8), n.to_le_bytes());
        }
    }

    fn an_atomic_write_that_is_refused_changes_nothing(world: &World) {
        let plain = access::LOCAL_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC;
        for (what, bits, at, expected) in [
            ("not aligned", OPEN, 4, wc::REM_INV_REQ_ERR),
            ("past the end", OPEN, 65_536, wc::REM_ACCESS_ERR),
            ("the QP does not let it", plain, 0, wc::REM_INV_REQ_ERR),
        ] {
            let (mut a, b) = sides_with(world, bits);
            b.mr.buffer.fill(0x11);
            assert_eq!(status(world, &mut a, &store(1, &b.mr, at, 5)), expected, "{what}");
            assert_eq!((a.state(), b.state()), (state::ERR, state::ERR), "{what}");
            assert!(b.mr.buffer.holds_only(0x11), "{what}");
        }
        let (mut a, b) = sides(world);
        let closed = flushable(&b, plain);
        assert_eq!(status(world, &mut a, &store(1, &closed, 0, 5)), wc::REM_ACCESS_ERR, "the region does not let it");
        assert!(closed.buffer.holds_only(0));
    }

    fn a_flush_is_answered_when_what_was_before_it_is_placed(world: &World) {
        let (mut a, b) = sides(world);
        let target = flushable(&b, FLUSHABLE);
        for n in 0..20u8 {
            a.mr.write(0, &[n; 5000]);
            let sges = [a.mr.sge(0, 5000)];
            a.send(&SendWr { flags: 0, ..SendWr::signaled(0, send::WRITE).with_sges(&sges).at(&target, 0) });
            let (at, length, how) = match n % 4 {
                0 => (0, 5000, GLOBAL),
                1 => (4999, 1, GLOBAL),
                2 => (100, 0, GLOBAL),
                // Address and length mean nothing then.
                _ => (1 << 40, 1 << 50, GLOBAL | REGION),
            };
            a.send(&flush(u64::from(n), &target, at, length, how));
            let cqe = success(world, &mut a, "the flush");
            assert_eq!((cqe.wr_id, cqe.opcode, cqe.byte_len), (u64::from(n), wc_opcode::FLUSH, 0));
            assert_eq!(target.read(0, 5000), [n; 5000]);
        }
        assert!(b.node.events.asynchronous().is_empty());
    }

    fn a_flush_that_is_not_allowed_is_refused(world: &World) {
        let no_flush = access::ALL;
        for (what, qp, region, at, length, how, expected) in [
            ("a region without the right", OPEN, access::ALL, 0, 8, GLOBAL, wc::REM_ACCESS_ERR),
            ("such a region as a whole", OPEN, access::ALL, 0, 8, GLOBAL | REGION, wc::REM_ACCESS_ERR),
            ("the other placement", OPEN, FLUSHABLE, 0, 8, PERSISTENT, wc::REM_ACCESS_ERR),
            ("both placements", OPEN, FLUSHABLE, 0, 8, GLOBAL | PERSISTENT, wc::REM_ACCESS_ERR),
            ("past the end", OPEN, FLUSHABLE, 1, 5000, GLOBAL, wc::REM_ACCESS_ERR),
            ("before the start", OPEN, FLUSHABLE, u64::MAX, 8, GLOBAL, wc::REM_ACCESS_ERR),
            ("a length that wraps", OPEN, FLUSHABLE, 8, u64::MAX, GLOBAL, wc::REM_ACCESS_ERR),
            ("a QP without the right", no_flush, FLUSHABLE, 0, 8, GLOBAL, wc::REM_INV_REQ_ERR),
            ("a QP with the other", no_flush | access::FLUSH_PERSISTENT, FLUSHABLE, 0, 8, GLOBAL | PERSISTENT, wc::REM_INV_REQ_ERR),
        ] {
            let (mut a, b) = sides_with(world, qp);
            let target = flushable(&b, region);
            b.node.events.take_asynchronous();
            let wr = SendWr { remote_addr: target.iova.wrapping_add(at), ..flush(1, &target, 0, length, how) };
            assert_eq!(status(world, &mut a, &wr), expected, "{what}");
            assert_eq!((a.state(), b.state()), (state::ERR, state::ERR), "{what}");
            let raised = if expected == wc::REM_ACCESS_ERR { event::QP_ACCESS_ERR } else { event::QP_REQ_ERR };
            world.until(what, || b.node.events.asynchronous().contains(&(raised, b.qp.qpn)).then_some(()));
        }
        let (mut a, b) = sides(world);
        let target = flushable(&b, FLUSHABLE);
        b.node.dereg_mr(b.context, target.key).expect("DEREG_MR");
        assert_eq!(status(world, &mut a, &flush(1, &target, 0, 0, GLOBAL | REGION)), wc::REM_ACCESS_ERR, "a region that is gone");
    }

    fn what_cannot_be_fails_at_home_and_is_not_sent(world: &World) {
        let one = |side: &Side| [side.mr.sge(0, 8)];
        for case in 0..8 {
            let connection = Connection { access: OPEN, max_rd_atomic: if case == 7 { 0 } else { 4 }, ..Default::default() };
            let (mut a, b) = connected(world, &SideOptions::default(), &connection);
            b.mr.buffer.fill(0x11);
            let (sges, plain): ([Sge; 1], _) = (one(&a), store(1, &b.mr, 0, 5));
            let wr = match case {
                0 => plain.with_sges(&sges),
                1 => plain.with_inline(&[1; 8]),
                2 => flush(1, &b.mr, 0, 8, GLOBAL).with_sges(&sges),
                3 => flush(1, &b.mr, 0, 8, 0),
                4 => flush(1, &b.mr, 0, 8, 4 | GLOBAL),
                5 => flush(1, &b.mr, 0, 8, GLOBAL | 1 << 9),
                6 => SendWr { flags: wqe_flag::SIGNALED | 16, ..plain },
                _ => plain,
            };
            assert_eq!(status(world, &mut a, &wr), wc::LOC_QP_OP_ERR, "case {case}");
            world.settle();
            assert_eq!((a.state(), b.state()), (state::ERR, state::RTS), "case {case}");
            assert!(b.mr.buffer.holds_only(0x11), "case {case}");
        }
        for kind in [qp_type::UC, qp_type::UD] {
            for opcode in [send::ATOMIC_WRITE, send::FLUSH] {
                let options = SideOptions { qp: QpOptions { kind, ..Default::default() }, ..Default::default() };
                let (mut a, b) = connected(world, &options, &Connection::default());
                let wr = SendWr { swap: GLOBAL, ..SendWr::signaled(1, opcode).at(&b.mr, 0) };
                assert_eq!(status(world, &mut a, &wr), wc::LOC_QP_OP_ERR, "type {kind}");
                assert_eq!(a.state(), state::SQE, "type {kind}");
            }
        }
    }
}

#[test]
fn an_atomic_write_is_done_once_though_its_answer_was_lost() {
    let _watchdog = Watchdog::new("once");
    let world = World::new(Kind::Pair);
    let (mut a, b) = sides(&world);
    let control = world.control();
    control.hold(Left, frame::ATOMIC_DATA);
    a.send(&store(1, &b.mr, 0, 7));
    world.until("it is stored", || {
        (b.mr.read(0, 8) == 7u64.to_le_bytes()).then_some(())
    });
    control.cut();
    // The far process goes on from there.
    b.mr.write(0, &9u64.to_le_bytes());
    control.release(Left);
    control.restore();
    success(&world, &mut a, "it was asked for again");
    assert_eq!(b.mr.read(0, 8), 9u64.to_le_bytes());
    assert!(a.node.counters().retries > 0, "it was sent twice");
}

#[test]
fn nothing_behind_a_fence_overtakes_a_flush() {
    let _watchdog = Watchdog::new("fence");
    let world = World::new(Kind::Pair);
    let (mut a, mut b) = sides(&world);
    let target = flushable(&b, FLUSHABLE);
    world.control().hold(Left, frame::ATOMIC_DATA);
    a.send(&flush(1, &target, 0, 5000, GLOBAL));
    b.recv(1, 0, 8);
    a.send_flagged(2, wqe_flag::FENCE);
    world.settle();
    assert!(!b.cq.ready() && a.poll().is_none());
    world.control().release(Left);
    for wr_id in [1, 2] {
        assert_eq!(success(&world, &mut a, "in order").wr_id, wr_id);
    }
    success(&world, &mut b, "the SEND");
}

#[test]
fn rights_to_flush_are_those_that_memory_can_keep() {
    let _watchdog = Watchdog::new("rights");
    let world = World::new(Kind::Loopback);
    let side = Side::new(world.a(), &SideOptions::default());
    let register = |bits| {
        let buffer = side.node.memory.scattered(4096);
        let made = side
            .node
            .reg_mr(side.context, side.pd, buffer, 0, 4096, bits);
        made.map(|mr| mr.key)
    };
    register(access::FLUSH_GLOBAL).expect("to flush needs no other right");
    let refused = register(access::FLUSH_PERSISTENT);
    assert_eq!(refused, Err(Status::Invalid), "memory ends with the guest");
    // Rights that a change gives and takes.
    let (mut a, b) = sides(&world);
    let target = flushable(&b, FLUSHABLE);
    assert_eq!(
        status(&world, &mut a, &flush(1, &target, 0, 8, GLOBAL)),
        wc::SUCCESS
    );
    let acc = conformance::node::rereg::ACCESS;
    let persistent = access::FLUSH_PERSISTENT;
    assert_eq!(
        b.node
            .rereg_mr(b.context, target.key, acc, (0, persistent, 0)),
        Err(Status::Invalid)
    );
    b.node
        .rereg_mr(b.context, target.key, acc, (0, access::ALL, 0))
        .expect("REREG_MR");
    assert_eq!(
        status(&world, &mut a, &flush(2, &target, 0, 8, GLOBAL)),
        wc::REM_ACCESS_ERR
    );
}

#[test]
fn without_the_features_there_is_neither() {
    let _watchdog = Watchdog::new("not negotiated");
    let options = Options {
        features: DeviceConfig::FEATURES & !(feature::ATOMIC_WRITE | feature::FLUSH),
        pages: 8192,
        ..Default::default()
    };
    let world = World::with(Kind::Pair, &options);
    for opcode in [send::ATOMIC_WRITE, send::FLUSH] {
        let (mut a, b) = sides_with(&world, access::ALL);
        let wr = SendWr {
            swap: GLOBAL,
            ..SendWr::signaled(1, opcode).at(&b.mr, 0)
        };
        assert_eq!(status(&world, &mut a, &wr), wc::LOC_QP_OP_ERR);
        assert_eq!((a.state(), b.state()), (state::ERR, state::RTS));
    }
    let side = Side::new(world.a(), &SideOptions::default());
    let buffer = side.node.memory.scattered(4096);
    let bits = access::FLUSH_GLOBAL;
    let made = side
        .node
        .reg_mr(side.context, side.pd, buffer, 0, 4096, bits);
    assert_eq!(made.err(), Some(Status::Invalid));
    let init = Connection {
        access: bits,
        ..Default::default()
    }
    .init(side.qp.qpn);
    assert_eq!(
        side.node.modify_qp(side.qp.context, &init),
        Err(Status::Invalid)
    );
}
