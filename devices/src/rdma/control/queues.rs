//! Queue pairs.

use super::{Control, Outcome, handle, put_handle, with_list};
use crate::rdma::memory::{RingBuffer, RingMemory};
use crate::rdma::objects::{GSI_QPN, KERNEL, QpCaps, QpKind, QpRefs, QpRequest, RingPlace};
use crate::rdma::wire::{
    CreateQpBody, Le64, ReceiveWqeHeader, RingBufferBody, SendWqeHeader, Sge, Status, feature,
    qp_control, qp_flag, qp_type,
};

/// Control blocks and completion rings are aligned to this.
pub(super) const LINE: u64 = 64;
/// The smallest slot of a send WQE.
const MIN_SQ_STRIDE: u32 = 64;
/// The slots of a receive WQE.
const MIN_RQ_STRIDE: u32 = 16;
const MAX_RQ_STRIDE: u32 = 1024;

impl Control<'_> {
    pub(super) fn create_qp(&mut self, context: u32, body: &[u8], reply: &mut Vec<u8>) -> Outcome {
        let (head, pages) =
            with_list::<CreateQpBody, Le64>(body, |head| head.buffer.num_pages.get())?;
        let (kind, needed) = match head.kind.get() {
            qp_type::RC => (QpKind::Rc, 0),
            qp_type::UC => (QpKind::Uc, feature::UC),
            qp_type::UD => (QpKind::Ud, feature::UD),
            qp_type::GSI => (QpKind::Gsi, feature::UD),
            qp_type::XRC_INI => (QpKind::XrcIni, feature::XRC),
            qp_type::XRC_TGT => (QpKind::XrcTgt, feature::XRC),
            _ => return Err(Status::Invalid),
        };
        if self.config.features & needed != needed {
            return Err(Status::Unsupported);
        }
        if matches!(kind, QpKind::Gsi | QpKind::XrcTgt) && context != KERNEL {
            return Err(Status::Denied);
        }
        if kind == QpKind::Gsi && self.objects.qps.get(GSI_QPN).is_some() {
            return Err(Status::Exists);
        }
        let refs = QpRefs {
            pd: head.pd.get(),
            send_cq: head.send_cq.get(),
            recv_cq: head.recv_cq.get(),
            srq: head.srq.get(),
            xrcd: head.xrcd.get(),
        };
        if refs.srq != 0 {
            self.need(feature::SRQ)?;
        }
        let no_sends = kind == QpKind::XrcTgt;
        let no_receives = refs.srq != 0 || matches!(kind, QpKind::XrcIni | QpKind::XrcTgt);
        if no_sends && head.sq_entries.get() != 0 || no_receives && head.rq_entries.get() != 0 {
            return Err(Status::Invalid);
        }
        let flags = head.flags.get();
        let block_loopback = flags & qp_flag::BLOCK_LOOPBACK != 0;
        if flags & !qp_flag::ALL != 0 || block_loopback && kind != QpKind::Ud {
            return Err(Status::Invalid);
        }
        let caps = QpCaps {
            max_send_sge: head.max_send_sge.get(),
            max_recv_sge: head.max_recv_sge.get(),
            max_inline: head.max_inline.get(),
            block_loopback,
        };
        let sq = RingPlace {
            offset: head.sq_offset.get(),
            entries: head.sq_entries.get(),
            stride: head.sq_stride.get(),
        };
        let rq = RingPlace {
            offset: head.rq_offset.get(),
            entries: head.rq_entries.get(),
            stride: head.rq_stride.get(),
        };
        self.check_rings(&caps, &sq, &rq)?;
        self.objects.check_qp_refs(context, kind, &refs)?;
        let memory = self.map(&head.buffer, pages)?;
        let control = head.ctrl_offset.get();
        let parts = [
            (control, qp_control::SIZE, LINE),
            (sq.offset, sq.bytes(), sq.stride.into()),
            (rq.offset, rq.bytes(), rq.stride.into()),
        ];
        check_parts(&memory, &parts)?;
        let qpn = self.objects.create_qp(QpRequest {
            context,
            kind,
            refs,
            sq_sig_all: flags & qp_flag::SQ_SIG_ALL != 0,
            caps,
            memory,
            control,
            sq,
            rq,
        })?;
        put_handle(reply, qpn);
        Ok(())
    }

    pub(super) fn destroy_qp(&mut self, context: u32, body: &[u8], _: &mut Vec<u8>) -> Outcome {
        let qpn = handle(body)?;
        self.objects.check_qp(context, qpn)?;
        self.engine.send_posted(self.objects, self.fabric, qpn);
        self.fabric.forget_memory();
        self.remove_qp(qpn);
        Ok(())
    }

    /// Registers the memory of a ring or list.
    pub(super) fn map(
        &self,
        buffer: &RingBufferBody,
        pages: &[Le64],
    ) -> Result<RingMemory, Status> {
        let buffer = RingBuffer {
            length: buffer.length.get(),
            page_shift: buffer.page_shift.get(),
            offset: buffer.offset.get(),
        };
        let pages: Vec<u64> = pages.iter().map(|page| page.get()).collect();
        RingMemory::map(&*self.objects.dma, buffer, &pages)
    }

    /// Checks sizes and strides of a QP's rings against limits and each other.
    fn check_rings(&self, caps: &QpCaps, sq: &RingPlace, rq: &RingPlace) -> Outcome {
        let l = &self.config.limits;
        let fits =
            |entries: u32, max: u32| entries == 0 || entries.is_power_of_two() && entries <= max;
        let header = size_of::<SendWqeHeader>() as u64;
        let limits = fits(sq.entries, l.send_wr)
            && fits(rq.entries, l.recv_wr)
            && caps.max_send_sge <= l.send_sge
            && caps.max_recv_sge <= l.recv_sge
            && caps.max_inline <= l.inline;
        // Nothing has to fit into a ring that is not there.
        let sends = sq.entries == 0
            || strides(sq.stride, MIN_SQ_STRIDE, l.sq_stride)
                && header + sges(caps.max_send_sge) <= sq.stride.into()
                && header + u64::from(caps.max_inline) <= sq.stride.into();
        let receives = rq.entries == 0 || holds_receives(rq.stride, caps.max_recv_sge);
        if limits && sends && receives {
            Ok(())
        } else {
            Err(Status::Invalid)
        }
    }
}

