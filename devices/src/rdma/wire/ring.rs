//! What lies in queue memory: sections 5 to 7 and 9.

use super::{FromBytes, Immutable, IntoBytes, KnownLayout, Le16, Le32, Le64, Unaligned};

/// Offsets in a QP's control block (section 5).
pub mod qp_control {
    /// Bytes of the block.
    pub const SIZE: u64 = 256;
    /// le32: next send WQE the process will fill.
    pub const SQ_PRODUCER: u64 = 0;
    /// le32: next receive WQE the process will fill.
    pub const RQ_PRODUCER: u64 = 64;
    /// le32, written by the device: [`super::kick`] bits.
    pub const FLAGS: u64 = 128;
}

/// Bits of the QP control block's flags (section 5).
pub mod kick {
    /// Ring the doorbell after a send was posted.
    pub const SQ: u32 = 1;
    /// Ring the doorbell after a receive was posted.
    pub const RQ: u32 = 2;
}

/// Offsets in an SRQ's control block (section 6.1).
pub mod srq_control {
    /// Bytes of the block.
    pub const SIZE: u64 = 128;
    /// le32: next receive WQE the process will fill.
    pub const PRODUCER: u64 = 0;
    /// le32, written by the device: next receive WQE it will take.
    pub const CONSUMER: u64 = 64;
    /// le32, written by the device.
    pub const FLAGS: u64 = 68;
    /// Flag: a producer index that cannot be.
    pub const FLAG_ERROR: u32 = 1;
}

/// Offsets in a CQ's control block (section 7).
pub mod cq_control {
    /// Bytes of the block.
    pub const SIZE: u64 = 128;
    /// le32: next CQE the process will read.
    pub const CONSUMER: u64 = 0;
    /// le32: `sequence << 2 | kind`.
    pub const ARM: u64 = 4;
    /// le32, written by the device.
    pub const FLAGS: u64 = 64;
    /// Flag: the CQ overflowed.
    pub const FLAG_ERROR: u32 = 1;
    /// Arm kind: the next solicited or failed completion.
    pub const ARM_SOLICITED: u32 = 1;
    /// Arm kind: the next completion of any sort.
    pub const ARM_ANY: u32 = 2;
}

/// Opcodes of send WQEs (section 5).
pub mod send_opcode {
    /// RDMA WRITE.
    pub const WRITE: u8 = 0;
    /// RDMA WRITE with immediate.
    pub const WRITE_IMM: u8 = 1;
    /// SEND.
    pub const SEND: u8 = 2;
    /// SEND with immediate.
    pub const SEND_IMM: u8 = 3;
    /// RDMA READ.
    pub const READ: u8 = 4;
    /// Compare and swap.
    pub const CMP_AND_SWP: u8 = 5;
    /// Fetch and add.
    pub const FETCH_AND_ADD: u8 = 6;
    /// Invalidate a local key.
    pub const LOCAL_INV: u8 = 7;
    /// Bind a memory window.
    pub const BIND_MW: u8 = 8;
    /// SEND that invalidates a remote key.
    pub const SEND_INV: u8 = 9;
    /// Flush of what was placed at the peer.
    pub const FLUSH: u8 = 14;
    /// Write of a word, at once.
    pub const ATOMIC_WRITE: u8 = 15;
    /// Fast registration.
    pub const REG_MR: u8 = 32;
}

/// Parts of a FLUSH's `swap` (section 5.2).
pub mod flush {
    /// Placement: all of the guest sees it.
    pub const GLOBAL: u64 = 1;
    /// Placement: it outlives the power.
    pub const PERSISTENT: u64 = 2;
    /// Selectivity: the range. With [`REGION`], the region that the key names.
    pub const RANGE: u64 = 0;
    /// See [`RANGE`].
    pub const REGION: u64 = 1 << 8;
}

/// Flags of send WQEs (section 5).
pub mod send_flag {
    /// A CQE is wanted on success.
    pub const SIGNALED: u8 = 1;
    /// The peer's CQE is solicited.
    pub const SOLICITED: u8 = 2;
    /// Wait for earlier READs and atomics.
    pub const FENCE: u8 = 4;
    /// Data lies in the WQE.
    pub const INLINE: u8 = 8;
    /// All that are defined.
    pub const ALL: u8 = SIGNALED | SOLICITED | FENCE | INLINE;
}

