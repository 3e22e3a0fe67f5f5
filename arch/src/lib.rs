//! What Longarm knows about the x86_64 machine: address map, boot protocols, ACPI tables, CPUID, interrupt routes.

pub mod x86_64;

/// Guest RAM: shared mappings that the guest changes at any time.
pub type GuestRam = vm_memory::GuestMemoryMmap;
