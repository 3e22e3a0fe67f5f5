//! A device without commands, over a fabric that a test plays by hand: frames that were sent are looked at, frames that come are made up, and time
//! passes when the test says so.

use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use zerocopy::{FromBytes, IntoBytes};

use super::{Engine, Receiver};
use crate::rdma::events::{AsyncEvent, EventKind, EventSink};
use crate::rdma::fabric::frame::{FrameHeader, flag, kind};
use crate::rdma::fabric::{Fabric, Gid, PeerId, Placement, SendError, Sink};
use crate::rdma::limits::Limits;
use crate::rdma::memory::{DmaSpace, RegionEntry, RegionRequest, RingBuffer, RingMemory, Segment};
use crate::rdma::objects::cq::CqRequest;
use crate::rdma::objects::{
    Objects, Qp, QpAttributes, QpCaps, QpKind, QpRequest, QpState, RingPlace,
};
use crate::rdma::test_utils::FakeRam;
use crate::rdma::wire::{
    CQE_PHASE, CQE_SIZE, Cqe, ReceiveWqeHeader, SendWqeHeader, Sge, access, cq_control, feature,
    qp_control, send_flag, send_opcode,
};

/// The peer of all QPs, unless a test connects them to [`PeerId::LOCAL`].
pub(super) const PEER: PeerId = PeerId(7);

/// The peer's QP.
pub(super) const PEER_QPN: u32 = 0x1234;

/// First message numbers: of ours, and of the peer's. Both are near the wrap of 24 bits, which numbers go beyond.
pub(super) const SQ_PSN: u32 = 0xff_fffe;
pub(super) const RQ_PSN: u32 = 0xff_fff0;

/// Data that a QP's work requests may name.
pub(super) const DATA: u64 = 0x10_0000;
pub(super) const DATA_LEN: u64 = 0x10_0000;

const SQ_ENTRIES: u32 = 512;
const SQ_STRIDE: u32 = 256;
const RQ_ENTRIES: u32 = 64;
const RQ_STRIDE: u32 = 64;
const CQ_ENTRIES: u32 = 1024;

/// A frame that was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sent {
    pub peer: PeerId,
    pub header: FrameHeader,
    pub payload: Vec<u8>,
}

/// A fabric that a test plays.
pub(super) struct Script {
    pub up: bool,
    pub full: bool,
    /// Frames with a payload that are taken until it is full.
    pub room: usize,
    pub heard: Option<Instant>,
    pub route: Option<PeerId>,
    pub sent: VecDeque<Sent>,
    pub forgotten: u32,
}

impl Fabric for Script {
    fn send(
        &mut self,
        peer: PeerId,
        header: &FrameHeader,
        inline: &[u8],
        payload: &[Segment],
    ) -> Result<(), SendError> {
        if !self.up {
            return Err(SendError::Down);
        }
        if header.length > 0 {
            if !self.can_send(PEER) {
                return Err(SendError::Full);
            }
            self.room -= 1;
        }
        let mut bytes = inline.to_vec();
        for segment in payload {
            for at in 0..segment.len {
                // SAFETY: the segment was just resolved from RAM that the test's node holds.
                bytes.push(unsafe { segment.base.add(at).read_volatile() });
            }
        }
        assert_eq!(bytes.len(), header.length as usize);
        self.sent.push_back(Sent {
            peer,
            header: *header,
            payload: bytes,
        });
        Ok(())
    }
    fn can_send(&self, _: PeerId) -> bool {
        self.up && !self.full && self.room > 0
    }
    fn is_up(&self, _: PeerId) -> bool {
        self.up
    }
    fn last_heard(&self, _: PeerId) -> Option<Instant> {
        self.heard
    }
    fn flush(&mut self) {}
    fn poll(&mut self, _: &mut dyn Sink) -> bool {
        false
    }
    fn forget_memory(&mut self) {
        self.forgotten += 1;
    }
    fn announce(&mut self, _: &[Gid]) {}
    fn route(&self, _: &Gid) -> Option<PeerId> {
        self.route
    }
    fn wait_fd(&self) -> RawFd {
        -1
    }
}

/// A send work request, as a process would post it.
#[derive(Clone, Debug, Default)]
pub(super) struct Post {
    pub wr_id: u64,
    pub opcode: u8,
    pub flags: u8,
    pub imm: [u8; 4],
    pub rkey: u32,
    pub remote_addr: u64,
    pub operands: [u64; 2],
    pub sges: Vec<(u64, u32, u32)>,
    pub inline: Vec<u8>,
}

/// A device, its RAM and its QPs.
pub(super) struct Node<F: Fabric = Script> {
    pub ram: Arc<FakeRam>,
    pub objects: Objects,
    pub engine: Engine,
    pub fabric: F,
    pub now: Instant,
    pd: u32,
    /// Key of [`DATA`], all access.
    pub key: u32,
    next_free: u64,
}

