//! Numbers: opcodes, statuses, flags, masks, types.

/// Command opcodes (section 4).
pub mod command {
    #![allow(
        missing_docs,
        reason = "the names are those of the specification's table"
    )]
    pub const QUERY_DEVICE: u16 = 0x0001;
    pub const QUERY_PORT: u16 = 0x0002;
    pub const QUERY_COUNTERS: u16 = 0x0003;
    pub const QUERY_CLOCK: u16 = 0x0004;
    pub const ADD_GID: u16 = 0x0010;
    pub const DEL_GID: u16 = 0x0011;
    pub const CREATE_CONTEXT: u16 = 0x0020;
    pub const DESTROY_CONTEXT: u16 = 0x0021;
    pub const CREATE_PD: u16 = 0x0030;
    pub const DESTROY_PD: u16 = 0x0031;
    pub const REG_MR: u16 = 0x0040;
    pub const MR_APPEND: u16 = 0x0041;
    pub const MR_COMMIT: u16 = 0x0042;
    pub const DEREG_MR: u16 = 0x0043;
    pub const REREG_MR: u16 = 0x0044;
    pub const ALLOC_MR: u16 = 0x0045;
    pub const CREATE_CQ: u16 = 0x0050;
    pub const DESTROY_CQ: u16 = 0x0051;
    pub const RESIZE_CQ: u16 = 0x0052;
    pub const MODIFY_CQ: u16 = 0x0053;
    pub const CREATE_QP: u16 = 0x0060;
    pub const MODIFY_QP: u16 = 0x0061;
    pub const QUERY_QP: u16 = 0x0062;
    pub const DESTROY_QP: u16 = 0x0063;
    pub const ALLOC_MW: u16 = 0x0090;
    pub const DEALLOC_MW: u16 = 0x0091;
    pub const ATTACH_MCAST: u16 = 0x00a0;
    pub const DETACH_MCAST: u16 = 0x00a1;
    pub const ALLOC_XRCD: u16 = 0x00b0;
    pub const DEALLOC_XRCD: u16 = 0x00b1;
    pub const CREATE_SRQ: u16 = 0x0070;
    pub const MODIFY_SRQ: u16 = 0x0071;
    pub const QUERY_SRQ: u16 = 0x0072;
    pub const DESTROY_SRQ: u16 = 0x0073;
    pub const ALL: [u16; 34] = [
        QUERY_DEVICE,
        QUERY_PORT,
        QUERY_COUNTERS,
        QUERY_CLOCK,
        ADD_GID,
        DEL_GID,
        CREATE_CONTEXT,
        DESTROY_CONTEXT,
        CREATE_PD,
        DESTROY_PD,
        REG_MR,
        MR_APPEND,
        MR_COMMIT,
        DEREG_MR,
        REREG_MR,
        ALLOC_MR,
        CREATE_CQ,
        DESTROY_CQ,
        RESIZE_CQ,
        MODIFY_CQ,
        CREATE_QP,
        MODIFY_QP,
        QUERY_QP,
        DESTROY_QP,
        ATTACH_MCAST,
        DETACH_MCAST,
        CREATE_SRQ,
        MODIFY_SRQ,
        QUERY_SRQ,
        DESTROY_SRQ,
        ALLOC_MW,
        DEALLOC_MW,
        ALLOC_XRCD,
        DEALLOC_XRCD,
    ];
}

/// Statuses of commands (section 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Status {
    /// Done.
    Ok = 0,
    /// Unknown opcode, or a feature that was not negotiated.
    Unsupported = 1,
    /// A field out of range, or lengths that disagree.
    Invalid = 2,
    /// A limit is reached.
    NoResource = 3,
    /// No such handle.
    NotFound = 4,
    /// Another context's, or the kernel's to ask.
    Denied = 5,
    /// Still referred to.
    Busy = 6,
    /// Not in this state.
    BadState = 7,
    /// Not memory that the device may use.
    BadAddress = 8,
    /// The slot is taken.
    Exists = 9,
    /// The region's list is not complete.
    InProgress = 10,
}

