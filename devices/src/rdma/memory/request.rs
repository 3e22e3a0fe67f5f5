//! What a registration asks for, and what of it can be checked without its list.

use crate::rdma::wire::{Status, access};

/// What REG_MR asks for, without the list (section 4.4).
#[derive(Clone, Copy, Debug)]
pub struct RegionRequest {
    /// The owner.
    pub context: u32,
    /// Its protection domain.
    pub pd: u32,
    /// Bits of [`access`].
    pub access: u32,
    /// Address of the first byte in work requests.
    pub iova: u64,
    /// Bytes.
    pub length: u64,
    /// Of the first byte in the first page or extent.
    pub offset: u64,
    /// Pages of 2^n bytes; ignored for extents.
    pub page_shift: u8,
    /// Entries are extents.
    pub extents: bool,
    /// Entries of the whole list.
    pub total_entries: u32,
}

/// Checks access bits (section 4.5) of which only those of `known` may be there.
pub(super) fn check_access(bits: u32, known: u32) -> Result<(), Status> {
    let needs_local = access::REMOTE_WRITE | access::REMOTE_ATOMIC;
    let sound = bits & !known == 0 && (bits & needs_local == 0 || bits & access::LOCAL_WRITE != 0);
    if sound { Ok(()) } else { Err(Status::Invalid) }
}

/// Checks what of a request can be checked without its list.
pub(super) fn check_request(
    request: &RegionRequest,
    rights: u32,
    max_mr_size: u64,
) -> Result<(), Status> {
    check_access(request.access, rights)?;
    if request.length == 0 {
        let empty = request.total_entries == 0 && request.offset == 0;
        return if empty { Ok(()) } else { Err(Status::Invalid) };
    }
    if request.length > max_mr_size || request.iova.checked_add(request.length - 1).is_none() {
        return Err(Status::Invalid);
    }
    if request.extents {
        // At least a byte for each entry.
        if request.total_entries == 0 || u64::from(request.total_entries) > request.length {
            return Err(Status::Invalid);
        }
        return Ok(());
    }
    if !(12..=30).contains(&request.page_shift) || request.offset >= 1 << request.page_shift {
        return Err(Status::Invalid);
    }
    let bytes = request
        .offset
        .checked_add(request.length)
        .ok_or(Status::Invalid)?;
    if bytes.div_ceil(1 << request.page_shift) != u64::from(request.total_entries) {
        return Err(Status::Invalid);
    }
    Ok(())
}
