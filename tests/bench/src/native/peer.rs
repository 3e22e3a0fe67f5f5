//! The other process: this program once more, which takes orders on its standard input and answers on its standard output.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::drive::Op;
use super::end::{Card, End, Shape, losses, transfers};
use super::process::{Meter, Usage, pin};
use super::respond::respond;
use super::tcp::{self, Reception};

/// Name of the suite that is the other process.
pub const SUITE: &str = "native-peer";

/// What the other process is told.
#[derive(Debug, Serialize, Deserialize)]
pub enum Order {
    /// Make ends. Answered by [`Answer::Opened`].
    Open(Shape),
    /// Connect them. Answered by [`Answer::Done`].
    Connect(Card),
    /// Take messages of an operation and a size, counting system calls or not. Answered by [`Answer::Ready`], and after [`Order::Stop`] by [`Answer::Served`].
    Serve(Op, usize, bool),
    /// Stop serving.
    Stop,
    /// Take a TCP connection and read messages. [`Answer::Listening`], then [`Answer::Received`].
    Sink(Reception),
    /// Take a TCP connection and answer each so many bytes with so many. [`Answer::Listening`], then [`Answer::Done`].
    Echo(usize, usize),
}

/// What the other process says.
#[derive(Debug, Serialize, Deserialize)]
pub enum Answer {
    /// For each end where its fabric listens, and what to connect to.
    Opened(Vec<(SocketAddr, Card)>),
    /// Done.
    Done,
    /// It may begin.
    Ready,
    /// How serving went.
    Served(Served),
    /// Where to connect to.
    Listening(SocketAddr),
    /// What came.
    Received(tcp::Received),
}

/// What a responder has to say of a sample.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Served {
    /// Counters that must not move and did.
    pub losses: Vec<String>,
    /// What it took since it was ready.
    pub usage: Usage,
}

/// The other process, seen from the first. It ends with the value.
pub struct Peer {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Peer {
    /// Starts it.
    pub fn start() -> Result<Peer> {
        let program = std::env::current_exe().context("this program's file")?;
        let mut child = Command::new(program)
            .arg(SUITE)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("the other process")?;
        let orders = child.stdin.take().context("its input")?;
        let answers = BufReader::new(child.stdout.take().context("its output")?);
        Ok(Peer {
            child,
            orders,
            answers,
        })
    }

    /// Gives an order.
    pub fn tell(&mut self, order: &Order) -> Result<()> {
        let mut line = serde_json::to_string(order)?;
        line.push('\n');
        self.orders
            .write_all(line.as_bytes())
            .context("the other process")
    }

    /// Waits for an answer.
    pub fn answer(&mut self) -> Result<Answer> {
        let mut line = String::new();
        if self
            .answers
            .read_line(&mut line)
            .context("the other process")?
            == 0
        {
            bail!("the other process has ended");
        }
        serde_json::from_str(&line).context("an answer")
    }

    /// Gives an order and waits for the answer to it.
    pub fn ask(&mut self, order: &Order) -> Result<Answer> {
        self.tell(order)?;
        self.answer()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It may have ended on its own.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Orders as a thread reads them, so that the loops of the process need no system call to see that they are to stop.
struct Inbox {
    orders: Receiver<Order>,
    stop: Arc<AtomicBool>,
}

impl Inbox {
    fn start() -> Inbox {
        let (sender, orders) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let flag = stop.clone();
        std::thread::spawn(move || {
            for line in std::io::stdin().lines() {
                let order = line
                    .context("input")
                    .and_then(|line| Ok(serde_json::from_str(&line)?));
                let sent = match order {
                    Ok(Order::Stop) => {
                        flag.store(true, Ordering::Release);
                        true
                    }
                    Ok(order) => sender.send(order).is_ok(),
                    Err(_) => false,
                };
                if !sent {
                    break;
                }
            }
            // Nobody is left to serve.
            std::process::exit(0);
        });
        Inbox { orders, stop }
    }
}

fn say(answer: &Answer) {
    let mut line = serde_json::to_string(answer).expect("answers can be written");
    line.push('\n');
    // Whoever does not read this is gone, which the inbox notices.
    let _ = std::io::stdout().write_all(line.as_bytes());
}

/// The other process itself: until its input ends.
pub fn run() -> Result<()> {
    let inbox = Inbox::start();
    let (listener, address) = tcp::listen()?;
    let mut ends: Vec<End> = Vec::new();
    loop {
        let order = match inbox.orders.recv_timeout(Duration::from_millis(5)) {
            Ok(order) => order,
            Err(RecvTimeoutError::Timeout) => {
                // Keeps links alive.
                for end in &ends {
                    end.poll();
                }
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        };
        carry_out(order, &inbox, &mut ends, (&listener, address))?;
    }
}

fn carry_out(
    order: Order,
    inbox: &Inbox,
    ends: &mut Vec<End>,
    (listener, address): (&TcpListener, SocketAddr),
) -> Result<()> {
    match order {
        Order::Open(shape) => {
            pin(shape.thread.is_none().then_some(1));
            for number in 1..=shape.peers {
                ends.push(End::responder(number as u8, &shape)?);
            }
            let cards = ends.iter().map(|end| (end.address, end.card()));
            say(&Answer::Opened(cards.collect()));
        }
        Order::Connect(far) => {
            let count = far.qpns.len() / ends.len();
            for (n, end) in ends.iter().enumerate() {
                end.connect(0, &far, n * count, count);
            }
            say(&Answer::Done);
        }
        Order::Serve(op, size, count_calls) => {
            inbox.stop.store(false, Ordering::Release);
            let mut meter = None;
            let calls = |ends: &[End]| ends.iter().map(|end| transfers(&end.stats)).sum::<u64>();
            let before = calls(ends);
            let ready = || {
                say(&Answer::Ready);
                meter = Some(Meter::start(count_calls));
            };
            respond(ends, op, size, ready, &inbox.stop)?;
            // A look at the counters allocates.
            let usage = meter.as_mut().map(Meter::usage).unwrap_or_default();
            say(&Answer::Served(Served {
                usage: Usage {
                    transfers: calls(ends) - before,
                    ..usage
                },
                losses: ends.iter().flat_map(|end| losses(&end.stats)).collect(),
            }));
        }
        Order::Sink(reception) => {
            say(&Answer::Listening(address));
            say(&Answer::Received(tcp::sink(listener, &reception)?));
        }
        Order::Echo(size, answer) => {
            say(&Answer::Listening(address));
            tcp::echo(listener, size, answer)?;
            say(&Answer::Done);
        }
        Order::Stop => bail!("a stop is the inbox's"),
    }
    Ok(())
}
