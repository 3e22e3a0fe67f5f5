//! No work request completes with success before the far side has acknowledged that it is placed; and what becomes of work whose
//! peer is silent, dead, or gone for a while.

mod tcp;

use std::time::{Duration, Instant};

use conformance::layout::{access, send, state, wc, wqe_flag};
use conformance::random::payload;
use conformance::rings::SendWr;
use conformance::side::{
    Connection, Side, SideOptions, connect, connected, sides, silence, success, to_rts, to_state,
};
use conformance::watchdog::Watchdog;
use conformance::world::{Kind, World};
use devices::rdma::fabric::frame::kind;
use devices::rdma::fabric::pair::Side::{Left, Right};

fn pair() -> (World, Watchdog) {
    (World::new(Kind::Pair), Watchdog::new("completion rule"))
}

/// 4.096 us * 2^12 * (1 + 3): 67 ms.
const SOON: Connection = Connection {
    timeout: 12,
    retry_cnt: 3,
    rnr_retry: 7,
    min_rnr_timer: 1,
    max_rd_atomic: 4,
    access: access::ALL,
    psn: [5, 6],
    qkey: 7,
};

#[test]
fn no_cqe_appears_while_the_acknowledgement_is_held_back() {
    let (world, _watchdog) = pair();
    let (mut a, mut b) = sides(&world);
    let control = world.control();
    let data = payload(1, 5000);
    a.mr.write(0, &data);
    for opcode in [
        send::WRITE,
        send::SEND,
        send::WRITE_IMM,
        send::SEND_IMM,
        send::READ,
    ] {
        control.hold(Left, kind::ACK);
        control.hold(Left, kind::READ_DATA);
        b.recv(1, 16_384, 5000);
        let sges =
            [a.mr.sge(if opcode == send::READ { 16_384 } else { 0 }, 5000)];
        a.send(&SendWr::signaled(7, opcode).with_sges(&sges).at(&b.mr, 0));
        silence(
            &world,
            &mut a,
            Duration::from_millis(150),
            &format!("opcode {opcode}: a CQE before the acknowledgement"),
        );
        if opcode != send::READ {
            let at = if matches!(opcode, send::SEND | send::SEND_IMM) {
                16_384
            } else {
                0
            };
            assert_eq!(
                b.mr.read(at, 5000),
                data,
                "opcode {opcode}: it is placed all the same"
            );
        }
        assert!(
            control.in_flight(Left) > 0,
            "opcode {opcode}: the acknowledgement is on its way"
        );
        control.release(Left);
        assert_eq!(success(&world, &mut a, "released").wr_id, 7);
        // The receive that a WRITE or READ left is used up by a SEND.
        if matches!(opcode, send::WRITE | send::READ) {
            a.send(&SendWr::signaled(0, send::SEND).with_inline(&[1]));
            success(&world, &mut a, "a SEND");
        }
        success(&world, &mut b, "the receive");
    }
}

#[test]
fn an_acknowledgement_completes_what_it_stands_for_and_no_more() {
    // The second message is sent before the acknowledgement of the first comes, and is held back before the peer.
    for dies in [false, true] {
        let (world, _watchdog) = pair();
        let late = Connection {
            timeout: 15,
            ..SOON
        };
        let (mut a, b) = connected(&world, &SideOptions::default(), &late);
        let control = world.control();
        let write = |wr_id: u64, data: &'static [u8; 8]| {
            SendWr::signaled(wr_id, send::WRITE)
                .with_inline(data)
                .at(&b.mr, 8 * wr_id)
        };
        control.hold(Left, kind::ACK);
        a.send(&write(1, &[1; 8]));
        world.until("the first is placed", || {
            (b.mr.read(8, 8) == [1; 8]).then_some(())
        });
        control.hold(Right, kind::WRITE);
        a.send(&write(2, &[2; 8]));
        a.send(&write(3, &[3; 8]));
        world.until("they are on their way", || {
            (control.in_flight(Right) >= 2).then_some(())
        });
        assert!(a.poll().is_none(), "no acknowledgement has come yet");
        control.release(Left);
        assert_eq!(success(&world, &mut a, "the first").wr_id, 1);
        let time = Duration::from_millis(30);
        silence(&world, &mut a, time, "a CQE of what is not placed");
        if dies {
            control.kill(Right);
            let cqe = world.until("the end of the second", || a.poll());
            assert_eq!((cqe.wr_id, cqe.status), (2, wc::RETRY_EXC_ERR), "{cqe:?}");
        } else {
            assert_eq!(b.mr.read(16, 16), [0; 16]);
            control.release(Right);
            assert_eq!(success(&world, &mut a, "the second").wr_id, 2);
            assert_eq!(success(&world, &mut a, "the third").wr_id, 3);
            assert_eq!(b.mr.read(16, 8), [2; 8]);
        }
    }
}

