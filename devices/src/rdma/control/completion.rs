//! Completion queues.

use std::time::Instant;

use super::queues::{LINE, check_parts};
use super::{Control, Outcome, handle, put_handle, whole, with_list};
use crate::rdma::objects::cq::{CqRequest, CqRing};
use crate::rdma::wire::{
    CQE_SIZE, CreateCqBody, Le64, ModifyCqBody, ResizeCqBody, RingBufferBody, Status, cq_control,
    feature,
};

impl Control<'_> {
    pub(super) fn create_cq(&mut self, context: u32, body: &[u8], reply: &mut Vec<u8>) -> Outcome {
        let (head, pages) =
            with_list::<CreateCqBody, Le64>(body, |head| head.buffer.num_pages.get())?;
        let vector = u16::try_from(head.vector.get()).map_err(|_| Status::Invalid)?;
        if vector >= self.config.num_vectors {
            return Err(Status::Invalid);
        }
        let entries = head.entries.get();
        let (control, ring) = (head.ctrl_offset.get(), head.ring_offset.get());
        let ring = self.cq_ring(entries, &head.buffer, pages, control, ring)?;
        let cqn = self.objects.create_cq(CqRequest {
            context,
            vector,
            ring,
        })?;
        put_handle(reply, cqn);
        Ok(())
    }

    pub(super) fn destroy_cq(&mut self, context: u32, body: &[u8], _: &mut Vec<u8>) -> Outcome {
        self.objects.destroy_cq(context, handle(body)?)
    }

    pub(super) fn resize_cq(&mut self, context: u32, body: &[u8], _: &mut Vec<u8>) -> Outcome {
        self.need(feature::CQ_RESIZE)?;
        let (head, pages) =
            with_list::<ResizeCqBody, Le64>(body, |head| head.buffer.num_pages.get())?;
        self.objects.check_cq(context, head.cqn.get())?;
        let entries = head.entries.get();
        let (control, ring) = (head.ctrl_offset.get(), head.ring_offset.get());
        let ring = self.cq_ring(entries, &head.buffer, pages, control, ring)?;
        self.look_at_posts(context);
        self.objects.resize_cq(head.cqn.get(), ring)
    }

    /// Looks at the queues of a context once: what was posted before the command and completes at once has its CQE, whatever else the
    /// device had to do meanwhile.
    fn look_at_posts(&mut self, context: u32) {
        let page = self.objects.contexts.page(context);
        self.engine.doorbell(self.objects, page);
        self.engine.round(self.objects, self.fabric, Instant::now());
    }

    pub(super) fn modify_cq(&mut self, context: u32, body: &[u8], _: &mut Vec<u8>) -> Outcome {
        self.need(feature::CQ_RESIZE)?;
        let body: ModifyCqBody = whole(body)?;
        let cqn = body.cqn.get();
        self.objects.check_cq(context, cqn)?;
        let cqs = &mut self.objects.cqs;
        cqs.moderate(cqn, body.count.get(), body.period.get());
        Ok(())
    }

    /// Registers a ring of so many entries, with the control block and CQE 0 at these offsets.
    fn cq_ring(
        &self,
        entries: u32,
        buffer: &RingBufferBody,
        pages: &[Le64],
        control: u64,
        ring: u64,
    ) -> Result<CqRing, Status> {
        let max = self.config.limits.cqe.next_power_of_two();
        if !entries.is_power_of_two() || entries > max {
            return Err(Status::Invalid);
        }
        let memory = self.map(buffer, pages)?;
        let parts = [
            (control, cq_control::SIZE, LINE),
            (ring, u64::from(entries) * CQE_SIZE, LINE),
        ];
        check_parts(&memory, &parts)?;
        Ok(CqRing {
            entries,
            memory,
            control,
            ring,
        })
    }
}
