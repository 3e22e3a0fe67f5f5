//! Type 0 configuration space (PCI local bus 3.0, 6.1) as an image of bytes and a mask of what the guest may write.

/// Bytes of conventional configuration space. No device has extended capabilities; their space reads as zero.
pub const CONFIG_SIZE: usize = 256;

const VENDOR_ID: usize = 0x00;
const DEVICE_ID: usize = 0x02;
const COMMAND: usize = 0x04;
const STATUS: usize = 0x06;
const REVISION: usize = 0x08;
const CLASS: usize = 0x09;
const CACHE_LINE: usize = 0x0c;
const BAR0: usize = 0x10;
const SUBSYSTEM_VENDOR: usize = 0x2c;
const SUBSYSTEM_ID: usize = 0x2e;
const CAPABILITIES: usize = 0x34;
const INTERRUPT_LINE: usize = 0x3c;
const FIRST_CAPABILITY: usize = 0x40;

const COMMAND_MEMORY: u16 = 1 << 1;
const COMMAND_BUS_MASTER: u16 = 1 << 2;
const COMMAND_INTX_DISABLE: u16 = 1 << 10;
const STATUS_CAPABILITIES: u16 = 1 << 4;
/// Memory space, 64-bit decoding, not prefetchable.
const BAR_MEMORY_64: u8 = 0b100;

/// Who a function says it is.
#[derive(Debug, Clone, Copy)]
pub struct Identity {
    /// Vendor ID.
    pub vendor: u16,
    /// Device ID.
    pub device: u16,
    /// Revision ID.
    pub revision: u8,
    /// Class code: base class, subclass and interface, `0xBBSSII`.
    pub class: u32,
    /// Subsystem vendor ID and subsystem ID.
    pub subsystem: (u16, u16),
}

/// The configuration space of one function.
pub struct ConfigSpace {
    bytes: [u8; CONFIG_SIZE],
    writable: [u8; CONFIG_SIZE],
    next_capability: usize,
    last_link: usize,
    bar_sizes: [u64; 6],
}

impl ConfigSpace {
    /// A header without BARs or capabilities, memory decoding off.
    pub fn new(identity: &Identity) -> Self {
        let mut space = Self {
            bytes: [0; CONFIG_SIZE],
            writable: [0; CONFIG_SIZE],
            next_capability: FIRST_CAPABILITY,
            last_link: CAPABILITIES,
            bar_sizes: [0; 6],
        };
        space.put(VENDOR_ID, &identity.vendor.to_le_bytes());
        space.put(DEVICE_ID, &identity.device.to_le_bytes());
        space.put(REVISION, &[identity.revision]);
        space.put(CLASS, &identity.class.to_le_bytes()[..3]);
        space.put(SUBSYSTEM_VENDOR, &identity.subsystem.0.to_le_bytes());
        space.put(SUBSYSTEM_ID, &identity.subsystem.1.to_le_bytes());
        let command = COMMAND_MEMORY | COMMAND_BUS_MASTER | COMMAND_INTX_DISABLE;
        space.writable[COMMAND..COMMAND + 2].copy_from_slice(&command.to_le_bytes());
        space.writable[CACHE_LINE] = 0xff;
        space.writable[INTERRUPT_LINE] = 0xff;
        space
    }

    /// Declares BAR `index` (and `index` + 1) as a 64-bit memory BAR of `size` bytes.
    ///
    /// # Panics
    /// When `index` is odd or above 4, the BAR is declared already, or `size` is not a power of two of at least 4 KiB.
    pub fn add_bar(&mut self, index: u8, size: u64) {
        let index = usize::from(index);
        assert!(index <= 4 && index.is_multiple_of(2) && self.bar_sizes[index] == 0);
        assert!(size.is_power_of_two() && size >= 4096);
        self.bar_sizes[index] = size;
        let at = BAR0 + 4 * index;
        self.bytes[at] = BAR_MEMORY_64;
        self.writable[at..at + 8].copy_from_slice(&(!(size - 1)).to_le_bytes());
    }

    /// The size of BAR `index`, 0 when it has none.
    pub fn bar_size(&self, index: u8) -> u64 {
        self.bar_sizes.get(usize::from(index)).copied().unwrap_or(0)
    }

    /// The address in the registers of BAR `index`, decoded or not.
    pub fn bar_register(&self, index: u8) -> u64 {
        let at = BAR0 + 4 * usize::from(index);
        u64::from_le_bytes(self.get(at)) & !0xf
    }

    /// Sets the registers of BAR `index`, as firmware does.
    pub fn set_bar_register(&mut self, index: u8, address: u64) {
        let at = BAR0 + 4 * usize::from(index);
        self.write(at as u16, &address.to_le_bytes());
    }

    /// Whether the command register lets the function answer memory accesses.
    pub fn memory_enabled(&self) -> bool {
        u16::from_le_bytes(self.get(COMMAND)) & COMMAND_MEMORY != 0
    }

