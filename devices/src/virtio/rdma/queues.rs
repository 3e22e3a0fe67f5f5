//! The device's virtqueues: commands in, events out.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use vmm_sys_util::eventfd::EventFd;
use zerocopy::IntoBytes;

use super::wait::{Token, Waiter};
use crate::GuestRam;
use crate::rdma::RdmaDevice;
use crate::rdma::events::{AsyncEvent, EventSink};
use crate::rdma::wire::{AsyncEventBuffer, CompletionEvent, Le32, Le64};
use crate::virtio::Doorbells;
use crate::virtio::queue::{Chain, DeviceQueue, QueueError};

/// Index of the control queue.
pub(super) const CONTROL: u16 = 0;
/// Index of the queue of asynchronous events.
pub(super) const ASYNCHRONOUS: u16 = 1;
/// Index of the queue of completion vector 0.
pub(super) const COMPLETION: u16 = 2;

/// Commands carried out before anything else has its turn.
const COMMANDS_PER_ROUND: usize = 8;

/// The control queue.
pub(super) struct ControlQueue {
    queue: DeviceQueue,
    memory: Arc<GuestRam>,
    chain: Chain,
    request: Vec<u8>,
    reply: Vec<u8>,
    max_command: usize,
    broken: bool,
}

impl ControlQueue {
    pub(super) fn new(queue: DeviceQueue, memory: Arc<GuestRam>, max_command: u32) -> Self {
        ControlQueue {
            queue,
            memory,
            chain: Chain::default(),
            request: Vec::new(),
            reply: Vec::new(),
            max_command: max_command as usize,
            broken: false,
        }
    }

    /// Carries out some of the commands that wait. True if there were any.
    pub(super) fn serve(&mut self, device: &mut RdmaDevice) -> bool {
        if self.broken {
            return false;
        }
        match self.try_serve(device) {
            Ok(worked) => worked,
            Err(error) => self.fail(&error),
        }
    }

    fn try_serve(&mut self, device: &mut RdmaDevice) -> Result<bool, QueueError> {
        let mut served = 0;
        while served < COMMANDS_PER_ROUND && self.queue.pop(&mut self.chain)? {
            served += 1;
            let written = self.carry_out(device).unwrap_or_else(|error| {
                log::warn!("rdma control queue: {error}");
                0
            });
            self.queue.push(&self.chain, written)?;
        }
        if served > 0 {
            self.queue.signal()?;
        }
        Ok(served > 0)
    }

    /// Carries out the command of one chain. Returns the bytes of its reply.
    fn carry_out(&mut self, device: &mut RdmaDevice) -> Result<usize, QueueError> {
        // Of a command that is too long, as much as it takes for the device to see that.
        let length = self.chain.readable.len().min(self.max_command + 1);
        self.request.resize(length, 0);
        self.chain
            .readable
            .read(&self.memory, 0, &mut self.request)?;
        let room = self.chain.writable.len();
        device.command(&self.request, &mut self.reply, room);
        self.chain.writable.write(&self.memory, 0, &self.reply)?;
        Ok(self.reply.len())
    }

    /// Asks for notifications. True when commands came in before that.
    pub(super) fn before_sleep(&mut self) -> bool {
        if self.broken {
            return false;
        }
        match self.queue.enable_notification() {
            Ok(waiting) => waiting,
            Err(error) => self.fail(&error),
        }
    }

    fn fail(&mut self, error: &QueueError) -> bool {
        self.broken = true;
        self.queue.fail(error);
        false
    }
}

/// The event queues and the doorbell pages of contexts: the device's way to the driver.
pub(super) struct DriverEvents {
    /// Asynchronous events, then completion vectors; none after it broke.
    queues: Vec<Option<DeviceQueue>>,
    memory: Arc<GuestRam>,
    chain: Chain,
    doorbells: Arc<dyn Doorbells>,
    pages: BTreeMap<u32, EventFd>,
    waiter: Arc<Waiter>,
}

impl DriverEvents {
    pub(super) fn new(
        queues: Vec<DeviceQueue>,
        memory: Arc<GuestRam>,
        doorbells: Arc<dyn Doorbells>,
        waiter: Arc<Waiter>,
    ) -> Self {
        DriverEvents {
            queues: queues.into_iter().map(Some).collect(),
            memory,
            chain: Chain::default(),
            doorbells,
            pages: BTreeMap::new(),
            waiter,
        }
    }

    /// Makes a doorbell page wake the device's thread.
    pub(super) fn attach(&mut self, page: u32) -> io::Result<()> {
        let fd = EventFd::new(libc::EFD_NONBLOCK | libc::EFD_CLOEXEC)?;
        self.waiter.add_event(&fd, Token::Doorbell(page))?;
        self.doorbells.attach(page, fd.try_clone()?)?;
        self.pages.insert(page, fd);
        Ok(())
    }

    /// Puts an event into the next buffer of a queue. False when it has none; then the driver is asked to notify when it adds one.
    fn send(&mut self, queue: u16, event: &[u8]) -> bool {
        let slot = usize::from(queue - ASYNCHRONOUS);
        let Some(Some(queue)) = self.queues.get_mut(slot) else {
            // The driver did not enable it, or broke it: nobody will ever take the event.
            return true;
        };
        match put(queue, &self.memory, &mut self.chain, event) {
            Ok(sent) => sent,
            Err(error) => {
                queue.fail(&error);
                self.queues[slot] = None;
                true
            }
        }
    }
}

/// As [`DriverEvents::send`].
fn put(
    queue: &mut DeviceQueue,
    memory: &GuestRam,
    chain: &mut Chain,
    event: &[u8],
) -> Result<bool, QueueError> {
    // Each turn takes a buffer from the driver, or ends the loop; a queue has no more buffers than descriptors at a time, and a driver
    // that adds useless ones as fast as they are given back is stopped here.
    for _ in 0..=u16::MAX {
        if !queue.pop(chain)? {
            if queue.enable_notification()? {
                continue;
            }
            return Ok(false);
        }
        match chain.writable.write(memory, 0, event) {
            Ok(()) => {
                queue.push(chain, event.len())?;
                queue.signal()?;
                return Ok(true);
            }
            Err(error) => {
                log::warn!("rdma event queue: {error}");
                queue.push(chain, 0)?;
            }
        }
    }
    Ok(false)
}

impl EventSink for DriverEvents {
    fn asynchronous(&mut self, event: AsyncEvent) -> bool {
        let buffer = AsyncEventBuffer {
            kind: Le32::new(event.kind as u32),
            handle: Le32::new(event.handle),
            reserved: Le64::new(0),
        };
        self.send(ASYNCHRONOUS, buffer.as_bytes())
    }

    fn completion(&mut self, vector: u16, cqn: u32, sequence: u32) -> bool {
        let buffer = CompletionEvent {
            cqn: Le32::new(cqn),
            sequence: Le32::new(sequence),
        };
        self.send(COMPLETION.saturating_add(vector), buffer.as_bytes())
    }

    fn open_doorbell(&mut self, page: u32) -> bool {
        self.attach(page)
            .inspect_err(|error| log::warn!("rdma doorbell page {page}: {error}"))
            .is_ok()
    }

    fn close_doorbell(&mut self, page: u32) {
        self.doorbells.detach(page);
        if let Some(fd) = self.pages.remove(&page) {
            self.waiter.remove(&fd);
        }
    }
}

impl Drop for DriverEvents {
    fn drop(&mut self) {
        for page in self.pages.keys() {
            self.doorbells.detach(*page);
        }
    }
}
