//! When a reliable connection goes back, waits, asks, or gives up (docs/fabric.md, section 3).
//!
//! What was sent lies in order between `oldest` and `sent`; the peer says how far it has come, or that it wants a message again. Going back to the
//! oldest message that is not complete is always safe.

use std::time::{Duration, Instant};

use super::requester::retire;
use super::transport::{Requester, Standing, Wait, before};
use super::{Env, timer};
use crate::rdma::fabric::Fabric;
use crate::rdma::fabric::frame::{FrameHeader, flag, kind};
use crate::rdma::objects::Qp;
use crate::rdma::wire::{cqe_status, vendor_err};

/// The first pause before a peer that knew no such QP is asked again; it doubles up to 2^6 times that.
pub(super) const ASK_FIRST: Duration = Duration::from_millis(1);
const ASK_DOUBLINGS: u8 = 6;

/// A peer that is there but has not answered for this long is asked.
const ASK_OVERDUE: Duration = Duration::from_millis(200);

/// Notes that the peer has answered for all before `seq`. False when that cannot be.
pub(super) fn acknowledged(qp: &mut Qp, env: &mut Env<'_>, seq: u32) -> bool {
    let requester = &mut qp.transport.requester;
    if before(requester.sent, seq) || before(seq, requester.oldest) {
        return false;
    }
    if let Wait::NoQp { .. } = requester.wait {
        // It is there after all; what it threw away meanwhile is sent again.
        requester.wait = Wait::None;
        requester.asked = 0;
        go_back(requester);
        env.retried(qp);
    }
    let requester = &mut qp.transport.requester;
    requester.ask = false;
    if before(requester.acked, seq) {
        requester.acked = seq;
        progress(requester, env.now);
    }
    env.heat(qp);
    true
}

/// Something was answered: the timer runs anew, and the peer has a receive again.
pub(super) fn progress(requester: &mut Requester, now: Instant) {
    requester.since = Some(now);
    (requester.rnr_tries, requester.seq_tries, requester.asked) = (0, 0, 0);
}

/// Goes back to the oldest message that is not complete; what was answered is stepped over.
pub(super) fn go_back(requester: &mut Requester) {
    (requester.position, requester.offset, requester.reads) = (0, 0, 0);
    for message in &mut requester.messages {
        if message.standing == Standing::Pending {
            message.received = 0;
        }
    }
}

/// The oldest message fails with this, in its turn, which is now.
pub(super) fn fail_oldest(qp: &mut Qp, env: &mut Env<'_>, status: u8, vendor: u32) {
    let requester = &mut qp.transport.requester;
    if let Some(message) = requester.messages.front_mut() {
        message.standing = Standing::Failed { status, vendor };
        requester.halted = true;
        retire(qp, env);
    }
}

/// The link to the peer is gone, and what was under way with it.
pub(super) fn link_lost(qp: &mut Qp, env: &mut Env<'_>) {
    let requester = &mut qp.transport.requester;
    if requester.messages.is_empty() {
        return;
    }
    if let Wait::NoQp { .. } = requester.wait {
        requester.wait = Wait::None;
    }
    go_back(requester);
    env.retried(qp);
}

/// Arms the timer for what the requester waits for.
pub(super) fn watch(qp: &mut Qp, env: &mut Env<'_>) {
    let requester = &qp.transport.requester;
    let Some(since) = requester.since.filter(|_| !requester.messages.is_empty()) else {
        return;
    };
    let at = match requester.wait {
        Wait::Receive(until) => until,
        Wait::NoQp { ask, .. } => ask,
        Wait::None => since.max(env.now) + overdue(qp),
    };
    env.arm(qp, at);
}

/// How long silence may last.
fn patience(qp: &Qp) -> Option<Duration> {
    timer::ack_timeout(qp.attrs.timeout).map(|t| t * (u32::from(qp.attrs.retry_cnt & 7) + 1))
}

/// When an answer is overdue: early enough to ask a few times before patience ends.
fn overdue(qp: &Qp) -> Duration {
    patience(qp).map_or(ASK_OVERDUE, |patience| {
        (patience / 4).clamp(ASK_FIRST, ASK_OVERDUE)
    })
}

/// The timer went off.
pub(super) fn timeout(qp: &mut Qp, env: &mut Env<'_>, fabric: &dyn Fabric) {
    let requester = &mut qp.transport.requester;
    let Some(since) = requester.since.filter(|_| !requester.messages.is_empty()) else {
        return;
    };
    if let Wait::Receive(until) = requester.wait {
        if until <= env.now {
            requester.wait = Wait::None;
            env.heat(qp);
        }
        watch(qp, env);
        return;
    }
    let peer = qp.transport.peer;
    let alive = match requester.wait {
        Wait::NoQp { since: silent, .. } => silent.max(since),
        _ => match peer.and_then(|peer| fabric.last_heard(peer)) {
            Some(heard) => since.max(heard),
            None => since,
        },
    };
    if let Some(patience) = patience(qp)
        && env.now.saturating_duration_since(alive) >= patience
    {
        env.stats.device.timeouts.add(1);
        qp.stats.timeouts.add(1);
        fail_oldest(qp, env, cqe_status::RETRY_EXC_ERR, vendor_err::UNREACHABLE);
        return;
    }
    let overdue = overdue(qp);
    let requester = &mut qp.transport.requester;
    match &mut requester.wait {
        Wait::NoQp { ask, .. } => {
            if *ask <= env.now {
                requester.asked = (requester.asked + 1).min(ASK_DOUBLINGS);
                *ask = env.now + ASK_FIRST * (1 << requester.asked);
                requester.ask = true;
            }
        }
        _ => requester.ask = env.now.saturating_duration_since(since) >= overdue,
    }
    if requester.ask {
        env.heat(qp);
    }
    watch(qp, env);
    // No later than the end of patience.
    if let Some(patience) = patience(qp) {
        env.arm(qp, alive + patience);
    }
}

/// The peer knows no such QP.
pub(super) fn no_such_qp(qp: &mut Qp, env: &mut Env<'_>) {
    let requester = &mut qp.transport.requester;
    if requester.messages.is_empty() || matches!(requester.wait, Wait::NoQp { .. }) {
        return;
    }
    requester.wait = Wait::NoQp {
        since: env.now,
        ask: env.now + ASK_FIRST,
    };
    watch(qp, env);
}

/// Sends the question that an overdue answer calls for: an old number, which has no effect (docs/fabric.md, section 3).
pub(super) fn ask(qp: &mut Qp, fabric: &mut dyn Fabric) {
    let requester = &mut qp.transport.requester;
    if !requester.ask {
        return;
    }
    let Some(peer) = qp.transport.peer else {
        return;
    };
    if !fabric.is_up(peer) || !fabric.can_send(peer) {
        return;
    }
    requester.ask = false;
    let header = FrameHeader {
        kind: kind::WRITE,
        flags: flag::LAST,
        dst_qpn: qp.attrs.dest_qpn,
        src_qpn: qp.qpn,
        seq: requester.oldest.wrapping_sub(1),
        ..FrameHeader::default()
    };
    // Not taken: the timer asks again.
    let _ = fabric.send(peer, &header, &[], &[]);
}
