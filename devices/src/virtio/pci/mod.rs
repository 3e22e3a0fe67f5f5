//! The PCI transport (virtio 1.2, 4.1), modern devices only: ID 1040 + device type, revision 1.
//!
//! BAR 0 holds everything but the doorbells:
//!
//! | offset | length | structure |
//! | --- | --- | --- |
//! | 0x0000 | 0x3c | common configuration |
//! | 0x1000 | 0x1 | ISR status |
//! | 0x2000 | 0x1000 | device configuration |
//! | 0x3000 | 0x1000 | notifications: queue N is notified by a write of any length at 4 × N |
//! | 0x4000 | 0x100 | MSI-X pending bits |
//! | 0x8000 | 0x8000 | MSI-X table |
//!
//! BAR [`DOORBELL_BAR`], in devices that have doorbell pages, holds those, from offset 0.
//!
//! Not offered: queue reset (`VIRTIO_F_RING_RESET`), data in notifications, INTx.

mod common;
mod doorbell;
mod interrupt;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use vmm_sys_util::eventfd::EventFd;

use self::common::{Common, Effect};
use self::doorbell::DoorbellRegion;
use self::interrupt::Shared;
use super::{Activation, ActiveQueue, FEATURE_VERSION_1, VirtioDevice, VirtioInterrupt};
use crate::GuestRam;
use crate::bus::lock;
use crate::interrupt::{IoEvents, MsiController};
use crate::pci::{ConfigSpace, Identity, MSIX_ENTRY_SIZE, MSIX_MAX_VECTORS, Msix, PciDevice};

/// The BAR that holds a device's doorbell pages, from offset 0.
pub const DOORBELL_BAR: u8 = 2;

/// Device status bits (virtio 1.2, 2.1).
pub mod status {
    /// The driver found the device.
    pub const ACKNOWLEDGE: u8 = 1;
    /// The driver knows how to drive it.
    pub const DRIVER: u8 = 2;
    /// The driver is set up.
    pub const DRIVER_OK: u8 = 4;
    /// Features are negotiated.
    pub const FEATURES_OK: u8 = 8;
    /// The device met an error that only a reset mends.
    pub const NEEDS_RESET: u8 = 64;
    /// The driver gave up.
    pub const FAILED: u8 = 128;
}

const VENDOR: u16 = 0x1af4;
const MAIN_BAR: u8 = 0;
const MAIN_BAR_SIZE: u64 = 0x1_0000;
const COMMON_AT: u64 = 0;
const ISR_AT: u64 = 0x1000;
const DEVICE_AT: u64 = 0x2000;
const NOTIFY_AT: u64 = 0x3000;
const NOTIFY_MULTIPLIER: u32 = 4;
const PBA_AT: u64 = 0x4000;
const TABLE_AT: u64 = 0x8000;
const MAX_QUEUES: usize = 0x1000 / NOTIFY_MULTIPLIER as usize;

const CAP_MSIX: u8 = 0x11;
const CAP_VENDOR: u8 = 0x09;
const CFG_TYPE_COMMON: u8 = 1;
const CFG_TYPE_NOTIFY: u8 = 2;
const CFG_TYPE_ISR: u8 = 3;
const CFG_TYPE_DEVICE: u8 = 4;
const CFG_TYPE_PCI: u8 = 5;
const MSIX_ENABLE: u16 = 1 << 15;
const MSIX_FUNCTION_MASK: u16 = 1 << 14;

/// A virtio device on the PCI bus.
pub struct VirtioPci {
    config: ConfigSpace,
    /// Offset of the MSI-X capability.
    msix_cap: u16,
    /// Offset of the PCI configuration access capability.
    access_cap: u16,
    msix: Arc<Msix>,
    shared: Arc<Shared>,
    common: Common,
    device: Arc<Mutex<dyn VirtioDevice>>,
    memory: Arc<GuestRam>,
    kicks: Vec<EventFd>,
    io_events: Arc<dyn IoEvents>,
    /// Where the queues' notification addresses are registered, and for how many queues.
    notify: Option<(u64, usize)>,
    doorbells: Arc<DoorbellRegion>,
}

