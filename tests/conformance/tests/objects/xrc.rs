//! XRC: which requests are refused (sections 4.7, 4.12 and 4.17).

use conformance::layout::{CreateQp, CreateSrq, Status, command, qp_type, state};
use conformance::node::{Context, KERNEL, Node, QpOptions};
use conformance::side::{Connection, to_state};
use conformance::world::{Kind, Options, World};
use devices::rdma::wire::feature;

use super::loopback;

/// What makes a request wrong.
type Change<'a> = &'a dyn Fn(&mut CreateQp);

/// What a process has.
struct Process {
    me: Context,
    pd: u32,
    cq: u32,
}

fn process(node: &Node) -> Process {
    let me = node.create_context().expect("a context");
    let cq = node.create_cq(me, 16, 0).expect("a CQ");
    Process {
        me,
        pd: node.create_pd(me).expect("a PD"),
        cq: cq.cqn,
    }
}

#[test]
fn domains_are_the_kernel_s_and_stay_while_something_is_in_them() {
    let (world, _watchdog) = loopback();
    let node = world.a();
    let process = process(node);
    let ask = |opcode, body: &[u8]| node.command(opcode, process.me.handle, body).err();
    let (denied, busy) = (Some(Status::Denied), Err(Status::Busy));
    assert_eq!(ask(command::ALLOC_XRCD, &[]), denied);
    let xrcd = node.alloc_xrcd().expect("ALLOC_XRCD");
    let mut body = xrcd.to_le_bytes().to_vec();
    body.extend([0; 4]);
    assert_eq!(ask(command::DEALLOC_XRCD, &body), denied);
    body[4] = 1;
    let reserved = node.command(command::DEALLOC_XRCD, 0, &body).err();
    assert_eq!(reserved, Some(Status::Invalid));
    let more = node.command(command::ALLOC_XRCD, 0, &[0; 8]).err();
    assert_eq!(more, Some(Status::Invalid));

    let srq = node
        .create_xrc_srq(process.me, process.pd, 4, (process.cq, xrcd))
        .expect("an SRQ");
    assert_eq!(node.dealloc_xrcd(xrcd), busy);
    // It holds its CQ as well.
    assert_eq!(node.destroy_cq(process.me, process.cq), busy);
    let target = node
        .create_qp(KERNEL, 0, 0, 0, &QpOptions::xrc_target(xrcd))
        .expect("a target");
    // No target counts: they come and go.
    node.destroy_srq(process.me, srq.srqn).expect("DESTROY_SRQ");
    node.destroy_cq(process.me, process.cq).expect("DESTROY_CQ");
    assert_eq!(node.dealloc_xrcd(xrcd), busy);
    node.destroy_qp(KERNEL, target.qpn).expect("DESTROY_QP");
    assert_eq!(node.dealloc_xrcd(xrcd), Ok(()));
    assert_eq!(node.dealloc_xrcd(xrcd), Err(Status::NotFound));
}

#[test]
fn an_srq_of_a_domain_needs_domain_and_cq() {
    let (world, _watchdog) = loopback();
    let node = world.a();
    let (process, other) = (process(node), process(node));
    let xrcd = node.alloc_xrcd().expect("ALLOC_XRCD");
    let refused = |kind, cq, xrcd| {
        let (ring, buffer) = node.srq_buffer(4, 64);
        let create = CreateSrq {
            pd: process.pd,
            kind,
            cq,
            xrcd,
            entries: 4,
            stride: 64,
            max_sge: 2,
            ring,
        };
        node.create_srq_raw(process.me, &create, buffer).err()
    };
    assert_eq!(refused(1, process.cq, 0), Some(Status::NotFound));
    assert_eq!(refused(1, process.cq, 0x7777), Some(Status::NotFound));
    assert_eq!(refused(1, 0, xrcd), Some(Status::NotFound));
    assert_eq!(refused(1, other.cq, xrcd), Some(Status::Denied));
    assert_eq!(refused(0, process.cq, 0), Some(Status::Invalid));
    assert_eq!(refused(0, 0, xrcd), Some(Status::Invalid));
    assert_eq!(refused(1, process.cq, xrcd), None);
    // It can be changed and asked about as any other.
    let mut srq = node
        .create_xrc_srq(process.me, process.pd, 4, (process.cq, xrcd))
        .expect("an SRQ");
    node.resize_srq(&mut srq, 16).expect("MODIFY_SRQ");
    for wr_id in 0..3 {
        srq.post(wr_id, &[]).expect("room");
    }
    node.limit_srq(&srq, 3).expect("MODIFY_SRQ");
    let now = node.query_srq(process.me, srq.srqn).expect("QUERY_SRQ");
    assert_eq!((now.entries, now.limit), (16, 3));
}

