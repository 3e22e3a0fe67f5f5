//! The root bus: which function answers a configuration access, and where its BARs are decoded.

use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex};

use super::{Bar, ConfigSpace, Identity, PciDevice};
use crate::bus::{Bus, BusDevice, BusError, lock};

/// Bytes of the enhanced configuration access mechanism per bus: 32 devices, 8 functions, 4 KiB each (PCIe base, 7.2.2).
pub const ECAM_BYTES_PER_BUS: u64 = 1 << 20;
const SLOTS: usize = 32;
/// BARs start at multiples of this, so that neighbours never share a page of any size that a guest maps device memory with.
const BAR_STRIDE: u64 = 2 << 20;

/// Why a device could not be put on the root bus.
#[derive(Debug, thiserror::Error)]
pub enum RootError {
    /// All 32 slots are taken.
    #[error("the PCI root bus is full: it has {SLOTS} slots")]
    Full,
    /// The window for BARs is used up.
    #[error("no room for a BAR of {size:#x} bytes in the PCI memory window {first:#x}..={last:#x}")]
    NoRoom {
        /// Bytes asked for.
        size: u64,
        /// First address of the window.
        first: u64,
        /// Last address of the window.
        last: u64,
    },
}

/// A BAR on the memory bus: accesses are passed to the function that owns it.
struct BarWindow {
    device: Arc<Mutex<dyn PciDevice>>,
    index: u8,
}

impl BusDevice for BarWindow {
    fn read(&mut self, offset: u64, data: &mut [u8]) {
        lock(&self.device).read_bar(self.index, offset, data);
    }
    fn write(&mut self, offset: u64, data: &[u8]) {
        lock(&self.device).write_bar(self.index, offset, data);
    }
}

/// Where a BAR is decoded now; apart from its register, which the guest may fill with anything at any time.
struct Mapping {
    bar: Bar,
    window: Arc<Mutex<BarWindow>>,
    at: Option<u64>,
}

struct Slot {
    device: Arc<Mutex<dyn PciDevice>>,
    /// Taken only with `device` locked.
    mappings: Mutex<Vec<Mapping>>,
}

struct Layout {
    slots: Vec<Arc<Slot>>,
    next_bar: u64,
}

/// The PCI Express root bus, bus 0.
pub struct PciRoot {
    memory: Arc<Bus>,
    window: RangeInclusive<u64>,
    layout: Mutex<Layout>,
}

impl PciRoot {
    /// A root bus with a host bridge in slot 0, whose functions' BARs lie on `memory` within `window` (guest physical
    /// addresses, which nothing else uses).
    pub fn new(memory: Arc<Bus>, window: RangeInclusive<u64>) -> Self {
        let bridge = Slot {
            device: Arc::new(Mutex::new(HostBridge::new())),
            mappings: Mutex::new(Vec::new()),
        };
        let layout = Layout {
            slots: vec![Arc::new(bridge)],
            next_bar: *window.start(),
        };
        Self {
            memory,
            window,
            layout: Mutex::new(layout),
        }
    }

    /// Puts `device` into the next free slot, gives its BARs addresses, as firmware would, and returns the slot number.
    /// Memory decoding stays off until the guest enables it.
    pub fn add(&self, device: Arc<Mutex<dyn PciDevice>>) -> Result<u8, RootError> {
        let mut layout = lock(&self.layout);
        if layout.slots.len() == SLOTS {
            return Err(RootError::Full);
        }
        let mut mappings = Vec::new();
        {
            let mut function = lock(&device);
            let mut next = layout.next_bar;
            for bar in function.bars() {
                let no_room = || RootError::NoRoom {
                    size: bar.size,
                    first: *self.window.start(),
                    last: *self.window.end(),
                };
                let at = next
                    .checked_next_multiple_of(bar.size.max(BAR_STRIDE))
                    .ok_or_else(no_room)?;
                let last = at.checked_add(bar.size - 1).ok_or_else(no_room)?;
                if last > *self.window.end() {
                    return Err(no_room());
                }
                next = last.saturating_add(1);
                function.config_mut().set_bar_register(bar.index, at);
                let window = BarWindow {
                    device: device.clone(),
                    index: bar.index,
                };
                mappings.push(Mapping {
                    bar,
                    window: Arc::new(Mutex::new(window)),
                    at: None,
                });
            }
            layout.next_bar = next;
        }
        layout.slots.push(Arc::new(Slot {
            device,
            mappings: Mutex::new(mappings),
        }));
        Ok((layout.slots.len() - 1) as u8)
    }

