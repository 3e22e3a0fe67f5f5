//! The engine: requester, responder and completer of each transport. State machines that own no I/O and no object.
//!
//! | module | holds |
//! | --- | --- |
//! | [`requester`] | from send queue to frames, and retiring in order |
//! | [`responder`] | requests of peers |
//! | [`answers`] | what is owed to peers |
//! | [`completer`] | what peers say of our requests |
//! | [`retry`] | going back, waiting, asking, giving up |
//! | [`uc`], [`ud`], [`unacked`] | unreliable connections, datagrams, what they share |
//! | [`xrc`] | what an extended reliable connection has beside a reliable one |
//! | [`grh`] | the header before a datagram's data |
//! | [`lanes`] | which way to the peer a QP's frames take |
//! | [`local`] | work requests that no peer hears of: registration, invalidation, windows |
//! | [`deferred`] | receives that wait until the fabric has let go of what was invalidated |
//! | [`mpe`] | atomic write and flush |
//! | [`flush`] | the error state |
//! | [`scheduler`] | which QP has its turn; doorbells; going to sleep |
//! | [`sink`] | frames to the QPs that they are for |
//! | [`strays`] | what is owed to peers by no QP |
//! | [`control`] | changes of state that a command brings about |
//! | [`timer`], [`sge`], [`completion`], [`transport`] | timers, local memory, CQEs, what a connection remembers |
//!
//! Completion rule: no work request of a reliable connection completes with success before the far side has said that it is placed.

use std::collections::VecDeque;
use std::time::Instant;

use super::events::{EventKind, Events};
use super::fabric::PeerId;
use super::memory::{DmaSpace, Memory, Segment};
use super::objects::{Cqs, GidTable, Objects, Qp, QpState, ReceiveWqe, RingFault, Srqs, Taker};
use super::stats::Stats;
use super::wire::{Cqe, kick};

mod answers;
mod atomics;
mod completer;
mod completion;
mod control;
mod deferred;
mod flush;
mod grh;
mod lanes;
mod local;
mod mpe;
mod requester;
mod responder;
mod retry;
mod scheduler;
mod sge;
mod sink;
mod strays;
mod timer;
mod transport;
mod uc;
mod ud;
mod unacked;
mod xrc;

#[cfg(test)]
mod test_utils;
#[cfg(test)]
mod tests;

pub use sink::Receiver;
pub use strays::Vacant;
pub use transport::Transport;

use strays::Strays;
use timer::Timers;

/// The engine of a device. What it remembers of a QP lies with the QP ([`Transport`]).
#[derive(Debug, Default)]
pub struct Engine {
    lists: Lists,
    scratch: Scratch,
    /// Routes changed since they were last looked at.
    routes_changed: bool,
    /// What the last round did first.
    requests_first: bool,
}

/// Whose turn it is.
#[derive(Debug, Default)]
struct Lists {
    /// QPs whose queues are looked at.
    hot: VecDeque<u32>,
    /// QPs that owe their peer something.
    owing: VecDeque<u32>,
    timers: Timers,
    /// Frames for peers that belong to no QP, or no more.
    strays: Strays,
    /// Receives whose CQE waits for the fabric to let go of memory.
    deferred: VecDeque<deferred::Deferred>,
    /// Work requests are about to be flushed whose memory the fabric may still be using.
    forget: bool,
}

/// Room that is used again and again, so that nothing is allocated per message. Empty between uses.
#[derive(Debug, Default)]
struct Scratch {
    segments: Vec<Segment>,
    bytes: Vec<u8>,
    peers: Vec<PeerId>,
}

/// Whether something is owed after a round of answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owes {
    /// Nothing.
    Nothing,
    /// There is more than a round allows.
    More,
    /// The fabric has no room.
    NoRoom,
}

/// What a QP's state machines may touch beside the QP.
struct Env<'a> {
    memory: &'a mut Memory,
    dma: &'a dyn DmaSpace,
    gids: &'a GidTable,
    cqs: &'a mut Cqs,
    srqs: &'a mut Srqs,
    events: &'a mut Events,
    stats: &'a Stats,
    lists: &'a mut Lists,
    scratch: &'a mut Scratch,
    now: Instant,
    /// Features that were negotiated.
    features: u64,
    max_msg_size: u32,
}

