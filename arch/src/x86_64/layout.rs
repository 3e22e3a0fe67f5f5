//! The address map of the machine.
//!
//! ```text
//! guest physical                                 port
//! 0000_0000  RAM: boot data, see below           0x060  keyboard controller (reset)
//! 0009_fc00  reserved (where a PC has its EBDA)  0x3f8  COM1
//! 000e_0000  ACPI tables, reserved               0x600  ACPI sleep control, status, reset
//! 000f_fff0  reset stub                          0xcf8  PCI configuration mechanism 1
//! 0010_0000  RAM: kernel, initrd
//! c000_0000  end of low RAM at the latest
//! e800_0000  PCIe ECAM, one bus
//! fec0_0000  I/O APIC
//! fee0_0000  local APICs
//! fffb_c000  pages that KVM needs on Intel hosts
//! 1_0000_0000  RAM beyond the hole
//!            64-bit BARs, at the next 4 GiB boundary past RAM
//! ```
//!
//! Low RAM ends at 3 GiB, so that the 1 GiB below 4 GiB is the hole for ECAM and for the interrupt controllers at the addresses
//! the architecture gives them. All BARs are 64-bit and lie past RAM.

/// A range of guest physical addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// First address.
    pub base: u64,
    /// Length in bytes.
    pub len: u64,
}

impl Range {
    /// The first address past the range.
    pub const fn end(&self) -> u64 {
        self.base + self.len
    }
}

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Least guest memory: a stock kernel needs room to unpack itself next to its initrd.
pub const MIN_MEMORY: u64 = 128 * MIB;
/// Most guest memory: leaves room for the 64-bit window on a host of 40 physical address bits.
pub const MAX_MEMORY: u64 = 512 * GIB;
/// Most vCPUs.
pub const MAX_CPUS: u32 = 32;

/// Global descriptor table of the boot CPU.
pub const GDT: u64 = 0x500;
/// Empty interrupt descriptor table of the boot CPU.
pub const IDT: u64 = 0x580;
/// PVH `hvm_start_info`, followed by its module list.
pub const PVH_START_INFO: u64 = 0x6000;
/// PVH memory map.
pub const PVH_MEMMAP: u64 = 0x6800;
/// The Linux boot protocol's zero page (`boot_params`, 4 KiB).
pub const ZERO_PAGE: u64 = 0x7000;
/// Initial stack pointer: the stack grows down from the end of the page after the zero page.
pub const BOOT_STACK: u64 = 0x8ff0;
/// Page tables for the 64-bit entries: one PML4 page, one PDPT page, then four page directories (4 GiB of 2 MiB pages).
pub const PML4: u64 = 0x9000;
/// Kernel command line.
pub const CMDLINE: u64 = 0x2_0000;
/// Most bytes of kernel command line, the closing NUL included; x86 Linux keeps no more (`COMMAND_LINE_SIZE`).
pub const CMDLINE_MAX: usize = 2048;
/// End of conventional memory, as on a PC with a 1 KiB EBDA.
pub const LOW_MEM_END: u64 = 0x9_fc00;
/// ACPI tables: in the BIOS area, where nothing allocates. The RSDP comes first, so that a search finds it too.
pub const ACPI: Range = Range {
    base: 0xe_0000,
    len: RESET_STUB - 0xe_0000,
};
/// Where a processor in real mode lands when it is reset, the last 16 bytes below 1 MiB: see [`reset`](super::reset).
pub const RESET_STUB: u64 = 0xf_fff0;
/// Where RAM continues above the legacy area, and kernels are loaded.
pub const HIGH_RAM: u64 = MIB;

/// Where RAM below 4 GiB ends at the latest.
pub const HOLE: Range = Range {
    base: 3 * GIB,
    len: GIB,
};
/// RAM beyond the hole.
pub const HIGH_MEM: u64 = 4 * GIB;
/// PCIe enhanced configuration area: 1 MiB for the one bus there is.
pub const ECAM: Range = Range {
    base: 0xe800_0000,
    len: MIB,
};
/// I/O APIC registers (the architecture's default address).
pub const IOAPIC: u32 = 0xfec0_0000;
/// Local APIC registers (the architecture's default address).
pub const LAPIC: u32 = 0xfee0_0000;
/// A page KVM needs on Intel hosts that cannot run real mode.
pub const KVM_IDENTITY_MAP: u64 = 0xfffb_c000;
/// Three pages KVM needs there for a task state segment.
pub const KVM_TSS: u64 = KVM_IDENTITY_MAP + 0x1000;
/// Length of the window for 64-bit BARs.
pub const MMIO64_LEN: u64 = 16 * GIB;
const MMIO64_ALIGN: u64 = 4 * GIB;

