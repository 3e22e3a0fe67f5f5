//! Queue pairs: section 4.7 and 4.8.

use std::sync::Arc;

use super::gid::GidTable;
use super::queue::{Kick, ReceiveQueue, SendQueue};
use super::slab::{HandleLayout, Slab};
use super::state::{QpKind, QpState, check_transition};
use crate::rdma::engine::Transport;
use crate::rdma::events::{EventKind, Events, Raised};
use crate::rdma::limits::Limits;
use crate::rdma::memory::Scope;
use crate::rdma::stats::QpCounters;
use crate::rdma::wire::{Le16, Le32, QpAttributesBody, Status, access, qp_mask};

mod lifetime;

pub(crate) use lifetime::QpRequest;

/// PSNs and QPNs have 24 bits.
const MASK_24: u32 = 0xff_ffff;

/// What a QP was created with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpCaps {
    /// SGEs of a send.
    pub max_send_sge: u32,
    /// SGEs of a receive.
    pub max_recv_sge: u32,
    /// Inline bytes of a send.
    pub max_inline: u32,
    /// What it sends to a multicast group does not come back to it.
    pub block_loopback: bool,
}

/// What a QP refers to, each 0 where it has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpRefs {
    /// Protection domain.
    pub pd: u32,
    /// CQ of sends.
    pub send_cq: u32,
    /// CQ of receives.
    pub recv_cq: u32,
    /// Shared receive queue.
    pub srq: u32,
    /// XRC domain.
    pub xrcd: u32,
}

/// Attributes that MODIFY_QP sets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpAttributes {
    /// What the peer may do ([`access`] bits).
    pub access: u32,
    /// Path MTU, IB enumeration.
    pub path_mtu: u8,
    /// Port.
    pub port: u8,
    /// Index in the partition table.
    pub pkey_index: u16,
    /// Q_Key.
    pub qkey: u32,
    /// The peer's QP.
    pub dest_qpn: u32,
    /// Number of the first message expected.
    pub rq_psn: u32,
    /// Number of the first message sent.
    pub sq_psn: u32,
    /// READs and atomics under way as requester.
    pub max_rd_atomic: u8,
    /// READs and atomics under way as responder.
    pub max_dest_rd_atomic: u8,
    /// 4.096 us * 2^n, 0 for ever.
    pub timeout: u8,
    /// Times that the timer may run out again.
    pub retry_cnt: u8,
    /// RNR NAKs that are borne in a row, 7 for any number.
    pub rnr_retry: u8,
    /// RNR timer that the peer is told, IB encoding.
    pub min_rnr_timer: u8,
    /// SQ_DRAINED is wanted.
    pub en_sqd_async: bool,
    /// Address vector: where the peer is.
    pub dgid: [u8; 16],
    /// Address vector: the peer's MAC address.
    pub dmac: [u8; 6],
    /// Address vector: our GID.
    pub sgid_index: u8,
    /// Address vector.
    pub hop_limit: u8,
    /// Address vector.
    pub traffic_class: u8,
    /// Address vector.
    pub flow_label: u32,
    /// Address vector: service level.
    pub sl: u8,
}

/// A queue pair.
pub struct Qp {
    /// Its number.
    pub qpn: u32,
    /// As which it looks memory up: its number among all QPs there ever were, from 1 on.
    pub serial: u64,
    /// Its owner.
    pub context: u32,
    /// What it refers to.
    pub refs: QpRefs,
    /// Its type.
    pub kind: QpKind,
    /// Its state.
    pub state: QpState,
    /// What MODIFY_QP set.
    pub attrs: QpAttributes,
    /// What CREATE_QP set.
    pub caps: QpCaps,
    /// Every send is signalled.
    pub sq_sig_all: bool,
    /// Send queue.
    pub sq: SendQueue,
    /// Receive queue.
    pub rq: ReceiveQueue,
    /// Doorbell flags of both.
    pub kick: Kick,
    /// Counters.
    pub stats: Arc<QpCounters>,
    /// Multicast groups that it is in.
    pub groups: u32,
    /// What the engine remembers of the connection.
    pub transport: Transport,
    pub(super) raised: Raised,
}

impl Qp {
    /// As whom its queues look memory up.
    #[inline]
    pub fn scope(&self) -> Scope {
        Scope {
            pd: self.refs.pd,
            context: self.context,
            qp: self.serial,
        }
    }

    /// The SRQ that it takes receives from, 0 for its own queue; of an XRC target, what the message named that came last.
    #[inline]
    pub fn source(&self) -> u32 {
        match self.kind {
            QpKind::XrcTgt => self.transport.source(),
            _ => self.refs.srq,
        }
    }

