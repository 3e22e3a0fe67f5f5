//! The part of the transport that device threads use: interrupts, and the status that they can change.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, Ordering};

use super::status;
use crate::pci::{Msix, NO_VECTOR};
use crate::virtio::VirtioInterrupt;

const ISR_QUEUE: u8 = 1 << 0;
const ISR_CONFIG: u8 = 1 << 1;

/// Shared between the transport (vCPU threads, under the device's mutex) and the device's threads (no lock).
pub(super) struct Shared {
    pub(super) msix: Arc<Msix>,
    /// `device_status`.
    pub(super) status: AtomicU8,
    /// `config_generation`.
    pub(super) generation: AtomicU8,
    /// `config_msix_vector`.
    pub(super) config_vector: AtomicU16,
    /// `queue_msix_vector` of each queue.
    pub(super) queue_vectors: Vec<AtomicU16>,
    isr: AtomicU8,
}

impl Shared {
    pub(super) fn new(msix: Arc<Msix>, queues: usize) -> Self {
        Self {
            msix,
            status: AtomicU8::new(0),
            generation: AtomicU8::new(0),
            config_vector: AtomicU16::new(NO_VECTOR),
            queue_vectors: (0..queues).map(|_| AtomicU16::new(NO_VECTOR)).collect(),
            isr: AtomicU8::new(0),
        }
    }

    /// Everything as after power-on but the generation, which only ever moves on.
    pub(super) fn reset(&self) {
        self.status.store(0, Ordering::Release);
        self.config_vector.store(NO_VECTOR, Ordering::Relaxed);
        for vector in &self.queue_vectors {
            vector.store(NO_VECTOR, Ordering::Relaxed);
        }
        self.isr.store(0, Ordering::Relaxed);
    }

    /// The ISR status, which reading clears (virtio 1.2, 4.1.4.5).
    pub(super) fn take_isr(&self) -> u8 {
        self.isr.swap(0, Ordering::AcqRel)
    }
}

impl VirtioInterrupt for Shared {
    fn queue(&self, index: u16) {
        if let Some(vector) = self.queue_vectors.get(usize::from(index)) {
            self.isr.fetch_or(ISR_QUEUE, Ordering::AcqRel);
            self.msix.trigger(vector.load(Ordering::Relaxed));
        }
    }

    fn config(&self) {
        self.generation.fetch_add(1, Ordering::AcqRel);
        self.isr.fetch_or(ISR_CONFIG, Ordering::AcqRel);
        self.msix
            .trigger(self.config_vector.load(Ordering::Relaxed));
    }

    fn needs_reset(&self) {
        let before = self.status.fetch_or(status::NEEDS_RESET, Ordering::AcqRel);
        if before & status::DRIVER_OK != 0 && before & status::NEEDS_RESET == 0 {
            self.config();
        }
    }
}
