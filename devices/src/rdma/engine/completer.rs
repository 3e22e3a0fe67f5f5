//! What the peer says about our requests: acknowledgements, refusals, and the data of READs and atomics.

use super::requester::{self, is_atomic};
use super::transport::{Standing, Wait};
use super::{Env, mpe, retry, sge, timer};
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
        opcode if is_atomic(opcode) || mpe::is_placement(opcode) => (kind::ATOMIC_DATA, 8),
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
    let placing = qp.transport.requester.placing.take();
    let again = placing == Some((header.seq, header.offset));
    let (Some(position), Some(length), true) = (
        answered(qp, header),
        header.length.checked_sub(skip),
        // When its beginning was thrown away, its rest is of no use.
        skip == 0 || again,
    ) else {
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
            let requester = &mut qp.transport.requester;
            requester.messages[position].received = header.offset;
            requester.placing = Some((header.seq, header.offset));
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
pub(super) fn data(qp: &mut Qp, env: &mut Env<'_>, header: &FrameHeader, data: &[u8]) {
    let Some(position) = answered(qp, header) else {
        return;
    };
    if header.kind == kind::READ_DATA {
        let requester = &mut qp.transport.requester;
        if requester.placing.take() != Some((header.seq, header.offset)) {
            return;
        }
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
    if mpe::is_placement(message.opcode) {
        // The answer says that it is done, and nothing more.
        return Ok(());
    }
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
    // Before an end of waiting for the QP goes back.
    let requester = &qp.transport.requester;
    let begun = requester.oldest.wrapping_add(requester.position);
    let begun = requester.offset > 0 && begun == requester.sent;
    if !retry::acknowledged(qp, env, header.seq) {
        return;
    }
    requester::retire(qp, env);
    let requester = &mut qp.transport.requester;
    if requester.messages.is_empty() || qp.state == QpState::Err {
        return;
    }
    if header.seq == requester.sent && !begun {
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

#[cfg(test)]
mod tests {
    use super::super::test_utils::{ack, *};
    use super::super::transport::before;
    use super::*;
    use crate::rdma::fabric::PeerId;

    fn data(queue: &Queue, seq: u32, msg_len: u32, offset: u32, length: u32) -> FrameHeader {
        let last = offset + length == msg_len;
        FrameHeader {
            flags: if last { flag::LAST } else { 0 },
            length,
            msg_len,
            offset,
            ..from_peer(queue, kind::READ_DATA, seq)
        }
    }

    /// A READ of 100 bytes into two SGEs, sent.
    fn reading() -> (Node, Queue) {
        let mut node = Node::new();
        let mut queue = node.connected();
        let key = node.key;
        let post = Post {
            sges: vec![(DATA + 1000, 30, key), (DATA, 70, key)],
            ..read(&node, 1, 0)
        };
        node.send(&mut queue, post);
        let sent = node.sent();
        assert_eq!(
            (sent[0].header.kind, sent[0].header.msg_len),
            (kind::READ, 100)
        );
        (node, queue)
    }

    #[test]
    fn data_of_a_read_is_scattered_and_completes_it() {
        let (mut node, mut queue) = reading();
        let bytes = pattern(100);
        node.take(data(&queue, SQ_PSN, 100, 0, 40), &bytes[..40]);
        assert_eq!(node.done(&mut queue), []);
        node.take(data(&queue, SQ_PSN, 100, 40, 60), &bytes[40..]);
        let cqes = node.poll_cq(&mut queue);
        assert_eq!((cqes[0].status, cqes[0].byte_len.get()), (0, 100));
        assert_eq!(node.bytes(DATA + 1000, 30), bytes[..30]);
        assert_eq!(node.bytes(DATA, 70), bytes[30..]);
    }

    #[test]
    fn data_that_does_not_fit_the_read_is_thrown_away() {
        let (mut node, mut queue) = reading();
        for (header, len) in [
            (data(&queue, SQ_PSN + 1, 100, 0, 100), 100),
            (data(&queue, SQ_PSN.wrapping_sub(1), 100, 0, 100), 100),
            (data(&queue, SQ_PSN, 100, 50, 50), 50),
            (data(&queue, SQ_PSN, 101, 0, 101), 101),
            (data(&queue, SQ_PSN, 100, 0, 0), 0),
            (
                FrameHeader {
                    flags: 0,
                    ..data(&queue, SQ_PSN, 100, 0, 100)
                },
                100,
            ),
            (
                FrameHeader {
                    offset: u32::MAX,
                    ..data(&queue, SQ_PSN, 100, 0, 100)
                },
                100,
            ),
            (
                FrameHeader {
                    src_qpn: PEER_QPN + 1,
                    ..data(&queue, SQ_PSN, 100, 0, 100)
                },
                100,
            ),
        ] {
            assert_eq!(
                node.take(header, &vec![0xee; len]),
                Placement::Discard,
                "{header:?}"
            );
        }
        let header = data(&queue, SQ_PSN, 100, 0, 100);
        let stranger = node.take_from(PeerId(8), header, &[0xee; 100]);
        assert_eq!(stranger, Placement::Discard);
        assert_eq!(node.bytes(DATA, 70), [0; 70]);
        assert_eq!(node.done(&mut queue), []);
    }

    #[test]
    fn an_acknowledgement_past_a_read_does_not_complete_it() {
        let (mut node, mut queue) = reading();
        let post = write(&node, 2, 8);
        node.send(&mut queue, post);
        node.run();
        node.take(ack(&queue, SQ_PSN + 2), &[]);
        assert_eq!(node.done(&mut queue), []);
        node.take(data(&queue, SQ_PSN, 100, 0, 100), &pattern(100));
        assert_eq!(node.done(&mut queue), [(1, 0), (2, 0)]);
    }

    #[test]
    fn a_read_whose_memory_went_fails_and_nothing_is_written() {
        let mut node = Node::new();
        let key = node.register(DATA, 4096, access::LOCAL_WRITE);
        let mut queue = node.connected();
        let post = Post {
            sges: vec![(DATA, 100, key)],
            ..read(&node, 1, 0)
        };
        node.send(&mut queue, post);
        node.run();
        let header = data(&queue, SQ_PSN, 100, 0, 100);
        let begun = node.begin_frame(PEER, &header, 0, &[0; 100]);
        assert_eq!(begun, Placement::Into);
        node.objects.memory.deregister(0, key).unwrap();
        let again = node.begin_frame(PEER, &header, 50, &[0xee; 100]);
        assert_eq!(again, Placement::Discard);
        node.run();
        assert_eq!(node.bytes(DATA, 100), [0; 100]);
        assert_eq!(node.done(&mut queue), [(1, cqe_status::LOC_PROT_ERR)]);
    }

    #[test]
    fn an_atomic_brings_the_old_value() {
        let mut node = Node::new();
        let mut queue = node.connected();
        let post = Post {
            opcode: send_opcode::CMP_AND_SWP,
            operands: [5, 6],
            ..write(&node, 1, 8)
        };
        node.send(&mut queue, post);
        let sent = node.sent();
        let operands = [5_u64.to_le_bytes(), 6_u64.to_le_bytes()].concat();
        assert_eq!((sent[0].header.aux, &sent[0].payload), (0, &operands));
        let header = FrameHeader {
            length: 8,
            msg_len: 8,
            ..from_peer(&queue, kind::ATOMIC_DATA, SQ_PSN)
        };
        node.take(header, &0x1122_u64.to_le_bytes());
        let cqes = node.poll_cq(&mut queue);
        assert_eq!((cqes[0].opcode, cqes[0].byte_len.get()), (3, 8));
        assert_eq!(node.bytes(DATA, 8), 0x1122_u64.to_le_bytes());
    }

    #[test]
    fn acknowledgements_of_what_was_not_sent_are_ignored() {
        let mut node = Node::new();
        let mut queue = node.connected();
        let post = write(&node, 1, 8);
        node.send(&mut queue, post);
        node.run();
        for seq in [SQ_PSN + 2, SQ_PSN.wrapping_sub(1), 0, u32::MAX, 1 << 31] {
            node.take(ack(&queue, seq), &[]);
            assert!(before(seq, SQ_PSN) || before(SQ_PSN + 1, seq));
        }
        let mut other = ack(&queue, SQ_PSN + 1);
        other.src_qpn += 1;
        node.take(other, &[]);
        node.take_from(PeerId::LOCAL, ack(&queue, SQ_PSN + 1), &[]);
        assert_eq!(node.done(&mut queue), []);
    }

    #[test]
    fn a_refusal_fails_its_message_after_all_before_it() {
        for (code, status) in [
            (nak::INVALID_REQUEST, cqe_status::REM_INV_REQ_ERR),
            (nak::REMOTE_ACCESS, cqe_status::REM_ACCESS_ERR),
            (nak::REMOTE_OPERATION, cqe_status::REM_OP_ERR),
            (99, cqe_status::REM_INV_REQ_ERR),
        ] {
            let mut node = Node::new();
            let mut queue = node.connected();
            for wr_id in 1..4 {
                let post = write(&node, wr_id, 8);
                node.send(&mut queue, post);
            }
            node.run();
            node.take(refusal(&queue, SQ_PSN + 1, code, 0), &[]);
            let flushed = (3, cqe_status::WR_FLUSH_ERR);
            assert_eq!(node.done(&mut queue), [(1, 0), (2, status), flushed]);
            assert_eq!(node.qp(&queue).state, QpState::Err);
            assert_eq!(node.events(), []);
        }
    }

    #[test]
    fn a_refusal_behind_one_of_no_qp_ends_a_message_that_is_partly_sent() {
        let mut node = Node::new();
        let mut queue = node.connected();
        let post = write(&node, 1, 600 << 10);
        node.send(&mut queue, post);
        node.engine
            .round(&mut node.objects, &mut node.fabric, node.now);
        // The responder failed at the first frame, and what came behind it found nobody.
        node.take(refusal(&queue, 0, nak::NO_QP, 0), &[]);
        node.take(refusal(&queue, SQ_PSN, nak::REMOTE_ACCESS, 0), &[]);
        assert_eq!(node.done(&mut queue), [(1, cqe_status::REM_ACCESS_ERR)]);
    }

    #[test]
    fn refusals_of_what_was_not_sent_are_ignored() {
        let mut node = Node::new();
        let mut queue = node.connected();
        node.take(refusal(&queue, SQ_PSN, nak::REMOTE_ACCESS, 0), &[]);
        let post = write(&node, 1, 8);
        node.send(&mut queue, post);
        node.run();
        node.take(refusal(&queue, SQ_PSN + 1, nak::REMOTE_ACCESS, 0), &[]);
        assert_eq!(node.done(&mut queue), [(1, 0)]);
        assert_eq!(node.qp(&queue).state, QpState::Rts);
    }
}
