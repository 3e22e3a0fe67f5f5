//! The error state: every work request that is outstanding or posted later completes with WR_FLUSH_ERR, once.

use super::requester::{self, Step};
use super::{Env, completion, local};
use crate::rdma::events::EventKind;
use crate::rdma::objects::{Qp, QpKind};

/// CQEs that a QP may write in one round, for each of its queues.
const ROUND: u32 = 64;

/// Flushes a bounded number of work requests of each queue.
pub(super) fn step(qp: &mut Qp, env: &mut Env<'_>) -> Step {
    let sent = sends(qp, env);
    let received = receives(qp, env);
    if sent || received {
        Step::Worked
    } else {
        Step::Idle
    }
}

/// Flushes a bounded number of sends; receives go on (SQE).
pub(super) fn step_sends(qp: &mut Qp, env: &mut Env<'_>) -> Step {
    if sends(qp, env) {
        Step::Worked
    } else {
        Step::Idle
    }
}

fn sends(qp: &mut Qp, env: &mut Env<'_>) -> bool {
    let mut done = 0;
    while done < ROUND {
        if let Some(local) = local::pop(&mut qp.transport.requester) {
            completion::flush_send(qp, env, local.wr_id, local.index, local.opcode);
        } else if let Some(message) = requester::pop(&mut qp.transport.requester) {
            completion::flush_send(qp, env, message.wr_id, message.index, message.opcode);
        } else {
            let requester = &mut qp.transport.requester;
            if requester.taken == requester.produced {
                match qp.sq.pending(requester.taken) {
                    Ok(produced) => requester.produced = produced,
                    // The ring names no work that could be flushed.
                    Err(_) => break,
                }
            }
            if requester.taken == requester.produced {
                break;
            }
            let index = requester.taken;
            requester.taken = index.wrapping_add(1);
            let wqe = qp.sq.header(index);
            completion::flush_send(qp, env, wqe.wr_id.get(), index, wqe.opcode);
        }
        done += 1;
    }
    done > 0
}

fn receives(qp: &mut Qp, env: &mut Env<'_>) -> bool {
    if qp.refs.srq != 0 || qp.kind == QpKind::XrcTgt {
        return shared(qp, env);
    }
    let mut done = 0;
    while done < ROUND {
        let receive = match qp.transport.responder.receive.take() {
            Some(held) => held,
            None => match env.next_receive(qp) {
                Ok(Some(next)) => next,
                // A ring with a wrong index names no work that could be flushed.
                Ok(None) | Err(_) => break,
            },
        };
        completion::flush_receive(qp, env, &receive);
        done += 1;
    }
    done > 0
}

/// A QP takes nothing from its SRQ any more; what it holds flushes, and with that it has taken its last.
fn shared(qp: &mut Qp, env: &mut Env<'_>) -> bool {
    let held = qp.transport.responder.receive.take();
    if let Some(receive) = &held {
        completion::flush_receive(qp, env, receive);
    }
    env.raise(qp, EventKind::LastWqeReached);
    held.is_some()
}

#[cfg(test)]
mod tests {
    use super::super::test_utils::*;
    use crate::rdma::events::EventKind;
    use crate::rdma::objects::QpState;
    use crate::rdma::wire::{cqe_status, kick, send_opcode};

    const FLUSHED: u8 = cqe_status::WR_FLUSH_ERR;

