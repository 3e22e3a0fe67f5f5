//! What the peer says about our requests: acknowledgements, refusals, and the data of READs and atomics.

use super::requester::{self, is_atomic};
use super::transport::{Standing, Wait};
use super::{Env, retry, sge, timer};
use crate::rdma::fabric::Placement;
use crate::rdma::fabric::frame::{FrameHeader, flag, kind, nak};
use crate::rdma::memory::{Segment, access as guest};
use crate::rdma::objects::{Qp, QpState};
use crate::rdma::wire::{access, cqe_status, send_opcode, vendor_err};

/// The position of the READ or atomic that the frame answers, if it is one that was sent and waits, and the frame is its next.
fn answered(qp: &Qp, header: &FrameHeader) -> Option<usize> {
    let requester = &qp.transport.requester;
    let position = header.seq.wrapping_sub(requester.oldest);
    if position >= requester.position {
        return None;
    }
    let message = requester.messages.get(position as usize)?;
    let (expected, length) = match message.opcode {
        send_opcode::READ => (kind::READ_DATA, header.length),
        opcode if is_atomic(opcode) => (kind::ATOMIC_DATA, 8),
        _ => return None,
    };
    let end = u64::from(header.offset) + u64::from(length);
    let last = header.flags & flag::LAST != 0;
    let sound = message.standing == Standing::Pending
        && header.kind == expected
        && header.length == length
        && header.msg_len == message.length
        // An answer may start anew.
        && (header.offset == message.received || header.offset == 0)
        && end <= u64::from(message.length)
        && last == (end == u64::from(message.length))
        && (length > 0 || message.length == 0);
    sound.then_some(position as usize)
}

/// Data of a READ has come: says where it goes.
pub(super) fn place(
    qp: &mut Qp,
    env: &mut Env<'_>,
    header: &FrameHeader,
    skip: u32,
    into: &mut Vec<Segment>,
) -> Placement {
    let (Some(position), Some(length)) = (answered(qp, header), header.length.checked_sub(skip))
    else {
        env.discarded();
        return Placement::Discard;
    };
    let message = qp.transport.requester.messages[position];
    let placed = sge::resolve_message(
        env.memory,
        qp,
        &message,
        access::LOCAL_WRITE,
        header.offset + skip,
        length,
        into,
    );
    match placed {
        Ok(()) => {
            qp.transport.requester.messages[position].received = header.offset;
            Placement::Into
        }
        Err((status, vendor)) => {
            into.clear();
            // Messages before it are complete when they are answered; it fails in its turn, and nothing more is sent.
            let requester = &mut qp.transport.requester;
            requester.messages[position].standing = Standing::Failed { status, vendor };
            requester.halted = true;
            retry::acknowledged(qp, env, header.seq);
            requester::retire(qp, env);
            Placement::Discard
        }
    }
}

/// A frame of an answer is complete.
pub(super) fn data(
    qp: &mut Qp,
    env: &mut Env<'_>,
    header: &FrameHeader,
    placement: Placement,
    data: &[u8],
) {
    let Some(position) = answered(qp, header) else {
        return;
    };
    if header.kind == kind::READ_DATA {
        if placement != Placement::Into {
            return;
        }
        let requester = &mut qp.transport.requester;
        requester.messages[position].received = header.offset + header.length;
        // A long answer is progress too.
        retry::progress(requester, env.now);
        if header.flags & flag::LAST == 0 {
            return;
        }
    } else if let Err((status, vendor)) = store_atomic(qp, env, position, data) {
        let requester = &mut qp.transport.requester;
        requester.messages[position].standing = Standing::Failed { status, vendor };
        requester.halted = true;
        retry::acknowledged(qp, env, header.seq);
        requester::retire(qp, env);
        return;
    }
    let requester = &mut qp.transport.requester;
    requester.messages[position].standing = Standing::Done;
    requester.reads = requester.reads.saturating_sub(1);
    retry::progress(requester, env.now);
    retry::acknowledged(qp, env, header.seq);
    requester::retire(qp, env);
}

/// Writes the old value of an atomic where its SGEs say.
fn store_atomic(
    qp: &mut Qp,
    env: &mut Env<'_>,
    position: usize,
    data: &[u8],
) -> Result<(), sge::Fault> {
    if data.len() != 8 {
        return Err((cqe_status::REM_OP_ERR, vendor_err::REFUSED));
    }
    let message = qp.transport.requester.messages[position];
    let segments = &mut env.scratch.segments;
    segments.clear();
    sge::resolve_message(
        env.memory,
        qp,
        &message,
        access::LOCAL_WRITE,
        0,
        8,
        segments,
    )?;
    let mut rest = data;
    for segment in segments.iter() {
        let (now, later) = rest.split_at(segment.len.min(rest.len()));
        // SAFETY: the segment was resolved from a live registration just now, and the registration cannot end while the device is
        // borrowed; `now` is no longer than the segment.
        unsafe { guest::write(segment.base, now) };
        rest = later;
    }
    Ok(())
}

/// The peer has placed all before `seq`.
pub(super) fn ack(qp: &mut Qp, env: &mut Env<'_>, header: &FrameHeader) {
    if retry::acknowledged(qp, env, header.seq) {
        requester::retire(qp, env);
    }
}

/// The peer refuses a message.
pub(super) fn nak(qp: &mut Qp, env: &mut Env<'_>, header: &FrameHeader) {
    let code = header.rkey;
    if code == nak::NO_QP {
        retry::no_such_qp(qp, env);
        return;
    }
    if !retry::acknowledged(qp, env, header.seq) {
        return;
    }
    requester::retire(qp, env);
    let requester = &mut qp.transport.requester;
    if requester.messages.is_empty() || qp.state == QpState::Err {
        return;
    }
    if header.seq == requester.sent && requester.offset == 0 {
        // Nothing that was sent is left to be refused.
        return;
    }
    let status = match code {
        nak::RNR => {
            env.stats.device.rnr_nak_received.add(1);
            qp.stats.rnr_nak_received.add(1);
            let limit = qp.attrs.rnr_retry & 7;
            if limit < 7 && requester.rnr_tries >= limit {
                (cqe_status::RNR_RETRY_EXC_ERR, vendor_err::NO_RECEIVE)
            } else {
                requester.rnr_tries = (requester.rnr_tries + 1).min(7);
                requester.wait = Wait::Receive(env.now + timer::rnr_delay(header.aux));
                retry::go_back(requester);
                env.retried(qp);
                retry::watch(qp, env);
                return;
            }
        }
        nak::SEQUENCE => {
            // Once for each bit of progress at once, and no faster than the pause otherwise.
            if requester.wait == Wait::None {
                if requester.seq_tries > 0 {
                    requester.wait = Wait::Receive(env.now + retry::ASK_FIRST);
                }
                requester.seq_tries = 1;
                retry::go_back(requester);
                env.retried(qp);
                retry::watch(qp, env);
            }
            return;
        }
        nak::REMOTE_ACCESS => (cqe_status::REM_ACCESS_ERR, vendor_err::REFUSED),
        nak::REMOTE_OPERATION => (cqe_status::REM_OP_ERR, vendor_err::REFUSED),
        _ => (cqe_status::REM_INV_REQ_ERR, vendor_err::REFUSED),
    };
    retry::fail_oldest(qp, env, status.0, status.1);
}
