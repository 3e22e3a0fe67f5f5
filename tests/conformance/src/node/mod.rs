//! A guest: memory, kernel driver and processes, over one device.

mod memory;
mod queues;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::doorbell::Doorbells;
use crate::events::Events;
use crate::host::Host;
use crate::layout::{
    Counters, DeviceLimits, MR_DMA, MR_EXTENTS, MR_MORE, RegMr, Sge, Status, access, command, le32,
    le64, request,
};
use crate::memory::{Buffer, GuestMemory, PAGE};

pub use memory::{FastMr, rereg};
pub use queues::QpOptions;

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

    pub(crate) fn handle_command(
        &self,
        opcode: u16,
        context: Context,
        handle: u32,
    ) -> Outcome<Vec<u8>> {
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

    /// A region over all DMA addresses, which only the kernel may have.
    pub fn dma_mr(&self, context: Context, pd: u32, bits: u32) -> Outcome<u32> {
        self.reg_mr_raw(
            context,
            &RegMr {
                pd,
                access: bits,
                flags: MR_DMA,
                ..RegMr::default()
            },
        )
    }

    /// QUERY_CLOCK, in nanoseconds.
    pub fn clock(&self) -> u64 {
        let body = self.command(command::QUERY_CLOCK, 0, &[]);
        le64(&body.expect("QUERY_CLOCK"), 0)
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
}
