//! The whole face, driven as a transport and a driver would.

mod data_path;

use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::Instant;

use vm_memory::{Bytes, GuestAddress};

use super::*;
use crate::rdma::fabric::frame::{FrameHeader, flag, kind, nak};
use crate::rdma::fabric::loopback::LoopbackFabric;
use crate::rdma::fabric::pair::{OTHER, pair_with};
use crate::rdma::fabric::test_utils::TestSink;
use crate::rdma::stats::ThreadSnapshot;
use crate::rdma::wire::{
    AddGidBody, CommandHeader, CreateCqBody, CreateQpBody, GID_TYPE_ROCE_V2, HandleBody,
    QpAttributesBody, RegMrBody, ReplyHeader, RingBufferBody, SendWqeHeader, Sge, Status,
    VLAN_NONE, access, kick, opcode, qp_control, qp_mask, qp_type, send_flag, send_opcode,
};
use crate::virtio::Doorbells;
use crate::virtio::test_utils::{Driver, PATIENCE, R, W, wait_until};
use zerocopy::FromBytes;

const REQUEST: u64 = 0x10_0000;
const REPLY: u64 = 0x20_0000;
const FEATURES: u64 = COMMON_FEATURES | DeviceConfig::FEATURES;

/// Doorbell pages that a test can write to.
#[derive(Default)]
struct Pages(Mutex<std::collections::BTreeMap<u32, EventFd>>);

impl Doorbells for Pages {
    fn attach(&self, page: u32, fd: EventFd) -> io::Result<()> {
        lock(&self.0).insert(page, fd);
        Ok(())
    }
    fn detach(&self, page: u32) {
        lock(&self.0).remove(&page);
    }
}

impl Pages {
    fn ring(&self, page: u32) {
        lock(&self.0)[&page].write(1).unwrap();
    }

    fn attached(&self) -> Vec<u32> {
        lock(&self.0).keys().copied().collect()
    }
}

struct Rig {
    device: VirtioRdma,
    queues: Vec<Driver>,
    pages: Arc<Pages>,
}

fn device() -> VirtioRdma {
    let fabric = LoopbackFabric::new().unwrap();
    let options = RdmaOptions {
        num_vectors: 2,
        ..RdmaOptions::new([2, 0, 0, 0, 0, 9])
    };
    VirtioRdma::new(options, Box::new(fabric), Arc::default()).unwrap()
}

impl Rig {
    fn new() -> Self {
        Self::with_features(FEATURES)
    }

    fn with_features(features: u64) -> Self {
        let mut rig = Rig {
            device: device(),
            queues: Vec::new(),
            pages: Arc::default(),
        };
        rig.activate(features);
        rig
    }

    fn activate(&mut self, features: u64) {
        self.queues = Driver::queues(&[16, 16, 16, 16]);
        let mut activation = Driver::activation(&self.queues, features);
        activation.doorbells = self.pages.clone();
        self.device.activate(activation).unwrap();
    }

    /// Sends a command of the kernel and waits for its reply.
    fn command(&mut self, opcode: u16, body: &[u8]) -> (Status, Vec<u8>) {
        self.command_of(0, opcode, body)
    }

    /// Sends a command that must succeed. Returns the first word of its reply.
    fn must(&mut self, context: u32, opcode: u16, body: &[u8]) -> u32 {
        let (status, reply) = self.command_of(context, opcode, body);
        assert_eq!(status, Status::Ok, "{opcode:#x}");
        if reply.is_empty() { 0 } else { word(&reply, 0) }
    }

    /// Sends a command, and sees that it is not answered.
    fn command_in_vain(&mut self) {
        let header = CommandHeader {
            opcode: Le16::new(opcode::QUERY_DEVICE),
            length: Le32::new(24),
            ..CommandHeader::default()
        };
        let control = &mut self.queues[0];
        control.put(REQUEST, header.as_bytes());
        control.send(&[(REQUEST, 24, R), (REPLY, 256, W)]);
        std::thread::sleep(Duration::from_millis(30));
        assert!(control.used().is_empty());
    }