    /// A configuration read of function `function` of device `slot` on bus `bus`. Nobody there reads as ones.
    pub fn read_config(&self, bus: u8, slot: u8, function: u8, offset: u16, data: &mut [u8]) {
        match self.slot(bus, slot, function) {
            Some(slot) => lock(&slot.device).read_config(offset, data),
            None => data.fill(0xff),
        }
    }

    /// A configuration write, after which the function's BARs are decoded where its registers say.
    pub fn write_config(&self, bus: u8, slot: u8, function: u8, offset: u16, data: &[u8]) {
        if let Some(slot) = self.slot(bus, slot, function) {
            let mut device = lock(&slot.device);
            device.write_config(offset, data);
            for mapping in lock(&slot.mappings).iter_mut() {
                self.follow(&mut *device, mapping);
            }
        }
    }

    fn slot(&self, bus: u8, slot: u8, function: u8) -> Option<Arc<Slot>> {
        if bus != 0 || function != 0 {
            return None;
        }
        lock(&self.layout).slots.get(usize::from(slot)).cloned()
    }

    /// Brings the decoding of a BAR in line with the function's registers.
    ///
    /// While memory space is enabled, an address that cannot be decoded (outside of the window, on top of another BAR,
    /// or half written) leaves the BAR where it was.
    fn follow(&self, device: &mut dyn PciDevice, mapping: &mut Mapping) {
        let Bar { index, size } = mapping.bar;
        let wanted = device
            .config()
            .memory_enabled()
            .then(|| device.config().bar_register(index));
        if wanted == mapping.at {
            return;
        }
        let Some(to) = wanted else {
            self.unmap(device, mapping);
            return;
        };
        if !self.in_window(to, size) {
            log::debug!(
                "PCI BAR {index}: {to:#x}+{size:#x} is outside of the memory window, not decoded"
            );
            return;
        }
        let from = mapping.at;
        let placed = match from {
            Some(from) => self.memory.relocate(from, to),
            None => self.memory.insert(to, size, mapping.window.clone()),
        };
        if let Err(e) = placed {
            log::debug!("PCI BAR {index}: {e}");
            return;
        }
        if from.is_some() {
            let _ = device.bar_mapped(index, None);
        }
        mapping.at = Some(to);
        if let Err(e) = device.bar_mapped(index, Some(to)) {
            log::warn!("PCI BAR {index} cannot be decoded at {to:#x}: {e}");
            self.undo(device, mapping, from, to);
        }
    }

    /// Goes back from `to` to `from` after the device refused `to`; if it refuses that too, the BAR is decoded nowhere.
    fn undo(&self, device: &mut dyn PciDevice, mapping: &mut Mapping, from: Option<u64>, to: u64) {
        let back = from.filter(|&from| {
            self.memory.relocate(to, from).is_ok()
                && device.bar_mapped(mapping.bar.index, Some(from)).is_ok()
        });
        if back.is_none() {
            // It lies at one of the two, depending on which step failed.
            let removed: Result<(), BusError> = self
                .memory
                .remove(to)
                .or_else(|e| from.map_or(Err(e), |f| self.memory.remove(f)));
            debug_assert!(removed.is_ok());
        }
        mapping.at = back;
    }

    fn unmap(&self, device: &mut dyn PciDevice, mapping: &mut Mapping) {
        if let Some(at) = mapping.at.take() {
            let removed = self.memory.remove(at);
            debug_assert!(removed.is_ok());
            let _ = device.bar_mapped(mapping.bar.index, None);
        }
    }

    fn in_window(&self, at: u64, size: u64) -> bool {
        at >= *self.window.start()
            && at
                .checked_add(size - 1)
                .is_some_and(|last| last <= *self.window.end())
    }
}

