//! What a guest, its device and its monitor hold: looked at before and after, it tells what was left behind.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::vm::{Vm, patient};

/// Objects of one cache that are there or not as the kernel pleases: those that a processor keeps for itself count as in use.
const SLAB_SLACK: u64 = 400;
/// Free pages that the guest's processors keep for themselves.
const GUEST_SLACK_KIB: u64 = 2048;
/// What the monitor's allocator keeps.
const MONITOR_SLACK_KIB: u64 = 512;

/// RDMA objects, as the guest's kernel counts them (`rdma resource`) and as the device does.
#[derive(Debug)]
pub struct Account {
    kernel: String,
    device: Value,
}

impl Account {
    /// What there is in a VM now.
    pub fn of(vm: &Vm) -> Result<Account> {
        let kernel = vm.exec("rdma resource", 30)?.ok("rdma resource")?.stdout;
        Ok(Account {
            kernel,
            device: vm.device_objects()?,
        })
    }

    /// Waits until there is in the VM what there was, and no more. What a process leaves goes a little after it.
    pub fn is_met_again(&self, vm: &Vm) -> Result<()> {
        let kernel = self.kernel.trim_end_matches('\n');
        vm.eventually(&format!("[ \"$(rdma resource)\" = '{kernel}' ]"))
            .with_context(|| format!("{}: left behind, beyond {kernel}", vm.name))?;
        // Of some objects the kernel stops to count before it has told the device.
        let end = Instant::now() + patient(Duration::from_secs(20));
        loop {
            let device = vm.device_objects()?;
            if device == self.device {
                return Ok(());
            }
            ensure!(
                Instant::now() < end,
                "{}: the device has {device}, at first {}",
                vm.name,
                self.device
            );
            sleep(Duration::from_millis(50));
        }
    }
}

/// What a VM takes beside RDMA objects: its guest's kernel of the guest's memory, its monitor of the host.
#[derive(Debug, Default)]
pub struct Footprint {
    /// Objects in use, by the cache that they are of.
    slabs: BTreeMap<String, u64>,
    guest_used_kib: u64,
    monitor_kib: u64,
    files: u64,
    threads: u64,
}

/// Prints what is in use in the guest's kernel once it has given back what it only keeps: objects first, then pages.
const GUEST_MEMORY: &str = "echo 3 >/proc/sys/vm/drop_caches; for cache in /sys/kernel/slab/*/shrink; do echo 1 >$cache; done; \
                            cat /proc/slabinfo /proc/meminfo";

impl Footprint {
    /// What there is now.
    pub fn of(vm: &Vm) -> Result<Footprint> {
        let text = vm.exec(GUEST_MEMORY, 60)?.ok("the guest's memory")?.stdout;
        let pid = vm.pid().context("it is a process")?;
        let count = |what| -> Result<u64> {
            Ok(fs::read_dir(format!("/proc/{pid}/{what}"))?.count() as u64)
        };
        Ok(Footprint {
            monitor_kib: private_kib(pid)?,
            files: count("fd")?,
            threads: count("task")?,
            ..Footprint::of_guest(&text).with_context(|| text)?
        })
    }

    /// From the text of `/proc/slabinfo` and `/proc/meminfo`.
    fn of_guest(text: &str) -> Result<Footprint> {
        let mut here = Footprint::default();
        let (mut total, mut free) = (None, None);
        for line in text.lines() {
            match line.split_whitespace().collect::<Vec<_>>()[..] {
                ["MemTotal:", kib, _] => total = Some(kib.parse::<u64>()?),
                ["MemFree:", kib, _] => free = Some(kib.parse()?),
                [cache, active, _, _, _, _, ":", ..] => {
                    here.slabs.insert(cache.into(), active.parse()?);
                }
                _ => (),
            }
        }
        ensure!(!here.slabs.is_empty(), "no /proc/slabinfo");
        let used = total
            .zip(free)
            .and_then(|(all, free)| all.checked_sub(free));
        here.guest_used_kib = used.context("no /proc/meminfo")?;
        Ok(here)
    }

