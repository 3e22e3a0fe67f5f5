//! What the guest says about its own end: power-off, reset, panic.

use std::sync::Arc;

use crate::bus::BusDevice;

/// The end of a guest, or of its kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GuestEvent {
    /// The guest switched its power off (ACPI S5).
    PowerOff,
    /// The guest reset the machine.
    Reset,
    /// The guest's kernel panicked; it may still write a crash dump.
    Panic,
    /// The guest's kernel panicked and a crash kernel has taken over.
    CrashLoaded,
}

/// Who is told. Called from a vCPU thread, possibly many times: must not block.
pub type GuestEventSink = Arc<dyn Fn(GuestEvent) + Send + Sync>;

/// The registers of hardware-reduced ACPI (ACPI 6.5, 4.8.3.7), each a byte.
///
/// | offset | register | use |
/// | --- | --- | --- |
/// | 0 | SLEEP_CONTROL_REG | bits 2 to 4 `SLP_TYP`, bit 5 `SLP_EN`: enabling with [`S5_TYPE`](Self::S5_TYPE) powers off |
/// | 1 | SLEEP_STATUS_REG | always zero: the machine never sleeps |
/// | 2 | RESET_REG | writing [`RESET_VALUE`](Self::RESET_VALUE) resets |
pub struct PowerControl {
    sink: GuestEventSink,
}

impl PowerControl {
    /// Length of the register block in bytes.
    pub const LEN: u64 = 3;
    /// Offset of SLEEP_CONTROL_REG.
    pub const SLEEP_CONTROL: u64 = 0;
    /// Offset of SLEEP_STATUS_REG.
    pub const SLEEP_STATUS: u64 = 1;
    /// Offset of RESET_REG.
    pub const RESET: u64 = 2;
    /// The `SLP_TYP` that the DSDT's `_S5` object gives for power-off.
    pub const S5_TYPE: u8 = 5;
    /// The FADT's RESET_VALUE.
    pub const RESET_VALUE: u8 = 1;
    const SLEEP_ENABLE: u8 = 1 << 5;

    /// Registers that report to `sink`.
    pub fn new(sink: GuestEventSink) -> Self {
        Self { sink }
    }
}

impl BusDevice for PowerControl {
    fn read(&mut self, _offset: u64, data: &mut [u8]) {
        data.fill(0);
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        for (offset, &value) in (offset..).zip(data) {
            match offset {
                Self::SLEEP_CONTROL
                    if value & Self::SLEEP_ENABLE != 0 && value >> 2 & 7 == Self::S5_TYPE =>
                {
                    (self.sink)(GuestEvent::PowerOff)
                }
                Self::RESET if value == Self::RESET_VALUE => (self.sink)(GuestEvent::Reset),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod test_utils {
    use super::*;
    use crate::bus::lock;
    use std::sync::Mutex;

    pub(crate) fn recorder() -> (GuestEventSink, Arc<Mutex<Vec<GuestEvent>>>) {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let to = seen.clone();
        (Arc::new(move |e| lock(&to).push(e)), seen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bus::lock;

    #[test]
    fn only_the_documented_values_end_the_guest() {
        let (sink, seen) = test_utils::recorder();
        let mut p = PowerControl::new(sink);
        for (offset, value) in [
            (0, 5 << 2),
            (0, 1 << 5),
            (0, 1 << 5 | 3 << 2),
            (1, 0x34),
            (2, 0),
            (2, 6),
            (3, 1),
        ] {
            p.write(offset, &[value]);
        }
        assert!(lock(&seen).is_empty());
        p.write(0, &[1 << 5 | 5 << 2]);
        p.write(2, &[1]);
        assert_eq!(*lock(&seen), [GuestEvent::PowerOff, GuestEvent::Reset]);
        let mut d = [7; 3];
        p.read(0, &mut d);
        assert_eq!(d, [0; 3]);
    }
}