    fn command_of(&mut self, context: u32, opcode: u16, body: &[u8]) -> (Status, Vec<u8>) {
        let header = CommandHeader {
            context: Le32::new(context),
            opcode: Le16::new(opcode),
            length: Le32::new(24 + body.len() as u32),
            cookie: Le64::new(0x1234_5678_9abc),
            ..CommandHeader::default()
        };
        let request = [header.as_bytes(), body].concat();
        let control = &mut self.queues[0];
        control.put(REQUEST, &request);
        control.send(&[
            (REQUEST, 8, R),
            (REQUEST + 8, request.len() as u32 - 8, R),
            (REPLY, 256, W),
        ]);
        let used = control.wait_used(1);
        let reply = control.bytes(REPLY, used[0].1 as usize);
        let (header, body) = ReplyHeader::read_from_prefix(&reply).unwrap();
        assert_eq!(header.cookie.get(), 0x1234_5678_9abc);
        assert_eq!(header.length.get() as usize, reply.len());
        let status = [
            Status::Ok,
            Status::Unsupported,
            Status::Invalid,
            Status::NoResource,
            Status::NotFound,
        ];
        (status[header.status.get() as usize], body.to_vec())
    }
}

/// The memory of a ring that is one page.
fn one_page() -> RingBufferBody {
    RingBufferBody {
        length: Le64::new(0x1000),
        page_shift: Le32::new(12),
        num_pages: Le32::new(1),
        ..RingBufferBody::default()
    }
}

