//! Structs and numbers one to one with `docs/virtio-rdma.md`. Nothing else in the tree knows a byte offset of that text.
//!
//! All structs are plain bytes: every field is little-endian and unaligned, every bit pattern is a value. What a field may hold is
//! checked by those who use it.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Structs whose bytes are what the specification says, each with its size there.
macro_rules! wire_structs {
    ($($(#[$doc:meta])* $name:ident[$size:literal] { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* })*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
            #[repr(C)]
            pub struct $name {
                $($(#[$field_doc])* pub $field: $type,)*
            }
            const _: () = assert!(size_of::<$name>() == $size);
        )*
    };
}

mod command;
mod memory;
mod numbers;
mod queue;
mod ring;

pub use command::*;
pub use memory::*;
pub use numbers::*;
pub use queue::*;
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

wire_structs! {
    /// Device configuration (section 2).
    Config[24] {
        /// MAC address of the paired network device.
        mac: [u8; 6],
        /// Completion vectors, at least 1.
        num_vectors: Le16,
        /// Doorbell pages, 0 without USER_DOORBELL.
        doorbell_pages: Le32,
        /// On PCI: the BAR that holds the doorbell pages.
        doorbell_bar: u8,
        /// Zero.
        reserved: [u8; 3],
        /// Offset of page 0 in that BAR.
        doorbell_offset: Le64,
    }

    /// Completion event (section 8).
    CompletionEvent[8] {
        /// The CQ.
        cqn: Le32,
        /// The arming sequence that fired.
        sequence: Le32,
    }

    /// Asynchronous event (section 8).
    AsyncEventBuffer[16] {
        /// The type's number.
        kind: Le32,
        /// CQN, QPN, SRQ or port.
        handle: Le32,
        /// Zero.
        reserved: Le64,
    }
}
