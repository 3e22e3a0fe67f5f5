//! Commands as a driver sends them, against a whole device on a loopback fabric.

use std::sync::{Arc, Mutex};

use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::rdma::events::{AsyncEvent, EventKind, EventSink};
use crate::rdma::fabric::loopback::LoopbackFabric;
use crate::rdma::objects::QpState;
use crate::rdma::test_utils::{FakeRam, Random};
use crate::rdma::wire::*;
use crate::rdma::{DeviceConfig, Limits, RdmaDevice};

const PAGE: u64 = 0x1000;
const RAM: u64 = 0x10_0000;

/// What a case changes in a good body.
type Change<'a, T> = &'a dyn Fn(&mut T);

#[derive(Default)]
struct Seen {
    events: Vec<AsyncEvent>,
    open: Vec<u32>,
    refuse_doorbells: bool,
}

struct Sink(Arc<Mutex<Seen>>);

impl EventSink for Sink {
    fn asynchronous(&mut self, event: AsyncEvent) -> bool {
        self.0.lock().unwrap().events.push(event);
        true
    }
    fn completion(&mut self, _: u16, _: u32, _: u32) -> bool {
        true
    }
    fn open_doorbell(&mut self, page: u32) -> bool {
        let mut seen = self.0.lock().unwrap();
        if !seen.refuse_doorbells {
            seen.open.push(page);
        }
        !seen.refuse_doorbells
    }
    fn close_doorbell(&mut self, page: u32) {
        self.0.lock().unwrap().open.retain(|open| *open != page);
    }
}

struct Rig {
    ram: Arc<FakeRam>,
    device: RdmaDevice,
    seen: Arc<Mutex<Seen>>,
}

fn small() -> Limits {
    Limits {
        contexts: 3,
        pds: 4,
        mrs: 4,
        cqs: 4,
        cqe: 64,
        qps: 4,
        send_wr: 16,
        recv_wr: 16,
        gids: 4,
        cmd_bytes: 4096,
        ..Limits::default()
    }
}

impl Rig {
    fn new() -> Self {
        Self::with(small(), DeviceConfig::FEATURES)
    }

    fn with(limits: Limits, features: u64) -> Self {
        let ram = Arc::new(FakeRam::new(RAM as usize));
        let seen = Arc::<Mutex<Seen>>::default();
        let config = DeviceConfig {
            mac: [2, 0, 0, 0, 0, 1],
            num_vectors: 2,
            limits,
            features,
        };
        let fabric = Box::new(LoopbackFabric::new().unwrap());
        let device = RdmaDevice::new(config, ram.clone(), fabric, Box::new(Sink(seen.clone())));
        Rig { ram, device, seen }
    }

    /// Sends a command. Returns its reply's body, or its status.
    fn ask(&mut self, context: u32, opcode: u16, body: &[u8]) -> Result<Vec<u8>, u32> {
        let header = CommandHeader {
            opcode: Le16::new(opcode),
            length: Le32::new(24 + body.len() as u32),
            context: Le32::new(context),
            cookie: Le64::new(77),
            ..CommandHeader::default()
        };
        let mut reply = Vec::new();
        let request = [header.as_bytes(), body].concat();
        self.device.command(&request, &mut reply, 4096);
        let (header, body) = ReplyHeader::read_from_prefix(&reply).unwrap();
        assert_eq!(
            (header.length.get() as usize, header.cookie.get()),
            (reply.len(), 77)
        );
        match header.status.get() {
            0 => Ok(body.to_vec()),
            status => {
                assert!(body.is_empty());
                Err(status)
            }
        }
    }

    fn ask_handle(&mut self, context: u32, opcode: u16, body: &[u8]) -> Result<u32, u32> {
        let reply = self.ask(context, opcode, body)?;
        Ok(u32::from_le_bytes(reply[..4].try_into().unwrap()))
    }

    fn on(&mut self, context: u32, opcode: u16, handle: u32) -> Result<(), u32> {
        let body = HandleBody {
            handle: Le32::new(handle),
            ..HandleBody::default()
        };
        self.ask(context, opcode, body.as_bytes()).map(|_| ())
    }

    fn context(&mut self) -> u32 {
        self.ask_handle(0, opcode::CREATE_CONTEXT, &[]).unwrap()
    }

    fn pd(&mut self, context: u32) -> u32 {
        self.ask_handle(context, opcode::CREATE_PD, &[]).unwrap()
    }

    fn cq(&mut self, context: u32) -> u32 {
        self.ask_handle(context, opcode::CREATE_CQ, &cq_body(|_| ()))
            .unwrap()
    }

    fn mr(&mut self, context: u32, pd: u32) -> u32 {
        self.ask_handle(context, opcode::REG_MR, &mr_body(pd, &[0x8000], |_| ()))
            .unwrap()
    }

