//! A peer that sends anything: frames in any order, of any content, in parts, with links that come and go between them.

use std::sync::{Arc, Mutex};

use devices::rdma::fabric::frame::{FrameHeader, flag, kind};

use super::scripted::{Incoming, LANES, PEER_GID, PEERS, Script, Scripted};
use super::victim::{Victim, canaries};
use crate::layout::{
    MULTICAST_QPN, QpAttributes, access, cqe_flag, mask, qp_type, send, state, wc, wqe_flag,
};
use crate::node::{Context, KERNEL, Mr, Node, QpOptions};
use crate::random::Source;
use crate::rings::{Cq, Qp, SendWr};
use crate::side::Connection;
use crate::srq::Srq;
use crate::world::{Kind, Options, World, node};

/// A guest whose QPs are connected to a peer that is the script's.
pub struct Target {
    /// The device's world.
    pub world: World,
    /// Others on the same device.
    pub victim: Victim,
    script: Arc<Mutex<Script>>,
    context: Context,
    pd: u32,
    cq: Cq,
    qps: Vec<Qp>,
    /// SRQs that an XRC target may be asked for: two in its domain, one elsewhere.
    srqs: Vec<Srq>,
    domains: [u32; 2],
    /// Message number that each QP is believed to expect next, and the last that it sent.
    expected: Vec<u32>,
    asked: Vec<u32>,
    mrs: Vec<Mr>,
    /// For receives of the SRQs, which wait while the others come and go.
    own: Mr,
    /// What the device answered, by type of frame, and the codes of its NAKs.
    pub answers: [u64; 64],
    /// See `answers`.
    pub refusals: [u64; 8],
    /// Receives of XRC SRQs that a message filled.
    pub shared: u64,
}

/// QPNs of the peer's side.
const PEER_QPN: u32 = 0x100;

/// QPs under attack, and their types; the last is in a multicast group.
const QPS: usize = 6;
const KINDS: [u32; QPS] = [
    qp_type::RC,
    qp_type::RC,
    qp_type::RC,
    qp_type::XRC_TGT,
    qp_type::UC,
    qp_type::UD,
];

/// A multicast group, made from a GID.
fn group(mut gid: [u8; 16]) -> [u8; 16] {
    gid[12] = 239;
    gid
}

impl Target {
    /// A device with QPs of several types in RTS, towards the script.
    pub fn new() -> Target {
        let script = Arc::new(Mutex::new(Script::default()));
        let fabric = Scripted::new(script.clone());
        let options = Options {
            pages: 2048,
            ..Default::default()
        };
        let node = node(0, Box::new(fabric), Arc::default(), &options);
        let world = World::of(vec![node.clone()], Kind::Loopback);
        world.plant_canaries();
        let victim = Victim::new(&world);
        let context = node.create_context().expect("a context");
        let pd = node.create_pd(context).expect("a PD");
        let cq = node.create_cq(context, 4096, 0).expect("a CQ");
        let region = |start: usize, len: usize, bits: u32| {
            let buffer = node.memory.scattered(start + len);
            buffer.fill(0x5d);
            node.reg_mr(context, pd, buffer, start, len, bits)
                .expect("a region")
        };
        let mrs = vec![
            region(0, 1 << 18, access::ALL),
            region(100, 5000, access::LOCAL_WRITE | access::REMOTE_WRITE),
            region(4090, 9, access::ALL),
            region(17, 8000, access::REMOTE_READ),
        ];
        let own = region(0, 64, access::LOCAL_WRITE);
        let domains = [(); 2].map(|()| node.alloc_xrcd().expect("ALLOC_XRCD"));
        let srqs = [domains[0], domains[0], domains[1]].map(|xrcd| {
            node.create_xrc_srq(context, pd, 16, (cq.cqn, xrcd))
                .expect("an SRQ")
        });
        let qps = KINDS
            .map(|kind| {
                if kind == qp_type::XRC_TGT {
                    let options = QpOptions::xrc_target(domains[0]);
                    return node.create_qp(KERNEL, 0, 0, 0, &options).expect("a target");
                }
                let options = QpOptions {
                    kind,
                    ..Default::default()
                };
                node.create_qp(context, pd, cq.cqn, cq.cqn, &options)
                    .expect("a QP")
            })
            .into();
        let mut target = Target {
            world,
            victim,
            script,
            context,
            pd,
            cq,
            qps,
            srqs: srqs.into(),
            domains,
            expected: vec![0; QPS],
            asked: vec![0; QPS],
            mrs,
            own,
            answers: [0; 64],
            refusals: [0; 8],
            shared: 0,
        };
        for n in 0..QPS {
            target.connect(n);
        }
        let group = group(target.node().gid);
        target
            .node()
            .attach_mcast(context, target.qps[QPS - 1].qpn, group)
            .expect("ATTACH_MCAST");
        target
    }

