//! An address space of devices: port I/O or memory-mapped I/O.
//!
//! The lock on the map of ranges is never held while a device runs, so that a device may move its own ranges (a BAR
//! that the guest reprograms) from inside an access, on any vCPU thread.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

/// A device that answers accesses to a range of addresses.
pub trait BusDevice: Send {
    /// Fills `data` (1 to 8 bytes, little-endian) from `offset` bytes into the device's range.
    ///
    /// What the device does not implement it must still fill: with all ones, or with zeroes, as its specification says.
    fn read(&mut self, offset: u64, data: &mut [u8]);

    /// Takes `data` (1 to 8 bytes, little-endian) written at `offset` bytes into the device's range.
    fn write(&mut self, offset: u64, data: &[u8]);
}

/// Locks a mutex whose holder may have panicked: device state is only ever changed a field at a time, so it is usable.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Why a range could not be placed on a [`Bus`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BusError {
    /// The range is empty or wraps around the end of the address space.
    #[error("bus range {base:#x}+{len:#x} is empty or passes the end of the address space")]
    BadRange {
        /// First address.
        base: u64,
        /// Length in bytes.
        len: u64,
    },
    /// Another device already answers part of the range.
    #[error("bus range {base:#x}+{len:#x} overlaps a device at {other:#x}")]
    Overlap {
        /// First address.
        base: u64,
        /// Length in bytes.
        len: u64,
        /// First address of the device in the way.
        other: u64,
    },
    /// No range starts at that address.
    #[error("no device on the bus at {0:#x}")]
    Missing(u64),
}

#[derive(Clone)]
struct Entry {
    len: u64,
    device: Arc<Mutex<dyn BusDevice>>,
}

/// Ranges of addresses and the devices that answer them. Shared between threads; all methods take `&self`.
#[derive(Default)]
pub struct Bus {
    ranges: RwLock<BTreeMap<u64, Entry>>,
}

impl Bus {
    /// An empty bus.
    pub fn new() -> Self {
        Self::default()
    }

    /// Places `device` at `base`, `len` bytes long.
    pub fn insert(
        &self,
        base: u64,
        len: u64,
        device: Arc<Mutex<dyn BusDevice>>,
    ) -> Result<(), BusError> {
        let mut ranges = self.ranges.write().unwrap_or_else(PoisonError::into_inner);
        Self::check_free(&ranges, base, len)?;
        ranges.insert(base, Entry { len, device });
        Ok(())
    }

    /// Takes the device whose range starts at `base` off the bus. An access under way on another thread may still finish.
    pub fn remove(&self, base: u64) -> Result<(), BusError> {
        let mut ranges = self.ranges.write().unwrap_or_else(PoisonError::into_inner);
        ranges
            .remove(&base)
            .map(|_| ())
            .ok_or(BusError::Missing(base))
    }

    /// Moves the range that starts at `from` to `to`. On an error nothing has changed.
    pub fn relocate(&self, from: u64, to: u64) -> Result<(), BusError> {
        let mut ranges = self.ranges.write().unwrap_or_else(PoisonError::into_inner);
        let entry = ranges.remove(&from).ok_or(BusError::Missing(from))?;
        let (base, result) = match Self::check_free(&ranges, to, entry.len) {
            Ok(()) => (to, Ok(())),
            Err(e) => (from, Err(e)),
        };
        ranges.insert(base, entry);
        result
    }

    /// Reads from whatever answers at `addr`. Returns false, with `data` all ones, when nothing does, or when the access
    /// runs past the end of the device's range.
    pub fn read(&self, addr: u64, data: &mut [u8]) -> bool {
        match self.find(addr, data.len()) {
            Some((offset, device)) => {
                lock(&device).read(offset, data);
                true
            }
            None => {
                data.fill(0xff);
                false
            }
        }
    }

    /// Writes to whatever answers at `addr`. Returns false when nothing does, or when the access runs past the end of
    /// the device's range.
    pub fn write(&self, addr: u64, data: &[u8]) -> bool {
        match self.find(addr, data.len()) {
            Some((offset, device)) => {
                lock(&device).write(offset, data);
                true
            }
            None => false,
        }
    }

