//! The requester's loops, in which figures arise: queues that are kept filled, and one message after the other.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use conformance::layout::{Cqe, send, wc, wqe_flag};
use conformance::rings::{Qp, SendWr};
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

/// Offsets in a row of memory for one message after the other.
pub struct Places {
    len: u64,
    step: u64,
    at: u64,
}

impl Places {
    /// Of messages of `size` bytes in [`FOOTPRINT`] bytes.
    pub fn new(size: usize) -> Places {
        Places {
            len: FOOTPRINT as u64,
            step: size as u64,
            at: 0,
        }
    }

    /// A few, as far apart as they can be in `len` bytes: each in a page of its own where there are that many.
    fn apart(len: u64) -> Places {
        Places {
            len,
            step: (len / 256).max(64),
            at: 0,
        }
    }

    /// The next one.
    #[inline]
    pub fn take(&mut self) -> usize {
        if self.at + self.step > self.len {
            self.at = 0;
        }
        let at = self.at;
        self.at += self.step;
        at as usize
    }
}

/// Bytes for messages whose payload is in the WQE.
static INLINE: [u8; 64] = [0x5a; 64];

/// What a requester puts into its work requests next: a load and where its messages are.
struct Flow {
    load: Load,
    here: Places,
    there: Places,
}

impl Flow {
    fn new(load: Load, far: &[Card]) -> Flow {
        let here = Places::new(load.size);
        let there = match far[0].len {
            len if len == FOOTPRINT as u64 => Places::new(load.size),
            len => Places::apart(len),
        };
        Flow { load, here, there }
    }

    /// Writes a work request to a queue pair without telling the device.
    #[inline]
    fn write(&mut self, end: &mut End, far: &[Card], n: usize, signalled: bool) {
        let sge = [end.mr.sge(self.here.take(), self.load.size)];
        let card = &far[n * far.len() / end.qps.len()];
        let wr = SendWr {
            wr_id: n as u64,
            opcode: self.load.op.opcode(),
            flags: if signalled { wqe_flag::SIGNALED } else { 0 },
            sges: &sge,
            inline: self.load.inline.then(|| &INLINE[..self.load.size]),
            rkey: card.rkey,
            remote_addr: card.iova + self.there.take() as u64,
            ..Default::default()
        };
        end.qps[n].write_send(&wr).expect("room for a send");
    }

    /// Fills the queue pair `n` up, and publishes all of it at once.
    #[inline]
    fn fill(&mut self, end: &mut End, far: &[Card], n: usize) {
        let room = self.load.depth - under_way(&end.qps[n]);
        if room == 0 {
            return;
        }
        for _ in 0..room {
            let number = end.qps[n].sq_producer.wrapping_add(1);
            self.write(end, far, n, number.is_multiple_of(self.load.signal));
        }
        end.qps[n].publish_sends();
    }
}

fn under_way(qp: &Qp) -> u32 {
    qp.sq_producer.wrapping_sub(qp.sq_retired)
}

/// The requester's side.
pub struct Requester<'a> {
    end: &'a mut End,
    far: &'a [Card],
    /// Queue pairs of which something has completed, each once: those with room.
    due: Vec<usize>,
    is_due: Vec<bool>,
}

impl<'a> Requester<'a> {
    /// On all queue pairs of an end, which are connected to those of `far`, to the same number of each.
    pub fn new(end: &'a mut End, far: &'a [Card]) -> Requester<'a> {
        let qps = end.qps.len();
        Requester {
            end,
            far,
            due: (0..qps).collect(),
            is_due: vec![true; qps],
        }
    }

    /// Takes all CQEs that are in the first so many CQs. Messages that they stand for.
    #[inline]
    fn reap(&mut self, cqs: usize) -> Result<u64> {
        let mut done = 0;
        for cq in &mut self.end.cqs[..cqs] {
            while let Some(cqe) = cq.poll() {
                check(&cqe)?;
                let n = cqe.wr_id as usize;
                let qp = &mut self.end.qps[n];
                let before = qp.sq_retired;
                qp.retire(&cqe);
                done += u64::from(qp.sq_retired.wrapping_sub(before));
                if !self.is_due[n] {
                    self.is_due[n] = true;
                    self.due.push(n);
                }
            }
        }
        Ok(done)
    }

    /// Fills every queue pair that has room, but the first `spared`.
    #[inline]
    fn refill(&mut self, flow: &mut Flow, spared: usize) {
        for n in self.due.drain(..) {
            self.is_due[n] = false;
            if n >= spared {
                flow.fill(self.end, self.far, n);
            }
        }
    }

    /// Keeps all queues but the first `spared` filled for a time, after a first stretch that does not count, and lets what is under way at
    /// the end complete.
    pub fn stream(
        &mut self,
        load: Load,
        spared: usize,
        (warm_up, time): (Duration, Duration),
    ) -> Result<Moved> {
        assert!(
            load.depth.is_multiple_of(load.signal),
            "queues end on a signalled request"
        );
        let mut flow = Flow::new(load, self.far);
        let cqs = self.end.cqs.len();
        let begun = Instant::now();
        let mut counted: Option<Instant> = None;
        let (mut messages, mut total) = (0, 0);
        let elapsed = loop {
            self.refill(&mut flow, spared);
            self.end.poll();
            let done = self.reap(cqs)?;
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

    /// Posts one message after the other to the first queue pair and waits for the completion of each, while the others are kept
    /// filled with `beside`, if there is such a load. Nanoseconds of each go to `times`, as many as it has room for in `time`. Gives the
    /// messages a second that the others moved meanwhile.
    pub fn one_by_one(
        &mut self,
        load: Load,
        beside: Option<Load>,
        (warm_up, time): (Duration, Duration),
        times: &mut Vec<u64>,
    ) -> Result<f64> {
        let mut flow = Flow::new(load, self.far);
        let mut beside = beside.map(|load| Flow::new(load, self.far));
        let cqs = if beside.is_some() {
            self.end.cqs.len()
        } else {
            1
        };
        let begun = Instant::now();
        let (mut others, mut since) = (0, begun);
        let elapsed = loop {
            let posted = Instant::now();
            if enough(posted - begun, warm_up + time, times, times.capacity()) {
                break posted - since;
            }
            flow.write(self.end, self.far, 0, true);
            self.end.qps[0].publish_sends();
            while under_way(&self.end.qps[0]) > 0 {
                if let Some(beside) = &mut beside {
                    self.refill(beside, 1);
                }
                self.end.poll();
                others += self.reap(cqs)?;
            }
            // The one of the first queue pair is not theirs.
            others -= 1;
            if posted - begun >= warm_up {
                times.push(posted.elapsed().as_nanos() as u64);
            } else {
                (others, since) = (0, Instant::now());
            }
        };
        self.drain()?;
        Ok(others as f64 / elapsed.as_secs_f64())
    }

    /// Lets everything that is under way complete. Messages that did.
    fn drain(&mut self) -> Result<u64> {
        let begun = Instant::now();
        let mut done = 0;
        while self.end.qps.iter().any(|qp| under_way(qp) > 0) {
            self.end.poll();
            done += self.reap(self.end.cqs.len())?;
            if begun.elapsed() > Duration::from_secs(10) {
                bail!("what was posted does not complete");
            }
        }
        Ok(done)
    }
}

/// Refuses a completion without success.
pub fn check(cqe: &Cqe) -> Result<()> {
    if cqe.status != wc::SUCCESS {
        bail!("a completion with status {}", cqe.status);
    }
    Ok(())
}