    fn qp(&mut self, context: u32, pd: u32, cq: u32) -> u32 {
        let body = qp_body(pd, cq, |_| ());
        self.ask_handle(context, opcode::CREATE_QP, &body).unwrap()
    }

    fn modify(
        &mut self,
        qpn: u32,
        mask: u32,
        change: impl FnOnce(&mut QpAttributesBody),
    ) -> Result<(), u32> {
        let mut body = QpAttributesBody {
            qpn: Le32::new(qpn),
            mask: Le32::new(mask),
            port: 1,
            path_mtu: 5,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            max_rd_atomic: 1,
            max_dest_rd_atomic: 1,
            ..QpAttributesBody::default()
        };
        change(&mut body);
        self.ask(0, opcode::MODIFY_QP, body.as_bytes()).map(|_| ())
    }

    fn query(&mut self, qpn: u32) -> QpAttributesBody {
        let body = HandleBody {
            handle: Le32::new(qpn),
            ..HandleBody::default()
        };
        let reply = self.ask(0, opcode::QUERY_QP, body.as_bytes()).unwrap();
        QpAttributesBody::read_from_bytes(&reply).unwrap()
    }

    fn add_gid(&mut self, index: u32) -> Result<(), u32> {
        let body = AddGidBody {
            index: Le32::new(index),
            kind: GID_TYPE_ROCE_V2,
            vlan: Le16::new(VLAN_NONE),
            gid: [0xfe; 16],
            ..AddGidBody::default()
        };
        self.ask(0, opcode::ADD_GID, body.as_bytes()).map(|_| ())
    }

    /// Objects of each kind: contexts, CQs, QPs, regions.
    fn counts(&self) -> [u32; 4] {
        let o = self.device.objects();
        [o.contexts.len(), o.cqs.len(), o.qps.len(), o.memory.len()]
    }
}

fn with_pages(head: &[u8], pages: &[u64]) -> Vec<u8> {
    let mut body = head.to_vec();
    for page in pages {
        body.extend_from_slice(&page.to_le_bytes());
    }
    body
}

/// A CQ of 16 entries in a page.
fn cq_body(change: impl FnOnce(&mut CreateCqBody)) -> Vec<u8> {
    let mut head = CreateCqBody {
        entries: Le32::new(16),
        buf_length: Le64::new(PAGE),
        page_shift: Le32::new(12),
        num_pages: Le32::new(1),
        ctrl_offset: Le64::new(0x800),
        ..CreateCqBody::default()
    };
    change(&mut head);
    with_pages(head.as_bytes(), &[0x1000])
}

/// A QP of 16 sends and 16 receives in three pages.
fn qp_body(pd: u32, cq: u32, change: impl FnOnce(&mut CreateQpBody)) -> Vec<u8> {
    let mut head = CreateQpBody {
        pd: Le32::new(pd),
        kind: Le32::new(qp_type::RC),
        send_cq: Le32::new(cq),
        recv_cq: Le32::new(cq),
        sq_entries: Le32::new(16),
        sq_stride: Le32::new(256),
        rq_entries: Le32::new(16),
        rq_stride: Le32::new(64),
        max_send_sge: Le32::new(12),
        max_recv_sge: Le32::new(3),
        max_inline: Le32::new(192),
        buf_length: Le64::new(3 * PAGE),
        page_shift: Le32::new(12),
        num_pages: Le32::new(3),
        ctrl_offset: Le64::new(0x2000),
        sq_offset: Le64::new(0),
        rq_offset: Le64::new(0x1000),
        ..CreateQpBody::default()
    };
    change(&mut head);
    with_pages(head.as_bytes(), &[0x2000, 0x3000, 0x4000])
}

fn mr_body(pd: u32, pages: &[u64], change: impl FnOnce(&mut RegMrBody)) -> Vec<u8> {
    let count = pages.len() as u32;
    let mut head = RegMrBody {
        pd: Le32::new(pd),
        access: Le32::new(access::LOCAL_WRITE),
        iova: Le64::new(0x5000),
        length: Le64::new(u64::from(count) * PAGE),
        page_shift: 12,
        total_entries: Le32::new(count),
        num_entries: Le32::new(count),
        ..RegMrBody::default()
    };
    change(&mut head);
    with_pages(head.as_bytes(), pages)
}

const UNSUPPORTED: Result<u32, u32> = Err(Status::Unsupported as u32);
const INVALID: u32 = Status::Invalid as u32;
const DENIED: u32 = Status::Denied as u32;
const NOT_FOUND: u32 = Status::NotFound as u32;
const BUSY: u32 = Status::Busy as u32;
const BAD_STATE: u32 = Status::BadState as u32;
const BAD_ADDRESS: u32 = Status::BadAddress as u32;
const NO_RESOURCE: u32 = Status::NoResource as u32;
const EXISTS: u32 = Status::Exists as u32;
const IN_PROGRESS: u32 = Status::InProgress as u32;

