//! Which way to the peer a QP's frames take (docs/fabric.md, section 9).
//!
//! A QP has little or much under way; what is much takes a lane of its own kind, so that what is little never waits behind it. Frames of one QP must
//! not overtake one another, so a requester changes its lane only while nothing of it is under way, and answers take the lane of what they answer.

use super::transport::{Requester, Responder};
use crate::rdma::fabric::frame::FrameHeader;
use crate::rdma::fabric::{Fabric, PeerId};
use crate::rdma::objects::{Qp, QpKind};

/// The lane of those with little under way.
const FIRST: u8 = 0;

/// Bytes under way from which on a QP carries bulk: no more than that of each of the others is ahead of a small message. A queue of
/// 128 messages of 64 bytes stays below.
const BULK: u64 = 16 << 10;

/// So many messages in a row with less than that under way say that a QP does not carry bulk any more.
const CALM: u8 = 64;

/// The lane for the bulk of a QP.
fn of_bulk(qpn: u32, lanes: u8) -> u8 {
    match lanes {
        0 | 1 => FIRST,
        // Less than `lanes`, so it fits.
        _ => 1 + (qpn % u32::from(lanes - 1)) as u8,
    }
}

/// Chooses the lane for a message of which nothing was sent yet. False while the lane is to be changed and something is under way: what is has to
/// be answered first.
pub(super) fn choose(
    requester: &mut Requester,
    qpn: u32,
    peer: PeerId,
    fabric: &dyn Fabric,
) -> bool {
    let lane = requester.lane.unwrap_or(FIRST);
    // Where a lane is full there is bulk, however little of it each of many QPs has under way.
    let bulk = requester.bytes >= BULK || !fabric.can_send(peer, lane);
    requester.calm = match bulk {
        true => 0,
        false => requester.calm.saturating_add(1),
    };
    let idle = requester.oldest == requester.begun;
    let wanted = match lane {
        FIRST if bulk || requester.leaving => of_bulk(qpn, fabric.lanes(peer)),
        FIRST => FIRST,
        _ if idle && requester.calm >= CALM => FIRST,
        _ => lane,
    };
    requester.leaving = wanted != lane && !idle;
    if requester.leaving {
        return false;
    }
    requester.lane = Some(wanted);
    true
}

/// The lane of an unreliable connection: always one for bulk, since nothing but the lane's room bounds what it sends, and always the same,
/// since nobody says when nothing of it is under way.
pub(super) fn unreliable(
    requester: &mut Requester,
    qpn: u32,
    peer: PeerId,
    fabric: &dyn Fabric,
) -> u8 {
    *requester
        .lane
        .get_or_insert_with(|| of_bulk(qpn, fabric.lanes(peer)))
}

/// The lane of datagrams to a peer with that many. Those of the connection manager are few, and others wait for them.
pub(super) fn of_datagrams(kind: QpKind, lanes: u8) -> u8 {
    match kind {
        QpKind::Gsi => FIRST,
        _ => of_bulk(0, lanes),
    }
}

/// Whether a QP's requests take a lane for bulk.
pub(super) fn carries_bulk(qp: &Qp) -> bool {
    of_requests(qp) != FIRST
}

/// The lane of a reliable connection's requests, and of the answers that it takes.
pub(super) fn of_requests(qp: &Qp) -> u8 {
    qp.transport.requester.lane.unwrap_or(FIRST)
}

/// The lane of a connection's answers.
pub(super) fn of_answers(qp: &Qp) -> u8 {
    qp.transport.responder.lane.unwrap_or(FIRST)
}

/// Whether a responder takes a request that came by this lane. Another lane than so far is one that the requester has changed to, if the frame
/// begins a message and `may_change` says that no other is under way; or the frame is left from before a change, and has no use.
pub(super) fn takes(responder: &mut Responder, header: &FrameHeader, may_change: bool) -> bool {
    if responder.lane == Some(header.lane) {
        return true;
    }
    let changes = responder.lane.is_none() || may_change && header.offset == 0;
    if changes {
        responder.lane = Some(header.lane);
    }
    changes
}

/// The link to the peer is gone: nothing is under way by any lane.
pub(super) fn link_lost(qp: &mut Qp) {
    qp.transport.requester.lane = None;
    qp.transport.requester.leaving = false;
    qp.transport.responder.lane = None;
}

#[cfg(test)]
mod tests {
    use super::super::test_utils::*;
    use super::*;
    use crate::rdma::fabric::frame::{flag, kind, nak};
    use crate::rdma::objects::QpKind;
    use crate::rdma::wire::send_opcode;

