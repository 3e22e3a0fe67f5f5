//! What the receiving side of a reliable connection owes its peer: acknowledgements, the data of READs and atomics, refusals.

use super::transport::{Answer, Refusal};
use super::{Env, Owes, lanes};
use crate::rdma::events::EventKind;
use crate::rdma::fabric::Fabric;
use crate::rdma::fabric::frame::{FrameHeader, flag, kind, nak};
use crate::rdma::objects::Qp;
use crate::rdma::wire::access;

/// Answer bytes that a QP may send in one round.
const ROUND_BYTES: u32 = 256 << 10;

/// Largest payload of an answer, if the fabric takes it.
const MAX_SEGMENT: u32 = 256 << 10;

/// Sends what is owed, within bounds.
pub(super) fn step(qp: &mut Qp, env: &mut Env<'_>, fabric: &mut dyn Fabric) -> Owes {
    let Some(peer) = qp.transport.peer.filter(|peer| fabric.is_up(*peer)) else {
        // What is owed is asked for again when there is a link.
        silence(qp);
        return Owes::Nothing;
    };
    let base = FrameHeader {
        dst_qpn: qp.attrs.dest_qpn,
        src_qpn: qp.qpn,
        lane: lanes::of_answers(qp),
        ..FrameHeader::default()
    };
    if qp.transport.responder.ack {
        let ack = FrameHeader {
            kind: kind::ACK,
            seq: qp.transport.responder.expected,
            ..base
        };
        if fabric.send(peer, &ack, &[], &[]).is_err() {
            return Owes::NoRoom;
        }
        qp.transport.responder.ack = false;
    }
    let mut bytes = 0;
    while let Some(answer) = qp.transport.responder.answers.front().copied() {
        if bytes >= ROUND_BYTES {
            return Owes::More;
        }
        if !fabric.can_send(peer, base.lane) {
            return Owes::NoRoom;
        }
        let mut frame = FrameHeader {
            seq: answer.seq(),
            flags: flag::LAST,
            ..base
        };
        match answer {
            Answer::Atomic { value, .. } => {
                frame.kind = kind::ATOMIC_DATA;
                (frame.length, frame.msg_len) = (8, 8);
                if fabric
                    .send(peer, &frame, &value.to_le_bytes(), &[])
                    .is_err()
                {
                    return Owes::NoRoom;
                }
                qp.transport.responder.answers.pop_front();
                bytes += 64;
            }
            Answer::Read {
                scope,
                rkey,
                addr,
                length,
                offset,
                ..
            } => {
                let n = (length - offset).min(MAX_SEGMENT.min(fabric.max_payload(peer)));
                let segments = &mut env.scratch.segments;
                segments.clear();
                let resolved = if n == 0 {
                    Ok(())
                } else {
                    env.memory.resolve(
                        &scope,
                        rkey,
                        access::REMOTE_READ,
                        addr.wrapping_add(offset.into()),
                        n.into(),
                        segments,
                    )
                };
                if resolved.is_err() {
                    // The region went while the answer was under way.
                    let seq = answer.seq();
                    let responder = &mut qp.transport.responder;
                    responder.answers.clear();
                    responder.nak = Some(Refusal {
                        seq,
                        code: nak::REMOTE_ACCESS,
                        aux: 0,
                    });
                    env.stats.device.access_errors.add(1);
                    env.error(qp, Some(EventKind::QpAccessErr));
                    break;
                }
                frame.kind = kind::READ_DATA;
                (frame.length, frame.msg_len, frame.offset) = (n, length, offset);
                if offset + n < length {
                    frame.flags = 0;
                }
                if fabric
                    .send(peer, &frame, &[], &env.scratch.segments)
                    .is_err()
                {
                    return Owes::NoRoom;
                }
                bytes += n.max(64);
                let answers = &mut qp.transport.responder.answers;
                if offset + n == length {
                    answers.pop_front();
                } else if let Some(Answer::Read { offset, .. }) = answers.front_mut() {
                    *offset += n;
                }
            }
        }
    }
    if let Some(refusal) = qp.transport.responder.nak {
        if fabric.send(peer, &refusal.frame(base), &[], &[]).is_err() {
            return Owes::NoRoom;
        }
        qp.transport.responder.nak = None;
    }
    Owes::Nothing
}

/// Forgets what is owed.
fn silence(qp: &mut Qp) {
    let responder = &mut qp.transport.responder;
    responder.answers.clear();
    responder.ack = false;
    responder.nak = None;
}

/// The link to the peer is gone: what was under way comes again.
pub(super) fn link_lost(qp: &mut Qp) {
    silence(qp);
    let responder = &mut qp.transport.responder;
    responder.incoming = None;
    responder.placing = None;
    responder.told = false;
}

/// The QP went to ERR, or is about to be forgotten, for a reason that has nothing to do with this side: READs will not be answered.
pub(super) fn abandon(qp: &mut Qp) {
    let responder = &mut qp.transport.responder;
    responder.placing = None;
    responder.incoming = None;
    if let Some(refusal) = responder.nak
        && !matches!(refusal.code, nak::RNR | nak::SEQUENCE)
    {
        // The answers before a request that ended the connection are still given.
        return;
    }
    if let Some(first) = responder.answers.front() {
        responder.nak = Some(Refusal {
            seq: first.seq(),
            code: nak::NO_QP,
            aux: 0,
        });
        responder.answers.clear();
    }
}
