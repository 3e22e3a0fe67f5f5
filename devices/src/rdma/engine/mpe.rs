//! Memory placement extensions: atomic write and flush (docs/virtio-rdma.md, section 5.2).
//!
//! Both go as atomics do: one frame, one answer, in order with what is before them, done once however often they are sent. What a WRITE placed lies
//! in memory that all of the guest sees alike before the responder comes to a FLUSH behind it, so a flush is its checks and its answer.

use super::responder::{ACCESS, INVALID, Refuse};
use super::sge::Fault;
use super::{Env, xrc};
use crate::rdma::fabric::frame::{FrameHeader, operation};
use crate::rdma::objects::{Qp, QpKind};
use crate::rdma::wire::{
    SendWqeHeader, access, cqe_status, feature, flush as part, send_flag, send_opcode, vendor_err,
};

/// Bytes that such a message counts for, and its answer has.
const LENGTH: u32 = 8;

/// Whether it is one of the two.
pub(super) fn is_placement(opcode: u8) -> bool {
    matches!(opcode, send_opcode::ATOMIC_WRITE | send_opcode::FLUSH)
}

/// What the frame of an atomic or one of these does.
pub(super) fn operation(opcode: u8) -> u32 {
    match opcode {
        send_opcode::FETCH_AND_ADD => operation::FETCH_AND_ADD,
        send_opcode::ATOMIC_WRITE => operation::WRITE,
        send_opcode::FLUSH => operation::FLUSH,
        _ => operation::COMPARE_AND_SWAP,
    }
}

/// Checks a WQE's copy. Returns the number of its SGEs and the message's length, or what it completes with.
pub(super) fn check(qp: &Qp, env: &Env<'_>, wqe: &SendWqeHeader) -> Result<(u16, u32), Fault> {
    let has = match wqe.opcode {
        send_opcode::FLUSH => env.has(feature::FLUSH) && kinds(wqe.swap.get()).is_some(),
        _ => env.has(feature::ATOMIC_WRITE),
    };
    let flags = send_flag::SIGNALED | send_flag::SOLICITED | send_flag::FENCE;
    if !has || qp.kind != QpKind::Rc || wqe.flags & !flags != 0 || qp.attrs.max_rd_atomic == 0 {
        return Err((cqe_status::LOC_QP_OP_ERR, vendor_err::OPCODE));
    }
    if wqe.num_sge.get() != 0 {
        return Err((cqe_status::LOC_QP_OP_ERR, vendor_err::SGE_COUNT));
    }
    Ok((0, LENGTH))
}

/// The rights that a flush needs, and whether it is of a whole region. None when it makes no sense.
fn kinds(word: u64) -> Option<(u32, bool)> {
    let placement = part::GLOBAL | part::PERSISTENT;
    if word & !(placement | part::REGION) != 0 || word & placement == 0 {
        return None;
    }
    let mut needed = 0;
    for (bit, right) in [
        (part::GLOBAL, access::FLUSH_GLOBAL),
        (part::PERSISTENT, access::FLUSH_PERSISTENT),
    ] {
        if word & bit != 0 {
            needed |= right;
        }
    }
    Some((needed, word & part::REGION != 0))
}

/// A flush of `length` bytes at the header's address has come. Its answer has no value.
pub(super) fn flush(
    qp: &Qp,
    env: &Env<'_>,
    header: &FrameHeader,
    length: u64,
    word: u64,
) -> Result<u64, Refuse> {
    let (needed, whole) = kinds(word).ok_or(INVALID)?;
    if qp.attrs.access & needed != needed {
        return Err(INVALID);
    }
    let scope = xrc::scope(qp, env, header)?;
    let checked = if whole {
        env.memory.check_region(&scope, header.rkey, needed)
    } else {
        env.memory
            .check(&scope, header.rkey, needed, header.addr, length)
    };
    checked.map(|()| 0).map_err(|_| ACCESS)
}

#[cfg(test)]
mod tests {
    use super::super::test_utils::*;
    use super::*;
    use crate::rdma::fabric::frame::{flag, kind, nak};
    use crate::rdma::objects::QpState;

    /// An ATOMIC frame with all rights and a range that is there.
    fn request(node: &Node, queue: &Queue, aux: u32) -> FrameHeader {
        FrameHeader {
            flags: flag::LAST,
            length: 16,
            msg_len: LENGTH,
            rkey: node.key,
            addr: DATA,
            aux,
            ..from_peer(queue, kind::ATOMIC, RQ_PSN)
        }
    }

    fn flushes(length: u64, word: u64) -> [u8; 16] {
        let mut operands = [0; 16];
        operands[..8].copy_from_slice(&length.to_le_bytes());
        operands[8..].copy_from_slice(&word.to_le_bytes());
        operands
    }

    #[test]
    fn what_was_not_negotiated_or_is_not_known_is_invalid() {
        for (features, aux) in [
            (feature::FLUSH, operation::WRITE),
            (feature::ATOMIC_WRITE, operation::FLUSH),
            (feature::FLUSH | feature::ATOMIC_WRITE, 4),
            (
                feature::FLUSH | feature::ATOMIC_WRITE,
                operation::COMPARE_AND_SWAP,
            ),
        ] {
            let mut node = Node::new();
            let queue = node.connected();
            node.objects.features = features;
            let header = request(&node, &queue, aux);
            node.take(header, &flushes(1, part::GLOBAL));
            let sent = node.sent();
            let told = (sent[0].header.kind, sent[0].header.rkey);
            assert_eq!(told, (kind::NAK, nak::INVALID_REQUEST), "{aux}");
            assert_eq!(node.bytes(DATA, 16), [0; 16]);
            assert_eq!(node.qp(&queue).state, QpState::Err);
        }
    }

    #[test]
    fn a_flush_of_a_peer_that_makes_no_sense_is_invalid() {
        for word in [0, 4, part::REGION, part::GLOBAL | 1 << 9, u64::MAX] {
            let mut node = Node::new();
            let queue = node.connected();
            node.objects.features = feature::FLUSH;
            node.qp_mut(&queue).attrs.access |= access::FLUSH;
            let header = request(&node, &queue, operation::FLUSH);
            node.take(header, &flushes(1, word));
            assert_eq!(
                node.sent()[0].header.rkey,
                nak::INVALID_REQUEST,
                "{word:#x}"
            );
        }
    }
}
