//! What completions say: points 22, 30 and 32; and what no registration may be: point 36.

use conformance::layout::{Sge, Status, access, cqe_flag, qp_type, send, state, wc, wc_opcode};
use conformance::node::{QpOptions, rereg};
use conformance::on_every_fabric;
use conformance::random::payload;
use conformance::rings::SendWr;
use conformance::side::{
    Connection, Side, SideOptions, connect, connected, sides, success, to_state,
};
use conformance::world::World;

use super::{KINDS, addressed, sides_of};

/// vendor_err of section 9.
mod vendor {
    pub const OPCODE: u32 = 2;
    pub const SGE_COUNT: u32 = 3;
    pub const KEY_NOT_FOUND: u32 = 4;
    pub const ACCESS: u32 = 6;
    pub const RANGE: u32 = 7;
    pub const REFUSED: u32 = 10;
    pub const FLUSHED: u32 = 12;
}

on_every_fabric! {
    fn semantics_22_an_error_says_which_request_of_which_qp_and_where_it_was_found(world: &World) {
        // Two SGEs, and room for more in the ring.
        let options = SideOptions { qp: QpOptions { send_sge: 2, inline: 64, ..Default::default() }, ..Default::default() };
        for case in 0..6 {
            let (mut a, b) = connected(world, &options, &Connection::default());
            let plain = a.node.reg_mr(a.context, a.pd, a.node.memory.scattered(4096), 0, 4096, 0).expect("a region");
            let (good, readonly) = (a.mr.sge(0, 8), plain.sge(0, 8));
            let no_key = Sge { lkey: 0, ..good };
            let past = Sge { addr: a.mr.iova + a.mr.len, ..good };
            let (sges, opcode, rkey, status, found) = match case {
                0 => (vec![no_key], send::WRITE, b.mr.key, wc::LOC_PROT_ERR, vendor::KEY_NOT_FOUND),
                1 => (vec![past], send::WRITE, b.mr.key, wc::LOC_PROT_ERR, vendor::RANGE),
                2 => (vec![readonly], send::READ, b.mr.key, wc::LOC_PROT_ERR, vendor::ACCESS),
                3 => (vec![good], 99, b.mr.key, wc::LOC_QP_OP_ERR, vendor::OPCODE),
                4 => (vec![good], send::WRITE, 0, wc::REM_ACCESS_ERR, vendor::REFUSED),
                _ => (vec![good; 3], send::WRITE, b.mr.key, wc::LOC_QP_OP_ERR, vendor::SGE_COUNT),
            };
            let wr_id = 0xfeed_0000_0000 + case;
            a.send(&SendWr { wr_id, rkey, ..SendWr::signaled(0, opcode).with_sges(&sges).at(&b.mr, 0) });
            a.send(&SendWr { flags: 0, ..SendWr::signaled(0xbeef, send::SEND) });
            // Side::poll looks at the QP's number.
            let cqe = world.until("the failure", || a.poll());
            assert_eq!((cqe.wr_id, cqe.status, cqe.vendor_err), (wr_id, status, found), "case {case}");
            let cqe = world.until("the one behind it", || a.poll());
            assert_eq!((cqe.wr_id, cqe.status, cqe.vendor_err), (0xbeef, wc::WR_FLUSH_ERR, vendor::FLUSHED), "case {case}");
        }
    }

    fn semantics_30_immediate_data_of_messages_on_uc(world: &World) {
        let (mut a, mut b) = sides_of(world, qp_type::UC);
        for (size, opcode) in [(0, send::SEND_IMM), (100, send::SEND_IMM), (0, send::WRITE_IMM), (5000, send::WRITE_IMM)] {
            let data = payload(size as u64, size);
            a.mr.write(0, &data);
            b.recv(5, 0, 100);
            let sges = [a.mr.sge(0, size)];
            a.send(&SendWr { imm: [0x01, 0x82, 0x03, 0xf4], ..SendWr::signaled(1, opcode).with_sges(&sges).at(&b.mr, 8192) });
            success(world, &mut a, "a message with immediate data");
            let cqe = success(world, &mut b, "the receive");
            let writes = opcode == send::WRITE_IMM;
            assert_eq!(cqe.opcode, if writes { wc_opcode::RECV_RDMA_WITH_IMM } else { wc_opcode::RECV });
            assert_eq!((cqe.imm, cqe.byte_len as usize), ([0x01, 0x82, 0x03, 0xf4], size));
            assert_eq!(cqe.flags & cqe_flag::WITH_IMM, cqe_flag::WITH_IMM);
            assert_eq!(b.mr.read(if writes { 8192 } else { 0 }, size), data);
        }
    }

    fn semantics_32_cqes_of_failures_and_flushes_name_their_qp(world: &World) {
        let (a, b) = sides(world);
        let mut qps = Vec::new();
        for kind in [KINDS, KINDS].concat() {
            let options = QpOptions { kind, ..Default::default() };
            let make = |side: &Side| side.node.create_qp(side.context, side.pd, side.cq.cqn, side.cq.cqn, &options).expect("a QP");
            let (near, far) = (make(&a), make(&b));
            connect((&a.node, &near), (&b.node, &far), &Default::default());
            qps.push((near, far));
        }
        let mut cq = a.cq;
        let bad = [Sge { lkey: a.mr.key ^ 0x100, ..a.mr.sge(0, 8) }];
        for (n, (qp, _)) in qps.iter_mut().enumerate() {
            let wr_id = 100 * n as u64;
            qp.post_recv(wr_id, &[a.mr.sge(0, 64)]).expect("room");
            let wr = SendWr::signaled(wr_id + 1, send::SEND).with_sges(&bad);
            qp.post_send(&addressed(wr, &b)).expect("room");
            qp.post_send(&addressed(SendWr::signaled(wr_id + 2, send::SEND), &b)).expect("room");
        }
        // UC and UD are in SQE then, and their receives go on.
        let mut seen = Vec::new();
        for (count, to_err) in [(2 * qps.len() + 2, false), (qps.len() - 2, true)] {
            for (qp, _) in qps.iter().filter(|(qp, _)| to_err && qp.kind != qp_type::RC) {
                to_state(&a.node, qp, state::ERR).expect("ERR");
            }
            for _ in 0..count {
                let cqe = world.until("a CQE of any", || cq.poll());
                let n = cqe.wr_id as usize / 100;
                assert_eq!(cqe.qpn, qps[n].0.qpn, "{cqe:?}");
                assert_eq!(cqe.is_send(), !cqe.wr_id.is_multiple_of(100), "{cqe:?}");
                seen.push(cqe.wr_id);
            }
        }
        seen.sort_unstable();
        let all: Vec<u64> = (0..qps.len() as u64).flat_map(|n| (0..3).map(move |m| 100 * n + m)).collect();
        assert_eq!(seen, all, "each once");
    }

    fn semantics_36_what_a_peer_may_write_its_owner_may(world: &World) {
        let node = world.b();
        let side = Side::new(node, &SideOptions::default());
        for remote in [access::REMOTE_WRITE, access::REMOTE_ATOMIC, access::REMOTE_WRITE | access::REMOTE_ATOMIC | access::REMOTE_READ] {
            let register = |rights| node.reg_mr(side.context, side.pd, node.memory.scattered(4096), 0, 4096, rights);
            assert_eq!(register(remote).err(), Some(Status::Invalid), "{remote:#x} without LOCAL_WRITE");
            register(remote | access::LOCAL_WRITE).expect("with LOCAL_WRITE");
            let plain = register(access::REMOTE_READ).expect("a region to read");
            let refused = node.rereg_mr(side.context, plain.key, rereg::ACCESS, (0, remote, 0));
            assert_eq!(refused, Err(Status::Invalid), "REREG_MR to {remote:#x}");
            node.rereg_mr(side.context, plain.key, rereg::ACCESS, (0, remote | access::LOCAL_WRITE, 0)).expect("REREG_MR");
        }
    }
}
