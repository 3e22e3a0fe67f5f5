//! The sending side of a reliable connection: takes work from the send queue, cuts it into frames, and retires it in order.
//!
//! A WQE is copied once, when it is taken, and checked whole before any of it is sent. A WQE that is refused takes its place among the messages in
//! flight, so that its error comes after all earlier completions; nothing behind it is sent.

use super::transport::{Message, Requester, Standing, Wait, before};
use super::{Env, completion, lanes, local, mpe, retry, sge, xrc};
use crate::rdma::events::EventKind;
use crate::rdma::fabric::frame::{FrameHeader, MAX_PAYLOAD, flag, kind};
use crate::rdma::fabric::{Fabric, SendError};
use crate::rdma::memory::LOCAL_READ;
use crate::rdma::objects::{Qp, QpKind, QpState};
use crate::rdma::wire::{
    SendWqeHeader, access, cqe_status, feature, send_flag, send_opcode, vendor_err,
};

/// Messages of one QP in flight.
const MAX_IN_FLIGHT: usize = 256;

/// Largest payload of a frame, if the fabric takes it: what a QP sends before another has its turn.
const MAX_SEGMENT: u32 = 256 << 10;

/// Bytes that a QP may send in one round.
const ROUND_BYTES: u32 = 256 << 10;

/// What a round of a QP came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// There was work, and there may be more.
    Worked,
    /// There is work, but the fabric has no room for it now.
    Full,
    /// There is work, but it waits for the peer or a timer, which will make the QP hot again.
    Blocked,
    /// The send queue is empty.
    Idle,
}

/// One bounded round: takes WQEs, up to `limit` of them, and sends frames.
pub(super) fn step(qp: &mut Qp, env: &mut Env<'_>, fabric: &mut dyn Fabric, limit: usize) -> Step {
    let (mut messages, mut bytes) = (0, 0);
    retry::ask(qp, env.now, fabric);
    let step = loop {
        if bytes >= ROUND_BYTES {
            break Step::Worked;
        }
        let requester = &qp.transport.requester;
        if requester.wait != Wait::None {
            break Step::Blocked;
        }
        if requester.position as usize == requester.messages.len() {
            if !local::run(qp, env, fabric) {
                break Step::Blocked;
            }
            if qp.state != QpState::Rts {
                break Step::Idle;
            }
            let requester = &qp.transport.requester;
            if requester.halted || requester.outstanding() >= MAX_IN_FLIGHT {
                break Step::Blocked;
            }
            // Here, so that what was taken is sent too: a frame left behind would be a batch of its own.
            if messages >= limit {
                break Step::Worked;
            }
            if requester.taken == requester.produced {
                match qp.sq.pending(requester.taken) {
                    Ok(produced) => qp.transport.requester.produced = produced,
                    Err(_) => {
                        env.fatal(qp);
                        break Step::Idle;
                    }
                }
                let requester = &qp.transport.requester;
                if requester.taken == requester.produced {
                    break Step::Idle;
                }
            }
            // While others are under way their timer goes off no later than this one's would.
            let under_way = !qp.transport.requester.messages.is_empty();
            let watched = under_way && qp.transport.timer.is_some();
            take(qp, env);
            if !watched {
                retry::watch(qp, env);
            }
            messages += 1;
            continue;
        }
        if skip_answered(&mut qp.transport.requester) {
            continue;
        }
        let requester = &qp.transport.requester;
        if requester.messages[requester.position as usize].standing != Standing::Pending {
            // It failed, and nothing behind it is sent.
            break Step::Blocked;
        }
        match transmit(qp, env, fabric) {
            Ok(sent) => bytes += sent.max(64),
            Err(why) => break why,
        }
    };
    if qp.transport.requester.halted {
        retire(qp, env);
    }
    if messages > 0 || bytes > 0 {
        Step::Worked
    } else {
        step
    }
}

