//! XRC domains: section 4.17.

use super::queries::whole_empty;
use super::{Control, Outcome, handle, put_handle};
use crate::rdma::wire::feature;

impl Control<'_> {
    pub(super) fn alloc_xrcd(&mut self, _: u32, body: &[u8], reply: &mut Vec<u8>) -> Outcome {
        self.need(feature::XRC)?;
        let () = whole_empty(body)?;
        put_handle(reply, self.objects.alloc_xrcd()?);
        Ok(())
    }

    pub(super) fn dealloc_xrcd(&mut self, _: u32, body: &[u8], _: &mut Vec<u8>) -> Outcome {
        self.need(feature::XRC)?;
        self.objects.dealloc_xrcd(handle(body)?)
    }
}
