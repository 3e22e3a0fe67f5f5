//! Memory regions: every way to describe memory, to the byte.

use conformance::layout::{
    MR_EXTENTS, MR_MORE, RegMr, Sge, Status, access, command, send, wc, wqe_flag,
};
use conformance::memory::{DMA_OFFSET, PAGE};
use conformance::node::QpOptions;
use conformance::random::payload;
use conformance::rings::SendWr;
use conformance::side::{Connection, Side, SideOptions, connect, sides, success};
use conformance::world::World;

use super::{loopback, reg};

/// Bytes that go through a region by WRITE and READ of a peer, first and last byte among them.
fn region_works(
    world: &World,
    a: &mut Side,
    key: u32,
    region: &RegMr,
    bytes: impl Fn(usize, usize) -> Vec<u8>,
) {
    let len = region.length as usize;
    for (at, size) in [
        (0, 1),
        (0, len.min(5000)),
        (len - 1, 1),
        (len / 2, (len - len / 2).min(4097)),
        (len.saturating_sub(9000), len.min(9000)),
    ] {
        let data = payload((at + size) as u64, size);
        a.mr.write(0, &data);
        let sges = [a.mr.sge(0, size)];
        let wr = |opcode| SendWr {
            rkey: key,
            remote_addr: region.iova + at as u64,
            ..SendWr::signaled(0, opcode).with_sges(&sges)
        };
        a.send(&wr(send::WRITE));
        success(world, a, "a WRITE");
        assert!(bytes(at, size) == data, "{size} bytes at {at}");
        a.mr.write(0, &vec![0; size]);
        a.send(&wr(send::READ));
        success(world, a, "a READ");
        assert!(a.mr.read(0, size) == data);
    }
}

#[test]
fn page_arrays_of_every_page_size_describe_memory_to_the_byte() {
    let (world, _watchdog) = loopback();
    let node = world.a().clone();
    let (mut a, b) = sides(&world);
    for (shift, offset, length, pages) in [
        (12u8, 0u64, 4096u64, 1usize),
        (12, 4095, 1, 1),
        (12, 1, 4095, 1),
        (12, 1, 4096, 2),
        (12, 4095, 4098, 3),
        (13, 8191, 2, 2),
        (16, 12_345, 65_536, 2),
        (16, 65_535, 65_537, 2),
        (21, 4097, 2 << 20, 2),
    ] {
        let per = 1usize << (shift - 12);
        // Pages in descending order: what follows for the device does not follow in memory.
        let buffers: Vec<_> = (0..pages)
            .map(|_| node.memory.aligned(PAGE * per, per))
            .collect();
        let list: Vec<u64> = buffers.iter().map(|buffer| buffer.dma_pages()[0]).collect();
        let mut body = reg(b.pd, length);
        (body.page_shift, body.offset) = (shift, offset);
        let key = node
            .reg_list(b.context, body.clone(), &list, 400)
            .unwrap_or_else(|status| panic!("2^{shift}, {offset}+{length}: {status:?}"));
        let at = |at: usize, size: usize| {
            let mut out = Vec::with_capacity(size);
            let mut pos = offset as usize + at;
            while out.len() < size {
                let (page, within) = (pos >> shift, pos & ((1 << shift) - 1));
                let n = (size - out.len()).min((1 << shift) - within);
                out.extend(buffers[page].read(within, n));
                pos += n;
            }
            out
        };
        region_works(&world, &mut a, key, &body, at);
        node.dereg_mr(b.context, key).expect("DEREG_MR");
        // The same list does not hold a byte more than it holds, nor a page that is not used.
        let room = ((pages as u64) << shift) - offset;
        let mut over = body.clone();
        over.length = room + 1;
        assert_eq!(
            node.reg_list(b.context, over, &list, 400),
            Err(Status::Invalid),
            "more than the pages hold"
        );
        let mut unused = body.clone();
        unused.length = length.min((1 << shift) - offset.min((1 << shift) - 1));
        if pages > 1 {
            assert_eq!(
                node.reg_list(b.context, unused, &list, 400),
                Err(Status::Invalid),
                "a last page that is not used"
            );
        }
        let mut past = body;
        past.offset = 1 << shift;
        past.length = 1;
        assert_eq!(
            node.reg_list(b.context, past, &list, 400),
            Err(Status::Invalid),
            "an offset past the first page"
        );
    }
}