/// A QP as its process sees it.
#[derive(Clone, Debug)]
pub(super) struct Queue {
    pub qpn: u32,
    pub cqn: u32,
    base: u64,
    cq_base: u64,
    cq_entries: u32,
    sq_producer: u32,
    rq_producer: u32,
    consumer: u32,
}

impl Node {
    pub fn new() -> Self {
        Self::with_fabric(Script {
            up: true,
            full: false,
            room: usize::MAX,
            heard: None,
            route: Some(PEER),
            sent: VecDeque::new(),
            forgotten: 0,
        })
    }
}

impl<F: Fabric> Node<F> {
    pub fn with_fabric(fabric: F) -> Self {
        let ram = Arc::new(FakeRam::new(0x200_0000));
        let features = feature::ATOMICS;
        let mut objects = Objects::new(Limits::default(), features, ram.clone(), Arc::default());
        let pd = objects.create_pd(0).unwrap();
        let mut node = Node {
            key: 0,
            ram,
            engine: Engine::default(),
            fabric,
            now: Instant::now(),
            pd,
            next_free: 0x20_0000,
            objects,
        };
        node.key = node.register(DATA, DATA_LEN, access::ALL);
        node
    }

    /// One poll as the device makes it, at the real time. True if there was work.
    pub fn poll(&mut self) -> bool {
        self.now = Instant::now();
        let mut receiver = Receiver {
            engine: &mut self.engine,
            objects: &mut self.objects,
            now: self.now,
        };
        let came = self.fabric.poll(&mut receiver);
        let worked = self
            .engine
            .round(&mut self.objects, &mut self.fabric, self.now);
        self.fabric.flush();
        came | worked
    }

    /// A region whose addresses are those of guest RAM.
    pub fn register(&mut self, iova: u64, length: u64, rights: u32) -> u32 {
        let pages = length.div_ceil(4096);
        let request = RegionRequest {
            context: 0,
            pd: self.pd,
            access: rights,
            iova,
            length,
            offset: iova & 4095,
            page_shift: 12,
            extents: false,
            total_entries: pages as u32,
        };
        let key = self.objects.memory.register(&request).unwrap();
        let entries: Vec<RegionEntry> = (0..pages)
            .map(|page| RegionEntry {
                address: (iova & !4095) + page * 4096,
                length: 0,
            })
            .collect();
        let memory = &mut self.objects.memory;
        memory
            .append(&*self.ram, 0, key, &mut entries.into_iter())
            .unwrap();
        memory.commit(0, key).unwrap();
        key
    }

    fn map(&mut self, length: u64) -> (u64, RingMemory) {
        let base = self.next_free;
        self.next_free += length;
        let pages: Vec<u64> = (0..length / 4096).map(|page| base + page * 4096).collect();
        let buffer = RingBuffer {
            length,
            page_shift: 12,
            offset: 0,
        };
        let dma: &dyn DmaSpace = &*self.ram;
        (base, RingMemory::map(dma, buffer, &pages).unwrap())
    }

