//! Resource types of the Longarm API: plain data, shared by the command line, the configuration file and the socket.
//!
//! A virtual machine is a [`VmConfig`] made of resources, one module each. Every resource can be read from JSON (unknown
//! fields are refused) and, where the command line has an option for it, from that option's value; [`VmConfig::validate`] then
//! checks both alike. What is wrong is said by an [`OptionError`], in one line. [`control`] holds what travels on the control
//! socket, whose text is `openapi.yaml`.

pub mod control;
mod disk;
mod error;
mod keyval;
mod mac;
mod machine;
mod memory;
mod net;
mod rdma;
mod serial;
mod size;
mod vsock;

pub use disk::DiskConfig;
pub use error::OptionError;
pub use mac::MacAddr;
pub use machine::{MAX_CPUS, MAX_DISKS, MAX_MEMORY, MAX_NETS, MIN_MEMORY, VmConfig};
pub use memory::MemoryConfig;
pub use net::{MAX_MTU, MIN_MTU, NetBackend, NetConfig};
pub use rdma::{FabricKind, MAX_LANES, MAX_PEERS, MAX_POLL, RdmaConfig, RdmaLimits, SEND_BUFFER};
pub use serial::SerialConfig;
pub use size::ByteSize;
pub use vsock::VsockConfig;

/// The text of the control socket's interface, OpenAPI 3.
pub const OPENAPI: &str = include_str!("../openapi.yaml");