/// Takes the next WQE. It must be there.
pub(super) fn take(qp: &mut Qp, env: &mut Env<'_>) {
    let requester = &mut qp.transport.requester;
    let index = requester.taken;
    requester.taken = index.wrapping_add(1);
    let header = qp.sq.header(index);
    if local::is_local(header.opcode) {
        local::take(qp, env, &header, index);
        return;
    }
    if requester.messages.is_empty() {
        requester.since = Some(env.now);
    }
    let first_sge = requester
        .first_sge
        .wrapping_add(requester.sges.len() as u32);
    let mut message = Message {
        wr_id: header.wr_id.get(),
        index,
        opcode: header.opcode,
        flags: header.flags,
        num_sge: 0,
        imm: header.imm,
        rkey: header.rkey.get(),
        remote_addr: header.remote_addr.get(),
        length: 0,
        first_sge,
        aux: xrc::request_aux(qp, &header),
        operands: [header.compare_add.get(), header.swap.get()],
        received: 0,
        standing: Standing::Pending,
    };
    match check(qp, env, &header, index) {
        Ok((num_sge, length)) => (message.num_sge, message.length) = (num_sge, length),
        Err((status, vendor)) => {
            message.standing = Standing::Failed { status, vendor };
            qp.transport.requester.halted = true;
        }
    }
    let requester = &mut qp.transport.requester;
    requester.bytes += u64::from(message.length);
    requester.messages.push_back(message);
}

/// Checks a WQE's copy and keeps its SGEs. Returns their number and the message's length, or what it completes with.
pub(super) fn check(
    qp: &mut Qp,
    env: &mut Env<'_>,
    wqe: &SendWqeHeader,
    index: u32,
) -> Result<(u16, u32), (u8, u32)> {
    let opcode_error = (cqe_status::LOC_QP_OP_ERR, vendor_err::OPCODE);
    let count_error = (cqe_status::LOC_QP_OP_ERR, vendor_err::SGE_COUNT);
    let length_error = (cqe_status::LOC_LEN_ERR, vendor_err::MESSAGE_LENGTH);
    let reads = match wqe.opcode {
        send_opcode::WRITE | send_opcode::WRITE_IMM | send_opcode::SEND | send_opcode::SEND_IMM => {
            false
        }
        send_opcode::SEND_INV if env.has(feature::FRWR | feature::MW) && qp.kind == QpKind::Rc => {
            false
        }
        send_opcode::READ if qp.kind.is_reliable() => true,
        send_opcode::CMP_AND_SWP | send_opcode::FETCH_AND_ADD
            if env.has(feature::ATOMICS) && qp.kind.is_reliable() =>
        {
            true
        }
        opcode if mpe::is_placement(opcode) => return mpe::check(qp, env, wqe),
        _ => return Err(opcode_error),
    };
    if wqe.flags & !send_flag::ALL != 0
        || reads && qp.attrs.max_rd_atomic == 0
        || qp.kind == QpKind::XrcIni && wqe.srqn() > xrc::MAX_SRQN
    {
        return Err(opcode_error);
    }
    if wqe.flags & send_flag::INLINE != 0 {
        let length = wqe.inline_len.get();
        return if reads {
            Err(opcode_error)
        } else if wqe.num_sge.get() != 0 || length > qp.caps.max_inline {
            Err(count_error)
        } else {
            Ok((0, length))
        };
    }
    let num_sge = wqe.num_sge.get();
    if u32::from(num_sge) > qp.caps.max_send_sge {
        return Err(count_error);
    }
    let needed = if reads {
        access::LOCAL_WRITE
    } else {
        LOCAL_READ
    };
    let kept = qp.transport.requester.sges.len();
    let mut length = 0_u64;
    for position in 0..num_sge {
        let one = qp.sq.sge(index, position);
        length += u64::from(one.length.get());
        qp.transport.requester.sges.push_back(one);
    }
    let fault = if length > u64::from(env.max_msg_size) || is_atomic(wqe.opcode) && length != 8 {
        Some(length_error)
    } else if reads || length > u64::from(MAX_PAYLOAD) {
        let mut sges = qp.transport.requester.sges.range(kept..);
        sges.find_map(|one| sge::check(env.memory, qp.scope(), one, needed).err())
    } else {
        // One frame carries it: what is wrong shows before anything is sent.
        None
    };
    if let Some(error) = fault {
        qp.transport.requester.sges.truncate(kept);
        return Err(error);
    }
    // Not above max_msg_size, which is a u32.
    Ok((num_sge, length as u32))
}

pub(super) fn is_atomic(opcode: u8) -> bool {
    matches!(
        opcode,
        send_opcode::CMP_AND_SWP | send_opcode::FETCH_AND_ADD
    )
}

