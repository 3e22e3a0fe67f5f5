//! Regions by page lists and extents, to the byte; the limits.

use super::*;
use crate::rdma::memory::RegionRequest;
use crate::rdma::test_utils::FakeRam;
use crate::rdma::wire::access;

const PD: u32 = 3;
const OWNER: u32 = 4;
const WHO: Scope = Scope {
    pd: PD,
    context: OWNER,
    qp: 1,
};

fn request(length: u64, offset: u64, total_entries: u32) -> RegionRequest {
    RegionRequest {
        context: OWNER,
        pd: PD,
        access: access::LOCAL_WRITE | access::REMOTE_READ,
        iova: 0x7f00_0000_0000 + offset,
        length,
        offset,
        page_shift: 12,
        extents: false,
        total_entries,
    }
}

fn memory() -> Memory {
    Memory::new(16, 1 << 30, 1 << 16, 16)
}

fn append(m: &mut Memory, ram: &FakeRam, key: u32, list: &[(u64, u64)]) -> Result<(), Status> {
    let mut entries = list
        .iter()
        .map(|&(address, length)| RegionEntry { address, length });
    m.append(ram, OWNER, key, &mut entries)
}

fn pages(pages: &[u64]) -> Vec<(u64, u64)> {
    pages.iter().map(|p| (*p, 0)).collect()
}

fn live(m: &mut Memory, ram: &FakeRam, request: &RegionRequest, list: &[(u64, u64)]) -> u32 {
    let key = m.register(request).unwrap();
    append(m, ram, key, list).unwrap();
    m.commit(OWNER, key).unwrap();
    key
}

/// What a range resolves to, as guest addresses, byte by byte.
fn bytes(m: &Memory, ram: &FakeRam, key: u32, addr: u64, len: u64) -> Result<Vec<u64>, Refusal> {
    let mut out = Vec::new();
    m.resolve(&WHO, key, LOCAL_READ, addr, len, &mut out)?;
    let base = ram.host(0) as u64;
    Ok(out
        .iter()
        .flat_map(|s| (0..s.len as u64).map(|i| s.base as u64 + i - base))
        .collect())
}

/// Checks every range of a region, at its edges, against a list of its bytes.
fn check_all(m: &Memory, ram: &FakeRam, key: u32, iova: u64, want: &[u64]) {
    let n = want.len() as u64;
    let edges: Vec<u64> = (0..n)
        .filter(|i| *i < 3 || *i + 3 > n || (i + iova) % 4096 < 2 || (i + iova) % 4096 > 4093)
        .collect();
    for &from in &edges {
        let lasts = edges.iter().filter(|last| **last >= from);
        let few = lasts.clone().take(5).chain(lasts.rev().take(1));
        for &last in few {
            let got = bytes(m, ram, key, iova + from, last - from + 1);
            assert_eq!(got.as_deref(), Ok(&want[from as usize..=last as usize]));
        }
    }
    for (addr, len) in [
        (iova + n, 1),
        (iova.wrapping_sub(1), 1),
        (iova.wrapping_sub(1), n),
        (iova, n + 1),
        (iova + n - 1, 2),
        (iova, u64::MAX),
        (iova + 1, u64::MAX),
        (u64::MAX, 1),
        (0, u64::MAX),
        (iova.wrapping_sub(1), u64::MAX),
    ] {
        assert_eq!(
            bytes(m, ram, key, addr, len),
            Err(Refusal::Range),
            "{addr:#x}+{len:#x}"
        );
    }
}

#[test]
fn contiguous_pages_resolve_to_one_segment_exact_to_the_byte() {
    let (ram, mut m) = (FakeRam::new(0x10000), memory());
    let r = request(0x2100, 0xf80, 4);
    let key = live(&mut m, &ram, &r, &pages(&[0x1000, 0x2000, 0x3000, 0x4000]));
    let want: Vec<u64> = (0x1f80..0x1f80 + 0x2100).collect();
    check_all(&m, &ram, key, r.iova, &want);
    let mut out = Vec::new();
    m.resolve(&WHO, key, LOCAL_READ, r.iova, r.length, &mut out)
        .unwrap();
    assert_eq!(out.len(), 1);
}

#[test]
fn scattered_pages_resolve_in_list_order_whatever_their_number() {
    let (ram, mut m) = (FakeRam::new(0x80000), memory());
    for count in [2_u64, 5, 9, 14] {
        for offset in [0, 1, 0xfff] {
            let list: Vec<u64> = (0..count).map(|n| (n * 7 % 41) * 0x1000).collect();
            let r = request(count * 0x1000 - offset - 5, offset, count as u32);
            let key = live(&mut m, &ram, &r, &pages(&list));
            let all = list.iter().flat_map(|p| *p..p + 0x1000);
            let want: Vec<u64> = all.skip(offset as usize).take(r.length as usize).collect();
            check_all(&m, &ram, key, r.iova, &want);
            m.deregister(OWNER, key).unwrap();
        }
    }
}

