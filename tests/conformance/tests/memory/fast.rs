//! Fast registration: REG_MR, LOCAL_INV and SEND_INV.

use conformance::layout::{Body, Sge, Status, access, cqe_flag, send, state, wc, wc_opcode};
use conformance::memory::PAGE;
use conformance::node::{KERNEL, Node};
use conformance::random::payload;
use conformance::rings::SendWr;
use conformance::side::{Connection, Side, SideOptions, connect, sides, success};
use conformance::world::{Kind, Options, World};
use devices::rdma::device::DeviceConfig;
use devices::rdma::wire::feature;

use super::{EVERY, done, kernel_sides, watched, works, write};

const REMOTE: u32 = access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_READ;

#[test]
fn a_region_of_512_pages_in_any_order_works_to_the_byte() {
    for kind in EVERY {
        let (world, _watchdog) = watched(kind);
        let (mut a, mut b) = kernel_sides(&world);
        let memory = b.node.memory.scattered(512 * PAGE);
        let fast = b.node.fast_mr(b.pd, 512).expect("ALLOC_MR");
        fast.fill(&memory.dma_pages());
        let (key, offset) = (fast.key(0x77), 4000_u64);
        let length = 512 * PAGE as u64 - offset - 13;
        let cqe = works(
            &world,
            &mut b,
            &fast.register(key, 512, offset, length, REMOTE),
        );
        assert_eq!(cqe.opcode, wc_opcode::REG_MR);
        let data = payload(5, 256 << 10);
        a.mr.write(0, &data);
        for at in [0, 1 << 20, length - data.len() as u64] {
            let sges = [a.whole()];
            works(&world, &mut a, &write(&sges, key, offset + at));
            let start = (offset + at) as usize;
            assert!(memory.read(start, data.len()) == data, "{at:#x}");
        }
        // Not a byte more.
        let one = [a.mr.sge(0, 1)];
        let cqe = done(&world, &mut a, &write(&one, key, offset + length));
        assert_eq!(cqe.status, wc::REM_ACCESS_ERR);
    }
}

#[test]
fn semantics_40_after_local_inv_completes_the_key_fails_at_once() {
    for kind in EVERY {
        let (world, _watchdog) = watched(kind);
        let (mut a, mut b) = kernel_sides(&world);
        let memory = b.node.memory.scattered(2 * PAGE);
        let fast = b.node.fast_mr(b.pd, 8).expect("ALLOC_MR");
        fast.fill(&memory.dma_pages());
        let key = fast.key(1);
        works(&world, &mut b, &fast.register(key, 2, 0, 8192, REMOTE));
        let sges = [a.mr.sge(0, 8)];
        works(&world, &mut a, &write(&sges, key, 0));
        let cqe = works(&world, &mut b, &SendWr::invalidate(9, key));
        assert_eq!((cqe.opcode, cqe.wr_id), (wc_opcode::LOCAL_INV, 9));
        let before = memory.read(0, 2 * PAGE);
        a.mr.write(0, &[0xee; 8]);
        let cqe = done(&world, &mut a, &write(&sges, key, 0));
        assert_eq!(cqe.status, wc::REM_ACCESS_ERR);
        assert!(memory.read(0, 2 * PAGE) == before);
    }
}

