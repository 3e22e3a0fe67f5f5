//! Loading a kernel: which protocol an image speaks, where its pieces go, and what it is handed.
//!
//! Two protocols cover three kinds of image: a bzImage as a distribution ships it and an ELF without a PVH note are
//! entered in 64-bit mode with the zero page (Linux `Documentation/arch/x86/boot.rst`, "64-bit Boot Protocol"); an ELF with
//! a PVH note is entered in 32-bit protected mode with `hvm_start_info`.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};

use linux_loader::loader::bootparam::{XLF_KERNEL_64, boot_e820_entry, boot_params, setup_header};
use linux_loader::loader::elf::PvhBootCapability;
use linux_loader::loader::elf::start_info::{
    XEN_HVM_START_MAGIC_VALUE, hvm_memmap_table_entry, hvm_modlist_entry, hvm_start_info,
};
use linux_loader::loader::{BzImage, Elf, KernelLoader, KernelLoaderResult};
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryError};

use super::layout::{
    self, ACPI, CMDLINE, CMDLINE_MAX, HIGH_RAM, HOLE, MemoryKind, PVH_MEMMAP, PVH_START_INFO,
    Range, ZERO_PAGE,
};
use crate::GuestRam;

/// Why a kernel cannot be booted.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read.
    #[error("cannot read it: {0}")]
    Read(#[from] io::Error),
    /// The file is not an image we can boot.
    #[error("neither a bzImage nor a 64-bit x86 ELF image")]
    Unknown,
    /// The loader refused the image.
    #[error("{0}")]
    Load(#[from] linux_loader::loader::Error),
    /// A bzImage without a 64-bit entry.
    #[error("the bzImage has no 64-bit entry (boot protocol 2.12 and a 64-bit kernel are needed)")]
    No64BitEntry,
    /// The kernel does not fit.
    #[error("the kernel needs memory up to {need:#x}, guest RAM below 4 GiB ends at {have:#x}")]
    KernelTooLarge {
        /// First address past what the kernel needs.
        need: u64,
        /// Where low RAM ends.
        have: u64,
    },
    /// The initrd does not fit between the kernel and the end of the memory it may lie in.
    #[error(
        "{len} bytes of initrd do not fit between {low:#x} and {high:#x}; give the guest more memory"
    )]
    InitrdTooLarge {
        /// Bytes of initrd.
        len: u64,
        /// Lowest address it could have.
        low: u64,
        /// First address past the highest it could have.
        high: u64,
    },
    /// The command line is too long.
    #[error("the command line has {len} bytes, the kernel takes at most {max}")]
    CmdlineTooLong {
        /// Bytes given.
        len: usize,
        /// Bytes allowed.
        max: usize,
    },
    /// The command line contains a NUL byte.
    #[error("the command line contains a NUL byte")]
    CmdlineNul,
    /// Guest memory refused a write.
    #[error("cannot write boot data to guest memory: {0}")]
    Memory(#[from] GuestMemoryError),
}

/// How a kernel is entered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// 64-bit mode, RSI points to the zero page.
    Linux64,
    /// 32-bit protected mode without paging, EBX points to `hvm_start_info`.
    Pvh,
}

/// Where and how the boot CPU starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Guest physical address of the first instruction.
    pub address: u64,
    /// Protocol it is entered by.
    pub protocol: Protocol,
}

/// A kernel in guest memory.
#[derive(Debug)]
pub struct Kernel {
    /// Where to start.
    pub entry: Entry,
    /// First address past what the kernel occupies before it knows its memory map (unpacking included).
    end: u64,
    /// Highest address an initrd may occupy.
    initrd_max: u64,
    header: setup_header,
    cmdline_max: usize,
}

/// An initrd in guest memory.
pub type Initrd = Range;

