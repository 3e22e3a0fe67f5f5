//! Regions whose list is given by work request: fast registration.
//!
//! The kernel makes such a region once, with room for a list that lies in memory registered with it. A work request then gives it bytes, and
//! another takes them away, both without a command. The list is read once, when the work request is carried out.

use super::layout::{Builder, RegionEntry};
use super::regions::{Kind, LOCAL_READ, Memory, Refusal, Region, State};
use super::request::{RegionRequest, check_request};
use super::{DmaSpace, RingMemory, Scope};
use crate::rdma::wire::Status;

/// Where a region's list lies.
pub(super) struct FastList {
    memory: RingMemory,
    /// Of entry 0, a multiple of 8.
    offset: u64,
    /// Entries there is room for.
    room: u32,
}

/// What a work request registers.
#[derive(Clone, Copy, Debug)]
pub struct FastRegistration {
    /// The key that the region gets: its own, with any tag.
    pub key: u32,
    /// Bits of [`crate::rdma::wire::access`].
    pub access: u32,
    /// Address of the first byte in work requests.
    pub iova: u64,
    /// Bytes.
    pub length: u64,
    /// Of the first byte in the first page.
    pub offset: u64,
    /// Pages of 2^n bytes.
    pub page_shift: u8,
    /// Entries of the list.
    pub entries: u32,
}

impl Memory {
    /// Makes a region without bytes, whose list of up to `room` pages will lie at `offset` in `memory`. The caller has checked the PD, and that
    /// the list lies inside. Returns the key.
    ///
    /// # Errors
    /// `NoResource` at a limit.
    pub fn alloc_fast(
        &mut self,
        context: u32,
        pd: u32,
        memory: RingMemory,
        offset: u64,
        room: u32,
    ) -> Result<u32, Status> {
        let entries = u64::from(room) + memory.entries();
        let list = Box::new(FastList {
            memory,
            offset,
            room,
        });
        self.insert(Region::new(context, pd, Kind::Fast(list)), entries)
    }

    /// Registers the pages of a region's list.
    ///
    /// # Errors
    /// Why not; then nothing has changed.
    pub fn register_fast(
        &mut self,
        dma: &dyn DmaSpace,
        who: &Scope,
        registration: &FastRegistration,
    ) -> Result<(), Refusal> {
        let key = registration.key;
        let (_, region) = self.regions.current_mut(key).ok_or(Refusal::NotFound)?;
        region.belongs_to(who)?;
        let Kind::Fast(list) = &region.kind else {
            return Err(Refusal::Access);
        };
        if region.is_live() {
            return Err(Refusal::State);
        }
        let request = RegionRequest {
            context: region.context,
            pd: region.pd,
            access: registration.access,
            iova: registration.iova,
            length: registration.length,
            offset: registration.offset,
            page_shift: registration.page_shift,
            extents: false,
            total_entries: registration.entries,
        };
        if registration.entries > list.room
            || check_request(&request, self.rights, self.max_mr_size).is_err()
        {
            return Err(Refusal::Range);
        }
        let mut builder = Builder::new(&request);
        let mut pages = (0..registration.entries).map(|n| RegionEntry {
            address: list.memory.load64(list.offset + 8 * u64::from(n)),
            length: 0,
        });
        builder
            .extend(dma, request.length, &mut pages, &mut self.scratch)
            .map_err(|_| Refusal::Range)?;
        region.access = request.access | LOCAL_READ;
        (region.iova, region.length) = (request.iova, request.length);
        region.state = State::Live(builder.finish(request.length));
        self.regions.rename(key);
        Ok(())
    }

    /// Whether [`Memory::invalidate`] would do it; `remote` when a peer asks.
    ///
    /// # Errors
    /// Why not: a region registered by command and a window of type 1 cannot be invalidated, nor can a region that a window is bound to; a
    /// window, and whatever a peer names, must be valid.
    pub fn check_invalidate(&self, who: &Scope, key: u32, remote: bool) -> Result<(), Refusal> {
        let region = self.regions.get(key).ok_or(Refusal::NotFound)?;
        region.belongs_to(who)?;
        match &region.kind {
            Kind::Plain => Err(Refusal::Access),
            Kind::Fast(_) if region.windows > 0 => Err(Refusal::State),
            Kind::Fast(_) if remote && !region.is_live() => Err(Refusal::State),
            Kind::Fast(_) => Ok(()),
            Kind::Window(window) => window.check_invalidate(who, region),
        }
    }

    /// Takes the bytes of a key away. The caller sees to it that no [`super::Segment`] of them is left before it tells anybody.
    ///
    /// # Errors
    /// As [`Memory::check_invalidate`].
    pub fn invalidate(&mut self, who: &Scope, key: u32, remote: bool) -> Result<(), Refusal> {
        self.check_invalidate(who, key, remote)?;
        self.unbind(key);
        let region = self.regions.get_mut(key).ok_or(Refusal::NotFound)?;
        region.state = State::Invalid;
        Ok(())
    }
}
