//! Which GID leads to whom (`docs/fabric.md`, section 4).

use std::collections::HashMap;

use super::receive::MAX_GIDS;
use crate::rdma::fabric::{Gid, PeerId};

/// Announced GIDs.
#[derive(Default)]
pub(super) struct Routes {
    own: Vec<Gid>,
    /// All who announced a GID; the last one has it.
    announced: HashMap<Gid, Vec<PeerId>>,
    counts: HashMap<PeerId, usize>,
}

impl Routes {
    /// Makes `gids` our own. Gives those that are new and those that are gone.
    pub(super) fn set_own(&mut self, gids: &[Gid]) -> (Vec<Gid>, Vec<Gid>) {
        let missing = |from: &[Gid], of: &[Gid]| -> Vec<Gid> {
            of.iter()
                .filter(|gid| !from.contains(gid))
                .copied()
                .collect()
        };
        let new = missing(&self.own, gids);
        let gone = missing(gids, &self.own);
        self.own = gids.to_vec();
        (new, gone)
    }

    /// Our own GIDs.
    pub(super) fn own(&self) -> &[Gid] {
        &self.own
    }

    /// The peer announced the GID, and so has it now. True if that changes anything. False too where it announced too many.
    pub(super) fn add(&mut self, peer: PeerId, gid: Gid) -> bool {
        let count = self.counts.entry(peer).or_default();
        let who = self.announced.entry(gid).or_default();
        if who.last() == Some(&peer) {
            return false;
        }
        match who.iter().position(|other| *other == peer) {
            Some(place) => {
                who.remove(place);
            }
            None if *count >= MAX_GIDS => {
                if who.is_empty() {
                    self.announced.remove(&gid);
                }
                return false;
            }
            None => *count += 1,
        }
        who.push(peer);
        true
    }

    /// The peer does not have the GID any more. True if that changes anything.
    pub(super) fn remove(&mut self, peer: PeerId, gid: &Gid) -> bool {
        let Some(who) = self.announced.get_mut(gid) else {
            return false;
        };
        let Some(place) = who.iter().position(|other| *other == peer) else {
            return false;
        };
        who.remove(place);
        if who.is_empty() {
            self.announced.remove(gid);
        }
        if let Some(count) = self.counts.get_mut(&peer) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&peer);
            }
        }
        true
    }

    /// Drops all GIDs of the peer but those in `kept`. True if that changes anything.
    pub(super) fn retain(&mut self, peer: PeerId, kept: &[Gid]) -> bool {
        if !self.counts.contains_key(&peer) {
            return false;
        }
        let stale = |(gid, who): (&Gid, &Vec<PeerId>)| {
            (who.contains(&peer) && !kept.contains(gid)).then_some(*gid)
        };
        let gone: Vec<Gid> = self.announced.iter().filter_map(stale).collect();
        for gid in &gone {
            self.remove(peer, gid);
        }
        !gone.is_empty()
    }

    /// Whom the GID leads to.
    pub(super) fn get(&self, gid: &Gid) -> Option<PeerId> {
        if self.own.contains(gid) {
            return Some(PeerId::LOCAL);
        }
        self.announced.get(gid)?.last().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GID: Gid = [1; 16];

    #[test]
    fn the_last_to_announce_has_the_gid_and_the_one_before_gets_it_back() {
        let mut routes = Routes::default();
        assert!(routes.add(PeerId(1), GID));
        assert!(routes.add(PeerId(2), GID));
        assert_eq!(routes.get(&GID), Some(PeerId(2)));
        assert!(!routes.add(PeerId(2), GID));
        assert!(routes.add(PeerId(1), GID));
        assert_eq!(routes.get(&GID), Some(PeerId(1)));
        assert!(routes.remove(PeerId(1), &GID));
        assert_eq!(routes.get(&GID), Some(PeerId(2)));
        assert!(routes.remove(PeerId(2), &GID));
        assert!(!routes.remove(PeerId(2), &GID));
        assert_eq!(routes.get(&GID), None);
        assert!(routes.announced.is_empty() && routes.counts.is_empty());
    }

    #[test]
    fn our_own_comes_first_and_changes_are_told() {
        let mut routes = Routes::default();
        routes.add(PeerId(1), GID);
        assert_eq!(
            routes.set_own(&[GID, [2; 16]]),
            (vec![GID, [2; 16]], vec![])
        );
        assert_eq!(routes.get(&GID), Some(PeerId::LOCAL));
        assert_eq!(
            routes.set_own(&[[2; 16], [3; 16]]),
            (vec![[3; 16]], vec![GID])
        );
        assert_eq!(routes.get(&GID), Some(PeerId(1)));
    }

    #[test]
    fn a_peer_may_announce_only_so_many() {
        let mut routes = Routes::default();
        let gid = |number: usize| (number as u128).to_le_bytes();
        for number in 0..MAX_GIDS {
            assert!(routes.add(PeerId(1), gid(number)));
        }
        assert!(!routes.add(PeerId(1), gid(MAX_GIDS)));
        assert_eq!(routes.announced.len(), MAX_GIDS);
        assert!(routes.retain(PeerId(1), &[gid(3)]));
        assert_eq!(routes.announced.len(), 1);
        assert!(!routes.retain(PeerId(1), &[gid(3)]));
    }
}
