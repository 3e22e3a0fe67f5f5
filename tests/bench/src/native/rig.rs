//! Two connected ends in two processes, and what is measured between them: one call, one sample.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::drive::{Load, Op, Places, Requester};
use super::end::{Card, End, FOOTPRINT, Shape, losses, transfers};
use super::peer::{Answer, Order, Peer};
use super::process::{Meter, Usage, pin};
use super::tcp::{self, Reception, Way};
use crate::samples::{interleaved, quantile};

/// A figure of a stream: of a device, of TCP, of memory.
#[derive(Clone, Copy, Debug)]
pub struct Stream {
    /// Messages in a second.
    pub rate: f64,
    /// Gigabits of payload in a second.
    pub gbps: f64,
    /// Processor seconds, of both processes, for a GiB of payload.
    pub processor: f64,
    /// Allocations of a message, of both processes.
    pub allocations: f64,
    /// System calls of a message, of both processes, where they were counted.
    pub calls: Option<f64>,
    /// Of them, those that sent or received.
    pub transfers: f64,
}

impl Stream {
    /// What one message of `size` bytes after the other makes, one each `trip` microseconds.
    pub fn of_trips(size: usize, trip: f64) -> Stream {
        let elapsed = Duration::from_secs_f64(trip * 1e-6);
        Stream::new(size, (1.0, elapsed), 1.0, Usage::default())
    }

    /// Messages of `size` bytes: so many in a time, and so many in all while `usage` was noted.
    fn new(size: usize, (messages, elapsed): (f64, Duration), total: f64, usage: Usage) -> Stream {
        let rate = messages / elapsed.as_secs_f64();
        let gib = total * size as f64 / f64::from(1 << 30);
        Stream {
            rate,
            gbps: rate * size as f64 * 8e-9,
            processor: usage.processor.as_secs_f64() / gib,
            allocations: usage.allocations as f64 / total,
            calls: usage.calls.map(|calls| calls as f64 / total),
            transfers: usage.transfers as f64 / total,
        }
    }
}

/// Times from post to completion, or of round trips, in microseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Latency {
    /// Median.
    pub p50: f64,
    /// 99 of 100 took no longer.
    pub p99: f64,
    /// 999 of 1,000 took no longer.
    pub p999: f64,
    /// Mean.
    pub mean: f64,
}

impl Latency {
    /// Of nanoseconds, of which there must be some.
    pub fn of(times: &mut [u64]) -> Latency {
        times.sort_unstable();
        let at = |q| quantile(times, q) as f64 / 1e3;
        Latency {
            mean: times.iter().sum::<u64>() as f64 / times.len() as f64 / 1e3,
            p50: at(0.5),
            p99: at(0.99),
            p999: at(0.999),
        }
    }
}

/// Room for the times of one sample.
const TIMES: usize = 1 << 20;

/// This process's end and the other process.
pub struct Rig {
    end: End,
    far: Vec<Card>,
    peer: Peer,
    times: Vec<u64>,
    /// System calls are counted from now on, which makes them slower.
    pub count_calls: bool,
}

/// A rig that several subjects use in turn.
pub type Shared = RefCell<Rig>;

/// How long a sample runs before it counts.
fn warm_up(time: Duration) -> Duration {
    (time / 5).clamp(Duration::from_millis(2), Duration::from_millis(50))
}

impl Rig {
    /// Starts the other process and connects an end here to one there.
    pub fn new(shape: &Shape) -> Result<Rig> {
        // The other process would inherit a binding of this one.
        pin(None);
        let mut peer = Peer::start()?;
        pin(shape.thread.is_none().then_some(0));
        let Answer::Opened(opened) = peer.ask(&Order::Open(*shape))? else {
            bail!("an answer out of turn");
        };
        let (addresses, far): (Vec<_>, Vec<_>) = opened.into_iter().unzip();
        let end = End::requester(&addresses, shape)?;
        let count = shape.qps as usize;
        for (n, card) in far.iter().enumerate() {
            end.connect(n * count, card, 0, count);
        }
        let Answer::Done = peer.ask(&Order::Connect(end.card()))? else {
            bail!("an answer out of turn");
        };
        let rig = Rig {
            end,
            far,
            peer,
            times: Vec::with_capacity(TIMES),
            count_calls: false,
        };
        rig.wait_for_links()?;
        Ok(rig)
    }

