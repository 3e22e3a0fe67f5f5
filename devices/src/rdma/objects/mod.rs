//! The objects of a device: who owns them, what refers to them, how long they live. Decided here and nowhere else.
//!
//! An object belongs to a context; a reference to another context's object is refused. What others refer to cannot be destroyed, except by the
//! end of its context, which ends all that it owns in the order of dependency.

use std::sync::Arc;

use crate::rdma::events::Events;
use crate::rdma::fabric::Gid;
use crate::rdma::limits::Limits;
use crate::rdma::memory::{DmaSpace, Memory, Scope};
use crate::rdma::stats::{ObjectSnapshot, Stats};
use crate::rdma::wire::{AddGidBody, SrqAttributesBody, Status, access, feature};

pub mod context;
pub mod cq;
pub mod gid;
pub mod group;
pub mod qp;
pub mod queue;
pub(crate) mod slab;
pub mod srq;
pub mod state;
pub mod turns;
mod xrcd;

pub use context::{Contexts, KERNEL};
pub use cq::{Cqs, Overflow};
pub use gid::{GidEntry, GidTable};
pub use group::{Groups, is_multicast};
pub(crate) use qp::QpRequest;
pub use qp::{GSI_QPN, Qp, QpAttributes, QpCaps, QpRefs, Qps};
pub use queue::{Kick, ReceiveQueue, ReceiveWqe, RingFault, RingPlace, SendQueue, kick_fence};
pub use srq::{Srqs, Taker};
pub use state::{QpKind, QpState};
pub use turns::Turn;

use context::Pd;
use cq::{CqRequest, CqRing};
use slab::{HandleLayout, Slab};
use srq::{SrqRequest, SrqRing, Xrc};
use xrcd::Xrcd;

/// All objects of a device. The parts are used side by side by the engine.
pub struct Objects {
    /// What may be created.
    pub limits: Limits,
    /// Feature bits that were negotiated.
    pub features: u64,
    /// User contexts.
    pub contexts: Contexts,
    pds: Slab<Pd>,
    xrcds: Slab<Xrcd>,
    /// Memory regions.
    pub memory: Memory,
    /// Completion queues.
    pub cqs: Cqs,
    /// Shared receive queues.
    pub srqs: Srqs,
    /// Queue pairs.
    pub qps: Qps,
    /// Our addresses.
    pub gids: GidTable,
    /// Multicast groups with members here.
    pub groups: Groups,
    /// Asynchronous events that wait.
    pub events: Events,
    /// Counters.
    pub stats: Arc<Stats>,
    /// Guest memory by DMA address, for registrations.
    pub(crate) dma: Arc<dyn DmaSpace>,
    /// QPs there ever were.
    qps_made: u64,
}

impl Objects {
    /// No objects.
    pub(crate) fn new(
        limits: Limits,
        features: u64,
        dma: Arc<dyn DmaSpace>,
        stats: Arc<Stats>,
    ) -> Self {
        let mut memory = Memory::new(limits.mrs, limits.mr_size, limits.mr_entries, limits.mws);
        if features & feature::FLUSH != 0 {
            memory.allow(access::FLUSH_GLOBAL);
        }
        Objects {
            features,
            contexts: Contexts::new(limits.contexts),
            pds: Slab::new(HandleLayout::index_low(1, limits.pds, 32), limits.pds),
            xrcds: Slab::new(HandleLayout::index_low(1, limits.xrcds, 32), limits.xrcds),
            memory,
            cqs: Cqs::new(limits.cqs, stats.clone()),
            srqs: Srqs::new(limits.srqs),
            qps: Qps::new(limits.qps),
            gids: GidTable::new(limits.gids),
            groups: Groups::new(limits.mcast_groups, limits.mcast_qps),
            events: Events::default(),
            stats,
            dma,
            qps_made: 0,
            limits,
        }
    }

    /// Fills a slot of the GID table.
    pub(crate) fn add_gid(&mut self, body: &AddGidBody) -> Result<(), Status> {
        self.gids.add(body)
    }