    /// What has grown since `base` by more than what comes and goes by itself.
    fn grown(&self, base: &Footprint) -> Vec<String> {
        let figures = |of: &Footprint| {
            [
                (
                    "memory of the guest in KiB",
                    of.guest_used_kib,
                    GUEST_SLACK_KIB,
                ),
                (
                    "memory of the monitor in KiB",
                    of.monitor_kib,
                    MONITOR_SLACK_KIB,
                ),
                ("open files of the monitor", of.files, 0),
                ("threads of the monitor", of.threads, 0),
            ]
        };
        let figures = figures(self).into_iter().zip(figures(base));
        let figures = figures.map(|((what, now, slack), (_, then, _))| (what, now, then, slack));
        let slabs = self.slabs.iter().map(|(cache, now)| {
            let then = base.slabs.get(cache).copied().unwrap_or(0);
            (cache.as_str(), *now, then, SLAB_SLACK)
        });
        figures
            .chain(slabs)
            .filter(|(_, now, then, slack)| *now > then + slack)
            .map(|(what, now, then, _)| format!("{what}: {then} became {now}"))
            .collect()
    }

    /// Waits until the VM takes no more than it did, and gives what it takes then. What has ended is given back a little after it.
    pub fn is_met_again(&self, vm: &Vm) -> Result<Footprint> {
        let end = Instant::now() + patient(Duration::from_secs(20));
        loop {
            let now = Footprint::of(vm)?;
            let grown = now.grown(self);
            if grown.is_empty() {
                return Ok(now);
            }
            ensure!(Instant::now() < end, "{}: {}", vm.name, grown.join(", "));
        }
    }
}

impl fmt::Display for Footprint {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(
            f,
            "guest {} KiB, monitor {} KiB, {} files, {} threads",
            self.guest_used_kib, self.monitor_kib, self.files, self.threads
        )
    }
}

/// Private memory of a process that is not a mapping of guest RAM (a memfd), from smaps.
pub fn private_kib(pid: u32) -> Result<u64> {
    let smaps = fs::read_to_string(format!("/proc/{pid}/smaps"))?;
    let (mut sum, mut guest) = (0, false);
    for line in smaps.lines() {
        let mut words = line.split_whitespace();
        let first = words.next().unwrap_or_default();
        if first.contains('-') && !first.ends_with(':') {
            guest = line.contains("memfd:");
        } else if !guest && matches!(first, "Private_Dirty:" | "Private_Clean:") {
            sum += words
                .next()
                .and_then(|kib| kib.parse::<u64>().ok())
                .unwrap_or(0);
        }
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a guest prints whose 64-byte objects and free memory are these.
    fn guest(objects: u64, free: u64) -> Result<Footprint> {
        Footprint::of_guest(&format!(
            "slabinfo - version: 2.1\n\
             # name            <active_objs> <num_objs> <objsize> <objperslab> <pagesperslab> : tunables\n\
             kmalloc-64 {objects} 9999 64 64 1 : tunables 0 0 0 : slabdata 35 35 0\n\
             MemTotal:         500000 kB\nMemFree:          {free} kB\nMemAvailable:     480000 kB\n"
        ))
    }

    #[test]
    fn what_each_of_many_connections_leaves_is_found() {
        let base = guest(2000, 400_000).unwrap();
        assert!(base.grown(&base).is_empty());
        let some = guest(2000 + SLAB_SLACK, 400_000 - GUEST_SLACK_KIB).unwrap();
        assert!(some.grown(&base).is_empty());
        let objects = guest(3000, 400_000).unwrap().grown(&base);
        assert_eq!(objects, ["kmalloc-64: 2000 became 3000"]);
        let pages = guest(2000, 396_000).unwrap().grown(&base);
        assert_eq!(pages, ["memory of the guest in KiB: 100000 became 104000"]);
        let file = Footprint {
            files: 1,
            ..Footprint::default()
        };
        assert_eq!(
            file.grown(&Footprint::default()),
            ["open files of the monitor: 0 became 1"]
        );
        assert!(Footprint::of_guest("MemTotal: 1 kB\nMemFree: 1 kB\n").is_err());
    }
}
