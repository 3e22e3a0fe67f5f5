//! Local memory of work requests: SGEs to segments. A refusal is the status and vendor_err that the work request completes with.

use super::transport::{Message, Requester};
use crate::rdma::memory::{Memory, Scope, Segment};
use crate::rdma::objects::Qp;
use crate::rdma::wire::Sge;

/// Status and vendor_err of a CQE.
pub(super) type Fault = (u8, u32);

/// Whether who posted it may access the whole SGE. One of 0 bytes names no memory.
pub(super) fn check(memory: &Memory, scope: Scope, one: &Sge, needed: u32) -> Result<(), Fault> {
    let length = one.length.get();
    if length == 0 {
        return Ok(());
    }
    memory
        .check(
            &scope,
            one.lkey.get(),
            needed,
            one.addr.get(),
            length.into(),
        )
        .map_err(|refusal| (refusal.cqe_status(), refusal.vendor_err()))
}

/// Pushes the segments of `length` bytes at `offset` of what the SGEs describe. They must be long enough together.
pub(super) fn resolve<'a>(
    memory: &Memory,
    scope: Scope,
    sges: impl Iterator<Item = &'a Sge>,
    needed: u32,
    offset: u32,
    length: u32,
    into: &mut Vec<Segment>,
) -> Result<(), Fault> {
    let (mut skip, mut left) = (offset, length);
    for one in sges {
        if left == 0 {
            break;
        }
        let size = one.length.get();
        if skip >= size {
            skip -= size;
            continue;
        }
        let used = left.min(size - skip);
        memory
            .resolve(
                &scope,
                one.lkey.get(),
                needed,
                // An address that wraps is outside of every region.
                one.addr.get().wrapping_add(skip.into()),
                used.into(),
                into,
            )
            .map_err(|refusal| (refusal.cqe_status(), refusal.vendor_err()))?;
        skip = 0;
        left -= used;
    }
    debug_assert_eq!(left, 0, "the message's length is not that of its SGEs");
    Ok(())
}

/// Whether who posted a message in flight may access all of its SGEs.
pub(super) fn check_message(
    memory: &Memory,
    qp: &Qp,
    message: &Message,
    needed: u32,
) -> Result<(), Fault> {
    of(&qp.transport.requester, message).try_for_each(|one| check(memory, qp.scope(), one, needed))
}

/// Pushes the segments of a part of a message in flight.
pub(super) fn resolve_message(
    memory: &Memory,
    qp: &Qp,
    message: &Message,
    needed: u32,
    offset: u32,
    length: u32,
    into: &mut Vec<Segment>,
) -> Result<(), Fault> {
    let sges = of(&qp.transport.requester, message);
    resolve(memory, qp.scope(), sges, needed, offset, length, into)
}

/// The SGEs of a message in flight.
fn of<'a>(requester: &'a Requester, message: &Message) -> impl Iterator<Item = &'a Sge> {
    let first = message.first_sge.wrapping_sub(requester.first_sge) as usize;
    requester
        .sges
        .range(first..first + usize::from(message.num_sge))
}
