//! KVM's own counters of a vCPU, which also see the exits that KVM handles by itself (`KVM_GET_STATS_FD`).

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

use kvm_bindings::{KVMIO, kvm_stats_desc, kvm_stats_header};
use kvm_ioctls::VcpuFd;
use vmm_sys_util::ioctl::{_IOC_NONE, ioctl, ioctl_expr};

/// `_IO(KVMIO, 0xce)`.
const KVM_GET_STATS_FD: libc::c_ulong = ioctl_expr(_IOC_NONE, KVMIO, 0xce, 0);

/// Bytes of a header and of a descriptor before its name.
const HEADER: usize = size_of::<kvm_stats_header>();
const DESCRIPTOR: usize = size_of::<kvm_stats_desc>();
/// No kernel has more counters, or longer names.
const MAX_COUNTERS: u32 = 1024;
const MAX_NAME: u32 = 256;

/// The counters that we show of a vCPU, and where they are.
pub struct KvmStats {
    file: File,
    /// Names, and offsets in the file.
    counters: Vec<(String, u64)>,
}

impl KvmStats {
    /// Finds a vCPU's counters.
    ///
    /// # Errors
    /// When KVM has none (before Linux 5.14).
    pub fn open(vcpu: &VcpuFd) -> io::Result<Self> {
        // SAFETY: the request takes no argument.
        let fd = unsafe { ioctl(vcpu, KVM_GET_STATS_FD) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new, and ours alone.
        let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
        let counters = directory(&file)?;
        Ok(Self { file, counters })
    }

    /// All counters now, by KVM's names. One that cannot be read is left out.
    pub fn read(&self) -> BTreeMap<String, u64> {
        let value = |offset| {
            let mut bytes = [0; 8];
            self.file.read_exact_at(&mut bytes, offset).ok()?;
            Some(u64::from_ne_bytes(bytes))
        };
        self.counters
            .iter()
            .filter_map(|(name, offset)| Some((name.clone(), value(*offset)?)))
            .collect()
    }
}

/// Exits, all and by reason, and interrupts put into the guest.
fn shown(name: &str) -> bool {
    name.ends_with("exits") || name == "irq_injections"
}

/// Names and offsets of the counters that are shown.
fn directory(file: &impl FileExt) -> io::Result<Vec<(String, u64)>> {
    let mut bytes = [0; HEADER];
    file.read_exact_at(&mut bytes, 0)?;
    // `flags`, `name_size`, `num_desc`, `id_offset`, `desc_offset`, `data_offset`.
    let [_, name_size, count, _, descriptors, data] =
        std::array::from_fn(|n| u32_at(&bytes, 4 * n));
    if name_size > MAX_NAME || count > MAX_COUNTERS {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut descriptor = vec![0; DESCRIPTOR + name_size as usize];
    let mut found = Vec::new();
    for index in 0..u64::from(count) {
        let at = u64::from(descriptors) + index * descriptor.len() as u64;
        file.read_exact_at(&mut descriptor, at)?;
        // `flags`, then `exponent` and `size`, 16 bits each, then `offset` and `bucket_size`.
        let offset = u32_at(&descriptor, 8);
        let name = &descriptor[DESCRIPTOR..];
        let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
        let name = String::from_utf8_lossy(name).into_owned();
        if shown(&name) {
            found.push((name, u64::from(data) + u64::from(offset)));
        }
    }
    Ok(found)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let word = bytes.get(at..at + 4).and_then(|word| word.try_into().ok());
    u32::from_ne_bytes(word.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::io::Write;
    use vmm_sys_util::tempfile::TempFile;

    const NAME: usize = 48;

    /// A file as KVM lays it out: header, id, a descriptor each, then the data, here 100, 101 and so on in the reverse order.
    fn file(names: &[&str], count: u32) -> File {
        let (descriptors, data) = (64, 4096);
        let mut bytes = Vec::new();
        for word in [0, NAME as u32, count, 24, descriptors, data] {
            bytes.extend(word.to_ne_bytes());
        }
        bytes.resize(descriptors as usize, b'i');
        for (index, name) in names.iter().enumerate() {
            let offset = 8 * (names.len() - 1 - index) as u32;
            // Cumulative, exponent 0, one value.
            for word in [0, 1 << 16, offset, 0] {
                bytes.extend(u32::to_ne_bytes(word));
            }
            let end = bytes.len() + NAME;
            bytes.extend(name.as_bytes());
            bytes.resize(end, 0);
        }
        bytes.resize(data as usize, 0);
        for index in 0..names.len() as u64 {
            bytes.extend((100 + index).to_ne_bytes());
        }
        let mut file = TempFile::new().unwrap().into_file();
        file.write_all(&bytes).unwrap();
        file
    }

    #[test]
    fn exits_are_found_by_name_wherever_their_values_lie() {
        let file = file(&["pf_taken", "exits", "halt_exits", "irq_injections"], 4);
        let counters = directory(&file).unwrap();
        let read = KvmStats { file, counters }.read();
        let wanted = [("exits", 102), ("halt_exits", 101), ("irq_injections", 100)];
        assert_eq!(read, wanted.map(|(name, n)| (name.into(), n)).into());
    }

    #[test]
    fn a_file_that_says_nonsense_of_itself_is_refused() {
        assert!(directory(&file(&["exits"], MAX_COUNTERS + 1)).is_err());
        assert!(directory(&file(&[], 1000)).is_err(), "ends too early");
    }
}
