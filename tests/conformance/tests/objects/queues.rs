//! Completion queues and queue pairs: which requests are refused, and where rings may lie.

use conformance::layout::{CreateCq, CreateQp, Status, send};
use conformance::memory::PAGE;
use conformance::node::QpOptions;
use conformance::random::payload;
use conformance::rings::SendWr;
use conformance::side::{Connection, Side, SideOptions, connect, success};

use super::loopback;

/// A ring in whole pages, its control block before it.
fn cq_body(entries: u32, pages: &[u64]) -> CreateCq {
    CreateCq {
        entries,
        vector: 0,
        buf_length: (pages.len() * PAGE) as u64,
        page_shift: 12,
        num_pages: pages.len() as u32,
        buf_offset: 0,
        ctrl_offset: 0,
        ring_offset: 128,
        pages: pages.to_vec(),
    }
}

/// What is wrong, and how to make it so.
type Change<T> = (&'static str, fn(&mut T));

#[test]
fn a_create_cq_out_of_range_is_invalid() {
    let (world, _watchdog) = loopback();
    let node = world.a();
    let limits = node.limits();
    let me = node.create_context().expect("a context");
    for entries in [0, 3, 5, 1 << 31, u32::MAX] {
        let buffer = node.memory.scattered(2 * PAGE);
        let create = cq_body(entries, &buffer.dma_pages());
        assert_eq!(
            node.create_cq_raw(me, &create, buffer).err(),
            Some(Status::Invalid),
            "{entries} entries"
        );
    }
    let too_many = (limits.max_cqe + 1)
        .next_power_of_two()
        .max(limits.max_cqe * 2);
    let buffer = node.memory.contiguous(128 + 64 * too_many as usize);
    let create = cq_body(too_many, &buffer.dma_pages());
    assert_eq!(
        node.create_cq_raw(me, &create, buffer).err(),
        Some(Status::Invalid),
        "more than max_cqe"
    );
    let changes: [Change<CreateCq>; 15] = [
        ("no pages", |c| (c.num_pages, c.pages) = (0, vec![])),
        ("a page less than the buffer", |c| {
            c.num_pages -= 1;
            c.pages.pop();
        }),
        ("more pages said than given", |c| c.num_pages += 1),
        ("more pages given than said", |c| c.pages.push(c.pages[0])),
        ("a length that is not whole pages", |c| c.buf_length -= 64),
        ("a length of 0", |c| c.buf_length = 0),
        ("a buffer too short for its ring", |c| c.buf_length -= 4096),
        ("pages of 2^11", |c| c.page_shift = 11),
        ("pages of 2^31", |c| c.page_shift = 31),
        ("an offset past the page", |c| c.buf_offset = 4096),
        ("a ring past the end", |c| c.ring_offset += 4096),
        ("a ring nobody can address", |c| {
            c.ring_offset = u64::MAX - 63
        }),
        ("a ring that is not aligned", |c| c.ring_offset += 4),
        ("a control block on the ring", |c| {
            c.ctrl_offset = c.ring_offset + 64
        }),
        ("a control block past the end", |c| {
            c.ctrl_offset = c.buf_length - 64
        }),
    ];
    for (what, change) in changes {
        let buffer = node.memory.scattered(2 * PAGE);
        let mut create = cq_body(62, &buffer.dma_pages());
        create.entries = 64;
        create.ring_offset = 128;
        change(&mut create);
        assert_eq!(
            node.create_cq_raw(me, &create, buffer).err(),
            Some(Status::Invalid),
            "{what}"
        );
    }
    let buffer = node.memory.scattered(2 * PAGE);
    let mut create = cq_body(64, &buffer.dma_pages());
    create.pages[1] = node.memory.dma_end();
    assert_eq!(
        node.create_cq_raw(me, &create, buffer).err(),
        Some(Status::BadAddress)
    );
}

#[test]
fn a_create_qp_out_of_range_is_invalid() {
    let (world, _watchdog) = loopback();
    let node = world.a();
    let side = Side::new(node, &SideOptions::default());
    let (me, pd, cqn) = (side.context, side.pd, side.cq.cqn);
    let changes: [Change<CreateQp>; 24] = [
        ("sq_entries not a power of two", |q| q.sq_entries = 3),
        ("sq_entries huge", |q| q.sq_entries = 1 << 31),
        ("rq_entries not a power of two", |q| q.rq_entries = 12),
        ("rq_entries huge", |q| q.rq_entries = 1 << 31),
        ("sq_stride 32", |q| q.sq_stride = 32),
        ("sq_stride 96", |q| q.sq_stride = 96),
        ("sq_stride 8192", |q| q.sq_stride = 8192),
        ("sq_stride 0", |q| q.sq_stride = 0),
        ("rq_stride 8", |q| q.rq_stride = 8),
        ("rq_stride 2048", |q| q.rq_stride = 2048),
        ("rq_stride 48", |q| q.rq_stride = 48),
        ("more SGEs than the stride holds", |q| q.max_send_sge = 5),
        ("more receive SGEs than the stride holds", |q| {
            q.max_recv_sge = 8
        }),
        ("SGEs that wrap", |q| q.max_send_sge = 0x1000_0000),
        ("receive SGEs that wrap", |q| q.max_recv_sge = 0x1000_0000),
        ("more inline than the stride holds", |q| q.max_inline = 65),
        ("inline that wraps", |q| q.max_inline = u32::MAX),
        ("a queue past the end", |q| q.sq_offset = q.buf_length),
        ("a queue nobody can address", |q| {
            q.rq_offset = u64::MAX - 127
        }),
        ("a queue that is not aligned", |q| q.sq_offset += 16),
        ("a control block past the end", |q| {
            q.ctrl_offset = q.buf_length - 128
        }),
        ("a control block that is not aligned", |q| q.ctrl_offset = 8),
        ("flags that there are not", |q| q.flags = 2),
        ("a buffer that is not whole pages", |q| q.buf_length += 1),
    ];
    for (what, change) in changes {
        let (mut create, buffer) = node.qp_layout(pd, cqn, cqn, &QpOptions::default());
        change(&mut create);
        assert_eq!(
            node.create_qp_raw(me, &create, buffer).err(),
            Some(Status::Invalid),
            "{what}: {create:?}"
        );
    }
    for (what, change) in [
        ("type 0", (|q| q.kind = 0) as fn(&mut CreateQp)),
        ("type 77", |q| q.kind = 77),
    ] {
        let (mut create, buffer) = node.qp_layout(pd, cqn, cqn, &QpOptions::default());
        change(&mut create);
        let result = node.create_qp_raw(me, &create, buffer).err();
        assert!(
            matches!(result, Some(Status::Invalid | Status::Unsupported)),
            "{what}: {result:?}"
        );
    }
    for (what, pd, send, recv) in [
        ("PD", 0x7fff_0000, cqn, cqn),
        ("send CQ", pd, 0x7fff_0000, cqn),
        ("receive CQ", pd, cqn, 0x7fff_0000),
    ] {
        let result = node
            .create_qp(me, pd, send, recv, &QpOptions::default())
            .err();
        assert_eq!(result, Some(Status::NotFound), "{what}");
    }
    // One-sided queues are queues.
    for (sq, rq) in [(0, 16), (16, 0), (0, 0)] {
        let options = QpOptions {
            sq_entries: sq,
            rq_entries: rq,
            ..Default::default()
        };
        node.create_qp(me, pd, cqn, cqn, &options)
            .unwrap_or_else(|status| panic!("{sq} and {rq} entries: {status:?}"));
    }
}

#[test]
fn rings_may_lie_anywhere_in_pages_of_any_size() {
    let (world, _watchdog) = loopback();
    let node = world.a();
    let context = node.create_context().expect("a context");
    let pd = node.create_pd(context).expect("a PD");
    // A CQ at the end of two pages of 64 KiB, control block after the ring.
    let buffer = node.memory.aligned(128 << 10, 16);
    let pages: Vec<u64> = buffer.dma_pages().iter().step_by(16).copied().collect();
    let create = CreateCq {
        entries: 64,
        vector: 0,
        buf_length: 64 << 10,
        page_shift: 16,
        num_pages: 2,
        buf_offset: 60 << 10,
        ctrl_offset: (64 << 10) - 128,
        ring_offset: 64,
        pages,
    };
    let cq = node.create_cq_raw(context, &create, buffer).expect("a CQ");
    let options = QpOptions::default();
    let (layout, _) = node.qp_layout(pd, cq.cqn, cq.cqn, &options);
    let buffer = node.memory.aligned(64 << 10, 16);
    let mut create = layout.clone();
    create.page_shift = 16;
    create.num_pages = 1;
    create.pages = vec![buffer.dma_pages()[0]];
    create.buf_offset = 8192;
    create.rq_offset = 0;
    create.ctrl_offset = u64::from(create.rq_entries * create.rq_stride);
    create.sq_offset = (create.ctrl_offset + 256).next_multiple_of(u64::from(create.sq_stride));
    create.buf_length =
        (create.sq_offset + u64::from(create.sq_entries * create.sq_stride)).next_multiple_of(4096);
    let qp = node.create_qp_raw(context, &create, buffer).expect("a QP");
    let mr = node.mr(context, pd, 8192);
    let mut odd = Side {
        node: node.clone(),
        context,
        pd,
        cq,
        qp,
        mr,
    };
    let mut plain = Side::new(world.b(), &SideOptions::default());
    connect(
        (&odd.node, &odd.qp),
        (&plain.node, &plain.qp),
        &Connection::default(),
    );
    for n in 0..200u64 {
        let data = payload(n, 48);
        plain.recv(n, 0, 64);
        odd.recv(n, 64, 64);
        odd.send(&SendWr::signaled(n, send::SEND).with_inline(&data));
        success(&world, &mut odd, "sent");
        success(&world, &mut plain, "received");
        assert_eq!(plain.mr.read(0, 48), data);
        plain.send(&SendWr::signaled(n, send::SEND).with_inline(&data));
        success(&world, &mut plain, "sent back");
        success(&world, &mut odd, "received back");
        assert_eq!(odd.mr.read(64, 48), data);
    }
}
