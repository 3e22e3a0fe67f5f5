//! Who was met, and under which number. An instance keeps its number as long as it is remembered, links or not.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use crate::rdma::fabric::PeerId;
use crate::rdma::stats::{PeerCounters, Stats};

/// Bits of a [`PeerId`] that hold the place in the list, plus one; the others count the place's holders.
const PLACE_BITS: u32 = 12;
/// Peers that are remembered.
const MAX_PEERS: usize = (1 << PLACE_BITS) - 1;

/// A fabric that was met.
pub(super) struct Peer {
    pub(super) id: PeerId,
    pub(super) instance: [u8; 16],
    /// The slot of the link in use.
    pub(super) link: Option<usize>,
    /// The slots of the link's further lanes, as many as both sides would have.
    pub(super) further: Vec<Option<usize>>,
    /// Lanes that frames may take: the first, or all of them.
    pub(super) lanes: u8,
    pub(super) heard: Option<Instant>,
    pub(super) max_frame: u32,
    pub(super) stats: Arc<PeerCounters>,
}

impl Peer {
    /// The slot of a lane of the link in use.
    #[inline]
    pub(super) fn slot(&self, lane: u8) -> Option<usize> {
        match usize::from(lane) {
            0 => self.link,
            lane => *self.further.get(lane - 1)?,
        }
    }

    /// The slots of all lanes of the link in use.
    pub(super) fn slots(&self) -> impl Iterator<Item = usize> + use<'_> {
        self.link
            .into_iter()
            .chain(self.further.iter().copied().flatten())
    }
}

/// All that were met.
#[derive(Default)]
pub(super) struct Peers {
    list: Vec<Peer>,
    places: HashMap<[u8; 16], usize>,
}

impl Peers {
    fn place(id: PeerId) -> usize {
        // LOCAL has place 0 and wraps to one that no list reaches.
        ((id.0 & MAX_PEERS as u32) as usize).wrapping_sub(1)
    }

    /// The peer of that number, if it is remembered.
    pub(super) fn get(&self, id: PeerId) -> Option<&Peer> {
        let peer = self.list.get(Self::place(id))?;
        (peer.id == id).then_some(peer)
    }

    /// The same, to change.
    pub(super) fn get_mut(&mut self, id: PeerId) -> Option<&mut Peer> {
        let peer = self.list.get_mut(Self::place(id))?;
        (peer.id == id).then_some(peer)
    }

    /// The number of an instance.
    pub(super) fn find(&self, instance: &[u8; 16]) -> Option<PeerId> {
        self.places
            .get(instance)
            .and_then(|place| self.list.get(*place))
            .map(|peer| peer.id)
    }

    /// Whether a link to the instance is in use.
    pub(super) fn is_linked(&self, instance: &[u8; 16]) -> bool {
        self.find(instance)
            .and_then(|id| self.get(id))
            .is_some_and(|peer| peer.link.is_some())
    }

    /// The number of an instance, a new one if it is not remembered. Where there is no room, the peer without link that was silent the
    /// longest is forgotten (the second value); `None` if all have links.
    pub(super) fn meet(
        &mut self,
        instance: [u8; 16],
        stats: &Stats,
    ) -> Option<(PeerId, Option<PeerId>)> {
        if let Some(id) = self.find(&instance) {
            return Some((id, None));
        }
        let (place, forgotten) = if self.list.len() < MAX_PEERS {
            (self.list.len(), None)
        } else {
            let unlinked = self.list.iter().enumerate();
            let (place, peer) = unlinked
                .filter(|(_, peer)| peer.link.is_none())
                .min_by_key(|(_, peer)| peer.heard)?;
            (place, Some(peer.id))
        };
        let holder = forgotten.map_or(0, |id| (id.0 >> PLACE_BITS).wrapping_add(1));
        let id = PeerId(holder << PLACE_BITS | (place as u32 + 1));
        let peer = Peer {
            id,
            instance,
            link: None,
            further: Vec::new(),
            lanes: 1,
            heard: None,
            max_frame: 0,
            stats: Arc::default(),
        };
        stats.add_peer(hexadecimal(&instance), peer.stats.clone());
        self.places.insert(instance, place);
        match self.list.get_mut(place) {
            Some(old) => {
                self.places.remove(&old.instance);
                stats.remove_peer(&hexadecimal(&old.instance));
                *old = peer;
            }
            None => self.list.push(peer),
        }
        Some((id, forgotten))
    }
}

/// Bytes as hexadecimal digits: how an instance is shown.
pub(super) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instance(number: usize) -> [u8; 16] {
        (number as u128).to_le_bytes()
    }

    #[test]
    fn an_instance_keeps_its_number_and_local_is_nobody() {
        let (mut peers, stats) = (Peers::default(), Stats::default());
        let (first, _) = peers.meet(instance(1), &stats).unwrap();
        let (second, _) = peers.meet(instance(2), &stats).unwrap();
        assert_ne!(first, second);
        assert_eq!(peers.meet(instance(1), &stats), Some((first, None)));
        assert!(peers.get(PeerId::LOCAL).is_none() && peers.get(PeerId(3)).is_none());
    }

    #[test]
    fn the_list_is_bounded_and_a_number_is_not_given_twice() {
        let (mut peers, stats) = (Peers::default(), Stats::default());
        for number in 0..MAX_PEERS {
            let (id, _) = peers.meet(instance(number), &stats).unwrap();
            let peer = peers.get_mut(id).unwrap();
            peer.link = (number != 5).then_some(number);
        }
        let old = peers.find(&instance(5)).unwrap();
        let (new, forgotten) = peers.meet(instance(9999), &stats).unwrap();
        assert_eq!(forgotten, Some(old));
        assert_ne!(new, old);
        assert_eq!(stats.snapshot().peers.len(), MAX_PEERS);
        assert!(peers.get(old).is_none() && peers.find(&instance(5)).is_none());
        peers.get_mut(new).unwrap().link = Some(0);
        assert_eq!(peers.meet(instance(10_000), &stats), None);
    }
}
