//! How cost grows with the number of queue pairs and CQs, of peers, and with the size of a region. The reference of every figure is
//! the smallest number, measured in the same rounds.

use std::time::{Duration, Instant};

use anyhow::Result;
use conformance::counting::live;
use conformance::memory::PAGE;
use conformance::node::{KERNEL, QpOptions};
use conformance::side::{Connection, connect};
use conformance::world::{Kind, Options as WorldOptions, World};

use crate::native::control::{Layout, Registration, register, world};
use crate::native::drive::{Load, Op};
use crate::native::end::{FOOTPRINT, Shape};
use crate::native::process::pin;
use crate::native::rig::{Rig, Shared};
use crate::options::Options;
use crate::report::Report;
use crate::samples::{Samples, interleaved};
use crate::table::{Axis, Row, Table};

const QPS: [u32; 4] = [1, 10, 100, 1000];
const PEERS: [u32; 4] = [1, 2, 4, 8];
const REGIONS: [u64; 6] = [4 << 10, 64 << 10, 1 << 20, 64 << 20, 1 << 30, 16 << 30];

/// The suite.
pub fn run(options: &Options) -> Result<bool> {
    options.nothing_else()?;
    let mut report = Report::new(&options.out, "growth")?;
    for own_cqs in [false, true] {
        report.add(&queue_pairs(options, own_cqs))?;
    }
    report.add(&objects(options))?;
    report.add(&peers(options))?;
    report.add(&regions(options))?;
    report.add(&registrations(options))?;
    Ok(report.finish())
}

/// A sample of one rig.
type Sample = fn(&Shared, Duration) -> Result<f64>;

/// Something that is measured for every number.
struct Figure {
    case: &'static str,
    unit: &'static str,
    sample: Sample,
}

/// Measures figures on all rigs in turn. For each rig the row, whose reference is the first one.
fn rows(
    options: &Options,
    time: Duration,
    figures: &[Figure],
    rigs: &[Shared],
    place: impl Fn(Row, usize) -> Row,
) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for figure in figures {
        let mut subjects: Vec<Box<dyn FnMut() -> Result<f64> + '_>> = Vec::new();
        for rig in rigs {
            subjects.push(Box::new(move || (figure.sample)(rig, time)));
        }
        let results = interleaved(options.rounds, &mut subjects)?;
        let samples: Vec<Samples> = results
            .iter()
            .map(|rounds| Samples::of(rounds, |v| *v))
            .collect();
        for (n, ours) in samples.iter().enumerate() {
            let row = Row::measured(figure.case, ours, figure.unit);
            rows.push(place(row, n).against("the least", ours, &samples[0]));
        }
    }
    Ok(rows)
}

fn connected(shapes: impl Iterator<Item = Shape>) -> Result<Vec<Shared>> {
    shapes
        .map(|shape| Ok(Shared::new(Rig::new(&shape)?)))
        .collect()
}

fn rate(rig: &Shared, load: Load, time: Duration) -> Result<f64> {
    Ok(rig.borrow_mut().stream(load, time)?.rate / 1e6)
}

fn latency(rig: &Shared, time: Duration) -> Result<f64> {
    Ok(rig
        .borrow_mut()
        .latency(Load::one_by_one(Op::Write, 8), time)?
        .p50)
}

const DEPTH: u32 = 16;

