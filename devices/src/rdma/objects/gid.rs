//! The GID table: the addresses that this device answers to. Its slots are filled by the driver.

use crate::rdma::fabric::Gid;
use crate::rdma::wire::{AddGidBody, GID_TYPE_ROCE_V2, Status, VLAN_NONE};

/// A slot that is filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// The GID.
    pub gid: Gid,
    /// MAC address that belongs to it.
    pub mac: [u8; 6],
    /// VLAN, if it has one.
    pub vlan: Option<u16>,
}

/// The table.
pub struct GidTable {
    slots: Vec<Option<GidEntry>>,
    /// Slots from here on are empty.
    used: usize,
}

impl GidTable {
    /// An empty table of `len` slots.
    pub(crate) fn new(len: u32) -> Self {
        GidTable {
            slots: vec![None; len as usize],
            used: 0,
        }
    }

    /// Slots, filled or not.
    pub fn capacity(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Fills a slot.
    ///
    /// # Errors
    /// `Invalid` for a slot, type or VLAN that cannot be, `Exists` for one that is filled.
    pub(crate) fn add(&mut self, body: &AddGidBody) -> Result<(), Status> {
        let vlan = match body.vlan.get() {
            VLAN_NONE => None,
            vlan if vlan < 4096 => Some(vlan),
            _ => return Err(Status::Invalid),
        };
        if body.kind != GID_TYPE_ROCE_V2 || body.gid == [0; 16] {
            return Err(Status::Invalid);
        }
        let slot = self
            .slots
            .get_mut(body.index.get() as usize)
            .ok_or(Status::Invalid)?;
        if slot.is_some() {
            return Err(Status::Exists);
        }
        *slot = Some(GidEntry {
            gid: body.gid,
            mac: body.mac,
            vlan,
        });
        self.used = self.used.max(body.index.get() as usize + 1);
        Ok(())
    }

    /// Empties a slot.
    ///
    /// # Errors
    /// `Invalid` for a slot that cannot be, `NotFound` for an empty one.
    pub(crate) fn remove(&mut self, index: u32) -> Result<(), Status> {
        let slot = self.slots.get_mut(index as usize).ok_or(Status::Invalid)?;
        slot.take().map(|_| ()).ok_or(Status::NotFound)
    }

    /// The slot's content.
    pub fn get(&self, index: u8) -> Option<&GidEntry> {
        self.slots.get(usize::from(index))?.as_ref()
    }

    /// The slot that holds the GID, one with a VLAN only when there is no other.
    pub fn find(&self, gid: &Gid) -> Option<&GidEntry> {
        let filled = self.slots[..self.used].iter().flatten();
        let mut found = filled.filter(|e| e.gid == *gid);
        let first = found.next()?;
        let plain = first.vlan.is_none();
        if plain {
            return Some(first);
        }
        found.find(|e| e.vlan.is_none()).or(Some(first))
    }

    /// All GIDs, each once.
    pub fn all(&self) -> Vec<Gid> {
        let mut gids: Vec<Gid> = self.slots.iter().flatten().map(|e| e.gid).collect();
        gids.sort_unstable();
        gids.dedup();
        gids
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rdma::wire::{Le16, Le32};

    fn body(index: u32, last: u8) -> AddGidBody {
        let mut gid = [0; 16];
        gid[15] = last;
        AddGidBody {
            index: Le32::new(index),
            kind: GID_TYPE_ROCE_V2,
            vlan: Le16::new(VLAN_NONE),
            gid,
            ..AddGidBody::default()
        }
    }

    #[test]
    fn a_slot_is_filled_once_and_emptied_once() {
        let mut table = GidTable::new(2);
        assert_eq!(table.add(&body(1, 1)), Ok(()));
        assert_eq!(table.add(&body(1, 2)), Err(Status::Exists));
        assert_eq!(table.get(1).unwrap().gid[15], 1);
        assert_eq!(table.remove(1), Ok(()));
        assert_eq!(table.remove(1), Err(Status::NotFound));
        assert!(table.all().is_empty());
    }

    #[test]
    fn what_cannot_be_is_invalid() {
        let mut table = GidTable::new(2);
        assert_eq!(table.add(&body(2, 1)), Err(Status::Invalid));
        assert_eq!(table.add(&body(0, 0)), Err(Status::Invalid));
        assert_eq!(table.remove(2), Err(Status::Invalid));
        let other_type = AddGidBody {
            kind: 1,
            ..body(0, 1)
        };
        assert_eq!(table.add(&other_type), Err(Status::Invalid));
        let vlan = AddGidBody {
            vlan: Le16::new(4096),
            ..body(0, 1)
        };
        assert_eq!(table.add(&vlan), Err(Status::Invalid));
    }
}
