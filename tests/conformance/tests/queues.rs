//! Completion queues: overflow, arming, solicited events, events with no buffers, head-of-line independence.

use std::collections::HashSet;

use conformance::layout::{CQ_ERROR, access, event, send, state, wc, wqe_flag};
use conformance::node::QpOptions;
use conformance::on_every_fabric;
use conformance::rings::{Arm, SendWr};
use conformance::side::{Connection, Side, SideOptions, connect, connected, sides, success};
use conformance::world::World;

on_every_fabric! {
    fn semantics_19_an_overflow_is_found_and_harms_nobody_else(world: &World) {
        let options = SideOptions { cq_entries: 16, ..Default::default() };
        let (mut a, mut b) = connected(world, &options, &Connection::default());
        // A second QP on the same CQ, one on another CQ of the same context.
        let q2 = a.node.create_qp(a.context, a.pd, a.cq.cqn, a.cq.cqn, &QpOptions::default()).expect("a QP");
        let p2 = b.node.create_qp(b.context, b.pd, b.cq.cqn, b.cq.cqn, &QpOptions::default()).expect("a QP");
        connect((&a.node, &q2), (&b.node, &p2), &Connection::default());
        let (mut c, d) = sides(world);
        for n in 0..16 {
            a.write_number(&b, n);
        }
        world.settle();
        assert_eq!(a.cq.flags() & CQ_ERROR, 0, "exactly full is no overflow");
        assert_eq!(a.node.events.asynchronous(), []);
        let full = a.cq.ring_bytes();
        for n in 16..20 {
            a.write_number(&b, n);
        }
        let cqn = a.cq.cqn;
        let node = a.node.clone();
        world.until("the events of an overflow", || (node.events.asynchronous().len() >= 3).then_some(()));
        world.settle();
        let events = node.events.take_asynchronous();
        assert_eq!(events[0], (event::CQ_ERR, cqn), "CQ_ERR first: {events:?}");
        let fatal: HashSet<_> = events[1..].iter().copied().collect();
        assert_eq!(fatal, [(event::QP_FATAL, a.qp.qpn), (event::QP_FATAL, q2.qpn)].into(), "{events:?}");
        assert_eq!(events.len(), 3, "each once: {events:?}");
        assert_ne!(a.cq.flags() & CQ_ERROR, 0);
        assert!(a.cq.ring_bytes() == full, "the ring is left intact");
        assert_eq!(a.state(), state::ERR);
        assert_eq!(a.node.query_qp(a.context.handle, q2.qpn).expect("QUERY_QP").state, state::ERR);
        for n in 0..16 {
            assert_eq!(success(world, &mut a, "what was there before").wr_id, n);
        }
        world.settle();
        assert!(a.cq.poll().is_none(), "a CQ in error takes no more CQEs");
        assert!(a.node.counters().cq_overflows >= 1);
        for n in 0..100 {
            c.write_number(&d, n);
            success(world, &mut c, "another CQ goes on");
        }
        assert!(b.poll().is_none());
        for (side, qpn) in [(&a, a.qp.qpn), (&a, q2.qpn)] {
            side.node.destroy_qp(side.context, qpn).expect("DESTROY_QP");
        }
        a.node.destroy_cq(a.context, cqn).expect("DESTROY_CQ");
    }

    fn semantics_19_an_overflow_by_receives_is_one_too(world: &World) {
        let (mut a, _) = sides(world);
        let b_options = SideOptions { cq_entries: 4, ..Default::default() };
        let mut b = Side::new(world.b(), &b_options);
        a.node.destroy_qp(a.context, a.qp.qpn).expect("DESTROY_QP");
        a.qp = a.node.create_qp(a.context, a.pd, a.cq.cqn, a.cq.cqn, &QpOptions::default()).expect("a QP");
        connect((&a.node, &a.qp), (&b.node, &b.qp), &Connection { timeout: 10, retry_cnt: 2, ..Default::default() });
        b.node.events.take_asynchronous();
        for n in 0..6 {
            b.recv(n, 0, 8);
        }
        for n in 0..6 {
            a.send_flagged(n, 0);
        }
        world.until("CQ_ERR", || b.node.events.asynchronous().contains(&(event::CQ_ERR, b.cq.cqn)).then_some(()));
        world.until("QP_FATAL", || b.node.events.asynchronous().contains(&(event::QP_FATAL, b.qp.qpn)).then_some(()));
        for n in 0..6 {
            let cqe = world.until("every send ends", || a.poll());
            if n < 4 {
                assert_eq!((cqe.wr_id, cqe.status), (n, wc::SUCCESS));
            } else {
                assert_ne!(cqe.status, wc::SUCCESS, "a SEND whose receive did not complete does not succeed: {cqe:?}");
            }
        }
        for n in 0..4 {
            assert_eq!(success(world, &mut b, "what fitted").wr_id, n);
        }
    }

    fn a_consumer_index_that_lies_is_a_fault_of_that_queue_only(world: &World) {
        let options = SideOptions { cq_entries: 8, ..Default::default() };
        for lie in [9u32, 1 << 20, 1 << 31, u32::MAX, u32::MAX - 7] {
            let (mut a, b) = connected(world, &options, &Connection::default());
            let (mut c, d) = sides(world);
            a.cq.consumer_word().store(lie, std::sync::atomic::Ordering::Release);
            for n in 0..12 {
                a.write_number(&b, n);
            }
            world.until("the fault is found", || (a.cq.flags() & CQ_ERROR != 0).then_some(()));
            world.until("CQ_ERR", || a.node.events.asynchronous().contains(&(event::CQ_ERR, a.cq.cqn)).then_some(()));
            c.write_number(&d, 1);
            success(world, &mut c, "others go on");
            for side in [&a, &c] {
                side.node.destroy_context(side.context).expect("DESTROY_CONTEXT");
            }
            a.node.events.take_asynchronous();
        }
    }

    fn semantics_23_arming_fires_once_for_the_next_completion(world: &World) {
        let (mut a, b) = sides(world);
        let node = a.node.clone();
        a.write_number(&b, 0);
        success(world, &mut a, "not armed");
        world.settle();
        assert_eq!(node.events.completions(), [], "a CQ that is not armed sends nothing");
        for n in 0..20 {
            assert!(!a.cq.arm(Arm::Any));
            world.settle();
            assert_eq!(node.events.completions(), [], "nothing came yet");
            for m in 0..3 {
                a.write_number(&b, n * 3 + m);
            }
            world.until("the event", || (!node.events.completions().is_empty()).then_some(()));
            for _ in 0..3 {
                success(world, &mut a, "its completions");
            }
            world.settle();
            let events = node.events.take_completions();
            assert_eq!(events, [(0, a.cq.cqn, a.cq.sequence)], "one event, with the sequence that was armed");
            a.cq.event_consumed();
        }
        // Armed and consumed; without arming again nothing comes.
        a.write_number(&b, 0);
        success(world, &mut a, "not armed again");
        world.settle();
        assert_eq!(node.events.take_completions(), []);
    }

    fn semantics_23_there_is_at_most_one_event_for_a_sequence(world: &World) {
        let (mut a, b) = sides(world);
        let node = a.node.clone();
        for n in 0..30 {
            // Armed again and again under the same sequence, as a process does that has not taken its event.
            a.cq.arm(Arm::Any);
            a.write_number(&b, n);
            success(world, &mut a, "a completion");
        }
        world.settle();
        assert_eq!(node.events.take_completions().len(), 1);
        a.cq.event_consumed();
        a.cq.arm(Arm::Any);
        a.write_number(&b, 0);
        world.until("the next sequence's", || (node.events.completions().len() == 1).then_some(()));
    }

    fn semantics_25_solicited_only_means_solicited_or_error(world: &World) {
        let (mut a, mut b) = sides(world);
        let node = b.node.clone();
        for n in 0..20 {
            b.recv(n, 0, 8);
        }
        b.cq.arm(Arm::Solicited);
        for n in 0..5 {
            a.send_flagged(n, 0);
            success(world, &mut a, "not solicited");
        }
        world.settle();
        assert_eq!(node.events.take_completions(), [], "unsolicited completions do not fire");
        a.send_flagged(5, wqe_flag::SOLICITED);
        success(world, &mut a, "solicited");
        world.until("the event", || (node.events.completions().len() == 1).then_some(()));
        node.events.take_completions();
        b.cq.event_consumed();
        // With immediate data, too.
        b.cq.arm(Arm::Solicited);
        a.send(&SendWr {
            wr_id: 6,
            opcode: send::WRITE_IMM,
            flags: wqe_flag::SIGNALED | wqe_flag::SOLICITED,
            inline: Some(&[1]),
            rkey: b.mr.key,
            remote_addr: b.mr.iova,
            ..Default::default()
        });
        success(world, &mut a, "solicited WRITE_IMM");
        world.until("the event", || (node.events.completions().len() == 1).then_some(()));
        node.events.take_completions();
        b.cq.event_consumed();
        // An error fires it: flushed receives.
        while b.poll().is_some() {}
        b.cq.arm(Arm::Solicited);
        conformance::side::to_state(&b.node, &b.qp, state::ERR).expect("ERR");
        world.until("the event of an error", || (!node.events.completions().is_empty()).then_some(()));
        world.settle();
        assert_eq!(node.events.take_completions().len(), 1);
    }

    fn semantics_26_the_stronger_of_two_armings_wins(world: &World) {
        let (mut a, mut b) = sides(world);
        let node = b.node.clone();
        for order in [[Arm::Any, Arm::Solicited], [Arm::Solicited, Arm::Any]] {
            b.recv(1, 0, 8);
            b.cq.arm(order[0]);
            b.cq.arm(order[1]);
            a.send_flagged(7, 0);
            success(world, &mut a, "unsolicited");
            world.until("the event", || (node.events.completions().len() == 1).then_some(()));
            node.events.take_completions();
            b.cq.event_consumed();
            success(world, &mut b, "the receive");
        }
    }

    fn events_go_to_the_queue_of_their_vector(world: &World) {
        let (mut a, b) = sides(world);
        let node = a.node.clone();
        for vector in 0..2 {
            let mut cq = node.create_cq(a.context, 16, vector).expect("a CQ");
            let mut qp = node.create_qp(a.context, a.pd, cq.cqn, cq.cqn, &QpOptions::default()).expect("a QP");
            let far = b.node.create_qp(b.context, b.pd, b.cq.cqn, b.cq.cqn, &QpOptions::default()).expect("a QP");
            connect((&node, &qp), (&b.node, &far), &Connection::default());
            cq.arm(Arm::Any);
            qp.post_send(&SendWr::signaled(0, send::WRITE).at(&b.mr, 0)).expect("room");
            world.until("the event", || (!node.events.completions().is_empty()).then_some(()));
            assert_eq!(node.events.take_completions(), [(vector as u16, cq.cqn, 0)]);
        }
        assert!(node.create_cq(a.context, 16, 2).is_err(), "a vector that the device has not");
        assert!(node.create_cq(a.context, 16, u32::MAX).is_err());
        let _ = &mut a;
    }

    fn semantics_24_events_wait_for_buffers_and_none_is_lost(world: &World) {
        let node = world.a().clone();
        node.events.set_room(0, 0);
        let mut pairs = Vec::new();
        for _ in 0..40 {
            let options = SideOptions { cq_entries: 2, mr_len: 4096, ..Default::default() };
            pairs.push(connected(world, &options, &Connection::default()));
        }
        for (a, b) in &mut pairs {
            a.cq.arm(Arm::Any);
            for n in 0..4 {
                a.write_number(b, n);
            }
        }
        for (a, _) in &pairs {
            world.until("the overflow", || (a.cq.flags() & CQ_ERROR != 0).then_some(()));
        }
        world.settle();
        assert_eq!(node.events.asynchronous(), []);
        assert_eq!(node.events.completions(), []);
        // Buffers come one at a time.
        let (mut asynchronous, mut completions) = (Vec::new(), Vec::new());
        for _ in 0..80 {
            node.events.set_room(1, 1);
            world.until("the next asynchronous event", || {
                asynchronous.extend(node.events.take_asynchronous());
                completions.extend(node.events.take_completions());
                (node.events.room().0 == 0).then_some(())
            });
            asynchronous.extend(node.events.take_asynchronous());
        }
        node.events.set_room(usize::MAX, usize::MAX);
        world.settle();
        asynchronous.extend(node.events.take_asynchronous());
        completions.extend(node.events.take_completions());
        assert_eq!(asynchronous.len(), 80, "CQ_ERR and QP_FATAL for each");
        assert_eq!(completions.len(), 40, "one for each CQ");
        for (a, _) in &pairs {
            let cq_err = asynchronous.iter().position(|e| *e == (event::CQ_ERR, a.cq.cqn)).expect("CQ_ERR");
            let fatal = asynchronous.iter().position(|e| *e == (event::QP_FATAL, a.qp.qpn)).expect("QP_FATAL");
            assert!(cq_err < fatal);
            assert!(completions.contains(&(0, a.cq.cqn, 0)));
        }
    }

    fn semantics_27_events_of_an_object_that_is_gone_are_dropped(world: &World) {
        let node = world.a().clone();
        node.events.set_room(0, 0);
        let options = SideOptions { cq_entries: 2, ..Default::default() };
        let (mut a, b) = connected(world, &options, &Connection::default());
        a.cq.arm(Arm::Any);
        for n in 0..4 {
            a.write_number(&b, n);
        }
        world.until("the overflow", || (a.cq.flags() & CQ_ERROR != 0).then_some(()));
        node.destroy_context(a.context).expect("DESTROY_CONTEXT");
        node.events.set_room(usize::MAX, usize::MAX);
        world.settle();
        assert_eq!(node.events.take_asynchronous(), [], "8: an object's destruction drops its pending events");
        assert_eq!(node.events.take_completions(), []);
    }

    fn a_full_queue_does_not_hold_up_another(world: &World) {
        let options = SideOptions { cq_entries: 64, ..Default::default() };
        let (mut a, b) = connected(world, &options, &Connection::default());
        let (mut c, d) = sides(world);
        for n in 0..64 {
            a.write_number(&b, n);
        }
        for n in 0..200 {
            c.write_number(&d, n);
            assert_eq!(success(world, &mut c, "the other queue").wr_id, n);
        }
        for n in 0..64 {
            assert_eq!(success(world, &mut a, "the full one, later").wr_id, n);
        }
    }

    fn semantics_17_a_producer_that_runs_a_ring_ahead_is_fatal_for_that_qp_only(world: &World) {
        for (queue, lie) in [(0, 65u32), (0, 1 << 31), (0, u32::MAX), (1, 65), (1, u32::MAX)] {
            let (a, mut b) = sides(world);
            let (mut c, d) = sides(world);
            a.node.events.take_asynchronous();
            if queue == 0 {
                a.qp.sq_producer_word().store(lie, std::sync::atomic::Ordering::Release);
                a.qp.ring();
            } else {
                a.qp.rq_producer_word().store(lie, std::sync::atomic::Ordering::Release);
                // The device looks at the receive queue when a message comes.
                b.send_flagged(1, 0);
            }
            world.until("QP_FATAL", || a.node.events.asynchronous().contains(&(event::QP_FATAL, a.qp.qpn)).then_some(()));
            assert_eq!(a.state(), state::ERR);
            c.write_number(&d, 1);
            success(world, &mut c, "others go on");
            for side in [&a, &b, &c, &d] {
                side.node.destroy_context(side.context).expect("DESTROY_CONTEXT");
            }
        }
    }

    fn timestamps_do_not_run_backwards(world: &World) {
        let (mut a, b) = sides(world);
        let mut last = 0;
        for n in 0..50 {
            a.write_number(&b, n);
            let cqe = success(world, &mut a, "a completion");
            assert!(cqe.timestamp >= last && cqe.timestamp != 0);
            last = cqe.timestamp;
        }
        let _ = access::ALL;
    }
}