/// COM1, 8 ports.
pub const COM1_PORT: u16 = 0x3f8;
/// COM1's interrupt: an I/O APIC pin, edge triggered.
pub const COM1_IRQ: u32 = 4;
/// ACPI sleep control register, 1 port (ACPI 6.5, 4.8.3.7).
pub const SLEEP_CONTROL_PORT: u16 = 0x600;
/// ACPI sleep status register, 1 port.
pub const SLEEP_STATUS_PORT: u16 = 0x601;
/// ACPI reset register, 1 port.
pub const RESET_PORT: u16 = 0x602;
/// What is written to [`RESET_PORT`] to reset the machine.
pub const RESET_VALUE: u8 = 1;
/// `SLP_TYP` of the soft-off state, as the DSDT's `\_S5` says.
pub const SLEEP_TYPE_S5: u8 = 5;
/// PCI configuration mechanism 1: address at 0xcf8, data at 0xcfc, 8 ports.
pub const PCI_CONFIG_PORT: u16 = 0xcf8;

/// Pins of the I/O APIC, and so the first interrupt number (GSI) free for messages.
pub const IOAPIC_PINS: u32 = 24;

/// The ranges of RAM of a guest with `size` bytes of memory, in address order.
pub fn ram_ranges(size: u64) -> Vec<Range> {
    let low = size.min(HOLE.base);
    let mut ranges = vec![Range { base: 0, len: low }];
    if size > low {
        ranges.push(Range {
            base: HIGH_MEM,
            len: size - low,
        });
    }
    ranges
}

/// The window for 64-bit BARs of a guest with `size` bytes of memory.
pub fn mmio64(size: u64) -> Range {
    let ram_end = ram_ranges(size).last().map_or(0, Range::end);
    Range {
        base: ram_end.max(HIGH_MEM).next_multiple_of(MMIO64_ALIGN),
        len: MMIO64_LEN,
    }
}

/// What kind of memory a range of the map is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryKind {
    /// Usable RAM.
    Ram,
    /// Not to be used by the operating system, nor for BARs.
    Reserved,
}

/// The memory map that the guest is told (e820, PVH), in address order.
pub fn memory_map(size: u64) -> Vec<(Range, MemoryKind)> {
    let range = |base, end| Range {
        base,
        len: end - base,
    };
    let mut map = vec![
        (range(0, LOW_MEM_END), MemoryKind::Ram),
        (range(LOW_MEM_END, HIGH_RAM), MemoryKind::Reserved),
    ];
    for ram in ram_ranges(size) {
        map.push((range(ram.base.max(HIGH_RAM), ram.end()), MemoryKind::Ram));
    }
    map.insert(3, (ECAM, MemoryKind::Reserved));
    map
}

const _: () = assert!(HOLE.base <= ECAM.base && ECAM.end() <= IOAPIC as u64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_splits_around_the_hole() {
        assert_eq!(
            ram_ranges(GIB),
            [Range { base: 0, len: GIB }],
            "fits below the hole"
        );
        assert_eq!(ram_ranges(3 * GIB).len(), 1);
        let split = ram_ranges(6 * GIB);
        assert_eq!(
            split[1],
            Range {
                base: 4 * GIB,
                len: 3 * GIB
            }
        );
    }

    #[test]
    fn the_map_is_ordered_and_without_overlap() {
        for size in [MIN_MEMORY, 3 * GIB, 3 * GIB + 4096, 8 * GIB, MAX_MEMORY] {
            let map = memory_map(size);
            for pair in map.windows(2) {
                assert!(pair[0].0.end() <= pair[1].0.base, "{size:#x}: {pair:x?}");
            }
            let ram: u64 = map
                .iter()
                .filter(|(_, k)| *k == MemoryKind::Ram)
                .map(|(r, _)| r.len)
                .sum();
            assert_eq!(ram, size - (HIGH_RAM - LOW_MEM_END));
        }
    }

    #[test]
    fn the_windows_are_clear_of_ram() {
        for size in [MIN_MEMORY, 3 * GIB, 5 * GIB, MAX_MEMORY] {
            let window = mmio64(size);
            assert!(ram_ranges(size).iter().all(|r| r.end() <= window.base));
            assert!(window.base >= HIGH_MEM);
            assert!(window.end() <= 1 << 40);
        }
    }
}
