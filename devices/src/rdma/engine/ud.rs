//! Datagrams: QPs of type UD and GSI, to one QP or to a multicast group (docs/fabric.md, section 6).
//!
//! A datagram is one frame, its GRH before its data. It is sent at once to everybody it is for, or not at all: a WQE is taken only when that is
//! decided, so a QP that waits for room remembers nothing of it.

use super::requester::{self, Step};
use super::sink::Receiver;
use super::transport::{Message, Standing};
use super::{Env, completion, grh, lanes, sge, unacked};
use crate::rdma::fabric::frame::{FrameHeader, GRH_LEN, MAX_DATAGRAM, flag, kind};
use crate::rdma::fabric::{Fabric, PeerId};
use crate::rdma::memory::{LOCAL_READ, Scope, access as guest};
use crate::rdma::objects::{Qp, QpKind, QpState, is_multicast};
use crate::rdma::wire::{
    Cqe, DatagramAddress, MULTICAST_QPN, QKEY_OWN, SendWqeHeader, VLAN_NONE, access, cqe_flag,
    cqe_opcode, cqe_status, send_flag, send_opcode, vendor_err,
};

/// Destination QPNs have 24 bits.
const MASK_24: u32 = 0xff_ffff;

/// What becomes of a WQE.
enum Fate {
    /// It was sent to somebody.
    Sent,
    /// There is nobody to send it to, or no room for too long.
    GivenUp,
    /// There is no room; it is not taken.
    Full,
    Failed(sge::Fault),
}

/// One bounded round: takes WQEs and sends them.
pub(super) fn step(qp: &mut Qp, env: &mut Env<'_>, fabric: &mut dyn Fabric) -> Step {
    let (mut messages, mut bytes) = (0, 0);
    let step = loop {
        if messages >= unacked::ROUND_MESSAGES || bytes >= unacked::ROUND_BYTES {
            break Step::Worked;
        }
        if qp.state != QpState::Rts {
            break Step::Idle;
        }
        let Some(index) = unacked::next(qp, env) else {
            break Step::Idle;
        };
        let wqe = qp.sq.header(index);
        let mut message = message(&wqe, index);
        let fate = match check(qp, env, &wqe, &mut message) {
            Ok(()) => send(qp, env, fabric, &wqe.datagram(), &message),
            Err(fault) => Fate::Failed(fault),
        };
        let requester = &mut qp.transport.requester;
        requester.sges.clear();
        if matches!(fate, Fate::Full) {
            break Step::Full;
        }
        requester.taken = index.wrapping_add(1);
        requester.since = None;
        messages += 1;
        bytes += message.length.max(64);
        match fate {
            Fate::Failed(fault) => {
                unacked::fail(qp, env, &message, fault);
                break Step::Worked;
            }
            fate => unacked::done(qp, env, &message, matches!(fate, Fate::Sent)),
        }
    };
    if messages > 0 { Step::Worked } else { step }
}

fn message(wqe: &SendWqeHeader, index: u32) -> Message {
    Message {
        wr_id: wqe.wr_id.get(),
        index,
        opcode: wqe.opcode,
        flags: wqe.flags,
        num_sge: 0,
        imm: wqe.imm,
        rkey: 0,
        remote_addr: 0,
        length: 0,
        first_sge: 0,
        aux: 0,
        operands: [0; 2],
        received: 0,
        standing: Standing::Pending,
    }
}

/// Checks a WQE's copy, and keeps its SGEs.
fn check(
    qp: &mut Qp,
    env: &mut Env<'_>,
    wqe: &SendWqeHeader,
    message: &mut Message,
) -> Result<(), sge::Fault> {
    if !matches!(wqe.opcode, send_opcode::SEND | send_opcode::SEND_IMM) {
        return Err((cqe_status::LOC_QP_OP_ERR, vendor_err::OPCODE));
    }
    (message.num_sge, message.length) = requester::check(qp, env, wqe, message.index)?;
    if message.length > MAX_DATAGRAM {
        return Err((cqe_status::LOC_LEN_ERR, vendor_err::MESSAGE_LENGTH));
    }
    Ok(())
}

