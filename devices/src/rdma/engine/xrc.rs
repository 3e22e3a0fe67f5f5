//! What an extended reliable connection has beside a reliable one: its requests name an SRQ (docs/virtio-rdma.md, sections 5 and 6.2).
//!
//! The initiator is a requester and the target a responder like those of a reliable connection. The target has neither a PD nor receives: the SRQ
//! of the request stands for both, if it is in the target's domain. It is looked up anew for every frame, as memory is, because it may end while
//! messages are under way.

use super::responder::{INVALID, Refuse};
use super::transport::Transport;
use super::{Env, mpe};
use crate::rdma::fabric::frame::FrameHeader;
use crate::rdma::memory::Scope;
use crate::rdma::objects::{Qp, QpKind};
use crate::rdma::wire::{SendWqeHeader, cqe_flag};

/// The largest number of an SRQ.
pub(super) const MAX_SRQN: u32 = 0xff_ffff;

/// What the frames of a request say in `aux` (docs/fabric.md, section 2).
#[inline]
pub(super) fn request_aux(qp: &Qp, wqe: &SendWqeHeader) -> u32 {
    let operation = mpe::operation(wqe.opcode);
    match qp.kind {
        QpKind::XrcIni => wqe.srqn() << 8 | operation,
        _ => operation,
    }
}

/// The first frame of a message: checks the SRQ that it names, and makes it the one whose receives the QP takes.
pub(super) fn begin(qp: &mut Qp, env: &mut Env<'_>, header: &FrameHeader) -> Result<(), Refuse> {
    scope(qp, env, header)?;
    if qp.kind == QpKind::XrcTgt && qp.source() != header.srqn() {
        // Of a message that was refused or broken off, and has come again as another.
        env.let_go(qp);
        qp.transport.responder.source = header.srqn();
    }
    Ok(())
}

/// As whom a request looks memory up.
#[inline]
pub(super) fn scope(qp: &Qp, env: &Env<'_>, header: &FrameHeader) -> Result<Scope, Refuse> {
    let scope = match qp.kind {
        QpKind::XrcTgt => env.srqs.scope_in(qp.refs.xrcd, header.srqn()),
        _ => (header.srqn() == 0).then(|| qp.scope()),
    };
    scope.ok_or(INVALID)
}

/// What the CQE of a receive says of its SRQ: flags, and its number.
#[inline]
pub(super) fn mark(qp: &Qp) -> (u16, u32) {
    match qp.kind {
        QpKind::XrcTgt => (cqe_flag::XRC, qp.source()),
        _ => (0, 0),
    }
}

impl Transport {
    /// XRC target: the SRQ that it takes receives from, 0 none.
    pub fn source(&self) -> u32 {
        self.responder.source
    }

