//! Building a machine: every part in the order in which they need each other.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use api::VmConfig;
use api::control::{VmInfo, VmState};
use arch::GuestRam;
use arch::x86_64::boot::{self, Entry};
use arch::x86_64::{acpi, layout, reset};

use super::platform::Platform;
use super::{Error, Machine, devices};
use crate::console::Sink;
use crate::hypervisor::Hypervisor;
use crate::memory;
use crate::outcome::OutcomeCell;
use crate::vcpu::Vcpus;

impl Machine {
    /// Builds the machine that `config`, which must be valid, asks for. Its vCPUs are held until [`Machine::resume`].
    pub fn new(config: &VmConfig) -> Result<Self, Error> {
        let started = Instant::now();
        let host = |what| move |source| Error::Host { what, source };
        let ram = memory::create(&config.memory)?;
        let size = config.memory.size.0;
        // Files are opened before anything of the host is used, so that a wrong name is told at once.
        let entry = load(config, &ram)?;

        let hypervisor = Hypervisor::new(&ram)?;
        let cpuid = hypervisor.cpuid(config.cpus)?;
        let mmio64 = layout::mmio64(size);
        let bits = cpuid.physical_address_bits();
        if bits < 64 && mmio64.end() > 1 << bits {
            let end = mmio64.end();
            return Err(Error::AddressBits { end, bits });
        }
        acpi::write_tables(&ram, config.cpus, mmio64)?;
        reset::write_stub(&ram)?;

        let outcome = Arc::new(OutcomeCell::default());
        let mut platform = Platform::new(&hypervisor.vm, &ram, mmio64, &outcome)?;
        let devices = devices::add(&mut platform, config)?;
        let console = config.serial();
        let sink = Sink::open(&console).map_err(|source| Error::File {
            option: "--serial",
            path: match &console {
                api::SerialConfig::File(path) => path.clone(),
                _ => "stdio".into(),
            },
            source,
        })?;
        let serial = platform.add_serial(sink)?;

        let vcpus = hypervisor.vcpus(&ram, &cpuid, config.cpus, &entry)?;
        let vcpus = Vcpus::start(vcpus, &platform.buses, &outcome)
            .map_err(host("starting vCPU threads"))?;
        log::debug!("machine built in {:?}", started.elapsed());
        Ok(Self {
            vcpus,
            outcome,
            serial,
            virtio: platform.virtio,
            started,
            info: VmInfo {
                pid: std::process::id(),
                state: VmState::Paused,
                cpus: config.cpus,
                memory: size,
                vsock: devices.vsock.clone(),
            },
            devices,
            ended: AtomicBool::new(false),
            ram,
        })
    }
}

fn open(option: &'static str, path: &Path) -> Result<File, Error> {
    let file = |source| Error::File {
        option,
        path: path.into(),
        source,
    };
    File::open(path).map_err(file)
}

/// Loads kernel, initrd and what is handed to the kernel.
fn load(config: &VmConfig, ram: &GuestRam) -> Result<Entry, Error> {
    let boot_error = |option, path: &Path| {
        let path = path.to_path_buf();
        move |source| Error::Boot {
            option,
            path,
            source,
        }
    };
    let mut image = open("--kernel", &config.kernel)?;
    let kernel =
        boot::load_kernel(ram, &mut image).map_err(boot_error("--kernel", &config.kernel))?;
    let initrd = match &config.initrd {
        None => None,
        Some(path) => {
            let mut image = open("--initrd", path)?;
            let loaded = boot::load_initrd(ram, &kernel, &mut image);
            Some(loaded.map_err(boot_error("--initrd", path))?)
        }
    };
    let cmdline = config.cmdline();
    boot::write_boot_data(ram, &kernel, &cmdline, initrd, config.memory.size.0)
        .map_err(Error::BootData)?;
    Ok(kernel.entry)
}
