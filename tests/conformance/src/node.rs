//! A guest: memory, kernel driver and processes, over one device.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::doorbell::Doorbells;
use crate::events::Events;
use crate::host::Host;
use crate::layout::{
    Counters, CreateCq, CreateQp, DeviceLimits, MR_EXTENTS, MR_MORE, QpAttributes, RegMr, Sge,
    Status, access, command, le32, le64, request,
};
use crate::memory::{Buffer, GuestMemory, PAGE};
use crate::rings::{Cq, Qp};

/// The result of a command.
pub type Outcome<T> = Result<T, Status>;

/// A user context, or the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context {
    /// Handle; 0 is the kernel.
    pub handle: u32,
    /// Its doorbell page; 0 is the kernel's.
    pub page: u32,
}

/// The kernel's own context.
pub const KERNEL: Context = Context { handle: 0, page: 0 };

/// A memory region and the memory in it.
pub struct Mr {
    /// lkey and rkey.
    pub key: u32,
    /// Address of its first byte, as work requests name it.
    pub iova: u64,
    /// Bytes.
    pub len: u64,
    /// The memory.
    pub buffer: Buffer,
    /// Where in the buffer it starts.
    pub start: usize,
}

impl Mr {
    /// An SGE of `len` bytes from `at`.
    pub fn sge(&self, at: usize, len: usize) -> Sge {
        Sge {
            addr: self.iova + at as u64,
            length: len as u32,
            lkey: self.key,
        }
    }
    /// Copies bytes in, at an offset in the region.
    pub fn write(&self, at: usize, bytes: &[u8]) {
        self.buffer.write(self.start + at, bytes);
    }
    /// Copies bytes out.
    pub fn read(&self, at: usize, len: usize) -> Vec<u8> {
        self.buffer.read(self.start + at, len)
    }
    /// Panics unless the bytes of its pages before and after it are all `filler`.
    pub fn assert_edges(&self, filler: u8) {
        let (start, end) = (self.start, self.start + self.len as usize);
        let whole = end.next_multiple_of(PAGE);
        for (at, len, which) in [(0, start, "before"), (end, whole - end, "after")] {
            assert!(
                self.buffer.read(at, len).iter().all(|byte| *byte == filler),
                "bytes {which} a region were written"
            );
        }
    }
}

/// How a QP is to be.
#[derive(Clone, Copy, Debug)]
pub struct QpOptions {
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
    /// Rings in pages that do not follow one another.
    pub scattered: bool,
}

impl Default for QpOptions {
    fn default() -> Self {
        QpOptions {
            sq_entries: 64,
            rq_entries: 64,
            send_sge: 4,
            recv_sge: 4,
            inline: 64,
            signal_all: false,
            scattered: true,
        }
    }
}

/// A guest with its device.
pub struct Node {
    /// Its RAM.
    pub memory: Arc<GuestMemory>,
    /// What runs the device.
    pub host: Host,
    /// Doorbell pages.
    pub bells: Arc<Doorbells>,
    /// What came on the event queues.
    pub events: Arc<Events>,
    /// The GID that leads here (index 0 of the table, once added).
    pub gid: [u8; 16],
    cookie: AtomicU64,
}

/// Room for any reply.
pub const REPLY_ROOM: usize = 4096;

impl Node {
    /// A node over a device that is already on a host.
    pub fn new(
        memory: Arc<GuestMemory>,
        host: Host,
        bells: Arc<Doorbells>,
        events: Arc<Events>,
        gid: [u8; 16],
    ) -> Node {
        Node {
            memory,
            host,
            bells,
            events,
            gid,
            cookie: AtomicU64::new(0x1000),
        }
    }

    /// Gives the device any bytes as a command. The reply, as many bytes as the device wrote.
    pub fn raw_command(&self, bytes: &[u8], reply_room: usize) -> Vec<u8> {
        self.host.command(bytes, reply_room)
    }

