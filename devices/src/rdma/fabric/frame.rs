//! The frame header: `docs/fabric.md`, section 2.

/// Bytes of a header on the wire.
pub const HEADER_LEN: usize = 48;

/// Longest payload that every peer takes (section 1).
pub const MAX_PAYLOAD: u32 = 65_536;

/// Bytes of the GRH that a datagram's payload begins with (section 6).
pub const GRH_LEN: u32 = 40;

/// Longest datagram, without its GRH (section 6).
pub const MAX_DATAGRAM: u32 = 4096;

/// Frame types (section 2).
pub mod kind {
    /// First frame of a link.
    pub const HELLO: u8 = 0x01;
    /// Are you there?
    pub const PING: u8 = 0x02;
    /// Answer to PING.
    pub const PONG: u8 = 0x03;
    /// GIDs that lead to the sender.
    pub const GID_ADD: u8 = 0x04;
    /// GIDs that do so no longer.
    pub const GID_DEL: u8 = 0x05;
    /// An Ethernet frame.
    pub const ETHERNET: u8 = 0x10;
    /// Part of a SEND.
    pub const SEND: u8 = 0x20;
    /// Part of an RDMA WRITE.
    pub const WRITE: u8 = 0x21;
    /// An RDMA READ request.
    pub const READ: u8 = 0x22;
    /// Part of the answer to READ.
    pub const READ_DATA: u8 = 0x23;
    /// An atomic request.
    pub const ATOMIC: u8 = 0x24;
    /// The answer to ATOMIC.
    pub const ATOMIC_DATA: u8 = 0x25;
    /// Everything before `seq` is placed.
    pub const ACK: u8 = 0x26;
    /// The message `seq` is refused.
    pub const NAK: u8 = 0x27;
    /// A datagram: its GRH and its data.
    pub const DATAGRAM: u8 = 0x28;

    /// Whether the payload comes to the device as data, and is not placed in guest memory by the fabric.
    pub const fn comes_as_data(kind: u8) -> bool {
        matches!(kind, ATOMIC | ATOMIC_DATA | DATAGRAM)
    }
}

/// What an ATOMIC does (section 2).
pub mod operation {
    /// Compare and swap.
    pub const COMPARE_AND_SWAP: u32 = 0;
    /// Fetch and add.
    pub const FETCH_AND_ADD: u32 = 1;
    /// Store a word.
    pub const WRITE: u32 = 2;
    /// Flush what was placed.
    pub const FLUSH: u32 = 3;
}

/// Frame flags (section 2).
pub mod flag {
    /// Last frame of its message.
    pub const LAST: u8 = 1;
    /// Carries immediate data.
    pub const IMM: u8 = 2;
    /// Solicited event.
    pub const SOLICITED: u8 = 4;
    /// Carries a key to invalidate.
    pub const INVALIDATE: u8 = 8;
}

/// Codes of a NAK (section 2).
pub mod nak {
    /// No receive was posted; `aux` has the RNR timer's encoding.
    pub const RNR: u32 = 1;
    /// Another message was expected.
    pub const SEQUENCE: u32 = 2;
    /// The request is malformed or not allowed.
    pub const INVALID_REQUEST: u32 = 3;
    /// Key, range or permission.
    pub const REMOTE_ACCESS: u32 = 4;
    /// The responder failed.
    pub const REMOTE_OPERATION: u32 = 5;
    /// There is no such QP, or it is not ready to receive.
    pub const NO_QP: u32 = 6;
}

/// A frame header in host form.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameHeader {
    /// One of [`kind`].
    pub kind: u8,
    /// Bits of [`flag`].
    pub flags: u8,
    /// Payload bytes that follow.
    pub length: u32,
    /// Receiving QP.
    pub dst_qpn: u32,
    /// Sending QP.
    pub src_qpn: u32,
    /// Message number.
    pub seq: u32,
    /// Remote key, the code of a NAK, or a datagram's Q_Key.
    pub rkey: u32,
    /// Remote address of the message's first byte; of a datagram, the sender's MAC address.
    pub addr: u64,
    /// Immediate data as it came from the guest, or a key to invalidate (little-endian).
    pub imm: [u8; 4],
    /// Bytes of the whole message.
    pub msg_len: u32,
    /// Offset of the payload in the message.
    pub offset: u32,
    /// Depends on the type.
    pub aux: u32,
    /// The lane that the frame takes, or came by: not a field on the wire, where the connection says it (section 9).
    pub lane: u8,
}

impl FrameHeader {
    /// What an ATOMIC does: one of [`operation`].
    pub fn operation(&self) -> u32 {
        self.aux & 0xff
    }

    /// The SRQ that a request to an XRC target is for.
    pub fn srqn(&self) -> u32 {
        self.aux >> 8
    }

    /// The header as it goes on the wire.
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        let mut out = [0; HEADER_LEN];
        out[0] = self.kind;
        out[1] = self.flags;
        out[4..8].copy_from_slice(&self.length.to_le_bytes());
        out[8..12].copy_from_slice(&self.dst_qpn.to_le_bytes());
        out[12..16].copy_from_slice(&self.src_qpn.to_le_bytes());
        out[16..20].copy_from_slice(&self.seq.to_le_bytes());
        out[20..24].copy_from_slice(&self.rkey.to_le_bytes());
        out[24..32].copy_from_slice(&self.addr.to_le_bytes());
        out[32..36].copy_from_slice(&self.imm);
        out[36..40].copy_from_slice(&self.msg_len.to_le_bytes());
        out[40..44].copy_from_slice(&self.offset.to_le_bytes());
        out[44..48].copy_from_slice(&self.aux.to_le_bytes());
        out
    }

    /// Reads a header that came by the first lane. Whether its fields make sense is the caller's to check.
    pub fn decode(bytes: &[u8; HEADER_LEN]) -> Self {
        let le32 = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        FrameHeader {
            kind: bytes[0],
            flags: bytes[1],
            length: le32(4),
            dst_qpn: le32(8),
            src_qpn: le32(12),
            seq: le32(16),
            rkey: le32(20),
            addr: u64::from(le32(24)) | u64::from(le32(28)) << 32,
            imm: [bytes[32], bytes[33], bytes[34], bytes[35]],
            msg_len: le32(36),
            offset: le32(40),
            aux: le32(44),
            lane: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_survives_the_wire() {
        let header = FrameHeader {
            kind: kind::WRITE,
            flags: flag::LAST | flag::IMM,
            length: 1,
            dst_qpn: 2,
            src_qpn: 3,
            seq: 4,
            rkey: 5,
            addr: 0x0102_0304_0506_0708,
            imm: [9, 8, 7, 6],
            msg_len: 10,
            offset: 11,
            aux: 12,
            lane: 0,
        };
        assert_eq!(FrameHeader::decode(&header.encode()), header);
    }
}