/// Whether the message is answered, and not only acknowledged.
pub(super) fn is_read(opcode: u8) -> bool {
    opcode == send_opcode::READ || is_atomic(opcode) || mpe::is_placement(opcode)
}

/// Steps over a message that was answered before the requester went back.
fn skip_answered(requester: &mut Requester) -> bool {
    let message = &requester.messages[requester.position as usize];
    let seq = requester.oldest.wrapping_add(requester.position);
    let answered = message.standing == Standing::Done
        || !is_read(message.opcode) && before(seq, requester.acked);
    if answered {
        requester.position += 1;
        requester.offset = 0;
    }
    answered
}

/// Sends the next frame of the message at `position`. Returns its payload's length, or why it must wait.
fn transmit(qp: &mut Qp, env: &mut Env<'_>, fabric: &mut dyn Fabric) -> Result<u32, Step> {
    let requester = &qp.transport.requester;
    let message = &requester.messages[requester.position as usize];
    let offset = requester.offset;
    if offset == 0 {
        let reads = requester.reads;
        if message.flags & send_flag::FENCE != 0 && reads > 0
            || is_read(message.opcode) && reads >= u32::from(qp.attrs.max_rd_atomic)
        {
            return Err(Step::Blocked);
        }
    }
    let Some(peer) = qp.transport.peer else {
        return Err(Step::Blocked);
    };
    let seq = requester.oldest.wrapping_add(requester.position);
    if seq == requester.begun && !lanes::choose(&mut qp.transport.requester, qp.qpn, peer, fabric) {
        return Err(Step::Blocked);
    }
    let lane = lanes::of_requests(qp);
    if !fabric.can_send(peer, lane) {
        return Err(if fabric.is_up(peer) {
            Step::Full
        } else {
            Step::Blocked
        });
    }
    let requester = &qp.transport.requester;
    // By reference: a copy would have to wait for what `take` has just written.
    let message = &requester.messages[requester.position as usize];
    let (opcode, length) = (message.opcode, message.length);
    let mut header = FrameHeader {
        dst_qpn: qp.attrs.dest_qpn,
        src_qpn: qp.qpn,
        seq,
        rkey: message.rkey,
        addr: message.remote_addr,
        msg_len: length,
        offset,
        aux: message.aux,
        lane,
        ..FrameHeader::default()
    };
    env.scratch.segments.clear();
    env.scratch.bytes.clear();
    let mut rest = 0;
    match opcode {
        send_opcode::READ => header.kind = kind::READ,
        send_opcode::CMP_AND_SWP
        | send_opcode::FETCH_AND_ADD
        | send_opcode::ATOMIC_WRITE
        | send_opcode::FLUSH => {
            header.kind = kind::ATOMIC;
            for operand in message.operands {
                env.scratch.bytes.extend_from_slice(&operand.to_le_bytes());
            }
            header.length = 16;
        }
        _ => {
            let sends = matches!(
                opcode,
                send_opcode::SEND | send_opcode::SEND_IMM | send_opcode::SEND_INV
            );
            header.kind = if sends { kind::SEND } else { kind::WRITE };
            if matches!(opcode, send_opcode::SEND_IMM | send_opcode::WRITE_IMM) {
                header.flags |= flag::IMM;
                header.imm = message.imm;
            }
            if opcode == send_opcode::SEND_INV {
                header.flags |= flag::INVALIDATE;
                header.imm = message.imm;
            }
            if message.flags & send_flag::SOLICITED != 0 {
                header.flags |= flag::SOLICITED;
            }
            if sends {
                (header.rkey, header.addr) = (0, 0);
            }
            let segment = MAX_SEGMENT.min(fabric.max_payload(peer));
            header.length = (length - offset).min(segment);
            rest = length - offset - header.length;
            if message.flags & send_flag::INLINE != 0 {
                qp.sq.inline(message.index, length, &mut env.scratch.bytes);
                let end = offset as usize + header.length as usize;
                env.scratch.bytes.truncate(end);
                env.scratch.bytes.drain(..offset as usize);
            } else if let Err((status, vendor)) = sge::resolve_message(
                env.memory,
                qp,
                message,
                LOCAL_READ,
                offset,
                header.length,
                &mut env.scratch.segments,
            ) {
                let requester = &mut qp.transport.requester;
                let failed = &mut requester.messages[requester.position as usize];
                failed.standing = Standing::Failed { status, vendor };
                requester.halted = true;
                return Err(Step::Blocked);
            }
        }
    }
    if rest == 0 {
        header.flags |= flag::LAST;
    }
    match fabric.send(peer, &header, &env.scratch.bytes, &env.scratch.segments) {
        Ok(()) => {}
        Err(SendError::Full) => return Err(Step::Full),
        Err(SendError::Down) => return Err(Step::Blocked),
    }
    let requester = &mut qp.transport.requester;
    if seq == requester.begun {
        requester.begun = seq.wrapping_add(1);
    }
    if rest > 0 {
        requester.offset = offset + header.length;
        return Ok(header.length);
    }
    requester.offset = 0;
    requester.position += 1;
    if is_read(opcode) {
        requester.reads += 1;
    }
    if before(requester.sent, seq.wrapping_add(1)) {
        requester.sent = seq.wrapping_add(1);
    }
    Ok(header.length)
}

