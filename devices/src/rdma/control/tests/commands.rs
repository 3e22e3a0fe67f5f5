//! What any command is held to, and the commands about device, port and GIDs.

use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::*;
use crate::rdma::test_utils::Random;
use crate::rdma::wire::*;
use crate::rdma::{DeviceConfig, Limits};

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
    for opcode in [0, 5, 0x46, 0x54, 0x74, 0xffff] {
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
fn gid_slots_are_filled_once() {
    let mut rig = Rig::new();
    assert_eq!(rig.add_gid(4), Err(INVALID));
    rig.add_gid(2).unwrap();
    assert_eq!(rig.add_gid(2), Err(EXISTS));
    rig.on(0, opcode::DEL_GID, 2).unwrap();
    assert_eq!(rig.on(0, opcode::DEL_GID, 2), Err(NOT_FOUND));
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
