//! Contexts, what each owns, and the end of it all.

use super::*;
use crate::rdma::wire::*;

#[test]
fn only_the_kernel_makes_contexts_and_fills_gids() {
    let mut rig = Rig::new();
    let user = rig.context();
    assert_eq!(rig.ask(user, opcode::CREATE_CONTEXT, &[]), Err(DENIED));
    assert_eq!(rig.on(user, opcode::DESTROY_CONTEXT, user), Err(DENIED));
    assert_eq!(rig.ask(user, opcode::ADD_GID, &[0; 32]), Err(DENIED));
    assert_eq!(rig.on(user, opcode::DEL_GID, 0), Err(DENIED));
    assert_eq!(rig.on(0, opcode::DESTROY_CONTEXT, 0), Err(INVALID));
    assert_eq!(rig.on(0, opcode::DESTROY_CONTEXT, user + 1), Err(NOT_FOUND));
}

#[test]
fn contexts_have_pages_of_their_own_within_the_limit() {
    let mut rig = Rig::new();
    let contexts: Vec<u32> = (0..3).map(|_| rig.context()).collect();
    assert_eq!(rig.seen.lock().unwrap().open, [1, 2, 3]);
    assert_eq!(rig.ask(0, opcode::CREATE_CONTEXT, &[]), Err(NO_RESOURCE));
    rig.on(0, opcode::DESTROY_CONTEXT, contexts[1]).unwrap();
    assert_eq!(rig.seen.lock().unwrap().open, [1, 3]);
    let again = rig.context();
    assert_ne!(again, contexts[1]);
    rig.on(0, opcode::DESTROY_CONTEXT, again).unwrap();
    rig.seen.lock().unwrap().refuse_doorbells = true;
    assert_eq!(rig.ask(0, opcode::CREATE_CONTEXT, &[]), Err(NO_RESOURCE));
    assert_eq!(rig.counts()[0], 2);
}

#[test]
fn references_across_owners_are_denied() {
    let mut rig = Rig::new();
    let (a, b) = (rig.context(), rig.context());
    let (pd, cq) = (rig.pd(a), rig.cq(a));
    let (own_pd, own_cq) = (rig.pd(b), rig.cq(b));
    let (mr, qp) = (rig.mr(a, pd), rig.qp(a, pd, cq));
    for other in [b, 0] {
        assert_eq!(rig.on(other, opcode::DESTROY_PD, pd), Err(DENIED));
        assert_eq!(rig.on(other, opcode::DESTROY_CQ, cq), Err(DENIED));
        assert_eq!(rig.on(other, opcode::DESTROY_QP, qp), Err(DENIED));
        assert_eq!(rig.on(other, opcode::QUERY_QP, qp), Err(DENIED));
        assert_eq!(rig.on(other, opcode::DEREG_MR, mr), Err(DENIED));
        assert_eq!(rig.on(other, opcode::MR_COMMIT, mr), Err(DENIED));
        assert_eq!(rig.modify(qp, 1, |_| ()), Err(DENIED));
        let body = mr_body(pd, &[0x8000], |_| ());
        assert_eq!(rig.ask(other, opcode::REG_MR, &body), Err(DENIED));
    }
    for body in [qp_body(pd, own_cq, |_| ()), qp_body(own_pd, cq, |_| ())] {
        assert_eq!(rig.ask(b, opcode::CREATE_QP, &body), Err(DENIED));
    }
    assert_eq!(rig.counts(), [2, 2, 1, 1]);
}

#[test]
fn what_is_referred_to_is_busy() {
    let mut rig = Rig::new();
    let (pd, cq) = (rig.pd(0), rig.cq(0));
    let mr = rig.mr(0, pd);
    assert_eq!(rig.on(0, opcode::DESTROY_PD, pd), Err(BUSY));
    let qp = rig.qp(0, pd, cq);
    rig.on(0, opcode::DEREG_MR, mr).unwrap();
    assert_eq!(rig.on(0, opcode::DESTROY_PD, pd), Err(BUSY));
    assert_eq!(rig.on(0, opcode::DESTROY_CQ, cq), Err(BUSY));
    rig.on(0, opcode::DESTROY_QP, qp).unwrap();
    assert_eq!(rig.on(0, opcode::DESTROY_QP, qp), Err(NOT_FOUND));
    rig.on(0, opcode::DESTROY_CQ, cq).unwrap();
    rig.on(0, opcode::DESTROY_PD, pd).unwrap();
    assert_eq!(rig.on(0, opcode::DESTROY_PD, pd), Err(NOT_FOUND));
}

#[test]
fn the_end_of_a_context_ends_all_that_it_owned() {
    let mut rig = Rig::new();
    let (keep, end) = (rig.context(), rig.context());
    for context in [keep, end] {
        let (pd, cq) = (rig.pd(context), rig.cq(context));
        rig.mr(context, pd);
        rig.qp(context, pd, cq);
    }
    rig.on(0, opcode::DESTROY_CONTEXT, end).unwrap();
    assert_eq!(rig.counts(), [1, 1, 1, 1]);
    assert_eq!(rig.ask(end, opcode::CREATE_PD, &[]), Err(NOT_FOUND));
    rig.on(0, opcode::DESTROY_CONTEXT, keep).unwrap();
    assert_eq!(rig.counts(), [0; 4]);
    assert_eq!(rig.device.stats().snapshot().qps.len(), 0);
    // All limits are free again, PDs among them.
    for _ in 0..4 {
        rig.pd(0);
    }
}

#[test]
fn a_reset_drops_everything() {
    let mut rig = Rig::new();
    let user = rig.context();
    let (pd, cq) = (rig.pd(user), rig.cq(user));
    rig.mr(user, pd);
    rig.qp(user, pd, cq);
    rig.add_gid(0).unwrap();
    rig.device.reset();
    assert_eq!(rig.counts(), [0; 4]);
    assert!(rig.seen.lock().unwrap().open.is_empty());
    rig.add_gid(0).unwrap();
}

#[test]
fn the_statistics_tell_how_many_objects_there_are() {
    let mut rig = Rig::new();
    let user = rig.context();
    let (pd, cq) = (rig.pd(user), rig.cq(user));
    rig.mr(user, pd);
    rig.qp(user, pd, cq);
    let xrcd = rig.ask_handle(0, opcode::ALLOC_XRCD, &[]).unwrap();
    let shown = rig.shown();
    assert!(shown.mr_entries >= 3, "{shown:?}");
    let there = ObjectSnapshot {
        contexts: 1,
        pds: 1,
        mrs: 1,
        cqs: 1,
        qps: 1,
        xrcds: 1,
        mr_entries: shown.mr_entries,
        ..ObjectSnapshot::default()
    };
    assert_eq!(shown, there);
    // What is refused changes nothing.
    assert_eq!(rig.on(user, opcode::DESTROY_PD, pd), Err(BUSY));
    assert_eq!(rig.shown(), there);
    rig.on(0, opcode::DESTROY_CONTEXT, user).unwrap();
    // Domains are the kernel's.
    assert_eq!(rig.shown().xrcds, 1);
    rig.on(0, opcode::DEALLOC_XRCD, xrcd).unwrap();
    assert_eq!(rig.shown(), ObjectSnapshot::default());

    let user = rig.context();
    rig.pd(user);
    let stats = rig.device.stats();
    drop(rig);
    assert_eq!(stats.snapshot().objects, ObjectSnapshot::default());
}