/// Completes messages from the oldest on, as far as they are answered. A failed one takes the QP to ERR.
pub(super) fn retire(qp: &mut Qp, env: &mut Env<'_>) {
    loop {
        match local::retire(qp, env) {
            Some(true) => continue,
            Some(false) => return,
            None => {}
        }
        let requester = &mut qp.transport.requester;
        let Some(oldest) = requester.messages.front() else {
            break;
        };
        let failure = match oldest.standing {
            Standing::Failed { status, vendor } => Some((status, vendor)),
            Standing::Done => None,
            Standing::Pending
                if !is_read(oldest.opcode) && before(requester.oldest, requester.acked) =>
            {
                None
            }
            Standing::Pending => break,
        };
        let Some(message) = pop(requester) else {
            break;
        };
        match failure {
            None => {
                count_sent(qp, env, &message);
                succeed(qp, env, &message);
            }
            Some((status, vendor)) => {
                completion::sent(qp, env, &message, status, vendor);
                env.error(qp, None);
                return;
            }
        }
    }
    if qp.transport.requester.outstanding() == 0 && qp.transport.requester.tell_drained {
        qp.transport.requester.tell_drained = false;
        env.raise(qp, EventKind::SqDrained);
    }
}

/// Counts a message that was sent.
#[inline]
pub(super) fn count_sent(qp: &Qp, env: &Env<'_>, message: &Message) {
    for counters in [
        (&env.stats.device.tx_messages, &env.stats.device.tx_bytes),
        (&qp.stats.tx_messages, &qp.stats.tx_bytes),
    ] {
        counters.0.add(1);
        counters.1.add(message.length.into());
    }
}

/// Completes a message with success, if it is signalled.
#[inline]
pub(super) fn succeed(qp: &mut Qp, env: &mut Env<'_>, message: &Message) {
    if message.flags & send_flag::SIGNALED != 0 || qp.sq_sig_all {
        completion::sent(qp, env, message, cqe_status::SUCCESS, vendor_err::NONE);
    }
}

/// Takes the oldest message out.
pub(super) fn pop(requester: &mut Requester) -> Option<Message> {
    let message = requester.messages.pop_front()?;
    requester.oldest = requester.oldest.wrapping_add(1);
    requester.bytes = requester.bytes.saturating_sub(message.length.into());
    if requester.position == 0 {
        requester.offset = 0;
    }
    requester.position = requester.position.saturating_sub(1);
    for _ in 0..message.num_sge {
        requester.sges.pop_front();
    }
    requester.first_sge = requester.first_sge.wrapping_add(u32::from(message.num_sge));
    Some(message)
}

#[cfg(test)]
mod tests {
    use super::super::test_utils::*;
    use super::*;

