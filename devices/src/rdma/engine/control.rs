//! Changes of state that a command brings about.

use std::time::Instant;

use super::transport::Transport;
use super::{Engine, Env, answers, lanes, requester, retry};
use crate::rdma::fabric::frame::{FrameHeader, kind};
use crate::rdma::fabric::{Fabric, PeerId};
use crate::rdma::objects::{Objects, Qp, QpState};
use crate::rdma::wire::{kick, qp_mask};

impl Engine {
    /// The QP's state or attributes were changed; `old` is the state before, `mask` says which attributes ([`qp_mask`]).
    pub fn qp_state_changed(
        &mut self,
        objects: &mut Objects,
        fabric: &dyn Fabric,
        qpn: u32,
        old: QpState,
        mask: u32,
    ) {
        let Some((qp, mut env)) = self.enter(objects, qpn, Instant::now()) else {
            return;
        };
        match qp.state {
            QpState::Reset => env.leave(qp),
            QpState::Err if old != QpState::Err => env.failed(qp),
            QpState::Rtr => {
                if qp.kind.is_connected() {
                    qp.transport.responder.expected = qp.attrs.rq_psn;
                    qp.transport.dest_qpn = qp.attrs.dest_qpn;
                    qp.transport.peer = fabric.route(&qp.attrs.dgid);
                }
                // Receives are looked at when a message comes.
                qp.kick.clear(kick::RQ);
            }
            QpState::Rts if old == QpState::Rtr => {
                let requester = &mut qp.transport.requester;
                let first = qp.attrs.sq_psn;
                (requester.oldest, requester.acked) = (first, first);
                (requester.sent, requester.begun) = (first, first);
                env.heat(qp);
            }
            QpState::Rts => {
                qp.transport.requester.tell_drained = false;
                env.heat(qp);
            }
            QpState::Sqd => {
                if mask & qp_mask::AV != 0 {
                    // It may be another destination.
                    qp.transport.bound = false;
                    env.reroute(qp, fabric);
                }
                let requester = &mut qp.transport.requester;
                if old == QpState::Rts && qp.attrs.en_sqd_async {
                    requester.tell_drained = true;
                    requester::retire(qp, &mut env);
                }
                env.heat(qp);
            }
            _ => {}
        }
    }

    /// The QP is about to be destroyed.
    pub fn qp_destroyed(&mut self, objects: &mut Objects, qpn: u32) {
        if let Some((qp, mut env)) = self.enter(objects, qpn, Instant::now()) {
            env.leave(qp);
        }
    }

    /// All QPs were destroyed, and there will be no further round: sends what they owed.
    pub fn farewell(&mut self, fabric: &mut dyn Fabric) {
        self.lists.strays.send(fabric);
        fabric.flush();
    }

    /// Looks up all routes anew.
    pub(super) fn reroute(&mut self, objects: &mut Objects, fabric: &dyn Fabric, now: Instant) {
        let connected = |qp: &&Qp| qp.kind.is_connected() && qp.state.receives();
        let qpns: Vec<u32> = objects
            .qps
            .iter()
            .filter(connected)
            .map(|qp| qp.qpn)
            .collect();
        for qpn in qpns {
            if let Some((qp, mut env)) = self.enter(objects, qpn, now) {
                env.reroute(qp, fabric);
            }
        }
    }
}

impl Env<'_> {
    /// Follows the route of the QP's destination.
    fn reroute(&mut self, qp: &mut Qp, fabric: &dyn Fabric) {
        if qp.transport.bound || !qp.kind.is_connected() {
            return;
        }
        let route = fabric.route(&qp.attrs.dgid);
        let kept = |peer: PeerId| route.is_none() && !fabric.is_up(peer);
        // A peer whose link is lost is still the one that the QP was connected to.
        if route == qp.transport.peer || qp.transport.peer.is_some_and(kept) {
            return;
        }
        if qp.transport.peer.is_some() {
            retry::link_lost(qp, self);
            answers::link_lost(qp);
            lanes::link_lost(qp);
        }
        qp.transport.peer = route;
        self.heat(qp);
    }

    /// The QP has no use for what it took, or waits for, of its SRQ.
    pub(super) fn let_go(&mut self, qp: &mut Qp) {
        let source = qp.source();
        let responder = &mut qp.transport.responder;
        self.srqs.leave(source, &mut responder.turn);
        if let Some(held) = responder.receive.take() {
            // Without an SRQ it is discarded.
            self.srqs.give_back(source, held, &responder.sges);
        }
    }

    /// The QP forgets its connection, and tells the peer what it must so that nobody waits for ever.
    fn leave(&mut self, qp: &mut Qp) {
        if let Some(peer) = qp.transport.peer {
            let base = FrameHeader {
                dst_qpn: qp.transport.dest_qpn,
                src_qpn: qp.qpn,
                lane: lanes::of_answers(qp),
                ..FrameHeader::default()
            };
            if qp.transport.responder.ack {
                let seq = qp.transport.responder.expected;
                let ack = FrameHeader {
                    kind: kind::ACK,
                    seq,
                    ..base
                };
                self.lists.strays.push(peer, ack);
            }
            answers::abandon(qp);
            if let Some(refusal) = qp.transport.responder.nak {
                self.lists.strays.push(peer, refusal.frame(base));
            }
        }
        self.let_go(qp);
        self.lists.timers.cancel(&mut qp.transport.timer, qp.qpn);
        self.lists.hot.retain(|qpn| *qpn != qp.qpn);
        self.lists.owing.retain(|qpn| *qpn != qp.qpn);
        qp.transport = Transport::default();
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_utils::*;
    use super::*;

    #[test]
    fn only_an_address_leads_a_live_connection_elsewhere() {
        const ELSEWHERE: PeerId = PeerId(PEER.0 + 1);
        let mut node = Node::new();
        let mut queue = node.connected();
        let post = write(&node, 1, 8);
        node.send(&mut queue, post);
        node.run();
        node.take(ack(&queue, SQ_PSN + 1), &[]);
        node.fabric.route = Some(ELSEWHERE);
        node.modify(&queue, QpState::Sqd);
        node.modify_with(&queue, QpState::Sqd, qp_mask::ACCESS | qp_mask::TIMEOUT);
        assert_eq!(node.qp(&queue).transport.peer, Some(PEER));
        node.modify_with(&queue, QpState::Sqd, qp_mask::AV);
        assert_eq!(node.qp(&queue).transport.peer, Some(ELSEWHERE));
    }
}