    fn node(&self) -> &Arc<Node> {
        self.world.a()
    }

    fn connect(&mut self, n: usize) {
        let connection = Connection {
            timeout: 8,
            retry_cnt: 1,
            rnr_retry: 2,
            psn: [700, 500],
            ..Default::default()
        };
        let qpn = self.qps[n].qpn;
        let reset = QpAttributes {
            qpn,
            mask: mask::STATE,
            state: state::RESET,
            ..Default::default()
        };
        let far = (PEER_QPN + n as u32, PEER_GID);
        let steps = connection.steps(&self.qps[n], 0, far);
        for step in [reset].into_iter().chain(steps) {
            self.node()
                .modify_qp(self.qps[n].context, &step)
                .expect("a state that the table allows");
        }
        self.qps[n].reset_indices();
        self.expected[n] = 500;
        self.asked[n] = 700;
    }

    /// Learns from what the device sent.
    fn listen(&mut self) {
        let sent = std::mem::take(&mut self.script.lock().expect("the script").sent);
        for (_, header) in sent {
            self.answers[usize::from(header.kind % 64)] += 1;
            if header.kind == kind::NAK {
                self.refusals[header.rkey as usize % 8] += 1;
            }
            let Some(n) = self.qps.iter().position(|qp| qp.qpn == header.src_qpn) else {
                continue;
            };
            match header.kind {
                kind::ACK | kind::NAK => self.expected[n] = header.seq,
                kind::READ_DATA | kind::ATOMIC_DATA => {
                    self.expected[n] = header.seq.wrapping_add(1)
                }
                _ => self.asked[n] = header.seq,
            }
        }
    }

