//! Entries of KVM's interrupt routing table, which says what each interrupt number (GSI) raises.

use kvm_bindings::{
    KVM_IRQ_ROUTING_IRQCHIP, KVM_IRQ_ROUTING_MSI, KVM_IRQCHIP_IOAPIC, kvm_irq_routing_entry,
    kvm_irq_routing_irqchip, kvm_irq_routing_msi,
};

/// GSI `pin` raises pin `pin` of the I/O APIC.
pub fn ioapic_route(pin: u32) -> kvm_irq_routing_entry {
    let mut entry = kvm_irq_routing_entry {
        gsi: pin,
        type_: KVM_IRQ_ROUTING_IRQCHIP,
        ..Default::default()
    };
    entry.u.irqchip = kvm_irq_routing_irqchip {
        irqchip: KVM_IRQCHIP_IOAPIC,
        pin,
    };
    entry
}

/// GSI `gsi` sends a message-signalled interrupt.
pub fn msi_route(gsi: u32, address: u64, data: u32) -> kvm_irq_routing_entry {
    let mut entry = kvm_irq_routing_entry {
        gsi,
        type_: KVM_IRQ_ROUTING_MSI,
        ..Default::default()
    };
    entry.u.msi = kvm_irq_routing_msi {
        address_lo: address as u32,
        address_hi: (address >> 32) as u32,
        data,
        ..Default::default()
    };
    entry
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_keeps_both_halves_of_its_address() {
        let entry = msi_route(30, 0x1_fee0_1004, 0x4021);
        // SAFETY: the entry was just built with its MSI variant.
        let msi = unsafe { entry.u.msi };
        assert_eq!(
            (msi.address_lo, msi.address_hi, msi.data),
            (0xfee0_1004, 1, 0x4021)
        );
        assert_eq!((entry.gsi, entry.type_), (30, KVM_IRQ_ROUTING_MSI));
    }
}
