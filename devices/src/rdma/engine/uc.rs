//! Unreliable connections: SEND and WRITE without acknowledgement (docs/fabric.md, section 7).
//!
//! Messages are numbered as on a reliable connection, so that the responder knows when one begins and whether its frames follow on. A message of
//! which a part is lost is dropped whole, and the receive that it had taken serves the next.

use super::requester::{self, Step};
use super::transport::{Message, Standing};
use super::{Env, completion, lanes, local, responder, sge, unacked};
use crate::rdma::fabric::frame::{FrameHeader, MAX_PAYLOAD, flag, kind, nak};
use crate::rdma::fabric::{Fabric, Placement, SendError};
use crate::rdma::memory::{LOCAL_READ, Segment};
use crate::rdma::objects::{Qp, QpState};
use crate::rdma::wire::{send_flag, send_opcode};

use responder::Refuse;

/// What became of a frame that was to be sent.
enum Sent {
    /// It was queued, so many bytes, and was the last of its message or not.
    Frame { bytes: u32, last: bool },
    /// There is no room; the message waits.
    Full,
    /// The message is given up.
    GivenUp,
    /// The message failed at home.
    Failed(sge::Fault),
}

/// One bounded round: takes WQEs and sends frames.
pub(super) fn step(qp: &mut Qp, env: &mut Env<'_>, fabric: &mut dyn Fabric) -> Step {
    let (mut messages, mut bytes) = (0, 0);
    let step = loop {
        if bytes >= unacked::ROUND_BYTES {
            break Step::Worked;
        }
        let message = match qp.transport.requester.messages.front() {
            Some(message) => *message,
            None => {
                let ran = local::run(qp, env, fabric);
                if !ran || qp.transport.requester.halted {
                    break Step::Worked;
                }
                if qp.state != QpState::Rts || unacked::next(qp, env).is_none() {
                    break Step::Idle;
                }
                // Here, so that what was taken is sent too: a frame left behind would be a batch of its own.
                if messages >= unacked::ROUND_MESSAGES {
                    break Step::Worked;
                }
                requester::take(qp, env);
                messages += 1;
                continue;
            }
        };
        match transmit(qp, env, fabric, &message) {
            Sent::Frame { bytes: sent, last } => {
                bytes += sent.max(64);
                let requester = &mut qp.transport.requester;
                requester.since = Some(env.now);
                requester.offset += sent;
                if last {
                    finish(qp);
                    unacked::done(qp, env, &message, true);
                }
            }
            Sent::Full => break Step::Full,
            Sent::GivenUp => {
                finish(qp);
                unacked::done(qp, env, &message, false);
            }
            Sent::Failed(fault) => {
                finish(qp);
                unacked::fail(qp, env, &message, fault);
                break Step::Worked;
            }
        }
    };
    // In SQD, what was begun may have been the last.
    requester::retire(qp, env);
    if messages > 0 || bytes > 0 {
        Step::Worked
    } else {
        step
    }
}

/// Gives the message under way up, unless something is wrong with it at home: that is told whatever becomes of links.
fn give_up(qp: &Qp, env: &Env<'_>, message: &Message) -> Sent {
    match sge::check_message(env.memory, qp, message, LOCAL_READ) {
        Ok(()) => Sent::GivenUp,
        Err(fault) => Sent::Failed(fault),
    }
}

/// The message under way is over.
fn finish(qp: &mut Qp) {
    let requester = &mut qp.transport.requester;
    requester::pop(requester);
    requester.acked = requester.oldest;
    (requester.offset, requester.halted, requester.since) = (0, false, None);
}

/// Sends the next frame of the message under way.
fn transmit(qp: &mut Qp, env: &mut Env<'_>, fabric: &mut dyn Fabric, message: &Message) -> Sent {
    if let Standing::Failed { status, vendor } = message.standing {
        return Sent::Failed((status, vendor));
    }
    let Some(peer) = qp.transport.peer.filter(|peer| fabric.is_up(*peer)) else {
        return give_up(qp, env, message);
    };
    let lane = lanes::unreliable(&mut qp.transport.requester, qp.qpn, peer, fabric);
    if !fabric.can_send(peer, lane) {
        return if unacked::waits(qp, env) {
            Sent::Full
        } else {
            give_up(qp, env, message)
        };
    }
    let sends = matches!(message.opcode, send_opcode::SEND | send_opcode::SEND_IMM);
    let offset = qp.transport.requester.offset;
    let mut header = FrameHeader {
        kind: if sends { kind::SEND } else { kind::WRITE },
        dst_qpn: qp.attrs.dest_qpn,
        src_qpn: qp.qpn,
        seq: qp.transport.requester.oldest,
        length: (message.length - offset).min(MAX_PAYLOAD.min(fabric.max_payload(peer))),
        msg_len: message.length,
        offset,
        lane,
        ..FrameHeader::default()
    };
    if !sends {
        (header.rkey, header.addr) = (message.rkey, message.remote_addr);
    }
    if matches!(
        message.opcode,
        send_opcode::SEND_IMM | send_opcode::WRITE_IMM
    ) {
        (header.flags, header.imm) = (flag::IMM, message.imm);
    }
    if message.flags & send_flag::SOLICITED != 0 {
        header.flags |= flag::SOLICITED;
    }
    let last = offset + header.length == message.length;
    if last {
        header.flags |= flag::LAST;
    }
    env.scratch.bytes.clear();
    if message.flags & send_flag::INLINE != 0 {
        // No longer than a frame.
        qp.sq
            .inline(message.index, message.length, &mut env.scratch.bytes);
    } else {
        env.scratch.segments.clear();
        let segments = &mut env.scratch.segments;
        let (memory, length) = (&*env.memory, header.length);
        if let Err(fault) =
            sge::resolve_message(memory, qp, message, LOCAL_READ, offset, length, segments)
        {
            return Sent::Failed(fault);
        }
        unacked::gather(env);
    }
    match fabric.send(peer, &header, &env.scratch.bytes, &[]) {
        Ok(()) => Sent::Frame {
            bytes: header.length,
            last,
        },
        Err(SendError::Full) if unacked::waits(qp, env) => Sent::Full,
        Err(_) => give_up(qp, env, message),
    }
}

