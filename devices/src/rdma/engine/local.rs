//! Work requests that no peer hears of: fast registration, local invalidation, binding of memory windows.
//!
//! They have no message number. Each has its place between the messages of the send queue and completes in that place. A local invalidation is
//! carried out when all before it is complete, so that nothing before it can still want the memory; the others at once, unless fenced.

use super::transport::{Requester, Standing};
use super::{Env, completion, unacked};
use crate::rdma::fabric::Fabric;
use crate::rdma::memory::{Bind, FastRegistration};
use crate::rdma::objects::{KERNEL, Qp};
use crate::rdma::wire::{SendWqeHeader, cqe_status, feature, send_flag, send_opcode, vendor_err};

/// A work request that was taken from the send queue and is not complete: the checked copy.
#[derive(Clone, Copy, Debug)]
pub(super) struct Local {
    pub wr_id: u64,
    /// Free-running index of the WQE.
    pub index: u32,
    /// One of `send_opcode`.
    pub opcode: u8,
    /// Bits of `send_flag`.
    flags: u8,
    /// Number of the message that comes after it.
    before: u32,
    operation: Operation,
    standing: Standing,
}

#[derive(Clone, Copy, Debug)]
enum Operation {
    Register(FastRegistration),
    Invalidate(u32),
    Bind(Bind),
    /// It was refused.
    Nothing,
}

/// Whether no peer hears of such a work request.
pub(super) fn is_local(opcode: u8) -> bool {
    matches!(
        opcode,
        send_opcode::LOCAL_INV | send_opcode::BIND_MW | send_opcode::REG_MR
    )
}

/// Takes a WQE. All messages before it are sent.
pub(super) fn take(qp: &mut Qp, env: &mut Env<'_>, wqe: &SendWqeHeader, index: u32) {
    let (operation, standing) = match decode(qp, env, wqe) {
        Ok(operation) => (operation, Standing::Pending),
        Err(vendor) => {
            let status = cqe_status::LOC_QP_OP_ERR;
            qp.transport.requester.halted = true;
            (Operation::Nothing, Standing::Failed { status, vendor })
        }
    };
    let requester = &mut qp.transport.requester;
    let messages = requester.messages.len() as u32;
    requester.locals.push_back(Local {
        wr_id: wqe.wr_id.get(),
        index,
        opcode: wqe.opcode,
        flags: wqe.flags,
        before: requester.oldest.wrapping_add(messages),
        operation,
        standing,
    });
}

/// Checks what of a WQE's copy does not depend on keys. On an error returns the vendor_err.
fn decode(qp: &Qp, env: &Env<'_>, wqe: &SendWqeHeader) -> Result<Operation, u32> {
    let key = u32::from_le_bytes(wqe.imm);
    let operation = match wqe.opcode {
        send_opcode::LOCAL_INV if env.has(feature::FRWR | feature::MW) => {
            Operation::Invalidate(key)
        }
        send_opcode::BIND_MW if env.has(feature::MW) => Operation::Bind(Bind {
            key,
            region: wqe.rkey.get(),
            addr: wqe.remote_addr.get(),
            length: wqe.compare_add.get(),
            access: u32::try_from(wqe.swap.get()).map_err(|_| vendor_err::OPCODE)?,
        }),
        // A page list names memory: that is for the kernel to do.
        send_opcode::REG_MR if env.has(feature::FRWR) && qp.context == KERNEL => {
            let [a, b, c, d, page_shift, ..] = wqe.extra;
            Operation::Register(FastRegistration {
                key,
                access: wqe.rkey.get(),
                iova: wqe.remote_addr.get(),
                length: wqe.compare_add.get(),
                offset: wqe.swap.get(),
                entries: u32::from_le_bytes([a, b, c, d]),
                page_shift,
            })
        }
        _ => return Err(vendor_err::OPCODE),
    };
    if wqe.flags & !send_flag::ALL != 0 || wqe.flags & send_flag::INLINE != 0 {
        return Err(vendor_err::OPCODE);
    }
    if wqe.num_sge.get() != 0 {
        return Err(vendor_err::SGE_COUNT);
    }
    Ok(operation)
}

