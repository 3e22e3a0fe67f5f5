//! Shared receive queues: section 4.12.

use zerocopy::IntoBytes;

use super::queues::{LINE, check_parts, holds_receives};
use super::{Control, Outcome, handle, put_handle, with_list};
use crate::rdma::memory::Scope;
use crate::rdma::objects::RingPlace;
use crate::rdma::objects::srq::{SrqRequest, SrqRing, Xrc};
use crate::rdma::wire::{
    CreateSrqBody, Le64, ModifySrqBody, RingBufferBody, Status, feature, srq_control, srq_mask,
    srq_type,
};

impl Control<'_> {
    pub(super) fn create_srq(&mut self, context: u32, body: &[u8], reply: &mut Vec<u8>) -> Outcome {
        self.need(feature::SRQ)?;
        let (head, pages) =
            with_list::<CreateSrqBody, Le64>(body, |head| head.buffer.num_pages.get())?;
        let xrc = Xrc {
            xrcd: head.xrcd.get(),
            cqn: head.cq.get(),
        };
        match head.kind.get() {
            srq_type::BASIC if xrc == Xrc::default() => {}
            srq_type::XRC => {
                self.need(feature::XRC)?;
                // An SRQ without a domain is a basic one.
                self.objects.check_xrcd(xrc.xrcd)?;
            }
            _ => return Err(Status::Invalid),
        }
        if head.reserved.get() != 0 {
            return Err(Status::Invalid);
        }
        let max_sge = head.max_sge.get();
        let stride = head.stride.get();
        if max_sge > self.config.limits.recv_sge || !holds_receives(stride, max_sge) {
            return Err(Status::Invalid);
        }
        let scope = Scope {
            context,
            pd: head.pd.get(),
            qp: 0,
        };
        self.objects.check_srq_refs(context, scope.pd, xrc)?;
        let ring = self.map_srq(
            &head.buffer,
            pages,
            head.ctrl_offset.get(),
            RingPlace {
                offset: head.ring_offset.get(),
                entries: head.entries.get(),
                stride,
            },
        )?;
        let srqn = self.objects.create_srq(SrqRequest {
            scope,
            xrc,
            max_sge,
            ring,
        })?;
        put_handle(reply, srqn);
        Ok(())
    }

    pub(super) fn modify_srq(&mut self, context: u32, body: &[u8], _: &mut Vec<u8>) -> Outcome {
        self.need(feature::SRQ)?;
        let (head, pages) =
            with_list::<ModifySrqBody, Le64>(body, |head| head.buffer.num_pages.get())?;
        let (srqn, mask) = (head.srq.get(), head.mask.get());
        self.objects.check_srq(context, srqn)?;
        let old = self.objects.srqs.place(srqn).ok_or(Status::NotFound)?;
        let resizes = mask & srq_mask::MAX_WR != 0;
        let limits = mask & srq_mask::LIMIT != 0;
        let place = RingPlace {
            offset: head.ring_offset.get(),
            entries: head.entries.get(),
            ..old
        };
        let entries = if resizes { place.entries } else { old.entries };
        if mask & !srq_mask::ALL != 0
            || !limits && head.limit.get() != 0
            || !resizes && head.as_bytes()[12..].iter().any(|byte| *byte != 0)
            || head.limit.get() > entries
        {
            return Err(Status::Invalid);
        }
        let ring = if resizes {
            Some(self.map_srq(&head.buffer, pages, head.ctrl_offset.get(), place)?)
        } else {
            None
        };
        let limit = limits.then_some(head.limit.get());
        self.objects.modify_srq(context, srqn, ring, limit)
    }

    pub(super) fn query_srq(&mut self, context: u32, body: &[u8], reply: &mut Vec<u8>) -> Outcome {
        self.need(feature::SRQ)?;
        let answer = self.objects.query_srq(context, handle(body)?)?;
        reply.extend_from_slice(answer.as_bytes());
        Ok(())
    }

    pub(super) fn destroy_srq(&mut self, context: u32, body: &[u8], _: &mut Vec<u8>) -> Outcome {
        self.need(feature::SRQ)?;
        let srqn = handle(body)?;
        self.objects.check_srq(context, srqn)?;
        // A message may be on its way into a receive of an XRC SRQ.
        self.fabric.forget_memory();
        self.objects.destroy_srq(context, srqn)
    }

    /// Registers the memory of an SRQ whose stride was checked.
    fn map_srq(
        &self,
        buffer: &RingBufferBody,
        pages: &[Le64],
        control: u64,
        place: RingPlace,
    ) -> Result<SrqRing, Status> {
        if !place.entries.is_power_of_two() || place.entries > self.config.limits.srq_wr {
            return Err(Status::Invalid);
        }
        let memory = self.map(buffer, pages)?;
        let parts = [
            (control, srq_control::SIZE, LINE),
            (place.offset, place.bytes(), place.stride.into()),
        ];
        check_parts(&memory, &parts)?;
        Ok(SrqRing {
            memory,
            control,
            place,
        })
    }
}
