//! Frames between the fabrics themselves: GIDs, signs of life, Ethernet.

use super::TcpFabric;
use super::link::{Link, LinkEnd};
use super::receive::Malformed;
use crate::rdma::fabric::ethernet::{Destination, MAX_FRAME};
use crate::rdma::fabric::frame::{FrameHeader, kind};
use crate::rdma::fabric::{PeerId, Sink};

/// Ethernet frames taken from the local interface in one poll.
const ETHERNET_PER_POLL: usize = 64;

impl TcpFabric {
    /// A frame between the fabrics themselves.
    pub(super) fn control(&mut self, slot: usize, header: &FrameHeader, sink: &mut dyn Sink) {
        let Some(link) = &mut self.links[slot] else {
            return;
        };
        let Some(peer) = link.peer() else {
            // Nothing else is let through before it.
            self.greet(slot, sink);
            return;
        };
        let payload = link.receive.control();
        match header.kind {
            kind::PING => self.push_control(slot, kind::PONG, &[]),
            kind::GID_ADD | kind::GID_DEL if link.lane > 0 => {
                let what = format!("GIDs on lane {}", link.lane);
                self.end(slot, LinkEnd::Malformed(Malformed(what)));
            }
            kind::GID_ADD | kind::GID_DEL => {
                let (gids, _) = payload.as_chunks::<16>();
                let mut changed = false;
                if header.kind == kind::GID_ADD && !std::mem::replace(&mut link.gids_came, true) {
                    changed = self.routes.retain(peer, gids);
                    // The peer has the link, so it can have lanes.
                    if link.target.is_some() {
                        link.lanes_due = Some(self.now);
                        self.maintenance_due = true;
                    }
                }
                for gid in gids {
                    changed |= match header.kind {
                        kind::GID_ADD => self.routes.add(peer, *gid),
                        _ => self.routes.remove(peer, gid),
                    };
                }
                if changed {
                    sink.routes_changed();
                }
            }
            kind::ETHERNET => match self.switch.forward(peer, payload, self.now) {
                Destination::Interface => {
                    if self.switch.deliver(payload)
                        && let Some(peer) = self.peers.get(peer)
                    {
                        peer.stats.ethernet_rx.add(1);
                    }
                }
                _ => self.stats.ethernet.filtered.add(1),
            },
            // PONG was a sign of life, as anything is.
            _ => (),
        }
    }

    /// Queues a frame between the fabrics; the link of a peer that does not read enough for that ends.
    pub(super) fn push_control(&mut self, slot: usize, kind: u8, payload: &[u8]) {
        let Some(link) = &mut self.links[slot] else {
            return;
        };
        if !link.transmit.has_room_for_header() {
            self.end(slot, LinkEnd::Stuck);
            return;
        }
        let header = FrameHeader {
            kind,
            length: payload.len() as u32,
            ..FrameHeader::default()
        };
        link.transmit.push(&header, payload, &[]);
        self.sent(slot);
    }

    /// A frame was queued: it is counted, and the link remembered for the next flush.
    fn sent(&mut self, slot: usize) {
        let Some(link) = &mut self.links[slot] else {
            return;
        };
        if let Some(peer) = link.peer().and_then(|peer| self.peers.get(peer)) {
            peer.stats.tx_frames.add(1);
        }
        self.turns.add_unsent(slot, link);
    }

    /// Carries what the local interface sent. True if there was anything.
    pub(super) fn carry_ethernet(&mut self) -> bool {
        let mut frames = 0;
        while frames < ETHERNET_PER_POLL {
            let Some(length) = self.switch.take_outgoing(&mut self.scratch) else {
                break;
            };
            frames += 1;
            self.stats.ethernet.tx_frames.add(1);
            let frame = &self.scratch[..length.min(MAX_FRAME)];
            match self.switch.forward(PeerId::LOCAL, frame, self.now) {
                Destination::Peer(peer) => self.send_ethernet(peer, length),
                Destination::AllPeers => {
                    self.stats.ethernet.tx_flooded.add(1);
                    for slot in 0..self.links.len() {
                        let link = self.links[slot].as_ref().filter(|link| link.lane == 0);
                        if let Some(peer) = link.and_then(Link::peer) {
                            self.send_ethernet(peer, length);
                        }
                    }
                }
                Destination::Interface | Destination::Nowhere => {
                    self.stats.ethernet.filtered.add(1);
                }
            }
        }
        frames > 0
    }

    /// Queues the frame in the scratch area for a peer, or drops it.
    fn send_ethernet(&mut self, peer: PeerId, length: usize) {
        let Some(peer) = self.peers.get(peer) else {
            return;
        };
        // Frames of the network go with the bulk: it is as much as there is room for.
        if let Some(slot) = peer.slot(u8::from(peer.lanes > 1))
            && let Some(link) = &mut self.links[slot]
            && link.transmit.has_room_for_ethernet()
        {
            let header = FrameHeader {
                kind: kind::ETHERNET,
                length: length as u32,
                ..FrameHeader::default()
            };
            link.transmit
                .push_ethernet(&header, &self.scratch[..length]);
            peer.stats.ethernet_tx.add(1);
            link.unanswered = link.lane > 0;
            self.sent(slot);
        } else {
            peer.stats.ethernet_dropped.add(1);
        }
    }
}
