//! The x86_64 machine that a guest finds: no firmware, one PCIe root bus, hardware-reduced ACPI, in-kernel APICs.
//!
//! | module | holds |
//! | --- | --- |
//! | [`layout`] | where everything lies in guest physical and port address space |
//! | [`boot`] | loading a kernel and an initrd, and what each boot protocol hands over |
//! | [`acpi`] | the tables that describe the machine |
//! | [`cpuid`], [`msrs`], [`regs`], [`lapic`] | the state a vCPU starts with |
//! | [`reset`] | the one thing a guest still asks of firmware |
//! | [`irq`] | entries of KVM's interrupt routing table |

pub mod acpi;
pub mod boot;
pub mod cpuid;
pub mod irq;
pub mod lapic;
pub mod layout;
pub mod msrs;
pub mod regs;
pub mod reset;