/// The host bridge in slot 0, which only says that it is there.
pub struct HostBridge {
    config: ConfigSpace,
}

impl HostBridge {
    /// The generic PCI Express host bridge (1b36:0008).
    pub fn new() -> Self {
        let identity = Identity {
            vendor: 0x1b36,
            device: 0x0008,
            revision: 0,
            class: 0x060000,
            subsystem: (0, 0),
        };
        Self {
            config: ConfigSpace::new(&identity),
        }
    }
}

impl Default for HostBridge {
    fn default() -> Self {
        Self::new()
    }
}

impl PciDevice for HostBridge {
    fn config(&self) -> &ConfigSpace {
        &self.config
    }
    fn config_mut(&mut self) -> &mut ConfigSpace {
        &mut self.config
    }
    fn read_bar(&mut self, _index: u8, _offset: u64, data: &mut [u8]) {
        data.fill(0xff);
    }
    fn write_bar(&mut self, _index: u8, _offset: u64, _data: &[u8]) {}
}

/// The enhanced configuration access mechanism of bus 0: [`ECAM_BYTES_PER_BUS`] bytes of memory-mapped I/O.
pub struct Ecam(pub Arc<PciRoot>);

impl Ecam {
    /// Bus, device, function and register of an offset.
    fn decode(offset: u64) -> (u8, u8, u8, u16) {
        (
            (offset >> 20) as u8,
            (offset >> 15 & 0x1f) as u8,
            (offset >> 12 & 7) as u8,
            (offset & 0xfff) as u16,
        )
    }
}

impl BusDevice for Ecam {
    fn read(&mut self, offset: u64, data: &mut [u8]) {
        let (bus, slot, function, register) = Self::decode(offset);
        self.0.read_config(bus, slot, function, register, data);
    }
    fn write(&mut self, offset: u64, data: &[u8]) {
        let (bus, slot, function, register) = Self::decode(offset);
        self.0.write_config(bus, slot, function, register, data);
    }
}

/// The legacy configuration ports: eight bytes of port I/O at 0xcf8, address then data (PCI local bus 3.0, 3.2.2.3.2).
pub struct ConfigPorts {
    root: Arc<PciRoot>,
    address: u32,
}

impl ConfigPorts {
    /// Where the ports lie.
    pub const BASE: u64 = 0xcf8;
    /// How many there are.
    pub const LEN: u64 = 8;
    const ENABLE: u32 = 1 << 31;

    /// Ports onto `root`.
    pub fn new(root: Arc<PciRoot>) -> Self {
        Self { root, address: 0 }
    }

    /// The function and register that a data access at `offset` (4 to 7) selects, when accesses are enabled and it stays
    /// within the register.
    fn target(&self, offset: u64, len: usize) -> Option<(u8, u8, u8, u16)> {
        let a = self.address;
        let within = offset.checked_sub(4)?;
        (a & Self::ENABLE != 0 && within + len as u64 <= 4).then_some((
            (a >> 16) as u8,
            (a >> 11 & 0x1f) as u8,
            (a >> 8 & 7) as u8,
            (a & 0xfc) as u16 + within as u16,
        ))
    }
}

