//! Running a perftest tool between two VMs, and reading what it printed.

use std::time::Duration;

use anyhow::{Context, Result};

use crate::running::{Output, Running};
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

/// What both sides of a run left behind.
#[derive(Debug)]
pub struct Outcome {
    /// The side that connects and, for most tools, sends.
    pub client: Output,
    /// The side that listens.
    pub server: Output,
}

impl Outcome {
    /// Whether both sides said that all went well.
    pub fn ok(&self) -> bool {
        self.client.status == 0 && self.server.status == 0
    }

    /// What both printed, for messages.
    pub fn text(&self) -> String {
        let side = |name, output: &Output| {
            format!(
                "--- {name}: status {}\n{}{}",
                output.status, output.stdout, output.stderr
            )
        };
        format!(
            "{}{}",
            side("client", &self.client),
            side("server", &self.server)
        )
    }
}

impl Run {
    fn command(&self, port: u16) -> String {
        format!(
            "{} -F -p {port} -s {} -n {} {}",
            self.tool, self.size, self.iterations, self.options
        )
    }

    /// The server's command: says `listening` once a client can connect. A port of its own for each run, so that no run can meet
    /// what an earlier one left.
    fn server_command(&self, port: u16) -> String {
        serve(&self.command(port), port)
    }

    /// The client's command.
    fn client_command(&self, port: u16, server: &str) -> String {
        format!("{} {server}", self.command(port))
    }

    /// Starts the tool's server in `server`; it is not waited for.
    pub fn serve<'a>(&'a self, server: &'a Vm, port: u16) -> Result<Serving<'a>> {
        Ok(Serving {
            run: self,
            vm: server,
            port,
            server: server.start(&self.server_command(port))?,
        })
    }

    /// Runs the tool: its server in `server`, its client in `client`.
    pub fn between(&self, client: &Vm, server: &Vm, port: u16, limit: Duration) -> Result<Outcome> {
        let serving = self.serve(server, port)?;
        Ok(serving.meet(client, limit, || Ok(()))?.0)
    }
}

/// A tool's server that is about to listen, or does.
pub struct Serving<'a> {
    run: &'a Run,
    vm: &'a Vm,
    port: u16,
    server: Running,
}

impl Serving<'_> {
    /// Runs the tool's client in `client`, and does `meanwhile` while that begins.
    pub fn meet<T>(
        mut self,
        client: &Vm,
        limit: Duration,
        meanwhile: impl FnOnce() -> Result<T>,
    ) -> Result<(Outcome, T)> {
        self.server
            .wait_for("listening", limit)
            .with_context(|| format!("{} in {}", self.run.tool, self.vm.name))?;
        let command = self.run.client_command(self.port, self.vm.address());
        let running = client.start(&command)?;
        let done = meanwhile()?;
        let client = running
            .finish(limit)
            .with_context(|| format!("in {}: {command}{}", client.name, client.log_tail()))?;
        // A client that failed leaves its server waiting for ever.
        let patience = if client.status == 0 {
            limit
        } else {
            Duration::from_secs(5)
        };
        let server = self.server.finish(patience).unwrap_or_else(|error| Output {
            status: -1,
            stdout: String::new(),
            stderr: format!("{error:#}"),
        });
        Ok((Outcome { client, server }, done))
    }
}

/// Wraps a server's command so that it prints `listening` when its TCP port is open, and keeps its status.
pub fn serve(command: &str, port: u16) -> String {
    format!(
        "{command} & server=$!; until grep -q ':{port:04X} .* 0A ' /proc/net/tcp /proc/net/tcp6; do \
         kill -0 $server 2>/dev/null || break; sleep 0.02; done; echo listening; wait $server"
    )
}

/// The figures of the one result line of a perftest tool.
///
/// Both kinds of tool print `#bytes #iterations` first; bandwidth tools then peak and average (Gb/s with `--report_gbits`) and the
/// message rate (Mpps), latency tools minimum, maximum, typical, average, deviation, 99 % and 99.9 % (microseconds).
pub fn figures(output: &str, size: u32) -> Result<Vec<f64>> {
    output
        .lines()
        .filter_map(|line| {
            line.split_whitespace()
                .map(|word| word.parse().ok())
                .collect::<Option<Vec<f64>>>()
        })
        .find(|numbers| numbers.len() >= 5 && numbers[0] == f64::from(size))
        .with_context(|| format!("no result line for {size} bytes in\n{output}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_line_is_found_among_the_rest() {
        let output = " local address: LID 0000 QPN 0x0001 PSN 0x2\n #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n 64         1000             0.45               0.44               0.867\n---\n";
        assert_eq!(
            figures(output, 64).unwrap(),
            [64.0, 1000.0, 0.45, 0.44, 0.867]
        );
        assert!(figures(output, 128).is_err());
    }
}
