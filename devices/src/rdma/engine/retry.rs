//! When a reliable connection goes back, waits, asks, or gives up (docs/fabric.md, section 3).
//!
//! What was sent lies in order between `oldest` and `sent`; the peer says how far it has come, or that it wants a message again. Going back to the
//! oldest message that is not complete is always safe.

use std::time::{Duration, Instant};

use super::requester::retire;
use super::transport::{Requester, Standing, Wait, before};
use super::{Env, lanes, timer};
use crate::rdma::fabric::Fabric;
use crate::rdma::fabric::frame::{FrameHeader, flag, kind};
use crate::rdma::objects::Qp;
use crate::rdma::wire::{cqe_status, vendor_err};

/// The first pause before a peer that knew no such QP is asked again; it doubles up to 2^6 times that.
pub(super) const ASK_FIRST: Duration = Duration::from_millis(1);
const ASK_DOUBLINGS: u8 = 6;

/// A peer that is there but has not answered for this long is asked.
const ASK_OVERDUE: Duration = Duration::from_millis(200);

/// A QP that answers no question is not lost before this time while the link to its peer lives: an answer may have much before it.
const SILENT_QP: Duration = Duration::from_secs(30);

/// Notes that the peer has answered for all before `seq`. False when that cannot be.
pub(super) fn acknowledged(qp: &mut Qp, env: &mut Env<'_>, seq: u32) -> bool {
    let requester = &mut qp.transport.requester;
    if before(requester.sent, seq) || before(seq, requester.oldest) {
        return false;
    }
    if let Wait::NoQp { .. } = requester.wait {
        // It is there after all; what it threw away meanwhile is sent again.
        requester.wait = Wait::None;
        requester.asked = 0;
        go_back(requester);
        env.retried(qp);
    }
    let requester = &mut qp.transport.requester;
    (requester.ask, requester.asked_first) = (false, None);
    if before(requester.acked, seq) {
        requester.acked = seq;
        progress(requester, env.now);
    }
    env.heat(qp);
    true
}

/// Something was answered: the timer runs anew, and the peer has a receive again.
pub(super) fn progress(requester: &mut Requester, now: Instant) {
    (requester.since, requester.asked_first) = (Some(now), None);
    (requester.rnr_tries, requester.seq_tries, requester.asked) = (0, 0, 0);
}

/// Goes back to the oldest message that is not complete; what was answered is stepped over.
pub(super) fn go_back(requester: &mut Requester) {
    (requester.position, requester.offset, requester.reads) = (0, 0, 0);
    (requester.ask, requester.asked_first) = (false, None);
    requester.placing = None;
    for message in &mut requester.messages {
        if message.standing == Standing::Pending {
            message.received = 0;
        }
    }
}

/// The oldest message fails with this, in its turn, which is now.
pub(super) fn fail_oldest(qp: &mut Qp, env: &mut Env<'_>, status: u8, vendor: u32) {
    let requester = &mut qp.transport.requester;
    if let Some(message) = requester.messages.front_mut() {
        message.standing = Standing::Failed { status, vendor };
        requester.halted = true;
        retire(qp, env);
    }
}

/// The link to the peer is gone, and what was under way with it.
pub(super) fn link_lost(qp: &mut Qp, env: &mut Env<'_>) {
    let requester = &mut qp.transport.requester;
    if requester.messages.is_empty() || !qp.kind.is_reliable() {
        return;
    }
    if let Wait::NoQp { .. } = requester.wait {
        requester.wait = Wait::None;
    }
    go_back(requester);
    env.retried(qp);
}

/// Arms the timer for what the requester waits for.
pub(super) fn watch(qp: &mut Qp, env: &mut Env<'_>) {
    let requester = &qp.transport.requester;
    let Some(since) = requester.since.filter(|_| !requester.messages.is_empty()) else {
        return;
    };
    let at = match requester.wait {
        Wait::Receive(until) => until,
        Wait::NoQp { ask, .. } => ask,
        Wait::None => since.max(env.now) + overdue(qp),
    };
    env.arm(qp, at);
}