#[test]
fn the_device_says_what_its_limits_are() {
    let mut rig = Rig::with(Limits::default(), DeviceConfig::FEATURES);
    let reply = rig.ask(0, opcode::QUERY_DEVICE, &[]).unwrap();
    let d = DeviceReply::read_from_bytes(&reply).unwrap();
    assert_eq!(d.node_guid, [0, 0, 0, 0xff, 0xfe, 0, 0, 1]);
    assert!(d.max_qp.get() >= 1024 && d.max_cq.get() >= 1024);
    assert!(d.max_send_wr.get() >= 4096 && d.max_cqe.get() >= 65_536);
    assert!(d.max_send_sge.get() >= 16 && d.max_mr.get() >= 16_384);
    assert_eq!(d.max_msg_size.get(), 1 << 31);
    let port = rig
        .ask(0, opcode::QUERY_PORT, &1_u32.to_le_bytes())
        .unwrap();
    assert_eq!(port[..3], [4, 5, 5]);
    assert_eq!(
        rig.ask(0, opcode::QUERY_PORT, &2_u32.to_le_bytes()),
        Err(INVALID)
    );
}

#[test]
fn unknown_commands_and_wrong_headers_are_refused() {
    let mut rig = Rig::new();
    for opcode in [0, 4, 0x44, 0x52, 0x70, 0xffff] {
        assert_eq!(rig.ask_handle(0, opcode, &[]), UNSUPPORTED);
    }
    assert_eq!(rig.ask(0, opcode::CREATE_PD, &[0; 4]), Err(INVALID));
    assert_eq!(rig.ask(99, opcode::CREATE_PD, &[]), Err(NOT_FOUND));
    let good = CommandHeader {
        opcode: Le16::new(opcode::CREATE_PD),
        length: Le32::new(24),
        ..CommandHeader::default()
    };
    let mut reply = Vec::new();
    for bad in [
        CommandHeader {
            length: Le32::new(23),
            ..good
        },
        CommandHeader {
            length: Le32::new(25),
            ..good
        },
        CommandHeader {
            length: Le32::new(u32::MAX),
            ..good
        },
        CommandHeader {
            reserved0: Le16::new(1),
            ..good
        },
        CommandHeader {
            reserved1: Le32::new(1),
            ..good
        },
    ] {
        rig.device.command(bad.as_bytes(), &mut reply, 64);
        assert_eq!((reply[0], reply.len()), (INVALID as u8, 16));
    }
    rig.device.command(&[1, 2, 3], &mut reply, 64);
    assert_eq!((reply[0], reply.len()), (INVALID as u8, 16));
}

#[test]
fn a_command_whose_reply_has_no_room_is_not_carried_out() {
    let mut rig = Rig::new();
    let header = CommandHeader {
        opcode: Le16::new(opcode::CREATE_CONTEXT),
        length: Le32::new(24),
        ..CommandHeader::default()
    };
    let mut reply = Vec::new();
    for (room, length) in [(0, 0), (15, 0), (16, 16), (23, 16), (24, 24)] {
        rig.device.command(header.as_bytes(), &mut reply, room);
        assert_eq!(reply.len(), length);
        assert_eq!(rig.counts()[0], u32::from(room == 24));
    }
}

#[test]
fn only_the_kernel_makes_contexts_and_fills_gids() {
    let mut rig = Rig::new();
    let user = rig.context();
    assert_eq!(rig.ask(user, opcode::CREATE_CONTEXT, &[]), Err(DENIED));
    assert_eq!(rig.on(user, opcode::DESTROY_CONTEXT, user), Err(DENIED));
    assert_eq!(rig.ask(user, opcode::ADD_GID, &[0; 32]), Err(DENIED));
    assert_eq!(rig.on(user, opcode::DEL_GID, 0), Err(DENIED));
    assert_eq!(rig.on(0, opcode::DESTROY_CONTEXT, 0), Err(INVALID));
    assert_eq!(rig.on(0, opcode::DESTROY_CONTEXT, user + 1), Err(NOT_FOUND));
}

#[test]
fn contexts_have_pages_of_their_own_within_the_limit() {
    let mut rig = Rig::new();
    let contexts: Vec<u32> = (0..3).map(|_| rig.context()).collect();
    assert_eq!(rig.seen.lock().unwrap().open, [1, 2, 3]);
    assert_eq!(rig.ask(0, opcode::CREATE_CONTEXT, &[]), Err(NO_RESOURCE));
    rig.on(0, opcode::DESTROY_CONTEXT, contexts[1]).unwrap();
    assert_eq!(rig.seen.lock().unwrap().open, [1, 3]);
    let again = rig.context();
    assert_ne!(again, contexts[1]);
    rig.on(0, opcode::DESTROY_CONTEXT, again).unwrap();
    rig.seen.lock().unwrap().refuse_doorbells = true;
    assert_eq!(rig.ask(0, opcode::CREATE_CONTEXT, &[]), Err(NO_RESOURCE));
    assert_eq!(rig.counts()[0], 2);
}