impl VirtioPci {
    /// Puts `device` behind a PCI function, with one MSI-X vector per queue and one for configuration changes.
    ///
    /// The device's mutex is innermost among those taken by vCPU threads, see [`pci`](crate::pci); others may hold it only
    /// for calls that do not wait for the guest.
    pub fn new(
        device: Arc<Mutex<dyn VirtioDevice>>,
        memory: Arc<GuestRam>,
        msi: &dyn MsiController,
        io_events: Arc<dyn IoEvents>,
    ) -> io::Result<Self> {
        let invalid = |what: String| io::Error::new(io::ErrorKind::InvalidInput, what);
        let guard = lock(&device);
        let device_type = guard.device_type();
        let max_sizes = guard.queue_max_sizes().to_vec();
        let queues = max_sizes.len();
        let most = MAX_QUEUES.min(usize::from(MSIX_MAX_VECTORS) - 1);
        if queues > most {
            return Err(invalid(format!(
                "virtio device {device_type}: {queues} queues, at most {most} fit on PCI"
            )));
        }
        let id = device_type
            .checked_add(0x1040)
            .and_then(|id| u16::try_from(id).ok());
        let id =
            id.ok_or_else(|| invalid(format!("virtio device type {device_type} has no PCI ID")))?;
        let vectors = queues as u16 + 1;
        let msix = Arc::new(Msix::new(msi.allocate(vectors)?, vectors));
        let shared = Arc::new(Shared::new(msix.clone(), queues));
        let common = Common::new(
            shared.clone(),
            guard.features() | FEATURE_VERSION_1,
            &max_sizes,
        );
        let kicks = (0..queues)
            .map(|_| EventFd::new(libc::EFD_NONBLOCK | libc::EFD_CLOEXEC))
            .collect::<io::Result<_>>()?;
        let pages = guard.doorbell_pages();
        drop(guard);

        let mut config = ConfigSpace::new(&Identity {
            vendor: VENDOR,
            device: id,
            revision: 1,
            class: class_code(device_type),
            subsystem: (VENDOR, id),
        });
        config.add_bar(MAIN_BAR, MAIN_BAR_SIZE);
        if pages > 0 {
            config.add_bar(
                DOORBELL_BAR,
                (u64::from(pages) * doorbell::PAGE).next_power_of_two(),
            );
        }
        let msix_cap = add_msix_capability(&mut config, vectors);
        add_virtio_capability(
            &mut config,
            CFG_TYPE_COMMON,
            COMMON_AT,
            common::LEN,
            &[],
            &[],
        );
        let multiplier = NOTIFY_MULTIPLIER.to_le_bytes();
        let notify_len = (queues as u32).max(1) * NOTIFY_MULTIPLIER;
        add_virtio_capability(
            &mut config,
            CFG_TYPE_NOTIFY,
            NOTIFY_AT,
            notify_len,
            &multiplier,
            &[],
        );
        add_virtio_capability(&mut config, CFG_TYPE_ISR, ISR_AT, 1, &[], &[]);
        add_virtio_capability(&mut config, CFG_TYPE_DEVICE, DEVICE_AT, 0x1000, &[], &[]);
        // The driver writes bar, offset, length and data of the access capability (virtio 1.2, 4.1.4.9).
        let writable = [
            0, 0, 0xff, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
            0xff,
        ];
        let access_cap = add_virtio_capability(&mut config, CFG_TYPE_PCI, 0, 0, &[0; 4], &writable);

        Ok(Self {
            config,
            msix_cap,
            access_cap,
            msix,
            shared,
            common,
            device,
            memory,
            kicks,
            doorbells: Arc::new(DoorbellRegion::new(pages, io_events.clone())),
            io_events,
            notify: None,
        })
    }

