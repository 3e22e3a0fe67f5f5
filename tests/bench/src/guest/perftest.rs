//! Bandwidth and latency, as perftest sees them.

use anyhow::Result;
use scenarios::vm::emulated;

use super::pair::{Device, OURS, Pair, Refusal};
use crate::options::{Options, Selection, size_label};
use crate::samples::{Samples, interleaved};
use crate::table::{Axis, Row, Table, Target};

/// A tool, what it is asked, and what its figures are.
pub struct Series {
    tool: &'static str,
    kind: &'static Kind,
}

struct Kind {
    /// As `--only` knows it.
    label: &'static str,
    title: &'static str,
    unit: &'static str,
    /// Place of the figure in the tool's result line.
    column: usize,
    /// Work requests under way.
    depth: u32,
    sizes: [Size; 3],
    /// What the ratio to every reference should be.
    targets: [Target; 3],
}

/// Bytes of a message, and messages of a run: on hardware, and in the emulated lab.
struct Size(u32, [u32; 2]);

static BANDWIDTH: Kind = Kind {
    label: "bandwidth",
    title: "average bandwidth between two VMs",
    unit: "Gb/s",
    column: 3,
    // perftest's own, if there are as many messages.
    depth: 128,
    sizes: [
        Size(64, [50_000, 500]),
        Size(4096, [20_000, 500]),
        Size(65_536, [5000, 200]),
    ],
    targets: [
        Target::AtLeast(3.0),
        Target::AtLeast(3.0),
        Target::AtLeast(5.0),
    ],
};

static LATENCY: Kind = Kind {
    label: "latency",
    title: "typical latency between two VMs, as perftest has it: half a round trip, for READ a whole one",
    unit: "us",
    column: 4,
    depth: 1,
    sizes: [
        Size(64, [5000, 40]),
        Size(4096, [5000, 40]),
        Size(65_536, [2000, 40]),
    ],
    targets: [Target::AtMost(0.5); 3],
};

const fn series(tool: &'static str, kind: &'static Kind) -> Series {
    Series { tool, kind }
}

/// All there are.
pub static SERIES: [Series; 6] = [
    series("ib_write_bw", &BANDWIDTH),
    series("ib_read_bw", &BANDWIDTH),
    series("ib_send_bw", &BANDWIDTH),
    series("ib_write_lat", &LATENCY),
    series("ib_read_lat", &LATENCY),
    series("ib_send_lat", &LATENCY),
];

impl Series {
    fn labels(&self, size: u32) -> [String; 3] {
        [
            self.kind.label.into(),
            self.tool.into(),
            size_label(size.into()),
        ]
    }

    fn sizes(&self, only: &Selection) -> impl Iterator<Item = (&Size, Target)> {
        let sizes = self.kind.sizes.iter().zip(self.kind.targets);
        sizes.filter(|(size, _)| only.wants(&self.labels(size.0)))
    }

    /// Whether any size is.
    pub fn wanted(&self, only: &Selection) -> bool {
        self.sizes(only).next().is_some()
    }

    /// Prints the labels of each case.
    pub fn list(&self, only: &Selection) {
        for (size, _) in self.sizes(only) {
            println!("{}", self.labels(size.0).join(" "));
        }
    }

    /// Measures all sizes.
    pub fn measure(&self, pair: &Pair, options: &Options) -> Result<Table> {
        let kind = self.kind;
        let mut table = Table::new(
            self.tool,
            format!("{}, {}", self.tool, kind.title),
            Axis::Size,
        );
        let devices = pair.devices();
        for (&Size(size, iterations), target) in self.sizes(&options.only) {
            let iterations = iterations[usize::from(emulated())];
            let mut subjects: Vec<_> = devices
                .iter()
                .map(|device| subject(pair, *device, self.tool, size, iterations))
                .collect();
            let rounds = interleaved(options.rounds, &mut subjects)?;
            self.rows(&mut table, size, &devices, target, &rounds);
        }
        Ok(table)
    }

