//! A machine, from its configuration to its end.

mod build;
mod devices;
mod error;
mod net;
mod platform;
mod rdma;
mod vsock;

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use ::devices::bus::lock;
use ::devices::legacy::SerialConsole;
use ::devices::virtio::VirtioDevice;
use api::control::{Stats, VmInfo, VmState};
use arch::GuestRam;

use self::devices::{Devices, Snapshot};
pub use error::Error;

use crate::outcome::OutcomeCell;
use crate::vcpu::Vcpus;

/// A running machine.
///
/// [`Machine::end`] must be called before the process goes on without it: only then is it certain that no thread touches guest
/// memory.
pub struct Machine {
    vcpus: Vcpus,
    outcome: Arc<OutcomeCell>,
    serial: SerialConsole,
    devices: Devices,
    virtio: Vec<Arc<Mutex<dyn VirtioDevice>>>,
    started: Instant,
    info: VmInfo,
    ended: AtomicBool,
    /// Last, so that it goes last: the virtual machine and devices point into it.
    ram: Arc<GuestRam>,
}

impl Machine {
    /// Lets the vCPUs run.
    pub fn resume(&self) {
        self.vcpus.resume();
    }

    /// Holds the vCPUs; returns when all have left the guest. Devices and the fabric go on.
    pub fn pause(&self) {
        self.vcpus.pause();
    }

    /// Where the end of the machine is reported.
    pub fn outcome(&self) -> &Arc<OutcomeCell> {
        &self.outcome
    }

    /// Guest RAM.
    pub fn memory(&self) -> &Arc<GuestRam> {
        &self.ram
    }

    /// The host's end of the serial console, to type into it.
    pub fn console(&self) -> &SerialConsole {
        &self.serial
    }

    fn state(&self) -> VmState {
        if self.vcpus.paused() {
            VmState::Paused
        } else {
            VmState::Running
        }
    }

    /// What the machine is.
    pub fn info(&self) -> VmInfo {
        VmInfo {
            state: self.state(),
            ..self.info.clone()
        }
    }

    /// Counters.
    pub fn stats(&self) -> Stats {
        let take = |of: &[Snapshot]| of.iter().map(|snapshot| snapshot()).collect();
        Stats {
            uptime_seconds: self.started.elapsed().as_secs_f64(),
            state: self.state(),
            vcpus: self.vcpus.stats(),
            disks: take(&self.devices.snapshots.disks),
            net: take(&self.devices.snapshots.net),
            rdma: take(&self.devices.snapshots.rdma),
        }
    }

    /// Ends the vCPUs and the devices. Nothing happens when it was called before.
    pub fn end(&self) {
        if !self.ended.swap(true, Ordering::AcqRel) {
            self.vcpus.end();
            for device in &self.virtio {
                lock(device).reset();
            }
            // The process may end while other threads still hold the machine, so what is left in the file system goes now.
            if let Some(path) = &self.devices.vsock {
                let _ = fs::remove_file(path);
            }
            drop(lock(&self.devices.dir).take());
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.end();
    }
}
