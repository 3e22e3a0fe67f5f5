//! The receiving side of a reliable connection: takes requests in order, places their data, and answers.
//!
//! [`place`] makes every check when a frame's header comes, before a byte of its payload is read; [`complete`] is what follows when the payload lies
//! in place. A request that is refused leaves a NAK to be sent and, unless it may come again, takes the QP to ERR.

use super::transport::{Answer, Incoming, Refusal, before};
use super::{Env, atomics, deferred, lanes, sge, xrc};
use crate::rdma::events::EventKind;
use crate::rdma::fabric::Placement;
use crate::rdma::fabric::frame::{FrameHeader, flag, kind, nak, operation};
use crate::rdma::memory::{Scope, Segment};
use crate::rdma::objects::{Qp, QpKind, QpState, RingFault};
use crate::rdma::wire::{access, cqe_status, feature, vendor_err};

/// Why a request is not carried out.
pub(super) enum Refuse {
    /// It may come again when a receive is posted.
    NoReceive,
    /// The connection ends: NAK code, and the event for this side if no CQE tells of it.
    Fatal(u32, Option<EventKind>),
    /// The receive queue lies about its index.
    Ring,
}

pub(super) const INVALID: Refuse = Refuse::Fatal(nak::INVALID_REQUEST, Some(EventKind::QpReqErr));
/// The CQ of the receive takes no more.
const NO_CQE: Refuse = Refuse::Fatal(nak::REMOTE_OPERATION, Some(EventKind::QpFatal));
pub(super) const ACCESS: Refuse = Refuse::Fatal(nak::REMOTE_ACCESS, Some(EventKind::QpAccessErr));

