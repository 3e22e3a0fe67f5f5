//! The loops in which figures arise: a requester that keeps its queues filled, a responder that takes what comes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use conformance::layout::{Cqe, send, wc, wqe_flag};
use conformance::rings::SendWr;
use serde::{Deserialize, Serialize};

use super::end::{Card, End, FOOTPRINT};
use super::tcp::enough;

/// An operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Op {
    /// RDMA WRITE.
    Write,
    /// RDMA READ.
    Read,
    /// SEND.
    Send,
    /// RDMA WRITE with immediate data.
    WriteImm,
}

impl Op {
    /// All of them.
    pub const ALL: [Op; 4] = [Op::Write, Op::Read, Op::Send, Op::WriteImm];

    /// As tables show it.
    pub fn name(self) -> &'static str {
        match self {
            Op::Write => "WRITE",
            Op::Read => "READ",
            Op::Send => "SEND",
            Op::WriteImm => "WRITE_IMM",
        }
    }

    /// As labels and files name it.
    pub fn label(self) -> &'static str {
        match self {
            Op::Write => "write",
            Op::Read => "read",
            Op::Send => "send",
            Op::WriteImm => "write_imm",
        }
    }

    fn opcode(self) -> u8 {
        match self {
            Op::Write => send::WRITE,
            Op::Read => send::READ,
            Op::Send => send::SEND,
            Op::WriteImm => send::WRITE_IMM,
        }
    }

    /// Whether each message takes a receive of the responder.
    pub fn takes_receives(self) -> bool {
        matches!(self, Op::Send | Op::WriteImm)
    }
}

/// What a requester does.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Of every message.
    pub op: Op,
    /// Bytes of every message.
    pub size: usize,
    /// Messages of each queue pair under way at a time.
    pub depth: u32,
    /// One of so many work requests is signalled.
    pub signal: u32,
    /// The bytes are in the WQE.
    pub inline: bool,
}

impl Load {
    /// Messages of `size` bytes from registered memory, all of them signalled.
    pub fn new(op: Op, size: usize, depth: u32) -> Load {
        Load {
            op,
            size,
            depth,
            signal: 1,
            inline: false,
        }
    }

    /// One message after the other, with the bytes in the WQE where that is usual: as the latency tests of perftest have it.
    pub fn one_by_one(op: Op, size: usize) -> Load {
        Load {
            inline: size <= INLINE.len() && op != Op::Read,
            ..Load::new(op, size, 1)
        }
    }
}

/// Messages that completed.
#[derive(Clone, Copy, Debug)]
pub struct Moved {
    /// How many, while it counted.
    pub messages: u64,
    /// In this time.
    pub elapsed: Duration,
    /// How many in all, before and after that too.
    pub total: u64,
}

/// Offsets in the memory for one message after the other.
pub struct Places {
    size: usize,
    at: usize,
}

impl Places {
    /// For messages of `size` bytes.
    pub fn new(size: usize) -> Places {
        Places { size, at: 0 }
    }

    /// The next one.
    #[inline]
    pub fn take(&mut self) -> usize {
        if self.at + self.size > FOOTPRINT {
            self.at = 0;
        }
        let at = self.at;
        self.at += self.size;
        at
    }
}

/// Bytes for messages whose payload is in the WQE.
static INLINE: [u8; 64] = [0x5a; 64];

/// The requester's side of one load.
pub struct Requester<'a> {
    end: &'a mut End,
    far: &'a Card,
    load: Load,
    places: Places,
}

