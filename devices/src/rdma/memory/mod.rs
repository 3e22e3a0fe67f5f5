//! Guest memory as the device may touch it: the guest-memory IOMMU.
//!
//! | module | holds |
//! | --- | --- |
//! | [`access`] | the few ways in which host code reads and writes guest memory |
//! | [`dma`] | DMA addresses of the guest's platform to host addresses |
//! | `layout` | how the bytes of a region are found |
//! | `request` | what a registration asks for |
//! | [`regions`] | memory regions: keys, bounds, permissions; the one lookup of the data path |
//! | [`change`] | regions that change under their key |
//! | [`fast`] | regions whose list is given by work request |
//! | [`windows`] | memory windows |
//! | [`ring`] | the memory of queues, which is registered with them |

pub mod access;
pub mod change;
pub mod dma;
pub mod fast;
mod layout;
pub mod regions;
mod request;
pub mod ring;
pub mod windows;

pub use change::Change;
pub use dma::{DmaSpace, IdentityDma};
pub use fast::FastRegistration;
pub use layout::RegionEntry;
pub use regions::{LOCAL_READ, Memory, Refusal, Scope};
pub use request::RegionRequest;
pub use ring::{RingBuffer, RingMemory};
pub use windows::{Bind, WindowKind};

/// A stretch of guest memory that was resolved from a live registration.
///
/// Holds a host address and never a reference: the guest changes this memory at will. It is valid while the registration it came from
/// lives; the device sees to it that no segment outlives that (see [`super::fabric::Fabric::forget_memory`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Host address of the first byte.
    pub base: *mut u8,
    /// Bytes.
    pub len: usize,
}

// SAFETY: a segment is an address and a length; whoever turns it into an access must hold the device that resolved it.
unsafe impl Send for Segment {}
// SAFETY: as above; a shared segment gives nothing that a copy of it would not.
unsafe impl Sync for Segment {}

/// Appends a segment, as part of the last one where it goes on from there.
#[inline]
pub(crate) fn push_segment(out: &mut Vec<Segment>, base: *mut u8, len: usize) {
    if let Some(last) = out.last_mut()
        && last.base.wrapping_add(last.len) == base
    {
        last.len += len;
        return;
    }
    out.push(Segment { base, len });
}
