//! Structs of control queue commands and replies: section 4.

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

wire_structs! {
    /// Request header (section 4).
    CommandHeader[24] {
        /// One of [`super::opcode`].
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
        /// A [`super::Status`].
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
        /// One of [`super::port_state`].
        state: u8,
        /// One of [`super::port_state`].
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
        /// [`super::GID_TYPE_ROCE_V2`].
        kind: u8,
        /// Zero.
        reserved0: u8,
        /// Or [`super::VLAN_NONE`].
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

    /// MR_APPEND, before its entries.
    MrAppendBody[8] {
        /// The region.
        lkey: Le32,
        /// In this command.
        num_entries: Le32,
    }

    /// Memory of a ring or list, whose pages end the command (section 4.6).
    RingBufferBody[24] {
        /// Bytes, a multiple of 4096.
        length: Le64,
        /// Pages of 2^n, 12 to 30.
        page_shift: Le32,
        /// Pages that follow.
        num_pages: Le32,
        /// Of the buffer in its first page, a multiple of 4096.
        offset: Le64,
    }

    /// CREATE_CQ, before its pages (section 4.6).
    CreateCqBody[48] {
        /// Power of two.
        entries: Le32,
        /// Completion vector.
        vector: Le32,
        /// Its memory.
        buffer: RingBufferBody,
        /// Of the control block, a multiple of 64.
        ctrl_offset: Le64,
        /// Of CQE 0, a multiple of 64.
        ring_offset: Le64,
    }

    /// RESIZE_CQ, before its pages (section 4.6).
    ResizeCqBody[48] {
        /// Power of two.
        entries: Le32,
        /// The CQ.
        cqn: Le32,
        /// Its memory.
        buffer: RingBufferBody,
        /// Of the control block, a multiple of 64.
        ctrl_offset: Le64,
        /// Of CQE 0, a multiple of 64.
        ring_offset: Le64,
    }

    /// MODIFY_CQ (section 4.6).
    ModifyCqBody[8] {
        /// The CQ.
        cqn: Le32,
        /// Completions.
        count: Le16,
        /// Microseconds.
        period: Le16,
    }

    /// Reply to QUERY_CLOCK (section 4.11).
    ClockReply[8] {
        /// Nanoseconds.
        nanoseconds: Le64,
    }

    /// CREATE_QP, before its pages (section 4.7).
    CreateQpBody[104] {
        /// Protection domain.
        pd: Le32,
        /// One of [`super::qp_type`].
        kind: Le32,
        /// Of send completions.
        send_cq: Le32,
        /// Of receive completions.
        recv_cq: Le32,
        /// Shared receive queue, 0 none.
        srq: Le32,
        /// Bits of [`super::qp_flag`].
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
        /// Its memory.
        buffer: RingBufferBody,
        /// Of the control block, a multiple of 64.
        ctrl_offset: Le64,
        /// Of send WQE 0, a multiple of `sq_stride`.
        sq_offset: Le64,
        /// Of receive WQE 0, a multiple of `rq_stride`.
        rq_offset: Le64,
    }

    /// ATTACH_MCAST and DETACH_MCAST (section 4.10).
    McastBody[24] {
        /// The QP, of type UD.
        qpn: Le32,
        /// Zero.
        reserved: Le32,
        /// The group's GID, network order.
        gid: [u8; 16],
    }

    /// CREATE_SRQ, before its pages (section 4.12).
    CreateSrqBody[72] {
        /// Protection domain.
        pd: Le32,
        /// One of [`super::srq_type`].
        kind: Le32,
        /// XRC: of receive completions; 0 else.
        cq: Le32,
        /// XRC: the domain; 0 else.
        xrcd: Le32,
        /// Power of two.
        entries: Le32,
        /// Power of two.
        stride: Le32,
        /// SGEs of a receive.
        max_sge: Le32,
        /// Zero.
        reserved: Le32,
        /// Its memory.
        buffer: RingBufferBody,
        /// Of the control block, a multiple of 64.
        ctrl_offset: Le64,
        /// Of receive WQE 0, a multiple of `stride`.
        ring_offset: Le64,
    }

    /// MODIFY_SRQ, before its pages (section 4.12).
    ModifySrqBody[56] {
        /// The SRQ.
        srq: Le32,
        /// Bits of [`super::srq_mask`].
        mask: Le32,
        /// Receives below which SRQ_LIMIT is raised, 0 never.
        limit: Le32,
        /// Power of two.
        entries: Le32,
        /// Its memory.
        buffer: RingBufferBody,
        /// As in CREATE_SRQ.
        ctrl_offset: Le64,
        /// As in CREATE_SRQ.
        ring_offset: Le64,
    }

    /// Reply to QUERY_SRQ (section 4.12).
    SrqAttributesBody[16] {
        /// The SRQ.
        srq: Le32,
        /// Elements of its ring.
        entries: Le32,
        /// SGEs of a receive.
        max_sge: Le32,
        /// Limit, 0 when none is armed.
        limit: Le32,
    }

    /// MODIFY_QP, and the reply to QUERY_QP (section 4.8).
    QpAttributesBody[72] {
        /// The QP.
        qpn: Le32,
        /// Bits of [`super::qp_mask`].
        mask: Le32,
        /// 0 RESET, 1 INIT, 2 RTR, 3 RTS, 4 SQD, 5 SQE, 6 ERR.
        state: u8,
        /// Likewise.
        cur_state: u8,
        /// IB enumeration.
        path_mtu: u8,
        /// 1.
        port: u8,
        /// Bits of [`super::access`].
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
