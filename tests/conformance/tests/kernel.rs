//! What only the kernel may do: its own queues, and the region over all DMA addresses.

use conformance::layout::{RegMr, Sge, Status, access, send, wc};
use conformance::memory::PAGE;
use conformance::node::{KERNEL, Mr};
use conformance::random::payload;
use conformance::rings::SendWr;
use conformance::side::{Connection, Side, SideOptions, connect, sides, success};
use conformance::watchdog::Watchdog;
use conformance::world::{Kind, Options, World};
use devices::rdma::device::DeviceConfig;
use devices::rdma::wire::feature;

const LOCAL: u32 = access::LOCAL_WRITE;
const REMOTE: u32 = access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_READ;

fn watchdog() -> Watchdog {
    Watchdog::new("kernel")
}

/// A user of the kernel on each node, connected.
fn kernel_sides(world: &World) -> (Side, Side) {
    let options = SideOptions::default();
    let a = Side::in_context(world.a(), KERNEL, &options);
    let b = Side::in_context(world.b(), KERNEL, &options);
    connect((&a.node, &a.qp), (&b.node, &b.qp), &Connection::default());
    (a, b)
}

/// Memory by its DMA address, under the key of a region over all of them.
fn sge(mr: &Mr, key: u32, at: usize, len: usize) -> Sge {
    let page = mr.buffer.dma_pages()[at / PAGE];
    assert!(at % PAGE + len <= PAGE, "pages are not neighbours");
    Sge {
        addr: page + (at % PAGE) as u64,
        length: len as u32,
        lkey: key,
    }
}

#[test]
fn the_kernel_sends_and_receives_by_dma_address() {
    for kind in [Kind::Loopback, Kind::Pair, Kind::Tcp] {
        let (world, _watchdog) = (World::new(kind), watchdog());
        let (mut a, mut b) = kernel_sides(&world);
        let from = a.node.dma_mr(KERNEL, a.pd, LOCAL).expect("a DMA MR");
        let to = b.node.dma_mr(KERNEL, b.pd, REMOTE).expect("a DMA MR");
        let data = payload(1, 3 * PAGE);
        a.mr.write(0, &data);
        let sges: Vec<Sge> = (0..3).map(|n| sge(&a.mr, from, n * PAGE, PAGE)).collect();
        let targets: Vec<Sge> = [7, 2, 5].map(|n| sge(&b.mr, to, n * PAGE, PAGE)).into();
        b.qp.post_recv(1, &targets).expect("room for a receive");
        a.send(&SendWr::signaled(1, send::SEND).with_sges(&sges));
        success(&world, &mut a, "the send");
        let cqe = success(&world, &mut b, "the receive");
        assert_eq!(cqe.byte_len as usize, 3 * PAGE);
        for (n, page) in [7, 2, 5].into_iter().enumerate() {
            assert_eq!(b.mr.read(page * PAGE, PAGE), data[n * PAGE..][..PAGE]);
        }
        // And by WRITE and READ, where the region lets the peer in.
        for (opcode, at) in [(send::WRITE, 9 * PAGE + 100), (send::READ, 2 * PAGE)] {
            let remote = sge(&b.mr, to, at, 500);
            let local = [sge(&a.mr, from, 4096, 500)];
            a.send(&SendWr {
                rkey: to,
                remote_addr: remote.addr,
                ..SendWr::signaled(2, opcode).with_sges(&local)
            });
            success(&world, &mut a, "one-sided");
            assert_eq!(a.mr.read(4096, 500), b.mr.read(at, 500), "{opcode}");
        }
    }
}

#[test]
fn a_dma_address_that_is_no_memory_is_outside_the_region() {
    let (world, _watchdog) = (World::new(Kind::Pair), watchdog());
    let past = world.a().memory.dma_end();
    for (addr, length) in [
        (past, 1),
        (past - 1, 2),
        (0, 1),
        (u64::MAX, 1),
        (u64::MAX - 99, 100),
        // More than a frame carries, so that it is checked before it is sent.
        (past - 4096, 1 << 20),
    ] {
        let (mut a, _b) = kernel_sides(&world);
        let key = a.node.dma_mr(KERNEL, a.pd, LOCAL).expect("a DMA MR");
        let bad = [Sge {
            addr,
            length,
            lkey: key,
        }];
        a.send(&SendWr::signaled(1, send::SEND).with_sges(&bad));
        let cqe = world.until("a refusal", || a.poll());
        assert_eq!(cqe.status, wc::LOC_PROT_ERR, "{addr:#x}+{length:#x}");
        // And of the peer's.
        let (mut a, b) = kernel_sides(&world);
        let theirs = b.node.dma_mr(KERNEL, b.pd, REMOTE).expect("a DMA MR");
        let local = [a.mr.sge(0, length.min(64 << 10) as usize)];
        a.send(&SendWr {
            rkey: theirs,
            remote_addr: addr,
            ..SendWr::signaled(1, send::WRITE).with_sges(&local)
        });
        let cqe = world.until("a refusal", || a.poll());
        assert_eq!(cqe.status, wc::REM_ACCESS_ERR, "{addr:#x}");
    }
}

