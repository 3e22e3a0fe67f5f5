//! ACPI tables: hardware-reduced (ACPI 6.5, 4.1), so there is no PM timer, no SCI and no 8259; sleep and reset are one
//! port each.

use acpi_tables::aml;
use acpi_tables::fadt::{FADTBuilder, Flags, PmProfile};
use acpi_tables::gas::{AccessSize, AddressSpace, GAS};
use acpi_tables::madt::{
    EnabledStatus, IoApic, LocalInterruptController, MADT, ProcessorLocalApic,
};
use acpi_tables::mcfg::MCFG;
use acpi_tables::rsdp::Rsdp;
use acpi_tables::sdt::Sdt;
use acpi_tables::xsdt::XSDT;
use acpi_tables::{Aml, AmlSink};
use vm_memory::{Bytes, GuestAddress, GuestMemoryError};

use super::layout::{
    ACPI, COM1_IRQ, COM1_PORT, ECAM, IOAPIC, LAPIC, PCI_CONFIG_PORT, RESET_PORT, RESET_VALUE,
    Range, SLEEP_CONTROL_PORT, SLEEP_STATUS_PORT, SLEEP_TYPE_S5,
};
use crate::GuestRam;

/// Why the tables could not be written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Guest memory refused a write.
    #[error("cannot write ACPI tables to guest memory: {0}")]
    Memory(#[from] GuestMemoryError),
    /// More tables than there is room for.
    #[error("{need} bytes of ACPI tables, there is room for {have}")]
    TooLarge {
        /// Bytes needed.
        need: u64,
        /// Bytes available.
        have: u64,
    },
}

const OEM_ID: [u8; 6] = *b"LONGAR";
const OEM_TABLE_ID: [u8; 8] = *b"LONGARM ";
const OEM_REVISION: u32 = 1;
const SDT_HEADER_LEN: u32 = 36;

/// FADT IA-PC boot architecture flags (ACPI 6.5, table 5.11): no VGA, no CMOS clock. The bits for legacy devices and the
/// 8042 stay clear, which says that there are none to probe for.
const IAPC_NO_VGA: u16 = 1 << 2;
const IAPC_NO_CMOS_RTC: u16 = 1 << 5;

/// Writes the tables for `cpus` vCPUs and a 64-bit BAR window `mmio64`, the RSDP at the start of [`ACPI`].
pub fn write_tables(ram: &GuestRam, cpus: u32, mmio64: Range) -> Result<(), Error> {
    // The RSDP keeps the first 64 bytes to itself; it is written last, when the XSDT has an address.
    let mut room = Room {
        ram,
        next: ACPI.base + 64,
    };
    let dsdt = room.place(dsdt(mmio64).as_slice())?;
    let tables = [
        room.place(&bytes(&fadt(dsdt).finalize()))?,
        room.place(&bytes(&madt(cpus)))?,
        room.place(&bytes(&mcfg()))?,
    ];
    let mut xsdt = XSDT::new(OEM_ID, OEM_TABLE_ID, OEM_REVISION);
    for table in tables {
        xsdt.add_entry(table);
    }
    let xsdt = room.place(&bytes(&xsdt))?;
    let rsdp = bytes(&Rsdp::new(OEM_ID, xsdt));
    Ok(ram.write_slice(&rsdp, GuestAddress(ACPI.base))?)
}

struct Room<'a> {
    ram: &'a GuestRam,
    next: u64,
}

impl Room<'_> {
    fn place(&mut self, table: &[u8]) -> Result<u64, Error> {
        let at = self.next;
        let end = at + table.len() as u64;
        if end > ACPI.end() {
            return Err(Error::TooLarge {
                need: end - ACPI.base,
                have: ACPI.len,
            });
        }
        self.ram.write_slice(table, GuestAddress(at))?;
        self.next = end.next_multiple_of(16);
        Ok(at)
    }
}

fn bytes(table: &dyn Aml) -> Vec<u8> {
    let mut out = Vec::new();
    table.to_aml_bytes(&mut out);
    out
}

fn port_register(port: u16) -> GAS {
    GAS::new(
        AddressSpace::SystemIo,
        8,
        0,
        AccessSize::ByteAccess,
        u64::from(port),
    )
}

