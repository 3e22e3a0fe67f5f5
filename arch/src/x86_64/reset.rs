//! The reset stub: what a kernel finds that restarts the machine as a PC's firmware would.
//!
//! Linux prefers EFI to reset a hardware-reduced machine, and where there is no EFI goes back to real mode and jumps to
//! ffff:0, never looking at the ACPI reset register. There it finds a few instructions that write that register.

use vm_memory::{Bytes, GuestAddress, GuestMemoryError};

use super::layout::{RESET_PORT, RESET_STUB, RESET_VALUE};
use crate::GuestRam;

/// `mov dx, PORT; mov al, VALUE; out dx, al; hlt; jmp` back to the `hlt`.
const STUB: [u8; 9] = [
    0xba,
    RESET_PORT as u8,
    (RESET_PORT >> 8) as u8,
    0xb0,
    RESET_VALUE,
    0xee,
    0xf4,
    0xeb,
    0xfd,
];

/// Writes the stub.
pub fn write_stub(ram: &GuestRam) -> Result<(), GuestMemoryError> {
    ram.write_slice(&STUB, GuestAddress(RESET_STUB))
}
