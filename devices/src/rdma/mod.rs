//! The RDMA device, in layers, each testable alone.
//!
//! 1. [`wire`]: structs one to one with `docs/virtio-rdma.md`; nothing else knows a byte offset.
//! 2. `control`: decodes a command, checks it, calls the objects, encodes the reply.
//! 3. [`objects`]: user context, PD, MR, CQ, QP, GID table. Ownership and lifetime live here and only here.
//! 4. [`memory`]: one lookup turns (key, address, length, access) into guest memory or a precise refusal.
//! 5. [`engine`]: requester, responder and completer of each transport; state machines that own no I/O.
//! 6. [`fabric`]: what carries frames, and its implementations.
//!
//! One thread owns a whole device: control commands, the data path and the fabric take turns on it, so no lock is held across I/O
//! and a command that ends a registration answers when nothing can touch the memory any more.

mod control;
pub mod device;
pub mod engine;
pub mod events;
pub mod fabric;
pub mod limits;
pub mod memory;
pub mod objects;
pub mod stats;
pub mod wire;

#[cfg(test)]
pub(crate) mod test_utils;

pub use device::{DeviceConfig, RdmaDevice, Sleep};
pub use limits::Limits;
