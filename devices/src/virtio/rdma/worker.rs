//! The device's thread. It lives as long as the device: between drivers it keeps the fabric's links alive.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::time::{Duration, Instant};

use vmm_sys_util::eventfd::EventFd;

use super::queues::{CONTROL, ControlQueue, DriverEvents};
use super::wait::{Token, Waiter};
use crate::rdma::engine::Vacant;
use crate::rdma::fabric::Fabric;
use crate::rdma::memory::DmaSpace;
use crate::rdma::stats::Stats;
use crate::rdma::wire::feature;
use crate::rdma::{DeviceConfig, RdmaDevice, Sleep};

/// What the thread is told.
pub(super) enum Message {
    /// A driver is there.
    Activate(Box<Session>),
    /// The driver is gone. Answered when nothing of it is touched any more.
    Reset(Sender<()>),
    /// Stand still. Answered when the thread does.
    Pause(Sender<()>),
    /// Go on.
    Resume,
}

/// All of an activation that the thread needs.
pub(super) struct Session {
    pub config: DeviceConfig,
    pub dma: Arc<dyn DmaSpace>,
    pub control: ControlQueue,
    pub events: DriverEvents,
    pub waiter: Arc<Waiter>,
}

/// How long the thread looks for more work before it sleeps: as long as that has paid of late.
struct Patience {
    now: Duration,
    most: Duration,
}

/// Where patience begins again after it had come down to nothing.
const PATIENCE_STEP: Duration = Duration::from_micros(4);

impl Patience {
    fn new(most: Duration) -> Self {
        Patience { now: most, most }
    }

    /// Work came while the thread was looking for it.
    fn paid(&mut self) {
        self.now = (self.now * 2).max(PATIENCE_STEP).min(self.most);
    }

    /// The thread looked in vain.
    fn wasted(&mut self) {
        self.now /= 2;
        if self.now < PATIENCE_STEP {
            self.now = Duration::ZERO;
        }
    }

    /// Work came soon after the thread went to sleep.
    fn missed(&mut self, slept: Duration) {
        if slept <= self.most {
            self.paid();
        }
    }
}

/// Descriptors are looked at this often while there is other work.
const LOOK_EVERY: Duration = Duration::from_micros(20);

/// The thread's state between messages.
pub(super) struct Worker {
    pub messages: Receiver<Message>,
    pub wake: EventFd,
    pub stats: Arc<Stats>,
    pub patience: Duration,
}

/// How a stretch of the thread's work ended.
enum Next {
    /// With a driver that is there.
    Activate(Box<Session>),
    /// With a driver that is gone, and someone who waits for that.
    Reset(Sender<()>),
    /// With the device.
    End,
}

impl Worker {
    /// The thread.
    pub(super) fn run(self, mut fabric: Box<dyn Fabric>) {
        let mut next = self.idle(&mut *fabric);
        loop {
            next = match next {
                Next::End => return,
                Next::Reset(done) => {
                    // Nobody waits any more if this fails.
                    let _ = done.send(());
                    self.idle(&mut *fabric)
                }
                Next::Activate(session) => {
                    let (back, next) = self.serve(*session, fabric);
                    fabric = back;
                    next
                }
            };
        }
    }

    /// What the thread was told to do next, if anything. A pause is over when this returns.
    fn told(&self) -> Option<Next> {
        let mut paused = false;
        loop {
            let message = if paused {
                self.messages.recv().map_err(|_| TryRecvError::Disconnected)
            } else {
                self.messages.try_recv()
            };
            match message {
                Ok(Message::Activate(session)) => return Some(Next::Activate(session)),
                Ok(Message::Reset(done)) => return Some(Next::Reset(done)),
                Ok(Message::Pause(done)) => {
                    paused = true;
                    // Nobody waits any more if this fails.
                    let _ = done.send(());
                }
                Ok(Message::Resume) => return None,
                Err(TryRecvError::Empty) => return None,
                Err(TryRecvError::Disconnected) => return Some(Next::End),
            }
        }
    }

