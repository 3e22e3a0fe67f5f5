//! Regions that are registered by work request, memory windows, and changes of registrations.

use super::{Context, KERNEL, Node, Outcome};
use crate::layout::{Body, command, le32, send};
use crate::memory::{Buffer, PAGE};
use crate::rings::SendWr;

/// REREG_MR flags (section 4.15).
pub mod rereg {
    #![allow(missing_docs, reason = "the names are those of the specification")]
    pub const TRANSLATION: u32 = 1;
    pub const PD: u32 = 2;
    pub const ACCESS: u32 = 4;
}

/// A region for fast registration, and its list.
pub struct FastMr {
    /// By which commands name it; its first key.
    pub handle: u32,
    /// The list.
    pub list: Buffer,
}

impl FastMr {
    /// Writes the list.
    pub fn fill(&self, pages: &[u64]) {
        for (n, page) in pages.iter().enumerate() {
            self.list.write(8 * n, &page.to_le_bytes());
        }
    }

    /// Its key with another tag.
    pub fn key(&self, tag: u8) -> u32 {
        self.handle & !0xff | u32::from(tag)
    }

    /// A work request that registers `length` bytes from `offset` in the first of `pages` pages, under `key`; the iova is the offset.
    pub fn register(
        &self,
        key: u32,
        pages: u32,
        offset: u64,
        length: u64,
        access: u32,
    ) -> SendWr<'static> {
        SendWr {
            imm: key.to_le_bytes(),
            rkey: access,
            remote_addr: offset,
            compare_add: length,
            swap: offset,
            num_pages: pages,
            page_shift: 12,
            ..SendWr::signaled(0, send::REG_MR)
        }
    }
}

impl Node {
    /// ALLOC_MR with exactly this body.
    pub fn alloc_mr_raw(&self, context: Context, body: &[u8]) -> Outcome<u32> {
        let reply = self.command(command::ALLOC_MR, context.handle, body)?;
        assert_eq!(reply.len(), 8);
        assert_eq!(le32(&reply, 0), le32(&reply, 4), "4.14: one value");
        Ok(le32(&reply, 0))
    }

    /// The body of ALLOC_MR for a list of `room` pages at `offset` in this memory.
    pub fn alloc_mr_body(pd: u32, room: u32, list: &Buffer, offset: u64) -> Vec<u8> {
        let pages = list.dma_pages();
        Body::new()
            .u32(pd)
            .u32(room)
            .u64((pages.len() * PAGE) as u64)
            .u32(12)
            .u32(pages.len() as u32)
            .u64(0)
            .u64(offset)
            .ending(&pages)
    }

    /// A region for fast registration of up to `room` pages.
    pub fn fast_mr(&self, pd: u32, room: u32) -> Outcome<FastMr> {
        let list = self.memory.scattered(8 * room as usize);
        let body = Self::alloc_mr_body(pd, room, &list, 0);
        let handle = self.alloc_mr_raw(KERNEL, &body)?;
        Ok(FastMr { handle, list })
    }

    /// ALLOC_MW; the key.
    pub fn alloc_mw(&self, context: Context, pd: u32, kind: u8) -> Outcome<u32> {
        let body = Body::new().u32(pd).u8(kind).bytes(&[0; 3]).0;
        let reply = self.command(command::ALLOC_MW, context.handle, &body)?;
        assert_eq!((reply.len(), le32(&reply, 4)), (8, 0));
        Ok(le32(&reply, 0))
    }

    /// DEALLOC_MW.
    pub fn dealloc_mw(&self, context: Context, handle: u32) -> Outcome<()> {
        self.handle_command(command::DEALLOC_MW, context, handle)
            .map(drop)
    }

    /// REREG_MR.
    pub fn rereg_mr(
        &self,
        context: Context,
        key: u32,
        flags: u32,
        (pd, access, source): (u32, u32, u32),
    ) -> Outcome<()> {
        let body = Body::new()
            .u32(key)
            .u32(flags)
            .u32(pd)
            .u32(access)
            .u32(source)
            .u32(0)
            .0;
        let reply = self.command(command::REREG_MR, context.handle, &body)?;
        assert!(reply.is_empty());
        Ok(())
    }
}