/// Loads the kernel `image` into `ram`.
pub fn load_kernel(ram: &GuestRam, image: &mut File) -> Result<Kernel, Error> {
    let mut magic = [0; 5];
    image.read_exact(&mut magic)?;
    // ELF magic number, then the class byte: 2 is 64-bit.
    let kernel = if magic == *b"\x7fELF\x02" {
        load_elf(ram, image)?
    } else {
        load_bzimage(ram, image)?
    };
    let have = low_ram_end(ram);
    if kernel.end > have {
        return Err(Error::KernelTooLarge {
            need: kernel.end,
            have,
        });
    }
    Ok(kernel)
}

/// Where the 64-bit entry of a bzImage lies from its load address (boot.rst, "64-bit Boot Protocol").
const ENTRY_64_OFFSET: u64 = 0x200;
/// `code32_start` means what it says only with this flag.
const LOADED_HIGH: u8 = 1;
/// Boot protocol 2.12: `xloadflags` is valid.
const PROTOCOL_XLOADFLAGS: u16 = 0x20c;
/// Loader type "unassigned" (boot.rst, field `type_of_loader`).
const LOADER_UNDEFINED: u8 = 0xff;
const HDRS: u32 = 0x5372_6448;
const BOOT_FLAG: u16 = 0xaa55;

fn load_bzimage(ram: &GuestRam, image: &mut File) -> Result<Kernel, Error> {
    let mut magic = [0; 4];
    image.seek(SeekFrom::Start(0x202))?;
    if image.read_exact(&mut magic).is_err() || magic != *b"HdrS" {
        return Err(Error::Unknown);
    }
    let loaded = BzImage::load(ram, Some(GuestAddress(HIGH_RAM)), image, None)?;
    let header = loaded.setup_header.ok_or(Error::Unknown)?;
    if header.version < PROTOCOL_XLOADFLAGS || header.xloadflags & XLF_KERNEL_64 == 0 {
        return Err(Error::No64BitEntry);
    }
    // The image unpacks itself at its preferred address, or where it lies if that is higher, and needs `init_size` there.
    let unpack_at = header.pref_address.max(HIGH_RAM);
    let end = unpack_at
        .checked_add(u64::from(header.init_size))
        .ok_or(Error::Unknown)?
        .max(loaded.kernel_end);
    Ok(Kernel {
        entry: Entry {
            address: loaded.kernel_load.0 + ENTRY_64_OFFSET,
            protocol: Protocol::Linux64,
        },
        end,
        initrd_max: u64::from(header.initrd_addr_max),
        cmdline_max: (header.cmdline_size as usize).min(CMDLINE_MAX - 1),
        header,
    })
}

fn load_elf(ram: &GuestRam, image: &mut File) -> Result<Kernel, Error> {
    let KernelLoaderResult {
        kernel_load,
        kernel_end,
        pvh_boot_cap,
        ..
    } = Elf::load(ram, None, image, Some(GuestAddress(HIGH_RAM)))?;
    let entry = match pvh_boot_cap {
        PvhBootCapability::PvhEntryPresent(address) => Entry {
            address: address.0,
            protocol: Protocol::Pvh,
        },
        _ => Entry {
            address: kernel_load.0,
            protocol: Protocol::Linux64,
        },
    };
    let header = setup_header {
        boot_flag: BOOT_FLAG,
        header: HDRS,
        kernel_alignment: 0x100_0000,
        ..Default::default()
    };
    Ok(Kernel {
        entry,
        end: kernel_end,
        // An ELF kernel says nothing; this is what bzImages of the last decades say.
        initrd_max: 0x7fff_ffff,
        cmdline_max: CMDLINE_MAX - 1,
        header,
    })
}

fn low_ram_end(ram: &GuestRam) -> u64 {
    ram.last_addr().0.saturating_add(1).min(HOLE.base)
}

