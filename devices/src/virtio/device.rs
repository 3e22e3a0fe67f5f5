//! The contract between a virtio device and its transport.

use std::io;
use std::sync::Arc;

use virtio_queue::Queue;
use vmm_sys_util::eventfd::EventFd;

use super::queue::DeviceQueue;
use crate::GuestRam;

/// `VIRTIO_F_INDIRECT_DESC` (bit 28): buffers may be described by a table of descriptors. [`virtio_queue`] implements it.
pub const FEATURE_INDIRECT_DESC: u64 = 1 << 28;
/// `VIRTIO_F_EVENT_IDX` (bit 29): notification suppression by index. [`virtio_queue`] implements it; the transport sets it
/// on each queue before activation.
pub const FEATURE_EVENT_IDX: u64 = 1 << 29;
/// `VIRTIO_F_VERSION_1` (bit 32). The transport always offers it and refuses a driver that does not accept it.
pub const FEATURE_VERSION_1: u64 = 1 << 32;
/// `VIRTIO_F_ACCESS_PLATFORM` (bit 33): the driver gives the device only addresses that the platform's DMA layer handed out.
pub const FEATURE_ACCESS_PLATFORM: u64 = 1 << 33;

/// Why a device could not start. The transport answers it with `DEVICE_NEEDS_RESET`.
#[derive(Debug, thiserror::Error)]
pub enum ActivateError {
    /// The driver did not enable a queue that the device cannot work without.
    #[error("virtqueue {0} is needed and was not enabled by the driver")]
    MissingQueue(u16),
    /// The host refused a resource (thread, event descriptor...).
    #[error("activating a virtio device: {0}")]
    Io(#[from] io::Error),
}

/// A virtqueue that the driver enabled, handed to the device for the time until the next reset.
pub struct ActiveQueue {
    /// The queue: addresses and size are checked against guest memory once, at activation.
    pub queue: Queue,
    /// Signalled when the driver notifies the queue.
    pub kick: EventFd,
}

/// What a device gets when the driver sets `DRIVER_OK`.
pub struct Activation {
    /// Guest RAM. All addresses in the queues are guest physical addresses.
    pub memory: Arc<GuestRam>,
    /// The features that were negotiated: a subset of what the device offered, and `VERSION_1`.
    pub features: u64,
    /// One element per queue that the device has, in order; `None` where the driver did not enable it.
    pub queues: Vec<Option<ActiveQueue>>,
    /// How the device reaches the driver.
    pub interrupt: Arc<dyn VirtioInterrupt>,
    /// The device's doorbell pages; refuses every page when the device has none.
    pub doorbells: Arc<dyn Doorbells>,
}

impl Activation {
    /// Takes queue `index`, or says that the driver should have enabled it.
    pub fn take_queue(&mut self, index: u16) -> Result<ActiveQueue, ActivateError> {
        self.queues
            .get_mut(usize::from(index))
            .and_then(Option::take)
            .ok_or(ActivateError::MissingQueue(index))
    }

    /// Takes queue `index` as a device works it.
    pub(crate) fn device_queue(&mut self, index: u16) -> Result<DeviceQueue, ActivateError> {
        let active = self.take_queue(index)?;
        let (memory, interrupt) = (self.memory.clone(), self.interrupt.clone());
        Ok(DeviceQueue::new(index, active, memory, interrupt))
    }
}

/// How a device raises interrupts. Usable from any thread; never blocks on the transport.
pub trait VirtioInterrupt: Send + Sync {
    /// A buffer of queue `index` was used. The caller asks [`Queue`] first whether the driver wants to know.
    fn queue(&self, index: u16);

    /// The device's configuration changed: raises the configuration interrupt and steps `config_generation`.
    fn config(&self);

    /// The device met an error that it cannot recover from: sets `DEVICE_NEEDS_RESET` and raises the configuration
    /// interrupt (virtio 1.2, 2.1.2).
    fn needs_reset(&self);
}

/// Doorbell pages: an extra region of the device, [`VirtioDevice::doorbell_pages`] pages of 4 KiB long. A write of any length
/// and value to offset 0 of page N signals the event descriptor attached to page N. Writes elsewhere are ignored, and all
/// reads are zero.
pub trait Doorbells: Send + Sync {
    /// Attaches `fd` to `page`, in place of any descriptor attached before.
    ///
    /// # Errors
    /// `InvalidInput` when the region has no such page.
    fn attach(&self, page: u32, fd: EventFd) -> io::Result<()>;

    /// Detaches whatever is attached to `page`. When this returns, a new write to the page signals nothing.
    fn detach(&self, page: u32);
}

/// A virtio device, independent of its transport.
///
/// The transport calls it from vCPU threads, one call at a time. Calls other than [`reset`](Self::reset) must not wait for
/// the device's own threads.
pub trait VirtioDevice: Send {
    /// Virtio device ID (virtio 1.2, 5).
    fn device_type(&self) -> u32;

    /// The features offered. The transport adds `VERSION_1`.
    fn features(&self) -> u64;

    /// The maximum size of each queue, each a power of two up to 32768; its length is the number of queues.
    fn queue_max_sizes(&self) -> &[u16];

    /// Reads device-specific configuration at `offset`. What lies past its end reads as zero.
    fn read_config(&self, offset: u64, data: &mut [u8]);

    /// Writes device-specific configuration at `offset`. Fields that are not writable ignore it.
    fn write_config(&mut self, offset: u64, data: &[u8]);

    /// Starts the device. On an error the device is as it was before the call.
    fn activate(&mut self, activation: Activation) -> Result<(), ActivateError>;

    /// Stops the device and forgets all state of the driver. Returns only when no thread of the device touches guest memory,
    /// or raises an interrupt, any more. Called on a device that is not active too, where it does nothing.
    fn reset(&mut self);

    /// The number of 4 KiB pages of the doorbell region, 0 for a device without one.
    fn doorbell_pages(&self) -> u32 {
        0
    }
}

/// Copies from a device's configuration image to a driver's read of any offset and length; past the end it is zero.
pub fn read_config_image(image: &[u8], offset: u64, data: &mut [u8]) {
    data.fill(0);
    let start = usize::try_from(offset)
        .unwrap_or(usize::MAX)
        .min(image.len());
    let n = data.len().min(image.len() - start);
    data[..n].copy_from_slice(&image[start..start + n]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn config_reads_stay_inside_the_image() {
        let image = [1, 2, 3, 4];
        for (offset, want) in [(0, [1, 2]), (3, [4, 0]), (4, [0, 0]), (u64::MAX, [0, 0])] {
            let mut data = [9; 2];
            read_config_image(&image, offset, &mut data);
            assert_eq!(data, want);
        }
    }
}