impl Status {
    /// The status with this number. None for a number that the specification does not know.
    pub fn from_raw(raw: u32) -> Option<Status> {
        use Status::*;
        [
            Ok,
            Unsupported,
            Invalid,
            NoResource,
            NotFound,
            Denied,
            Busy,
            BadState,
            BadAddress,
            Exists,
            InProgress,
        ]
        .into_iter()
        .find(|status| *status as u32 == raw)
    }
}

/// Access bits (section 4.5).
pub mod access {
    #![allow(missing_docs, reason = "the names are those of the specification")]
    pub const LOCAL_WRITE: u32 = 1;
    pub const REMOTE_WRITE: u32 = 2;
    pub const REMOTE_READ: u32 = 4;
    pub const REMOTE_ATOMIC: u32 = 8;
    pub const MW_BIND: u32 = 16;
    pub const FLUSH_GLOBAL: u32 = 256;
    pub const FLUSH_PERSISTENT: u32 = 512;
    pub const ALL: u32 = LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC;
}

/// QP states (section 4.8).
pub mod state {
    #![allow(missing_docs, reason = "the names are those of the specification")]
    pub const RESET: u8 = 0;
    pub const INIT: u8 = 1;
    pub const RTR: u8 = 2;
    pub const RTS: u8 = 3;
    pub const SQD: u8 = 4;
    pub const SQE: u8 = 5;
    pub const ERR: u8 = 6;
}

/// Mask bits of MODIFY_SRQ (section 4.12).
pub mod srq_mask {
    #![allow(missing_docs, reason = "the names are those of the specification")]
    pub const MAX_WR: u32 = 1;
    pub const LIMIT: u32 = 2;
}

/// Attribute mask bits (section 4.8).
pub mod mask {
    #![allow(missing_docs, reason = "the names are those of the verbs")]
    pub const STATE: u32 = 0x1;
    pub const CUR_STATE: u32 = 0x2;
    pub const EN_SQD_ASYNC: u32 = 0x4;
    pub const ACCESS: u32 = 0x8;
    pub const PKEY_INDEX: u32 = 0x10;
    pub const PORT: u32 = 0x20;
    pub const QKEY: u32 = 0x40;
    pub const AV: u32 = 0x80;
    pub const PATH_MTU: u32 = 0x100;
    pub const TIMEOUT: u32 = 0x200;
    pub const RETRY_CNT: u32 = 0x400;
    pub const RNR_RETRY: u32 = 0x800;
    pub const RQ_PSN: u32 = 0x1000;
    pub const MAX_RD_ATOMIC: u32 = 0x2000;
    pub const MIN_RNR_TIMER: u32 = 0x8000;
    pub const SQ_PSN: u32 = 0x10000;
    pub const MAX_DEST_RD_ATOMIC: u32 = 0x20000;
    pub const DEST_QPN: u32 = 0x100000;
}

/// Opcodes of send WQEs (section 5).
pub mod send {
    #![allow(missing_docs, reason = "the names are those of the specification")]
    pub const WRITE: u8 = 0;
    pub const WRITE_IMM: u8 = 1;
    pub const SEND: u8 = 2;
    pub const SEND_IMM: u8 = 3;
    pub const READ: u8 = 4;
    pub const CMP_AND_SWP: u8 = 5;
    pub const FETCH_AND_ADD: u8 = 6;
    pub const LOCAL_INV: u8 = 7;
    pub const BIND_MW: u8 = 8;
    pub const SEND_INV: u8 = 9;
    pub const FLUSH: u8 = 14;
    pub const ATOMIC_WRITE: u8 = 15;
    pub const REG_MR: u8 = 32;
}

/// Flags of send WQEs (section 5).
pub mod wqe_flag {
    #![allow(missing_docs, reason = "the names are those of the specification")]
    pub const SIGNALED: u8 = 1;
    pub const SOLICITED: u8 = 2;
    pub const FENCE: u8 = 4;
    pub const INLINE: u8 = 8;
}