    /// Adds a capability; `body` is what follows the two bytes of ID and link, `writable` its mask of writable bits (missing
    /// bytes are read-only). Returns the offset of its ID byte.
    ///
    /// # Panics
    /// When it does not fit.
    pub fn add_capability(&mut self, id: u8, body: &[u8], writable: &[u8]) -> u16 {
        let at = self.next_capability;
        let end = at + 2 + body.len();
        assert!(end <= CONFIG_SIZE && writable.len() <= body.len());
        self.put(at, &[id, 0]);
        self.put(at + 2, body);
        self.writable[at + 2..at + 2 + writable.len()].copy_from_slice(writable);
        self.bytes[self.last_link] = at as u8;
        self.last_link = at + 1;
        self.next_capability = end.next_multiple_of(4);
        self.bytes[STATUS] |= STATUS_CAPABILITIES as u8;
        at as u16
    }

    /// Reads; what lies past the conventional space is zero.
    pub fn read(&self, offset: u16, data: &mut [u8]) {
        for (i, byte) in data.iter_mut().enumerate() {
            *byte = self
                .bytes
                .get(usize::from(offset) + i)
                .copied()
                .unwrap_or(0);
        }
    }

    /// Writes what the guest may write, and leaves the rest.
    pub fn write(&mut self, offset: u16, data: &[u8]) {
        for (i, byte) in data.iter().enumerate() {
            let at = usize::from(offset) + i;
            if at < CONFIG_SIZE {
                let mask = self.writable[at];
                self.bytes[at] = (self.bytes[at] & !mask) | (byte & mask);
            }
        }
    }

    /// `N` bytes at `at`.
    pub(crate) fn get<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut out = [0; N];
        out.copy_from_slice(&self.bytes[at..at + N]);
        out
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space() -> ConfigSpace {
        ConfigSpace::new(&Identity {
            vendor: 0x1af4,
            device: 0x106a,
            revision: 1,
            class: 0x020700,
            subsystem: (0x1af4, 0x106a),
        })
    }

    fn read32(s: &ConfigSpace, at: u16) -> u32 {
        let mut d = [0; 4];
        s.read(at, &mut d);
        u32::from_le_bytes(d)
    }

    #[test]
    fn identity_is_read_only() {
        let mut s = space();
        for at in (0..CONFIG_SIZE as u16).step_by(4) {
            s.write(at, &[0xff; 4]);
        }
        assert_eq!(read32(&s, 0), 0x106a_1af4);
        assert_eq!(read32(&s, 8), 0x0207_0001);
        assert_eq!(read32(&s, 0x2c), 0x106a_1af4);
        assert_eq!(
            read32(&s, 4),
            0x0406,
            "memory, bus master, INTx disable; status untouched"
        );
        assert_eq!(read32(&s, 0x10), 0, "no BAR");
        assert_eq!(read32(&s, 0x3c), 0xff, "line is scratch, pin is none");
    }

    #[test]
    fn a_64_bit_bar_is_sized_by_ones() {
        let mut s = space();
        s.add_bar(2, 0x1_0000_0000);
        s.write(0x18, &[0xff; 4]);
        s.write(0x1c, &[0xff; 4]);
        assert_eq!(read32(&s, 0x18), 0b100);
        assert_eq!(read32(&s, 0x1c), 0xffff_ffff);
        s.set_bar_register(2, 0x40_0000_0000);
        assert_eq!(s.bar_register(2), 0x40_0000_0000);
        assert_eq!(read32(&s, 0x18), 0b100);
        assert_eq!(s.bar_size(2), 0x1_0000_0000);
        assert_eq!((s.bar_size(0), s.bar_size(200)), (0, 0));
    }

    #[test]
    fn capabilities_are_chained_and_masked() {
        let mut s = space();
        let a = s.add_capability(0x11, &[1, 2, 3], &[0, 0xf0]);
        let b = s.add_capability(0x09, &[5; 4], &[]);
        assert_eq!((a, b), (0x40, 0x48));
        assert_eq!(read32(&s, 0x34), 0x40);
        assert_eq!(read32(&s, 0x40), 0x0201_4811);
        assert_eq!(read32(&s, 0x48), 0x0505_0009);
        assert_eq!(read32(&s, 4) >> 16, 1 << 4);
        s.write(0x42, &[0xff; 4]);
        assert_eq!(s.get::<3>(0x42), [1, 0xf2, 3]);
    }

    #[test]
    fn accesses_past_the_end_are_harmless() {
        let mut s = space();
        s.write(254, &[0xff; 8]);
        s.write(u16::MAX, &[0xff; 8]);
        assert_eq!(read32(&s, 0xfff), 0);
        assert_eq!(read32(&s, u16::MAX), 0);
    }
}
