//! Commands for a running machine, by its control socket.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use api::control::{Stats, VmInfo, VmState};
use serde_json::Value;

use super::exec;
use crate::control::{self, ClientError};

/// How long a guest may take to switch itself off.
const SHUTDOWN_PATIENCE: Duration = Duration::from_secs(15);
const SHUTDOWN_RETRY: Duration = Duration::from_millis(100);

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The control socket.
    #[error(transparent)]
    Control(#[from] ClientError),
    /// Our standard output.
    #[error("standard output: {0}")]
    Output(#[from] io::Error),
}

/// `longarm pause`.
pub fn pause(path: &Path) -> Result<(), Error> {
    control::request(path, "PUT", "/vm/pause")?;
    Ok(())
}

/// `longarm resume`.
pub fn resume(path: &Path) -> Result<(), Error> {
    control::request(path, "PUT", "/vm/resume")?;
    Ok(())
}

/// `longarm shutdown`: by the guest's agent if there is one, so that the guest can write out its disks; else as if the power
/// were cut.
pub fn shutdown(path: &Path) -> Result<(), Error> {
    let info: VmInfo = control::get(path, "/vm")?;
    let asked = info.state == VmState::Running && info.vsock.is_some_and(|v| exec::power_off(&v));
    let deadline = Instant::now() + SHUTDOWN_PATIENCE;
    while asked && Instant::now() < deadline {
        if control::request(path, "GET", "/vm").is_err() {
            return Ok(());
        }
        thread::sleep(SHUTDOWN_RETRY);
    }
    control::request(path, "PUT", "/vm/stop")?;
    Ok(())
}

/// `longarm stats`.
pub fn stats(path: &Path, json: bool) -> Result<(), Error> {
    let text = if json {
        let stats: Value = control::get(path, "/stats")?;
        format!("{stats:#}\n")
    } else {
        table(&control::get(path, "/stats")?)
    };
    print(&text)
}

/// Writes to standard output. A reader that went away is no failure.
pub fn print(text: &str) -> Result<(), Error> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => Err(e.into()),
        _ => Ok(()),
    }
}

fn table(stats: &Stats) -> String {
    let mut out = String::new();
    let state = format!("{:?}", stats.state).to_lowercase();
    row(&mut out, "state", &state);
    row(
        &mut out,
        "uptime",
        &format!("{:.1} s", stats.uptime_seconds),
    );
    for (id, vcpu) in stats.vcpus.iter().enumerate() {
        let own = [
            ("port_io", vcpu.port_io),
            ("mmio", vcpu.mmio),
            ("other", vcpu.other),
        ];
        for (name, count) in own {
            row(&mut out, &format!("vcpu{id}.{name}"), &count.to_string());
        }
        for (name, count) in &vcpu.kvm {
            row(
                &mut out,
                &format!("vcpu{id}.kvm.{name}"),
                &count.to_string(),
            );
        }
    }
    for (kind, devices) in [
        ("disk", &stats.disks),
        ("net", &stats.net),
        ("rdma", &stats.rdma),
    ] {
        for (id, device) in devices.iter().enumerate() {
            rows(&mut out, &format!("{kind}{id}"), device);
        }
    }
    out
}

fn row(out: &mut String, name: &str, value: &str) {
    // Writing to a string does not fail.
    let _ = writeln!(out, "{name:<48} {value}");
}

/// Rows for every value below `value`, named by the way to it. What a snapshot nests is shallow; we stop at 8 levels all the same.
fn rows(out: &mut String, name: &str, value: &Value) {
    if name.matches('.').count() > 8 {
        return;
    }
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                rows(out, &format!("{name}.{key}"), value);
            }
        }
        Value::Array(items) => {
            for (index, value) in items.iter().enumerate() {
                rows(out, &format!("{name}.{index}"), value);
            }
        }
        Value::String(text) => row(out, name, text),
        other => row(out, name, &other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::control::VcpuStats;
    use serde_json::json;

    #[test]
    fn the_table_has_a_row_for_every_counter() {
        let stats = Stats {
            uptime_seconds: 1.5,
            state: VmState::Paused,
            vcpus: vec![VcpuStats {
                mmio: 7,
                kvm: [("exits".into(), 9)].into(),
                ..Default::default()
            }],
            disks: vec![],
            net: vec![],
            rdma: vec![json!({"device": {"lost": 3}, "peers": [{"up": true}]})],
        };
        let text = table(&stats);
        let words: Vec<Vec<&str>> = text
            .lines()
            .map(|l| l.split_whitespace().collect())
            .collect();
        assert!(words.contains(&vec!["state", "paused"]));
        assert!(words.contains(&vec!["vcpu0.mmio", "7"]));
        assert!(words.contains(&vec!["vcpu0.kvm.exits", "9"]));
        assert!(words.contains(&vec!["rdma0.device.lost", "3"]));
        assert!(words.contains(&vec!["rdma0.peers.0.up", "true"]));
    }
}