#[test]
fn a_registration_under_another_tag_ends_the_old_key() {
    let (world, _watchdog) = watched(Kind::Pair);
    let (mut a, mut b) = kernel_sides(&world);
    let memory = b.node.memory.scattered(PAGE);
    let fast = b.node.fast_mr(b.pd, 1).expect("ALLOC_MR");
    fast.fill(&memory.dma_pages());
    let sges = [a.mr.sge(0, 8)];
    for tag in [0, 255, 3, 3] {
        let key = fast.key(tag);
        works(&world, &mut b, &fast.register(key, 1, 0, 4096, REMOTE));
        works(&world, &mut a, &write(&sges, key, 0));
        works(&world, &mut b, &SendWr::invalidate(0, key));
        // Nothing happens to what is invalid already.
        works(&world, &mut b, &SendWr::invalidate(0, key));
    }
    works(
        &world,
        &mut b,
        &fast.register(fast.key(4), 1, 0, 4096, REMOTE),
    );
    let cqe = done(&world, &mut a, &write(&sges, fast.key(3), 0));
    assert_eq!(cqe.status, wc::REM_ACCESS_ERR);
    // Commands go on to name it as ALLOC_MR did.
    let node = b.node.clone();
    assert_eq!(node.dereg_mr(KERNEL, fast.key(4)), Err(Status::NotFound));
    node.dereg_mr(KERNEL, fast.handle).expect("DEREG_MR");
    assert_eq!(node.dereg_mr(KERNEL, fast.handle), Err(Status::NotFound));
}

#[test]
fn a_chain_registers_uses_and_invalidates_in_order() {
    for kind in EVERY {
        let (world, _watchdog) = watched(kind);
        let (mut a, mut b) = kernel_sides(&world);
        let memory = a.node.memory.scattered(4 * PAGE);
        let fast = a.node.fast_mr(a.pd, 4).expect("ALLOC_MR");
        fast.fill(&memory.dma_pages());
        for round in 0..100_u64 {
            let data = payload(round, 16_000);
            memory.write(100, &data);
            let key = fast.key(round as u8);
            b.recv(round, 0, 16_000);
            let local = [Sge {
                addr: 100,
                length: 16_000,
                lkey: key,
            }];
            let quiet = |wr: SendWr<'static>| SendWr { flags: 0, ..wr };
            a.qp.write_send(&quiet(fast.register(key, 4, 100, 16_000, 0)))
                .expect("room");
            a.qp.write_send(&SendWr::signaled(1, send::SEND).with_sges(&local))
                .expect("room");
            a.qp.write_send(&SendWr::invalidate(2, key)).expect("room");
            a.qp.publish_sends();
            for (wr_id, opcode) in [(1, wc_opcode::SEND), (2, wc_opcode::LOCAL_INV)] {
                let cqe = success(&world, &mut a, "the chain");
                assert_eq!((cqe.wr_id, cqe.opcode), (wr_id, opcode));
            }
            success(&world, &mut b, "the receive");
            assert!(b.mr.read(0, 16_000) == data, "round {round}");
        }
    }
}

#[test]
fn semantics_39_send_inv_invalidates_before_the_receives_cqe_shows() {
    for kind in EVERY {
        let (world, _watchdog) = watched(kind);
        let (mut a, mut b) = kernel_sides(&world);
        let memory = b.node.memory.scattered(PAGE);
        let fast = b.node.fast_mr(b.pd, 1).expect("ALLOC_MR");
        fast.fill(&memory.dma_pages());
        for round in 0..50_u8 {
            let key = fast.key(round);
            works(&world, &mut b, &fast.register(key, 1, 0, 4096, REMOTE));
            for n in 0..4 {
                b.recv(n, n as usize * 100, 100);
            }
            let sges = [a.mr.sge(0, 8)];
            a.qp.write_send(&write(&sges, key, 0)).expect("room");
            for n in 1..5_u64 {
                let opcode = if n == 2 { send::SEND_INV } else { send::SEND };
                let wr = SendWr {
                    imm: key.to_le_bytes(),
                    ..SendWr::signaled(n, opcode).with_sges(&sges)
                };
                a.qp.write_send(&wr).expect("room");
            }
            a.qp.publish_sends();
            for n in 0..4 {
                let cqe = success(&world, &mut b, "a receive");
                assert_eq!(cqe.wr_id, n, "receives complete in order");
                let invalidates = cqe.flags & cqe_flag::WITH_INV != 0;
                assert_eq!(invalidates, n == 1);
                if invalidates {
                    assert_eq!(u32::from_le_bytes(cqe.imm), key);
                }
            }
            for n in 0..5 {
                assert_eq!(success(&world, &mut a, "a send").wr_id, n);
            }
        }
        // What was invalidated is no use to the peer.
        let sges = [a.mr.sge(0, 8)];
        let cqe = done(&world, &mut a, &write(&sges, fast.key(49), 0));
        assert_eq!(cqe.status, wc::REM_ACCESS_ERR);
    }
}