    fn activate(&mut self) {
        for kick in &self.kicks {
            // A notification from before the last reset means nothing now.
            let _ = kick.read();
        }
        let queues = match self.common.build_queues(&self.memory, &self.kicks) {
            Ok(queues) => queues,
            Err(e) => {
                log::warn!("virtio device {}: {e}", lock(&self.device).device_type());
                return self.shared.needs_reset();
            }
        };
        let activation = Activation {
            memory: self.memory.clone(),
            features: self.common.accepted(),
            queues: queues
                .into_iter()
                .map(|q| q.map(|(queue, kick)| ActiveQueue { queue, kick }))
                .collect(),
            interrupt: self.shared.clone(),
            doorbells: self.doorbells.clone(),
        };
        let result = lock(&self.device).activate(activation);
        if let Err(e) = result {
            log::warn!("virtio device {}: {e}", lock(&self.device).device_type());
            self.shared.needs_reset();
        }
    }

    fn reset(&mut self) {
        lock(&self.device).reset();
        self.doorbells.detach_all();
        self.common.reset();
        // Last: the driver takes a status of 0 as the sign that the device is quiet.
        self.shared.reset();
    }

    fn notify_queue(&self, offset: u64) {
        let step = u64::from(NOTIFY_MULTIPLIER);
        if offset.is_multiple_of(step)
            && let Some(kick) = usize::try_from(offset / step)
                .ok()
                .and_then(|q| self.kicks.get(q))
        {
            // Fails only when the counter is full, and then it is signalled already.
            let _ = kick.write(1);
        }
    }

    /// Unregisters the notification addresses of the first `count` queues at `base`.
    fn drop_notify(&self, base: u64, count: usize) {
        for (q, kick) in self.kicks.iter().enumerate().take(count) {
            let addr = base + NOTIFY_AT + q as u64 * u64::from(NOTIFY_MULTIPLIER);
            if let Err(e) = self.io_events.unregister(addr, kick) {
                log::warn!("virtqueue notification at {addr:#x} could not be unregistered: {e}");
            }
        }
    }

    /// The access that the PCI configuration access capability describes: BAR, offset and length, if it is a valid one.
    fn window(&self) -> Option<(u8, u64, usize)> {
        let cap = usize::from(self.access_cap);
        let [bar] = self.config.get(cap + 4);
        let offset = u64::from(u32::from_le_bytes(self.config.get(cap + 8)));
        let len = u32::from_le_bytes(self.config.get(cap + 12));
        let valid = matches!(len, 1 | 2 | 4)
            && offset.is_multiple_of(u64::from(len))
            && offset + u64::from(len) <= self.config.bar_size(bar);
        valid.then_some((bar, offset, len as usize))
    }

    /// Whether an access of configuration space touches the data field of the access capability.
    fn touches_window(&self, offset: u16, len: usize) -> bool {
        let data = usize::from(self.access_cap) + 16;
        usize::from(offset) < data + 4 && usize::from(offset) + len > data
    }
}

impl PciDevice for VirtioPci {
    fn config(&self) -> &ConfigSpace {
        &self.config
    }

    fn config_mut(&mut self) -> &mut ConfigSpace {
        &mut self.config
    }

    fn read_config(&mut self, offset: u16, data: &mut [u8]) {
        if self.touches_window(offset, data.len())
            && let Some((bar, at, len)) = self.window()
        {
            let mut value = [0; 4];
            self.read_bar(bar, at, &mut value[..len]);
            self.config.write(self.access_cap + 16, &value);
        }
        self.config.read(offset, data);
    }

    fn write_config(&mut self, offset: u16, data: &[u8]) {
        self.config.write(offset, data);
        let control = u16::from_le_bytes(self.config.get(usize::from(self.msix_cap) + 2));
        self.msix.set_control(
            control & MSIX_ENABLE != 0,
            control & MSIX_FUNCTION_MASK != 0,
        );
        if self.touches_window(offset, data.len())
            && let Some((bar, at, len)) = self.window()
        {
            let value: [u8; 4] = self.config.get(usize::from(self.access_cap) + 16);
            self.write_bar(bar, at, &value[..len]);
        }
    }