    #[test]
    fn a_write_completes_only_when_it_is_acknowledged() {
        let mut node = Node::new();
        let mut queue = node.connected();
        node.ram.write(DATA, &pattern(100));
        let post = write(&node, 1, 100);
        node.send(&mut queue, post);

        let sent = node.sent();

        assert_eq!(sent.len(), 1);
        assert_eq!(sent[0].payload, pattern(100));
        let header = sent[0].header;
        assert_eq!((header.kind, header.flags), (kind::WRITE, flag::LAST));
        assert_eq!((header.dst_qpn, header.src_qpn), (PEER_QPN, queue.qpn));
        assert_eq!(
            (header.seq, header.msg_len, header.offset),
            (SQ_PSN, 100, 0)
        );
        assert_eq!((header.rkey, header.addr), (0x5500, 0x7000));
        assert_eq!(node.done(&mut queue), []);
        node.take(ack(&queue, SQ_PSN), &[]);
        assert_eq!(node.done(&mut queue), []);
        node.take(ack(&queue, SQ_PSN + 1), &[]);
        assert_eq!(node.done(&mut queue), [(1, cqe_status::SUCCESS)]);
    }

    #[test]
    fn a_long_message_goes_in_frames_and_other_qps_go_between() {
        let mut node = Node::new();
        let (mut a, mut b) = (node.connected(), node.connected());
        let length = 600 << 10;
        let post = write(&node, 1, length);
        node.ram.write(DATA, &pattern(length as usize));
        node.send(&mut a, post);
        let post = write(&node, 2, 8);
        node.send(&mut b, post);

        let sent = node.sent();

        let of_b = sent.iter().position(|s| s.header.src_qpn == b.qpn).unwrap();
        assert!(of_b < sent.len() - 1);
        let mut at = 0;
        for frame in sent.iter().filter(|s| s.header.src_qpn == a.qpn) {
            let header = frame.header;
            assert_eq!(
                (header.seq, header.offset, header.msg_len),
                (SQ_PSN, at, length)
            );
            at += header.length;
            assert_eq!(header.flags, if at == length { flag::LAST } else { 0 });
            let range = header.offset as usize..at as usize;
            assert_eq!(frame.payload, pattern(length as usize)[range]);
        }
        assert_eq!(at, length);
    }

    #[test]
    fn sges_are_gathered_in_order_and_empty_ones_name_no_memory() {
        let mut node = Node::new();
        let mut queue = node.connected();
        node.ram.write(DATA, b"onetwothree");
        let mut post = write(&node, 1, 0);
        let key = node.key;
        post.opcode = send_opcode::SEND_IMM;
        post.flags |= send_flag::SOLICITED;
        post.imm = [1, 2, 3, 4];
        post.sges = vec![
            (DATA + 6, 5, key),
            (1, 0, 99),
            (DATA, 3, key),
            (DATA + 3, 3, key),
        ];
        node.send(&mut queue, post);
        let sent = node.sent();
        assert_eq!(sent[0].payload, b"threeonetwo");
        assert_eq!(sent[0].header.kind, kind::SEND);
        assert_eq!(
            sent[0].header.flags,
            flag::LAST | flag::IMM | flag::SOLICITED
        );
        assert_eq!(sent[0].header.imm, [1, 2, 3, 4]);
    }

    #[test]
    fn inline_data_is_sent_from_the_wqe() {
        let mut node = Node::new();
        let mut queue = node.connected();
        let mut post = write(&node, 1, 0);
        post.sges.clear();
        post.inline = pattern(128);
        node.send(&mut queue, post);
        assert_eq!(node.sent()[0].payload, pattern(128));
    }

    #[test]
    fn messages_of_no_bytes_are_frames_all_the_same() {
        let mut node = Node::new();
        let mut queue = node.connected();
        for opcode in [send_opcode::WRITE, send_opcode::SEND, send_opcode::READ] {
            let post = Post {
                opcode,
                sges: vec![],
                ..write(&node, opcode.into(), 0)
            };
            node.send(&mut queue, post);
        }
        assert_eq!(
            node.sent_kinds(),
            [
                (kind::WRITE, SQ_PSN),
                (kind::SEND, SQ_PSN + 1),
                (kind::READ, SQ_PSN + 2)
            ]
        );
        node.take(from_peer(&queue, kind::READ_DATA, SQ_PSN + 2), &[]);
        assert_eq!(node.done(&mut queue), [(0, 0), (2, 0), (4, 0)]);
    }

