//! Interrupts, and what else lies in the BARs: registers, configuration, notifications, doorbells.

use super::*;

#[test]
fn vectors_that_do_not_exist_read_back_as_none() {
    let mut f = Fixture::new();
    for (vector, reads) in [(3, 3), (4, 0xffff), (0xffff, 0xffff)] {
        f.set(0x10, 2, vector);
        assert_eq!(f.get(0x10, 2), reads);
        f.set(0x16, 2, 1);
        f.set(0x1a, 2, vector);
        assert_eq!(f.get(0x1a, 2), reads);
    }
}

#[test]
fn interrupts_use_the_vectors_chosen_and_set_the_isr() {
    let mut f = Fixture::new();
    f.enable_msix();
    (0..4).for_each(|v| f.open_vector(v));
    f.set(0x10, 2, 3);
    f.set(0x16, 2, 2);
    f.set(0x1a, 2, 1);
    f.start(V1);
    let interrupt = f.interrupt();
    let generation = f.get(0x15, 1);
    interrupt.queue(2);
    interrupt.queue(0);
    interrupt.queue(77);
    assert_eq!(f.msi.raised(), [1], "queue 0 has no vector");
    assert_eq!(
        (f.get(0x1000, 1), f.get(0x1000, 1)),
        (1, 0),
        "reading clears"
    );
    interrupt.config();
    assert_eq!(f.msi.raised(), [1, 3]);
    assert_eq!(f.get(0x1000, 1), 2);
    assert_ne!(f.get(0x15, 1), generation);
    interrupt.needs_reset();
    interrupt.needs_reset();
    assert_eq!(f.msi.raised(), [1, 3, 3]);
    assert_eq!(f.status(), 0x4f);
}

#[test]
fn widths_and_places_that_are_no_register_do_nothing() {
    let mut f = Fixture::new();
    f.set(0x16, 2, 1);
    for (at, len) in [
        (0x18, 1),
        (0x18, 4),
        (0x19, 2),
        (0x22, 4),
        (0x24, 8),
        (0x20, 2),
        (0x38, 4),
        (0x100, 8),
        (0xffc, 4),
    ] {
        f.set(at, len, 0x0808_0808_0808_0808);
        assert_eq!(f.get(at, len), 0, "{at:#x} {len}");
    }
    assert_eq!((f.get(0x18, 2), f.get(0x20, 8)), (64, 0));
    for offset in (0..0x1_0000).step_by(0x3f1) {
        for len in [1, 2, 4, 8] {
            if !(0x14..0x16).contains(&offset) {
                f.set(offset, len, u64::MAX);
                f.get(offset, len);
            }
        }
    }
}

#[test]
fn device_configuration_is_passed_through() {
    let mut f = Fixture::new();
    assert_eq!(f.get(0x2003, 2), 0x1313);
    f.set(0x2008, 4, 0x0102_0304);
    assert_eq!(lock(&f.probe).config, [(8, vec![4, 3, 2, 1])]);
}

#[test]
fn notifications_follow_the_bar_and_work_by_exit_too() {
    let mut f = Fixture::new();
    f.pci.bar_mapped(0, Some(0x10_0000)).unwrap();
    assert_eq!(f.io.addresses(), [0x10_3000, 0x10_3004, 0x10_3008]);
    f.pci.bar_mapped(0, None).unwrap();
    assert!(f.io.addresses().is_empty());
    f.io.limit(Some(1));
    f.pci.bar_mapped(0, Some(0x20_0000)).unwrap();
    assert_eq!(f.io.addresses(), [0x20_3000]);
    f.set(0x3008, 2, 2);
    f.start(V1);
    let kick = lock(&f.probe).activation.as_ref().unwrap().queues[2]
        .as_ref()
        .unwrap()
        .kick
        .try_clone()
        .unwrap();
    assert!(
        kick.read().is_err(),
        "a kick from before the start is forgotten"
    );
    for at in [0x3009, 0x300c, 0x3ffc, 0x3000] {
        f.set(at, 2, 2);
    }
    assert!(kick.read().is_err());
    f.set(0x3008, 1, 2);
    assert_eq!(kick.read().unwrap(), 1);
}

#[test]
fn doorbells_live_in_their_own_bar_until_reset() {
    let mut f = Fixture::new();
    f.pci.bar_mapped(2, Some(0x40_0000)).unwrap();
    f.start(V1);
    let doorbells = lock(&f.probe)
        .activation
        .as_ref()
        .unwrap()
        .doorbells
        .clone();
    let fd = EventFd::new(libc::EFD_NONBLOCK).unwrap();
    doorbells.attach(1, fd.try_clone().unwrap()).unwrap();
    assert_eq!(f.io.addresses(), [0x40_1000]);
    f.pci.write_bar(2, 0x1000, &[0; 8]);
    assert_eq!(fd.read().unwrap(), 1);
    let mut d = [1; 4];
    f.pci.read_bar(2, 0x1000, &mut d);
    assert_eq!(d, [0; 4]);
    f.set(0x14, 1, 0);
    assert!(f.io.addresses().is_empty());
    f.pci.write_bar(2, 0x1000, &[0; 8]);
    assert!(fd.read().is_err());
}

#[test]
fn the_access_capability_reaches_the_bar() {
    let mut f = Fixture::new();
    let cap = f.pci.access_cap;
    let program = |f: &mut Fixture, bar: u8, offset: u32, len: u32| {
        f.pci.write_config(cap + 4, &[bar]);
        f.pci.write_config(cap + 8, &offset.to_le_bytes());
        f.pci.write_config(cap + 12, &len.to_le_bytes());
    };
    program(&mut f, 0, 0x12, 2);
    let mut d = [9; 4];
    f.pci.read_config(cap + 16, &mut d);
    assert_eq!(d, [3, 0, 0, 0]);
    program(&mut f, 0, 0x16, 2);
    f.pci.write_config(cap + 16, &[1, 0, 0, 0]);
    assert_eq!(f.get(0x16, 2), 1);
    for (bar, offset, len) in [
        (0, 0x16, 3),
        (0, 0x16, 8),
        (0, 0x15, 2),
        (0, 0xffff_fffe, 2),
        (5, 0, 4),
        (255, 0, 4),
        (0, 0x1_0000, 4),
    ] {
        program(&mut f, bar, offset, len);
        f.pci.write_config(cap + 16, &[2, 0, 0, 0]);
        f.pci.read_config(cap + 16, &mut d);
    }
    assert_eq!(f.get(0x16, 2), 1);
}

#[test]
fn dropping_the_function_stops_the_device() {
    let mut f = Fixture::new();
    f.pci.bar_mapped(0, Some(0x10_0000)).unwrap();
    f.start(V1);
    let Fixture { probe, io, pci, .. } = f;
    drop(pci);
    assert_eq!((lock(&probe).resets, io.addresses().len()), (1, 0));
}