    fn find(&self, addr: u64, len: usize) -> Option<(u64, Arc<Mutex<dyn BusDevice>>)> {
        let ranges = self.ranges.read().unwrap_or_else(PoisonError::into_inner);
        let (base, entry) = ranges.range(..=addr).next_back()?;
        let offset = addr - base;
        let end = offset.checked_add(len as u64)?;
        (end <= entry.len).then(|| (offset, entry.device.clone()))
    }

    fn check_free(ranges: &BTreeMap<u64, Entry>, base: u64, len: u64) -> Result<(), BusError> {
        let last = len
            .checked_sub(1)
            .and_then(|l| base.checked_add(l))
            .ok_or(BusError::BadRange { base, len })?;
        if let Some((&other, entry)) = ranges.range(..=last).next_back()
            && other + (entry.len - 1) >= base
        {
            return Err(BusError::Overlap { base, len, other });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Echo(Vec<(u64, Vec<u8>)>);
    impl BusDevice for Echo {
        fn read(&mut self, offset: u64, data: &mut [u8]) {
            data.fill(offset as u8);
        }
        fn write(&mut self, offset: u64, data: &[u8]) {
            self.0.push((offset, data.to_vec()));
        }
    }

    fn echo() -> Arc<Mutex<Echo>> {
        Arc::new(Mutex::new(Echo(Vec::new())))
    }

    #[test]
    fn accesses_reach_the_device_with_its_offset() {
        let bus = Bus::new();
        let dev = echo();
        bus.insert(0x100, 0x10, dev.clone()).unwrap();
        let mut data = [0; 2];
        assert!(bus.read(0x103, &mut data));
        assert_eq!(data, [3, 3]);
        assert!(bus.write(0x10e, &[7, 8]));
        assert_eq!(lock(&dev).0, [(0xe, vec![7, 8])]);
    }

    #[test]
    fn nothing_there_reads_as_ones() {
        let bus = Bus::new();
        bus.insert(0x100, 0x10, echo()).unwrap();
        for addr in [0, 0xff, 0x10f, 0x110, u64::MAX] {
            let mut data = [0; 2];
            assert!(!bus.read(addr, &mut data), "{addr:#x}");
            assert_eq!(data, [0xff, 0xff]);
            assert!(!bus.write(addr, &data));
        }
    }

    #[test]
    fn overlaps_and_bad_ranges_are_refused() {
        let bus = Bus::new();
        bus.insert(0x100, 0x10, echo()).unwrap();
        for (base, len) in [
            (0x100, 1),
            (0xff, 2),
            (0x10f, 0x100),
            (0, 0x1000),
            (0x104, 4),
        ] {
            assert!(
                matches!(bus.insert(base, len, echo()), Err(BusError::Overlap { .. })),
                "{base:#x}"
            );
        }
        assert!(matches!(
            bus.insert(0, 0, echo()),
            Err(BusError::BadRange { .. })
        ));
        assert!(matches!(
            bus.insert(u64::MAX, 2, echo()),
            Err(BusError::BadRange { .. })
        ));
        bus.insert(u64::MAX, 1, echo()).unwrap();
        bus.insert(0xff, 1, echo()).unwrap();
        bus.insert(0x110, 1, echo()).unwrap();
    }

    #[test]
    fn a_range_moves_or_stays_whole() {
        let bus = Bus::new();
        bus.insert(0x100, 0x10, echo()).unwrap();
        bus.insert(0x200, 0x10, echo()).unwrap();
        assert!(matches!(
            bus.relocate(0x100, 0x1f8),
            Err(BusError::Overlap { .. })
        ));
        assert!(bus.read(0x100, &mut [0]));
        bus.relocate(0x100, 0x108).unwrap();
        assert!(!bus.read(0x100, &mut [0]));
        assert!(bus.read(0x117, &mut [0]));
        bus.remove(0x108).unwrap();
        assert_eq!(bus.remove(0x108), Err(BusError::Missing(0x108)));
        assert_eq!(bus.relocate(0x108, 0), Err(BusError::Missing(0x108)));
    }
}
