//! Every RC operation, over every fabric: integrity, order, fields of completions.

use conformance::layout::{Sge, access, cqe_flag, event, send, state, wc, wc_opcode, wqe_flag};
use conformance::node::QpOptions;
use conformance::on_every_fabric;
use conformance::random::{Random, Source, payload};
use conformance::rings::SendWr;
use conformance::side::{Connection, Side, SideOptions, connected, sides, success, to_rts};
use conformance::world::World;

/// Sizes around the edges of words, pages, frames and buffers.
const SIZES: [usize; 18] = [
    0,
    1,
    7,
    8,
    9,
    63,
    64,
    65,
    4095,
    4096,
    4097,
    8191,
    65_535,
    65_536,
    65_537,
    262_145,
    (1 << 20) - 1,
    (1 << 20) + 3,
];

fn big() -> SideOptions {
    SideOptions {
        mr_len: (2 << 20) + 8192,
        ..Default::default()
    }
}

/// Region bytes around the stretch that a message goes to stay as they were.
fn around_untouched(side: &Side, at: usize, len: usize, filler: u8) {
    let before = at.saturating_sub(64);
    assert!(
        side.mr
            .read(before, at - before)
            .iter()
            .all(|b| *b == filler),
        "bytes before the message changed"
    );
    assert!(
        side.mr.read(at + len, 64).iter().all(|b| *b == filler),
        "bytes after the message changed"
    );
}

