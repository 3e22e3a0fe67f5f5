//! Commands and objects: statuses, owners, limits, the state table, and every way to describe memory.

use std::collections::HashSet;
use std::time::Duration;

use conformance::layout::{
    Body, CreateCq, MR_EXTENTS, MR_MORE, QpAttributes, RegMr, Status, access, command, le32, le64,
    mask, request, send, state, wc, wqe_flag,
};
use conformance::memory::PAGE;
use conformance::node::{Context, KERNEL, Mr, Node, QpOptions};
use conformance::random::payload;
use conformance::rings::SendWr;
use conformance::side::{
    Connection, Side, SideOptions, connect, connected, sides, success, to_state,
};
use conformance::watchdog::Watchdog;
use conformance::world::{Kind, World};

fn loopback() -> (World, Watchdog) {
    (
        World::new(Kind::Loopback),
        Watchdog::new("objects", Duration::from_secs(120)),
    )
}

#[test]
fn the_device_describes_itself() {
    let (world, _watchdog) = loopback();
    let node = world.a();
    let limits = node.limits();
    assert_ne!(limits.node_guid, 0);
    assert_ne!(limits.sys_image_guid, 0);
    assert_ne!(limits.vendor_id, 0);
    assert!(limits.max_pkeys >= 1);
    assert_ne!(limits.page_size_cap & 1 << 12, 0);
    // What the project promises.
    assert!(limits.max_qp >= 1024 && limits.max_cq >= 1024, "{limits:?}");
    assert!(
        limits.max_send_wr >= 4096 && limits.max_recv_wr >= 4096,
        "{limits:?}"
    );
    assert!(
        limits.max_cqe >= 65_536 && limits.max_mr >= 16_384,
        "{limits:?}"
    );
    assert!(
        limits.max_send_sge >= 16 && limits.max_recv_sge >= 16,
        "{limits:?}"
    );
    assert!(limits.max_msg_size >= 1 << 31, "{limits:?}");
    let port = node
        .command(command::QUERY_PORT, 0, &1u32.to_le_bytes())
        .expect("QUERY_PORT");
    assert_eq!(port.len(), 24);
    assert_eq!(
        (port[0], port[1], port[2]),
        (4, 5, 5),
        "4.2: active, link up, MTU 4096"
    );
    assert_eq!(le32(&port, 8), limits.max_msg_size);
    assert_eq!(le32(&port, 12), limits.max_gids);
    assert_eq!(le32(&port, 16), limits.max_pkeys);
    for bad in [0u32, 2, u32::MAX] {
        assert_eq!(
            node.command(command::QUERY_PORT, 0, &bad.to_le_bytes()),
            Err(Status::Invalid),
            "port {bad}"
        );
    }
}

#[test]
fn malformed_commands_are_answered_and_change_nothing() {
    let (world, _watchdog) = loopback();
    let node = world.a();
    let status = |reply: &[u8]| (reply.len() >= 16).then(|| le32(reply, 0));
    for opcode in command::ALL {
        // Too short and too long bodies; the length field lying either way.
        for len in [0usize, 1, 3, 7, 9, 12, 47, 49, 71, 73, 103] {
            let takes_none = [
                command::QUERY_DEVICE,
                command::QUERY_COUNTERS,
                command::CREATE_CONTEXT,
                command::CREATE_PD,
            ];
            if len == 0 && takes_none.contains(&opcode) {
                continue;
            }
            let bytes = request(opcode, 0, 7, &vec![0xff; len]);
            let reply = node.raw_command(&bytes, 4096);
            let code = status(&reply).expect("an answer");
            assert_ne!(code, 0, "opcode {opcode:#x} with {len} bytes of nonsense");
            assert_eq!(le64(&reply, 8), 7);
        }
        for lie in [0u32, 1, 23, 25, 1 << 20, u32::MAX] {
            let mut bytes = request(opcode, 0, 7, &[]);
            bytes[4..8].copy_from_slice(&lie.to_le_bytes());
            let reply = node.raw_command(&bytes, 4096);
            assert_eq!(
                status(&reply),
                Some(Status::Invalid as u32),
                "opcode {opcode:#x}, length {lie}"
            );
        }
        for reserved in [2, 12] {
            let mut bytes = request(opcode, 0, 7, &[0; 8]);
            bytes[reserved] = 1;
            let reply = node.raw_command(&bytes, 4096);
            assert_eq!(
                status(&reply),
                Some(Status::Invalid as u32),
                "opcode {opcode:#x}: reserved field set"
            );
        }
    }
    for opcode in [
        0u16, 4, 0x12, 0x22, 0x44, 0x52, 0x53, 0x70, 0x80, 0x90, 0xa0, 0xb0, 0xffff,
    ] {
        assert_eq!(
            node.command(opcode, 0, &[0; 8]),
            Err(Status::Unsupported),
            "opcode {opcode:#x}"
        );
    }
    // Less than a header.
    for len in 0..24 {
        let reply = node.raw_command(&request(command::CREATE_PD, 0, 0, &[])[..len], 4096);
        assert!(
            reply.is_empty() || status(&reply) == Some(Status::Invalid as u32),
            "{len} bytes"
        );
    }
    // No room for the reply.
    let before = node.limits().max_pd;
    for room in 0..24 {
        let reply = node.raw_command(&request(command::CREATE_PD, 0, 9, &[]), room);
        assert!(reply.len() <= room, "a reply longer than its buffer");
        if room >= 16 {
            assert_eq!(
                status(&reply),
                Some(Status::Invalid as u32),
                "{room} bytes of room"
            );
            assert_eq!(le64(&reply, 8), 9);
        }
    }
    assert_eq!(node.limits().max_pd, before);
    let reply = node.raw_command(&request(command::CREATE_PD, 0, 9, &[]), 24);
    assert_eq!(status(&reply), Some(0), "exactly enough room");
}