/// CREATE_CQ of 16 entries in the page.
fn create_cq(vector: u32, page: u64) -> Vec<u8> {
    let body = CreateCqBody {
        entries: Le32::new(16),
        vector: Le32::new(vector),
        buffer: one_page(),
        ctrl_offset: Le64::new(0x800),
        ..CreateCqBody::default()
    };
    [body.as_bytes(), &page.to_le_bytes()].concat()
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[test]
fn the_configuration_is_that_of_the_specification() {
    let device = device();
    let mut config = [0; 32];
    device.read_config(0, &mut config);
    assert_eq!(config[..6], [2, 0, 0, 0, 0, 9]);
    assert_eq!(config[6..8], [2, 0]);
    assert_eq!(word(&config, 8), 1024);
    assert_eq!(config[12], crate::virtio::pci::DOORBELL_BAR);
    assert_eq!(config[13..], [0; 19]);
    assert_eq!(device.device_type(), 42);
    assert_eq!(device.queue_max_sizes().len(), 4);
    assert_eq!(device.doorbell_pages(), 1024);
}

#[test]
fn options_that_cannot_be_are_refused_with_a_word() {
    for (options, text) in [
        (
            RdmaOptions {
                num_vectors: 0,
                ..RdmaOptions::new([0; 6])
            },
            "1 to 32",
        ),
        (
            RdmaOptions {
                limits: Limits {
                    cqe: 3,
                    ..Limits::default()
                },
                ..RdmaOptions::new([0; 6])
            },
            "power of two",
        ),
    ] {
        let fabric = Box::new(LoopbackFabric::new().unwrap());
        let error = VirtioRdma::new(options, fabric, Arc::default())
            .err()
            .unwrap();
        assert!(error.to_string().contains(text), "{error}");
    }
}

#[test]
fn commands_are_answered_and_signalled() {
    let mut rig = Rig::new();
    let (status, body) = rig.command(opcode::QUERY_DEVICE, &[]);
    assert_eq!((status, body.len()), (Status::Ok, 168));
    assert_eq!(body[..8], [0, 0, 0, 0xff, 0xfe, 0, 0, 9]);
    let (status, body) = rig.command(0x7777, &[]);
    assert_eq!((status, body.len()), (Status::Unsupported, 0));
    wait_until(|| rig.queues[0].interrupt.raised(0) >= 2);
}

#[test]
fn chains_that_are_no_commands_come_back_and_the_next_one_works() {
    let mut rig = Rig::new();
    let chains: [&[(u64, u32, u16)]; 6] = [
        &[(REQUEST, 64, R)],
        &[(REPLY, 64, W)],
        &[(REQUEST, 24, R), (REPLY, 8, W)],
        &[(REQUEST, 3, R), (REPLY, 64, W)],
        &[(u64::MAX - 100, 24, R), (REPLY, 64, W)],
        &[(REQUEST, 0x2_0000, R), (REPLY, 64, W)],
    ];
    for chain in chains {
        rig.queues[0].send(chain);
        assert_eq!(rig.queues[0].wait_used(1).len(), 1);
    }
    assert_eq!(rig.command(opcode::QUERY_DEVICE, &[]).0, Status::Ok);
    assert_eq!(rig.queues[0].interrupt.resets_asked(), 0);
}

#[test]
fn a_reply_without_room_is_a_header_that_says_so() {
    let mut rig = Rig::new();
    let header = CommandHeader {
        opcode: Le16::new(opcode::CREATE_PD),
        length: Le32::new(24),
        ..CommandHeader::default()
    };
    let control = &mut rig.queues[0];
    control.put(REQUEST, header.as_bytes());
    control.send(&[(REQUEST, 24, R), (REPLY, 23, W)]);
    assert_eq!(control.wait_used(1)[0].1, 16);
    assert_eq!(word(&control.bytes(REPLY, 4), 0), Status::Invalid as u32);
}

#[test]
fn a_queue_that_makes_no_sense_asks_for_a_reset_and_a_reset_helps() {
    let mut rig = Rig::new();
    rig.queues[0].set_avail_idx(1000);
    rig.queues[0].kick.write(1).unwrap();
    wait_until(|| rig.queues[0].interrupt.resets_asked() == 1);
    rig.device.reset();
    rig.activate(FEATURES);
    assert_eq!(rig.command(opcode::QUERY_DEVICE, &[]).0, Status::Ok);
}

#[test]
fn contexts_have_doorbell_pages_until_they_end_or_the_device_is_reset() {
    let mut rig = Rig::new();
    assert_eq!(rig.pages.attached(), [0]);
    let (_, first) = rig.command(opcode::CREATE_CONTEXT, &[]);
    let (_, second) = rig.command(opcode::CREATE_CONTEXT, &[]);
    let (first_page, second_page) = (word(&first, 4), word(&second, 4));
    assert_eq!(rig.pages.attached(), [0, first_page, second_page]);
    let (status, _) = rig.command(opcode::DESTROY_CONTEXT, &[&first[..4], &[0; 4]].concat());
    assert_eq!(status, Status::Ok);
    assert_eq!(rig.pages.attached(), [0, second_page]);
    rig.device.reset();
    assert!(rig.pages.attached().is_empty());
}

#[test]
fn without_user_doorbells_there_are_no_contexts() {
    let mut rig = Rig::with_features(FEATURES & !feature::USER_DOORBELL);
    assert!(rig.pages.attached().is_empty());
    let (status, _) = rig.command(opcode::CREATE_CONTEXT, &[]);
    assert_eq!(status, Status::Unsupported);
}

#[test]
fn a_driver_that_enables_too_few_queues_or_no_platform_addresses_is_refused() {
    let mut device = device();
    let queues = Driver::queues(&[16, 16, 16, 16]);
    let mut activation = Driver::activation(&queues, FEATURES);
    activation.queues[2] = None;
    assert!(matches!(
        device.activate(activation),
        Err(ActivateError::MissingQueue(2))
    ));
    let plain = Driver::activation(&queues, FEATURES & !FEATURE_ACCESS_PLATFORM);
    assert!(matches!(device.activate(plain), Err(ActivateError::Io(_))));
    device.reset();
}

#[test]
fn vectors_whose_queue_is_not_enabled_cannot_be_used() {
    let mut rig = Rig::new();
    rig.device.reset();
    rig.queues = Driver::queues(&[16, 16, 16, 16]);
    let mut activation = Driver::activation(&rig.queues, FEATURES);
    activation.queues[3] = None;
    activation.doorbells = rig.pages.clone();
    rig.device.activate(activation).unwrap();
    for (vector, want) in [(0, Status::Ok), (1, Status::Invalid)] {
        let (status, _) = rig.command(opcode::CREATE_CQ, &create_cq(vector, 0x30_0000));
        assert_eq!(status, want);
    }
}

#[test]
fn a_paused_thread_answers_after_it_resumes_and_a_reset_ends_a_pause() {
    let mut rig = Rig::new();
    let thread = rig.device.thread();
    thread.pause().unwrap();
    rig.command_in_vain();
    thread.resume().unwrap();
    assert_eq!(rig.queues[0].wait_used(1).len(), 1);
    thread.pause().unwrap();
    rig.device.reset();
    rig.activate(FEATURES);
    assert_eq!(rig.command(opcode::QUERY_DEVICE, &[]).0, Status::Ok);
    thread.pause().unwrap();
    drop(rig);
    assert!(thread.resume().is_err());
}

#[test]
fn after_a_reset_nothing_of_the_driver_is_touched() {
    let mut rig = Rig::new();
    rig.device.reset();
    rig.command_in_vain();
    rig.device.reset();
}

#[test]
fn without_a_driver_requests_hear_that_there_is_no_such_qp() {
    let (near, mut far, _) = pair_with(2).unwrap();
    let options = RdmaOptions::new([2, 0, 0, 0, 0, 9]);
    let _device = VirtioRdma::new(options, Box::new(near), Arc::default()).unwrap();
    let kinds = [
        (kind::SEND, 0),
        (kind::WRITE, 5),
        (kind::ACK, 0),
        (kind::READ, 0),
        (kind::READ_DATA, 5),
        (kind::DATAGRAM, 40),
        (kind::ATOMIC, 16),
    ];
    for (n, (kind, length)) in (1..).zip(kinds) {
        let header = FrameHeader {
            kind,
            flags: flag::LAST,
            dst_qpn: 0x1000 + n,
            src_qpn: n,
            seq: 77,
            length,
            msg_len: length,
            lane: 1,
            ..FrameHeader::default()
        };
        let payload = vec![0; length as usize];
        far.send(OTHER, &header, &payload, &[]).unwrap();
    }
    let mut heard = TestSink {
        discard: true,
        ..TestSink::default()
    };
    wait_until(|| {
        far.poll(&mut heard);
        heard.frames() >= 4
    });
    let refusal = |n| FrameHeader {
        kind: kind::NAK,
        dst_qpn: n,
        src_qpn: 0x1000 + n,
        rkey: nak::NO_QP,
        lane: 1,
        ..FrameHeader::default()
    };
    assert_eq!(heard.headers(), [1, 2, 4, 7].map(refusal));
}

#[test]
fn gids_and_counters_go_through() {
    let mut rig = Rig::new();
    let mut gid = AddGidBody {
        index: Le32::new(3),
        kind: GID_TYPE_ROCE_V2,
        vlan: Le16::new(VLAN_NONE),
        ..AddGidBody::default()
    };
    gid.gid[0] = 0xfe;
    assert_eq!(rig.command(opcode::ADD_GID, gid.as_bytes()).0, Status::Ok);
    let body = HandleBody {
        handle: Le32::new(3),
        ..HandleBody::default()
    };
    assert_eq!(rig.command(opcode::DEL_GID, body.as_bytes()).0, Status::Ok);
    let (status, counters) = rig.command(opcode::QUERY_COUNTERS, &[]);
    assert_eq!((status, word(&counters, 0)), (Status::Ok, 16));
    assert_eq!(counters.len(), 8 + 8 * 16);
}
