//! Bodies of commands and replies: section 4.

use super::{Body, le16, le32, le64};

/// QUERY_DEVICE's reply (section 4.1), the fields that the tests look at.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the names are those of the specification")]
pub struct DeviceLimits {
    pub node_guid: u64,
    pub sys_image_guid: u64,
    pub max_mr_size: u64,
    pub page_size_cap: u64,
    pub vendor_id: u32,
    pub max_contexts: u32,
    pub max_pd: u32,
    pub max_mr: u32,
    pub max_mw: u32,
    pub max_cq: u32,
    pub max_cqe: u32,
    pub max_qp: u32,
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline: u32,
    pub max_srq: u32,
    pub max_srq_wr: u32,
    pub max_srq_sge: u32,
    pub max_xrcd: u32,
    pub max_rd_atomic: u32,
    pub max_init_rd_atomic: u32,
    pub max_mcast_grp: u32,
    pub max_mcast_qp: u32,
    pub max_gids: u32,
    pub max_pkeys: u32,
    pub max_msg_size: u32,
    pub max_fast_reg_pages: u32,
    pub max_cmd_bytes: u32,
    pub max_sq_stride: u32,
}

impl DeviceLimits {
    /// Reads a reply's body.
    pub fn decode(body: &[u8]) -> DeviceLimits {
        assert_eq!(body.len(), 168, "4.1: the reply has 168 bytes");
        let field = |n: usize| le32(body, 40 + 4 * n);
        DeviceLimits {
            node_guid: le64(body, 0),
            sys_image_guid: le64(body, 8),
            max_mr_size: le64(body, 24),
            page_size_cap: le64(body, 32),
            vendor_id: field(0),
            max_contexts: field(3),
            max_pd: field(4),
            max_mr: field(5),
            max_mw: field(6),
            max_cq: field(7),
            max_cqe: field(8),
            max_qp: field(9),
            max_send_wr: field(10),
            max_recv_wr: field(11),
            max_send_sge: field(12),
            max_recv_sge: field(13),
            max_inline: field(14),
            max_srq: field(15),
            max_srq_wr: field(16),
            max_srq_sge: field(17),
            max_xrcd: field(19),
            max_rd_atomic: field(20),
            max_init_rd_atomic: field(21),
            max_mcast_grp: field(22),
            max_mcast_qp: field(23),
            max_gids: field(24),
            max_pkeys: field(25),
            max_msg_size: field(26),
            max_fast_reg_pages: field(27),
            max_cmd_bytes: field(28),
            max_sq_stride: field(30),
        }
    }
}

/// Counters (section 4.9).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of the specification")]
pub struct Counters {
    pub tx_messages: u64,
    pub tx_bytes: u64,
    pub rx_messages: u64,
    pub rx_bytes: u64,
    pub completions: u64,
    pub rnr_nak_sent: u64,
    pub rnr_nak_received: u64,
    pub retries: u64,
    pub timeouts: u64,
    pub access_errors: u64,
    pub cq_overflows: u64,
    pub flushed: u64,
    pub rx_discarded: u64,
    pub lost: u64,
    pub tx_discarded: u64,
    pub qkey_errors: u64,
}

impl Counters {
    /// Reads a reply's body.
    pub fn decode(body: &[u8]) -> Counters {
        let count = le32(body, 0) as usize;
        assert!(count >= 16, "4.9 lists 16 counters, the device has {count}");
        assert_eq!(body.len(), 8 + 8 * count);
        let value = |n: usize| le64(body, 8 + 8 * n);
        Counters {
            tx_messages: value(0),
            tx_bytes: value(1),
            rx_messages: value(2),
            rx_bytes: value(3),
            completions: value(4),
            rnr_nak_sent: value(5),
            rnr_nak_received: value(6),
            retries: value(7),
            timeouts: value(8),
            access_errors: value(9),
            cq_overflows: value(10),
            flushed: value(11),
            rx_discarded: value(12),
            lost: value(13),
            tx_discarded: value(14),
            qkey_errors: value(15),
        }
    }
}