#[test]
fn semantics_15_a_peer_killed_in_the_middle_of_a_message() {
    for opcode in [send::WRITE, send::SEND, send::WRITE_IMM] {
        for after in [1, 1000, 65_536, 131_073, 299_999] {
            let (world, _watchdog) = pair();
            let options = SideOptions {
                mr_len: 512 << 10,
                ..Default::default()
            };
            let (mut a, mut b) = connected(&world, &options, &SOON);
            // The target takes in so much and then no more; its side of the link goes with it.
            world.control().pace(Right, 4096);
            b.recv(1, 0, 512 << 10);
            world.control().kill_after(Left, after);
            let sges = [a.mr.sge(0, 300_000)];
            a.send(&SendWr::signaled(1, opcode).with_sges(&sges).at(&b.mr, 0));
            a.send(&SendWr {
                wr_id: 2,
                opcode: send::READ,
                flags: 0,
                sges: &sges[..1],
                rkey: b.mr.key,
                remote_addr: b.mr.iova,
                ..Default::default()
            });
            let started = Instant::now();
            let cqe = world.until("the end of a WRITE to the dead", || a.poll());
            assert_eq!((cqe.wr_id, cqe.status), (1, wc::RETRY_EXC_ERR), "{cqe:?}");
            assert!(
                started.elapsed() >= Duration::from_millis(60),
                "not before timeout * (retry_cnt + 1): {:?}",
                started.elapsed()
            );
            let cqe = world.until("the one behind it", || a.poll());
            assert_eq!((cqe.wr_id, cqe.status), (2, wc::WR_FLUSH_ERR), "{cqe:?}");
            assert_eq!(a.state(), state::ERR);
            world.settle();
            assert!(
                a.poll().is_none() && b.poll().is_none(),
                "nothing was received whole"
            );
        }
    }
}

#[test]
fn a_peer_killed_while_it_answers_a_read_means_retry_exceeded() {
    for after in [1, 4096, 150_000] {
        let (world, _watchdog) = pair();
        let options = SideOptions {
            mr_len: 512 << 10,
            ..Default::default()
        };
        let (mut a, b) = connected(&world, &options, &SOON);
        world.control().pace(Left, 4096);
        world.control().kill_after(Right, after);
        let sges = [a.mr.sge(0, 300_000)];
        a.send(
            &SendWr::signaled(1, send::READ)
                .with_sges(&sges)
                .at(&b.mr, 0),
        );
        let cqe = world.until("the end of a READ from the dead", || a.poll());
        assert_eq!((cqe.wr_id, cqe.status), (1, wc::RETRY_EXC_ERR), "{cqe:?}");
    }
}

