//! Registrations, in one command and in several.

use zerocopy::IntoBytes;

use super::*;
use crate::rdma::memory::Scope;
use crate::rdma::wire::*;
use crate::rdma::{DeviceConfig, Limits};

#[test]
fn a_failed_registration_leaves_nothing_behind() {
    let mut rig = Rig::new();
    let pd = rig.pd(0);
    let cases: [(&[u64], Change<'_, RegMrBody>, u32); 11] = [
        (&[0x8000, RAM], &|_| (), BAD_ADDRESS),
        (&[0x8010], &|_| (), BAD_ADDRESS),
        (&[0x8000], &|m| m.num_entries = Le32::new(2), INVALID),
        (&[0x8000], &|m| m.num_entries = Le32::new(0), INVALID),
        (&[0x8000], &|m| m.total_entries = Le32::new(9), INVALID),
        (&[0x8000], &|m| m.length = Le64::new(PAGE + 1), INVALID),
        (&[0x8000], &|m| m.flags = 4, INVALID),
        (&[0x8000], &|m| m.flags = mr_flag::EXTENTS, INVALID),
        (&[0x8000], &|m| m.reserved1 = Le32::new(1), INVALID),
        (&[0x8000], &|m| m.access = Le32::new(32), INVALID),
        (&[0x8000], &|m| m.pd = Le32::new(99), NOT_FOUND),
    ];
    for (i, (pages, change, want)) in cases.into_iter().enumerate() {
        let body = mr_body(pd, pages, change);
        assert_eq!(rig.ask(0, opcode::REG_MR, &body), Err(want), "case {i}");
    }
    assert_eq!(rig.ask(0, opcode::REG_MR, &[0; 47]), Err(INVALID));
    assert_eq!(rig.counts()[3], 0);
    rig.on(0, opcode::DESTROY_PD, pd).unwrap();
}

#[test]
fn a_list_in_parts_is_appended_and_committed() {
    let mut rig = Rig::new();
    let pd = rig.pd(0);
    let body = mr_body(pd, &[0x8000], |m| {
        m.flags = mr_flag::MORE;
        m.total_entries = Le32::new(3);
        m.length = Le64::new(3 * PAGE);
    });
    let key = rig.ask_handle(0, opcode::REG_MR, &body).unwrap();
    assert_eq!(rig.on(0, opcode::MR_COMMIT, key), Err(IN_PROGRESS));
    let part = |count: u32, pages: &[u64]| {
        let head = MrAppendBody {
            lkey: Le32::new(key),
            num_entries: Le32::new(count),
        };
        with_pages(head.as_bytes(), pages)
    };
    let (two, three) = (&[0x9000, 0xb000][..], &[0x9000, 0xa000, 0xb000][..]);
    assert_eq!(rig.ask(0, opcode::MR_APPEND, &part(1, two)), Err(INVALID));
    assert_eq!(rig.ask(0, opcode::MR_APPEND, &part(3, three)), Err(INVALID));
    assert_eq!(rig.ask(0, opcode::MR_APPEND, &[0; 7]), Err(INVALID));
    assert_eq!(rig.ask(0, opcode::MR_APPEND, &part(2, two)), Ok(vec![]));
    rig.on(0, opcode::MR_COMMIT, key).unwrap();
    assert_eq!(rig.on(0, opcode::MR_COMMIT, key), Err(BAD_STATE));
    let memory = &rig.device.objects().memory;
    let who = Scope {
        pd,
        context: 0,
        qp: 0,
    };
    assert_eq!(memory.check(&who, key, 0, 0x5000, 3 * PAGE), Ok(()));
    rig.on(0, opcode::DEREG_MR, key).unwrap();
    assert_eq!(rig.on(0, opcode::DEREG_MR, key), Err(NOT_FOUND));
}

#[test]
fn queues_and_regions_share_what_may_be_registered() {
    let limits = Limits {
        mr_entries: 4,
        ..small()
    };
    let mut rig = Rig::with(limits, DeviceConfig::FEATURES);
    let (pd, cq) = (rig.pd(0), rig.cq(0));
    let qp = rig.qp(0, pd, cq);
    let region = mr_body(pd, &[0x8000], |_| ());
    let another_cq = cq_body(|_| ());
    let another_qp = qp_body(pd, cq, |_| ());
    for (opcode, body) in [
        (opcode::REG_MR, &region),
        (opcode::CREATE_CQ, &another_cq),
        (opcode::CREATE_QP, &another_qp),
    ] {
        assert_eq!(rig.ask(0, opcode, body), Err(NO_RESOURCE));
    }
    rig.on(0, opcode::DESTROY_QP, qp).unwrap();
    rig.mr(0, pd);
    assert_eq!(rig.ask(0, opcode::CREATE_QP, &another_qp), Err(NO_RESOURCE));
    rig.on(0, opcode::DESTROY_CQ, cq).unwrap();
    for _ in 0..3 {
        rig.cq(0);
    }
    assert_eq!(rig.ask(0, opcode::CREATE_CQ, &another_cq), Err(NO_RESOURCE));
}
