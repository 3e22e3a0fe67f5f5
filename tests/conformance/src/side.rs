//! What most tests start from: a process on each of two nodes, with a connected pair of QPs.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::layout::{Cqe, QpAttributes, Sge, access, mask, qp_type, send, state, wc, wqe_flag};
use crate::node::{Context, Mr, Node, Outcome, QpOptions};
use crate::rings::{Cq, Qp, SendWr};
use crate::world::{QUIET_ROUNDS, World};

/// A process with one QP, a CQ for both its queues, and a region.
pub struct Side {
    /// Where it runs.
    pub node: Arc<Node>,
    /// Its context.
    pub context: Context,
    /// Its protection domain.
    pub pd: u32,
    /// CQ of both queues.
    pub cq: Cq,
    /// The QP.
    pub qp: Qp,
    /// A region with every right.
    pub mr: Mr,
}

/// How sides are to be.
#[derive(Clone, Copy, Debug)]
pub struct SideOptions {
    /// The QP.
    pub qp: QpOptions,
    /// Length of the CQ.
    pub cq_entries: u32,
    /// Bytes of the region.
    pub mr_len: usize,
    /// Region in neighbouring pages.
    pub contiguous: bool,
}

impl Default for SideOptions {
    fn default() -> Self {
        SideOptions {
            qp: QpOptions::default(),
            cq_entries: 256,
            mr_len: 64 << 10,
            contiguous: false,
        }
    }
}

/// How QPs are connected.
#[derive(Clone, Copy, Debug)]
pub struct Connection {
    /// 4.096 us * 2^n.
    pub timeout: u8,
    /// Retries.
    pub retry_cnt: u8,
    /// RNR retries; 7 for ever.
    pub rnr_retry: u8,
    /// RNR timer that we ask of the peer.
    pub min_rnr_timer: u8,
    /// READs and atomics at a time, asked and answered.
    pub max_rd_atomic: u8,
    /// The QP's access flags.
    pub access: u32,
    /// First message number of the first side, and of the second.
    pub psn: [u32; 2],
    /// Q_Key of a datagram QP.
    pub qkey: u32,
}

impl Default for Connection {
    fn default() -> Self {
        Connection {
            timeout: 18,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 1,
            max_rd_atomic: 4,
            access: access::ALL,
            psn: [0x1234, 0x00ff_fffe],
            qkey: 0x1122_3344,
        }
    }
}

impl Connection {
    /// The steps from RESET to RTS that a QP of its type makes, towards a QP number and a GID if it has a peer.
    pub fn steps(&self, qp: &Qp, n: usize, far: (u32, [u8; 16])) -> [QpAttributes; 3] {
        let mut init = self.init(qp.qpn);
        let mut rtr = self.rtr(qp.qpn, n, far.0, far.1);
        let mut rts = self.rts(qp.qpn, n);
        if !matches!(qp.kind, qp_type::RC | qp_type::XRC_TGT) {
            rtr.mask &= !(mask::MAX_DEST_RD_ATOMIC | mask::MIN_RNR_TIMER);
        }
        match qp.kind {
            qp_type::RC | qp_type::XRC_INI => {}
            qp_type::XRC_TGT => rts.mask = mask::STATE | mask::SQ_PSN | mask::TIMEOUT,
            _ => rts.mask = mask::STATE | mask::SQ_PSN,
        }
        if matches!(qp.kind, qp_type::UD | qp_type::GSI) {
            let port = init.mask & mask::PORT;
            init.mask = mask::STATE | mask::PKEY_INDEX | mask::QKEY;
            init.qkey = self.qkey;
            rtr.mask = mask::STATE;
            if qp.kind == qp_type::UD {
                init.mask |= port;
            }
        }
        [init, rtr, rts]
    }

    /// RESET to INIT.
    pub fn init(&self, qpn: u32) -> QpAttributes {
        QpAttributes {
            qpn,
            mask: mask::STATE | mask::PKEY_INDEX | mask::PORT | mask::ACCESS,
            state: state::INIT,
            port: 1,
            access: self.access,
            ..Default::default()
        }
    }

    /// INIT to RTR, for the side `n`.
    pub fn rtr(&self, qpn: u32, n: usize, dest_qpn: u32, dgid: [u8; 16]) -> QpAttributes {
        QpAttributes {
            qpn,
            mask: mask::STATE
                | mask::AV
                | mask::PATH_MTU
                | mask::DEST_QPN
                | mask::RQ_PSN
                | mask::MAX_DEST_RD_ATOMIC
                | mask::MIN_RNR_TIMER,
            state: state::RTR,
            path_mtu: 5,
            dest_qpn,
            rq_psn: self.psn[1 - n],
            max_dest_rd_atomic: self.max_rd_atomic,
            min_rnr_timer: self.min_rnr_timer,
            dgid,
            dmac: [2, 0, 0, 0, 0, dgid[15]],
            hop_limit: 64,
            ..Default::default()
        }
    }

    /// RTR to RTS, for the side `n`.
    pub fn rts(&self, qpn: u32, n: usize) -> QpAttributes {
        QpAttributes {
            qpn,
            mask: mask::STATE
                | mask::SQ_PSN
                | mask::TIMEOUT
                | mask::RETRY_CNT
                | mask::RNR_RETRY
                | mask::MAX_RD_ATOMIC,
            state: state::RTS,
            sq_psn: self.psn[n],
            timeout: self.timeout,
            retry_cnt: self.retry_cnt,
            rnr_retry: self.rnr_retry,
            max_rd_atomic: self.max_rd_atomic,
            ..Default::default()
        }
    }
}

