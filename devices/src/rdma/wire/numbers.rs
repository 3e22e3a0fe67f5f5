//! Numbers in control queue commands: section 4.

/// Command opcodes (section 4).
pub mod opcode {
    /// Attributes of the device.
    pub const QUERY_DEVICE: u16 = 0x0001;
    /// Attributes of a port.
    pub const QUERY_PORT: u16 = 0x0002;
    /// The device's counters.
    pub const QUERY_COUNTERS: u16 = 0x0003;
    /// The device's clock.
    pub const QUERY_CLOCK: u16 = 0x0004;
    /// Fills a slot of the GID table.
    pub const ADD_GID: u16 = 0x0010;
    /// Empties a slot of the GID table.
    pub const DEL_GID: u16 = 0x0011;
    /// Makes a user context.
    pub const CREATE_CONTEXT: u16 = 0x0020;
    /// Ends a user context and all it owns.
    pub const DESTROY_CONTEXT: u16 = 0x0021;
    /// Makes a protection domain.
    pub const CREATE_PD: u16 = 0x0030;
    /// Ends a protection domain.
    pub const DESTROY_PD: u16 = 0x0031;
    /// Registers memory.
    pub const REG_MR: u16 = 0x0040;
    /// More of a region's list.
    pub const MR_APPEND: u16 = 0x0041;
    /// End of a region's list.
    pub const MR_COMMIT: u16 = 0x0042;
    /// Ends a registration.
    pub const DEREG_MR: u16 = 0x0043;
    /// Changes a registration.
    pub const REREG_MR: u16 = 0x0044;
    /// Makes a region for fast registration.
    pub const ALLOC_MR: u16 = 0x0045;
    /// Makes a completion queue.
    pub const CREATE_CQ: u16 = 0x0050;
    /// Ends a completion queue.
    pub const DESTROY_CQ: u16 = 0x0051;
    /// Gives a completion queue another ring.
    pub const RESIZE_CQ: u16 = 0x0052;
    /// Changes the moderation of a completion queue's events.
    pub const MODIFY_CQ: u16 = 0x0053;
    /// Makes a queue pair.
    pub const CREATE_QP: u16 = 0x0060;
    /// Changes a queue pair's state and attributes.
    pub const MODIFY_QP: u16 = 0x0061;
    /// A queue pair's state and attributes.
    pub const QUERY_QP: u16 = 0x0062;
    /// Ends a queue pair.
    pub const DESTROY_QP: u16 = 0x0063;
    /// Puts a queue pair into a multicast group.
    pub const ATTACH_MCAST: u16 = 0x00a0;
    /// Takes a queue pair out of a multicast group.
    pub const DETACH_MCAST: u16 = 0x00a1;
    /// Makes a shared receive queue.
    pub const CREATE_SRQ: u16 = 0x0070;
    /// Resizes a shared receive queue, or arms its limit.
    pub const MODIFY_SRQ: u16 = 0x0071;
    /// A shared receive queue's attributes.
    pub const QUERY_SRQ: u16 = 0x0072;
    /// Ends a shared receive queue.
    pub const DESTROY_SRQ: u16 = 0x0073;
    /// Makes a memory window.
    pub const ALLOC_MW: u16 = 0x0090;
    /// Ends a memory window.
    pub const DEALLOC_MW: u16 = 0x0091;
    /// Makes an XRC domain.
    pub const ALLOC_XRCD: u16 = 0x00b0;
    /// Ends an XRC domain.
    pub const DEALLOC_XRCD: u16 = 0x00b1;
}

/// Status of a command (section 4). Its number is what goes on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[repr(u32)]
pub enum Status {
    /// Done.
    #[error("done")]
    Ok = 0,
    /// Unknown opcode, or a feature that was not negotiated.
    #[error("the opcode is unknown or its feature was not negotiated")]
    Unsupported = 1,
    /// A field is out of range or the lengths do not agree.
    #[error("a field is out of range or the lengths do not agree")]
    Invalid = 2,
    /// A limit is reached.
    #[error("a limit is reached")]
    NoResource = 3,
    /// No such handle.
    #[error("there is no such handle")]
    NotFound = 4,
    /// The handle belongs to another context, or only the kernel may ask.
    #[error("the handle belongs to another context, or only the kernel may ask")]
    Denied = 5,
    /// Other objects still refer to it.
    #[error("other objects still refer to it")]
    Busy = 6,
    /// Not in this state.
    #[error("not allowed in this state")]
    BadState = 7,
    /// An address is not memory the device may use.
    #[error("an address is not memory the device may use")]
    BadAddress = 8,
    /// The slot is taken.
    #[error("the slot is taken")]
    Exists = 9,
    /// The region's list is not complete.
    #[error("the region's list is not complete")]
    InProgress = 10,
}

/// REG_MR flags (section 4.4).
pub mod mr_flag {
    /// The list goes on in MR_APPEND and ends with MR_COMMIT.
    pub const MORE: u8 = 1;
    /// Entries are extents.
    pub const EXTENTS: u8 = 2;
    /// No list: the region is all DMA addresses.
    pub const DMA: u8 = 4;
    /// All that are defined.
    pub const ALL: u8 = MORE | EXTENTS | DMA;
}

