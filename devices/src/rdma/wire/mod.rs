//! Structs and numbers one to one with `docs/virtio-rdma.md`. Nothing else in the tree knows a byte offset of that text.
//!
//! All structs are plain bytes: every field is little-endian and unaligned, every bit pattern is a value. What a field may hold is
//! checked by those who use it.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

mod command;
mod numbers;
mod ring;

pub use command::*;
pub use numbers::*;
pub use ring::*;
pub use zerocopy::little_endian::{U16 as Le16, U32 as Le32, U64 as Le64};

/// Virtio device ID (section 1).
pub const DEVICE_ID: u32 = 42;

/// Feature bits (section 1), as masks.
pub mod feature {
    /// QP type UC.
    pub const UC: u64 = 1 << 0;
    /// QP types UD and GSI, address handles, multicast.
    pub const UD: u64 = 1 << 1;
    /// Shared receive queues.
    pub const SRQ: u64 = 1 << 2;
    /// CMP_AND_SWP and FETCH_AND_ADD.
    pub const ATOMICS: u64 = 1 << 3;
    /// Fast registration by work request.
    pub const FRWR: u64 = 1 << 4;
    /// Memory windows.
    pub const MW: u64 = 1 << 5;
    /// RESIZE_CQ and MODIFY_CQ.
    pub const CQ_RESIZE: u64 = 1 << 6;
    /// Page lists given as tables of tables.
    pub const INDIRECT_MR: u64 = 1 << 7;
    /// Doorbell pages that a process may map.
    pub const USER_DOORBELL: u64 = 1 << 8;
    /// XRC domains and QP types.
    pub const XRC: u64 = 1 << 9;
    /// Regions over all DMA addresses.
    pub const DMA_MR: u64 = 1 << 10;
    /// ATOMIC_WRITE.
    pub const ATOMIC_WRITE: u64 = 1 << 11;
    /// FLUSH, and the rights for it.
    pub const FLUSH: u64 = 1 << 12;
}

/// Device configuration (section 2).
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Config {
    /// MAC address of the paired network device.
    pub mac: [u8; 6],
    /// Completion vectors, at least 1.
    pub num_vectors: Le16,
    /// Doorbell pages, 0 without USER_DOORBELL.
    pub doorbell_pages: Le32,
    /// On PCI: the BAR that holds the doorbell pages.
    pub doorbell_bar: u8,
    /// Zero.
    pub reserved: [u8; 3],
    /// Offset of page 0 in that BAR.
    pub doorbell_offset: Le64,
}

/// Completion event (section 8).
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct CompletionEvent {
    /// The CQ.
    pub cqn: Le32,
    /// The arming sequence that fired.
    pub sequence: Le32,
}

/// Asynchronous event (section 8).
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct AsyncEventBuffer {
    /// The type's number.
    pub kind: Le32,
    /// CQN, QPN, SRQ or port.
    pub handle: Le32,
    /// Zero.
    pub reserved: Le64,
}

const _: () = {
    assert!(size_of::<Config>() == 24);
    assert!(size_of::<CompletionEvent>() == 8);
    assert!(size_of::<AsyncEventBuffer>() == 16);
};
