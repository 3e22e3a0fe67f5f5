//! Guest memory as the device may touch it.

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
