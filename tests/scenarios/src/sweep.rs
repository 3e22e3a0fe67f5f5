//! The sweep: bandwidth and latency of every one-sided and two-sided operation between two VMs, with the loss counters beside each figure.

use std::fmt::Write as _;
use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::perftest::{Run, figures};
use crate::vm::{Lab, Vm};

const BANDWIDTH: [&str; 3] = ["ib_write_bw", "ib_read_bw", "ib_send_bw"];
const LATENCY: [&str; 3] = ["ib_write_lat", "ib_read_lat", "ib_send_lat"];
const LIMIT: Duration = Duration::from_secs(60);

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
    fn measure(run: &Run, client: &Vm, server: &Vm, port: u16) -> Result<(Row, String)> {
        let before = (client.loss()?, server.loss()?);
        let outcome = run.between(client, server, port, LIMIT)?;
        let (loss_local, loss_remote) = (client.loss()? - before.0, server.loss()? - before.1);
        let clean = outcome.ok() && loss_local == 0 && loss_remote == 0;
        let row = Row {
            tool: run.tool,
            direction: format!("{}->{}", client.name, server.name),
            size: run.size,
            iterations: run.iterations,
            figures: if clean {
                Some(figures(&outcome.client.stdout, run.size)?)
            } else {
                None
            },
            client_rc: outcome.client.status,
            server_rc: outcome.server.status,
            loss_local,
            loss_remote,
        };
        let complaint = if clean { String::new() } else { outcome.text() };
        Ok((row, complaint))
    }

    fn figure(&self, column: usize, digits: usize) -> String {
        match self
            .figures
            .as_ref()
            .and_then(|figures| figures.get(column))
        {
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
    fs::write(lab.out.join("results.csv"), bandwidth_csv(&bandwidth))?;
    fs::write(lab.out.join("latency.csv"), latency_csv(&latency))?;
    print_tables(&bandwidth, &latency);
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

type Tables = (Vec<Row>, Vec<Row>, Vec<String>);

fn measure_all(a: &Vm, b: &Vm) -> Result<Tables> {
    let (mut bandwidth, mut latency, mut complaints) = (Vec::new(), Vec::new(), Vec::new());
    let mut port = 20_000;
    let mut one = |run: Run, client: &Vm, server: &Vm, rows: &mut Vec<Row>| -> Result<()> {
        port += 1;
        let (row, complaint) = Row::measure(&run, client, server, port)?;
        rows.push(row);
        if !complaint.is_empty() {
            complaints.push(format!(
                "{run:?} {}->{}\n{complaint}",
                client.name, server.name
            ));
        }
        Ok(())
    };
    for (client, server) in [(a, b), (b, a)] {
        for tool in BANDWIDTH {
            let started = Instant::now();
            for size in (6..=16).map(|n| 1 << n) {
                let run = Run {
                    tool,
                    size,
                    iterations: 1_000,
                    options: "--report_gbits".into(),
                };
                one(run, client, server, &mut bandwidth)?;
            }
            println!(
                "{tool} {}->{}: {:.1} s",
                client.name,
                server.name,
                started.elapsed().as_secs_f64()
            );
        }
    }
    for tool in LATENCY {
        let started = Instant::now();
        for size in (1..=12).map(|n| 1 << n) {
            let run = Run {
                tool,
                size,
                iterations: 100,
                options: String::new(),
            };
            one(run, a, b, &mut latency)?;
        }
        println!("{tool} a->b: {:.1} s", started.elapsed().as_secs_f64());
    }
    Ok((bandwidth, latency, complaints))
}

fn bandwidth_csv(rows: &[Row]) -> String {
    let mut csv = String::from(
        "tool,direction,size_bytes,iterations,bw_avg_gbps,msg_rate_mpps,client_rc,server_rc,loss_local,loss_remote\n",
    );
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
        let (average, rate) = (row.figure(3, 6), row.figure(4, 6));
        // Writing to a String does not fail.
        let _ = writeln!(
            csv,
            "{tool},{direction},{size},{iterations},{average},{rate},{client_rc},{server_rc},{loss_local},{loss_remote}"
        );
    }
    csv
}

fn latency_csv(rows: &[Row]) -> String {
    let mut csv = String::from(
        "tool,direction,size_bytes,iterations,typical_us,average_us,p99_us,p999_us,client_rc,server_rc,loss_local,loss_remote\n",
    );
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
        let columns: Vec<String> = [4, 5, 7, 8].map(|column| row.figure(column, 2)).into();
        let _ = writeln!(
            csv,
            "{tool},{direction},{size},{iterations},{},{client_rc},{server_rc},{loss_local},{loss_remote}",
            columns.join(",")
        );
    }
    csv
}

fn print_tables(bandwidth: &[Row], latency: &[Row]) {
    println!(
        "\n{:<12} {:>5} {:>7} {:>10} {:>10} {:>3}/{:<3} {:>5}",
        "tool", "dir", "bytes", "Gb/s avg", "Mpps", "rc", "rc", "loss"
    );
    for row in bandwidth {
        println!(
            "{:<12} {:>5} {:>7} {:>10} {:>10} {:>3}/{:<3} {:>5}",
            row.tool,
            row.direction,
            row.size,
            row.figure(3, 4),
            row.figure(4, 5),
            row.client_rc,
            row.server_rc,
            row.loss_local + row.loss_remote
        );
    }
    println!(
        "\n{:<12} {:>5} {:>7} {:>12} {:>12} {:>12} {:>3}/{:<3} {:>5}",
        "tool", "dir", "bytes", "typical us", "average us", "99 % us", "rc", "rc", "loss"
    );
    for row in latency {
        println!(
            "{:<12} {:>5} {:>7} {:>12} {:>12} {:>12} {:>3}/{:<3} {:>5}",
            row.tool,
            row.direction,
            row.size,
            row.figure(4, 2),
            row.figure(5, 2),
            row.figure(7, 2),
            row.client_rc,
            row.server_rc,
            row.loss_local + row.loss_remote
        );
    }
    println!();
}