/// Statuses of CQEs (section 7, the verbs' numbers).
pub mod wc {
    #![allow(missing_docs, reason = "the names are those of the verbs")]
    pub const SUCCESS: u8 = 0;
    pub const LOC_LEN_ERR: u8 = 1;
    pub const LOC_QP_OP_ERR: u8 = 2;
    pub const LOC_PROT_ERR: u8 = 4;
    pub const WR_FLUSH_ERR: u8 = 5;
    pub const MW_BIND_ERR: u8 = 6;
    pub const REM_INV_REQ_ERR: u8 = 9;
    pub const REM_ACCESS_ERR: u8 = 10;
    pub const REM_OP_ERR: u8 = 11;
    pub const RETRY_EXC_ERR: u8 = 12;
    pub const RNR_RETRY_EXC_ERR: u8 = 13;
    pub const FATAL_ERR: u8 = 19;
    pub const GENERAL_ERR: u8 = 21;
}

/// Opcodes of CQEs (section 7, the verbs' numbers).
pub mod wc_opcode {
    #![allow(missing_docs, reason = "the names are those of the verbs")]
    pub const SEND: u8 = 0;
    pub const RDMA_WRITE: u8 = 1;
    pub const RDMA_READ: u8 = 2;
    pub const COMP_SWAP: u8 = 3;
    pub const FETCH_ADD: u8 = 4;
    pub const BIND_MW: u8 = 5;
    pub const LOCAL_INV: u8 = 6;
    pub const REG_MR: u8 = 7;
    pub const FLUSH: u8 = 8;
    pub const ATOMIC_WRITE: u8 = 9;
    pub const RECV: u8 = 128;
    pub const RECV_RDMA_WITH_IMM: u8 = 129;
}

/// Flags of CQEs (section 7).
pub mod cqe_flag {
    #![allow(missing_docs, reason = "the names are those of the specification")]
    pub const GRH: u16 = 1;
    pub const WITH_IMM: u16 = 2;
    pub const WITH_INV: u16 = 4;
    pub const SEND_QUEUE: u16 = 8;
    pub const ETHERNET: u16 = 16;
    pub const XRC: u16 = 32;
}

/// Types of asynchronous events (section 8).
pub mod event {
    #![allow(missing_docs, reason = "the names are those of the specification")]
    pub const CQ_ERR: u32 = 1;
    pub const QP_FATAL: u32 = 2;
    pub const QP_REQ_ERR: u32 = 3;
    pub const QP_ACCESS_ERR: u32 = 4;
    pub const COMM_EST: u32 = 5;
    pub const SQ_DRAINED: u32 = 6;
    pub const LAST_WQE_REACHED: u32 = 7;
    pub const SRQ_ERR: u32 = 8;
    pub const SRQ_LIMIT: u32 = 9;
}

/// KICK flags of a QP's control block (section 5).
pub const KICK_SQ: u32 = 1;
/// See [`KICK_SQ`].
pub const KICK_RQ: u32 = 2;
/// Error flag of a CQ's control block (section 7).
pub const CQ_ERROR: u32 = 1;

/// Destination QPN of datagrams to a group.
pub const MULTICAST_QPN: u32 = 0xff_ffff;

/// REG_MR flag: the list goes on.
pub const MR_MORE: u8 = 1;
/// REG_MR flag: extents instead of pages.
pub const MR_EXTENTS: u8 = 2;
/// REG_MR flag: all DMA addresses (feature DMA_MR).
pub const MR_DMA: u8 = 4;

/// QP types (section 4.7).
pub mod qp_type {
    #![allow(missing_docs, reason = "the names are those of the specification")]
    pub const GSI: u32 = 1;
    pub const RC: u32 = 2;
    pub const UC: u32 = 3;
    pub const UD: u32 = 4;
    pub const XRC_INI: u32 = 9;
    pub const XRC_TGT: u32 = 10;
}