/// One queue pair among idle ones, and all of them busy.
fn queue_pairs(options: &Options, own_cqs: bool) -> Table {
    let (name, title) = match own_cqs {
        false => ("qps", "queue pairs that share a CQ"),
        true => ("cqs", "queue pairs, each with a CQ of its own"),
    };
    let mut table = Table::new(name, title, Axis::Qps).of_its_own();
    table.case(options, &["growth", name], || {
        let shapes = QPS.map(|qps| Shape {
            own_cqs,
            ..Shape::inline(options, qps, DEPTH)
        });
        let figures = [
            Figure {
                case: "8 B WRITE on one, p50 (us)",
                unit: "us",
                sample: latency,
            },
            Figure {
                case: "64 B WRITE on all (M/s)",
                unit: "M/s",
                sample: |rig, time| rate(rig, Load::new(Op::Write, 64, DEPTH), time),
            },
            Figure {
                case: "4 KiB WRITE on all (M/s)",
                unit: "M/s",
                sample: |rig, time| rate(rig, Load::new(Op::Write, 4096, DEPTH), time),
            },
        ];
        let time = options.time(Duration::from_millis(150));
        let rigs = connected(shapes.into_iter())?;
        rows(options, time, &figures, &rigs, |row, n| {
            row.qps(QPS[n]).depth(DEPTH)
        })
    });
    table
}

/// What one more queue pair costs where there are many already.
fn objects(options: &Options) -> Table {
    let title = "one more pair of queue pairs where there are so many: time to create and connect it, memory of both devices";
    let mut table = Table::new("objects", title, Axis::Qps).of_its_own();
    table.case(options, &["growth", "objects"], || {
        pin(Some(0));
        let rounds: Vec<Vec<(f64, f64)>> = (0..options.rounds).map(|_| grow()).collect();
        type Part = fn(&(f64, f64)) -> f64;
        let figures: [(&str, &str, Part); 2] = [
            ("create and connect (us)", "us", |f| f.0),
            ("memory (bytes)", "bytes", |f| f.1),
        ];
        let mut rows = Vec::new();
        for (case, unit, figure) in figures {
            let at = |n: usize| Samples::of(&rounds, |round| figure(&round[n]));
            for (n, qps) in QPS.into_iter().enumerate() {
                let row = Row::measured(case, &at(n), unit).qps(qps);
                rows.push(row.against("the least", &at(n), &at(0)));
            }
        }
        Ok(rows)
    });
    table
}

/// Queue pairs up to the highest number and a few more; for each number the microseconds and bytes of one more.
fn grow() -> Vec<(f64, f64)> {
    const MORE: usize = 20;
    let world = World::with(Kind::Tcp, &WorldOptions::default());
    world.settle();
    let (a, b) = (world.a(), world.b());
    let small = QpOptions {
        sq_entries: 16,
        rq_entries: 16,
        scattered: false,
        ..Default::default()
    };
    let [of_a, of_b] = [a, b].map(|node| {
        let pd = node.create_pd(KERNEL).expect("a PD");
        (pd, node.create_cq(KERNEL, 64, 0).expect("a CQ"))
    });
    let mut pairs = Vec::new();
    let mut pair = || {
        let [left, right] = [(a, &of_a), (b, &of_b)].map(|(node, (pd, cq))| {
            node.create_qp(KERNEL, *pd, cq.cqn, cq.cqn, &small)
                .expect("a QP")
        });
        connect((a, &left), (b, &right), &Connection::default());
        pairs.push((left, right));
        pairs.len()
    };
    let mut figures = Vec::new();
    for qps in QPS {
        while pair() < qps as usize {}
        let (before, from) = (live(), Instant::now());
        for _ in 0..MORE {
            pair();
        }
        let elapsed = from.elapsed().as_secs_f64() * 1e6;
        let bytes = live().saturating_sub(before);
        figures.push((elapsed / MORE as f64, bytes as f64 / MORE as f64));
    }
    figures
}