on_every_fabric! {
    fn writes_of_every_size_arrive_whole(world: &World) {
        let (mut a, mut b) = connected(world, &big(), &Connection::default());
        for (n, size) in SIZES.into_iter().enumerate() {
            for (from, to) in [(0, 0), (1, 4095), (4090, 3)] {
                let data = payload((n * 100 + from) as u64, size);
                a.mr.write(from, &data);
                b.mr.buffer.fill(0xee);
                let sges = [a.mr.sge(from, size)];
                a.send(&SendWr::signaled(size as u64, send::WRITE).with_sges(&sges).at(&b.mr, to as u64));
                let cqe = success(world, &mut a, "a WRITE");
                assert_eq!((cqe.wr_id, cqe.opcode), (size as u64, wc_opcode::RDMA_WRITE));
                assert_eq!(b.mr.read(to, size), data, "{size} bytes from {from} to {to}");
                around_untouched(&b, to, size, 0xee);
                assert!(b.poll().is_none(), "a WRITE without immediate makes no completion at the target");
            }
        }
        assert_eq!(a.node.counters().lost, 0);
        assert_eq!(b.node.counters().lost, 0);
    }

    fn reads_of_every_size_arrive_whole(world: &World) {
        let (mut a, b) = connected(world, &big(), &Connection::default());
        for (n, size) in SIZES.into_iter().enumerate() {
            for (from, to) in [(0, 0), (4095, 1), (3, 4090)] {
                let data = payload((n * 100 + from) as u64, size);
                b.mr.write(from, &data);
                a.mr.buffer.fill(0xee);
                let sges = [a.mr.sge(to, size)];
                a.send(&SendWr::signaled(size as u64, send::READ).with_sges(&sges).at(&b.mr, from as u64));
                let cqe = success(world, &mut a, "a READ");
                assert_eq!(cqe.opcode, wc_opcode::RDMA_READ);
                assert_eq!(cqe.byte_len as usize, size, "7: READ has the bytes read");
                assert_eq!(a.mr.read(to, size), data, "{size} bytes from {from} to {to}");
                around_untouched(&a, to, size, 0xee);
            }
        }
    }

    fn sends_of_every_size_arrive_whole(world: &World) {
        let (mut a, mut b) = connected(world, &big(), &Connection::default());
        for (n, size) in SIZES.into_iter().enumerate() {
            for (from, to, slack) in [(0, 0, 0), (1, 4095, 5), (4090, 3, 4096)] {
                let data = payload((n * 100 + from) as u64, size);
                a.mr.write(from, &data);
                b.mr.buffer.fill(0xee);
                b.recv(77, to, size + slack);
                let sges = [a.mr.sge(from, size)];
                a.send(&SendWr::signaled(size as u64, send::SEND).with_sges(&sges));
                let cqe = success(world, &mut a, "a SEND");
                assert_eq!(cqe.opcode, wc_opcode::SEND);
                // The receive's CQE is there before the sender's: it was written before the acknowledgement.
                let cqe = b.poll().expect("the receive completed before the send did");
                assert_eq!((cqe.wr_id, cqe.status, cqe.opcode), (77, wc::SUCCESS, wc_opcode::RECV));
                assert_eq!(cqe.byte_len as usize, size);
                assert_eq!(cqe.flags & cqe_flag::WITH_IMM, 0);
                assert!(!cqe.is_send());
                assert_eq!(cqe.src_qpn, a.qp.qpn);
                assert_eq!(b.mr.read(to, size), data, "{size} bytes from {from} to {to}");
                around_untouched(&b, to, size, 0xee);
            }
        }
    }

    fn semantics_30_immediate_data_is_passed_on_untouched(world: &World) {
        let (mut a, mut b) = sides(world);
        for (size, opcode) in [(0, send::SEND_IMM), (100, send::SEND_IMM), (0, send::WRITE_IMM), (5000, send::WRITE_IMM)] {
            let data = payload(size as u64, size);
            a.mr.write(0, &data);
            b.mr.buffer.fill(0);
            b.recv(5, 0, if opcode == send::WRITE_IMM { 1 } else { size });
            let sges = [a.mr.sge(0, size)];
            a.send(&SendWr {
                imm: [0x01, 0x82, 0x03, 0xf4],
                rkey: b.mr.key,
                remote_addr: b.mr.iova + 8192,
                ..SendWr::signaled(1, opcode).with_sges(&sges)
            });
            let cqe = success(world, &mut a, "a message with immediate data");
            assert_eq!(cqe.opcode, if opcode == send::WRITE_IMM { wc_opcode::RDMA_WRITE } else { wc_opcode::SEND });
            let cqe = success(world, &mut b, "the receive");
            assert_eq!(cqe.imm, [0x01, 0x82, 0x03, 0xf4]);
            assert_ne!(cqe.flags & cqe_flag::WITH_IMM, 0);
            assert_eq!(cqe.byte_len as usize, size);
            if opcode == send::WRITE_IMM {
                assert_eq!(cqe.opcode, wc_opcode::RECV_RDMA_WITH_IMM);
                assert_eq!(b.mr.read(8192, size), data);
                assert_eq!(b.mr.read(0, 1), [0], "the receive's own buffer is not written");
            } else {
                assert_eq!(cqe.opcode, wc_opcode::RECV);
                assert_eq!(b.mr.read(0, size), data);
            }
        }
    }

    fn scattered_lists_gather_and_scatter_in_order(world: &World) {
        let options = SideOptions {
            qp: QpOptions { send_sge: 16, recv_sge: 16, ..Default::default() },
            mr_len: 1 << 20,
            ..Default::default()
        };
        let (mut a, mut b) = connected(world, &options, &Connection::default());
        let mut random = Random::new(7);
        for round in 0..60 {
            // Pieces that do not overlap: slot n of 32 KiB, from anywhere in its first page; zero lengths among them.
            let pieces = 1 + random.below(16) as usize;
            let mut list = |side: &Side, total: usize| {
                let mut left = total;
                let mut sges = Vec::new();
                let mut places = Vec::new();
                for n in 0..16 {
                    let last = sges.len() + 1 == pieces || n == 15;
                    let len = if last { left } else { (random.below(left as u64 / 2 + 1)) as usize }.min(28_000);
                    let at = n * 32_768 + random.below(4096) as usize;
                    sges.push(side.mr.sge(at, len));
                    places.push((at, len));
                    left -= len;
                    if last {
                        break;
                    }
                }
                (sges, places, total - left)
            };
            let total = [0, 1, 15, 64, 1000, 4097, 20_000][round % 7];
            let (from, from_places, size) = list(&a, total);
            let (to, to_places, room) = list(&b, size);
            assert_eq!(size, room);
            let data = payload(round as u64, size);
            let mut at = 0;
            for (place, len) in &from_places {
                a.mr.write(*place, &data[at..at + len]);
                at += len;
            }
            b.mr.buffer.fill(0xee);
            b.qp.post_recv(round as u64, &to).expect("room");
            a.send(&SendWr::signaled(round as u64, send::SEND).with_sges(&from));
            success(world, &mut a, "a gathered SEND");
            success(world, &mut b, "a scattered receive");
            let mut got = Vec::new();
            for (place, len) in &to_places {
                got.extend(b.mr.read(*place, *len));
                assert_eq!(b.mr.read(place + len, 8), [0xee; 8], "round {round}: bytes after a piece changed");
            }
            assert_eq!(got, data, "round {round}: {from_places:?} to {to_places:?}");
            // And back by READ into the same list.
            let linear = b.mr.buffer.len() - 65_536;
            b.mr.write(linear, &data);
            a.mr.buffer.fill(0xdd);
            a.send(&SendWr::signaled(1, send::READ).with_sges(&from).at(&b.mr, linear as u64));
            success(world, &mut a, "a scattered READ");
            let got: Vec<u8> = from_places.iter().flat_map(|(place, len)| a.mr.read(*place, *len)).collect();
            assert_eq!(got, data, "round {round}: READ into {from_places:?}");
        }
    }

    fn inline_data_leaves_with_the_request(world: &World) {
        let options = SideOptions { qp: QpOptions { inline: 192, ..Default::default() }, ..Default::default() };
        let (mut a, mut b) = connected(world, &options, &Connection::default());
        for size in [0, 1, 63, 64, 65, 191, 192] {
            let data = payload(size as u64, size);
            b.mr.buffer.fill(0);
            b.recv(1, 4000, size);
            a.send(&SendWr::signaled(1, send::SEND).with_inline(&data));
            success(world, &mut a, "an inline SEND");
            success(world, &mut b, "its receive");
            assert_eq!(b.mr.read(4000, size), data);
            a.send(&SendWr::signaled(1, send::WRITE).with_inline(&data).at(&b.mr, 8190));
            success(world, &mut a, "an inline WRITE");
            assert_eq!(b.mr.read(8190, size), data);
        }
        let _ = &mut b;
    }

    fn semantics_01_completions_come_in_the_order_of_posting(world: &World) {
        let (mut a, mut b) = sides(world);
        let mut random = Random::new(3);
        let mut next_recv = 0;
        let mut expected = Vec::new();
        for n in 0..60u64 {
            let len = random.below(3000) as usize;
            let sges = [a.mr.sge((n as usize % 8) * 4096, len)];
            let opcode = random.pick(&[send::SEND, send::WRITE, send::READ, send::WRITE_IMM, send::SEND_IMM]);
            if matches!(opcode, send::SEND | send::SEND_IMM | send::WRITE_IMM) {
                b.recv(next_recv, 0, 4096);
                next_recv += 1;
            }
            a.send(&SendWr::signaled(n, opcode).with_sges(&sges).at(&b.mr, 32_768));
            expected.push(n);
        }
        for n in expected {
            let cqe = success(world, &mut a, "the next send");
            assert_eq!(cqe.wr_id, n);
            assert_eq!(u64::from(cqe.wqe_index), n);
            assert!(cqe.is_send());
        }
        for n in 0..next_recv {
            assert_eq!(success(world, &mut b, "the next receive").wr_id, n);
        }
    }

    fn semantics_04_a_write_is_visible_before_what_follows_it(world: &World) {
        let (mut a, mut b) = connected(world, &big(), &Connection::default());
        for round in 0..20u8 {
            let size = 300_000;
            a.mr.write(0, &vec![round + 1; size]);
            b.recv(1, 1 << 20, 16);
            let sges = [a.mr.sge(0, size)];
            a.send(&SendWr {
                opcode: send::WRITE,
                sges: &sges,
                rkey: b.mr.key,
                remote_addr: b.mr.iova,
                ..Default::default()
            });
            let (what, opcode) = if round % 2 == 0 { ("the SEND", send::SEND) } else { ("the WRITE_IMM", send::WRITE_IMM) };
            a.send(&SendWr::signaled(2, opcode).at(&b.mr, 0));
            success(world, &mut b, what);
            assert!(b.mr.read(0, size).iter().all(|byte| *byte == round + 1), "{what} came before the WRITE in front of it");
            success(world, &mut a, what);
        }
    }

    fn semantics_02_a_signalled_success_retires_all_before_it(world: &World) {
        let (mut a, b) = sides(world);
        let data = payload(1, 32);
        for round in 0..10u64 {
            for n in 0..50 {
                let flags = if n == 49 { wqe_flag::SIGNALED } else { 0 };
                a.send(&SendWr {
                    wr_id: round * 50 + n,
                    opcode: send::WRITE,
                    flags,
                    inline: Some(&data),
                    rkey: b.mr.key,
                    remote_addr: b.mr.iova + n * 32,
                    ..Default::default()
                });
            }
            let cqe = success(world, &mut a, "the signalled one");
            assert_eq!(cqe.wr_id, round * 50 + 49);
            assert_eq!(u64::from(cqe.wqe_index), round * 50 + 49);
            assert_eq!(a.qp.sq_retired, a.qp.sq_producer, "it retires all before it");
        }
        world.quiet();
        assert!(a.poll().is_none());
    }

    fn signal_all_signals_everything(world: &World) {
        let options = SideOptions { qp: QpOptions { signal_all: true, ..Default::default() }, ..Default::default() };
        let (mut a, b) = connected(world, &options, &Connection::default());
        for n in 0..20 {
            a.send(&SendWr { wr_id: n, opcode: send::WRITE, inline: Some(&[1]), rkey: b.mr.key, remote_addr: b.mr.iova, ..Default::default() });
        }
        for n in 0..20 {
            assert_eq!(success(world, &mut a, "each").wr_id, n);
        }
    }

    fn semantics_05_reads_beyond_the_limit_wait_and_do_not_fail(world: &World) {
        let connection = Connection { max_rd_atomic: 1, ..Default::default() };
        let (mut a, b) = connected(world, &big(), &connection);
        let data = payload(9, 1 << 20);
        b.mr.write(0, &data);
        for n in 0..32 {
            let sges = [a.mr.sge(n * 32_768, 32_768)];
            a.send(&SendWr::signaled(n as u64, send::READ).with_sges(&sges).at(&b.mr, n as u64 * 32_768));
        }
        for n in 0..32 {
            assert_eq!(success(world, &mut a, "a READ of many").wr_id, n);
        }
        assert_eq!(a.mr.read(0, 1 << 20), data);
    }

    fn semantics_03_a_fence_waits_for_the_reads_before_it(world: &World) {
        // A READ brings bytes that a fenced SEND then takes on: without the fence it would carry the old ones.
        let (mut a, mut b) = connected(world, &big(), &Connection::default());
        for round in 0..10u64 {
            let data = payload(round + 1, 500_000);
            b.mr.write(0, &data);
            a.mr.buffer.fill(0);
            b.recv(1, 1 << 20, 500_000);
            let sges = [a.mr.sge(0, 500_000)];
            a.send(&SendWr::signaled(1, send::READ).with_sges(&sges).at(&b.mr, 0));
            a.send(&SendWr { flags: wqe_flag::SIGNALED | wqe_flag::FENCE, ..SendWr::signaled(2, send::SEND).with_sges(&sges) });
            assert_eq!(success(world, &mut a, "the READ").wr_id, 1);
            assert_eq!(success(world, &mut a, "the fenced SEND").wr_id, 2);
            success(world, &mut b, "its receive");
            assert!(b.mr.read(1 << 20, 500_000) == data, "round {round}: the fenced SEND took the bytes before the READ brought them");
        }
    }

    fn semantics_12_a_message_of_no_bytes_asks_for_no_key(world: &World) {
        let (mut a, mut b) = sides(world);
        for opcode in [send::WRITE, send::READ] {
            let nowhere = SendWr { rkey: 0x00de_ad00, remote_addr: 0x1234, ..SendWr::signaled(1, opcode) };
            a.send(&nowhere);
            success(world, &mut a, "zero bytes, no key");
            let sges = [Sge { addr: 0x99, length: 0, lkey: 0x7777 }];
            a.send(&SendWr { sges: &sges, ..nowhere });
            success(world, &mut a, "an SGE of zero bytes");
        }
        b.qp.post_recv(3, &[]).expect("room");
        a.send(&SendWr::signaled(1, send::SEND));
        success(world, &mut a, "a SEND of nothing");
        let cqe = success(world, &mut b, "its receive");
        assert_eq!((cqe.wr_id, cqe.byte_len), (3, 0));
    }

    fn both_directions_at_once_with_every_operation(world: &World) {
        let (mut a, mut b) = connected(world, &big(), &Connection::default());
        let mut random = Random::new(11);
        for n in 0..64 {
            a.recv(1000 + n, 0, 8192);
            b.recv(1000 + n, 0, 8192);
        }
        let (mut posted, mut done, mut received) = ([0u64; 2], [0u64; 2], [0u64; 2]);
        while done != [2000, 2000] {
            for me in 0..2 {
                let (own, far) = if me == 0 { (&mut a, &b) } else { (&mut b, &a) };
                while posted[me] < 2000 && posted[me] - done[me] < 24 {
                    let len = random.below(8192) as usize;
                    let sges = [own.mr.sge(16_384 + random.below(4096) as usize, len)];
                    let opcode = random.pick(&[send::SEND, send::WRITE, send::READ, send::WRITE_IMM, send::SEND_IMM]);
                    own.send(&SendWr::signaled(posted[me], opcode).with_sges(&sges).at(&far.mr, 65_536));
                    posted[me] += 1;
                }
                while let Some(cqe) = own.poll() {
                    assert_eq!(cqe.status, wc::SUCCESS, "{cqe:?}");
                    if cqe.is_send() {
                        assert_eq!(cqe.wr_id, done[me]);
                        done[me] += 1;
                    } else {
                        received[me] += 1;
                        own.recv(cqe.wr_id, 0, 8192);
                    }
                }
            }
            world.step();
        }
        assert!(received[0] > 500 && received[1] > 500, "{received:?}");
        assert_eq!(a.node.counters().lost + b.node.counters().lost, 0);
    }

    fn semantics_32_every_cqe_names_its_qp(world: &World) {
        let options = SideOptions { cq_entries: 8192, mr_len: 256 << 10, ..Default::default() };
        let (mut a, b) = connected(world, &options, &Connection::default());
        let mut qps = Vec::new();
        for _ in 0..63 {
            let qa = a.node.create_qp(a.context, a.pd, a.cq.cqn, a.cq.cqn, &QpOptions::default()).expect("a QP");
            let qb = b.node.create_qp(b.context, b.pd, b.cq.cqn, b.cq.cqn, &QpOptions::default()).expect("a QP");
            conformance::side::connect((&a.node, &qa), (&b.node, &qb), &Connection::default());
            qps.push((qa, qb));
        }
        for round in 0..5u64 {
            for (n, (qa, _)) in qps.iter_mut().enumerate() {
                let sges = [a.mr.sge(n * 4096, 4000)];
                a.mr.write(n * 4096, &payload(round * 64 + n as u64, 4000));
                qa.post_send(&SendWr::signaled(n as u64, send::WRITE).with_sges(&sges).at(&b.mr, n as u64 * 4096)).expect("room");
            }
            let mut seen = [false; 63];
            for _ in 0..63 {
                let cqe = world.until("a CQE of any QP", || a.cq.poll());
                assert_eq!(cqe.status, wc::SUCCESS);
                let n = cqe.wr_id as usize;
                assert_eq!(cqe.qpn, qps[n].0.qpn, "the CQE names its QP");
                qps[n].0.retire(&cqe);
                assert!(!std::mem::replace(&mut seen[n], true), "one completion for each");
            }
            for n in 0..63 {
                assert_eq!(b.mr.read(n * 4096, 4000), payload(round * 64 + n as u64, 4000));
            }
        }
    }

    fn the_first_message_raises_comm_est_at_most_once(world: &World) {
        // Messages that come before RTS establish the connection (COMM_EST), once.
        let options = SideOptions::default();
        let connection = Connection::default();
        let mut a = Side::new(world.a(), &options);
        let mut b = Side::new(world.b(), &options);
        let c = &connection;
        b.node.modify_qp(b.context.handle, &c.init(b.qp.qpn)).expect("INIT");
        b.recv(1, 0, 100);
        b.recv(2, 0, 100);
        b.node.modify_qp(b.context.handle, &c.rtr(b.qp.qpn, 1, a.qp.qpn, a.node.gid)).expect("RTR");
        to_rts(&a.node, &a.qp, 0, (b.qp.qpn, b.node.gid), c);
        for n in 0..2 {
            a.send(&SendWr::signaled(n, send::SEND).with_inline(&[7; 10]));
            success(world, &mut a, "a SEND to a QP in RTR");
            success(world, &mut b, "a receive in RTR");
        }
        assert_eq!(b.state(), state::RTR);
        let established = b.node.events.asynchronous().iter().filter(|e| **e == (event::COMM_EST, b.qp.qpn)).count();
        assert!(established <= 1, "8: at most once");
        assert_eq!(established, 1, "the first message to a QP in RTR raises COMM_EST");
    }

    fn a_posted_queue_that_is_polled_costs_no_doorbell(world: &World) {
        let (mut a, b) = sides(world);
        a.send(&SendWr::signaled(0, send::WRITE).with_inline(&[1]).at(&b.mr, 0));
        success(world, &mut a, "the first");
        world.quiet();
        let asleep = a.node.bells.rings();
        a.send(&SendWr::signaled(0, send::WRITE).with_inline(&[1]).at(&b.mr, 0));
        assert_eq!(a.node.bells.rings(), asleep + 1, "a device that sleeps asks to be woken");
        world.step();
        let awake = a.node.bells.rings();
        for n in 0..10 {
            // The device has not slept since: these are seen without a doorbell.
            a.send(&SendWr::signaled(n, send::WRITE).with_inline(&[2]).at(&b.mr, 0));
        }
        assert_eq!(a.node.bells.rings(), awake, "a device that is at work does not ask to be woken");
        for _ in 0..11 {
            success(world, &mut a, "all of them");
        }
    }

    fn a_queue_wraps_many_times(world: &World) {
        let options = SideOptions {
            qp: QpOptions { sq_entries: 4, rq_entries: 2, ..Default::default() },
            cq_entries: 8,
            ..Default::default()
        };
        let (mut a, mut b) = connected(world, &options, &Connection::default());
        for n in 0..500u64 {
            b.recv(n, 0, 64);
            let data = payload(n, 40);
            a.send(&SendWr::signaled(n, send::SEND).with_inline(&data));
            assert_eq!(success(world, &mut a, "a SEND").wr_id, n);
            assert_eq!(success(world, &mut b, "a receive").wr_id, n);
            assert_eq!(b.mr.read(0, 40), data);
        }
    }

    fn queues_of_one_entry_work(world: &World) {
        let options = SideOptions {
            qp: QpOptions { sq_entries: 1, rq_entries: 1, ..Default::default() },
            cq_entries: 1,
            ..Default::default()
        };
        let (mut a, mut b) = connected(world, &options, &Connection::default());
        for n in 0..20u64 {
            b.recv(n, 0, 64);
            a.send(&SendWr::signaled(n, send::SEND).with_inline(&[9; 9]));
            assert_eq!(success(world, &mut a, "a SEND").wr_id, n);
            assert_eq!(success(world, &mut b, "a receive").wr_id, n);
        }
    }

    fn local_read_of_a_region_needs_no_right(world: &World) {
        let (mut a, mut b) = sides(world);
        let buffer = a.node.memory.scattered(8192);
        let data = payload(5, 5000);
        buffer.write(100, &data);
        let plain = a.node.reg_mr(a.context, a.pd, buffer, 100, 5000, 0).expect("a region with no rights");
        b.recv(1, 0, 5000);
        let sges = [plain.sge(0, 5000)];
        a.send(&SendWr::signaled(1, send::SEND).with_sges(&sges));
        success(world, &mut a, "a SEND from it");
        success(world, &mut b, "the receive");
        assert_eq!(b.mr.read(0, 5000), data);
        let _ = access::ALL;
    }
}