#[test]
fn send_inv_of_a_key_that_cannot_be_invalidated_ends_the_connection() {
    let (world, _watchdog) = watched(Kind::Pair);
    for case in 0..5 {
        let (mut a, mut b) = kernel_sides(&world);
        let fast = b.node.fast_mr(b.pd, 1).expect("ALLOC_MR");
        let other_pd = b.node.create_pd(KERNEL).expect("a PD");
        let elsewhere = b.node.fast_mr(other_pd, 1).expect("ALLOC_MR");
        let key = match case {
            0 => b.mr.key,
            // Not registered.
            1 => fast.handle,
            2 => elsewhere.handle,
            3 => 0,
            _ => u32::MAX,
        };
        b.recv(0, 0, 100);
        let sges = [a.mr.sge(0, 8)];
        let wr = SendWr {
            imm: key.to_le_bytes(),
            ..SendWr::signaled(1, send::SEND_INV).with_sges(&sges)
        };
        let cqe = done(&world, &mut a, &wr);
        assert_eq!(cqe.status, wc::REM_ACCESS_ERR, "case {case}");
        let cqe = world.until("the receive", || b.poll());
        assert_eq!(cqe.status, wc::WR_FLUSH_ERR, "case {case}");
        assert_eq!(b.mr.read(0, 8), [0; 8], "case {case}");
    }
}

#[test]
fn registrations_that_cannot_be_fail_with_mw_bind_err_and_change_nothing() {
    let (world, _watchdog) = watched(Kind::Pair);
    let page = world.b().memory.scattered(4 * PAGE);
    let pages = page.dma_pages();
    for case in 0..14 {
        let (mut a, mut b) = kernel_sides(&world);
        let node = b.node.clone();
        let fast = node.fast_mr(b.pd, 4).expect("ALLOC_MR");
        fast.fill(&pages);
        let good = fast.register(fast.key(1), 2, 0, 8192, REMOTE);
        let other_pd = node.create_pd(KERNEL).expect("a PD");
        let elsewhere = node.fast_mr(other_pd, 4).expect("ALLOC_MR");
        let wr = match case {
            0 => SendWr {
                num_pages: 5,
                compare_add: 5 * 4096,
                ..good
            },
            1 => SendWr {
                num_pages: 1,
                ..good
            },
            2 => SendWr {
                num_pages: 3,
                ..good
            },
            3 => SendWr { swap: 4096, ..good },
            4 => SendWr {
                page_shift: 11,
                ..good
            },
            5 => SendWr {
                page_shift: 31,
                ..good
            },
            6 => SendWr {
                rkey: 1 << 20,
                ..good
            },
            7 => SendWr {
                rkey: access::REMOTE_WRITE,
                ..good
            },
            8 => SendWr {
                remote_addr: u64::MAX - 100,
                ..good
            },
            9 => {
                fast.fill(&[pages[0], node.memory.dma_end()]);
                good
            }
            10 => {
                fast.fill(&[pages[0] + 8, pages[1]]);
                good
            }
            11 => SendWr {
                imm: elsewhere.handle.to_le_bytes(),
                ..good
            },
            12 => SendWr {
                imm: b.mr.key.to_le_bytes(),
                ..good
            },
            _ => {
                works(&world, &mut b, &good);
                SendWr {
                    imm: fast.key(2).to_le_bytes(),
                    ..good
                }
            }
        };
        b.send(&SendWr { wr_id: 7, ..wr });
        b.send(&SendWr::invalidate(8, fast.key(1)));
        let cqe = world.until("a refusal", || b.poll());
        assert_eq!((cqe.wr_id, cqe.status), (7, wc::MW_BIND_ERR), "case {case}");
        assert_ne!(cqe.vendor_err, 0, "case {case}");
        let cqe = world.until("a flush", || b.poll());
        assert_eq!(
            (cqe.wr_id, cqe.status),
            (8, wc::WR_FLUSH_ERR),
            "case {case}"
        );
        assert_eq!(b.state(), state::ERR);
        // From another QP: what was live still is, what was not is not.
        let mut other = Side::in_context(&node, KERNEL, &SideOptions::default());
        let qp = node
            .create_qp(
                KERNEL,
                b.pd,
                other.cq.cqn,
                other.cq.cqn,
                &SideOptions::default().qp,
            )
            .expect("a QP");
        other.qp = qp;
        let mut peer = Side::in_context(&a.node, KERNEL, &SideOptions::default());
        connect(
            (&peer.node, &peer.qp),
            (&node, &other.qp),
            &Connection::default(),
        );
        let sges = [peer.mr.sge(0, 8)];
        let cqe = done(&world, &mut peer, &write(&sges, fast.key(1), 0));
        let expected = if case == 13 {
            wc::SUCCESS
        } else {
            wc::REM_ACCESS_ERR
        };
        assert_eq!(cqe.status, expected, "case {case}");
        assert!(a.poll().is_none());
        if case == 13 {
            // Its bytes stay until the region ends.
            node.dereg_mr(KERNEL, fast.handle).expect("DEREG_MR");
        }
    }
}

