//! Memory windows of types 1 and 2 (2B).

use conformance::layout::{Status, access, cqe_flag, send, state, wc, wc_opcode};
use conformance::node::{Mr, Node, QpOptions};
use conformance::rings::SendWr;
use conformance::side::{Connection, Side, SideOptions, connect, sides, success};
use conformance::world::{Kind, Options, World};
use devices::rdma::device::DeviceConfig;
use devices::rdma::wire::feature;

use super::{EVERY, done, watched, works, write};

const WRITE: u32 = access::REMOTE_WRITE;
const READ: u32 = access::REMOTE_READ;
const ZERO_BASED: u32 = 32;

/// The key with the next tag.
pub(super) fn next(key: u32) -> u32 {
    key & !0xff | (key + 1) & 0xff
}

/// Whether a WRITE of 8 bytes gets through; if not, both QPs are in ERR.
fn writes(world: &World, a: &mut Side, key: u32, addr: u64) -> bool {
    let sges = [a.mr.sge(0, 8)];
    let cqe = done(world, a, &write(&sges, key, addr));
    assert!(
        matches!(cqe.status, wc::SUCCESS | wc::REM_ACCESS_ERR),
        "{cqe:?}"
    );
    cqe.status == wc::SUCCESS
}

/// A connection that ends with the value, before its memory is used for something else.
pub(super) struct Other {
    pub(super) near: Side,
    pub(super) far: Side,
}

impl Drop for Other {
    fn drop(&mut self) {
        for side in [&self.near, &self.far] {
            side.node
                .destroy_qp(side.context, side.qp.qpn)
                .expect("DESTROY_QP");
            side.node
                .destroy_cq(side.context, side.cq.cqn)
                .expect("DESTROY_CQ");
            side.node
                .dereg_mr(side.context, side.mr.key)
                .expect("DEREG_MR");
        }
    }
}

/// Another connection of the same transport to the same process at the far side, in the same PD.
pub(super) fn another(world: &World, b: &Side) -> Other {
    let options = SideOptions {
        qp: QpOptions {
            kind: b.qp.kind,
            ..QpOptions::default()
        },
        ..SideOptions::default()
    };
    let a = Side::new(world.a(), &options);
    let cq = b.node.create_cq(b.context, 64, 0).expect("a CQ");
    let qp = b
        .node
        .create_qp(b.context, b.pd, cq.cqn, cq.cqn, &options.qp)
        .expect("a QP");
    let far = Side {
        node: b.node.clone(),
        context: b.context,
        pd: b.pd,
        cq,
        qp,
        mr: b.node.mr(b.context, b.pd, 4096),
    };
    connect(
        (&a.node, &a.qp),
        (&far.node, &far.qp),
        &Connection::default(),
    );
    Other { near: a, far }
}

pub(super) fn region(node: &Node, side: &Side, rights: u32) -> Mr {
    let buffer = node.memory.scattered(8192);
    node.reg_mr(side.context, side.pd, buffer, 100, 8000, rights)
        .expect("a region")
}

