//! The error state: every work request that is outstanding or posted later completes with WR_FLUSH_ERR, once.

use super::requester::{self, Step};
use super::{Env, completion};
use crate::rdma::objects::Qp;

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

fn sends(qp: &mut Qp, env: &mut Env<'_>) -> bool {
    let mut done = 0;
    while done < ROUND {
        if let Some(message) = requester::pop(&mut qp.transport.requester) {
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
    let mut done = 0;
    while done < ROUND {
        let responder = &mut qp.transport.responder;
        let receive = match responder.receive.take() {
            Some(held) => held,
            None => match qp.rq.next(&mut responder.sges) {
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
