//! From the DMA addresses that a driver gives to host addresses.

use std::sync::Arc;

use vm_memory::{Address, GuestAddress, GuestMemoryBackend, GuestMemoryRegion, GuestRegionMmap};

use super::{Segment, push_segment};
use crate::GuestRam;

/// The platform's translation of DMA addresses, as far as it concerns this device.
pub trait DmaSpace: Send + Sync {
    /// Translates `len` bytes at DMA address `dma`, pushing host memory of exactly that many bytes in order onto `out`. False when any of them
    /// is not RAM that the device may use; what was pushed then means nothing.
    ///
    /// The memory pushed stays mapped, readable and writable as long as this space lives.
    fn translate(&self, dma: u64, len: u64, out: &mut Vec<Segment>) -> bool;

    /// Whether all of `len` bytes at DMA address `dma` is RAM that the device may use.
    fn contains(&self, dma: u64, len: u64) -> bool {
        self.translate(dma, len, &mut Vec::new())
    }
}

/// A platform without a translating IOMMU: DMA addresses are guest physical addresses.
pub struct IdentityDma(Arc<GuestRam>);

impl IdentityDma {
    /// Gives the device all of guest RAM.
    pub fn new(memory: Arc<GuestRam>) -> Self {
        IdentityDma(memory)
    }
}

impl IdentityDma {
    /// Gives every stretch of the range to `take`, in order; false when there is a byte that is not RAM.
    fn walk(&self, dma: u64, len: u64, mut take: impl FnMut(*mut u8, usize)) -> bool {
        let (mut at, mut left) = (dma, len);
        while left > 0 {
            let Some(region) = self.0.find_region(GuestAddress(at)) else {
                return false;
            };
            let (base, available) = host_address(region, at);
            let n = available.min(left);
            // A region that is mapped here is no larger than the address space.
            take(base, n as usize);
            left -= n;
            if left > 0 {
                let Some(next) = at.checked_add(n) else {
                    return false;
                };
                at = next;
            }
        }
        true
    }
}

impl DmaSpace for IdentityDma {
    fn translate(&self, dma: u64, len: u64, out: &mut Vec<Segment>) -> bool {
        self.walk(dma, len, |base, n| push_segment(out, base, n))
    }

    fn contains(&self, dma: u64, len: u64) -> bool {
        self.walk(dma, len, |_, _| {})
    }
}

/// Host address of a guest address inside `region`, and the bytes from there to the region's end.
fn host_address(region: &GuestRegionMmap, at: u64) -> (*mut u8, u64) {
    let offset = at - region.start_addr().raw_value();
    (
        region.as_ptr().wrapping_add(offset as usize),
        region.len() - offset,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space() -> IdentityDma {
        let ranges = [
            (GuestAddress(0), 0x4000),
            (GuestAddress(0x4000), 0x2000),
            (GuestAddress(0x10000), 0x1000),
        ];
        IdentityDma::new(Arc::new(GuestRam::from_ranges(&ranges).unwrap()))
    }

    fn bytes(dma: u64, len: u64) -> Option<usize> {
        let mut out = Vec::new();
        space()
            .translate(dma, len, &mut out)
            .then(|| out.iter().map(|s| s.len).sum())
    }

    #[test]
    fn ranges_inside_ram_translate_whole_across_regions() {
        assert_eq!(bytes(0, 0x6000), Some(0x6000));
        assert_eq!(bytes(0x10fff, 1), Some(1));
        assert_eq!(bytes(0x3fff, 2), Some(2));
    }

    #[test]
    fn a_byte_outside_ram_refuses_the_range() {
        assert_eq!(bytes(0x5fff, 2), None);
        assert_eq!(bytes(0x6000, 1), None);
        assert_eq!(bytes(0x10fff, 2), None);
        assert_eq!(bytes(u64::MAX, 1), None);
        assert_eq!(bytes(0x10000, u64::MAX), None);
    }

    #[test]
    fn what_is_contained_is_what_translates() {
        for (dma, len) in [
            (0, 0x6000),
            (0x3fff, 2),
            (0x5fff, 2),
            (0x10fff, 1),
            (0x10fff, 2),
            (u64::MAX, 1),
            (0x10000, u64::MAX),
        ] {
            assert_eq!(
                space().contains(dma, len),
                bytes(dma, len).is_some(),
                "{dma:#x}+{len:#x}"
            );
        }
    }
}