/// The header of a request has come from the connected QP.
pub(super) fn place(
    qp: &mut Qp,
    env: &mut Env<'_>,
    header: &FrameHeader,
    skip: u32,
    into: &mut Vec<Segment>,
) -> Placement {
    let responder = &mut qp.transport.responder;
    let next = header.seq == responder.expected && responder.incoming.is_none();
    if !lanes::takes(responder, header, next) {
        env.discarded();
        return Placement::Discard;
    }
    let again = responder.placing == Some((header.seq, header.offset));
    responder.placing = None;
    if skip > 0 && !again {
        // Its beginning was thrown away, so its rest is of no use, whatever has changed since.
        return Placement::Discard;
    }
    if before(header.seq, responder.expected) {
        duplicate(qp, env, header);
        return Placement::Discard;
    }
    // Another message, or the rest of one that has to come again.
    if header.seq != responder.expected || header.offset > 0 && responder.incoming.is_none() {
        owe_again(qp, env);
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

/// Sends what a refusal of the expected message calls for and, if it is final, ends the connection.
pub(super) fn refused(qp: &mut Qp, env: &mut Env<'_>, refuse: Refuse) {
    let seq = qp.transport.responder.expected;
    refused_at(qp, env, seq, refuse);
}

/// As [`refused`], of the message of that number.
fn refused_at(qp: &mut Qp, env: &mut Env<'_>, seq: u32, refuse: Refuse) {
    match refuse {
        Refuse::NoReceive => {
            qp.transport.responder.told = true;
            env.stats.device.rnr_nak_sent.add(1);
            let timer = qp.attrs.min_rnr_timer.into();
            owe_nak(qp, env, seq, nak::RNR, timer);
        }
        Refuse::Fatal(code, event) => {
            if code == nak::REMOTE_ACCESS {
                env.stats.device.access_errors.add(1);
            }
            owe_nak(qp, env, seq, code, 0);
            env.error(qp, event);
        }
        Refuse::Ring => {
            owe_nak(qp, env, seq, nak::REMOTE_OPERATION, 0);
            env.fatal(qp);
        }
    }
}

/// The peer is told that its requests have to come again from the expected one on.
fn owe_again(qp: &mut Qp, env: &mut Env<'_>) {
    let responder = &mut qp.transport.responder;
    if !responder.told {
        responder.told = true;
        let seq = responder.expected;
        owe_nak(qp, env, seq, nak::SEQUENCE, 0);
    }
}

fn owe_nak(qp: &mut Qp, env: &mut Env<'_>, seq: u32, code: u32, aux: u32) {
    qp.transport.responder.nak = Some(Refusal { seq, code, aux });
    env.owe(qp);
}

/// Checks the first frame of the expected message, takes a receive if it needs one, and remembers the message.
pub(super) fn begin(qp: &mut Qp, env: &mut Env<'_>, header: &FrameHeader) -> Result<(), Refuse> {
    if qp.state == QpState::Rtr && !qp.transport.responder.established {
        qp.transport.responder.established = true;
        env.raise(qp, EventKind::CommEst);
    }
    qp.transport.responder.incoming = None;
    let last = header.flags & flag::LAST != 0;
    if header.msg_len > env.max_msg_size {
        return Err(INVALID);
    }
    xrc::begin(qp, env, header)?;
    if header.flags & flag::INVALIDATE != 0 {
        check_invalidate(qp, env, header)?;
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
            if !last || answers_full(qp) {
                return Err(INVALID);
            }
            let needed = atomics::check(env, header)?;
            if header.operation() != operation::FLUSH {
                check_remote(qp, env, header, needed)?;
            }
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
        aux: header.aux,
        offset: 0,
    });
    fits(header)
}

/// Checks a key that the message invalidates, before a receive is taken for it.
fn check_invalidate(qp: &Qp, env: &Env<'_>, header: &FrameHeader) -> Result<(), Refuse> {
    if qp.kind != QpKind::Rc
        || header.kind != kind::SEND
        || header.flags & flag::IMM != 0
        || !env.has(feature::FRWR | feature::MW)
    {
        return Err(INVALID);
    }
    let key = u32::from_le_bytes(header.imm);
    env.memory
        .check_invalidate(&qp.scope(), key, true)
        .map_err(|_| ACCESS)
}

fn answers_full(qp: &Qp) -> bool {
    qp.transport.responder.answers.len() >= usize::from(qp.attrs.max_dest_rd_atomic)
}

/// Checks QP and region for the whole message. A message of 0 bytes names no memory.
fn check_remote(qp: &Qp, env: &Env<'_>, header: &FrameHeader, needed: u32) -> Result<(), Refuse> {
    if qp.attrs.access & needed == 0 {
        return Err(INVALID);
    }
    if header.msg_len == 0 || header.kind == kind::WRITE && header.length == header.msg_len {
        // There is no memory, or `locate` looks it up at once.
        return Ok(());
    }
    let scope = xrc::scope(qp, env, header)?;
    env.memory
        .check(
            &scope,
            header.rkey,
            needed,
            header.addr,
            header.msg_len.into(),
        )
        .map_err(|_| ACCESS)
}

/// A receive for the message; one that an earlier attempt took is used again. Returns whose memory it names.
fn take_receive(qp: &mut Qp, env: &mut Env<'_>) -> Result<Scope, Refuse> {
    let receive = match qp.transport.responder.receive {
        Some(held) => held,
        None => match env.next_receive(qp) {
            Ok(Some(next)) => *qp.transport.responder.receive.insert(next),
            Ok(None) => return Err(Refuse::NoReceive),
            Err(RingFault) => return Err(Refuse::Ring),
        },
    };
    match receive.fault {
        None => Ok(receive.scope),
        Some(vendor) => {
            fail_receive(qp, env, cqe_status::LOC_QP_OP_ERR, vendor);
            Err(Refuse::Fatal(nak::REMOTE_OPERATION, None))
        }
    }
}

/// Takes a receive and checks that the message fits in it.
fn begin_send(qp: &mut Qp, env: &mut Env<'_>, header: &FrameHeader) -> Result<(), Refuse> {
    let scope = take_receive(qp, env)?;
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
        if header.length == header.msg_len {
            // One frame carries it: `locate` finds what is wrong before a byte is read.
            continue;
        }
        if let Err(error) = sge::check(env.memory, scope, &one, access::LOCAL_WRITE) {
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
        deferred::failed(qp, env, &receive, status, vendor);
    }
}

/// Checks that a frame goes on where the message stands.
pub(super) fn follows(qp: &Qp, header: &FrameHeader) -> Result<(), Refuse> {
    let Some(incoming) = &qp.transport.responder.incoming else {
        return Err(INVALID);
    };
    let expected = Incoming {
        kind: header.kind,
        flags: header.flags & !flag::LAST,
        imm: header.imm,
        rkey: header.rkey,
        addr: header.addr,
        msg_len: header.msg_len,
        aux: header.aux,
        offset: header.offset,
    };
    if *incoming == expected {
        fits(header)
    } else {
        Err(INVALID)
    }
}

/// Checks that a frame lies inside of its message, and is the last of it or is not as it says.
fn fits(header: &FrameHeader) -> Result<(), Refuse> {
    if matches!(header.kind, kind::READ | kind::ATOMIC) {
        return if header.offset == 0 {
            Ok(())
        } else {
            Err(INVALID)
        };
    }
    let end = u64::from(header.offset) + u64::from(header.length);
    let total = u64::from(header.msg_len);
    let last = header.flags & flag::LAST != 0;
    // A frame without payload would be work without an end.
    if end <= total && last == (end == total) && (header.length > 0 || total == 0) {
        Ok(())
    } else {
        Err(INVALID)
    }
}

/// Where the payload from `skip` on goes.
pub(super) fn locate(
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
            let responder = &qp.transport.responder;
            let Some(receive) = &responder.receive else {
                return Err(INVALID);
            };
            let sges = responder.sges.iter();
            sge::resolve(
                env.memory,
                receive.scope,
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
        kind::WRITE if length > 0 => {
            let scope = xrc::scope(qp, env, header)?;
            env.memory
                .resolve(
                    &scope,
                    header.rkey,
                    access::REMOTE_WRITE,
                    header.addr.wrapping_add(offset.into()),
                    length.into(),
                    into,
                )
                .map_err(|_| ACCESS)
        }
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
            // The SRQ was there when `place` looked.
            let Ok(scope) = xrc::scope(qp, env, header) else {
                return;
            };
            qp.transport.responder.answers.push_back(Answer::Read {
                seq: header.seq,
                scope,
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
            if (incoming.kind == kind::SEND || incoming.flags & flag::IMM != 0) && !receive(qp, env)
            {
                return;
            }
            finish(qp, env, header.msg_len);
            qp.transport.responder.ack = true;
            env.owe(qp);
        }
    }
}

/// Completes the receive of a message that has come whole. False when the connection ends for it.
fn receive(qp: &mut Qp, env: &mut Env<'_>) -> bool {
    let Some(incoming) = qp.transport.responder.incoming else {
        return true;
    };
    if incoming.flags & flag::INVALIDATE != 0 && !invalidate(qp, env, &incoming) {
        return false;
    }
    let Some(receive) = qp.transport.responder.receive.take() else {
        return true;
    };
    let completes = deferred::received(qp, env, &receive, &incoming);
    if !completes {
        refused(qp, env, NO_CQE);
    }
    completes
}

/// Carries out what a message that has come whole asks for. The receive's CQE waits for the fabric to let go of the memory. False when the key
/// cannot be invalidated any more; then the connection ends.
fn invalidate(qp: &mut Qp, env: &mut Env<'_>, incoming: &Incoming) -> bool {
    let key = u32::from_le_bytes(incoming.imm);
    match env.memory.invalidate(&qp.scope(), key, true) {
        Ok(()) => {
            qp.transport.responder.deferring = true;
            true
        }
        Err(refusal) => {
            fail_receive(qp, env, refusal.cqe_status(), refusal.vendor_err());
            refused(qp, env, Refuse::Fatal(nak::REMOTE_ACCESS, None));
            false
        }
    }
}

/// The CQE of a receive was not to be written: `seq` and all after it are not acknowledged.
pub(super) fn not_completed(qp: &mut Qp, env: &mut Env<'_>, seq: u32) {
    qp.transport.responder.expected = seq;
    refused(qp, env, NO_CQE);
}

/// The expected message is done.
pub(super) fn finish(qp: &mut Qp, env: &mut Env<'_>, bytes: u32) {
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
                let checked = check_remote(qp, env, header, access::REMOTE_READ);
                let scope = match checked.and_then(|()| xrc::scope(qp, env, header)) {
                    Ok(scope) => scope,
                    Err(refuse) => {
                        refused_at(qp, env, header.seq, refuse);
                        return;
                    }
                };
                Some(Answer::Read {
                    seq: header.seq,
                    scope,
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

#[cfg(test)]
mod tests {
    use super::super::test_utils::*;
    use super::*;
    use crate::rdma::fabric::{PeerId, Sink};
    use crate::rdma::wire::cqe_opcode;

    /// A frame of a message from the peer; LAST where it is.
    fn frame(
        queue: &Queue,
        kind: u8,
        seq: u32,
        msg_len: u32,
        offset: u32,
        length: u32,
    ) -> FrameHeader {
        let last = offset + length == msg_len;
        FrameHeader {
            flags: if last { flag::LAST } else { 0 },
            length,
            msg_len,
            offset,
            ..from_peer(queue, kind, seq)
        }
    }

    fn send(queue: &Queue, seq: u32, length: u32) -> FrameHeader {
        frame(queue, kind::SEND, seq, length, 0, length)
    }

    fn write_to(node: &Node, queue: &Queue, seq: u32, addr: u64, length: u32) -> FrameHeader {
        FrameHeader {
            rkey: node.key,
            addr,
            ..frame(queue, kind::WRITE, seq, length, 0, length)
        }
    }

    fn read_from(node: &Node, queue: &Queue, seq: u32, addr: u64, length: u32) -> FrameHeader {
        FrameHeader {
            rkey: node.key,
            addr,
            msg_len: length,
            ..from_peer(queue, kind::READ, seq)
        }
    }

    fn atomic_at(node: &Node, queue: &Queue, seq: u32, addr: u64, adds: bool) -> FrameHeader {
        FrameHeader {
            rkey: node.key,
            addr,
            length: 16,
            msg_len: 8,
            aux: adds.into(),
            ..from_peer(queue, kind::ATOMIC, seq)
        }
    }

    /// Kind, number, and NAK code of the frames that were sent since.
    fn answers(node: &mut Node) -> Vec<(u8, u32, u32)> {
        let sent = node.sent();
        let short = |s: &Sent| (s.header.kind, s.header.seq, s.header.rkey);
        sent.iter().map(short).collect()
    }

    fn acked(seq: u32) -> Vec<(u8, u32, u32)> {
        vec![(kind::ACK, seq, 0)]
    }

    fn refused(seq: u32, code: u32) -> Vec<(u8, u32, u32)> {
        vec![(kind::NAK, seq, code)]
    }

    #[test]
    fn a_send_fills_a_receive_and_is_acknowledged() {
        let mut node = Node::new();
        let mut queue = node.connected();
        let key = node.key;
        node.receive(&mut queue, 9, &[(DATA + 500, 10, key), (DATA, 200, key)]);
        let mut header = send(&queue, RQ_PSN, 100);
        header.flags |= flag::IMM;
        header.imm = [4, 3, 2, 1];
        node.take(header, &pattern(100));
        assert_eq!(answers(&mut node), acked(RQ_PSN + 1));
        let cqe = node.poll_cq(&mut queue)[0];
        assert_eq!(
            (cqe.wr_id.get(), cqe.status, cqe.opcode),
            (9, 0, cqe_opcode::RECV)
        );
        assert_eq!(
            (cqe.byte_len.get(), cqe.imm, cqe.flags.get()),
            (100, [4, 3, 2, 1], 2)
        );
        assert_eq!((cqe.qpn.get(), cqe.src_qpn.get()), (queue.qpn, PEER_QPN));
        assert_eq!(node.bytes(DATA + 500, 10), pattern(100)[..10]);
        assert_eq!(node.bytes(DATA, 91), [&pattern(100)[10..], &[0]].concat());
    }

    #[test]
    fn a_write_is_placed_frame_by_frame_and_acknowledged_at_its_end() {
        let mut node = Node::new();
        let queue = node.connected();
        for (offset, length) in [(0, 4000), (4000, 4000), (8000, 2000)] {
            let header = FrameHeader {
                rkey: node.key,
                addr: DATA + 3,
                ..frame(&queue, kind::WRITE, RQ_PSN, 10_000, offset, length)
            };
            assert_eq!(answers(&mut node), []);
            let range = offset as usize..(offset + length) as usize;
            node.take(header, &pattern(10_000)[range]);
        }
        assert_eq!(answers(&mut node), acked(RQ_PSN + 1));
        assert_eq!(
            node.bytes(DATA + 3, 10_001),
            [&pattern(10_000)[..], &[0]].concat()
        );
        assert_eq!(node.objects.stats.device.rx_messages.get(), 1);
        assert_eq!(node.objects.stats.device.rx_bytes.get(), 10_000);
    }

    #[test]
    fn acknowledgements_of_one_poll_are_one() {
        let mut node = Node::new();
        let queue = node.connected();
        for n in 0..5 {
            let header = write_to(&node, &queue, RQ_PSN + n, DATA, 1);
            node.take_from(PEER, header, &[1]);
        }
        assert_eq!(answers(&mut node), acked(RQ_PSN + 5));
    }

    #[test]
    fn a_write_with_immediate_consumes_a_receive_even_without_bytes() {
        let mut node = Node::new();
        let mut queue = node.connected();
        let mut header = FrameHeader {
            rkey: 0xdead,
            addr: 1,
            ..write_to(&node, &queue, RQ_PSN, 0, 0)
        };
        header.flags |= flag::IMM | flag::SOLICITED;
        header.imm = [9; 4];
        node.take(header, &[]);
        assert_eq!(answers(&mut node), refused(RQ_PSN, nak::RNR));
        node.receive(&mut queue, 5, &[]);
        node.take(header, &[]);
        assert_eq!(answers(&mut node), acked(RQ_PSN + 1));
        let cqe = node.poll_cq(&mut queue)[0];
        assert_eq!(cqe.opcode, cqe_opcode::RECV_RDMA_WITH_IMM);
        assert_eq!((cqe.byte_len.get(), cqe.imm), (0, [9; 4]));
    }

    #[test]
    fn without_a_receive_the_peer_is_told_once_and_comes_again() {
        let mut node = Node::new();
        let mut queue = node.connected();
        node.take(frame(&queue, kind::SEND, RQ_PSN, 100, 0, 60), &[0; 60]);
        let sent = node.sent();
        assert_eq!((sent[0].header.rkey, sent[0].header.aux), (nak::RNR, 12));
        node.take(frame(&queue, kind::SEND, RQ_PSN, 100, 60, 40), &[0; 40]);
        node.take(send(&queue, RQ_PSN + 1, 5), &[0; 5]);
        assert_eq!(answers(&mut node), []);
        assert_eq!(node.qp(&queue).state, QpState::Rts);
        let key = node.key;
        node.receive(&mut queue, 1, &[(DATA, 100, key)]);
        node.take(send(&queue, RQ_PSN, 100), &pattern(100));
        assert_eq!(answers(&mut node), acked(RQ_PSN + 1));
        assert_eq!(node.bytes(DATA, 100), pattern(100));
        assert_eq!(node.objects.stats.device.rnr_nak_sent.get(), 1);
    }

    #[test]
    fn old_messages_are_acknowledged_again_and_thrown_away() {
        let mut node = Node::new();
        let mut queue = node.connected();
        let key = node.key;
        node.receive(&mut queue, 1, &[(DATA, 4, key)]);
        node.receive(&mut queue, 2, &[(DATA, 4, key)]);
        node.take(send(&queue, RQ_PSN, 4), &[1; 4]);
        node.sent();
        node.take(send(&queue, RQ_PSN, 4), &[2; 4]);
        assert_eq!(answers(&mut node), acked(RQ_PSN + 1));
        let probe = FrameHeader {
            kind: kind::WRITE,
            ..send(&queue, RQ_PSN.wrapping_sub(1), 0)
        };
        node.take(probe, &[]);
        assert_eq!(answers(&mut node), acked(RQ_PSN + 1));
        assert_eq!(node.bytes(DATA, 4), [1; 4]);
        assert_eq!(node.done(&mut queue), [(1, 0)]);
    }

    #[test]
    fn newer_messages_are_refused_once_and_thrown_away() {
        let mut node = Node::new();
        let queue = node.connected();
        for n in 1..4 {
            let header = write_to(&node, &queue, RQ_PSN + n, DATA, 4);
            assert_eq!(node.take(header, &[1; 4]), Placement::Discard);
        }
        assert_eq!(answers(&mut node), refused(RQ_PSN, nak::SEQUENCE));
        let header = write_to(&node, &queue, RQ_PSN, DATA, 4);
        node.take(header, &[2; 4]);
        assert_eq!(answers(&mut node), acked(RQ_PSN + 1));
        assert_eq!(node.bytes(DATA, 4), [2; 4]);
    }

    #[test]
    fn a_receive_that_is_too_small_fails_on_both_sides() {
        let mut node = Node::new();
        let mut queue = node.connected();
        let key = node.key;
        node.receive(&mut queue, 1, &[(DATA, 4, key), (DATA + 8, 3, key)]);
        node.receive(&mut queue, 2, &[(DATA, 100, key)]);
        node.take(send(&queue, RQ_PSN, 8), &[1; 8]);
        assert_eq!(answers(&mut node), refused(RQ_PSN, nak::INVALID_REQUEST));
        let expected = [(1, cqe_status::LOC_LEN_ERR), (2, cqe_status::WR_FLUSH_ERR)];
        assert_eq!(node.done(&mut queue), expected);
        assert_eq!(node.bytes(DATA, 4), [0; 4]);
        assert_eq!(node.qp(&queue).state, QpState::Err);
    }

    #[test]
    fn a_receive_that_names_no_memory_fails_on_both_sides() {
        for sge in [(DATA, 100, 1), (DATA + DATA_LEN - 5, 100, 0)] {
            let mut node = Node::new();
            let mut queue = node.connected();
            let key = if sge.2 == 0 { node.key } else { sge.2 };
            let good = node.key;
            node.receive(&mut queue, 1, &[(DATA, 4, good), (sge.0, sge.1, key)]);
            node.take(send(&queue, RQ_PSN, 20), &[1; 20]);
            assert_eq!(answers(&mut node), refused(RQ_PSN, nak::REMOTE_OPERATION));
            assert_eq!(node.done(&mut queue), [(1, cqe_status::LOC_PROT_ERR)]);
            assert_eq!(node.bytes(DATA, 4), [0; 4], "placed although refused");
        }
    }

    #[test]
    fn a_receive_with_too_many_sges_fails_on_both_sides() {
        let mut node = Node::new();
        let mut queue = node.connected();
        let key = node.key;
        // The slot has no room for a fourth: its count alone is what counts.
        node.receive(&mut queue, 1, &[(DATA, 4, key); 3]);
        let at = node.rq_slot(&queue, 0) + 8;
        node.ram.write(at, &[4, 0]);
        node.take(send(&queue, RQ_PSN, 2), &[1; 2]);
        assert_eq!(answers(&mut node), refused(RQ_PSN, nak::REMOTE_OPERATION));
        assert_eq!(node.done(&mut queue), [(1, cqe_status::LOC_QP_OP_ERR)]);
    }

    #[test]
    fn a_receive_producer_too_far_ahead_is_fatal() {
        let mut node = Node::new();
        let mut queue = node.connected();
        node.set_rq_producer(&queue, 65);
        node.take(send(&queue, RQ_PSN, 2), &[1; 2]);
        assert_eq!(answers(&mut node), refused(RQ_PSN, nak::REMOTE_OPERATION));
        assert_eq!(node.events(), [(EventKind::QpFatal, queue.qpn)]);
        assert_eq!(node.done(&mut queue), []);
    }

    #[test]
    fn what_a_key_or_the_qp_does_not_allow_is_refused_and_ends_the_connection() {
        type Change = fn(&mut Node, &Queue, &mut FrameHeader);
        let access_cases: [(&str, Change); 6] = [
            ("key", |_, _, h| h.rkey ^= 0x100),
            ("tag", |_, _, h| h.rkey ^= 1),
            ("before", |_, _, h| h.addr = DATA - 1),
            ("past", |_, _, h| h.addr = DATA + DATA_LEN - 7),
            ("far", |_, _, h| h.addr = u64::MAX),
            ("rights", |n, _, h| {
                h.rkey = n.register(DATA, 4096, access::LOCAL_WRITE);
            }),
        ];
        for kind in [kind::WRITE, kind::READ, kind::ATOMIC] {
            for (name, change) in access_cases {
                if kind == kind::ATOMIC && matches!(name, "before" | "past" | "far") {
                    continue;
                }
                check_refusal(
                    name,
                    kind,
                    change,
                    nak::REMOTE_ACCESS,
                    EventKind::QpAccessErr,
                );
            }
            let disabled: Change = |n, q, _| n.qp_mut(q).attrs.access = 0;
            check_refusal(
                "QP",
                kind,
                disabled,
                nak::INVALID_REQUEST,
                EventKind::QpReqErr,
            );
            let long: Change = |_, _, h| h.msg_len = (1 << 31) + 1;
            check_refusal(
                "length",
                kind,
                long,
                nak::INVALID_REQUEST,
                EventKind::QpReqErr,
            );
        }
    }

    fn check_refusal(
        name: &str,
        kind: u8,
        change: fn(&mut Node, &Queue, &mut FrameHeader),
        code: u32,
        event: EventKind,
    ) {
        let mut node = Node::new();
        let mut queue = node.connected();
        let key = node.key;
        node.receive(&mut queue, 1, &[(DATA, 4, key)]);
        let post = write(&node, 2, 8);
        node.send(&mut queue, post);
        node.sent();
        let (mut header, payload): (_, &[u8]) = match kind {
            kind::WRITE => (write_to(&node, &queue, RQ_PSN, DATA, 8), &[1; 8]),
            kind::READ => (read_from(&node, &queue, RQ_PSN, DATA, 8), &[]),
            _ => (atomic_at(&node, &queue, RQ_PSN, DATA, true), &[1; 16]),
        };
        change(&mut node, &queue, &mut header);
        node.take(header, payload);
        assert_eq!(
            answers(&mut node),
            refused(RQ_PSN, code),
            "{name} {kind:#x}"
        );
        assert_eq!(node.events(), [(event, queue.qpn)], "{name} {kind:#x}");
        assert_eq!(node.qp(&queue).state, QpState::Err);
        let mut done = node.done(&mut queue);
        done.sort_unstable();
        let flushed = cqe_status::WR_FLUSH_ERR;
        assert_eq!(done, [(1, flushed), (2, flushed)], "{name} {kind:#x}");
        assert_eq!(node.bytes(DATA, 8), [0; 8]);
        // The connection is over.
        let header = write_to(&node, &queue, RQ_PSN, DATA, 8);
        assert_eq!(node.take(header, &[1; 8]), Placement::Discard);
        assert_eq!(answers(&mut node)[0].2, nak::NO_QP);
    }

    #[test]
    fn frames_that_do_not_follow_on_are_invalid() {
        type Change = fn(&mut FrameHeader);
        let cases: [(&str, Change); 8] = [
            ("gap", |h| h.offset = 9),
            ("back", |h| h.offset = 7),
            ("beyond", |h| h.msg_len = 10),
            ("address", |h| h.addr += 1),
            ("kind", |h| h.kind = kind::SEND),
            ("flags", |h| h.flags |= flag::IMM),
            ("early LAST", |h| h.flags = flag::LAST),
            ("past the end", |h| h.offset = u32::MAX),
        ];
        for (name, change) in cases {
            let mut node = Node::new();
            let mut queue = node.connected();
            let key = node.key;
            node.receive(&mut queue, 1, &[(DATA, 400, key)]);
            let first = FrameHeader {
                rkey: key,
                addr: DATA,
                ..frame(&queue, kind::WRITE, RQ_PSN, 100, 0, 8)
            };
            node.take(first, &[1; 8]);
            let mut second = FrameHeader { offset: 8, ..first };
            change(&mut second);
            node.take(second, &[2; 8]);
            assert_eq!(
                answers(&mut node),
                refused(RQ_PSN, nak::INVALID_REQUEST),
                "{name}"
            );
            assert_eq!(
                node.bytes(DATA + 7, 10),
                [&[1][..], &[0; 9]].concat(),
                "{name}"
            );
        }
        let mut node = Node::new();
        let queue = node.connected();
        node.take(frame(&queue, kind::WRITE, RQ_PSN, 100, 0, 0), &[]);
        assert_eq!(answers(&mut node)[0].2, nak::REMOTE_ACCESS);
    }

    #[test]
    fn a_message_may_start_anew_and_uses_the_same_receive() {
        let mut node = Node::new();
        let mut queue = node.connected();
        let key = node.key;
        node.receive(&mut queue, 1, &[(DATA, 400, key)]);
        node.take(frame(&queue, kind::SEND, RQ_PSN, 100, 0, 60), &[1; 60]);
        node.link_down();
        node.link_up();
        node.take(frame(&queue, kind::SEND, RQ_PSN, 100, 0, 50), &pattern(50));
        node.take(frame(&queue, kind::SEND, RQ_PSN, 100, 50, 50), &pattern(50));
        assert_eq!(answers(&mut node), acked(RQ_PSN + 1));
        assert_eq!(node.bytes(DATA, 100), [pattern(50), pattern(50)].concat());
        assert_eq!(node.done(&mut queue), [(1, 0)]);
    }

    #[test]
    fn the_rest_of_a_message_whose_beginning_was_lost_is_refused_once() {
        let mut node = Node::new();
        let queue = node.connected();
        for offset in [50, 60] {
            let rest = frame(&queue, kind::SEND, RQ_PSN, 100, offset, 10);
            assert_eq!(node.take(rest, &[1; 10]), Placement::Discard);
        }
        assert_eq!(answers(&mut node), refused(RQ_PSN, nak::SEQUENCE));
        assert_eq!(node.qp(&queue).state, QpState::Rts);
    }

    #[test]
    fn the_fabric_may_ask_again_in_the_middle_of_a_frame() {
        let mut node = Node::new();
        let mut queue = node.connected();
        let key = node.key;
        node.receive(&mut queue, 1, &[(DATA, 30, key), (DATA + 100, 70, key)]);
        node.receive(&mut queue, 2, &[(DATA, 30, key)]);
        let header = send(&queue, RQ_PSN, 100);
        let bytes = pattern(100);
        node.begin_frame(PEER, &header, 0, &[0xee; 100]);
        let again = node.begin_frame(PEER, &header, 20, &bytes);
        assert_eq!(again, Placement::Into);
        node.receiver().frame(PEER, &header, again, &[]);
        assert_eq!(node.bytes(DATA + 20, 10), bytes[20..30]);
        assert_eq!(node.bytes(DATA + 100, 70), bytes[30..]);
        assert_eq!(node.done(&mut queue), [(1, 0)]);
    }

    #[test]
    fn a_frame_whose_beginning_was_thrown_away_is_not_taken_when_asked_again() {
        let mut node = Node::new();
        let mut queue = node.connected();
        let key = node.key;
        let header = send(&queue, RQ_PSN, 100);
        let begun = node.begin_frame(PEER, &header, 0, &[1; 100]);
        assert_eq!(begun, Placement::Discard);
        node.receive(&mut queue, 1, &[(DATA, 100, key)]);
        let again = node.begin_frame(PEER, &header, 20, &[1; 100]);
        assert_eq!(again, Placement::Discard);
        node.receiver().frame(PEER, &header, again, &[]);
        assert_eq!(answers(&mut node), refused(RQ_PSN, nak::RNR));
        assert_eq!(node.done(&mut queue), []);
    }

    #[test]
    fn a_region_that_goes_while_a_frame_comes_is_not_written_again() {
        let mut node = Node::new();
        let queue = node.connected();
        let key = node.register(DATA, 4096, access::LOCAL_WRITE | access::REMOTE_WRITE);
        let header = FrameHeader {
            rkey: key,
            ..write_to(&node, &queue, RQ_PSN, DATA, 100)
        };
        let begun = node.begin_frame(PEER, &header, 0, &[0; 100]);
        assert_eq!(begun, Placement::Into);
        node.objects.memory.deregister(0, key).unwrap();
        let again = node.begin_frame(PEER, &header, 10, &[0xee; 100]);
        assert_eq!(again, Placement::Discard);
        node.receiver().frame(PEER, &header, again, &[]);
        assert_eq!(answers(&mut node), refused(RQ_PSN, nak::REMOTE_ACCESS));
        assert_eq!(node.bytes(DATA, 100), [0; 100]);
        assert_eq!(node.events(), [(EventKind::QpAccessErr, queue.qpn)]);
    }

    #[test]
    fn a_qp_that_was_reset_while_a_frame_came_knows_nothing_of_it() {
        let mut node = Node::new();
        let mut queue = node.connected();
        let key = node.key;
        node.receive(&mut queue, 1, &[(DATA, 400, key)]);
        let header = send(&queue, RQ_PSN, 100);
        let begun = node.begin_frame(PEER, &header, 0, &[0; 100]);
        node.reset(&mut queue);
        node.connect(&queue, PEER_QPN, |_| {});
        node.receiver().frame(PEER, &header, begun, &[]);
        assert_eq!(answers(&mut node), []);
        assert_eq!(node.done(&mut queue), []);
        assert_eq!(node.qp(&queue).transport.responder.expected, RQ_PSN);
    }

    #[test]
    fn a_read_is_answered_in_frames_as_the_fabric_has_room() {
        let mut node = Node::new();
        let queue = node.connected();
        node.ram.write(DATA, &pattern(600 << 10));
        node.fabric.full = true;
        let header = read_from(&node, &queue, RQ_PSN, DATA, 600 << 10);
        node.take(header, &[]);
        assert_eq!(answers(&mut node), []);
        node.fabric.full = false;
        let mut at = 0;
        for sent in node.sent() {
            let header = sent.header;
            assert_eq!((header.kind, header.seq), (kind::READ_DATA, RQ_PSN));
            assert_eq!((header.offset, header.msg_len), (at, 600 << 10));
            let range = at as usize..(at + header.length) as usize;
            assert_eq!(sent.payload, pattern(600 << 10)[range]);
            at += header.length;
            assert_eq!(header.flags & flag::LAST != 0, at == 600 << 10);
        }
        assert_eq!(at, 600 << 10);
    }

    #[test]
    fn a_refusal_goes_out_behind_the_answers_before_it() {
        let mut node = Node::new();
        let queue = node.connected();
        node.fabric.full = true;
        let header = read_from(&node, &queue, RQ_PSN, DATA, 200 << 10);
        node.take(header, &[]);
        let mut bad = write_to(&node, &queue, RQ_PSN + 1, DATA, 4);
        bad.rkey = 1;
        node.take(bad, &[1; 4]);
        assert_eq!(answers(&mut node), []);
        node.fabric.full = false;
        let sent = node.sent();
        let (last, data) = sent.split_last().unwrap();
        let bytes: u32 = data.iter().map(|s| s.header.length).sum();
        assert_eq!(bytes, 200 << 10);
        assert_eq!((last.header.kind, last.header.seq), (kind::NAK, RQ_PSN + 1));
        assert_eq!(last.header.rkey, nak::REMOTE_ACCESS);
    }

    #[test]
    fn reads_beyond_max_dest_rd_atomic_are_invalid() {
        let mut node = Node::new();
        let queue = node.connected();
        node.fabric.full = true;
        for n in 0..3 {
            let header = read_from(&node, &queue, RQ_PSN + n, DATA, 4);
            node.take_from(PEER, header, &[]);
        }
        node.fabric.full = false;
        let expected = [
            (kind::READ_DATA, RQ_PSN, 0),
            (kind::READ_DATA, RQ_PSN + 1, 0),
            (kind::NAK, RQ_PSN + 2, nak::INVALID_REQUEST),
        ];
        assert_eq!(answers(&mut node), expected);
        assert_eq!(node.events(), [(EventKind::QpReqErr, queue.qpn)]);
    }

    #[test]
    fn a_region_that_goes_while_it_is_read_is_refused() {
        let mut node = Node::new();
        let queue = node.connected();
        let key = node.register(DATA, 1 << 20, access::REMOTE_READ);
        let mut header = read_from(&node, &queue, RQ_PSN, DATA, 1 << 20);
        header.rkey = key;
        node.take_from(PEER, header, &[]);
        node.engine
            .round(&mut node.objects, &mut node.fabric, node.now);
        assert!(!node.fabric.sent.is_empty());
        node.objects.memory.deregister(0, key).unwrap();
        let all = answers(&mut node);
        assert_eq!(all.last(), Some(&(kind::NAK, RQ_PSN, nak::REMOTE_ACCESS)));
        assert_eq!(node.events(), [(EventKind::QpAccessErr, queue.qpn)]);
    }

    #[test]
    fn reads_are_done_again_and_zero_length_reads_name_no_memory() {
        let mut node = Node::new();
        let queue = node.connected();
        let mut header = read_from(&node, &queue, RQ_PSN, DATA, 0);
        header.rkey = 0xbad;
        node.take(header, &[]);
        assert_eq!(answers(&mut node), [(kind::READ_DATA, RQ_PSN, 0)]);
        let header = read_from(&node, &queue, RQ_PSN + 1, DATA, 4);
        for content in [[1; 4], [2; 4]] {
            node.ram.write(DATA, &content);
            node.take(header, &[]);
            assert_eq!(node.sent()[0].payload, content);
        }
        assert_eq!(node.qp(&queue).transport.responder.expected, RQ_PSN + 2);
    }

    #[test]
    fn a_read_that_is_refused_when_it_comes_again_is_refused_by_its_number() {
        type Change = fn(&mut Node, &Queue, u32);
        let cases: [(Change, u32, EventKind); 3] = [
            (
                |node, _, key| assert!(node.objects.memory.deregister(0, key).is_ok()),
                nak::REMOTE_ACCESS,
                EventKind::QpAccessErr,
            ),
            (
                |node, queue, _| node.qp_mut(queue).attrs.access = 0,
                nak::INVALID_REQUEST,
                EventKind::QpReqErr,
            ),
            (
                |node, queue, _| {
                    let xrcd = node.objects.alloc_xrcd().unwrap();
                    node.make_target(queue, xrcd);
                },
                nak::INVALID_REQUEST,
                EventKind::QpReqErr,
            ),
        ];
        for (change, code, event) in cases {
            let mut node = Node::new();
            let queue = node.connected();
            let key = node.register(DATA, 4096, access::REMOTE_READ);
            let mut header = read_from(&node, &queue, RQ_PSN, DATA, 64);
            header.rkey = key;
            node.take(header, &[]);
            node.sent();
            node.link_down();
            node.link_up();
            change(&mut node, &queue, key);

            node.take(header, &[]);

            assert_eq!(answers(&mut node), refused(RQ_PSN, code));
            assert!(node.events().contains(&(event, queue.qpn)));
            assert_eq!(node.qp(&queue).state, QpState::Err);
        }
    }

    #[test]
    fn atomics_are_done_once_and_answered_as_often_as_asked() {
        let mut node = Node::new();
        let queue = node.connected();
        node.ram.write(DATA + 8, &5_u64.to_le_bytes());
        let add = atomic_at(&node, &queue, RQ_PSN, DATA + 8, true);
        let swap = atomic_at(&node, &queue, RQ_PSN + 1, DATA + 8, false);
        let ten = [10_u64.to_le_bytes(), [0; 8]].concat();
        let fifteen = [15_u64.to_le_bytes(), 1_u64.to_le_bytes()].concat();
        for (header, operands, old) in [
            (add, &ten, 5_u64),
            (swap, &fifteen, 15),
            (add, &ten, 5),
            (swap, &fifteen, 15),
        ] {
            node.take(header, operands);
            let sent = node.sent();
            assert_eq!(sent[0].header.kind, kind::ATOMIC_DATA);
            assert_eq!(sent[0].payload, old.to_le_bytes());
        }
        assert_eq!(node.bytes(DATA + 8, 8), 1_u64.to_le_bytes());
    }

    #[test]
    fn an_unaligned_atomic_is_invalid_and_changes_nothing() {
        let mut node = Node::new();
        let queue = node.connected();
        let header = atomic_at(&node, &queue, RQ_PSN, DATA + 4, true);
        node.take(header, &[1; 16]);
        assert_eq!(answers(&mut node), refused(RQ_PSN, nak::INVALID_REQUEST));
        assert_eq!(node.bytes(DATA, 16), [0; 16]);
    }

    #[test]
    fn a_message_in_rtr_establishes_the_connection_once() {
        let mut node = Node::new();
        let queue = node.queue_with(64);
        node.connect(&queue, PEER_QPN, |_| {});
        node.qp_mut(&queue).state = QpState::Rtr;
        for n in 0..2 {
            let header = write_to(&node, &queue, RQ_PSN + n, DATA, 4);
            node.take(header, &[1; 4]);
        }
        assert_eq!(node.events(), [(EventKind::CommEst, queue.qpn)]);
        assert_eq!(answers(&mut node).len(), 2);
    }

    #[test]
    fn strangers_are_told_that_there_is_no_such_qp() {
        let mut node = Node::new();
        let queue = node.connected();
        let good = write_to(&node, &queue, RQ_PSN, DATA, 4);
        let other_source = FrameHeader {
            src_qpn: PEER_QPN + 1,
            ..good
        };
        let nobody = FrameHeader {
            dst_qpn: 0xabcd,
            ..good
        };
        for (peer, header) in [(PEER, other_source), (PEER, nobody), (PeerId(8), good)] {
            let placement = node.take_from(peer, header, &[1; 4]);
            assert_eq!(placement, Placement::Discard);
            let sent = node.sent();
            assert_eq!((sent.len(), sent[0].peer), (1, peer));
            assert_eq!(sent[0].header.rkey, nak::NO_QP);
            assert_eq!(sent[0].header.dst_qpn, header.src_qpn);
        }
        let init = node.queue_with(64);
        let header = write_to(&node, &init, RQ_PSN, DATA, 4);
        assert_eq!(node.take(header, &[1; 4]), Placement::Discard);
        assert_eq!(answers(&mut node)[0].2, nak::NO_QP);
        assert_eq!(node.bytes(DATA, 4), [0; 4]);
    }

    #[test]
    fn refusals_of_strangers_are_bounded() {
        let mut node = Node::new();
        let queue = node.connected();
        for src_qpn in 0x10_0000..0x10_2000 {
            let header = FrameHeader {
                src_qpn,
                ..write_to(&node, &queue, RQ_PSN, DATA, 4)
            };
            node.take_from(PEER, header, &[1; 4]);
        }
        assert!(node.sent().len() <= 256);
    }

    #[test]
    fn a_receive_whose_cq_overflows_is_not_acknowledged() {
        let mut node = Node::new();
        let mut queue = node.connected_with(1, PEER_QPN, |_| {});
        for _ in 0..2 {
            node.receive(&mut queue, 1, &[]);
        }
        node.take(send(&queue, RQ_PSN, 0), &[]);
        assert_eq!(answers(&mut node), acked(RQ_PSN + 1));
        node.take(send(&queue, RQ_PSN + 1, 0), &[]);
        let expected = refused(RQ_PSN + 1, nak::REMOTE_OPERATION);
        assert_eq!(answers(&mut node), expected);
        assert_eq!(node.qp(&queue).state, QpState::Err);
        assert_eq!(node.done(&mut queue), [(1, 0)]);
    }
}