/// A peer whose link is up may be silent this many times as long as one that is gone: its monitor may only be waiting for a processor.
/// InfiniBand allows a timer to run for one to four times what was asked for (9.7.6.1.3).
const PATIENCE_WHILE_UP: u32 = 4;

/// How long silence may last.
fn patience(qp: &Qp) -> Option<Duration> {
    timer::ack_timeout(qp.attrs.timeout).map(|t| t * (u32::from(qp.attrs.retry_cnt & 7) + 1))
}

/// When an answer is overdue: early enough to ask a few times before patience ends.
fn overdue(qp: &Qp) -> Duration {
    patience(qp).map_or(ASK_OVERDUE, |patience| {
        (patience / 4).clamp(ASK_FIRST, ASK_OVERDUE)
    })
}

/// The timer went off.
pub(super) fn timeout(qp: &mut Qp, env: &mut Env<'_>, fabric: &dyn Fabric) {
    let requester = &mut qp.transport.requester;
    let Some(since) = requester.since.filter(|_| !requester.messages.is_empty()) else {
        return;
    };
    if let Wait::Receive(until) = requester.wait {
        if until <= env.now {
            requester.wait = Wait::None;
            env.heat(qp);
        }
        watch(qp, env);
        return;
    }
    let end = end_of_patience(qp, fabric, since);
    if end.is_some_and(|end| end <= env.now) {
        env.stats.device.timeouts.add(1);
        qp.stats.timeouts.add(1);
        fail_oldest(qp, env, cqe_status::RETRY_EXC_ERR, vendor_err::UNREACHABLE);
        return;
    }
    let overdue = overdue(qp);
    let requester = &mut qp.transport.requester;
    match &mut requester.wait {
        Wait::NoQp { ask, .. } => {
            if *ask <= env.now {
                requester.asked = (requester.asked + 1).min(ASK_DOUBLINGS);
                *ask = env.now + ASK_FIRST * (1 << requester.asked);
                requester.ask = true;
            }
        }
        _ => requester.ask = env.now.saturating_duration_since(since) >= overdue,
    }
    if requester.ask {
        env.heat(qp);
    }
    watch(qp, env);
    // No later than the end of patience.
    if let Some(end) = end {
        env.arm(qp, end);
    }
}

/// When the peer is lost if nothing comes from it any more, or nothing from the QP there. `since` is the last progress.
fn end_of_patience(qp: &Qp, fabric: &dyn Fabric, since: Instant) -> Option<Instant> {
    let patience = patience(qp)?;
    let requester = &qp.transport.requester;
    if let Wait::NoQp { since: silent, .. } = requester.wait {
        return Some(silent.max(since) + patience);
    }
    let peer = qp.transport.peer;
    let heard = peer.and_then(|peer| fabric.last_heard(peer));
    let alive = heard.map_or(since, |heard| since.max(heard));
    if !peer.is_some_and(|peer| fabric.is_up(peer)) {
        return Some(alive + patience);
    }
    let patience = patience * PATIENCE_WHILE_UP;
    let unanswered = requester.asked_first;
    let silent = unanswered.map(|asked| asked + patience.max(SILENT_QP));
    Some((alive + patience).min(silent.unwrap_or(alive + patience)))
}

/// The peer knows no such QP.
pub(super) fn no_such_qp(qp: &mut Qp, env: &mut Env<'_>) {
    let requester = &mut qp.transport.requester;
    if requester.messages.is_empty() || matches!(requester.wait, Wait::NoQp { .. }) {
        return;
    }
    requester.wait = Wait::NoQp {
        since: env.now,
        ask: env.now + ASK_FIRST,
    };
    watch(qp, env);
}

