//! What every machine has: its address spaces, ports that end it, the PCI root bus, COM1.

use std::io;
use std::sync::{Arc, Mutex};

use arch::GuestRam;
use arch::x86_64::layout::{self, Range};
use devices::bus::{Bus, BusError};
use devices::interrupt::IoEvents;
use devices::legacy::{GuestEventSink, I8042, PowerControl, PvpanicPci, SerialConsole, SerialPort};
use devices::pci::{ConfigPorts, Ecam, PciRoot};
use devices::virtio::VirtioDevice;
use devices::virtio::pci::VirtioPci;
use kvm_ioctls::VmFd;

use super::Error;
use crate::console::Sink;
use crate::interrupts::{KvmInterrupts, KvmIoEvents, KvmMsi};
use crate::outcome::{self, OutcomeCell};
use crate::vcpu::Buses;

/// The machine's frame, into which devices are put.
pub struct Platform {
    /// Address spaces of the vCPUs.
    pub buses: Buses,
    ram: Arc<GuestRam>,
    root: Arc<PciRoot>,
    interrupts: Arc<KvmInterrupts>,
    msi: KvmMsi,
    io_events: Arc<dyn IoEvents>,
    /// The virtio devices, to be reset when the machine ends.
    pub virtio: Vec<Arc<Mutex<dyn VirtioDevice>>>,
}

impl Platform {
    /// A frame for `vm`, whose BARs lie in `window`; what the guest says about its end is reported to `outcome`.
    pub fn new(
        vm: &Arc<VmFd>,
        ram: &Arc<GuestRam>,
        window: Range,
        outcome: &Arc<OutcomeCell>,
    ) -> Result<Self, Error> {
        let buses = Buses {
            ports: Arc::new(Bus::new()),
            memory: Arc::new(Bus::new()),
        };
        let root = Arc::new(PciRoot::new(
            buses.memory.clone(),
            window.base..=window.end() - 1,
        ));
        let sink = event_sink(outcome);
        attach_ports(&buses.ports, &root, &sink)?;
        buses.memory.insert(
            layout::ECAM.base,
            layout::ECAM.len,
            Arc::new(Mutex::new(Ecam(root.clone()))),
        )?;
        root.add(Arc::new(Mutex::new(PvpanicPci::new(sink))))?;
        let interrupts = KvmInterrupts::new(vm.clone()).map_err(|source| Error::Host {
            what: "routing interrupts",
            source,
        })?;
        Ok(Self {
            buses,
            ram: ram.clone(),
            root,
            msi: KvmMsi(interrupts.clone()),
            interrupts,
            io_events: Arc::new(KvmIoEvents(vm.clone())),
            virtio: Vec::new(),
        })
    }

    /// Puts COM1 into the machine.
    pub fn add_serial(&self, sink: Sink) -> Result<SerialConsole, Error> {
        let irq = self.interrupts.pin(layout::COM1_IRQ);
        let irq = irq.map_err(|source| Error::Host {
            what: "the serial console's interrupt",
            source,
        })?;
        let port = SerialPort::new(irq, Box::new(sink));
        let console = port.console();
        self.buses.ports.insert(
            layout::COM1_PORT.into(),
            SerialPort::LEN,
            Arc::new(Mutex::new(port)),
        )?;
        Ok(console)
    }

    /// Puts a virtio device on the PCI bus.
    pub fn add_virtio(&mut self, device: Arc<Mutex<dyn VirtioDevice>>) -> Result<(), Error> {
        let function = VirtioPci::new(
            device.clone(),
            self.ram.clone(),
            &self.msi,
            self.io_events.clone(),
        );
        let function = function.map_err(|source: io::Error| Error::Host {
            what: "a virtio device",
            source,
        })?;
        self.root.add(Arc::new(Mutex::new(function)))?;
        self.virtio.push(device);
        Ok(())
    }
}

fn event_sink(outcome: &Arc<OutcomeCell>) -> GuestEventSink {
    let outcome = outcome.clone();
    Arc::new(move |event| {
        if let Some(end) = outcome::of_guest_event(event) {
            outcome.report(end);
        }
    })
}

fn attach_ports(ports: &Bus, root: &Arc<PciRoot>, sink: &GuestEventSink) -> Result<(), BusError> {
    ports.insert(
        layout::SLEEP_CONTROL_PORT.into(),
        PowerControl::LEN,
        Arc::new(Mutex::new(PowerControl::new(sink.clone()))),
    )?;
    ports.insert(
        I8042::BASE,
        I8042::LEN,
        Arc::new(Mutex::new(I8042::new(sink.clone()))),
    )?;
    ports.insert(
        ConfigPorts::BASE,
        ConfigPorts::LEN,
        Arc::new(Mutex::new(ConfigPorts::new(root.clone()))),
    )
}

// The tables tell the guest what the devices do.
const _: () = {
    assert!(layout::SLEEP_TYPE_S5 == PowerControl::S5_TYPE);
    assert!(layout::RESET_VALUE == PowerControl::RESET_VALUE);
    let status = layout::SLEEP_STATUS_PORT - layout::SLEEP_CONTROL_PORT;
    assert!(status as u64 == PowerControl::SLEEP_STATUS);
    let reset = layout::RESET_PORT - layout::SLEEP_CONTROL_PORT;
    assert!(reset as u64 == PowerControl::RESET);
    assert!(layout::COM1_PORT as u64 == SerialPort::COM1);
};
