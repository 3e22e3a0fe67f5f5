//! Memory regions, and the one lookup of the data path: key, PD, owner, access, address and length to guest memory, or a precise refusal.

use std::sync::Arc;

use super::fast::FastList;
use super::layout::{Builder, Layout, RegionEntry};
use super::windows::Window;
use super::{DmaSpace, Segment};
use crate::rdma::fabric::frame::nak;
use crate::rdma::objects::slab::{HandleLayout, Slab};
use crate::rdma::wire::{Status, access, cqe_status, vendor_err};

/// Asked for a local read: every region allows it, no memory window does. Not a bit of the specification.
pub const LOCAL_READ: u32 = 1 << 31;

/// On whose behalf memory is looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asker {
    /// Protection domain of the queue.
    pub pd: u32,
    /// Its owner.
    pub context: u32,
    /// The QP, by a number that no other QP ever has; windows of type 2 are tied to it.
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

/// What is to be changed of a region; None: stays as it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Change {
    /// Bits of [`access`].
    pub access: Option<u32>,
    /// Protection domain.
    pub pd: Option<u32>,
    /// Handle of the region whose bytes and addresses it takes over.
    pub source: Option<u32>,
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
    /// Bits of [`access`], and [`LOCAL_READ`].
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
    pub(super) fn belongs_to(&self, who: &Asker) -> Result<(), Refusal> {
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
    pub(super) max_mr_size: u64,
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
            max_mr_size,
            entries_left: max_entries,
            scratch: Vec::new(),
        }
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
        check_request(request, self.max_mr_size)?;
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
        check_access(access)?;
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
    fn named(&self, context: u32, handle: u32) -> Result<(u32, &Region), Status> {
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
            self.window_count -= u32::from(matches!(region.kind, Kind::Window(_)));
        }
    }

    /// Gives a region other rights, another PD, or the bytes of another region, which ends. The caller has checked the new PD and seen to it
    /// that no [`Segment`] of either region is left. Returns the PDs that the region and the other one were in.
    ///
    /// # Errors
    /// As [`Memory::check_deregister`], for either; `Invalid` for rights that contradict one another and a region that would take over its own
    /// bytes, `BadState` for a region that cannot be used or has no list. On an error nothing has changed.
    pub fn change(
        &mut self,
        context: u32,
        handle: u32,
        change: &Change,
    ) -> Result<(u32, Option<u32>), Status> {
        if let Some(bits) = change.access {
            check_access(bits)?;
        }
        if change.source == Some(handle) {
            return Err(Status::Invalid);
        }
        let sound = |handle| {
            self.check_deregister(context, handle)?;
            let (key, region) = self.named(context, handle)?;
            let listed = matches!(&region.state, State::Live(layout) if layout.is_list());
            if listed && matches!(region.kind, Kind::Plain) {
                Ok((key, region.pd))
            } else {
                Err(Status::BadState)
            }
        };
        let (key, pd) = sound(handle)?;
        let source = change.source.map(sound).transpose()?;
        let other = source.and_then(|(key, _)| self.regions.remove(key));
        let region = self.regions.get_mut(key).ok_or(Status::NotFound)?;
        if let Some(bits) = change.access {
            region.access = bits | LOCAL_READ;
        }
        region.pd = change.pd.unwrap_or(pd);
        if let Some(other) = other {
            let old = std::mem::replace(&mut region.entries, other.entries);
            (region.iova, region.length, region.state) = (other.iova, other.length, other.state);
            self.refund(old);
        }
        Ok((pd, source.map(|(_, pd)| pd)))
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

    /// Finds how the bytes of a region are found, and the offset there, after all checks.
    #[inline]
    fn find(
        &self,
        who: &Asker,
        key: u32,
        asked: u32,
        addr: u64,
        len: u64,
    ) -> Result<(&Layout, u64), Refusal> {
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
        // An address below the region wraps to an offset that no region reaches.
        let offset = addr.wrapping_sub(region.iova);
        if offset > region.length || len > region.length - offset {
            return Err(Refusal::Range);
        }
        Ok((layout, region.shift + offset))
    }

    /// Whether an access is allowed; as [`Memory::resolve`] without the segments.
    #[inline]
    pub fn check(
        &self,
        who: &Asker,
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
    /// ([`access`] bits, [`LOCAL_READ`]). After a refusal what was pushed means nothing. Length 0 is checked like any other and pushes nothing; an
    /// SGE or remote request of length 0 names no memory, so its key need not be looked up at all.
    #[inline]
    pub fn resolve(
        &self,
        who: &Asker,
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

/// Checks access bits (section 4.5).
fn check_access(bits: u32) -> Result<(), Status> {
    let needs_local = access::REMOTE_WRITE | access::REMOTE_ATOMIC;
    let sound =
        bits & !access::ALL == 0 && (bits & needs_local == 0 || bits & access::LOCAL_WRITE != 0);
    if sound { Ok(()) } else { Err(Status::Invalid) }
}

/// Checks what of a request can be checked without its list.
pub(super) fn check_request(request: &RegionRequest, max_mr_size: u64) -> Result<(), Status> {
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
mod tests;