    /// A QP in INIT with a CQ of its own, of `entries`.
    pub fn queue_with(&mut self, entries: u32) -> Queue {
        let (cq_base, memory) = self.map(4096 + u64::from(CQ_ENTRIES) * CQE_SIZE);
        let cqn = self
            .objects
            .create_cq(CqRequest {
                context: 0,
                vector: 0,
                entries,
                memory,
                control: 0,
                ring: 4096,
            })
            .unwrap();
        let sq_bytes = u64::from(SQ_ENTRIES * SQ_STRIDE);
        let rq_bytes = u64::from(RQ_ENTRIES * RQ_STRIDE);
        let (base, memory) = self.map(4096 + sq_bytes + rq_bytes);
        let qpn = self
            .objects
            .create_qp(QpRequest {
                context: 0,
                pd: self.pd,
                kind: QpKind::Rc,
                send_cq: cqn,
                recv_cq: cqn,
                sq_sig_all: false,
                caps: QpCaps {
                    max_send_sge: 4,
                    max_recv_sge: 3,
                    max_inline: 128,
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

    /// Changes the QP's state as a command would.
    pub fn modify(&mut self, queue: &Queue, state: QpState) {
        let qp = self.objects.qps.get_mut(queue.qpn).unwrap();
        let old = std::mem::replace(&mut qp.state, state);
        self.engine
            .qp_state_changed(&mut self.objects, &self.fabric, queue.qpn, old);
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
            reserved: [0; 16],
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

    /// Rounds until there is no work.
    pub fn run(&mut self) {
        for _ in 0..10_000 {
            let worked = self
                .engine
                .round(&mut self.objects, &mut self.fabric, self.now);
            if !worked {
                return;
            }
        }
        panic!("the engine finds work without end");
    }

    /// Time passes, and rounds with it.
    pub fn pass(&mut self, time: Duration) {
        self.now += time;
        self.run();
    }

    /// Asks where the payload goes from `skip` on, and puts it there.
    pub fn begin_frame(
        &mut self,
        peer: PeerId,
        header: &FrameHeader,
        skip: u32,
        payload: &[u8],
    ) -> Placement {
        let mut into = Vec::new();
        let placement = self.receiver().place(peer, header, skip, &mut into);
        if placement == Placement::Into {
            let mut rest = &payload[skip as usize..];
            for segment in &into {
                let (now, later) = rest.split_at(segment.len);
                for (at, byte) in now.iter().enumerate() {
                    // SAFETY: the segment was just resolved from RAM that the node holds.
                    unsafe { segment.base.add(at).write_volatile(*byte) };
                }
                rest = later;
            }
            assert!(rest.is_empty(), "segments for less than the payload");
        } else {
            assert!(into.is_empty());
        }
        placement
    }

    pub fn receiver(&mut self) -> Receiver<'_> {
        Receiver {
            engine: &mut self.engine,
            objects: &mut self.objects,
            now: self.now,
        }
    }

    /// The asynchronous events that were raised since.
    pub fn events(&mut self) -> Vec<(EventKind, u32)> {
        struct Collect(Vec<(EventKind, u32)>);
        impl EventSink for Collect {
            fn asynchronous(&mut self, event: AsyncEvent) -> bool {
                self.0.push((event.kind, event.handle));
                true
            }
            fn completion(&mut self, _: u16, _: u32, _: u32) -> bool {
                true
            }
        }
        let mut collect = Collect(Vec::new());
        self.objects.events.deliver(&mut collect);
        collect.0
    }

    pub fn bytes(&self, at: u64, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        self.ram.read(at, &mut out);
        out
    }
}

impl Node {
    /// The frames that were sent since.
    pub fn sent(&mut self) -> Vec<Sent> {
        self.run();
        self.fabric.sent.drain(..).collect()
    }

    /// Kinds and numbers of the frames that were sent since.
    pub fn sent_kinds(&mut self) -> Vec<(u8, u32)> {
        let sent = self.sent();
        sent.iter().map(|s| (s.header.kind, s.header.seq)).collect()
    }

    /// A frame comes; then the engine has its rounds.
    pub fn take(&mut self, header: FrameHeader, payload: &[u8]) -> Placement {
        let placement = self.take_from(PEER, header, payload);
        self.run();
        placement
    }

    /// A frame comes from a peer. Without rounds.
    pub fn take_from(&mut self, peer: PeerId, header: FrameHeader, payload: &[u8]) -> Placement {
        assert_eq!(payload.len(), header.length as usize);
        self.fabric.heard = Some(self.now);
        if matches!(header.kind, kind::ATOMIC | kind::ATOMIC_DATA) {
            self.receiver()
                .frame(peer, &header, Placement::Into, payload);
            return Placement::Into;
        }
        let placement = self.begin_frame(peer, &header, 0, payload);
        self.receiver().frame(peer, &header, placement, &[]);
        placement
    }

    pub fn link_down(&mut self) {
        self.fabric.up = false;
        self.receiver().peer_down(PEER);
    }

    pub fn link_up(&mut self) {
        self.fabric.up = true;
        self.receiver().peer_up(PEER);
    }
}

/// A frame from the peer's QP to ours.
pub(super) fn from_peer(queue: &Queue, kind: u8, seq: u32) -> FrameHeader {
    FrameHeader {
        kind,
        flags: flag::LAST,
        dst_qpn: queue.qpn,
        src_qpn: PEER_QPN,
        seq,
        ..FrameHeader::default()
    }
}

/// The peer says that it has placed all before `seq`.
pub(super) fn ack(queue: &Queue, seq: u32) -> FrameHeader {
    FrameHeader {
        flags: 0,
        ..from_peer(queue, kind::ACK, seq)
    }
}

/// The peer refuses `seq`.
pub(super) fn refusal(queue: &Queue, seq: u32, code: u32, aux: u32) -> FrameHeader {
    FrameHeader {
        flags: 0,
        rkey: code,
        aux,
        ..from_peer(queue, kind::NAK, seq)
    }
}

/// A signalled WRITE of `length` bytes from [`DATA`].
pub(super) fn write<F: Fabric>(node: &Node<F>, wr_id: u64, length: u32) -> Post {
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
pub(super) fn read<F: Fabric>(node: &Node<F>, wr_id: u64, length: u32) -> Post {
    Post {
        opcode: send_opcode::READ,
        ..write(node, wr_id, length)
    }
}

/// Bytes that are all different from their neighbours.
pub(super) fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|i| (i * 7 + i / 256) as u8).collect()
}
