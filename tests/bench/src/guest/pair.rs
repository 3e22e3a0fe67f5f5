//! Two VMs, and the RDMA devices that both have.

use std::cell::Cell;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use scenarios::meeting::Outcome;
use scenarios::perftest::{Run, clock_failure, figures};
use scenarios::vm::{Lab, Vm, VmSpec, free_port};

use crate::place;

/// MTU of all interfaces: the largest for which soft-RoCE has its largest path MTU, 4096, and so the one it is fastest with.
const MTU: u32 = 9000;
const TAPS: [&str; 2] = ["tap0", "tap1"];
/// How long a run may take.
const LIMIT: Duration = Duration::from_secs(90);

/// An RDMA device that both VMs have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Device {
    /// As verbs programs know it.
    pub name: &'static str,
    /// As tables call it.
    pub label: &'static str,
}

/// The device under test.
pub const OURS: Device = Device {
    name: "vrdma0",
    label: "virtio-rdma",
};

const RXE_FABRIC: Device = Device {
    name: "rxe0",
    label: "soft-RoCE, fabric",
};

const RXE_TAP: Device = Device {
    name: "rxe1",
    label: "soft-RoCE, tap",
};

/// Counters of soft-RoCE that move when something was lost on the way and sent again, or not at all. A figure of such a run says how
/// long it waited.
const RXE_LOSSES: [&str; 6] = [
    "completer_retry_err",
    "duplicate_request",
    "out_of_seq_request",
    "rcvd_seq_err",
    "retry_exceeded_err",
    "send_err",
];

/// Runs until a tool could measure its clock, at most.
const CLOCK_TRIES: usize = 4;

/// Two running VMs, `a` and `b`.
pub struct Pair {
    a: Vm,
    b: Vm,
    /// What the device under test is measured against.
    pub references: Vec<Device>,
    port: Cell<u16>,
}

/// Why a run has no figure.
pub type Refusal = String;

/// What a run in which nothing was lost said, and its figures.
type Measured = (Outcome, Result<Vec<f64>>);

impl Pair {
    /// Boots the VMs: interface `eth0` and device `vrdma0` on the fabric, `eth1` on a tap where this machine gives us any, and a
    /// soft-RoCE device on each interface.
    pub fn boot(lab: &Lab) -> Result<Pair> {
        let network = place::network(&TAPS, MTU);
        if let Err(why) = &network {
            println!("no figures over tap: {why:#}");
        }
        let taps = network.is_ok();
        let ports = [free_port()?, free_port()?];
        let boot = |n: usize| {
            let host = n + 1;
            let mut spec = VmSpec::new(["a", "b"][n]).args(&[
                "--net",
                &format!("fabric,mtu={MTU}"),
                "--rdma",
                &format!(
                    "fabric=tcp,listen=127.0.0.1:{},peer=127.0.0.1:{}",
                    ports[n],
                    ports[1 - n]
                ),
            ]);
            spec.cmdline = format!(" quiet longarm.ip=10.0.0.{host}/24");
            if taps {
                spec = spec.args(&["--net", &format!("tap={},mtu={MTU}", TAPS[n])]);
                spec.cmdline += &format!(",eth1:10.1.0.{host}/24");
            }
            lab.boot(spec)
        };
        let (a, b) = (boot(0)?, boot(1)?);
        a.ready()?;
        b.ready()?;
        a.reach(&b)?;
        let mut references = vec![RXE_FABRIC];
        references.extend(taps.then_some(RXE_TAP));
        for vm in [&a, &b] {
            vm.exec("modprobe rdma_rxe", 60)?
                .ok("modprobe rdma_rxe; the guest's kernel needs it")?;
            for (n, device) in references.iter().enumerate() {
                let add = format!("rdma link add {} type rxe netdev eth{n}", device.name);
                vm.exec(&add, 60)?.ok("a soft-RoCE device")?;
            }
        }
        Ok(Pair {
            a,
            b,
            references,
            port: Cell::new(20_000),
        })
    }

    /// The device under test and those it is measured against, in this order.
    pub fn devices(&self) -> Vec<Device> {
        [&[OURS], &self.references[..]].concat()
    }

    /// Runs a tool on a device, from `a` to `b`; what its result line says, if both sides ended well and nothing was lost. A run whose tool
    /// could not measure its own clock has no figures, and is made again.
    pub fn run(
        &self,
        device: Device,
        tool: &'static str,
        size: u32,
        iterations: u32,
    ) -> Result<Result<Vec<f64>, Refusal>> {
        let mut ran = self.run_once(device, tool, size, iterations)?;
        for _ in 1..CLOCK_TRIES {
            let no_clock = |(outcome, _): &Measured| clock_failure(outcome).is_some();
            if !ran.as_ref().is_ok_and(no_clock) {
                break;
            }
            ran = self.run_once(device, tool, size, iterations)?;
        }
        Ok(ran.and_then(|(_, figures)| figures.map_err(|why| format!("{why:#}"))))
    }

    /// What a run printed, and its figures.
    fn run_once(
        &self,
        device: Device,
        tool: &'static str,
        size: u32,
        iterations: u32,
    ) -> Result<Result<Measured, Refusal>> {
        let port = self.port.get() + 1;
        self.port.set(port);
        let run = Run {
            tool,
            size,
            iterations,
            options: format!("-d {} --report_gbits", device.name),
        };
        let before = self.lost(device)?;
        let outcome = run
            .between(&self.a, &self.b, port, LIMIT)
            .with_context(|| device.label)?;
        let lost = self.lost(device)? - before;
        if lost > 0 {
            return Ok(Err(format!("loss counters moved by {lost}")));
        }
        if !outcome.ok() {
            let text = outcome.text();
            return Ok(Err(format!("{}: {run:?} failed\n{text}", device.label)));
        }
        let figures = figures(&outcome.client.stdout, size).and_then(|figures| {
            ensure!(figures[1] == f64::from(iterations), "{figures:?}");
            Ok(figures)
        });
        Ok(Ok((outcome, figures)))
    }

    /// What a device has lost, and what the fabric below it has.
    fn lost(&self, device: Device) -> Result<u64> {
        let mut lost = 0;
        for vm in [&self.a, &self.b] {
            lost += vm.loss()?;
            if device != OURS {
                let command = format!(
                    "cd /sys/class/infiniband/{}/ports/1/hw_counters && cat {}",
                    device.name,
                    RXE_LOSSES.join(" ")
                );
                lost += sum(&vm.exec(&command, 20)?.ok(&command)?.stdout)?;
            }
        }
        Ok(lost)
    }

    /// Counters of both VMs.
    pub fn stats(&self) -> Result<[serde_json::Value; 2]> {
        Ok([self.a.stats()?, self.b.stats()?])
    }
}

/// Of one count a line, all that were asked for.
fn sum(text: &str) -> Result<u64> {
    let counts: Vec<u64> = text
        .lines()
        .map(|line| line.trim().parse().with_context(|| format!("{line:?}")))
        .collect::<Result<_>>()?;
    ensure!(counts.len() == RXE_LOSSES.len(), "{text:?}");
    Ok(counts.iter().sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_that_are_not_all_there_are_no_sum() {
        assert_eq!(sum("0\n1\n0\n2\n0\n0\n").unwrap(), 3);
        assert!(sum("0\n1\n0\n").is_err());
        assert!(sum("0\n1\n0\n2\n0\nmany\n").is_err());
    }
}
