//! Doorbell pages, as a host sees them: a bit for each, and a descriptor that wakes the device's thread.

use std::sync::atomic::{AtomicU64, Ordering};

use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

/// The doorbell pages of one device.
pub struct Doorbells {
    rung: Vec<AtomicU64>,
    /// Readable while one is rung.
    pub wake: EventFd,
    rings: AtomicU64,
}

impl Doorbells {
    /// `pages` of them.
    pub fn new(pages: u32) -> Doorbells {
        Doorbells {
            rung: (0..pages.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
            wake: EventFd::new(EFD_NONBLOCK).expect("an eventfd"),
            rings: AtomicU64::new(0),
        }
    }

    /// A write of any value to a page: the value carries no authority, and is dropped as an ioeventfd would.
    pub fn ring(&self, page: u32, _value: u32) {
        self.rings.fetch_add(1, Ordering::Relaxed);
        if let Some(word) = self.rung.get(page as usize / 64) {
            word.fetch_or(1 << (page % 64), Ordering::SeqCst);
            self.wake.write(1).expect("an eventfd takes a wake");
        }
    }

    /// How often any was rung: the exits that a guest would have made.
    pub fn rings(&self) -> u64 {
        self.rings.load(Ordering::Relaxed)
    }

    /// Takes the pages that were rung.
    pub fn drain(&self, mut rung: impl FnMut(u32)) {
        for (n, word) in self.rung.iter().enumerate() {
            if word.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let mut bits = word.swap(0, Ordering::SeqCst);
            while bits != 0 {
                rung(n as u32 * 64 + bits.trailing_zeros());
                bits &= bits - 1;
            }
        }
    }
}
