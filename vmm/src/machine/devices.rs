//! The devices that a configuration asks for.

use std::sync::{Arc, Mutex};

use api::VmConfig;
use devices::virtio::block::Block;
use devices::virtio::rng::Rng;

use super::Error;
use super::platform::Platform;

/// Puts every device of `config` on the bus, each kind in the order given: disks first, so that they keep their names whatever
/// else there is.
pub fn add(platform: &mut Platform, config: &VmConfig) -> Result<(), Error> {
    for (index, disk) in config.disks.iter().enumerate() {
        let id = format!("longarm-disk{index}");
        let block = Block::open(&disk.path, disk.readonly, &id)?;
        platform.add_virtio(Arc::new(Mutex::new(block)))?;
    }
    platform.add_virtio(Arc::new(Mutex::new(Rng::new())))
}