impl Engine {
    /// A QP and what its state machines may touch. Inlined, since otherwise this would be written and read back once for each frame.
    #[inline(always)]
    fn enter<'a>(
        &'a mut self,
        objects: &'a mut Objects,
        qpn: u32,
        now: Instant,
    ) -> Option<(&'a mut Qp, Env<'a>)> {
        let qp = objects.qps.get_mut(qpn)?;
        let env = Env {
            memory: &mut objects.memory,
            dma: &*objects.dma,
            gids: &objects.gids,
            cqs: &mut objects.cqs,
            srqs: &mut objects.srqs,
            events: &mut objects.events,
            stats: &objects.stats,
            lists: &mut self.lists,
            scratch: &mut self.scratch,
            now,
            features: objects.features,
            max_msg_size: objects.limits.msg_size,
        };
        Some((qp, env))
    }
}

impl Env<'_> {
    /// Whether one of these features was negotiated.
    fn has(&self, features: u64) -> bool {
        self.features & features != 0
    }

    /// Writes a CQE. False when the CQ takes no more; its QPs fail for that at the end of the round.
    #[inline(always)]
    fn complete(&mut self, cqn: u32, cqe: &Cqe, solicited: bool) -> bool {
        self.cqs.complete(cqn, cqe, solicited, self.events).is_ok()
    }

    /// Takes the QP's next receive, of its own queue or the one it shares; its SGEs go to the responder's `sges`. None when none is posted.
    fn next_receive(&mut self, qp: &mut Qp) -> Result<Option<ReceiveWqe>, RingFault> {
        let source = qp.source();
        let responder = &mut qp.transport.responder;
        if source == 0 {
            return qp.rq.next(&mut responder.sges);
        }
        let mut taker = Taker {
            cqn: qp.refs.recv_cq,
            turn: &mut responder.turn,
            sges: &mut responder.sges,
            now: self.now,
            comes_again: qp
                .kind
                .is_reliable()
                .then(|| timer::rnr_delay(qp.attrs.min_rnr_timer.into())),
        };
        self.srqs.next(source, &mut taker, self.events)
    }

    fn raise(&mut self, qp: &mut Qp, kind: EventKind) {
        qp.raise(kind, self.events);
    }

    /// Puts the QP on the list of those whose queues are looked at, if its state is one in which they are; it wants no doorbells meanwhile.
    fn heat(&mut self, qp: &mut Qp) {
        qp.transport.empty_looks = 0;
        let sends = matches!(
            qp.state,
            QpState::Rts | QpState::Sqd | QpState::Sqe | QpState::Err
        );
        if sends && !qp.transport.hot {
            qp.transport.hot = true;
            qp.kick.clear(kick::SQ | kick::RQ);
            self.lists.hot.push_back(qp.qpn);
        }
    }

    /// Puts the QP on the list of those that owe their peer something.
    fn owe(&mut self, qp: &mut Qp) {
        if !qp.transport.owing {
            qp.transport.owing = true;
            self.lists.owing.push_back(qp.qpn);
        }
    }

    fn arm(&mut self, qp: &mut Qp, at: Instant) {
        self.lists.timers.arm(&mut qp.transport.timer, qp.qpn, at);
    }

    /// Takes the QP to ERR, telling of `event`.
    fn error(&mut self, qp: &mut Qp, event: Option<EventKind>) {
        if qp.state == QpState::Err {
            return;
        }
        qp.fail(event, self.events);
        self.failed(qp);
    }

    /// The QP cannot go on, and no CQE tells why.
    fn fatal(&mut self, qp: &mut Qp) {
        self.error(qp, Some(EventKind::QpFatal));
    }

    /// What follows when a QP is in ERR, however it came there.
    fn failed(&mut self, qp: &mut Qp) {
        qp.transport.requester.halt();
        answers::abandon(qp);
        self.srqs
            .leave(qp.source(), &mut qp.transport.responder.turn);
        self.lists.timers.cancel(&mut qp.transport.timer, qp.qpn);
        self.lists.forget = true;
        self.owe(qp);
        self.heat(qp);
    }

    fn discarded(&self) {
        self.stats.device.rx_discarded.add(1);
    }

    fn retried(&self, qp: &Qp) {
        self.stats.device.retries.add(1);
        qp.stats.retries.add(1);
    }
}
