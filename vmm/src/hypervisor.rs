//! The bare virtual machine: KVM, its interrupt controllers, guest RAM and vCPUs in their first state.

use std::sync::Arc;

use arch::GuestRam;
use arch::x86_64::boot::Entry;
use arch::x86_64::{cpuid, lapic, layout, msrs, regs};
use kvm_bindings::KVM_MAX_CPUID_ENTRIES;
use kvm_ioctls::{Cap, Kvm, VcpuFd, VmFd};

use crate::memory;

/// Why there is no virtual machine.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// `/dev/kvm` cannot be opened.
    #[error("cannot open /dev/kvm: {0}; the host needs KVM, and you read and write access to it")]
    Open(kvm_ioctls::Error),
    /// KVM of this host lacks something.
    #[error("KVM of this host lacks {0:?}, which Longarm needs")]
    Lacks(Cap),
    /// A request was refused.
    #[error("KVM: cannot {what}: {source}")]
    Refused {
        /// What was asked.
        what: &'static str,
        /// What KVM said.
        source: kvm_ioctls::Error,
    },
    /// Guest memory.
    #[error(transparent)]
    Memory(#[from] memory::Error),
    /// CPUID.
    #[error(transparent)]
    Cpuid(#[from] cpuid::TooMany),
    /// Model-specific registers.
    #[error(transparent)]
    Msrs(#[from] msrs::Error),
    /// Registers.
    #[error(transparent)]
    Regs(#[from] regs::Error),
}

fn refused(what: &'static str) -> impl Fn(kvm_ioctls::Error) -> Error {
    move |source| Error::Refused { what, source }
}

/// A virtual machine without devices and vCPUs.
pub struct Hypervisor {
    kvm: Kvm,
    /// The machine. Guest RAM must outlive it.
    pub vm: Arc<VmFd>,
}

const NEEDED: [Cap; 8] = [
    Cap::Irqchip,
    Cap::Irqfd,
    Cap::IrqRouting,
    Cap::Ioeventfd,
    Cap::UserMemory,
    Cap::SetTssAddr,
    Cap::ExtCpuid,
    Cap::ImmediateExit,
];

impl Hypervisor {
    /// Makes a virtual machine with `ram` and in-kernel interrupt controllers.
    pub fn new(ram: &GuestRam) -> Result<Self, Error> {
        let kvm = Kvm::new().map_err(Error::Open)?;
        for cap in NEEDED {
            if !kvm.check_extension(cap) {
                return Err(Error::Lacks(cap));
            }
        }
        let vm = kvm
            .create_vm()
            .map_err(refused("create a virtual machine"))?;
        vm.set_identity_map_address(layout::KVM_IDENTITY_MAP)
            .map_err(refused("place the identity map"))?;
        vm.set_tss_address(layout::KVM_TSS as usize)
            .map_err(refused("place the task state segment"))?;
        vm.create_irq_chip()
            .map_err(refused("create the interrupt controllers"))?;
        memory::attach(&vm, ram)?;
        Ok(Self {
            kvm,
            vm: Arc::new(vm),
        })
    }

    /// What KVM supports, as this machine of `cpus` vCPUs shows it.
    pub fn cpuid(&self, cpus: u32) -> Result<cpuid::Template, Error> {
        let supported = self
            .kvm
            .get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)
            .map_err(refused("list CPUID"))?;
        let tsc_deadline = self.kvm.check_extension(Cap::TscDeadlineTimer);
        Ok(cpuid::Template::new(&supported, cpus, tsc_deadline))
    }

    /// Makes `cpus` vCPUs: the first one will start at `entry`, the others wait for it to start them.
    pub fn vcpus(
        &self,
        ram: &GuestRam,
        cpuid: &cpuid::Template,
        cpus: u32,
        entry: &Entry,
    ) -> Result<Vec<VcpuFd>, Error> {
        let mut vcpus = Vec::new();
        for id in 0..cpus {
            let vcpu = self
                .vm
                .create_vcpu(id.into())
                .map_err(refused("create a vCPU"))?;
            vcpu.set_cpuid2(&cpuid.for_cpu(id)?)
                .map_err(refused("set CPUID"))?;
            msrs::setup(&vcpu)?;
            lapic::setup(&vcpu).map_err(refused("set up the local APIC"))?;
            if id == 0 {
                regs::setup_boot_cpu(&vcpu, ram, entry)?;
            } else {
                regs::setup_fpu(&vcpu)?;
            }
            vcpus.push(vcpu);
        }
        Ok(vcpus)
    }
}
