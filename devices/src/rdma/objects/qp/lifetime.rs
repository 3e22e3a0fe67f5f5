//! Queue pairs as objects: what one refers to, from CREATE_QP to its end.

use std::sync::Arc;

use super::{Qp, QpAttributes, QpCaps, QpRefs};
use crate::rdma::memory::{RingMemory, Scope};
use crate::rdma::objects::srq::Xrc;
use crate::rdma::objects::{
    Kick, Objects, QpKind, QpState, ReceiveQueue, RingPlace, SendQueue, check_owner,
};
use crate::rdma::wire::{QpAttributesBody, Status, access, feature, qp_control, qp_mask};

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

impl Objects {
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
        self.memory.untie(qp.serial);
        self.release_pd(qp.refs.pd);
        self.cqs.release(qp.refs.send_cq);
        self.cqs.release(qp.refs.recv_cq);
        self.srqs.release(qp.refs.srq);
        self.release_xrcd(qp.refs.xrcd);
        self.contexts.remove_qp(qp.context, qpn);
        self.stats.remove_qp(qpn);
    }

    /// The QPs bound to a completion queue: an XRC target to that of the SRQ that its last request named.
    pub(crate) fn qps_of_cq(&self, cqn: u32) -> Vec<u32> {
        let served = |qp: &Qp| {
            let srq = self.srqs.xrc(qp.source());
            qp.kind == QpKind::XrcTgt && srq.is_some_and(|srq| srq.cqn == cqn)
        };
        self.qps
            .iter()
            .filter(|qp| qp.refs.send_cq == cqn || qp.refs.recv_cq == cqn || served(qp))
            .map(|qp| qp.qpn)
            .collect()
    }
}