    #[test]
    fn unsignalled_messages_are_retired_without_a_cqe() {
        let mut node = Node::new();
        let mut queue = node.connected();
        for wr_id in 0..3 {
            let mut post = write(&node, wr_id, 8);
            post.flags = if wr_id == 1 { send_flag::SIGNALED } else { 0 };
            node.send(&mut queue, post);
        }
        node.run();
        node.take(ack(&queue, SQ_PSN + 3), &[]);
        let cqes = node.poll_cq(&mut queue);
        assert_eq!(cqes.len(), 1);
        assert_eq!((cqes[0].wr_id.get(), cqes[0].wqe_index.get()), (1, 1));
        assert!(node.qp(&queue).transport.requester.messages.is_empty());
        assert_eq!(node.objects.stats.device.tx_messages.get(), 3);
        assert_eq!(node.objects.stats.device.tx_bytes.get(), 24);
    }

    /// Posts a good WRITE, then `bad`, then a good one; the completions after the first was acknowledged.
    fn in_the_middle(bad: impl FnOnce(&Node) -> Post) -> Vec<(u64, u8)> {
        let mut node = Node::new();
        let mut queue = node.connected();
        let post = write(&node, 1, 8);
        node.send(&mut queue, post);
        let mut post = bad(&node);
        post.wr_id = 2;
        node.send(&mut queue, post);
        let post = write(&node, 3, 8);
        node.send(&mut queue, post);
        assert_eq!(
            node.sent_kinds(),
            [(kind::WRITE, SQ_PSN)],
            "sent for a bad WQE, or past it"
        );
        assert_eq!(node.done(&mut queue), [], "completed before an earlier one");
        node.take(ack(&queue, SQ_PSN + 1), &[]);
        assert_eq!(node.qp(&queue).state, QpState::Err);
        assert_eq!(node.sent_kinds(), []);
        node.done(&mut queue)
    }

    #[test]
    fn a_bad_wqe_fails_after_all_before_it_and_flushes_all_behind_it() {
        type Bad = fn(&Node) -> Post;
        let cases: [(&str, u8, Bad); 14] = [
            ("lkey", cqe_status::LOC_PROT_ERR, |n| Post {
                sges: vec![(DATA, 8, n.key ^ 0x100)],
                ..write(n, 0, 8)
            }),
            ("past the end", cqe_status::LOC_PROT_ERR, |n| Post {
                sges: vec![(DATA + DATA_LEN - 7, 8, n.key)],
                ..write(n, 0, 8)
            }),
            ("wrapping", cqe_status::LOC_PROT_ERR, |n| Post {
                sges: vec![(u64::MAX, 8, n.key)],
                ..write(n, 0, 8)
            }),
            ("later SGE", cqe_status::LOC_PROT_ERR, |n| Post {
                sges: vec![(DATA, 8, n.key), (DATA, 8, 1)],
                ..write(n, 0, 8)
            }),
            ("opcode 10", cqe_status::LOC_QP_OP_ERR, |n| Post {
                opcode: 10,
                ..write(n, 0, 8)
            }),
            ("LOCAL_INV", cqe_status::LOC_QP_OP_ERR, |n| Post {
                opcode: send_opcode::LOCAL_INV,
                ..write(n, 0, 8)
            }),
            ("flags", cqe_status::LOC_QP_OP_ERR, |n| Post {
                flags: 0x10,
                ..write(n, 0, 8)
            }),
            ("SGE count", cqe_status::LOC_QP_OP_ERR, |n| Post {
                sges: vec![(DATA, 1, n.key); 5],
                ..write(n, 0, 8)
            }),
            ("inline length", cqe_status::LOC_QP_OP_ERR, |n| Post {
                sges: vec![],
                inline: vec![0; 129],
                ..write(n, 0, 8)
            }),
            ("inline with SGEs", cqe_status::LOC_QP_OP_ERR, |n| Post {
                flags: send_flag::INLINE,
                ..write(n, 0, 8)
            }),
            ("inline READ", cqe_status::LOC_QP_OP_ERR, |n| Post {
                sges: vec![],
                inline: vec![0; 8],
                ..read(n, 0, 8)
            }),
            ("message length", cqe_status::LOC_LEN_ERR, |n| Post {
                sges: vec![(DATA, u32::MAX, n.key); 4],
                ..write(n, 0, 8)
            }),
            ("atomic of 4 bytes", cqe_status::LOC_LEN_ERR, |n| Post {
                opcode: send_opcode::FETCH_AND_ADD,
                ..write(n, 0, 4)
            }),
            ("atomic without SGE", cqe_status::LOC_LEN_ERR, |n| Post {
                opcode: send_opcode::CMP_AND_SWP,
                sges: vec![],
                ..write(n, 0, 4)
            }),
        ];
        for (name, status, bad) in cases {
            let flushed = (3, cqe_status::WR_FLUSH_ERR);
            assert_eq!(in_the_middle(bad), [(1, 0), (2, status), flushed], "{name}");
        }
    }

