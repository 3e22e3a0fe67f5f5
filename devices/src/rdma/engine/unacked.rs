//! What UC and datagram QPs have in common: nobody acknowledges, so a message completes when it is handed to the fabric, and one that cannot be
//! is given up. Its bytes are copied then, since no acknowledgement would tell when the process's memory is free again.

use std::time::Duration;

use super::requester;
use super::transport::Message;
use super::{Env, completion};
use crate::rdma::memory::access;
use crate::rdma::objects::{Qp, QpState};

/// Messages and bytes that a QP may send in one round.
pub(super) const ROUND_MESSAGES: u32 = 32;
pub(super) const ROUND_BYTES: u32 = 256 << 10;

/// How long a message waits for room in the fabric before it is given up, so that a peer that takes nothing in does not keep the queue from
/// others for long.
pub(super) const PATIENCE: Duration = Duration::from_millis(100);

/// The free-running index of the next WQE to take, if there is one.
pub(super) fn next(qp: &mut Qp, env: &mut Env<'_>) -> Option<u32> {
    let requester = &mut qp.transport.requester;
    if requester.taken == requester.produced {
        match qp.sq.pending(requester.taken) {
            Ok(produced) => requester.produced = produced,
            Err(_) => {
                env.fatal(qp);
                return None;
            }
        }
    }
    let requester = &qp.transport.requester;
    (requester.taken != requester.produced).then_some(requester.taken)
}

/// The fabric has no room: whether the message waits on, until the timer goes off at the latest.
pub(super) fn waits(qp: &mut Qp, env: &mut Env<'_>) -> bool {
    let since = *qp.transport.requester.since.get_or_insert(env.now);
    let until = since + PATIENCE;
    if until > env.now {
        env.arm(qp, until);
    }
    until > env.now
}

/// Appends what lies in the scratch segments to the scratch bytes.
pub(super) fn gather(env: &mut Env<'_>) {
    let bytes = &mut env.scratch.bytes;
    for segment in env.scratch.segments.drain(..) {
        let start = bytes.len();
        bytes.resize(start + segment.len, 0);
        // SAFETY: the segment was resolved from a live registration in this round, and the registration cannot end while the device is
        // borrowed; the target is as long as the segment.
        unsafe { access::read(segment.base, &mut bytes[start..]) };
    }
}

/// A message is done, sent or given up.
pub(super) fn done(qp: &mut Qp, env: &mut Env<'_>, message: &Message, sent: bool) {
    if sent {
        requester::count_sent(qp, env, message);
    } else {
        env.stats.device.tx_discarded.add(1);
    }
    requester::succeed(qp, env, message);
}

/// A message failed at home: what is behind it flushes, receives go on (SQE).
pub(super) fn fail(qp: &mut Qp, env: &mut Env<'_>, message: &Message, (status, vendor): (u8, u32)) {
    completion::sent(qp, env, message, status, vendor);
    stop(qp, env);
}

/// A work request failed at home.
pub(super) fn stop(qp: &mut Qp, env: &mut Env<'_>) {
    if matches!(qp.state, QpState::Rts | QpState::Sqd) {
        qp.state = QpState::Sqe;
        qp.transport.requester.tell_drained = false;
        env.heat(qp);
    }
}