    /// One command; the reply's body.
    pub fn command(&self, opcode: u16, context: u32, body: &[u8]) -> Outcome<Vec<u8>> {
        let cookie = self.cookie.fetch_add(1, Ordering::Relaxed);
        let reply = self.raw_command(&request(opcode, context, cookie, body), REPLY_ROOM);
        assert!(
            reply.len() >= 16,
            "section 4: a reply has a header; opcode {opcode:#x} got {} bytes",
            reply.len()
        );
        let (status, length) = (le32(&reply, 0), le32(&reply, 4));
        assert_eq!(le64(&reply, 8), cookie, "section 4: the cookie is echoed");
        assert_eq!(
            length as usize,
            reply.len(),
            "section 4: length is that of header and body"
        );
        let status = Status::from_raw(status)
            .unwrap_or_else(|| panic!("status {status} is not in the table"));
        match status {
            Status::Ok => Ok(reply[16..].to_vec()),
            _ => {
                assert_eq!(reply.len(), 16, "section 4: a failed command has no body");
                Err(status)
            }
        }
    }

    fn handle_command(&self, opcode: u16, context: Context, handle: u32) -> Outcome<Vec<u8>> {
        let mut body = handle.to_le_bytes().to_vec();
        body.extend_from_slice(&[0; 4]);
        self.command(opcode, context.handle, &body)
    }

    /// QUERY_DEVICE.
    pub fn limits(&self) -> DeviceLimits {
        DeviceLimits::decode(
            &self
                .command(command::QUERY_DEVICE, 0, &[])
                .expect("QUERY_DEVICE"),
        )
    }

    /// QUERY_COUNTERS.
    pub fn counters(&self) -> Counters {
        Counters::decode(
            &self
                .command(command::QUERY_COUNTERS, 0, &[])
                .expect("QUERY_COUNTERS"),
        )
    }

    /// ADD_GID.
    pub fn add_gid(&self, index: u32, gid: [u8; 16]) -> Outcome<()> {
        let mut body = index.to_le_bytes().to_vec();
        body.extend_from_slice(&[2, 0, 0xff, 0xff]);
        body.extend_from_slice(&gid);
        body.extend_from_slice(&[2, 0, 0, 0, 0, gid[15], 0, 0]);
        assert_eq!(body.len(), 32);
        self.command(command::ADD_GID, 0, &body).map(drop)
    }

    /// DEL_GID.
    pub fn del_gid(&self, index: u32) -> Outcome<()> {
        self.handle_command(command::DEL_GID, KERNEL, index)
            .map(drop)
    }

    /// CREATE_CONTEXT.
    pub fn create_context(&self) -> Outcome<Context> {
        let body = self.command(command::CREATE_CONTEXT, 0, &[])?;
        assert_eq!(body.len(), 8);
        Ok(Context {
            handle: le32(&body, 0),
            page: le32(&body, 4),
        })
    }

    /// DESTROY_CONTEXT.
    pub fn destroy_context(&self, context: Context) -> Outcome<()> {
        self.handle_command(command::DESTROY_CONTEXT, KERNEL, context.handle)
            .map(drop)
    }

    /// CREATE_PD.
    pub fn create_pd(&self, context: Context) -> Outcome<u32> {
        let body = self.command(command::CREATE_PD, context.handle, &[])?;
        assert_eq!(body.len(), 8);
        Ok(le32(&body, 0))
    }

    /// DESTROY_PD.
    pub fn destroy_pd(&self, context: Context, pd: u32) -> Outcome<()> {
        self.handle_command(command::DESTROY_PD, context, pd)
            .map(drop)
    }

    /// REG_MR with exactly this body.
    pub fn reg_mr_raw(&self, context: Context, reg: &RegMr) -> Outcome<u32> {
        let body = self.command(command::REG_MR, context.handle, &reg.encode())?;
        assert_eq!(body.len(), 8);
        assert_eq!(
            le32(&body, 0),
            le32(&body, 4),
            "4.4: lkey and rkey are the same value"
        );
        Ok(le32(&body, 0))
    }

    /// MR_APPEND.
    pub fn mr_append(
        &self,
        context: Context,
        key: u32,
        count: u32,
        entries: &[u64],
    ) -> Outcome<()> {
        let mut body = key.to_le_bytes().to_vec();
        body.extend_from_slice(&count.to_le_bytes());
        for entry in entries {
            body.extend_from_slice(&entry.to_le_bytes());
        }
        self.command(command::MR_APPEND, context.handle, &body)
            .map(drop)
    }

    /// MR_COMMIT.
    pub fn mr_commit(&self, context: Context, key: u32) -> Outcome<()> {
        self.handle_command(command::MR_COMMIT, context, key)
            .map(drop)
    }