fn fadt(dsdt: u64) -> FADTBuilder {
    let mut fadt = FADTBuilder::new(OEM_ID, OEM_TABLE_ID, OEM_REVISION)
        .dsdt_64(dsdt)
        .preferred_pm_profile(PmProfile::EnterpriseServer)
        .flag(Flags::HwReducedAcpi)
        .flag(Flags::ResetRegSup)
        .flag(Flags::PwrButton)
        .flag(Flags::SlpButton)
        .flag(Flags::Headless);
    fadt.iapc_boot_arch = (IAPC_NO_VGA | IAPC_NO_CMOS_RTC).into();
    fadt.reset_reg = port_register(RESET_PORT);
    fadt.reset_value = RESET_VALUE;
    fadt.sleep_control_reg = port_register(SLEEP_CONTROL_PORT);
    fadt.sleep_status_reg = port_register(SLEEP_STATUS_PORT);
    fadt
}

fn madt(cpus: u32) -> MADT {
    let mut madt = MADT::new(
        OEM_ID,
        OEM_TABLE_ID,
        OEM_REVISION,
        LocalInterruptController::Address(LAPIC),
    );
    for id in 0..cpus {
        // At most `MAX_CPUS`, so an APIC ID is a byte.
        madt.add_structure(ProcessorLocalApic::new(
            id as u8,
            id as u8,
            EnabledStatus::Enabled,
        ));
    }
    madt.add_structure(IoApic::new(0, IOAPIC, 0));
    madt
}

fn mcfg() -> MCFG {
    let mut mcfg = MCFG::new(OEM_ID, OEM_TABLE_ID, OEM_REVISION);
    mcfg.add_ecam(ECAM.base, 0, 0, 0);
    mcfg
}

fn dsdt(mmio64: Range) -> Sdt {
    let mut dsdt = Sdt::new(
        *b"DSDT",
        SDT_HEADER_LEN,
        6,
        OEM_ID,
        OEM_TABLE_ID,
        OEM_REVISION,
    );
    let mut body = Vec::new();
    pci_root(mmio64, &mut body);
    com1(&mut body);
    let soft_off = aml::Package::new(vec![&SLEEP_TYPE_S5, &aml::ZERO, &aml::ZERO, &aml::ZERO]);
    aml::Name::new("_S5_".into(), &soft_off).to_aml_bytes(&mut body);
    dsdt.append_slice(&body);
    dsdt.update_checksum();
    dsdt
}

/// AML that is already encoded.
struct Encoded(Vec<u8>);

impl Aml for Encoded {
    fn to_aml_bytes(&self, sink: &mut dyn AmlSink) {
        sink.vec(&self.0);
    }
}

/// `_OSC` of a PCI root (ACPI 6.5, 6.2.11; PCI firmware 3.3, 4.5): of the third word's controls grants only the PCIe
/// capability structure (bit 4); there is no hot plug, PME or AER here. An unknown UUID sets bit 2 of the first word.
fn osc() -> Encoded {
    Encoded(bytes(&aml::Method::new(
        "_OSC".into(),
        4,
        false,
        vec![
            &aml::CreateDWordField::new(&aml::Path::new("CDW1"), &aml::Arg(3), &0u32),
            &aml::If::new(
                &aml::Equal::new(
                    &aml::Arg(0),
                    &aml::Uuid::new("33DB4D5B-1FF7-401C-9657-7441C03DD766"),
                ),
                vec![
                    &aml::CreateDWordField::new(&aml::Path::new("CDW3"), &aml::Arg(3), &8u32),
                    &aml::And::new(&aml::Path::new("CDW3"), &aml::Path::new("CDW3"), &0x10u32),
                ],
            ),
            &aml::Else::new(vec![&aml::Or::new(
                &aml::Path::new("CDW1"),
                &aml::Path::new("CDW1"),
                &4u32,
            )]),
            &aml::Return::new(&aml::Arg(3)),
        ],
    )))
}