#[test]
fn extents_of_any_alignment_follow_one_another() {
    let (ram, mut m) = (FakeRam::new(0x10000), memory());
    let r = RegionRequest {
        extents: true,
        page_shift: 255,
        ..request(0x1800 - 7, 5, 3)
    };
    let list = [(0x2003, 0x7fd), (0x5000, 1), (0x6fff, 0x1002)];
    let key = live(&mut m, &ram, &r, &list);
    let all = list.iter().flat_map(|&(a, l)| a..a + l);
    let want: Vec<u64> = all.skip(5).take(r.length as usize).collect();
    check_all(&m, &ram, key, r.iova, &want);
}

#[test]
fn a_huge_page_needs_only_its_used_part_to_be_ram() {
    let (ram, mut m) = (FakeRam::new(0x8000), memory());
    let r = RegionRequest {
        page_shift: 30,
        ..request(0x7000, 0x1000, 1)
    };
    let key = live(&mut m, &ram, &r, &pages(&[0]));
    check_all(&m, &ram, key, r.iova, &(0x1000..0x8000).collect::<Vec<_>>());
    let longer = RegionRequest {
        length: 0x7001,
        ..r
    };
    let key = m.register(&longer).unwrap();
    assert_eq!(
        append(&mut m, &ram, key, &pages(&[0])),
        Err(Status::BadAddress)
    );
}

#[test]
fn each_check_refuses_with_its_own_reason() {
    let (ram, mut m) = (FakeRam::new(0x8000), memory());
    let r = request(0x1000, 0, 1);
    let key = live(&mut m, &ram, &r, &pages(&[0x1000]));
    let ask = |key, pd, context, rights, addr| {
        m.check(&Scope { pd, context, qp: 1 }, key, rights, addr, 1)
    };
    assert_eq!(ask(key, PD, OWNER, access::LOCAL_WRITE, r.iova), Ok(()));
    assert_eq!(ask(key ^ 1, PD, OWNER, 0, r.iova), Err(Refusal::NotFound));
    assert_eq!(ask(key + 256, PD, OWNER, 0, r.iova), Err(Refusal::NotFound));
    assert_eq!(ask(0, PD, OWNER, 0, r.iova), Err(Refusal::NotFound));
    assert_eq!(ask(key, PD + 1, OWNER, 0, r.iova), Err(Refusal::Owner));
    assert_eq!(ask(key, PD, 0, 0, r.iova), Err(Refusal::Owner));
    let both = access::REMOTE_READ | access::REMOTE_WRITE;
    assert_eq!(ask(key, PD, OWNER, both, r.iova), Err(Refusal::Access));
    assert_eq!(ask(key, PD, OWNER, 0, r.iova + 0x1000), Err(Refusal::Range));
    m.deregister(OWNER, key).unwrap();
    assert_eq!(
        m.check(&WHO, key, LOCAL_READ, r.iova, 1),
        Err(Refusal::NotFound)
    );
}

#[test]
fn length_zero_pushes_nothing_and_is_in_range_up_to_the_end() {
    let (ram, mut m) = (FakeRam::new(0x8000), memory());
    let r = request(0x1000, 0, 1);
    let key = live(&mut m, &ram, &r, &pages(&[0x1000]));
    assert_eq!(bytes(&m, &ram, key, r.iova + 0x1000, 0), Ok(vec![]));
    assert_eq!(
        bytes(&m, &ram, key, r.iova + 0x1001, 0),
        Err(Refusal::Range)
    );
    let empty = live(&mut m, &ram, &request(0, 0, 0), &[]);
    assert_eq!(
        bytes(&m, &ram, empty, 0x7f00_0000_0000, 1),
        Err(Refusal::Range)
    );
    assert_eq!(bytes(&m, &ram, empty, 0x7f00_0000_0000, 0), Ok(vec![]));
}

#[test]
fn a_region_in_parts_cannot_be_used_before_its_commit() {
    let (ram, mut m) = (FakeRam::new(0x8000), memory());
    let r = request(0x3000, 0, 3);
    let key = m.register(&r).unwrap();
    append(&mut m, &ram, key, &pages(&[0x1000])).unwrap();
    assert_eq!(m.commit(OWNER, key), Err(Status::InProgress));
    assert_eq!(bytes(&m, &ram, key, r.iova, 1), Err(Refusal::NotFound));
    let too_many = pages(&[0x2000, 0x3000, 0x4000]);
    assert_eq!(append(&mut m, &ram, key, &too_many), Err(Status::Invalid));
    assert_eq!(m.commit(OWNER + 1, key), Err(Status::Denied));
    append(&mut m, &ram, key, &pages(&[0x5000, 0x2000])).unwrap();
    m.commit(OWNER, key).unwrap();
    assert_eq!(m.commit(OWNER, key), Err(Status::BadState));
    assert_eq!(append(&mut m, &ram, key, &[]), Err(Status::BadState));
    assert_eq!(bytes(&m, &ram, key, r.iova + 0x1000, 1), Ok(vec![0x5000]));
}

