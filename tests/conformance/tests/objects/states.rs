//! The state table of a queue pair, and the attributes of each transition.

use conformance::layout::{QpAttributes, Status, access, event, mask, state};
use conformance::side::{Connection, Side, SideOptions, to_state};
use conformance::world::World;

use super::loopback;

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
fn semantics_20_the_state_table_is_enforced_and_a_refusal_changes_nothing() {
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
            access: 0x400,
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
fn each_change_to_sqd_that_asks_for_an_event_gets_one_and_no_other_does() {
    let (world, _watchdog) = loopback();
    let (a, _b) = qp_in(&world, state::RTS);
    let node = &a.node;
    node.events.take_asynchronous();
    for asks in [true, false, true, true, false] {
        let sqd = QpAttributes {
            qpn: a.qp.qpn,
            mask: mask::STATE | if asks { mask::EN_SQD_ASYNC } else { 0 },
            state: state::SQD,
            en_sqd_async: u8::from(asks),
            ..Default::default()
        };
        node.modify_qp(a.context.handle, &sqd).expect("SQD");
        world.settle();
        let wanted = [(event::SQ_DRAINED, a.qp.qpn)];
        let wanted = if asks { &wanted[..] } else { &[] };
        assert_eq!(node.events.take_asynchronous(), wanted);
        let said = node.query_qp(a.context.handle, a.qp.qpn).expect("QUERY_QP");
        assert_eq!(said.en_sqd_async, u8::from(asks));
        to_state(node, &a.qp, state::RTS).expect("RTS");
    }
}
