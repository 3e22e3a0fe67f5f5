//! What a message costs in VM exits: a short and a long run of a tool, and how much more the long one took, so that what programs
//! cost before and after their messages does not count.

use anyhow::{Context, Result};
use scenarios::vm::emulated;
use serde_json::Value;

use super::pair::{Device, OURS, Pair, Refusal};
use crate::options::{Options, Selection};
use crate::samples::{Samples, interleaved};
use crate::table::{Axis, Row, Table};

const SIZE: u32 = 64;

/// A tool, its depth, and messages of the short and the long run: on hardware, and in the emulated lab, first on our device, then on
/// a reference.
struct Case {
    tool: &'static str,
    depth: u32,
    ours: [[u32; 2]; 2],
    reference: [[u32; 2]; 2],
}

static CASES: [Case; 2] = [
    Case {
        tool: "ib_write_bw",
        depth: 128,
        ours: [[1000, 1_001_000], [500, 15_500]],
        reference: [[1000, 101_000], [200, 1700]],
    },
    Case {
        tool: "ib_write_lat",
        depth: 1,
        ours: [[1000, 101_000], [20, 220]],
        reference: [[1000, 21_000], [20, 100]],
    },
];

impl Case {
    fn labels(&self) -> [&'static str; 2] {
        ["exits", self.tool]
    }
}

/// Exits of both VMs together.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Exits {
    /// Every exit, as KVM counts them.
    all: f64,
    /// Those that nothing but an interrupt of the host caused: its timer, another processor's kick.
    host: f64,
    /// Those that went to the monitor's vCPU thread.
    monitor: f64,
    /// Rings of the RDMA device's doorbells.
    doorbells: f64,
}

impl Exits {
    /// From the counters of both VMs. None where KVM keeps none.
    fn read(stats: &[Value]) -> Option<Exits> {
        let mut sum = Exits {
            all: 0.0,
            host: 0.0,
            monitor: 0.0,
            doorbells: 0.0,
        };
        for vm in stats {
            for vcpu in vm.get("vcpus")?.as_array()? {
                let count = |name| vcpu.pointer(name).and_then(Value::as_f64);
                sum.all += count("/kvm/exits")?;
                sum.host += count("/kvm/irq_exits")?;
                sum.monitor += count("/port_io")? + count("/mmio")? + count("/other")?;
            }
            let doorbells = vm.pointer("/rdma/0/thread/doorbells");
            sum.doorbells += doorbells.and_then(Value::as_f64)?;
        }
        Some(sum)
    }

    fn minus(self, other: Exits) -> Exits {
        self.with(other, |a, b| a - b)
    }

    /// What `messages` cost, for a million; what noise made negative is none.
    fn per_million(self, messages: u32) -> Exits {
        let scale = 1e6 / f64::from(messages);
        self.with(self, |n, _| (n * scale).max(0.0))
    }

    fn with(self, other: Exits, f: impl Fn(f64, f64) -> f64) -> Exits {
        Exits {
            all: f(self.all, other.all),
            host: f(self.host, other.host),
            monitor: f(self.monitor, other.monitor),
            doorbells: f(self.doorbells, other.doorbells),
        }
    }
}

/// Prints the labels of each case.
pub fn list(only: &Selection) {
    for case in CASES.iter().filter(|case| only.wants(&case.labels())) {
        println!("{}", case.labels().join(" "));
    }
}

/// Measures all cases.
pub fn measure(pair: &Pair, options: &Options) -> Result<Table> {
    let title = format!("VM exits per million messages of {SIZE} bytes, both VMs together");
    let mut table = Table::new("exits", title, Axis::Ratio);
    let devices = pair.devices();
    for case in CASES
        .iter()
        .filter(|case| options.only.wants(&case.labels()))
    {
        let mut subjects: Vec<_> = devices
            .iter()
            .map(|device| subject(pair, *device, case))
            .collect();
        let rounds = interleaved(options.rounds, &mut subjects)?;
        let mut clean = Vec::new();
        for (device, rounds) in devices.iter().zip(rounds) {
            match rounds.into_iter().collect::<Result<Vec<Exits>, Refusal>>() {
                Ok(rounds) => clean.push((device, rounds)),
                Err(why) => table.refuse(format!("{}, {}", case.tool, device.label), why),
            }
        }
        if let Some(((device, ours), references)) = clean.split_first()
            && **device == OURS
        {
            rows(&mut table, case, ours, references);
        }
    }
    Ok(table)
}

