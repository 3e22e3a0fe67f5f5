//! PCI Express: configuration space, the root bus, MSI-X.
//!
//! The machine has one root bus (bus 0) with up to 32 single-function devices, a host bridge in slot 0 among them. They
//! signal by MSI-X only: no function has an interrupt pin (INTx), so no interrupt routing table is needed. Devices do
//! memory accesses whatever the bus-master bit says; drivers set it, and nothing behind a bridge needs the fence.
//!
//! # Lock order
//! From the outside in, never the other way: a device's mutex, then its [`Msix`] table or doorbell region, then the
//! hypervisor's (`MsiGroup`, `IoEvents`) or the [`Bus`](crate::bus::Bus). No thread of a device ever takes the device's
//! mutex, so a reset, which holds it, can wait for them.

mod config;
mod device;
mod msix;
mod root;
#[cfg(test)]
pub(crate) mod test_utils;

pub use config::{CONFIG_SIZE, ConfigSpace, Identity};
pub use device::{Bar, PciDevice};
pub use msix::{MSIX_ENTRY_SIZE, MSIX_MAX_VECTORS, Msix, NO_VECTOR};
pub use root::{ConfigPorts, ECAM_BYTES_PER_BUS, Ecam, HostBridge, PciRoot, RootError};