#[test]
fn references_across_owners_are_denied() {
    let mut rig = Rig::new();
    let (a, b) = (rig.context(), rig.context());
    let (pd, cq) = (rig.pd(a), rig.cq(a));
    let (own_pd, own_cq) = (rig.pd(b), rig.cq(b));
    let (mr, qp) = (rig.mr(a, pd), rig.qp(a, pd, cq));
    for other in [b, 0] {
        assert_eq!(rig.on(other, opcode::DESTROY_PD, pd), Err(DENIED));
        assert_eq!(rig.on(other, opcode::DESTROY_CQ, cq), Err(DENIED));
        assert_eq!(rig.on(other, opcode::DESTROY_QP, qp), Err(DENIED));
        assert_eq!(rig.on(other, opcode::QUERY_QP, qp), Err(DENIED));
        assert_eq!(rig.on(other, opcode::DEREG_MR, mr), Err(DENIED));
        assert_eq!(rig.on(other, opcode::MR_COMMIT, mr), Err(DENIED));
        assert_eq!(rig.modify(qp, 1, |_| ()), Err(DENIED));
        let body = mr_body(pd, &[0x8000], |_| ());
        assert_eq!(rig.ask(other, opcode::REG_MR, &body), Err(DENIED));
    }
    for body in [qp_body(pd, own_cq, |_| ()), qp_body(own_pd, cq, |_| ())] {
        assert_eq!(rig.ask(b, opcode::CREATE_QP, &body), Err(DENIED));
    }
    assert_eq!(rig.counts(), [2, 2, 1, 1]);
}

#[test]
fn what_is_referred_to_is_busy() {
    let mut rig = Rig::new();
    let (pd, cq) = (rig.pd(0), rig.cq(0));
    let mr = rig.mr(0, pd);
    assert_eq!(rig.on(0, opcode::DESTROY_PD, pd), Err(BUSY));
    let qp = rig.qp(0, pd, cq);
    rig.on(0, opcode::DEREG_MR, mr).unwrap();
    assert_eq!(rig.on(0, opcode::DESTROY_PD, pd), Err(BUSY));
    assert_eq!(rig.on(0, opcode::DESTROY_CQ, cq), Err(BUSY));
    rig.on(0, opcode::DESTROY_QP, qp).unwrap();
    assert_eq!(rig.on(0, opcode::DESTROY_QP, qp), Err(NOT_FOUND));
    rig.on(0, opcode::DESTROY_CQ, cq).unwrap();
    rig.on(0, opcode::DESTROY_PD, pd).unwrap();
    assert_eq!(rig.on(0, opcode::DESTROY_PD, pd), Err(NOT_FOUND));
}

#[test]
fn a_failed_registration_leaves_nothing_behind() {
    let mut rig = Rig::new();
    let pd = rig.pd(0);
    let reg = |rig: &mut Rig, pages: &[u64], change: &dyn Fn(&mut RegMrBody)| {
        rig.ask(0, opcode::REG_MR, &mr_body(pd, pages, change))
            .err()
    };
    assert_eq!(reg(&mut rig, &[0x8000, RAM], &|_| ()), Some(BAD_ADDRESS));
    assert_eq!(reg(&mut rig, &[0x8010], &|_| ()), Some(BAD_ADDRESS));
    assert_eq!(
        reg(&mut rig, &[0x8000], &|m| m.num_entries = Le32::new(2)),
        Some(INVALID)
    );
    assert_eq!(
        reg(&mut rig, &[0x8000], &|m| m.num_entries = Le32::new(0)),
        Some(INVALID)
    );
    assert_eq!(
        reg(&mut rig, &[0x8000], &|m| m.total_entries = Le32::new(9)),
        Some(INVALID)
    );
    assert_eq!(
        reg(&mut rig, &[0x8000], &|m| m.length = Le64::new(PAGE + 1)),
        Some(INVALID)
    );
    assert_eq!(reg(&mut rig, &[0x8000], &|m| m.flags = 4), Some(INVALID));
    assert_eq!(
        reg(&mut rig, &[0x8000], &|m| m.flags = mr_flag::EXTENTS),
        Some(INVALID)
    );
    assert_eq!(
        reg(&mut rig, &[0x8000], &|m| m.reserved1 = Le32::new(1)),
        Some(INVALID)
    );
    assert_eq!(
        reg(&mut rig, &[0x8000], &|m| m.access = Le32::new(32)),
        Some(INVALID)
    );
    assert_eq!(
        reg(&mut rig, &[0x8000], &|m| m.pd = Le32::new(99)),
        Some(NOT_FOUND)
    );
    assert_eq!(rig.ask(0, opcode::REG_MR, &[0; 47]), Err(INVALID));
    assert_eq!(rig.counts()[3], 0);
    rig.on(0, opcode::DESTROY_PD, pd).unwrap();
}