    /// This process's end.
    pub fn end(&mut self) -> &mut End {
        &mut self.end
    }

    /// Waits until there is a link with each peer.
    fn wait_for_links(&self) -> Result<()> {
        let begun = Instant::now();
        loop {
            let peers = self.end.stats.snapshot().peers;
            if peers.values().filter(|peer| peer.links_up > 0).count() >= self.far.len() {
                return Ok(());
            }
            self.end.poll();
            if begun.elapsed() > Duration::from_secs(10) {
                bail!("the fabric's links do not come up");
            }
        }
    }

    /// Runs something while the other end serves the messages of a load; refused if a counter moved that must not.
    fn load<T>(
        &mut self,
        load: &Load,
        run: impl FnOnce(&mut Requester<'_>, &mut Vec<u64>) -> Result<T>,
    ) -> Result<(T, Usage)> {
        let order = Order::Serve(load.op, load.size, self.count_calls);
        let Answer::Ready = self.peer.ask(&order)? else {
            bail!("an answer out of turn");
        };
        self.times.clear();
        let before = transfers(&self.end.stats);
        let mut requester = Requester::new(&mut self.end, &self.far);
        let mut meter = Meter::start(self.count_calls);
        let done = run(&mut requester, &mut self.times);
        // A look at the counters allocates.
        let usage = meter.usage();
        let usage = Usage {
            transfers: transfers(&self.end.stats) - before,
            ..usage
        };
        let Answer::Served(served) = self.peer.ask(&Order::Stop)? else {
            bail!("an answer out of turn");
        };
        let done = done?;
        let mut lost = losses(&self.end.stats);
        lost.extend(
            served
                .losses
                .iter()
                .map(|loss| format!("{loss} at the other end")),
        );
        if !lost.is_empty() {
            bail!("counters moved: {}", lost.join(", "));
        }
        Ok((done, usage + served.usage))
    }

    /// Keeps the queues filled for a time.
    pub fn stream(&mut self, load: Load, time: Duration) -> Result<Stream> {
        self.stream_beside(load, 0, time)
    }

    /// Keeps all queues but the first `idle` filled for a time.
    pub fn stream_beside(&mut self, load: Load, idle: usize, time: Duration) -> Result<Stream> {
        let (moved, usage) = self.load(&load, |requester, _| {
            requester.stream(load, idle, (warm_up(time), time))
        })?;
        let counted = (moved.messages as f64, moved.elapsed);
        Ok(Stream::new(load.size, counted, moved.total as f64, usage))
    }

    /// One message after the other, on the first queue pair, all others idle.
    pub fn latency(&mut self, load: Load, time: Duration) -> Result<Latency> {
        self.load(&load, |requester, times| {
            requester.one_by_one(load, None, (warm_up(time), time), times)
        })?;
        self.latencies()
    }

    /// One message after the other, on the first queue pair, while all others are kept filled with another load; and the Gb/s of that.
    pub fn latency_beside(
        &mut self,
        load: Load,
        bulk: Load,
        time: Duration,
    ) -> Result<(Latency, f64)> {
        let (rate, _) = self.load(&bulk, |requester, times| {
            requester.one_by_one(load, Some(bulk), (warm_up(time), time), times)
        })?;
        Ok((self.latencies()?, rate * bulk.size as f64 * 8e-9))
    }

    /// Keeps the queues filled for a time. Messages of each queue pair.
    pub fn shares(&mut self, load: Load, time: Duration) -> Result<Vec<u64>> {
        let before = self.counts();
        self.load(&load, |requester, _| {
            requester.stream(load, 0, (warm_up(time), time))
        })?;
        let after = self.counts();
        Ok(after
            .iter()
            .zip(before)
            .map(|(after, before)| after - before)
            .collect())
    }

    fn counts(&self) -> Vec<u64> {
        let qps = self.end.stats.snapshot().qps;
        let count = |qpn| qps.get(qpn).map_or(0, |qp| qp.tx_messages);
        self.end.qps.iter().map(|qp| count(&qp.qpn)).collect()
    }

    fn latencies(&mut self) -> Result<Latency> {
        if self.times.is_empty() {
            bail!("nothing completed in the time");
        }
        Ok(Latency::of(&mut self.times))
    }

    /// Bare TCP in its quickest way: messages of `size` bytes, `batch` of them to a call, as far as the memory holds that many.
    pub fn tcp(&mut self, size: usize, batch: usize, time: Duration) -> Result<Stream> {
        let call = size * batch.clamp(1, FOOTPRINT / size);
        let trial = (time / 2).min(Duration::from_millis(100));
        let way = tcp::quickest(size, call, |way| {
            Ok(self.tcp_stream(size, call, way, trial)?.gbps)
        })?;
        self.tcp_stream(size, call, way, time)
    }

    fn tcp_stream(&mut self, size: usize, call: usize, way: Way, time: Duration) -> Result<Stream> {
        self.end.poll();
        let order = Order::Sink(Reception {
            size,
            warm_up: warm_up(time),
            spin: way.spin,
            count_calls: self.count_calls,
        });
        let Answer::Listening(address) = self.peer.ask(&order)? else {
            bail!("an answer out of turn");
        };
        let mut meter = Meter::start(self.count_calls);
        let transfers = tcp::source(address, call, warm_up(time) + time, way.nodelay)?;
        let usage = Usage {
            transfers,
            ..meter.usage()
        };
        let Answer::Received(received) = self.peer.answer()? else {
            bail!("an answer out of turn");
        };
        let messages = |bytes: u64| bytes as f64 / size as f64;
        let counted = (messages(received.bytes), received.elapsed);
        Ok(Stream::new(
            size,
            counted,
            messages(received.total),
            usage + received.usage,
        ))
    }

    /// Round trips of bare TCP between two threads that spin: `size` bytes there, `answer` back.
    pub fn ping_pong(&mut self, size: usize, answer: usize, time: Duration) -> Result<Latency> {
        self.end.poll();
        let Answer::Listening(address) = self.peer.ask(&Order::Echo(size, answer))? else {
            bail!("an answer out of turn");
        };
        self.times.clear();
        tcp::ping_pong(
            address,
            (size, answer),
            (warm_up(time), time),
            &mut self.times,
        )?;
        let Answer::Done = self.peer.answer()? else {
            bail!("an answer out of turn");
        };
        self.latencies()
    }
}

/// What one core copies from memory to memory, each as large as a device's.
pub fn memory_copy(size: usize, time: Duration) -> Result<Stream> {
    let (from, mut to) = (vec![0x5a_u8; FOOTPRINT], vec![0_u8; FOOTPRINT]);
    let mut places = Places::new(size);
    let (mut meter, begun) = (Meter::start(false), Instant::now());
    let mut messages = 0u64;
    while begun.elapsed() < time {
        for _ in 0..(65_536 / size).max(1) {
            let at = places.take();
            to[at..at + size].copy_from_slice(std::hint::black_box(&from[at..at + size]));
            std::hint::black_box(&mut to);
            messages += 1;
        }
    }
    let messages = messages as f64;
    Ok(Stream::new(
        size,
        (messages, begun.elapsed()),
        messages,
        meter.usage(),
    ))
}

/// Each round of a device, and of what it is measured beside.
pub type Beside<T> = [Vec<T>; 2];

/// A stream, and bare TCP with one write for each message.
pub fn beside_tcp(
    rig: &Shared,
    load: Load,
    rounds: usize,
    time: Duration,
) -> Result<Beside<Stream>> {
    let results = interleaved(
        rounds,
        &mut [
            Box::new(|| rig.borrow_mut().stream(load, time)),
            Box::new(|| rig.borrow_mut().tcp(load.size, 1, time)),
        ],
    )?;
    Ok(results.try_into().expect("two subjects"))
}

/// An 8-byte WRITE from post to CQE, and a ping-pong of bare TCP of that size.
pub fn beside_ping_pong(rig: &Shared, rounds: usize, time: Duration) -> Result<Beside<Latency>> {
    let load = Load::one_by_one(Op::Write, 8);
    let results = interleaved(
        rounds,
        &mut [
            Box::new(|| rig.borrow_mut().latency(load, time)),
            Box::new(|| rig.borrow_mut().ping_pong(8, 8, time)),
        ],
    )?;
    Ok(results.try_into().expect("two subjects"))
}
