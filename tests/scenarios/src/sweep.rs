//! The sweep: bandwidth and latency of every one-sided and two-sided operation between two VMs, with the loss counters beside each figure.

use std::fmt::Write as _;
use std::fs;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::meeting::{Outcome, Planned, in_turn};
use crate::perftest::{Run, clock_failure, figures};
use crate::vm::{Lab, Vm, emulated};

/// One kind of measurement: its runs, and what its table shows of them.
struct Series {
    tools: [&'static str; 3],
    /// Messages are as long as these powers of two.
    sizes: RangeInclusive<u32>,
    /// Messages of a run: on hardware, and in the emulated lab.
    iterations: [u32; 2],
    options: &'static str,
    /// Measured from the second VM to the first too.
    both_ways: bool,
    file: &'static str,
    /// Digits after the point of the figures in the file.
    digits: usize,
    /// Characters of a column on the terminal.
    width: usize,
    columns: &'static [Column],
}

/// A column of figures.
struct Column {
    /// Which number of the tool's result line.
    place: usize,
    /// Name in the file.
    name: &'static str,
    /// Heading on the terminal, and digits after the point; None: in the file only.
    shown: Option<(&'static str, usize)>,
}

const fn column(place: usize, name: &'static str, shown: Option<(&'static str, usize)>) -> Column {
    Column { place, name, shown }
}

static BANDWIDTH: Series = Series {
    tools: ["ib_write_bw", "ib_read_bw", "ib_send_bw"],
    sizes: 6..=16,
    iterations: [5000, 300],
    options: "--report_gbits",
    both_ways: true,
    file: "results.csv",
    digits: 6,
    width: 10,
    columns: &[
        column(3, "bw_avg_gbps", Some(("Gb/s avg", 4))),
        column(4, "msg_rate_mpps", Some(("Mpps", 5))),
    ],
};

static LATENCY: Series = Series {
    tools: ["ib_write_lat", "ib_read_lat", "ib_send_lat"],
    sizes: 1..=12,
    iterations: [1000, 30],
    options: "",
    both_ways: false,
    file: "latency.csv",
    digits: 2,
    width: 12,
    columns: &[
        column(4, "typical_us", Some(("typical us", 2))),
        column(5, "average_us", Some(("average us", 2))),
        column(7, "p99_us", Some(("99 % us", 2))),
        column(8, "p999_us", None),
    ],
};

const LIMIT: Duration = Duration::from_secs(60);

/// How often a run is made again whose tool could not measure its clock.
const CLOCK_TRIES: u32 = 3;

/// A row of either table.
struct Row {
    tool: &'static str,
    direction: String,
    size: u32,
    iterations: u32,
    /// Result columns; None where the run failed or something was lost, for then there is no figure.
    figures: Option<Vec<f64>>,
    client_rc: i32,
    server_rc: i32,
    loss_local: u64,
    loss_remote: u64,
}

impl Row {
    /// `lost` is what each side's loss counters grew by. Second: what a run that failed said.
    fn new(
        run: &Run,
        direction: String,
        outcome: &Outcome,
        lost: [u64; 2],
    ) -> Result<(Row, Option<String>)> {
        let clean = outcome.ok() && lost == [0, 0];
        let complaint = (!clean).then(|| format!("{run:?} {direction}\n{}", outcome.text()));
        let row = Row {
            tool: run.tool,
            direction,
            size: run.size,
            iterations: run.iterations,
            figures: if clean {
                Some(figures(&outcome.client.stdout, run.size)?)
            } else {
                None
            },
            client_rc: outcome.client.status,
            server_rc: outcome.server.status,
            loss_local: lost[0],
            loss_remote: lost[1],
        };
        Ok((row, complaint))
    }

