//! The receiving side of a reliable connection: takes requests in order, places their data, and answers.
//!
//! [`place`] makes every check when a frame's header comes, before a byte of its payload is read; [`complete`] is what follows when the payload lies
//! in place. A request that is refused leaves a NAK to be sent and, unless it may come again, takes the QP to ERR.

use super::transport::{Answer, Incoming, Refusal, before};
use super::{Env, Owes, completion, sge};
use crate::rdma::events::EventKind;
use crate::rdma::fabric::frame::{FrameHeader, flag, kind, nak};
use crate::rdma::fabric::{Fabric, Placement};
use crate::rdma::memory::{Segment, access as guest};
use crate::rdma::objects::{Qp, QpState, RingFault};
use crate::rdma::wire::{access, cqe_status, vendor_err};

/// Answer bytes that a QP may send in one round.
const ROUND_BYTES: u32 = 256 << 10;

/// Largest payload of an answer, if the fabric takes it.
const MAX_SEGMENT: u32 = 256 << 10;

/// Why a request is not carried out.
enum Refuse {
    /// It may come again when a receive is posted.
    NoReceive,
    /// The connection ends: NAK code, and the event for this side if no CQE tells of it.
    Fatal(u32, Option<EventKind>),
    /// The receive queue lies about its index.
    Ring,
}

const INVALID: Refuse = Refuse::Fatal(nak::INVALID_REQUEST, Some(EventKind::QpReqErr));
const ACCESS: Refuse = Refuse::Fatal(nak::REMOTE_ACCESS, Some(EventKind::QpAccessErr));

/// The header of a request has come from the connected QP.
pub(super) fn place(
    qp: &mut Qp,
    env: &mut Env<'_>,
    header: &FrameHeader,
    skip: u32,
    into: &mut Vec<Segment>,
) -> Placement {
    let responder = &mut qp.transport.responder;
    let again = responder.placing == Some((header.seq, header.offset));
    responder.placing = None;
    if before(header.seq, responder.expected) {
        duplicate(qp, env, header);
        return Placement::Discard;
    }
    if header.seq != responder.expected {
        if !responder.told {
            responder.told = true;
            owe_nak(qp, env, nak::SEQUENCE, 0);
        }
        env.discarded();
        return Placement::Discard;
    }
    if header.offset > 0 && qp.transport.responder.incoming.is_none() && qp.transport.responder.told
    {
        // The rest of a message that was told to come again.
        env.discarded();
        return Placement::Discard;
    }
    let checked = if again {
        Ok(())
    } else if header.offset == 0 {
        begin(qp, env, header)
    } else {
        follows(qp, header)
    };
    let placed = checked.and_then(|()| locate(qp, env, header, skip, into));
    match placed {
        Ok(()) => {
            qp.transport.responder.placing = Some((header.seq, header.offset));
            Placement::Into
        }
        Err(refuse) => {
            into.clear();
            refused(qp, env, refuse);
            Placement::Discard
        }
    }
}

/// Sends what a refusal calls for and, if it is final, ends the connection.
fn refused(qp: &mut Qp, env: &mut Env<'_>, refuse: Refuse) {
    match refuse {
        Refuse::NoReceive => {
            qp.transport.responder.told = true;
            env.stats.device.rnr_nak_sent.add(1);
            let timer = qp.attrs.min_rnr_timer.into();
            owe_nak(qp, env, nak::RNR, timer);
        }
        Refuse::Fatal(code, event) => {
            if code == nak::REMOTE_ACCESS {
                env.stats.device.access_errors.add(1);
            }
            owe_nak(qp, env, code, 0);
            env.error(qp, event);
        }
        Refuse::Ring => {
            owe_nak(qp, env, nak::REMOTE_OPERATION, 0);
            env.fatal(qp);
        }
    }
}

fn owe_nak(qp: &mut Qp, env: &mut Env<'_>, code: u32, aux: u32) {
    let responder = &mut qp.transport.responder;
    responder.nak = Some(Refusal {
        seq: responder.expected,
        code,
        aux,
    });
    env.owe(qp);
}