/// One device linked to several, which share a processor.
fn peers(options: &Options) -> Table {
    let title =
        "one device with so many peers, one queue pair with each; the peers share one processor";
    let mut table = Table::new("peers", title, Axis::Qps).of_its_own();
    table.case(options, &["growth", "peers"], || {
        let figures = [
            Figure {
                case: "8 B WRITE to one, p50 (us)",
                unit: "us",
                sample: latency,
            },
            Figure {
                case: "64 B WRITE to all (M/s)",
                unit: "M/s",
                sample: |rig, time| rate(rig, Load::new(Op::Write, 64, DEPTH), time),
            },
            Figure {
                case: "64 KiB WRITE to all (Gb/s)",
                unit: "Gb/s",
                sample: |rig, time| {
                    Ok(rig
                        .borrow_mut()
                        .stream(Load::new(Op::Write, 65_536, DEPTH), time)?
                        .gbps)
                },
            },
        ];
        let shapes = PEERS.map(|peers| Shape {
            peers,
            ..Shape::inline(options, 1, DEPTH)
        });
        let time = options.time(Duration::from_millis(150));
        let rigs = connected(shapes.into_iter())?;
        rows(options, time, &figures, &rigs, |row, n| {
            row.qps(PEERS[n]).depth(DEPTH)
        })
    });
    table
}

/// Access to places all over a region.
fn regions(options: &Options) -> Table {
    let title = "64 B WRITE at depth 128 to 256 places all over a region of the peer, none of whose pages follows on another";
    let mut table = Table::new("regions", title, Axis::Size).of_its_own();
    table.case(options, &["growth", "regions"], || {
        let depth = 128;
        let shapes = REGIONS.map(|region| Shape {
            region,
            ..Shape::inline(options, 1, depth)
        });
        // One of the default size is another kind of region.
        debug_assert!(!REGIONS[..2].contains(&(FOOTPRINT as u64)));
        let figures = [Figure {
            case: "64 B WRITE (M/s)",
            unit: "M/s",
            sample: |rig, time| rate(rig, Load::new(Op::Write, 64, 128), time),
        }];
        let time = options.time(Duration::from_millis(150));
        let rigs = connected(shapes.into_iter())?;
        rows(options, time, &figures, &rigs, |row, n| {
            row.size(REGIONS[n]).depth(depth)
        })
    });
    table
}

/// Registering regions: each way that memory can lie.
fn registrations(options: &Options) -> Table {
    let title =
        "registering sparse memory, in pages none of which follows on another or in one piece";
    let mut table = Table::new("reg_mr", title, Axis::Size).of_its_own();
    table.case(options, &["growth", "reg_mr"], || {
        pin(Some(0));
        let largest = REGIONS[REGIONS.len() - 1] as usize;
        let world = world(2 * (largest / PAGE) + 4096);
        let node = world.a();
        let pd = node.create_pd(KERNEL).expect("a PD");
        let mut rows = Vec::new();
        for (layout, how) in [
            (Layout::Scattered, "scattered"),
            (Layout::Contiguous, "one piece"),
        ] {
            let mut subjects: Vec<Box<dyn FnMut() -> Result<Registration> + '_>> = Vec::new();
            for len in REGIONS {
                subjects.push(Box::new(move || Ok(register(node, pd, len, layout))));
            }
            let results = interleaved(options.rounds, &mut subjects)?;
            type Part = fn(&Registration, f64) -> f64;
            let parts: [(&str, &str, Part); 4] = [
                ("register (us)", "us", |t, _| t.register.as_secs_f64() * 1e6),
                ("register, each page (ns)", "ns", |t, pages| {
                    t.register.as_secs_f64() * 1e9 / pages
                }),
                ("deregister (us)", "us", |t, _| {
                    t.deregister.as_secs_f64() * 1e6
                }),
                ("memory (bytes)", "bytes", |t, _| t.bytes as f64),
            ];
            for (case, unit, part) in parts {
                let samples: Vec<Samples> = results
                    .iter()
                    .zip(REGIONS)
                    .map(|(rounds, len)| {
                        let pages = len as f64 / PAGE as f64;
                        Samples::of(rounds, |took| part(took, pages))
                    })
                    .collect();
                for (n, ours) in samples.iter().enumerate() {
                    let row = Row::measured(format!("{case}, {how}"), ours, unit).size(REGIONS[n]);
                    rows.push(row.against("the least", ours, &samples[0]));
                }
            }
        }
        Ok(rows)
    });
    table
}
