//! Completion queues and queue pairs, and the states of the latter.

use super::*;
use crate::rdma::events::EventKind;
use crate::rdma::fabric::frame::{FrameHeader, flag, kind, nak};
use crate::rdma::fabric::pair::{OTHER, pair};
use crate::rdma::fabric::test_utils::TestSink;
use crate::rdma::objects::QpState;
use crate::rdma::wire::*;

const TO_INIT: u32 = qp_mask::STATE | qp_mask::PKEY_INDEX | qp_mask::PORT | qp_mask::ACCESS;
const TO_RTR: u32 = qp_mask::STATE
    | qp_mask::AV
    | qp_mask::PATH_MTU
    | qp_mask::DEST_QPN
    | qp_mask::RQ_PSN
    | qp_mask::MAX_DEST_RD_ATOMIC
    | qp_mask::MIN_RNR_TIMER;
const TO_RTS: u32 = qp_mask::STATE
    | qp_mask::TIMEOUT
    | qp_mask::RETRY_CNT
    | qp_mask::RNR_RETRY
    | qp_mask::SQ_PSN
    | qp_mask::MAX_QP_RD_ATOMIC;

#[test]
fn completion_queues_that_cannot_be_are_refused() {
    let mut rig = Rig::new();
    let cases: [(Change<'_, CreateCqBody>, u32); 12] = [
        (&|c| c.entries = Le32::new(0), INVALID),
        (&|c| c.entries = Le32::new(12), INVALID),
        (&|c| c.entries = Le32::new(128), INVALID),
        (&|c| c.vector = Le32::new(2), INVALID),
        (&|c| c.vector = Le32::new(65_536), INVALID),
        (&|c| c.buffer.num_pages = Le32::new(2), INVALID),
        (&|c| c.buffer.length = Le64::new(2 * PAGE), INVALID),
        (&|c| c.ctrl_offset = Le64::new(0x820), INVALID),
        (&|c| c.ctrl_offset = Le64::new(0x3c0), INVALID),
        (&|c| c.ctrl_offset = Le64::new(u64::MAX - 63), INVALID),
        (&|c| c.ring_offset = Le64::new(0xc40), INVALID),
        (&|c| c.ring_offset = Le64::new(0x440), INVALID),
    ];
    for (i, (change, want)) in cases.into_iter().enumerate() {
        let body = cq_body(change);
        assert_eq!(rig.ask(0, opcode::CREATE_CQ, &body), Err(want), "case {i}");
    }
    let mut outside = cq_body(|_| ());
    outside[48..].copy_from_slice(&RAM.to_le_bytes());
    assert_eq!(rig.ask(0, opcode::CREATE_CQ, &outside), Err(BAD_ADDRESS));
    for entries in [1, 16] {
        let body = cq_body(|c| c.entries = Le32::new(entries));
        assert!(rig.ask(0, opcode::CREATE_CQ, &body).is_ok());
    }
    for _ in 0..2 {
        rig.cq(0);
    }
    let fifth = rig.ask(0, opcode::CREATE_CQ, &cq_body(|_| ()));
    assert_eq!(fifth, Err(NO_RESOURCE));
}

#[test]
fn queue_pairs_that_cannot_be_are_refused() {
    let mut rig = Rig::new();
    let (pd, cq) = (rig.pd(0), rig.cq(0));
    let cases: [(Change<'_, CreateQpBody>, u32); 25] = [
        (&|q| q.kind = Le32::new(qp_type::XRC_INI), INVALID),
        (&|q| q.kind = Le32::new(5), INVALID),
        (&|q| q.srq = Le32::new(1), INVALID),
        (&|q| q.xrcd = Le32::new(1), INVALID),
        (&|q| q.flags = Le32::new(2), INVALID),
        (&|q| q.pd = Le32::new(99), NOT_FOUND),
        (&|q| q.send_cq = Le32::new(99), NOT_FOUND),
        (&|q| q.recv_cq = Le32::new(0), NOT_FOUND),
        (&|q| q.sq_entries = Le32::new(12), INVALID),
        (&|q| q.sq_entries = Le32::new(32), INVALID),
        (&|q| q.rq_entries = Le32::new(1 << 31), INVALID),
        (&|q| q.sq_stride = Le32::new(32), INVALID),
        (&|q| q.sq_stride = Le32::new(2048), INVALID),
        (&|q| q.sq_stride = Le32::new(0), INVALID),
        (&|q| q.rq_stride = Le32::new(2048), INVALID),
        (&|q| q.max_send_sge = Le32::new(13), INVALID),
        (&|q| q.max_send_sge = Le32::new(u32::MAX), INVALID),
        (&|q| q.max_recv_sge = Le32::new(4), INVALID),
        (&|q| q.max_inline = Le32::new(193), INVALID),
        (&|q| q.sq_offset = Le64::new(0x80), INVALID),
        (&|q| q.rq_offset = Le64::new(0xc00), INVALID),
        (&|q| q.rq_offset = Le64::new(0x2c80), INVALID),
        (&|q| q.ctrl_offset = Le64::new(0x2f40), INVALID),
        (&|q| q.ctrl_offset = Le64::new(!63), INVALID),
        (&|q| q.buffer.offset = Le64::new(0x800), INVALID),
    ];
    for (i, (change, want)) in cases.into_iter().enumerate() {
        let body = qp_body(pd, cq, change);
        assert_eq!(rig.ask(0, opcode::CREATE_QP, &body), Err(want), "case {i}");
    }
    assert_eq!(rig.counts()[2], 0);
    let none = qp_body(pd, cq, |q| {
        q.sq_entries = Le32::new(0);
        q.rq_entries = Le32::new(0);
    });
    assert!(rig.ask(0, opcode::CREATE_QP, &none).is_ok());
    let qpn = rig.qp(0, pd, cq);
    assert!((2..1 << 24).contains(&qpn));
    assert_eq!(rig.query(qpn).state, QpState::Reset as u8);
}

#[test]
fn a_queue_pair_goes_through_its_states_and_keeps_its_attributes() {
    let mut rig = Rig::new();
    let (pd, cq) = (rig.pd(0), rig.cq(0));
    let qpn = rig.qp(0, pd, cq);
    rig.add_gid(1).unwrap();
    rig.modify(qpn, TO_INIT, |a| {
        a.state = 1;
        a.access = Le32::new(access::REMOTE_READ);
    })
    .unwrap();
    rig.modify(qpn, TO_RTR, |a| {
        a.state = 2;
        a.sgid_index = 1;
        a.dgid = [7; 16];
        a.dest_qpn = Le32::new(5);
        a.rq_psn = Le32::new(0x1ff_ffff);
    })
    .unwrap();
    rig.modify(qpn, TO_RTS, |a| {
        a.state = 3;
        a.sq_psn = Le32::new(9);
    })
    .unwrap();
    let now = rig.query(qpn);
    assert_eq!((now.state, now.mask.get()), (3, qp_mask::ALL));
    assert_eq!((now.dest_qpn.get(), now.dgid), (5, [7; 16]));
    assert_eq!((now.rq_psn.get(), now.sq_psn.get()), (0xff_ffff, 9));
    assert_eq!((now.timeout, now.min_rnr_timer), (14, 12));
    rig.modify(qpn, 1, |a| a.state = 0).unwrap();
    let reset = rig.query(qpn);
    assert_eq!((reset.state, reset.dest_qpn.get()), (0, 0));
}

#[test]
fn a_refused_modify_changes_nothing() {
    let mut rig = Rig::new();
    let (pd, cq) = (rig.pd(0), rig.cq(0));
    let qpn = rig.qp(0, pd, cq);
    rig.add_gid(1).unwrap();
    rig.modify(qpn, TO_INIT, |a| a.state = 1).unwrap();
    let before = rig.query(qpn);
    let cases: [(u32, Change<'_, QpAttributesBody>, u32); 18] = [
        (TO_RTR & !qp_mask::AV, &|_| (), INVALID),
        (TO_RTR | qp_mask::TIMEOUT, &|_| (), INVALID),
        (TO_RTR | 0x4000, &|_| (), INVALID),
        (TO_RTR | qp_mask::CUR_STATE, &|a| a.cur_state = 1, INVALID),
        (TO_RTR | qp_mask::CUR_STATE, &|a| a.cur_state = 3, BAD_STATE),
        (TO_RTR, &|a| a.state = 3, BAD_STATE),
        (TO_RTR, &|a| a.state = 7, INVALID),
        (TO_RTR, &|a| a.sgid_index = 0, INVALID),
        (TO_RTR, &|a| a.sgid_index = 255, INVALID),
        (TO_RTR, &|a| a.path_mtu = 0, INVALID),
        (TO_RTR, &|a| a.path_mtu = 6, INVALID),
        (TO_RTR, &|a| a.dest_qpn = Le32::new(1 << 24), INVALID),
        (TO_RTR, &|a| a.min_rnr_timer = 32, INVALID),
        (TO_RTR, &|a| a.max_dest_rd_atomic = 17, INVALID),
        (TO_RTR, &|a| a.sl = 16, INVALID),
        (TO_RTR, &|a| a.flow_label = Le32::new(1 << 20), INVALID),
        (TO_RTR, &|a| a.sq_draining = 1, INVALID),
        (TO_RTR, &|a| a.qpn = Le32::new(1), NOT_FOUND),
    ];
    for (i, (mask, change, want)) in cases.into_iter().enumerate() {
        let result = rig.modify(qpn, mask, |a| {
            a.state = 2;
            a.sgid_index = 1;
            change(a);
        });
        assert_eq!(result, Err(want), "case {i}");
        assert_eq!(rig.query(qpn), before, "case {i}");
    }
}

#[test]
fn an_overflow_fails_the_queue_pairs_of_the_cq_and_no_others() {
    let mut rig = Rig::new();
    let (pd, cq, other) = (rig.pd(0), rig.cq(0), rig.cq(0));
    let bound = rig.qp(0, pd, cq);
    let free = rig.qp(0, pd, other);
    for qpn in [bound, free] {
        rig.modify(qpn, TO_INIT, |a| a.state = 1).unwrap();
    }
    // The ring has 16 entries; flushed receives do not fit. Both queues lie in the same pages, so both have receives posted.
    rig.ram.write32(0x4040, 16);
    rig.modify(bound, 1, |a| a.state = 6).unwrap();
    while rig.device.poll() {}
    assert!(!rig.device.objects().cqs.has_failed(cq));
    rig.ram.write32(0x4040, 32);
    rig.device.doorbell(0);
    while rig.device.poll() {}
    assert!(rig.device.objects().cqs.has_failed(cq));
    assert_eq!(rig.query(free).state, QpState::Init as u8);
    let events = std::mem::take(&mut rig.seen.lock().unwrap().events);
    let kinds: Vec<_> = events.iter().map(|e| (e.kind, e.handle)).collect();
    assert_eq!(kinds, [(EventKind::CqErr, cq), (EventKind::QpFatal, bound)]);
}

#[test]
fn a_reset_tells_peers_what_they_wait_for_in_vain() {
    const PEER_GID: [u8; 16] = [7; 16];
    const PAGES: u32 = 128;
    let (near, mut far, _) = pair().unwrap();
    let mut rig = Rig::with_fabric(near, small(), DeviceConfig::FEATURES);
    far.announce(&[PEER_GID]);
    rig.add_gid(0).unwrap();
    let (pd, cq) = (rig.pd(0), rig.cq(0));
    let qpn = rig.qp(0, pd, cq);
    let pages: Vec<u64> = (0..u64::from(PAGES)).map(|n| 0x8000 + n * PAGE).collect();
    let region = mr_body(pd, &pages, |mr| {
        mr.access = Le32::new(access::REMOTE_READ);
        mr.iova = Le64::new(0);
    });
    let rkey = rig.ask_handle(0, opcode::REG_MR, &region).unwrap();
    rig.modify(qpn, TO_INIT, |a| {
        a.state = QpState::Init as u8;
        a.access = Le32::new(access::REMOTE_READ);
    })
    .unwrap();
    rig.modify(qpn, TO_RTR, |a| {
        a.state = QpState::Rtr as u8;
        a.dest_qpn = Le32::new(0x77);
        a.dgid = PEER_GID;
    })
    .unwrap();
    let read = FrameHeader {
        kind: kind::READ,
        flags: flag::LAST,
        dst_qpn: qpn,
        src_qpn: 0x77,
        rkey,
        msg_len: PAGES * PAGE as u32,
        ..FrameHeader::default()
    };
    far.send(OTHER, &read, &[], &[]).unwrap();
    rig.device.poll();

    rig.device.reset();

    let mut answers = TestSink {
        discard: true,
        ..TestSink::default()
    };
    while far.poll(&mut answers) {}
    let answers = answers.headers();
    let (last, data) = answers.split_last().unwrap();
    assert!(data.iter().all(|frame| frame.kind == kind::READ_DATA));
    assert!(data.iter().all(|frame| frame.flags & flag::LAST == 0));
    let refusal = FrameHeader {
        kind: kind::NAK,
        dst_qpn: 0x77,
        src_qpn: qpn,
        rkey: nak::NO_QP,
        ..FrameHeader::default()
    };
    assert_eq!(*last, refusal);
}
