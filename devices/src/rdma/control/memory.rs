//! Memory regions and windows.

use zerocopy::IntoBytes;

use super::{Control, Outcome, handle, put_handle, whole, with_list};
use crate::rdma::memory::{Change, RegionEntry, RegionRequest, WindowKind};
use crate::rdma::objects::KERNEL;
use crate::rdma::wire::{
    AllocMrBody, AllocMwBody, ExtentEntry, KeysReply, Le32, Le64, MrAppendBody, RegMrBody,
    ReregMrBody, Status, feature, mr_flag, rereg_flag,
};

/// Checks the list behind a body and gives it to `Memory`.
macro_rules! append {
    ($control:ident, $context:ident, $key:expr, $body:ident, $head:ty, $extents:expr) => {{
        let dma = $control.objects.dma.clone();
        if $extents {
            let (_, list) = with_list::<$head, ExtentEntry>($body, |head| head.num_entries.get())?;
            let mut entries = list.iter().map(|extent| RegionEntry {
                address: extent.address.get(),
                length: extent.length.get(),
            });
            $control
                .objects
                .memory
                .append(&*dma, $context, $key, &mut entries)
        } else {
            let (_, list) = with_list::<$head, Le64>($body, |head| head.num_entries.get())?;
            let mut entries = list.iter().map(|address| RegionEntry {
                address: address.get(),
                length: 0,
            });
            $control
                .objects
                .memory
                .append(&*dma, $context, $key, &mut entries)
        }
    }};
}

/// Appends the keys of a region, which are one value.
fn put_keys(reply: &mut Vec<u8>, key: u32) {
    let answer = KeysReply {
        lkey: Le32::new(key),
        rkey: Le32::new(key),
    };
    reply.extend_from_slice(answer.as_bytes());
}

