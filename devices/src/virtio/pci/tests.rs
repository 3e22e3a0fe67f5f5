//! Every register rule of the transport, as a driver meets it.

use super::*;
use crate::pci::test_utils::{FakeController, FakeIoEvents, FakeMsi};
use crate::virtio::{ActivateError, FEATURE_EVENT_IDX};
use virtio_queue::QueueT;
use vm_memory::GuestAddress;

const OFFERED: u64 = 0x5 | FEATURE_EVENT_IDX;

#[derive(Default)]
struct Probe {
    activation: Option<Activation>,
    resets: u32,
    refuse: bool,
    config: Vec<(u64, Vec<u8>)>,
}

impl VirtioDevice for Probe {
    fn device_type(&self) -> u32 {
        42
    }
    fn features(&self) -> u64 {
        OFFERED
    }
    fn queue_max_sizes(&self) -> &[u16] {
        &[256, 64, 8]
    }
    fn read_config(&self, offset: u64, data: &mut [u8]) {
        data.fill(offset as u8 + 0x10);
    }
    fn write_config(&mut self, offset: u64, data: &[u8]) {
        self.config.push((offset, data.to_vec()));
    }
    fn activate(&mut self, activation: Activation) -> Result<(), ActivateError> {
        if self.refuse {
            return Err(ActivateError::MissingQueue(2));
        }
        self.activation = Some(activation);
        Ok(())
    }
    fn reset(&mut self) {
        self.activation = None;
        self.resets += 1;
    }
    fn doorbell_pages(&self) -> u32 {
        3
    }
}

struct Fixture {
    probe: Arc<Mutex<Probe>>,
    msi: Arc<FakeMsi>,
    io: Arc<FakeIoEvents>,
    pci: VirtioPci,
}

impl Fixture {
    fn new() -> Self {
        let probe = Arc::new(Mutex::new(Probe::default()));
        let msi = Arc::new(FakeMsi::default());
        let io = Arc::new(FakeIoEvents::default());
        let memory = Arc::new(GuestRam::from_ranges(&[(GuestAddress(0), 0x10_0000)]).unwrap());
        let pci = VirtioPci::new(
            probe.clone(),
            memory,
            &FakeController(msi.clone()),
            io.clone(),
        )
        .unwrap();
        Self {
            probe,
            msi,
            io,
            pci,
        }
    }
    fn get(&mut self, at: u64, len: usize) -> u64 {
        let mut d = [0; 8];
        self.pci.read_bar(0, at, &mut d[..len]);
        u64::from_le_bytes(d)
    }
    fn set(&mut self, at: u64, len: usize, value: u64) {
        self.pci.write_bar(0, at, &value.to_le_bytes()[..len]);
    }
    fn status(&mut self) -> u8 {
        self.get(0x14, 1) as u8
    }
    fn accept(&mut self, features: u64) {
        for word in 0..2 {
            self.set(0x08, 4, word);
            self.set(0x0c, 4, features >> (32 * word) & 0xffff_ffff);
        }
    }
    fn negotiate(&mut self, features: u64) {
        self.set(0x14, 1, 1);
        self.set(0x14, 1, 3);
        self.accept(features);
        self.set(0x14, 1, 0xb);
    }
    fn set_up_queue(&mut self, index: u64, at: u64) {
        self.set(0x16, 2, index);
        self.set(0x20, 8, at);
        self.set(0x28, 4, at + 0x4000);
        self.set(0x2c, 4, 0);
        self.set(0x30, 8, at + 0x6000);
        self.set(0x1c, 2, 1);
    }
    fn start(&mut self, features: u64) {
        self.negotiate(features);
        self.set_up_queue(0, 0x1_0000);
        self.set_up_queue(2, 0x2_0000);
        self.set(0x14, 1, 0xf);
    }
    fn open_vector(&mut self, vector: u64) {
        self.set(0x8000 + 16 * vector, 8, 0xfee0_0000);
        self.set(0x8008 + 16 * vector, 8, vector);
    }
    fn enable_msix(&mut self) {
        let at = self.pci.msix_cap + 2;
        self.pci.write_config(at, &MSIX_ENABLE.to_le_bytes());
    }
    fn interrupt(&self) -> Arc<dyn VirtioInterrupt> {
        lock(&self.probe)
            .activation
            .as_ref()
            .unwrap()
            .interrupt
            .clone()
    }
    fn active(&self) -> bool {
        lock(&self.probe).activation.is_some()
    }
}

const V1: u64 = FEATURE_VERSION_1;