#[test]
fn a_list_in_parts_is_appended_and_committed() {
    let mut rig = Rig::new();
    let pd = rig.pd(0);
    let body = mr_body(pd, &[0x8000], |m| {
        m.flags = mr_flag::MORE;
        m.total_entries = Le32::new(3);
        m.length = Le64::new(3 * PAGE);
    });
    let key = rig.ask_handle(0, opcode::REG_MR, &body).unwrap();
    assert_eq!(rig.on(0, opcode::MR_COMMIT, key), Err(IN_PROGRESS));
    let part = |count: u32, pages: &[u64]| {
        let head = MrAppendBody {
            lkey: Le32::new(key),
            num_entries: Le32::new(count),
        };
        with_pages(head.as_bytes(), pages)
    };
    let (two, three) = (&[0x9000, 0xb000][..], &[0x9000, 0xa000, 0xb000][..]);
    assert_eq!(rig.ask(0, opcode::MR_APPEND, &part(1, two)), Err(INVALID));
    assert_eq!(rig.ask(0, opcode::MR_APPEND, &part(3, three)), Err(INVALID));
    assert_eq!(rig.ask(0, opcode::MR_APPEND, &[0; 7]), Err(INVALID));
    assert_eq!(rig.ask(0, opcode::MR_APPEND, &part(2, two)), Ok(vec![]));
    rig.on(0, opcode::MR_COMMIT, key).unwrap();
    assert_eq!(rig.on(0, opcode::MR_COMMIT, key), Err(BAD_STATE));
    let memory = &rig.device.objects().memory;
    assert_eq!(memory.check(key, pd, 0, 0, 0x5000, 3 * PAGE), Ok(()));
    rig.on(0, opcode::DEREG_MR, key).unwrap();
    assert_eq!(rig.on(0, opcode::DEREG_MR, key), Err(NOT_FOUND));
}

