//! Completion queues and queue pairs of a node, by command.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::layout::{Body, CreateCq, CreateQp, QpAttributes, command, le32, qp_type};
use crate::memory::{Buffer, PAGE};
use crate::rings::{Cq, Qp};

use super::{Context, Node, Outcome};

/// How a QP is to be.
#[derive(Clone, Copy, Debug)]
pub struct QpOptions {
    /// Its type.
    pub kind: u32,
    /// Send WQEs.
    pub sq_entries: u32,
    /// Receive WQEs.
    pub rq_entries: u32,
    /// SGEs of a send.
    pub send_sge: u32,
    /// SGEs of a receive.
    pub recv_sge: u32,
    /// Inline bytes.
    pub inline: u32,
    /// Every send is signalled.
    pub signal_all: bool,
    /// What it sends to a group does not come back to it.
    pub block_loopback: bool,
    /// Rings in pages that do not follow one another.
    pub scattered: bool,
    /// A shared receive queue instead of receives of its own; 0 for none.
    pub srq: u32,
    /// The domain of an XRC target; 0 for none.
    pub xrcd: u32,
}

impl Default for QpOptions {
    fn default() -> Self {
        QpOptions {
            kind: qp_type::RC,
            sq_entries: 64,
            rq_entries: 64,
            send_sge: 4,
            recv_sge: 4,
            inline: 64,
            signal_all: false,
            block_loopback: false,
            scattered: true,
            srq: 0,
            xrcd: 0,
        }
    }
}

impl QpOptions {
    /// The sending end of an XRC connection.
    pub fn xrc_initiator() -> Self {
        QpOptions {
            kind: qp_type::XRC_INI,
            rq_entries: 0,
            ..Default::default()
        }
    }

    /// The receiving end, in a domain. It has neither a PD nor CQs.
    pub fn xrc_target(xrcd: u32) -> Self {
        QpOptions {
            kind: qp_type::XRC_TGT,
            sq_entries: 0,
            rq_entries: 0,
            xrcd,
            ..Default::default()
        }
    }
}

impl Node {
    /// CREATE_CQ.
    pub fn create_cq(&self, context: Context, entries: u32, vector: u32) -> Outcome<Cq> {
        let (body, buffer) = self.cq_layout(entries, vector);
        self.create_cq_raw(context, &body, buffer)
    }

    /// RESIZE_CQ, as a provider does it that nobody polls or arms beside: the arm word goes along, indices start anew.
    pub fn resize_cq(&self, context: Context, cq: &mut Cq, entries: u32) -> Outcome<()> {
        let (body, buffer) = self.cq_layout(entries, 0);
        // SAFETY: the second word of the control block that `cq_layout` has put at the buffer's begin.
        let arm = unsafe { AtomicU32::from_ptr(buffer.ptr().add(4).cast()) };
        arm.store(cq.arm_word().load(Ordering::Relaxed), Ordering::Relaxed);
        self.resize_cq_raw(context, cq.cqn, &body)?;
        // SAFETY: as the layout says.
        (cq.ctrl, cq.ring) = unsafe { (buffer.ptr(), buffer.ptr().add(128)) };
        (cq.entries, cq.consumer, cq.buffer) = (entries, 0, buffer);
        Ok(())
    }

    /// RESIZE_CQ with exactly this body but for the CQ's number. The new ring's memory must outlive the CQ, or the next resize.
    pub fn resize_cq_raw(&self, context: Context, cqn: u32, body: &CreateCq) -> Outcome<()> {
        let body = CreateCq {
            vector: cqn,
            ..body.clone()
        };
        self.command(command::RESIZE_CQ, context.handle, &body.encode())
            .map(drop)
    }

    /// MODIFY_CQ.
    pub fn modify_cq(&self, context: Context, cqn: u32, count: u16, period: u16) -> Outcome<()> {
        let mut body = cqn.to_le_bytes().to_vec();
        body.extend_from_slice(&count.to_le_bytes());
        body.extend_from_slice(&period.to_le_bytes());
        self.command(command::MODIFY_CQ, context.handle, &body)
            .map(drop)
    }

    /// The body of CREATE_CQ and the memory for it.
    pub fn cq_layout(&self, entries: u32, vector: u32) -> (CreateCq, Buffer) {
        let ring_len = entries as usize * 64;
        let len = (128 + ring_len).next_multiple_of(PAGE);
        let buffer = if len <= 16 * PAGE {
            self.memory.scattered(len)
        } else {
            self.memory.contiguous(len)
        };
        let pages = buffer.dma_pages();
        let body = CreateCq {
            entries,
            vector,
            buf_length: len as u64,
            page_shift: 12,
            num_pages: pages.len() as u32,
            buf_offset: 0,
            ctrl_offset: 0,
            ring_offset: 128,
            pages,
        };
        (body, buffer)
    }

    /// CREATE_CQ with exactly this body.
    pub fn create_cq_raw(
        &self,
        context: Context,
        create: &CreateCq,
        buffer: Buffer,
    ) -> Outcome<Cq> {
        let body = self.command(command::CREATE_CQ, context.handle, &create.encode())?;
        assert_eq!(body.len(), 8);
        // SAFETY: offsets within the buffer, as the device has accepted them.
        let (ctrl, ring) = unsafe {
            let base = buffer.ptr().add(create.buf_offset as usize);
            (
                base.add(create.ctrl_offset as usize),
                base.add(create.ring_offset as usize),
            )
        };
        Ok(Cq {
            cqn: le32(&body, 0),
            vector: create.vector,
            entries: create.entries,
            consumer: 0,
            sequence: 0,
            ctrl,
            ring,
            buffer,
        })
    }