/// Carries out the work request that waits, if one does and may. False when it has to wait on; nothing after it is taken then.
pub(super) fn run(qp: &mut Qp, env: &mut Env<'_>, fabric: &mut dyn Fabric) -> bool {
    let requester = &qp.transport.requester;
    let Some(local) = requester.locals.back().copied() else {
        return true;
    };
    if local.standing != Standing::Pending {
        return true;
    }
    let fenced = local.flags & send_flag::FENCE != 0 && requester.reads > 0;
    let early =
        matches!(local.operation, Operation::Invalidate(_)) && !requester.messages.is_empty();
    if fenced || early || requester.halted {
        return false;
    }
    let who = qp.scope();
    // Whether memory was taken away that the fabric may still name.
    let done = match &local.operation {
        Operation::Register(registration) => env
            .memory
            .register_fast(env.dma, &who, registration)
            .map(|()| false),
        Operation::Invalidate(key) => env.memory.invalidate(&who, *key, false).map(|()| true),
        Operation::Bind(bind) => env.memory.bind(&who, bind),
        Operation::Nothing => Ok(false),
    };
    if done == Ok(true) {
        fabric.forget_memory();
    }
    let requester = &mut qp.transport.requester;
    let standing = match done {
        Ok(_) => Standing::Done,
        Err(refusal) => {
            requester.halted = true;
            Standing::Failed {
                status: cqe_status::MW_BIND_ERR,
                vendor: refusal.vendor_err(),
            }
        }
    };
    if let Some(local) = requester.locals.back_mut() {
        local.standing = standing;
    }
    // A failure completes in its turn.
    if standing == Standing::Done {
        super::requester::retire(qp, env);
    }
    true
}

/// Takes out the oldest work request, if its place is before all messages that are not complete.
pub(super) fn pop(requester: &mut Requester) -> Option<Local> {
    let oldest = requester.oldest;
    requester
        .locals
        .pop_front_if(|local| local.before == oldest)
}

/// Completes the oldest work request if its turn has come and it is carried out: true. False when that took the QP to ERR.
pub(super) fn retire(qp: &mut Qp, env: &mut Env<'_>) -> Option<bool> {
    let requester = &mut qp.transport.requester;
    if requester.locals.front()?.standing == Standing::Pending {
        return None;
    }
    let local = pop(requester)?;
    if let Standing::Failed { status, vendor } = local.standing {
        completion::local(qp, env, &local, status, vendor);
        if qp.kind.is_reliable() {
            env.error(qp, None);
        } else {
            qp.transport.requester.halted = false;
            unacked::stop(qp, env);
        }
        return Some(false);
    }
    if local.flags & send_flag::SIGNALED != 0 || qp.sq_sig_all {
        completion::local(qp, env, &local, cqe_status::SUCCESS, vendor_err::NONE);
    }
    Some(true)
}

#[cfg(test)]
mod tests {
    use super::super::test_utils::*;
    use super::*;
    use crate::rdma::fabric::frame::kind;
    use crate::rdma::memory::{RingBuffer, RingMemory};
    use crate::rdma::objects::QpState;
    use crate::rdma::wire::access;

    /// A region for fast registration with one page in its list, that of [`DATA`].
    fn fast(node: &mut Node, queue: &Queue) -> u32 {
        const LIST: u64 = 0x1000;
        let buffer = RingBuffer {
            length: 4096,
            page_shift: 12,
            offset: 0,
        };
        let memory = RingMemory::map(&*node.ram, buffer, &[LIST]).unwrap();
        node.ram.write(LIST, &DATA.to_le_bytes());
        let pd = node.qp(queue).refs.pd;
        node.objects.memory.alloc_fast(0, pd, memory, 0, 1).unwrap()
    }