#[test]
fn a_link_that_comes_back_in_time_loses_and_repeats_nothing() {
    let (world, _watchdog) = pair();
    let options = SideOptions {
        mr_len: 1 << 20,
        ..Default::default()
    };
    let connection = Connection {
        timeout: 16,
        retry_cnt: 7,
        ..SOON
    };
    let (mut a, mut b) = connected(&world, &options, &connection);
    let control = world.control();
    control.pace(Right, 20_000);
    control.pace(Left, 20_000);
    let (mut posted, mut done, mut received) = (0u64, 0u64, 0u64);
    for n in 0..16 {
        b.recv(n, n as usize * 16_384, 16_384);
    }
    let mut steps = 0;
    while done < 1000 {
        while posted < 1000 && posted - done < 16 {
            let at = 512 << 10;
            let sges = [a.mr.sge(at + (posted as usize % 16) * 16_384, 16_000)];
            let wr = SendWr {
                wr_id: posted,
                flags: wqe_flag::SIGNALED,
                sges: &sges,
                rkey: b.mr.key,
                remote_addr: b.mr.iova + (256 << 10),
                ..Default::default()
            };
            match posted % 4 {
                0 | 3 => {
                    // SENDs carry their number: each arrives once, in order.
                    a.mr.write(
                        at + (posted as usize % 16) * 16_384,
                        &payload(posted, 16_000),
                    );
                    a.send(&SendWr {
                        opcode: send::SEND,
                        ..wr
                    });
                }
                1 => a.send(&SendWr {
                    opcode: send::WRITE,
                    ..wr
                }),
                _ => {
                    let into = [a.mr.sge((posted as usize % 16) * 16_384, 16_000)];
                    a.send(&SendWr {
                        opcode: send::READ,
                        sges: &into,
                        ..wr
                    });
                }
            }
            posted += 1;
        }
        while let Some(cqe) = a.poll() {
            assert_eq!((cqe.wr_id, cqe.status), (done, wc::SUCCESS), "{cqe:?}");
            done += 1;
        }
        while let Some(cqe) = b.poll() {
            assert_eq!(
                (cqe.wr_id, cqe.status, cqe.byte_len),
                (received % 16, wc::SUCCESS, 16_000)
            );
            let number = received / 2 * 4 + if received % 2 == 0 { 0 } else { 3 };
            let at = (cqe.wr_id as usize % 16) * 16_384;
            assert!(
                b.mr.read(at, 16_000) == payload(number, 16_000),
                "SEND {number} arrived whole and in order"
            );
            received += 1;
            b.recv(cqe.wr_id, at, 16_384);
        }
        steps += 1;
        if steps % 23 == 0 {
            control.cut();
            for _ in 0..steps % 5 {
                world.step();
            }
            control.restore();
        }
        world.step();
    }
    world.until("the last receive", || {
        while b.poll().is_some() {
            received += 1;
        }
        (received == 500).then_some(())
    });
    assert!(steps > 200, "the link was cut some times: {steps} steps");
    assert!(a.node.counters().retries > 0, "something was sent again");
}

#[test]
fn a_link_that_stays_down_too_long_ends_the_qp_and_a_new_one_finds_the_peer_again() {
    let (world, _watchdog) = pair();
    let (mut a, mut b) = connected(&world, &SideOptions::default(), &SOON);
    let control = world.control();
    control.cut();
    a.send(
        &SendWr::signaled(3, send::WRITE)
            .with_inline(&[1; 8])
            .at(&b.mr, 0),
    );
    let cqe = world.until("the end of the wait", || a.poll());
    assert_eq!((cqe.wr_id, cqe.status), (3, wc::RETRY_EXC_ERR), "{cqe:?}");
    control.restore();
    for side in [&mut a, &mut b] {
        to_state(&side.node, &side.qp, state::RESET).expect("RESET");
        side.qp.reset_indices();
    }
    connect((&a.node, &a.qp), (&b.node, &b.qp), &SOON);
    a.send(
        &SendWr::signaled(4, send::WRITE)
            .with_inline(&[9; 8])
            .at(&b.mr, 0),
    );
    assert_eq!(success(&world, &mut a, "the peer is found again").wr_id, 4);
    assert_eq!(b.mr.read(0, 8), [9; 8]);
    let _ = &mut b;
}

#[test]
fn semantics_15_a_timeout_of_zero_means_for_ever() {
    let (world, _watchdog) = pair();
    let (mut a, b) = connected(
        &world,
        &SideOptions::default(),
        &Connection {
            timeout: 0,
            retry_cnt: 0,
            ..SOON
        },
    );
    world.control().cut();
    a.send(
        &SendWr::signaled(3, send::WRITE)
            .with_inline(&[1; 8])
            .at(&b.mr, 0),
    );
    let time = Duration::from_millis(300);
    silence(&world, &mut a, time, "a CQE while the link is down");
    world.control().restore();
    success(&world, &mut a, "the link is back");
}

