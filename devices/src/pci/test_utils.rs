//! Fakes of the hypervisor for tests.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex};

use vmm_sys_util::eventfd::EventFd;

use crate::bus::lock;
use crate::interrupt::{IoEvents, MsiController, MsiGroup, MsiMessage};

#[derive(Default)]
struct MsiState {
    sets: Vec<(u16, Option<MsiMessage>)>,
    raised: Vec<u16>,
    refuse: bool,
}

/// Records what a device does with its vectors.
#[derive(Default)]
pub(crate) struct FakeMsi(Mutex<MsiState>);

impl FakeMsi {
    pub(crate) fn sets(&self) -> Vec<(u16, Option<MsiMessage>)> {
        lock(&self.0).sets.clone()
    }
    pub(crate) fn raised(&self) -> Vec<u16> {
        lock(&self.0).raised.clone()
    }
    pub(crate) fn refuse(&self, refuse: bool) {
        lock(&self.0).refuse = refuse;
    }
}

impl MsiGroup for FakeMsi {
    fn set(&self, vector: u16, message: Option<MsiMessage>) -> io::Result<()> {
        let mut state = lock(&self.0);
        if state.refuse {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        state.sets.push((vector, message));
        Ok(())
    }
    fn trigger(&self, vector: u16) {
        lock(&self.0).raised.push(vector);
    }
}

/// Hands out one [`FakeMsi`].
pub(crate) struct FakeController(pub(crate) Arc<FakeMsi>);

impl MsiController for FakeController {
    fn allocate(&self, _vectors: u16) -> io::Result<Arc<dyn MsiGroup>> {
        Ok(self.0.clone())
    }
}

/// Records which descriptor is registered at which address.
#[derive(Default)]
pub(crate) struct FakeIoEvents {
    registered: Mutex<BTreeMap<u64, i32>>,
    limit: Mutex<Option<usize>>,
}

impl FakeIoEvents {
    pub(crate) fn addresses(&self) -> Vec<u64> {
        lock(&self.registered).keys().copied().collect()
    }
    /// Refuses to hold more than `limit` registrations.
    pub(crate) fn limit(&self, limit: Option<usize>) {
        *lock(&self.limit) = limit;
    }
}

impl IoEvents for FakeIoEvents {
    fn register(&self, addr: u64, fd: &EventFd) -> io::Result<()> {
        let mut registered = lock(&self.registered);
        if lock(&self.limit).is_some_and(|l| registered.len() >= l) {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        assert!(
            registered.insert(addr, fd.as_raw_fd()).is_none(),
            "{addr:#x} registered twice"
        );
        Ok(())
    }
    fn unregister(&self, addr: u64, fd: &EventFd) -> io::Result<()> {
        assert_eq!(
            lock(&self.registered).remove(&addr),
            Some(fd.as_raw_fd()),
            "{addr:#x}"
        );
        Ok(())
    }
}