#[test]
fn no_process_gets_at_a_region_over_dma_addresses() {
    let (world, _watchdog) = (World::new(Kind::Pair), watchdog());
    let (mut a, mut b) = sides(&world);
    assert_eq!(
        a.node.dma_mr(a.context, a.pd, LOCAL),
        Err(Status::Denied),
        "a process asks for one"
    );
    let kernel_pd = a.node.create_pd(KERNEL).expect("a PD");
    assert_eq!(
        a.node.dma_mr(KERNEL, a.pd, LOCAL),
        Err(Status::Denied),
        "the kernel asks for one in a process's PD"
    );
    assert_eq!(
        a.node.dma_mr(a.context, kernel_pd, LOCAL),
        Err(Status::Denied)
    );
    // It knows the key: its own queues refuse it, and so does the far side's for a QP of a process.
    let key = a.node.dma_mr(KERNEL, kernel_pd, REMOTE).expect("a DMA MR");
    let stolen = [sge(&a.mr, key, 0, 8)];
    a.send(&SendWr::signaled(1, send::SEND).with_sges(&stolen));
    let cqe = world.until("a refusal", || a.poll());
    assert_eq!(cqe.status, wc::LOC_PROT_ERR);

    let (mut a, b2) = sides(&world);
    let pd = b.node.create_pd(KERNEL).expect("a PD");
    let theirs = b.node.dma_mr(KERNEL, pd, REMOTE).expect("a DMA MR");
    let target = sge(&b.mr, theirs, 0, 8);
    b.mr.write(0, &[0x5a; 8]);
    let local = [a.mr.sge(0, 8)];
    a.send(&SendWr {
        rkey: theirs,
        remote_addr: target.addr,
        ..SendWr::signaled(1, send::WRITE).with_sges(&local)
    });
    let cqe = world.until("a refusal", || a.poll());
    assert_eq!(cqe.status, wc::REM_ACCESS_ERR);
    assert_eq!(b.mr.read(0, 8), [0x5a; 8]);
    drop(b2);
    assert_eq!(b.node.dereg_mr(b.context, theirs), Err(Status::Denied));
    assert_eq!(b.node.destroy_pd(KERNEL, pd), Err(Status::Busy));
    b.node.dereg_mr(KERNEL, theirs).expect("DEREG_MR");
    b.node.destroy_pd(KERNEL, pd).expect("DESTROY_PD");
    assert!(b.poll().is_none());
}

#[test]
fn a_region_over_dma_addresses_has_no_list_and_needs_its_feature() {
    let (world, _watchdog) = (World::new(Kind::Loopback), watchdog());
    let node = world.a();
    let pd = node.create_pd(KERNEL).expect("a PD");
    let plain = RegMr {
        pd,
        access: LOCAL,
        flags: conformance::layout::MR_DMA,
        ..RegMr::default()
    };
    let page = node.memory.contiguous(PAGE).dma_pages()[0];
    let wrong = [
        RegMr {
            iova: 1,
            ..plain.clone()
        },
        RegMr {
            length: 4096,
            ..plain.clone()
        },
        RegMr {
            offset: 1,
            ..plain.clone()
        },
        RegMr {
            page_shift: 12,
            ..plain.clone()
        },
        RegMr {
            flags: plain.flags | 1,
            ..plain.clone()
        },
        RegMr {
            flags: plain.flags | 2,
            ..plain.clone()
        },
        RegMr {
            total_entries: 1,
            ..plain.clone()
        },
        RegMr {
            num_entries: 1,
            ..plain.clone()
        },
        RegMr {
            entries: vec![page],
            ..plain.clone()
        },
        RegMr {
            access: access::REMOTE_WRITE,
            ..plain.clone()
        },
        RegMr {
            access: 1 << 30,
            ..plain.clone()
        },
    ];
    for body in &wrong {
        assert_eq!(
            node.reg_mr_raw(KERNEL, body),
            Err(Status::Invalid),
            "{body:?}"
        );
    }
    let missing = RegMr {
        pd: 0x7777,
        ..plain.clone()
    };
    assert_eq!(node.reg_mr_raw(KERNEL, &missing), Err(Status::NotFound));
    node.destroy_pd(KERNEL, pd).expect("nothing was made");

    let options = Options {
        features: DeviceConfig::FEATURES & !feature::DMA_MR,
        ..Options::default()
    };
    let world = World::with(Kind::Loopback, &options);
    let pd = world.a().create_pd(KERNEL).expect("a PD");
    assert_eq!(
        world.a().dma_mr(KERNEL, pd, LOCAL),
        Err(Status::Unsupported)
    );
}