/// Checks the first frame of the expected message, takes a receive if it needs one, and remembers the message.
fn begin(qp: &mut Qp, env: &mut Env<'_>, header: &FrameHeader) -> Result<(), Refuse> {
    if qp.state == QpState::Rtr && !qp.transport.responder.established {
        qp.transport.responder.established = true;
        env.raise(qp, EventKind::CommEst);
    }
    qp.transport.responder.incoming = None;
    let last = header.flags & flag::LAST != 0;
    if header.msg_len > env.max_msg_size || header.flags & flag::INVALIDATE != 0 {
        return Err(INVALID);
    }
    match header.kind {
        kind::SEND => begin_send(qp, env, header)?,
        kind::WRITE => {
            check_remote(qp, env, header, access::REMOTE_WRITE)?;
            if header.flags & flag::IMM != 0 {
                take_receive(qp, env)?;
            }
        }
        kind::READ => {
            if !last || header.length != 0 || answers_full(qp) {
                return Err(INVALID);
            }
            check_remote(qp, env, header, access::REMOTE_READ)?;
        }
        _ => {
            if !last || !env.atomics || answers_full(qp) {
                return Err(INVALID);
            }
            check_atomic(header)?;
            check_remote(qp, env, header, access::REMOTE_ATOMIC)?;
        }
    }
    let responder = &mut qp.transport.responder;
    responder.told = false;
    responder.incoming = Some(Incoming {
        kind: header.kind,
        flags: header.flags & !flag::LAST,
        imm: header.imm,
        rkey: header.rkey,
        addr: header.addr,
        msg_len: header.msg_len,
        offset: 0,
    });
    follows(qp, header)
}

fn answers_full(qp: &Qp) -> bool {
    qp.transport.responder.answers.len() >= usize::from(qp.attrs.max_dest_rd_atomic)
}

/// Atomics are of one aligned word.
fn check_atomic(header: &FrameHeader) -> Result<(), Refuse> {
    let sound = header.msg_len == 8
        && header.length == 16
        && header.addr.is_multiple_of(8)
        && header.aux <= 1;
    if sound { Ok(()) } else { Err(INVALID) }
}

/// Checks QP and region for the whole message. A message of 0 bytes names no memory.
fn check_remote(qp: &Qp, env: &Env<'_>, header: &FrameHeader, needed: u32) -> Result<(), Refuse> {
    if qp.attrs.access & needed == 0 {
        return Err(INVALID);
    }
    if header.msg_len == 0 {
        return Ok(());
    }
    env.memory
        .check(
            header.rkey,
            qp.pd,
            qp.context,
            needed,
            header.addr,
            header.msg_len.into(),
        )
        .map_err(|_| ACCESS)
}

/// A receive for the message; one that an earlier attempt took is used again.
fn take_receive(qp: &mut Qp, env: &mut Env<'_>) -> Result<(), Refuse> {
    let responder = &mut qp.transport.responder;
    let receive = match &responder.receive {
        Some(held) => held,
        None => match qp.rq.next(&mut responder.sges) {
            Ok(Some(next)) => responder.receive.insert(next),
            Ok(None) => return Err(Refuse::NoReceive),
            Err(RingFault) => return Err(Refuse::Ring),
        },
    };
    match receive.fault {
        None => Ok(()),
        Some(vendor) => {
            fail_receive(qp, env, cqe_status::LOC_QP_OP_ERR, vendor);
            Err(Refuse::Fatal(nak::REMOTE_OPERATION, None))
        }
    }
}

