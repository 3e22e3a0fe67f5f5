//! REREG_MR: rights, PD and bytes of a registration change under its key.

use conformance::layout::{RegMr, Status, access, wc};
use conformance::memory::PAGE;
use conformance::node::{KERNEL, QpOptions, rereg};
use conformance::side::{Connection, Side, SideOptions, connect, sides};
use conformance::world::{Kind, World};

use super::{EVERY, done, watched, works, write};

const ALL: u32 = access::ALL;

/// The status of a WRITE of 8 bytes to the region of the far side, by a connection of its own.
fn status(world: &World, b: &Side, key: u32, addr: u64) -> u8 {
    let (options, node) = (QpOptions::default(), world.a());
    let mut a = Side::new(node, &SideOptions::default());
    let cq = b.node.create_cq(b.context, 4, 0).expect("a CQ");
    let qp = b
        .node
        .create_qp(b.context, b.pd, cq.cqn, cq.cqn, &options)
        .expect("a QP");
    connect((node, &a.qp), (&b.node, &qp), &Connection::default());
    let sges = [a.mr.sge(0, 8)];
    let status = done(world, &mut a, &write(&sges, key, addr)).status;
    node.destroy_context(a.context).expect("DESTROY_CONTEXT");
    b.node.destroy_qp(b.context, qp.qpn).expect("DESTROY_QP");
    b.node.destroy_cq(b.context, cq.cqn).expect("DESTROY_CQ");
    status
}

#[test]
fn rights_pd_and_bytes_change_under_the_key() {
    for kind in EVERY {
        let (world, _watchdog) = watched(kind);
        let (mut a, b) = sides(&world);
        let node = b.node.clone();
        let (key, iova) = (b.mr.key, b.mr.iova);
        // Rights.
        node.rereg_mr(b.context, key, rereg::ACCESS, (0, access::LOCAL_WRITE, 0))
            .expect("REREG_MR");
        assert_eq!(status(&world, &b, key, iova), wc::REM_ACCESS_ERR);
        node.rereg_mr(b.context, key, rereg::ACCESS, (0, ALL, 0))
            .expect("REREG_MR");
        assert_eq!(status(&world, &b, key, iova), wc::SUCCESS);
        // PD.
        let pd = node.create_pd(b.context).expect("a PD");
        node.rereg_mr(b.context, key, rereg::PD, (pd, 0, 0))
            .expect("REREG_MR");
        assert_eq!(status(&world, &b, key, iova), wc::REM_ACCESS_ERR);
        assert_eq!(node.destroy_pd(b.context, pd), Err(Status::Busy));
        node.rereg_mr(b.context, key, rereg::PD, (b.pd, 0, 0))
            .expect("REREG_MR");
        node.destroy_pd(b.context, pd).expect("nothing is in it");
        // Bytes, with all the rest at once: those of another region, which ends.
        let other = node.mr(b.context, b.pd, 3 * PAGE);
        node.rereg_mr(
            b.context,
            key,
            rereg::TRANSLATION | rereg::PD | rereg::ACCESS,
            (b.pd, ALL, other.key),
        )
        .expect("REREG_MR");
        a.mr.write(0, &[0x99; 8]);
        let sges = [a.mr.sge(0, 8)];
        let last = other.iova + 3 * PAGE as u64 - 8;
        works(&world, &mut a, &write(&sges, key, last));
        assert_eq!(other.read(3 * PAGE - 8, 8), [0x99; 8]);
        assert_eq!(node.dereg_mr(b.context, other.key), Err(Status::NotFound));
        for (key, addr) in [(other.key, other.iova), (key, iova), (key, last + 1)] {
            assert_eq!(status(&world, &b, key, addr), wc::REM_ACCESS_ERR);
        }
        node.dereg_mr(b.context, key).expect("DEREG_MR");
    }
}

#[test]
fn semantics_41_a_rereg_that_is_refused_changes_nothing() {
    let (world, _watchdog) = watched(Kind::Loopback);
    let (_a, b) = sides(&world);
    let node = b.node.clone();
    let (_e, stranger) = sides(&world);
    let (key, iova) = (b.mr.key, b.mr.iova);
    let mine = node.mr(b.context, b.pd, PAGE);
    let list = node.memory.scattered(2 * PAGE);
    let unfinished = node
        .reg_mr_raw(
            b.context,
            &RegMr {
                pd: b.pd,
                length: 2 * PAGE as u64,
                page_shift: 12,
                flags: 1,
                total_entries: 2,
                num_entries: 1,
                entries: list.dma_pages()[..1].to_vec(),
                ..RegMr::default()
            },
        )
        .expect("REG_MR");
    let window = node.alloc_mw(b.context, b.pd, 1).expect("ALLOC_MW");
    let (t, p, acc) = (rereg::TRANSLATION, rereg::PD, rereg::ACCESS);
    let none = (0, 0, 0);
    for (flags, args, expected) in [
        (8, none, Status::Invalid),
        (acc, (0, access::REMOTE_WRITE, 0), Status::Invalid),
        (acc, (0, 1 << 9, 0), Status::Invalid),
        (acc, (b.pd, 1, 0), Status::Invalid),
        (p, (b.pd, 1, 0), Status::Invalid),
        (p, (b.pd, 0, mine.key), Status::Invalid),
        (p, (stranger.pd, 0, 0), Status::Denied),
        (p, (0x7777, 0, 0), Status::NotFound),
        (t, (0, 0, key), Status::Invalid),
        (t, (0, 0, stranger.mr.key), Status::Denied),
        (t, (0, 0, 0x00de_ad00), Status::NotFound),
        (t, (0, 0, window), Status::NotFound),
        (t, (0, 0, unfinished), Status::BadState),
        (t | acc, (0, 2, mine.key), Status::Invalid),
    ] {
        let refused = node.rereg_mr(b.context, key, flags, args);
        assert_eq!(refused, Err(expected), "{flags} {args:x?}");
    }
    for (target, expected) in [
        (stranger.mr.key, Status::Denied),
        (window, Status::NotFound),
        (unfinished, Status::BadState),
        (0x00de_ad00, Status::NotFound),
    ] {
        let refused = node.rereg_mr(b.context, target, acc, (0, ALL, 0));
        assert_eq!(refused, Err(expected), "{target:#x}");
    }
    // The kernel's regions that have no list stay as they are.
    let pd = node.create_pd(KERNEL).expect("a PD");
    let dma = node.dma_mr(KERNEL, pd, 1).expect("a DMA MR");
    let fast = node.fast_mr(pd, 4).expect("ALLOC_MR");
    for target in [dma, fast.handle] {
        let refused = node.rereg_mr(KERNEL, target, acc, (0, 1, 0));
        assert_eq!(refused, Err(Status::BadState));
    }
    assert_eq!(status(&world, &b, key, iova), wc::SUCCESS);
    assert_eq!(status(&world, &b, mine.key, mine.iova), wc::SUCCESS);
}

#[test]
fn entries_are_given_back_with_the_bytes() {
    let (world, _watchdog) = watched(Kind::Loopback);
    let (_a, b) = sides(&world);
    let node = b.node.clone();
    let before = node.limits().max_mr;
    // More in all than there may be at a time, if each were kept.
    for _ in 0..200 {
        let other = node.mr(b.context, b.pd, 64 * PAGE);
        node.rereg_mr(b.context, b.mr.key, rereg::TRANSLATION, (0, 0, other.key))
            .expect("REREG_MR");
    }
    assert_eq!(node.limits().max_mr, before);
    node.dereg_mr(b.context, b.mr.key).expect("DEREG_MR");
}
