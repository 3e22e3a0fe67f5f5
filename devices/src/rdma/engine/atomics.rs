//! The responder's side of ATOMIC frames: atomics on a word, atomic write and flush (docs/virtio-rdma.md, sections 5 and 5.2).
//!
//! One frame, one answer: it is done once, when its operands have come, and its result is kept for a requester that asks again.

use super::responder::{ACCESS, INVALID, Refuse, finish, place, refused};
use super::transport::Answer;
use super::{Env, mpe, xrc};
use crate::rdma::fabric::Placement;
use crate::rdma::fabric::frame::{FrameHeader, operation};
use crate::rdma::memory::access as guest;
use crate::rdma::objects::Qp;
use crate::rdma::wire::{access, feature};

/// The feature that an operation belongs to, and the right that it needs; what a flush needs, its payload says. None of one that is not known.
fn needs(operation: u32) -> Option<(u64, u32)> {
    match operation {
        operation::COMPARE_AND_SWAP | operation::FETCH_AND_ADD => {
            Some((feature::ATOMICS, access::REMOTE_ATOMIC))
        }
        operation::WRITE => Some((feature::ATOMIC_WRITE, access::REMOTE_WRITE)),
        operation::FLUSH => Some((feature::FLUSH, 0)),
        _ => None,
    }
}

/// Atomics are of one aligned word. Returns the right that the operation needs.
pub(super) fn check(env: &Env<'_>, header: &FrameHeader) -> Result<u32, Refuse> {
    let (feature, needed) = needs(header.operation()).ok_or(INVALID)?;
    let aligned = header.addr.is_multiple_of(8) || header.operation() == operation::FLUSH;
    let sound = header.msg_len == 8 && header.length == 16 && aligned && env.has(feature);
    if sound { Ok(needed) } else { Err(INVALID) }
}

/// The two words of an atomic's payload: what is compared or added, and what is swapped in.
fn operands(data: &[u8]) -> Option<(u64, u64)> {
    let (compare_add, swap) = data.split_first_chunk()?;
    let swap = swap.try_into().ok()?;
    Some((u64::from_le_bytes(*compare_add), u64::from_le_bytes(swap)))
}

/// An atomic has come: checks it, carries it out and remembers its result.
pub(super) fn answer(qp: &mut Qp, env: &mut Env<'_>, header: &FrameHeader, data: &[u8]) {
    if place(qp, env, header, 0, &mut Vec::new()) != Placement::Into {
        return;
    }
    qp.transport.responder.placing = None;
    let done = match operands(data) {
        Some((length, kinds)) if header.operation() == operation::FLUSH => {
            mpe::flush(qp, env, header, length, kinds)
        }
        Some((compare_add, swap)) => change_word(qp, env, header, compare_add, swap),
        None => Err(INVALID),
    };
    let value = match done {
        Ok(value) => value,
        Err(refuse) => {
            refused(qp, env, refuse);
            return;
        }
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

/// Carries out an atomic on a word. Returns what was there before, or 0 for a write.
fn change_word(
    qp: &Qp,
    env: &mut Env<'_>,
    header: &FrameHeader,
    compare_add: u64,
    swap: u64,
) -> Result<u64, Refuse> {
    let (_, needed) = needs(header.operation()).ok_or(INVALID)?;
    let scope = xrc::scope(qp, env, header)?;
    let found = &mut env.scratch.segments;
    found.clear();
    let resolved = env
        .memory
        .resolve(&scope, header.rkey, needed, header.addr, 8, found);
    let old = match (resolved, found.as_slice()) {
        (Ok(()), [word]) => match header.operation() {
            operation::COMPARE_AND_SWAP => guest::compare_and_swap(word, compare_add, swap),
            operation::FETCH_AND_ADD => guest::fetch_and_add(word, compare_add),
            _ => guest::store(word, compare_add).map(|()| 0),
        },
        _ => None,
    };
    found.clear();
    // A region may lie in memory such that an aligned address names an unaligned word.
    old.ok_or(ACCESS)
}
