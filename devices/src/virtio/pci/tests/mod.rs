//! Every register rule of the transport, as a driver meets it.

mod queues;
mod windows;

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
