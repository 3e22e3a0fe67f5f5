//! Devices with threads that sleep, against processes with threads that sleep: no wake-up is lost.

use std::time::{Duration, Instant};

use conformance::layout::{Cqe, DatagramAddress, qp_type, send, wc};
use conformance::node::QpOptions;
use conformance::random::{Random, Source, payload};
use conformance::rings::{Arm, SendWr};
use conformance::side::{Connection, Side, SideOptions, connect, connected};
use conformance::watchdog::Watchdog;
use conformance::world::{Kind, Options, World};

fn world(kind: Kind, spin: Duration) -> World {
    World::with(
        kind,
        &Options {
            pages: 16_384,
            threads: Some(spin),
            ..Default::default()
        },
    )
}

/// How long a completion may take to come on a loaded machine.
const SOON: Duration = Duration::from_secs(60);

/// Waits for a CQE by polling, as a process that spins.
fn spin(side: &mut Side, what: &str) -> Cqe {
    let started = Instant::now();
    loop {
        if let Some(cqe) = side.poll() {
            assert_eq!(cqe.status, wc::SUCCESS, "{what}: {cqe:?}");
            return cqe;
        }
        assert!(
            started.elapsed() < SOON,
            "{what}: a post or a completion was missed"
        );
        std::thread::yield_now();
    }
}

/// Waits for a CQE by arming and sleeping, as a process in `ibv_get_cq_event`.
fn sleep(side: &mut Side, what: &str) -> Cqe {
    loop {
        if let Some(cqe) = side.poll() {
            assert_eq!(cqe.status, wc::SUCCESS, "{what}: {cqe:?}");
            return cqe;
        }
        if side.cq.arm(Arm::Any) {
            continue;
        }
        let events = side.node.events.clone();
        assert!(
            events.wait_for(side.cq.cqn, SOON),
            "{what}: an event was lost"
        );
        side.cq.event_consumed();
    }
}

fn ping_pong(kind: Kind, device_spin: Duration, rounds: u64, waits: fn(&mut Side, &str) -> Cqe) {
    ping_pong_over(qp_type::RC, kind, device_spin, rounds, waits);
}

/// The last question, which has no number.
const LAST: u64 = u64::MAX;

/// How long one ping-pong goes on for its rounds: on a loaded machine each takes several turns of its scheduler.
const ENOUGH: Duration = Duration::from_secs(10);

/// Over a QP type. A process checks that nothing is lost, so what may be lost has to find a link and a receive.
fn ping_pong_over(
    qp_type: u32,
    kind: Kind,
    device_spin: Duration,
    rounds: u64,
    waits: fn(&mut Side, &str) -> Cqe,
) {
    let _watchdog = Watchdog::new("ping-pong");
    let world = world(kind, device_spin);
    let qp = QpOptions {
        kind: qp_type,
        ..Default::default()
    };
    let options = SideOptions {
        qp,
        ..Default::default()
    };
    let (mut a, mut b) = connected(&world, &options, &Connection::default());
    let datagrams = qp_type == qp_type::UD;
    let data = if datagrams { 40 } else { 0 };
    let address = |of: &Side| {
        datagrams.then(|| DatagramAddress {
            dest_qpn: of.qp.qpn,
            qkey: Connection::default().qkey,
            dgid: of.node.gid,
            ..Default::default()
        })
    };
    let (to_a, to_b) = (address(&a), address(&b));
    // What is not acknowledged is lost before there is a link; what is shows that there is one, and that both know the way.
    let (mut near, far) = connected(&world, &SideOptions::default(), &Connection::default());
    near.write_number(&far, 0);
    spin(&mut near, "the link");
    b.recv(0, 0, 128);
    let mut random = Random::new(5);
    let far = std::thread::spawn(move || {
        // The two queues of a QP complete in no order to each other: the next question may overtake the answer's CQE.
        let (mut questions, mut answers) = (0, 0);
        let mut last = false;
        while !last || answers < questions {
            let cqe = waits(&mut b, "a question or the completion of an answer");
            if cqe.is_send() {
                assert_eq!(cqe.wr_id, 2 * answers + 1);
                answers += 1;
                continue;
            }
            let n = questions;
            assert_eq!(cqe.wr_id, 2 * n);
            let asked = b.mr.read(data, 8);
            last = asked == LAST.to_le_bytes();
            assert!(last || asked == n.to_le_bytes());
            questions += 1;
            b.recv(2 * n + 2, 0, 128);
            b.send(&SendWr {
                datagram: to_a,
                ..SendWr::signaled(2 * n + 1, send::SEND).with_inline(&n.to_le_bytes())
            });
        }
        b
    });
    let started = Instant::now();
    for n in 0..rounds {
        let last = n + 1 == rounds || started.elapsed() > ENOUGH;
        let question = if last { LAST } else { n };
        a.recv(2 * n, 0, 128);
        a.send(&SendWr {
            datagram: to_b,
            ..SendWr::signaled(2 * n + 1, send::SEND).with_inline(&question.to_le_bytes())
        });
        for _ in 0..2 {
            let cqe = waits(&mut a, "question or answer");
            assert_eq!(cqe.wr_id, if cqe.is_send() { 2 * n + 1 } else { 2 * n });
        }
        assert_eq!(a.mr.read(data, 8), n.to_le_bytes());
        if last {
            break;
        }
        // Pauses of every length around the device's own, so that posts meet it on its way to sleep.
        let pause = Duration::from_nanos(random.below(if device_spin.is_zero() {
            8_000
        } else {
            120_000
        }));
        let until = Instant::now() + pause;
        while Instant::now() < until {
            std::hint::spin_loop();
        }
    }
    let b = far.join().expect("the far side");
    assert_eq!(a.node.counters().lost + b.node.counters().lost, 0);
}

