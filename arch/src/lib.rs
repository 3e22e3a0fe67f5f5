//! What Longarm knows about the x86_64 machine: address map, boot protocols, ACPI tables, CPUID.