    /// Makes a protection domain.
    pub(crate) fn create_pd(&mut self, context: u32) -> Result<u32, Status> {
        self.pds
            .insert_with(|_| Pd { context, users: 0 })
            .ok_or(Status::NoResource)
    }

    /// Ends a protection domain that nothing is in.
    pub(crate) fn destroy_pd(&mut self, context: u32, handle: u32) -> Result<(), Status> {
        self.check_pd(context, handle)?;
        if self.pds.get(handle).is_some_and(|pd| pd.users > 0) {
            return Err(Status::Busy);
        }
        self.pds.remove(handle);
        Ok(())
    }

    /// Whether a context may refer to a protection domain.
    pub(crate) fn check_pd(&self, context: u32, handle: u32) -> Result<(), Status> {
        check_owner(context, self.pds.get(handle).map(|pd| pd.context))
    }

    /// Counts a reference to a protection domain, or counts one off.
    pub(crate) fn hold_pd(&mut self, handle: u32) {
        if let Some(pd) = self.pds.get_mut(handle) {
            pd.users += 1;
        }
    }

    pub(crate) fn release_pd(&mut self, handle: u32) {
        if let Some(pd) = self.pds.get_mut(handle) {
            pd.users = pd.users.saturating_sub(1);
        }
    }

    /// Makes a completion queue.
    pub(crate) fn create_cq(&mut self, request: CqRequest) -> Result<u32, Status> {
        let entries = request.ring.memory.entries();
        self.memory.charge(entries)?;
        let cqn = self.cqs.create(request);
        if cqn.is_none() {
            self.memory.refund(entries);
        }
        cqn.ok_or(Status::NoResource)
    }

    /// Whether a context may refer to a completion queue.
    pub(crate) fn check_cq(&self, context: u32, cqn: u32) -> Result<(), Status> {
        check_owner(context, self.cqs.owner(cqn))
    }

    /// Moves a completion queue to another ring. On an error it stays in its own.
    pub(crate) fn resize_cq(&mut self, cqn: u32, ring: CqRing) -> Result<(), Status> {
        // Both are there for a moment.
        let entries = ring.memory.entries();
        self.memory.charge(entries)?;
        let result = self.cqs.resize(cqn, ring);
        self.memory.refund(*result.as_ref().unwrap_or(&entries));
        result.map(drop)
    }

    /// Ends a completion queue that neither a QP nor an SRQ refers to.
    pub(crate) fn destroy_cq(&mut self, context: u32, cqn: u32) -> Result<(), Status> {
        self.check_cq(context, cqn)?;
        if self.cqs.users(cqn) > 0 {
            return Err(Status::Busy);
        }
        self.remove_cq(cqn);
        Ok(())
    }

    fn remove_cq(&mut self, cqn: u32) {
        let entries = self.cqs.destroy(cqn, &mut self.events);
        self.memory.refund(entries);
    }

    /// Makes a shared receive queue.
    pub(crate) fn create_srq(&mut self, request: SrqRequest) -> Result<u32, Status> {
        let (Scope { context, pd, .. }, xrc) = (request.scope, request.xrc);
        self.check_srq_refs(context, pd, xrc)?;
        let entries = request.ring.memory.entries();
        self.memory.charge(entries)?;
        let Some(srqn) = self.srqs.create(request) else {
            self.memory.refund(entries);
            return Err(Status::NoResource);
        };
        self.hold_pd(pd);
        self.cqs.hold(xrc.cqn);
        self.hold_xrcd(xrc.xrcd);
        Ok(srqn)
    }

    /// Whether a context may have an SRQ that refers to these.
    pub(crate) fn check_srq_refs(&self, context: u32, pd: u32, xrc: Xrc) -> Result<(), Status> {
        self.check_pd(context, pd)?;
        if xrc == Xrc::default() {
            return Ok(());
        }
        self.check_cq(context, xrc.cqn)?;
        self.check_xrcd(xrc.xrcd)
    }

