//! How the bytes of a region are found, and how that is built from the list of a command.

use std::sync::Arc;

use super::request::RegionRequest;
use super::{DmaSpace, Segment, push_segment};
use crate::rdma::wire::Status;

/// Extents up to this many are searched faster than a page table is read.
const FEW_EXTENTS: usize = 8;

/// An entry of a list: a page has the length that the region's page size says.
#[derive(Clone, Copy, Debug)]
pub struct RegionEntry {
    /// DMA address.
    pub address: u64,
    /// Bytes; of extents only.
    pub length: u64,
}

/// A piece of guest memory and where in the region it starts.
#[derive(Clone, Copy)]
pub(super) struct Extent {
    start: u64,
    base: *mut u8,
}

/// How a region's bytes are found. Cheap to clone: a memory window has that of its region.
#[derive(Clone)]
pub(super) enum Layout {
    /// One stretch of host memory.
    Contiguous(*mut u8),
    /// A table of pages, each in one piece; the first byte lies `offset` into page 0.
    Pages {
        shift: u8,
        offset: u64,
        bases: Arc<[*mut u8]>,
    },
    /// Pieces of any length, sorted by where they start; the first starts at 0.
    Extents(Arc<[Extent]>),
    /// Addresses in the region are DMA addresses, looked up at every use.
    Dma(Arc<dyn DmaSpace>),
}

/// A region whose list is coming in.
pub(super) struct Builder {
    page_shift: u8,
    pub(super) extents: bool,
    /// Of the next entry: not 0 for the first one only.
    skip: u64,
    pub(super) entries_left: u32,
    /// Bytes that the list has covered.
    pub(super) covered: u64,
    /// A page is not in one piece of host memory.
    split: bool,
    pieces: Vec<Extent>,
    /// Host address behind the last piece.
    end: *mut u8,
    offset: u64,
}

impl Builder {
    /// An empty list of a request that was checked.
    pub(super) fn new(request: &RegionRequest) -> Self {
        Builder {
            page_shift: request.page_shift,
            extents: request.extents,
            skip: request.offset,
            entries_left: request.total_entries,
            covered: 0,
            split: false,
            pieces: Vec::new(),
            end: std::ptr::null_mut(),
            offset: request.offset,
        }
    }

    /// Adds entries; on an error the list is as it was before.
    pub(super) fn extend(
        &mut self,
        dma: &dyn DmaSpace,
        length: u64,
        entries: &mut dyn ExactSizeIterator<Item = RegionEntry>,
        scratch: &mut Vec<Segment>,
    ) -> Result<(), Status> {
        let pieces = self.pieces.len();
        let (skip, left, covered) = (self.skip, self.entries_left, self.covered);
        let (split, end) = (self.split, self.end);
        let result = self.try_extend(dma, length, entries, scratch);
        if result.is_err() {
            self.pieces.truncate(pieces);
            (self.skip, self.entries_left, self.covered) = (skip, left, covered);
            (self.split, self.end) = (split, end);
        }
        result
    }

    fn try_extend(
        &mut self,
        dma: &dyn DmaSpace,
        length: u64,
        entries: &mut dyn ExactSizeIterator<Item = RegionEntry>,
        scratch: &mut Vec<Segment>,
    ) -> Result<(), Status> {
        if entries.len() > self.entries_left as usize {
            return Err(Status::Invalid);
        }
        for entry in entries {
            let size = if self.extents {
                entry.length
            } else {
                1 << self.page_shift
            };
            if !self.extents && entry.address & (size - 1) != 0 {
                return Err(Status::BadAddress);
            }
            // The offset lies inside the first entry, and every entry is used.
            if self.skip >= size || self.covered == length {
                return Err(Status::Invalid);
            }
            let start = entry
                .address
                .checked_add(self.skip)
                .ok_or(Status::BadAddress)?;
            let used = (size - self.skip).min(length - self.covered);
            scratch.clear();
            if !dma.translate(start, used, scratch) {
                return Err(Status::BadAddress);
            }
            self.split |= scratch.len() != 1;
            let mut at = self.covered;
            for segment in scratch.iter() {
                if self.pieces.is_empty() || self.end != segment.base {
                    self.pieces.push(Extent {
                        start: at,
                        base: segment.base,
                    });
                }
                self.end = segment.base.wrapping_add(segment.len);
                at += segment.len as u64;
            }
            self.covered += used;
            self.skip = 0;
            self.entries_left -= 1;
        }
        Ok(())
    }