#[test]
fn semantics_37_type_1_has_a_new_rkey_for_each_bind_and_none_after_one_of_0_bytes() {
    for kind in EVERY {
        let (world, _watchdog) = watched(kind);
        let (mut a, mut b) = sides(&world);
        let node = b.node.clone();
        let mr = region(&node, &b, access::LOCAL_WRITE | access::MW_BIND);
        let first = node.alloc_mw(b.context, b.pd, 1).expect("ALLOC_MW");
        let mut key = first;
        for at in [0, 4000, 7992] {
            key = next(key);
            let bind = SendWr::bind(at, key, &mr, at, 8, WRITE | access::LOCAL_WRITE);
            assert_eq!(works(&world, &mut b, &bind).opcode, wc_opcode::BIND_MW);
            a.mr.write(0, &[at as u8 | 1; 8]);
            assert!(writes(&world, &mut a, key, mr.iova + at));
            assert_eq!(mr.read(at as usize, 8), [at as u8 | 1; 8]);
        }
        // Every QP of the PD may use it.
        let mut other = another(&world, &b);
        assert!(writes(&world, &mut other.near, key, mr.iova + 7992));
        // The keys before it lead nowhere.
        assert!(!writes(&world, &mut other.near, key - 1, mr.iova + 4000));
        // Nor does any after a bind of 0 bytes.
        let last = next(key);
        works(&world, &mut b, &SendWr::bind(9, last, &mr, 0, 0, 0));
        for key in [key, last] {
            let mut other = another(&world, &b);
            assert!(!writes(&world, &mut other.near, key, mr.iova + 7992));
        }
        node.dealloc_mw(b.context, first).expect("DEALLOC_MW");
        assert_eq!(node.dealloc_mw(b.context, first), Err(Status::NotFound));
        node.dereg_mr(b.context, mr.key).expect("DEREG_MR");
    }
}

#[test]
fn a_window_gives_its_own_bytes_and_rights_only() {
    let (world, _watchdog) = watched(Kind::Pair);
    let (_a, mut b) = sides(&world);
    let node = b.node.clone();
    // The region itself lets no peer in.
    let mr = region(&node, &b, access::LOCAL_WRITE | access::MW_BIND);
    let window = node.alloc_mw(b.context, b.pd, 1).expect("ALLOC_MW");
    let (key, start) = (next(window), mr.iova + 1000);
    works(&world, &mut b, &SendWr::bind(0, key, &mr, 1000, 2000, READ));
    let cases = [
        (send::READ, key, start, 2000, true),
        (send::READ, key, start + 1999, 1, true),
        (send::READ, key, start + 1, 2000, false),
        (send::READ, key, start - 1, 1, false),
        (send::READ, key, start + 2000, 1, false),
        (send::READ, key, 0, 8, false),
        (send::WRITE, key, start, 8, false),
        (send::READ, mr.key, start, 8, false),
    ];
    for (opcode, rkey, remote_addr, len, allowed) in cases {
        let mut other = another(&world, &b);
        let sges = [other.near.mr.sge(0, len)];
        let wr = SendWr {
            rkey,
            remote_addr,
            ..SendWr::signaled(0, opcode).with_sges(&sges)
        };
        let expected = if allowed {
            wc::SUCCESS
        } else {
            wc::REM_ACCESS_ERR
        };
        assert_eq!(
            done(&world, &mut other.near, &wr).status,
            expected,
            "{wr:?}"
        );
    }
    // It is not for the queues of its owner.
    let own = [conformance::layout::Sge {
        addr: start,
        length: 8,
        lkey: key,
    }];
    let cqe = done(
        &world,
        &mut b,
        &SendWr::signaled(0, send::SEND).with_sges(&own),
    );
    assert_eq!(cqe.status, wc::LOC_PROT_ERR);
}

#[test]
fn a_zero_based_window_begins_at_address_0() {
    let (world, _watchdog) = watched(Kind::Pair);
    let (mut a, mut b) = sides(&world);
    let node = b.node.clone();
    let mr = region(&node, &b, access::LOCAL_WRITE | access::MW_BIND);
    let key = node.alloc_mw(b.context, b.pd, 2).expect("ALLOC_MW");
    let bind = SendWr::bind(0, key, &mr, 5000, 100, WRITE | ZERO_BASED);
    works(&world, &mut b, &bind);
    a.mr.write(0, &[0x3c; 8]);
    assert!(writes(&world, &mut a, key, 92));
    assert_eq!(mr.read(5092, 8), [0x3c; 8]);
    assert!(!writes(&world, &mut a, key, mr.iova + 5000));
}

