//! Local APIC state that firmware would have left: ExtINT on LINT0, NMI on LINT1.

use kvm_ioctls::VcpuFd;

const APIC_LVT_LINT0: usize = 0x350;
const APIC_LVT_LINT1: usize = 0x360;
const DELIVERY_MODE_SHIFT: u32 = 8;
const DELIVERY_MODE_MASK: u32 = 0x7 << DELIVERY_MODE_SHIFT;
const DELIVERY_NMI: u32 = 4;
const DELIVERY_EXTINT: u32 = 7;

/// Sets up the local interrupt pins of `vcpu` (Intel SDM volume 3, 11.5.1).
pub fn setup(vcpu: &VcpuFd) -> Result<(), kvm_ioctls::Error> {
    let mut state = vcpu.get_lapic()?;
    for (register, mode) in [
        (APIC_LVT_LINT0, DELIVERY_EXTINT),
        (APIC_LVT_LINT1, DELIVERY_NMI),
    ] {
        let bytes = &mut state.regs[register..register + 4];
        let mut value = 0;
        for (i, b) in bytes.iter().enumerate() {
            value |= u32::from(*b as u8) << (8 * i);
        }
        value = (value & !DELIVERY_MODE_MASK) | mode << DELIVERY_MODE_SHIFT;
        for (i, b) in bytes.iter_mut().enumerate() {
            *b = (value >> (8 * i)) as u8 as _;
        }
    }
    vcpu.set_lapic(&state)
}
