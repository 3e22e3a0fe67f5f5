//! As many and as much as the device says, and no more.

use std::collections::HashSet;

use conformance::layout::{RegMr, Sge, Status, le64, send, wc, wqe_flag};
use conformance::memory::PAGE;
use conformance::node::{Context, Node, QpOptions};
use conformance::random::payload;
use conformance::rings::SendWr;
use conformance::side::{Connection, SideOptions, connect, connected, sides, success};

use super::{loopback, reg};

fn create_many(node: &Node, context: Context, count: usize) -> u32 {
    let pd = node.create_pd(context).expect("a PD");
    let page = node.memory.contiguous(PAGE);
    let one = RegMr {
        total_entries: 1,
        num_entries: 1,
        entries: page.dma_pages(),
        ..reg(pd, 4096)
    };
    for n in 0..count {
        node.reg_mr_raw(context, &one)
            .unwrap_or_else(|status| panic!("region {n}: {status:?}"));
    }
    pd
}

#[test]
fn a_thousand_pairs_and_sixteen_thousand_regions() {
    let (world, _watchdog) = loopback();
    let node = world.a().clone();
    let context = node.create_context().expect("a context");
    let pd = create_many(&node, context, 16_384);
    let mr = node.mr(context, pd, 8192);
    let small = QpOptions {
        sq_entries: 2,
        rq_entries: 2,
        scattered: false,
        ..Default::default()
    };
    let mut all = Vec::new();
    for n in 0..1024 {
        let cq = node
            .create_cq(context, 4, n % 2)
            .unwrap_or_else(|status| panic!("CQ {n}: {status:?}"));
        let qp = node
            .create_qp(context, pd, cq.cqn, cq.cqn, &small)
            .unwrap_or_else(|status| panic!("QP {n}: {status:?}"));
        all.push((cq, qp));
    }
    for pair in all.chunks(2) {
        connect(
            (&node, &pair[0].1),
            (&node, &pair[1].1),
            &Connection::default(),
        );
    }
    for (n, (_, qp)) in all.iter_mut().enumerate() {
        let word = (n as u64).to_le_bytes();
        qp.post_send(
            &SendWr::signaled(n as u64, send::WRITE)
                .with_inline(&word)
                .at(&mr, 8 * n as u64),
        )
        .expect("room");
    }
    for (n, (cq, _)) in all.iter_mut().enumerate() {
        let cqe = world.until("one of a thousand", || cq.poll());
        assert_eq!((cqe.wr_id, cqe.status), (n as u64, wc::SUCCESS));
    }
    for n in 0..1024 {
        assert_eq!(le64(&mr.read(8 * n, 8), 0), n as u64);
    }
    node.destroy_context(context).expect("DESTROY_CONTEXT");
    assert_eq!(node.create_pd(context), Err(Status::NotFound));
}

#[test]
fn queues_as_deep_as_the_device_says() {
    let (world, _watchdog) = loopback();
    let limits = world.a().limits();
    let depth = limits.max_send_wr.min(8192);
    let options = SideOptions {
        qp: QpOptions {
            sq_entries: depth,
            rq_entries: limits.max_recv_wr.min(8192),
            send_sge: 16,
            recv_sge: 16,
            inline: 0,
            scattered: false,
            signal_all: false,
            ..Default::default()
        },
        cq_entries: limits.max_cqe,
        ..Default::default()
    };
    let (mut a, b) = connected(&world, &options, &Connection::default());
    for n in 0..depth {
        let sges = [a.mr.sge(0, 8); 16];
        a.qp.write_send(
            &SendWr::signaled(n.into(), send::WRITE)
                .with_sges(&sges)
                .at(&b.mr, 0),
        )
        .expect("room");
    }
    assert!(a.qp.write_send(&SendWr::default()).is_err(), "full");
    a.qp.publish_sends();
    for n in 0..depth {
        assert_eq!(
            success(&world, &mut a, "of a deep queue").wr_id,
            u64::from(n)
        );
    }
}