/// Takes a QP to another state, with no attribute but that.
pub fn to_state(node: &Node, qp: &Qp, to: u8) -> Outcome<()> {
    node.modify_qp(
        qp.context,
        &QpAttributes {
            qpn: qp.qpn,
            mask: mask::STATE,
            state: to,
            ..Default::default()
        },
    )
}

/// Takes two QPs from RESET to RTS.
pub fn connect(a: (&Node, &Qp), b: (&Node, &Qp), connection: &Connection) {
    for (n, (own, far)) in [(a, b), (b, a)].into_iter().enumerate() {
        let (node, qp) = own;
        to_rts(node, qp, n, (far.1.qpn, far.0.gid), connection);
    }
}

/// Takes the QP of the side `n` from RESET to RTS, towards a QP number and a GID, whether or not there is anybody.
pub fn to_rts(node: &Node, qp: &Qp, n: usize, far: (u32, [u8; 16]), connection: &Connection) {
    let steps = connection.steps(qp, n, far);
    for step in &steps {
        node.modify_qp(qp.context, step)
            .unwrap_or_else(|status| panic!("QP {} to state {}: {status:?}", qp.qpn, step.state));
    }
}

impl Side {
    /// A process on a node; its QP is in RESET.
    pub fn new(node: &Arc<Node>, options: &SideOptions) -> Side {
        let context = node.create_context().expect("a context");
        Side::in_context(node, context, options)
    }

    /// More objects for a process.
    pub fn in_context(node: &Arc<Node>, context: Context, options: &SideOptions) -> Side {
        let pd = node.create_pd(context).expect("a PD");
        let cq = node
            .create_cq(context, options.cq_entries, 0)
            .expect("a CQ");
        let recv_cq = match options.qp.kind {
            qp_type::XRC_INI => 0,
            _ => cq.cqn,
        };
        let qp = node
            .create_qp(context, pd, cq.cqn, recv_cq, &options.qp)
            .expect("a QP");
        let mr = if options.contiguous {
            node.mr_contiguous(context, pd, options.mr_len)
        } else {
            node.mr(context, pd, options.mr_len)
        };
        Side {
            node: node.clone(),
            context,
            pd,
            cq,
            qp,
            mr,
        }
    }

    /// Takes the next CQE and retires what it stands for.
    pub fn poll(&mut self) -> Option<Cqe> {
        let cqe = self.cq.poll()?;
        assert_eq!(cqe.qpn, self.qp.qpn, "every CQE names its QP");
        self.qp.retire(&cqe);
        Some(cqe)
    }

    /// Posts a receive of a stretch of the region.
    pub fn recv(&mut self, wr_id: u64, at: usize, len: usize) {
        let sge = self.mr.sge(at, len);
        self.qp
            .post_recv(wr_id, &[sge])
            .expect("room for a receive");
    }

    /// Posts a signalled WRITE of `wr_id` to one of the first 1,024 words of `to`'s region.
    pub fn write_number(&mut self, to: &Side, wr_id: u64) {
        self.send(
            &SendWr::signaled(wr_id, send::WRITE)
                .with_inline(&wr_id.to_le_bytes())
                .at(&to.mr, 8 * (wr_id % 1024)),
        );
    }

    /// Posts a signalled SEND of 8 bytes with more flags.
    pub fn send_flagged(&mut self, wr_id: u64, flags: u8) {
        self.send(&SendWr {
            wr_id,
            opcode: send::SEND,
            flags: wqe_flag::SIGNALED | flags,
            inline: Some(&[1; 8]),
            ..Default::default()
        });
    }

    /// Posts a send of any kind.
    pub fn send(&mut self, wr: &SendWr<'_>) {
        self.qp.post_send(wr).expect("room for a send");
    }

    /// The QP's state, by QUERY_QP.
    pub fn state(&self) -> u8 {
        self.node
            .query_qp(self.context.handle, self.qp.qpn)
            .expect("QUERY_QP")
            .state
    }

    /// The whole region as one SGE list.
    pub fn whole(&self) -> Sge {
        self.mr.sge(0, self.mr.len as usize)
    }
}

/// Two sides, connected.
pub fn connected(world: &World, options: &SideOptions, connection: &Connection) -> (Side, Side) {
    let a = Side::new(world.a(), options);
    let b = Side::new(world.b(), options);
    connect((&a.node, &a.qp), (&b.node, &b.qp), connection);
    (a, b)
}

/// Two sides, connected, as most tests want them.
pub fn sides(world: &World) -> (Side, Side) {
    connected(world, &SideOptions::default(), &Connection::default())
}

/// Waits for a CQE and checks that it says success.
pub fn success(world: &World, side: &mut Side, what: &str) -> Cqe {
    let cqe = world.until(what, || side.poll());
    assert_eq!(cqe.status, wc::SUCCESS, "{what}: {cqe:?}");
    cqe
}

/// Lets the world go on for so long, and for some rounds however little time this machine has; no CQE may come.
pub fn silence(world: &World, side: &mut Side, time: Duration, what: &str) {
    let until = Instant::now() + time;
    let mut rounds = 0;
    while Instant::now() < until || rounds < QUIET_ROUNDS {
        rounds += 1;
        world.step();
        assert!(side.poll().is_none(), "{what}");
    }
}