/// Takes a receive and checks that the message fits in it.
fn begin_send(qp: &mut Qp, env: &mut Env<'_>, header: &FrameHeader) -> Result<(), Refuse> {
    take_receive(qp, env)?;
    let mut left = u64::from(header.msg_len);
    let mut fault = None;
    for one in &qp.transport.responder.sges {
        if left == 0 {
            break;
        }
        let mut one = *one;
        let used = left.min(one.length.get().into());
        // Not above the SGE's own length.
        one.length = (used as u32).into();
        left -= used;
        if let Err(error) = sge::check(env.memory, qp, &one, access::LOCAL_WRITE) {
            fault = Some((error, nak::REMOTE_OPERATION));
            break;
        }
    }
    if fault.is_none() && left > 0 {
        let error = (cqe_status::LOC_LEN_ERR, vendor_err::MESSAGE_LENGTH);
        fault = Some((error, nak::INVALID_REQUEST));
    }
    match fault {
        None => Ok(()),
        Some(((status, vendor), code)) => {
            fail_receive(qp, env, status, vendor);
            Err(Refuse::Fatal(code, None))
        }
    }
}

/// The receive that was taken completes with an error.
fn fail_receive(qp: &mut Qp, env: &mut Env<'_>, status: u8, vendor: u32) {
    if let Some(receive) = qp.transport.responder.receive.take() {
        completion::receive_failed(qp, env, &receive, status, vendor);
    }
}

/// Checks that a frame goes on where the message stands.
fn follows(qp: &Qp, header: &FrameHeader) -> Result<(), Refuse> {
    let Some(incoming) = &qp.transport.responder.incoming else {
        return Err(INVALID);
    };
    if matches!(header.kind, kind::READ | kind::ATOMIC) {
        return if header.offset == 0 {
            Ok(())
        } else {
            Err(INVALID)
        };
    }
    let expected = Incoming {
        kind: header.kind,
        flags: header.flags & !flag::LAST,
        imm: header.imm,
        rkey: header.rkey,
        addr: header.addr,
        msg_len: header.msg_len,
        offset: header.offset,
    };
    let end = u64::from(header.offset) + u64::from(header.length);
    let total = u64::from(header.msg_len);
    let last = header.flags & flag::LAST != 0;
    let sound = *incoming == expected && end <= total && last == (end == total);
    // A frame without payload would be work without an end.
    if sound && (header.length > 0 || total == 0) {
        Ok(())
    } else {
        Err(INVALID)
    }
}