/// The root complex: one bus, one memory window (all BARs are 64-bit memory).
fn pci_root(mmio64: Range, out: &mut dyn AmlSink) {
    aml::Device::new(
        "_SB_.PCI0".into(),
        vec![
            &aml::Name::new("_HID".into(), &aml::EISAName::new("PNP0A08")),
            &aml::Name::new("_CID".into(), &aml::EISAName::new("PNP0A03")),
            &aml::Name::new("_UID".into(), &aml::ZERO),
            &aml::Name::new("_SEG".into(), &aml::ZERO),
            &aml::Name::new("_BBN".into(), &aml::ZERO),
            &aml::Name::new(
                "_CRS".into(),
                &aml::ResourceTemplate::new(vec![
                    &aml::AddressSpace::new_bus_number(0u16, 0u16),
                    &aml::IO::new(PCI_CONFIG_PORT, PCI_CONFIG_PORT, 1, 8),
                    &aml::AddressSpace::new_memory(
                        aml::AddressSpaceCacheable::NotCacheable,
                        true,
                        mmio64.base,
                        mmio64.end() - 1,
                        None,
                    ),
                ]),
            ),
            &osc(),
        ],
    )
    .to_aml_bytes(out);
    // The configuration area must be claimed by a motherboard resource, or the kernel will not trust MCFG.
    aml::Device::new(
        "_SB_.MB00".into(),
        vec![
            &aml::Name::new("_HID".into(), &aml::EISAName::new("PNP0C02")),
            &aml::Name::new("_UID".into(), &aml::ZERO),
            &aml::Name::new(
                "_CRS".into(),
                &aml::ResourceTemplate::new(vec![&aml::Memory32Fixed::new(
                    true,
                    ECAM.base as u32,
                    ECAM.len as u32,
                )]),
            ),
        ],
    )
    .to_aml_bytes(out);
}

fn com1(out: &mut dyn AmlSink) {
    aml::Device::new(
        "_SB_.COM1".into(),
        vec![
            &aml::Name::new("_HID".into(), &aml::EISAName::new("PNP0501")),
            &aml::Name::new("_UID".into(), &aml::ZERO),
            &aml::Name::new("_DDN".into(), &"COM1"),
            &aml::Name::new(
                "_CRS".into(),
                &aml::ResourceTemplate::new(vec![
                    &aml::Interrupt::new(true, true, false, false, COM1_IRQ),
                    &aml::IO::new(COM1_PORT, COM1_PORT, 1, 8),
                ]),
            ),
        ],
    )
    .to_aml_bytes(out);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::x86_64::layout::{MAX_CPUS, mmio64};

    fn tables(cpus: u32) -> Vec<(String, Vec<u8>)> {
        let ram = GuestRam::from_ranges(&[(GuestAddress(0), 1 << 20)]).unwrap();
        write_tables(&ram, cpus, mmio64(1 << 30)).unwrap();
        let read = |at: u64, len: usize| {
            let mut data = vec![0; len];
            ram.read_slice(&mut data, GuestAddress(at)).unwrap();
            data
        };
        let table = |at: u64| {
            let len = u32::from_le_bytes(read(at + 4, 4).try_into().unwrap());
            let data = read(at, len as usize);
            (String::from_utf8(data[..4].to_vec()).unwrap(), data)
        };
        let rsdp = read(ACPI.base, 36);
        assert_eq!(&rsdp[..8], b"RSD PTR ");
        assert_eq!(sum(&rsdp), 0);
        assert_eq!(sum(&rsdp[..20]), 0);
        let xsdt = table(u64::from_le_bytes(rsdp[24..32].try_into().unwrap()));
        let mut all = vec![xsdt.clone()];
        for entry in xsdt.1[36..].chunks(8) {
            all.push(table(u64::from_le_bytes(entry.try_into().unwrap())));
        }
        let fadt = &all[1].1;
        let dsdt = table(u64::from_le_bytes(fadt[140..148].try_into().unwrap()));
        all.push(dsdt);
        all
    }

    fn sum(data: &[u8]) -> u8 {
        data.iter().fold(0, |a, b| a.wrapping_add(*b))
    }

    #[test]
    fn every_table_is_reachable_and_sums_to_zero() {
        let all = tables(MAX_CPUS);
        let names: Vec<_> = all.iter().map(|(n, _)| n.as_str()).collect();
        assert_eq!(names, ["XSDT", "FACP", "APIC", "MCFG", "DSDT"]);
        for (name, data) in &all {
            assert_eq!(sum(data), 0, "{name}");
        }
    }

    #[test]
    fn the_madt_lists_every_cpu() {
        let all = tables(5);
        let madt = &all[2].1;
        let mut ids = Vec::new();
        let mut at = 44;
        while at < madt.len() {
            if madt[at] == 0 {
                ids.push(madt[at + 3]);
            }
            at += madt[at + 1] as usize;
        }
        assert_eq!(ids, [0, 1, 2, 3, 4]);
    }

    #[test]
    fn the_fadt_is_hardware_reduced() {
        let all = tables(1);
        let flags = u32::from_le_bytes(all[1].1[112..116].try_into().unwrap());
        assert_ne!(flags & (1 << 20), 0);
        assert_ne!(flags & (1 << 10), 0);
    }
}