/// Sends a datagram to all it is for.
fn send(
    qp: &mut Qp,
    env: &mut Env<'_>,
    fabric: &mut dyn Fabric,
    to: &DatagramAddress,
    message: &Message,
) -> Fate {
    let Some(from) = env.gids.get(to.sgid_index).copied() else {
        // The address is gone, and with it every way back.
        return Fate::GivenUp;
    };
    let multicast = is_multicast(&to.dgid);
    let mut peers = std::mem::take(&mut env.scratch.peers);
    peers.clear();
    if multicast {
        fabric.members(&to.dgid, &mut peers);
    } else {
        let route = fabric.route(&to.dgid);
        peers.extend(route.filter(|peer| fabric.is_up(*peer)));
    }
    let kind = qp.kind;
    let lane = |fabric: &dyn Fabric, peer| lanes::of_datagrams(kind, fabric.lanes(peer));
    let has_room = |peer: &PeerId| fabric.can_send(*peer, lane(fabric, *peer));
    let mut fate = Fate::GivenUp;
    if !peers.iter().all(has_room) && unacked::waits(qp, env) {
        fate = Fate::Full;
    } else if let Err(fault) = payload(qp, env, &from.gid, to, message) {
        fate = Fate::Failed(fault);
    } else {
        let own = to.qkey.get() & QKEY_OWN != 0;
        let mut header = FrameHeader {
            kind: kind::DATAGRAM,
            flags: flag::LAST,
            length: GRH_LEN + message.length,
            dst_qpn: match multicast {
                true => MULTICAST_QPN,
                false => to.dest_qpn.get() & MASK_24,
            },
            src_qpn: qp.qpn,
            rkey: if own { qp.attrs.qkey } else { to.qkey.get() },
            addr: pack_mac(from.mac),
            msg_len: message.length,
            aux: u32::from(to.sl & 15),
            ..FrameHeader::default()
        };
        if message.opcode == send_opcode::SEND_IMM {
            header.flags |= flag::IMM;
            header.imm = message.imm;
        }
        if message.flags & send_flag::SOLICITED != 0 {
            header.flags |= flag::SOLICITED;
        }
        let mut missed = 0;
        for peer in &peers {
            header.lane = lane(fabric, *peer);
            match fabric.send(*peer, &header, &env.scratch.bytes, &[]) {
                Ok(()) => fate = Fate::Sent,
                Err(_) => missed += 1,
            }
        }
        if matches!(fate, Fate::Sent) {
            // Of a group, those that had no room.
            env.stats.device.tx_discarded.add(missed);
        }
    }
    env.scratch.peers = peers;
    fate
}

/// Puts GRH and data into the scratch bytes.
fn payload(
    qp: &Qp,
    env: &mut Env<'_>,
    sgid: &[u8; 16],
    to: &DatagramAddress,
    message: &Message,
) -> Result<(), sge::Fault> {
    env.scratch.bytes.clear();
    let immediate = message.opcode == send_opcode::SEND_IMM;
    let header = grh::build(sgid, to, message.length, immediate);
    env.scratch.bytes.extend_from_slice(&header);
    if message.flags & send_flag::INLINE != 0 {
        qp.sq
            .inline(message.index, message.length, &mut env.scratch.bytes);
        return Ok(());
    }
    env.scratch.segments.clear();
    let sges = qp.transport.requester.sges.iter();
    sge::resolve(
        env.memory,
        qp.scope(),
        sges,
        LOCAL_READ,
        0,
        message.length,
        &mut env.scratch.segments,
    )?;
    unacked::gather(env);
    Ok(())
}

/// A MAC address in the first six bytes of a header's le64.
fn pack_mac(mac: [u8; 6]) -> u64 {
    let [a, b, c, d, e, f] = mac;
    u64::from_le_bytes([a, b, c, d, e, f, 0, 0])
}

fn unpack_mac(packed: u64) -> [u8; 6] {
    let [a, b, c, d, e, f, ..] = packed.to_le_bytes();
    [a, b, c, d, e, f]
}

/// A datagram has come: to the QP, or the members of the group, that it is for.
pub(super) fn deliver(
    receiver: &mut Receiver<'_>,
    peer: PeerId,
    header: &FrameHeader,
    data: &[u8],
) {
    let to = data
        .first_chunk()
        .and_then(grh::destination)
        .filter(|_| header.flags & flag::LAST != 0 && data.len() <= MAX_LEN);
    let Some(to) = to else {
        receiver.objects.stats.device.rx_discarded.add(1);
        return;
    };
    if header.dst_qpn == MULTICAST_QPN {
        let mut position = 0;
        while let Some(&qpn) = receiver.objects.groups.members(&to).get(position) {
            position += 1;
            if peer == PeerId::LOCAL && is_own(receiver, qpn, header) {
                continue;
            }
            to_qp(receiver, qpn, header, data, VLAN_NONE);
        }
        if position == 0 {
            receiver.objects.stats.device.rx_discarded.add(1);
        }
    } else if let Some(entry) = receiver.objects.gids.find(&to) {
        let vlan = entry.vlan.unwrap_or(VLAN_NONE);
        to_qp(receiver, header.dst_qpn, header, data, vlan);
    } else {
        receiver.objects.stats.device.rx_discarded.add(1);
    }
}