/// The header of a frame has come from the connected QP.
pub(super) fn place(
    qp: &mut Qp,
    env: &mut Env<'_>,
    header: &FrameHeader,
    skip: u32,
    into: &mut Vec<Segment>,
) -> Placement {
    let responder = &mut qp.transport.responder;
    if !lanes::takes(responder, header, responder.placing.is_none()) {
        env.discarded();
        return Placement::Discard;
    }
    let again = responder.placing == Some((header.seq, header.offset));
    responder.placing = None;
    if skip > 0 && !again {
        // Its beginning was thrown away, so its rest is of no use.
        return Placement::Discard;
    }
    let checked = if again {
        Ok(())
    } else if header.offset == 0 {
        // A new message, whatever became of the one before.
        responder.expected = header.seq;
        responder::begin(qp, env, header)
    } else if header.seq == responder.expected && responder.incoming.is_some() {
        responder::follows(qp, header)
    } else {
        env.discarded();
        return Placement::Discard;
    };
    let placed = checked.and_then(|()| responder::locate(qp, env, header, skip, into));
    match placed {
        Ok(()) => {
            qp.transport.responder.placing = Some((header.seq, header.offset));
            Placement::Into
        }
        Err(refuse) => {
            into.clear();
            drop_message(qp, env, refuse);
            Placement::Discard
        }
    }
}

/// The message is dropped; where a receive failed with it, the QP fails too.
fn drop_message(qp: &mut Qp, env: &mut Env<'_>, refuse: Refuse) {
    qp.transport.responder.incoming = None;
    env.discarded();
    match refuse {
        Refuse::NoReceive => {}
        Refuse::Fatal(code, Some(_)) => {
            env.stats
                .device
                .access_errors
                .add(u64::from(code == nak::REMOTE_ACCESS));
        }
        Refuse::Fatal(_, None) => env.error(qp, None),
        Refuse::Ring => env.fatal(qp),
    }
}

/// The frame is complete: its payload lies where [`place`] said.
pub(super) fn complete(qp: &mut Qp, env: &mut Env<'_>, header: &FrameHeader) {
    let responder = &mut qp.transport.responder;
    if responder.placing.take() != Some((header.seq, header.offset)) {
        return;
    }
    let Some(incoming) = &mut responder.incoming else {
        return;
    };
    incoming.offset += header.length;
    if header.flags & flag::LAST == 0 {
        return;
    }
    let incoming = *incoming;
    let consumes = incoming.kind == kind::SEND || incoming.flags & flag::IMM != 0;
    if consumes && let Some(receive) = responder.receive.take() {
        // Where the CQ takes no more, the QP fails at the end of the round.
        completion::received(qp, env, &receive, &incoming);
    }
    responder::finish(qp, env, incoming.msg_len);
}

#[cfg(test)]
mod tests {
    use super::super::test_utils::*;
    use super::*;
    use crate::rdma::objects::QpKind;

    #[test]
    fn a_round_sends_all_that_it_takes() {
        let mut node = Node::new();
        let mut queue = node.queue_with(64);
        node.qp_mut(&queue).kind = QpKind::Uc;
        node.connect(&queue, PEER_QPN, |_| {});
        let post = write(&node, 1, 8);
        let count = unacked::ROUND_MESSAGES + 5;
        for _ in 0..count {
            node.fill_send(&mut queue, &post);
        }
        node.set_sq_producer(&queue, count);
        let (qp, mut env) = node
            .engine
            .enter(&mut node.objects, queue.qpn, node.now)
            .unwrap();
        assert_eq!(step(qp, &mut env, &mut node.fabric), Step::Worked);
        assert!(qp.transport.requester.messages.is_empty());
        assert_eq!(node.fabric.sent.len() as u32, unacked::ROUND_MESSAGES);
    }
}