#[test]
fn no_post_is_missed_by_a_device_on_its_way_to_sleep() {
    for kind in [Kind::Loopback, Kind::Pair, Kind::Tcp] {
        ping_pong(kind, Duration::from_micros(30), 2000, spin);
    }
}

#[test]
fn no_post_is_missed_by_a_device_that_sleeps_at_once() {
    ping_pong(Kind::Tcp, Duration::ZERO, 1000, spin);
    ping_pong(Kind::Loopback, Duration::ZERO, 20_000, spin);
}

#[test]
fn no_post_of_uc_or_ud_is_missed() {
    for qp_type in [qp_type::UC, qp_type::UD] {
        ping_pong_over(qp_type, Kind::Tcp, Duration::ZERO, 1000, spin);
        ping_pong_over(
            qp_type,
            Kind::Loopback,
            Duration::from_micros(30),
            5000,
            sleep,
        );
        ping_pong_over(qp_type, Kind::Pair, Duration::from_micros(30), 1000, sleep);
    }
}

#[test]
fn semantics_24_no_event_is_lost_by_a_process_that_sleeps() {
    for kind in [Kind::Loopback, Kind::Pair, Kind::Tcp] {
        ping_pong(kind, Duration::from_micros(30), 1000, sleep);
    }
}

#[test]
fn processes_post_at_the_same_time_without_knowing_of_each_other() {
    let _watchdog = Watchdog::new("processes");
    for kind in [Kind::Loopback, Kind::Tcp] {
        let world = world(kind, Duration::from_micros(50));
        let threads: Vec<_> = (0..4)
            .map(|who: u64| {
                let options = SideOptions {
                    mr_len: 512 << 10,
                    contiguous: true,
                    ..Default::default()
                };
                let (mut a, mut b) = connected(&world, &options, &Connection::default());
                std::thread::spawn(move || {
                    let mut random = Random::new(who);
                    for n in 0..150u64 {
                        let len = random.below(200_000) as usize;
                        let data = payload(who * 1000 + n, len);
                        a.mr.write(0, &data);
                        b.recv(n, 0, 200_000);
                        let from = [a.mr.sge(0, len)];
                        let into = [a.mr.sge(256 << 10, len)];
                        for (opcode, sges) in [
                            (send::WRITE, &from),
                            (send::READ, &into),
                            (send::SEND, &from),
                        ] {
                            let wr = SendWr::signaled(0, opcode).with_sges(sges);
                            a.send(&wr.at(&b.mr, 256 << 10));
                        }
                        for _ in 0..3 {
                            spin(&mut a, "traffic");
                        }
                        spin(&mut b, "its receive");
                        assert!(
                            b.mr.read(0, len) == data
                                && b.mr.read(256 << 10, len) == data
                                && a.mr.read(256 << 10, len) == data
                        );
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().expect("a process");
        }
    }
}

#[test]
fn one_sided_work_asks_nothing_of_the_target() {
    // The target takes no completions, posts nothing and has no event buffers; its CQ is full.
    let _watchdog = Watchdog::new("one-sided");
    for kind in [Kind::Loopback, Kind::Pair, Kind::Tcp] {
        let world = world(kind, Duration::from_micros(30));
        let options = SideOptions {
            qp: QpOptions::default(),
            cq_entries: 4,
            ..Default::default()
        };
        let mut a = Side::new(world.a(), &SideOptions::default());
        let mut b = Side::new(world.b(), &options);
        connect((&a.node, &a.qp), (&b.node, &b.qp), &Connection::default());
        for n in 0..4 {
            b.recv(n, 0, 8);
        }
        for n in 0..4 {
            a.send(&SendWr::signaled(n, send::SEND).with_inline(&[1; 8]));
            spin(&mut a, "what fills the target's CQ");
        }
        b.node.events.set_room(0, 0);
        for n in 0..200u64 {
            let data = payload(n, 5000);
            a.mr.write(0, &data);
            let (from, into) = ([a.mr.sge(0, 5000)], [a.mr.sge(8192, 5000)]);
            for (opcode, sges) in [(send::WRITE, &from), (send::READ, &into)] {
                a.send(&SendWr::signaled(0, opcode).with_sges(sges).at(&b.mr, 8192));
            }
            spin(&mut a, "a WRITE");
            spin(&mut a, "a READ");
            assert!(a.mr.read(8192, 5000) == data);
        }
    }
}
