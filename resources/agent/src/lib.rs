//! Runs commands in a guest for the host, over vsock: the protocol, the guest's side ([`session`]) and the host's ([`client`]).
//!
//! Each connection is one session. See [`protocol`] for the frames.

pub mod client;
pub mod protocol;
pub mod session;
pub mod vsock;

/// The vsock port that the agent listens on.
pub const PORT: u32 = 1024;