#[test]
fn local_inv_of_what_cannot_be_invalidated_fails() {
    let (world, _watchdog) = watched(Kind::Loopback);
    for case in 0..4 {
        let (mut a, _b) = kernel_sides(&world);
        let other_pd = a.node.create_pd(KERNEL).expect("a PD");
        let key = match case {
            0 => a.mr.key,
            1 => a.node.fast_mr(other_pd, 1).expect("ALLOC_MR").handle,
            2 => a.node.fast_mr(a.pd, 1).expect("ALLOC_MR").key(9),
            _ => u32::MAX,
        };
        let cqe = done(&world, &mut a, &SendWr::invalidate(0, key));
        assert_eq!(cqe.status, wc::MW_BIND_ERR, "case {case}");
        // The region that was named is what it was.
        let (mut c, d) = kernel_sides(&world);
        let sges = [c.mr.sge(0, 8)];
        works(&world, &mut c, &write(&sges, d.mr.key, d.mr.iova));
    }
}

#[test]
fn local_inv_waits_for_what_was_posted_before_it() {
    let (world, _watchdog) = watched(Kind::Pair);
    let (mut a, mut b) = kernel_sides(&world);
    let memory = a.node.memory.scattered(PAGE);
    let fast = a.node.fast_mr(a.pd, 1).expect("ALLOC_MR");
    fast.fill(&memory.dma_pages());
    let key = fast.key(1);
    works(
        &world,
        &mut a,
        &fast.register(key, 1, 0, 4096, access::LOCAL_WRITE),
    );
    memory.write(0, b"before");
    let local = [Sge {
        addr: 0,
        length: 6,
        lkey: key,
    }];
    // No receive: the SEND has to come again, after the invalidation was posted.
    a.send(&SendWr::signaled(1, send::SEND).with_sges(&local));
    a.send(&SendWr::invalidate(2, key));
    for _ in 0..200 {
        world.step();
    }
    assert!(a.poll().is_none(), "nothing is done without a receive");
    b.recv(0, 0, 100);
    for wr_id in [1, 2] {
        assert_eq!(success(&world, &mut a, "in order").wr_id, wr_id);
    }
    success(&world, &mut b, "the receive");
    assert_eq!(b.mr.read(0, 6), b"before");
    let cqe = done(
        &world,
        &mut a,
        &SendWr::signaled(3, send::SEND).with_sges(&local),
    );
    assert_eq!(cqe.status, wc::LOC_PROT_ERR);
}