#[test]
fn semantics_34_dereg_with_a_bound_window_is_busy() {
    let (world, _watchdog) = watched(Kind::Pair);
    let (_a, mut b) = sides(&world);
    let node = b.node.clone();
    let mr = region(&node, &b, access::LOCAL_WRITE | access::MW_BIND);
    let one = node.alloc_mw(b.context, b.pd, 1).expect("ALLOC_MW");
    let two = node.alloc_mw(b.context, b.pd, 2).expect("ALLOC_MW");
    assert_eq!(node.destroy_pd(b.context, b.pd), Err(Status::Busy));
    works(
        &world,
        &mut b,
        &SendWr::bind(0, next(one), &mr, 0, 8, WRITE),
    );
    works(&world, &mut b, &SendWr::bind(0, two, &mr, 0, 8, WRITE));
    let busy = || {
        assert_eq!(node.dereg_mr(b.context, mr.key), Err(Status::Busy));
        assert_eq!(
            node.rereg_mr(b.context, mr.key, 4, (0, access::ALL, 0)),
            Err(Status::Busy)
        );
    };
    busy();
    works(
        &world,
        &mut b,
        &SendWr::bind(0, next(next(one)), &mr, 0, 0, 0),
    );
    let node = b.node.clone();
    assert_eq!(node.dereg_mr(b.context, mr.key), Err(Status::Busy));
    works(&world, &mut b, &SendWr::invalidate(0, two));
    node.dereg_mr(b.context, mr.key).expect("nothing is bound");

    // A window that ends is bound no longer; one of a context that ends neither.
    let mr = region(&node, &b, access::LOCAL_WRITE | access::MW_BIND);
    works(&world, &mut b, &SendWr::bind(0, two, &mr, 0, 8, WRITE));
    node.dealloc_mw(b.context, two).expect("DEALLOC_MW");
    node.dereg_mr(b.context, mr.key).expect("nothing is bound");
    let mr = region(&node, &b, access::LOCAL_WRITE | access::MW_BIND);
    works(&world, &mut b, &SendWr::bind(0, one, &mr, 0, 8, WRITE));
    node.destroy_context(b.context).expect("DESTROY_CONTEXT");
}

#[test]
fn semantics_37_type_2_is_tied_to_its_qp_and_invalidated_before_it_is_bound_again() {
    for kind in EVERY {
        let (world, _watchdog) = watched(kind);
        let (mut a, mut b) = sides(&world);
        let node = b.node.clone();
        let mr = region(&node, &b, access::LOCAL_WRITE | access::MW_BIND);
        let window = node.alloc_mw(b.context, b.pd, 2).expect("ALLOC_MW");
        // The consumer chooses the tag, the present one or any other.
        for tag in [0, 0, 200, 7] {
            let key = window & !0xff | tag;
            works(&world, &mut b, &SendWr::bind(0, key, &mr, 0, 8000, WRITE));
            assert!(writes(&world, &mut a, key, mr.iova + 77));
            works(&world, &mut b, &SendWr::invalidate(0, key));
        }
        let key = window & !0xff | 9;
        works(&world, &mut b, &SendWr::bind(0, key, &mr, 0, 8000, WRITE));
        // Another QP of the PD can neither use nor invalidate it.
        let mut other = another(&world, &b);
        assert!(!writes(&world, &mut other.near, key, mr.iova));
        world.until("a flush", || {
            Some(other.far.state() == state::ERR).filter(|err| *err)
        });
        let mut third = another(&world, &b);
        let cqe = done(&world, &mut third.far, &SendWr::invalidate(0, key));
        assert_eq!(cqe.status, wc::MW_BIND_ERR);
        assert!(other.far.poll().is_none());
        // The peer of its own QP can.
        b.recv(3, 0, 64);
        works(
            &world,
            &mut a,
            &SendWr {
                imm: key.to_le_bytes(),
                ..SendWr::signaled(0, send::SEND_INV)
            },
        );
        let cqe = success(&world, &mut b, "the receive");
        assert_eq!(cqe.flags & cqe_flag::WITH_INV, cqe_flag::WITH_INV);
        assert!(!writes(&world, &mut a, key, mr.iova));
    }
}

