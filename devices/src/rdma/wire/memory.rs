//! Commands of memory regions and windows: sections 4.4 and 4.14 to 4.16.

use super::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Le16, Le32, Le64, RingBufferBody, Unaligned,
};

wire_structs! {
    /// REG_MR, before its entries (section 4.4).
    RegMrBody[48] {
        /// Protection domain.
        pd: Le32,
        /// Bits of [`super::access`].
        access: Le32,
        /// The address by which work requests name the first byte.
        iova: Le64,
        /// Bytes.
        length: Le64,
        /// Of the first byte within the first page or extent.
        offset: Le64,
        /// Pages of 2^n bytes, 12 to 30.
        page_shift: u8,
        /// Bits of [`super::mr_flag`].
        flags: u8,
        /// Zero.
        reserved0: Le16,
        /// Of the whole list.
        total_entries: Le32,
        /// In this command.
        num_entries: Le32,
        /// Zero.
        reserved1: Le32,
    }

    /// An entry of an extent list (section 4.4).
    ExtentEntry[16] {
        /// DMA address.
        address: Le64,
        /// Bytes.
        length: Le64,
    }

    /// MR_APPEND, before its entries.
    MrAppendBody[8] {
        /// The region.
        lkey: Le32,
        /// In this command.
        num_entries: Le32,
    }

    /// Reply to REG_MR.
    KeysReply[8] {
        /// Local key.
        lkey: Le32,
        /// Remote key; the same value.
        rkey: Le32,
    }

    /// ALLOC_MR, before the pages of its list (section 4.14).
    AllocMrBody[40] {
        /// Protection domain.
        pd: Le32,
        /// Pages of a registration.
        max_entries: Le32,
        /// Its memory.
        buffer: RingBufferBody,
        /// Of entry 0 in the buffer, a multiple of 8.
        list_offset: Le64,
    }

    /// REREG_MR (section 4.15).
    ReregMrBody[24] {
        /// The region.
        lkey: Le32,
        /// Bits of [`super::rereg_flag`].
        flags: Le32,
        /// With PD: the new one.
        pd: Le32,
        /// With ACCESS: bits of [`super::access`].
        access: Le32,
        /// With TRANSLATION: the region whose bytes it takes over.
        source: Le32,
        /// Zero.
        reserved: Le32,
    }

    /// ALLOC_MW (section 4.16).
    AllocMwBody[8] {
        /// Protection domain.
        pd: Le32,
        /// 1 or 2.
        kind: u8,
        /// Zero.
        reserved: [u8; 3],
    }
}