/// Whether a datagram of this device is the QP's own, and one that it does not want back.
fn is_own(receiver: &Receiver<'_>, qpn: u32, header: &FrameHeader) -> bool {
    let qp = receiver.objects.qps.get(qpn);
    header.src_qpn == qpn && qp.is_some_and(|qp| qp.caps.block_loopback)
}

const MAX_LEN: usize = (GRH_LEN + MAX_DATAGRAM) as usize;

/// Gives a datagram to a QP, if that takes it.
fn to_qp(receiver: &mut Receiver<'_>, qpn: u32, header: &FrameHeader, data: &[u8], vlan: u16) {
    let now = receiver.now;
    let taken = match receiver.engine.enter(receiver.objects, qpn, now) {
        Some((qp, mut env)) => receive(qp, &mut env, header, data, vlan),
        None => false,
    };
    if !taken {
        receiver.objects.stats.device.rx_discarded.add(1);
    }
}

/// Checks a datagram against the QP and puts it into a receive. False when it is thrown away: what is wrong with it is its sender's fault, who may
/// be anybody, so neither a receive nor the QP suffers.
fn receive(qp: &mut Qp, env: &mut Env<'_>, header: &FrameHeader, data: &[u8], vlan: u16) -> bool {
    if !matches!(qp.kind, QpKind::Ud | QpKind::Gsi) || !qp.state.receives() {
        return false;
    }
    if header.rkey != qp.attrs.qkey {
        env.stats.device.qkey_errors.add(1);
        return false;
    }
    let receive = match qp.transport.responder.receive {
        // Taken for one that was too long for it.
        Some(held) => held,
        None => match env.next_receive(qp) {
            Ok(Some(next)) => *qp.transport.responder.receive.insert(next),
            Ok(None) => return false,
            Err(_) => {
                env.fatal(qp);
                return false;
            }
        },
    };
    // At most MAX_LEN.
    let length = data.len() as u32;
    let responder = &mut qp.transport.responder;
    let sges = responder.sges.iter();
    let room: u64 = sges.map(|one| u64::from(one.length.get())).sum();
    if receive.fault.is_none() && room < u64::from(length) {
        if qp.refs.srq != 0 {
            responder.receive = None;
            env.srqs.give_back(qp.refs.srq, receive, &responder.sges);
        }
        return false;
    }
    responder.receive = None;
    let placed = match receive.fault {
        Some(vendor) => Err((cqe_status::LOC_QP_OP_ERR, vendor)),
        None => scatter(qp, env, receive.scope, data, length),
    };
    if let Err((status, vendor)) = placed {
        completion::receive_failed(qp, env, &receive, status, vendor);
        env.error(qp, None);
        return false;
    }
    let mut cqe = Cqe {
        wr_id: receive.wr_id.into(),
        status: cqe_status::SUCCESS,
        opcode: cqe_opcode::RECV,
        byte_len: length.into(),
        qpn: qp.qpn.into(),
        src_qpn: header.src_qpn.into(),
        wqe_index: receive.index.into(),
        sl: (header.aux & 15) as u8,
        smac: unpack_mac(header.addr),
        vlan: vlan.into(),
        ..Cqe::default()
    };
    let mut flags = cqe_flag::GRH | cqe_flag::ETHERNET;
    if header.flags & flag::IMM != 0 {
        flags |= cqe_flag::WITH_IMM;
        cqe.imm = header.imm;
    }
    cqe.flags = flags.into();
    env.complete(receive.cqn, &cqe, header.flags & flag::SOLICITED != 0);
    for counters in [
        (&env.stats.device.rx_messages, &env.stats.device.rx_bytes),
        (&qp.stats.rx_messages, &qp.stats.rx_bytes),
    ] {
        counters.0.add(1);
        counters.1.add(u64::from(length - GRH_LEN));
    }
    true
}

/// Writes a datagram where the receive's SGEs say.
fn scatter(
    qp: &mut Qp,
    env: &mut Env<'_>,
    scope: Scope,
    data: &[u8],
    length: u32,
) -> Result<(), sge::Fault> {
    let segments = &mut env.scratch.segments;
    segments.clear();
    let sges = qp.transport.responder.sges.iter();
    sge::resolve(
        env.memory,
        scope,
        sges,
        access::LOCAL_WRITE,
        0,
        length,
        segments,
    )?;
    let mut rest = data;
    for segment in segments.drain(..) {
        let (now, later) = rest.split_at(segment.len.min(rest.len()));
        // SAFETY: the segment was resolved from a live registration just now, and the registration cannot end while the device is
        // borrowed; `now` is no longer than the segment.
        unsafe { guest::write(segment.base, now) };
        rest = later;
    }
    Ok(())
}