/// Loads the initrd `image` into `ram`, as high as the kernel allows: what it unpacks to then grows away from the kernel.
pub fn load_initrd(ram: &GuestRam, kernel: &Kernel, image: &mut File) -> Result<Initrd, Error> {
    const PAGE: u64 = 0x1000;
    let len = image.seek(SeekFrom::End(0))?;
    image.rewind()?;
    let high = low_ram_end(ram).min(kernel.initrd_max.saturating_add(1));
    let low = kernel.end.next_multiple_of(PAGE);
    let base = high.checked_sub(len).map_or(0, |b| b & !(PAGE - 1));
    if base < low {
        return Err(Error::InitrdTooLarge { len, low, high });
    }
    ram.read_exact_volatile_from(GuestAddress(base), image, len as usize)?;
    Ok(Range { base, len })
}

/// Writes what the kernel's protocol hands over: command line, initrd, memory map, and where the ACPI tables are.
///
/// `memory` is the guest's memory in bytes.
pub fn write_boot_data(
    ram: &GuestRam,
    kernel: &Kernel,
    cmdline: &str,
    initrd: Option<Initrd>,
    memory: u64,
) -> Result<(), Error> {
    if cmdline.len() > kernel.cmdline_max {
        return Err(Error::CmdlineTooLong {
            len: cmdline.len(),
            max: kernel.cmdline_max,
        });
    }
    if cmdline.contains('\0') {
        return Err(Error::CmdlineNul);
    }
    ram.write_slice(cmdline.as_bytes(), GuestAddress(CMDLINE))?;
    ram.write_obj(0u8, GuestAddress(CMDLINE + cmdline.len() as u64))?;
    match kernel.entry.protocol {
        Protocol::Linux64 => write_zero_page(ram, kernel, cmdline.len(), initrd, memory),
        Protocol::Pvh => write_start_info(ram, initrd, memory),
    }
}

/// Types of memory, in e820 as in the PVH memory map.
fn memory_type(kind: MemoryKind) -> u32 {
    match kind {
        MemoryKind::Ram => 1,
        MemoryKind::Reserved => 2,
    }
}

fn write_zero_page(
    ram: &GuestRam,
    kernel: &Kernel,
    cmdline_len: usize,
    initrd: Option<Initrd>,
    memory: u64,
) -> Result<(), Error> {
    let mut params = boot_params {
        hdr: kernel.header,
        acpi_rsdp_addr: ACPI.base,
        ..Default::default()
    };
    params.hdr.type_of_loader = LOADER_UNDEFINED;
    params.hdr.loadflags |= LOADED_HIGH;
    params.hdr.cmd_line_ptr = CMDLINE as u32;
    params.hdr.cmdline_size = cmdline_len as u32;
    params.hdr.setup_data = 0;
    if let Some(initrd) = initrd {
        // Below 4 GiB by construction, see `load_initrd`.
        params.hdr.ramdisk_image = initrd.base as u32;
        params.hdr.ramdisk_size = initrd.len as u32;
    }
    for (slot, (range, kind)) in layout::memory_map(memory).into_iter().enumerate() {
        params.e820_table[slot] = boot_e820_entry {
            addr: range.base,
            size: range.len,
            r#type: memory_type(kind),
        };
        params.e820_entries = slot as u8 + 1;
    }
    Ok(ram.write_obj(params, GuestAddress(ZERO_PAGE))?)
}

