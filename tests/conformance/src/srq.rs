//! Shared receive queues: the commands of section 4.12 and posting by section 6.1.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::layout::{CreateSrq, ModifySrq, Sge, SrqAttributes, SrqBuffer, command, le32, srq_mask};
use crate::memory::{Buffer, PAGE};
use crate::node::{Context, KERNEL, Node, Outcome};
use crate::rings::{Full, fill_recv, shared};

/// A shared receive queue's ring.
pub struct Srq {
    /// Its handle.
    pub srqn: u32,
    /// Owner.
    pub context: Context,
    /// Length of the ring.
    pub entries: u32,
    /// Bytes of a WQE.
    pub stride: u32,
    /// Free-running producer.
    pub producer: u32,
    ctrl: *mut u8,
    ring: *mut u8,
    /// The memory behind it.
    pub buffer: Buffer,
}

// SAFETY: the pointers lead into `buffer`, which goes with the value.
unsafe impl Send for Srq {}

/// Bytes of a WQE with room for so many SGEs.
fn stride(max_sge: u32) -> u32 {
    (16 + 16 * max_sge).next_power_of_two()
}

impl Node {
    /// Memory for a ring, its control block in front, and how a command says so.
    pub fn srq_buffer(&self, entries: u32, stride: u32) -> (SrqBuffer, Buffer) {
        let ring_offset = 128u64.next_multiple_of(stride.into());
        let len = ring_offset + u64::from(entries) * u64::from(stride);
        let len = len.next_multiple_of(PAGE as u64);
        let buffer = if len <= 16 * PAGE as u64 {
            self.memory.scattered(len as usize)
        } else {
            self.memory.contiguous(len as usize)
        };
        let pages = buffer.dma_pages();
        let ring = SrqBuffer {
            buf_length: len,
            page_shift: 12,
            num_pages: pages.len() as u32,
            buf_offset: 0,
            ctrl_offset: 0,
            ring_offset,
            pages,
        };
        (ring, buffer)
    }

    /// CREATE_SRQ.
    pub fn create_srq(
        &self,
        context: Context,
        pd: u32,
        entries: u32,
        max_sge: u32,
    ) -> Outcome<Srq> {
        let (ring, buffer) = self.srq_buffer(entries, stride(max_sge));
        let create = CreateSrq {
            pd,
            kind: 0,
            cq: 0,
            xrcd: 0,
            entries,
            stride: stride(max_sge),
            max_sge,
            ring,
        };
        self.create_srq_raw(context, &create, buffer)
    }

    /// CREATE_SRQ of type XRC, in a domain and with a CQ of its own.
    pub fn create_xrc_srq(
        &self,
        context: Context,
        pd: u32,
        entries: u32,
        (cq, xrcd): (u32, u32),
    ) -> Outcome<Srq> {
        let (ring, buffer) = self.srq_buffer(entries, stride(2));
        let create = CreateSrq {
            pd,
            kind: 1,
            cq,
            xrcd,
            entries,
            stride: stride(2),
            max_sge: 2,
            ring,
        };
        self.create_srq_raw(context, &create, buffer)
    }

    /// ALLOC_XRCD.
    pub fn alloc_xrcd(&self) -> Outcome<u32> {
        let body = self.command(command::ALLOC_XRCD, 0, &[])?;
        assert_eq!(body.len(), 8);
        Ok(le32(&body, 0))
    }

    /// DEALLOC_XRCD.
    pub fn dealloc_xrcd(&self, xrcd: u32) -> Outcome<()> {
        self.handle_command(command::DEALLOC_XRCD, KERNEL, xrcd)
            .map(drop)
    }

    /// CREATE_SRQ with exactly this body.
    pub fn create_srq_raw(
        &self,
        context: Context,
        create: &CreateSrq,
        buffer: Buffer,
    ) -> Outcome<Srq> {
        let body = self.command(command::CREATE_SRQ, context.handle, &create.encode())?;
        assert_eq!(body.len(), 8);
        let (ctrl, ring) = parts(&buffer, &create.ring);
        Ok(Srq {
            srqn: le32(&body, 0),
            context,
            entries: create.entries,
            stride: create.stride,
            producer: 0,
            ctrl,
            ring,
            buffer,
        })
    }

