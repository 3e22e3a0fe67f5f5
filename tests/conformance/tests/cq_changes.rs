//! Completion queues: resize, moderation of events, timestamps.

use std::time::{Duration, Instant};

use conformance::layout::{CQ_ERROR, DatagramAddress, Status, qp_type, send, wc, wqe_flag};
use conformance::node::QpOptions;
use conformance::on_every_fabric;
use conformance::rings::{Arm, SendWr};
use conformance::side::{Connection, Side, SideOptions, connect, connected, sides, success};
use conformance::world::World;

/// Sides whose CQs have so many entries.
fn with_cq(world: &World, cq_entries: u32) -> (Side, Side) {
    let options = SideOptions {
        cq_entries,
        ..Default::default()
    };
    connected(world, &options, &Connection::default())
}

fn resize(side: &mut Side, entries: u32) -> Result<(), Status> {
    let node = side.node.clone();
    node.resize_cq(side.context, &mut side.cq, entries)
}

/// Lets the world go on until an event of the side's CQ comes.
fn event(world: &World, side: &Side) {
    world.until("a completion event", || {
        side.node
            .events
            .wait_for(side.cq.cqn, Duration::ZERO)
            .then_some(())
    });
}

/// The longest period of moderation.
const PERIOD: Duration = Duration::from_micros(u16::MAX as u64);

/// Checks what holds as long as no period of [`PERIOD`] has run out. A machine that stood still for so long proves nothing: then again.
fn within_the_period(what: &str, mut attempt: impl FnMut() -> bool) {
    for _ in 0..50 {
        let begun = Instant::now();
        let right = attempt();
        if begun.elapsed() < PERIOD {
            assert!(right, "{what}");
            return;
        }
    }
    panic!("{what}: not within {PERIOD:?}");
}

