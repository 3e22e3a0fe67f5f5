//! CPUID: what KVM supports on this host, with this machine's topology, less what a microVM lacks.

use kvm_bindings::{CpuId, kvm_cpuid_entry2};

/// `KVM_CPUID_FLAG_SIGNIFCANT_INDEX`: the entry answers one value of ECX only.
const INDEXED: u32 = 1;

const HYPERVISOR_LEAF: u32 = 0x4000_0000;

/// The template from which each vCPU's CPUID is made.
pub struct Template {
    entries: Vec<kvm_cpuid_entry2>,
    cpus: u32,
    max_basic: u32,
    amd: bool,
}

/// Why a vCPU's CPUID could not be built.
#[derive(Debug, thiserror::Error)]
#[error("{0} CPUID entries, more than KVM takes")]
pub struct TooMany(usize);

impl Template {
    /// Makes the template for a machine of `cpus` vCPUs from what KVM supports; `tsc_deadline` says whether the in-kernel
    /// local APIC has a TSC-deadline timer (KVM does not report that in CPUID).
    pub fn new(supported: &CpuId, cpus: u32, tsc_deadline: bool) -> Self {
        let supported = supported.as_slice();
        let leaf0 = supported.iter().find(|e| e.function == 0);
        let vendor = leaf0.map_or([0; 3], |e| [e.ebx, e.edx, e.ecx]);
        let amd = vendor == words(b"AuthenticAMD") || vendor == words(b"HygonGenuine");
        let max_basic = leaf0.map_or(0, |e| e.eax);
        let entries = supported
            .iter()
            // Extended topology is rebuilt per vCPU.
            .filter(|e| e.function != 0xb && e.function != 0x1f)
            .map(|e| common(*e, cpus, tsc_deadline))
            .collect();
        Self {
            entries,
            cpus,
            max_basic,
            amd,
        }
    }

    /// Physical address bits of the host as the guest is told (leaf 0x8000_0008), 36 where the leaf is missing.
    pub fn physical_address_bits(&self) -> u32 {
        self.entries
            .iter()
            .find(|e| e.function == 0x8000_0008)
            .map_or(36, |e| e.eax & 0xff)
    }

    /// CPUID of vCPU `id`, whose APIC ID is the same number.
    pub fn for_cpu(&self, id: u32) -> Result<CpuId, TooMany> {
        let mut entries: Vec<_> = self.entries.iter().map(|e| per_cpu(*e, id)).collect();
        let mut topology = vec![];
        if self.max_basic >= 0xb {
            topology.push(0xb);
        }
        if self.max_basic >= 0x1f && !self.amd {
            topology.push(0x1f);
        }
        for leaf in topology {
            entries.extend(extended_topology(leaf, id, self.cpus));
        }
        CpuId::from_entries(&entries).map_err(|_| TooMany(entries.len()))
    }
}

const fn words(vendor: &[u8; 12]) -> [u32; 3] {
    let mut out = [0; 3];
    let mut i = 0;
    while i < 3 {
        out[i] = u32::from_le_bytes([
            vendor[4 * i],
            vendor[4 * i + 1],
            vendor[4 * i + 2],
            vendor[4 * i + 3],
        ]);
        i += 1;
    }
    out
}

/// Bits of an APIC ID that number the cores of the one package.
fn core_bits(cpus: u32) -> u32 {
    cpus.next_power_of_two().trailing_zeros()
}

/// What is the same for all vCPUs: one package, `cpus` cores, one thread each.
fn common(mut e: kvm_cpuid_entry2, cpus: u32, tsc_deadline: bool) -> kvm_cpuid_entry2 {
    let last = cpus - 1;
    match e.function {
        0x1 => {
            const MONITOR: u32 = 1 << 3;
            const VMX: u32 = 1 << 5;
            const PDCM: u32 = 1 << 15;
            const X2APIC: u32 = 1 << 21;
            const TSC_DEADLINE: u32 = 1 << 24;
            const HYPERVISOR: u32 = 1 << 31;
            const HTT: u32 = 1 << 28;
            e.ecx &= !(MONITOR | VMX | PDCM | TSC_DEADLINE);
            e.ecx |= X2APIC | HYPERVISOR;
            if tsc_deadline {
                e.ecx |= TSC_DEADLINE;
            }
            // EBX: cache line of 8 quadwords for CLFLUSH, logical processors in the package.
            e.ebx = e.ebx & 0xff | 8 << 8 | cpus << 16;
            e.edx = if cpus > 1 { e.edx | HTT } else { e.edx & !HTT };
        }
        // Deterministic cache parameters: how many APIC IDs share the cache, cores in the package.
        0x4 if e.eax & 0x1f != 0 => {
            let level = e.eax >> 5 & 0x7;
            let sharing = if level >= 3 { last } else { 0 };
            e.eax = e.eax & 0x3fff | sharing << 14 | last << 26;
        }
        // MONITOR/MWAIT and the performance counters are masked.
        0x5 | 0xa | 0x8000_0022 => (e.eax, e.ebx, e.ecx, e.edx) = (0, 0, 0, 0),
        0x8000_0001 => {
            const CMP_LEGACY: u32 = 1 << 1;
            const SVM: u32 = 1 << 2;
            const PERFCTR_CORE: u32 = 1 << 23;
            const PERFCTR_NB: u32 = 1 << 24;
            const PERFCTR_LLC: u32 = 1 << 28;
            e.ecx &= !(CMP_LEGACY | SVM | PERFCTR_CORE | PERFCTR_NB | PERFCTR_LLC);
        }
        // Number of cores, and bits of the APIC ID that number them.
        0x8000_0008 => e.ecx = e.ecx & !0xf0ff | core_bits(cpus) << 12 | last,
        // SVM: masked with its feature bit.
        0x8000_000a => (e.eax, e.ebx, e.ecx, e.edx) = (0, 0, 0, 0),
        0x8000_001d if e.eax & 0x1f != 0 => {
            let level = e.eax >> 5 & 0x7;
            let sharing = if level >= 3 { last } else { 0 };
            e.eax = e.eax & 0x3fff | sharing << 14;
        }
        HYPERVISOR_LEAF => e.eax = e.eax.max(HYPERVISOR_LEAF + 1),
        _ => {}
    }
    e
}

