//! The objects of a device: who owns them, what refers to them, how long they live. Decided here and nowhere else.
//!
//! An object belongs to a context; a reference to another context's object is refused. What others refer to cannot be destroyed, except by the
//! end of its context, which ends all that it owns in the order of dependency.

use std::sync::Arc;

use crate::rdma::events::Events;
use crate::rdma::fabric::Gid;
use crate::rdma::limits::Limits;
use crate::rdma::memory::{DmaSpace, Memory, RingMemory, Scope};
use crate::rdma::stats::{ObjectSnapshot, Stats};
use crate::rdma::wire::{
    AddGidBody, QpAttributesBody, SrqAttributesBody, Status, access, feature, qp_control, qp_mask,
};

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

/// What CREATE_QP asks for; its memory is mapped and its places are checked.
pub(crate) struct QpRequest {
    pub context: u32,
    pub kind: QpKind,
    pub refs: QpRefs,
    pub sq_sig_all: bool,
    pub caps: QpCaps,
    pub memory: RingMemory,
    pub control: u64,
    pub sq: RingPlace,
    pub rq: RingPlace,
}

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

    /// Makes a queue pair in RESET.
    pub(crate) fn create_qp(&mut self, request: QpRequest) -> Result<u32, Status> {
        let refs = request.refs;
        self.check_qp_refs(request.context, request.kind, &refs)?;
        let memory = Arc::new(request.memory);
        let entries = memory.entries();
        self.memory.charge(entries)?;
        self.qps_made += 1;
        let (stats, serial) = (&self.stats, self.qps_made);
        let qpn = self.qps.insert_with(request.kind, |qpn| {
            Box::new(Qp {
                qpn,
                serial,
                context: request.context,
                refs,
                kind: request.kind,
                state: QpState::Reset,
                attrs: QpAttributes::default(),
                caps: request.caps,
                sq_sig_all: request.sq_sig_all,
                sq: SendQueue::new(memory.clone(), request.sq, request.control),
                rq: ReceiveQueue::new(
                    memory.clone(),
                    request.rq,
                    request.control + qp_control::RQ_PRODUCER,
                    request.caps.max_recv_sge,
                    Scope {
                        context: request.context,
                        pd: refs.pd,
                        qp: 0,
                    },
                    refs.recv_cq,
                ),
                kick: Kick::new(memory, request.control),
                stats: stats.add_qp(qpn),
                groups: 0,
                transport: Default::default(),
                raised: Default::default(),
            })
        });
        let Some(qpn) = qpn else {
            self.memory.refund(entries);
            return Err(Status::NoResource);
        };
        self.hold_pd(refs.pd);
        self.cqs.hold(refs.send_cq);
        self.cqs.hold(refs.recv_cq);
        self.srqs.hold(refs.srq);
        self.hold_xrcd(refs.xrcd);
        self.contexts.add_qp(request.context, qpn);
        Ok(qpn)
    }

    /// Whether a context may have a QP of this type that refers to these: they are there, and there are no others.
    pub(crate) fn check_qp_refs(
        &self,
        context: u32,
        kind: QpKind,
        refs: &QpRefs,
    ) -> Result<(), Status> {
        if kind == QpKind::XrcTgt {
            let none = QpRefs {
                xrcd: refs.xrcd,
                ..QpRefs::default()
            };
            return if *refs == none {
                self.check_xrcd(refs.xrcd)
            } else {
                Err(Status::Invalid)
            };
        }
        self.check_pd(context, refs.pd)?;
        self.check_cq(context, refs.send_cq)?;
        let receives = kind != QpKind::XrcIni;
        if refs.xrcd != 0 || !receives && (refs.recv_cq, refs.srq) != (0, 0) {
            return Err(Status::Invalid);
        }
        if receives {
            self.check_cq(context, refs.recv_cq)?;
        }
        if refs.srq != 0 {
            self.check_srq(context, refs.srq)?;
            if self.srqs.xrc(refs.srq) != Some(Xrc::default()) {
                return Err(Status::Invalid);
            }
        }
        Ok(())
    }

    /// Puts a datagram QP into a multicast group.
    pub(crate) fn attach(&mut self, context: u32, qpn: u32, gid: &Gid) -> Result<(), Status> {
        self.check_qp(context, qpn)?;
        let qp = self.qps.get_mut(qpn).ok_or(Status::NotFound)?;
        if qp.kind != QpKind::Ud || !is_multicast(gid) {
            return Err(Status::Invalid);
        }
        self.groups.join(gid, qpn)?;
        qp.groups += 1;
        Ok(())
    }

    /// Takes a QP out of a multicast group.
    pub(crate) fn detach(&mut self, context: u32, qpn: u32, gid: &Gid) -> Result<(), Status> {
        self.check_qp(context, qpn)?;
        let qp = self.qps.get_mut(qpn).ok_or(Status::NotFound)?;
        self.groups.leave(gid, qpn)?;
        qp.groups -= 1;
        Ok(())
    }

    /// What leads here: our GIDs, and the multicast groups that have members.
    pub(crate) fn announced(&self) -> Vec<Gid> {
        let mut gids = self.gids.all();
        gids.extend(self.groups.gids());
        gids
    }

    /// Whether a context may refer to a queue pair.
    pub(crate) fn check_qp(&self, context: u32, qpn: u32) -> Result<(), Status> {
        check_owner(context, self.qps.get(qpn).map(|qp| qp.context))
    }

    /// Changes a queue pair. Returns the states before and after. On an error nothing has changed.
    pub(crate) fn modify_qp(
        &mut self,
        context: u32,
        body: &QpAttributesBody,
    ) -> Result<(QpState, QpState), Status> {
        let qpn = body.qpn.get();
        self.check_qp(context, qpn)?;
        let named = body.mask.get() & qp_mask::ACCESS != 0;
        if named && body.access.get() & access::FLUSH != 0 && self.features & feature::FLUSH == 0 {
            return Err(Status::Invalid);
        }
        let qp = self.qps.get_mut(qpn).ok_or(Status::NotFound)?;
        let old = qp.modify(body, &self.limits, &self.gids, &mut self.events)?;
        Ok((old, qp.state))
    }

    /// The attributes of a queue pair.
    pub(crate) fn query_qp(&self, context: u32, qpn: u32) -> Result<QpAttributesBody, Status> {
        self.check_qp(context, qpn)?;
        Ok(self.qps.get(qpn).ok_or(Status::NotFound)?.describe())
    }

    /// Takes out a queue pair that the engine has let go of, and all references it held.
    pub(crate) fn remove_qp(&mut self, qpn: u32) {
        let Some(mut qp) = self.qps.remove(qpn) else {
            return;
        };
        if qp.groups > 0 {
            self.groups.leave_all(qpn);
        }
        self.events.forget(&mut qp.raised, qpn);
        self.memory.refund(qp.kick.entries());
        self.release_pd(qp.refs.pd);
        self.cqs.release(qp.refs.send_cq);
        self.cqs.release(qp.refs.recv_cq);
        self.srqs.release(qp.refs.srq);
        self.release_xrcd(qp.refs.xrcd);
        self.contexts.remove_qp(qp.context, qpn);
        self.stats.remove_qp(qpn);
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

    /// The QPs bound to a completion queue.
    pub(crate) fn qps_of_cq(&self, cqn: u32) -> Vec<u32> {
        self.qps
            .iter()
            .filter(|qp| qp.refs.send_cq == cqn || qp.refs.recv_cq == cqn)
            .map(|qp| qp.qpn)
            .collect()
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
