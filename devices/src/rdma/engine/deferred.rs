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
