//! Which QP has its turn: polling of hot queues, answers, timers, doorbells, and going to sleep.
//!
//! A QP is hot while its queues are looked at in every round; then it asks for no doorbells. It leaves the list when it waits for something that will
//! bring it back (an answer, a timer, a link), or when nothing was posted for a while; in that case it first asks for doorbells and looks once
//! more. The work of a round is bounded, and so is each QP's part in it.

use std::collections::VecDeque;
use std::time::Instant;

use super::transport::{Requester, before};
use super::{Engine, Env, Owes, answers, flush, lanes, requester, retry, uc, ud, unacked};
use crate::rdma::fabric::Fabric;
use crate::rdma::objects::{Objects, Qp, QpKind, QpState, kick_fence};
use crate::rdma::wire::kick;

use requester::Step;

/// QPs that have their turn in one round, and timers that go off.
const ROUND_QPS: usize = 64;
const ROUND_TIMERS: usize = 256;

/// Messages that may be sent in one round, and how many of them one QP may send. A batch costs the same system calls whatever its size,
/// so a QP alone sends large ones; much more than half of a queue of 128 would leave the peer idle meanwhile.
const ROUND_MESSAGES: usize = 1024;
const QP_MESSAGES: std::ops::RangeInclusive<usize> = 16..=64;

/// QPs that may stay hot without work; of more than that, each goes cold after some empty looks.
const IDLE_HOT: usize = 16;
const EMPTY_LOOKS: u16 = 64;

/// Turns that a QP has at its end beside those that a ring of short messages takes: with long ones, more than any fabric has room for.
const LAST_TURNS: u32 = 64;

impl Engine {
    /// One bounded round of timers, answers and send queues. True if there was any work.
    pub fn round(&mut self, objects: &mut Objects, fabric: &mut dyn Fabric, now: Instant) -> bool {
        if std::mem::take(&mut self.routes_changed) {
            self.reroute(objects, fabric, now);
        }
        self.settle(objects, fabric, now);
        let mut worked = self.expire(objects, fabric, now);
        // Neither answers nor requests may fill the fabric first in every round.
        self.requests_first = !self.requests_first;
        if self.requests_first {
            worked |= self.look(objects, fabric, now);
            worked |= self.answer(objects, fabric, now);
        } else {
            worked |= self.answer(objects, fabric, now);
            worked |= self.look(objects, fabric, now);
        }
        worked
    }

    /// Timers that have run out.
    fn expire(&mut self, objects: &mut Objects, fabric: &mut dyn Fabric, now: Instant) -> bool {
        for done in 0..ROUND_TIMERS {
            let Some(qpn) = self.lists.timers.expired(now) else {
                return done > 0;
            };
            if let Some((qp, mut env)) = self.enter(objects, qpn, now) {
                qp.transport.timer = None;
                match qp.kind {
                    QpKind::Rc | QpKind::XrcIni | QpKind::XrcTgt => {
                        retry::timeout(qp, &mut env, fabric);
                    }
                    // What waits for room is looked at again.
                    QpKind::Uc | QpKind::Ud | QpKind::Gsi => env.heat(qp),
                }
            }
        }
        true
    }

    /// Sends what QPs owe.
    fn answer(&mut self, objects: &mut Objects, fabric: &mut dyn Fabric, now: Instant) -> bool {
        let mut worked = self.lists.strays.send(fabric);
        begin_elsewhere(&mut self.lists.owing);
        for _ in 0..self.lists.owing.len() {
            let Some(qpn) = self.lists.owing.pop_front() else {
                break;
            };
            let Some((qp, mut env)) = self.enter(objects, qpn, now) else {
                continue;
            };
            qp.transport.owing = false;
            let owes = answers::step(qp, &mut env, fabric);
            if owes != Owes::Nothing {
                env.owe(qp);
            }
            worked |= owes != Owes::NoRoom;
        }
        worked
    }

