//! The layouts of `docs/virtio-rdma.md` as a driver reads them.
//!
//! Written from the specification alone and not from the device's own structs: where the two disagree, one of them has misread it,
//! and the tests find out which.

mod commands;
mod numbers;
mod rings;

pub use commands::*;
pub use numbers::*;
pub use rings::*;

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