    fn frame(&mut self, source: &mut impl Source) {
        let n = source.below(QPS as u64) as usize;
        let mr = &self.mrs[source.below(4) as usize];
        let (mut rkey, iova, len) = (mr.key, mr.iova, mr.len);
        let secrets = self.victim.secrets();
        if source.one_in(12) {
            rkey = source.pick(&secrets.keys);
        }
        let kind = source.pick(&[
            kind::SEND,
            kind::SEND,
            kind::WRITE,
            kind::WRITE,
            kind::WRITE,
            kind::READ,
            kind::ATOMIC,
            kind::READ_DATA,
            kind::ATOMIC_DATA,
            kind::ACK,
            kind::NAK,
            kind::DATAGRAM,
            kind::DATAGRAM,
        ]);
        let n = match kind {
            kind::DATAGRAM if !source.one_in(8) => QPS - 1,
            _ => n,
        };
        let answer = matches!(
            kind,
            kind::READ_DATA | kind::ATOMIC_DATA | kind::ACK | kind::NAK
        );
        let length = match kind {
            kind::READ | kind::ACK | kind::NAK => 0,
            kind::ATOMIC => 16,
            kind::ATOMIC_DATA => 8,
            // What the fabric lets through.
            kind::DATAGRAM => 40 + source.pick(&[0, 1, 100, 2960, 2961, 4096]),
            _ => match source.below(4) {
                0 => 0,
                1 => source.below(65_537) as u32,
                _ => source.below(300) as u32,
            },
        };
        let addr = match source.below(8) {
            0 => source.edge(),
            1 => iova.wrapping_sub(source.below(3)),
            2 => iova.wrapping_add(len).wrapping_sub(source.below(20)),
            3 => source.pick(&secrets.iovas),
            _ => iova.wrapping_add(source.below(len) & !7),
        };
        let base = if answer {
            self.asked[n]
        } else {
            self.expected[n]
        };
        let seq = match source.below(8) {
            0 => source.edge() as u32,
            1 => base.wrapping_add(1),
            2 => base.wrapping_sub(source.below(4) as u32),
            _ => base,
        };
        let header = FrameHeader {
            kind,
            flags: if source.one_in(3) {
                source.below(16) as u8
            } else {
                flag::LAST
            },
            length,
            dst_qpn: if source.one_in(16) {
                source.edge() as u32
            } else if kind == kind::DATAGRAM && source.one_in(4) {
                MULTICAST_QPN
            } else {
                self.qps[n].qpn
            },
            src_qpn: if source.one_in(16) {
                source.edge() as u32
            } else {
                PEER_QPN + n as u32
            },
            seq,
            rkey: if kind == kind::NAK {
                source.below(8) as u32
            } else if kind == kind::DATAGRAM && !source.one_in(8) {
                Connection::default().qkey
            } else if source.one_in(12) {
                source.edge() as u32
            } else {
                rkey
            },
            addr,
            imm: (source.word() as u32).to_le_bytes(),
            msg_len: match (kind, source.below(6)) {
                (_, 0) => source.edge() as u32,
                (_, 1) => length.wrapping_add(source.below(3) as u32),
                (kind::READ, _) => source.below(len + 2) as u32,
                (kind::ATOMIC, _) => 8,
                _ => length,
            },
            offset: if source.one_in(6) {
                source.edge() as u32
            } else {
                0
            },
            aux: match KINDS[n] {
                qp_type::XRC_TGT => self.srq(source) << 8 | source.below(3) as u32,
                _ => source.below(33) as u32,
            },
            lane: match source.one_in(8) {
                true => source.below(LANES as u64) as u8,
                false => 0,
            },
        };
        let mut payload = vec![0; length as usize];
        // Not random to the last byte: that would be most of a fuzzer's input.
        let seed = source.word();
        crate::random::Random::new(seed).fill(&mut payload);
        if kind == kind::DATAGRAM && !source.one_in(8) {
            let gid = self.node().gid;
            let to = source.pick(&[gid, gid, group(gid), PEER_GID]);
            payload[0] = 0x60;
            payload[24..40].copy_from_slice(&to);
        }
        let peer = if source.one_in(16) {
            PEERS[1]
        } else {
            PEERS[0]
        };
        let parts = 1 + source.below(4) as usize;
        self.push(Incoming::Frame {
            peer,
            header,
            payload,
            parts,
        });
    }

    /// Connects a QP again that has failed.
    fn revive(&mut self, n: usize) {
        let qp = &self.qps[n];
        let now = self.node().query_qp(qp.context, qp.qpn).expect("QUERY_QP");
        if now.state != state::RTS {
            self.connect(n);
        }
    }

    /// A message to an SRQ that is as it should be, so that the others do not find the QP in ERR all the time.
    fn sound(&mut self, n: usize, srqn: u32) {
        let header = FrameHeader {
            kind: kind::SEND,
            flags: flag::LAST,
            length: 8,
            dst_qpn: self.qps[n].qpn,
            src_qpn: PEER_QPN + n as u32,
            seq: self.expected[n],
            msg_len: 8,
            aux: srqn << 8,
            ..FrameHeader::default()
        };
        self.push(Incoming::Frame {
            peer: PEERS[0],
            header,
            payload: vec![3; 8],
            parts: 1,
        });
    }

    /// The number of an SRQ, mostly of one in the target's domain.
    fn srq(&self, source: &mut impl Source) -> u32 {
        match source.below(16) {
            0 => source.edge() as u32,
            1 => self.srqs[2].srqn,
            2..=4 => self.srqs[1].srqn,
            _ => self.srqs[0].srqn,
        }
    }

    /// An SRQ ends, with messages on their way into it or not, and another takes its place.
    fn another_srq(&mut self, source: &mut impl Source) {
        let n = source.below(self.srqs.len() as u64) as usize;
        let (xrcd, cq) = (self.domains[usize::from(n == 2)], self.cq.cqn);
        self.node()
            .destroy_srq(self.context, self.srqs[n].srqn)
            .expect("DESTROY_SRQ");
        let next = self
            .node()
            .create_xrc_srq(self.context, self.pd, 16, (cq, xrcd))
            .expect("an SRQ");
        self.srqs[n] = next;
    }

