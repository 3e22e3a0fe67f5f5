//! User contexts and protection domains.

use super::slab::{HandleLayout, Slab};

/// The kernel's context: always there, and never in the table.
pub const KERNEL: u32 = 0;

/// A user context.
#[derive(Default)]
struct Context {
    /// Its QPs, in no order.
    qpns: Vec<u32>,
}

/// All contexts. A user context's doorbell page is its index; page 0 is the kernel's.
pub struct Contexts {
    kernel: Context,
    table: Slab<Context>,
}

impl Contexts {
    pub(super) fn new(limit: u32) -> Self {
        Contexts {
            kernel: Context::default(),
            table: Slab::new(HandleLayout::index_low(1, limit, 32), limit),
        }
    }

    /// Whether there is such a context.
    pub fn exists(&self, context: u32) -> bool {
        self.get(context).is_some()
    }

    /// User contexts that exist.
    pub fn len(&self) -> u32 {
        self.table.len()
    }

    /// Whether there are no user contexts.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Makes a context. Returns it and its doorbell page; None at the limit.
    pub(crate) fn create(&mut self) -> Option<(u32, u32)> {
        let context = self.table.insert_with(|_| Context::default())?;
        Some((context, self.table.index(context)))
    }

    /// Takes a context out, whose objects are gone. Returns its doorbell page.
    pub(crate) fn remove(&mut self, context: u32) -> Option<u32> {
        self.table.remove(context)?;
        Some(self.table.index(context))
    }

    /// The doorbell pages of user contexts.
    pub fn pages(&self) -> impl Iterator<Item = u32> {
        self.table
            .iter()
            .map(|(context, _)| self.table.index(context))
    }

    /// The doorbell page of a context.
    pub fn page(&self, context: u32) -> u32 {
        if context == KERNEL {
            0
        } else {
            self.table.index(context)
        }
    }

    /// The QPs of a doorbell page's owner; none for a page without one.
    pub fn qps_of_page(&self, page: u32) -> &[u32] {
        if page == 0 {
            return &self.kernel.qpns;
        }
        self.table
            .by_index(page)
            .map_or(&[], |context| &context.qpns)
    }

    /// The QPs of a context.
    pub fn qps(&self, context: u32) -> &[u32] {
        self.get(context).map_or(&[], |context| &context.qpns)
    }

    pub(super) fn add_qp(&mut self, context: u32, qpn: u32) {
        if let Some(context) = self.get_mut(context) {
            context.qpns.push(qpn);
        }
    }

    pub(super) fn remove_qp(&mut self, context: u32, qpn: u32) {
        if let Some(context) = self.get_mut(context)
            && let Some(at) = context.qpns.iter().position(|n| *n == qpn)
        {
            context.qpns.swap_remove(at);
        }
    }

    fn get(&self, context: u32) -> Option<&Context> {
        if context == KERNEL {
            Some(&self.kernel)
        } else {
            self.table.get(context)
        }
    }

    fn get_mut(&mut self, context: u32) -> Option<&mut Context> {
        if context == KERNEL {
            Some(&mut self.kernel)
        } else {
            self.table.get_mut(context)
        }
    }
}

/// A protection domain.
pub(super) struct Pd {
    pub context: u32,
    /// Regions and QPs in it.
    pub users: u32,
}
