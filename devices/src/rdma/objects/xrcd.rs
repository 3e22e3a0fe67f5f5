//! XRC domains: section 4.17. A domain ties the SRQs that a message may name to the targets that it may come by. It belongs to no process:
//! those that share it have each their own SRQs in it, and its targets are the kernel's.

use super::{Objects, QpKind};
use crate::rdma::wire::Status;

/// An XRC domain.
#[derive(Default)]
pub(super) struct Xrcd {
    /// SRQs and targets in it.
    users: u32,
}

impl Objects {
    /// Makes an XRC domain.
    pub(crate) fn alloc_xrcd(&mut self) -> Result<u32, Status> {
        self.xrcds
            .insert_with(|_| Xrcd::default())
            .ok_or(Status::NoResource)
    }

    /// Ends an XRC domain that nothing is in.
    pub(crate) fn dealloc_xrcd(&mut self, xrcd: u32) -> Result<(), Status> {
        match self.xrcds.get(xrcd) {
            None => Err(Status::NotFound),
            Some(domain) if domain.users > 0 => Err(Status::Busy),
            Some(_) => {
                self.xrcds.remove(xrcd);
                Ok(())
            }
        }
    }

    /// Whether there is such a domain. Any context may refer to it.
    pub(crate) fn check_xrcd(&self, xrcd: u32) -> Result<(), Status> {
        self.xrcds.get(xrcd).map(drop).ok_or(Status::NotFound)
    }

    /// Counts a reference to a domain; 0 is none.
    pub(super) fn hold_xrcd(&mut self, xrcd: u32) {
        if let Some(domain) = self.xrcds.get_mut(xrcd) {
            domain.users += 1;
        }
    }

    /// Counts a reference off.
    pub(super) fn release_xrcd(&mut self, xrcd: u32) {
        if let Some(domain) = self.xrcds.get_mut(xrcd) {
            domain.users = domain.users.saturating_sub(1);
        }
    }

    /// An SRQ of a domain is about to end: no target has a receive of it any more.
    pub(super) fn detach_targets(&mut self, xrcd: u32, srqn: u32) {
        let targets = self
            .qps
            .iter_mut()
            .filter(|qp| qp.kind == QpKind::XrcTgt && qp.refs.xrcd == xrcd && qp.source() == srqn);
        for qp in targets {
            qp.transport.source_gone();
        }
    }
}
