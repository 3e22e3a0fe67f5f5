//! A process, or a kernel, that writes anything into its rings, control blocks and doorbell page.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::victim::{Secrets, Victim, canaries};
use crate::layout::{
    CQ_ERROR, DatagramAddress, QpAttributes, SendHeader, Sge, Status, access, mask, qp_type, state,
};
use crate::memory::Buffer;
use crate::node::{Context, KERNEL, Mr, Node, QpOptions};
use crate::random::Source;
use crate::rings::{Cq, Qp, SendWr};
use crate::side::Connection;
use crate::srq::Srq;
use crate::world::World;

/// QPs of each attacker, and their types.
const QPS: usize = 6;
const KINDS: [u32; QPS] = [
    qp_type::RC,
    qp_type::RC,
    qp_type::RC,
    qp_type::RC,
    qp_type::UC,
    qp_type::UD,
];
/// Which of them take their receives from a shared queue.
const SHARES: [bool; QPS] = [false, false, false, true, false, true];

/// Half of an attacker: what it has on one node.
struct Half {
    node: Arc<Node>,
    context: Context,
    pd: u32,
    cqs: Vec<Cq>,
    qps: Vec<Qp>,
    /// What some QPs take their receives from; always there but while it is made anew.
    srq: Option<Srq>,
    mrs: Vec<Mr>,
}

