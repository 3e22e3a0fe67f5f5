//! What a process uses, from `/proc`.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

/// Memory of a process beside its guest's, KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Proportional set size: a page that several processes map counts for each in part.
    pub pss: u64,
    /// Resident set size.
    pub rss: u64,
    /// Pages that nobody else maps.
    pub private: u64,
}

impl Memory {
    /// Reads that of a running process whose guest memory, `guest_mib`, is a memfd.
    pub fn beside_guest(pid: u32, guest_mib: u64) -> Result<Memory> {
        let path = format!("/proc/{pid}/smaps");
        let smaps = fs::read_to_string(&path).with_context(|| path.clone())?;
        parse_smaps(&smaps, guest_mib << 10).with_context(|| path)
    }
}

/// From `smaps`. The guest's memory must be there in whole, or something else would be taken for it.
fn parse_smaps(smaps: &str, guest_kib: u64) -> Result<Memory> {
    let mut sum = Memory::default();
    let (mut guest, mut guest_size) = (false, 0);
    for line in smaps.lines() {
        let mut words = line.split_whitespace();
        let first = words.next().unwrap_or_default();
        if !first.ends_with(':') {
            guest = line.contains("/memfd:");
            continue;
        }
        let Some(kib) = words.next().and_then(|word| word.parse::<u64>().ok()) else {
            continue;
        };
        match (first, guest) {
            ("Size:", true) => guest_size += kib,
            ("Pss:", false) => sum.pss += kib,
            ("Rss:", false) => sum.rss += kib,
            ("Private_Clean:" | "Private_Dirty:", false) => sum.private += kib,
            _ => {}
        }
    }
    ensure!(
        guest_size == guest_kib,
        "{guest_size} KiB of memfds, not the guest's {guest_kib}"
    );
    Ok(sum)
}

/// Processor time that the threads of a process have had; those that have ended count no more.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CpuTime {
    /// All of them.
    pub all: Duration,
    /// Those that run no vCPU.
    pub devices: Duration,
}

impl CpuTime {
    /// That of a process until now.
    pub fn of(pid: u32) -> Result<CpuTime> {
        let mut sum = CpuTime::default();
        for task in fs::read_dir(format!("/proc/{pid}/task"))? {
            let task = task?.path();
            let read = |name| fs::read_to_string(task.join(name));
            let (time, name) = match (read("schedstat"), read("comm")) {
                (Ok(time), Ok(name)) => (time, name),
                // It has ended since it was listed.
                (Err(_), _) | (_, Err(_)) if !task.exists() => continue,
                (time, name) => (time?, name?),
            };
            let time = schedstat(&time).context("schedstat")?;
            sum.all += time;
            if !is_vcpu(&name) {
                sum.devices += time;
            }
        }
        Ok(sum)
    }

    /// Milliseconds a second since an earlier time, `seconds` ago: of all threads, and of those that run no vCPU.
    pub fn rate(self, earlier: CpuTime, seconds: f64) -> [f64; 2] {
        let used = [
            self.all.saturating_sub(earlier.all),
            self.devices.saturating_sub(earlier.devices),
        ];
        used.map(|time| time.as_secs_f64() * 1e3 / seconds)
    }
}

/// The first number: nanoseconds on a processor.
fn schedstat(text: &str) -> Option<Duration> {
    let nanoseconds = text.split_whitespace().next()?.parse().ok()?;
    Some(Duration::from_nanos(nanoseconds))
}

/// Longarm's threads of vCPUs are `vcpu0` and so on, QEMU's `CPU 0/KVM`.
fn is_vcpu(comm: &str) -> bool {
    comm.starts_with("vcpu") || comm.starts_with("CPU ")
}

const WINDOW: Duration = Duration::from_millis(500);
/// Processor time that a process at rest may use, ms/s.
const REST: f64 = 50.0;
const LIMIT: Duration = Duration::from_secs(60);

/// Waits until a process has come to rest.
pub fn settle(pid: u32) -> Result<()> {
    let end = Instant::now() + LIMIT;
    loop {
        let (before, from) = (CpuTime::of(pid)?, Instant::now());
        thread::sleep(WINDOW);
        let [used, _] = CpuTime::of(pid)?.rate(before, from.elapsed().as_secs_f64());
        if used < REST {
            return Ok(());
        }
        ensure!(Instant::now() < end, "process {pid} does not come to rest");
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    const SMAPS: &str = "\
7f00-7f10 rw-s 00000000 00:01 3 /memfd:ram (deleted)
Size:             524288 kB
Rss:              100000 kB
Pss:              100000 kB
Private_Dirty:    100000 kB
VmFlags: rd wr sh
7f20-7f30 r-xp 00000000 08:01 9 /usr/lib/libc.so.6
Size:               2000 kB
Rss:                1000 kB
Pss:                 100 kB
Private_Clean:        20 kB
Private_Dirty:         0 kB
Shared_Clean:        980 kB
7f40-7f50 rw-p 00000000 00:00 0 [heap]
Size:                 64 kB
Rss:                  32 kB
Pss:                  32 kB
Private_Dirty:        32 kB
";

    #[test]
    fn the_guest_s_memory_does_not_count() {
        let memory = parse_smaps(SMAPS, 512 << 10).unwrap();
        let wanted = Memory {
            pss: 132,
            rss: 1032,
            private: 52,
        };
        assert_eq!(memory, wanted);
        assert!(parse_smaps(SMAPS, 256 << 10).is_err());
    }

    #[test]
    fn work_shows_in_the_time_of_a_thread_that_is_no_vcpu() {
        // Of a process whose threads do not come and go.
        let busy = Command::new("sh")
            .args(["-c", "while :; do :; done"])
            .spawn();
        let mut busy = busy.unwrap();
        let before = CpuTime::of(busy.id()).unwrap();
        let end = Instant::now() + Duration::from_secs(60);
        let [all, devices] = loop {
            let rate = CpuTime::of(busy.id()).unwrap().rate(before, 0.05);
            if rate[1] > 0.0 || Instant::now() > end {
                break rate;
            }
        };
        busy.kill().unwrap();
        busy.wait().unwrap();
        assert!(all >= devices && devices > 0.0, "{all} {devices}");
    }

    #[test]
    fn threads_are_told_apart_by_name() {
        assert!(is_vcpu("vcpu11\n") && is_vcpu("CPU 0/KVM\n"));
        assert!(!is_vcpu("rdma\n") && !is_vcpu("qemu-system-x86\n"));
        assert_eq!(schedstat("1500 20 3\n"), Some(Duration::from_nanos(1500)));
        assert_eq!(schedstat("\n"), None);
    }
}
