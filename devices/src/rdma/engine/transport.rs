//! What a reliable connection remembers between rounds. No host address and no segment: memory is looked up anew for every frame.
//!
//! All of it is gone with [`Transport::default`], which is what RESET means. A QP that was never used allocates nothing.

use std::collections::VecDeque;
use std::time::Instant;

use super::local::Local;
use crate::rdma::fabric::PeerId;
use crate::rdma::fabric::frame::{FrameHeader, kind};
use crate::rdma::memory::Scope;
use crate::rdma::objects::{ReceiveWqe, Turn};
use crate::rdma::wire::Sge;

/// State of one QP's connection.
#[derive(Debug, Default)]
pub struct Transport {
    /// The peer that the destination GID leads to, if any does.
    pub(super) peer: Option<PeerId>,
    /// The QP there has spoken: the connection is with that peer and follows its GID nowhere else.
    pub(super) bound: bool,
    /// The peer's QP; the attribute is gone at RESET.
    pub(super) dest_qpn: u32,
    /// When the QP's timer goes off; kept by [`super::timer::Timers`].
    pub(super) timer: Option<Instant>,
    /// On the list of QPs whose queues are looked at.
    pub(super) hot: bool,
    /// The fabric had no room when it was last looked at.
    pub(super) full: bool,
    /// On the list of QPs that owe the peer something.
    pub(super) owing: bool,
    /// Looks at the queues that found nothing, in a row.
    pub(super) empty_looks: u16,
    /// The sending side.
    pub(super) requester: Requester,
    /// The receiving side.
    pub(super) responder: Responder,
}

impl Transport {
    /// Whether the send queue still has messages that were begun: what QUERY_QP reports as draining in SQD.
    pub fn is_draining(&self) -> bool {
        self.requester.outstanding() > 0
    }
}

/// How a message that was taken from the send queue stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// Not answered yet.
    Pending,
    /// A READ or atomic whose data lies in place.
    Done,
    /// Completes with this status and vendor_err, in its turn.
    Failed { status: u8, vendor: u32 },
}

/// A send WQE between being taken and its completion: the checked copy, SGEs apart.
#[derive(Clone, Copy, Debug)]
pub(super) struct Message {
    pub wr_id: u64,
    /// Free-running index of the WQE.
    pub index: u32,
    /// One of `send_opcode`.
    pub opcode: u8,
    /// Bits of `send_flag`.
    pub flags: u8,
    pub num_sge: u16,
    pub imm: [u8; 4],
    pub rkey: u32,
    pub remote_addr: u64,
    /// Bytes of the whole message; READ: bytes asked for.
    pub length: u32,
    /// Free-running index of its first SGE in [`Requester::sges`].
    pub first_sge: u32,
    /// What its frames say in `aux`.
    pub aux: u32,
    /// Atomics: compare_add and swap.
    pub operands: [u64; 2],
    /// READ: bytes that have come.
    pub received: u32,
    pub standing: Standing,
}

/// Why the requester holds still although it has something to send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Wait {
    /// It does not.
    #[default]
    None,
    /// The peer had no receive; go on at this time.
    Receive(Instant),
    /// The peer knows no such QP since the first time; ask again at the second.
    NoQp { since: Instant, ask: Instant },
}

/// The sending side: messages from the oldest that is not complete on.
#[derive(Debug, Default)]
pub(super) struct Requester {
    /// Taken from the send queue and not complete, in order. The number of the first is `oldest`.
    pub messages: VecDeque<Message>,
    /// Work requests that no peer hears of, in order; only the last may wait to be carried out.
    pub locals: VecDeque<Local>,
    /// SGEs of `messages`, in order; the free-running index of the first is `first_sge`.
    pub sges: VecDeque<Sge>,
    pub first_sge: u32,
    /// Free-running index of the next WQE to take.
    pub taken: u32,
    /// Producer index as last read.
    pub produced: u32,
    /// Number of `messages[0]`, or of the next message.
    pub oldest: u32,
    /// The peer has acknowledged all before this number.
    pub acked: u32,
    /// The number after the last message that was ever sent whole.
    pub sent: u32,
    /// The number after the last message of which anything was ever sent.
    pub begun: u32,
    /// Bytes of `messages` together.
    pub bytes: u64,
    /// The lane that requests take and answers come by; None before the first.
    pub lane: Option<u8>,
    /// It is to change to a lane for bulk, once all that is under way is answered.
    pub leaving: bool,
    /// Messages begun in a row with little under way.
    pub calm: u8,
    /// Position in `messages` of the one to send next, and how much of it is sent.
    pub position: u32,
    pub offset: u32,
    /// READs and atomics that are sent and not answered.
    pub reads: u32,
    /// Number and offset of the READ data that is being placed.
    pub placing: Option<(u32, u32)>,
    /// A message failed: nothing is sent or taken any more.
    pub halted: bool,
    pub wait: Wait,
    /// RNR NAKs in a row.
    pub rnr_tries: u8,
    /// Refused sequences since the last progress.
    pub seq_tries: u8,
    /// Questions in a row that brought nothing.
    pub asked: u8,
    /// An answer is overdue: ask for it.
    pub ask: bool,
    /// When that was first asked of which nothing has come.
    pub asked_first: Option<Instant>,
    /// Last progress, or when the first of `messages` was taken.
    pub since: Option<Instant>,
    /// A change to SQD waits for the queue to drain, and an event was asked for.
    pub tell_drained: bool,
}

