//! States of a queue pair over each transport: points 20, 21 and 44. (RC's table is walked in `objects/states.rs`.)

use std::time::Duration;

use conformance::layout::{QpAttributes, Sge, Status, access, mask, qp_type, send, state, wc};
use conformance::node::QpOptions;
use conformance::on_every_fabric;
use conformance::rings::SendWr;
use conformance::side::{
    Connection, Side, SideOptions, connect, silence, success, to_rts, to_state,
};
use conformance::watchdog::Watchdog;
use conformance::world::{Kind, World};

use super::{KINDS, addressed};

/// Two sides with QPs of a type: the first one's in a state, the other's in RTS.
pub fn in_state(world: &World, kind: u32, to: u8) -> (Side, Side) {
    let options = SideOptions {
        qp: QpOptions {
            kind,
            ..Default::default()
        },
        mr_len: 4096,
        ..Default::default()
    };
    let mut a = Side::new(world.a(), &options);
    let b = Side::new(world.b(), &options);
    let connection = Connection::default();
    let far = (a.qp.qpn, a.node.gid);
    for step in connection.steps(&b.qp, 1, far) {
        b.node.modify_qp(b.qp.context, &step).expect("to RTS");
    }
    let steps = connection.steps(&a.qp, 0, (b.qp.qpn, b.node.gid));
    let count = match to {
        state::RESET | state::ERR => 0,
        state::INIT => 1,
        state::RTR => 2,
        _ => 3,
    };
    for step in &steps[..count] {
        a.node.modify_qp(a.qp.context, step).expect("towards RTS");
    }
    match to {
        state::SQD | state::ERR => to_state(&a.node, &a.qp, to).expect("SQD or ERR"),
        state::SQE => {
            let bad = [Sge {
                lkey: 0,
                ..a.mr.sge(0, 8)
            }];
            let wr = SendWr::signaled(1, send::SEND).with_sges(&bad);
            a.send(&addressed(wr, &b));
            let cqe = world.until("a send that fails", || a.poll());
            assert_eq!(cqe.status, wc::LOC_PROT_ERR);
        }
        _ => {}
    }
    assert_eq!(a.state(), to, "type {kind}");
    (a, b)
}

/// Attributes that a transition of UC or UD needs, and those that it allows beside; None where there is no such transition.
fn rule(kind: u32, from: u8, to: u8) -> Option<(u32, u32)> {
    use state::{ERR, INIT, RESET, RTR, RTS, SQD, SQE};
    let uc = kind == qp_type::UC;
    let often = if uc { mask::ACCESS } else { mask::QKEY };
    Some(match (from, to) {
        (_, RESET | ERR) => (0, 0),
        (RESET, INIT) => (mask::PKEY_INDEX | mask::PORT | often, 0),
        (INIT, INIT) => (0, mask::PKEY_INDEX | mask::PORT | often),
        (INIT, RTR) if uc => (
            mask::AV | mask::PATH_MTU | mask::DEST_QPN | mask::RQ_PSN,
            mask::PKEY_INDEX | often,
        ),
        (INIT, RTR) => (0, mask::PKEY_INDEX | often),
        (RTR, RTS) => (mask::SQ_PSN, often),
        (RTS | SQD | SQE, RTS) => (0, often),
        (RTS, SQD) => (0, mask::EN_SQD_ASYNC),
        (SQD, SQD) if uc => (0, mask::AV | mask::PKEY_INDEX | often),
        (SQD, SQD) => (0, mask::PKEY_INDEX | often),
        _ => return None,
    })
}