/// QP attributes (section 4.8): 72 bytes either way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of the specification")]
pub struct QpAttributes {
    pub qpn: u32,
    pub mask: u32,
    pub state: u8,
    pub cur_state: u8,
    pub path_mtu: u8,
    pub port: u8,
    pub access: u32,
    pub qkey: u32,
    pub dest_qpn: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub min_rnr_timer: u8,
    pub pkey_index: u16,
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub sl: u8,
    pub dgid: [u8; 16],
    pub dmac: [u8; 6],
    pub en_sqd_async: u8,
    pub sq_draining: u8,
}

impl QpAttributes {
    /// The body.
    pub fn encode(&self) -> Vec<u8> {
        let body = Body::new()
            .u32(self.qpn)
            .u32(self.mask)
            .u8(self.state)
            .u8(self.cur_state)
            .u8(self.path_mtu)
            .u8(self.port)
            .u32(self.access)
            .u32(self.qkey)
            .u32(self.dest_qpn)
            .u32(self.rq_psn)
            .u32(self.sq_psn)
            .u8(self.max_rd_atomic)
            .u8(self.max_dest_rd_atomic)
            .u8(self.timeout)
            .u8(self.retry_cnt)
            .u8(self.rnr_retry)
            .u8(self.min_rnr_timer)
            .u16(self.pkey_index)
            .u32(self.flow_label)
            .u8(self.sgid_index)
            .u8(self.hop_limit)
            .u8(self.traffic_class)
            .u8(self.sl)
            .bytes(&self.dgid)
            .bytes(&self.dmac)
            .u8(self.en_sqd_async)
            .u8(self.sq_draining)
            .0;
        debug_assert_eq!(body.len(), 72);
        body
    }

    /// Reads a reply's body.
    pub fn decode(body: &[u8]) -> QpAttributes {
        assert_eq!(body.len(), 72, "4.8: 72 bytes");
        QpAttributes {
            qpn: le32(body, 0),
            mask: le32(body, 4),
            state: body[8],
            cur_state: body[9],
            path_mtu: body[10],
            port: body[11],
            access: le32(body, 12),
            qkey: le32(body, 16),
            dest_qpn: le32(body, 20),
            rq_psn: le32(body, 24),
            sq_psn: le32(body, 28),
            max_rd_atomic: body[32],
            max_dest_rd_atomic: body[33],
            timeout: body[34],
            retry_cnt: body[35],
            rnr_retry: body[36],
            min_rnr_timer: body[37],
            pkey_index: le16(body, 38),
            flow_label: le32(body, 40),
            sgid_index: body[44],
            hop_limit: body[45],
            traffic_class: body[46],
            sl: body[47],
            dgid: body[48..64].try_into().expect("16 bytes"),
            dmac: body[64..70].try_into().expect("6 bytes"),
            en_sqd_async: body[70],
            sq_draining: body[71],
        }
    }
}

/// A page list or extent list for REG_MR (section 4.4).
#[derive(Clone, Debug, Default)]
#[allow(missing_docs, reason = "the names are those of the specification")]
pub struct RegMr {
    pub pd: u32,
    pub access: u32,
    pub iova: u64,
    pub length: u64,
    pub offset: u64,
    pub page_shift: u8,
    pub flags: u8,
    pub total_entries: u32,
    pub num_entries: u32,
    pub entries: Vec<u64>,
}

impl RegMr {
    /// The body. `entries` are the le64 as they stand, two to an extent.
    pub fn encode(&self) -> Vec<u8> {
        let body = Body::new()
            .u32(self.pd)
            .u32(self.access)
            .u64(self.iova)
            .u64(self.length)
            .u64(self.offset)
            .u8(self.page_shift)
            .u8(self.flags)
            .u16(0)
            .u32(self.total_entries)
            .u32(self.num_entries)
            .u32(0);
        debug_assert_eq!(body.0.len(), 48);
        body.ending(&self.entries)
    }
}

/// CREATE_CQ's body (section 4.6).
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the names are those of the specification")]
pub struct CreateCq {
    pub entries: u32,
    pub vector: u32,
    pub buf_length: u64,
    pub page_shift: u32,
    pub num_pages: u32,
    pub buf_offset: u64,
    pub ctrl_offset: u64,
    pub ring_offset: u64,
    pub pages: Vec<u64>,
}

impl CreateCq {
    /// The body.
    pub fn encode(&self) -> Vec<u8> {
        Body::new()
            .u32(self.entries)
            .u32(self.vector)
            .u64(self.buf_length)
            .u32(self.page_shift)
            .u32(self.num_pages)
            .u64(self.buf_offset)
            .u64(self.ctrl_offset)
            .u64(self.ring_offset)
            .ending(&self.pages)
    }
}