    /// Registers a list of pages or extents, in as many commands as it takes: at most `per_command` entries in each.
    pub fn reg_list(
        &self,
        context: Context,
        mut reg: RegMr,
        list: &[u64],
        per_command: usize,
    ) -> Outcome<u32> {
        let words = if reg.flags & MR_EXTENTS != 0 { 2 } else { 1 };
        let total = list.len() / words;
        let first = total.min(per_command);
        reg.total_entries = total as u32;
        reg.num_entries = first as u32;
        reg.entries = list[..first * words].to_vec();
        if first < total {
            reg.flags |= MR_MORE;
        }
        let key = self.reg_mr_raw(context, &reg)?;
        if first < total {
            for part in list[first * words..].chunks(per_command * words) {
                self.mr_append(context, key, (part.len() / words) as u32, part)?;
            }
            self.mr_commit(context, key)?;
        }
        Ok(key)
    }

    /// Registers `len` bytes from `start` of a buffer, byte for byte, as a page array; iova is the process's address.
    pub fn reg_mr(
        &self,
        context: Context,
        pd: u32,
        buffer: Buffer,
        start: usize,
        len: usize,
        bits: u32,
    ) -> Outcome<Mr> {
        let pages = buffer.dma_pages();
        let used = &pages[start / PAGE..(start + len).div_ceil(PAGE).max(start / PAGE)];
        let iova = buffer.addr() + start as u64;
        let reg = RegMr {
            pd,
            access: bits,
            iova,
            length: len as u64,
            offset: (start % PAGE) as u64,
            page_shift: 12,
            flags: 0,
            total_entries: 0,
            num_entries: 0,
            entries: Vec::new(),
        };
        let key = self.reg_list(context, reg, used, 400)?;
        Ok(Mr {
            key,
            iova,
            len: len as u64,
            buffer,
            start,
        })
    }

    /// A region of `len` bytes in pages all over the place, with every right.
    pub fn mr(&self, context: Context, pd: u32, len: usize) -> Mr {
        let buffer = self.memory.scattered(len);
        self.reg_mr(context, pd, buffer, 0, len, access::ALL)
            .expect("a region")
    }

    /// A region of `len` bytes in neighbouring pages, with every right: what is quickest for large buffers.
    pub fn mr_contiguous(&self, context: Context, pd: u32, len: usize) -> Mr {
        let buffer = self.memory.contiguous(len);
        self.reg_mr(context, pd, buffer, 0, len, access::ALL)
            .expect("a region")
    }

    /// DEREG_MR.
    pub fn dereg_mr(&self, context: Context, key: u32) -> Outcome<()> {
        self.handle_command(command::DEREG_MR, context, key)
            .map(drop)
    }

    /// CREATE_CQ.
    pub fn create_cq(&self, context: Context, entries: u32, vector: u32) -> Outcome<Cq> {
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
        self.create_cq_raw(context, &body, buffer)
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
        let sq_stride = (64 + (16 * options.send_sge).max(options.inline))
            .next_power_of_two()
            .max(64);
        let rq_stride = (16 + 16 * options.recv_sge).next_power_of_two().max(16);
        let sq_offset = 256u64.next_multiple_of(u64::from(sq_stride));
        let sq_end = sq_offset + u64::from(options.sq_entries) * u64::from(sq_stride);
        let rq_offset = sq_end.next_multiple_of(u64::from(rq_stride));
        let len = (rq_offset + u64::from(options.rq_entries) * u64::from(rq_stride))
            .next_multiple_of(PAGE as u64);
        let buffer = if options.scattered {
            self.memory.scattered(len as usize)
        } else {
            self.memory.contiguous(len as usize)
        };
        let pages = buffer.dma_pages();
        let create = CreateQp {
            pd,
            kind: 2,
            send_cq,
            recv_cq,
            srq: 0,
            flags: options.signal_all.into(),
            sq_entries: options.sq_entries,
            sq_stride,
            rq_entries: options.rq_entries,
            rq_stride,
            max_send_sge: options.send_sge,
            max_recv_sge: options.recv_sge,
            max_inline: options.inline,
            xrcd: 0,
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

    /// CREATE_QP, type RC.
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
