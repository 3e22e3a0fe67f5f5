//! pvpanic: the guest kernel says that it panicked. One byte register: reading tells which events are taken, writing
//! reports one. Stock kernels drive it as a PCI function (module `pvpanic-pci`); port I/O (`QEMU0001` in ACPI) works too.

use super::{GuestEvent, GuestEventSink};
use crate::bus::BusDevice;
use crate::pci::{ConfigSpace, Identity, PciDevice};

const PANICKED: u8 = 1 << 0;
const CRASH_LOADED: u8 = 1 << 1;

/// The register, as a device on a bus.
pub struct Pvpanic {
    sink: GuestEventSink,
}

impl Pvpanic {
    /// A register that reports to `sink`.
    pub fn new(sink: GuestEventSink) -> Self {
        Self { sink }
    }
}

impl BusDevice for Pvpanic {
    fn read(&mut self, offset: u64, data: &mut [u8]) {
        data.fill(0);
        if offset == 0 {
            data[0] = PANICKED | CRASH_LOADED;
        }
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        if offset != 0 {
            return;
        }
        if data[0] & PANICKED != 0 {
            (self.sink)(GuestEvent::Panic);
        }
        if data[0] & CRASH_LOADED != 0 {
            (self.sink)(GuestEvent::CrashLoaded);
        }
    }
}

/// The register, in BAR 0 of a PCI function (1b36:0011).
pub struct PvpanicPci {
    config: ConfigSpace,
    register: Pvpanic,
}

impl PvpanicPci {
    /// A function that reports to `sink`.
    pub fn new(sink: GuestEventSink) -> Self {
        let mut config = ConfigSpace::new(&Identity {
            vendor: 0x1b36,
            device: 0x0011,
            revision: 1,
            class: 0x088000,
            subsystem: (0x1af4, 0x1100),
        });
        config.add_bar(0, 4096);
        Self {
            config,
            register: Pvpanic::new(sink),
        }
    }
}

impl PciDevice for PvpanicPci {
    fn config(&self) -> &ConfigSpace {
        &self.config
    }
    fn config_mut(&mut self) -> &mut ConfigSpace {
        &mut self.config
    }
    fn read_bar(&mut self, _index: u8, offset: u64, data: &mut [u8]) {
        self.register.read(offset, data);
    }
    fn write_bar(&mut self, _index: u8, offset: u64, data: &[u8]) {
        self.register.write(offset, data);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bus::lock;
    use crate::legacy::power::test_utils::recorder;

    #[test]
    fn a_panic_is_reported() {
        let (sink, seen) = recorder();
        let mut dev = PvpanicPci::new(sink);
        let mut d = [0];
        dev.read_bar(0, 0, &mut d);
        assert_eq!(d, [3]);
        dev.write_bar(0, 1, &[1]);
        dev.write_bar(0, 0, &[0x80]);
        assert!(lock(&seen).is_empty());
        dev.write_bar(0, 0, &[1]);
        dev.write_bar(0, 0, &[2]);
        assert_eq!(*lock(&seen), [GuestEvent::Panic, GuestEvent::CrashLoaded]);
    }
}
