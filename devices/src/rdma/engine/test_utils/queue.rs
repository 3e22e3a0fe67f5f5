//! A QP and its rings as a process has them.

use zerocopy::{FromBytes, IntoBytes};

use super::*;
use crate::rdma::fabric::Fabric;
use crate::rdma::memory::Scope;
use crate::rdma::objects::cq::{CqRequest, CqRing};
use crate::rdma::objects::srq::{SrqRequest, SrqRing, Xrc};
use crate::rdma::objects::{
    Qp, QpAttributes, QpCaps, QpKind, QpRefs, QpRequest, QpState, RingPlace,
};
use crate::rdma::wire::{
    CQE_PHASE, CQE_SIZE, Cqe, ReceiveWqeHeader, SendWqeHeader, Sge, access, cq_control, qp_control,
    qp_mask, send_flag, send_opcode,
};

const SQ_ENTRIES: u32 = 512;
const SQ_STRIDE: u32 = 256;
const RQ_ENTRIES: u32 = 64;
const RQ_STRIDE: u32 = 64;
const CQ_ENTRIES: u32 = 1024;

/// A send work request, as a process would post it.
#[derive(Clone, Debug, Default)]
pub struct Post {
    pub wr_id: u64,
    pub opcode: u8,
    pub flags: u8,
    pub imm: [u8; 4],
    pub rkey: u32,
    pub remote_addr: u64,
    pub operands: [u64; 2],
    pub extra: [u8; 16],
    pub sges: Vec<(u64, u32, u32)>,
    pub inline: Vec<u8>,
}

/// A QP as its process sees it.
#[derive(Clone, Debug)]
pub struct Queue {
    pub qpn: u32,
    pub cqn: u32,
    base: u64,
    cq_base: u64,
    cq_entries: u32,
    sq_producer: u32,
    rq_producer: u32,
    consumer: u32,
}

impl<F: Fabric> Node<F> {
    /// A QP in INIT with a CQ of its own, of `entries`.
    pub fn queue_with(&mut self, entries: u32) -> Queue {
        let (cq_base, memory) = self.map(4096 + u64::from(CQ_ENTRIES) * CQE_SIZE);
        let cqn = self
            .objects
            .create_cq(CqRequest {
                context: 0,
                vector: 0,
                ring: CqRing {
                    entries,
                    memory,
                    control: 0,
                    ring: 4096,
                },
            })
            .unwrap();
        let sq_bytes = u64::from(SQ_ENTRIES * SQ_STRIDE);
        let rq_bytes = u64::from(RQ_ENTRIES * RQ_STRIDE);
        let (base, memory) = self.map(4096 + sq_bytes + rq_bytes);
        let qpn = self
            .objects
            .create_qp(QpRequest {
                context: 0,
                kind: QpKind::Rc,
                refs: QpRefs {
                    pd: self.pd,
                    send_cq: cqn,
                    recv_cq: cqn,
                    ..QpRefs::default()
                },
                sq_sig_all: false,
                caps: QpCaps {
                    max_send_sge: 4,
                    max_recv_sge: 3,
                    max_inline: 128,
                    block_loopback: false,
                },
                memory,
                control: 0,
                sq: RingPlace {
                    offset: 4096,
                    entries: SQ_ENTRIES,
                    stride: SQ_STRIDE,
                },
                rq: RingPlace {
                    offset: 4096 + sq_bytes,
                    entries: RQ_ENTRIES,
                    stride: RQ_STRIDE,
                },
            })
            .unwrap();
        self.objects.qps.get_mut(qpn).unwrap().state = QpState::Init;
        Queue {
            qpn,
            cqn,
            base,
            cq_base,
            cq_entries: entries,
            sq_producer: 0,
            rq_producer: 0,
            consumer: 0,
        }
    }

    /// Makes a connected QP the target of an XRC domain.
    pub fn make_target(&mut self, queue: &Queue, xrcd: u32) {
        let qp = self.qp_mut(queue);
        (qp.kind, qp.refs.xrcd) = (QpKind::XrcTgt, xrcd);
    }

    /// An SRQ of an XRC domain, whose receives complete on the queue's CQ. Its number and where its memory is.
    pub fn xrc_srq(&mut self, xrcd: u32, cqn: u32) -> (u32, u64) {
        let (base, memory) = self.map(8192);
        let request = SrqRequest {
            scope: Scope {
                context: 0,
                pd: self.pd,
                qp: 0,
            },
            xrc: Xrc { xrcd, cqn },
            max_sge: 3,
            ring: SrqRing {
                memory,
                control: 0,
                place: RingPlace {
                    offset: 4096,
                    entries: RQ_ENTRIES,
                    stride: RQ_STRIDE,
                },
            },
        };
        (self.objects.create_srq(request).unwrap(), base)
    }

