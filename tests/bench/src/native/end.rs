//! The ends of a native benchmark: each a whole device with its fabric, and a process with queue pairs on it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use conformance::layout::{RegMr, access};
use conformance::memory::PAGE;
use conformance::node::{Mr, Node, QpOptions};
use conformance::rings::{Cq, Qp};
use conformance::side::{Connection, to_rts};
use conformance::world;
use devices::rdma::stats::Stats;
use serde::{Deserialize, Serialize};

use crate::options::Options;

/// Bytes that messages come from and go to, at either end, of RDMA as of its references: more than one message, so that it is not
/// all in the nearest cache.
pub const FOOTPRINT: usize = 1 << 20;

/// What both sides agree on before ends are made.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Shape {
    /// Ends of the other process, each a device of its own, all linked to the one end of this process.
    pub peers: u32,
    /// Queue pairs with each of them.
    pub qps: u32,
    /// Work requests of each under way at a time.
    pub depth: u32,
    /// Each queue pair has a CQ of its own; otherwise an end has one for all.
    pub own_cqs: bool,
    /// Bytes of the region that the other process offers: [`FOOTPRINT`], or another number, and then it lies in pages none of which
    /// follows on another, and which are not there before they are written to.
    pub region: u64,
    /// Devices have a thread of their own, as in the monitor, which looks for work for so long before it sleeps; None: driver and
    /// device take turns on one thread.
    pub thread: Option<Duration>,
    /// Connections between two ends; as many as the fabric thinks fit unless given.
    pub lanes: Option<u8>,
}

impl Shape {
    /// One peer, driver and device on one thread.
    pub fn inline(options: &Options, qps: u32, depth: u32) -> Shape {
        Shape {
            peers: 1,
            qps,
            depth,
            own_cqs: false,
            region: FOOTPRINT as u64,
            thread: None,
            lanes: options.lanes,
        }
    }

    /// Pages of guest memory that an end with this many queue pairs and such a region wants.
    fn pages(&self) -> usize {
        let least = world::Options::default().pages;
        // Every other page of it belongs to the region.
        least + 2 * (self.region as usize).div_ceil(2 * PAGE) * 2
    }
}

/// What one end tells the other, as processes tell each other before they connect.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Card {
    /// GID of the node.
    pub gid: [u8; 16],
    /// Numbers of its queue pairs.
    pub qpns: Vec<u32>,
    /// Key of its memory.
    pub rkey: u32,
    /// Where its memory starts.
    pub iova: u64,
    /// Bytes of it.
    pub len: u64,
}

/// A node, and what a process has there.
pub struct End {
    /// The guest.
    pub node: Arc<Node>,
    /// Counters of its device.
    pub stats: Arc<Stats>,
    /// Where its fabric listens.
    pub address: SocketAddr,
    /// CQ of all queues, or one for each queue pair.
    pub cqs: Vec<Cq>,
    /// Its queue pairs; a work request's `wr_id` is the place in here.
    pub qps: Vec<Qp>,
    /// [`FOOTPRINT`] bytes.
    pub mr: Mr,
    /// Its device has a thread of its own.
    pub threaded: bool,
    /// Key and length of a region that is not `mr`.
    sparse: Option<(u32, u64)>,
    /// Which of the ends; 0 is that of this process.
    number: u8,
}

/// Where a sparse region starts, as work requests name it.
const SPARSE_IOVA: u64 = 1 << 40;

impl End {
    /// The end of this process, whose fabric dials all others.
    pub fn requester(peers: &[SocketAddr], shape: &Shape) -> Result<End> {
        let all = Shape {
            qps: shape.qps * shape.peers,
            region: FOOTPRINT as u64,
            ..*shape
        };
        End::new(0, peers, &all)
    }

    /// An end of the other process, from number 1 on.
    pub fn responder(number: u8, shape: &Shape) -> Result<End> {
        End::new(number, &[], shape)
    }

