//! The virtio face of the RDMA device (virtio device ID 42; `docs/virtio-rdma.md`, sections 1 to 3): configuration, virtqueues, doorbell
//! pages, and the thread that owns the device. The device itself is [`crate::rdma`].
//!
//! The thread lives from creation on, because the fabric's links do: a driver that goes, or a guest that reboots, does not end them.

use std::io;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use vmm_sys_util::eventfd::EventFd;
use zerocopy::IntoBytes;

use self::queues::{ASYNCHRONOUS, COMPLETION, CONTROL, ControlQueue, DriverEvents};
use self::wait::{Token, Waiter};
use self::worker::{Message, Session, Worker};
use super::queue::DeviceQueue;
use super::{
    ActivateError, Activation, COMMON_FEATURES, FEATURE_ACCESS_PLATFORM, VirtioDevice,
    read_config_image,
};
use crate::bus::lock;
use crate::rdma::fabric::Fabric;
use crate::rdma::memory::IdentityDma;
use crate::rdma::stats::Stats;
use crate::rdma::wire::{Config, DEVICE_ID, Le16, Le32, Le64, feature};
use crate::rdma::{DeviceConfig, Limits};

mod queues;
#[cfg(test)]
mod tests;
mod wait;
mod worker;

/// Sizes of the virtqueues.
const CONTROL_SIZE: u16 = 128;
const ASYNCHRONOUS_SIZE: u16 = 256;
const COMPLETION_SIZE: u16 = 1024;

/// What a monitor decides about the device.
#[derive(Clone, Debug)]
pub struct RdmaOptions {
    /// MAC address of the network device of the same guest that this one is paired with.
    pub mac: [u8; 6],
    /// Completion vectors, 1 to [`RdmaOptions::MAX_VECTORS`]; one for each vCPU is a good number.
    pub num_vectors: u16,
    /// How much the driver may have.
    pub limits: Limits,
    /// Where the transport has the doorbell pages: the BAR, on PCI ([`super::pci::DOORBELL_BAR`]).
    pub doorbell_bar: u8,
    /// And the offset of page 0 in it.
    pub doorbell_offset: u64,
    /// How long the device's thread looks for more work before it sleeps, at most. More costs processor time, less costs latency.
    pub patience: Duration,
}

impl RdmaOptions {
    /// Completion vectors at most.
    pub const MAX_VECTORS: u16 = 32;

    /// Options for a device paired with the network device of this MAC address.
    pub fn new(mac: [u8; 6]) -> Self {
        RdmaOptions {
            mac,
            num_vectors: 1,
            limits: Limits::default(),
            doorbell_bar: super::pci::DOORBELL_BAR,
            doorbell_offset: 0,
            patience: Duration::from_micros(50),
        }
    }
}

/// The RDMA device as a virtio device.
pub struct VirtioRdma {
    config: Config,
    device: DeviceConfig,
    sizes: Vec<u16>,
    stats: Arc<Stats>,
    thread: ThreadHandle,
    join: Option<JoinHandle<()>>,
    active: bool,
}

/// A way to stop the device's thread for a while, from any thread.
#[derive(Clone)]
pub struct ThreadHandle {
    /// `Sender` may be shared between threads, but is cheaper to reason about when one at a time uses it.
    messages: Arc<Mutex<Option<Sender<Message>>>>,
    wake: Arc<EventFd>,
}

impl ThreadHandle {
    fn send(&self, message: Message) -> io::Result<()> {
        let gone = || io::Error::other("the rdma device's thread has ended");
        lock(&self.messages)
            .as_ref()
            .ok_or_else(gone)?
            .send(message)
            .map_err(|_| gone())?;
        self.wake.write(1)
    }

    /// Sends a message with an answer, and waits for that.
    fn ask(&self, message: impl FnOnce(Sender<()>) -> Message) -> io::Result<()> {
        let (done, wait) = channel();
        self.send(message(done))?;
        wait.recv()
            .map_err(|_| io::Error::other("the rdma device's thread has ended"))
    }

    /// Makes the thread stand still. When this returns, it touches no guest memory and no fabric until [`ThreadHandle::resume`], or until
    /// the driver resets the device.
    pub fn pause(&self) -> io::Result<()> {
        self.ask(Message::Pause)
    }

    /// Lets the thread go on.
    pub fn resume(&self) -> io::Result<()> {
        self.send(Message::Resume)
    }
}

