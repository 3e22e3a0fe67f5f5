//! Which GID leads to whom (`docs/fabric.md`, section 4).

use std::collections::HashMap;

use super::receive::MAX_GIDS;
use crate::rdma::fabric::{Gid, PeerId};

/// Announced GIDs.
#[derive(Default)]
pub(super) struct Routes {
    own: Vec<Gid>,
    /// All who announced a GID, the earliest first.
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

    /// The peer announced the GID. True if that changes anything. False too where it announced too many.
    pub(super) fn add(&mut self, peer: PeerId, gid: Gid) -> bool {
        let count = self.counts.entry(peer).or_default();
        let who = self.announced.entry(gid).or_default();
        if who.contains(&peer) {
            return false;
        }
        if *count >= MAX_GIDS {
            if who.is_empty() {
                self.announced.remove(&gid);
            }
            return false;
        }
        *count += 1;
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

    /// All whom the GID leads to, ourselves included: a multicast group's members.
    pub(super) fn all(&self, gid: &Gid) -> impl Iterator<Item = PeerId> {
        let own = self.own.contains(gid).then_some(PeerId::LOCAL);
        let others = self.announced.get(gid).into_iter().flatten();
        own.into_iter().chain(others.copied())
    }

    /// Whom the GID leads to: of those who announced it the earliest that `is_up`, so that nobody takes a GID from a peer that is
    /// there; or, when none is, the latest.
    pub(super) fn get(&self, gid: &Gid, is_up: impl Fn(PeerId) -> bool) -> Option<PeerId> {
        if self.own.contains(gid) {
            return Some(PeerId::LOCAL);
        }
        let who = self.announced.get(gid)?;
        who.iter()
            .find(|peer| is_up(**peer))
            .or(who.last())
            .copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GID: Gid = [1; 16];

    #[test]
    fn a_gid_stays_with_a_peer_that_is_there() {
        let mut routes = Routes::default();
        assert!(routes.add(PeerId(1), GID));
        assert!(routes.add(PeerId(2), GID));
        assert!(!routes.add(PeerId(2), GID));

        assert_eq!(routes.get(&GID, |_| true), Some(PeerId(1)));
        assert_eq!(routes.get(&GID, |peer| peer == PeerId(2)), Some(PeerId(2)));
        assert_eq!(routes.get(&GID, |_| false), Some(PeerId(2)));
        assert!(routes.all(&GID).eq([PeerId(1), PeerId(2)]));

        assert!(routes.remove(PeerId(1), &GID));
        assert_eq!(routes.get(&GID, |_| true), Some(PeerId(2)));
        assert!(routes.remove(PeerId(2), &GID));
        assert!(!routes.remove(PeerId(2), &GID));
        assert_eq!(routes.get(&GID, |_| true), None);
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
        assert_eq!(routes.get(&GID, |_| true), Some(PeerId::LOCAL));
        assert!(routes.all(&GID).eq([PeerId::LOCAL, PeerId(1)]));
        assert_eq!(
            routes.set_own(&[[2; 16], [3; 16]]),
            (vec![[3; 16]], vec![GID])
        );
        assert_eq!(routes.get(&GID, |_| true), Some(PeerId(1)));
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
