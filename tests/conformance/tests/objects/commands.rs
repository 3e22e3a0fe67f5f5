//! Commands: what the device says of itself, what it refuses, and whose objects are whose.

use std::collections::HashSet;

use conformance::layout::{
    Body, QpAttributes, Status, command, le32, le64, mask, request, send, state,
};
use conformance::node::{Context, KERNEL, QpOptions};
use conformance::rings::SendWr;
use conformance::side::{Connection, Side, SideOptions, connect, sides, success, to_rts};

use super::loopback;

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
                command::QUERY_CLOCK,
                command::CREATE_CONTEXT,
                command::CREATE_PD,
                command::ALLOC_XRCD,
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
        0u16, 5, 0x12, 0x22, 0x46, 0x54, 0x74, 0x80, 0x92, 0xa2, 0xb2, 0xffff,
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
        to_rts(&side.node, &side.qp, n, (far.qp.qpn, gid(4)), &c);
    }
    b.recv(1, 0, 8);
    a.send(&SendWr::signaled(0, send::SEND).with_inline(&[1]));
    success(&world, &mut a, "by the second GID");
    success(&world, &mut b, "received");
}

#[test]
fn the_kernel_has_queues_and_regions_too() {
    let (world, _watchdog) = loopback();
    let mut a = Side::in_context(world.a(), KERNEL, &SideOptions::default());
    let mut b = Side::in_context(world.b(), KERNEL, &SideOptions::default());
    connect((&a.node, &a.qp), (&b.node, &b.qp), &Connection::default());
    b.recv(1, 0, 100);
    a.send(&SendWr::signaled(0, send::SEND).with_inline(&[5; 50]));
    success(&world, &mut a, "sent");
    success(&world, &mut b, "received");
    assert_eq!(b.mr.read(0, 50), [5; 50]);
}
