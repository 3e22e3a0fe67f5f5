//! The keyboard controller, for the one thing that a kernel still asks of it: to reset the machine.

use vm_superio::{I8042Device, Trigger};

use super::{GuestEvent, GuestEventSink};
use crate::bus::BusDevice;

struct ResetLine(GuestEventSink);

impl Trigger for ResetLine {
    type E = std::convert::Infallible;
    fn trigger(&self) -> Result<(), Self::E> {
        (self.0)(GuestEvent::Reset);
        Ok(())
    }
}

/// An i8042 without a keyboard or mouse. It occupies ports 0x60 to 0x64, of which 0x61 to 0x63 read as zero.
pub struct I8042(I8042Device<ResetLine>);

impl I8042 {
    /// First port.
    pub const BASE: u64 = 0x60;
    /// Ports.
    pub const LEN: u64 = 5;

    /// A controller whose reset line reports [`GuestEvent::Reset`] to `sink`.
    pub fn new(sink: GuestEventSink) -> Self {
        Self(I8042Device::new(ResetLine(sink)))
    }
}

impl BusDevice for I8042 {
    fn read(&mut self, offset: u64, data: &mut [u8]) {
        data.fill(0);
        if let ([byte], 0 | 4) = (&mut *data, offset) {
            *byte = self.0.read(offset as u8);
        }
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        if let ([byte], 0 | 4) = (data, offset) {
            let Ok(()) = self.0.write(offset as u8, *byte);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bus::lock;
    use crate::legacy::power::test_utils::recorder;

    #[test]
    fn the_pulse_command_resets() {
        let (sink, seen) = recorder();
        let mut dev = I8042::new(sink);
        dev.write(0, &[0xfe]);
        dev.write(4, &[0xaa]);
        dev.write(4, &[0xfe, 0xfe]);
        assert!(lock(&seen).is_empty());
        dev.write(4, &[0xfe]);
        assert_eq!(*lock(&seen), [GuestEvent::Reset]);
    }
}