    /// Fills slot `index` of an SRQ with a receive of `length` bytes of [`DATA`], and posts up to it.
    pub fn post_srq(&mut self, base: u64, index: u32, wr_id: u64, length: u32) {
        let header = ReceiveWqeHeader {
            wr_id: wr_id.into(),
            num_sge: 1.into(),
            ..ReceiveWqeHeader::default()
        };
        let sge = Sge {
            addr: DATA.into(),
            length: length.into(),
            lkey: self.key.into(),
        };
        let slot = base + 4096 + u64::from(index * RQ_STRIDE);
        self.ram
            .write(slot, &[header.as_bytes(), sge.as_bytes()].concat());
        self.ram.write32(base, index + 1);
    }

    /// Changes the QP's state as a command would.
    pub fn modify(&mut self, queue: &Queue, state: QpState) {
        self.modify_with(queue, state, qp_mask::STATE);
    }

    /// As above, by a command that names these attributes.
    pub fn modify_with(&mut self, queue: &Queue, state: QpState, mask: u32) {
        let qp = self.objects.qps.get_mut(queue.qpn).unwrap();
        let old = std::mem::replace(&mut qp.state, state);
        self.engine
            .qp_state_changed(&mut self.objects, &self.fabric, queue.qpn, old, mask);
    }

    /// The QP goes to RESET and INIT again.
    pub fn reset(&mut self, queue: &mut Queue) {
        self.modify(queue, QpState::Reset);
        let qp = self.qp_mut(queue);
        qp.attrs = QpAttributes::default();
        qp.rq.reset();
        (queue.sq_producer, queue.rq_producer) = (0, 0);
        self.set_sq_producer(queue, 0);
        self.set_rq_producer(queue, 0);
        self.modify(queue, QpState::Init);
    }

    /// A QP in RTS, connected to the peer.
    pub fn connected(&mut self) -> Queue {
        self.connected_with(CQ_ENTRIES, PEER_QPN, |_| {})
    }

    /// As above, with attributes of the test's choice.
    pub fn connected_with(
        &mut self,
        entries: u32,
        dest_qpn: u32,
        adjust: impl FnOnce(&mut QpAttributes),
    ) -> Queue {
        let queue = self.queue_with(entries);
        self.connect(&queue, dest_qpn, adjust);
        queue
    }

    /// From INIT to RTS.
    pub fn connect(
        &mut self,
        queue: &Queue,
        dest_qpn: u32,
        adjust: impl FnOnce(&mut QpAttributes),
    ) {
        let attrs = &mut self.qp_mut(queue).attrs;
        *attrs = QpAttributes {
            access: access::ALL,
            dest_qpn,
            sq_psn: SQ_PSN,
            rq_psn: RQ_PSN,
            max_rd_atomic: 2,
            max_dest_rd_atomic: 2,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 2,
            min_rnr_timer: 12,
            ..QpAttributes::default()
        };
        adjust(attrs);
        self.modify(queue, QpState::Rtr);
        self.modify(queue, QpState::Rts);
    }

    pub fn qp(&self, queue: &Queue) -> &Qp {
        self.objects.qps.get(queue.qpn).unwrap()
    }

    pub fn qp_mut(&mut self, queue: &Queue) -> &mut Qp {
        self.objects.qps.get_mut(queue.qpn).unwrap()
    }

    /// Fills the next send WQE without telling of it.
    pub fn fill_send(&mut self, queue: &mut Queue, post: &Post) {
        let slot = u64::from(queue.sq_producer % SQ_ENTRIES) * u64::from(SQ_STRIDE);
        let at = queue.base + 4096 + slot;
        let inline = !post.inline.is_empty() || post.flags & send_flag::INLINE != 0;
        let header = SendWqeHeader {
            wr_id: post.wr_id.into(),
            opcode: post.opcode,
            flags: post.flags | if inline { send_flag::INLINE } else { 0 },
            num_sge: (post.sges.len() as u16).into(),
            inline_len: (post.inline.len() as u32).into(),
            imm: post.imm,
            rkey: post.rkey.into(),
            remote_addr: post.remote_addr.into(),
            compare_add: post.operands[0].into(),
            swap: post.operands[1].into(),
            extra: post.extra,
        };
        self.ram.write(at, header.as_bytes());
        for (position, sge) in post.sges.iter().enumerate() {
            self.write_sge(at + 64 + 16 * position as u64, *sge);
        }
        if inline {
            self.ram.write(at + 64, &post.inline);
        }
        queue.sq_producer = queue.sq_producer.wrapping_add(1);
    }

