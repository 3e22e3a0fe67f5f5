//! Commands as a driver sends them, against a whole device on a loopback fabric.

mod commands;
mod owners;
mod queues;
mod regions;

use std::sync::{Arc, Mutex};

use zerocopy::{FromBytes, IntoBytes};

use crate::rdma::events::{AsyncEvent, EventSink};
use crate::rdma::fabric::Fabric;
use crate::rdma::fabric::loopback::LoopbackFabric;
use crate::rdma::stats::ObjectSnapshot;
use crate::rdma::test_utils::FakeRam;
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
        Self::with_fabric(LoopbackFabric::new().unwrap(), limits, features)
    }

    fn with_fabric(fabric: impl Fabric + 'static, limits: Limits, features: u64) -> Self {
        let ram = Arc::new(FakeRam::new(RAM as usize));
        let seen = Arc::<Mutex<Seen>>::default();
        let config = DeviceConfig {
            mac: [2, 0, 0, 0, 0, 1],
            num_vectors: 2,
            limits,
            features,
        };
        let (fabric, sink) = (Box::new(fabric), Box::new(Sink(seen.clone())));
        let device = RdmaDevice::new(config, ram.clone(), fabric, sink);
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

    /// What the statistics say of them.
    fn shown(&self) -> ObjectSnapshot {
        self.device.stats().snapshot().objects
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
        buffer: RingBufferBody {
            length: Le64::new(PAGE),
            page_shift: Le32::new(12),
            num_pages: Le32::new(1),
            ..RingBufferBody::default()
        },
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
        buffer: RingBufferBody {
            length: Le64::new(3 * PAGE),
            page_shift: Le32::new(12),
            num_pages: Le32::new(3),
            ..RingBufferBody::default()
        },
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