on_every_fabric! {
    fn semantics_20_the_state_table_of_uc_and_ud(world: &World) {
        use state::{ERR, INIT, RESET, RTR, RTS, SQD, SQE};
        let all = mask::EN_SQD_ASYNC | mask::ACCESS | mask::PKEY_INDEX | mask::PORT | mask::QKEY | mask::AV | mask::PATH_MTU
            | mask::TIMEOUT | mask::RETRY_CNT | mask::RNR_RETRY | mask::RQ_PSN | mask::MAX_RD_ATOMIC | mask::MIN_RNR_TIMER
            | mask::SQ_PSN | mask::MAX_DEST_RD_ATOMIC | mask::DEST_QPN;
        for kind in [qp_type::UC, qp_type::UD] {
            for from in [RESET, INIT, RTR, RTS, SQD, SQE, ERR] {
                for to in [RESET, INIT, RTR, RTS, SQD, SQE, ERR] {
                    let (a, b) = in_state(world, kind, from);
                    let context = a.context.handle;
                    let query = || a.node.query_qp(context, a.qp.qpn).expect("QUERY_QP");
                    let before = query();
                    let change = |bits| a.node.modify_qp(context, &QpAttributes {
                        qpn: a.qp.qpn,
                        mask: mask::STATE | bits,
                        state: to,
                        path_mtu: 3,
                        port: 1,
                        access: access::REMOTE_READ,
                        qkey: 77,
                        dest_qpn: b.qp.qpn,
                        dgid: b.node.gid,
                        ..Default::default()
                    });
                    let refused = |bits: u32| {
                        let result = change(bits);
                        assert!(matches!(result, Err(Status::Invalid | Status::BadState)), "type {kind}, {from} to {to} with {bits:#x}: {result:?}");
                        assert_eq!(query(), before, "type {kind}, {from} to {to} with {bits:#x} changed something");
                    };
                    match rule(kind, from, to) {
                        None => refused(0),
                        Some((required, optional)) => {
                            for bit in (0..21).map(|n| 1 << n).filter(|bit| all & bit != 0) {
                                if required & bit != 0 {
                                    refused(required & !bit);
                                } else if optional & bit == 0 {
                                    refused(required | bit);
                                }
                            }
                            change(required | optional).unwrap_or_else(|status| panic!("type {kind}, {from} to {to}: {status:?}"));
                            assert_eq!(query().state, to);
                        }
                    }
                    for side in [a, b] {
                        side.node.destroy_context(side.context).expect("DESTROY_CONTEXT");
                    }
                }
            }
        }
    }

    fn semantics_21_nothing_is_sent_before_rts(world: &World) {
        let time = Duration::from_millis(10);
        for kind in KINDS {
            for before in [state::INIT, state::RTR] {
                let (mut a, mut b) = in_state(world, kind, before);
                world.settle();
                b.recv(1, 0, 100);
                // A process may write what it likes into its ring; verbs say EINVAL.
                a.send(&addressed(SendWr::signaled(1, send::SEND).with_inline(b"early"), &b));
                silence(world, &mut b, time, "something came of a QP that may not send");
                assert!(a.poll().is_none());
                assert_eq!(a.state(), before);
                let steps = Connection::default().steps(&a.qp, 0, (b.qp.qpn, b.node.gid));
                for step in &steps[before as usize..] {
                    a.node.modify_qp(a.qp.context, step).expect("to RTS");
                }
                success(world, &mut b, "in RTS it is");
                success(world, &mut a, "in RTS it is sent");
            }
        }
    }

    fn semantics_21_receives_are_taken_in_init_and_served_in_rtr(world: &World) {
        for kind in KINDS {
            let (mut a, mut b) = in_state(world, kind, state::INIT);
            world.settle();
            a.recv(9, 0, 100);
            let steps = Connection::default().steps(&a.qp, 0, (b.qp.qpn, b.node.gid));
            a.node.modify_qp(a.qp.context, &steps[1]).expect("RTR");
            b.send(&addressed(SendWr::signaled(1, send::SEND).with_inline(b"in RTR"), &a));
            assert_eq!(success(world, &mut a, "the receive").wr_id, 9);
            success(world, &mut b, "the send");
            assert_eq!(a.state(), state::RTR, "type {kind}");
        }
    }
}

/// An address that goes takes nobody's queue along for ever, and its return is enough.
#[test]
fn semantics_44_no_qp_is_stuck_when_an_address_goes_and_comes_back() {
    let _watchdog = Watchdog::new("addresses");
    let connection = Connection {
        timeout: 12,
        retry_cnt: 3,
        ..Default::default()
    };
    for kind in [Kind::Pair, Kind::Tcp] {
        let world = World::new(kind);
        let options = SideOptions::default();
        world.b().del_gid(0).expect("DEL_GID");
        world.settle();
        let mut near = Side::new(world.a(), &options);
        let mut far = Side::new(world.b(), &options);
        to_rts(
            &near.node,
            &near.qp,
            0,
            (far.qp.qpn, far.node.gid),
            &connection,
        );
        near.send(&SendWr::signaled(1, send::SEND).with_inline(b"nobody"));
        let cqe = world.until("the end of patience", || near.poll());
        assert_eq!((cqe.wr_id, cqe.status), (1, wc::RETRY_EXC_ERR));
        world.b().add_gid(0, world.b().gid).expect("ADD_GID");
        to_state(&near.node, &near.qp, state::RESET).expect("RESET");
        near.qp.reset_indices();
        connect(
            (&near.node, &near.qp),
            (&far.node, &far.qp),
            &Connection::default(),
        );
        far.recv(1, 0, 100);
        near.send(&SendWr::signaled(2, send::SEND).with_inline(b"back"));
        success(&world, &mut near, "the address is back");
        success(&world, &mut far, "the receive");
    }
}
