//! What lies in rings: sections 5 to 7.

use super::{cqe_flag, le16, le32, le64};

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
