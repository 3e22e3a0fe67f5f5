//! Multicast groups: which of our datagram QPs are in which (section 4.10). Peers hear of the groups that have members here.

use std::collections::HashMap;

use super::{Objects, QpKind};
use crate::rdma::fabric::Gid;
use crate::rdma::wire::Status;

/// Whether the GID is that of a multicast group: an IPv6 multicast address, or an IPv4 one in its mapped form.
pub fn is_multicast(gid: &Gid) -> bool {
    const MAPPED: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
    gid[0] == 0xff || gid[..12] == MAPPED && gid[12] & 0xf0 == 0xe0
}

/// All groups that have members.
pub struct Groups {
    members: HashMap<Gid, Vec<u32>>,
    max_groups: u32,
    max_members: u32,
}

impl Groups {
    pub(super) fn new(max_groups: u32, max_members: u32) -> Self {
        Groups {
            members: HashMap::new(),
            max_groups,
            max_members,
        }
    }

    /// Puts a QP in.
    ///
    /// # Errors
    /// `Exists` when it is in already, `NoResource` when there are too many groups or members.
    pub(super) fn join(&mut self, gid: &Gid, qpn: u32) -> Result<(), Status> {
        let groups = self.members.len();
        match self.members.get_mut(gid) {
            Some(members) if members.contains(&qpn) => Err(Status::Exists),
            Some(members) if members.len() < self.max_members as usize => {
                members.push(qpn);
                Ok(())
            }
            None if groups < self.max_groups as usize && self.max_members > 0 => {
                self.members.insert(*gid, vec![qpn]);
                Ok(())
            }
            _ => Err(Status::NoResource),
        }
    }

    /// Takes a QP out.
    ///
    /// # Errors
    /// `NotFound` when it is not in.
    pub(super) fn leave(&mut self, gid: &Gid, qpn: u32) -> Result<(), Status> {
        let members = self.members.get_mut(gid).ok_or(Status::NotFound)?;
        let at = members.iter().position(|member| *member == qpn);
        members.swap_remove(at.ok_or(Status::NotFound)?);
        if members.is_empty() {
            self.members.remove(gid);
        }
        Ok(())
    }

    /// Takes a QP out of all groups.
    pub(super) fn leave_all(&mut self, qpn: u32) {
        self.members.retain(|_, members| {
            members.retain(|member| *member != qpn);
            !members.is_empty()
        });
    }

    /// The QPs in a group.
    pub fn members(&self, gid: &Gid) -> &[u32] {
        self.members.get(gid).map_or(&[], Vec::as_slice)
    }

    /// The groups that have members.
    pub fn gids(&self) -> impl Iterator<Item = Gid> {
        self.members.keys().copied()
    }
}

impl Objects {
    /// Puts a datagram QP into a multicast group.
    pub(crate) fn attach(&mut self, context: u32, qpn: u32, gid: &Gid) -> Result<(), Status> {
        self.check_qp(context, qpn)?;
        let qp = self.qps.get_mut(qpn).ok_or(Status::NotFound)?;
        if qp.kind != QpKind::Ud || !is_multicast(gid) {
            return Err(Status::Invalid);
        }
        self.groups.join(gid, qpn)?;
        qp.groups += 1;
        Ok(())
    }

    /// Takes a QP out of a multicast group.
    pub(crate) fn detach(&mut self, context: u32, qpn: u32, gid: &Gid) -> Result<(), Status> {
        self.check_qp(context, qpn)?;
        let qp = self.qps.get_mut(qpn).ok_or(Status::NotFound)?;
        self.groups.leave(gid, qpn)?;
        qp.groups -= 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ipv4(last: u8) -> Gid {
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 1, 2, last]
    }

    #[test]
    fn multicast_is_told_from_unicast() {
        let mut gid = ipv4(1);
        assert!(is_multicast(&gid));
        gid[12] = 224;
        assert!(is_multicast(&gid));
        gid[12] = 223;
        assert!(!is_multicast(&gid));
        gid[12] = 240;
        assert!(!is_multicast(&gid));
        (gid[0], gid[12]) = (0xff, 1);
        assert!(is_multicast(&gid));
        (gid[0], gid[12]) = (0xfe, 224);
        assert!(!is_multicast(&gid));
    }

    #[test]
    fn groups_and_members_are_bounded_and_end_with_their_last_member() {
        let mut groups = Groups::new(2, 2);
        groups.join(&ipv4(1), 5).unwrap();
        assert_eq!(groups.join(&ipv4(1), 5), Err(Status::Exists));
        groups.join(&ipv4(1), 6).unwrap();
        assert_eq!(groups.join(&ipv4(1), 7), Err(Status::NoResource));
        groups.join(&ipv4(2), 5).unwrap();
        assert_eq!(groups.join(&ipv4(3), 5), Err(Status::NoResource));
        assert_eq!(groups.leave(&ipv4(3), 5), Err(Status::NotFound));
        assert_eq!(groups.leave(&ipv4(2), 6), Err(Status::NotFound));
        groups.leave_all(5);
        assert_eq!(groups.members(&ipv4(1)), [6]);
        assert_eq!(groups.gids().collect::<Vec<_>>(), [ipv4(1)]);
        groups.leave(&ipv4(1), 6).unwrap();
        assert_eq!(groups.gids().count(), 0);
    }
}
