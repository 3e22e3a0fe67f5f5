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

use super::drive::{self, Op};
use super::end::{Card, End, Shape, losses};
use super::process::{Meter, Usage, pin};
use super::tcp::{self, Reception};

/// Name of the suite that is the other process.
pub const SUITE: &str = "native-peer";

/// What the other process is told.
#[derive(Debug, Serialize, Deserialize)]
pub enum Order {
    /// Make an end. Answered by [`Answer::Opened`].
    Open(Shape),
    /// Connect it. Answered by [`Answer::Done`].
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
    /// Where the fabric listens, and what to connect to.
    Opened(SocketAddr, Card),
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
    let mut end: Option<End> = None;
    loop {
        let order = match inbox.orders.recv_timeout(Duration::from_millis(1)) {
            Ok(order) => order,
            Err(RecvTimeoutError::Timeout) => {
                // Keeps the link alive.
                end.as_ref().map(End::poll);
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        };
        carry_out(order, &inbox, &mut end, (&listener, address))?;
    }
}

fn carry_out(
    order: Order,
    inbox: &Inbox,
    place: &mut Option<End>,
    (listener, address): (&TcpListener, SocketAddr),
) -> Result<()> {
    match order {
        Order::Open(shape) => {
            pin(shape.thread.is_none().then_some(1));
            let end = place.insert(End::new(1, &[], &shape)?);
            say(&Answer::Opened(end.address, end.card()));
        }
        Order::Connect(far) => {
            let end = place.as_ref().context("no end yet")?;
            end.connect(&far);
            say(&Answer::Done);
        }
        Order::Serve(op, size, count_calls) => {
            let end = place.as_mut().context("no end yet")?;
            inbox.stop.store(false, Ordering::Release);
            let mut meter = None;
            let ready = || {
                say(&Answer::Ready);
                meter = Some(Meter::start(count_calls));
            };
            drive::respond(end, op, size, ready, &inbox.stop)?;
            say(&Answer::Served(Served {
                usage: meter.as_mut().map(Meter::usage).unwrap_or_default(),
                losses: losses(&end.stats),
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