#[test]
fn semantics_38_a_bind_that_fails_takes_the_qp_to_err_and_binds_nothing() {
    let (world, _watchdog) = watched(Kind::Pair);
    let full = access::LOCAL_WRITE | access::MW_BIND;
    for case in 0..14 {
        let (mut a, mut b) = sides(&world);
        let node = b.node.clone();
        let mr = region(&node, &b, full);
        let one = node.alloc_mw(b.context, b.pd, 1).expect("ALLOC_MW");
        let two = node.alloc_mw(b.context, b.pd, 2).expect("ALLOC_MW");
        let other_pd = node.create_pd(b.context).expect("a PD");
        let foreign = node.alloc_mw(b.context, other_pd, 2).expect("ALLOC_MW");
        let unbindable = region(&node, &b, access::LOCAL_WRITE);
        let read_only = region(&node, &b, access::MW_BIND);
        let (_e, stranger) = sides(&world);
        let wr = match case {
            0 => SendWr::bind(7, one, &mr, 0, 8, WRITE),
            1 => SendWr::bind(7, next(one), &unbindable, 0, 8, READ),
            2 => SendWr::bind(7, next(one), &read_only, 0, 8, WRITE),
            3 => SendWr::bind(7, next(one), &read_only, 0, 8, access::REMOTE_ATOMIC),
            4 => SendWr::bind(7, next(one), &mr, 7993, 8, WRITE),
            5 => SendWr::bind(7, next(one), &mr, 8000, 1, WRITE),
            6 => SendWr::bind(7, next(one), &mr, 0, u64::MAX, WRITE),
            7 => SendWr::bind(7, next(one), &mr, 0, 8, access::MW_BIND),
            8 => SendWr::bind(7, foreign, &mr, 0, 8, WRITE),
            9 => SendWr::bind(7, two, &stranger.mr, 0, 8, WRITE),
            10 => SendWr::bind(7, mr.key, &mr, 0, 8, WRITE),
            11 => SendWr::bind(7, two, &mr, 0, 0, 0),
            12 => SendWr {
                rkey: 0x00de_ad00,
                ..SendWr::bind(7, two, &mr, 0, 8, WRITE)
            },
            _ => {
                works(&world, &mut b, &SendWr::bind(1, two, &mr, 0, 8, WRITE));
                SendWr::bind(7, next(two), &mr, 0, 16, WRITE)
            }
        };
        b.send(&wr);
        b.send(&SendWr::signaled(8, send::SEND));
        let cqe = world.until("a refusal", || b.poll());
        assert_eq!((cqe.wr_id, cqe.status), (7, wc::MW_BIND_ERR), "case {case}");
        let cqe = world.until("a flush", || b.poll());
        assert_eq!(
            (cqe.wr_id, cqe.status),
            (8, wc::WR_FLUSH_ERR),
            "case {case}"
        );
        assert_eq!(b.state(), state::ERR, "case {case}");
        let mut other = another(&world, &b);
        let key = u32::from_le_bytes(wr.imm);
        assert!(
            !writes(&world, &mut other.near, key, mr.iova),
            "case {case}"
        );
        if case != 13 {
            node.dereg_mr(b.context, mr.key)
                .unwrap_or_else(|status| panic!("case {case}: {status:?}"));
        }
        assert!(a.poll().is_none());
    }
}