/// Sends the question that an overdue answer calls for: an old number, which has no effect (docs/fabric.md, section 3).
pub(super) fn ask(qp: &mut Qp, now: Instant, fabric: &mut dyn Fabric) {
    let requester = &mut qp.transport.requester;
    if !requester.ask {
        return;
    }
    let Some(peer) = qp.transport.peer else {
        return;
    };
    if !fabric.is_up(peer) {
        return;
    }
    requester.ask = false;
    if requester.position == 0 && requester.offset == 0 && requester.wait == Wait::None {
        // Nothing is under way; what is sent next asks.
        return;
    }
    let header = FrameHeader {
        kind: kind::WRITE,
        flags: flag::LAST,
        dst_qpn: qp.attrs.dest_qpn,
        src_qpn: qp.qpn,
        seq: requester.oldest.wrapping_sub(1),
        lane: lanes::of_requests(qp),
        ..FrameHeader::default()
    };
    // It needs no room, so that a long message does not keep it back. Not taken: the timer asks again.
    if fabric.send(peer, &header, &[], &[]).is_ok() {
        qp.transport.requester.asked_first.get_or_insert(now);
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_utils::*;
    use super::*;
    use crate::rdma::fabric::frame::nak;
    use crate::rdma::objects::QpState;

    const MS: Duration = Duration::from_millis(1);

    /// A QP with WRITEs 1 to `count` sent. Patience is 67.1 ms times 8.
    fn sending(count: u64) -> (Node, Queue) {
        let mut node = Node::new();
        let mut queue = node.connected();
        for wr_id in 1..=count {
            let post = write(&node, wr_id, 8);
            node.send(&mut queue, post);
        }
        assert_eq!(node.sent().len() as u64, count);
        (node, queue)
    }

    fn numbers(node: &mut Node) -> Vec<u32> {
        node.sent_kinds().iter().map(|s| s.1).collect()
    }

    #[test]
    fn after_rnr_the_message_and_all_behind_it_are_sent_again_in_time() {
        let (mut node, mut queue) = sending(3);
        node.take(refusal(&queue, SQ_PSN + 1, nak::RNR, 14), &[]);
        assert_eq!(node.done(&mut queue), [(1, 0)]);
        node.pass(timer::rnr_delay(14) - MS / 10);
        assert!(numbers(&mut node).is_empty());
        node.pass(MS / 10);
        assert_eq!(numbers(&mut node), [SQ_PSN + 1, SQ_PSN + 2]);
        assert_eq!(node.objects.stats.device.rnr_nak_received.get(), 1);
        assert_eq!(node.objects.stats.device.retries.get(), 1);
        node.take(ack(&queue, SQ_PSN + 3), &[]);
        assert_eq!(node.done(&mut queue), [(2, 0), (3, 0)]);
    }

    #[test]
    fn rnr_ends_after_rnr_retry_and_the_peer_is_told_nothing() {
        let (mut node, mut queue) = sending(2);
        for _ in 0..2 {
            node.take(refusal(&queue, SQ_PSN, nak::RNR, 1), &[]);
            assert_eq!(node.done(&mut queue), []);
            node.pass(MS);
            assert_eq!(numbers(&mut node), [SQ_PSN, SQ_PSN + 1]);
        }
        node.take(refusal(&queue, SQ_PSN, nak::RNR, 1), &[]);
        let expected = [
            (1, cqe_status::RNR_RETRY_EXC_ERR),
            (2, cqe_status::WR_FLUSH_ERR),
        ];
        assert_eq!(node.done(&mut queue), expected);
        assert!(numbers(&mut node).is_empty());
    }

    #[test]
    fn progress_gives_rnr_its_retries_back_and_seven_are_no_end() {
        let (mut node, mut queue) = sending(2);
        for n in 0..2 {
            for _ in 0..2 {
                node.take(refusal(&queue, SQ_PSN + n, nak::RNR, 1), &[]);
                node.pass(MS);
            }
        }
        assert_eq!(node.qp(&queue).state, QpState::Rts);
        node.qp_mut(&queue).attrs.rnr_retry = 7;
        for _ in 0..100 {
            node.take(refusal(&queue, SQ_PSN + 1, nak::RNR, 1), &[]);
            node.pass(MS);
        }
        node.take(ack(&queue, SQ_PSN + 2), &[]);
        assert_eq!(node.done(&mut queue), [(1, 0), (2, 0)]);
    }

    #[test]
    fn a_silent_peer_ends_the_connection_when_patience_does() {
        let (mut node, mut queue) = sending(2);
        node.link_down();
        let patience = patience(node.qp(&queue)).unwrap();
        assert_eq!(patience, Duration::from_nanos(67_108_864) * 8);
        node.pass(patience - MS);
        assert_eq!(node.done(&mut queue), []);
        assert!(node.engine.next_timer().unwrap() <= node.now + MS);
        node.pass(MS);
        let expected = [
            (1, cqe_status::RETRY_EXC_ERR),
            (2, cqe_status::WR_FLUSH_ERR),
        ];
        assert_eq!(node.done(&mut queue), expected);
        assert_eq!(node.objects.stats.device.timeouts.get(), 1);
    }

    #[test]
    fn silence_is_counted_from_the_last_sign_of_life() {
        let (mut node, mut queue) = sending(1);
        let patience = patience(node.qp(&queue)).unwrap();
        let patience = patience * PATIENCE_WHILE_UP;
        for _ in 0..20 {
            node.pass(patience / 2);
            node.fabric.heard = Some(node.now);
        }
        assert_eq!(node.done(&mut queue), []);
        node.pass(patience - MS);
        assert_eq!(node.done(&mut queue), []);
        node.pass(MS);
        assert_eq!(node.done(&mut queue), [(1, cqe_status::RETRY_EXC_ERR)]);
    }

    #[test]
    fn a_timeout_of_zero_is_patience_without_end() {
        let mut node = Node::new();
        let mut queue = node.connected_with(64, PEER_QPN, |a| a.timeout = 0);
        let post = write(&node, 1, 8);
        node.send(&mut queue, post);
        node.sent();
        node.link_down();
        for _ in 0..1000 {
            node.pass(Duration::from_secs(3600));
        }
        node.link_up();
        assert_eq!(numbers(&mut node)[0], SQ_PSN);
        assert_eq!(node.done(&mut queue), []);
    }

    #[test]
    fn a_link_that_comes_back_gets_all_that_is_not_acknowledged() {
        let (mut node, mut queue) = sending(3);
        let post = read(&node, 4, 100);
        node.send(&mut queue, post);
        assert_eq!(numbers(&mut node), [SQ_PSN + 3]);
        node.take(ack(&queue, SQ_PSN + 1), &[]);
        let half = FrameHeader {
            flags: 0,
            length: 50,
            msg_len: 100,
            ..from_peer(&queue, kind::READ_DATA, SQ_PSN + 3)
        };
        node.link_down();
        node.pass(MS);
        assert!(numbers(&mut node).is_empty());
        node.link_up();
        assert_eq!(numbers(&mut node), [SQ_PSN + 1, SQ_PSN + 2, SQ_PSN + 3]);
        node.take(half, &[1; 50]);
        let rest = FrameHeader {
            flags: flag::LAST,
            offset: 50,
            ..half
        };
        node.take(rest, &[2; 50]);
        assert_eq!(node.done(&mut queue), [(1, 0), (2, 0), (3, 0), (4, 0)]);
        assert_eq!(node.objects.stats.device.retries.get(), 1);
    }

    #[test]
    fn work_posted_before_there_is_a_route_waits_for_it() {
        let mut node = Node::new();
        node.fabric.route = None;
        let mut queue = node.connected();
        let post = write(&node, 1, 8);
        node.send(&mut queue, post);
        assert!(numbers(&mut node).is_empty());
        node.fabric.route = Some(PEER);
        use crate::rdma::fabric::Sink;
        node.receiver().routes_changed();
        assert_eq!(numbers(&mut node), [SQ_PSN]);
        node.take(ack(&queue, SQ_PSN + 1), &[]);
        assert_eq!(node.done(&mut queue), [(1, 0)]);
    }

    #[test]
    fn a_connection_stays_with_the_peer_that_has_spoken() {
        let mut node = Node::new();
        let mut queue = node.connected();
        let post = write(&node, 1, 8);
        node.send(&mut queue, post);
        node.run();
        node.take(ack(&queue, SQ_PSN + 1), &[]);
        assert_eq!(node.done(&mut queue), [(1, 0)]);

        node.fabric.route = Some(crate::rdma::fabric::PeerId(PEER.0 + 1));
        use crate::rdma::fabric::Sink;
        node.receiver().routes_changed();
        node.run();

        assert_eq!(node.qp(&queue).transport.peer, Some(PEER));
    }

    #[test]
    fn an_unreachable_peer_ends_the_connection() {
        let mut node = Node::new();
        node.fabric.route = None;
        let mut queue = node.connected();
        let post = write(&node, 1, 8);
        node.send(&mut queue, post);
        node.run();
        let patience = patience(node.qp(&queue)).unwrap();
        node.pass(patience);
        assert_eq!(node.done(&mut queue), [(1, cqe_status::RETRY_EXC_ERR)]);
    }

    #[test]
    fn no_such_qp_counts_as_silence_although_the_peer_is_there() {
        let (mut node, mut queue) = sending(1);
        let patience = patience(node.qp(&queue)).unwrap();
        let no = refusal(&queue, 0, nak::NO_QP, 0);
        let end = node.now + patience;
        while node.now < end {
            node.take(no, &[]);
            assert_eq!(
                node.done(&mut queue),
                [],
                "{:?} before the end",
                end - node.now
            );
            node.pass(MS);
            for frame in node.sent() {
                assert_eq!(frame.header.seq, SQ_PSN - 1, "sent again to nobody");
            }
        }
        node.pass(MS);
        assert_eq!(node.done(&mut queue), [(1, cqe_status::RETRY_EXC_ERR)]);
    }

    #[test]
    fn a_qp_that_appears_late_gets_everything() {
        let (mut node, mut queue) = sending(3);
        for _ in 0..3 {
            node.take(refusal(&queue, 0, nak::NO_QP, 0), &[]);
        }
        node.pass(MS);
        let probes = node.sent();
        assert_eq!(probes.len(), 1);
        let probe = probes[0].header;
        assert_eq!(
            (probe.kind, probe.flags, probe.length),
            (kind::WRITE, flag::LAST, 0)
        );
        assert_eq!((probe.seq, probe.msg_len), (SQ_PSN - 1, 0));
        node.take(ack(&queue, SQ_PSN), &[]);
        assert_eq!(numbers(&mut node), [SQ_PSN, SQ_PSN + 1, SQ_PSN + 2]);
        node.take(ack(&queue, SQ_PSN + 3), &[]);
        assert_eq!(node.done(&mut queue), [(1, 0), (2, 0), (3, 0)]);
    }

    #[test]
    fn a_peer_that_holds_an_acknowledgement_back_is_asked_and_nothing_completes() {
        let (mut node, mut queue) = sending(1);
        let mut probes = 0;
        for _ in 0..100 {
            node.pass(100 * MS);
            let asked = node.sent();
            probes += asked.len();
            assert!(asked.iter().all(|s| s.header.seq == SQ_PSN - 1));
            node.take(ack(&queue, SQ_PSN), &[]);
        }
        assert!((10..=101).contains(&probes), "{probes}");
        assert_eq!(node.done(&mut queue), []);
        node.take(ack(&queue, SQ_PSN + 1), &[]);
        assert_eq!(node.done(&mut queue), [(1, 0)]);
    }

    #[test]
    fn a_refused_sequence_sends_again_at_once_but_not_without_end() {
        let (mut node, queue) = sending(2);
        node.take(refusal(&queue, SQ_PSN, nak::SEQUENCE, 0), &[]);
        assert_eq!(numbers(&mut node), [SQ_PSN, SQ_PSN + 1]);
        for _ in 0..50 {
            node.take(refusal(&queue, SQ_PSN, nak::SEQUENCE, 0), &[]);
        }
        assert!(numbers(&mut node).is_empty());
        node.pass(MS);
        assert_eq!(numbers(&mut node), [SQ_PSN, SQ_PSN + 1]);
    }

    #[test]
    fn the_peer_is_asked_in_the_middle_of_a_long_message_too() {
        let mut node = Node::new();
        let mut queue = node.connected();
        let post = write(&node, 1, 900_000);
        node.send(&mut queue, post);
        node.fabric.room = 3;
        assert_eq!(node.sent().len(), 3);
        for _ in 0..100 {
            node.pass(200 * MS);
            let asked = node.sent();
            assert!(asked.iter().all(|s| s.header.seq == SQ_PSN - 1));
            assert!(!asked.is_empty());
            node.take(ack(&queue, SQ_PSN), &[]);
        }
        assert_eq!(node.done(&mut queue), []);
        node.fabric.room = usize::MAX;
        let rest = node.sent();
        assert_eq!(rest[0].header.offset, 3 * 65_536);
        node.take(ack(&queue, SQ_PSN + 1), &[]);
        assert_eq!(node.done(&mut queue), [(1, 0)]);
    }

    #[test]
    fn a_qp_that_answers_no_question_is_lost_although_its_link_lives() {
        let (mut node, mut queue) = sending(1);
        let silent = Duration::from_secs(30);
        let start = node.now;
        while node.now < start + silent {
            node.fabric.heard = Some(node.now);
            assert_eq!(node.done(&mut queue), [], "{:?}", node.now - start);
            node.pass(100 * MS);
        }
        while node.now < start + silent + 2 * ASK_OVERDUE {
            node.fabric.heard = Some(node.now);
            node.pass(100 * MS);
        }
        assert_eq!(node.done(&mut queue), [(1, cqe_status::RETRY_EXC_ERR)]);
        assert_eq!(node.objects.stats.device.timeouts.get(), 1);
    }

    #[test]
    fn patience_that_is_longer_than_silence_may_last_is_kept() {
        let mut node = Node::new();
        // 4.3 s, eight times, and four times that.
        let mut queue = node.connected_with(64, PEER_QPN, |a| a.timeout = 20);
        let post = write(&node, 1, 8);
        node.send(&mut queue, post);
        node.sent();
        let patience = PATIENCE_WHILE_UP * patience(node.qp(&queue)).unwrap();
        let start = node.now;
        while node.now < start + patience {
            node.fabric.heard = Some(node.now);
            node.pass(100 * MS);
            assert_eq!(node.done(&mut queue), [], "{:?}", node.now - start);
        }
        node.fabric.heard = Some(node.now);
        node.pass(2 * ASK_OVERDUE);
        assert_eq!(node.done(&mut queue), [(1, cqe_status::RETRY_EXC_ERR)]);
    }

    #[test]
    fn a_question_that_was_never_sent_counts_for_nothing() {
        let mut node = Node::new();
        let mut queue = node.connected();
        node.fabric.full = true;
        let post = write(&node, 1, 8);
        node.send(&mut queue, post);
        for _ in 0..600 {
            node.fabric.heard = Some(node.now);
            node.pass(100 * MS);
        }
        assert_eq!(node.done(&mut queue), []);
        node.fabric.full = false;
        assert_eq!(numbers(&mut node), [SQ_PSN]);
        node.take(ack(&queue, SQ_PSN + 1), &[]);
        assert_eq!(node.done(&mut queue), [(1, 0)]);
    }

    #[test]
    fn what_was_asked_before_a_link_was_lost_counts_for_nothing() {
        let mut node = Node::new();
        let mut queue = node.connected_with(64, PEER_QPN, |a| a.timeout = 20);
        let post = write(&node, 1, 8);
        node.send(&mut queue, post);
        for _ in 0..30 {
            for _ in 0..100 {
                node.fabric.heard = Some(node.now);
                node.pass(100 * MS);
            }
            node.link_down();
            node.pass(MS);
            node.link_up();
        }
        assert_eq!(node.done(&mut queue), []);
        node.take(ack(&queue, SQ_PSN + 1), &[]);
        assert_eq!(node.done(&mut queue), [(1, 0)]);
    }

    #[test]
    fn an_idle_connection_has_no_timer() {
        let (mut node, queue) = sending(1);
        node.take(ack(&queue, SQ_PSN + 1), &[]);
        for _ in 0..3 {
            node.pass(Duration::from_secs(1));
        }
        assert_eq!(node.engine.next_timer(), None);
    }
}
