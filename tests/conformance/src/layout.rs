//! The layouts of `docs/virtio-rdma.md` as a driver reads them.
//!
//! Written from the specification alone and not from the device's own structs: where the two disagree, one of them has misread it,
//! and the tests find out which.

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

/// Appends integers to a body in the order in which the tables list them.
#[derive(Default, Clone)]
pub struct Body(pub Vec<u8>);

impl Body {
    /// An empty body.
    pub fn new() -> Body {
        Body::default()
    }
    /// One byte.
    pub fn u8(mut self, value: u8) -> Body {
        self.0.push(value);
        self
    }
    /// A le16.
    pub fn u16(mut self, value: u16) -> Body {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }
    /// A le32.
    pub fn u32(mut self, value: u32) -> Body {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }
    /// A le64.
    pub fn u64(mut self, value: u64) -> Body {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }
    /// Each a le64, and that ends it: page lists come last.
    pub fn ending(mut self, values: &[u64]) -> Vec<u8> {
        for value in values {
            self = self.u64(*value);
        }
        self.0
    }
    /// Bytes as they are.
    pub fn bytes(mut self, value: &[u8]) -> Body {
        self.0.extend_from_slice(value);
        self
    }
}

/// A request: header (section 4) and body.
pub fn request(opcode: u16, context: u32, cookie: u64, body: &[u8]) -> Vec<u8> {
    Body::new()
        .u16(opcode)
        .u16(0)
        .u32((24 + body.len()) as u32)
        .u32(context)
        .u32(0)
        .u64(cookie)
        .bytes(body)
        .0
}

/// le16 at an offset.
pub fn le16(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().expect("two bytes"))
}
/// le32 at an offset.
pub fn le32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}
/// le64 at an offset.
pub fn le64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

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

/// A completion (section 7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of the specification")]
pub struct Cqe {
    pub wr_id: u64,
    pub status: u8,
    pub opcode: u8,
    pub flags: u16,
    pub byte_len: u32,
    pub imm: [u8; 4],
    pub qpn: u32,
    pub src_qpn: u32,
    pub vendor_err: u32,
    pub wqe_index: u32,
    pub sl: u8,
    pub timestamp: u64,
    pub smac: [u8; 6],
    pub vlan: u16,
    pub srqn: u32,
}

impl Cqe {
    /// Reads the 64 bytes.
    #[inline]
    pub fn decode(bytes: &[u8; 64]) -> Cqe {
        Cqe {
            wr_id: le64(bytes, 0),
            status: bytes[8],
            opcode: bytes[9],
            flags: le16(bytes, 10),
            byte_len: le32(bytes, 12),
            imm: bytes[16..20].try_into().expect("four bytes"),
            qpn: le32(bytes, 20),
            src_qpn: le32(bytes, 24),
            vendor_err: le32(bytes, 28),
            wqe_index: le32(bytes, 32),
            sl: bytes[36],
            timestamp: le64(bytes, 40),
            smac: bytes[48..54].try_into().expect("six bytes"),
            vlan: le16(bytes, 54),
            srqn: le32(bytes, 56),
        }
    }
    /// Whether it is of the send queue.
    pub fn is_send(&self) -> bool {
        self.flags & cqe_flag::SEND_QUEUE != 0
    }
}

/// A scatter/gather element.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of the specification")]
pub struct Sge {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}

impl Sge {
    /// The 16 bytes.
    #[inline]
    pub fn encode(&self) -> [u8; 16] {
        let mut out = [0; 16];
        out[0..8].copy_from_slice(&self.addr.to_le_bytes());
        out[8..12].copy_from_slice(&self.length.to_le_bytes());
        out[12..16].copy_from_slice(&self.lkey.to_le_bytes());
        out
    }
}

/// The fixed 64 bytes of a send WQE (section 5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of the specification")]
pub struct SendHeader {
    pub wr_id: u64,
    pub opcode: u8,
    pub flags: u8,
    pub num_sge: u16,
    pub inline_len: u32,
    pub imm: [u8; 4],
    pub rkey: u32,
    pub remote_addr: u64,
    pub compare_add: u64,
    pub swap: u64,
    /// Of a datagram, in place of the last three.
    pub datagram: Option<DatagramAddress>,
    /// REG_MR, and in the same place XRC.
    pub num_pages: u32,
    pub srqn: u32,
    pub page_shift: u8,
}

/// Where a datagram goes (section 5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of the specification")]
pub struct DatagramAddress {
    pub dest_qpn: u32,
    pub qkey: u32,
    pub dgid: [u8; 16],
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub sl: u8,
}

/// Destination QPN of datagrams to a group.
pub const MULTICAST_QPN: u32 = 0xff_ffff;

impl SendHeader {
    /// The 64 bytes.
    #[inline]
    pub fn encode(&self) -> [u8; 64] {
        let mut out = [0; 64];
        out[0..8].copy_from_slice(&self.wr_id.to_le_bytes());
        out[8] = self.opcode;
        out[9] = self.flags;
        out[10..12].copy_from_slice(&self.num_sge.to_le_bytes());
        out[12..16].copy_from_slice(&self.inline_len.to_le_bytes());
        out[16..20].copy_from_slice(&self.imm);
        out[20..24].copy_from_slice(&self.rkey.to_le_bytes());
        out[24..32].copy_from_slice(&self.remote_addr.to_le_bytes());
        out[32..40].copy_from_slice(&self.compare_add.to_le_bytes());
        out[40..48].copy_from_slice(&self.swap.to_le_bytes());
        out[48..52].copy_from_slice(&(self.num_pages | self.srqn).to_le_bytes());
        out[52] = self.page_shift;
        if let Some(to) = &self.datagram {
            out[24..28].copy_from_slice(&to.dest_qpn.to_le_bytes());
            out[28..32].copy_from_slice(&to.qkey.to_le_bytes());
            out[32..48].copy_from_slice(&to.dgid);
            out[48..52].copy_from_slice(&to.flow_label.to_le_bytes());
            out[52] = to.sgid_index;
            out[53] = to.hop_limit;
            out[54] = to.traffic_class;
            out[55] = to.sl;
        }
        out
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

/// REG_MR flag: the list goes on.
pub const MR_MORE: u8 = 1;
/// REG_MR flag: extents instead of pages.
pub const MR_EXTENTS: u8 = 2;
/// REG_MR flag: all DMA addresses (feature DMA_MR).
pub const MR_DMA: u8 = 4;

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
