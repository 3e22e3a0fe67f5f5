//! The whole device, without a transport: commands, doorbells and polls in, replies, events and frames out. One thread owns it.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::control;
use super::engine::{Engine, Receiver};
use super::events::{EventKind, EventSink};
use super::fabric::Fabric;
use super::limits::Limits;
use super::memory::DmaSpace;
use super::objects::{Objects, QpState};
use super::stats::Stats;
use super::wire::feature;

/// What a monitor decides about a device.
#[derive(Clone, Debug)]
pub struct DeviceConfig {
    /// MAC address of the network device that this one is paired with; GUIDs are made from it.
    pub mac: [u8; 6],
    /// Completion vectors, at least 1.
    pub num_vectors: u16,
    /// How much the driver may have.
    pub limits: Limits,
    /// Feature bits that were negotiated ([`feature`]).
    pub features: u64,
}

impl DeviceConfig {
    /// Feature bits that this device can offer.
    pub const FEATURES: u64 = feature::UC
        | feature::UD
        | feature::SRQ
        | feature::ATOMICS
        | feature::FRWR
        | feature::MW
        | feature::CQ_RESIZE
        | feature::USER_DOORBELL
        | feature::XRC
        | feature::DMA_MR
        | feature::ATOMIC_WRITE
        | feature::FLUSH;

    /// Node and system image GUID: the EUI-64 of the MAC address.
    pub fn guid(&self) -> [u8; 8] {
        let m = self.mac;
        [m[0] ^ 2, m[1], m[2], 0xff, 0xfe, m[3], m[4], m[5]]
    }
}

/// Whether the device's thread may sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sleep {
    /// No: there is work.
    No,
    /// Until something wakes it (a doorbell, a command, an event buffer, the fabric's descriptor), or until this time.
    Until(Option<Instant>),
}

/// An RDMA device.
pub struct RdmaDevice {
    config: DeviceConfig,
    objects: Objects,
    engine: Engine,
    fabric: Box<dyn Fabric>,
    sink: Box<dyn EventSink>,
    dma: Arc<dyn DmaSpace>,
    stats: Arc<Stats>,
    start: Instant,
}

impl RdmaDevice {
    /// A device without objects. It touches no memory but that which `dma` gives, and that while it is registered.
    pub fn new(
        config: DeviceConfig,
        dma: Arc<dyn DmaSpace>,
        fabric: Box<dyn Fabric>,
        sink: Box<dyn EventSink>,
    ) -> Self {
        Self::with_stats(config, dma, fabric, sink, Arc::default())
    }

    /// As [`RdmaDevice::new`], going on with counters that exist.
    pub fn with_stats(
        config: DeviceConfig,
        dma: Arc<dyn DmaSpace>,
        fabric: Box<dyn Fabric>,
        sink: Box<dyn EventSink>,
        stats: Arc<Stats>,
    ) -> Self {
        let objects = Objects::new(
            config.limits.clone(),
            config.features,
            dma.clone(),
            stats.clone(),
        );
        RdmaDevice {
            config,
            objects,
            engine: Engine::default(),
            fabric,
            sink,
            dma,
            stats,
            start: Instant::now(),
        }
    }

    /// The device's clock at a time, in nanoseconds.
    fn clock(&self, now: Instant) -> u64 {
        let elapsed = now.saturating_duration_since(self.start).as_nanos();
        u64::try_from(elapsed).unwrap_or(u64::MAX)
    }

    /// Carries out a command from the control queue. The reply, header included, replaces what is in `reply`; it is no longer than
    /// `reply_room`, and empty when not even a header fits.
    pub fn command(&mut self, request: &[u8], reply: &mut Vec<u8>, reply_room: usize) {
        self.objects.cqs.timestamp = self.clock(Instant::now());
        let mut control = control::Control {
            config: &self.config,
            objects: &mut self.objects,
            engine: &mut self.engine,
            fabric: &mut *self.fabric,
            sink: &mut *self.sink,
        };
        control.execute(request, reply, reply_room);
    }

    /// A doorbell page was written to: a process (the page of its context) or the kernel (page 0) has posted work.
    pub fn doorbell(&mut self, page: u32) {
        self.engine.doorbell(&mut self.objects, page);
    }

    /// One bounded round of everything. True if there was work, and so perhaps is more.
    pub fn poll(&mut self) -> bool {
        let now = Instant::now();
        self.objects.cqs.timestamp = self.clock(now);
        let mut worked = self.fabric.poll(&mut Receiver {
            engine: &mut self.engine,
            objects: &mut self.objects,
            now,
        });
        worked |= self.engine.round(&mut self.objects, &mut *self.fabric, now);
        worked |= self.fail_overflowed();
        self.fabric.flush();
        self.objects.cqs.check_armed();
        worked |= self.objects.events.deliver(&mut *self.sink);
        worked |= self.objects.cqs.deliver(&mut *self.sink);
        worked
    }

    /// Takes the QPs bound to CQs that overflowed to ERR (section 7).
    fn fail_overflowed(&mut self) -> bool {
        let mut any = false;
        while let Some(cqn) = self.objects.cqs.take_failed() {
            any = true;
            for qpn in self.objects.qps_of_cq(cqn) {
                let Some(qp) = self.objects.qps.get_mut(qpn) else {
                    continue;
                };
                let old = qp.fail(Some(EventKind::QpFatal), &mut self.objects.events);
                if old != QpState::Err {
                    self.engine
                        .qp_state_changed(&mut self.objects, &*self.fabric, qpn, old, 0);
                }
            }
        }
        any
    }

    /// Asks to be woken for whatever comes, and looks once more whether something has come already.
    pub fn before_sleep(&mut self) -> Sleep {
        if self.engine.before_sleep(&mut self.objects) {
            return Sleep::No;
        }
        let held = self.objects.cqs.next_held();
        let event = held.and_then(|at| self.start.checked_add(Duration::from_nanos(at)));
        let timer = self.engine.next_timer();
        Sleep::Until(timer.into_iter().chain(event).min())
    }

    /// The fabric's descriptor: readable when [`RdmaDevice::poll`] has work from there.
    pub fn wait_fd(&self) -> RawFd {
        self.fabric.wait_fd()
    }

    /// The counters, which any thread may read while the device runs.
    pub fn stats(&self) -> Arc<Stats> {
        self.stats.clone()
    }

    /// The objects, to look at.
    pub fn objects(&self) -> &Objects {
        &self.objects
    }

    /// Drops all objects, and with them every use of guest memory. The fabric keeps its links; peers that wait for an answer are told that
    /// none comes.
    pub fn reset(&mut self) {
        self.fabric.forget_memory();
        self.fabric.announce(&[]);
        let contexts: Vec<u32> = self.objects.contexts.pages().collect();
        for page in contexts {
            self.sink.close_doorbell(page);
        }
        let qpns: Vec<u32> = self.objects.qps.iter().map(|qp| qp.qpn).collect();
        for qpn in qpns {
            self.engine.qp_destroyed(&mut self.objects, qpn);
            self.objects.remove_qp(qpn);
        }
        self.engine.farewell(&mut *self.fabric);
        self.engine = Engine::default();
        self.objects = Objects::new(
            self.config.limits.clone(),
            self.config.features,
            self.dma.clone(),
            self.stats.clone(),
        );
    }

    /// Resets the device and gives back its fabric.
    pub fn into_fabric(mut self) -> Box<dyn Fabric> {
        self.reset();
        self.fabric
    }
}