    /// Rows of one size: our figure, once against each reference. `rounds` are by device.
    fn rows(
        &self,
        table: &mut Table,
        size: u32,
        devices: &[Device],
        target: Target,
        rounds: &[Vec<Ran>],
    ) {
        let kind = self.kind;
        let mut samples = Vec::new();
        for (device, rounds) in devices.iter().zip(rounds) {
            let clean: Result<Vec<&Vec<f64>>, _> = rounds.iter().map(Result::as_ref).collect();
            match clean {
                Ok(clean) => {
                    let samples_of = Samples::of(&clean, |figures| figures[kind.column]);
                    samples.push((device, samples_of));
                }
                Err(why) => {
                    table.refuse(
                        format!("{} of {size} bytes, {}", self.tool, device.label),
                        why,
                    );
                }
            }
        }
        // Without ours there is nothing to tell, and ours alone is no comparison.
        let Some(((_, ours), references)) = samples
            .split_first()
            .filter(|((device, _), _)| **device == OURS)
        else {
            return;
        };
        for (device, reference) in references {
            table.push(
                Row::measured(self.tool, ours, kind.unit)
                    .size(size.into())
                    .qps(1)
                    .depth(kind.depth)
                    .against(device.label, ours, reference)
                    .target(target),
            );
        }
    }
}

/// Runs of a reference until one of them lost nothing, at most.
const REFERENCE_TRIES: usize = 4;

/// A run's figures.
type Ran = Result<Vec<f64>, Refusal>;

fn subject<'a>(
    pair: &'a Pair,
    device: Device,
    tool: &'static str,
    size: u32,
    iterations: u32,
) -> Box<dyn FnMut() -> Result<Ran> + 'a> {
    Box::new(move || clean(device, || pair.run(device, tool, size, iterations)))
}

/// A run, made again if it was a reference's and something was lost: soft-RoCE sends again when a guest stands still for longer than its
/// timers wait. Its best serves it, and ours has one try.
fn clean(device: Device, mut run: impl FnMut() -> Result<Ran>) -> Result<Ran> {
    let mut ran = run()?;
    for _ in 1..REFERENCE_TRIES {
        if ran.is_ok() || device == OURS {
            break;
        }
        ran = run()?;
    }
    Ok(ran)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RXE: Device = Device {
        name: "rxe0",
        label: "rxe",
    };

    fn rounds(gbps: f64) -> Vec<Ran> {
        (0..5)
            .map(|n| Ok(vec![64.0, 500.0, 99.0, gbps + f64::from(n), 0.1]))
            .collect()
    }

    #[test]
    fn our_figure_stands_against_the_reference() {
        let mut table = Table::new("t", "t", Axis::Size);
        let measured = [rounds(10.0), rounds(2.0)];
        SERIES[0].rows(
            &mut table,
            64,
            &[OURS, RXE],
            Target::AtLeast(3.0),
            &measured,
        );
        let line = table.rows[0].csv("t");
        assert_eq!(line, "t,ib_write_bw,64,1,128,12,Gb/s,rxe,4,3");
        assert_eq!(table.rows.len(), 1);
    }

    #[test]
    fn a_run_that_lost_something_takes_the_figure_with_it() {
        let mut lossy = rounds(10.0);
        lossy[3] = Err("loss counters moved by 1".into());
        let mut table = Table::new("t", "t", Axis::Size);
        let measured = [lossy.clone(), rounds(2.0)];
        SERIES[0].rows(
            &mut table,
            64,
            &[OURS, RXE],
            Target::AtLeast(3.0),
            &measured,
        );
        assert!(table.rows.is_empty());
        assert_eq!(table.refused.len(), 1);
        // A reference that failed only takes itself away.
        let mut table = Table::new("t", "t", Axis::Size);
        let measured = [rounds(10.0), lossy, rounds(1.0)];
        let devices = [OURS, RXE, RXE];
        SERIES[0].rows(&mut table, 64, &devices, Target::AtLeast(3.0), &measured);
        assert_eq!((table.rows.len(), table.refused.len()), (1, 1));
    }

    #[test]
    fn a_reference_that_lost_something_runs_again_and_ours_does_not() {
        for (device, wanted) in [(RXE, Ok(vec![3.0])), (OURS, Err("loss".to_owned()))] {
            let mut runs = 0;
            let ran = clean(device, || {
                runs += 1;
                Ok(if runs == 3 {
                    Ok(vec![3.0])
                } else {
                    Err("loss".to_owned())
                })
            });
            assert_eq!(ran.unwrap(), wanted);
        }
        let mut runs = 0;
        let never = clean(RXE, || {
            runs += 1;
            Ok(Err("loss".to_owned()))
        });
        assert!(never.unwrap().is_err());
        assert_eq!(runs, REFERENCE_TRIES);
    }

    #[test]
    fn cases_are_selected_by_kind_tool_and_size() {
        let wanted = |text| {
            let only = Selection::parse(text);
            SERIES.iter().map(|s| s.sizes(&only).count()).sum::<usize>()
        };
        assert_eq!(
            [wanted("latency"), wanted("ib_read_bw"), wanted("64k")],
            [9, 3, 6]
        );
        assert_eq!(wanted("latency,ib_read_bw"), 0);
    }
}