    /// Whether a context may refer to a shared receive queue.
    pub(crate) fn check_srq(&self, context: u32, srqn: u32) -> Result<(), Status> {
        check_owner(context, self.srqs.owner(srqn))
    }

    /// The attributes of a shared receive queue.
    pub(crate) fn query_srq(&self, context: u32, srqn: u32) -> Result<SrqAttributesBody, Status> {
        self.check_srq(context, srqn)?;
        self.srqs.describe(srqn).ok_or(Status::NotFound)
    }

    /// Gives a shared receive queue another ring, or a limit, or both. On an error nothing has changed.
    pub(crate) fn modify_srq(
        &mut self,
        context: u32,
        srqn: u32,
        ring: Option<SrqRing>,
        limit: Option<u32>,
    ) -> Result<(), Status> {
        self.check_srq(context, srqn)?;
        if let Some(ring) = ring {
            let entries = ring.memory.entries();
            self.memory.charge(entries)?;
            match self.srqs.resize(srqn, ring) {
                Ok(old) => self.memory.refund(old),
                Err(status) => {
                    self.memory.refund(entries);
                    return Err(status);
                }
            }
        }
        if let Some(limit) = limit {
            self.srqs.set_limit(srqn, limit, &mut self.events);
        }
        Ok(())
    }

    /// Ends a shared receive queue that no QP refers to.
    pub(crate) fn destroy_srq(&mut self, context: u32, srqn: u32) -> Result<(), Status> {
        self.check_srq(context, srqn)?;
        if self.srqs.users(srqn) > 0 {
            return Err(Status::Busy);
        }
        self.remove_srq(srqn);
        Ok(())
    }

    fn remove_srq(&mut self, srqn: u32) {
        if let Some(gone) = self.srqs.destroy(srqn, &mut self.events) {
            self.memory.refund(gone.entries);
            self.release_pd(gone.pd);
            self.cqs.release(gone.xrc.cqn);
            self.release_xrcd(gone.xrc.xrcd);
            if gone.xrc.xrcd != 0 {
                self.detach_targets(gone.xrc.xrcd, srqn);
            }
        }
    }

    /// What leads here: our GIDs, and the multicast groups that have members.
    pub(crate) fn announced(&self) -> Vec<Gid> {
        let mut gids = self.gids.all();
        gids.extend(self.groups.gids());
        gids
    }

    /// Takes out all that a context owns but its QPs, which are gone already, and the context. Returns its doorbell page.
    pub(crate) fn remove_context(&mut self, context: u32) -> Option<u32> {
        for srqn in self.srqs.owned_by(context) {
            self.remove_srq(srqn);
        }
        for cqn in self.cqs.owned_by(context) {
            self.remove_cq(cqn);
        }
        self.memory.remove_all(context);
        let pds: Vec<u32> = self
            .pds
            .iter()
            .filter(|(_, pd)| pd.context == context)
            .map(|(handle, _)| handle)
            .collect();
        for pd in pds {
            self.pds.remove(pd);
        }
        self.contexts.remove(context)
    }

    /// Shows how many objects there are.
    pub(crate) fn show_counts(&self) {
        self.stats.objects.set(&ObjectSnapshot {
            contexts: self.contexts.len().into(),
            pds: self.pds.len().into(),
            mrs: self.memory.len().into(),
            mws: self.memory.windows().into(),
            cqs: self.cqs.len().into(),
            srqs: self.srqs.len().into(),
            xrcds: self.xrcds.len().into(),
            qps: self.qps.len().into(),
            mr_entries: self.limits.mr_entries - self.memory.entries_left(),
        });
    }
}

/// A device that was reset has none.
impl Drop for Objects {
    fn drop(&mut self) {
        self.stats.objects.set(&ObjectSnapshot::default());
    }
}

/// Whether a context may refer to an object of this owner.
fn check_owner(context: u32, owner: Option<u32>) -> Result<(), Status> {
    match owner {
        None => Err(Status::NotFound),
        Some(owner) if owner != context => Err(Status::Denied),
        Some(_) => Ok(()),
    }
}