    fn figure(&self, place: usize, digits: usize) -> String {
        match self.figures.as_ref().and_then(|figures| figures.get(place)) {
            Some(value) => format!("{value:.digits$}"),
            None => String::new(),
        }
    }
}

/// Runs the sweep, prints both tables, and writes `results.csv` and `latency.csv`. Fails unless every run's status is 0 and nothing was lost.
pub fn sweep(lab: &Lab) -> Result<()> {
    let started = Instant::now();
    let (mut a, mut b) = lab.boot_pair(&[])?;
    println!(
        "two VMs up, IP between them, after {:.1} s",
        started.elapsed().as_secs_f64()
    );
    let rows = measure_all(&a, &b);
    let (bandwidth, latency, complaints) = match rows {
        Ok(rows) => rows,
        Err(error) => return Err(error.context(format!("{}{}", a.log_tail(), b.log_tail()))),
    };
    let results = [(&BANDWIDTH, &bandwidth), (&LATENCY, &latency)];
    for (series, rows) in results {
        fs::write(lab.out.join(series.file), csv(series, rows))?;
    }
    for (series, rows) in results {
        print!("{}", table(series, rows));
    }
    println!();
    for vm in [&a, &b] {
        println!("loss counters of {}: {}", vm.name, vm.loss()?);
        ensure!(vm.loss()? == 0, "VM {} lost something", vm.name);
    }
    a.crash();
    b.crash();
    ensure!(
        complaints.is_empty(),
        "{} runs failed:\n{}",
        complaints.len(),
        complaints.join("\n")
    );
    println!(
        "{} runs, every rc 0, every loss counter 0, {:.0} s",
        bandwidth.len() + latency.len(),
        started.elapsed().as_secs_f64()
    );
    Ok(())
}

/// The runs of a series, in order, and where each is made.
fn plan<'a>(
    series: &'static Series,
    a: &'a Vm,
    b: &'a Vm,
    first_port: u16,
) -> (Vec<Run>, Vec<Planned<'a>>) {
    let ways = [(a, b), (b, a)];
    let ways = ways.into_iter().take(1 + usize::from(series.both_ways));
    let runs = ways.flat_map(|way| series.tools.map(|tool| (way, tool)));
    let runs = runs.flat_map(|(way, tool)| series.sizes.clone().map(move |n| (way, tool, 1 << n)));
    let planned = runs.zip(first_port..);
    let planned = planned.map(|(((client, server), tool, size), port)| {
        let run = Run {
            tool,
            size,
            iterations: series.iterations[usize::from(emulated())],
            options: series.options.into(),
        };
        let planned = Planned {
            meeting: run.meeting(port),
            client,
            server,
        };
        (run, planned)
    });
    planned.unzip()
}

/// Runs both series. Returns the rows of each, and what the runs that failed said.
fn measure_all(a: &Vm, b: &Vm) -> Result<(Vec<Row>, Vec<Row>, Vec<String>)> {
    let mut complaints = Vec::new();
    let bandwidth = measure(&BANDWIDTH, a, b, 20_000, &mut complaints)?;
    let latency = measure(&LATENCY, a, b, 21_000, &mut complaints)?;
    Ok((bandwidth, latency, complaints))
}

/// Makes the runs of a series.
fn measure(
    series: &'static Series,
    a: &Vm,
    b: &Vm,
    first_port: u16,
    complaints: &mut Vec<String>,
) -> Result<Vec<Row>> {
    let (runs, planned) = plan(series, a, b, first_port);
    let mut rows: Vec<Row> = Vec::new();
    let mut started = Instant::now();
    let of = |place: usize| Some((runs.get(place)?.tool, planned.get(place)?.direction()));
    in_turn(&planned, LIMIT, |place, outcome, lost| {
        let (run, this) = (&runs[place], &planned[place]);
        let (outcome, lost) = with_a_clock(this, outcome, lost)?;
        let (row, complaint) = Row::new(run, this.direction(), &outcome, lost)?;
        rows.push(row);
        complaints.extend(complaint);
        if of(place + 1) != of(place) {
            println!(
                "{} {}: {:.1} s",
                run.tool,
                this.direction(),
                started.elapsed().as_secs_f64()
            );
            started = Instant::now();
        }
        Ok(())
    })?;
    Ok(rows)
}

/// A run whose tool could not measure its own clock has no figures: it is made again, and that is told. What was lost in any of
/// its tries counts.
fn with_a_clock(
    this: &Planned,
    mut outcome: Outcome,
    mut lost: [u64; 2],
) -> Result<(Outcome, [u64; 2])> {
    for _ in 0..CLOCK_TRIES {
        match clock_failure(&outcome) {
            Some(said) if outcome.ok() => println!("again: {}: {said}", this.meeting.client),
            _ => break,
        }
        let before = this.loss()?;
        outcome = this
            .meeting
            .clone()
            .between(this.client, this.server, LIMIT)?;
        let after = this.loss()?;
        lost = [0, 1].map(|n| lost[n] + after[n] - before[n]);
    }
    Ok((outcome, lost))
}

