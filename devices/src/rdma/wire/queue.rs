//! Commands of completion queues, queue pairs, multicast groups and shared receive queues: sections 4.6 to 4.8, 4.10 and 4.12.

use super::{FromBytes, Immutable, IntoBytes, KnownLayout, Le16, Le32, Le64, Unaligned};

wire_structs! {
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
}
