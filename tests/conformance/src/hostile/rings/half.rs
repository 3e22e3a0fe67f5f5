//! What an attacker has: queues and regions on each node, connected to one another.

use std::sync::Arc;

use crate::layout::{QpAttributes, Status, access, mask, qp_type, state};
use crate::node::{Context, Mr, Node, QpOptions};
use crate::rings::{Cq, Qp};
use crate::side::Connection;
use crate::srq::Srq;

/// QPs of each attacker, and their types.
pub(super) const QPS: usize = 6;
pub(super) const KINDS: [u32; QPS] = [
    qp_type::RC,
    qp_type::RC,
    qp_type::RC,
    qp_type::RC,
    qp_type::UC,
    qp_type::UD,
];
/// Which of them take their receives from a shared queue.
pub(super) const SHARES: [bool; QPS] = [false, false, false, true, false, true];

/// Half of an attacker: what it has on one node.
pub(super) struct Half {
    pub node: Arc<Node>,
    pub context: Context,
    pub pd: u32,
    pub cqs: Vec<Cq>,
    pub qps: Vec<Qp>,
    /// What some QPs take their receives from; always there but while it is made anew.
    pub srq: Option<Srq>,
    pub mrs: Vec<Mr>,
}

impl Half {
    pub fn new(node: &Arc<Node>, context: Context) -> Half {
        let pd = node.create_pd(context).expect("a PD");
        let region = |start: usize, len: usize, bits: u32| {
            let buffer = node.memory.scattered(start + len);
            buffer.fill(0x5d);
            node.reg_mr(context, pd, buffer, start, len, bits)
                .expect("a region")
        };
        let mrs = vec![
            region(0, 65_536, access::ALL),
            region(100, 5000, access::LOCAL_WRITE),
            region(4090, 9, access::ALL),
            region(17, 8000, 0),
        ];
        let mut half = Half {
            node: node.clone(),
            context,
            pd,
            cqs: Vec::new(),
            qps: Vec::new(),
            srq: None,
            mrs,
        };
        half.build();
        half
    }

    pub fn build(&mut self) {
        for entries in [16, 256] {
            self.cqs
                .push(self.node.create_cq(self.context, entries, 0).expect("a CQ"));
        }
        let srq = self
            .node
            .create_srq(self.context, self.pd, 8, 3)
            .expect("an SRQ");
        for n in 0..QPS {
            let options = QpOptions {
                kind: KINDS[n],
                sq_entries: [1, 4, 16, 64][n % 4],
                rq_entries: [16, 1, 64, 4][n % 4],
                send_sge: [1, 4, 16, 2][n % 4],
                recv_sge: [4, 1, 2, 16][n % 4],
                inline: [0, 64, 256, 32][n % 4],
                signal_all: n == 2,
                block_loopback: false,
                scattered: n % 2 == 0,
                srq: if SHARES[n] { srq.srqn } else { 0 },
                xrcd: 0,
            };
            let (send, recv) = (self.cqs[n % 2].cqn, self.cqs[n / 2 % 2].cqn);
            self.qps.push(
                self.node
                    .create_qp(self.context, self.pd, send, recv, &options)
                    .expect("a QP"),
            );
        }
        self.srq = Some(srq);
    }

    pub fn demolish(&mut self) {
        for qp in self.qps.drain(..) {
            self.node
                .destroy_qp(self.context, qp.qpn)
                .expect("DESTROY_QP");
        }
        if let Some(srq) = self.srq.take() {
            self.node
                .destroy_srq(self.context, srq.srqn)
                .expect("DESTROY_SRQ");
        }
        for cq in self.cqs.drain(..) {
            self.node
                .destroy_cq(self.context, cq.cqn)
                .expect("DESTROY_CQ");
        }
    }
}

/// Takes a pair of QPs to RTS again. A device with a thread of its own may find a lie in the rings on the way, and end that.
pub(super) fn connect(near: &mut Half, far: &mut Half, n: usize) {
    let connection = Connection {
        timeout: 8,
        retry_cnt: 1,
        rnr_retry: 1,
        ..Default::default()
    };
    let only = |qpn, state| QpAttributes {
        qpn,
        mask: mask::STATE,
        state,
        ..Default::default()
    };
    for half in [&mut *near, &mut *far] {
        let reset = only(half.qps[n].qpn, state::RESET);
        half.node
            .modify_qp(half.context.handle, &reset)
            .expect("any state to RESET");
        half.qps[n].reset_indices();
    }
    for (side, (own, other)) in [(&*near, &*far), (&*far, &*near)].into_iter().enumerate() {
        let (qp, peer) = (&own.qps[n], &other.qps[n]);
        for step in connection.steps(qp, side, (peer.qpn, other.node.gid)) {
            match own.node.modify_qp(own.context.handle, &step) {
                Ok(()) => {}
                Err(Status::BadState) => break,
                Err(status) => panic!("to state {}: {status:?}", step.state),
            }
        }
    }
}