    /// Looks at hot queues.
    fn look(&mut self, objects: &mut Objects, fabric: &mut dyn Fabric, now: Instant) -> bool {
        let mut worked = false;
        if self.lists.hot.len() <= ROUND_QPS {
            begin_elsewhere(&mut self.lists.hot);
        }
        let qps = self.lists.hot.len().min(ROUND_QPS);
        let limit = (ROUND_MESSAGES / qps.max(1)).clamp(*QP_MESSAGES.start(), *QP_MESSAGES.end());
        for _ in 0..qps {
            let Some(qpn) = self.lists.hot.pop_front() else {
                break;
            };
            let forget = std::mem::take(&mut self.lists.forget);
            if forget {
                // What is flushed now is the process's own again.
                fabric.forget_memory();
            }
            let crowded = self.lists.hot.len() >= IDLE_HOT;
            let Some((qp, mut env)) = self.enter(objects, qpn, now) else {
                continue;
            };
            // Whoever has little to send waits while bulk is taken.
            let limit = match lanes::carries_bulk(qp) {
                true if qps > 1 => *QP_MESSAGES.start(),
                _ => limit,
            };
            let step = match qp.state {
                QpState::Rts | QpState::Sqd => match send(qp, &mut env, fabric, limit) {
                    // It failed just now, and has work to flush.
                    _ if matches!(qp.state, QpState::Err | QpState::Sqe) => Step::Worked,
                    step => step,
                },
                QpState::Err => flush::step(qp, &mut env),
                QpState::Sqe => flush::step_sends(qp, &mut env),
                _ => Step::Idle,
            };
            worked |= step == Step::Worked;
            qp.transport.full = step == Step::Full;
            qp.transport.empty_looks = match step {
                Step::Idle => qp.transport.empty_looks.saturating_add(1),
                _ => 0,
            };
            qp.transport.hot = match step {
                Step::Worked | Step::Full => true,
                Step::Blocked => false,
                Step::Idle if !crowded || qp.transport.empty_looks < EMPTY_LOOKS => true,
                Step::Idle => {
                    ask_for_doorbells(qp);
                    kick_fence();
                    stays(qp)
                }
            };
            if qp.transport.hot {
                self.lists.hot.push_back(qpn);
            }
        }
        worked
    }

    /// The owner of a doorbell page has posted something.
    pub fn doorbell(&mut self, objects: &mut Objects, page: u32) {
        let now = Instant::now();
        let mut position = 0;
        while let Some(&qpn) = objects.contexts.qps_of_page(page).get(position) {
            position += 1;
            if let Some((qp, mut env)) = self.enter(objects, qpn, now)
                && !qp.transport.hot
                && has_posts(qp)
            {
                env.heat(qp);
            }
        }
    }

    /// A QP is about to be destroyed: what was posted to it goes to the fabric, as far as the QP's state lets it and there is room now. Of an
    /// unreliable QP, what there is no room for is counted; what is lost of a reliable one, nobody will send again.
    pub fn send_posted(&mut self, objects: &mut Objects, fabric: &mut dyn Fabric, qpn: u32) {
        let Some((qp, mut env)) = self.enter(objects, qpn, Instant::now()) else {
            return;
        };
        // A ring with a wrong index names nothing that could be sent.
        let Ok(posted) = qp.sq.pending(qp.transport.requester.taken) else {
            return;
        };
        // A process that goes on posting is not followed.
        let left = |qp: &Qp| {
            let Requester {
                messages, taken, ..
            } = &qp.transport.requester;
            let behind = posted.wrapping_sub(*taken);
            messages.len() as u64 + u64::from(if before(*taken, posted) { behind } else { 0 })
        };
        let turns = LAST_TURNS + qp.sq.entries() / unacked::ROUND_MESSAGES;
        for _ in 0..turns {
            if !matches!(qp.state, QpState::Rts | QpState::Sqd)
                || left(qp) == 0
                || send(qp, &mut env, fabric, *QP_MESSAGES.end()) != Step::Worked
            {
                break;
            }
        }
        if qp.state == QpState::Rts && !qp.kind.is_reliable() {
            env.stats.device.tx_discarded.add(left(qp));
        }
    }