/// Messages and SGEs that an idle connection keeps room for.
const IDLE_ROOM: usize = 16;

impl Requester {
    /// Work requests that were taken and are not complete.
    pub fn outstanding(&self) -> usize {
        self.messages.len() + self.locals.len()
    }

    /// Gives back the room of a burst; for a connection that goes cold.
    pub fn shrink(&mut self) {
        if self.messages.is_empty() && self.messages.capacity() > 4 * IDLE_ROOM {
            self.messages.shrink_to(IDLE_ROOM);
            self.sges.shrink_to(IDLE_ROOM);
            self.locals.shrink_to(IDLE_ROOM);
        }
    }

    /// Sends and takes nothing any more.
    pub fn halt(&mut self) {
        self.halted = true;
        self.wait = Wait::None;
        self.ask = false;
        self.tell_drained = false;
    }
}

/// A message of which some frames have come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Incoming {
    pub kind: u8,
    /// Without LAST.
    pub flags: u8,
    pub imm: [u8; 4],
    pub rkey: u32,
    pub addr: u64,
    pub msg_len: u32,
    pub aux: u32,
    /// Offset of the next frame.
    pub offset: u32,
}

/// What a READ or atomic is owed.
#[derive(Clone, Copy, Debug)]
pub(super) enum Answer {
    /// Bytes from `offset` on are still to be sent.
    Read {
        seq: u32,
        /// As whom it looks memory up.
        scope: Scope,
        rkey: u32,
        addr: u64,
        length: u32,
        offset: u32,
    },
    /// The value before the atomic.
    Atomic { seq: u32, value: u64 },
}

impl Answer {
    pub fn seq(&self) -> u32 {
        match *self {
            Answer::Read { seq, .. } | Answer::Atomic { seq, .. } => seq,
        }
    }
}

/// A refusal that is to be sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Refusal {
    pub seq: u32,
    /// One of `frame::nak`.
    pub code: u32,
    /// RNR: the timer's encoding.
    pub aux: u32,
}

impl Refusal {
    /// The NAK that says so; `base` names the QPs.
    pub fn frame(&self, base: FrameHeader) -> FrameHeader {
        FrameHeader {
            kind: kind::NAK,
            seq: self.seq,
            rkey: self.code,
            aux: self.aux,
            ..base
        }
    }
}

/// The receiving side.
#[derive(Debug, Default)]
pub(super) struct Responder {
    /// Number of the message that is expected.
    pub expected: u32,
    pub incoming: Option<Incoming>,
    /// Number and offset of the frame whose payload is being read.
    pub placing: Option<(u32, u32)>,
    /// The receive that was taken and is not complete yet; its SGEs are in `sges`.
    pub receive: Option<ReceiveWqe>,
    pub sges: Vec<Sge>,
    /// XRC target: the SRQ that the message names, or the one before it; 0 none.
    pub source: u32,
    /// Its place among those that wait for a receive of the SRQ.
    pub turn: Turn,
    /// Answers owed, in order; at most max_dest_rd_atomic.
    pub answers: VecDeque<Answer>,
    /// Results of the last max_dest_rd_atomic atomics, by number.
    pub results: VecDeque<(u32, u64)>,
    pub ack: bool,
    pub nak: Option<Refusal>,
    /// The requester was told to come again from `expected` on; what else comes meanwhile is dropped in silence.
    pub told: bool,
    /// The lane that requests come by and answers take; None before the first.
    pub lane: Option<u8>,
    /// CQEs of its receives wait (`deferred`).
    pub deferring: bool,
    /// COMM_EST was raised.
    pub established: bool,
}

/// Whether message number `a` comes before `b`, modulo 2^32.
pub(super) fn before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_compared_around_the_wrap() {
        assert!(before(u32::MAX, 0));
        assert!(!before(0, u32::MAX));
        assert!(!before(5, 5));
    }

    #[test]
    fn an_idle_connection_is_small() {
        assert!(size_of::<Transport>() <= 512, "{}", size_of::<Transport>());
    }
}
