//! The memory of a queue: registered when the queue is made, and gone with it.

use super::{DmaSpace, Segment};
use crate::rdma::wire::Status;

/// Ring memory is looked up in pieces of this size; no queue element crosses one.
const CHUNK: u64 = 4096;
const CHUNK_SHIFT: u32 = CHUNK.trailing_zeros();

/// How a command describes a ring buffer (section 4.6).
#[derive(Clone, Copy, Debug)]
pub struct RingBuffer {
    /// Bytes, a multiple of 4096.
    pub length: u64,
    /// Pages of 2^n bytes.
    pub page_shift: u32,
    /// Of the buffer in its first page, a multiple of 4096.
    pub offset: u64,
}

/// Host addresses of a ring buffer.
#[derive(Debug)]
pub struct RingMemory {
    length: u64,
    /// One address for each chunk, or one for the whole buffer where it is contiguous.
    chunks: Box<[*mut u8]>,
    contiguous: bool,
}

// SAFETY: the addresses name guest RAM, which any thread may access by the functions of `access`; the device that owns them is itself
// used by one thread at a time.
unsafe impl Send for RingMemory {}
// SAFETY: as above.
unsafe impl Sync for RingMemory {}

impl RingMemory {
    /// Registers a buffer from its pages.
    ///
    /// # Errors
    /// `Invalid` when sizes or the number of pages do not agree, `BadAddress` when a page is not aligned or not RAM.
    pub fn map(dma: &dyn DmaSpace, buffer: RingBuffer, pages: &[u64]) -> Result<Self, Status> {
        let RingBuffer {
            length,
            page_shift,
            offset,
        } = buffer;
        if !(12..=30).contains(&page_shift) {
            return Err(Status::Invalid);
        }
        let page = 1_u64 << page_shift;
        if length == 0
            || !length.is_multiple_of(CHUNK)
            || !offset.is_multiple_of(CHUNK)
            || offset >= page
        {
            return Err(Status::Invalid);
        }
        let end = offset.checked_add(length).ok_or(Status::Invalid)?;
        if end.div_ceil(page) != pages.len() as u64 {
            return Err(Status::Invalid);
        }
        // The number of pages is bounded by the command's size, but pages are large: a buffer is no larger than the largest queue needs.
        if length > MAX_RING_BYTES {
            return Err(Status::Invalid);
        }
        let mut chunks = Vec::with_capacity((length / CHUNK) as usize);
        let mut found: Vec<Segment> = Vec::with_capacity(2);
        for at in (offset..end).step_by(CHUNK as usize) {
            let base = pages[(at >> page_shift) as usize];
            if base & (page - 1) != 0 {
                return Err(Status::BadAddress);
            }
            found.clear();
            if !dma.translate(base + (at & (page - 1)), CHUNK, &mut found) {
                return Err(Status::BadAddress);
            }
            match found[..] {
                [Segment { base, len }]
                    if len as u64 == CHUNK && (base.addr() as u64).is_multiple_of(CHUNK) =>
                {
                    chunks.push(base);
                }
                _ => return Err(Status::BadAddress),
            }
        }
        let contiguous = chunks
            .windows(2)
            .all(|pair| pair[0].wrapping_add(CHUNK as usize) == pair[1]);
        if contiguous {
            chunks.truncate(1);
        }
        Ok(RingMemory {
            length,
            chunks: chunks.into_boxed_slice(),
            contiguous,
        })
    }

    /// Bytes of the buffer.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Whether `len` bytes at `offset` lie inside the buffer.
    pub fn contains(&self, offset: u64, len: u64) -> bool {
        offset
            .checked_add(len)
            .is_some_and(|end| end <= self.length)
    }

    /// Host address of `offset`, valid for the bytes up to the next multiple of 4096. The offset must lie inside the buffer.
    #[inline]
    pub fn at(&self, offset: u64) -> *mut u8 {
        assert!(
            offset < self.length,
            "an offset was not checked at creation"
        );
        if self.contiguous {
            self.chunks[0].wrapping_add(offset as usize)
        } else {
            self.chunks[(offset >> CHUNK_SHIFT) as usize]
                .wrapping_add((offset & (CHUNK - 1)) as usize)
        }
    }
}

/// Upper bound of a ring buffer, far above what limits allow: it keeps the chunk table of a hostile command small.
const MAX_RING_BYTES: u64 = 1 << 28;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rdma::test_utils::FakeRam;

    fn buffer(length: u64, page_shift: u32, offset: u64) -> RingBuffer {
        RingBuffer {
            length,
            page_shift,
            offset,
        }
    }

    #[test]
    fn offsets_lead_to_the_pages_in_the_order_given() {
        let ram = FakeRam::new(0x8000);
        let ring = RingMemory::map(&ram, buffer(0x3000, 12, 0), &[0x5000, 0x1000, 0x2000]).unwrap();
        assert_eq!(ring.at(0), ram.host(0x5000));
        assert_eq!(ring.at(0xfff), ram.host(0x5fff));
        assert_eq!(ring.at(0x1000), ram.host(0x1000));
        assert_eq!(ring.at(0x2fff), ram.host(0x2fff));
    }

    #[test]
    fn a_large_page_is_used_from_the_offset_on_and_its_unused_rest_need_not_be_ram() {
        let ram = FakeRam::new(0x8000);
        let ring = RingMemory::map(&ram, buffer(0x2000, 21, 0x4000), &[0]).unwrap();
        assert_eq!(ring.at(0x1234), ram.host(0x5234));
        assert!(ring.contains(0x1fff, 1));
        assert!(!ring.contains(0x1fff, 2));
        assert!(!ring.contains(u64::MAX, 2));
    }

    #[test]
    fn sizes_that_do_not_agree_are_invalid() {
        let ram = FakeRam::new(0x8000);
        for (b, pages) in [
            (buffer(0, 12, 0), &[][..]),
            (buffer(0x1000, 11, 0), &[0, 0x1000]),
            (buffer(0x1000, 31, 0), &[0]),
            (buffer(0x1000, 64, 0), &[0]),
            (buffer(0x1800, 12, 0), &[0, 0x1000]),
            (buffer(0x1000, 13, 0x800), &[0]),
            (buffer(0x1000, 12, 0x1000), &[0, 0x1000]),
            (buffer(0x2000, 12, 0), &[0]),
            (buffer(0x1000, 12, 0), &[0, 0x1000]),
            (buffer(u64::MAX - 0xfff, 30, 0x1000), &[0]),
            (buffer(1 << 30, 30, 0), &[0]),
        ] {
            assert_eq!(
                RingMemory::map(&ram, b, pages).err(),
                Some(Status::Invalid),
                "{b:?}"
            );
        }
    }

    #[test]
    fn pages_that_are_not_ram_or_not_aligned_are_bad_addresses() {
        let ram = FakeRam::new(0x8000);
        for pages in [[0x8000], [0x1800], [!0xfff]] {
            let ring = RingMemory::map(&ram, buffer(0x1000, 12, 0), &pages);
            assert_eq!(ring.err(), Some(Status::BadAddress));
        }
    }
}
