//! Messages cross the whole device, both sides of it, without a single allocation once its buffers have grown.

use conformance::counting::{Counting, allocations};
use conformance::layout::{DatagramAddress, qp_type, send};
use conformance::node::QpOptions;
use conformance::on_every_fabric;
use conformance::rings::SendWr;
use conformance::side::{Connection, Side, SideOptions, connect, connected};
use conformance::srq::Srq;
use conformance::world::World;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Messages at a time.
const BATCH: u64 = 32;

/// Sends a batch of each operation and waits for all completions of both sides.
fn batch(world: &World, a: &mut Side, b: &mut Side, size: usize) {
    for opcode in [send::WRITE, send::SEND, send::READ, send::FETCH_AND_ADD] {
        let sges = [if opcode == send::FETCH_AND_ADD {
            a.mr.sge(0, 8)
        } else {
            a.mr.sge(8, size)
        }];
        for wr_id in 0..BATCH {
            if opcode == send::SEND {
                b.recv(wr_id, 8, size);
            }
            a.send(
                &SendWr::signaled(wr_id, opcode)
                    .with_sges(&sges)
                    .at(&b.mr, 0),
            );
        }
        let (mut sent, mut received) = (0, 0);
        let wanted = if opcode == send::SEND { BATCH } else { 0 };
        while sent < BATCH || received < wanted {
            world.step();
            for (side, count) in [(&mut *a, &mut sent), (&mut *b, &mut received)] {
                while let Some(cqe) = side.poll() {
                    assert_eq!(cqe.status, 0);
                    *count += 1;
                }
            }
        }
    }
}

/// SENDs into a shared receive queue, which runs empty on the way.
fn shared(world: &World, a: &mut Side, b: &mut Side, srq: &mut Srq) {
    let sges = [a.mr.sge(8, 64)];
    for wr_id in 0..BATCH {
        a.send(&SendWr::signaled(wr_id, send::SEND).with_sges(&sges));
    }
    let (mut sent, mut received) = (0, 0);
    while sent < BATCH || received < BATCH {
        world.step();
        while srq.left() < 8 {
            let sges = [b.mr.sge(8, 64)];
            srq.post(1, &sges).expect("room");
        }
        for (side, count) in [(&mut *a, &mut sent), (&mut *b, &mut received)] {
            while let Some(cqe) = side.poll() {
                assert_eq!(cqe.status, 0);
                *count += 1;
            }
        }
    }
}

/// SENDs of UC, or datagrams, as many as there are receives for.
fn unacknowledged(world: &World, a: &mut Side, b: &mut Side, size: usize) {
    let header = if b.qp.kind == qp_type::UD { 40 } else { 0 };
    let datagram = (header > 0).then(|| DatagramAddress {
        dest_qpn: b.qp.qpn,
        qkey: Connection::default().qkey,
        dgid: b.node.gid,
        ..Default::default()
    });
    let sges = [a.mr.sge(8, size)];
    for wr_id in 0..BATCH {
        b.recv(wr_id, 8, header + size);
        a.send(&SendWr {
            datagram,
            ..SendWr::signaled(wr_id, send::SEND).with_sges(&sges)
        });
    }
    let mut left = 2 * BATCH;
    while left > 0 {
        world.step();
        for side in [&mut *a, &mut *b] {
            while let Some(cqe) = side.poll() {
                assert_eq!(cqe.status, 0);
                left -= 1;
            }
        }
    }
}

on_every_fabric! {
    fn nothing_is_allocated_for_a_message_that_nobody_acknowledges(world: &World) {
        for (kind, size) in [(qp_type::UC, 10_000), (qp_type::UD, 64), (qp_type::UD, 4096)] {
            let qp = QpOptions { kind, ..Default::default() };
            let options = SideOptions { qp, ..Default::default() };
            let (mut a, mut b) = connected(world, &options, &Connection::default());
            world.settle();
            for _ in 0..20 {
                unacknowledged(world, &mut a, &mut b, size);
            }
            let before = allocations();
            for _ in 0..20 {
                unacknowledged(world, &mut a, &mut b, size);
            }
            assert_eq!(allocations() - before, 0, "QP type {kind}, {size} bytes");
        }
    }

    fn nothing_is_allocated_for_a_message_to_a_shared_queue(world: &World) {
        let mut a = Side::new(world.a(), &SideOptions::default());
        let mut b = Side::new(world.b(), &SideOptions::default());
        let mut srq = b.node.create_srq(b.context, b.pd, 16, 1).expect("an SRQ");
        let options = QpOptions { srq: srq.srqn, ..Default::default() };
        b.qp = b.node.create_qp(b.context, b.pd, b.cq.cqn, b.cq.cqn, &options).expect("a QP");
        connect((&a.node, &a.qp), (&b.node, &b.qp), &Connection::default());
        for _ in 0..40 {
            shared(world, &mut a, &mut b, &mut srq);
        }
        let before = allocations();
        for _ in 0..40 {
            shared(world, &mut a, &mut b, &mut srq);
        }
        assert_eq!(allocations() - before, 0);
    }

    fn nothing_is_allocated_for_a_message(world: &World) {
        let (mut a, mut b) = connected(world, &SideOptions::default(), &Connection::default());
        for size in [64, 10_000] {
            for _ in 0..20 {
                batch(world, &mut a, &mut b, size);
            }
            let before = allocations();
            assert_ne!(before, 0, "the allocator counts");
            for _ in 0..20 {
                batch(world, &mut a, &mut b, size);
            }
            let made = allocations() - before;
            assert_eq!(made, 0, "allocations for {} messages of {size} bytes", 20 * 4 * BATCH);
        }
    }
}