fn per_cpu(mut e: kvm_cpuid_entry2, id: u32) -> kvm_cpuid_entry2 {
    match e.function {
        0x1 => e.ebx = e.ebx & 0x00ff_ffff | id << 24,
        // AMD: extended APIC ID; core ID with one thread per core; node 0 of 1.
        0x8000_001e => (e.eax, e.ebx, e.ecx, e.edx) = (id, id, 0, 0),
        _ => {}
    }
    e
}

/// Leaf 0xb or 0x1f (Intel SDM volume 2, CPUID): a thread level, a core level, then the end.
fn extended_topology(leaf: u32, id: u32, cpus: u32) -> [kvm_cpuid_entry2; 3] {
    const SMT: u32 = 1;
    const CORE: u32 = 2;
    [
        (0, 0, 1, SMT),
        (1, core_bits(cpus), cpus, CORE),
        (2, 0, 0, 0),
    ]
    .map(|(index, shift, count, kind)| kvm_cpuid_entry2 {
        function: leaf,
        index,
        flags: INDEXED,
        eax: shift,
        ebx: count,
        ecx: index | kind << 8,
        edx: id,
        ..Default::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(function: u32, regs: [u32; 4]) -> kvm_cpuid_entry2 {
        kvm_cpuid_entry2 {
            function,
            eax: regs[0],
            ebx: regs[1],
            ecx: regs[2],
            edx: regs[3],
            ..Default::default()
        }
    }

    fn supported() -> CpuId {
        let [b, d, c] = words(b"AuthenticAMD");
        CpuId::from_entries(&[
            entry(0, [0x10, b, c, d]),
            entry(1, [0x800f12, 0xff00_0000, u32::MAX, u32::MAX]),
            entry(0x8000_0008, [0x3028, 0, 0xffff_ffff, 0]),
            entry(0x8000_001d, [0x163 | 0xfff << 14, 0, 0, 0]),
            entry(0x8000_001e, [7, 7, 7, 7]),
        ])
        .unwrap()
    }

    fn find(id: &CpuId, function: u32, index: u32) -> kvm_cpuid_entry2 {
        *id.as_slice()
            .iter()
            .find(|e| e.function == function && e.index == index)
            .unwrap()
    }

    #[test]
    fn every_cpu_has_its_own_apic_id_in_every_leaf() {
        let template = Template::new(&supported(), 6, true);
        for id in 0..6 {
            let cpuid = template.for_cpu(id).unwrap();
            assert_eq!(find(&cpuid, 1, 0).ebx >> 24, id);
            assert_eq!(find(&cpuid, 0xb, 0).edx, id);
            assert_eq!(find(&cpuid, 0xb, 1).edx, id);
            assert_eq!(find(&cpuid, 0x8000_001e, 0).eax, id);
        }
    }

    #[test]
    fn topology_is_one_package_of_single_threaded_cores() {
        let cpuid = Template::new(&supported(), 6, true).for_cpu(0).unwrap();
        assert_eq!(find(&cpuid, 1, 0).ebx >> 16 & 0xff, 6);
        let core = find(&cpuid, 0xb, 1);
        assert_eq!((core.eax, core.ebx, core.ecx), (3, 6, 0x201));
        assert_eq!(find(&cpuid, 0xb, 2).ebx, 0);
        assert_eq!(find(&cpuid, 0x8000_0008, 0).ecx & 0xf0ff, 3 << 12 | 5);
        assert_eq!(find(&cpuid, 0x8000_001d, 0).eax >> 14, 5);
    }

    #[test]
    fn nested_virtualisation_and_mwait_are_masked_the_hypervisor_is_told() {
        let ecx = |tsc| {
            let cpuid = Template::new(&supported(), 1, tsc).for_cpu(0).unwrap();
            find(&cpuid, 1, 0).ecx
        };
        assert_eq!(ecx(false) & (1 << 3 | 1 << 5 | 1 << 24), 0);
        assert_ne!(ecx(true) & (1 << 24), 0);
        assert_ne!(ecx(true) & (1 << 31), 0);
    }
}
