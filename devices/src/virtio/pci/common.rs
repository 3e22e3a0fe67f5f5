//! The common configuration structure (virtio 1.2, 4.1.4.3): features, status, and the setup of queues.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use virtio_queue::{Queue, QueueT};
use vm_memory::GuestAddress;
use vmm_sys_util::eventfd::EventFd;

use super::interrupt::Shared;
use super::status;
use crate::GuestRam;
use crate::pci::NO_VECTOR;
use crate::virtio::{FEATURE_EVENT_IDX, FEATURE_VERSION_1};

/// Bytes of the structure up to and including `queue_reset`, whose features are not offered and which reads as zero.
pub(super) const LEN: u32 = 0x3c;

// Offset and width of each register.
const DEVICE_FEATURE_SELECT: (u64, usize) = (0x00, 4);
const DEVICE_FEATURE: (u64, usize) = (0x04, 4);
const DRIVER_FEATURE_SELECT: (u64, usize) = (0x08, 4);
const DRIVER_FEATURE: (u64, usize) = (0x0c, 4);
const CONFIG_MSIX_VECTOR: (u64, usize) = (0x10, 2);
const NUM_QUEUES: (u64, usize) = (0x12, 2);
const DEVICE_STATUS: (u64, usize) = (0x14, 1);
const CONFIG_GENERATION: (u64, usize) = (0x15, 1);
const QUEUE_SELECT: (u64, usize) = (0x16, 2);
const QUEUE_SIZE: (u64, usize) = (0x18, 2);
const QUEUE_MSIX_VECTOR: (u64, usize) = (0x1a, 2);
const QUEUE_ENABLE: (u64, usize) = (0x1c, 2);
const QUEUE_NOTIFY_OFF: (u64, usize) = (0x1e, 2);
const QUEUE_DESC: u64 = 0x20;
const QUEUE_DRIVER: u64 = 0x28;
const QUEUE_ADDRESSES_END: u64 = 0x38;

/// What the driver programmed for one queue: registers, nothing of the queue's running state.
#[derive(Debug, Clone, Copy)]
struct QueueRegisters {
    max_size: u16,
    size: u16,
    enabled: bool,
    desc: u64,
    driver: u64,
    device: u64,
}

impl QueueRegisters {
    fn new(max_size: u16) -> Self {
        Self {
            max_size,
            size: max_size,
            enabled: false,
            desc: 0,
            driver: 0,
            device: 0,
        }
    }
}

/// What a write asks of the transport beyond the registers.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Effect {
    None,
    /// The driver wrote 0 to the status.
    Reset,
    /// The driver set `DRIVER_OK`; the status bit is set already.
    Activate,
}

/// A queue that cannot work: says which one and why.
#[derive(Debug, thiserror::Error)]
#[error("virtqueue {index}: {reason}")]
pub(super) struct BadQueue {
    index: usize,
    reason: String,
}

/// The registers.
pub(super) struct Common {
    shared: Arc<Shared>,
    offered: u64,
    accepted: u64,
    device_feature_select: u32,
    driver_feature_select: u32,
    queue_select: u16,
    queues: Vec<QueueRegisters>,
}

impl Common {
    pub(super) fn new(shared: Arc<Shared>, offered: u64, max_sizes: &[u16]) -> Self {
        Self {
            shared,
            offered,
            accepted: 0,
            device_feature_select: 0,
            driver_feature_select: 0,
            queue_select: 0,
            queues: max_sizes.iter().copied().map(QueueRegisters::new).collect(),
        }
    }

    /// Everything but the status, which the caller clears last.
    pub(super) fn reset(&mut self) {
        self.accepted = 0;
        self.device_feature_select = 0;
        self.driver_feature_select = 0;
        self.queue_select = 0;
        for queue in &mut self.queues {
            *queue = QueueRegisters::new(queue.max_size);
        }
    }

    /// The features that the driver accepted.
    pub(super) fn accepted(&self) -> u64 {
        self.accepted
    }

    fn status(&self) -> u8 {
        self.shared.status.load(Ordering::Acquire)
    }