#[test]
fn every_reference_across_contexts_is_denied() {
    let (world, _watchdog) = loopback();
    let node = world.a();
    let (mine, other) = sides(&world);
    let me = mine.context;
    assert_ne!(me.handle, 0);
    assert_ne!(me.page, other.context.page);
    let denied = Some(Status::Denied);
    assert_eq!(node.destroy_pd(me, other.pd).err(), denied);
    assert_eq!(node.dereg_mr(me, other.mr.key).err(), denied);
    assert_eq!(node.destroy_cq(me, other.cq.cqn).err(), denied);
    assert_eq!(node.destroy_qp(me, other.qp.qpn).err(), denied);
    assert_eq!(node.query_qp(me.handle, other.qp.qpn).err(), denied);
    let attributes = QpAttributes {
        qpn: other.qp.qpn,
        mask: mask::STATE,
        state: state::ERR,
        ..Default::default()
    };
    assert_eq!(node.modify_qp(me.handle, &attributes).err(), denied);
    let options = QpOptions::default();
    assert_eq!(
        node.create_qp(me, other.pd, mine.cq.cqn, mine.cq.cqn, &options)
            .err(),
        denied
    );
    assert_eq!(
        node.create_qp(me, mine.pd, other.cq.cqn, mine.cq.cqn, &options)
            .err(),
        denied
    );
    assert_eq!(
        node.create_qp(me, mine.pd, mine.cq.cqn, other.cq.cqn, &options)
            .err(),
        denied
    );
    let buffer = node.memory.scattered(4096);
    assert_eq!(node.reg_mr(me, other.pd, buffer, 0, 4096, 0).err(), denied);
    // Only the kernel's to ask.
    assert_eq!(
        node.command(command::CREATE_CONTEXT, me.handle, &[]),
        Err(Status::Denied)
    );
    let body = Body::new().u32(other.context.handle).u32(0).0;
    assert_eq!(
        node.command(command::DESTROY_CONTEXT, me.handle, &body),
        Err(Status::Denied)
    );
    assert_eq!(
        node.command(command::DEL_GID, me.handle, &[0; 8]),
        Err(Status::Denied)
    );
    let mut gid = vec![5, 0, 0, 0, 2, 0, 0xff, 0xff];
    gid.extend_from_slice(&[0xfe; 16]);
    gid.extend_from_slice(&[0; 8]);
    assert_eq!(
        node.command(command::ADD_GID, me.handle, &gid),
        Err(Status::Denied)
    );
    // A context that there is not.
    for nobody in [
        Context {
            handle: 0x7fff_fff1,
            page: 0,
        },
        Context {
            handle: me.handle + 0x0010_0000,
            page: 0,
        },
    ] {
        assert_eq!(node.create_pd(nobody).err(), Some(Status::NotFound));
    }
    assert_eq!(
        (mine.state(), other.state()),
        (state::RTS, state::RTS),
        "nothing changed"
    );
}

#[test]
fn objects_that_are_in_use_are_busy() {
    let (world, _watchdog) = loopback();
    let node = world.a();
    let (mine, _other) = sides(&world);
    let me = mine.context;
    assert_eq!(node.destroy_cq(me, mine.cq.cqn), Err(Status::Busy));
    assert_eq!(node.destroy_pd(me, mine.pd), Err(Status::Busy));
    node.destroy_qp(me, mine.qp.qpn).expect("DESTROY_QP");
    assert_eq!(
        node.destroy_pd(me, mine.pd),
        Err(Status::Busy),
        "a region is left"
    );
    node.destroy_cq(me, mine.cq.cqn).expect("DESTROY_CQ");
    node.dereg_mr(me, mine.mr.key).expect("DEREG_MR");
    node.destroy_pd(me, mine.pd).expect("DESTROY_PD");
    for result in [
        node.destroy_pd(me, mine.pd),
        node.dereg_mr(me, mine.mr.key),
        node.destroy_cq(me, mine.cq.cqn),
        node.destroy_qp(me, mine.qp.qpn),
    ] {
        assert_eq!(result, Err(Status::NotFound));
    }
}

#[test]
fn handles_are_not_given_out_again_at_once() {
    let (world, _watchdog) = loopback();
    let node = world.a();
    let context = node.create_context().expect("a context");
    let pd = node.create_pd(context).expect("a PD");
    let cq = node.create_cq(context, 4, 0).expect("a CQ");
    let mut seen = [
        HashSet::new(),
        HashSet::new(),
        HashSet::new(),
        HashSet::new(),
    ];
    for round in 0..16 {
        let p = node.create_pd(context).expect("a PD");
        let m = node.mr(context, pd, 4096);
        let c = node.create_cq(context, 4, 0).expect("a CQ");
        let q = node
            .create_qp(
                context,
                pd,
                cq.cqn,
                cq.cqn,
                &QpOptions {
                    sq_entries: 1,
                    rq_entries: 1,
                    ..Default::default()
                },
            )
            .expect("a QP");
        assert!(
            q.qpn > 1 && q.qpn < 1 << 24,
            "4.7: QPNs have 24 bits, and 0 and 1 are special"
        );
        for (set, handle) in seen.iter_mut().zip([p, m.key, c.cqn, q.qpn]) {
            assert!(
                set.insert(handle),
                "round {round}: handle {handle:#x} came back at once"
            );
        }
        node.destroy_qp(context, q.qpn).expect("DESTROY_QP");
        node.destroy_cq(context, c.cqn).expect("DESTROY_CQ");
        node.dereg_mr(context, m.key).expect("DEREG_MR");
        node.destroy_pd(context, p).expect("DESTROY_PD");
    }
}