impl BusDevice for ConfigPorts {
    fn read(&mut self, offset: u64, data: &mut [u8]) {
        if offset == 0 && data.len() == 4 {
            data.copy_from_slice(&self.address.to_le_bytes());
        } else if let Some((bus, slot, function, register)) = self.target(offset, data.len()) {
            self.root.read_config(bus, slot, function, register, data);
        } else {
            data.fill(0xff);
        }
    }
    fn write(&mut self, offset: u64, data: &[u8]) {
        if offset == 0 && data.len() == 4 {
            let mut address = [0; 4];
            address.copy_from_slice(data);
            self.address = u32::from_le_bytes(address) & (Self::ENABLE | 0x00ff_fffc);
        } else if let Some((bus, slot, function, register)) = self.target(offset, data.len()) {
            self.root.write_config(bus, slot, function, register, data);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    const WINDOW: RangeInclusive<u64> = 0x40_0000_0000..=0x40_ffff_ffff;
    const SIZE: u64 = 0x1_0000;

    struct Probe {
        config: ConfigSpace,
        mapped: Vec<Option<u64>>,
        refuse: Vec<u64>,
        stores: Vec<u64>,
    }

    impl Probe {
        fn new() -> Arc<Mutex<Self>> {
            let identity = Identity {
                vendor: 0x1234,
                device: 0x5678,
                revision: 0,
                class: 0xff0000,
                subsystem: (0, 0),
            };
            let mut config = ConfigSpace::new(&identity);
            config.add_bar(0, SIZE);
            Arc::new(Mutex::new(Self {
                config,
                mapped: vec![],
                refuse: vec![],
                stores: vec![],
            }))
        }
    }

    impl PciDevice for Probe {
        fn config(&self) -> &ConfigSpace {
            &self.config
        }
        fn config_mut(&mut self) -> &mut ConfigSpace {
            &mut self.config
        }
        fn read_bar(&mut self, _: u8, offset: u64, data: &mut [u8]) {
            data.fill(offset as u8);
        }
        fn write_bar(&mut self, _: u8, offset: u64, _: &[u8]) {
            self.stores.push(offset);
        }
        fn bar_mapped(&mut self, _: u8, address: Option<u64>) -> io::Result<()> {
            if address.is_some_and(|a| self.refuse.contains(&a)) {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.mapped.push(address);
            Ok(())
        }
    }

    struct Fixture {
        bus: Arc<Bus>,
        root: Arc<PciRoot>,
        probe: Arc<Mutex<Probe>>,
    }

    impl Fixture {
        fn new() -> Self {
            let bus = Arc::new(Bus::new());
            let root = Arc::new(PciRoot::new(bus.clone(), WINDOW));
            let probe = Probe::new();
            assert_eq!(root.add(probe.clone()).unwrap(), 1);
            Self { bus, root, probe }
        }
        fn bar(&self) -> u64 {
            lock(&self.probe).config.bar_register(0)
        }
        fn command(&self, value: u16) {
            self.root.write_config(0, 1, 0, 4, &value.to_le_bytes());
        }
        fn set_bar(&self, to: u64) {
            self.root.write_config(0, 1, 0, 0x10, &to.to_le_bytes());
        }
        fn decoded(&self, at: u64) -> bool {
            self.bus.read(at, &mut [0; 4])
        }
    }

    #[test]
    fn bars_are_placed_sparsely_and_not_decoded() {
        let f = Fixture::new();
        let other = Probe::new();
        f.root.add(other.clone()).unwrap();
        assert_eq!(f.bar(), *WINDOW.start());
        assert_eq!(
            lock(&other).config.bar_register(0),
            *WINDOW.start() + BAR_STRIDE
        );
        assert!(!f.decoded(f.bar()));
    }

    #[test]
    fn memory_enable_switches_decoding() {
        let f = Fixture::new();
        f.command(2);
        assert!(f.decoded(f.bar()) && f.decoded(f.bar() + SIZE - 4) && !f.decoded(f.bar() + SIZE));
        assert!(f.bus.write(f.bar() + 8, &[0]));
        assert_eq!(lock(&f.probe).stores, [8]);
        f.command(0);
        assert!(!f.decoded(f.bar()));
        let at = f.bar();
        assert_eq!(lock(&f.probe).mapped, [Some(at), None]);
    }

    #[test]
    fn sizing_and_moving_while_disabled_touches_no_mapping() {
        let f = Fixture::new();
        f.set_bar(u64::MAX);
        f.set_bar(0x40_8000_0000);
        assert!(lock(&f.probe).mapped.is_empty());
        f.command(2);
        assert!(f.decoded(0x40_8000_0000));
    }

    #[test]
    fn moving_while_enabled_follows_and_an_impossible_place_is_not_taken() {
        let f = Fixture::new();
        let home = f.bar();
        f.command(2);
        f.set_bar(0x40_8000_0000);
        assert!(f.decoded(0x40_8000_0000) && !f.decoded(home));
        f.set_bar(0x1000);
        assert!(f.decoded(0x40_8000_0000) && !f.decoded(0x1000));
        f.set_bar(*WINDOW.end() & !(SIZE - 1));
        assert!(!f.decoded(0x40_8000_0000));
        f.set_bar(u64::MAX);
        f.command(0);
        f.command(2);
        assert!(
            !f.decoded(*WINDOW.end() & !(SIZE - 1)),
            "nowhere to go back to"
        );
    }

    #[test]
    fn a_bar_does_not_land_on_another() {
        let f = Fixture::new();
        let other = Probe::new();
        f.root.add(other.clone()).unwrap();
        f.command(2);
        f.root.write_config(0, 2, 0, 4, &[2, 0]);
        let (home, theirs) = (f.bar(), lock(&other).config.bar_register(0));
        f.set_bar(theirs);
        assert!(f.decoded(home) && f.decoded(theirs));
        assert!(f.bus.write(theirs + 4, &[0]));
        assert_eq!(lock(&other).stores, [4]);
        f.command(0);
        assert!(f.decoded(theirs) && !f.decoded(home));
    }

    #[test]
    fn a_move_that_the_device_refuses_is_undone() {
        let f = Fixture::new();
        let home = f.bar();
        f.command(2);
        lock(&f.probe).refuse = vec![0x40_8000_0000];
        f.set_bar(0x40_8000_0000);
        assert!(f.decoded(home) && !f.decoded(0x40_8000_0000));
        assert_eq!(lock(&f.probe).mapped, [Some(home), None, Some(home)]);
        lock(&f.probe).refuse = vec![0x40_8000_0000, home];
        f.set_bar(0x40_8000_0000);
        assert!(!f.decoded(home) && !f.decoded(0x40_8000_0000));
        lock(&f.probe).refuse.clear();
        f.command(0);
        f.command(2);
        assert!(f.decoded(0x40_8000_0000));
    }

    #[test]
    fn both_mechanisms_reach_the_same_function() {
        let f = Fixture::new();
        let mut ecam = Ecam(f.root.clone());
        let mut ports = ConfigPorts::new(f.root.clone());
        let mut id = [0; 4];
        ecam.read(1 << 15, &mut id);
        assert_eq!(u32::from_le_bytes(id), 0x5678_1234);
        ports.read(4, &mut id);
        assert_eq!(id, [0xff; 4], "not enabled");
        ports.write(0, &(0x8000_0000u32 | 1 << 11 | 3).to_le_bytes());
        ports.read(0, &mut id);
        assert_eq!(u32::from_le_bytes(id), 0x8000_0800);
        let mut half = [0; 2];
        ports.read(6, &mut half);
        assert_eq!(half, [0x78, 0x56]);
        ports.read(6, &mut id);
        assert_eq!(id, [0xff; 4], "past the register");
        ports.write(0, &(0x8000_0804u32).to_le_bytes());
        ports.write(4, &[2, 0]);
        assert!(f.decoded(f.bar()));
        ecam.write((1 << 15) + 4, &[0, 0]);
        assert!(!f.decoded(f.bar()));
    }

    #[test]
    fn nobody_reads_as_ones_and_extended_space_as_zero() {
        let f = Fixture::new();
        let mut ecam = Ecam(f.root.clone());
        for (offset, want) in [
            (2 << 15, 0xff),
            (1 << 12, 0xff),
            (1 << 20, 0xff),
            ((1 << 15) + 0x100, 0),
        ] {
            let mut data = [1; 4];
            ecam.read(offset, &mut data);
            assert_eq!(data, [want; 4], "{offset:#x}");
        }
        let mut bridge = [0; 4];
        ecam.read(0, &mut bridge);
        assert_eq!(u32::from_le_bytes(bridge), 0x0008_1b36);
    }

    #[test]
    fn slots_and_window_run_out_with_an_error() {
        let root = PciRoot::new(Arc::new(Bus::new()), WINDOW);
        for _ in 1..SLOTS {
            root.add(Probe::new()).unwrap();
        }
        assert!(matches!(root.add(Probe::new()), Err(RootError::Full)));
        let small = PciRoot::new(Arc::new(Bus::new()), 0x1000..=0x1fff);
        assert!(matches!(
            small.add(Probe::new()),
            Err(RootError::NoRoom { .. })
        ));
    }
}
