//! Moving bytes between lists of segments.

use crate::rdma::memory::Segment;

/// Bytes that the segments hold together.
pub(super) fn total(segments: &[Segment]) -> usize {
    segments.iter().map(|segment| segment.len).sum()
}

/// A place in a list of segments.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cursor {
    index: usize,
    offset: usize,
}

impl Cursor {
    /// The place `bytes` further on; stops at the end of the list.
    pub(super) fn advance(&mut self, segments: &[Segment], mut bytes: usize) {
        while let Some(segment) = segments.get(self.index) {
            let left = segment.len - self.offset;
            if bytes < left {
                self.offset += bytes;
                return;
            }
            bytes -= left;
            self.index += 1;
            self.offset = 0;
        }
    }

    /// What lies from here to the end, piece by piece.
    pub(super) fn rest<'a>(
        &self,
        segments: &'a [Segment],
    ) -> impl Iterator<Item = Segment> + use<'a> {
        let mut offset = self.offset;
        segments
            .get(self.index..)
            .unwrap_or_default()
            .iter()
            .map(move |segment| {
                let skip = std::mem::take(&mut offset);
                Segment {
                    // `skip` is within the segment, so the address stays within (or one past) it.
                    base: segment.base.wrapping_add(skip),
                    len: segment.len - skip,
                }
            })
    }
}

/// Copies up to `limit` bytes from one list to another, from a place in each, and moves both places on. Stops at the end of either.
/// Regions that overlap are fine piece by piece; what a piece overwrites, a later piece reads.
///
/// # Safety
/// All segments are mapped, and the destination is writable. Another party (a guest) may change either side meanwhile: then
/// the bytes copied are whatever was there, and nothing else depends on them.
pub(super) unsafe fn copy(
    from: &[Segment],
    from_at: &mut Cursor,
    into: &[Segment],
    into_at: &mut Cursor,
    limit: usize,
) -> usize {
    let mut copied = 0;
    while copied < limit {
        let (Some(source), Some(target)) = (from.get(from_at.index), into.get(into_at.index))
        else {
            break;
        };
        let len = (source.len - from_at.offset)
            .min(target.len - into_at.offset)
            .min(limit - copied);
        // SAFETY: both places lie within their segments and `len` is cut to what is left of both; the caller vouches for the
        // memory. `copy` allows overlap.
        unsafe {
            std::ptr::copy(
                source.base.add(from_at.offset),
                target.base.add(into_at.offset),
                len,
            );
        }
        copied += len;
        from_at.advance(from, len);
        into_at.advance(into, len);
    }
    copied
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(bytes: &mut [u8]) -> Segment {
        Segment {
            base: bytes.as_mut_ptr(),
            len: bytes.len(),
        }
    }

    #[test]
    fn copies_across_every_pair_of_boundaries() {
        let data: Vec<u8> = (0..60).collect();
        for cut in 0..=60 {
            for chunk in [1, 7, 60] {
                let mut source = data.clone();
                let (a, b) = source.split_at_mut(cut);
                let from = [segment(a), segment(b)];
                let mut target = vec![0; 60];
                let (a, b) = target.split_at_mut(60 - cut / 2);
                let into = [segment(a), segment(b)];
                let (mut x, mut y) = (Cursor::default(), Cursor::default());
                // SAFETY: the segments are the two vectors above.
                while unsafe { copy(&from, &mut x, &into, &mut y, chunk) } > 0 {}
                assert_eq!(target, data);
            }
        }
    }

    #[test]
    fn overlapping_regions_move_like_memmove() {
        let mut data: Vec<u8> = (0..20).collect();
        let base = data.as_mut_ptr();
        let from = [Segment { base, len: 16 }];
        let into = [Segment {
            base: base.wrapping_add(4),
            len: 16,
        }];
        let (mut x, mut y) = (Cursor::default(), Cursor::default());
        // SAFETY: both segments lie within `data`.
        assert_eq!(unsafe { copy(&from, &mut x, &into, &mut y, 100) }, 16);
        assert_eq!(data[4..], (0..16).collect::<Vec<u8>>());
    }

    #[test]
    fn the_rest_begins_in_the_middle_of_a_segment() {
        let mut data = [0; 10];
        let segments = {
            let (a, b) = data.split_at_mut(4);
            [segment(a), segment(b)]
        };
        let mut at = Cursor::default();
        at.advance(&segments, 5);
        assert_eq!(
            at.rest(&segments).map(|s| s.len).collect::<Vec<_>>(),
            vec![5]
        );
        at.advance(&segments, 5);
        assert_eq!(at.rest(&segments).count(), 0);
    }
}
