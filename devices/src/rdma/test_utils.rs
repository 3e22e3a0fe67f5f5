//! Fakes for the tests of this folder.

use std::sync::Arc;

use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend};

use super::memory::{DmaSpace, IdentityDma, Segment};
use crate::GuestRam;

/// A small guest RAM from address 0, DMA addresses the same.
pub(crate) struct FakeRam {
    ram: Arc<GuestRam>,
    dma: IdentityDma,
}

impl FakeRam {
    pub(crate) fn new(size: usize) -> Self {
        let ram = Arc::new(GuestRam::from_ranges(&[(GuestAddress(0), size)]).unwrap());
        FakeRam {
            dma: IdentityDma::new(ram.clone()),
            ram,
        }
    }

    /// Host address of a guest address.
    pub(crate) fn host(&self, addr: u64) -> *mut u8 {
        self.ram.get_host_address(GuestAddress(addr)).unwrap()
    }

    pub(crate) fn read(&self, addr: u64, out: &mut [u8]) {
        self.ram.read_slice(out, GuestAddress(addr)).unwrap();
    }

    pub(crate) fn read32(&self, addr: u64) -> u32 {
        let mut out = [0; 4];
        self.read(addr, &mut out);
        u32::from_le_bytes(out)
    }

    pub(crate) fn write(&self, addr: u64, data: &[u8]) {
        self.ram.write_slice(data, GuestAddress(addr)).unwrap();
    }

    pub(crate) fn write32(&self, addr: u64, value: u32) {
        self.write(addr, &value.to_le_bytes());
    }
}

impl DmaSpace for FakeRam {
    fn translate(&self, dma: u64, len: u64, out: &mut Vec<Segment>) -> bool {
        self.dma.translate(dma, len, out)
    }
}

/// A small generator (Marsaglia's xorshift): variety, not quality, and the same each time, so that a failure repeats.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// As [`Random::below`], for lengths and places.
    pub(crate) fn index(&mut self, limit: usize) -> usize {
        self.next() as usize % limit
    }
}