/// Where the payload from `skip` on goes.
fn locate(
    qp: &mut Qp,
    env: &mut Env<'_>,
    header: &FrameHeader,
    skip: u32,
    into: &mut Vec<Segment>,
) -> Result<(), Refuse> {
    let Some(length) = header.length.checked_sub(skip) else {
        return Err(INVALID);
    };
    // At most msg_len, as was checked.
    let offset = header.offset + skip;
    match header.kind {
        kind::SEND => {
            let sges = qp.transport.responder.sges.iter();
            sge::resolve(
                env.memory,
                qp,
                sges,
                access::LOCAL_WRITE,
                offset,
                length,
                into,
            )
            .map_err(|(status, vendor)| {
                fail_receive(qp, env, status, vendor);
                Refuse::Fatal(nak::REMOTE_OPERATION, None)
            })
        }
        kind::WRITE if length > 0 => env
            .memory
            .resolve(
                header.rkey,
                qp.pd,
                qp.context,
                access::REMOTE_WRITE,
                header.addr.wrapping_add(offset.into()),
                length.into(),
                into,
            )
            .map_err(|_| ACCESS),
        _ => Ok(()),
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
    match header.kind {
        kind::READ => {
            responder.answers.push_back(Answer::Read {
                seq: header.seq,
                rkey: header.rkey,
                addr: header.addr,
                length: header.msg_len,
                offset: 0,
            });
            finish(qp, env, 0);
            env.owe(qp);
        }
        _ => {
            incoming.offset += header.length;
            if header.flags & flag::LAST == 0 {
                return;
            }
            let incoming = *incoming;
            let consumes = incoming.kind == kind::SEND || incoming.flags & flag::IMM != 0;
            if consumes
                && let Some(receive) = responder.receive.take()
                && !completion::received(qp, env, &receive, &incoming)
            {
                refused(qp, env, Refuse::Fatal(nak::REMOTE_OPERATION, None));
                return;
            }
            finish(qp, env, incoming.msg_len);
            qp.transport.responder.ack = true;
            env.owe(qp);
        }
    }
}

/// The expected message is done.
fn finish(qp: &mut Qp, env: &mut Env<'_>, bytes: u32) {
    let responder = &mut qp.transport.responder;
    responder.expected = responder.expected.wrapping_add(1);
    responder.incoming = None;
    for counters in [
        (&env.stats.device.rx_messages, &env.stats.device.rx_bytes),
        (&qp.stats.rx_messages, &qp.stats.rx_bytes),
    ] {
        counters.0.add(1);
        counters.1.add(bytes.into());
    }
}

/// An atomic has come: checks it, carries it out and remembers its result.
pub(super) fn atomic(qp: &mut Qp, env: &mut Env<'_>, header: &FrameHeader, data: &[u8]) {
    if place(qp, env, header, 0, &mut Vec::new()) != Placement::Into {
        return;
    }
    qp.transport.responder.placing = None;
    let Some((operands, [])) = data.split_first_chunk::<16>() else {
        refused(qp, env, INVALID);
        return;
    };
    let (compare_add, swap) = (
        u64::from_le_bytes([
            operands[0],
            operands[1],
            operands[2],
            operands[3],
            operands[4],
            operands[5],
            operands[6],
            operands[7],
        ]),
        u64::from_le_bytes([
            operands[8],
            operands[9],
            operands[10],
            operands[11],
            operands[12],
            operands[13],
            operands[14],
            operands[15],
        ]),
    );
    let mut found = std::mem::take(&mut env.scratch.segments);
    found.clear();
    let resolved = env.memory.resolve(
        header.rkey,
        qp.pd,
        qp.context,
        access::REMOTE_ATOMIC,
        header.addr,
        8,
        &mut found,
    );
    let old = match (resolved, found.as_slice()) {
        (Ok(()), [word]) if header.aux == 0 => guest::compare_and_swap(word, compare_add, swap),
        (Ok(()), [word]) => guest::fetch_and_add(word, compare_add),
        _ => None,
    };
    env.scratch.segments = found;
    // A region may lie in memory such that an aligned address names an unaligned word.
    let Some(value) = old else {
        refused(qp, env, ACCESS);
        return;
    };
    let responder = &mut qp.transport.responder;
    let seq = header.seq;
    while responder.results.len() >= usize::from(qp.attrs.max_dest_rd_atomic).max(1) {
        responder.results.pop_front();
    }
    responder.results.push_back((seq, value));
    responder.answers.push_back(Answer::Atomic { seq, value });
    finish(qp, env, 8);
    env.owe(qp);
}

/// A message that was done before: answered again, without effect.
fn duplicate(qp: &mut Qp, env: &mut Env<'_>, header: &FrameHeader) {
    let responder = &mut qp.transport.responder;
    match header.kind {
        kind::READ | kind::ATOMIC => {
            let pending = responder.answers.iter().any(|a| a.seq() == header.seq);
            if pending || answers_full(qp) || header.offset != 0 {
                return;
            }
            let answer = if header.kind == kind::READ {
                if check_remote(qp, env, header, access::REMOTE_READ).is_err() {
                    refused(qp, env, ACCESS);
                    return;
                }
                Some(Answer::Read {
                    seq: header.seq,
                    rkey: header.rkey,
                    addr: header.addr,
                    length: header.msg_len,
                    offset: 0,
                })
            } else {
                let results = &qp.transport.responder.results;
                let result = results.iter().find(|(seq, _)| *seq == header.seq);
                result.map(|&(seq, value)| Answer::Atomic { seq, value })
            };
            if let Some(answer) = answer {
                qp.transport.responder.answers.push_back(answer);
                env.owe(qp);
            }
        }
        _ if header.flags & flag::LAST != 0 => {
            responder.ack = true;
            env.owe(qp);
        }
        _ => {}
    }
}

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
        if !fabric.can_send(peer) {
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
                        rkey,
                        qp.pd,
                        qp.context,
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
        let frame = FrameHeader {
            kind: kind::NAK,
            seq: refusal.seq,
            rkey: refusal.code,
            aux: refusal.aux,
            ..base
        };
        if fabric.send(peer, &frame, &[], &[]).is_err() {
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