#[test]
fn the_windows_of_a_qp_that_goes_are_bound_no_longer() {
    for kind in EVERY {
        let (world, _watchdog) = watched(kind);
        let (_a, mut b) = sides(&world);
        let node = b.node.clone();
        let mr = region(&node, &b, access::LOCAL_WRITE | access::MW_BIND);
        let window = |kind| node.alloc_mw(b.context, b.pd, kind).expect("ALLOC_MW");
        let (handle, two, elsewhere) = (window(1), window(2), window(2));
        let one = next(handle);
        works(&world, &mut b, &SendWr::bind(0, one, &mr, 0, 8, WRITE));
        works(&world, &mut b, &SendWr::bind(0, two, &mr, 0, 8, WRITE));
        let mut third = another(&world, &b);
        let bind = SendWr::bind(0, elsewhere, &mr, 0, 8, WRITE);
        works(&world, &mut third.far, &bind);

        node.destroy_qp(b.context, b.qp.qpn).expect("DESTROY_QP");

        let mut other = another(&world, &b);
        assert!(!writes(&world, &mut other.near, two, mr.iova));
        // Of the others nothing has changed.
        assert!(writes(&world, &mut third.near, elsewhere, mr.iova));
        assert!(writes(&world, &mut third.near, one, mr.iova));
        // Another QP may bind it.
        let mut other = another(&world, &b);
        works(
            &world,
            &mut other.far,
            &SendWr::bind(0, two, &mr, 0, 8, WRITE),
        );
        assert!(writes(&world, &mut other.near, two, mr.iova));
        drop((other, third));
        // The one of type 1 is nobody's.
        assert_eq!(node.dereg_mr(b.context, mr.key), Err(Status::Busy));
        node.dealloc_mw(b.context, handle).expect("DEALLOC_MW");
        node.dereg_mr(b.context, mr.key).expect("nothing is bound");
        for window in [two, elsewhere] {
            node.dealloc_mw(b.context, window).expect("DEALLOC_MW");
        }
    }
}

#[test]
fn windows_belong_to_their_context_have_a_limit_and_need_their_feature() {
    let mut options = Options::default();
    options.limits.mws = 3;
    let world = World::with(Kind::Loopback, &options);
    let (_a, b) = sides(&world);
    let node = b.node.clone();
    let stranger = node.create_context().expect("a context");
    let pd = node.create_pd(stranger).expect("a PD");
    assert_eq!(node.limits().max_mw, 3);
    assert_eq!(node.alloc_mw(stranger, b.pd, 1), Err(Status::Denied));
    for kind in [0, 3, 255] {
        assert_eq!(node.alloc_mw(b.context, b.pd, kind), Err(Status::Invalid));
    }
    let window = node.alloc_mw(b.context, b.pd, 1).expect("ALLOC_MW");
    assert_eq!(node.dealloc_mw(stranger, window), Err(Status::Denied));
    // A window is no region, and a region no window.
    assert_eq!(node.dereg_mr(b.context, window), Err(Status::NotFound));
    assert_eq!(node.dealloc_mw(b.context, b.mr.key), Err(Status::NotFound));
    let rest: Vec<u32> = (0..2)
        .map(|_| node.alloc_mw(stranger, pd, 2).expect("ALLOC_MW"))
        .collect();
    assert_eq!(node.alloc_mw(stranger, pd, 2), Err(Status::NoResource));
    assert_eq!(node.destroy_pd(stranger, pd), Err(Status::Busy));
    node.dealloc_mw(stranger, rest[0]).expect("DEALLOC_MW");
    node.dealloc_mw(stranger, rest[1]).expect("DEALLOC_MW");
    node.destroy_pd(stranger, pd).expect("DESTROY_PD");

    let options = Options {
        features: DeviceConfig::FEATURES & !feature::MW,
        ..Options::default()
    };
    let world = World::with(Kind::Loopback, &options);
    let (_a, mut b) = sides(&world);
    let node = b.node.clone();
    assert_eq!(node.limits().max_mw, 0);
    for kind in [1, 2] {
        let refused = node.alloc_mw(b.context, b.pd, kind);
        assert_eq!(refused, Err(Status::Unsupported));
    }
    let cqe = done(&world, &mut b, &SendWr::signaled(0, send::BIND_MW));
    assert_eq!(cqe.status, wc::LOC_QP_OP_ERR);
}
