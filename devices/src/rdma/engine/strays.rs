//! What is owed to peers by no QP, or by none any more (docs/fabric.md, section 3): so that nobody waits for ever for one that is not there.

use std::collections::VecDeque;

use super::sink::{Class, class};
use crate::rdma::fabric::frame::{FrameHeader, kind, nak};
use crate::rdma::fabric::{Fabric, PeerId, Placement, SendError, Sink};
use crate::rdma::memory::Segment;

/// Frames that wait, at most; a peer that asks faster is not told each time.
const MAX_STRAYS: usize = 256;

/// Frames without payload that wait to be sent, in order.
#[derive(Debug, Default)]
pub(super) struct Strays(VecDeque<(PeerId, FrameHeader)>);

impl Strays {
    /// Adds a frame.
    pub fn push(&mut self, peer: PeerId, frame: FrameHeader) {
        if self.0.len() < MAX_STRAYS && self.0.back() != Some(&(peer, frame)) {
            self.0.push_back((peer, frame));
        }
    }

    /// Adds the answer to a request that no QP takes.
    pub fn refuse(&mut self, peer: PeerId, header: &FrameHeader) {
        let refusal = FrameHeader {
            kind: kind::NAK,
            dst_qpn: header.src_qpn,
            src_qpn: header.dst_qpn,
            rkey: nak::NO_QP,
            lane: header.lane,
            ..FrameHeader::default()
        };
        self.push(peer, refusal);
    }

    /// Sends what the fabric takes; what a peer's link is not there for is dropped. True if that was any.
    pub fn send(&mut self, fabric: &mut dyn Fabric) -> bool {
        let mut any = false;
        for _ in 0..self.0.len() {
            let Some((peer, frame)) = self.0.pop_front() else {
                break;
            };
            if fabric.send(peer, &frame, &[], &[]) == Err(SendError::Full) {
                self.0.push_back((peer, frame));
            } else {
                any = true;
            }
        }
        any
    }

    /// Drops what is for a peer whose link is gone.
    pub fn forget(&mut self, peer: PeerId) {
        self.0.retain(|(to, _)| *to != peer);
    }
}

/// A device without a driver: it has no QP, and says so to whoever asks for one.
#[derive(Debug, Default)]
pub struct Vacant {
    strays: Strays,
}

impl Vacant {
    /// One bounded round: takes in what has come and answers it. True if there was work.
    pub fn poll(&mut self, fabric: &mut dyn Fabric) -> bool {
        let mut worked = fabric.poll(self);
        worked |= self.strays.send(fabric);
        fabric.flush();
        worked
    }

    fn refuse(&mut self, peer: PeerId, header: &FrameHeader) {
        if class(header.kind) == Some(Class::Request) {
            self.strays.refuse(peer, header);
        }
    }
}

impl Sink for Vacant {
    fn place(
        &mut self,
        peer: PeerId,
        header: &FrameHeader,
        _: u32,
        _: &mut Vec<Segment>,
    ) -> Placement {
        self.refuse(peer, header);
        Placement::Discard
    }

    fn frame(&mut self, peer: PeerId, header: &FrameHeader, _: Placement, _: &[u8]) {
        // Others were seen by `place`.
        if kind::comes_as_data(header.kind) {
            self.refuse(peer, header);
        }
    }

    fn peer_up(&mut self, _: PeerId) {}

    fn peer_down(&mut self, peer: PeerId) {
        self.strays.forget(peer);
    }

    fn routes_changed(&mut self) {}
}
