//! Registers of the queues, and queues that cannot be.

use super::*;

#[test]
fn queue_registers_hold_what_is_allowed() {
    let mut f = Fixture::new();
    assert_eq!(f.get(0x12, 2), 3);
    f.set(0x16, 2, 1);
    assert_eq!((f.get(0x18, 2), f.get(0x1e, 2)), (64, 1));
    for (size, reads) in [(0, 64), (3, 64), (128, 64), (32, 32), (64, 64), (1, 1)] {
        f.set(0x18, 2, size);
        assert_eq!(f.get(0x18, 2), reads);
    }
    f.set(0x20, 4, 0x1122_3340);
    f.set(0x24, 4, 0x5566_7788);
    assert_eq!(f.get(0x20, 8), 0x5566_7788_1122_3340);
    assert_eq!(f.get(0x24, 4), 0x5566_7788);
    f.set(0x1c, 2, 0);
    assert_eq!(f.get(0x1c, 2), 0);
    f.set(0x1c, 2, 1);
    f.set(0x18, 2, 8);
    f.set(0x28, 8, 0x1000);
    f.set(0x1c, 2, 0);
    assert_eq!(
        (f.get(0x18, 2), f.get(0x28, 8), f.get(0x1c, 2)),
        (1, 0, 1),
        "fixed once enabled"
    );
}

#[test]
fn queues_that_do_not_exist_read_as_zero() {
    let mut f = Fixture::new();
    f.set(0x16, 2, 3);
    f.set(0x18, 2, 8);
    f.set(0x1c, 2, 1);
    f.set(0x1a, 2, 0);
    f.set(0x20, 8, 0x1000);
    assert_eq!(
        (
            f.get(0x18, 2),
            f.get(0x1c, 2),
            f.get(0x1e, 2),
            f.get(0x20, 8)
        ),
        (0, 0, 0, 0)
    );
    assert_eq!(f.get(0x1a, 2), 0xffff);
}

#[test]
fn queues_are_not_changed_while_running() {
    let mut f = Fixture::new();
    f.start(V1);
    f.set_up_queue(1, 0x3_0000);
    assert_eq!((f.get(0x1c, 2), f.get(0x20, 8)), (0, 0));
}

#[test]
fn bad_queues_need_a_reset() {
    for (at, size) in [
        (0x1_0008, 8u64),
        (0xf_ff80, 64),
        (!0xf, 8),
        (0x1000_0000, 8),
    ] {
        let mut f = Fixture::new();
        f.negotiate(V1);
        f.set(0x16, 2, 0);
        f.set(0x18, 2, size);
        f.set(0x20, 8, at);
        f.set(0x28, 8, 0x1000);
        f.set(0x30, 8, 0x2000);
        f.set(0x1c, 2, 1);
        f.set(0x14, 1, 0xf);
        assert!(!f.active(), "{at:#x}");
        assert_eq!(f.status(), 0x4f);
        f.set(0x14, 1, 0);
        f.start(V1);
        assert!(f.active(), "a reset mends it");
    }
}

#[test]
fn a_device_that_cannot_start_needs_a_reset() {
    let mut f = Fixture::new();
    lock(&f.probe).refuse = true;
    f.enable_msix();
    f.open_vector(0);
    f.set(0x10, 2, 0);
    f.start(V1);
    assert_eq!(f.status(), 0x4f);
    assert_eq!(f.msi.raised(), [0], "the driver is told");
}