    /// DESTROY_CQ.
    pub fn destroy_cq(&self, context: Context, cqn: u32) -> Outcome<()> {
        self.handle_command(command::DESTROY_CQ, context, cqn)
            .map(drop)
    }

    /// The body of CREATE_QP and the memory for it.
    pub fn qp_layout(
        &self,
        pd: u32,
        send_cq: u32,
        recv_cq: u32,
        options: &QpOptions,
    ) -> (CreateQp, Buffer) {
        let rq_entries = if options.srq == 0 {
            options.rq_entries
        } else {
            0
        };
        let sq_stride = (64 + (16 * options.send_sge).max(options.inline))
            .next_power_of_two()
            .max(64);
        let rq_stride = (16 + 16 * options.recv_sge).next_power_of_two().max(16);
        let sq_offset = 256u64.next_multiple_of(u64::from(sq_stride));
        let sq_end = sq_offset + u64::from(options.sq_entries) * u64::from(sq_stride);
        let rq_offset = sq_end.next_multiple_of(u64::from(rq_stride));
        let len = (rq_offset + u64::from(rq_entries) * u64::from(rq_stride))
            .next_multiple_of(PAGE as u64);
        let buffer = if options.scattered {
            self.memory.scattered(len as usize)
        } else {
            self.memory.contiguous(len as usize)
        };
        let pages = buffer.dma_pages();
        let create = CreateQp {
            pd,
            kind: options.kind,
            send_cq,
            recv_cq,
            srq: options.srq,
            flags: u32::from(options.signal_all) | u32::from(options.block_loopback) << 1,
            sq_entries: options.sq_entries,
            sq_stride,
            rq_entries,
            rq_stride,
            max_send_sge: options.send_sge,
            max_recv_sge: options.recv_sge,
            max_inline: options.inline,
            xrcd: options.xrcd,
            buf_length: len,
            page_shift: 12,
            num_pages: pages.len() as u32,
            buf_offset: 0,
            ctrl_offset: 0,
            sq_offset,
            rq_offset,
            pages,
        };
        (create, buffer)
    }

    /// CREATE_QP.
    pub fn create_qp(
        &self,
        context: Context,
        pd: u32,
        send_cq: u32,
        recv_cq: u32,
        options: &QpOptions,
    ) -> Outcome<Qp> {
        let (create, buffer) = self.qp_layout(pd, send_cq, recv_cq, options);
        self.create_qp_raw(context, &create, buffer)
    }

    /// CREATE_QP with exactly this body.
    pub fn create_qp_raw(
        &self,
        context: Context,
        create: &CreateQp,
        buffer: Buffer,
    ) -> Outcome<Qp> {
        let body = self.command(command::CREATE_QP, context.handle, &create.encode())?;
        assert_eq!(body.len(), 8);
        // SAFETY: offsets within the buffer, as the device has accepted them.
        let (ctrl, sq, rq) = unsafe {
            let base = buffer.ptr().add(create.buf_offset as usize);
            (
                base.add(create.ctrl_offset as usize),
                base.add(create.sq_offset as usize),
                base.add(create.rq_offset as usize),
            )
        };
        Ok(Qp {
            qpn: le32(&body, 0),
            kind: create.kind,
            page: context.page,
            context: context.handle,
            sq_entries: create.sq_entries,
            sq_stride: create.sq_stride,
            rq_entries: create.rq_entries,
            rq_stride: create.rq_stride,
            sq_producer: 0,
            sq_retired: 0,
            rq_producer: 0,
            rq_retired: 0,
            bells: self.bells.clone(),
            ctrl,
            sq,
            rq,
            buffer,
        })
    }

    /// DESTROY_QP.
    pub fn destroy_qp(&self, context: Context, qpn: u32) -> Outcome<()> {
        self.handle_command(command::DESTROY_QP, context, qpn)
            .map(drop)
    }

    /// ATTACH_MCAST or DETACH_MCAST.
    fn mcast(&self, opcode: u16, context: Context, qpn: u32, gid: [u8; 16]) -> Outcome<()> {
        let body = Body::new().u32(qpn).u32(0).bytes(&gid).0;
        self.command(opcode, context.handle, &body).map(drop)
    }

    /// ATTACH_MCAST.
    pub fn attach_mcast(&self, context: Context, qpn: u32, gid: [u8; 16]) -> Outcome<()> {
        self.mcast(command::ATTACH_MCAST, context, qpn, gid)
    }

    /// DETACH_MCAST.
    pub fn detach_mcast(&self, context: Context, qpn: u32, gid: [u8; 16]) -> Outcome<()> {
        self.mcast(command::DETACH_MCAST, context, qpn, gid)
    }

    /// MODIFY_QP.
    pub fn modify_qp(&self, context: u32, attributes: &QpAttributes) -> Outcome<()> {
        self.command(command::MODIFY_QP, context, &attributes.encode())
            .map(drop)
    }

    /// QUERY_QP.
    pub fn query_qp(&self, context: u32, qpn: u32) -> Outcome<QpAttributes> {
        let body = self.handle_command(
            command::QUERY_QP,
            Context {
                handle: context,
                page: 0,
            },
            qpn,
        )?;
        Ok(QpAttributes::decode(&body))
    }
}
