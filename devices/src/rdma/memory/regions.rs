//! Memory regions, and the one lookup of the data path: key, PD, owner, access, address and length to guest memory, or a precise refusal.

use std::sync::Arc;

use super::layout::{Builder, Layout, RegionEntry};
use super::{DmaSpace, Segment};
use crate::rdma::fabric::frame::nak;
use crate::rdma::objects::slab::{HandleLayout, Slab};
use crate::rdma::wire::{Status, access, cqe_status, vendor_err};

/// Why an access was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No region has this key, or its list is not committed.
    #[error("no memory region has this key")]
    NotFound,
    /// The region is of another PD or owner.
    #[error("the memory region belongs to another protection domain or context")]
    Owner,
    /// The region does not allow all that is asked.
    #[error("the memory region does not allow this access")]
    Access,
    /// Part of the range lies outside the region.
    #[error("the range lies outside the memory region")]
    Range,
}

impl Refusal {
    /// The `vendor_err` of a CQE (section 9).
    pub fn vendor_err(self) -> u32 {
        match self {
            Refusal::NotFound => vendor_err::KEY_NOT_FOUND,
            Refusal::Owner => vendor_err::PD,
            Refusal::Access => vendor_err::ACCESS,
            Refusal::Range => vendor_err::RANGE,
        }
    }

    /// The status of a CQE for the queue whose own SGE it was.
    pub fn cqe_status(self) -> u8 {
        cqe_status::LOC_PROT_ERR
    }

    /// The NAK code for the peer that asked.
    pub fn nak(self) -> u32 {
        nak::REMOTE_ACCESS
    }
}

/// What REG_MR asks for, without the list (section 4.4).
#[derive(Clone, Copy, Debug)]
pub struct RegionRequest {
    /// The owner.
    pub context: u32,
    /// Its protection domain.
    pub pd: u32,
    /// Bits of [`access`].
    pub access: u32,
    /// Address of the first byte in work requests.
    pub iova: u64,
    /// Bytes.
    pub length: u64,
    /// Of the first byte in the first page or extent.
    pub offset: u64,
    /// Pages of 2^n bytes; ignored for extents.
    pub page_shift: u8,
    /// Entries are extents.
    pub extents: bool,
    /// Entries of the whole list.
    pub total_entries: u32,
}

enum State {
    Building(Builder),
    Live(Layout),
}

struct Region {
    context: u32,
    pd: u32,
    access: u32,
    iova: u64,
    length: u64,
    entries: u32,
    state: State,
}

// SAFETY: the addresses name guest RAM, which any thread may access by the functions of `access`; the device that owns them is itself
// used by one thread at a time.
unsafe impl Send for Region {}

/// All memory regions of a device.
pub struct Memory {
    regions: Slab<Region>,
    max_mr_size: u64,
    /// List entries that may still be registered: bounds the host memory that a driver can make the device use.
    entries_left: u64,
    scratch: Vec<Segment>,
}

impl Memory {
    /// No regions; up to `max_mr` of `max_mr_size` bytes, with `max_entries` list entries between them.
    pub fn new(max_mr: u32, max_mr_size: u64, max_entries: u64) -> Self {
        Memory {
            regions: Slab::new(HandleLayout::KEY, max_mr),
            max_mr_size,
            entries_left: max_entries,
            scratch: Vec::new(),
        }
    }

    /// Regions that exist.
    pub fn len(&self) -> u32 {
        self.regions.len()
    }

    /// Whether there are no regions.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Starts a registration; it can be used after [`Memory::commit`]. The caller has checked the PD. Returns the key.
    ///
    /// # Errors
    /// `Invalid` when the request contradicts itself, `NoResource` at a limit.
    pub fn register(&mut self, request: &RegionRequest) -> Result<u32, Status> {
        check_request(request, self.max_mr_size)?;
        if u64::from(request.total_entries) > self.entries_left || !self.regions.has_room() {
            return Err(Status::NoResource);
        }
        let key = self
            .regions
            .insert_with(|_| Region {
                context: request.context,
                pd: request.pd,
                access: request.access,
                iova: request.iova,
                length: request.length,
                entries: request.total_entries,
                state: State::Building(Builder::new(request)),
            })
            .ok_or(Status::NoResource)?;
        self.entries_left -= u64::from(request.total_entries);
        Ok(key)
    }