    /// Raises an event for this QP; once, until RESET, but SQ_DRAINED as often as it is asked for.
    pub fn raise(&mut self, kind: EventKind, events: &mut Events) {
        match kind {
            EventKind::SqDrained => events.raise_again(&mut self.raised, kind, self.qpn),
            _ => events.raise(&mut self.raised, kind, self.qpn),
        }
    }

    /// Takes the QP to ERR, with an event if there is one to tell. Returns the state it was in.
    pub fn fail(&mut self, event: Option<EventKind>, events: &mut Events) -> QpState {
        if let Some(kind) = event {
            self.raise(kind, events);
        }
        std::mem::replace(&mut self.state, QpState::Err)
    }

    /// Checks and applies MODIFY_QP. On an error nothing has changed. Returns the state before.
    pub(super) fn modify(
        &mut self,
        body: &QpAttributesBody,
        limits: &Limits,
        gids: &GidTable,
        events: &mut Events,
    ) -> Result<QpState, Status> {
        let mask = body.mask.get();
        if mask & !qp_mask::ALL != 0 || body.sq_draining != 0 {
            return Err(Status::Invalid);
        }
        let old = self.state;
        if mask & qp_mask::CUR_STATE != 0 {
            let claimed = QpState::from_wire(body.cur_state).ok_or(Status::Invalid)?;
            if claimed != old {
                return Err(Status::BadState);
            }
        }
        let new = if mask & qp_mask::STATE != 0 {
            QpState::from_wire(body.state).ok_or(Status::Invalid)?
        } else {
            old
        };
        check_transition(self.kind, old, new, mask)?;
        let mut attrs = self.attrs.changed(body, limits, gids)?;
        if (old, new) == (QpState::Rts, QpState::Sqd) && mask & qp_mask::EN_SQD_ASYNC == 0 {
            // Asked for with each change, not once for all.
            attrs.en_sqd_async = false;
        }
        self.attrs = attrs;
        self.state = new;
        if new == QpState::Reset {
            self.reset(events);
        }
        Ok(old)
    }

    fn reset(&mut self, events: &mut Events) {
        self.attrs = QpAttributes::default();
        self.rq.reset();
        self.kick
            .set(crate::rdma::wire::kick::SQ | crate::rdma::wire::kick::RQ);
        events.forget(&mut self.raised, self.qpn);
    }

    /// The reply to QUERY_QP.
    pub(super) fn describe(&self) -> QpAttributesBody {
        let a = &self.attrs;
        QpAttributesBody {
            qpn: Le32::new(self.qpn),
            mask: Le32::new(qp_mask::ALL),
            state: self.state as u8,
            cur_state: self.state as u8,
            path_mtu: a.path_mtu,
            port: a.port,
            access: Le32::new(a.access),
            qkey: Le32::new(a.qkey),
            dest_qpn: Le32::new(a.dest_qpn),
            rq_psn: Le32::new(a.rq_psn),
            sq_psn: Le32::new(a.sq_psn),
            max_rd_atomic: a.max_rd_atomic,
            max_dest_rd_atomic: a.max_dest_rd_atomic,
            timeout: a.timeout,
            retry_cnt: a.retry_cnt,
            rnr_retry: a.rnr_retry,
            min_rnr_timer: a.min_rnr_timer,
            pkey_index: Le16::new(a.pkey_index),
            flow_label: Le32::new(a.flow_label),
            sgid_index: a.sgid_index,
            hop_limit: a.hop_limit,
            traffic_class: a.traffic_class,
            sl: a.sl,
            dgid: a.dgid,
            dmac: a.dmac,
            en_sqd_async: u8::from(a.en_sqd_async),
            sq_draining: u8::from(self.state == QpState::Sqd && self.transport.is_draining()),
        }
    }
}

