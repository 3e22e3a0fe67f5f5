//! The packet header (virtio 1.2, 5.10.6). All fields are little-endian.

/// Bytes of a header.
pub(super) const HEADER: usize = 44;
/// The host's CID.
pub(super) const HOST_CID: u64 = 2;
/// `VIRTIO_VSOCK_TYPE_STREAM`.
pub(super) const TYPE_STREAM: u16 = 1;

/// `op` values.
pub(super) mod op {
    pub(crate) const REQUEST: u16 = 1;
    pub(crate) const RESPONSE: u16 = 2;
    pub(crate) const RST: u16 = 3;
    pub(crate) const SHUTDOWN: u16 = 4;
    pub(crate) const RW: u16 = 5;
    pub(crate) const CREDIT_UPDATE: u16 = 6;
    pub(crate) const CREDIT_REQUEST: u16 = 7;
}

/// SHUTDOWN flag: the sender will receive no more.
pub(super) const SHUTDOWN_RECEIVE: u32 = 1;
/// SHUTDOWN flag: the sender will send no more.
pub(super) const SHUTDOWN_SEND: u32 = 2;

/// A header.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) src_cid: u64,
    pub(super) dst_cid: u64,
    pub(super) src_port: u32,
    pub(super) dst_port: u32,
    pub(super) len: u32,
    pub(super) kind: u16,
    pub(super) op: u16,
    pub(super) flags: u32,
    pub(super) buf_alloc: u32,
    pub(super) fwd_cnt: u32,
}

impl Header {
    pub(super) fn decode(raw: &[u8; HEADER]) -> Self {
        fn take<const N: usize>(raw: &[u8; HEADER], at: usize) -> [u8; N] {
            let mut out = [0; N];
            out.copy_from_slice(&raw[at..at + N]);
            out
        }
        Self {
            src_cid: u64::from_le_bytes(take(raw, 0)),
            dst_cid: u64::from_le_bytes(take(raw, 8)),
            src_port: u32::from_le_bytes(take(raw, 16)),
            dst_port: u32::from_le_bytes(take(raw, 20)),
            len: u32::from_le_bytes(take(raw, 24)),
            kind: u16::from_le_bytes(take(raw, 28)),
            op: u16::from_le_bytes(take(raw, 30)),
            flags: u32::from_le_bytes(take(raw, 32)),
            buf_alloc: u32::from_le_bytes(take(raw, 36)),
            fwd_cnt: u32::from_le_bytes(take(raw, 40)),
        }
    }

    pub(super) fn encode(&self) -> [u8; HEADER] {
        let mut raw = [0; HEADER];
        raw[..8].copy_from_slice(&self.src_cid.to_le_bytes());
        raw[8..16].copy_from_slice(&self.dst_cid.to_le_bytes());
        raw[16..20].copy_from_slice(&self.src_port.to_le_bytes());
        raw[20..24].copy_from_slice(&self.dst_port.to_le_bytes());
        raw[24..28].copy_from_slice(&self.len.to_le_bytes());
        raw[28..30].copy_from_slice(&self.kind.to_le_bytes());
        raw[30..32].copy_from_slice(&self.op.to_le_bytes());
        raw[32..36].copy_from_slice(&self.flags.to_le_bytes());
        raw[36..40].copy_from_slice(&self.buf_alloc.to_le_bytes());
        raw[40..].copy_from_slice(&self.fwd_cnt.to_le_bytes());
        raw
    }

    /// The packet that ends the connection which this packet speaks of.
    pub(super) fn reset(&self) -> Self {
        Self {
            src_cid: self.dst_cid,
            dst_cid: self.src_cid,
            src_port: self.dst_port,
            dst_port: self.src_port,
            kind: self.kind,
            op: op::RST,
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_survives_the_wire() {
        let header = Header {
            src_cid: 1 << 40,
            dst_cid: 2,
            src_port: 3,
            dst_port: 4,
            len: 5,
            kind: 6,
            op: 7,
            flags: 8,
            buf_alloc: 9,
            fwd_cnt: 10,
        };
        let raw = header.encode();
        assert_eq!(Header::decode(&raw), header);
        assert_eq!(
            (raw[5], raw[16], raw[28], raw[30], raw[40]),
            (1, 3, 6, 7, 10)
        );
    }
}
