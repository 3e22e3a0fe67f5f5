//! Virtio (OASIS virtio 1.2): the device trait, and one module per device.
//!
//! A device implements [`VirtioDevice`] and knows no transport. It runs in threads of its own between
//! [`activate`](VirtioDevice::activate) and [`reset`](VirtioDevice::reset).

mod device;
pub mod pci;

pub use device::{
    ActivateError, Activation, ActiveQueue, Doorbells, FEATURE_ACCESS_PLATFORM, FEATURE_EVENT_IDX,
    FEATURE_INDIRECT_DESC, FEATURE_VERSION_1, VirtioDevice, VirtioInterrupt, read_config_image,
};