    /// Chooses the layout that is fastest to look up in.
    pub(super) fn finish(&mut self, length: u64) -> Layout {
        let pieces = std::mem::take(&mut self.pieces);
        if pieces.len() <= 1 {
            // Without a piece the length is 0 and the address is never used.
            return Layout::Contiguous(pieces.first().map_or(std::ptr::null_mut(), |p| p.base));
        }
        if self.extents || self.split || pieces.len() <= FEW_EXTENTS {
            return Layout::Extents(pieces.into());
        }
        let pages = (self.offset + length).div_ceil(1 << self.page_shift);
        if pages > 4 * pieces.len() as u64 {
            return Layout::Extents(pieces.into());
        }
        let page = 1_u64 << self.page_shift;
        let mut piece = 0;
        let bases = (0..pages)
            .map(|n| {
                // The first page's base is that of its first byte, used or not: it is only ever used with the offset added.
                let start = (n * page).saturating_sub(self.offset);
                while pieces
                    .get(piece + 1)
                    .is_some_and(|next| next.start <= start)
                {
                    piece += 1;
                }
                let base = pieces[piece]
                    .base
                    .wrapping_add((start - pieces[piece].start) as usize);
                if n == 0 {
                    base.wrapping_sub(self.offset as usize)
                } else {
                    base
                }
            })
            .collect();
        Layout::Pages {
            shift: self.page_shift,
            offset: self.offset,
            bases,
        }
    }
}

impl Layout {
    /// Whether `len` bytes at `offset` are memory; of a list this was found out when it came.
    #[inline]
    pub(super) fn contains(&self, offset: u64, len: u64) -> bool {
        match self {
            Layout::Dma(space) => space.contains(offset, len),
            _ => true,
        }
    }

    /// Whether it was made from a list.
    pub(super) fn is_list(&self) -> bool {
        !matches!(self, Layout::Dma(_))
    }

    /// Pushes `len` bytes at `offset`; the range was checked. False when they are not memory; what was pushed then means nothing.
    #[inline]
    #[must_use]
    pub(super) fn push(&self, offset: u64, len: u64, out: &mut Vec<Segment>) -> bool {
        match self {
            Layout::Contiguous(base) => {
                push_segment(out, base.wrapping_add(offset as usize), len as usize);
            }
            Layout::Pages {
                shift,
                offset: first,
                bases,
            } => {
                let page = 1_u64 << shift;
                let (mut at, mut left) = (offset + first, len);
                while left > 0 {
                    let within = at & (page - 1);
                    let n = left.min(page - within);
                    let base = bases[(at >> shift) as usize].wrapping_add(within as usize);
                    push_segment(out, base, n as usize);
                    at += n;
                    left -= n;
                }
            }
            Layout::Extents(extents) => {
                let mut i = extents.partition_point(|e| e.start <= offset) - 1;
                let (mut at, mut left) = (offset, len);
                while left > 0 {
                    // The last one reaches to the end of the region.
                    let n = match extents.get(i + 1) {
                        Some(next) => left.min(next.start - at),
                        None => left,
                    };
                    let base = extents[i]
                        .base
                        .wrapping_add((at - extents[i].start) as usize);
                    push_segment(out, base, n as usize);
                    at += n;
                    left -= n;
                    i += 1;
                }
            }
            Layout::Dma(space) => return space.translate(offset, len, out),
        }
        true
    }
}
