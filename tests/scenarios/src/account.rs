//! What a guest and its device hold: looked at before and after, it tells what was left behind.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::vm::{Vm, patient};

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