    fn push(&self, incoming: Incoming) {
        self.script
            .lock()
            .expect("the script")
            .incoming
            .push_back(incoming);
    }

    /// One thing from the peer, or from the guest that it plays with.
    pub fn act(&mut self, source: &mut impl Source) {
        match source.below(24) {
            0..=11 => self.frame(source),
            12..=14 => {
                // The guest is at work meanwhile: receives and requests of its own.
                let n = source.below(QPS as u64) as usize;
                let at = source.below(4000) as usize;
                let sge = [self.mrs[0].sge(at, 3000)];
                if KINDS[n] == qp_type::XRC_TGT {
                    let srq = source.below(2) as usize;
                    let _ = self.srqs[srq].post(1, &[self.own.sge(0, 64)]);
                    self.revive(n);
                    self.sound(n, self.srqs[srq].srqn);
                } else if source.one_in(2) {
                    let _ = self.qps[n].post_recv(1, &sge);
                } else {
                    let opcode =
                        source.pick(&[send::SEND, send::WRITE, send::READ, send::WRITE_IMM]);
                    let wr = SendWr {
                        opcode,
                        flags: wqe_flag::SIGNALED,
                        sges: &sge,
                        rkey: 0x1234,
                        remote_addr: 0x5678,
                        ..Default::default()
                    };
                    let _ = self.qps[n].post_send(&wr);
                }
            }
            15 => {
                while let Some(cqe) = self.cq.poll() {
                    let shared = cqe.flags & cqe_flag::XRC != 0 && cqe.status == wc::SUCCESS;
                    self.shared += u64::from(shared);
                    if let Some(qp) = self.qps.iter_mut().find(|qp| qp.qpn == cqe.qpn) {
                        qp.retire(&cqe);
                    }
                }
                self.node().events.take_asynchronous();
            }
            16 => {
                for n in 0..QPS {
                    self.revive(n);
                }
            }
            17 => {
                let peer = source.pick(&PEERS);
                self.push(Incoming::Down(peer));
                self.push(Incoming::Up(peer));
                if source.one_in(2) {
                    self.push(Incoming::Routes);
                }
            }
            18 => {
                let full = source.one_in(2);
                self.script.lock().expect("the script").full = full;
            }
            // Seldom: what was sent waits, and names the one before.
            19 if source.one_in(64) => self.another_srq(source),
            19 => {
                // Memory comes and goes under what is being placed.
                let n = source.below(3) as usize;
                let old = self.mrs.remove(n);
                let bits = [
                    access::ALL,
                    access::LOCAL_WRITE | access::REMOTE_WRITE,
                    access::ALL,
                ][n];
                self.node()
                    .dereg_mr(self.context, old.key)
                    .expect("DEREG_MR");
                let (start, len) = (old.start, old.len as usize);
                let mr = self
                    .node()
                    .reg_mr(self.context, self.pd, old.buffer, start, len, bits)
                    .expect("a region");
                self.mrs.insert(n, mr);
            }
            _ => {
                self.world.step();
                self.listen();
            }
        }
    }

    /// What the peer may not write is as it was.
    pub fn check(&self) {
        assert!(
            self.mrs[3].buffer.holds_only(0x5d),
            "a region without REMOTE_WRITE was written"
        );
        for mr in &self.mrs[1..] {
            mr.assert_edges(0x5d);
        }
    }

    /// Sends until the source is exhausted or `enough` says so.
    pub fn attack(&mut self, source: &mut impl Source, mut enough: impl FnMut(u64) -> bool) {
        let mut round = 0;
        while !source.exhausted() && !enough(round) {
            self.act(source);
            round += 1;
            if round % 512 == 0 {
                self.rest();
            }
        }
        self.rest();
    }

    fn rest(&mut self) {
        self.check();
        self.victim.works(&self.world);
        canaries(&self.world);
    }
}

impl Default for Target {
    fn default() -> Self {
        Target::new()
    }
}