    fn post(wr_id: u64, opcode: u8, key: u32) -> Post {
        Post {
            wr_id,
            opcode,
            flags: send_flag::SIGNALED,
            imm: key.to_le_bytes(),
            rkey: access::LOCAL_WRITE,
            operands: [100, 0],
            extra: [1, 0, 0, 0, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            ..Post::default()
        }
    }

    #[test]
    fn they_take_no_number_and_complete_in_their_place() {
        let mut node = Node::new();
        let mut queue = node.connected();
        let key = fast(&mut node, &queue);
        let first = write(&node, 1, 8);
        node.send(&mut queue, first);
        node.send(&mut queue, post(2, send_opcode::REG_MR, key));
        let local = Post {
            sges: vec![(0, 100, key)],
            ..write(&node, 3, 100)
        };
        node.send(&mut queue, local);
        node.send(&mut queue, post(4, send_opcode::LOCAL_INV, key));
        let last = write(&node, 5, 8);
        node.send(&mut queue, last);
        // The registration is of use to what follows, and the invalidation waits for what is before it.
        assert_eq!(
            node.sent_kinds(),
            [(kind::WRITE, SQ_PSN), (kind::WRITE, SQ_PSN + 1)]
        );
        assert_eq!(node.done(&mut queue), []);
        node.take(ack(&queue, SQ_PSN + 1), &[]);
        assert_eq!(node.done(&mut queue), [(1, 0), (2, 0)]);
        assert_eq!(node.fabric.forgotten, 0);
        node.take(ack(&queue, SQ_PSN + 2), &[]);
        assert_eq!(node.done(&mut queue), [(3, 0), (4, 0)]);
        assert_eq!(node.fabric.forgotten, 1);
        assert_eq!(node.sent_kinds(), [(kind::WRITE, SQ_PSN + 2)]);
    }

    #[test]
    fn a_failure_comes_after_what_was_before_it_and_ends_what_is_behind_it() {
        let mut node = Node::new();
        let mut queue = node.connected();
        let first = write(&node, 1, 8);
        node.send(&mut queue, first);
        node.send(&mut queue, post(2, send_opcode::REG_MR, 0x9900));
        let last = write(&node, 3, 8);
        node.send(&mut queue, last);
        assert_eq!(node.sent_kinds(), [(kind::WRITE, SQ_PSN)]);
        assert_eq!(node.qp(&queue).state, QpState::Rts);
        node.take(ack(&queue, SQ_PSN + 1), &[]);
        let (bind, flush) = (cqe_status::MW_BIND_ERR, cqe_status::WR_FLUSH_ERR);
        assert_eq!(node.done(&mut queue), [(1, 0), (2, bind), (3, flush)]);
        assert_eq!(node.qp(&queue).state, QpState::Err);
    }

    #[test]
    fn in_err_they_flush_in_their_place() {
        let mut node = Node::new();
        let mut queue = node.connected();
        let key = fast(&mut node, &queue);
        for wr_id in [1, 3, 5] {
            let message = write(&node, wr_id, 8);
            node.send(&mut queue, message);
            let opcode = if wr_id == 1 {
                send_opcode::REG_MR
            } else {
                send_opcode::LOCAL_INV
            };
            node.send(&mut queue, post(wr_id + 1, opcode, key));
        }
        node.run();
        node.modify(&queue, QpState::Err);
        node.run();
        let flushed: Vec<_> = (1..7).map(|n| (n, cqe_status::WR_FLUSH_ERR)).collect();
        assert_eq!(node.done(&mut queue), flushed);
        assert_eq!(node.qp(&queue).transport.requester.outstanding(), 0);
    }

    #[test]
    fn what_waits_is_done_when_the_queue_drains() {
        let mut node = Node::new();
        let mut queue = node.connected();
        let key = fast(&mut node, &queue);
        let message = write(&node, 1, 8);
        node.send(&mut queue, message);
        node.send(&mut queue, post(2, send_opcode::LOCAL_INV, key));
        node.run();
        node.modify(&queue, QpState::Sqd);
        node.run();
        assert!(node.qp(&queue).transport.is_draining());
        node.take(ack(&queue, SQ_PSN + 1), &[]);
        assert_eq!(node.done(&mut queue), [(1, 0), (2, 0)]);
        assert!(!node.qp(&queue).transport.is_draining());
    }
}
