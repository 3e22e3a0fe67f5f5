//! The memory of a queue: registered when the queue is made, and gone with it.

use super::{DmaSpace, Segment};
use crate::rdma::wire::Status;

/// Buffers begin and end at multiples of this; no queue element crosses one.
const CHUNK: u64 = 4096;

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
    /// Host address of each page, or of the first alone where all follow one another.
    bases: Box<[*mut u8]>,
    page_shift: u32,
    /// Of the buffer in its first page.
    offset: u64,
    contiguous: bool,
    pages: u32,
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
        let mut bases = Vec::with_capacity(pages.len());
        let mut found: Vec<Segment> = Vec::with_capacity(2);
        let mut contiguous = true;
        let mut expected = std::ptr::null_mut();
        for (n, &address) in pages.iter().enumerate() {
            let start = (n as u64) << page_shift;
            // The part of the page that is used.
            let first = offset.saturating_sub(start);
            let used = (end - start).min(page) - first;
            if address & (page - 1) != 0 {
                return Err(Status::BadAddress);
            }
            found.clear();
            // No overflow: the address is a multiple of the page size, and `first` is less than that.
            if !dma.translate(address + first, used, &mut found) {
                return Err(Status::BadAddress);
            }
            let base = match found[..] {
                [Segment { base, len }]
                    if len as u64 == used && (base.addr() as u64).is_multiple_of(CHUNK) =>
                {
                    base
                }
                _ => return Err(Status::BadAddress),
            };
            contiguous &= n == 0 || base == expected;
            expected = base.wrapping_add(used as usize);
            // Of the page's first byte; it is only ever used with an offset that was checked.
            bases.push(base.wrapping_sub(first as usize));
        }
        if contiguous {
            bases.truncate(1);
        }
        Ok(RingMemory {
            length,
            bases: bases.into_boxed_slice(),
            page_shift,
            offset,
            contiguous,
            // As many as a command had.
            pages: pages.len() as u32,
        })
    }

    /// List entries that the buffer was registered with.
    pub(crate) fn entries(&self) -> u64 {
        self.pages.into()
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

    /// The le64 at `offset`, a multiple of 8. The offset must lie inside the buffer.
    pub(super) fn load64(&self, offset: u64) -> u64 {
        let mut bytes = [0; 8];
        // SAFETY: `at` vouches for the bytes up to the next multiple of 4096, and so of 8; the memory is registered as long as `self` lives.
        unsafe { super::access::read(self.at(offset), &mut bytes) };
        u64::from_le_bytes(bytes)
    }

    /// Host address of `offset`, valid for the bytes up to the next multiple of 4096. The offset must lie inside the buffer.
    #[inline]
    pub fn at(&self, offset: u64) -> *mut u8 {
        assert!(
            offset < self.length,
            "an offset was not checked at creation"
        );
        let at = self.offset + offset;
        if self.contiguous {
            self.bases[0].wrapping_add(at as usize)
        } else {
            let within = at & ((1 << self.page_shift) - 1);
            self.bases[(at >> self.page_shift) as usize].wrapping_add(within as usize)
        }
    }
}

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
    fn large_pages_that_do_not_follow_one_another_are_used_from_the_offset_on() {
        let ram = FakeRam::new(0x10000);
        let pages = [0x8000, 0, 0xc000];
        let ring = RingMemory::map(&ram, buffer(0x9000, 14, 0x2000), &pages).unwrap();
        for (offset, guest) in [
            (0, 0xa000),
            (0x1fff, 0xbfff),
            (0x2000, 0),
            (0x5fff, 0x3fff),
            (0x6000, 0xc000),
            (0x8fff, 0xefff),
        ] {
            assert_eq!(ring.at(offset), ram.host(guest), "{offset:#x}");
        }
        assert_eq!(ring.entries(), 3);
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
