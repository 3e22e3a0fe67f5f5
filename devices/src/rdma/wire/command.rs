//! Control queue commands and replies: section 4.

use super::{FromBytes, Immutable, IntoBytes, KnownLayout, Le16, Le32, Le64, Unaligned};

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

/// Command opcodes (section 4).
pub mod opcode {
    /// Attributes of the device.
    pub const QUERY_DEVICE: u16 = 0x0001;
    /// Attributes of a port.
    pub const QUERY_PORT: u16 = 0x0002;
    /// The device's counters.
    pub const QUERY_COUNTERS: u16 = 0x0003;
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
    /// Makes a completion queue.
    pub const CREATE_CQ: u16 = 0x0050;
    /// Ends a completion queue.
    pub const DESTROY_CQ: u16 = 0x0051;
    /// Makes a queue pair.
    pub const CREATE_QP: u16 = 0x0060;
    /// Changes a queue pair's state and attributes.
    pub const MODIFY_QP: u16 = 0x0061;
    /// A queue pair's state and attributes.
    pub const QUERY_QP: u16 = 0x0062;
    /// Ends a queue pair.
    pub const DESTROY_QP: u16 = 0x0063;
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
    /// All that are defined.
    pub const ALL: u8 = MORE | EXTENTS;
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
    /// All that are defined.
    pub const ALL: u32 = LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC | MW_BIND;
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
    /// All that are defined.
    pub const ALL: u32 = SQ_SIG_ALL;
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

wire_structs! {
    /// Request header (section 4).
    CommandHeader[24] {
        /// One of [`opcode`].
        opcode: Le16,
        /// Zero.
        reserved0: Le16,
        /// Of header and body.
        length: Le32,
        /// The owner on whose behalf; 0 is the kernel.
        context: Le32,
        /// Zero.
        reserved1: Le32,
        /// Echoed.
        cookie: Le64,
    }

    /// Reply header (section 4).
    ReplyHeader[16] {
        /// A [`Status`].
        status: Le32,
        /// Of header and body.
        length: Le32,
        /// The request's.
        cookie: Le64,
    }

    /// A handle (or port number) and a reserved word: the body of many commands and replies.
    HandleBody[8] {
        /// The handle.
        handle: Le32,
        /// Zero.
        reserved: Le32,
    }

    /// QUERY_PORT.
    PortBody[4] {
        /// 1.
        port: Le32,
    }

    /// Reply to CREATE_CONTEXT.
    ContextReply[8] {
        /// The context.
        context: Le32,
        /// Its doorbell page.
        doorbell_page: Le32,
    }

    /// Reply to REG_MR.
    KeysReply[8] {
        /// Local key.
        lkey: Le32,
        /// Remote key; the same value.
        rkey: Le32,
    }

    /// Reply to QUERY_COUNTERS, before the values.
    CountersReply[8] {
        /// Values that follow.
        count: Le32,
        /// Zero.
        reserved: Le32,
    }

    /// Reply to QUERY_DEVICE (section 4.1).
    DeviceReply[168] {
        /// EUI-64, network order.
        node_guid: [u8; 8],
        /// EUI-64, network order.
        sys_image_guid: [u8; 8],
        /// Of the device.
        fw_version: Le64,
        /// Bytes.
        max_mr_size: Le64,
        /// Bit n: pages of 2^n.
        page_size_cap: Le64,
        /// OUI or PCI vendor.
        vendor_id: Le32,
        /// PCI device.
        vendor_part_id: Le32,
        /// Of the device.
        hw_version: Le32,
        /// User contexts.
        max_contexts: Le32,
        /// Protection domains.
        max_pd: Le32,
        /// Memory regions.
        max_mr: Le32,
        /// Memory windows.
        max_mw: Le32,
        /// Completion queues.
        max_cq: Le32,
        /// Entries of a completion queue.
        max_cqe: Le32,
        /// Queue pairs.
        max_qp: Le32,
        /// Entries of a send queue.
        max_send_wr: Le32,
        /// Entries of a receive queue.
        max_recv_wr: Le32,
        /// SGEs of a send.
        max_send_sge: Le32,
        /// SGEs of a receive.
        max_recv_sge: Le32,
        /// Inline bytes of a send.
        max_inline: Le32,
        /// Shared receive queues.
        max_srq: Le32,
        /// Entries of a shared receive queue.
        max_srq_wr: Le32,
        /// SGEs of a shared receive.
        max_srq_sge: Le32,
        /// Address handles.
        max_ah: Le32,
        /// XRC domains.
        max_xrcd: Le32,
        /// READs and atomics a QP answers at a time.
        max_rd_atomic: Le32,
        /// READs and atomics a QP asks at a time.
        max_init_rd_atomic: Le32,
        /// Multicast groups.
        max_mcast_grp: Le32,
        /// QPs in a multicast group.
        max_mcast_qp: Le32,
        /// Slots of the GID table.
        max_gids: Le32,
        /// Slots of the partition table.
        max_pkeys: Le32,
        /// Bytes of a message.
        max_msg_size: Le32,
        /// Pages of a fast registration.
        max_fast_reg_pages: Le32,
        /// Bytes of a command.
        max_cmd_bytes: Le32,
        /// 2^n * 4.096 us.
        ack_delay: Le32,
        /// Bytes.
        max_sq_stride: Le32,
        /// Zero.
        reserved: Le32,
    }

    /// Reply to QUERY_PORT (section 4.2).
    PortReply[24] {
        /// One of [`port_state`].
        state: u8,
        /// One of [`port_state`].
        phys_state: u8,
        /// IB enumeration.
        max_mtu: u8,
        /// IB enumeration.
        active_width: u8,
        /// IB enumeration.
        active_speed: u8,
        /// Zero.
        reserved0: [u8; 3],
        /// Bytes.
        max_msg_size: Le32,
        /// Slots.
        gid_table_len: Le32,
        /// Slots.
        pkey_table_len: Le32,
        /// Zero.
        reserved1: Le32,
    }

    /// ADD_GID (section 4.3).
    AddGidBody[32] {
        /// Slot.
        index: Le32,
        /// [`GID_TYPE_ROCE_V2`].
        kind: u8,
        /// Zero.
        reserved0: u8,
        /// Or [`VLAN_NONE`].
        vlan: Le16,
        /// Network order.
        gid: [u8; 16],
        /// Network order.
        mac: [u8; 6],
        /// Zero.
        reserved1: [u8; 2],
    }

    /// REG_MR, before its entries (section 4.4).
    RegMrBody[48] {
        /// Protection domain.
        pd: Le32,
        /// Bits of [`access`].
        access: Le32,
        /// The address by which work requests name the first byte.
        iova: Le64,
        /// Bytes.
        length: Le64,
        /// Of the first byte within the first page or extent.
        offset: Le64,
        /// Pages of 2^n bytes, 12 to 30.
        page_shift: u8,
        /// Bits of [`mr_flag`].
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

    /// CREATE_CQ, before its pages (section 4.6).
    CreateCqBody[48] {
        /// Power of two.
        entries: Le32,
        /// Completion vector.
        vector: Le32,
        /// Bytes, a multiple of 4096.
        buf_length: Le64,
        /// Pages of 2^n, 12 to 30.
        page_shift: Le32,
        /// Pages that follow.
        num_pages: Le32,
        /// Of the buffer in its first page, a multiple of 4096.
        buf_offset: Le64,
        /// Of the control block, a multiple of 64.
        ctrl_offset: Le64,
        /// Of CQE 0, a multiple of 64.
        ring_offset: Le64,
    }

    /// CREATE_QP, before its pages (section 4.7).
    CreateQpBody[104] {
        /// Protection domain.
        pd: Le32,
        /// One of [`qp_type`].
        kind: Le32,
        /// Of send completions.
        send_cq: Le32,
        /// Of receive completions.
        recv_cq: Le32,
        /// Shared receive queue, 0 none.
        srq: Le32,
        /// Bits of [`qp_flag`].
        flags: Le32,
        /// Power of two, 0 none.
        sq_entries: Le32,
        /// Power of two.
        sq_stride: Le32,
        /// Power of two, 0 none.
        rq_entries: Le32,
        /// Power of two.
        rq_stride: Le32,
        /// SGEs of a send.
        max_send_sge: Le32,
        /// SGEs of a receive.
        max_recv_sge: Le32,
        /// Inline bytes of a send.
        max_inline: Le32,
        /// XRC domain, 0 none.
        xrcd: Le32,
        /// Bytes, a multiple of 4096.
        buf_length: Le64,
        /// Pages of 2^n, 12 to 30.
        page_shift: Le32,
        /// Pages that follow.
        num_pages: Le32,
        /// Of the buffer in its first page, a multiple of 4096.
        buf_offset: Le64,
        /// Of the control block, a multiple of 64.
        ctrl_offset: Le64,
        /// Of send WQE 0, a multiple of `sq_stride`.
        sq_offset: Le64,
        /// Of receive WQE 0, a multiple of `rq_stride`.
        rq_offset: Le64,
    }

    /// MODIFY_QP, and the reply to QUERY_QP (section 4.8).
    QpAttributesBody[72] {
        /// The QP.
        qpn: Le32,
        /// Bits of [`qp_mask`].
        mask: Le32,
        /// 0 RESET, 1 INIT, 2 RTR, 3 RTS, 4 SQD, 5 SQE, 6 ERR.
        state: u8,
        /// Likewise.
        cur_state: u8,
        /// IB enumeration.
        path_mtu: u8,
        /// 1.
        port: u8,
        /// Bits of [`access`].
        access: Le32,
        /// Datagram QPs.
        qkey: Le32,
        /// Connected QPs.
        dest_qpn: Le32,
        /// First message expected.
        rq_psn: Le32,
        /// First message sent.
        sq_psn: Le32,
        /// As requester.
        max_rd_atomic: u8,
        /// As responder.
        max_dest_rd_atomic: u8,
        /// 4.096 us * 2^n, 0 for ever.
        timeout: u8,
        /// Up to 7.
        retry_cnt: u8,
        /// Up to 7, which is for ever.
        rnr_retry: u8,
        /// IB encoding.
        min_rnr_timer: u8,
        /// 0.
        pkey_index: Le16,
        /// Address vector.
        flow_label: Le32,
        /// Address vector.
        sgid_index: u8,
        /// Address vector.
        hop_limit: u8,
        /// Address vector.
        traffic_class: u8,
        /// Address vector.
        sl: u8,
        /// Address vector, network order.
        dgid: [u8; 16],
        /// Address vector, network order.
        dmac: [u8; 6],
        /// Not 0: SQ_DRAINED is wanted.
        en_sqd_async: u8,
        /// Query only.
        sq_draining: u8,
    }
}