#[test]
fn extents_describe_memory_to_the_byte() {
    let (world, _watchdog) = loopback();
    let node = world.a().clone();
    let (mut a, b) = sides(&world);
    let buffer = node.memory.contiguous(64 * PAGE);
    let base = buffer.dma_pages()[0];
    for (extents, offset, length) in [
        (vec![(0u64, 1u64)], 0u64, 1u64),
        (vec![(7, 3), (20, 1), (50, 9000)], 0, 9004),
        (vec![(7, 3), (20, 1), (50, 9000)], 2, 9001),
        (
            vec![(5000, 4096), (1, 4999), (20_000, 100_000)],
            4095,
            100_000,
        ),
    ] {
        let list: Vec<u64> = extents
            .iter()
            .flat_map(|(at, len)| [base + at, *len])
            .collect();
        let mut body = reg(b.pd, length);
        (body.flags, body.offset, body.page_shift) = (MR_EXTENTS, offset, 0);
        for per_command in [1, 2, 400] {
            let key = node
                .reg_list(b.context, body.clone(), &list, per_command)
                .unwrap_or_else(|status| panic!("{extents:?}: {status:?}"));
            let at = |at: usize, size: usize| {
                let whole: Vec<u8> = extents
                    .iter()
                    .flat_map(|(start, len)| buffer.read(*start as usize, *len as usize))
                    .collect();
                whole[offset as usize + at..][..size].to_vec()
            };
            region_works(&world, &mut a, key, &body, at);
            node.dereg_mr(b.context, key).expect("DEREG_MR");
        }
        let mut long = body.clone();
        long.length = extents.iter().map(|e| e.1).sum::<u64>() - offset + 1;
        assert_eq!(
            node.reg_list(b.context, long, &list, 400),
            Err(Status::Invalid),
            "more than the extents hold"
        );
    }
    for (extent, status) in [
        ([base, 0], Status::Invalid),
        ([base, u64::MAX], Status::BadAddress),
        ([u64::MAX, 2], Status::BadAddress),
        ([base - DMA_OFFSET, 4096], Status::BadAddress),
        ([node.memory.dma_end() - 1, 2], Status::BadAddress),
    ] {
        let mut body = reg(b.pd, extent[1].max(1));
        body.flags = MR_EXTENTS;
        let result = node.reg_list(b.context, body, &extent, 400);
        assert!(
            result == Err(status)
                || result == Err(Status::BadAddress)
                || result == Err(Status::Invalid),
            "{extent:x?}: {result:?}"
        );
    }
}

#[test]
fn a_list_in_many_commands_counts_and_commits() {
    let (world, _watchdog) = loopback();
    let node = world.a().clone();
    let (mut a, b) = sides(&world);
    let buffer = node.memory.scattered(10 * PAGE);
    let pages = buffer.dma_pages();
    let mut first = reg(b.pd, 10 * PAGE as u64);
    (first.flags, first.total_entries, first.num_entries) = (MR_MORE, 10, 4);
    first.entries = pages[..4].to_vec();
    let key = node.reg_mr_raw(b.context, &first).expect("the first part");
    // Not usable before it is committed, from near or far.
    let wr = |opcode| SendWr {
        opcode,
        flags: wqe_flag::SIGNALED,
        inline: Some(&[1]),
        rkey: key,
        remote_addr: 0xabcd_0000_0123,
        ..Default::default()
    };
    a.send(&wr(send::WRITE));
    let cqe = world.until("a WRITE to half a region", || a.poll());
    assert_eq!(cqe.status, wc::REM_ACCESS_ERR);
    let (mut a, mut b2) = sides(&world);
    let sge = Sge {
        addr: 0xabcd_0000_0123,
        length: 1,
        lkey: key,
    };
    b2.qp
        .post_send(&SendWr {
            opcode: send::SEND,
            sges: &[sge],
            ..Default::default()
        })
        .expect("room");
    let cqe = world.until("a SEND from half a region", || b2.poll());
    assert_eq!(cqe.status, wc::LOC_PROT_ERR);
    assert_eq!(node.mr_commit(b.context, key), Err(Status::InProgress));
    assert_eq!(
        node.mr_append(b.context, key, 7, &[pages[4]; 7]),
        Err(Status::Invalid),
        "more than was announced"
    );
    assert_eq!(
        node.mr_append(b.context, key, 2, &[pages[4]]),
        Err(Status::Invalid),
        "fewer than said"
    );
    assert_eq!(
        node.mr_append(b.context, key, 1, &[0x1000]),
        Err(Status::BadAddress)
    );
    assert_eq!(
        node.mr_append(a.context, key, 6, &pages[4..]),
        Err(Status::Denied)
    );
    assert_eq!(node.mr_commit(a.context, key), Err(Status::Denied));
    node.mr_append(b.context, key, 1, &pages[4..5])
        .expect("one more");
    node.mr_append(b.context, key, 5, &pages[5..])
        .expect("the rest");
    node.mr_commit(b.context, key).expect("MR_COMMIT");
    assert!(node.mr_commit(b.context, key).is_err(), "twice");
    assert!(
        node.mr_append(b.context, key, 1, &pages[..1]).is_err(),
        "after the end"
    );
    let mut b3 = Side::in_context(&node, b.context, &SideOptions::default());
    b3.node
        .destroy_qp(b3.context, b3.qp.qpn)
        .expect("DESTROY_QP");
    b3.qp = node
        .create_qp(b.context, b.pd, b3.cq.cqn, b3.cq.cqn, &QpOptions::default())
        .expect("a QP in the region's PD");
    a.node.destroy_qp(a.context, a.qp.qpn).expect("DESTROY_QP");
    a.qp = node
        .create_qp(a.context, a.pd, a.cq.cqn, a.cq.cqn, &QpOptions::default())
        .expect("a QP");
    connect((&node, &a.qp), (&node, &b3.qp), &Connection::default());
    region_works(&world, &mut a, key, &first, |at, size| {
        buffer.read(at, size)
    });
    // Half a region can be given up.
    let key = node
        .reg_mr_raw(b.context, &first)
        .expect("another first part");
    node.dereg_mr(b.context, key).expect("DEREG_MR");
    assert_eq!(
        node.mr_append(b.context, key, 1, &pages[4..5]),
        Err(Status::NotFound)
    );
}