#[test]
fn identity_and_capabilities_are_those_of_a_modern_device() {
    let f = Fixture::new();
    let c = f.pci.config();
    assert_eq!(c.get(0), [0xf4, 0x1a, 0x6a, 0x10]);
    assert_eq!(c.get(8), [1]);
    let mut at = usize::from(c.get::<1>(0x34)[0]);
    let mut types = vec![];
    while at != 0 {
        let [id, next, len, kind] = c.get(at);
        if id == CAP_VENDOR {
            types.push((kind, len));
        }
        at = usize::from(next);
    }
    assert_eq!(types, [(1, 16), (2, 20), (3, 16), (4, 16), (5, 20)]);
    assert_eq!((c.bar_size(0), c.bar_size(2)), (0x1_0000, 0x4000));
    assert_eq!(
        u16::from_le_bytes(c.get(usize::from(f.pci.msix_cap) + 2)),
        3
    );
}

#[test]
fn features_are_read_by_halves() {
    let mut f = Fixture::new();
    assert_eq!(f.get(4, 4), OFFERED);
    f.set(0, 4, 1);
    assert_eq!(f.get(4, 4), V1 >> 32);
    f.set(0, 4, 2);
    assert_eq!((f.get(0, 4), f.get(4, 4)), (2, 0));
}

#[test]
fn features_ok_needs_version_1_and_nothing_unoffered() {
    for (features, ok) in [
        (V1 | 1, true),
        (1, false),
        (V1 | 2, false),
        (V1, true),
        (V1 | 1 << 40, false),
    ] {
        let mut f = Fixture::new();
        f.negotiate(features);
        assert_eq!(f.status() & status::FEATURES_OK != 0, ok, "{features:#x}");
    }
}

#[test]
fn features_are_fixed_once_agreed() {
    let mut f = Fixture::new();
    f.negotiate(V1 | 1);
    f.accept(V1 | 4);
    f.set(0x08, 4, 7);
    f.set(0x0c, 4, 0xffff_ffff);
    assert_eq!(f.get(0x0c, 4), 0);
    f.set(0x08, 4, 0);
    assert_eq!(f.get(0x0c, 4), 1);
    f.set_up_queue(0, 0x1_0000);
    f.set(0x14, 1, 0xf);
    assert_eq!(lock(&f.probe).activation.as_ref().unwrap().features, V1 | 1);
}

#[test]
fn driver_ok_needs_features_ok() {
    let mut f = Fixture::new();
    f.set(0x14, 1, 7);
    assert_eq!(f.status(), 3);
    assert!(!f.active());
}

#[test]
fn driver_ok_activates_once_with_the_enabled_queues() {
    let mut f = Fixture::new();
    f.start(V1 | FEATURE_EVENT_IDX);
    assert_eq!(f.status(), 0xf);
    let mut a = lock(&f.probe).activation.take().unwrap();
    assert_eq!(a.queues.len(), 3);
    assert!(a.queues[1].is_none());
    let q = &a.queues[0].as_ref().unwrap().queue;
    assert_eq!(
        (q.size(), q.desc_table(), q.avail_ring(), q.used_ring()),
        (256, 0x1_0000, 0x1_4000, 0x1_6000)
    );
    assert!(q.event_idx_enabled());
    assert!(a.take_queue(2).is_ok());
    assert!(matches!(
        a.take_queue(2),
        Err(ActivateError::MissingQueue(2))
    ));
    assert!(matches!(
        a.take_queue(9),
        Err(ActivateError::MissingQueue(9))
    ));
    f.set(0x14, 1, 0xf);
    assert!(!f.active(), "a second DRIVER_OK means nothing");
}

#[test]
fn status_bits_are_only_added_by_the_driver() {
    let mut f = Fixture::new();
    f.set(0x14, 1, 1);
    f.set(0x14, 1, 2);
    assert_eq!(f.status(), 3);
    f.set(0x14, 1, 0x40);
    assert_eq!(f.status(), 3, "NEEDS_RESET is the device's");
    f.set(0x14, 1, 0x80);
    assert_eq!(f.status(), 0x83);
    f.start(V1);
    assert!(!f.active(), "the driver gave up");
}

#[test]
fn reset_clears_everything_and_allows_a_new_start() {
    let mut f = Fixture::new();
    f.set(0x10, 2, 1);
    f.start(V1 | 1);
    f.set(0x14, 1, 0);
    assert_eq!(
        (f.status(), f.active(), lock(&f.probe).resets),
        (0, false, 1)
    );
    assert_eq!(
        (
            f.get(0x10, 2),
            f.get(0x16, 2),
            f.get(0x1c, 2),
            f.get(0x20, 8)
        ),
        (0xffff, 0, 0, 0)
    );
    f.set(0x08, 4, 0);
    assert_eq!(f.get(0x0c, 4), 0);
    f.start(V1);
    assert!(f.active());
}

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
