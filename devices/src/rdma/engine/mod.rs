//! Requester, responder and completer of each transport: state machines that own no I/O.

use std::time::Instant;

use super::fabric::frame::FrameHeader;
use super::fabric::{Fabric, PeerId, Placement, Sink};
use super::memory::Segment;
use super::objects::{Objects, QpState};

/// State of one QP's connection.
#[derive(Debug, Default)]
pub struct Transport;

impl Transport {
    /// Whether the send queue still has messages that were begun.
    pub fn is_draining(&self) -> bool {
        false
    }
}

/// What the engine remembers of all QPs.
#[derive(Debug, Default)]
pub struct Engine {}

impl Engine {
    /// The owner of a doorbell page has work.
    pub fn doorbell(&mut self, _objects: &mut Objects, _page: u32) {}

    /// A QP was taken from state `old` to that which it has.
    pub fn qp_state_changed(
        &mut self,
        _objects: &mut Objects,
        _fabric: &dyn Fabric,
        _qpn: u32,
        _old: QpState,
    ) {
    }

    /// The QP is about to go.
    pub fn qp_destroyed(&mut self, _objects: &mut Objects, _qpn: u32) {}

    /// One bounded round of everything. True if there was work.
    pub fn round(
        &mut self,
        _objects: &mut Objects,
        _fabric: &mut dyn Fabric,
        _now: Instant,
    ) -> bool {
        false
    }

    /// Asks for doorbells wherever queues will not be looked at. True when a look after that found work.
    pub fn before_sleep(&mut self, _objects: &mut Objects) -> bool {
        false
    }

    /// When the next timer goes off.
    pub fn next_timer(&self) -> Option<Instant> {
        None
    }
}

/// The device as the fabric sees it.
pub struct Receiver<'a> {
    /// The engine.
    pub engine: &'a mut Engine,
    /// The objects.
    pub objects: &'a mut Objects,
    /// The time of this round.
    pub now: Instant,
}

impl Sink for Receiver<'_> {
    fn place(&mut self, _: PeerId, _: &FrameHeader, _: u32, _: &mut Vec<Segment>) -> Placement {
        Placement::Discard
    }
    fn frame(&mut self, _: PeerId, _: &FrameHeader, _: Placement, _: &[u8]) {}
    fn peer_up(&mut self, _: PeerId) {}
    fn peer_down(&mut self, _: PeerId) {}
    fn routes_changed(&mut self) {}
}