// Writing to a String, as the next two do, does not fail.

/// What goes into the series' file.
fn csv(series: &Series, rows: &[Row]) -> String {
    let mut csv = String::from("tool,direction,size_bytes,iterations");
    for column in series.columns {
        let _ = write!(csv, ",{}", column.name);
    }
    csv.push_str(",client_rc,server_rc,loss_local,loss_remote\n");
    for row in rows {
        let Row {
            tool,
            direction,
            size,
            iterations,
            client_rc,
            server_rc,
            loss_local,
            loss_remote,
            ..
        } = row;
        let _ = write!(csv, "{tool},{direction},{size},{iterations}");
        for column in series.columns {
            let _ = write!(csv, ",{}", row.figure(column.place, series.digits));
        }
        let _ = writeln!(csv, ",{client_rc},{server_rc},{loss_local},{loss_remote}");
    }
    csv
}

/// What goes to the terminal.
fn table(series: &Series, rows: &[Row]) -> String {
    let width = series.width;
    let shown = || {
        let columns = series.columns.iter();
        columns.filter_map(|column| Some((column.place, column.shown?)))
    };
    let mut table = format!("\n{:<12} {:>5} {:>7}", "tool", "dir", "bytes");
    for (_, (heading, _)) in shown() {
        let _ = write!(table, " {heading:>width$}");
    }
    let _ = writeln!(table, " {:>3}/{:<3} {:>5}", "rc", "rc", "loss");
    for row in rows {
        let _ = write!(
            table,
            "{:<12} {:>5} {:>7}",
            row.tool, row.direction, row.size
        );
        for (place, (_, digits)) in shown() {
            let _ = write!(table, " {:>width$}", row.figure(place, digits));
        }
        let _ = writeln!(
            table,
            " {:>3}/{:<3} {:>5}",
            row.client_rc,
            row.server_rc,
            row.loss_local + row.loss_remote
        );
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(tools: [&'static str; 3], figures: &[f64]) -> [Row; 2] {
        let row = |tool, figures| Row {
            tool,
            direction: "a->b".into(),
            size: 4096,
            iterations: 200,
            figures,
            client_rc: 0,
            server_rc: -1,
            loss_local: 2,
            loss_remote: 1,
        };
        [row(tools[0], Some(figures.to_vec())), row(tools[2], None)]
    }

    #[test]
    fn a_run_without_figures_leaves_its_columns_empty() {
        let bandwidth = rows(
            BANDWIDTH.tools,
            &[4096.0, 1000.0, 1.5, 1.23456789, 0.0376543219],
        );
        assert_eq!(
            csv(&BANDWIDTH, &bandwidth),
            "tool,direction,size_bytes,iterations,bw_avg_gbps,msg_rate_mpps,client_rc,server_rc,loss_local,loss_remote\n\
             ib_write_bw,a->b,4096,200,1.234568,0.037654,0,-1,2,1\n\
             ib_send_bw,a->b,4096,200,,,0,-1,2,1\n"
        );
        assert_eq!(
            table(&BANDWIDTH, &bandwidth),
            "\ntool           dir   bytes   Gb/s avg       Mpps  rc/rc   loss\n\
             ib_write_bw   a->b    4096     1.2346    0.03765   0/-1      3\n\
             ib_send_bw    a->b    4096                         0/-1      3\n"
        );
        let figures = [4096.0, 200.0, 1.5, 99.0, 20.125, 21.5, 3.0, 33.333, 44.444];
        let latency = rows(LATENCY.tools, &figures);
        assert_eq!(
            csv(&LATENCY, &latency),
            "tool,direction,size_bytes,iterations,typical_us,average_us,p99_us,p999_us,client_rc,server_rc,loss_local,loss_remote\n\
             ib_write_lat,a->b,4096,200,20.12,21.50,33.33,44.44,0,-1,2,1\n\
             ib_send_lat,a->b,4096,200,,,,,0,-1,2,1\n"
        );
        assert_eq!(
            table(&LATENCY, &latency),
            "\ntool           dir   bytes   typical us   average us      99 % us  rc/rc   loss\n\
             ib_write_lat  a->b    4096        20.12        21.50        33.33   0/-1      3\n\
             ib_send_lat   a->b    4096                                          0/-1      3\n"
        );
    }
}
