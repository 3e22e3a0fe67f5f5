//! Registers, descriptor tables and page tables that the boot CPU starts with, for each kind of entry.

use kvm_bindings::{kvm_fpu, kvm_regs, kvm_segment};
use kvm_ioctls::VcpuFd;
use vm_memory::{Bytes, GuestAddress, GuestMemoryError};

use super::boot::{Entry, Protocol};
use super::layout::{BOOT_STACK, GDT, IDT, PML4, PVH_START_INFO, ZERO_PAGE};
use crate::GuestRam;

/// Why a vCPU could not be given its first state.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Tables do not fit in guest memory.
    #[error("cannot write boot tables to guest memory: {0}")]
    Memory(#[from] GuestMemoryError),
    /// KVM refused registers.
    #[error("cannot set vCPU registers: {0}")]
    Kvm(#[from] kvm_ioctls::Error),
}

const CR0_PE: u64 = 1;
const CR0_ET: u64 = 1 << 4;
const CR0_NE: u64 = 1 << 5;
const CR0_PG: u64 = 1 << 31;
const CR4_PAE: u64 = 1 << 5;
const EFER_LME: u64 = 1 << 8;
const EFER_LMA: u64 = 1 << 10;
/// Bit 1 of RFLAGS is always set.
const RFLAGS_RESERVED: u64 = 2;

const PTE_PRESENT: u64 = 1;
const PTE_WRITE: u64 = 1 << 1;
const PTE_LARGE: u64 = 1 << 7;

/// Selectors that the 64-bit Linux boot protocol fixes (`__BOOT_CS`, `__BOOT_DS`); PVH leaves the choice free.
const CODE_INDEX: u16 = 2;
const DATA_INDEX: u16 = 3;
const TSS_INDEX: u16 = 4;

/// A flat 4 GiB segment, as its hidden register and as its GDT entry.
#[derive(Clone, Copy)]
struct Flat {
    index: u16,
    /// Type field (Intel SDM volume 3, table 3-1); code and data are marked accessed.
    type_: u8,
    /// Code or data, as against a system segment.
    user: bool,
    /// 64-bit code.
    long: bool,
    /// Length in bytes less one.
    limit: u32,
}

impl Flat {
    fn granular(&self) -> bool {
        self.limit > 0xfffff
    }

    fn register(&self) -> kvm_segment {
        kvm_segment {
            base: 0,
            limit: self.limit,
            selector: self.index * 8,
            type_: self.type_,
            present: 1,
            dpl: 0,
            db: u8::from(self.user && !self.long),
            s: u8::from(self.user),
            l: u8::from(self.long),
            g: u8::from(self.granular()),
            ..Default::default()
        }
    }

    fn descriptor(&self) -> u64 {
        let seg = self.register();
        let limit = u64::from(if self.granular() {
            self.limit >> 12
        } else {
            self.limit
        });
        let access = u64::from(seg.type_ | seg.s << 4 | seg.present << 7);
        let flags = u64::from(seg.l << 1 | seg.db << 2 | seg.g << 3);
        limit & 0xffff | access << 40 | (limit >> 16) << 48 | flags << 52
    }
}

/// Writes boot tables and sets the registers of the boot CPU for `entry`.
pub fn setup_boot_cpu(vcpu: &VcpuFd, ram: &GuestRam, entry: &Entry) -> Result<(), Error> {
    setup_segments(vcpu, ram, entry.protocol)?;
    let mut regs = kvm_regs {
        rflags: RFLAGS_RESERVED,
        rip: entry.address,
        ..Default::default()
    };
    match entry.protocol {
        Protocol::Linux64 => {
            regs.rsp = BOOT_STACK;
            regs.rbp = BOOT_STACK;
            regs.rsi = ZERO_PAGE;
        }
        Protocol::Pvh => regs.rbx = PVH_START_INFO,
    }
    vcpu.set_regs(&regs)?;
    setup_fpu(vcpu)
}

/// Sets the floating-point state that a processor has after FINIT, with all SSE exceptions masked.
pub fn setup_fpu(vcpu: &VcpuFd) -> Result<(), Error> {
    let fpu = kvm_fpu {
        fcw: 0x37f,
        mxcsr: 0x1f80,
        ..Default::default()
    };
    Ok(vcpu.set_fpu(&fpu)?)
}

fn setup_segments(vcpu: &VcpuFd, ram: &GuestRam, protocol: Protocol) -> Result<(), Error> {
    let long = protocol == Protocol::Linux64;
    let code = Flat {
        index: CODE_INDEX,
        type_: 0xb,
        user: true,
        long,
        limit: u32::MAX,
    };
    let data = Flat {
        index: DATA_INDEX,
        type_: 0x3,
        user: true,
        long: false,
        limit: u32::MAX,
    };
    let tss = Flat {
        index: TSS_INDEX,
        type_: 0xb,
        user: false,
        long: false,
        limit: 0x67,
    };
    let gdt = [
        0,
        0,
        code.descriptor(),
        data.descriptor(),
        tss.descriptor(),
        0,
    ];
    for (i, descriptor) in gdt.iter().enumerate() {
        ram.write_obj(*descriptor, GuestAddress(GDT + 8 * i as u64))?;
    }
    ram.write_obj(0u64, GuestAddress(IDT))?;

    let mut sregs = vcpu.get_sregs()?;
    sregs.gdt.base = GDT;
    sregs.gdt.limit = (size_of_val(&gdt) - 1) as u16;
    sregs.idt.base = IDT;
    sregs.idt.limit = 7;
    sregs.cs = code.register();
    for seg in [
        &mut sregs.ds,
        &mut sregs.es,
        &mut sregs.fs,
        &mut sregs.gs,
        &mut sregs.ss,
    ] {
        *seg = data.register();
    }
    sregs.tr = tss.register();
    if long {
        write_page_tables(ram)?;
        sregs.cr0 = CR0_PE | CR0_ET | CR0_NE | CR0_PG;
        sregs.cr3 = PML4;
        sregs.cr4 = CR4_PAE;
        sregs.efer = EFER_LME | EFER_LMA;
    } else {
        sregs.cr0 = CR0_PE | CR0_ET;
        sregs.cr4 = 0;
        sregs.efer = 0;
    }
    Ok(vcpu.set_sregs(&sregs)?)
}

/// Maps the first 4 GiB one to one with 2 MiB pages: the kernel, its zero page, command line and initrd lie there.
fn write_page_tables(ram: &GuestRam) -> Result<(), Error> {
    const PAGE: u64 = 0x1000;
    const LARGE_PAGE: u64 = 2 << 20;
    const ENTRIES: u64 = 512;
    const DIRECTORIES: u64 = 4;
    let pdpt = PML4 + PAGE;
    let table = PTE_PRESENT | PTE_WRITE;
    ram.write_obj(pdpt | table, GuestAddress(PML4))?;
    for d in 0..DIRECTORIES {
        let directory = pdpt + PAGE * (1 + d);
        ram.write_obj(directory | table, GuestAddress(pdpt + 8 * d))?;
        for e in 0..ENTRIES {
            let page = (d * ENTRIES + e) * LARGE_PAGE;
            ram.write_obj(page | table | PTE_LARGE, GuestAddress(directory + 8 * e))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_say_what_the_hidden_registers_say() {
        let code64 = Flat {
            index: 2,
            type_: 0xb,
            user: true,
            long: true,
            limit: u32::MAX,
        };
        assert_eq!(code64.descriptor(), 0x00af_9b00_0000_ffff);
        let data = Flat {
            index: 3,
            type_: 3,
            user: true,
            long: false,
            limit: u32::MAX,
        };
        assert_eq!(data.descriptor(), 0x00cf_9300_0000_ffff);
        let tss = Flat {
            index: 4,
            type_: 0xb,
            user: false,
            long: false,
            limit: 0x67,
        };
        assert_eq!(tss.descriptor(), 0x0000_8b00_0000_0067);
        assert_eq!(tss.register().selector, 0x20);
    }

    #[test]
    fn page_tables_map_four_gigabytes_one_to_one() {
        let ram = GuestRam::from_ranges(&[(GuestAddress(0), 1 << 20)]).unwrap();
        write_page_tables(&ram).unwrap();
        let read = |addr: u64| ram.read_obj::<u64>(GuestAddress(addr)).unwrap();
        let walk = |addr: u64| {
            let pdpt = read(PML4 + 8 * (addr >> 39 & 0x1ff)) & !0xfff;
            let pd = read(pdpt + 8 * (addr >> 30 & 0x1ff)) & !0xfff;
            read(pd + 8 * (addr >> 21 & 0x1ff))
        };
        for addr in [0, 0x20_0000, 0x4000_0000, 0xffe0_0000] {
            assert_eq!(walk(addr), addr | 0x83, "{addr:#x}");
        }
    }
}