    /// MODIFY_SRQ with exactly this body.
    pub fn modify_srq(&self, context: Context, modify: &ModifySrq) -> Outcome<()> {
        self.command(command::MODIFY_SRQ, context.handle, &modify.encode())
            .map(drop)
    }

    /// MODIFY_SRQ that arms a limit.
    pub fn limit_srq(&self, srq: &Srq, limit: u32) -> Outcome<()> {
        let modify = ModifySrq {
            srq: srq.srqn,
            mask: srq_mask::LIMIT,
            limit,
            ..Default::default()
        };
        self.modify_srq(srq.context, &modify)
    }

    /// MODIFY_SRQ that gives it another ring: what may still be wanted of the old one is copied there first.
    pub fn resize_srq(&self, srq: &mut Srq, entries: u32) -> Outcome<()> {
        let (ring, buffer) = self.srq_buffer(entries, srq.stride);
        let (ctrl, to) = parts(&buffer, &ring);
        let left = srq.left();
        for index in (1..=left.min(entries)).map(|n| srq.producer.wrapping_sub(n)) {
            let offset = (index & (entries - 1)) as usize * srq.stride as usize;
            // SAFETY: a slot of each ring, both of which are there.
            unsafe {
                std::ptr::copy_nonoverlapping(srq.slot(index), to.add(offset), srq.stride as usize);
            }
        }
        shared(ctrl).store(srq.producer, Ordering::Release);
        let modify = ModifySrq {
            srq: srq.srqn,
            mask: srq_mask::MAX_WR,
            limit: 0,
            entries,
            ring,
        };
        self.modify_srq(srq.context, &modify)?;
        (srq.entries, srq.ctrl, srq.ring, srq.buffer) = (entries, ctrl, to, buffer);
        Ok(())
    }

    /// QUERY_SRQ.
    pub fn query_srq(&self, context: Context, srqn: u32) -> Outcome<SrqAttributes> {
        let body = self.handle_command(command::QUERY_SRQ, context, srqn)?;
        Ok(SrqAttributes::decode(&body))
    }

    /// DESTROY_SRQ.
    pub fn destroy_srq(&self, context: Context, srqn: u32) -> Outcome<()> {
        self.handle_command(command::DESTROY_SRQ, context, srqn)
            .map(drop)
    }
}

/// Control block and ring, if they lie in the buffer.
fn parts(buffer: &Buffer, ring: &SrqBuffer) -> (*mut u8, *mut u8) {
    let at = |offset: u64| {
        // SAFETY: offsets within the buffer, as the device accepts them or they are not used.
        unsafe { buffer.ptr().add((ring.buf_offset + offset) as usize) }
    };
    (at(ring.ctrl_offset), at(ring.ring_offset))
}

impl Srq {
    /// A WQE's slot.
    pub fn slot(&self, index: u32) -> *mut u8 {
        // SAFETY: the masked index lies in the ring, which lies in the buffer.
        unsafe {
            self.ring
                .add((index & (self.entries - 1)) as usize * self.stride as usize)
        }
    }

    /// WQEs that the device has not taken yet.
    pub fn left(&self) -> u32 {
        // SAFETY: offset 64 of the control block.
        let consumer = shared(unsafe { self.ctrl.add(64) }).load(Ordering::Acquire);
        self.producer.wrapping_sub(consumer)
    }

    /// Posts a receive. Its index.
    #[inline]
    pub fn post(&mut self, wr_id: u64, sges: &[Sge]) -> Result<u32, Full> {
        if self.left() >= self.entries {
            return Err(Full);
        }
        let index = self.producer;
        let slot = self.slot(index);
        // SAFETY: the slot has stride bytes, and is not the device's now.
        unsafe { fill_recv(slot, self.stride, wr_id, sges) };
        self.producer = index.wrapping_add(1);
        self.producer_word().store(self.producer, Ordering::Release);
        Ok(index)
    }

    /// The producer index in the control block, to lie with.
    pub fn producer_word(&self) -> &AtomicU32 {
        shared(self.ctrl)
    }

    /// The device's flags (bit 0: ERROR).
    pub fn flags(&self) -> u32 {
        // SAFETY: offset 68 of the control block.
        shared(unsafe { self.ctrl.add(68) }).load(Ordering::Acquire)
    }
}