impl QpAttributes {
    /// These attributes with those of the mask taken over, each checked by itself.
    fn changed(
        &self,
        body: &QpAttributesBody,
        limits: &Limits,
        gids: &GidTable,
    ) -> Result<Self, Status> {
        let mask = body.mask.get();
        let mut new = *self;
        let mut valid = true;
        let mut take = |bit: u32, ok: bool, apply: &mut dyn FnMut(&mut QpAttributes)| {
            if mask & bit != 0 {
                valid &= ok;
                apply(&mut new);
            }
        };
        take(qp_mask::EN_SQD_ASYNC, body.en_sqd_async <= 1, &mut |a| {
            a.en_sqd_async = body.en_sqd_async == 1
        });
        let (rights, known) = (body.access.get(), access::ALL | access::FLUSH);
        take(qp_mask::ACCESS, rights & !known == 0, &mut |a| {
            a.access = rights;
        });
        take(qp_mask::PKEY_INDEX, body.pkey_index.get() == 0, &mut |a| {
            a.pkey_index = 0;
        });
        take(qp_mask::PORT, body.port == 1, &mut |a| a.port = 1);
        take(qp_mask::QKEY, true, &mut |a| a.qkey = body.qkey.get());
        let mtu = body.path_mtu;
        take(qp_mask::PATH_MTU, (1..=5).contains(&mtu), &mut |a| {
            a.path_mtu = mtu;
        });
        take(qp_mask::TIMEOUT, body.timeout < 32, &mut |a| {
            a.timeout = body.timeout;
        });
        take(qp_mask::RETRY_CNT, body.retry_cnt < 8, &mut |a| {
            a.retry_cnt = body.retry_cnt;
        });
        take(qp_mask::RNR_RETRY, body.rnr_retry < 8, &mut |a| {
            a.rnr_retry = body.rnr_retry;
        });
        take(qp_mask::MIN_RNR_TIMER, body.min_rnr_timer < 32, &mut |a| {
            a.min_rnr_timer = body.min_rnr_timer;
        });
        take(qp_mask::RQ_PSN, true, &mut |a| {
            a.rq_psn = body.rq_psn.get() & MASK_24;
        });
        take(qp_mask::SQ_PSN, true, &mut |a| {
            a.sq_psn = body.sq_psn.get() & MASK_24;
        });
        take(
            qp_mask::MAX_QP_RD_ATOMIC,
            body.max_rd_atomic <= limits.rd_atomic,
            &mut |a| a.max_rd_atomic = body.max_rd_atomic,
        );
        take(
            qp_mask::MAX_DEST_RD_ATOMIC,
            body.max_dest_rd_atomic <= limits.rd_atomic,
            &mut |a| a.max_dest_rd_atomic = body.max_dest_rd_atomic,
        );
        let dest = body.dest_qpn.get();
        take(qp_mask::DEST_QPN, dest <= MASK_24, &mut |a| {
            a.dest_qpn = dest;
        });
        let route_ok =
            gids.get(body.sgid_index).is_some() && body.flow_label.get() < 1 << 20 && body.sl < 16;
        take(qp_mask::AV, route_ok, &mut |a| {
            a.dgid = body.dgid;
            a.dmac = body.dmac;
            a.sgid_index = body.sgid_index;
            a.hop_limit = body.hop_limit;
            a.traffic_class = body.traffic_class;
            a.flow_label = body.flow_label.get();
            a.sl = body.sl;
        });
        if valid { Ok(new) } else { Err(Status::Invalid) }
    }
}

/// The number of the QP of type GSI (section 4.7).
pub const GSI_QPN: u32 = 1;

/// All queue pairs of a device.
pub struct Qps {
    table: Slab<Box<Qp>>,
    /// The one of type GSI, which has a number of its own.
    gsi: Option<Box<Qp>>,
}

impl Qps {
    pub(super) fn new(limit: u32) -> Self {
        Qps {
            table: Slab::new(HandleLayout::index_low(2, limit, 24), limit),
            gsi: None,
        }
    }

    /// Puts in what `make` makes of its number. None when the limit is reached, or there is a QP of type GSI already.
    pub(super) fn insert_with(
        &mut self,
        kind: QpKind,
        make: impl FnOnce(u32) -> Box<Qp>,
    ) -> Option<u32> {
        match kind {
            QpKind::Gsi if self.gsi.is_some() => None,
            QpKind::Gsi => Some(self.gsi.insert(make(GSI_QPN)).qpn),
            _ => self.table.insert_with(make),
        }
    }

    /// Takes the QP of that number out.
    pub(super) fn remove(&mut self, qpn: u32) -> Option<Box<Qp>> {
        match qpn {
            GSI_QPN => self.gsi.take(),
            _ => self.table.remove(qpn),
        }
    }

    /// The QP of that number.
    #[inline]
    pub fn get(&self, qpn: u32) -> Option<&Qp> {
        let gsi = || self.gsi.as_ref().filter(|gsi| gsi.qpn == qpn);
        self.table.get(qpn).or_else(gsi).map(|qp| &**qp)
    }

    /// The QP of that number.
    #[inline]
    pub fn get_mut(&mut self, qpn: u32) -> Option<&mut Qp> {
        let found = self.table.get_mut(qpn);
        found
            .or(self.gsi.as_mut().filter(|gsi| gsi.qpn == qpn))
            .map(|qp| &mut **qp)
    }

    /// All QPs, to change.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Qp> {
        let table = self.table.iter_mut().map(|(_, qp)| qp);
        table.chain(&mut self.gsi).map(|qp| &mut **qp)
    }

    /// All QPs.
    pub fn iter(&self) -> impl Iterator<Item = &Qp> {
        let table = self.table.iter().map(|(_, qp)| qp);
        table.chain(&self.gsi).map(|qp| &**qp)
    }

    /// QPs that exist.
    pub fn len(&self) -> u32 {
        self.table.len() + u32::from(self.gsi.is_some())
    }

    /// Whether there are no QPs.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