impl<'a> Requester<'a> {
    /// For one load.
    pub fn new(end: &'a mut End, far: &'a Card, load: Load) -> Requester<'a> {
        let places = Places::new(load.size);
        Requester {
            end,
            far,
            load,
            places,
        }
    }

    /// Writes a work request to the queue pair `n` without telling the device.
    #[inline]
    fn write(&mut self, n: usize, signalled: bool) {
        let at = self.places.take();
        let sge = [self.end.mr.sge(at, self.load.size)];
        let wr = SendWr {
            wr_id: n as u64,
            opcode: self.load.op.opcode(),
            flags: if signalled { wqe_flag::SIGNALED } else { 0 },
            sges: &sge,
            inline: self.load.inline.then(|| &INLINE[..self.load.size]),
            rkey: self.far.rkey,
            remote_addr: self.far.iova + at as u64,
            ..Default::default()
        };
        self.end.qps[n].write_send(&wr).expect("room for a send");
    }

    /// Fills the queue pair `n` up, and publishes all of it at once.
    #[inline]
    fn fill(&mut self, n: usize) {
        let qp = &self.end.qps[n];
        let under_way = qp.sq_producer.wrapping_sub(qp.sq_retired);
        let room = self.load.depth - under_way;
        if room == 0 {
            return;
        }
        for _ in 0..room {
            let number = self.end.qps[n].sq_producer.wrapping_add(1);
            self.write(n, number.is_multiple_of(self.load.signal));
        }
        self.end.qps[n].publish_sends();
    }

    /// Takes all CQEs that are there. Messages that they stand for.
    #[inline]
    fn reap(&mut self) -> Result<u64> {
        let mut done = 0;
        while let Some(cqe) = self.end.cq.poll() {
            check(&cqe)?;
            let qp = &mut self.end.qps[cqe.wr_id as usize];
            let before = qp.sq_retired;
            qp.retire(&cqe);
            done += u64::from(qp.sq_retired.wrapping_sub(before));
        }
        Ok(done)
    }

    /// Keeps all queues filled for a time, after a first stretch that does not count, and lets what is under way at the end complete.
    pub fn stream(&mut self, warm_up: Duration, time: Duration) -> Result<Moved> {
        assert!(
            self.load.depth.is_multiple_of(self.load.signal),
            "queues end on a signalled request"
        );
        let begun = Instant::now();
        let mut counted: Option<Instant> = None;
        let (mut messages, mut total) = (0, 0);
        let elapsed = loop {
            for n in 0..self.end.qps.len() {
                self.fill(n);
            }
            self.end.poll();
            let done = self.reap()?;
            total += done;
            let now = Instant::now();
            match counted {
                Some(from) => {
                    messages += done;
                    // On a machine that has no time for us nothing may have completed yet.
                    if now - from >= time && messages > 0 {
                        break now - from;
                    }
                }
                None if now - begun >= warm_up => counted = Some(now),
                None => {}
            }
        };
        total += self.drain()?;
        Ok(Moved {
            messages,
            elapsed,
            total,
        })
    }

    /// Posts one message after the other and waits for the completion of each. Nanoseconds of each go to `times`, as many as it has
    /// room for in `time`.
    pub fn one_by_one(
        &mut self,
        warm_up: Duration,
        time: Duration,
        times: &mut Vec<u64>,
    ) -> Result<()> {
        let begun = Instant::now();
        loop {
            let posted = Instant::now();
            if enough(posted - begun, warm_up + time, times, times.capacity()) {
                return Ok(());
            }
            self.write(0, true);
            self.end.qps[0].publish_sends();
            while !self.end.cq.ready() {
                self.end.poll();
            }
            let completed = Instant::now();
            self.reap()?;
            if posted - begun >= warm_up {
                times.push((completed - posted).as_nanos() as u64);
            }
        }
    }

    /// Lets everything that is under way complete. Messages that did.
    fn drain(&mut self) -> Result<u64> {
        let begun = Instant::now();
        let mut done = 0;
        let idle = |end: &End| end.qps.iter().all(|qp| qp.sq_producer == qp.sq_retired);
        while !idle(self.end) {
            self.end.poll();
            done += self.reap()?;
            if begun.elapsed() > Duration::from_secs(10) {
                bail!("what was posted does not complete");
            }
        }
        Ok(done)
    }
}

fn check(cqe: &Cqe) -> Result<()> {
    if cqe.status != wc::SUCCESS {
        bail!("a completion with status {}", cqe.status);
    }
    Ok(())
}

/// The responder's side: keeps its receive queues full where the operation takes receives, and gives its device time until `stop`.
/// Messages that took a receive.
pub fn respond(
    end: &mut End,
    op: Op,
    size: usize,
    ready: impl FnOnce(),
    stop: &AtomicBool,
) -> Result<u64> {
    if !op.takes_receives() {
        ready();
        while !stop.load(Ordering::Relaxed) {
            if end.threaded {
                // The process has nothing to do: the processor is the device's.
                std::thread::sleep(Duration::from_millis(1));
            } else {
                end.poll();
            }
        }
        return Ok(0);
    }
    let mut places = Places::new(size.max(64));
    let mut refill = |end: &mut End, n: usize| {
        let sge = end.mr.sge(places.take(), size);
        end.qps[n].write_recv(n as u64, &[sge]).is_ok()
    };
    for n in 0..end.qps.len() {
        while refill(end, n) {}
        end.qps[n].publish_recvs();
    }
    ready();
    let mut messages = 0;
    // Queue pairs with receives that the device does not know of yet.
    let mut written = vec![false; end.qps.len()];
    while !stop.load(Ordering::Relaxed) {
        end.poll();
        let before = messages;
        while let Some(cqe) = end.cq.poll() {
            check(&cqe)?;
            messages += 1;
            let n = cqe.wr_id as usize;
            end.qps[n].retire(&cqe);
            written[n] |= refill(end, n);
        }
        if messages == before {
            continue;
        }
        for (n, written) in written.iter_mut().enumerate() {
            if std::mem::take(written) {
                end.qps[n].publish_recvs();
            }
        }
    }
    Ok(messages)
}
