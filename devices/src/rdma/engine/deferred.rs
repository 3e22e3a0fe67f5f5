//! Receives whose CQE waits until the fabric has let go of the memory that a message invalidated.
//!
//! A message is complete while the fabric hands over frames, and then the fabric cannot be asked to let go. So the CQE, and those of later messages
//! of the same QP, are written at the start of the engine's round, which follows at once, and before any acknowledgement is sent.

use std::time::Instant;

use super::transport::Incoming;
use super::{Engine, Env, completion, responder};
use crate::rdma::fabric::Fabric;
use crate::rdma::objects::{Objects, Qp, ReceiveWqe};

/// A receive that waits.
#[derive(Debug)]
pub(super) struct Deferred {
    qpn: u32,
    receive: ReceiveWqe,
    outcome: Outcome,
}

#[derive(Debug)]
enum Outcome {
    /// A message filled it: what it was, and its number.
    Received(Incoming, u32),
    /// Status and vendor_err.
    Failed(u8, u32),
}

/// Completes a receive that a message filled, now or later. False when its CQ takes no more.
pub(super) fn received(
    qp: &mut Qp,
    env: &mut Env<'_>,
    receive: &ReceiveWqe,
    incoming: &Incoming,
) -> bool {
    if !qp.transport.responder.deferring {
        return completion::received(qp, env, receive, incoming);
    }
    env.lists.deferred.push_back(Deferred {
        qpn: qp.qpn,
        receive: *receive,
        outcome: Outcome::Received(*incoming, qp.transport.responder.expected),
    });
    true
}

/// Completes a receive that no message filled, now or later.
pub(super) fn failed(
    qp: &mut Qp,
    env: &mut Env<'_>,
    receive: &ReceiveWqe,
    status: u8,
    vendor: u32,
) {
    if !qp.transport.responder.deferring {
        completion::receive_failed(qp, env, receive, status, vendor);
        return;
    }
    env.lists.deferred.push_back(Deferred {
        qpn: qp.qpn,
        receive: *receive,
        outcome: Outcome::Failed(status, vendor),
    });
}

impl Engine {
    /// Writes the CQEs that wait.
    pub(super) fn settle(&mut self, objects: &mut Objects, fabric: &mut dyn Fabric, now: Instant) {
        if self.lists.deferred.is_empty() {
            return;
        }
        fabric.forget_memory();
        while let Some(deferred) = self.lists.deferred.pop_front() {
            let Some((qp, mut env)) = self.enter(objects, deferred.qpn, now) else {
                continue;
            };
            qp.transport.responder.deferring = false;
            match deferred.outcome {
                Outcome::Received(incoming, seq) => {
                    if !completion::received(qp, &mut env, &deferred.receive, &incoming) {
                        responder::not_completed(qp, &mut env, seq);
                    }
                }
                Outcome::Failed(status, vendor) => {
                    completion::receive_failed(qp, &mut env, &deferred.receive, status, vendor);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_utils::*;
    use crate::rdma::fabric::frame::{FrameHeader, flag, kind};
    use crate::rdma::memory::{Bind, Scope, WindowKind};
    use crate::rdma::wire::{access, cqe_flag};

    /// A window of type 2 over [`DATA`], bound by the queue's QP.
    fn window(node: &mut Node, queue: &Queue) -> (Scope, u32) {
        let who = node.qp(queue).scope();
        let memory = &mut node.objects.memory;
        let key = memory.alloc_window(0, who.pd, WindowKind::Two).unwrap();
        let bind = Bind {
            key,
            region: node.key,
            addr: DATA,
            length: 4096,
            access: access::REMOTE_READ,
        };
        assert_eq!(memory.bind(&who, &bind), Ok(false));
        (who, key)
    }

    fn send(queue: &Queue, seq: u32, flags: u8, key: u32) -> FrameHeader {
        FrameHeader {
            flags: flag::LAST | flags,
            imm: key.to_le_bytes(),
            ..from_peer(queue, kind::SEND, seq)
        }
    }

    #[test]
    fn the_cqe_waits_for_the_fabric_and_the_acknowledgement_for_the_cqe() {
        let mut node = Node::new();
        let mut queue = node.connected();
        node.run();
        let (who, key) = window(&mut node, &queue);
        for wr_id in 1..4 {
            node.receive(&mut queue, wr_id, &[]);
        }
        node.take_from(PEER, send(&queue, RQ_PSN, 0, 0), &[]);
        assert_eq!(node.done(&mut queue), [(1, 0)]);
        node.take_from(PEER, send(&queue, RQ_PSN + 1, flag::INVALIDATE, key), &[]);
        node.take_from(PEER, send(&queue, RQ_PSN + 2, 0, 0), &[]);
        // The key is gone at once; what tells of it is still to come, and so is what follows it.
        let memory = &node.objects.memory;
        assert!(
            memory
                .check(&who, key, access::REMOTE_READ, DATA, 1)
                .is_err()
        );
        assert_eq!(node.done(&mut queue), []);
        assert_eq!((node.fabric.forgotten, node.fabric.sent.len()), (0, 0));

        let sent = node.sent();

        assert_eq!(node.fabric.forgotten, 1);
        let cqes = node.poll_cq(&mut queue);
        assert_eq!((cqes[0].wr_id.get(), cqes[1].wr_id.get()), (2, 3));
        assert_eq!(cqes[0].flags.get(), cqe_flag::WITH_INV);
        assert_eq!(cqes[0].imm, key.to_le_bytes());
        assert_eq!(cqes[1].flags.get(), 0);
        assert_eq!(
            (sent[0].header.kind, sent[0].header.seq),
            (kind::ACK, RQ_PSN + 3)
        );
        // Later receives wait for nothing.
        node.receive(&mut queue, 4, &[]);
        node.take_from(PEER, send(&queue, RQ_PSN + 3, 0, 0), &[]);
        assert_eq!(node.done(&mut queue), [(4, 0)]);
    }

    #[test]
    fn a_receive_that_finds_no_room_later_is_not_acknowledged() {
        let mut node = Node::new();
        let mut queue = node.connected_with(1, PEER_QPN, |_| {});
        node.run();
        let (_, key) = window(&mut node, &queue);
        for wr_id in 1..3 {
            node.receive(&mut queue, wr_id, &[]);
        }
        node.take_from(PEER, send(&queue, RQ_PSN, flag::INVALIDATE, key), &[]);
        node.take_from(PEER, send(&queue, RQ_PSN + 1, 0, 0), &[]);
        let sent = node.sent();
        let nak = sent.iter().find(|sent| sent.header.kind == kind::NAK);
        assert_eq!(nak.map(|sent| sent.header.seq), Some(RQ_PSN + 1));
        assert_eq!(node.done(&mut queue), [(1, 0)]);
    }
}