/// Access bits (section 4.5).
pub mod access {
    /// The owner's queues may write.
    pub const LOCAL_WRITE: u32 = 1;
    /// The peer may write.
    pub const REMOTE_WRITE: u32 = 2;
    /// The peer may read.
    pub const REMOTE_READ: u32 = 4;
    /// The peer may do atomics.
    pub const REMOTE_ATOMIC: u32 = 8;
    /// Memory windows may be bound.
    pub const MW_BIND: u32 = 16;
    /// Addresses in a memory window begin at 0; of BIND_MW only.
    pub const ZERO_BASED: u32 = 32;
    /// The peer may flush to where all of the guest sees it; with feature FLUSH.
    pub const FLUSH_GLOBAL: u32 = 256;
    /// The peer may flush to where it outlives the power; of QPs with feature FLUSH, never of a region.
    pub const FLUSH_PERSISTENT: u32 = 512;
    /// Both.
    pub const FLUSH: u32 = FLUSH_GLOBAL | FLUSH_PERSISTENT;
    /// All that a region may have without features.
    pub const ALL: u32 = LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC | MW_BIND;
}

/// REREG_MR flags (section 4.15).
pub mod rereg_flag {
    /// Takes over the bytes of another region.
    pub const TRANSLATION: u32 = 1;
    /// Goes to another PD.
    pub const PD: u32 = 2;
    /// Gets other rights.
    pub const ACCESS: u32 = 4;
    /// All that are defined.
    pub const ALL: u32 = TRANSLATION | PD | ACCESS;
}

/// QP types (section 4.7).
pub mod qp_type {
    /// General services.
    pub const GSI: u32 = 1;
    /// Reliable connection.
    pub const RC: u32 = 2;
    /// Unreliable connection.
    pub const UC: u32 = 3;
    /// Unreliable datagram.
    pub const UD: u32 = 4;
    /// XRC initiator.
    pub const XRC_INI: u32 = 9;
    /// XRC target.
    pub const XRC_TGT: u32 = 10;
}

/// CREATE_QP flags (section 4.7).
pub mod qp_flag {
    /// Every send WQE is signalled.
    pub const SQ_SIG_ALL: u32 = 1;
    /// UD: what it sends to a group does not come back to it.
    pub const BLOCK_LOOPBACK: u32 = 2;
    /// All that are defined.
    pub const ALL: u32 = SQ_SIG_ALL | BLOCK_LOOPBACK;
}

/// SRQ types (section 4.12).
pub mod srq_type {
    /// For QPs that are created with it.
    pub const BASIC: u32 = 0;
    /// For the XRC targets of a domain.
    pub const XRC: u32 = 1;
}

/// Attribute mask bits of MODIFY_SRQ (section 4.12).
pub mod srq_mask {
    /// `entries`, and a buffer to go on in
    pub const MAX_WR: u32 = 0x1;
    /// `limit`
    pub const LIMIT: u32 = 0x2;
    /// All that are defined.
    pub const ALL: u32 = MAX_WR | LIMIT;
}

/// Attribute mask bits of MODIFY_QP (section 4.8).
pub mod qp_mask {
    /// `state`
    pub const STATE: u32 = 0x1;
    /// `cur_state`
    pub const CUR_STATE: u32 = 0x2;
    /// `en_sqd_async`
    pub const EN_SQD_ASYNC: u32 = 0x4;
    /// `access`
    pub const ACCESS: u32 = 0x8;
    /// `pkey_index`
    pub const PKEY_INDEX: u32 = 0x10;
    /// `port`
    pub const PORT: u32 = 0x20;
    /// `qkey`
    pub const QKEY: u32 = 0x40;
    /// The address vector
    pub const AV: u32 = 0x80;
    /// `path_mtu`
    pub const PATH_MTU: u32 = 0x100;
    /// `timeout`
    pub const TIMEOUT: u32 = 0x200;
    /// `retry_cnt`
    pub const RETRY_CNT: u32 = 0x400;
    /// `rnr_retry`
    pub const RNR_RETRY: u32 = 0x800;
    /// `rq_psn`
    pub const RQ_PSN: u32 = 0x1000;
    /// `max_rd_atomic`
    pub const MAX_QP_RD_ATOMIC: u32 = 0x2000;
    /// `min_rnr_timer`
    pub const MIN_RNR_TIMER: u32 = 0x8000;
    /// `sq_psn`
    pub const SQ_PSN: u32 = 0x10000;
    /// `max_dest_rd_atomic`
    pub const MAX_DEST_RD_ATOMIC: u32 = 0x20000;
    /// `dest_qpn`
    pub const DEST_QPN: u32 = 0x100000;
    /// All that are defined.
    pub const ALL: u32 = STATE
        | CUR_STATE
        | EN_SQD_ASYNC
        | ACCESS
        | PKEY_INDEX
        | PORT
        | QKEY
        | AV
        | PATH_MTU
        | TIMEOUT
        | RETRY_CNT
        | RNR_RETRY
        | RQ_PSN
        | MAX_QP_RD_ATOMIC
        | MIN_RNR_TIMER
        | SQ_PSN
        | MAX_DEST_RD_ATOMIC
        | DEST_QPN;
}

/// GID type of ADD_GID: RoCE v2 (section 4.3).
pub const GID_TYPE_ROCE_V2: u8 = 2;

/// `vlan` of a GID without one (section 4.3).
pub const VLAN_NONE: u16 = 0xffff;

/// Port states (section 4.2).
pub mod port_state {
    /// No traffic.
    pub const DOWN: u8 = 1;
    /// Ready.
    pub const ACTIVE: u8 = 4;
    /// Physical state: disabled.
    pub const PHYS_DISABLED: u8 = 3;
    /// Physical state: link up.
    pub const PHYS_LINK_UP: u8 = 5;
}