    fn read_bar(&mut self, index: u8, offset: u64, data: &mut [u8]) {
        data.fill(0);
        if index != MAIN_BAR {
            return;
        }
        match offset {
            COMMON_AT..ISR_AT => self.common.read(offset - COMMON_AT, data),
            ISR_AT => data[0] = self.shared.take_isr(),
            DEVICE_AT..NOTIFY_AT => lock(&self.device).read_config(offset - DEVICE_AT, data),
            PBA_AT..TABLE_AT => self.msix.read_pba(offset - PBA_AT, data),
            TABLE_AT..MAIN_BAR_SIZE => self.msix.read_table(offset - TABLE_AT, data),
            _ => {}
        }
    }

    fn write_bar(&mut self, index: u8, offset: u64, data: &[u8]) {
        if index != MAIN_BAR {
            return self.doorbells.written(offset);
        }
        match offset {
            COMMON_AT..ISR_AT => match self.common.write(offset - COMMON_AT, data) {
                Effect::None => {}
                Effect::Reset => self.reset(),
                Effect::Activate => self.activate(),
            },
            DEVICE_AT..NOTIFY_AT => lock(&self.device).write_config(offset - DEVICE_AT, data),
            NOTIFY_AT..PBA_AT => self.notify_queue(offset - NOTIFY_AT),
            TABLE_AT..MAIN_BAR_SIZE => self.msix.write_table(offset - TABLE_AT, data),
            _ => {}
        }
    }

    fn bar_mapped(&mut self, index: u8, address: Option<u64>) -> io::Result<()> {
        if index != MAIN_BAR {
            self.doorbells.mapped(address);
            return Ok(());
        }
        if let Some((base, count)) = self.notify.take() {
            self.drop_notify(base, count);
        }
        if let Some(base) = address {
            let mut count = 0;
            for (q, kick) in self.kicks.iter().enumerate() {
                let addr = base + NOTIFY_AT + q as u64 * u64::from(NOTIFY_MULTIPLIER);
                if let Err(e) = self.io_events.register(addr, kick) {
                    // The rest work too, by an exit to user space for each notification.
                    log::debug!("virtqueue {q} and on notify through user space: {e}");
                    break;
                }
                count = q + 1;
            }
            self.notify = Some((base, count));
        }
        Ok(())
    }
}

impl Drop for VirtioPci {
    fn drop(&mut self) {
        lock(&self.device).reset();
        if let Some((base, count)) = self.notify.take() {
            self.drop_notify(base, count);
        }
        self.shared.status.store(0, Ordering::Release);
    }
}

/// The class code for a device type: what helps an operator reading `lspci`; drivers go by the ID.
fn class_code(device_type: u32) -> u32 {
    match device_type {
        1 => 0x020000,  // Ethernet controller
        2 => 0x018000,  // mass storage controller
        42 => 0x020700, // InfiniBand controller
        _ => 0xff0000,
    }
}

fn add_msix_capability(config: &mut ConfigSpace, vectors: u16) -> u16 {
    let mut body = [0; 10];
    body[..2].copy_from_slice(&(vectors - 1).to_le_bytes());
    body[2..6].copy_from_slice(&(TABLE_AT as u32 | u32::from(MAIN_BAR)).to_le_bytes());
    body[6..].copy_from_slice(&(PBA_AT as u32 | u32::from(MAIN_BAR)).to_le_bytes());
    const { assert!(MSIX_MAX_VECTORS as u64 * MSIX_ENTRY_SIZE <= MAIN_BAR_SIZE - TABLE_AT) };
    config.add_capability(
        CAP_MSIX,
        &body,
        &(MSIX_ENABLE | MSIX_FUNCTION_MASK).to_le_bytes(),
    )
}

/// `struct virtio_pci_cap` (virtio 1.2, 4.1.4), followed by `extra`.
fn add_virtio_capability(
    config: &mut ConfigSpace,
    cfg_type: u8,
    at: u64,
    len: u32,
    extra: &[u8],
    writable: &[u8],
) -> u16 {
    let mut body = vec![16 + extra.len() as u8, cfg_type, MAIN_BAR, 0, 0, 0];
    body.extend((at as u32).to_le_bytes());
    body.extend(len.to_le_bytes());
    body.extend(extra);
    config.add_capability(CAP_VENDOR, &body, writable)
}