#[test]
fn queue_pairs_refer_to_what_their_end_of_a_connection_has() {
    let (world, _watchdog) = loopback();
    let node = world.a();
    let process = process(node);
    let xrcd = node.alloc_xrcd().expect("ALLOC_XRCD");
    let basic = node
        .create_srq(process.me, process.pd, 4, 1)
        .expect("an SRQ");
    let xrc = node
        .create_xrc_srq(process.me, process.pd, 4, (process.cq, xrcd))
        .expect("an SRQ");
    let create = |context: Context, kind, change: Change<'_>| {
        let options = match kind {
            qp_type::XRC_INI => QpOptions::xrc_initiator(),
            qp_type::XRC_TGT => QpOptions::xrc_target(xrcd),
            _ => QpOptions::default(),
        };
        let (mut create, buffer) = node.qp_layout(process.pd, process.cq, process.cq, &options);
        create.recv_cq = 0;
        if kind == qp_type::XRC_TGT {
            (create.pd, create.send_cq) = (0, 0);
        }
        change(&mut create);
        node.create_qp_raw(context, &create, buffer).err()
    };
    let invalid = Some(Status::Invalid);
    let others: [(&str, u32, Change<'_>); 7] = [
        ("a CQ for receives", qp_type::XRC_INI, &|q| {
            q.recv_cq = process.cq
        }),
        ("an SRQ", qp_type::XRC_INI, &|q| q.srq = basic.srqn),
        ("an XRC SRQ", qp_type::XRC_INI, &|q| q.srq = xrc.srqn),
        ("a domain", qp_type::XRC_INI, &|q| q.xrcd = xrcd),
        ("receives", qp_type::XRC_INI, &|q| q.rq_entries = 1),
        ("an XRC SRQ", qp_type::RC, &|q| {
            (q.recv_cq, q.srq, q.rq_entries) = (process.cq, xrc.srqn, 0)
        }),
        ("a domain", qp_type::RC, &|q| {
            (q.recv_cq, q.xrcd) = (process.cq, xrcd)
        }),
    ];
    for (what, kind, change) in others {
        let refused = create(process.me, kind, change);
        assert_eq!(refused, invalid, "type {kind} with {what}");
    }
    assert_eq!(create(process.me, qp_type::XRC_INI, &|_| ()), None);
    let target: [(&str, Change<'_>); 6] = [
        ("a PD", &|q| q.pd = process.pd),
        ("a CQ for sends", &|q| q.send_cq = process.cq),
        ("a CQ for receives", &|q| q.recv_cq = process.cq),
        ("an SRQ", &|q| q.srq = xrc.srqn),
        ("sends", &|q| q.sq_entries = 1),
        ("receives", &|q| q.rq_entries = 1),
    ];
    for (what, change) in target {
        assert_eq!(create(KERNEL, qp_type::XRC_TGT, change), invalid, "{what}");
    }
    let nowhere = create(KERNEL, qp_type::XRC_TGT, &|q| q.xrcd = 0);
    assert_eq!(nowhere, Some(Status::NotFound));
    let denied = create(process.me, qp_type::XRC_TGT, &|_| ());
    assert_eq!(denied, Some(Status::Denied));
    assert_eq!(create(KERNEL, qp_type::XRC_TGT, &|_| ()), None);
}

#[test]
fn a_target_cannot_be_changed_by_a_process_and_has_no_way_to_send() {
    let (world, _watchdog) = loopback();
    let node = world.a();
    let process = process(node);
    let xrcd = node.alloc_xrcd().expect("ALLOC_XRCD");
    let target = node
        .create_qp(KERNEL, 0, 0, 0, &QpOptions::xrc_target(xrcd))
        .expect("a target");
    let steps = Connection::default().steps(&target, 0, (9, node.gid));
    let denied = node.modify_qp(process.me.handle, &steps[0]).err();
    assert_eq!(denied, Some(Status::Denied));
    for step in &steps {
        node.modify_qp(0, step).expect("a state of the table");
    }
    // Of a ring that is not there no index is looked at.
    target
        .sq_producer_word()
        .store(5, std::sync::atomic::Ordering::Release);
    node.bells.ring(0, target.qpn);
    world.settle();
    let now = node.query_qp(0, target.qpn).expect("QUERY_QP");
    assert_eq!(now.state, state::RTS);
    to_state(node, &target, state::ERR).expect("ERR");
    world.settle();
    to_state(node, &target, state::RESET).expect("RESET");
}

#[test]
fn the_limit_of_domains_is_kept_and_the_feature_asked_for() {
    let mut options = Options::default();
    options.limits.xrcds = 3;
    let world = World::with(Kind::Loopback, &options);
    let node = world.a();
    assert_eq!(node.limits().max_xrcd, 3);
    let first = node.alloc_xrcd().expect("ALLOC_XRCD");
    for _ in 1..3 {
        node.alloc_xrcd().expect("ALLOC_XRCD");
    }
    assert_eq!(node.alloc_xrcd(), Err(Status::NoResource));
    node.dealloc_xrcd(first).expect("DEALLOC_XRCD");
    assert_ne!(node.alloc_xrcd().expect("ALLOC_XRCD"), first);

    options.features &= !feature::XRC;
    let world = World::with(Kind::Loopback, &options);
    let node = world.a();
    let process = process(node);
    let unsupported = Some(Status::Unsupported);
    assert_eq!(node.limits().max_xrcd, 0);
    assert_eq!(node.alloc_xrcd().err(), unsupported);
    assert_eq!(node.dealloc_xrcd(1).err(), unsupported);
    let srq = node.create_xrc_srq(process.me, process.pd, 4, (process.cq, 1));
    assert_eq!(srq.err(), unsupported);
    for options in [QpOptions::xrc_initiator(), QpOptions::xrc_target(1)] {
        let qp = node.create_qp(KERNEL, 0, 0, 0, &options);
        assert_eq!(qp.err(), unsupported);
    }
}
