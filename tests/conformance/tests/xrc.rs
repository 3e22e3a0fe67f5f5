//! Extended reliable connections: sections 4.17, 5 and 6.2.

use std::sync::Arc;

use conformance::layout::{Cqe, access, cqe_flag, event, send, state, wc, wc_opcode, wqe_flag};
use conformance::node::{Context, KERNEL, Mr, Node, QpOptions};
use conformance::on_every_fabric;
use conformance::random::payload;
use conformance::rings::{Cq, Qp, SendWr};
use conformance::side::{Connection, Side, SideOptions, connect, success, to_state};
use conformance::srq::Srq;
use conformance::watchdog::Watchdog;
use conformance::world::{Kind, World};
use devices::rdma::fabric::pair;

/// A process with an SRQ in a domain.
struct Process {
    xrcd: u32,
    context: Context,
    pd: u32,
    cq: Cq,
    srq: Srq,
    mr: Mr,
}

/// Bytes of a region, and of one for long messages.
const ROOM: usize = 80_000;
const LONG: usize = 4 << 20;

impl Process {
    fn new(node: &Arc<Node>, xrcd: u32, room: usize) -> Process {
        Self::with_cq(node, xrcd, room, 256)
    }

    fn with_cq(node: &Arc<Node>, xrcd: u32, room: usize, entries: u32) -> Process {
        let context = node.create_context().expect("a context");
        let pd = node.create_pd(context).expect("a PD");
        let cq = node.create_cq(context, entries, 0).expect("a CQ");
        let srq = node.create_xrc_srq(context, pd, 64, (cq.cqn, xrcd));
        Process {
            xrcd,
            srq: srq.expect("an XRC SRQ"),
            mr: node.mr_contiguous(context, pd, room),
            context,
            pd,
            cq,
        }
    }

    /// Posts a receive of `len` bytes of its region.
    fn post(&mut self, wr_id: u64, at: usize, len: usize) {
        let sges = [self.mr.sge(at, len)];
        self.srq.post(wr_id, &sges).expect("room in the SRQ");
    }

    /// Its next CQE, which says that it is of its SRQ and came by that target.
    fn received(&mut self, world: &World, target: &Qp) -> Cqe {
        let cqe = world.until("a receive", || self.cq.poll());
        let found = (cqe.qpn, cqe.srqn, cqe.flags & cqe_flag::XRC != 0);
        assert_eq!(found, (target.qpn, self.srq.srqn, true), "{cqe:?}");
        cqe
    }
}

/// A target in a domain, which is the kernel's.
fn target(node: &Node, xrcd: u32) -> Qp {
    let options = QpOptions::xrc_target(xrcd);
    node.create_qp(KERNEL, 0, 0, 0, &options).expect("a target")
}

/// A process with an initiator that is connected to a target.
fn initiator(world: &World, target: &Qp, connection: &Connection, room: usize) -> Side {
    let options = SideOptions {
        qp: QpOptions::xrc_initiator(),
        mr_len: room,
        contiguous: true,
        ..Default::default()
    };
    let side = Side::new(world.a(), &options);
    connect((&side.node, &side.qp), (world.b(), target), connection);
    side
}

/// An initiator on one node; a domain with a target and two processes on the other.
struct Rig {
    side: Side,
    target: Qp,
    processes: [Process; 2],
}

fn rig(world: &World, connection: &Connection) -> Rig {
    with_room(world, connection, ROOM)
}

fn with_room(world: &World, connection: &Connection, room: usize) -> Rig {
    let xrcd = world.b().alloc_xrcd().expect("ALLOC_XRCD");
    let target = target(world.b(), xrcd);
    Rig {
        side: initiator(world, &target, connection, room),
        target,
        processes: [(); 2].map(|()| Process::new(world.b(), xrcd, room)),
    }
}

/// A READ or atomic needs somewhere to put what it brings.
fn asks(side: &mut Side, wr: SendWr<'_>, len: usize) {
    let sges = [side.mr.sge(0, len)];
    side.send(&wr.with_sges(&sges));
}

/// What a work request fails with.
fn failure(world: &World, side: &mut Side) -> u8 {
    let cqe = world.until("the end of a send", || side.poll());
    assert_ne!(cqe.status, wc::SUCCESS, "{cqe:?}");
    cqe.status
}