    /// Asks for doorbells on all queues and looks at each once more. True if that found work; if not, there
    /// is nothing to do until a doorbell, the fabric, or [`Engine::next_timer`]. Called when a round found no work.
    pub fn before_sleep(&mut self, objects: &mut Objects) -> bool {
        for qpn in &self.lists.hot {
            if let Some(qp) = objects.qps.get_mut(*qpn)
                && waits_for_posts(qp)
            {
                ask_for_doorbells(qp);
            }
        }
        kick_fence();
        let mut found = self.routes_changed;
        for _ in 0..self.lists.hot.len() {
            let Some(qpn) = self.lists.hot.pop_front() else {
                break;
            };
            let Some(qp) = objects.qps.get_mut(qpn) else {
                continue;
            };
            if waits_for_posts(qp) {
                qp.transport.hot = stays(qp);
                found |= qp.transport.hot;
            } else {
                // Room in the fabric brings another round; anything else needs one now.
                found |= !qp.transport.full;
            }
            if qp.transport.hot {
                self.lists.hot.push_back(qpn);
            }
        }
        found
    }

    /// When the next timer goes off.
    pub fn next_timer(&self) -> Option<Instant> {
        self.lists.timers.next()
    }
}

/// One bounded round of a QP's send queue.
fn send(qp: &mut Qp, env: &mut Env<'_>, fabric: &mut dyn Fabric, limit: usize) -> Step {
    match qp.kind {
        // A target has no send queue, and is idle.
        QpKind::Rc | QpKind::XrcIni | QpKind::XrcTgt => requester::step(qp, env, fabric, limit),
        QpKind::Uc => uc::step(qp, env, fabric),
        QpKind::Ud | QpKind::Gsi => ud::step(qp, env, fabric),
    }
}

/// Turns a list, so that it is not the same QP that finds room in the fabric first in every round.
fn begin_elsewhere(list: &mut VecDeque<u32>) {
    if !list.is_empty() {
        list.rotate_left(1);
    }
}

/// Whether the QP has nothing to do but what will be posted.
fn waits_for_posts(qp: &Qp) -> bool {
    let requester = &qp.transport.requester;
    match qp.state {
        QpState::Rts | QpState::Sqd => {
            requester.position as usize == requester.messages.len()
                && !requester.ask
                && !qp.transport.full
        }
        QpState::Sqe => requester.outstanding() == 0,
        QpState::Err => requester.outstanding() == 0 && qp.transport.responder.receive.is_none(),
        _ => true,
    }
}

/// Sets the flags by which the process knows that it must ring.
fn ask_for_doorbells(qp: &mut Qp) {
    match qp.state {
        // Receives are looked at when a message comes.
        QpState::Rts | QpState::Sqd | QpState::Sqe => qp.kick.set(kick::SQ),
        _ => qp.kick.set(kick::SQ | kick::RQ),
    }
}

/// After doorbells were asked for: whether something was posted before the process could know. Then the QP stays hot.
fn stays(qp: &mut Qp) -> bool {
    let posted = has_posts(qp);
    if posted {
        qp.kick.clear(kick::SQ | kick::RQ);
    } else {
        qp.transport.requester.shrink();
    }
    posted
}