    #[test]
    fn a_bad_unsignalled_wqe_completes_too() {
        let done = in_the_middle(|n| Post {
            flags: 0,
            opcode: 77,
            ..write(n, 0, 8)
        });
        assert_eq!(done[1], (2, cqe_status::LOC_QP_OP_ERR));
    }

    #[test]
    fn a_read_to_memory_that_is_only_read_locally_is_refused() {
        let mut node = Node::new();
        let key = node.register(DATA, 4096, access::REMOTE_READ);
        let mut queue = node.connected();
        let post = Post {
            sges: vec![(DATA, 8, key)],
            ..write(&node, 1, 8)
        };
        node.send(&mut queue, post);
        let post = Post {
            sges: vec![(DATA, 8, key)],
            ..read(&node, 2, 8)
        };
        node.send(&mut queue, post);
        assert_eq!(node.sent_kinds(), [(kind::WRITE, SQ_PSN)]);
        node.take(ack(&queue, SQ_PSN + 1), &[]);
        let expected = [(1, 0), (2, cqe_status::LOC_PROT_ERR)];
        assert_eq!(node.done(&mut queue), expected);
    }

    #[test]
    fn reads_beyond_max_rd_atomic_wait() {
        let mut node = Node::new();
        let mut queue = node.connected();
        for wr_id in 0..4 {
            let post = read(&node, wr_id, 8);
            node.send(&mut queue, post);
        }
        assert_eq!(
            node.sent_kinds(),
            [(kind::READ, SQ_PSN), (kind::READ, SQ_PSN + 1)]
        );
        let mut data = from_peer(&queue, kind::READ_DATA, SQ_PSN);
        (data.length, data.msg_len) = (8, 8);
        node.take(data, &[1; 8]);
        assert_eq!(node.sent_kinds(), [(kind::READ, SQ_PSN + 2)]);
        assert_eq!(node.done(&mut queue), [(0, 0)]);
    }

    #[test]
    fn a_fence_waits_for_earlier_reads_only() {
        let mut node = Node::new();
        let mut queue = node.connected();
        let post = write(&node, 0, 8);
        node.send(&mut queue, post);
        let post = read(&node, 1, 8);
        node.send(&mut queue, post);
        let post = write(&node, 2, 8);
        node.send(&mut queue, post);
        let mut post = write(&node, 3, 8);
        post.flags |= send_flag::FENCE;
        node.send(&mut queue, post);
        let sent: Vec<u32> = node.sent_kinds().iter().map(|s| s.1).collect();
        assert_eq!(sent, [SQ_PSN, SQ_PSN + 1, SQ_PSN + 2]);
        let mut data = from_peer(&queue, kind::READ_DATA, SQ_PSN + 1);
        (data.length, data.msg_len) = (8, 8);
        node.take(data, &[1; 8]);
        assert_eq!(node.sent_kinds(), [(kind::WRITE, SQ_PSN + 3)]);
    }

    #[test]
    fn messages_in_flight_are_bounded_and_the_rest_follows() {
        let mut node = Node::new();
        let mut queue = node.connected();
        for wr_id in 0..300 {
            let post = write(&node, wr_id, 8);
            node.fill_send(&mut queue, &post);
        }
        node.set_sq_producer(&queue, 300);
        assert_eq!(node.sent().len(), MAX_IN_FLIGHT);
        node.take(ack(&queue, SQ_PSN + 10), &[]);
        assert_eq!(node.sent().len(), 10);
        node.take(ack(&queue, SQ_PSN + 266), &[]);
        assert_eq!(node.sent().len(), 34);
        node.take(ack(&queue, SQ_PSN + 300), &[]);
        let done: Vec<u64> = node.done(&mut queue).iter().map(|d| d.0).collect();
        assert_eq!(done, (0..300).collect::<Vec<_>>());
    }