/// A count of an [`Exits`], and what tables call it.
type Count = (&'static str, fn(&Exits) -> f64);

const COMPARED: [Count; 3] = [
    ("all exits", |exits| exits.all),
    ("exits not by a host interrupt", |exits| {
        exits.all - exits.host
    }),
    ("exits to the monitor", |exits| exits.monitor),
];

fn rows(table: &mut Table, case: &Case, ours: &[Exits], references: &[(&Device, Vec<Exits>)]) {
    let row = |what: &str, samples: &Samples| {
        Row::measured(format!("{}: {what}", case.tool), samples, "per M")
            .size(SIZE.into())
            .qps(1)
            .depth(case.depth)
    };
    for (what, count) in COMPARED {
        let samples = Samples::of(ours, count);
        for (device, exits) in references {
            let reference = Samples::of(exits, count);
            // Nothing can be a multiple of nothing.
            table.push(match reference.median() > 0.0 {
                true => row(what, &samples).against(device.label, &samples, &reference),
                false => row(what, &samples),
            });
        }
    }
    table.push(row(
        "doorbells",
        &Samples::of(ours, |exits| exits.doorbells),
    ));
}

fn subject<'a>(
    pair: &'a Pair,
    device: Device,
    case: &'static Case,
) -> Box<dyn FnMut() -> Result<Result<Exits, Refusal>> + 'a> {
    let runs = if device == OURS {
        case.ours
    } else {
        case.reference
    };
    let [short, long] = runs[usize::from(emulated())];
    Box::new(move || {
        let mut taken = Vec::new();
        for iterations in [short, long] {
            let before = read(pair)?;
            if let Err(why) = pair.run(device, case.tool, SIZE, iterations)? {
                return Ok(Err(why));
            }
            taken.push(read(pair)?.minus(before));
        }
        Ok(Ok(taken[1].minus(taken[0]).per_million(long - short)))
    })
}

fn read(pair: &Pair) -> Result<Exits> {
    Exits::read(&pair.stats()?)
        .context("KVM of this machine keeps no statistics (Linux before 5.14)")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn vm(exits: u64, irq: u64, doorbells: u64) -> Value {
        json!({
            "vcpus": [
                {"port_io": 1, "mmio": 2, "other": 3, "kvm": {"exits": exits, "irq_exits": irq}},
                {"port_io": 0, "mmio": 10, "other": 0, "kvm": {"exits": 1, "irq_exits": 0}},
            ],
            "rdma": [{"thread": {"doorbells": doorbells}}],
        })
    }

    #[test]
    fn both_machines_and_all_their_vcpus_count() {
        let exits = Exits::read(&[vm(100, 20, 3), vm(200, 30, 4)]).unwrap();
        let [all, host, monitor, doorbells] = [302.0, 50.0, 32.0, 7.0];
        let wanted = Exits {
            all,
            host,
            monitor,
            doorbells,
        };
        assert_eq!(exits, wanted);
        assert_eq!(Exits::read(&[json!({"vcpus": [{"kvm": {}}]})]), None);
    }

    #[test]
    fn what_a_program_costs_beside_its_messages_does_not_count() {
        let at = |n: f64| Exits {
            all: n,
            host: 5.0,
            monitor: 900.0,
            doorbells: 0.0,
        };
        let cost = at(1500.0).minus(at(1000.0)).per_million(1000);
        assert_eq!((cost.all, cost.monitor), (500_000.0, 0.0));
        assert_eq!(at(0.0).minus(at(10.0)).per_million(10).all, 0.0);
    }
}