/// Whether there are posts that the state lets the engine take. A ring with a wrong index is to be looked at, unless it failed for that
/// already.
fn has_posts(qp: &mut Qp) -> bool {
    let taken = qp.transport.requester.taken;
    let sends = qp.sq.pending(taken);
    match qp.state {
        QpState::Rts => sends != Ok(taken),
        QpState::Sqe => sends.is_ok_and(|produced| produced != taken),
        QpState::Err => {
            sends.is_ok_and(|produced| produced != taken) || qp.rq.is_ready().unwrap_or(false)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_utils::*;
    use super::*;
    use crate::rdma::fabric::frame::kind;

    #[test]
    fn a_hot_queue_wants_no_doorbell_and_a_cold_one_does() {
        let mut node = Node::new();
        let mut queue = node.connected();
        node.run();
        let post = write(&node, 1, 8);
        assert!(!node.send(&mut queue, post));
        assert_eq!(node.sent_kinds(), [(kind::WRITE, SQ_PSN)]);
        node.take(ack(&queue, SQ_PSN + 1), &[]);
        assert!(!node.engine.before_sleep(&mut node.objects));
        let post = write(&node, 2, 8);
        assert!(node.send(&mut queue, post));
        assert_eq!(node.sent_kinds(), []);
        node.engine.doorbell(&mut node.objects, 0);
        assert_eq!(node.sent_kinds(), [(kind::WRITE, SQ_PSN + 1)]);
    }

    #[test]
    fn a_post_just_before_sleep_is_not_missed() {
        let mut node = Node::new();
        let mut queue = node.connected();
        node.run();
        let post = write(&node, 1, 8);
        assert!(!node.send(&mut queue, post));
        assert!(node.engine.before_sleep(&mut node.objects));
        assert_eq!(node.kicks(&queue), 0);
        assert_eq!(node.sent_kinds(), [(kind::WRITE, SQ_PSN)]);
    }

    #[test]
    fn a_doorbell_looks_at_its_owners_queues_only() {
        let mut node = Node::new();
        let mut queue = node.connected();
        node.run();
        assert!(!node.engine.before_sleep(&mut node.objects));
        let post = write(&node, 1, 8);
        node.send(&mut queue, post);
        for page in [1, 2, u32::MAX] {
            node.engine.doorbell(&mut node.objects, page);
        }
        assert_eq!(node.sent_kinds(), []);
    }

    #[test]
    fn a_round_is_bounded_and_every_qp_has_its_turn() {
        let mut node = Node::new();
        let mut queues: Vec<Queue> = (0..100).map(|_| node.connected()).collect();
        for queue in &mut queues {
            for wr_id in 0..100 {
                let post = write(&node, wr_id, 8);
                node.fill_send(queue, &post);
            }
            node.set_sq_producer(queue, 100);
        }
        let (objects, fabric) = (&mut node.objects, &mut node.fabric);
        assert!(node.engine.round(objects, fabric, node.now));
        let first = fabric.sent.len();
        assert!(first <= ROUND_MESSAGES, "{first} frames in one round");
        assert!(node.engine.round(objects, fabric, node.now));
        let mut served: Vec<u32> = fabric.sent.iter().map(|s| s.header.src_qpn).collect();
        served.sort_unstable();
        served.dedup();
        assert_eq!(served.len(), 100);
        assert_eq!(node.sent().len(), 100 * 100);
    }

    #[test]
    fn a_qp_alone_sends_in_full_batches_and_leaves_no_frame_behind() {
        let mut node = Node::new();
        let mut queue = node.connected();
        for wr_id in 0..150 {
            let post = write(&node, wr_id, 8);
            node.fill_send(&mut queue, &post);
        }
        node.set_sq_producer(&queue, 150);
        let batches = [(); 4].map(|()| {
            node.engine
                .round(&mut node.objects, &mut node.fabric, node.now);
            std::mem::take(&mut node.fabric.sent).len()
        });
        let most = *QP_MESSAGES.end();
        assert_eq!(batches, [most, most, 150 - 2 * most, 0]);
    }

    #[test]
    fn bulk_beside_others_is_taken_a_little_at_a_time() {
        let mut node = Node::new();
        node.fabric.lanes = 3;
        let mut bulk = node.connected();
        for wr_id in 0..200 {
            let length = if wr_id == 0 { 64 << 10 } else { 4 << 10 };
            let post = write(&node, wr_id, length);
            node.fill_send(&mut bulk, &post);
        }
        node.set_sq_producer(&bulk, 200);
        let round = |node: &mut Node| {
            let (objects, fabric) = (&mut node.objects, &mut node.fabric);
            node.engine.round(objects, fabric, node.now);
            std::mem::take(&mut node.fabric.sent).len()
        };
        round(&mut node);
        assert_eq!(round(&mut node), *QP_MESSAGES.end());
        let mut small = node.connected();
        let post = write(&node, 0, 8);
        node.send(&mut small, post);
        let beside = [(); 3].map(|()| round(&mut node));
        assert!(
            beside
                .iter()
                .all(|n| (1..=1 + *QP_MESSAGES.start()).contains(n)),
            "{beside:?}"
        );
    }

    #[test]
    fn qps_share_a_fabric_with_little_room_and_so_do_answers() {
        let mut node = Node::new();
        let mut queues: Vec<Queue> = (0..8).map(|_| node.connected()).collect();
        for queue in &mut queues {
            for wr_id in 0..200 {
                let post = write(&node, wr_id, 60_000);
                node.send(queue, post);
            }
        }
        // One of them also answers a long READ.
        let read = crate::rdma::fabric::frame::FrameHeader {
            rkey: node.key,
            addr: DATA,
            msg_len: DATA_LEN as u32,
            ..from_peer(&queues[0], kind::READ, RQ_PSN)
        };
        node.take_from(PEER, read, &[]);
        for _ in 0..80 {
            node.fabric.room = 6;
            let (objects, fabric) = (&mut node.objects, &mut node.fabric);
            node.engine.round(objects, fabric, node.now);
        }
        let of = |kind, qpn| {
            let those = |s: &&Sent| (s.header.kind, s.header.src_qpn) == (kind, qpn);
            node.fabric.sent.iter().filter(those).count()
        };
        assert_eq!(of(kind::READ_DATA, queues[0].qpn), 16);
        for queue in &queues {
            let frames = of(kind::WRITE, queue.qpn);
            assert!((40..=80).contains(&frames), "{frames} frames of one of 8");
        }
    }

    #[test]
    fn numbers_and_indices_wrap() {
        let mut node = Node::new();
        let mut queue = node.connected();
        node.run();
        let requester = &mut node.qp_mut(&queue).transport.requester;
        (requester.oldest, requester.acked, requester.sent) = (u32::MAX, u32::MAX, u32::MAX);
        (requester.taken, requester.produced, requester.first_sge) = (u32::MAX, u32::MAX, u32::MAX);
        node.set_index(&mut queue, u32::MAX);
        for wr_id in 0..3 {
            let post = write(&node, wr_id, 8);
            node.send(&mut queue, post);
        }
        let numbers: Vec<u32> = node.sent_kinds().iter().map(|s| s.1).collect();
        assert_eq!(numbers, [u32::MAX, 0, 1]);
        node.take(ack(&queue, 0), &[]);
        assert_eq!(node.done(&mut queue), [(0, 0)]);
        node.take(ack(&queue, 2), &[]);
        assert_eq!(node.done(&mut queue), [(1, 0), (2, 0)]);
    }

    #[test]
    fn of_many_idle_queues_most_go_cold_by_themselves() {
        let mut node = Node::new();
        let queues: Vec<Queue> = (0..40).map(|_| node.connected()).collect();
        for _ in 0..1000 {
            let (objects, fabric) = (&mut node.objects, &mut node.fabric);
            node.engine.round(objects, fabric, node.now);
        }
        let hot = |q: &&Queue| node.qp(q).transport.hot;
        assert_eq!(queues.iter().filter(hot).count(), IDLE_HOT);
        for queue in &queues {
            let asked = node.kicks(queue) & kick::SQ != 0;
            assert_eq!(asked, !node.qp(queue).transport.hot);
        }
    }

    #[test]
    fn a_destroyed_qp_leaves_nothing_behind() {
        let mut node = Node::new();
        let mut queue = node.connected();
        let post = read(&node, 1, 8);
        node.send(&mut queue, post);
        node.sent();
        let write = crate::rdma::fabric::frame::FrameHeader {
            rkey: node.key,
            addr: DATA,
            ..from_peer(&queue, kind::WRITE, RQ_PSN)
        };
        node.take_from(PEER, write, &[]);
        node.engine.qp_destroyed(&mut node.objects, queue.qpn);
        node.objects.remove_qp(queue.qpn);
        assert_eq!(node.sent_kinds(), [(kind::ACK, RQ_PSN + 1)]);
        assert_eq!(node.engine.next_timer(), None);
        assert!(node.engine.lists.hot.is_empty() && node.engine.lists.owing.is_empty());
    }

    #[test]
    fn what_a_qp_sends_at_its_end_is_bounded_and_the_rest_is_counted() {
        let mut node = Node::new();
        let mut queue = node.queue_with(1024);
        node.qp_mut(&queue).kind = QpKind::Uc;
        node.connect(&queue, PEER_QPN, |_| {});
        let post = write(&node, 1, DATA_LEN as u32);
        for _ in 0..500 {
            node.fill_send(&mut queue, &post);
        }
        node.set_sq_producer(&queue, 500);
        // The fabric takes whatever it is given.
        let (objects, fabric) = (&mut node.objects, &mut node.fabric);
        node.engine.send_posted(objects, fabric, queue.qpn);
        let whole = |s: &&Sent| s.header.flags & crate::rdma::fabric::frame::flag::LAST != 0;
        let sent = node.fabric.sent.iter().filter(whole).count() as u64;
        assert!((4..40).contains(&sent), "{sent} of 500 MiB");
        assert_eq!(node.objects.stats.device.tx_messages.get(), sent);
        let unsent = node.objects.stats.device.tx_discarded.get();
        assert_eq!(unsent, 500 - sent);
    }

    #[test]
    fn at_its_end_a_qp_sends_nothing_of_a_ring_with_a_wrong_index_or_in_a_state_that_sends_nothing()
    {
        for state in [QpState::Rtr, QpState::Sqd, QpState::Err] {
            let mut node = Node::new();
            let mut queue = node.connected();
            node.qp_mut(&queue).state = state;
            let post = write(&node, 1, 8);
            node.send(&mut queue, post);
            let (objects, fabric) = (&mut node.objects, &mut node.fabric);
            node.engine.send_posted(objects, fabric, queue.qpn);
            assert!(node.fabric.sent.is_empty(), "{state:?}");
        }
        let mut node = Node::new();
        let queue = node.connected();
        node.set_sq_producer(&queue, 9999);
        let (objects, fabric) = (&mut node.objects, &mut node.fabric);
        node.engine.send_posted(objects, fabric, queue.qpn);
        assert!(node.fabric.sent.is_empty());
        assert_eq!(node.objects.stats.device.tx_discarded.get(), 0);
    }

    #[test]
    fn a_qp_that_goes_tells_the_peer_of_reads_that_get_no_answer() {
        let mut node = Node::new();
        let queue = node.connected();
        node.fabric.full = true;
        let read = crate::rdma::fabric::frame::FrameHeader {
            rkey: node.key,
            addr: DATA,
            msg_len: 8,
            ..from_peer(&queue, kind::READ, RQ_PSN)
        };
        node.take(read, &[]);
        node.modify(&queue, QpState::Err);
        let sent = node.sent();
        assert_eq!((sent.len(), sent[0].header.kind), (1, kind::NAK));
        assert_eq!(sent[0].header.rkey, crate::rdma::fabric::frame::nak::NO_QP);
    }

    #[test]
    fn reset_restarts_indices_and_numbers() {
        let mut node = Node::new();
        let mut queue = node.connected();
        for wr_id in 1..4 {
            let post = write(&node, wr_id, 8);
            node.send(&mut queue, post);
        }
        node.sent();
        node.reset(&mut queue);
        node.connect(&queue, PEER_QPN, |_| {});
        node.take(ack(&queue, SQ_PSN + 3), &[]);
        assert_eq!(node.done(&mut queue), []);
        let post = write(&node, 9, 8);
        node.send(&mut queue, post);
        assert_eq!(node.sent_kinds(), [(kind::WRITE, SQ_PSN)]);
        node.take(ack(&queue, SQ_PSN + 1), &[]);
        let cqes = node.poll_cq(&mut queue);
        assert_eq!((cqes[0].wr_id.get(), cqes[0].wqe_index.get()), (9, 0));
    }
}