    /// A device whose peer has three lanes, and a QP of it.
    fn laned() -> (Node, Queue, u8) {
        let mut node = Node::new();
        node.fabric.lanes = 3;
        let queue = node.connected();
        let lane = of_bulk(queue.qpn, 3);
        assert_ne!(lane, FIRST);
        (node, queue, lane)
    }

    /// Number and lane of the frames that were sent since.
    fn lanes(node: &mut Node) -> Vec<(u32, u8)> {
        let sent = node.sent();
        sent.iter().map(|s| (s.header.seq, s.header.lane)).collect()
    }

    fn acked_by(queue: &Queue, lane: u8, seq: u32) -> FrameHeader {
        FrameHeader {
            lane,
            ..ack(queue, seq)
        }
    }

    /// Writes of 4 KiB, with the ids given.
    fn write_each(node: &mut Node, queue: &mut Queue, ids: std::ops::Range<u64>) {
        for wr_id in ids {
            let post = write(node, wr_id, 4096);
            node.fill_send(queue, &post);
        }
        let post = write(node, 1000, 4096);
        node.send(queue, post);
    }

    #[test]
    fn a_qp_that_comes_to_carry_bulk_changes_lanes_when_all_is_answered() {
        let (mut node, mut queue, lane) = laned();
        write_each(&mut node, &mut queue, 0..9);
        // With the fourth it is bulk, and waits.
        let first = |n: u32| SQ_PSN + n;
        assert_eq!(lanes(&mut node), [0, 1, 2].map(|n| (first(n), 0)));
        node.take(acked_by(&queue, 0, first(2)), &[]);
        assert_eq!(lanes(&mut node), []);
        node.take(acked_by(&queue, 0, first(3)), &[]);
        let rest: Vec<_> = (3..10).map(|n| (first(n), lane)).collect();
        assert_eq!(lanes(&mut node), rest);
        // What is left on the lane that it had means nothing.
        node.take(acked_by(&queue, 0, first(10)), &[]);
        assert_eq!(node.done(&mut queue).len(), 3);
        node.take(acked_by(&queue, lane, first(10)), &[]);
        assert_eq!(node.done(&mut queue).len(), 7);
    }

    #[test]
    fn a_message_that_is_bulk_by_itself_changes_lanes_at_once_and_a_read_too() {
        let (mut node, mut queue, lane) = laned();
        let post = write(&node, 1, 8);
        node.send(&mut queue, post);
        assert_eq!(lanes(&mut node), [(SQ_PSN, 0)]);
        node.take(acked_by(&queue, 0, SQ_PSN + 1), &[]);
        let post = read(&node, 2, 100_000);
        node.send(&mut queue, post);
        assert_eq!(lanes(&mut node), [(SQ_PSN + 1, lane)]);
    }

    #[test]
    fn a_full_lane_is_no_place_for_what_is_little() {
        let (mut node, mut queue, lane) = laned();
        node.fabric.room = 0;
        let post = write(&node, 0, 8);
        node.send(&mut queue, post);
        assert_eq!(lanes(&mut node), []);
        node.fabric.room = usize::MAX;
        assert_eq!(lanes(&mut node), [(SQ_PSN, lane)]);
        node.take(acked_by(&queue, lane, SQ_PSN + 1), &[]);
        // Many QPs that fill it have little under way each, and stay.
        for n in 1..=2 * u32::from(CALM) {
            node.fabric.room = 0;
            let post = write(&node, n.into(), 8);
            node.send(&mut queue, post);
            assert_eq!(lanes(&mut node), []);
            node.fabric.room = usize::MAX;
            assert_eq!(lanes(&mut node), [(SQ_PSN + n, lane)]);
            node.take(acked_by(&queue, lane, SQ_PSN + 1 + n), &[]);
        }
    }

    #[test]
    fn a_qp_that_is_calm_for_long_comes_back() {
        let (mut node, mut queue, lane) = laned();
        let post = write(&node, 0, 65_536);
        node.send(&mut queue, post);
        assert_eq!(lanes(&mut node), [(SQ_PSN, lane)]);
        node.take(acked_by(&queue, lane, SQ_PSN + 1), &[]);
        let mut taken = Vec::new();
        for n in 1..=u32::from(CALM) + 1 {
            let post = write(&node, n.into(), 8);
            node.send(&mut queue, post);
            let by = lanes(&mut node);
            assert_eq!(by.len(), 1);
            taken.push(by[0].1);
            node.take(acked_by(&queue, by[0].1, SQ_PSN + 1 + n), &[]);
        }
        assert_eq!(node.done(&mut queue).len(), usize::from(CALM) + 2);
        assert_eq!(taken[0], lane);
        assert_eq!(taken.last(), Some(&FIRST));
    }

