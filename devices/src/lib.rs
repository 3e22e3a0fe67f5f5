//! Device models. They are given guest memory and a way to raise an interrupt, and know nothing of the monitor above them.
//!
//! | module | holds |
//! | --- | --- |
//! | [`bus`] | address ranges to devices, shared by the vCPU threads |
//! | [`interrupt`] | what a device asks of whoever owns the interrupt controller: MSI messages and I/O events |
//! | [`legacy`] | serial port, i8042, ACPI power registers, pvpanic |
//! | [`pci`] | the PCI Express root bus, configuration space, MSI-X |
//! | [`virtio`] | the virtio device trait, the devices and the PCI transport's view of them |

pub mod bus;
pub mod interrupt;
pub mod legacy;
pub mod pci;
pub mod virtio;

/// Guest RAM as every device sees it: shared (`Arc`) and never copied, changing under the reader's feet.
pub type GuestRam = vm_memory::GuestMemoryMmap;
pub mod rdma;
