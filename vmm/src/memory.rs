//! Guest RAM: one memfd, mapped shared, so that it can be handed to another process.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::Arc;

use api::{ByteSize, MemoryConfig};
use arch::GuestRam;
use arch::x86_64::layout;
use kvm_bindings::kvm_userspace_memory_region;
use kvm_ioctls::VmFd;
use vm_memory::mmap::MmapRegionBuilder;
use vm_memory::{FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryRegion, GuestRegionMmap};

/// Why guest memory could not be had.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The host gives no memory file.
    #[error("cannot create a memory file of {size}: {source}")]
    Create {
        /// Bytes asked for.
        size: ByteSize,
        /// What the kernel said.
        source: io::Error,
    },
    /// The pool of huge pages is too small.
    #[error(
        "cannot reserve {size} of huge pages: {source}; make room with `sysctl vm.nr_hugepages=N` (2 MiB each) or leave out hugepages=on"
    )]
    HugePages {
        /// Bytes asked for.
        size: ByteSize,
        /// What the kernel said.
        source: io::Error,
    },
    /// The file cannot be mapped.
    #[error("cannot map {size} of guest memory: {message}")]
    Map {
        /// Bytes asked for.
        size: ByteSize,
        /// What went wrong.
        message: String,
    },
    /// KVM refuses the memory.
    #[error("KVM refuses guest memory at {base:#x}: {source}")]
    Slot {
        /// Guest physical address.
        base: u64,
        /// What KVM said.
        source: kvm_ioctls::Error,
    },
}

/// Makes guest RAM as `config` says, laid out around the hole below 4 GiB.
pub fn create(config: &MemoryConfig) -> Result<Arc<GuestRam>, Error> {
    let file = Arc::new(memory_file(config)?);
    let mut offset = 0;
    let mut regions = Vec::new();
    for range in layout::ram_ranges(config.size.0) {
        let region = MmapRegionBuilder::new(range.len as usize)
            .with_mmap_prot(libc::PROT_READ | libc::PROT_WRITE)
            .with_mmap_flags(libc::MAP_SHARED | libc::MAP_NORESERVE)
            .with_file_offset(FileOffset::from_arc(file.clone(), offset))
            .with_hugetlbfs(config.hugepages)
            .build()
            .map_err(|e| map_error(config, &e))?;
        regions.push(
            GuestRegionMmap::new(region, GuestAddress(range.base))
                .ok_or_else(|| map_error(config, &"address overflow"))?,
        );
        offset += range.len;
    }
    let ram = GuestRam::from_regions(regions).map_err(|e| map_error(config, &e))?;
    Ok(Arc::new(ram))
}

fn map_error(config: &MemoryConfig, why: &dyn std::fmt::Display) -> Error {
    Error::Map {
        size: config.size,
        message: why.to_string(),
    }
}

/// A sealed memory file: nobody who is given it can cut it short under our mapping.
fn memory_file(config: &MemoryConfig) -> Result<File, Error> {
    let size = config.size;
    let fail = |source| {
        if config.hugepages {
            Error::HugePages { size, source }
        } else {
            Error::Create { size, source }
        }
    };
    let mut flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    if config.hugepages {
        flags |= libc::MFD_HUGETLB | libc::MFD_HUGE_2MB;
    }
    // SAFETY: the name is a NUL-terminated string, and memfd_create touches no other memory.
    let fd = unsafe { libc::memfd_create(c"longarm-ram".as_ptr(), flags) };
    if fd < 0 {
        return Err(fail(io::Error::last_os_error()));
    }
    // SAFETY: the descriptor was just made, and nobody else owns it.
    let file = unsafe { File::from_raw_fd(fd) };
    file.set_len(size.0).map_err(fail)?;
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: F_ADD_SEALS takes an integer and touches no memory of ours.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } < 0 {
        return Err(fail(io::Error::last_os_error()));
    }
    Ok(file)
}

/// Gives `ram` to the virtual machine, one slot per region. `ram` must outlive `vm`.
pub fn attach(vm: &VmFd, ram: &GuestRam) -> Result<(), Error> {
    for (slot, region) in ram.iter().enumerate() {
        let base = region.start_addr().0;
        let slot = kvm_userspace_memory_region {
            slot: slot as u32,
            flags: 0,
            guest_phys_addr: base,
            memory_size: region.len(),
            userspace_addr: region.as_ptr() as u64,
        };
        // SAFETY: the region is a mapping of our own of exactly this length, and stays mapped as long as the virtual machine
        // lives, which is what the caller promises.
        unsafe { vm.set_user_memory_region(slot) }
            .map_err(|source| Error::Slot { base, source })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use vm_memory::Bytes;

    #[test]
    fn memory_past_the_hole_is_one_sealed_file() {
        let config = MemoryConfig {
            size: ByteSize(4 << 30),
            hugepages: false,
        };
        let ram = create(&config).unwrap();
        assert_eq!(ram.num_regions(), 2);
        let high = GuestAddress(layout::HIGH_MEM);
        ram.write_obj(0x1234_5678u32, high).unwrap();
        let region = ram.find_region(high).unwrap();
        let file = region.file_offset().unwrap();
        assert_eq!(file.start(), 3 << 30);
        assert!(file.file().set_len(4096).is_err(), "it is sealed");
        assert!(ram.write_obj(0u8, GuestAddress(layout::HOLE.base)).is_err());
    }
}