#[test]
fn regions_out_of_range_are_invalid() {
    let (world, _watchdog) = loopback();
    let node = world.a().clone();
    let context = node.create_context().expect("a context");
    let pd = node.create_pd(context).expect("a PD");
    let buffer = node.memory.contiguous(4 * PAGE);
    let pages = buffer.dma_pages();
    let good = RegMr {
        total_entries: 2,
        num_entries: 2,
        entries: pages[..2].to_vec(),
        ..reg(pd, 8192)
    };
    node.reg_mr_raw(context, &good).expect("a good one");
    type Change = (&'static str, fn(&mut RegMr), Status);
    let changes: [Change; 20] = [
        ("no PD", |r| r.pd = 0x7fff_0000, Status::NotFound),
        (
            "an access bit that there is not",
            |r| r.access = 0x20,
            Status::Invalid,
        ),
        (
            "remote write without local",
            |r| r.access = access::REMOTE_WRITE,
            Status::Invalid,
        ),
        (
            "remote atomics without local write",
            |r| r.access = access::REMOTE_ATOMIC,
            Status::Invalid,
        ),
        ("length 0 with entries", |r| r.length = 0, Status::Invalid),
        (
            "a length of everything",
            |r| r.length = u64::MAX,
            Status::Invalid,
        ),
        ("a length one too long", |r| r.length += 1, Status::Invalid),
        (
            "an iova that wraps",
            |r| r.iova = u64::MAX - 8190,
            Status::Invalid,
        ),
        (
            "an offset that wraps",
            |r| r.offset = u64::MAX,
            Status::Invalid,
        ),
        ("pages of 2^11", |r| r.page_shift = 11, Status::Invalid),
        ("pages of 2^31", |r| r.page_shift = 31, Status::Invalid),
        ("pages of 2^64", |r| r.page_shift = 64, Status::Invalid),
        ("a flag that there is not", |r| r.flags = 4, Status::Invalid),
        (
            "fewer than announced, without MORE",
            |r| r.total_entries = 3,
            Status::Invalid,
        ),
        (
            "more than announced",
            |r| r.total_entries = 1,
            Status::Invalid,
        ),
        (
            "more said than given",
            |r| (r.total_entries, r.num_entries) = (3, 3),
            Status::Invalid,
        ),
        (
            "more given than said",
            |r| (r.total_entries, r.num_entries) = (1, 1),
            Status::Invalid,
        ),
        (
            "a page that is not aligned",
            |r| r.entries[1] += 8,
            Status::Invalid,
        ),
        (
            "entries without number",
            |r| (r.total_entries, r.num_entries) = (u32::MAX, u32::MAX),
            Status::Invalid,
        ),
        (
            "a list of everything, to come",
            |r| (r.total_entries, r.flags) = (u32::MAX, MR_MORE),
            Status::Invalid,
        ),
    ];
    for (what, change, status) in changes {
        let mut body = good.clone();
        change(&mut body);
        let result = node.reg_mr_raw(context, &body);
        assert!(
            result == Err(status)
                || (status == Status::Invalid
                    && matches!(result, Err(Status::BadAddress | Status::NoResource))),
            "{what}: {result:?}"
        );
    }
    // Nothing at all is a region too: of no bytes.
    let nothing = RegMr {
        page_shift: 12,
        ..reg(pd, 0)
    };
    node.reg_mr_raw(context, &nothing)
        .expect("length 0 with no entries");
    for reserved in [34, 44] {
        let mut body = good.encode();
        body[reserved] = 1;
        assert_eq!(
            node.command(command::REG_MR, context.handle, &body),
            Err(Status::Invalid),
            "reserved at {reserved}"
        );
    }
}