on_every_fabric! {
    fn semantics_28_resize_keeps_cqes_and_order(world: &World) {
        let (mut a, b) = with_cq(world, 16);
        let mut posted = 0;
        let mut polled = 0;
        // Up and down, at every place of the ring, with more or less of it unread.
        for (round, entries) in [64, 16, 128, 8, 8, 1024, 16, 32].into_iter().enumerate() {
            let mut drain = |a: &mut Side, posted: u64, to: u64| {
                while posted - polled > to {
                    assert_eq!(success(world, a, "in order").wr_id, polled);
                    polled += 1;
                }
            };
            let room = u64::from(a.cq.entries) - 7;
            drain(&mut a, posted, room);
            for _ in 0..5 + round as u64 % 3 {
                a.write_number(&b, posted);
                posted += 1;
            }
            world.settle();
            // The whole of the new ring, or all but one, is taken by what was unread.
            drain(&mut a, posted, u64::from(entries).min(8) - round as u64 % 2);
            resize(&mut a, entries).expect("RESIZE_CQ");
            assert_eq!(a.cq.entries, entries);
            // What was there is read together with what comes after.
            if posted - polled < u64::from(entries) {
                a.write_number(&b, posted);
                posted += 1;
            }
        }
        world.settle();
        while polled < posted {
            assert_eq!(success(world, &mut a, "after all").wr_id, polled);
            polled += 1;
        }
        assert!(a.poll().is_none());
        assert_eq!(a.cq.flags(), 0);
        assert_eq!(a.node.counters().cq_overflows, 0);
    }

    fn a_ring_too_small_for_what_is_unread_is_refused_and_nothing_changes(world: &World) {
        let (mut a, b) = with_cq(world, 16);
        for n in 0..6 {
            a.write_number(&b, n);
        }
        world.settle();
        for entries in [1, 2, 4] {
            assert_eq!(resize(&mut a, entries), Err(Status::Invalid), "{entries} for 6");
        }
        for n in 0..2 {
            assert_eq!(success(world, &mut a, "still in the old ring").wr_id, n);
        }
        resize(&mut a, 4).expect("exactly what is unread");
        let full = a.cq.ring_bytes();
        a.write_number(&b, 6);
        world.settle();
        assert_ne!(a.cq.flags() & CQ_ERROR, 0, "the new ring was full");
        assert!(a.cq.ring_bytes() == full);
        for n in 2..6 {
            assert_eq!(success(world, &mut a, "in the new ring").wr_id, n);
        }
        assert_eq!(resize(&mut a, 64), Err(Status::BadState), "a CQ in error stays so");
    }

    fn what_was_posted_before_and_completes_at_once_is_unread(world: &World) {
        let qp = QpOptions { kind: qp_type::UD, ..Default::default() };
        let options = SideOptions { qp, cq_entries: 16, ..Default::default() };
        let (mut a, b) = connected(world, &options, &Connection::default());
        let to = DatagramAddress { dest_qpn: b.qp.qpn, dgid: b.node.gid, hop_limit: 64, ..Default::default() };
        // Whether the device sleeps or is at work.
        for polled in [0, 6] {
            if polled == 0 {
                world.quiet();
            }
            for n in 0..6 {
                a.send(&SendWr::signaled(polled + n, send::SEND).with_inline(&[1]).to(to));
            }
            assert_eq!(resize(&mut a, 4), Err(Status::Invalid), "the device had not looked yet");
            for n in 0..6 {
                assert_eq!(success(world, &mut a, "in the old ring").wr_id, polled + n);
            }
        }
        resize(&mut a, 4).expect("RESIZE_CQ");
    }

    fn resize_lies_are_refused(world: &World) {
        let (mut a, b) = with_cq(world, 16);
        let (other, _) = with_cq(world, 16);
        a.write_number(&b, 0);
        world.settle();
        let (good, _memory) = a.node.cq_layout(64, 0);
        let lies = [
            ("no power of two", (|c| c.entries = 48) as fn(&mut conformance::layout::CreateCq)),
            ("none", |c| c.entries = 0),
            ("too many", |c| c.entries = 1 << 30),
            ("a ring outside", |c| c.ring_offset = c.buf_length - 64),
            ("a ring over the control block", |c| c.ring_offset = 64),
            ("pages that do not agree", |c| c.num_pages -= 1),
        ];
        for (what, lie) in lies {
            let mut body = good.clone();
            lie(&mut body);
            assert_eq!(a.node.resize_cq_raw(a.context, a.cq.cqn, &body), Err(Status::Invalid), "{what}");
        }
        let mut nowhere = good.clone();
        nowhere.pages[0] = 0xffff_ffff_f000;
        assert_eq!(a.node.resize_cq_raw(a.context, a.cq.cqn, &nowhere), Err(Status::BadAddress));
        assert_eq!(a.node.resize_cq_raw(a.context, other.cq.cqn, &good), Err(Status::Denied));
        assert_eq!(a.node.resize_cq_raw(a.context, 0x7fff_0000, &good), Err(Status::NotFound));
        assert_eq!(a.node.modify_cq(a.context, other.cq.cqn, 1, 1), Err(Status::Denied));
        assert_eq!(a.node.modify_cq(a.context, 0x7fff_0000, 1, 1), Err(Status::NotFound));
        // An index that cannot be is not believed.
        let consumer = a.cq.consumer_word().swap(9, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(a.node.resize_cq_raw(a.context, a.cq.cqn, &good), Err(Status::Invalid));
        a.cq.consumer_word().store(consumer, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(success(world, &mut a, "the CQ is as it was").wr_id, 0);
    }

    fn a_cq_is_resized_under_traffic_of_several_qps(world: &World) {
        let (mut a, mut b) = with_cq(world, 64);
        let q2 = a.node.create_qp(a.context, a.pd, a.cq.cqn, a.cq.cqn, &QpOptions::default()).expect("a QP");
        let p2 = b.node.create_qp(b.context, b.pd, b.cq.cqn, b.cq.cqn, &QpOptions::default()).expect("a QP");
        connect((&a.node, &q2), (&b.node, &p2), &Connection::default());
        let mut second = q2;
        let mut next = [0, 1000];
        let mut seen = [0, 1000];
        for round in 0..40 {
            for _ in 0..4 {
                a.write_number(&b, next[0]);
                second.post_send(&SendWr::signaled(next[1], send::WRITE).with_inline(&[7; 4]).at(&b.mr, 0)).expect("room");
                next = [next[0] + 1, next[1] + 1];
            }
            for _ in 0..round % 5 {
                world.step();
            }
            resize(&mut a, [32, 64, 16, 256][round % 4]).expect("RESIZE_CQ");
            world.until("all of a round", || {
                while let Some(cqe) = a.cq.poll() {
                    assert_eq!(cqe.status, wc::SUCCESS, "{cqe:?}");
                    let which = usize::from(cqe.qpn == second.qpn);
                    let qp = if which == 0 { &mut a.qp } else { &mut second };
                    qp.retire(&cqe);
                    assert_eq!(cqe.wr_id, seen[which], "in order, each once");
                    seen[which] += 1;
                }
                (seen == next).then_some(())
            });
        }
        assert!(b.poll().is_none());
        assert_eq!(a.node.counters().cq_overflows, 0);
    }

    fn arming_goes_along_with_a_resize(world: &World) {
        let (mut a, b) = with_cq(world, 16);
        assert!(!a.cq.arm(Arm::Any));
        resize(&mut a, 64).expect("RESIZE_CQ");
        a.write_number(&b, 1);
        event(world, &a);
        a.cq.event_consumed();
        success(world, &mut a, "what the event was for");
        resize(&mut a, 16).expect("RESIZE_CQ");
        a.write_number(&b, 2);
        world.settle();
        assert_eq!(a.node.events.completions(), [], "it fired once");
    }

    fn moderation_holds_an_event_for_its_count(world: &World) {
        // Of all attempts, for their memory is not to be used again.
        let mut sides = Vec::new();
        // The count starts anew with each event.
        for events in 0..2 {
            within_the_period("an event with the fourth CQE", || {
                sides.push(with_cq(world, 64));
                let (a, b) = sides.last_mut().expect("just made");
                a.node.modify_cq(a.context, a.cq.cqn, 4, u16::MAX).expect("MODIFY_CQ");
                for n in 0..4 * events {
                    a.cq.arm(Arm::Any);
                    a.write_number(b, n);
                    world.until("a CQE", || a.poll());
                }
                if events > 0 {
                    event(world, a);
                    a.cq.event_consumed();
                }
                a.cq.arm(Arm::Any);
                for n in 0..3 {
                    a.write_number(b, n);
                    world.until("a CQE", || a.poll());
                }
                let early = a.node.events.completions();
                a.write_number(b, 3);
                event(world, a);
                early.is_empty()
            });
        }
    }

    fn moderation_holds_an_event_for_its_period_and_no_longer(world: &World) {
        let (mut a, b) = with_cq(world, 64);
        a.node.modify_cq(a.context, a.cq.cqn, 100, 30_000).expect("MODIFY_CQ");
        for n in 0..3 {
            a.cq.arm(Arm::Any);
            let posted = Instant::now();
            a.write_number(&b, n);
            world.until("the CQE", || a.poll());
            event(world, &a);
            let took = posted.elapsed();
            assert!(took >= Duration::from_millis(30), "it came after {took:?} already");
            a.cq.event_consumed();
        }
        world.settle();
        assert_eq!(a.node.events.completions(), [], "one for each arming");
    }

    fn what_waits_goes_out_when_moderation_ends_or_the_cq_does(world: &World) {
        let (mut a, b) = with_cq(world, 64);
        let written = |a: &mut Side, count, period| {
            a.node.modify_cq(a.context, a.cq.cqn, count, period).expect("MODIFY_CQ");
            a.cq.arm(Arm::Any);
            a.write_number(&b, 1);
            world.until("the CQE", || a.poll());
        };
        within_the_period("an event when moderation ends", || {
            written(&mut a, 100, u16::MAX);
            a.node.modify_cq(a.context, a.cq.cqn, 0, 0).expect("MODIFY_CQ");
            event(world, &a);
            a.cq.event_consumed();
            true
        });
        for (count, period) in [(0, u16::MAX), (100, 0), (1, u16::MAX)] {
            within_the_period(&format!("{count} and {period}: nothing waits"), || {
                written(&mut a, count, period);
                event(world, &a);
                a.cq.event_consumed();
                true
            });
        }
        let mut sides = Vec::new();
        within_the_period("a CQ that is gone", || {
            sides.push(with_cq(world, 64));
            let (a, b) = sides.last_mut().expect("just made");
            a.node.modify_cq(a.context, a.cq.cqn, 100, u16::MAX).expect("MODIFY_CQ");
            a.cq.arm(Arm::Any);
            a.write_number(b, 2);
            world.until("the CQE", || a.poll());
            a.node.destroy_qp(a.context, a.qp.qpn).expect("DESTROY_QP");
            a.node.destroy_cq(a.context, a.cq.cqn).expect("DESTROY_CQ");
            a.node.events.take_completions().is_empty()
        });
        std::thread::sleep(PERIOD);
        world.settle();
        assert_eq!(a.node.events.completions(), [], "a CQ that is gone has no events");
    }

    fn moderation_does_not_change_what_an_arming_is_for(world: &World) {
        let (mut a, mut b) = sides(world);
        b.node.modify_cq(b.context, b.cq.cqn, 2, 5000).expect("MODIFY_CQ");
        b.cq.arm(Arm::Solicited);
        for n in 0..6 {
            b.recv(n, 0, 8);
            a.send_flagged(n, 0);
            success(world, &mut a, "sent");
        }
        std::thread::sleep(Duration::from_millis(8));
        world.settle();
        assert_eq!(b.node.events.completions(), [], "none was solicited");
        b.recv(6, 0, 8);
        a.send_flagged(6, wqe_flag::SOLICITED);
        event(world, &b);
    }

    fn completions_have_the_time_of_the_clock_that_the_device_tells(world: &World) {
        let (mut a, b) = sides(world);
        let mut last = 0;
        for n in 0..20 {
            let before = a.node.clock();
            a.write_number(&b, n);
            let cqe = success(world, &mut a, "written");
            let after = a.node.clock();
            assert!((before..=after).contains(&cqe.timestamp), "{before} {} {after}", cqe.timestamp);
            assert!(cqe.timestamp >= last);
            last = cqe.timestamp;
        }
        let began = Instant::now();
        let begin = a.node.clock();
        std::thread::sleep(Duration::from_millis(20));
        let told = Duration::from_nanos(a.node.clock() - begin);
        let passed = began.elapsed();
        assert!(told >= Duration::from_millis(20) && told <= passed, "nanoseconds: {told:?} in {passed:?}");
    }
}
