//! Virtio (OASIS virtio 1.2): the device trait, and one module per device.
//!
//! A device implements [`VirtioDevice`] and knows no transport. It runs in threads of its own between
//! [`activate`](VirtioDevice::activate) and [`reset`](VirtioDevice::reset).

pub mod block;
mod device;
pub mod net;
pub mod pci;
mod queue;
pub mod rdma;
pub mod rng;
#[cfg(test)]
pub(crate) mod test_utils;
pub mod vsock;
mod worker;

pub use device::{
    ActivateError, Activation, ActiveQueue, Doorbells, FEATURE_ACCESS_PLATFORM, FEATURE_EVENT_IDX,
    FEATURE_INDIRECT_DESC, FEATURE_VERSION_1, VirtioDevice, VirtioInterrupt, read_config_image,
};

/// What every device offers: indirect descriptors, event indices (both in `virtio_queue`), and addresses by way of the
/// platform's DMA layer.
pub const COMMON_FEATURES: u64 =
    FEATURE_INDIRECT_DESC | FEATURE_EVENT_IDX | FEATURE_ACCESS_PLATFORM;