    /// Whether the region's list has extents; for the decoding of MR_APPEND.
    ///
    /// # Errors
    /// `NotFound`, `Denied` for another owner's, `BadState` when the list is committed.
    pub fn takes_extents(&self, context: u32, key: u32) -> Result<bool, Status> {
        let region = self.regions.get(key).ok_or(Status::NotFound)?;
        if region.context != context {
            return Err(Status::Denied);
        }
        match &region.state {
            State::Building(builder) => Ok(builder.extents),
            State::Live(_) => Err(Status::BadState),
        }
    }

    /// Registers all DMA addresses that the device may use, as they are: an address in the region is a DMA address. It can be used at once. The
    /// caller has checked the PD and that the kernel asks. Returns the key.
    ///
    /// # Errors
    /// `Invalid` for access bits that contradict one another, `NoResource` at a limit.
    pub fn register_dma(
        &mut self,
        dma: Arc<dyn DmaSpace>,
        context: u32,
        pd: u32,
        access: u32,
    ) -> Result<u32, Status> {
        check_access(access)?;
        self.regions
            .insert_with(|_| Region {
                context,
                pd,
                access,
                iova: 0,
                length: u64::MAX,
                entries: 0,
                state: State::Live(Layout::Dma(dma)),
            })
            .ok_or(Status::NoResource)
    }

    /// Adds entries to the list of a region. On an error the region is as it was before.
    ///
    /// # Errors
    /// As [`Memory::takes_extents`]; `Invalid` for more entries than announced or more bytes than the region has, `BadAddress` for an entry
    /// that is not aligned or not RAM.
    pub fn append(
        &mut self,
        dma: &dyn DmaSpace,
        context: u32,
        key: u32,
        entries: &mut dyn ExactSizeIterator<Item = RegionEntry>,
    ) -> Result<(), Status> {
        self.takes_extents(context, key)?;
        let region = self.regions.get_mut(key).ok_or(Status::NotFound)?;
        let State::Building(builder) = &mut region.state else {
            return Err(Status::BadState);
        };
        builder.extend(dma, region.length, entries, &mut self.scratch)
    }

    /// Makes a region usable.
    ///
    /// # Errors
    /// As [`Memory::takes_extents`]; `InProgress` when the list is shorter than announced, `Invalid` when it does not cover the length.
    pub fn commit(&mut self, context: u32, key: u32) -> Result<(), Status> {
        self.takes_extents(context, key)?;
        let region = self.regions.get_mut(key).ok_or(Status::NotFound)?;
        let State::Building(builder) = &mut region.state else {
            return Err(Status::BadState);
        };
        if builder.entries_left > 0 {
            return Err(Status::InProgress);
        }
        if builder.covered != region.length {
            return Err(Status::Invalid);
        }
        let layout = builder.finish(region.length);
        region.state = State::Live(layout);
        Ok(())
    }

    /// Takes `entries` off those that may be registered, for memory that is registered with another object.
    ///
    /// # Errors
    /// `NoResource` when there are not so many left.
    pub(crate) fn charge(&mut self, entries: u64) -> Result<(), Status> {
        self.entries_left = self
            .entries_left
            .checked_sub(entries)
            .ok_or(Status::NoResource)?;
        Ok(())
    }

    /// Undoes a [`Memory::charge`].
    pub(crate) fn refund(&mut self, entries: u64) {
        self.entries_left += entries;
    }