#[test]
fn a_peer_that_holds_the_acknowledgement_but_answers_is_not_lost() {
    // Only acknowledgements to one QP are late; others talk over the same link all the time. Longer than the QP's timer.
    let (world, _watchdog) = pair();
    let (mut a, b) = connected(&world, &SideOptions::default(), &SOON);
    let control = world.control();
    control.delay(Left, Duration::from_millis(40));
    for n in 0..6 {
        a.send(
            &SendWr::signaled(n, send::WRITE)
                .with_inline(&[1; 8])
                .at(&b.mr, 0),
        );
        assert_eq!(success(&world, &mut a, "late, and in time").wr_id, n);
    }
}

#[test]
fn semantics_15_an_unreachable_gid_runs_the_timer_out() {
    for kind in [Kind::Loopback, Kind::Pair, Kind::Tcp] {
        let world = World::new(kind);
        let _watchdog = Watchdog::new("unreachable");
        let (mut a, b) = connected(&world, &SideOptions::default(), &SOON);
        to_state(&a.node, &a.qp, state::RESET).expect("RESET");
        a.qp.reset_indices();
        // A GID that nobody has is no error yet.
        to_rts(&a.node, &a.qp, 0, (b.qp.qpn, [0xfd; 16]), &SOON);
        a.send(&SendWr::signaled(1, send::SEND).with_inline(&[1]));
        let cqe = world.until("nobody answers", || a.poll());
        assert_eq!(cqe.status, wc::RETRY_EXC_ERR, "{cqe:?}");
    }
}

#[test]
fn a_qp_that_is_not_there_or_not_ready_counts_as_silence() {
    for kind in [Kind::Loopback, Kind::Pair, Kind::Tcp] {
        let world = World::new(kind);
        let _watchdog = Watchdog::new("no QP");
        // Destroyed.
        let (mut a, b) = connected(&world, &SideOptions::default(), &SOON);
        b.node.destroy_qp(b.context, b.qp.qpn).expect("DESTROY_QP");
        a.send(
            &SendWr::signaled(1, send::WRITE)
                .with_inline(&[1])
                .at(&b.mr, 0),
        );
        let cqe = world.until("no such QP", || a.poll());
        assert_eq!(cqe.status, wc::RETRY_EXC_ERR, "{cqe:?}");
        // Not ready yet, and then it is.
        let patient = Connection {
            timeout: 17,
            ..SOON
        };
        let (mut a, mut b) = connected(&world, &SideOptions::default(), &patient);
        to_state(&b.node, &b.qp, state::RESET).expect("RESET");
        b.qp.reset_indices();
        a.send(
            &SendWr::signaled(1, send::WRITE)
                .with_inline(&[5])
                .at(&b.mr, 0),
        );
        let time = Duration::from_millis(50);
        silence(&world, &mut a, time, "a CQE before the peer is ready");
        for step in [
            patient.init(b.qp.qpn),
            patient.rtr(b.qp.qpn, 1, a.qp.qpn, a.node.gid),
        ] {
            b.node.modify_qp(b.context.handle, &step).expect("to RTR");
        }
        success(&world, &mut a, "it became ready in time");
        assert_eq!(b.mr.read(0, 1), [5]);
        // Connected to somebody else: our frames are none of its business.
        let (a2, b2) = connected(&world, &SideOptions::default(), &SOON);
        let mut intruder = Side::new(world.a(), &SideOptions::default());
        let rightful = (b2.qp.qpn, b2.node.gid);
        to_rts(&intruder.node, &intruder.qp, 0, rightful, &SOON);
        b2.mr.buffer.fill(0xee);
        intruder.send(
            &SendWr::signaled(1, send::WRITE)
                .with_inline(&[1])
                .at(&b2.mr, 0),
        );
        let cqe = world.until("a QP that is connected to another", || intruder.poll());
        assert_ne!(cqe.status, wc::SUCCESS, "{cqe:?}");
        assert!(b2.mr.buffer.holds_only(0xee));
        assert_eq!(
            (a2.state(), b2.state()),
            (state::RTS, state::RTS),
            "the rightful pair is not harmed"
        );
    }
}