    #[test]
    fn all_that_is_outstanding_flushes_once_in_order_signalled_or_not() {
        let mut node = Node::new();
        let mut queue = node.connected();
        let key = node.key;
        for wr_id in 0..200 {
            let mut post = write(&node, wr_id, 8);
            post.flags = 0;
            node.fill_send(&mut queue, &post);
        }
        node.set_sq_producer(&queue, 100);
        node.run();
        node.set_sq_producer(&queue, 200);
        for wr_id in 1000..1064 {
            node.receive(&mut queue, wr_id, &[(DATA, 8, key)]);
        }
        node.modify(&queue, QpState::Err);
        node.run();
        let done = node.done(&mut queue);
        let sends: Vec<_> = done.iter().filter(|d| d.0 < 1000).copied().collect();
        let receives: Vec<_> = done.iter().filter(|d| d.0 >= 1000).copied().collect();
        assert_eq!(sends, (0..200).map(|n| (n, FLUSHED)).collect::<Vec<_>>());
        assert_eq!(
            receives,
            (1000..1064).map(|n| (n, FLUSHED)).collect::<Vec<_>>()
        );
        assert_eq!(node.objects.stats.device.flushed.get(), 264);
        assert_eq!(node.fabric.forgotten, 1);
        node.take(ack(&queue, SQ_PSN + 100), &[]);
        assert_eq!(node.done(&mut queue), []);
        assert_eq!(node.events(), []);
    }

    #[test]
    fn what_is_posted_later_rings_and_flushes_too() {
        let mut node = Node::new();
        let mut queue = node.connected();
        node.modify(&queue, QpState::Err);
        node.run();
        assert!(!node.engine.before_sleep(&mut node.objects));
        assert_eq!(node.kicks(&queue), kick::SQ | kick::RQ);
        let post = write(&node, 1, 8);
        assert!(node.send(&mut queue, post));
        node.engine.doorbell(&mut node.objects, 0);
        node.run();
        assert_eq!(node.done(&mut queue), [(1, FLUSHED)]);
        assert!(!node.engine.before_sleep(&mut node.objects));
        node.receive(&mut queue, 2, &[]);
        assert_ne!(node.kicks(&queue) & kick::RQ, 0);
        node.engine.doorbell(&mut node.objects, 0);
        node.run();
        assert_eq!(node.done(&mut queue), [(2, FLUSHED)]);
    }

    #[test]
    fn wqes_that_make_no_sense_flush_like_others() {
        let mut node = Node::new();
        let mut queue = node.connected();
        node.modify(&queue, QpState::Err);
        let mut post = write(&node, 5, 8);
        (post.opcode, post.flags) = (0xee, 0xff);
        node.send(&mut queue, post);
        let mut post = write(&node, 6, 8);
        post.opcode = send_opcode::READ;
        node.send(&mut queue, post);
        node.run();
        let cqes = node.poll_cq(&mut queue);
        assert_eq!(cqes.len(), 2);
        assert_eq!(
            (cqes[0].wr_id.get(), cqes[0].status, cqes[0].opcode),
            (5, FLUSHED, 0)
        );
        assert_eq!(
            (cqes[1].wr_id.get(), cqes[1].status, cqes[1].opcode),
            (6, FLUSHED, 2)
        );
    }

    #[test]
    fn a_send_index_that_cannot_be_does_not_keep_the_engine_busy() {
        let mut node = Node::new();
        let mut queue = node.connected();
        node.set_sq_producer(&queue, 9999);
        node.engine.doorbell(&mut node.objects, 0);
        node.run();
        assert_eq!(node.events(), [(EventKind::QpFatal, queue.qpn)]);
        node.set_rq_producer(&queue, 9999);
        node.engine.doorbell(&mut node.objects, 0);
        node.run();
        assert!(!node.engine.before_sleep(&mut node.objects));
        assert_eq!(node.done(&mut queue), []);
    }

    #[test]
    fn a_cq_without_room_ends_flushing_quietly() {
        let mut node = Node::new();
        let mut queue = node.connected_with(4, PEER_QPN, |_| {});
        for wr_id in 0..10 {
            let post = write(&node, wr_id, 8);
            node.send(&mut queue, post);
        }
        node.run();
        node.modify(&queue, QpState::Err);
        node.run();
        assert_eq!(node.events(), [(EventKind::CqErr, queue.cqn)]);
        assert_eq!(node.done(&mut queue).len(), 4);
        assert!(!node.engine.before_sleep(&mut node.objects));
    }
}