#[test]
fn completion_queues_that_cannot_be_are_refused() {
    let mut rig = Rig::new();
    let cases: [(Change<'_, CreateCqBody>, u32); 12] = [
        (&|c| c.entries = Le32::new(0), INVALID),
        (&|c| c.entries = Le32::new(12), INVALID),
        (&|c| c.entries = Le32::new(128), INVALID),
        (&|c| c.vector = Le32::new(2), INVALID),
        (&|c| c.vector = Le32::new(65_536), INVALID),
        (&|c| c.num_pages = Le32::new(2), INVALID),
        (&|c| c.buf_length = Le64::new(2 * PAGE), INVALID),
        (&|c| c.ctrl_offset = Le64::new(0x820), INVALID),
        (&|c| c.ctrl_offset = Le64::new(0x3c0), INVALID),
        (&|c| c.ctrl_offset = Le64::new(u64::MAX - 63), INVALID),
        (&|c| c.ring_offset = Le64::new(0xc40), INVALID),
        (&|c| c.ring_offset = Le64::new(0x440), INVALID),
    ];
    for (i, (change, want)) in cases.into_iter().enumerate() {
        let body = cq_body(change);
        assert_eq!(rig.ask(0, opcode::CREATE_CQ, &body), Err(want), "case {i}");
    }
    let mut outside = cq_body(|_| ());
    outside[48..].copy_from_slice(&RAM.to_le_bytes());
    assert_eq!(rig.ask(0, opcode::CREATE_CQ, &outside), Err(BAD_ADDRESS));
    for entries in [1, 16] {
        let body = cq_body(|c| c.entries = Le32::new(entries));
        assert!(rig.ask(0, opcode::CREATE_CQ, &body).is_ok());
    }
    for _ in 0..2 {
        rig.cq(0);
    }
    let fifth = rig.ask(0, opcode::CREATE_CQ, &cq_body(|_| ()));
    assert_eq!(fifth, Err(NO_RESOURCE));
}

#[test]
fn queue_pairs_that_cannot_be_are_refused() {
    let mut rig = Rig::new();
    let (pd, cq) = (rig.pd(0), rig.cq(0));
    let unsupported = Status::Unsupported as u32;
    let cases: [(Change<'_, CreateQpBody>, u32); 25] = [
        (&|q| q.kind = Le32::new(qp_type::UD), unsupported),
        (&|q| q.kind = Le32::new(5), INVALID),
        (&|q| q.srq = Le32::new(1), unsupported),
        (&|q| q.xrcd = Le32::new(1), unsupported),
        (&|q| q.flags = Le32::new(2), INVALID),
        (&|q| q.pd = Le32::new(99), NOT_FOUND),
        (&|q| q.send_cq = Le32::new(99), NOT_FOUND),
        (&|q| q.recv_cq = Le32::new(0), NOT_FOUND),
        (&|q| q.sq_entries = Le32::new(12), INVALID),
        (&|q| q.sq_entries = Le32::new(32), INVALID),
        (&|q| q.rq_entries = Le32::new(1 << 31), INVALID),
        (&|q| q.sq_stride = Le32::new(32), INVALID),
        (&|q| q.sq_stride = Le32::new(2048), INVALID),
        (&|q| q.sq_stride = Le32::new(0), INVALID),
        (&|q| q.rq_stride = Le32::new(2048), INVALID),
        (&|q| q.max_send_sge = Le32::new(13), INVALID),
        (&|q| q.max_send_sge = Le32::new(u32::MAX), INVALID),
        (&|q| q.max_recv_sge = Le32::new(4), INVALID),
        (&|q| q.max_inline = Le32::new(193), INVALID),
        (&|q| q.sq_offset = Le64::new(0x80), INVALID),
        (&|q| q.rq_offset = Le64::new(0xc00), INVALID),
        (&|q| q.rq_offset = Le64::new(0x2c80), INVALID),
        (&|q| q.ctrl_offset = Le64::new(0x2f40), INVALID),
        (&|q| q.ctrl_offset = Le64::new(!63), INVALID),
        (&|q| q.buf_offset = Le64::new(0x800), INVALID),
    ];
    for (i, (change, want)) in cases.into_iter().enumerate() {
        let body = qp_body(pd, cq, change);
        assert_eq!(rig.ask(0, opcode::CREATE_QP, &body), Err(want), "case {i}");
    }
    assert_eq!(rig.counts()[2], 0);
    let none = qp_body(pd, cq, |q| {
        q.sq_entries = Le32::new(0);
        q.rq_entries = Le32::new(0);
    });
    assert!(rig.ask(0, opcode::CREATE_QP, &none).is_ok());
    let qpn = rig.qp(0, pd, cq);
    assert!((2..1 << 24).contains(&qpn));
    assert_eq!(rig.query(qpn).state, QpState::Reset as u8);
}

const TO_INIT: u32 = qp_mask::STATE | qp_mask::PKEY_INDEX | qp_mask::PORT | qp_mask::ACCESS;
const TO_RTR: u32 = qp_mask::STATE
    | qp_mask::AV
    | qp_mask::PATH_MTU
    | qp_mask::DEST_QPN
    | qp_mask::RQ_PSN
    | qp_mask::MAX_DEST_RD_ATOMIC
    | qp_mask::MIN_RNR_TIMER;
const TO_RTS: u32 = qp_mask::STATE
    | qp_mask::TIMEOUT
    | qp_mask::RETRY_CNT
    | qp_mask::RNR_RETRY
    | qp_mask::SQ_PSN
    | qp_mask::MAX_QP_RD_ATOMIC;

#[test]
fn a_queue_pair_goes_through_its_states_and_keeps_its_attributes() {
    let mut rig = Rig::new();
    let (pd, cq) = (rig.pd(0), rig.cq(0));
    let qpn = rig.qp(0, pd, cq);
    rig.add_gid(1).unwrap();
    rig.modify(qpn, TO_INIT, |a| {
        a.state = 1;
        a.access = Le32::new(access::REMOTE_READ);
    })
    .unwrap();
    rig.modify(qpn, TO_RTR, |a| {
        a.state = 2;
        a.sgid_index = 1;
        a.dgid = [7; 16];
        a.dest_qpn = Le32::new(5);
        a.rq_psn = Le32::new(0x1ff_ffff);
    })
    .unwrap();
    rig.modify(qpn, TO_RTS, |a| {
        a.state = 3;
        a.sq_psn = Le32::new(9);
    })
    .unwrap();
    let now = rig.query(qpn);
    assert_eq!((now.state, now.mask.get()), (3, qp_mask::ALL));
    assert_eq!((now.dest_qpn.get(), now.dgid), (5, [7; 16]));
    assert_eq!((now.rq_psn.get(), now.sq_psn.get()), (0xff_ffff, 9));
    assert_eq!((now.timeout, now.min_rnr_timer), (14, 12));
    rig.modify(qpn, 1, |a| a.state = 0).unwrap();
    let reset = rig.query(qpn);
    assert_eq!((reset.state, reset.dest_qpn.get()), (0, 0));
}

#[test]
fn a_refused_modify_changes_nothing() {
    let mut rig = Rig::new();
    let (pd, cq) = (rig.pd(0), rig.cq(0));
    let qpn = rig.qp(0, pd, cq);
    rig.add_gid(1).unwrap();
    rig.modify(qpn, TO_INIT, |a| a.state = 1).unwrap();
    let before = rig.query(qpn);
    let cases: [(u32, Change<'_, QpAttributesBody>, u32); 18] = [
        (TO_RTR & !qp_mask::AV, &|_| (), INVALID),
        (TO_RTR | qp_mask::TIMEOUT, &|_| (), INVALID),
        (TO_RTR | 0x4000, &|_| (), INVALID),
        (TO_RTR | qp_mask::CUR_STATE, &|a| a.cur_state = 1, INVALID),
        (TO_RTR | qp_mask::CUR_STATE, &|a| a.cur_state = 3, BAD_STATE),
        (TO_RTR, &|a| a.state = 3, BAD_STATE),
        (TO_RTR, &|a| a.state = 7, INVALID),
        (TO_RTR, &|a| a.sgid_index = 0, INVALID),
        (TO_RTR, &|a| a.sgid_index = 255, INVALID),
        (TO_RTR, &|a| a.path_mtu = 0, INVALID),
        (TO_RTR, &|a| a.path_mtu = 6, INVALID),
        (TO_RTR, &|a| a.dest_qpn = Le32::new(1 << 24), INVALID),
        (TO_RTR, &|a| a.min_rnr_timer = 32, INVALID),
        (TO_RTR, &|a| a.max_dest_rd_atomic = 17, INVALID),
        (TO_RTR, &|a| a.sl = 16, INVALID),
        (TO_RTR, &|a| a.flow_label = Le32::new(1 << 20), INVALID),
        (TO_RTR, &|a| a.sq_draining = 1, INVALID),
        (TO_RTR, &|a| a.qpn = Le32::new(1), NOT_FOUND),
    ];
    for (i, (mask, change, want)) in cases.into_iter().enumerate() {
        let result = rig.modify(qpn, mask, |a| {
            a.state = 2;
            a.sgid_index = 1;
            change(a);
        });
        assert_eq!(result, Err(want), "case {i}");
        assert_eq!(rig.query(qpn), before, "case {i}");
    }
}

#[test]
fn the_end_of_a_context_ends_all_that_it_owned() {
    let mut rig = Rig::new();
    let (keep, end) = (rig.context(), rig.context());
    for context in [keep, end] {
        let (pd, cq) = (rig.pd(context), rig.cq(context));
        rig.mr(context, pd);
        rig.qp(context, pd, cq);
    }
    rig.on(0, opcode::DESTROY_CONTEXT, end).unwrap();
    assert_eq!(rig.counts(), [1, 1, 1, 1]);
    assert_eq!(rig.ask(end, opcode::CREATE_PD, &[]), Err(NOT_FOUND));
    rig.on(0, opcode::DESTROY_CONTEXT, keep).unwrap();
    assert_eq!(rig.counts(), [0; 4]);
    assert_eq!(rig.device.stats().snapshot().qps.len(), 0);
    // All limits are free again, PDs among them.
    for _ in 0..4 {
        rig.pd(0);
    }
}

#[test]
fn queues_and_regions_share_what_may_be_registered() {
    let limits = Limits {
        mr_entries: 4,
        ..small()
    };
    let mut rig = Rig::with(limits, DeviceConfig::FEATURES);
    let (pd, cq) = (rig.pd(0), rig.cq(0));
    let qp = rig.qp(0, pd, cq);
    let region = mr_body(pd, &[0x8000], |_| ());
    let another_cq = cq_body(|_| ());
    let another_qp = qp_body(pd, cq, |_| ());
    for (opcode, body) in [
        (opcode::REG_MR, &region),
        (opcode::CREATE_CQ, &another_cq),
        (opcode::CREATE_QP, &another_qp),
    ] {
        assert_eq!(rig.ask(0, opcode, body), Err(NO_RESOURCE));
    }
    rig.on(0, opcode::DESTROY_QP, qp).unwrap();
    rig.mr(0, pd);
    assert_eq!(rig.ask(0, opcode::CREATE_QP, &another_qp), Err(NO_RESOURCE));
    rig.on(0, opcode::DESTROY_CQ, cq).unwrap();
    for _ in 0..3 {
        rig.cq(0);
    }
    assert_eq!(rig.ask(0, opcode::CREATE_CQ, &another_cq), Err(NO_RESOURCE));
}

#[test]
fn gid_slots_are_filled_once() {
    let mut rig = Rig::new();
    assert_eq!(rig.add_gid(4), Err(INVALID));
    rig.add_gid(2).unwrap();
    assert_eq!(rig.add_gid(2), Err(EXISTS));
    rig.on(0, opcode::DEL_GID, 2).unwrap();
    assert_eq!(rig.on(0, opcode::DEL_GID, 2), Err(NOT_FOUND));
}

#[test]
fn an_overflow_fails_the_queue_pairs_of_the_cq_and_no_others() {
    let mut rig = Rig::new();
    let (pd, cq, other) = (rig.pd(0), rig.cq(0), rig.cq(0));
    let bound = rig.qp(0, pd, cq);
    let free = rig.qp(0, pd, other);
    for qpn in [bound, free] {
        rig.modify(qpn, TO_INIT, |a| a.state = 1).unwrap();
    }
    // The ring has 16 entries; flushed receives do not fit. Both queues lie in the same pages, so both have receives posted.
    rig.ram.write32(0x4040, 16);
    rig.modify(bound, 1, |a| a.state = 6).unwrap();
    while rig.device.poll() {}
    assert!(!rig.device.objects().cqs.has_failed(cq));
    rig.ram.write32(0x4040, 32);
    rig.device.doorbell(0);
    while rig.device.poll() {}
    assert!(rig.device.objects().cqs.has_failed(cq));
    assert_eq!(rig.query(free).state, QpState::Init as u8);
    let events = std::mem::take(&mut rig.seen.lock().unwrap().events);
    let kinds: Vec<_> = events.iter().map(|e| (e.kind, e.handle)).collect();
    assert_eq!(kinds, [(EventKind::CqErr, cq), (EventKind::QpFatal, bound)]);
}

#[test]
fn a_reset_drops_everything() {
    let mut rig = Rig::new();
    let user = rig.context();
    let (pd, cq) = (rig.pd(user), rig.cq(user));
    rig.mr(user, pd);
    rig.qp(user, pd, cq);
    rig.add_gid(0).unwrap();
    rig.device.reset();
    assert_eq!(rig.counts(), [0; 4]);
    assert!(rig.seen.lock().unwrap().open.is_empty());
    rig.add_gid(0).unwrap();
}

#[test]
fn no_bytes_of_a_command_panic_or_leave_the_ram() {
    let mut rig = Rig::new();
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let known = [
        0x1_u16, 2, 3, 0x10, 0x11, 0x20, 0x21, 0x30, 0x31, 0x40, 0x41, 0x42, 0x43, 0x50, 0x51,
        0x60, 0x61, 0x62, 0x63,
    ];
    let mut handles = vec![0_u32, 1, 2, 0x100, 0x101];
    let mut done = 0;
    for _ in 0..60_000 {
        let opcode = known[random.below(19) as usize];
        let body = match opcode {
            0x40 => mr_body(1, &[0x8000, 0x9000], |_| ()),
            0x41 => with_pages(MrAppendBody::default().as_bytes(), &[0x8000]),
            0x50 => cq_body(|_| ()),
            0x60 => qp_body(1, 1, |_| ()),
            0x61 => QpAttributesBody::new_zeroed().as_bytes().to_vec(),
            0x10 => vec![0; 32],
            1 | 3 | 0x20 | 0x30 => vec![],
            2 => vec![1, 0, 0, 0],
            _ => vec![0; 8],
        };
        let mut body = body;
        // Handles where commands have them, and then a few random bytes, or a random length.
        for at in [0, 8, 12] {
            if body.len() >= at + 4 && random.below(3) > 0 && (at == 0 || opcode == 0x60) {
                let handle = handles[random.below(handles.len() as u64) as usize];
                body[at..at + 4].copy_from_slice(&handle.to_le_bytes());
            }
        }
        for _ in 0..random.below(3) {
            if !body.is_empty() {
                let at = random.below(body.len() as u64) as usize;
                body[at] = random.next() as u8;
            }
        }
        if random.below(16) == 0 {
            body.resize(random.below(200) as usize, random.next() as u8);
        }
        let context = handles[random.below(handles.len() as u64) as usize];
        let context = if random.below(2) == 0 { 0 } else { context };
        if let Ok(reply) = rig.ask(context, opcode, &body) {
            done += 1;
            if reply.len() == 8 {
                handles.push(u32::from_le_bytes(reply[..4].try_into().unwrap()));
                if handles.len() > 40 {
                    handles.remove(random.below(35) as usize + 5);
                }
            }
        }
        if random.below(8) == 0 {
            let at = random.below(RAM / 8) * 8;
            rig.ram.write(at, &random.next().to_le_bytes());
            rig.device.doorbell(random.below(5) as u32);
            rig.device.poll();
        }
        let [contexts, cqs, qps, mrs] = rig.counts();
        assert!(contexts <= 3 && cqs <= 4 && qps <= 4 && mrs <= 4);
    }
    assert!(done > 1000, "only {done} commands were carried out");
}