fn strides(stride: u32, min: u32, max: u32) -> bool {
    stride.is_power_of_two() && (min..=max.min(4096)).contains(&stride)
}

/// Bytes of so many SGEs.
fn sges(count: u32) -> u64 {
    u64::from(count) * size_of::<Sge>() as u64
}

/// Whether slots of this size can be, and hold receives of so many SGEs.
pub(super) fn holds_receives(stride: u32, max_sge: u32) -> bool {
    strides(stride, MIN_RQ_STRIDE, MAX_RQ_STRIDE)
        && size_of::<ReceiveWqeHeader>() as u64 + sges(max_sge) <= stride.into()
}

/// Checks that the parts of a buffer (offset, length, alignment) lie inside it, aligned, and do not overlap. Parts of length 0 are
/// nowhere.
pub(super) fn check_parts(memory: &RingMemory, parts: &[(u64, u64, u64)]) -> Outcome {
    for (i, (offset, length, alignment)) in parts.iter().enumerate() {
        if *length == 0 {
            continue;
        }
        if !offset.is_multiple_of(*alignment) || !memory.contains(*offset, *length) {
            return Err(Status::Invalid);
        }
        // Ends do not overflow: earlier parts were seen to lie inside.
        let overlaps = parts[..i].iter().any(|(other, other_length, _)| {
            *other_length > 0 && offset < &(other + other_length) && *other < offset + length
        });
        if overlaps {
            return Err(Status::Invalid);
        }
    }
    Ok(())
}
