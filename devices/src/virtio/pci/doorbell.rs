//! The doorbell BAR: page N, written at offset 0, signals the descriptor that the device attached to page N.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};

use vmm_sys_util::eventfd::EventFd;

use crate::bus::lock;
use crate::interrupt::IoEvents;
use crate::virtio::Doorbells;

/// Bytes of a doorbell page.
pub(super) const PAGE: u64 = 4096;

struct Attached {
    fd: EventFd,
    /// Where the hypervisor knows it. A page that it has no room for works by the slow way, an exit to user space.
    registered: Option<u64>,
}

struct State {
    base: Option<u64>,
    attached: BTreeMap<u32, Attached>,
}

/// The doorbell pages of one device. Its lock is its own: device threads attach and detach while the transport is busy.
pub(super) struct DoorbellRegion {
    pages: u32,
    io_events: Arc<dyn IoEvents>,
    state: Mutex<State>,
}

impl DoorbellRegion {
    pub(super) fn new(pages: u32, io_events: Arc<dyn IoEvents>) -> Self {
        Self {
            pages,
            io_events,
            state: Mutex::new(State {
                base: None,
                attached: BTreeMap::new(),
            }),
        }
    }

    /// The BAR moved: its pages are now at `base`, or nowhere.
    pub(super) fn mapped(&self, base: Option<u64>) {
        let mut state = lock(&self.state);
        state.base = base;
        for (&page, attached) in &mut state.attached {
            self.unregister(attached);
            self.register(base, page, attached);
        }
    }

    /// A write that the hypervisor did not take.
    pub(super) fn written(&self, offset: u64) {
        if !offset.is_multiple_of(PAGE) {
            return;
        }
        let Ok(page) = u32::try_from(offset / PAGE) else {
            return;
        };
        if let Some(attached) = lock(&self.state).attached.get(&page) {
            // Fails only when the counter is full, and then it is signalled already.
            let _ = attached.fd.write(1);
        }
    }

    /// Detaches every page, after the device was reset.
    pub(super) fn detach_all(&self) {
        let mut state = lock(&self.state);
        for (_, mut attached) in std::mem::take(&mut state.attached) {
            self.unregister(&mut attached);
        }
    }

    fn register(&self, base: Option<u64>, page: u32, attached: &mut Attached) {
        let Some(addr) = base.map(|b| b + u64::from(page) * PAGE) else {
            return;
        };
        match self.io_events.register(addr, &attached.fd) {
            Ok(()) => attached.registered = Some(addr),
            Err(e) => log::debug!("doorbell page {page} stays with user space: {e}"),
        }
    }

    fn unregister(&self, attached: &mut Attached) {
        if let Some(addr) = attached.registered.take()
            && let Err(e) = self.io_events.unregister(addr, &attached.fd)
        {
            log::warn!("doorbell at {addr:#x} could not be unregistered: {e}");
        }
    }
}

impl Doorbells for DoorbellRegion {
    fn attach(&self, page: u32, fd: EventFd) -> io::Result<()> {
        if page >= self.pages {
            let text = format!("doorbell page {page}: the device has {} pages", self.pages);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        self.detach(page);
        let mut state = lock(&self.state);
        let mut attached = Attached {
            fd,
            registered: None,
        };
        self.register(state.base, page, &mut attached);
        if let Some(mut raced) = state.attached.insert(page, attached) {
            self.unregister(&mut raced);
        }
        Ok(())
    }

    fn detach(&self, page: u32) {
        if let Some(mut attached) = lock(&self.state).attached.remove(&page) {
            self.unregister(&mut attached);
        }
    }
}

impl Drop for DoorbellRegion {
    fn drop(&mut self) {
        self.detach_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pci::test_utils::FakeIoEvents;

    fn region() -> (Arc<FakeIoEvents>, DoorbellRegion) {
        let io = Arc::new(FakeIoEvents::default());
        (io.clone(), DoorbellRegion::new(4, io))
    }

    fn event() -> (EventFd, EventFd) {
        let fd = EventFd::new(libc::EFD_NONBLOCK).unwrap();
        (fd.try_clone().unwrap(), fd)
    }

    #[test]
    fn registrations_follow_the_bar() {
        let (io, r) = region();
        r.attach(1, event().0).unwrap();
        assert!(io.addresses().is_empty());
        r.mapped(Some(0x10_0000));
        r.attach(3, event().0).unwrap();
        assert_eq!(io.addresses(), [0x10_1000, 0x10_3000]);
        r.mapped(Some(0x20_0000));
        assert_eq!(io.addresses(), [0x20_1000, 0x20_3000]);
        r.detach(1);
        assert_eq!(io.addresses(), [0x20_3000]);
        r.mapped(None);
        assert!(io.addresses().is_empty());
        r.mapped(Some(0x10_0000));
        r.detach_all();
        assert!(io.addresses().is_empty());
    }

    #[test]
    fn an_exit_signals_too_and_only_at_offset_zero() {
        let (_, r) = region();
        let (give, keep) = event();
        r.attach(2, give).unwrap();
        for offset in [0x1000, 0x2008, 0x3000, !0xfff] {
            r.written(offset);
        }
        assert!(keep.read().is_err());
        r.written(0x2000);
        assert_eq!(keep.read().unwrap(), 1);
        r.detach(2);
        r.written(0x2000);
        assert!(keep.read().is_err());
    }

    #[test]
    fn attaching_again_replaces_and_a_page_too_far_is_refused() {
        let (io, r) = region();
        r.mapped(Some(0x1000));
        r.attach(0, event().0).unwrap();
        let (give, keep) = event();
        r.attach(0, give).unwrap();
        assert_eq!(io.addresses(), [0x1000]);
        r.written(0);
        assert_eq!(keep.read().unwrap(), 1);
        assert_eq!(
            r.attach(4, event().0).unwrap_err().kind(),
            io::ErrorKind::InvalidInput
        );
    }

    #[test]
    fn without_room_in_the_hypervisor_the_slow_way_works() {
        let (io, r) = region();
        io.limit(Some(0));
        r.mapped(Some(0x1000));
        let (give, keep) = event();
        r.attach(0, give).unwrap();
        r.written(0);
        assert_eq!(keep.read().unwrap(), 1);
        r.detach(0);
    }
}
