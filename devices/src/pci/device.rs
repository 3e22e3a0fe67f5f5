//! What a PCI function owes its bus.

use std::io;

use super::ConfigSpace;

/// A memory BAR.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bar {
    /// Index of its first register: 0, 2 or 4, since all BARs are 64-bit.
    pub index: u8,
    /// Bytes, a power of two.
    pub size: u64,
}

/// A single-function PCI device.
///
/// The root calls it with its mutex held. Offsets and lengths come from the guest: 1, 2, 4 or 8 bytes, any alignment.
pub trait PciDevice: Send {
    /// Its configuration space.
    fn config(&self) -> &ConfigSpace;

    /// Its configuration space, to change.
    fn config_mut(&mut self) -> &mut ConfigSpace;

    /// The BARs it declared. They do not change.
    fn bars(&self) -> Vec<Bar> {
        (0..6)
            .filter_map(|index| {
                let size = self.config().bar_size(index);
                (size != 0).then_some(Bar { index, size })
            })
            .collect()
    }

    /// A guest read of configuration space.
    fn read_config(&mut self, offset: u16, data: &mut [u8]) {
        self.config().read(offset, data);
    }

    /// A guest write of configuration space. The root looks at the BAR and command registers afterwards.
    fn write_config(&mut self, offset: u16, data: &[u8]) {
        self.config_mut().write(offset, data);
    }

    /// A guest read within BAR `index`. Fills `data` whatever the offset.
    fn read_bar(&mut self, index: u8, offset: u64, data: &mut [u8]);

    /// A guest write within BAR `index`.
    fn write_bar(&mut self, index: u8, offset: u64, data: &[u8]);

    /// BAR `index` is now decoded at `address`, or no longer anywhere. For what is tied to an address, such as I/O events.
    ///
    /// # Errors
    /// When it cannot work there; the device has then undone what it did for `address`, and counts as unmapped.
    fn bar_mapped(&mut self, index: u8, address: Option<u64>) -> io::Result<()> {
        let _ = (index, address);
        Ok(())
    }
}