impl Control<'_> {
    pub(super) fn reg_mr(&mut self, context: u32, body: &[u8], reply: &mut Vec<u8>) -> Outcome {
        let head = body
            .first_chunk::<48>()
            .map(|bytes| zerocopy::transmute!(*bytes))
            .ok_or(Status::Invalid)?;
        let head: RegMrBody = head;
        let flags = head.flags;
        if head.reserved0.get() != 0 || head.reserved1.get() != 0 || flags & !mr_flag::ALL != 0 {
            return Err(Status::Invalid);
        }
        if flags & mr_flag::DMA != 0 {
            return self.reg_dma_mr(context, body, reply);
        }
        let more = flags & mr_flag::MORE != 0;
        let extents = flags & mr_flag::EXTENTS != 0;
        let pd = head.pd.get();
        self.objects.check_pd(context, pd)?;
        if !more && head.num_entries != head.total_entries {
            return Err(Status::Invalid);
        }
        let key = self.objects.memory.register(&RegionRequest {
            context,
            pd,
            access: head.access.get(),
            iova: head.iova.get(),
            length: head.length.get(),
            offset: head.offset.get(),
            page_shift: head.page_shift,
            extents,
            total_entries: head.total_entries.get(),
        })?;
        self.objects.hold_pd(pd);
        let done = self.fill(context, key, body, extents, more);
        if let Err(status) = done {
            // Cannot fail: the key is new and the context's own.
            let _ = self.objects.memory.deregister(context, key);
            self.objects.release_pd(pd);
            return Err(status);
        }
        put_keys(reply, key);
        Ok(())
    }

    /// A region over all DMA addresses, which has no list.
    fn reg_dma_mr(&mut self, context: u32, body: &[u8], reply: &mut Vec<u8>) -> Outcome {
        self.need(feature::DMA_MR)?;
        let head: RegMrBody = whole(body)?;
        if context != KERNEL {
            return Err(Status::Denied);
        }
        let plain = RegMrBody {
            pd: head.pd,
            access: head.access,
            flags: mr_flag::DMA,
            ..RegMrBody::default()
        };
        if head != plain {
            return Err(Status::Invalid);
        }
        let pd = head.pd.get();
        self.objects.check_pd(context, pd)?;
        let dma = self.objects.dma.clone();
        let access = head.access.get();
        let key = self.objects.memory.register_dma(dma, context, pd, access)?;
        self.objects.hold_pd(pd);
        put_keys(reply, key);
        Ok(())
    }

    /// The first part of a new region's list, and the end of it if nothing follows.
    fn fill(&mut self, context: u32, key: u32, body: &[u8], extents: bool, more: bool) -> Outcome {
        append!(self, context, key, body, RegMrBody, extents)?;
        if more {
            return Ok(());
        }
        self.objects.memory.commit(context, key)
    }

    pub(super) fn mr_append(&mut self, context: u32, body: &[u8], _: &mut Vec<u8>) -> Outcome {
        let head = body
            .first_chunk::<8>()
            .map(|bytes| zerocopy::transmute!(*bytes))
            .ok_or(Status::Invalid)?;
        let head: MrAppendBody = head;
        let key = head.lkey.get();
        let extents = self.objects.memory.takes_extents(context, key)?;
        append!(self, context, key, body, MrAppendBody, extents)
    }

    pub(super) fn mr_commit(&mut self, context: u32, body: &[u8], _: &mut Vec<u8>) -> Outcome {
        self.objects.memory.commit(context, handle(body)?)
    }

    pub(super) fn dereg_mr(&mut self, context: u32, body: &[u8], _: &mut Vec<u8>) -> Outcome {
        let key = handle(body)?;
        self.objects.memory.check_deregister(context, key)?;
        self.fabric.forget_memory();
        let pd = self.objects.memory.deregister(context, key)?;
        self.objects.release_pd(pd);
        Ok(())
    }

    pub(super) fn rereg_mr(&mut self, context: u32, body: &[u8], _: &mut Vec<u8>) -> Outcome {
        let head: ReregMrBody = whole(body)?;
        let flags = head.flags.get();
        if flags & !rereg_flag::ALL != 0 || head.reserved.get() != 0 {
            return Err(Status::Invalid);
        }
        let given = |flag, value: Le32| match (flags & flag != 0, value.get()) {
            (true, value) => Ok(Some(value)),
            (false, 0) => Ok(None),
            (false, _) => Err(Status::Invalid),
        };
        let change = Change {
            access: given(rereg_flag::ACCESS, head.access)?,
            pd: given(rereg_flag::PD, head.pd)?,
            source: given(rereg_flag::TRANSLATION, head.source)?,
        };
        if let Some(pd) = change.pd {
            self.objects.check_pd(context, pd)?;
        }
        let key = head.lkey.get();
        self.objects.memory.check_deregister(context, key)?;
        self.fabric.forget_memory();
        let (old, source) = self.objects.memory.change(context, key, &change)?;
        if let Some(pd) = change.pd {
            self.objects.hold_pd(pd);
            self.objects.release_pd(old);
        }
        if let Some(pd) = source {
            self.objects.release_pd(pd);
        }
        Ok(())
    }

    pub(super) fn alloc_mr(&mut self, context: u32, body: &[u8], reply: &mut Vec<u8>) -> Outcome {
        self.need(feature::FRWR)?;
        let (head, pages) =
            with_list::<AllocMrBody, Le64>(body, |head| head.buffer.num_pages.get())?;
        let room = head.max_entries.get();
        if room == 0 || room > self.config.limits.fast_reg_pages {
            return Err(Status::Invalid);
        }
        let pd = head.pd.get();
        self.objects.check_pd(context, pd)?;
        let memory = self.map(&head.buffer, pages)?;
        let offset = head.list_offset.get();
        if !offset.is_multiple_of(8) || !memory.contains(offset, 8 * u64::from(room)) {
            return Err(Status::Invalid);
        }
        let key = self
            .objects
            .memory
            .alloc_fast(context, pd, memory, offset, room)?;
        self.objects.hold_pd(pd);
        put_keys(reply, key);
        Ok(())
    }

    pub(super) fn alloc_mw(&mut self, context: u32, body: &[u8], reply: &mut Vec<u8>) -> Outcome {
        self.need(feature::MW)?;
        let head: AllocMwBody = whole(body)?;
        let kind = match (head.kind, head.reserved) {
            (1, [0, 0, 0]) => WindowKind::One,
            (2, [0, 0, 0]) => WindowKind::Two,
            _ => return Err(Status::Invalid),
        };
        let pd = head.pd.get();
        self.objects.check_pd(context, pd)?;
        let key = self.objects.memory.alloc_window(context, pd, kind)?;
        self.objects.hold_pd(pd);
        put_handle(reply, key);
        Ok(())
    }

    pub(super) fn dealloc_mw(&mut self, context: u32, body: &[u8], _: &mut Vec<u8>) -> Outcome {
        self.need(feature::MW)?;
        let window = handle(body)?;
        self.objects.memory.find_window(context, window)?;
        self.fabric.forget_memory();
        let pd = self.objects.memory.dealloc_window(context, window)?;
        self.objects.release_pd(pd);
        Ok(())
    }
}