    #[test]
    fn what_is_sent_again_keeps_its_lane_until_the_link_is_lost() {
        let (mut node, mut queue, lane) = laned();
        write_each(&mut node, &mut queue, 0..9);
        lanes(&mut node);
        let refused = |code, lane| FrameHeader {
            lane,
            ..refusal(&queue, SQ_PSN + 1, code, 1)
        };
        node.take(refused(nak::SEQUENCE, 0), &[]);
        assert_eq!(lanes(&mut node), [(SQ_PSN + 1, 0), (SQ_PSN + 2, 0)]);
        node.take(acked_by(&queue, 0, SQ_PSN + 3), &[]);
        assert_eq!(lanes(&mut node).len(), 7);
        node.link_down();
        node.fabric.lanes = 1;
        node.link_up();
        let again: Vec<_> = (3..10).map(|n| (SQ_PSN + n, 0)).collect();
        assert_eq!(lanes(&mut node), again);
        // The new link has its lanes later; what is new takes them.
        node.fabric.lanes = 3;
        write_each(&mut node, &mut queue, 10..12);
        assert_eq!(lanes(&mut node), []);
        node.take(acked_by(&queue, 0, SQ_PSN + 10), &[]);
        let new = [10, 11, 12].map(|n| (SQ_PSN + n, lane));
        assert_eq!(lanes(&mut node), new);
    }

    #[test]
    fn answers_take_the_lane_of_the_request_and_stale_frames_disturb_nothing() {
        let (mut node, queue, _) = laned();
        let rkey = node.key;
        let request = |seq: u32, offset: u32, lane: u8| FrameHeader {
            flags: if offset == 64 { flag::LAST } else { 0 },
            rkey,
            addr: DATA,
            length: 64,
            msg_len: 128,
            offset,
            lane,
            ..from_peer(&queue, kind::WRITE, seq)
        };
        let data = pattern(64);
        let frames = [0, 64].map(|offset| request(RQ_PSN, offset, 0));
        for frame in frames {
            node.take(frame, &data);
        }
        assert_eq!(lanes(&mut node), [(RQ_PSN + 1, 0)]);
        // The peer has changed lanes; what it sent twice before is still on its way, and comes between two halves.
        let next = [0, 64].map(|offset| request(RQ_PSN + 1, offset, 2));
        assert_eq!(
            node.begin_frame(PEER, &next[0], 0, &data),
            crate::rdma::fabric::Placement::Into
        );
        for stale in frames {
            node.take(stale, &data);
        }
        use crate::rdma::fabric::{Placement, Sink};
        node.receiver().frame(PEER, &next[0], Placement::Into, &[]);
        assert_eq!(lanes(&mut node), []);
        node.take(frames[1], &data);
        node.take(next[1], &data);
        assert_eq!(lanes(&mut node), [(RQ_PSN + 2, 2)]);
        assert_eq!(node.objects.stats.device.rx_discarded.get(), 3);
        // An old number by the lane in use is answered, as ever.
        node.take(next[1], &data);
        assert_eq!(lanes(&mut node), [(RQ_PSN + 2, 2)]);
    }

    #[test]
    fn who_is_refused_hears_of_it_by_the_lane_that_it_used() {
        let (mut node, queue, _) = laned();
        let nobody = FrameHeader {
            dst_qpn: queue.qpn + 1,
            lane: 2,
            ..from_peer(&queue, kind::SEND, 5)
        };
        node.take(nobody, &[]);
        let sent = node.sent();
        assert_eq!((sent[0].header.kind, sent[0].header.lane), (kind::NAK, 2));
    }

    #[test]
    fn unreliable_messages_keep_to_one_lane() {
        let (mut node, mut queue, lane) = laned();
        node.qp_mut(&queue).kind = QpKind::Uc;
        for (wr_id, length) in [(1, 8), (2, 50_000), (3, 8)] {
            let mut post = write(&node, wr_id, length);
            post.opcode = send_opcode::WRITE;
            node.send(&mut queue, post);
        }
        let sent = lanes(&mut node);
        assert_eq!(sent.len(), 3);
        assert!(sent.iter().all(|(_, by)| *by == lane));
    }
}
