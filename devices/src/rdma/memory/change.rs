//! Registrations that change under their key: REREG_MR.

use super::regions::{Kind, LOCAL_READ, Memory, State};
use super::request::check_access;
use crate::rdma::wire::Status;

/// What is to be changed of a region; None: stays as it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Change {
    /// Bits of [`crate::rdma::wire::access`].
    pub access: Option<u32>,
    /// Protection domain.
    pub pd: Option<u32>,
    /// Handle of the region whose bytes and addresses it takes over.
    pub source: Option<u32>,
}

impl Memory {
    /// Gives a region other rights, another PD, or the bytes of another region, which ends. The caller has checked the new PD and seen to it
    /// that no [`super::Segment`] of either region is left. Returns the PDs that the region and the other one were in.
    ///
    /// # Errors
    /// As [`Memory::check_deregister`], for either; `Invalid` for rights that contradict one another and a region that would take over its own
    /// bytes, `BadState` for a region that cannot be used or has no list. On an error nothing has changed.
    pub fn change(
        &mut self,
        context: u32,
        handle: u32,
        change: &Change,
    ) -> Result<(u32, Option<u32>), Status> {
        if let Some(bits) = change.access {
            check_access(bits, self.rights)?;
        }
        if change.source == Some(handle) {
            return Err(Status::Invalid);
        }
        let sound = |handle| {
            self.check_deregister(context, handle)?;
            let (key, region) = self.named(context, handle)?;
            let listed = matches!(&region.state, State::Live(layout) if layout.is_list());
            if listed && matches!(region.kind, Kind::Plain) {
                Ok((key, region.pd))
            } else {
                Err(Status::BadState)
            }
        };
        let (key, pd) = sound(handle)?;
        let source = change.source.map(sound).transpose()?;
        let other = source.and_then(|(key, _)| self.regions.remove(key));
        let region = self.regions.get_mut(key).ok_or(Status::NotFound)?;
        if let Some(bits) = change.access {
            region.access = bits | LOCAL_READ;
        }
        region.pd = change.pd.unwrap_or(pd);
        if let Some(other) = other {
            let old = std::mem::replace(&mut region.entries, other.entries);
            (region.iova, region.length, region.state) = (other.iova, other.length, other.state);
            self.refund(old);
        }
        Ok((pd, source.map(|(_, pd)| pd)))
    }
}