    fn write_sge(&self, at: u64, (addr, length, lkey): (u64, u32, u32)) {
        let sge = Sge {
            addr: addr.into(),
            length: length.into(),
            lkey: lkey.into(),
        };
        self.ram.write(at, sge.as_bytes());
    }

    /// Posts a send; true if the device wants the doorbell.
    pub fn send(&mut self, queue: &mut Queue, post: Post) -> bool {
        self.fill_send(queue, &post);
        self.set_sq_producer(queue, queue.sq_producer)
    }

    pub fn set_sq_producer(&mut self, queue: &Queue, value: u32) -> bool {
        self.ram
            .write32(queue.base + qp_control::SQ_PRODUCER, value);
        self.kicks(queue) & 1 != 0
    }

    /// The process has posted `index` sends, as it were.
    pub fn set_index(&mut self, queue: &mut Queue, index: u32) {
        queue.sq_producer = index;
        self.set_sq_producer(queue, index);
    }

    /// The doorbell flags as the process sees them.
    pub fn kicks(&self, queue: &Queue) -> u32 {
        self.ram.read32(queue.base + qp_control::FLAGS)
    }

    /// Where the receive WQE of that index lies.
    pub fn rq_slot(&self, queue: &Queue, index: u32) -> u64 {
        let ring = queue.base + 4096 + u64::from(SQ_ENTRIES * SQ_STRIDE);
        ring + u64::from(index % RQ_ENTRIES) * u64::from(RQ_STRIDE)
    }

    /// Posts a receive.
    pub fn receive(&mut self, queue: &mut Queue, wr_id: u64, sges: &[(u64, u32, u32)]) {
        let at = self.rq_slot(queue, queue.rq_producer);
        let header = ReceiveWqeHeader {
            wr_id: wr_id.into(),
            num_sge: (sges.len() as u16).into(),
            reserved: [0; 6],
        };
        self.ram.write(at, header.as_bytes());
        for (position, sge) in sges.iter().enumerate() {
            self.write_sge(at + 16 + 16 * position as u64, *sge);
        }
        queue.rq_producer = queue.rq_producer.wrapping_add(1);
        self.set_rq_producer(queue, queue.rq_producer);
    }

    pub fn set_rq_producer(&mut self, queue: &Queue, value: u32) {
        self.ram
            .write32(queue.base + qp_control::RQ_PRODUCER, value);
    }

    /// The CQEs that have come since.
    pub fn poll_cq(&mut self, queue: &mut Queue) -> Vec<Cqe> {
        let mut out = Vec::new();
        let entries = queue.cq_entries;
        loop {
            let slot = u64::from(queue.consumer % entries);
            let at = queue.cq_base + 4096 + slot * CQE_SIZE;
            let phase = self.ram.read32(at + CQE_PHASE);
            if phase != (queue.consumer / entries + 1) & 1 {
                return out;
            }
            let mut bytes = [0; size_of::<Cqe>()];
            self.ram.read(at, &mut bytes);
            out.push(Cqe::read_from_bytes(&bytes).unwrap());
            queue.consumer = queue.consumer.wrapping_add(1);
            let at = queue.cq_base + cq_control::CONSUMER;
            self.ram.write32(at, queue.consumer);
        }
    }

    /// wr_id and status of the CQEs that have come since.
    pub fn done(&mut self, queue: &mut Queue) -> Vec<(u64, u8)> {
        let cqes = self.poll_cq(queue);
        cqes.iter().map(|c| (c.wr_id.get(), c.status)).collect()
    }
}

/// A signalled WRITE of `length` bytes from [`DATA`].
pub fn write<F: Fabric>(node: &Node<F>, wr_id: u64, length: u32) -> Post {
    Post {
        wr_id,
        opcode: send_opcode::WRITE,
        flags: send_flag::SIGNALED,
        rkey: 0x5500,
        remote_addr: 0x7000,
        sges: vec![(DATA, length, node.key)],
        ..Post::default()
    }
}

/// A signalled READ of `length` bytes to [`DATA`].
pub fn read<F: Fabric>(node: &Node<F>, wr_id: u64, length: u32) -> Post {
    Post {
        opcode: send_opcode::READ,
        ..write(node, wr_id, length)
    }
}