impl VirtioRdma {
    /// A device on a fabric, which counts in `stats`; the fabric may have been given the same. Its thread starts at once.
    ///
    /// # Errors
    /// `InvalidInput` for options that cannot be; others when the host refuses a thread or a descriptor.
    pub fn new(
        options: RdmaOptions,
        fabric: Box<dyn Fabric>,
        stats: Arc<Stats>,
    ) -> io::Result<Self> {
        let vectors = options.num_vectors;
        if !(1..=RdmaOptions::MAX_VECTORS).contains(&vectors) {
            let text = format!(
                "rdma device: {vectors} completion vectors; 1 to {} are possible",
                RdmaOptions::MAX_VECTORS
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        options
            .limits
            .check()
            .map_err(|text| io::Error::new(io::ErrorKind::InvalidInput, text))?;
        let config = Config {
            mac: options.mac,
            num_vectors: Le16::new(vectors),
            doorbell_pages: Le32::new(options.limits.doorbell_pages()),
            doorbell_bar: options.doorbell_bar,
            reserved: [0; 3],
            doorbell_offset: Le64::new(options.doorbell_offset),
        };
        let mut sizes = vec![CONTROL_SIZE, ASYNCHRONOUS_SIZE];
        sizes.extend((0..vectors).map(|_| COMPLETION_SIZE));
        let (send, receive) = channel();
        let wake = EventFd::new(libc::EFD_NONBLOCK | libc::EFD_CLOEXEC)?;
        let worker = Worker {
            messages: receive,
            wake: wake.try_clone()?,
            stats: stats.clone(),
            patience: options.patience,
        };
        let join = std::thread::Builder::new()
            .name("rdma".into())
            .spawn(move || worker.run(fabric))?;
        Ok(VirtioRdma {
            config,
            device: DeviceConfig {
                mac: options.mac,
                num_vectors: vectors,
                limits: options.limits,
                features: DeviceConfig::FEATURES,
            },
            sizes,
            stats,
            thread: ThreadHandle {
                messages: Arc::new(Mutex::new(Some(send))),
                wake: Arc::new(wake),
            },
            join: Some(join),
            active: false,
        })
    }

    /// The device's counters. They go on over resets.
    pub fn stats(&self) -> Arc<Stats> {
        self.stats.clone()
    }

    /// The device's thread.
    pub fn thread(&self) -> ThreadHandle {
        self.thread.clone()
    }

    /// Makes all that the thread needs for a driver.
    fn session(&self, mut activation: Activation) -> Result<Session, ActivateError> {
        let features = activation.features;
        if features & FEATURE_ACCESS_PLATFORM == 0 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "rdma device: the driver did not accept VIRTIO_F_ACCESS_PLATFORM",
            )
            .into());
        }
        let waiter = Arc::new(Waiter::new()?);
        let memory = activation.memory.clone();
        let mut take = |index: u16| -> Result<DeviceQueue, ActivateError> {
            let queue = activation.device_queue(index)?;
            waiter.add_event(&queue.kick_fd(), Token::Queue(index))?;
            Ok(queue)
        };
        let control = take(CONTROL)?;
        let mut events = vec![take(ASYNCHRONOUS)?, take(COMPLETION)?];
        // A driver may use fewer vectors than there are, from the first on.
        while let Ok(queue) = take(ASYNCHRONOUS + events.len() as u16) {
            events.push(queue);
        }
        let num_vectors = events.len() as u16 - 1;
        let limits = self.device.limits.clone();
        let control = ControlQueue::new(control, memory.clone(), limits.cmd_bytes);
        let mut events = DriverEvents::new(
            events,
            memory.clone(),
            activation.doorbells.clone(),
            waiter.clone(),
        );
        if features & feature::USER_DOORBELL != 0 {
            events.attach(0)?;
        }
        Ok(Session {
            config: DeviceConfig {
                num_vectors,
                features,
                limits,
                ..self.device
            },
            dma: Arc::new(IdentityDma::new(memory)),
            control,
            events,
            waiter,
        })
    }
}

impl VirtioDevice for VirtioRdma {
    fn device_type(&self) -> u32 {
        DEVICE_ID
    }

    fn features(&self) -> u64 {
        COMMON_FEATURES | DeviceConfig::FEATURES
    }

    fn queue_max_sizes(&self) -> &[u16] {
        &self.sizes
    }

    fn read_config(&self, offset: u64, data: &mut [u8]) {
        read_config_image(self.config.as_bytes(), offset, data);
    }

    fn write_config(&mut self, _: u64, _: &[u8]) {}

    fn activate(&mut self, activation: Activation) -> Result<(), ActivateError> {
        let session = self.session(activation)?;
        self.thread.send(Message::Activate(Box::new(session)))?;
        self.active = true;
        Ok(())
    }

    fn reset(&mut self) {
        if std::mem::take(&mut self.active)
            && let Err(error) = self.thread.ask(Message::Reset)
        {
            log::error!("rdma device: {error}");
        }
    }

    fn doorbell_pages(&self) -> u32 {
        self.device.limits.doorbell_pages()
    }
}

impl Drop for VirtioRdma {
    fn drop(&mut self) {
        // Without a sender the thread ends, paused or not.
        lock(&self.thread.messages).take();
        // Fails only when the counter is full, and then the thread is woken anyway.
        let _ = self.thread.wake.write(1);
        if let Some(join) = self.join.take()
            && join.join().is_err()
        {
            log::error!("the rdma device's thread panicked");
        }
    }
}