fn write_start_info(ram: &GuestRam, initrd: Option<Initrd>, memory: u64) -> Result<(), Error> {
    let modlist = PVH_START_INFO + size_of::<hvm_start_info>() as u64;
    let map = layout::memory_map(memory);
    let info = hvm_start_info {
        magic: XEN_HVM_START_MAGIC_VALUE,
        version: 1,
        nr_modules: initrd.is_some().into(),
        modlist_paddr: initrd.map_or(0, |_| modlist),
        cmdline_paddr: CMDLINE,
        rsdp_paddr: ACPI.base,
        memmap_paddr: PVH_MEMMAP,
        memmap_entries: map.len() as u32,
        ..Default::default()
    };
    ram.write_obj(info, GuestAddress(PVH_START_INFO))?;
    if let Some(initrd) = initrd {
        let entry = hvm_modlist_entry {
            paddr: initrd.base,
            size: initrd.len,
            ..Default::default()
        };
        ram.write_obj(entry, GuestAddress(modlist))?;
    }
    for (slot, (range, kind)) in map.into_iter().enumerate() {
        let entry = hvm_memmap_table_entry {
            addr: range.base,
            size: range.len,
            type_: memory_type(kind),
            reserved: 0,
        };
        let at = PVH_MEMMAP + (slot * size_of::<hvm_memmap_table_entry>()) as u64;
        ram.write_obj(entry, GuestAddress(at))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::sync::atomic::{AtomicU32, Ordering};

    const MIB: u64 = 1 << 20;
    const MEMORY: u64 = 128 * MIB;

    fn ram() -> GuestRam {
        GuestRam::from_ranges(&[(GuestAddress(0), MEMORY as usize)]).unwrap()
    }

    fn file(data: &[u8]) -> File {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "longarm-boot-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let path = std::env::temp_dir().join(name);
        let mut file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)
            .unwrap();
        std::fs::remove_file(path).unwrap();
        file.write_all(data).unwrap();
        file.rewind().unwrap();
        file
    }

    /// A bzImage of one setup sector and a page of "kernel", changed by `change`.
    fn bzimage(change: impl FnOnce(&mut [u8])) -> File {
        let mut image = vec![0; 1024];
        image[0x1f1] = 1;
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x206..0x208].copy_from_slice(&0x20fu16.to_le_bytes());
        image[0x211] = 1;
        image[0x214..0x218].copy_from_slice(&0x10_0000u32.to_le_bytes());
        image[0x22c..0x230].copy_from_slice(&0x7fff_ffffu32.to_le_bytes());
        image[0x236] = 1;
        image[0x238..0x23c].copy_from_slice(&2047u32.to_le_bytes());
        image[0x258..0x260].copy_from_slice(&(16 * MIB).to_le_bytes());
        image[0x260..0x264].copy_from_slice(&(40 * MIB as u32).to_le_bytes());
        image.extend([0x90; 4096]);
        change(&mut image);
        file(&image)
    }

    fn zero_page(ram: &GuestRam) -> boot_params {
        ram.read_obj(GuestAddress(ZERO_PAGE)).unwrap()
    }

    #[test]
    fn a_bzimage_gets_zero_page_command_line_and_initrd() {
        let ram = ram();
        let kernel = load_kernel(&ram, &mut bzimage(|_| {})).unwrap();
        assert_eq!(
            kernel.entry,
            Entry {
                address: HIGH_RAM + 0x200,
                protocol: Protocol::Linux64
            }
        );
        assert_eq!(ram.read_obj::<u8>(GuestAddress(HIGH_RAM)).unwrap(), 0x90);
        let initrd = load_initrd(&ram, &kernel, &mut file(&[7; 5000])).unwrap();
        assert_eq!((initrd.base, initrd.len), (MEMORY - 0x2000, 5000));
        let last = GuestAddress(initrd.end() - 1);
        assert_eq!(ram.read_obj::<u8>(last).unwrap(), 7);

        write_boot_data(&ram, &kernel, "console=ttyS0", Some(initrd), MEMORY).unwrap();
        let params = zero_page(&ram);
        let (hdr, entries) = (params.hdr, params.e820_entries);
        assert_eq!({ hdr.ramdisk_image }, initrd.base as u32);
        assert_eq!({ hdr.ramdisk_size }, 5000);
        assert_eq!({ hdr.setup_data }, 0);
        assert_eq!({ params.acpi_rsdp_addr }, ACPI.base);
        let mut text = [0; 14];
        ram.read_slice(&mut text, GuestAddress({ hdr.cmd_line_ptr }.into()))
            .unwrap();
        assert_eq!(&text, b"console=ttyS0\0");
        let usable: u64 = params.e820_table[..entries.into()]
            .iter()
            .filter(|e| { e.r#type } == 1)
            .map(|e| e.size)
            .sum();
        assert_eq!(usable, MEMORY - (HIGH_RAM - layout::LOW_MEM_END));
    }

    #[test]
    fn the_initrd_stays_clear_of_where_the_kernel_unpacks_itself() {
        let ram = ram();
        let kernel = load_kernel(&ram, &mut bzimage(|_| {})).unwrap();
        // 16 MiB preferred address and 40 MiB of room leave 72 MiB.
        let mut fits = file(&[]);
        fits.set_len(72 * MIB).unwrap();
        assert_eq!(
            load_initrd(&ram, &kernel, &mut fits).unwrap().base,
            56 * MIB
        );
        fits.set_len(72 * MIB + 1).unwrap();
        assert!(matches!(
            load_initrd(&ram, &kernel, &mut fits),
            Err(Error::InitrdTooLarge { .. })
        ));
    }

    #[test]
    fn images_that_cannot_be_booted_are_refused() {
        let load = |mut f: File| load_kernel(&ram(), &mut f).unwrap_err();
        assert!(matches!(load(file(b"tiny")), Error::Read(_)));
        assert!(matches!(load(file(&[0; 4096])), Error::Unknown));
        let no_64_bit = bzimage(|i| i[0x236] = 0);
        assert!(matches!(load(no_64_bit), Error::No64BitEntry));
        let old = bzimage(|i| i[0x206] = 0x0b);
        assert!(matches!(load(old), Error::No64BitEntry));
        let huge = bzimage(|i| i[0x260..0x264].copy_from_slice(&u32::MAX.to_le_bytes()));
        assert!(matches!(load(huge), Error::KernelTooLarge { .. }));
        let wild = bzimage(|i| i[0x258..0x260].copy_from_slice(&u64::MAX.to_le_bytes()));
        assert!(matches!(load(wild), Error::Unknown));
        let cut = bzimage(|i| i[0x1f1] = 200);
        assert!(matches!(load(cut), Error::Load(_)));
        // An ELF header and nothing behind it.
        assert!(matches!(load(file(b"\x7fELF\x02\x01\x01")), Error::Load(_)));
    }

    #[test]
    fn command_lines_that_the_kernel_would_cut_are_refused() {
        let ram = ram();
        let kernel = load_kernel(&ram, &mut bzimage(|_| {})).unwrap();
        let write = |text: &str| write_boot_data(&ram, &kernel, text, None, MEMORY);
        write(&"a".repeat(2047)).unwrap();
        assert!(matches!(
            write(&"a".repeat(2048)),
            Err(Error::CmdlineTooLong { .. })
        ));
        assert!(matches!(write("a\0b"), Err(Error::CmdlineNul)));
    }

    #[test]
    fn a_pvh_kernel_gets_start_info() {
        let ram = ram();
        let initrd = Range {
            base: 64 * MIB,
            len: 10,
        };
        write_start_info(&ram, Some(initrd), MEMORY).unwrap();
        let info: hvm_start_info = ram.read_obj(GuestAddress(PVH_START_INFO)).unwrap();
        assert_eq!((info.magic, info.version), (0x336e_c578, 1));
        assert_eq!((info.nr_modules, info.rsdp_paddr), (1, ACPI.base));
        let module: hvm_modlist_entry = ram.read_obj(GuestAddress(info.modlist_paddr)).unwrap();
        assert_eq!((module.paddr, module.size), (64 * MIB, 10));
        let first: hvm_memmap_table_entry = ram.read_obj(GuestAddress(info.memmap_paddr)).unwrap();
        assert_eq!((first.addr, first.size, first.type_), (0, 0x9_fc00, 1));
        assert_eq!(
            info.memmap_entries as usize,
            layout::memory_map(MEMORY).len()
        );
        // Nothing of it reaches the zero page or the stack.
        assert!(PVH_MEMMAP + 24 * u64::from(info.memmap_entries) <= ZERO_PAGE);
        assert!(info.modlist_paddr + 32 <= PVH_MEMMAP);
    }
}