    /// Who owns the region and its PD.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn owner(&self, key: u32) -> Result<(u32, u32), Status> {
        let region = self.regions.get(key).ok_or(Status::NotFound)?;
        Ok((region.context, region.pd))
    }

    /// Ends a registration. The caller has seen to it that no [`Segment`] of it is left. Returns its PD.
    ///
    /// # Errors
    /// `NotFound`, `Denied` for another owner's.
    pub fn deregister(&mut self, context: u32, key: u32) -> Result<u32, Status> {
        let (owner, pd) = self.owner(key)?;
        if owner != context {
            return Err(Status::Denied);
        }
        if let Some(region) = self.regions.remove(key) {
            self.entries_left += u64::from(region.entries);
        }
        Ok(pd)
    }

    /// Keys of the regions of a context.
    pub fn owned_by(&self, context: u32) -> Vec<u32> {
        self.regions
            .iter()
            .filter(|(_, region)| region.context == context)
            .map(|(key, _)| key)
            .collect()
    }

    /// Finds the region and the offset in it, after all checks.
    #[inline]
    fn find(
        &self,
        key: u32,
        pd: u32,
        context: u32,
        asked: u32,
        addr: u64,
        len: u64,
    ) -> Result<(&Region, &Layout, u64), Refusal> {
        let region = self.regions.get(key).ok_or(Refusal::NotFound)?;
        let State::Live(layout) = &region.state else {
            return Err(Refusal::NotFound);
        };
        if region.pd != pd || region.context != context {
            return Err(Refusal::Owner);
        }
        if region.access & asked != asked {
            return Err(Refusal::Access);
        }
        // An address below the region wraps to an offset that no region reaches.
        let offset = addr.wrapping_sub(region.iova);
        if offset > region.length || len > region.length - offset {
            return Err(Refusal::Range);
        }
        Ok((region, layout, offset))
    }

    /// Whether an access is allowed; as [`Memory::resolve`] without the segments.
    #[inline]
    pub fn check(
        &self,
        key: u32,
        pd: u32,
        context: u32,
        asked: u32,
        addr: u64,
        len: u64,
    ) -> Result<(), Refusal> {
        let (_, layout, offset) = self.find(key, pd, context, asked, addr, len)?;
        if layout.contains(offset, len) {
            Ok(())
        } else {
            Err(Refusal::Range)
        }
    }

    /// Pushes the guest memory of `len` bytes at `addr` in region `key` onto `out`, if a queue of `pd` and `context` may access it in all the
    /// ways `asked` ([`access`] bits; 0 is a local read). After a refusal what was pushed means nothing. Length 0 is checked like any other and pushes nothing; an
    /// SGE or remote request of length 0 names no memory, so its key need not be looked up at all.
    #[inline]
    #[expect(
        clippy::too_many_arguments,
        reason = "all of what section 4.4 has the device check at every use"
    )]
    pub fn resolve(
        &self,
        key: u32,
        pd: u32,
        context: u32,
        asked: u32,
        addr: u64,
        len: u64,
        out: &mut Vec<Segment>,
    ) -> Result<(), Refusal> {
        let (region, layout, offset) = self.find(key, pd, context, asked, addr, len)?;
        if len > 0 && !layout.push(region.length, offset, len, out) {
            return Err(Refusal::Range);
        }
        Ok(())
    }
}

/// Checks access bits (section 4.5).
fn check_access(bits: u32) -> Result<(), Status> {
    let needs_local = access::REMOTE_WRITE | access::REMOTE_ATOMIC;
    let sound =
        bits & !access::ALL == 0 && (bits & needs_local == 0 || bits & access::LOCAL_WRITE != 0);
    if sound { Ok(()) } else { Err(Status::Invalid) }
}

/// Checks what of a request can be checked without its list.
fn check_request(request: &RegionRequest, max_mr_size: u64) -> Result<(), Status> {
    check_access(request.access)?;
    if request.length == 0 {
        let empty = request.total_entries == 0 && request.offset == 0;
        return if empty { Ok(()) } else { Err(Status::Invalid) };
    }
    if request.length > max_mr_size || request.iova.checked_add(request.length - 1).is_none() {
        return Err(Status::Invalid);
    }
    if request.extents {
        // At least a byte for each entry.
        if request.total_entries == 0 || u64::from(request.total_entries) > request.length {
            return Err(Status::Invalid);
        }
        return Ok(());
    }
    if !(12..=30).contains(&request.page_shift) || request.offset >= 1 << request.page_shift {
        return Err(Status::Invalid);
    }
    let bytes = request
        .offset
        .checked_add(request.length)
        .ok_or(Status::Invalid)?;
    if bytes.div_ceil(1 << request.page_shift) != u64::from(request.total_entries) {
        return Err(Status::Invalid);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rdma::test_utils::FakeRam;

    const PD: u32 = 3;
    const OWNER: u32 = 4;

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
        Memory::new(16, 1 << 30, 1 << 16)
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
    fn bytes(
        m: &Memory,
        ram: &FakeRam,
        key: u32,
        addr: u64,
        len: u64,
    ) -> Result<Vec<u64>, Refusal> {
        let mut out = Vec::new();
        m.resolve(key, PD, OWNER, 0, addr, len, &mut out)?;
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
        m.resolve(key, PD, OWNER, 0, r.iova, r.length, &mut out)
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
        let ask = |key, pd, owner, rights, addr| m.check(key, pd, owner, rights, addr, 1);
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
            m.check(key, PD, OWNER, 0, r.iova, 1),
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
        let mut m = Memory::new(16, 1 << 30, 5);
        let three = request(0x3000, 0, 3);
        let key = m.register(&three).unwrap();
        assert_eq!(m.register(&three), Err(Status::NoResource));
        assert_eq!(m.deregister(OWNER + 1, key), Err(Status::Denied));
        m.deregister(OWNER, key).unwrap();
        assert_eq!(m.deregister(OWNER, key), Err(Status::NotFound));
        m.register(&three).unwrap();
    }
}