#[test]
fn bodies_out_of_range_are_invalid() {
    let (world, _watchdog) = loopback();
    let node = world.a();
    let limits = node.limits();
    let side = Side::new(node, &SideOptions::default());
    let (me, pd, cqn) = (side.context, side.pd, side.cq.cqn);
    // CQs.
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
    type Change<T> = (&'static str, fn(&mut T));
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
    // QPs.
    let changes: [Change<conformance::layout::CreateQp>; 24] = [
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
        (
            "type 0",
            (|q| q.kind = 0) as fn(&mut conformance::layout::CreateQp),
        ),
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
    for kind in [1, 3, 4, 9, 10] {
        let (mut create, buffer) = node.qp_layout(pd, cqn, cqn, &QpOptions::default());
        create.kind = kind;
        assert_eq!(
            node.create_qp_raw(me, &create, buffer).err(),
            Some(Status::Unsupported),
            "type {kind} was not negotiated"
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
        odd.send(&SendWr {
            wr_id: n,
            opcode: send::SEND,
            flags: wqe_flag::SIGNALED,
            inline: Some(&data),
            ..Default::default()
        });
        success(&world, &mut odd, "sent");
        success(&world, &mut plain, "received");
        assert_eq!(plain.mr.read(0, 48), data);
        plain.send(&SendWr {
            wr_id: n,
            opcode: send::SEND,
            flags: wqe_flag::SIGNALED,
            inline: Some(&data),
            ..Default::default()
        });
        success(&world, &mut plain, "sent back");
        success(&world, &mut odd, "received back");
        assert_eq!(odd.mr.read(64, 48), data);
    }
}

/// A QP in each state, by the shortest way.
fn qp_in(world: &World, to: u8) -> (Side, Side) {
    let options = SideOptions {
        mr_len: 4096,
        ..Default::default()
    };
    let (a, b) = (
        Side::new(world.a(), &options),
        Side::new(world.b(), &options),
    );
    let c = Connection::default();
    let way: &[QpAttributes] = &[
        c.init(a.qp.qpn),
        c.rtr(a.qp.qpn, 0, b.qp.qpn, b.node.gid),
        c.rts(a.qp.qpn, 0),
    ];
    let only = |state| QpAttributes {
        qpn: a.qp.qpn,
        mask: mask::STATE,
        state,
        ..Default::default()
    };
    let steps: Vec<QpAttributes> = match to {
        state::RESET => vec![],
        state::INIT => way[..1].to_vec(),
        state::RTR => way[..2].to_vec(),
        state::RTS => way.to_vec(),
        state::SQD => [way, &[only(state::SQD)]].concat(),
        state::ERR => vec![only(state::ERR)],
        _ => unreachable!("RC has no such state to be brought to"),
    };
    for step in steps {
        a.node
            .modify_qp(a.context.handle, &step)
            .unwrap_or_else(|status| panic!("to state {}: {status:?}", step.state));
    }
    (a, b)
}

#[test]
fn the_state_table_is_enforced_and_a_refusal_changes_nothing() {
    let (world, _watchdog) = loopback();
    use state::{ERR, INIT, RESET, RTR, RTS, SQD, SQE};
    let all_attributes = mask::EN_SQD_ASYNC
        | mask::ACCESS
        | mask::PKEY_INDEX
        | mask::PORT
        | mask::QKEY
        | mask::AV
        | mask::PATH_MTU
        | mask::TIMEOUT
        | mask::RETRY_CNT
        | mask::RNR_RETRY
        | mask::RQ_PSN
        | mask::MAX_RD_ATOMIC
        | mask::MIN_RNR_TIMER
        | mask::SQ_PSN
        | mask::MAX_DEST_RD_ATOMIC
        | mask::DEST_QPN;
    // From, to, required, allowed beside: the InfiniBand table for RC.
    let table = [
        (RESET, INIT, mask::PKEY_INDEX | mask::PORT | mask::ACCESS, 0),
        (INIT, INIT, 0, mask::PKEY_INDEX | mask::PORT | mask::ACCESS),
        (
            INIT,
            RTR,
            mask::AV
                | mask::PATH_MTU
                | mask::DEST_QPN
                | mask::RQ_PSN
                | mask::MAX_DEST_RD_ATOMIC
                | mask::MIN_RNR_TIMER,
            mask::PKEY_INDEX | mask::ACCESS,
        ),
        (
            RTR,
            RTS,
            mask::SQ_PSN | mask::TIMEOUT | mask::RETRY_CNT | mask::RNR_RETRY | mask::MAX_RD_ATOMIC,
            mask::ACCESS | mask::MIN_RNR_TIMER,
        ),
        (RTS, RTS, 0, mask::ACCESS | mask::MIN_RNR_TIMER),
        (RTS, SQD, 0, mask::EN_SQD_ASYNC),
        (SQD, RTS, 0, mask::ACCESS | mask::MIN_RNR_TIMER),
        (
            SQD,
            SQD,
            0,
            mask::PORT
                | mask::AV
                | mask::TIMEOUT
                | mask::RETRY_CNT
                | mask::RNR_RETRY
                | mask::MAX_RD_ATOMIC
                | mask::MAX_DEST_RD_ATOMIC
                | mask::PKEY_INDEX
                | mask::ACCESS
                | mask::MIN_RNR_TIMER,
        ),
    ];
    let values = |qpn, to, bits| QpAttributes {
        qpn,
        mask: mask::STATE | bits,
        state: to,
        path_mtu: 3,
        port: 1,
        access: access::REMOTE_READ,
        dest_qpn: 0x77,
        rq_psn: 1,
        sq_psn: 2,
        max_rd_atomic: 2,
        max_dest_rd_atomic: 3,
        timeout: 9,
        retry_cnt: 5,
        rnr_retry: 6,
        min_rnr_timer: 12,
        dgid: [0xfe; 16],
        ..Default::default()
    };
    for from in [RESET, INIT, RTR, RTS, SQD, ERR] {
        for to in [RESET, INIT, RTR, RTS, SQD, SQE, ERR] {
            let (a, b) = qp_in(&world, from);
            let qpn = a.qp.qpn;
            let before = a.node.query_qp(a.context.handle, qpn).expect("QUERY_QP");
            let refused = |bits: u32, what: &str| {
                let result = a.node.modify_qp(a.context.handle, &values(qpn, to, bits));
                assert!(
                    matches!(result, Err(Status::Invalid | Status::BadState)),
                    "{from} to {to}, {what} {bits:#x}: {result:?}"
                );
                assert_eq!(
                    a.node.query_qp(a.context.handle, qpn).expect("QUERY_QP"),
                    before,
                    "{from} to {to}: {what} changed something"
                );
            };
            match table.iter().find(|row| (row.0, row.1) == (from, to)) {
                Some((_, _, required, optional)) => {
                    for bit in (0..21)
                        .map(|n| 1 << n)
                        .filter(|bit| all_attributes & bit != 0)
                    {
                        if required & bit != 0 {
                            refused(required & !bit, "without");
                        } else if optional & bit == 0 {
                            refused(required | bit, "with");
                        }
                    }
                    let attributes = values(qpn, to, required | optional);
                    a.node
                        .modify_qp(a.context.handle, &attributes)
                        .unwrap_or_else(|status| {
                            panic!("{from} to {to} with everything: {status:?}")
                        });
                    let after = a.node.query_qp(a.context.handle, qpn).expect("QUERY_QP");
                    assert_eq!(after.state, to);
                    let given = required | optional;
                    assert!(given & mask::ACCESS == 0 || after.access == access::REMOTE_READ);
                    assert!(given & mask::TIMEOUT == 0 || after.timeout == 9);
                    assert!(given & mask::RETRY_CNT == 0 || after.retry_cnt == 5);
                    assert!(given & mask::RNR_RETRY == 0 || after.rnr_retry == 6);
                    assert!(given & mask::MIN_RNR_TIMER == 0 || after.min_rnr_timer == 12);
                    assert!(given & mask::MAX_RD_ATOMIC == 0 || after.max_rd_atomic == 2);
                    assert!(given & mask::MAX_DEST_RD_ATOMIC == 0 || after.max_dest_rd_atomic == 3);
                    assert!(given & mask::PATH_MTU == 0 || after.path_mtu == 3);
                    assert!(given & mask::DEST_QPN == 0 || after.dest_qpn == 0x77);
                    assert!(given & mask::AV == 0 || after.dgid == [0xfe; 16]);
                }
                None if to == RESET || to == ERR => {
                    refused(mask::TIMEOUT, "with");
                    to_state(&a.node, &a.qp, to)
                        .unwrap_or_else(|status| panic!("{from} to {to}: {status:?}"));
                    assert_eq!(a.state(), to);
                }
                None => {
                    refused(0, "no such transition");
                    refused(all_attributes, "no such transition, with everything");
                }
            }
            for side in [a, b] {
                side.node
                    .destroy_context(side.context)
                    .expect("DESTROY_CONTEXT");
            }
        }
    }
}

#[test]
fn attribute_values_out_of_range_are_invalid() {
    let (world, _watchdog) = loopback();
    let c = Connection::default();
    let limits = world.a().limits();
    let (a, b) = qp_in(&world, state::RESET);
    let context = a.context.handle;
    let check = |attributes: QpAttributes, what: &str| {
        assert_eq!(
            a.node.modify_qp(context, &attributes),
            Err(Status::Invalid),
            "{what}"
        );
    };
    let init = c.init(a.qp.qpn);
    check(QpAttributes { port: 0, ..init }, "port 0");
    check(QpAttributes { port: 2, ..init }, "port 2");
    check(
        QpAttributes {
            pkey_index: 1000,
            ..init
        },
        "a partition that there is not",
    );
    check(
        QpAttributes {
            access: 0x100,
            ..init
        },
        "an access bit that there is not",
    );
    check(QpAttributes { state: 7, ..init }, "state 7");
    check(
        QpAttributes {
            mask: init.mask | 1 << 30,
            ..init
        },
        "a mask bit that there is not",
    );
    a.node.modify_qp(context, &init).expect("INIT");
    let rtr = c.rtr(a.qp.qpn, 0, b.qp.qpn, b.node.gid);
    check(QpAttributes { path_mtu: 0, ..rtr }, "MTU 0");
    check(QpAttributes { path_mtu: 6, ..rtr }, "MTU 6");
    check(
        QpAttributes {
            dest_qpn: 1 << 24,
            ..rtr
        },
        "a QPN of 25 bits",
    );
    check(
        QpAttributes {
            sgid_index: 200,
            ..rtr
        },
        "a GID slot that is empty",
    );
    check(
        QpAttributes {
            min_rnr_timer: 32,
            ..rtr
        },
        "an RNR timer of 6 bits",
    );
    check(
        QpAttributes {
            max_dest_rd_atomic: (limits.max_rd_atomic + 1) as u8,
            ..rtr
        },
        "more READs than the device answers",
    );
    a.node.modify_qp(context, &rtr).expect("RTR");
    let rts = c.rts(a.qp.qpn, 0);
    check(QpAttributes { timeout: 32, ..rts }, "a timeout of 6 bits");
    check(
        QpAttributes {
            retry_cnt: 8,
            ..rts
        },
        "8 retries",
    );
    check(
        QpAttributes {
            rnr_retry: 8,
            ..rts
        },
        "8 RNR retries",
    );
    check(
        QpAttributes {
            max_rd_atomic: (limits.max_init_rd_atomic + 1) as u8,
            ..rts
        },
        "more READs than the device asks",
    );
    let elsewhere = QpAttributes {
        mask: rts.mask | mask::CUR_STATE,
        cur_state: state::INIT,
        ..rts
    };
    assert_eq!(
        a.node.modify_qp(context, &elsewhere),
        Err(Status::BadState),
        "another current state"
    );
    a.node.modify_qp(context, &rts).expect("RTS");
}

#[test]
fn gids_flow_from_the_guest_to_the_device() {
    let (world, _watchdog) = loopback();
    let node = world.a();
    let count = node.limits().max_gids;
    let gid = |n: u8| [0xfd, n, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, n];
    assert_eq!(
        node.add_gid(0, gid(1)),
        Err(Status::Exists),
        "slot 0 is taken by the world"
    );
    node.add_gid(1, gid(1)).expect("ADD_GID");
    node.add_gid(count - 1, gid(2)).expect("the last slot");
    assert_eq!(node.add_gid(count, gid(3)), Err(Status::Invalid));
    assert_eq!(node.add_gid(u32::MAX, gid(3)), Err(Status::Invalid));
    assert_eq!(node.add_gid(1, gid(4)), Err(Status::Exists));
    node.del_gid(1).expect("DEL_GID");
    assert!(node.del_gid(1).is_err(), "an empty slot");
    assert!(node.del_gid(count).is_err());
    node.add_gid(1, gid(4)).expect("the slot is free again");
    // A QP that is connected by the new GID works; when the GID goes, messages to it are not accepted any more.
    let c = Connection {
        timeout: 10,
        retry_cnt: 2,
        ..Default::default()
    };
    let (mut a, mut b) = (
        Side::new(node, &SideOptions::default()),
        Side::new(node, &SideOptions::default()),
    );
    for (n, side, far) in [(0, &a, &b), (1, &b, &a)] {
        for step in [
            c.init(side.qp.qpn),
            c.rtr(side.qp.qpn, n, far.qp.qpn, gid(4)),
            c.rts(side.qp.qpn, n),
        ] {
            side.node
                .modify_qp(side.context.handle, &step)
                .expect("to RTS");
        }
    }
    b.recv(1, 0, 8);
    a.send(&SendWr {
        opcode: send::SEND,
        flags: wqe_flag::SIGNALED,
        inline: Some(&[1]),
        ..Default::default()
    });
    success(&world, &mut a, "by the second GID");
    success(&world, &mut b, "received");
}

// Memory.

fn reg(pd: u32, length: u64) -> RegMr {
    RegMr {
        pd,
        access: access::ALL,
        iova: 0xabcd_0000_0123,
        length,
        offset: 0,
        page_shift: 12,
        flags: 0,
        total_entries: 0,
        num_entries: 0,
        entries: Vec::new(),
    }
}

/// Bytes that go through a region by WRITE and READ of a peer, first and last byte among them.
fn region_works(world: &World, a: &mut Side, mr: &Mr, bytes: impl Fn(usize, usize) -> Vec<u8>) {
    let len = mr.len as usize;
    for (at, size) in [
        (0, 1),
        (0, len.min(5000)),
        (len - 1, 1),
        (len / 2, (len - len / 2).min(4097)),
        (len.saturating_sub(9000), len.min(9000)),
    ] {
        let data = payload((at + size) as u64, size);
        a.mr.write(0, &data);
        let sges = [a.mr.sge(0, size)];
        let wr = SendWr {
            flags: wqe_flag::SIGNALED,
            sges: &sges,
            rkey: mr.key,
            remote_addr: mr.iova + at as u64,
            ..Default::default()
        };
        a.send(&SendWr {
            opcode: send::WRITE,
            ..wr
        });
        success(world, a, "a WRITE");
        assert!(bytes(at, size) == data, "{size} bytes at {at}");
        a.mr.write(0, &vec![0; size]);
        a.send(&SendWr {
            opcode: send::READ,
            ..wr
        });
        success(world, a, "a READ");
        assert!(a.mr.read(0, size) == data);
    }
}

#[test]
fn page_arrays_of_every_page_size_describe_memory_to_the_byte() {
    let (world, _watchdog) = loopback();
    let node = world.a().clone();
    let (mut a, b) = connected(
        &world,
        &SideOptions {
            mr_len: 64 << 10,
            ..Default::default()
        },
        &Connection::default(),
    );
    for (shift, offset, length, pages) in [
        (12u8, 0u64, 4096u64, 1usize),
        (12, 4095, 1, 1),
        (12, 1, 4095, 1),
        (12, 1, 4096, 2),
        (12, 4095, 4098, 3),
        (13, 8191, 2, 2),
        (16, 12_345, 65_536, 2),
        (16, 65_535, 65_537, 2),
        (21, 4097, 2 << 20, 2),
    ] {
        let per = 1usize << (shift - 12);
        // Pages in descending order: what follows for the device does not follow in memory.
        let buffers: Vec<_> = (0..pages)
            .map(|_| node.memory.aligned(PAGE * per, per))
            .collect();
        let list: Vec<u64> = buffers.iter().map(|buffer| buffer.dma_pages()[0]).collect();
        let mut body = reg(b.pd, length);
        (body.page_shift, body.offset) = (shift, offset);
        let key = node
            .reg_list(b.context, body.clone(), &list, 400)
            .unwrap_or_else(|status| panic!("2^{shift}, {offset}+{length}: {status:?}"));
        let mr = Mr {
            key,
            iova: body.iova,
            len: length,
            buffer: node.memory.contiguous(1),
            start: 0,
        };
        let at = |at: usize, size: usize| {
            let mut out = Vec::with_capacity(size);
            let mut pos = offset as usize + at;
            while out.len() < size {
                let (page, within) = (pos >> shift, pos & ((1 << shift) - 1));
                let n = (size - out.len()).min((1 << shift) - within);
                out.extend(buffers[page].read(within, n));
                pos += n;
            }
            out
        };
        region_works(&world, &mut a, &mr, at);
        node.dereg_mr(b.context, key).expect("DEREG_MR");
        // The same list does not hold a byte more than it holds, nor a page that is not used.
        let room = ((pages as u64) << shift) - offset;
        let mut over = body.clone();
        over.length = room + 1;
        assert_eq!(
            node.reg_list(b.context, over, &list, 400),
            Err(Status::Invalid),
            "more than the pages hold"
        );
        let mut unused = body.clone();
        unused.length = length.min((1 << shift) - offset.min((1 << shift) - 1));
        if pages > 1 {
            assert_eq!(
                node.reg_list(b.context, unused, &list, 400),
                Err(Status::Invalid),
                "a last page that is not used"
            );
        }
        let mut past = body;
        past.offset = 1 << shift;
        past.length = 1;
        assert_eq!(
            node.reg_list(b.context, past, &list, 400),
            Err(Status::Invalid),
            "an offset past the first page"
        );
    }
}

#[test]
fn extents_describe_memory_to_the_byte() {
    let (world, _watchdog) = loopback();
    let node = world.a().clone();
    let (mut a, b) = connected(
        &world,
        &SideOptions {
            mr_len: 64 << 10,
            ..Default::default()
        },
        &Connection::default(),
    );
    let buffer = node.memory.contiguous(64 * PAGE);
    let base = buffer.dma_pages()[0];
    for (extents, offset, length) in [
        (vec![(0u64, 1u64)], 0u64, 1u64),
        (vec![(7, 3), (20, 1), (50, 9000)], 0, 9004),
        (vec![(7, 3), (20, 1), (50, 9000)], 2, 9001),
        (
            vec![(5000, 4096), (1, 4999), (20_000, 100_000)],
            4095,
            100_000,
        ),
    ] {
        let list: Vec<u64> = extents
            .iter()
            .flat_map(|(at, len)| [base + at, *len])
            .collect();
        let mut body = reg(b.pd, length);
        (body.flags, body.offset, body.page_shift) = (MR_EXTENTS, offset, 0);
        for per_command in [1, 2, 400] {
            let key = node
                .reg_list(b.context, body.clone(), &list, per_command)
                .unwrap_or_else(|status| panic!("{extents:?}: {status:?}"));
            let mr = Mr {
                key,
                iova: body.iova,
                len: length,
                buffer: node.memory.contiguous(1),
                start: 0,
            };
            let at = |at: usize, size: usize| {
                let whole: Vec<u8> = extents
                    .iter()
                    .flat_map(|(start, len)| buffer.read(*start as usize, *len as usize))
                    .collect();
                whole[offset as usize + at..][..size].to_vec()
            };
            region_works(&world, &mut a, &mr, at);
            node.dereg_mr(b.context, key).expect("DEREG_MR");
        }
        let mut long = body.clone();
        long.length = extents.iter().map(|e| e.1).sum::<u64>() - offset + 1;
        assert_eq!(
            node.reg_list(b.context, long, &list, 400),
            Err(Status::Invalid),
            "more than the extents hold"
        );
    }
    for (extent, status) in [
        ([base, 0], Status::Invalid),
        ([base, u64::MAX], Status::BadAddress),
        ([u64::MAX, 2], Status::BadAddress),
        (
            [base - conformance::memory::DMA_OFFSET, 4096],
            Status::BadAddress,
        ),
        ([node.memory.dma_end() - 1, 2], Status::BadAddress),
    ] {
        let mut body = reg(b.pd, extent[1].max(1));
        body.flags = MR_EXTENTS;
        let result = node.reg_list(b.context, body, &extent, 400);
        assert!(
            result == Err(status)
                || result == Err(Status::BadAddress)
                || result == Err(Status::Invalid),
            "{extent:x?}: {result:?}"
        );
    }
}

#[test]
fn a_list_in_many_commands_counts_and_commits() {
    let (world, _watchdog) = loopback();
    let node = world.a().clone();
    let (mut a, b) = sides(&world);
    let buffer = node.memory.scattered(10 * PAGE);
    let pages = buffer.dma_pages();
    let mut first = reg(b.pd, 10 * PAGE as u64);
    (first.flags, first.total_entries, first.num_entries) = (MR_MORE, 10, 4);
    first.entries = pages[..4].to_vec();
    let key = node.reg_mr_raw(b.context, &first).expect("the first part");
    // Not usable before it is committed, from near or far.
    let wr = |opcode| SendWr {
        opcode,
        flags: wqe_flag::SIGNALED,
        inline: Some(&[1]),
        rkey: key,
        remote_addr: 0xabcd_0000_0123,
        ..Default::default()
    };
    a.send(&wr(send::WRITE));
    let cqe = world.until("a WRITE to half a region", || a.poll());
    assert_eq!(cqe.status, wc::REM_ACCESS_ERR);
    let (mut a, mut b2) = sides(&world);
    let sge = conformance::layout::Sge {
        addr: 0xabcd_0000_0123,
        length: 1,
        lkey: key,
    };
    b2.qp
        .post_send(&SendWr {
            opcode: send::SEND,
            sges: &[sge],
            ..Default::default()
        })
        .expect("room");
    let cqe = world.until("a SEND from half a region", || b2.poll());
    assert_eq!(cqe.status, wc::LOC_PROT_ERR);
    assert_eq!(node.mr_commit(b.context, key), Err(Status::InProgress));
    assert_eq!(
        node.mr_append(b.context, key, 7, &[pages[4]; 7]),
        Err(Status::Invalid),
        "more than was announced"
    );
    assert_eq!(
        node.mr_append(b.context, key, 2, &[pages[4]]),
        Err(Status::Invalid),
        "fewer than said"
    );
    assert_eq!(
        node.mr_append(b.context, key, 1, &[0x1000]),
        Err(Status::BadAddress)
    );
    assert_eq!(
        node.mr_append(a.context, key, 6, &pages[4..]),
        Err(Status::Denied)
    );
    assert_eq!(node.mr_commit(a.context, key), Err(Status::Denied));
    node.mr_append(b.context, key, 1, &pages[4..5])
        .expect("one more");
    node.mr_append(b.context, key, 5, &pages[5..])
        .expect("the rest");
    node.mr_commit(b.context, key).expect("MR_COMMIT");
    assert!(node.mr_commit(b.context, key).is_err(), "twice");
    assert!(
        node.mr_append(b.context, key, 1, &pages[..1]).is_err(),
        "after the end"
    );
    let mut b3 = Side::in_context(&node, b.context, &SideOptions::default());
    b3.node
        .destroy_qp(b3.context, b3.qp.qpn)
        .expect("DESTROY_QP");
    b3.qp = node
        .create_qp(b.context, b.pd, b3.cq.cqn, b3.cq.cqn, &QpOptions::default())
        .expect("a QP in the region's PD");
    a.node.destroy_qp(a.context, a.qp.qpn).expect("DESTROY_QP");
    a.qp = node
        .create_qp(a.context, a.pd, a.cq.cqn, a.cq.cqn, &QpOptions::default())
        .expect("a QP");
    connect((&node, &a.qp), (&node, &b3.qp), &Connection::default());
    let mr = Mr {
        key,
        iova: 0xabcd_0000_0123,
        len: 10 * PAGE as u64,
        buffer: node.memory.contiguous(1),
        start: 0,
    };
    region_works(&world, &mut a, &mr, |at, size| buffer.read(at, size));
    // Half a region can be given up.
    let key = node
        .reg_mr_raw(b.context, &first)
        .expect("another first part");
    node.dereg_mr(b.context, key).expect("DEREG_MR");
    assert_eq!(
        node.mr_append(b.context, key, 1, &pages[4..5]),
        Err(Status::NotFound)
    );
}

#[test]
fn regions_out_of_range_are_invalid() {
    let (world, _watchdog) = loopback();
    let node = world.a().clone();
    let context = node.create_context().expect("a context");
    let pd = node.create_pd(context).expect("a PD");
    let buffer = node.memory.contiguous(4 * PAGE);
    let pages = buffer.dma_pages();
    let good = RegMr {
        total_entries: 2,
        num_entries: 2,
        entries: pages[..2].to_vec(),
        ..reg(pd, 8192)
    };
    node.reg_mr_raw(context, &good).expect("a good one");
    type Change = (&'static str, fn(&mut RegMr), Status);
    let changes: [Change; 20] = [
        ("no PD", |r| r.pd = 0x7fff_0000, Status::NotFound),
        (
            "an access bit that there is not",
            |r| r.access = 0x20,
            Status::Invalid,
        ),
        (
            "remote write without local",
            |r| r.access = access::REMOTE_WRITE,
            Status::Invalid,
        ),
        (
            "remote atomics without local write",
            |r| r.access = access::REMOTE_ATOMIC,
            Status::Invalid,
        ),
        ("length 0 with entries", |r| r.length = 0, Status::Invalid),
        (
            "a length of everything",
            |r| r.length = u64::MAX,
            Status::Invalid,
        ),
        ("a length one too long", |r| r.length += 1, Status::Invalid),
        (
            "an iova that wraps",
            |r| r.iova = u64::MAX - 8190,
            Status::Invalid,
        ),
        (
            "an offset that wraps",
            |r| r.offset = u64::MAX,
            Status::Invalid,
        ),
        ("pages of 2^11", |r| r.page_shift = 11, Status::Invalid),
        ("pages of 2^31", |r| r.page_shift = 31, Status::Invalid),
        ("pages of 2^64", |r| r.page_shift = 64, Status::Invalid),
        ("a flag that there is not", |r| r.flags = 4, Status::Invalid),
        (
            "fewer than announced, without MORE",
            |r| r.total_entries = 3,
            Status::Invalid,
        ),
        (
            "more than announced",
            |r| r.total_entries = 1,
            Status::Invalid,
        ),
        (
            "more said than given",
            |r| (r.total_entries, r.num_entries) = (3, 3),
            Status::Invalid,
        ),
        (
            "more given than said",
            |r| (r.total_entries, r.num_entries) = (1, 1),
            Status::Invalid,
        ),
        (
            "a page that is not aligned",
            |r| r.entries[1] += 8,
            Status::Invalid,
        ),
        (
            "entries without number",
            |r| (r.total_entries, r.num_entries) = (u32::MAX, u32::MAX),
            Status::Invalid,
        ),
        (
            "a list of everything, to come",
            |r| (r.total_entries, r.flags) = (u32::MAX, MR_MORE),
            Status::Invalid,
        ),
    ];
    for (what, change, status) in changes {
        let mut body = good.clone();
        change(&mut body);
        let result = node.reg_mr_raw(context, &body);
        assert!(
            result == Err(status)
                || (status == Status::Invalid
                    && matches!(result, Err(Status::BadAddress | Status::NoResource))),
            "{what}: {result:?}"
        );
    }
    // Nothing at all is a region too: of no bytes.
    let nothing = RegMr {
        page_shift: 12,
        ..reg(pd, 0)
    };
    node.reg_mr_raw(context, &nothing)
        .expect("length 0 with no entries");
    for reserved in [34, 44] {
        let mut body = good.encode();
        body[reserved] = 1;
        assert_eq!(
            node.command(command::REG_MR, context.handle, &body),
            Err(Status::Invalid),
            "reserved at {reserved}"
        );
    }
}

#[test]
fn the_kernel_has_queues_and_regions_too() {
    let (world, _watchdog) = loopback();
    let mut a = Side::in_context(world.a(), KERNEL, &SideOptions::default());
    let mut b = Side::in_context(world.b(), KERNEL, &SideOptions::default());
    connect((&a.node, &a.qp), (&b.node, &b.qp), &Connection::default());
    b.recv(1, 0, 100);
    a.send(&SendWr {
        opcode: send::SEND,
        flags: wqe_flag::SIGNALED,
        inline: Some(&[5; 50]),
        ..Default::default()
    });
    success(&world, &mut a, "sent");
    success(&world, &mut b, "received");
    assert_eq!(b.mr.read(0, 50), [5; 50]);
}

#[test]
fn a_gigantic_message_is_one_message() {
    // 2 GiB over a region whose list names the same 64 MiB over and over.
    let (world, _watchdog) = loopback();
    let node = world.a().clone();
    let (mut a, b) = sides(&world);
    let buffer = node.memory.aligned(32 << 20, 512);
    let page = 2 << 20;
    let list: Vec<u64> = (0..1024)
        .map(|n| buffer.dma_pages()[(n % 16) * 512])
        .collect();
    let regions: Vec<u32> = [(a.context, a.pd), (b.context, b.pd)]
        .into_iter()
        .map(|(context, pd)| {
            let mut body = reg(pd, 2 << 30);
            (body.page_shift, body.iova) = (21, 0x10_0000_0000);
            node.reg_list(context, body, &list, 400)
                .expect("a region of 2 GiB")
        })
        .collect();
    for n in 0..16 {
        buffer.write(n * page, &payload(n as u64, 1000));
    }
    for opcode in [send::WRITE, send::READ] {
        let sges = [conformance::layout::Sge {
            addr: 0x10_0000_0000,
            length: 1 << 31,
            lkey: regions[0],
        }];
        a.send(&SendWr {
            wr_id: 1,
            opcode,
            flags: wqe_flag::SIGNALED,
            sges: &sges,
            rkey: regions[1],
            remote_addr: 0x10_0000_0000,
            ..Default::default()
        });
        let cqe = success(&world, &mut a, "2 GiB");
        assert!(opcode == send::WRITE || cqe.byte_len == 1 << 31);
    }
    for n in 0..16 {
        assert_eq!(buffer.read(n * page, 1000), payload(n as u64, 1000));
    }
    // One byte more is too long.
    let sges = [
        conformance::layout::Sge {
            addr: 0x10_0000_0000,
            length: 1 << 31,
            lkey: regions[0],
        },
        conformance::layout::Sge {
            addr: 0x10_0000_0000,
            length: 1,
            lkey: regions[0],
        },
    ];
    a.send(&SendWr {
        wr_id: 2,
        opcode: send::WRITE,
        sges: &sges,
        rkey: regions[1],
        remote_addr: 0x10_0000_0000,
        ..Default::default()
    });
    let cqe = world.until("2 GiB and a byte", || a.poll());
    assert!(
        matches!(
            cqe.status,
            wc::LOC_LEN_ERR | wc::LOC_QP_OP_ERR | wc::LOC_PROT_ERR
        ),
        "{cqe:?}"
    );
}

// Numbers.

fn create_many(node: &Node, context: Context, count: usize) -> u32 {
    let pd = node.create_pd(context).expect("a PD");
    let page = node.memory.contiguous(PAGE);
    let one = RegMr {
        total_entries: 1,
        num_entries: 1,
        entries: page.dma_pages(),
        ..reg(pd, 4096)
    };
    for n in 0..count {
        node.reg_mr_raw(context, &one)
            .unwrap_or_else(|status| panic!("region {n}: {status:?}"));
    }
    pd
}

#[test]
fn a_thousand_pairs_and_sixteen_thousand_regions() {
    let (world, _watchdog) = loopback();
    let node = world.a().clone();
    let context = node.create_context().expect("a context");
    let pd = create_many(&node, context, 16_384);
    let mr = node.mr(context, pd, 8192);
    let small = QpOptions {
        sq_entries: 2,
        rq_entries: 2,
        scattered: false,
        ..Default::default()
    };
    let mut all = Vec::new();
    for n in 0..1024 {
        let cq = node
            .create_cq(context, 4, n % 2)
            .unwrap_or_else(|status| panic!("CQ {n}: {status:?}"));
        let qp = node
            .create_qp(context, pd, cq.cqn, cq.cqn, &small)
            .unwrap_or_else(|status| panic!("QP {n}: {status:?}"));
        all.push((cq, qp));
    }
    for pair in all.chunks(2) {
        connect(
            (&node, &pair[0].1),
            (&node, &pair[1].1),
            &Connection::default(),
        );
    }
    for (n, (_, qp)) in all.iter_mut().enumerate() {
        let word = (n as u64).to_le_bytes();
        qp.post_send(&SendWr {
            wr_id: n as u64,
            opcode: send::WRITE,
            flags: wqe_flag::SIGNALED,
            inline: Some(&word),
            rkey: mr.key,
            remote_addr: mr.iova + 8 * n as u64,
            ..Default::default()
        })
        .expect("room");
    }
    for (n, (cq, _)) in all.iter_mut().enumerate() {
        let cqe = world.until("one of a thousand", || cq.poll());
        assert_eq!((cqe.wr_id, cqe.status), (n as u64, wc::SUCCESS));
    }
    for n in 0..1024 {
        assert_eq!(le64(&mr.read(8 * n, 8), 0), n as u64);
    }
    node.destroy_context(context).expect("DESTROY_CONTEXT");
    assert_eq!(node.create_pd(context), Err(Status::NotFound));
}

#[test]
fn queues_as_deep_as_the_device_says() {
    let (world, _watchdog) = loopback();
    let limits = world.a().limits();
    let depth = limits.max_send_wr.min(8192);
    let options = SideOptions {
        qp: QpOptions {
            sq_entries: depth,
            rq_entries: limits.max_recv_wr.min(8192),
            send_sge: 16,
            recv_sge: 16,
            inline: 0,
            scattered: false,
            signal_all: false,
        },
        cq_entries: limits.max_cqe,
        ..Default::default()
    };
    let (mut a, b) = connected(&world, &options, &Connection::default());
    for n in 0..depth {
        let sges = [a.mr.sge(0, 8); 16];
        a.qp.write_send(&SendWr {
            wr_id: n.into(),
            opcode: send::WRITE,
            flags: wqe_flag::SIGNALED,
            sges: &sges,
            rkey: b.mr.key,
            remote_addr: b.mr.iova,
            ..Default::default()
        })
        .expect("room");
    }
    assert!(a.qp.write_send(&SendWr::default()).is_err(), "full");
    a.qp.publish_sends();
    for n in 0..depth {
        assert_eq!(
            success(&world, &mut a, "of a deep queue").wr_id,
            u64::from(n)
        );
    }
}

#[test]
fn limits_are_limits() {
    let (world, _watchdog) = loopback();
    let node = world.a();
    let limits = node.limits();
    let mut contexts = Vec::new();
    while let Ok(context) = node.create_context() {
        contexts.push(context);
        assert!(
            contexts.len() <= limits.max_contexts as usize,
            "more contexts than max_contexts"
        );
    }
    assert_eq!(node.create_context().err(), Some(Status::NoResource));
    let pages: HashSet<u32> = contexts.iter().map(|context| context.page).collect();
    assert_eq!(
        pages.len(),
        contexts.len(),
        "a doorbell page belongs to one context"
    );
    assert!(!pages.contains(&0), "page 0 is the kernel's");
    for context in contexts.drain(..) {
        node.destroy_context(context).expect("DESTROY_CONTEXT");
    }
    let again = node.create_context().expect("there is room again");
    let pd = node.create_pd(again).expect("a PD");
    let cq = node.create_cq(again, 1, 0).expect("a CQ");
    let too_many = QpOptions {
        send_sge: limits.max_send_sge + 1,
        ..Default::default()
    };
    assert_eq!(
        node.create_qp(again, pd, cq.cqn, cq.cqn, &too_many).err(),
        Some(Status::Invalid)
    );
    let too_many = QpOptions {
        recv_sge: limits.max_recv_sge + 1,
        ..Default::default()
    };
    assert_eq!(
        node.create_qp(again, pd, cq.cqn, cq.cqn, &too_many).err(),
        Some(Status::Invalid)
    );
    let too_much = QpOptions {
        inline: limits.max_inline + 1,
        ..Default::default()
    };
    assert_eq!(
        node.create_qp(again, pd, cq.cqn, cq.cqn, &too_much).err(),
        Some(Status::Invalid)
    );
    let most = QpOptions {
        send_sge: limits.max_send_sge,
        recv_sge: limits.max_recv_sge,
        inline: limits.max_inline,
        ..Default::default()
    };
    node.create_qp(again, pd, cq.cqn, cq.cqn, &most)
        .expect("as much as it says");
}