    #[test]
    fn a_full_fabric_delays_and_loses_nothing() {
        let mut node = Node::new();
        let mut queue = node.connected();
        node.fabric.full = true;
        let post = write(&node, 1, 200 << 10);
        node.send(&mut queue, post);
        assert_eq!(node.sent(), []);
        assert!(!node.engine.before_sleep(&mut node.objects));
        node.fabric.full = false;
        let sent = node.sent();
        let total: u32 = sent.iter().map(|s| s.header.length).sum();
        assert_eq!(total, 200 << 10);
    }

    #[test]
    fn a_region_that_goes_between_two_frames_fails_the_message() {
        let mut node = Node::new();
        let key = node.register(DATA, DATA_LEN, access::LOCAL_WRITE);
        let mut queue = node.connected();
        let post = Post {
            sges: vec![(DATA, 512 << 10, key)],
            ..write(&node, 1, 0)
        };
        node.send(&mut queue, post);
        let mut objects = &mut node.objects;
        node.engine.round(objects, &mut node.fabric, node.now);
        objects = &mut node.objects;
        objects.memory.deregister(0, key).unwrap();
        let sent = node.sent();
        assert!(sent.iter().all(|s| s.header.flags & flag::LAST == 0));
        assert_eq!(node.done(&mut queue), [(1, cqe_status::LOC_PROT_ERR)]);
    }

    #[test]
    fn a_producer_index_too_far_ahead_is_fatal() {
        let mut node = Node::new();
        let mut queue = node.connected();
        let post = write(&node, 1, 8);
        node.send(&mut queue, post);
        node.run();
        node.set_sq_producer(&queue, 1 + 513);
        node.engine.doorbell(&mut node.objects, 0);
        node.run();
        assert_eq!(node.qp(&queue).state, QpState::Err);
        assert_eq!(node.events(), [(EventKind::QpFatal, queue.qpn)]);
        assert_eq!(node.done(&mut queue), [(1, cqe_status::WR_FLUSH_ERR)]);
    }

    #[test]
    fn sqd_drains_what_was_begun_and_tells_then_rts_goes_on() {
        let mut node = Node::new();
        let mut queue = node.connected_with(64, PEER_QPN, |a| a.en_sqd_async = true);
        let post = write(&node, 1, 8);
        node.send(&mut queue, post);
        node.run();
        node.modify(&queue, QpState::Sqd);
        let post = write(&node, 2, 8);
        node.send(&mut queue, post);
        assert_eq!(node.sent_kinds(), [(kind::WRITE, SQ_PSN)]);
        assert!(node.qp(&queue).transport.is_draining());
        assert_eq!(node.events(), []);
        node.take(ack(&queue, SQ_PSN + 1), &[]);
        assert_eq!(node.events(), [(EventKind::SqDrained, queue.qpn)]);
        assert!(!node.qp(&queue).transport.is_draining());
        assert_eq!(node.sent_kinds(), []);
        node.modify(&queue, QpState::Rts);
        assert_eq!(node.sent_kinds(), [(kind::WRITE, SQ_PSN + 1)]);
    }

    #[test]
    fn every_change_to_sqd_may_ask_for_an_event() {
        let mut node = Node::new();
        let queue = node.connected_with(64, PEER_QPN, |a| a.en_sqd_async = true);
        let drained = (EventKind::SqDrained, queue.qpn);
        for _ in 0..3 {
            node.modify(&queue, QpState::Sqd);
            assert_eq!(node.events(), [drained]);
            node.modify(&queue, QpState::Rts);
        }
        // One that waits for a buffer stands for later ones.
        node.modify(&queue, QpState::Sqd);
        node.modify(&queue, QpState::Rts);
        node.modify(&queue, QpState::Sqd);
        assert_eq!(node.events(), [drained]);
    }

    #[test]
    fn sq_sig_all_signals_every_message() {
        let mut node = Node::new();
        let mut queue = node.connected();
        node.qp_mut(&queue).sq_sig_all = true;
        let mut post = write(&node, 1, 8);
        post.flags = 0;
        node.send(&mut queue, post);
        node.run();
        node.take(ack(&queue, SQ_PSN + 1), &[]);
        assert_eq!(node.done(&mut queue), [(1, 0)]);
    }
}
