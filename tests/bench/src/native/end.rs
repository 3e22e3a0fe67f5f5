//! One end of a native benchmark: a whole device with its fabric, and a process with queue pairs on it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use conformance::layout::access;
use conformance::node::{Context, Mr, Node, QpOptions};
use conformance::rings::{Cq, Qp};
use conformance::side::{Connection, to_rts};
use conformance::world;
use devices::rdma::stats::Stats;
use serde::{Deserialize, Serialize};

/// Bytes that messages come from and go to, at either end, of RDMA as of its references: more than one message, so that it is not
/// all in the nearest cache.
pub const FOOTPRINT: usize = 1 << 20;

/// What both ends agree on before they are made.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Shape {
    /// Queue pairs.
    pub qps: u32,
    /// Work requests of each under way at a time.
    pub depth: u32,
    /// The device has a thread of its own, as in the monitor, which looks for work for so long before it sleeps; None: driver and
    /// device take turns on one thread.
    pub thread: Option<Duration>,
}

impl Shape {
    /// Driver and device on one thread.
    pub fn inline(qps: u32, depth: u32) -> Shape {
        Shape {
            qps,
            depth,
            thread: None,
        }
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
}

/// A node, and what a process has there.
pub struct End {
    /// The guest.
    pub node: Arc<Node>,
    /// Counters of its device.
    pub stats: Arc<Stats>,
    /// Where its fabric listens.
    pub address: SocketAddr,
    /// The process's context.
    pub context: Context,
    /// Its protection domain.
    pub pd: u32,
    /// CQ of all queues.
    pub cq: Cq,
    /// Its queue pairs; a work request's `wr_id` is the place in here.
    pub qps: Vec<Qp>,
    /// [`FOOTPRINT`] bytes.
    pub mr: Mr,
    /// Its device has a thread of its own.
    pub threaded: bool,
    /// Which of the two ends.
    number: u8,
}

impl End {
    /// The end `number` (0 or 1), whose fabric dials `peers`.
    pub fn new(number: u8, peers: &[SocketAddr], shape: &Shape) -> Result<End> {
        let (fabric, stats, address) = world::tcp_fabric(peers);
        let options = world::Options {
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
        let entries = (shape.qps * (qp.sq_entries + qp.rq_entries)).next_power_of_two();
        ensure!(entries <= options.limits.cqe, "a CQ of {entries} entries");
        let cq = node.create_cq(context, entries, 0).expect("a CQ");
        let qps = (0..shape.qps)
            .map(|_| {
                node.create_qp(context, pd, cq.cqn, cq.cqn, &qp)
                    .expect("a QP")
            })
            .collect();
        let buffer = node.memory.contiguous(FOOTPRINT);
        let mr = node
            .reg_mr(context, pd, buffer, 0, FOOTPRINT, access::ALL)
            .expect("a region");
        Ok(End {
            node,
            stats,
            address,
            context,
            pd,
            cq,
            qps,
            mr,
            threaded: shape.thread.is_some(),
            number,
        })
    }

    /// What the other end needs to know.
    pub fn card(&self) -> Card {
        Card {
            gid: self.node.gid,
            qpns: self.qps.iter().map(|qp| qp.qpn).collect(),
            rkey: self.mr.key,
            iova: self.mr.iova,
        }
    }

    /// Takes all queue pairs to RTS, each towards the one at the same place of the other end.
    pub fn connect(&self, far: &Card) {
        let connection = Connection {
            max_rd_atomic: 16,
            ..Default::default()
        };
        for (qp, far_qpn) in self.qps.iter().zip(&far.qpns) {
            let number = self.number.into();
            to_rts(&self.node, qp, number, (*far_qpn, far.gid), &connection);
        }
    }

    /// One round of the device, where it has no thread of its own.
    #[inline]
    pub fn poll(&self) -> bool {
        self.node.host.poll()
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
