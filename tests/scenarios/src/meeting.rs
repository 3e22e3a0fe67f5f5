//! A client and a server of one tool, in two VMs or in one: the server started and waited for, the client run, both judged.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::running::{Output, Running};
use crate::vm::Vm;

/// How it shows that a server can be asked.
#[derive(Clone, Copy, Debug)]
pub enum Ready {
    /// A TCP port of its guest listens.
    Tcp(u16),
    /// The process listens by the kernel's RDMA CM.
    Cm,
    /// A thread or child of the process does, on this port.
    CmPort(u16),
    /// Its guest is in this IPv4 multicast group, as `/proc/net/igmp` writes it.
    Group(&'static str),
}

/// The two commands of a tool. In both, `@server` and `@client` stand for the addresses of the VMs they run in.
#[derive(Clone, Debug)]
pub struct Meeting {
    /// The side that is asked; one simple command.
    pub server: String,
    /// The side that asks.
    pub client: String,
    /// When the client may be started.
    pub ready: Ready,
    /// The server knows no end: when the client has ended it is stopped, and that is well.
    pub serves_on: bool,
}

/// What both sides of a meeting left behind.
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

    /// Fails unless both sides said so; the message holds what they printed.
    pub fn all_well(self) -> Result<()> {
        ensure!(self.ok(), "{}", self.text());
        Ok(())
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

/// A server that is about to listen, or does.
pub struct Serving<'a> {
    meeting: Meeting,
    vm: &'a Vm,
    server: Running,
}

impl Meeting {
    /// A server that listens by the CM and ends with its client.
    pub fn by_cm(server: &str, client: &str) -> Meeting {
        Meeting {
            server: server.into(),
            client: client.into(),
            ready: Ready::Cm,
            serves_on: false,
        }
    }

    /// Starts the server in `server` for a client in `client`; it is not waited for.
    pub fn serve<'a>(self, client: &Vm, server: &'a Vm) -> Result<Serving<'a>> {
        let named = |command: &str| {
            command
                .replace("@server", server.address())
                .replace("@client", client.address())
        };
        let meeting = Meeting {
            server: named(&self.server),
            client: named(&self.client),
            ..self
        };
        Ok(Serving {
            server: server.start(&serve(&meeting.server, meeting.ready))?,
            meeting,
            vm: server,
        })
    }

    /// Runs server and client to their ends.
    pub fn between(self, client: &Vm, server: &Vm, limit: Duration) -> Result<Outcome> {
        let serving = self.serve(client, server)?;
        Ok(serving.meet(client, limit, || Ok(()))?.0)
    }
}

impl Serving<'_> {
    /// Runs the client in `client`, and does `meanwhile` while that begins.
    pub fn meet<T>(
        mut self,
        client: &Vm,
        limit: Duration,
        meanwhile: impl FnOnce() -> Result<T>,
    ) -> Result<(Outcome, T)> {
        self.server
            .wait_for("listening", limit)
            .with_context(|| format!("{} in {}", self.meeting.server, self.vm.name))?;
        let running = client.start(&self.meeting.client)?;
        let done = meanwhile()?;
        let client = ended(running, limit);
        let server = if self.meeting.serves_on && self.server.is_running() {
            Output {
                status: 0,
                ..self.server.end()
            }
        } else {
            // A client that failed leaves its server waiting for ever.
            let patience = if client.status == 0 {
                limit
            } else {
                Duration::from_secs(5)
            };
            ended(self.server, patience)
        };
        Ok((Outcome { client, server }, done))
    }
}

/// What a command left behind; a status of its own if it did not end in time.
fn ended(running: Running, limit: Duration) -> Output {
    running.finish(limit).unwrap_or_else(|error| Output {
        status: -1,
        stdout: String::new(),
        stderr: format!("{error:#}\n"),
    })
}

/// A meeting that is to be held.
pub struct Planned<'a> {
    /// What is run.
    pub meeting: Meeting,
    /// Where the client runs.
    pub client: &'a Vm,
    /// Where the server runs.
    pub server: &'a Vm,
}

impl<'a> Planned<'a> {
    /// `a->b`: the client's VM first.
    pub fn direction(&self) -> String {
        format!("{}->{}", self.client.name, self.server.name)
    }

    fn serve(&self) -> Result<Serving<'a>> {
        self.meeting.clone().serve(self.client, self.server)
    }

    /// The loss counters of both VMs.
    pub fn loss(&self) -> Result<[u64; 2]> {
        Ok([self.client.loss()?, self.server.loss()?])
    }
}

/// Holds meetings one after the other, and gives each one's place, outcome and what the loss counters of client's and server's VM
/// grew by. Each one's server starts while the client before it does, for most of a short run is the start of its programs.
pub fn in_turn(
    planned: &[Planned],
    limit: Duration,
    mut each: impl FnMut(usize, Outcome, [u64; 2]) -> Result<()>,
) -> Result<()> {
    let mut serving = planned.first().map(Planned::serve).transpose()?;
    for (place, this) in planned.iter().enumerate() {
        let Some(current) = serving.take() else { break };
        let before = this.loss()?;
        let (outcome, next) = current.meet(this.client, limit, || {
            planned.get(place + 1).map(Planned::serve).transpose()
        })?;
        serving = next;
        let after = this.loss()?;
        each(place, outcome, [0, 1].map(|n| after[n] - before[n]))?;
    }
    Ok(())
}

/// Wraps a server's command so that it prints `listening` when it can be asked, and keeps its status.
pub fn serve(command: &str, ready: Ready) -> String {
    let test = match ready {
        Ready::Tcp(port) => format!("grep -q ':{port:04X} .* 0A ' /proc/net/tcp /proc/net/tcp6"),
        Ready::Cm => r#"rdma resource show cm_id | grep -q "state LISTEN .*pid $server ""#.into(),
        Ready::CmPort(port) => {
            format!(r#"rdma resource show cm_id | grep -q "state LISTEN .*src-addr [^ ]*:{port} ""#)
        }
        Ready::Group(group) => format!("grep -q {group} /proc/net/igmp"),
    };
    format!(
        "{command} & server=$!; until {test}; do kill -0 $server 2>/dev/null || break; sleep 0.02; done; \
         echo listening; wait $server"
    )
}
