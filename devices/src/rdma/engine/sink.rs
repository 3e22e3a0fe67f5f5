//! Frames to the QPs that they are for.
//!
//! Everything in a header is the peer's word. A QP takes a frame only from the peer, and the QP there, that it is connected to.

use std::time::Instant;

use super::{Engine, answers, atomics, completer, lanes, responder, retry, uc, ud};
use crate::rdma::fabric::frame::{FrameHeader, kind, nak};
use crate::rdma::fabric::{PeerId, Placement, Sink};
use crate::rdma::memory::Segment;
use crate::rdma::objects::{Objects, Qp, QpKind, QpState};

/// The engine as the fabric sees it while it is polled.
pub struct Receiver<'a> {
    /// The engine.
    pub engine: &'a mut Engine,
    /// The objects.
    pub objects: &'a mut Objects,
    /// The time of this poll.
    pub now: Instant,
}

/// What a frame's type makes of it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    Request,
    Answer,
}

pub(super) fn class(kind: u8) -> Option<Class> {
    match kind {
        kind::SEND | kind::WRITE | kind::READ | kind::ATOMIC => Some(Class::Request),
        kind::READ_DATA | kind::ATOMIC_DATA | kind::ACK | kind::NAK => Some(Class::Answer),
        _ => None,
    }
}

/// Whether the QP takes such a frame from there.
fn takes(qp: &Qp, peer: PeerId, header: &FrameHeader, class: Class) -> bool {
    let ready = match class {
        Class::Request => qp.state.receives(),
        Class::Answer => matches!(qp.state, QpState::Rts | QpState::Sqd),
    };
    ready
        && match qp.kind {
            QpKind::Rc => true,
            QpKind::Uc => matches!(header.kind, kind::SEND | kind::WRITE),
            QpKind::XrcIni => class == Class::Answer,
            QpKind::XrcTgt => class == Class::Request,
            QpKind::Ud | QpKind::Gsi => false,
        }
        && qp.transport.peer == Some(peer)
        && (class == Class::Request || header.lane == lanes::of_requests(qp))
        && qp.attrs.dest_qpn == header.src_qpn
}

impl Receiver<'_> {
    /// Whether the frame is for one of our QPs. A request that is not is answered.
    fn admit(&mut self, peer: PeerId, header: &FrameHeader) -> Option<Class> {
        let class = class(header.kind)?;
        let qp = self.objects.qps.get_mut(header.dst_qpn);
        if let Some(qp) = qp.filter(|qp| takes(qp, peer, header, class)) {
            // Somebody who knows no such QP is not who the QP was connected to.
            qp.transport.bound |= header.kind != kind::NAK || header.rkey != nak::NO_QP;
            return Some(class);
        }
        self.objects.stats.device.rx_discarded.add(1);
        if class == Class::Request {
            self.engine.lists.strays.refuse(peer, header);
        }
        None
    }
}

impl Sink for Receiver<'_> {
    fn place(
        &mut self,
        peer: PeerId,
        header: &FrameHeader,
        skip: u32,
        into: &mut Vec<Segment>,
    ) -> Placement {
        let Some(class) = self.admit(peer, header) else {
            return Placement::Discard;
        };
        let Some((qp, mut env)) = self.engine.enter(self.objects, header.dst_qpn, self.now) else {
            return Placement::Discard;
        };
        match (class, header.kind) {
            (Class::Request, _) if qp.kind == QpKind::Uc => {
                uc::place(qp, &mut env, header, skip, into)
            }
            (Class::Request, _) => responder::place(qp, &mut env, header, skip, into),
            (Class::Answer, kind::READ_DATA) => completer::place(qp, &mut env, header, skip, into),
            // No payload.
            (Class::Answer, _) if header.length == 0 => Placement::Into,
            (Class::Answer, _) => Placement::Discard,
        }
    }

    fn frame(&mut self, peer: PeerId, header: &FrameHeader, placement: Placement, data: &[u8]) {
        if header.kind == kind::DATAGRAM {
            ud::deliver(self, peer, header, data);
            return;
        }
        let atomic = kind::comes_as_data(header.kind);
        if placement == Placement::Discard && !atomic {
            return;
        }
        let class = if atomic {
            self.admit(peer, header)
        } else {
            // It was admitted by `place`; what has changed since is looked at again.
            let qp = self.objects.qps.get(header.dst_qpn);
            class(header.kind).filter(|class| qp.is_some_and(|qp| takes(qp, peer, header, *class)))
        };
        let Some(class) = class else { return };
        let Some((qp, mut env)) = self.engine.enter(self.objects, header.dst_qpn, self.now) else {
            return;
        };
        match (class, header.kind) {
            (Class::Request, kind::ATOMIC) => atomics::answer(qp, &mut env, header, data),
            (Class::Request, _) if qp.kind == QpKind::Uc => uc::complete(qp, &mut env, header),
            (Class::Request, _) => responder::complete(qp, &mut env, header),
            (Class::Answer, kind::ACK) => completer::ack(qp, &mut env, header),
            (Class::Answer, kind::NAK) => completer::nak(qp, &mut env, header),
            (Class::Answer, _) => completer::data(qp, &mut env, header, data),
        }
    }

    fn peer_up(&mut self, peer: PeerId) {
        for qpn in connected(self.objects, peer) {
            if let Some((qp, mut env)) = self.engine.enter(self.objects, qpn, self.now) {
                env.heat(qp);
            }
        }
    }

    fn peer_down(&mut self, peer: PeerId) {
        for qpn in connected(self.objects, peer) {
            if let Some((qp, mut env)) = self.engine.enter(self.objects, qpn, self.now) {
                retry::link_lost(qp, &mut env);
                answers::link_lost(qp);
                lanes::link_lost(qp);
            }
        }
        self.engine.lists.strays.forget(peer);
    }

    fn routes_changed(&mut self) {
        self.engine.routes_changed = true;
    }
}

/// QPs that are connected to a peer. Links come and go rarely, so the list is made when it is asked for.
fn connected(objects: &Objects, peer: PeerId) -> Vec<u32> {
    let those = |qp: &&Qp| qp.transport.peer == Some(peer);
    objects.qps.iter().filter(those).map(|qp| qp.qpn).collect()
}
