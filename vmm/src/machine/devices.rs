//! The devices that a configuration asks for.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use api::{NetBackend, VmConfig};
use devices::virtio::block::Block;
use devices::virtio::rng::Rng;
use serde_json::Value;

use super::platform::Platform;
use super::vsock::PrivateDir;
use super::{Error, net, rdma, vsock};

/// Counters of a device at the moment of the call.
pub type Snapshot = Box<dyn Fn() -> Value + Send + Sync>;

/// What a machine keeps of its devices, beside what is on the bus.
#[derive(Default)]
pub struct Devices {
    /// Counters.
    pub snapshots: Snapshots,
    /// The vsock device's socket.
    pub vsock: Option<PathBuf>,
    /// Where it lies, if we chose.
    pub dir: Mutex<Option<PrivateDir>>,
}

/// Counters of the devices of each kind, in the order of the configuration.
#[derive(Default)]
pub struct Snapshots {
    /// Disks.
    pub disks: Vec<Snapshot>,
    /// Network interfaces.
    pub net: Vec<Snapshot>,
    /// RDMA devices.
    pub rdma: Vec<Snapshot>,
}

/// Puts every device of `config` on the bus, each kind in the order given: disks first, so that they keep their names whatever
/// else there is.
pub fn add(platform: &mut Platform, config: &VmConfig) -> Result<Devices, Error> {
    let mut devices = Devices::default();
    for (index, disk) in config.disks.iter().enumerate() {
        let id = format!("longarm-disk{index}");
        let block = Block::open(&disk.path, disk.readonly, &id)?;
        platform.add_virtio(Arc::new(Mutex::new(block)))?;
    }
    let on_fabric = config.net.iter().any(|n| n.backend == NetBackend::Fabric);
    let rdma = config
        .rdma
        .as_ref()
        .map(|rdma| rdma::create(rdma, config.cpus, on_fabric));
    let mut rdma = rdma.transpose()?;
    let mut port = rdma.as_mut().and_then(|r| r.port.take());
    for config in &config.net {
        let (net, snapshot) = net::create(config, &mut port)?;
        devices.snapshots.net.push(snapshot);
        platform.add_virtio(Arc::new(Mutex::new(net)))?;
    }
    if let Some(rdma) = rdma {
        devices.snapshots.rdma.push(rdma.snapshot);
        platform.add_virtio(Arc::new(Mutex::new(rdma.device)))?;
    }
    if let Some(config) = config.vsock() {
        let (vsock, path, dir) = vsock::create(&config)?;
        devices.vsock = Some(path);
        devices.dir = Mutex::new(dir);
        platform.add_virtio(Arc::new(Mutex::new(vsock)))?;
    }
    platform.add_virtio(Arc::new(Mutex::new(Rng::new())))?;
    Ok(devices)
}
