//! What travels on the control socket (`openapi.yaml`).

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Whether the vCPUs run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VmState {
    /// They run.
    Running,
    /// They are held; devices and the fabric go on.
    Paused,
}

/// Answer of `GET /vm`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmInfo {
    /// Process of the monitor.
    pub pid: u32,
    /// Whether the vCPUs run.
    pub state: VmState,
    /// vCPUs.
    pub cpus: u32,
    /// Bytes of guest memory.
    pub memory: u64,
    /// Unix socket of the vsock device, if there is one.
    pub vsock: Option<PathBuf>,
}

/// Answer of `GET /stats`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Stats {
    /// Seconds since the machine was started.
    pub uptime_seconds: f64,
    /// Whether the vCPUs run.
    pub state: VmState,
    /// Exits of each vCPU to the monitor, by kind.
    pub vcpus: Vec<VcpuStats>,
    /// Counters of the disks, in order.
    pub disks: Vec<serde_json::Value>,
    /// Counters of the network interfaces, in order.
    pub net: Vec<serde_json::Value>,
    /// Counters of the RDMA devices, in order.
    pub rdma: Vec<serde_json::Value>,
}

/// Exits of a vCPU to the monitor since the start, by kind.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VcpuStats {
    /// Port reads and writes.
    pub port_io: u64,
    /// Memory-mapped reads and writes.
    pub mmio: u64,
    /// Everything else, our own kicks included.
    pub other: u64,
    /// What KVM counts, by its names (`exits`, `halt_exits`, `irq_exits` and so on): exits that it handles by itself are among
    /// them, doorbells for one. Empty where KVM has no such statistics (before Linux 5.14).
    #[serde(default)]
    pub kvm: BTreeMap<String, u64>,
}

/// Body of every answer that is not 2xx.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// What went wrong.
    pub error: String,
}