#[test]
fn no_process_registers_by_work_request() {
    let (world, _watchdog) = watched(Kind::Loopback);
    let (mut a, _b) = sides(&world);
    let node = a.node.clone();
    let list = node.memory.scattered(PAGE);
    let body = Node::alloc_mr_body(a.pd, 4, &list, 0);
    assert_eq!(node.alloc_mr_raw(a.context, &body), Err(Status::Denied));
    assert_eq!(node.alloc_mr_raw(KERNEL, &body), Err(Status::Denied));
    let kernel_pd = node.create_pd(KERNEL).expect("a PD");
    let fast = node.fast_mr(kernel_pd, 4).expect("ALLOC_MR");
    fast.fill(&list.dma_pages());
    let cqe = done(
        &world,
        &mut a,
        &fast.register(fast.key(1), 1, 0, 4096, REMOTE),
    );
    assert_eq!(cqe.status, wc::LOC_QP_OP_ERR);
    assert_eq!(node.dereg_mr(a.context, fast.handle), Err(Status::Denied));
    assert_eq!(node.destroy_pd(KERNEL, kernel_pd), Err(Status::Busy));
    node.dereg_mr(KERNEL, fast.handle).expect("DEREG_MR");
    node.destroy_pd(KERNEL, kernel_pd).expect("DESTROY_PD");
}

#[test]
fn alloc_mr_checks_its_list_and_needs_its_feature() {
    let (world, _watchdog) = watched(Kind::Loopback);
    let node = world.a();
    let pd = node.create_pd(KERNEL).expect("a PD");
    let max = node.limits().max_fast_reg_pages;
    assert!(max >= 512, "{max}");
    let list = node.memory.scattered(2 * PAGE);
    let pages = list.dma_pages();
    let body = |room: u32, length: u64, count: u32, offset: u64, pages: &[u64]| {
        let mut body = Body::new()
            .u32(pd)
            .u32(room)
            .u64(length)
            .u32(12)
            .u32(count)
            .u64(0)
            .u64(offset);
        for page in pages {
            body = body.u64(*page);
        }
        body.0
    };
    let end = node.memory.dma_end();
    for (wrong, status) in [
        (body(0, 8192, 2, 0, &pages), Status::Invalid),
        (body(max + 1, 8192, 2, 0, &pages), Status::Invalid),
        (body(512, 4096, 1, 8, &pages[..1]), Status::Invalid),
        (body(8, 8192, 2, 4, &pages), Status::Invalid),
        (body(1, 8192, 2, 8192, &pages), Status::Invalid),
        (body(8, 8192, 2, u64::MAX - 7, &pages), Status::Invalid),
        (body(8, 8192, 1, 0, &pages), Status::Invalid),
        (body(8, 8192, 1, 0, &pages[..1]), Status::Invalid),
        (body(8, 4095, 1, 0, &pages[..1]), Status::Invalid),
        (body(8, 4096, 1, 0, &[end]), Status::BadAddress),
        (body(8, 4096, 1, 0, &[pages[0] + 8]), Status::BadAddress),
        (vec![0; 39], Status::Invalid),
    ] {
        assert_eq!(node.alloc_mr_raw(KERNEL, &wrong), Err(status), "{wrong:?}");
    }
    node.destroy_pd(KERNEL, pd).expect("nothing was made");

    let options = Options {
        features: DeviceConfig::FEATURES & !(feature::FRWR | feature::MW),
        ..Options::default()
    };
    let world = World::with(Kind::Loopback, &options);
    let pd = world.a().create_pd(KERNEL).expect("a PD");
    assert_eq!(world.a().fast_mr(pd, 4).err(), Some(Status::Unsupported));
    assert_eq!(world.a().limits().max_fast_reg_pages, 0);
    for opcode in [send::REG_MR, send::LOCAL_INV, send::SEND_INV, send::BIND_MW] {
        let (mut a, _b) = kernel_sides(&world);
        let cqe = done(&world, &mut a, &SendWr::signaled(0, opcode));
        assert_eq!(cqe.status, wc::LOC_QP_OP_ERR, "{opcode}");
    }
}
