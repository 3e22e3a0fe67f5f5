//! Bounds: what no key, no owner and no range covers is never touched, and both sides say why.

use conformance::layout::{RegMr, Sge, Status, access, event, send, state, wc, wqe_flag};
use conformance::memory::PAGE;
use conformance::node::{Mr, QpOptions};
use conformance::on_every_fabric;
use conformance::random::payload;
use conformance::rings::SendWr;
use conformance::side::{Connection, Side, SideOptions, connected, sides, success};
use conformance::world::{Kind, World};
use devices::rdma::fabric::pair::Side::{Left, Right};

/// Fresh QPs on the same sides, after an error ended the last ones.
fn fresh(world: &World, a: &mut Side, b: &mut Side) {
    fresh_with(world, a, b, &Connection::default());
}

fn fresh_with(world: &World, a: &mut Side, b: &mut Side, connection: &Connection) {
    for side in [&mut *a, &mut *b] {
        side.node
            .destroy_qp(side.context, side.qp.qpn)
            .expect("DESTROY_QP");
        side.qp = side
            .node
            .create_qp(
                side.context,
                side.pd,
                side.cq.cqn,
                side.cq.cqn,
                &QpOptions::default(),
            )
            .expect("a QP");
        while side.cq.poll().is_some() {}
    }
    conformance::side::connect((&a.node, &a.qp), (&b.node, &b.qp), connection);
    a.node.events.take_asynchronous();
    b.node.events.take_asynchronous();
    let _ = world;
}

/// A remote request that the responder must refuse.
fn refused(
    world: &World,
    a: &mut Side,
    b: &mut Side,
    what: &str,
    (opcode, rkey, addr, len): (u8, u32, u64, usize),
) {
    b.recv(9, 0, 1);
    let sges = [a.mr.sge(0, len)];
    a.mr.buffer.fill(0x11);
    a.send(&SendWr {
        wr_id: 1,
        opcode,
        flags: wqe_flag::SIGNALED,
        sges: &sges,
        rkey,
        remote_addr: addr,
        ..Default::default()
    });
    // One behind it, which must flush.
    a.send(&SendWr {
        wr_id: 2,
        opcode: send::WRITE,
        inline: Some(&[0x22; 8]),
        rkey: b.mr.key,
        remote_addr: b.mr.iova,
        ..Default::default()
    });
    let cqe = world.until(what, || a.poll());
    assert_eq!(
        (cqe.wr_id, cqe.status),
        (1, wc::REM_ACCESS_ERR),
        "{what}: {cqe:?}"
    );
    let cqe = world.until(what, || a.poll());
    assert_eq!(
        (cqe.wr_id, cqe.status),
        (2, wc::WR_FLUSH_ERR),
        "{what}: {cqe:?}"
    );
    assert_eq!(a.state(), state::ERR, "{what}: the requester is in ERR");
    let cqe = world.until(what, || b.poll());
    assert_eq!(
        (cqe.wr_id, cqe.status),
        (9, wc::WR_FLUSH_ERR),
        "{what}: the responder's receive flushes"
    );
    assert_eq!(b.state(), state::ERR, "{what}: the responder is in ERR");
    world.until("QP_ACCESS_ERR at the responder", || {
        b.node
            .events
            .asynchronous()
            .contains(&(event::QP_ACCESS_ERR, b.qp.qpn))
            .then_some(())
    });
    assert!(
        a.mr.buffer.holds_only(0x11),
        "{what}: the requester's memory changed"
    );
    fresh(world, a, b);
}

/// A region in the middle of pages: guards before and after it in the same pages.
fn guarded(side: &Side, start: usize, len: usize, bits: u32) -> Mr {
    let buffer = side.node.memory.scattered(start + len + PAGE);
    buffer.fill(0xee);
    side.node
        .reg_mr(side.context, side.pd, buffer, start, len, bits)
        .expect("a region")
}

/// Lets payloads arrive in parts, where that can be ordered: so a command finds the device with one under way.
fn in_parts(world: &World) {
    if world.kind() == Kind::Pair {
        for side in [Left, Right] {
            world.control().pace(side, 5000);
        }
    }
}

fn canaries(world: &World) {
    world.settle();
    for node in world.nodes() {
        assert_eq!(
            node.memory.disturbed_canary(),
            None,
            "a page that nobody registered was written"
        );
    }
}

