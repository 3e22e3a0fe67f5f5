//! CQEs of reliable connections.

use super::local::Local;
use super::transport::{Incoming, Message};
use super::{Env, mpe, xrc};
use crate::rdma::fabric::frame::{flag, kind};
use crate::rdma::objects::{Qp, ReceiveWqe};
use crate::rdma::wire::{Cqe, cqe_flag, cqe_opcode, cqe_status, send_opcode, vendor_err};

/// The opcode that the completion of a send WQE carries.
fn opcode(send: u8) -> u8 {
    match send {
        send_opcode::WRITE | send_opcode::WRITE_IMM => cqe_opcode::RDMA_WRITE,
        send_opcode::READ => cqe_opcode::RDMA_READ,
        send_opcode::CMP_AND_SWP => cqe_opcode::COMP_SWAP,
        send_opcode::FETCH_AND_ADD => cqe_opcode::FETCH_ADD,
        send_opcode::LOCAL_INV => cqe_opcode::LOCAL_INV,
        send_opcode::BIND_MW => cqe_opcode::BIND_MW,
        send_opcode::REG_MR => cqe_opcode::REG_MR,
        send_opcode::FLUSH => cqe_opcode::FLUSH,
        send_opcode::ATOMIC_WRITE => cqe_opcode::ATOMIC_WRITE,
        _ => cqe_opcode::SEND,
    }
}

/// Completes a work request that no peer hears of.
pub(super) fn local(qp: &mut Qp, env: &mut Env<'_>, local: &Local, status: u8, vendor: u32) {
    let cqe = Cqe {
        wr_id: local.wr_id.into(),
        status,
        opcode: opcode(local.opcode),
        flags: cqe_flag::SEND_QUEUE.into(),
        qpn: qp.qpn.into(),
        vendor_err: vendor.into(),
        wqe_index: local.index.into(),
        ..Cqe::default()
    };
    env.complete(qp.refs.send_cq, &cqe, false);
}

/// Completes a message of the send queue.
pub(super) fn sent(qp: &mut Qp, env: &mut Env<'_>, message: &Message, status: u8, vendor: u32) {
    let reads = super::requester::is_read(message.opcode) && !mpe::is_placement(message.opcode);
    let cqe = Cqe {
        wr_id: message.wr_id.into(),
        status,
        opcode: opcode(message.opcode),
        flags: cqe_flag::SEND_QUEUE.into(),
        byte_len: if reads { message.length } else { 0 }.into(),
        qpn: qp.qpn.into(),
        vendor_err: vendor.into(),
        wqe_index: message.index.into(),
        ..Cqe::default()
    };
    env.complete(qp.refs.send_cq, &cqe, false);
}

/// Completes a receive that a message filled. False when its CQ takes no more.
pub(super) fn received(
    qp: &mut Qp,
    env: &mut Env<'_>,
    receive: &ReceiveWqe,
    incoming: &Incoming,
) -> bool {
    let (opcode, mut flags) = match incoming.kind {
        kind::SEND => (cqe_opcode::RECV, 0),
        _ => (cqe_opcode::RECV_RDMA_WITH_IMM, 0),
    };
    let mut imm = [0; 4];
    if incoming.flags & flag::IMM != 0 {
        flags |= cqe_flag::WITH_IMM;
        imm = incoming.imm;
    }
    if incoming.flags & flag::INVALIDATE != 0 {
        flags |= cqe_flag::WITH_INV;
        imm = incoming.imm;
    }
    let (xrc, srqn) = xrc::mark(qp);
    let cqe = Cqe {
        wr_id: receive.wr_id.into(),
        status: cqe_status::SUCCESS,
        opcode,
        flags: (flags | xrc).into(),
        srqn: srqn.into(),
        byte_len: incoming.msg_len.into(),
        imm,
        qpn: qp.qpn.into(),
        src_qpn: qp.attrs.dest_qpn.into(),
        wqe_index: receive.index.into(),
        ..Cqe::default()
    };
    env.complete(receive.cqn, &cqe, incoming.flags & flag::SOLICITED != 0)
}

/// Completes a receive that no message filled.
pub(super) fn receive_failed(
    qp: &mut Qp,
    env: &mut Env<'_>,
    receive: &ReceiveWqe,
    status: u8,
    vendor: u32,
) {
    let (flags, srqn) = xrc::mark(qp);
    let cqe = Cqe {
        wr_id: receive.wr_id.into(),
        status,
        opcode: cqe_opcode::RECV,
        flags: flags.into(),
        srqn: srqn.into(),
        qpn: qp.qpn.into(),
        vendor_err: vendor.into(),
        wqe_index: receive.index.into(),
        ..Cqe::default()
    };
    env.complete(receive.cqn, &cqe, false);
}

/// Completes a send WQE that is flushed.
pub(super) fn flush_send(qp: &mut Qp, env: &mut Env<'_>, wr_id: u64, index: u32, send: u8) {
    let cqe = Cqe {
        wr_id: wr_id.into(),
        status: cqe_status::WR_FLUSH_ERR,
        opcode: opcode(send),
        flags: cqe_flag::SEND_QUEUE.into(),
        qpn: qp.qpn.into(),
        vendor_err: vendor_err::FLUSHED.into(),
        wqe_index: index.into(),
        ..Cqe::default()
    };
    env.complete(qp.refs.send_cq, &cqe, false);
    env.stats.device.flushed.add(1);
}

/// Completes a receive WQE that is flushed.
pub(super) fn flush_receive(qp: &mut Qp, env: &mut Env<'_>, receive: &ReceiveWqe) {
    receive_failed(
        qp,
        env,
        receive,
        cqe_status::WR_FLUSH_ERR,
        vendor_err::FLUSHED,
    );
    env.stats.device.flushed.add(1);
}