#[test]
fn limits_are_limits() {
    let (world, _watchdog) = loopback();
    let node = world.a();
    let limits = node.limits();
    let mut contexts = Vec::new();
    while let Ok(context) = node.create_context() {
        contexts.push(context);
        assert!(
            contexts.len() <= limits.max_contexts as usize,
            "more contexts than max_contexts"
        );
    }
    assert_eq!(node.create_context().err(), Some(Status::NoResource));
    let pages: HashSet<u32> = contexts.iter().map(|context| context.page).collect();
    assert_eq!(
        pages.len(),
        contexts.len(),
        "a doorbell page belongs to one context"
    );
    assert!(!pages.contains(&0), "page 0 is the kernel's");
    for context in contexts.drain(..) {
        node.destroy_context(context).expect("DESTROY_CONTEXT");
    }
    let again = node.create_context().expect("there is room again");
    let pd = node.create_pd(again).expect("a PD");
    let cq = node.create_cq(again, 1, 0).expect("a CQ");
    let usual = QpOptions::default();
    for too_much in [
        QpOptions {
            send_sge: limits.max_send_sge + 1,
            ..usual
        },
        QpOptions {
            recv_sge: limits.max_recv_sge + 1,
            ..usual
        },
        QpOptions {
            inline: limits.max_inline + 1,
            ..usual
        },
    ] {
        assert_eq!(
            node.create_qp(again, pd, cq.cqn, cq.cqn, &too_much).err(),
            Some(Status::Invalid),
            "{too_much:?}"
        );
    }
    let most = QpOptions {
        send_sge: limits.max_send_sge,
        recv_sge: limits.max_recv_sge,
        inline: limits.max_inline,
        ..Default::default()
    };
    node.create_qp(again, pd, cq.cqn, cq.cqn, &most)
        .expect("as much as it says");
}

#[test]
fn a_gigantic_message_is_one_message() {
    // 2 GiB over a region whose list names the same 64 MiB over and over.
    let (world, _watchdog) = loopback();
    let node = world.a().clone();
    let (mut a, b) = sides(&world);
    let buffer = node.memory.aligned(32 << 20, 512);
    let page = 2 << 20;
    let list: Vec<u64> = (0..1024)
        .map(|n| buffer.dma_pages()[(n % 16) * 512])
        .collect();
    let regions: Vec<u32> = [(a.context, a.pd), (b.context, b.pd)]
        .into_iter()
        .map(|(context, pd)| {
            let mut body = reg(pd, 2 << 30);
            (body.page_shift, body.iova) = (21, 0x10_0000_0000);
            node.reg_list(context, body, &list, 400)
                .expect("a region of 2 GiB")
        })
        .collect();
    for n in 0..16 {
        buffer.write(n * page, &payload(n as u64, 1000));
    }
    for opcode in [send::WRITE, send::READ] {
        let sges = [Sge {
            addr: 0x10_0000_0000,
            length: 1 << 31,
            lkey: regions[0],
        }];
        a.send(&SendWr {
            wr_id: 1,
            opcode,
            flags: wqe_flag::SIGNALED,
            sges: &sges,
            rkey: regions[1],
            remote_addr: 0x10_0000_0000,
            ..Default::default()
        });
        let cqe = success(&world, &mut a, "2 GiB");
        assert!(opcode == send::WRITE || cqe.byte_len == 1 << 31);
    }
    for n in 0..16 {
        assert_eq!(buffer.read(n * page, 1000), payload(n as u64, 1000));
    }
    // One byte more is too long.
    let sges = [
        Sge {
            addr: 0x10_0000_0000,
            length: 1 << 31,
            lkey: regions[0],
        },
        Sge {
            addr: 0x10_0000_0000,
            length: 1,
            lkey: regions[0],
        },
    ];
    a.send(&SendWr {
        wr_id: 2,
        opcode: send::WRITE,
        sges: &sges,
        rkey: regions[1],
        remote_addr: 0x10_0000_0000,
        ..Default::default()
    });
    let cqe = world.until("2 GiB and a byte", || a.poll());
    assert!(
        matches!(
            cqe.status,
            wc::LOC_LEN_ERR | wc::LOC_QP_OP_ERR | wc::LOC_PROT_ERR
        ),
        "{cqe:?}"
    );
}