/// CREATE_SRQ's body (section 4.12).
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the names are those of the specification")]
pub struct CreateSrq {
    pub pd: u32,
    pub kind: u32,
    pub cq: u32,
    pub xrcd: u32,
    pub entries: u32,
    pub stride: u32,
    pub max_sge: u32,
    pub ring: SrqBuffer,
}

/// Where an SRQ's ring lies, as CREATE_SRQ and MODIFY_SRQ end.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs, reason = "the names are those of the specification")]
pub struct SrqBuffer {
    pub buf_length: u64,
    pub page_shift: u32,
    pub num_pages: u32,
    pub buf_offset: u64,
    pub ctrl_offset: u64,
    pub ring_offset: u64,
    pub pages: Vec<u64>,
}

impl SrqBuffer {
    fn append(&self, body: Body) -> Vec<u8> {
        body.u64(self.buf_length)
            .u32(self.page_shift)
            .u32(self.num_pages)
            .u64(self.buf_offset)
            .u64(self.ctrl_offset)
            .u64(self.ring_offset)
            .ending(&self.pages)
    }
}

impl CreateSrq {
    /// The body.
    pub fn encode(&self) -> Vec<u8> {
        let mut body = Body::new();
        for value in [
            self.pd,
            self.kind,
            self.cq,
            self.xrcd,
            self.entries,
            self.stride,
            self.max_sge,
            0,
        ] {
            body = body.u32(value);
        }
        self.ring.append(body)
    }
}

/// MODIFY_SRQ's body (section 4.12).
#[derive(Clone, Debug, Default)]
#[allow(missing_docs, reason = "the names are those of the specification")]
pub struct ModifySrq {
    pub srq: u32,
    pub mask: u32,
    pub limit: u32,
    pub entries: u32,
    pub ring: SrqBuffer,
}

impl ModifySrq {
    /// The body.
    pub fn encode(&self) -> Vec<u8> {
        let mut body = Body::new();
        for value in [self.srq, self.mask, self.limit, self.entries] {
            body = body.u32(value);
        }
        self.ring.append(body)
    }
}

/// QUERY_SRQ's reply (section 4.12).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of the specification")]
pub struct SrqAttributes {
    pub srq: u32,
    pub entries: u32,
    pub max_sge: u32,
    pub limit: u32,
}

impl SrqAttributes {
    /// Reads a reply's body.
    pub fn decode(body: &[u8]) -> SrqAttributes {
        assert_eq!(body.len(), 16, "4.12: the reply has 16 bytes");
        SrqAttributes {
            srq: le32(body, 0),
            entries: le32(body, 4),
            max_sge: le32(body, 8),
            limit: le32(body, 12),
        }
    }
}

/// CREATE_QP's body (section 4.7).
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the names are those of the specification")]
pub struct CreateQp {
    pub pd: u32,
    pub kind: u32,
    pub send_cq: u32,
    pub recv_cq: u32,
    pub srq: u32,
    pub flags: u32,
    pub sq_entries: u32,
    pub sq_stride: u32,
    pub rq_entries: u32,
    pub rq_stride: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline: u32,
    pub xrcd: u32,
    pub buf_length: u64,
    pub page_shift: u32,
    pub num_pages: u32,
    pub buf_offset: u64,
    pub ctrl_offset: u64,
    pub sq_offset: u64,
    pub rq_offset: u64,
    pub pages: Vec<u64>,
}

impl CreateQp {
    /// The body.
    pub fn encode(&self) -> Vec<u8> {
        let mut body = Body::new();
        for value in [
            self.pd,
            self.kind,
            self.send_cq,
            self.recv_cq,
            self.srq,
            self.flags,
            self.sq_entries,
            self.sq_stride,
            self.rq_entries,
            self.rq_stride,
            self.max_send_sge,
            self.max_recv_sge,
            self.max_inline,
            self.xrcd,
        ] {
            body = body.u32(value);
        }
        body.u64(self.buf_length)
            .u32(self.page_shift)
            .u32(self.num_pages)
            .u64(self.buf_offset)
            .u64(self.ctrl_offset)
            .u64(self.sq_offset)
            .u64(self.rq_offset)
            .ending(&self.pages)
    }
}
