//! Why a machine cannot be built.

use std::io;
use std::path::PathBuf;

use api::OptionError;
use arch::x86_64::{acpi, boot};
use devices::bus::BusError;
use devices::pci::RootError;
use devices::virtio::block::ImageError;
use devices::virtio::vsock::VsockError;
use vm_memory::GuestMemoryError;

use crate::outcome::{EXIT_FAILURE, EXIT_USAGE};
use crate::{hypervisor, memory};

/// Why a machine cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file that an option names cannot be used.
    #[error("{option} {}: {source}", path.display())]
    File {
        /// The option.
        option: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: io::Error,
    },
    /// The kernel or the initrd cannot be loaded.
    #[error("{option} {}: {source}", path.display())]
    Boot {
        /// The option.
        option: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: boot::Error,
    },
    /// The command line, or other boot data.
    #[error("--cmdline: {0}")]
    BootData(boot::Error),
    /// A value that turned out wrong when it was used.
    #[error(transparent)]
    Option(#[from] OptionError),
    /// A disk.
    #[error("--disk: {0}")]
    Disk(#[from] ImageError),
    /// The vsock device.
    #[error("--vsock: {0}")]
    Vsock(#[from] VsockError),
    /// Guest memory.
    #[error("--memory: {0}")]
    Memory(#[from] memory::Error),
    /// KVM.
    #[error(transparent)]
    Hypervisor(#[from] hypervisor::Error),
    /// ACPI tables.
    #[error(transparent)]
    Acpi(#[from] acpi::Error),
    /// Guest memory refused a write.
    #[error("cannot write boot data to guest memory: {0}")]
    Write(#[from] GuestMemoryError),
    /// The PCI bus is full.
    #[error(transparent)]
    Pci(#[from] RootError),
    /// The address map is inconsistent.
    #[error("placing devices: {0}")]
    Bus(#[from] BusError),
    /// The 64-bit window does not fit below the host's limit of physical addresses.
    #[error(
        "--memory: device windows end at {end:#x}, the host has {bits} physical address bits; allowed: less memory"
    )]
    AddressBits {
        /// First address past the window.
        end: u64,
        /// Bits.
        bits: u32,
    },
    /// The host refused something a part needs.
    #[error("{what}: {source}")]
    Host {
        /// The part.
        what: &'static str,
        /// What the host said.
        source: io::Error,
    },
}

impl Error {
    /// The exit status of a command that fails with this error.
    pub fn exit_status(&self) -> i32 {
        match self {
            Self::File { .. }
            | Self::Boot { .. }
            | Self::BootData(_)
            | Self::Disk(_)
            | Self::Vsock(_)
            | Self::Option(_)
            | Self::Memory(_)
            | Self::AddressBits { .. } => EXIT_USAGE,
            Self::Hypervisor(_)
            | Self::Acpi(_)
            | Self::Write(_)
            | Self::Pci(_)
            | Self::Bus(_)
            | Self::Host { .. } => EXIT_FAILURE,
        }
    }
}