    /// Without a driver: keeps the fabric's links alive and tells peers that nobody is there.
    fn idle(&self, fabric: &mut dyn Fabric) -> Next {
        let waiter = match self.idle_waiter(fabric) {
            Ok(waiter) => waiter,
            Err(error) => {
                log::error!("rdma device thread ends: {error}");
                return Next::End;
            }
        };
        let (mut vacant, mut tokens) = (Vacant::default(), Vec::new());
        loop {
            if let Some(next) = self.told() {
                return next;
            }
            if !vacant.poll(fabric) {
                waiter.wait(None, &mut tokens);
            }
        }
    }

    fn idle_waiter(&self, fabric: &dyn Fabric) -> io::Result<Waiter> {
        let waiter = Waiter::new()?;
        waiter.add_event(&self.wake, Token::Message)?;
        waiter.add_level(fabric.wait_fd(), Token::Fabric)?;
        Ok(waiter)
    }

    /// With a driver, until it is gone.
    fn serve(&self, session: Session, fabric: Box<dyn Fabric>) -> (Box<dyn Fabric>, Next) {
        let Session {
            config,
            dma,
            mut control,
            events,
            waiter,
        } = session;
        let watched = waiter
            .add_event(&self.wake, Token::Message)
            .and_then(|()| waiter.add_level(fabric.wait_fd(), Token::Fabric));
        if let Err(error) = watched {
            log::error!("rdma device thread ends: {error}");
            return (fabric, Next::End);
        }
        let kicks_are_doorbells = config.features & feature::USER_DOORBELL == 0;
        let stats = self.stats.clone();
        let mut device = RdmaDevice::with_stats(config, dma, fabric, Box::new(events), stats);
        let mut patience = Patience::new(self.patience);
        let mut tokens = Vec::new();
        let mut looked = Instant::now();
        // Since when there has been no work.
        let mut idle: Option<Instant> = None;
        let next = loop {
            if let Some(next) = self.told() {
                break next;
            }
            let mut worked = control.serve(&mut device);
            worked |= device.poll();
            let now = Instant::now();
            if now.duration_since(looked) >= LOOK_EVERY {
                looked = now;
                waiter.check(&mut tokens);
                self.ring(&mut device, &tokens, kicks_are_doorbells);
                // An edge is seen once: whatever it stands for is looked at before the thread may sleep.
                worked |= !tokens.is_empty();
            }
            if worked {
                if idle.take().is_some() {
                    patience.paid();
                }
                continue;
            }
            let since = *idle.get_or_insert(now);
            if now.duration_since(since) < patience.now {
                std::hint::spin_loop();
                continue;
            }
            idle = None;
            patience.wasted();
            let Sleep::Until(until) = device.before_sleep() else {
                continue;
            };
            if control.before_sleep() {
                continue;
            }
            waiter.wait(until, &mut tokens);
            self.stats.thread.sleeps.add(1);
            looked = Instant::now();
            patience.missed(looked.duration_since(now));
            self.ring(&mut device, &tokens, kicks_are_doorbells);
        };
        (device.into_fabric(), next)
    }

    /// Passes doorbells on.
    fn ring(&self, device: &mut RdmaDevice, tokens: &[Token], kicks_are_doorbells: bool) {
        for token in tokens {
            let page = match token {
                Token::Doorbell(page) => *page,
                Token::Queue(CONTROL) if kicks_are_doorbells => 0,
                // These are looked at in every round anyway.
                Token::Queue(_) | Token::Message | Token::Fabric => continue,
            };
            self.stats.thread.doorbells.add(1);
            device.doorbell(page);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_grows_while_it_pays_and_ends_when_it_does_not() {
        let most = Duration::from_micros(50);
        let mut patience = Patience::new(most);
        for _ in 0..8 {
            patience.wasted();
        }
        assert_eq!(patience.now, Duration::ZERO);
        patience.missed(Duration::from_millis(5));
        assert_eq!(patience.now, Duration::ZERO);
        patience.missed(Duration::from_micros(30));
        assert_eq!(patience.now, PATIENCE_STEP);
        for _ in 0..8 {
            patience.paid();
        }
        assert_eq!(patience.now, most);
        let mut none = Patience::new(Duration::ZERO);
        none.paid();
        none.missed(Duration::ZERO);
        assert_eq!(none.now, Duration::ZERO);
    }
}