    /// Reads one register, or part of a 64-bit one. An access of another width or place reads as zero.
    pub(super) fn read(&self, offset: u64, data: &mut [u8]) {
        let queue = self.queues.get(usize::from(self.queue_select));
        let vector = |v: &std::sync::atomic::AtomicU16| u64::from(v.load(Ordering::Relaxed));
        let value = match (offset, data.len()) {
            DEVICE_FEATURE_SELECT => self.device_feature_select.into(),
            DEVICE_FEATURE => feature_word(self.offered, self.device_feature_select).into(),
            DRIVER_FEATURE_SELECT => self.driver_feature_select.into(),
            DRIVER_FEATURE => feature_word(self.accepted, self.driver_feature_select).into(),
            CONFIG_MSIX_VECTOR => vector(&self.shared.config_vector),
            NUM_QUEUES => self.queues.len() as u64,
            DEVICE_STATUS => self.status().into(),
            CONFIG_GENERATION => self.shared.generation.load(Ordering::Acquire).into(),
            QUEUE_SELECT => self.queue_select.into(),
            QUEUE_SIZE => queue.map_or(0, |q| q.size.into()),
            QUEUE_MSIX_VECTOR => self
                .shared
                .queue_vectors
                .get(usize::from(self.queue_select))
                .map_or(NO_VECTOR.into(), vector),
            QUEUE_ENABLE => queue.map_or(0, |q| q.enabled.into()),
            QUEUE_NOTIFY_OFF => queue.map_or(0, |_| self.queue_select.into()),
            (QUEUE_DESC..QUEUE_ADDRESSES_END, 4 | 8)
                if offset.is_multiple_of(data.len() as u64) =>
            {
                let address = queue.map_or(0, |q| match offset & !7 {
                    QUEUE_DESC => q.desc,
                    QUEUE_DRIVER => q.driver,
                    _ => q.device,
                });
                address >> (8 * (offset & 7))
            }
            _ => 0,
        };
        let n = data.len().min(8);
        data.fill(0);
        data[..n].copy_from_slice(&value.to_le_bytes()[..n]);
    }

    /// Writes one register, or half of a 64-bit one. Anything else, and what the driver may not write at this time, is
    /// ignored.
    pub(super) fn write(&mut self, offset: u64, data: &[u8]) -> Effect {
        let Some(value) = number(data) else {
            return Effect::None;
        };
        match (offset, data.len()) {
            DEVICE_FEATURE_SELECT => self.device_feature_select = value as u32,
            DRIVER_FEATURE_SELECT => self.driver_feature_select = value as u32,
            DRIVER_FEATURE => self.accept(value as u32),
            CONFIG_MSIX_VECTOR => self
                .shared
                .config_vector
                .store(self.valid_vector(value as u16), Ordering::Relaxed),
            DEVICE_STATUS => return self.write_status(value as u8),
            QUEUE_SELECT => self.queue_select = value as u16,
            QUEUE_MSIX_VECTOR => {
                if let Some(vector) = self
                    .shared
                    .queue_vectors
                    .get(usize::from(self.queue_select))
                {
                    vector.store(self.valid_vector(value as u16), Ordering::Relaxed);
                }
            }
            _ => self.write_queue(offset, data.len(), value),
        }
        Effect::None
    }

    fn accept(&mut self, word: u32) {
        // Features are fixed once FEATURES_OK is set (virtio 1.2, 2.2.1).
        if self.status() & status::FEATURES_OK != 0 || self.driver_feature_select > 1 {
            return;
        }
        let shift = 32 * self.driver_feature_select;
        self.accepted = self.accepted & !(0xffff_ffff << shift) | u64::from(word) << shift;
    }

    fn valid_vector(&self, vector: u16) -> u16 {
        // Reading NO_VECTOR back tells the driver that there is no such vector (virtio 1.2, 4.1.5.1.2).
        if vector < self.shared.msix.vectors() {
            vector
        } else {
            NO_VECTOR
        }
    }