#[test]
fn a_refused_part_leaves_the_region_as_it_was() {
    let (ram, mut m) = (FakeRam::new(0x8000), memory());
    let r = request(0x3000, 0, 3);
    let key = m.register(&r).unwrap();
    append(&mut m, &ram, key, &pages(&[0x1000])).unwrap();
    for bad in [0x8000, 0x2800] {
        let list = pages(&[0x3000, bad]);
        assert_eq!(append(&mut m, &ram, key, &list), Err(Status::BadAddress));
    }
    append(&mut m, &ram, key, &pages(&[0x2000, 0x6000])).unwrap();
    m.commit(OWNER, key).unwrap();
    let want: Vec<u64> = (0x1000..0x3000).chain(0x6000..0x7000).collect();
    check_all(&m, &ram, key, r.iova, &want);
}

#[test]
fn requests_that_contradict_themselves_are_invalid() {
    let mut m = memory();
    let good = request(0x2000, 0x10, 3);
    let extents = RegionRequest {
        extents: true,
        ..good
    };
    for bad in [
        RegionRequest {
            total_entries: 2,
            ..good
        },
        RegionRequest {
            total_entries: 4,
            ..good
        },
        RegionRequest {
            offset: 0x1000,
            ..good
        },
        RegionRequest {
            offset: u64::MAX,
            ..good
        },
        RegionRequest {
            page_shift: 11,
            ..good
        },
        RegionRequest {
            page_shift: 31,
            ..good
        },
        RegionRequest { length: 0, ..good },
        RegionRequest {
            length: (1 << 30) + 1,
            ..good
        },
        RegionRequest {
            length: u64::MAX,
            ..good
        },
        RegionRequest {
            iova: u64::MAX - 0x1000,
            ..good
        },
        RegionRequest { access: 32, ..good },
        RegionRequest {
            access: access::REMOTE_WRITE,
            ..good
        },
        RegionRequest {
            access: access::REMOTE_ATOMIC,
            ..good
        },
        RegionRequest {
            total_entries: 0,
            ..extents
        },
        RegionRequest {
            total_entries: 0x2001,
            ..extents
        },
    ] {
        assert_eq!(m.register(&bad), Err(Status::Invalid), "{bad:?}");
    }
    assert!(m.is_empty());
}

#[test]
fn extents_that_lie_are_refused() {
    let (ram, mut m) = (FakeRam::new(0x8000), memory());
    let r = RegionRequest {
        extents: true,
        ..request(0x1000, 0x10, 2)
    };
    for list in [
        [(0x1000, 0x10), (0x2000, 0x1000)],
        [(0x1000, 0), (0x2000, 0x1000)],
        [(0x1000, 0x2000), (0x2000, 1)],
    ] {
        let key = m.register(&r).unwrap();
        assert_eq!(
            append(&mut m, &ram, key, &list),
            Err(Status::Invalid),
            "{list:x?}"
        );
        m.deregister(OWNER, key).unwrap();
    }
    for list in [
        [(u64::MAX, 0x20), (0, 0x2000)],
        [(0x1000, 0x20), (0x7011, 0x1000)],
    ] {
        let key = m.register(&r).unwrap();
        assert_eq!(
            append(&mut m, &ram, key, &list),
            Err(Status::BadAddress),
            "{list:x?}"
        );
        m.deregister(OWNER, key).unwrap();
    }
    let key = m.register(&r).unwrap();
    append(&mut m, &ram, key, &[(0x1000, 0x20), (0x3000, 0x20)]).unwrap();
    assert_eq!(m.commit(OWNER, key), Err(Status::Invalid));
}

#[test]
fn list_entries_are_limited_over_all_regions_and_come_back() {
    let mut m = Memory::new(16, 1 << 30, 5, 16);
    let three = request(0x3000, 0, 3);
    let key = m.register(&three).unwrap();
    assert_eq!(m.register(&three), Err(Status::NoResource));
    assert_eq!(m.deregister(OWNER + 1, key), Err(Status::Denied));
    m.deregister(OWNER, key).unwrap();
    assert_eq!(m.deregister(OWNER, key), Err(Status::NotFound));
    m.register(&three).unwrap();
}
