//! What idle objects cost the host. The figures are printed; the bounds are what the project can live with.

use conformance::counting::{Counting, live};
use conformance::layout::{RegMr, access, command};
use conformance::node::{KERNEL, QpOptions};
use conformance::side::{Connection, connect};
use conformance::world::{Kind, World};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const COUNT: usize = 1000;

/// Host bytes for each of [`COUNT`] runs of `make`.
fn cost(what: &str, most: usize, mut make: impl FnMut()) {
    make();
    let before = live();
    for _ in 0..COUNT {
        make();
    }
    let each = (live() - before) / COUNT;
    println!("{what}: {each} bytes of host memory");
    assert!(each <= most, "{what}: {each} bytes, at most {most} wanted");
}

#[test]
fn idle_objects_are_small() {
    let world = World::new(Kind::Loopback);
    let node = world.a();
    let pd = node.create_pd(KERNEL).expect("a PD");
    // All objects share the same guest memory: what grows is the device's.
    let cq = node.create_cq(KERNEL, 4096, 0).expect("a CQ");
    let buffer = node.memory.contiguous(65 * 4096);
    let ring = conformance::layout::CreateCq {
        entries: 4096,
        vector: 0,
        buf_length: 65 * 4096,
        page_shift: 12,
        num_pages: 65,
        buf_offset: 0,
        ctrl_offset: 0,
        ring_offset: 128,
        pages: buffer.dma_pages(),
    }
    .encode();
    cost("a CQ of 4,096 entries in 65 pages in a row", 1024, || {
        node.command(command::CREATE_CQ, 0, &ring)
            .expect("CREATE_CQ");
    });
    let options = QpOptions {
        sq_entries: 4096,
        rq_entries: 4096,
        scattered: false,
        ..Default::default()
    };
    let (create, _buffer) = node.qp_layout(pd, cq.cqn, cq.cqn, &options);
    let create = create.encode();
    cost("a QP with queues of 4,096 entries", 4096, || {
        node.command(command::CREATE_QP, 0, &create)
            .expect("CREATE_QP");
    });
    let one = node.memory.contiguous(4096);
    let mut reg = RegMr {
        pd,
        access: access::ALL,
        iova: 0,
        length: 4096,
        offset: 0,
        page_shift: 12,
        flags: 0,
        total_entries: 1,
        num_entries: 1,
        entries: one.dma_pages(),
    };
    let small = reg.encode();
    cost("a region of a page", 512, || {
        node.command(command::REG_MR, 0, &small).expect("REG_MR");
    });
    let scattered = node.memory.scattered(256 * 4096);
    (reg.length, reg.total_entries, reg.num_entries, reg.entries) =
        (256 * 4096, 256, 256, scattered.dma_pages());
    let large = reg.encode();
    cost("a region of 256 scattered pages", 256 * 16 + 512, || {
        node.command(command::REG_MR, 0, &large).expect("REG_MR");
    });
    // A connected pair that is idle.
    let small = QpOptions {
        sq_entries: 2,
        rq_entries: 2,
        scattered: false,
        ..Default::default()
    };
    let (a, b) = (
        node.create_qp(KERNEL, pd, cq.cqn, cq.cqn, &small)
            .expect("a QP"),
        node.create_qp(KERNEL, pd, cq.cqn, cq.cqn, &small)
            .expect("a QP"),
    );
    let before = live();
    connect((node, &a), (node, &b), &Connection::default());
    let grown = live() - before;
    println!("connecting a pair of QPs: {grown} bytes of host memory");
    assert!(grown < 4096);
}