    fn write_status(&mut self, value: u8) -> Effect {
        if value == 0 {
            return Effect::Reset;
        }
        let now = self.status();
        // Bits are only ever added, by the driver in the order of virtio 1.2, 3.1.1; NEEDS_RESET is the device's.
        let mut new = value & !now & !status::NEEDS_RESET;
        let features_fit =
            self.accepted & !self.offered == 0 && self.accepted & FEATURE_VERSION_1 != 0;
        if !features_fit {
            new &= !status::FEATURES_OK;
        }
        let after = now | new;
        let ready =
            after & status::FEATURES_OK != 0 && after & (status::FAILED | status::NEEDS_RESET) == 0;
        if new & status::DRIVER_OK != 0 && !ready {
            new &= !status::DRIVER_OK;
        }
        self.shared.status.fetch_or(new, Ordering::AcqRel);
        if new & status::DRIVER_OK != 0 {
            Effect::Activate
        } else {
            Effect::None
        }
    }

    fn write_queue(&mut self, offset: u64, len: usize, value: u64) {
        if self.status() & status::DRIVER_OK != 0 {
            return;
        }
        let Some(queue) = self.queues.get_mut(usize::from(self.queue_select)) else {
            return;
        };
        if queue.enabled {
            return;
        }
        match (offset, len) {
            QUEUE_SIZE => {
                let size = value as u16;
                if size.is_power_of_two() && size <= queue.max_size {
                    queue.size = size;
                }
            }
            QUEUE_ENABLE => queue.enabled = value == 1,
            (QUEUE_DESC..QUEUE_ADDRESSES_END, 4 | 8) if offset.is_multiple_of(len as u64) => {
                let address = match offset & !7 {
                    QUEUE_DESC => &mut queue.desc,
                    QUEUE_DRIVER => &mut queue.driver,
                    _ => &mut queue.device,
                };
                *address = match (len, offset & 7) {
                    (8, _) => value,
                    (_, 0) => *address & !0xffff_ffff | value,
                    _ => *address & 0xffff_ffff | value << 32,
                };
            }
            _ => {}
        }
    }

    /// The enabled queues, each checked against guest memory, with a fresh descriptor for its notifications.
    pub(super) fn build_queues(
        &self,
        memory: &GuestRam,
        kicks: &[EventFd],
    ) -> Result<Vec<Option<(Queue, EventFd)>>, BadQueue> {
        let event_idx = self.accepted & FEATURE_EVENT_IDX != 0;
        self.queues
            .iter()
            .zip(kicks)
            .enumerate()
            .map(|(index, (registers, kick))| {
                if !registers.enabled {
                    return Ok(None);
                }
                let bad = |reason: String| BadQueue { index, reason };
                let mut queue = Queue::new(registers.max_size).map_err(|e| bad(e.to_string()))?;
                queue
                    .try_set_size(registers.size)
                    .map_err(|e| bad(e.to_string()))?;
                queue
                    .try_set_desc_table_address(GuestAddress(registers.desc))
                    .map_err(|e| bad(e.to_string()))?;
                queue
                    .try_set_avail_ring_address(GuestAddress(registers.driver))
                    .map_err(|e| bad(e.to_string()))?;
                queue
                    .try_set_used_ring_address(GuestAddress(registers.device))
                    .map_err(|e| bad(e.to_string()))?;
                queue.set_event_idx(event_idx);
                queue.set_ready(true);
                if !queue.is_valid(memory) {
                    return Err(bad(format!("not wholly in guest memory: {registers:x?}")));
                }
                let kick = kick.try_clone().map_err(|e| bad(e.to_string()))?;
                Ok(Some((queue, kick)))
            })
            .collect()
    }
}

fn feature_word(features: u64, select: u32) -> u32 {
    match select {
        0 => features as u32,
        1 => (features >> 32) as u32,
        _ => 0,
    }
}

/// A little-endian number of up to eight bytes.
fn number(data: &[u8]) -> Option<u64> {
    let mut bytes = [0; 8];
    bytes.get_mut(..data.len())?.copy_from_slice(data);
    Some(u64::from_le_bytes(bytes))
}