on_every_fabric! {
    fn messages_of_one_connection_reach_the_queue_that_they_name(world: &World) {
        let Rig { mut side, target, mut processes } = with_room(world, &Connection::default(), LONG);
        for (round, len) in [0usize, 1, 900, 65_536, 65_537, 3 << 20].into_iter().enumerate() {
            for (n, process) in processes.iter_mut().enumerate() {
                let wr_id = 2 * round as u64 + n as u64;
                process.post(wr_id, 0, LONG);
                let data = payload(wr_id, len);
                side.mr.write(0, &data);
                let sges = [side.mr.sge(0, len)];
                let srqn = process.srq.srqn;
                side.send(&SendWr { imm: [1, 2, 3, 4], ..SendWr::signaled(wr_id, send::SEND_IMM) }.with_sges(&sges).for_srq(srqn));
                let cqe = process.received(world, &target);
                assert_eq!((cqe.wr_id, cqe.status, cqe.opcode), (wr_id, wc::SUCCESS, wc_opcode::RECV));
                assert_eq!((cqe.byte_len as usize, cqe.src_qpn, cqe.imm), (len, side.qp.qpn, [1, 2, 3, 4]));
                assert_eq!(process.mr.read(0, len), data);
                success(world, &mut side, "the send");
            }
        }
        assert!(processes.iter_mut().all(|process| process.cq.poll().is_none()));
    }

    fn one_sided_operations_are_done_in_the_domain_of_the_queue(world: &World) {
        let Rig { mut side, target, mut processes } = rig(world, &Connection::default());
        for (n, process) in processes.iter_mut().enumerate() {
            let srqn = process.srq.srqn;
            let data = payload(n as u64, 70_000);
            side.mr.write(0, &data);
            let sges = [side.mr.sge(0, data.len())];
            side.send(&SendWr::signaled(1, send::WRITE).at(&process.mr, 16).with_sges(&sges).for_srq(srqn));
            success(world, &mut side, "the write");
            assert_eq!(process.mr.read(16, data.len()), data);

            side.mr.write(0, &vec![0; data.len()]);
            asks(&mut side, SendWr::signaled(2, send::READ).at(&process.mr, 16).for_srq(srqn), data.len());
            success(world, &mut side, "the read");
            assert_eq!(side.mr.read(0, data.len()), data);

            process.mr.write(8, &5u64.to_le_bytes());
            let add = SendWr { compare_add: 7, ..SendWr::signaled(3, send::FETCH_AND_ADD) };
            asks(&mut side, add.at(&process.mr, 8).for_srq(srqn), 8);
            success(world, &mut side, "the add");
            assert_eq!(side.mr.read(0, 8), 5u64.to_le_bytes());
            let swap = SendWr { compare_add: 12, swap: 99, ..SendWr::signaled(4, send::CMP_AND_SWP) };
            asks(&mut side, swap.at(&process.mr, 8).for_srq(srqn), 8);
            success(world, &mut side, "the swap");
            assert_eq!(side.mr.read(0, 8), 12u64.to_le_bytes());
            assert_eq!(process.mr.read(8, 8), 99u64.to_le_bytes());

            process.post(9, 0, 0);
            let wr = SendWr { imm: [9; 4], ..SendWr::signaled(5, send::WRITE_IMM) };
            side.send(&wr.at(&process.mr, 0).with_inline(&[3; 5]).for_srq(srqn));
            let cqe = process.received(world, &target);
            assert_eq!((cqe.wr_id, cqe.opcode, cqe.imm, cqe.byte_len), (9, wc_opcode::RECV_RDMA_WITH_IMM, [9; 4], 5));
            assert_eq!(process.mr.read(0, 5), [3; 5]);
            success(world, &mut side, "the write with immediate");
        }
    }

    fn a_key_of_another_process_needs_that_process_s_queue(world: &World) {
        for opcode in [send::WRITE, send::READ, send::FETCH_AND_ADD] {
            let Rig { mut side, processes: [own, other], target } = rig(world, &Connection::default());
            other.mr.write(0, &[7; 8]);
            let wr = SendWr::signaled(1, opcode).at(&other.mr, 0);
            asks(&mut side, wr.for_srq(other.srq.srqn), 8);
            success(world, &mut side, "by its own queue");
            other.mr.write(0, &[7; 8]);
            asks(&mut side, wr.for_srq(own.srq.srqn), 8);
            assert_eq!(failure(world, &mut side), wc::REM_ACCESS_ERR, "opcode {opcode}");
            assert_eq!(other.mr.read(0, 8), [7; 8]);
            world.settle();
            assert!(world.b().events.take_asynchronous().contains(&(event::QP_ACCESS_ERR, target.qpn)));
        }
    }

    fn a_queue_that_is_not_in_the_domain_is_an_invalid_request(world: &World) {
        let node = world.b();
        let elsewhere = Process::new(node, node.alloc_xrcd().expect("ALLOC_XRCD"), ROOM);
        let basic = node.create_srq(elsewhere.context, elsewhere.pd, 4, 1).expect("an SRQ");
        let gone = {
            let process = Process::new(node, node.alloc_xrcd().expect("ALLOC_XRCD"), ROOM);
            node.destroy_srq(process.context, process.srq.srqn).expect("DESTROY_SRQ");
            process.srq.srqn
        };
        for srqn in [0, 0xff_ffff, elsewhere.srq.srqn, basic.srqn, gone] {
            for opcode in [send::SEND, send::WRITE, send::WRITE_IMM, send::READ, send::CMP_AND_SWP] {
                let Rig { mut side, target, .. } = rig(world, &Connection::default());
                node.events.take_asynchronous();
                let wr = SendWr::signaled(1, opcode).at(&elsewhere.mr, 0).for_srq(srqn);
                asks(&mut side, wr, 8);
                assert_eq!(failure(world, &mut side), wc::REM_INV_REQ_ERR, "{opcode} to {srqn:#x}");
                world.settle();
                let events = node.events.take_asynchronous();
                assert!(events.contains(&(event::QP_REQ_ERR, target.qpn)), "{events:?}");
                // Of 0 bytes it is no better.
                let Rig { mut side, .. } = rig(world, &Connection::default());
                if opcode != send::CMP_AND_SWP {
                    side.send(&wr);
                    assert_eq!(failure(world, &mut side), wc::REM_INV_REQ_ERR, "{opcode} of 0 bytes");
                }
            }
        }
        assert!(elsewhere.srq.left() == 0 && elsewhere.mr.read(0, 8) == [0; 8]);
    }

    fn what_an_initiator_cannot_send_fails_at_home(world: &World) {
        let invalidate = |srqn| SendWr { imm: [1; 4], ..SendWr::signaled(1, send::SEND_INV) }.for_srq(srqn);
        let too_large = |_| SendWr::signaled(1, send::SEND).for_srq(1 << 24);
        let cases: [&dyn Fn(u32) -> SendWr<'static>; 2] = [&invalidate, &too_large];
        for case in cases {
            let Rig { mut side, processes: [process, _], .. } = rig(world, &Connection::default());
            side.send(&case(process.srq.srqn));
            let cqe = world.until("the send", || side.poll());
            assert_eq!((cqe.status, cqe.vendor_err), (wc::LOC_QP_OP_ERR, 2));
            assert_eq!(side.state(), state::ERR);
        }
    }

    fn an_empty_queue_is_not_ready_and_the_others_are(world: &World) {
        let Rig { side: mut patient, target, processes: [mut own, mut other] } = rig(world, &Connection::default());
        patient.send(&SendWr::signaled(1, send::SEND).with_inline(&[1; 10]).for_srq(own.srq.srqn));
        world.until("a refusal", || (world.b().counters().rnr_nak_sent > 0).then_some(()));
        other.post(8, 0, 100);
        // It comes again and again, so there is no rest.
        world.until("more refusals", || (world.b().counters().rnr_nak_sent > 5).then_some(()));
        assert!(patient.poll().is_none() && other.cq.poll().is_none(), "it is for the first queue");
        own.post(7, 0, 100);
        assert_eq!(own.received(world, &target).wr_id, 7);
        success(world, &mut patient, "the patient one");
        patient.send(&SendWr::signaled(2, send::SEND).with_inline(&[1; 10]).for_srq(other.srq.srqn));
        assert_eq!(other.received(world, &target).wr_id, 8);

        let hasty = Connection { rnr_retry: 0, ..Default::default() };
        let Rig { mut side, processes: [process, _], .. } = rig(world, &hasty);
        side.send(&SendWr::signaled(1, send::SEND).for_srq(process.srq.srqn));
        assert_eq!(failure(world, &mut side), wc::RNR_RETRY_EXC_ERR);
    }

    fn receives_that_do_not_fit_or_cannot_be_used_fail_on_their_own_queue(world: &World) {
        for (len, key, at_target, at_home) in [
            (4, None, wc::LOC_LEN_ERR, wc::REM_INV_REQ_ERR),
            (100, Some(0x1234), wc::LOC_PROT_ERR, wc::REM_OP_ERR),
        ] {
            let Rig { mut side, target, processes: [mut process, mut other] } = rig(world, &Connection::default());
            let mut sge = process.mr.sge(0, len);
            sge.lkey = key.unwrap_or(sge.lkey);
            process.srq.post(1, &[sge]).expect("room");
            process.post(2, 0, 100);
            world.b().events.take_asynchronous();
            side.send(&SendWr::signaled(1, send::SEND).with_inline(&[1; 10]).for_srq(process.srq.srqn));
            let cqe = process.received(world, &target);
            assert_eq!((cqe.wr_id, cqe.status), (1, at_target));
            assert_eq!(failure(world, &mut side), at_home);
            world.settle();
            assert_eq!(world.b().events.take_asynchronous(), [(event::LAST_WQE_REACHED, target.qpn)]);
            assert_eq!(process.srq.left(), 1, "the next stays for others");
            assert!(other.cq.poll().is_none());
        }
    }

    fn the_target_s_rights_are_those_of_its_attributes(world: &World) {
        for (opcode, right) in [(send::WRITE, access::REMOTE_WRITE), (send::READ, access::REMOTE_READ), (send::FETCH_AND_ADD, access::REMOTE_ATOMIC)] {
            let connection = Connection { access: access::ALL & !right, ..Default::default() };
            let Rig { mut side, processes: [process, _], .. } = rig(world, &connection);
            let wr = SendWr::signaled(1, opcode).at(&process.mr, 0).for_srq(process.srq.srqn);
            asks(&mut side, wr, 8);
            assert_eq!(failure(world, &mut side), wc::REM_INV_REQ_ERR, "opcode {opcode}");
        }
    }

    fn a_target_outlives_the_process_whose_queue_it_served(world: &World) {
        let Rig { mut side, target, processes: [gone, mut stays] } = rig(world, &Connection::default());
        world.b().destroy_context(gone.context).expect("DESTROY_CONTEXT");
        stays.post(1, 0, 100);
        side.send(&SendWr { flags: wqe_flag::SIGNALED | wqe_flag::SOLICITED, ..SendWr::signaled(1, send::SEND) }.for_srq(stays.srq.srqn));
        assert_eq!(stays.received(world, &target).wr_id, 1);
        success(world, &mut side, "the send");
        side.send(&SendWr::signaled(2, send::SEND).for_srq(gone.srq.srqn));
        assert_eq!(failure(world, &mut side), wc::REM_INV_REQ_ERR);
    }

    fn an_overflow_fails_the_targets_whose_receives_complete_there(world: &World) {
        let xrcd = world.b().alloc_xrcd().expect("ALLOC_XRCD");
        let targets = [(); 4].map(|()| target(world.b(), xrcd));
        let mut sides = targets.each_ref().map(|target| initiator(world, target, &Connection::default(), ROOM));
        let mut small = Process::with_cq(world.b(), xrcd, ROOM, 4);
        let mut other = Process::new(world.b(), xrcd, ROOM);
        for n in 0..8 {
            small.post(n, 0, 8);
            other.post(n, 0, 8);
        }
        let events = &world.b().events;
        events.take_asynchronous();
        // Two have last served the one, one the other, and one nobody.
        for (n, process) in [(0, &small), (1, &small), (2, &small), (2, &other)] {
            sides[n].send(&SendWr::signaled(1, send::SEND).with_inline(&[1]).for_srq(process.srq.srqn));
            success(world, &mut sides[n], "what has room");
        }
        for n in 0..2 {
            sides[0].send(&SendWr::signaled(n, send::SEND).with_inline(&[1]).for_srq(small.srq.srqn));
        }
        success(world, &mut sides[0], "the last that has room");
        assert_eq!(failure(world, &mut sides[0]), wc::REM_OP_ERR);
        world.settle();
        let mut seen = events.take_asynchronous();
        seen.retain(|(kind, _)| matches!(*kind, event::CQ_ERR | event::QP_FATAL));
        seen.sort_unstable();
        let fatal = [0, 1].map(|n| (event::QP_FATAL, targets[n].qpn));
        assert_eq!(seen, [&[(event::CQ_ERR, small.cq.cqn)], &fatal[..]].concat());
        // Another comes to it later.
        sides[3].send(&SendWr::signaled(1, send::SEND).with_inline(&[1]).for_srq(small.srq.srqn));
        assert_eq!(failure(world, &mut sides[3]), wc::REM_OP_ERR);
        world.settle();
        assert!(events.take_asynchronous().contains(&(event::QP_FATAL, targets[3].qpn)));
        sides[2].send(&SendWr::signaled(2, send::SEND).with_inline(&[1]).for_srq(other.srq.srqn));
        success(world, &mut sides[2], "another's goes on");
    }

    fn after_reset_a_target_serves_another_connection(world: &World) {
        let Rig { mut side, target, processes: [mut process, _] } = rig(world, &Connection::default());
        process.post(1, 0, 100);
        process.post(2, 0, 100);
        side.send(&SendWr::signaled(1, send::SEND).for_srq(process.srq.srqn));
        process.received(world, &target);
        success(world, &mut side, "the send");
        to_state(world.b(), &target, state::RESET).expect("RESET");
        let mut next = initiator(world, &target, &Connection::default(), ROOM);
        next.send(&SendWr::signaled(1, send::SEND).for_srq(process.srq.srqn));
        assert_eq!(process.received(world, &target).wr_id, 2);
        success(world, &mut next, "the next one's");
    }
}

/// A message of many frames of which some are still to come, into the first process's receive 77.
fn begun(world: &World) -> Rig {
    let mut rig = with_room(world, &Connection::default(), LONG);
    rig.processes[0].post(77, 0, LONG);
    rig.processes[0].post(78, 0, LONG);
    world.control().pace(pair::Side::Right, 64 << 10);
    let sges = [rig.side.mr.sge(0, LONG)];
    let srqn = rig.processes[0].srq.srqn;
    let wr = SendWr::signaled(1, send::SEND).with_sges(&sges);
    rig.side.send(&wr.for_srq(srqn));
    world.until("the receive is taken", || {
        (rig.processes[0].srq.left() == 1).then_some(())
    });
    for _ in 0..5 {
        world.step();
    }
    assert!(rig.processes[0].cq.poll().is_none(), "more is to come");
    rig
}

#[test]
fn a_target_in_err_flushes_the_receive_that_it_holds_and_no_other() {
    let _watchdog = Watchdog::new("target in ERR");
    let world = World::new(Kind::Pair);
    let mut rig = begun(&world);
    let node = world.b();
    node.events.take_asynchronous();
    to_state(node, &rig.target, state::ERR).expect("ERR");
    let cqe = rig.processes[0].received(&world, &rig.target);
    assert_eq!((cqe.wr_id, cqe.status), (77, wc::WR_FLUSH_ERR));
    world.settle();
    assert_eq!(
        node.events.take_asynchronous(),
        [(event::LAST_WQE_REACHED, rig.target.qpn)]
    );
    assert_eq!(rig.processes[0].srq.left(), 1);
}

#[test]
fn a_receive_held_by_a_target_that_goes_serves_another() {
    let _watchdog = Watchdog::new("target gone");
    let world = World::new(Kind::Pair);
    let Rig {
        target: gone,
        processes: [mut process, _],
        side: _side,
    } = begun(&world);
    let node = world.b();
    node.destroy_qp(KERNEL, gone.qpn).expect("DESTROY_QP");
    world.control().pace(pair::Side::Right, usize::MAX);
    let other = target(node, process.xrcd);
    let mut next = initiator(&world, &other, &Connection::default(), ROOM);
    for wr_id in [77, 78] {
        next.send(&SendWr::signaled(1, send::SEND).for_srq(process.srq.srqn));
        assert_eq!(process.received(&world, &other).wr_id, wr_id);
        success(&world, &mut next, "the send");
    }
}

#[test]
fn a_queue_that_goes_takes_the_message_on_its_way_along() {
    let _watchdog = Watchdog::new("SRQ gone");
    for how in ["destroyed", "with its context"] {
        let world = World::new(Kind::Pair);
        let mut rig = begun(&world);
        let (node, process) = (world.b(), &mut rig.processes[0]);
        match how {
            "destroyed" => node
                .destroy_srq(process.context, process.srq.srqn)
                .expect("DESTROY_SRQ"),
            _ => node
                .destroy_context(process.context)
                .expect("DESTROY_CONTEXT"),
        }
        let before = process.mr.read(0, LONG);
        world.control().pace(pair::Side::Right, usize::MAX);
        assert_eq!(failure(&world, &mut rig.side), wc::REM_INV_REQ_ERR);
        world.settle();
        assert!(rig.processes[0].cq.poll().is_none(), "{how}");
        assert!(
            rig.processes[0].mr.read(0, LONG) == before,
            "{how}: memory was written after the SRQ's end"
        );
    }
}
