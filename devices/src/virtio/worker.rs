//! A device's thread and its event loop: starts at activation, ends, joined, at reset.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};

use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::EventFd;

const STOP_TOKEN: u64 = u64::MAX;
const EVENTS_PER_WAIT: usize = 16;

/// Says to a device's thread that it must end. Cheap to ask, so that a thread asks between any two requests.
#[derive(Clone)]
pub(crate) struct StopFlag(Arc<AtomicBool>);

impl StopFlag {
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    #[cfg(test)]
    pub(crate) fn never() -> Self {
        Self(Arc::new(AtomicBool::new(false)))
    }
}

/// What a device's thread waits on.
pub(crate) struct Poller {
    epoll: Epoll,
    stop: StopFlag,
}

impl Poller {
    /// From now on `fd` being in one of the states `events` yields `token`, which is not `u64::MAX`.
    pub(crate) fn add(&self, fd: RawFd, token: u64, events: EventSet) -> io::Result<()> {
        debug_assert_ne!(token, STOP_TOKEN);
        self.epoll
            .ctl(ControlOperation::Add, fd, EpollEvent::new(events, token))
    }

    /// Changes the states that `fd` is watched for.
    pub(crate) fn modify(&self, fd: RawFd, token: u64, events: EventSet) -> io::Result<()> {
        self.epoll
            .ctl(ControlOperation::Modify, fd, EpollEvent::new(events, token))
    }

    /// Stops watching `fd`, which must still be open.
    pub(crate) fn remove(&self, fd: RawFd) -> io::Result<()> {
        self.epoll
            .ctl(ControlOperation::Delete, fd, EpollEvent::default())
    }

    /// Waits up to `timeout` milliseconds (-1 for ever) and puts what happened into `ready`. Returns false when the thread must
    /// end.
    pub(crate) fn wait(&self, timeout: i32, ready: &mut Vec<(u64, EventSet)>) -> bool {
        ready.clear();
        let mut events = [EpollEvent::default(); EVENTS_PER_WAIT];
        match self.epoll.wait(timeout, &mut events) {
            Ok(n) => ready.extend(
                events[..n]
                    .iter()
                    .filter(|e| e.data() != STOP_TOKEN)
                    .map(|e| (e.data(), e.event_set())),
            ),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => {
                log::error!("waiting for events of a virtio device: {e}");
                return false;
            }
        }
        !self.stop.is_set()
    }

    pub(crate) fn stop_flag(&self) -> StopFlag {
        self.stop.clone()
    }
}

/// A running device thread. Dropping it ends and joins the thread.
pub(crate) struct Worker {
    stop: StopFlag,
    wake: EventFd,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Starts `body` in a thread named `name` (15 bytes show up in tools).
    pub(crate) fn spawn(
        name: &str,
        body: impl FnOnce(Poller) + Send + 'static,
    ) -> io::Result<Self> {
        let stop = StopFlag(Arc::new(AtomicBool::new(false)));
        let wake = EventFd::new(libc::EFD_NONBLOCK | libc::EFD_CLOEXEC)?;
        let poller = Poller {
            epoll: Epoll::new()?,
            stop: stop.clone(),
        };
        poller.epoll.ctl(
            ControlOperation::Add,
            wake.as_raw_fd(),
            EpollEvent::new(EventSet::IN, STOP_TOKEN),
        )?;
        let thread = Builder::new()
            .name(name.into())
            .spawn(move || body(poller))?;
        Ok(Self {
            stop,
            wake,
            thread: Some(thread),
        })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop.0.store(true, Ordering::Release);
        // Fails only when the counter is full, and then the thread is woken anyway.
        let _ = self.wake.write(1);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("a virtio device's thread panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn events_arrive_and_dropping_joins() {
        let fd = EventFd::new(libc::EFD_NONBLOCK).unwrap();
        let theirs = fd.try_clone().unwrap();
        let (tx, rx) = mpsc::channel();
        let worker = Worker::spawn("test", move |poller| {
            poller.add(theirs.as_raw_fd(), 7, EventSet::IN).unwrap();
            let mut ready = Vec::new();
            while poller.wait(-1, &mut ready) {
                for (token, _) in &ready {
                    theirs.read().unwrap();
                    tx.send(*token).unwrap();
                }
            }
            tx.send(99).unwrap();
        })
        .unwrap();
        fd.write(1).unwrap();
        assert_eq!(rx.recv().unwrap(), 7);
        drop(worker);
        assert_eq!(rx.try_recv().unwrap(), 99);
    }
}