wire_structs! {
    /// The first 64 bytes of a send WQE (section 5).
    SendWqeHeader[64] {
        /// Echoed in the CQE.
        wr_id: Le64,
        /// One of [`send_opcode`].
        opcode: u8,
        /// Bits of [`send_flag`].
        flags: u8,
        /// SGEs that follow; 0 with INLINE.
        num_sge: Le16,
        /// Inline bytes that follow.
        inline_len: Le32,
        /// Immediate data untouched, or le32 key to invalidate.
        imm: [u8; 4],
        /// Remote key.
        rkey: Le32,
        /// Remote address. From here on a datagram has its [`DatagramAddress`].
        remote_addr: Le64,
        /// Atomics: compare or add operand; ATOMIC_WRITE: the value; FLUSH: bytes of the range.
        compare_add: Le64,
        /// Atomics: swap operand; FLUSH: [`flush`].
        swap: Le64,
        /// REG_MR: le32 entries of the list and u8 page_shift. XRC: le32 SRQ. Else zero.
        extra: [u8; 16],
    }
}

impl SendWqeHeader {
    /// The SRQ that a message of an XRC initiator is for.
    pub fn srqn(&self) -> u32 {
        let [a, b, c, d, ..] = self.extra;
        u32::from_le_bytes([a, b, c, d])
    }

    /// Where a datagram goes.
    pub fn datagram(&self) -> DatagramAddress {
        const AT: usize = std::mem::offset_of!(SendWqeHeader, remote_addr);
        const LEN: usize = size_of::<DatagramAddress>();
        const _: () = assert!(AT == 24 && AT + LEN <= size_of::<SendWqeHeader>());
        let mut address = DatagramAddress::default();
        address
            .as_mut_bytes()
            .copy_from_slice(&self.as_bytes()[AT..AT + LEN]);
        address
    }
}

wire_structs! {
    /// Bytes 24 to 55 of the send WQE of a datagram QP: the whole address (section 5).
    DatagramAddress[32] {
        /// The receiving QP, or [`MULTICAST_QPN`].
        dest_qpn: Le32,
        /// Its Q_Key; with [`QKEY_OWN`], the sending QP's own counts.
        qkey: Le32,
        /// Where the receiving QP is, or the multicast group; network order.
        dgid: [u8; 16],
        /// 20 bits.
        flow_label: Le32,
        /// Our GID.
        sgid_index: u8,
        /// Of the GRH.
        hop_limit: u8,
        /// Of the GRH.
        traffic_class: u8,
        /// Service level.
        sl: u8,
    }
}

/// The QPN that datagrams to a multicast group name.
pub const MULTICAST_QPN: u32 = 0xff_ffff;

/// Bit of a WQE's Q_Key: the sending QP's own is meant.
pub const QKEY_OWN: u32 = 1 << 31;

wire_structs! {
    /// A scatter/gather element (section 5).
    Sge[16] {
        /// Address in the region's own terms.
        addr: Le64,
        /// Bytes.
        length: Le32,
        /// Local key.
        lkey: Le32,
    }

    /// The first 16 bytes of a receive WQE (section 6).
    ReceiveWqeHeader[16] {
        /// Echoed in the CQE.
        wr_id: Le64,
        /// SGEs that follow.
        num_sge: Le16,
        /// Zero.
        reserved: [u8; 6],
    }
}

/// CQE status: the verbs' numbers (section 7).
pub mod cqe_status {
    /// Done.
    pub const SUCCESS: u8 = 0;
    /// Length error at this side.
    pub const LOC_LEN_ERR: u8 = 1;
    /// The QP cannot do that.
    pub const LOC_QP_OP_ERR: u8 = 2;
    /// Local key, range or permission.
    pub const LOC_PROT_ERR: u8 = 4;
    /// Flushed in the error state.
    pub const WR_FLUSH_ERR: u8 = 5;
    /// Binding a memory window failed.
    pub const MW_BIND_ERR: u8 = 6;
    /// The responder met a protection error of its own on a one-sided request.
    pub const LOC_ACCESS_ERR: u8 = 8;
    /// The responder calls the request invalid.
    pub const REM_INV_REQ_ERR: u8 = 9;
    /// The responder refuses key, range or permission.
    pub const REM_ACCESS_ERR: u8 = 10;
    /// The responder failed.
    pub const REM_OP_ERR: u8 = 11;
    /// The responder is silent.
    pub const RETRY_EXC_ERR: u8 = 12;
    /// The responder has no receive.
    pub const RNR_RETRY_EXC_ERR: u8 = 13;
    /// The transport is broken.
    pub const FATAL_ERR: u8 = 19;
    /// None of the others.
    pub const GENERAL_ERR: u8 = 21;
}

