//! Model-specific registers that a guest expects firmware to have set.

use kvm_bindings::{Msrs, kvm_msr_entry};
use kvm_ioctls::VcpuFd;

const MSR_IA32_MISC_ENABLE: u32 = 0x1a0;
const MISC_ENABLE_FAST_STRING: u64 = 1;
const MSR_MTRR_DEF_TYPE: u32 = 0x2ff;
const MTRR_ENABLE: u64 = 1 << 11;
const MTRR_WRITE_BACK: u64 = 6;

/// Why the registers could not be set.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// KVM refused the whole request.
    #[error("cannot set model-specific registers: {0}")]
    Set(kvm_ioctls::Error),
    /// KVM stopped at one register.
    #[error("KVM refuses a value for model-specific register {0:#x}")]
    Refused(u32),
}

/// Sets `vcpu`'s registers: all memory write-back unless page tables say otherwise, fast string operations on.
pub fn setup(vcpu: &VcpuFd) -> Result<(), Error> {
    let entries = [
        (MSR_IA32_MISC_ENABLE, MISC_ENABLE_FAST_STRING),
        (MSR_MTRR_DEF_TYPE, MTRR_ENABLE | MTRR_WRITE_BACK),
    ]
    .map(|(index, data)| kvm_msr_entry {
        index,
        data,
        ..Default::default()
    });
    let msrs = Msrs::from_entries(&entries).map_err(|_| Error::Refused(entries[0].index))?;
    let done = vcpu.set_msrs(&msrs).map_err(Error::Set)?;
    match entries.get(done) {
        None => Ok(()),
        Some(entry) => Err(Error::Refused(entry.index)),
    }
}
