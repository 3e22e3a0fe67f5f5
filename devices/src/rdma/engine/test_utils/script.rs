//! The fabric that a test plays, and the frames of its peer.

use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::time::Instant;

use super::*;
use crate::rdma::fabric::frame::{FrameHeader, flag, kind};
use crate::rdma::fabric::{Fabric, Gid, PeerId, Placement, SendError, Sink};
use crate::rdma::memory::Segment;

/// A frame that was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    pub peer: PeerId,
    pub header: FrameHeader,
    pub payload: Vec<u8>,
}

/// A fabric that a test plays.
pub struct Script {
    pub up: bool,
    pub full: bool,
    /// Frames with a payload that are taken until it is full.
    pub room: usize,
    pub heard: Option<Instant>,
    pub route: Option<PeerId>,
    pub sent: VecDeque<Sent>,
    pub forgotten: u32,
    pub lanes: u8,
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
            if !self.can_send(PEER, header.lane) {
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
    fn can_send(&self, _: PeerId, _: u8) -> bool {
        self.up && !self.full && self.room > 0
    }
    fn lanes(&self, _: PeerId) -> u8 {
        self.lanes
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
    fn members(&self, _: &Gid, into: &mut Vec<PeerId>) {
        into.push(PEER);
    }

    fn wait_fd(&self) -> RawFd {
        -1
    }
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
            lanes: 1,
        })
    }

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
pub fn from_peer(queue: &Queue, kind: u8, seq: u32) -> FrameHeader {
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
pub fn ack(queue: &Queue, seq: u32) -> FrameHeader {
    FrameHeader {
        flags: 0,
        ..from_peer(queue, kind::ACK, seq)
    }
}

/// The peer refuses `seq`.
pub fn refusal(queue: &Queue, seq: u32, code: u32, aux: u32) -> FrameHeader {
    FrameHeader {
        flags: 0,
        rkey: code,
        aux,
        ..from_peer(queue, kind::NAK, seq)
    }
}