/// CQE opcode: the verbs' numbers (section 7).
pub mod cqe_opcode {
    /// A SEND of any kind.
    pub const SEND: u8 = 0;
    /// An RDMA WRITE.
    pub const RDMA_WRITE: u8 = 1;
    /// An RDMA READ.
    pub const RDMA_READ: u8 = 2;
    /// Compare and swap.
    pub const COMP_SWAP: u8 = 3;
    /// Fetch and add.
    pub const FETCH_ADD: u8 = 4;
    /// Binding a memory window.
    pub const BIND_MW: u8 = 5;
    /// Invalidating a local key.
    pub const LOCAL_INV: u8 = 6;
    /// Fast registration.
    pub const REG_MR: u8 = 7;
    /// A flush.
    pub const FLUSH: u8 = 8;
    /// An atomic write.
    pub const ATOMIC_WRITE: u8 = 9;
    /// A receive.
    pub const RECV: u8 = 128;
    /// A receive consumed by a WRITE with immediate.
    pub const RECV_RDMA_WITH_IMM: u8 = 129;
}

/// CQE flags (section 7).
pub mod cqe_flag {
    /// A GRH precedes the data.
    pub const GRH: u16 = 1;
    /// `imm` is immediate data.
    pub const WITH_IMM: u16 = 2;
    /// `imm` is a key that was invalidated.
    pub const WITH_INV: u16 = 4;
    /// Of the send queue.
    pub const SEND_QUEUE: u16 = 8;
    /// `smac` is there, and `vlan` if it is not [`super::super::VLAN_NONE`].
    pub const ETHERNET: u16 = 16;
    /// Of an XRC SRQ, whose number is in `srqn`.
    pub const XRC: u16 = 32;
}

wire_structs! {
    /// A CQE without its last word, the phase (section 7).
    Cqe[60] {
        /// Of the WQE.
        wr_id: Le64,
        /// One of [`cqe_status`].
        status: u8,
        /// One of [`cqe_opcode`].
        opcode: u8,
        /// Bits of [`cqe_flag`].
        flags: Le16,
        /// Bytes received; for READ and atomics, bytes read.
        byte_len: Le32,
        /// Immediate data untouched, or le32 key invalidated.
        imm: [u8; 4],
        /// The QP.
        qpn: Le32,
        /// The peer's QP.
        src_qpn: Le32,
        /// One of [`vendor_err`].
        vendor_err: Le32,
        /// Free-running index of the WQE.
        wqe_index: Le32,
        /// Service level.
        sl: u8,
        /// Zero.
        reserved0: u8,
        /// Index in the partition table.
        pkey_index: Le16,
        /// Nanoseconds of the device's clock.
        timestamp: Le64,
        /// Source MAC address.
        smac: [u8; 6],
        /// VLAN.
        vlan: Le16,
        /// XRC: the SRQ.
        srqn: Le32,
    }
}

/// Bytes of a CQE in its ring: [`Cqe`] and the le32 phase.
pub const CQE_SIZE: u64 = 64;

/// Where in a CQE the le32 phase lies.
pub const CQE_PHASE: u64 = size_of::<Cqe>() as u64;

/// Where the device found fault (section 9).
pub mod vendor_err {
    /// No fault.
    pub const NONE: u32 = 0;
    /// A producer index that cannot be.
    pub const RING_INDEX: u32 = 1;
    /// Unknown opcode, or not allowed on this QP.
    pub const OPCODE: u32 = 2;
    /// SGE count or inline length.
    pub const SGE_COUNT: u32 = 3;
    /// No such key.
    pub const KEY_NOT_FOUND: u32 = 4;
    /// The key belongs to another PD or owner.
    pub const PD: u32 = 5;
    /// The region does not allow it.
    pub const ACCESS: u32 = 6;
    /// Outside the region.
    pub const RANGE: u32 = 7;
    /// Longer than a message may be, or than the receive.
    pub const MESSAGE_LENGTH: u32 = 8;
    /// The peer is silent.
    pub const UNREACHABLE: u32 = 9;
    /// The peer refused.
    pub const REFUSED: u32 = 10;
    /// The peer had no receive.
    pub const NO_RECEIVE: u32 = 11;
    /// Flushed.
    pub const FLUSHED: u32 = 12;
    /// The key is in use, or not, where it must be the other way.
    pub const KEY_STATE: u32 = 13;
}
