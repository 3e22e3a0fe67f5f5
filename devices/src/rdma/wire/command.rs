//! Commands and replies (section 4): what all begin with, and those of the device, its port, its GIDs and user contexts.

use super::{FromBytes, Immutable, IntoBytes, KnownLayout, Le16, Le32, Le64, Unaligned};

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

    /// Reply to QUERY_COUNTERS, before the values.
    CountersReply[8] {
        /// Values that follow.
        count: Le32,
        /// Zero.
        reserved: Le32,
    }

    /// Reply to QUERY_CLOCK (section 4.11).
    ClockReply[8] {
        /// Nanoseconds.
        nanoseconds: Le64,
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
}
