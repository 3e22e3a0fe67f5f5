//! Another ring for a completion queue.

use zerocopy::{FromZeros, IntoBytes};

use super::{CqRing, Cqs};
use crate::rdma::memory::access;
use crate::rdma::wire::{Cqe, Status};

impl Cqs {
    /// Moves what was not read yet to a new ring, from index 0 on and in order, and goes on there. Returns the list entries that the old
    /// ring was registered with.
    ///
    /// # Errors
    /// `Invalid` when that is more than the new ring holds, or the process's index is not one that it can have; `BadState` when the CQ
    /// is in error. The CQ then stays in its old ring.
    pub(crate) fn resize(&mut self, cqn: u32, ring: CqRing) -> Result<u64, Status> {
        let cq = self.table.get_mut(cqn).ok_or(Status::NotFound)?;
        if cq.error {
            return Err(Status::BadState);
        }
        let unread = cq.look_at_consumer().ok_or(Status::Invalid)?;
        if unread > ring.entries {
            return Err(Status::Invalid);
        }
        for n in 0..unread {
            let mut cqe = Cqe::new_zeroed();
            // SAFETY: a slot is 64 bytes of registered memory in one piece. What a process may have made of its CQEs meanwhile it reads
            // itself.
            unsafe {
                access::read(
                    cq.ring.slot(cq.consumer.wrapping_add(n)),
                    cqe.as_mut_bytes(),
                )
            };
            ring.write(n, &cqe);
        }
        cq.moved(unread);
        let old = std::mem::replace(&mut cq.ring, ring);
        Ok(old.memory.entries())
    }
}

impl super::Cq {
    /// Indices start anew.
    fn moved(&mut self, unread: u32) {
        if let Some(moderation) = &mut self.moderation {
            moderation.shift(self.producer.wrapping_sub(unread));
        }
        self.consumer = 0;
        self.producer = unread;
    }
}
