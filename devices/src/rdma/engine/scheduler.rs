//! Which QP has its turn: polling of hot queues, answers, timers, doorbells, and going to sleep.
//!
//! A QP is hot while its queues are looked at in every round; then it asks for no doorbells. It leaves the list when it waits for something that will
//! bring it back (an answer, a timer, a link), or when nothing was posted for a while; in that case it first asks for doorbells and looks once
//! more. The work of a round is bounded, and so is each QP's part in it.

use std::time::Instant;

use super::{Engine, Owes, flush, requester, responder, retry};
use crate::rdma::fabric::{Fabric, SendError};
use crate::rdma::objects::{Objects, Qp, QpState, kick_fence};
use crate::rdma::wire::kick;

use requester::Step;

/// QPs that have their turn in one round, and timers that go off.
const ROUND_QPS: usize = 64;
const ROUND_TIMERS: usize = 256;

/// QPs that may stay hot without work; of more than that, each goes cold after some empty looks.
const IDLE_HOT: usize = 16;
const EMPTY_LOOKS: u16 = 64;

impl Engine {
    /// One bounded round of timers, answers and send queues. True if there was any work.
    pub fn round(&mut self, objects: &mut Objects, fabric: &mut dyn Fabric, now: Instant) -> bool {
        if std::mem::take(&mut self.routes_changed) {
            self.reroute(objects, fabric, now);
        }
        let mut worked = self.expire(objects, fabric, now);
        worked |= self.answer(objects, fabric, now);
        worked |= self.look(objects, fabric, now);
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
                retry::timeout(qp, &mut env, fabric);
            }
        }
        true
    }

    /// Sends what QPs owe.
    fn answer(&mut self, objects: &mut Objects, fabric: &mut dyn Fabric, now: Instant) -> bool {
        let mut worked = false;
        while let Some((peer, frame)) = self.lists.strays.front() {
            if fabric.send(*peer, frame, &[], &[]) == Err(SendError::Full) {
                break;
            }
            self.lists.strays.pop_front();
            worked = true;
        }
        for _ in 0..self.lists.owing.len() {
            let Some(qpn) = self.lists.owing.pop_front() else {
                break;
            };
            let Some((qp, mut env)) = self.enter(objects, qpn, now) else {
                continue;
            };
            qp.transport.owing = false;
            let owes = responder::step(qp, &mut env, fabric);
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
        for _ in 0..self.lists.hot.len().min(ROUND_QPS) {
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
            let step = match qp.state {
                QpState::Rts | QpState::Sqd => requester::step(qp, &mut env, fabric),
                QpState::Err => flush::step(qp, &mut env),
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

/// Whether the QP has nothing to do but what will be posted.
fn waits_for_posts(qp: &Qp) -> bool {
    let requester = &qp.transport.requester;
    match qp.state {
        QpState::Rts | QpState::Sqd => {
            requester.position as usize == requester.messages.len() && !requester.ask
        }
        QpState::Err => requester.messages.is_empty() && qp.transport.responder.receive.is_none(),
        _ => true,
    }
}

/// Sets the flags by which the process knows that it must ring.
fn ask_for_doorbells(qp: &mut Qp) {
    match qp.state {
        // Receives are looked at when a message comes.
        QpState::Rts | QpState::Sqd => qp.kick.set(kick::SQ),
        _ => qp.kick.set(kick::SQ | kick::RQ),
    }
}

/// After doorbells were asked for: whether something was posted before the process could know. Then the QP stays hot.
fn stays(qp: &mut Qp) -> bool {
    let posted = has_posts(qp);
    if posted {
        qp.kick.clear(kick::SQ | kick::RQ);
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
        QpState::Err => {
            sends.is_ok_and(|produced| produced != taken) || qp.rq.is_ready().unwrap_or(false)
        }
        _ => false,
    }
}