    /// XRC target: the SRQ that it took receives from is gone, and with it the receive that it holds. The message under way has to come
    /// again, and will find that.
    pub fn source_gone(&mut self) {
        let responder = &mut self.responder;
        responder.source = 0;
        responder.turn = Default::default();
        responder.receive = None;
        responder.incoming = None;
        responder.placing = None;
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_utils::*;
    use crate::rdma::events::EventKind;
    use crate::rdma::fabric::Placement;
    use crate::rdma::fabric::frame::{FrameHeader, flag, kind, nak};
    use crate::rdma::objects::QpState;
    use crate::rdma::wire::{cqe_flag, cqe_status};

    /// A target and two SRQs of its domain: their numbers, and where their memory is.
    fn target() -> (Node, Queue, [(u32, u64); 2]) {
        let mut node = Node::new();
        let queue = node.connected();
        let xrcd = node.objects.alloc_xrcd().unwrap();
        node.make_target(&queue, xrcd);
        let srqs = [(); 2].map(|()| node.xrc_srq(xrcd, queue.cqn));
        node.run();
        (node, queue, srqs)
    }

    /// A part of a SEND of `msg_len` bytes to an SRQ.
    fn part(
        queue: &Queue,
        seq: u32,
        srqn: u32,
        (offset, length, msg_len): (u32, u32, u32),
    ) -> FrameHeader {
        let last = offset + length == msg_len;
        FrameHeader {
            flags: if last { flag::LAST } else { 0 },
            aux: srqn << 8,
            offset,
            length,
            msg_len,
            ..from_peer(queue, kind::SEND, seq)
        }
    }

    /// What completed: wr_id, status and SRQ.
    fn received(node: &mut Node, queue: &mut Queue) -> Vec<(u64, u8, u32)> {
        let cqes = node.poll_cq(queue);
        assert!(cqes.iter().all(|cqe| cqe.flags.get() & cqe_flag::XRC != 0));
        let outcome = cqes
            .iter()
            .map(|cqe| (cqe.wr_id.get(), cqe.status, cqe.srqn.get()));
        outcome.collect()
    }

    #[test]
    fn a_receive_of_a_message_that_comes_again_as_another_goes_back() {
        let (mut node, mut queue, [a, b]) = target();
        node.post_srq(a.1, 0, 1, 100);
        node.post_srq(b.1, 0, 2, 100);
        node.take(part(&queue, RQ_PSN, a.0, (0, 50, 100)), &[1; 50]);
        node.link_down();
        node.link_up();
        node.take(part(&queue, RQ_PSN, b.0, (0, 10, 10)), &[2; 10]);
        assert_eq!(received(&mut node, &mut queue), [(2, 0, b.0)]);
        node.take(part(&queue, RQ_PSN + 1, a.0, (0, 10, 10)), &[3; 10]);
        assert_eq!(received(&mut node, &mut queue), [(1, 0, a.0)]);
    }

    #[test]
    fn a_message_does_not_change_its_srq_on_the_way() {
        let (mut node, mut queue, [a, b]) = target();
        node.post_srq(a.1, 0, 1, 100);
        node.post_srq(b.1, 0, 2, 100);
        node.take(part(&queue, RQ_PSN, a.0, (0, 50, 100)), &[1; 50]);
        let second = part(&queue, RQ_PSN, b.0, (50, 50, 100));
        assert_eq!(node.take(second, &[1; 50]), Placement::Discard);
        let sent = node.sent();
        let refusal = sent.iter().find(|sent| sent.header.kind == kind::NAK);
        assert_eq!(
            refusal.map(|sent| sent.header.rkey),
            Some(nak::INVALID_REQUEST)
        );
        assert_eq!(
            received(&mut node, &mut queue),
            [(1, cqe_status::WR_FLUSH_ERR, a.0)]
        );
        let events = node.events();
        assert!(
            events.contains(&(EventKind::QpReqErr, queue.qpn)),
            "{events:?}"
        );
    }

    #[test]
    fn one_that_was_refused_and_comes_for_another_srq_leaves_the_first() {
        let (mut node, queue, [a, b]) = target();
        let other = node.connected();
        let xrcd = node.qp(&queue).refs.xrcd;
        node.make_target(&other, xrcd);
        node.post_srq(b.1, 0, 2, 100);
        node.take(part(&queue, RQ_PSN, a.0, (0, 8, 8)), &[1; 8]);
        node.take(part(&queue, RQ_PSN, b.0, (0, 8, 8)), &[1; 8]);
        // There is one receive, and nobody waits for it.
        node.post_srq(a.1, 0, 1, 100);
        node.take(part(&other, RQ_PSN, a.0, (0, 8, 8)), &[1; 8]);
        let sent = node.sent();
        assert!(
            sent.iter()
                .all(|sent| sent.header.dst_qpn != other.qpn || sent.header.kind != kind::NAK)
        );
        assert_eq!(node.qp(&other).transport.responder.expected, RQ_PSN + 1);
    }

    #[test]
    fn a_reliable_connection_has_no_srq_to_name() {
        let mut node = Node::new();
        let mut queue = node.connected();
        node.receive(&mut queue, 1, &[]);
        node.take(part(&queue, RQ_PSN, 1, (0, 0, 0)), &[]);
        assert_eq!(node.qp(&queue).state, QpState::Err);
        let flushed = (1, cqe_status::WR_FLUSH_ERR);
        assert_eq!(node.done(&mut queue), [flushed]);
    }
}
