//! Multicast groups: section 4.10.

use super::{Control, Outcome, whole};
use crate::rdma::wire::{McastBody, Status, feature};

impl Control<'_> {
    pub(super) fn attach_mcast(&mut self, context: u32, body: &[u8], _: &mut Vec<u8>) -> Outcome {
        let body = self.mcast_body(body)?;
        self.objects.attach(context, body.qpn.get(), &body.gid)?;
        if self.objects.groups.members(&body.gid).len() == 1 {
            self.announce();
        }
        Ok(())
    }

    pub(super) fn detach_mcast(&mut self, context: u32, body: &[u8], _: &mut Vec<u8>) -> Outcome {
        let body = self.mcast_body(body)?;
        self.objects.detach(context, body.qpn.get(), &body.gid)?;
        if self.objects.groups.members(&body.gid).is_empty() {
            self.announce();
        }
        Ok(())
    }

    fn mcast_body(&self, body: &[u8]) -> Result<McastBody, Status> {
        self.need(feature::UD)?;
        let body: McastBody = whole(body)?;
        if body.reserved.get() != 0 {
            return Err(Status::Invalid);
        }
        Ok(body)
    }

    /// Tells the fabric what leads here now.
    pub(super) fn announce(&mut self) {
        self.fabric.announce(&self.objects.announced());
    }

    /// Takes out a QP. The fabric holds no guest memory any more.
    pub(super) fn remove_qp(&mut self, qpn: u32) {
        self.engine.qp_destroyed(self.objects, qpn);
        let grouped = self.objects.qps.get(qpn).is_some_and(|qp| qp.groups > 0);
        self.objects.remove_qp(qpn);
        if grouped {
            self.announce();
        }
    }
}
