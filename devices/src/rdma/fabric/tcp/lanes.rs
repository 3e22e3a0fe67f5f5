//! Further lanes of a link: dialled by whoever dialled the link, joined to it, and lost with it (`docs/fabric.md`, section 9).

use std::net::SocketAddr;
use std::time::Instant;

use super::TcpFabric;
use super::hello::Hello;
use super::link::{Link, LinkEnd, Phase, Whole};
use super::socket;
use crate::rdma::fabric::{PeerId, Sink};

impl TcpFabric {
    /// Dials the lanes that a link of ours is to have and has not.
    pub(super) fn dial_lanes(&mut self, slot: usize) {
        let Some(link) = &mut self.links[slot] else {
            return;
        };
        link.lanes_due = None;
        let address = link.address;
        let whole = Whole {
            slot,
            generation: link.generation,
        };
        let Some(peer) = link.peer().and_then(|peer| self.peers.get(peer)) else {
            return;
        };
        // Not more than MAX_LANES.
        let further = peer.further.len() as u8;
        for lane in 1..=further {
            let links = self.links.iter().flatten();
            let mut lanes = links.filter(|link| link.whole == Some(whole));
            if lanes.any(|other| other.lane == lane) {
                continue;
            }
            let dialled = socket::dial(address, self.config.send_buffer).and_then(|stream| {
                self.add_link(
                    stream,
                    address,
                    Phase::Connecting,
                    None,
                    Some((whole, lane)),
                )
            });
            if let Err(error) = dialled {
                self.lane_missing(whole, address, &error.into());
            }
        }
    }

    /// A lane did not come about, and is to be dialled again. The link does without meanwhile.
    pub(super) fn lane_missing(&mut self, whole: Whole, address: SocketAddr, reason: &LinkEnd) {
        if let Some(link) = &mut self.links[whole.slot]
            && link.generation == whole.generation
        {
            log::debug!("fabric: {address}: no further lane: {reason}");
            link.lanes_due = Some(Instant::now() + self.config.timing.redial_max);
            self.maintenance_due = true;
        }
    }

    /// HELLO came on a connection that is a further lane: which one, of which peer's link.
    fn place_of(&self, link: &Link, hello: &Hello) -> Option<(PeerId, u8)> {
        let id = self.peers.find(&hello.instance)?;
        let peer = self.peers.get(id)?;
        let slot = peer.link?;
        let first = self.links[slot].as_ref()?;
        let (lane, belongs) = match link.whole {
            Some(whole) => (
                link.lane,
                whole.slot == slot && whole.generation == first.generation,
            ),
            None => (
                hello.lane,
                first.target.is_none() && first.number == hello.link,
            ),
        };
        let place = peer.further.get(usize::from(lane).checked_sub(1)?)?;
        (belongs && first.end.is_none() && place.is_none()).then_some((id, lane))
    }

    /// Makes a connection whose HELLO came a lane of the link that it belongs to.
    pub(super) fn join(&mut self, slot: usize, hello: &Hello) {
        let Some(link) = &self.links[slot] else {
            return;
        };
        let place = self.place_of(link, hello);
        let (Some((id, lane)), Some(link)) = (place, &mut self.links[slot]) else {
            return self.end(slot, LinkEnd::NoLink);
        };
        let Some(peer) = self.peers.get_mut(id) else {
            return;
        };
        // Until now it was among first lanes, if the peer dialled it. It is being read from, so it comes on no list of those to be read by this.
        self.turns.forget(slot, link);
        link.phase = Phase::Up(id);
        link.lane = lane;
        link.receive.lane = lane;
        if !link.transmit.is_empty() {
            self.turns.add_unsent(slot, link);
        }
        peer.further[usize::from(lane) - 1] = Some(slot);
        peer.stats.lanes_up.add(1);
        peer.stats.rx_bytes.add(link.received);
        peer.stats.tx_bytes.add(link.transmit.sent());
        if peer.further.iter().all(Option::is_some) {
            // Not more than MAX_LANES.
            peer.lanes = 1 + peer.further.len() as u8;
        }
        log::debug!(
            "fabric: {}: lane {lane} to peer {} is up",
            link.address,
            id.0
        );
        self.maintenance_due = true;
    }

    /// A connection of a link has ended, and with it the link. What came on its other lanes is still taken.
    pub(super) fn lose_whole(&mut self, slot: usize, id: PeerId, sink: &mut dyn Sink) {
        let Some(peer) = self.peers.get(id) else {
            return;
        };
        let slots: Vec<usize> = peer.slots().collect();
        if !slots.contains(&slot) {
            return;
        }
        for other in slots.iter().filter(|other| **other != slot) {
            self.read_last(*other, sink);
        }
        self.lose(slots[0], id, sink);
        self.end(slots[0], LinkEnd::Whole);
    }

    /// Ends the further lanes of a link, those on their way too.
    pub(super) fn end_lanes(&mut self, slot: usize, id: PeerId) {
        let Some(peer) = self.peers.get_mut(id) else {
            return;
        };
        peer.lanes = 1;
        let further = std::mem::take(&mut peer.further);
        for lane in further.into_iter().flatten() {
            self.end(lane, LinkEnd::Whole);
        }
        let generation = self.links[slot].as_ref().map(|link| link.generation);
        for other in 0..self.links.len() {
            if let Some(link) = &self.links[other]
                && let Some(whole) = link.whole
                && (whole.slot, Some(whole.generation)) == (slot, generation)
            {
                self.end(other, LinkEnd::Whole);
            }
        }
    }
}
