//! Shared receive queues: which requests are refused.

use conformance::layout::{CreateSrq, ModifySrq, QpAttributes, Status, mask, srq_mask, state};
use conformance::node::QpOptions;
use conformance::side::{Side, SideOptions};
use conformance::world::{Kind, Options, World};
use devices::rdma::wire::feature;

use super::loopback;

/// What is wrong, and how to make it so.
type Change<T> = (&'static str, fn(&mut T));

#[test]
fn a_create_srq_out_of_range_is_invalid() {
    let (world, _watchdog) = loopback();
    let node = world.a();
    let limits = node.limits();
    assert!(
        limits.max_srq >= 1024 && limits.max_srq_wr >= 4096,
        "{limits:?}"
    );
    assert!(limits.max_srq_sge >= 16, "{limits:?}");
    let me = node.create_context().expect("a context");
    let pd = node.create_pd(me).expect("a PD");
    let create = || {
        let (ring, buffer) = node.srq_buffer(16, 64);
        let create = CreateSrq {
            pd,
            kind: 0,
            cq: 0,
            xrcd: 0,
            entries: 16,
            stride: 64,
            max_sge: 3,
            ring,
        };
        (create, buffer)
    };
    let changes: [Change<CreateSrq>; 22] = [
        ("type 2", |s| s.kind = 2),
        ("a CQ", |s| s.cq = 1),
        ("a domain", |s| s.xrcd = 1),
        ("no entries", |s| s.entries = 0),
        ("entries not a power of two", |s| s.entries = 12),
        ("entries huge", |s| s.entries = 1 << 31),
        ("stride 8", |s| (s.stride, s.max_sge) = (8, 0)),
        ("stride 48", |s| (s.stride, s.max_sge) = (48, 1)),
        ("stride 2048", |s| s.stride = 2048),
        ("more SGEs than the stride holds", |s| s.max_sge = 4),
        ("SGEs that wrap", |s| s.max_sge = 0x1000_0000),
        ("no pages", |s| {
            (s.ring.num_pages, s.ring.pages) = (0, vec![])
        }),
        ("more pages said than given", |s| s.ring.num_pages += 1),
        ("a length of 0", |s| s.ring.buf_length = 0),
        ("a length that is not whole pages", |s| {
            s.ring.buf_length -= 64
        }),
        ("an offset past the page", |s| s.ring.buf_offset = 4096),
        ("pages of 2^11", |s| s.ring.page_shift = 11),
        ("a control block past the end", |s| {
            s.ring.ctrl_offset = s.ring.buf_length - 64
        }),
        ("a control block that is not aligned", |s| {
            s.ring.ctrl_offset = 8
        }),
        ("a control block on the ring", |s| {
            s.ring.ctrl_offset = s.ring.ring_offset + 64
        }),
        ("a ring past the end", |s| {
            s.ring.ring_offset = s.ring.buf_length - 64
        }),
        ("a ring that is not aligned", |s| s.ring.ring_offset += 16),
    ];
    for (what, change) in changes {
        let (mut create, buffer) = create();
        change(&mut create);
        let result = node.create_srq_raw(me, &create, buffer).err();
        assert_eq!(result, Some(Status::Invalid), "{what}: {create:?}");
    }
    let (mut outside, buffer) = create();
    outside.ring.pages[0] = node.memory.dma_end();
    assert_eq!(
        node.create_srq_raw(me, &outside, buffer).err(),
        Some(Status::BadAddress)
    );
    let (mut nowhere, buffer) = create();
    nowhere.pd = 0x7fff_0000;
    assert_eq!(
        node.create_srq_raw(me, &nowhere, buffer).err(),
        Some(Status::NotFound)
    );
    // As much as the device says, and no more.
    let (most, sge) = (limits.max_srq_wr, limits.max_srq_sge);
    node.create_srq(me, pd, most, 1)
        .expect("as deep as it says");
    node.create_srq(me, pd, 1, sge).expect("as wide as it says");
    assert_eq!(
        node.create_srq(me, pd, 2 * most, 1).err(),
        Some(Status::Invalid)
    );
    assert_eq!(
        node.create_srq(me, pd, 1, sge + 1).err(),
        Some(Status::Invalid)
    );
    world
        .a()
        .host
        .with_device(|device| assert_eq!(device.objects().srqs.len(), 2));
}

#[test]
fn a_modify_srq_out_of_range_is_invalid_and_changes_nothing() {
    let (world, _watchdog) = loopback();
    let node = world.a();
    let me = node.create_context().expect("a context");
    let pd = node.create_pd(me).expect("a PD");
    let srq = node.create_srq(me, pd, 16, 3).expect("an SRQ");
    node.limit_srq(&srq, 0).expect("a limit of 0");
    let changes: [Change<ModifySrq>; 9] = [
        ("mask 4", |m| m.mask = 7),
        ("a limit beyond the new ring", |m| m.limit = 9),
        ("a limit without its bit", |m| m.mask = srq_mask::MAX_WR),
        ("a buffer without its bit", |m| m.mask = srq_mask::LIMIT),
        ("entries not a power of two", |m| m.entries = 7),
        ("no entries", |m| m.entries = 0),
        ("no pages", |m| {
            (m.ring.num_pages, m.ring.pages) = (0, vec![])
        }),
        ("a ring past the end", |m| {
            m.ring.ring_offset = m.ring.buf_length - 64
        }),
        ("a control block on the ring", |m| {
            m.ring.ctrl_offset = m.ring.ring_offset
        }),
    ];
    let before = node.query_srq(me, srq.srqn).expect("QUERY_SRQ");
    for (what, change) in changes {
        let (ring, _buffer) = node.srq_buffer(8, 64);
        let mut modify = ModifySrq {
            srq: srq.srqn,
            mask: 3,
            limit: 2,
            entries: 8,
            ring,
        };
        change(&mut modify);
        assert_eq!(
            node.modify_srq(me, &modify),
            Err(Status::Invalid),
            "{what}: {modify:?}"
        );
        assert_eq!(node.query_srq(me, srq.srqn), Ok(before), "{what}");
    }
    assert_eq!(node.limit_srq(&srq, 17), Err(Status::Invalid));
    let gone = srq.srqn;
    node.destroy_srq(me, gone).expect("DESTROY_SRQ");
    assert_eq!(node.limit_srq(&srq, 0), Err(Status::NotFound));
    assert_eq!(node.query_srq(me, gone).err(), Some(Status::NotFound));
    assert_eq!(node.destroy_srq(me, gone), Err(Status::NotFound));
}

#[test]
fn whose_it_is_and_who_refers_to_it_is_checked() {
    let (world, _watchdog) = loopback();
    let node = world.a();
    let (mine, other) = (
        Side::new(node, &SideOptions::default()),
        Side::new(node, &SideOptions::default()),
    );
    let me = mine.context;
    let denied = Some(Status::Denied);
    assert_eq!(node.create_srq(me, other.pd, 4, 1).err(), denied);
    let theirs = node
        .create_srq(other.context, other.pd, 4, 1)
        .expect("an SRQ");
    assert_eq!(node.query_srq(me, theirs.srqn).err(), denied);
    assert_eq!(node.destroy_srq(me, theirs.srqn).err(), denied);
    let limit = ModifySrq {
        srq: theirs.srqn,
        mask: srq_mask::LIMIT,
        ..Default::default()
    };
    assert_eq!(node.modify_srq(me, &limit).err(), denied);
    let options = QpOptions {
        srq: theirs.srqn,
        ..Default::default()
    };
    let cqn = mine.cq.cqn;
    assert_eq!(
        node.create_qp(me, mine.pd, cqn, cqn, &options).err(),
        denied
    );
    let options = QpOptions {
        srq: 0x7f_0000,
        ..Default::default()
    };
    assert_eq!(
        node.create_qp(me, mine.pd, cqn, cqn, &options).err(),
        Some(Status::NotFound)
    );
    // One or the other.
    let ours = node.create_srq(me, mine.pd, 4, 1).expect("an SRQ");
    assert!(ours.srqn > 0 && ours.srqn < 1 << 24, "4.12: 24 bits");
    let (mut create, buffer) = node.qp_layout(mine.pd, cqn, cqn, &QpOptions::default());
    create.srq = ours.srqn;
    assert_eq!(
        node.create_qp_raw(me, &create, buffer).err(),
        Some(Status::Invalid)
    );
    let options = QpOptions {
        srq: ours.srqn,
        ..Default::default()
    };
    let qp = node
        .create_qp(me, mine.pd, cqn, cqn, &options)
        .expect("a QP");
    assert_eq!(node.destroy_srq(me, ours.srqn), Err(Status::Busy));
    let reset = QpAttributes {
        qpn: qp.qpn,
        mask: mask::STATE,
        state: state::RESET,
        ..Default::default()
    };
    node.modify_qp(me.handle, &reset).expect("RESET");
    assert_eq!(node.destroy_srq(me, ours.srqn), Err(Status::Busy));
    node.destroy_qp(me, qp.qpn).expect("DESTROY_QP");
    node.destroy_srq(me, ours.srqn).expect("DESTROY_SRQ");
}

#[test]
fn without_the_feature_there_are_none() {
    let options = Options {
        features: feature::USER_DOORBELL,
        ..Default::default()
    };
    let world = World::with(Kind::Loopback, &options);
    let node = world.a();
    let limits = node.limits();
    assert_eq!(
        (limits.max_srq, limits.max_srq_wr, limits.max_srq_sge),
        (0, 0, 0)
    );
    let side = Side::new(node, &SideOptions::default());
    let me = side.context;
    let unsupported = Some(Status::Unsupported);
    assert_eq!(node.create_srq(me, side.pd, 4, 1).err(), unsupported);
    assert_eq!(
        node.modify_srq(me, &ModifySrq::default()).err(),
        unsupported
    );
    assert_eq!(node.query_srq(me, 1).err(), unsupported);
    assert_eq!(node.destroy_srq(me, 1).err(), unsupported);
    let options = QpOptions {
        srq: 1,
        ..Default::default()
    };
    let cqn = side.cq.cqn;
    assert_eq!(
        node.create_qp(me, side.pd, cqn, cqn, &options).err(),
        unsupported
    );
}