on_every_fabric! {
    fn semantics_06_one_byte_past_either_end(world: &World) {
        let (mut a, mut b) = sides(world);
        world.plant_canaries();
        for (start, len) in [(0, 4096), (100, 1), (100, 4096), (4095, 2), (17, 12_345)] {
            let target = guarded(&b, start, len, access::ALL);
            for opcode in [send::WRITE, send::READ] {
                let end = target.iova + len as u64;
                for (addr, size) in [
                    (target.iova - 1, 1),
                    (target.iova - 1, 2),
                    (end, 1),
                    (end - 1, 2),
                    (target.iova, len + 1),
                    (target.iova - 1, len + 2),
                    (u64::MAX, 1),
                    (u64::MAX, 2),
                    (0, 1),
                ] {
                    refused(world, &mut a, &mut b, "past an end", (opcode, target.key, addr, size));
                    assert!(target.buffer.holds_only(0xee), "{opcode}: {start}+{len} at {addr:#x}");
                }
                // And what is inside works, to the byte.
                a.mr.write(0, &vec![0xee; len]);
                let sges = [a.mr.sge(0, len)];
                a.send(&SendWr::signaled(0, opcode).with_sges(&sges).at(&target, 0));
                success(world, &mut a, "all of the region");
            }
            b.node.dereg_mr(b.context, target.key).expect("DEREG_MR");
        }
        canaries(world);
    }

    fn semantics_06_a_bad_rkey(world: &World) {
        let (mut a, mut b) = sides(world);
        world.plant_canaries();
        let iova = b.mr.iova;
        for key in [0, 1, b.mr.key ^ 1, b.mr.key.wrapping_add(1 << 8), b.mr.key.wrapping_add(7 << 8), 0xffff_ffff, 0x00ff_ffff] {
            b.mr.buffer.fill(0xee);
            refused(world, &mut a, &mut b, "a wrong key", (send::WRITE, key, iova, 8));
            refused(world, &mut a, &mut b, "a wrong key", (send::READ, key, iova, 8));
            assert!(b.mr.buffer.holds_only(0xee));
        }
        canaries(world);
    }

    fn semantics_06_a_right_that_the_region_has_not(world: &World) {
        let (mut a, mut b) = sides(world);
        world.plant_canaries();
        for (bits, opcode) in [
            (0, send::WRITE),
            (0, send::READ),
            (access::LOCAL_WRITE, send::WRITE),
            (access::LOCAL_WRITE | access::REMOTE_READ, send::WRITE),
            (access::LOCAL_WRITE | access::REMOTE_WRITE, send::READ),
        ] {
            let target = guarded(&b, 10, 5000, bits);
            refused(world, &mut a, &mut b, "a right that was not given", (opcode, target.key, target.iova, 100));
            assert!(target.buffer.holds_only(0xee));
            b.node.dereg_mr(b.context, target.key).expect("DEREG_MR");
        }
        canaries(world);
    }

    fn semantics_06_a_region_of_another_pd(world: &World) {
        let (mut a, mut b) = sides(world);
        world.plant_canaries();
        let pd = b.node.create_pd(b.context).expect("a PD");
        let buffer = b.node.memory.scattered(4096);
        buffer.fill(0xee);
        let other = b.node.reg_mr(b.context, pd, buffer, 0, 4096, access::ALL).expect("a region");
        refused(world, &mut a, &mut b, "another PD", (send::WRITE, other.key, other.iova, 8));
        refused(world, &mut a, &mut b, "another PD", (send::READ, other.key, other.iova, 8));
        assert!(other.buffer.holds_only(0xee));
        // Another context's.
        let stranger = Side::new(&b.node, &SideOptions::default());
        stranger.mr.buffer.fill(0xee);
        let (key, iova) = (stranger.mr.key, stranger.mr.iova);
        refused(world, &mut a, &mut b, "another context", (send::WRITE, key, iova, 8));
        refused(world, &mut a, &mut b, "another context", (send::READ, key, iova, 8));
        assert!(stranger.mr.buffer.holds_only(0xee));
        canaries(world);
    }

    fn semantics_10_what_the_qp_does_not_allow(world: &World) {
        let (mut a, mut b) = sides(world);
        for (bits, opcode) in [
            (access::REMOTE_READ, send::WRITE),
            (access::REMOTE_WRITE, send::READ),
            (access::REMOTE_READ | access::REMOTE_WRITE, send::FETCH_AND_ADD),
            (0, send::WRITE),
        ] {
            fresh_with(world, &mut a, &mut b, &Connection { access: bits, ..Default::default() });
            b.mr.buffer.fill(0xee);
            let sges = [a.mr.sge(0, 8)];
            a.send(&SendWr::signaled(1, opcode).with_sges(&sges).at(&b.mr, 0));
            let cqe = world.until("a request that the QP does not allow", || a.poll());
            assert!(matches!(cqe.status, wc::REM_ACCESS_ERR | wc::REM_INV_REQ_ERR), "{cqe:?}");
            assert!(b.mr.buffer.holds_only(0xee));
        }
    }

    fn semantics_06_a_region_that_was_deregistered(world: &World) {
        let (mut a, mut b) = sides(world);
        world.plant_canaries();
        let target = guarded(&b, 0, 8192, access::ALL);
        let (key, iova) = (target.key, target.iova);
        b.node.dereg_mr(b.context, key).expect("DEREG_MR");
        drop(target);
        refused(world, &mut a, &mut b, "deregistered", (send::WRITE, key, iova, 100));
        refused(world, &mut a, &mut b, "deregistered", (send::READ, key, iova, 100));
        // The key is not given out again at once.
        let next = guarded(&b, 0, 8192, access::ALL);
        assert_ne!(next.key, key, "4: a handle that was destroyed is not given out again at once");
        refused(world, &mut a, &mut b, "the old key", (send::WRITE, key, next.iova, 100));
        assert!(next.buffer.holds_only(0xee));
        assert_eq!(b.node.dereg_mr(b.context, key), Err(Status::NotFound));
        canaries(world);
    }

    fn semantics_34_deregistering_under_remote_requests_ends_them_at_once(world: &World) {
        let options = SideOptions { mr_len: 256 << 10, ..Default::default() };
        let (mut a, mut b) = connected(world, &options, &Connection::default());
        in_parts(world);
        world.plant_canaries();
        for steps in 0..40 {
            let target = guarded(&b, 0, 256 << 10, access::ALL);
            a.mr.buffer.fill(0x77);
            let sges = [a.mr.sge(0, 256 << 10)];
            let opcode = if steps % 2 == 0 { send::WRITE } else { send::READ };
            for n in 0..8 {
                a.send(&SendWr::signaled(n, opcode).with_sges(&sges).at(&target, 0));
            }
            for _ in 0..steps / 2 {
                world.step();
            }
            b.node.dereg_mr(b.context, target.key).expect("DEREG_MR");
            // The answer has come: the pages belong to somebody else from here on.
            target.buffer.fill(0x55);
            let mut failed = false;
            for n in 0..8 {
                let cqe = world.until("the end of a request under way", || a.poll());
                assert_eq!(cqe.wr_id, n);
                match cqe.status {
                    wc::SUCCESS => assert!(!failed, "success after a failure"),
                    wc::REM_ACCESS_ERR => assert!(!std::mem::replace(&mut failed, true)),
                    wc::WR_FLUSH_ERR => assert!(failed),
                    other => panic!("status {other}: {cqe:?}"),
                }
            }
            world.settle();
            assert!(target.buffer.holds_only(0x55), "step {steps}: written after DEREG_MR answered");
            drop(target);
            fresh(world, &mut a, &mut b);
        }
        canaries(world);
    }

    fn semantics_35_deregistering_under_local_requests_touches_nothing_after(world: &World) {
        let options = SideOptions { mr_len: 256 << 10, ..Default::default() };
        let (mut a, mut b) = connected(world, &options, &Connection::default());
        in_parts(world);
        world.plant_canaries();
        for steps in 0..30 {
            let source = guarded(&a, 0, 256 << 10, access::ALL);
            b.mr.buffer.fill(0);
            let sges = [source.sge(0, 256 << 10)];
            let opcode = if steps % 2 == 0 { send::WRITE } else { send::READ };
            for n in 0..4 {
                a.send(&SendWr::signaled(n, opcode).with_sges(&sges).at(&b.mr, 0));
            }
            for _ in 0..steps / 2 {
                world.step();
            }
            a.node.dereg_mr(a.context, source.key).expect("DEREG_MR");
            // What lies there from here on is somebody's secret.
            source.buffer.fill(0x99);
            for _ in 0..4 {
                let cqe = world.until("the end of a request under way", || a.poll());
                assert!(matches!(cqe.status, wc::SUCCESS | wc::LOC_PROT_ERR | wc::WR_FLUSH_ERR), "{cqe:?}");
            }
            world.settle();
            assert!(source.buffer.holds_only(0x99), "step {steps}: written after DEREG_MR answered");
            assert!(!b.mr.read(0, 256 << 10).contains(&0x99), "step {steps}: read after DEREG_MR answered");
            drop(source);
            fresh(world, &mut a, &mut b);
        }
        canaries(world);
    }

    fn semantics_09_a_bad_local_key_fails_at_home_and_sends_nothing(world: &World) {
        let (mut a, mut b) = sides(world);
        world.plant_canaries();
        let readonly = guarded(&a, 0, 4096, 0);
        let pd = a.node.create_pd(a.context).expect("a PD");
        let other = a.node.reg_mr(a.context, pd, a.node.memory.scattered(4096), 0, 4096, access::ALL).expect("a region");
        let end = a.mr.iova + a.mr.len;
        let cases: Vec<(&str, u8, Vec<Sge>)> = vec![
            ("no such key", send::SEND, vec![Sge { addr: a.mr.iova, length: 8, lkey: 0 }]),
            ("the tag is wrong", send::WRITE, vec![Sge { addr: a.mr.iova, length: 8, lkey: a.mr.key ^ 3 }]),
            ("past the end", send::WRITE, vec![Sge { addr: end - 7, length: 8, lkey: a.mr.key }]),
            ("before the start", send::SEND, vec![Sge { addr: a.mr.iova - 1, length: 8, lkey: a.mr.key }]),
            ("wraps", send::SEND, vec![Sge { addr: u64::MAX - 3, length: 8, lkey: a.mr.key }]),
            ("the second SGE", send::WRITE, vec![a.mr.sge(0, 8), Sge { addr: end, length: 1, lkey: a.mr.key }]),
            ("another PD", send::SEND, vec![other.sge(0, 8)]),
            ("a READ into a region without LOCAL_WRITE", send::READ, vec![readonly.sge(0, 8)]),
        ];
        for (what, opcode, sges) in &cases {
            b.mr.buffer.fill(0xee);
            b.recv(9, 0, 4096);
            a.send(&SendWr { wr_id: 1, opcode: *opcode, flags: 0, sges, rkey: b.mr.key, remote_addr: b.mr.iova + 4096, ..Default::default() });
            a.send(&SendWr { wr_id: 2, opcode: send::SEND, flags: 0, inline: Some(&[1]), ..Default::default() });
            let cqe = world.until(what, || a.poll());
            assert_eq!((cqe.wr_id, cqe.status), (1, wc::LOC_PROT_ERR), "{what}: {cqe:?}; an unsignalled failure completes");
            let cqe = world.until(what, || a.poll());
            assert_eq!((cqe.wr_id, cqe.status), (2, wc::WR_FLUSH_ERR), "{what}: {cqe:?}");
            assert_eq!(a.state(), state::ERR);
            world.settle();
            assert!(b.mr.buffer.holds_only(0xee), "{what}: something was sent");
            assert_eq!(b.state(), state::RTS, "{what}: the peer stays");
            fresh(world, &mut a, &mut b);
        }
        canaries(world);
    }

    fn semantics_08_a_receive_with_a_bad_lkey_fails_on_both_sides(world: &World) {
        let (mut a, mut b) = sides(world);
        world.plant_canaries();
        let readonly = guarded(&b, 0, 4096, 0);
        let end = b.mr.iova + b.mr.len;
        for sge in [
            Sge { addr: b.mr.iova, length: 100, lkey: b.mr.key ^ 1 },
            Sge { addr: end - 99, length: 100, lkey: b.mr.key },
            Sge { addr: readonly.iova, length: 100, lkey: readonly.key },
        ] {
            b.mr.buffer.fill(0xee);
            b.qp.post_recv(5, &[sge]).expect("room");
            // As long as the receive: what is past the end is checked when something is to go there.
            let sges = [a.mr.sge(0, 100)];
            a.send(&SendWr::signaled(1, send::SEND).with_sges(&sges));
            let cqe = world.until("the receive", || b.poll());
            assert_eq!((cqe.wr_id, cqe.status), (5, wc::LOC_PROT_ERR), "{cqe:?}");
            let cqe = world.until("the send", || a.poll());
            assert_eq!((cqe.wr_id, cqe.status), (1, wc::REM_OP_ERR), "{cqe:?}");
            assert_eq!((a.state(), b.state()), (state::ERR, state::ERR));
            assert!(b.mr.buffer.holds_only(0xee));
            assert!(readonly.buffer.holds_only(0xee));
            fresh(world, &mut a, &mut b);
        }
        canaries(world);
    }

    fn semantics_07_receive_buffer_too_small(world: &World) {
        let (mut a, mut b) = connected(world, &SideOptions { mr_len: 256 << 10, ..Default::default() }, &Connection::default());
        world.plant_canaries();
        for (size, room) in [(1, 0), (101, 100), (5000, 4999), (200_000, 100_000)] {
            b.mr.buffer.fill(0xee);
            b.recv(5, 64, room);
            let sges = [a.mr.sge(0, size)];
            a.send(&SendWr::signaled(1, send::SEND).with_sges(&sges));
            let cqe = world.until("the receive", || b.poll());
            assert_eq!((cqe.wr_id, cqe.status), (5, wc::LOC_LEN_ERR), "{cqe:?}");
            let cqe = world.until("the send", || a.poll());
            assert_eq!((cqe.wr_id, cqe.status), (1, wc::REM_INV_REQ_ERR), "{cqe:?}");
            let past = b.mr.read(64 + room, 4096);
            assert!(past.iter().all(|byte| *byte == 0xee), "written past the receive's end");
            fresh(world, &mut a, &mut b);
        }
        canaries(world);
    }

    fn semantics_42_a_dead_context_is_out_of_reach_and_its_peers_get_errors(world: &World) {
        in_parts(world);
        world.plant_canaries();
        for steps in [0, 1, 2, 3, 5, 8, 13, 40] {
            let options = SideOptions { mr_len: 256 << 10, ..Default::default() };
            let connection = Connection { timeout: 10, retry_cnt: 3, ..Default::default() };
            let (mut a, mut b) = connected(world, &options, &connection);
            let bystander = connected(world, &SideOptions::default(), &Connection::default());
            let sges = [a.mr.sge(0, 256 << 10)];
            for n in 0..16 {
                let opcode = if n % 3 == 2 { send::READ } else { send::WRITE };
                a.send(&SendWr::signaled(n, opcode).with_sges(&sges).at(&b.mr, 0));
            }
            let sges = [b.mr.sge(0, 128 << 10)];
            b.send(&SendWr { opcode: send::WRITE, sges: &sges, rkey: a.mr.key, remote_addr: a.mr.iova, ..Default::default() });
            for _ in 0..steps {
                world.step();
            }
            // The process is killed with everything open. Its pages go to others.
            b.node.destroy_context(b.context).expect("DESTROY_CONTEXT");
            let Side { mr, cq, qp, node, context, .. } = b;
            for buffer in [&mr.buffer, &cq.buffer, &qp.buffer] {
                buffer.fill(0x55);
            }
            let mut failed = false;
            for n in 0..16 {
                let cqe = world.until("the end of a request to a dead process", || a.poll());
                assert_eq!(cqe.wr_id, n);
                assert!(
                    match cqe.status {
                        wc::SUCCESS => !failed,
                        wc::WR_FLUSH_ERR => failed,
                        wc::RETRY_EXC_ERR | wc::REM_ACCESS_ERR | wc::REM_INV_REQ_ERR | wc::REM_OP_ERR => !failed,
                        _ => false,
                    },
                    "{cqe:?}"
                );
                failed |= cqe.status != wc::SUCCESS;
            }
            world.settle();
            for buffer in [&mr.buffer, &cq.buffer, &qp.buffer] {
                assert!(buffer.holds_only(0x55), "{steps} steps: memory of a dead context was written");
            }
            drop((mr, cq, qp));
            assert_eq!(node.create_pd(context), Err(Status::NotFound), "the context is gone");
            let (mut c, d) = bystander;
            let data = payload(steps, 1000);
            c.mr.write(0, &data);
            let sges = [c.mr.sge(0, 1000)];
            c.send(&SendWr::signaled(0, send::WRITE).with_sges(&sges).at(&d.mr, 0));
            success(world, &mut c, "the others go on");
            assert_eq!(d.mr.read(0, 1000), data);
            for side in [&c, &d, &a] {
                side.node.destroy_context(side.context).expect("DESTROY_CONTEXT");
            }
        }
        canaries(world);
    }

    fn a_region_that_is_not_memory_is_refused_whole(world: &World) {
        let node = world.a();
        let context = node.create_context().expect("a context");
        let pd = node.create_pd(context).expect("a PD");
        let buffer = node.memory.contiguous(4 * PAGE);
        let pages = buffer.dma_pages();
        let reg = RegMr {
            pd,
            access: access::ALL,
            iova: 0x1000,
            length: 3 * PAGE as u64,
            offset: 0,
            page_shift: 12,
            flags: 0,
            total_entries: 3,
            num_entries: 3,
            entries: pages[..3].to_vec(),
        };
        node.reg_mr_raw(context, &reg).expect("these are memory");
        for bad in [0, 0x1000, node.memory.dma_end(), !0xfff, pages[0] - conformance::memory::DMA_OFFSET] {
            for at in 0..3 {
                let mut entries = pages[..3].to_vec();
                entries[at] = bad;
                let result = node.reg_mr_raw(context, &RegMr { entries, ..reg.clone() });
                assert_eq!(result, Err(Status::BadAddress), "page {at} at {bad:#x}");
            }
        }
    }
}