    fn new(number: u8, peers: &[SocketAddr], shape: &Shape) -> Result<End> {
        let (fabric, stats, address) = world::tcp_fabric_with(peers, shape.lanes);
        let options = world::Options {
            pages: shape.pages(),
            dma_piece: u64::MAX,
            threads: shape.thread,
            ..Default::default()
        };
        let node = world::node(number, fabric, stats.clone(), &options);
        let context = node.create_context().expect("a context");
        let pd = node.create_pd(context).expect("a PD");
        let qp = QpOptions {
            sq_entries: shape.depth.next_power_of_two().max(2),
            // Enough that the sender never meets a queue that has run empty while its receiver was busy.
            rq_entries: (4 * shape.depth).next_power_of_two().max(64),
            send_sge: 1,
            recv_sge: 1,
            inline: 64,
            signal_all: false,
            scattered: false,
            ..Default::default()
        };
        let (cqs, sharing) = if shape.own_cqs {
            (shape.qps, 1)
        } else {
            (1, shape.qps)
        };
        let entries = (sharing * (qp.sq_entries + qp.rq_entries)).next_power_of_two();
        ensure!(entries <= options.limits.cqe, "a CQ of {entries} entries");
        let cqs: Vec<Cq> = (0..cqs)
            .map(|_| node.create_cq(context, entries, 0).expect("a CQ"))
            .collect();
        let qps = (0..shape.qps as usize)
            .map(|n| {
                let cqn = cqs[n % cqs.len()].cqn;
                node.create_qp(context, pd, cqn, cqn, &qp).expect("a QP")
            })
            .collect();
        let buffer = node.memory.contiguous(FOOTPRINT);
        let mr = node
            .reg_mr(context, pd, buffer, 0, FOOTPRINT, access::ALL)
            .expect("a region");
        let sparse = (shape.region != FOOTPRINT as u64).then(|| {
            let (reg, list) = scattered_region(&node, pd, shape.region);
            let key = node
                .reg_list(context, reg, &list, PER_COMMAND)
                .expect("a region");
            (key, shape.region)
        });
        Ok(End {
            node,
            stats,
            address,
            cqs,
            qps,
            mr,
            threaded: shape.thread.is_some(),
            sparse,
            number,
        })
    }

    /// What the other end needs to know.
    pub fn card(&self) -> Card {
        let (rkey, iova, len) = match self.sparse {
            Some((key, len)) => (key, SPARSE_IOVA, len),
            None => (self.mr.key, self.mr.iova, self.mr.len),
        };
        Card {
            gid: self.node.gid,
            qpns: self.qps.iter().map(|qp| qp.qpn).collect(),
            rkey,
            iova,
            len,
        }
    }

    /// Takes queue pairs, from number `first` on, to RTS, each towards one of the other end's from `far_first` on.
    pub fn connect(&self, first: usize, far: &Card, far_first: usize, count: usize) {
        let connection = Connection {
            max_rd_atomic: 16,
            ..Default::default()
        };
        let pairs = self.qps[first..].iter().zip(&far.qpns[far_first..]);
        for (qp, far_qpn) in pairs.take(count) {
            let side = self.number.min(1).into();
            to_rts(&self.node, qp, side, (*far_qpn, far.gid), &connection);
        }
    }

    /// One round of the device, where it has no thread of its own.
    #[inline]
    pub fn poll(&self) -> bool {
        self.node.host.poll()
    }
}

/// List entries to a command, as the guest driver has it.
pub const PER_COMMAND: usize = 4096;

/// A region of `len` bytes in every other page from the end of memory downwards, which nobody was given, and its list of pages: the
/// worst that a guest's memory can be.
pub fn scattered_region(node: &Node, pd: u32, len: u64) -> (RegMr, Vec<u64>) {
    let last = node.memory.len() / PAGE - 1;
    let count = (len as usize).div_ceil(PAGE);
    let list = (0..count).map(|n| node.memory.dma(last - 2 * n)).collect();
    (region(pd, len, 0), list)
}

/// A region of `len` bytes; `flags` say what its list consists of.
pub fn region(pd: u32, len: u64, flags: u8) -> RegMr {
    RegMr {
        pd,
        access: access::ALL,
        iova: SPARSE_IOVA,
        length: len,
        offset: 0,
        page_shift: 12,
        flags,
        total_entries: 0,
        num_entries: 0,
        entries: Vec::new(),
    }
}

/// What went wrong on a device so far, by name: anything here makes a figure worthless.
pub fn losses(stats: &Stats) -> Vec<String> {
    let all = stats.snapshot();
    let d = &all.device;
    let mut counts = vec![
        ("lost", d.lost),
        ("cq_overflows", d.cq_overflows),
        ("rnr_nak_sent", d.rnr_nak_sent),
        ("rnr_nak_received", d.rnr_nak_received),
        ("retries", d.retries),
        ("timeouts", d.timeouts),
        ("access_errors", d.access_errors),
        ("flushed", d.flushed),
        ("rx_discarded", d.rx_discarded),
    ];
    for peer in all.peers.values() {
        counts.push(("links_lost", peer.links_lost));
        counts.push(("tx_unsent", peer.tx_unsent));
        counts.push(("peer rx_discarded", peer.rx_discarded));
    }
    let moved = counts.into_iter().filter(|(_, count)| *count > 0);
    moved
        .map(|(name, count)| format!("{name} {count}"))
        .collect()
}

/// System calls by which a device's fabric sent and received so far.
pub fn transfers(stats: &Stats) -> u64 {
    let peers = stats.snapshot().peers;
    peers
        .values()
        .map(|peer| peer.tx_calls + peer.rx_calls)
        .sum()
}
