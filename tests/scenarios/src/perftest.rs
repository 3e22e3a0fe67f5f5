//! Running a perftest tool between two VMs, and reading what it printed.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::meeting::{Meeting, Outcome, Ready};
use crate::vm::Vm;

/// What one run of a tool was asked to do.
#[derive(Clone, Debug)]
pub struct Run {
    /// `ib_write_bw` and so on.
    pub tool: &'static str,
    /// Bytes of a message.
    pub size: u32,
    /// Messages.
    pub iterations: u32,
    /// Further options, given to both sides.
    pub options: String,
}

impl Run {
    /// Both sides' commands, on a port of its own for each run, so that no run can meet what an earlier one left.
    pub fn meeting(&self, port: u16) -> Meeting {
        let command = format!(
            "{} -F -p {port} -s {} -n {} {}",
            self.tool, self.size, self.iterations, self.options
        );
        // With these the two sides find each other by the CM, not by TCP.
        let by_cm = ["-R", "-z"];
        let by_cm = self.options.split(' ').any(|word| by_cm.contains(&word));
        Meeting {
            client: format!("{command} @server"),
            server: command,
            ready: if by_cm { Ready::Cm } else { Ready::Tcp(port) },
            serves_on: false,
        }
    }

    /// Runs the tool: its server in `server`, its client in `client`.
    pub fn between(&self, client: &Vm, server: &Vm, port: u16, limit: Duration) -> Result<Outcome> {
        self.meeting(port).between(client, server, limit)
    }
}

/// What a perftest tool said if it could not find out how fast its clock runs; its figures are worth nothing then.
///
/// It counts cycles over spans of 100 us to 2 ms by the system's clock, and gives up if the counts do not lie on a line. One pause of its
/// vCPU of some 60 ms between a reading of the clock and the count beside it is enough. Run with `-F` it then takes 0 for the
/// clock's rate, and prints a bandwidth of 0 or a latency without end, with status 0.
pub fn clock_failure(outcome: &Outcome) -> Option<&str> {
    let sides = [&outcome.client, &outcome.server];
    let mut lines = sides.into_iter().flat_map(|side| side.stderr.lines());
    lines.find(|line| line.starts_with("Correlation coefficient r^2"))
}

/// The figures of the one result line of a perftest tool.
///
/// Both kinds of tool print `#bytes #iterations` first; bandwidth tools then peak and average (Gb/s with `--report_gbits`) and the
/// message rate (Mpps), latency tools minimum, maximum, typical, average, deviation, 99 % and 99.9 % (microseconds).
///
/// A line in which a figure is 0 or no number is refused: nothing is that fast or that slow, so the tool did not measure
/// (see [`clock_failure`]). The deviation of a latency may be 0, and so may the peak of a bandwidth, which not every mode measures.
pub fn figures(output: &str, size: u32) -> Result<Vec<f64>> {
    let numbers = output
        .lines()
        .filter_map(|line| {
            line.split_whitespace()
                .map(|word| word.parse().ok())
                .collect::<Option<Vec<f64>>>()
        })
        .find(|numbers| numbers.len() >= 5 && numbers[0] == f64::from(size))
        .with_context(|| format!("no result line for {size} bytes in\n{output}"))?;
    let may_be_zero = if numbers.len() < 9 { 2 } else { 6 };
    let mut measured = numbers.iter().enumerate().skip(2);
    ensure!(
        measured.all(|(place, n)| n.is_finite() && (*n > 0.0 || place == may_be_zero)),
        "not a measurement: {numbers:?} in\n{output}"
    );
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::running::Output;

    #[test]
    fn a_result_line_is_found_among_the_rest() {
        let output = " local address: LID 0000 QPN 0x0001 PSN 0x2\n #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n 64         1000             0.45               0.44               0.867\n---\n";
        assert_eq!(
            figures(output, 64).unwrap(),
            [64.0, 1000.0, 0.45, 0.44, 0.867]
        );
        assert!(figures(output, 128).is_err());
    }

    #[test]
    fn a_line_without_a_measurement_is_refused() {
        for line in [
            "64 300 0.000000 0.000000 0.000000",
            "64 300 0.45 0.44 0.000000",
            "64 300 0.45 0.000000 0.867",
            "64 300 inf inf inf",
            "64 30 inf inf inf inf nan inf inf",
            "64 30 1.5 9.0 0.00 2.1 0.3 4.0 5.0",
            "64 30 1.5 9.0 2.0 2.1 nan 4.0 5.0",
        ] {
            let error = figures(line, 64).unwrap_err().to_string();
            assert!(error.contains("not a measurement"), "{line}: {error}");
        }
        figures("64 300 0.00 0.44 0.867", 64).unwrap();
        figures("64 30 1.5 9.0 2.0 2.1 0.00 4.0 5.0", 64).unwrap();
    }

    #[test]
    fn a_clock_that_could_not_be_measured_is_told() {
        let side = |stderr: &str| Output {
            status: 0,
            stdout: String::new(),
            stderr: stderr.into(),
        };
        let said = "Correlation coefficient r^2: 0.71 < 0.9";
        let mut outcome = Outcome {
            client: side(&format!("a warning\n{said}\n")),
            server: side(""),
        };
        assert_eq!(clock_failure(&outcome), Some(said));
        outcome.client = side("a warning\n");
        assert_eq!(clock_failure(&outcome), None);
    }
}