impl Half {
    fn new(node: &Arc<Node>, context: Context) -> Half {
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

    fn build(&mut self) {
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

    fn demolish(&mut self) {
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

/// An attacker: a context on each node of a world, its QPs connected to one another.
pub struct Attacker {
    near: Half,
    far: Half,
    secrets: Secrets,
    /// Completions by status: an attack that brings nothing but one status tests nothing.
    pub outcomes: [u64; 32],
}

/// Takes a pair of QPs to RTS again. A device with a thread of its own may find a lie in the rings on the way, and end that.
fn connect(near: &mut Half, far: &mut Half, n: usize) {
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

impl Attacker {
    /// One with user contexts.
    pub fn process(world: &World, victim: &Victim) -> Attacker {
        let near = world.a().create_context().expect("a context");
        let far = world.b().create_context().expect("a context");
        Attacker::of(world, victim, near, far)
    }

    /// A guest kernel that has gone mad.
    pub fn kernel(world: &World, victim: &Victim) -> Attacker {
        Attacker::of(world, victim, KERNEL, KERNEL)
    }

    fn of(world: &World, victim: &Victim, near: Context, far: Context) -> Attacker {
        let mut attacker = Attacker {
            near: Half::new(world.a(), near),
            far: Half::new(world.b(), far),
            secrets: victim.secrets(),
            outcomes: [0; 32],
        };
        attacker.connect_all();
        attacker
    }

    fn connect_all(&mut self) {
        for n in 0..QPS {
            connect(&mut self.near, &mut self.far, n);
        }
    }

    fn key(&self, source: &mut impl Source) -> (u32, u64, u64) {
        let own = [&self.near, &self.far];
        match source.below(8) {
            0 => (source.edge() as u32, source.edge(), 64),
            1 => {
                let n = source.below(3) as usize;
                (self.secrets.keys[n], self.secrets.iovas[n], 8192)
            }
            2 => {
                let mr = &own[source.below(2) as usize].mrs[source.below(4) as usize];
                (mr.key ^ (1 << source.below(32)), mr.iova, mr.len)
            }
            _ => {
                let mr = &own[source.below(2) as usize].mrs[source.below(4) as usize];
                (mr.key, mr.iova, mr.len)
            }
        }
    }

    /// An address in or around a range, and a length.
    fn range(source: &mut impl Source, iova: u64, len: u64) -> (u64, u32) {
        let at = match source.below(6) {
            0 => iova,
            1 => iova.wrapping_add(len).wrapping_sub(source.below(16)),
            2 => iova.wrapping_sub(source.below(3)),
            3 => source.edge(),
            _ => iova.wrapping_add(source.below(len)),
        };
        let size = match source.below(5) {
            0 => source.edge(),
            1 => len,
            2 => len + 1 - source.below(3),
            _ => source.below(4200),
        };
        (at, size as u32)
    }

    fn sge(&self, source: &mut impl Source) -> Sge {
        let (lkey, iova, len) = self.key(source);
        let (addr, length) = Self::range(source, iova, len);
        Sge { addr, length, lkey }
    }

    fn write_wqe(&mut self, source: &mut impl Source) {
        let half = source.below(4) == 0;
        let n = source.below(QPS as u64) as usize;
        let (rkey, iova, len) = self.key(source);
        let header = SendHeader {
            wr_id: source.word(),
            opcode: if source.one_in(8) {
                source.word() as u8
            } else {
                source.pick(&[
                    0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 14, 15, 32,
                ])
            },
            flags: if source.one_in(8) {
                source.word() as u8
            } else {
                source.below(16) as u8
            },
            num_sge: if source.one_in(8) {
                source.edge() as u16
            } else {
                source.below(5) as u16
            },
            inline_len: if source.one_in(8) {
                source.edge() as u32
            } else {
                source.below(65) as u32
            },
            imm: match source.below(2) {
                0 => source.word() as u32,
                _ => self.key(source).0,
            }
            .to_le_bytes(),
            num_pages: source.below(4) as u32,
            srqn: 0,
            page_shift: 12,
            rkey,
            remote_addr: Self::range(source, iova, len).0,
            compare_add: source.word(),
            swap: source.word(),
            datagram: (KINDS[n] == qp_type::UD).then(|| self.address(source)),
        };
        let sges: Vec<Sge> = (0..4).map(|_| self.sge(source)).collect();
        let side = if half { &mut self.far } else { &mut self.near };
        let qp = &mut side.qps[n];
        let slot = qp.sq_slot(qp.sq_producer);
        let stride = qp.sq_stride as usize;
        // SAFETY: the slot is `stride` bytes of the QP's own buffer.
        unsafe {
            std::ptr::copy_nonoverlapping(header.encode().as_ptr(), slot, 64);
            for (at, sge) in (64..stride).step_by(16).zip(&sges) {
                std::ptr::copy_nonoverlapping(sge.encode().as_ptr(), slot.add(at), 16);
            }
        }
        qp.sq_producer = qp.sq_producer.wrapping_add(1);
        qp.publish_sends();
    }

    /// Where a datagram may go: more often than not to the attacker's own QP.
    fn address(&self, source: &mut impl Source) -> DatagramAddress {
        let far = &self.far.qps[QPS - 1];
        let mut group = self.near.node.gid;
        group[12] = 239;
        DatagramAddress {
            dest_qpn: if source.one_in(6) {
                source.edge() as u32
            } else {
                source.pick(&[
                    far.qpn,
                    far.qpn,
                    self.near.qps[QPS - 1].qpn,
                    1,
                    2,
                    0xff_ffff,
                ])
            },
            qkey: source.pick(&[Connection::default().qkey, 1 << 31, u32::MAX, 0]),
            dgid: source.pick(&[self.far.node.gid, self.near.node.gid, group, [0xff; 16]]),
            flow_label: source.word() as u32,
            sgid_index: source.pick(&[0, 0, 0, 1, 255]),
            hop_limit: source.word() as u8,
            traffic_class: source.word() as u8,
            sl: source.word() as u8,
        }
    }

    fn write_recv(&mut self, source: &mut impl Source) {
        let half = source.below(4) != 0;
        let n = source.below(QPS as u64) as usize;
        let sges: Vec<Sge> = (0..4).map(|_| self.sge(source)).collect();
        let count = if source.one_in(8) {
            source.edge() as u16
        } else {
            source.below(4) as u16
        };
        let side = if half { &mut self.far } else { &mut self.near };
        if SHARES[n] {
            let srq = side.srq.as_mut().expect("an SRQ");
            let kept = &sges[..usize::from(count % 4)];
            if srq.post(source.word(), kept).is_ok() && usize::from(count) > kept.len() {
                // More SGEs than it may have.
                let slot = srq.slot(srq.producer.wrapping_sub(1));
                // SAFETY: a slot of the SRQ's own buffer.
                unsafe {
                    std::ptr::copy_nonoverlapping(count.to_le_bytes().as_ptr(), slot.add(8), 2)
                };
            }
            return;
        }
        let qp = &mut side.qps[n];
        let slot = qp.rq_slot(qp.rq_producer);
        let mut header = [0; 16];
        header[0..8].copy_from_slice(&source.word().to_le_bytes());
        header[8..10].copy_from_slice(&count.to_le_bytes());
        let stride = qp.rq_stride as usize;
        // SAFETY: the slot is `stride` bytes of the QP's own buffer.
        unsafe {
            std::ptr::copy_nonoverlapping(header.as_ptr(), slot, 16);
            for (at, sge) in (16..stride).step_by(16).zip(&sges) {
                std::ptr::copy_nonoverlapping(sge.encode().as_ptr(), slot.add(at), 16);
            }
        }
        qp.rq_producer = qp.rq_producer.wrapping_add(1);
        qp.publish_recvs();
    }

    fn lie(&mut self, source: &mut impl Source) {
        let side = if source.one_in(2) {
            &mut self.far
        } else {
            &mut self.near
        };
        let n = source.below(QPS as u64) as usize;
        let qp = &side.qps[n];
        let near = |now: u32, source: &mut dyn FnMut() -> u64| now.wrapping_add(source() as u32);
        let srq = side.srq.as_ref().expect("an SRQ");
        match source.below(8) {
            6 => srq
                .producer_word()
                .store(source.edge() as u32, Ordering::Release),
            7 => {
                let limit = source.below(9) as u32;
                side.node.limit_srq(srq, limit).expect("a limit");
            }
            0 => qp
                .sq_producer_word()
                .store(source.edge() as u32, Ordering::Release),
            1 => qp
                .rq_producer_word()
                .store(source.edge() as u32, Ordering::Release),
            2 => {
                let to = near(qp.sq_producer, &mut || source.below(130));
                qp.sq_producer_word().store(to, Ordering::Release);
            }
            3 => {
                let cq = &side.cqs[n % 2];
                cq.consumer_word()
                    .store(source.edge() as u32, Ordering::Release);
            }
            4 => {
                let cq = &side.cqs[n % 2];
                let to = near(cq.consumer, &mut || source.below(300));
                cq.consumer_word().store(to, Ordering::Release);
            }
            _ => {
                let cq = &side.cqs[n % 2];
                cq.arm_word().store(source.edge() as u32, Ordering::Release);
            }
        }
        let page = if source.one_in(8) {
            source.edge() as u32
        } else {
            qp.page
        };
        side.node.bells.ring(page, source.word() as u32);
    }

    fn scribble(&self, source: &mut impl Source) {
        let side = if source.one_in(2) {
            &self.far
        } else {
            &self.near
        };
        let n = source.below(QPS as u64) as usize;
        let buffer = match (source.below(6), &side.srq) {
            (0 | 1, _) => &side.cqs[n % 2].buffer,
            (2, Some(srq)) => &srq.buffer,
            _ => &side.qps[n].buffer,
        };
        scribble(buffer, source);
    }

    fn drain(&mut self) {
        for side in [&mut self.near, &mut self.far] {
            for cq in &mut side.cqs {
                for _ in 0..300 {
                    let Some(cqe) = cq.poll() else { break };
                    self.outcomes[usize::from(cqe.status % 32)] += 1;
                    if let Some(qp) = side.qps.iter_mut().find(|qp| qp.qpn == cqe.qpn) {
                        qp.retire(&cqe);
                    }
                }
            }
            side.node.events.take_asynchronous();
            side.node.events.take_completions();
        }
    }

    /// What broke is made whole again, so that the attack can go on.
    pub fn repair(&mut self) {
        let broken = |half: &Half| {
            half.cqs.iter().any(|cq| cq.flags() & CQ_ERROR != 0)
                || half.srq.as_ref().is_none_or(|srq| srq.flags() != 0)
        };
        if broken(&self.near) || broken(&self.far) {
            for half in [&mut self.near, &mut self.far] {
                half.demolish();
                half.build();
            }
            self.connect_all();
            return;
        }
        for n in 0..QPS {
            let state_of = |half: &Half| {
                half.node
                    .query_qp(half.context.handle, half.qps[n].qpn)
                    .expect("QUERY_QP")
                    .state
            };
            if state_of(&self.near) != state::RTS || state_of(&self.far) != state::RTS {
                connect(&mut self.near, &mut self.far, n);
            }
        }
    }

    /// One thing that a driver would not do.
    pub fn act(&mut self, world: &World, source: &mut impl Source) {
        match source.below(20) {
            0..=7 => self.write_wqe(source),
            8..=11 => self.write_recv(source),
            12 => self.lie(source),
            13 => self.scribble(source),
            14 => self.drain(),
            15 => self.repair(),
            16 => {
                // Memory comes and goes under it all.
                let half = if source.one_in(2) {
                    &mut self.near
                } else {
                    &mut self.far
                };
                let n = source.below(3) as usize;
                let old = half.mrs.remove(n);
                half.node.dereg_mr(half.context, old.key).expect("DEREG_MR");
                let (start, len) = (old.start, old.len as usize);
                let buffer = old.buffer;
                let bits = [access::ALL, access::LOCAL_WRITE, access::ALL][n];
                let mr = half
                    .node
                    .reg_mr(half.context, half.pd, buffer, start, len, bits)
                    .expect("a region");
                half.mrs.insert(n, mr);
            }
            _ => {
                world.step();
            }
        }
    }

    /// What it may not write itself is as it was, up to the edges of what it may.
    pub fn check(&self) {
        for half in [&self.near, &self.far] {
            let readonly = &half.mrs[3];
            assert!(
                readonly.buffer.holds_only(0x5d),
                "a region without LOCAL_WRITE was written"
            );
            for mr in &half.mrs {
                mr.assert_edges(0x5d);
            }
        }
    }

    /// Posts a harmless WRITE on every QP, so that a device that sleeps wakes.
    pub fn nudge(&mut self) {
        for half in [&mut self.near, &mut self.far] {
            for qp in &mut half.qps {
                let _ = qp.post_send(&SendWr::default());
                qp.ring();
            }
        }
    }

    /// Rings and control blocks, for somebody else to scribble in meanwhile.
    pub fn rings(&self) -> Vec<&Buffer> {
        let mut buffers = Vec::new();
        for half in [&self.near, &self.far] {
            buffers.extend(half.qps.iter().map(|qp| &qp.buffer));
            buffers.extend(half.cqs.iter().map(|cq| &cq.buffer));
            buffers.extend(half.srq.iter().map(|srq| &srq.buffer));
        }
        buffers
    }
}

/// Changes some bytes somewhere in a buffer.
pub fn scribble(buffer: &Buffer, source: &mut impl Source) {
    let len = 1 + source.below(16) as usize;
    let at = source.below((buffer.len() - len) as u64) as usize;
    let mut bytes = [0; 16];
    source.fill(&mut bytes);
    buffer.write(at, &bytes[..len]);
}

/// Attacks until the source is exhausted or `enough` says so.
pub fn attack(
    world: &World,
    victim: &mut Victim,
    attacker: &mut Attacker,
    source: &mut impl Source,
    mut enough: impl FnMut(u64) -> bool,
) {
    let mut round = 0;
    while !source.exhausted() && !enough(round) {
        attacker.act(world, source);
        round += 1;
        if round % 64 == 0 {
            attacker.check();
        }
        if round % 256 == 0 {
            victim.works(world);
            canaries(world);
        }
    }
    attacker.check();
    victim.works(world);
    canaries(world);
}
