//! Memory regions, and the one lookup of the data path: key, PD, owner, access, address and length to guest memory, or a precise refusal.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::fast::FastList;
use super::layout::{Builder, Layout, RegionEntry};
use super::request::{RegionRequest, check_access, check_request};
use super::windows::Window;
use super::{DmaSpace, Segment};
use crate::rdma::fabric::frame::nak;
use crate::rdma::objects::slab::{HandleLayout, Slab};
use crate::rdma::wire::{Status, access, cqe_status, vendor_err};

/// Asked for a local read: every region allows it, no memory window does. Not a bit of the specification.
pub const LOCAL_READ: u32 = 1 << 31;

/// On whose behalf memory is looked up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// Owner of the queue.
    pub context: u32,
    /// Its protection domain.
    pub pd: u32,
    /// The QP, by a number that no other QP ever has; windows of type 2 are tied to it. 0 for a receive queue, of which no peer asks.
    pub qp: u64,
}

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
    /// The key is in use, or not, where it must be the other way.
    #[error("the key is not in a state for this")]
    State,
}

impl Refusal {
    /// The `vendor_err` of a CQE (section 9).
    pub fn vendor_err(self) -> u32 {
        match self {
            Refusal::NotFound => vendor_err::KEY_NOT_FOUND,
            Refusal::Owner => vendor_err::PD,
            Refusal::Access => vendor_err::ACCESS,
            Refusal::Range => vendor_err::RANGE,
            Refusal::State => vendor_err::KEY_STATE,
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

/// Whether and how a region's bytes are found.
pub(super) enum State {
    /// Its list is coming in.
    Building(Box<Builder>),
    /// It can be used.
    Live(Layout),
    /// It has no bytes: not registered, or not bound.
    Invalid,
}

/// What a region is.
pub(super) enum Kind {
    /// Registered by command.
    Plain,
    /// Registered by work request, from this list.
    Fast(Box<FastList>),
    /// A memory window.
    Window(Window),
}

/// What a key stands for. What every access looks at comes first.
pub(super) struct Region {
    pub(super) context: u32,
    pub(super) pd: u32,
    /// Bits of [`crate::rdma::wire::access`], and [`LOCAL_READ`].
    pub(super) access: u32,
    /// By which commands name it; the key's tag may change.
    pub(super) handle: u32,
    pub(super) iova: u64,
    pub(super) length: u64,
    /// Where in the layout its first byte is.
    pub(super) shift: u64,
    /// The one QP that may use it, 0 any.
    pub(super) tie: u64,
    pub(super) state: State,
    /// List entries that it was charged for.
    pub(super) entries: u64,
    /// Memory windows that are bound to it.
    pub(super) windows: u32,
    pub(super) kind: Kind,
}

// SAFETY: the addresses name guest RAM, which any thread may access by the functions of `access`; the device that owns them is itself
// used by one thread at a time.
unsafe impl Send for Region {}

impl Region {
    /// A region without bytes.
    pub(super) fn new(context: u32, pd: u32, kind: Kind) -> Self {
        Region {
            context,
            pd,
            access: 0,
            handle: 0,
            iova: 0,
            length: 0,
            shift: 0,
            tie: 0,
            state: State::Invalid,
            entries: 0,
            windows: 0,
            kind,
        }
    }

    /// Whether it can be used.
    pub(super) fn is_live(&self) -> bool {
        matches!(self.state, State::Live(_))
    }

    /// Whether queues of `who` may have to do with it.
    pub(super) fn belongs_to(&self, who: &Scope) -> Result<(), Refusal> {
        if self.pd == who.pd && self.context == who.context {
            Ok(())
        } else {
            Err(Refusal::Owner)
        }
    }
}

/// All memory regions of a device.
pub struct Memory {
    pub(super) regions: Slab<Region>,
    max_mr: u32,
    pub(super) max_mw: u32,
    /// Windows among the regions.
    pub(super) window_count: u32,
    /// Windows of type 2 that are bound: the QP that each is tied to, and its handle.
    pub(super) tied: BTreeSet<(u64, u32)>,
    pub(super) max_mr_size: u64,
    /// Access bits that a region may have.
    pub(super) rights: u32,
    /// List entries that may still be registered: bounds the host memory that a driver can make the device use.
    entries_left: u64,
    pub(super) scratch: Vec<Segment>,
}

impl Memory {
    /// No regions; up to `max_mr` of `max_mr_size` bytes, with `max_entries` list entries between them, and up to `max_mw` windows.
    pub fn new(max_mr: u32, max_mr_size: u64, max_entries: u64, max_mw: u32) -> Self {
        Memory {
            regions: Slab::new(HandleLayout::KEY, max_mr.saturating_add(max_mw)),
            max_mr,
            max_mw,
            window_count: 0,
            tied: BTreeSet::new(),
            max_mr_size,
            rights: access::ALL,
            entries_left: max_entries,
            scratch: Vec::new(),
        }
    }

    /// Allows regions more access bits.
    pub fn allow(&mut self, rights: u32) {
        self.rights |= rights;
    }

    /// Regions that exist, windows not counted.
    pub fn len(&self) -> u32 {
        self.regions.len() - self.window_count
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
        check_request(request, self.rights, self.max_mr_size)?;
        let region = Region {
            iova: request.iova,
            length: request.length,
            access: request.access | LOCAL_READ,
            state: State::Building(Box::new(Builder::new(request))),
            ..Region::new(request.context, request.pd, Kind::Plain)
        };
        self.insert(region, request.total_entries.into())
    }

    /// Takes a region in that has `entries` list entries. Returns its key.
    pub(super) fn insert(&mut self, region: Region, entries: u64) -> Result<u32, Status> {
        if self.len() >= self.max_mr {
            return Err(Status::NoResource);
        }
        self.charge(entries)?;
        let key = self.regions.insert_with(|handle| Region {
            handle,
            entries,
            ..region
        });
        if key.is_none() {
            self.refund(entries);
        }
        key.ok_or(Status::NoResource)
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
            State::Live(_) | State::Invalid => Err(Status::BadState),
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
        check_access(access, self.rights)?;
        let region = Region {
            length: u64::MAX,
            access: access | LOCAL_READ,
            state: State::Live(Layout::Dma(dma)),
            ..Region::new(context, pd, Kind::Plain)
        };
        self.insert(region, 0)
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

    /// List entries that may still be had.
    pub(crate) fn entries_left(&self) -> u64 {
        self.entries_left
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

    /// The region that a command of `context` names, and its key.
    pub(super) fn named(&self, context: u32, handle: u32) -> Result<(u32, &Region), Status> {
        let (key, region) = self.regions.current(handle).ok_or(Status::NotFound)?;
        if region.handle != handle || matches!(region.kind, Kind::Window(_)) {
            return Err(Status::NotFound);
        }
        if region.context != context {
            return Err(Status::Denied);
        }
        Ok((key, region))
    }

    /// Whether [`Memory::deregister`] would end the registration.
    ///
    /// # Errors
    /// `NotFound`, `Denied` for another owner's, `Busy` while a window is bound to it.
    pub fn check_deregister(&self, context: u32, handle: u32) -> Result<(), Status> {
        match self.named(context, handle)?.1.windows {
            0 => Ok(()),
            _ => Err(Status::Busy),
        }
    }

    /// Ends a registration. The caller has seen to it that no [`Segment`] of it is left. Returns its PD.
    ///
    /// # Errors
    /// As [`Memory::check_deregister`].
    pub fn deregister(&mut self, context: u32, handle: u32) -> Result<u32, Status> {
        self.check_deregister(context, handle)?;
        let (key, region) = self.named(context, handle)?;
        let pd = region.pd;
        self.remove(key);
        Ok(pd)
    }

    pub(super) fn remove(&mut self, key: u32) {
        if let Some(region) = self.regions.remove(key) {
            self.refund(region.entries);
            self.tied.remove(&(region.tie, region.handle));
            self.window_count -= u32::from(matches!(region.kind, Kind::Window(_)));
        }
    }

    /// Ends all regions and windows of a context, bound or not.
    pub(crate) fn remove_all(&mut self, context: u32) {
        let keys: Vec<u32> = self
            .regions
            .iter()
            .filter(|(_, region)| region.context == context)
            .map(|(key, _)| key)
            .collect();
        for key in keys {
            self.remove(key);
        }
    }

    /// The region of a key, if a queue of `who` may access it in all the ways `asked`.
    #[inline]
    fn live(&self, who: &Scope, key: u32, asked: u32) -> Result<(&Region, &Layout), Refusal> {
        let region = self.regions.get(key).ok_or(Refusal::NotFound)?;
        let State::Live(layout) = &region.state else {
            return Err(Refusal::NotFound);
        };
        if region.pd != who.pd
            || region.context != who.context
            || (region.tie != 0 && region.tie != who.qp)
        {
            return Err(Refusal::Owner);
        }
        if region.access & asked != asked {
            return Err(Refusal::Access);
        }
        Ok((region, layout))
    }

    /// Finds how the bytes of a region are found, and the offset there, after all checks.
    #[inline]
    fn find(
        &self,
        who: &Scope,
        key: u32,
        asked: u32,
        addr: u64,
        len: u64,
    ) -> Result<(&Layout, u64), Refusal> {
        let (region, layout) = self.live(who, key, asked)?;
        // An address below the region wraps to an offset that no region reaches.
        let offset = addr.wrapping_sub(region.iova);
        if offset > region.length || len > region.length - offset {
            return Err(Refusal::Range);
        }
        Ok((layout, region.shift + offset))
    }

    /// Whether a region as a whole may be accessed; as [`Memory::resolve`], without a range.
    pub fn check_region(&self, who: &Scope, key: u32, asked: u32) -> Result<(), Refusal> {
        self.live(who, key, asked).map(drop)
    }

    /// Whether an access is allowed; as [`Memory::resolve`] without the segments.
    #[inline]
    pub fn check(
        &self,
        who: &Scope,
        key: u32,
        asked: u32,
        addr: u64,
        len: u64,
    ) -> Result<(), Refusal> {
        let (layout, offset) = self.find(who, key, asked, addr, len)?;
        if layout.contains(offset, len) {
            Ok(())
        } else {
            Err(Refusal::Range)
        }
    }

    /// Pushes the guest memory of `len` bytes at `addr` in region `key` onto `out`, if a queue of `who` may access it in all the ways `asked`
    /// ([`crate::rdma::wire::access`] bits, [`LOCAL_READ`]). After a refusal what was pushed means nothing. Length 0 is checked like any other and pushes nothing; an
    /// SGE or remote request of length 0 names no memory, so its key need not be looked up at all.
    #[inline]
    pub fn resolve(
        &self,
        who: &Scope,
        key: u32,
        asked: u32,
        addr: u64,
        len: u64,
        out: &mut Vec<Segment>,
    ) -> Result<(), Refusal> {
        let (layout, offset) = self.find(who, key, asked, addr, len)?;
        if len > 0 && !layout.push(offset, len, out) {
            return Err(Refusal::Range);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
