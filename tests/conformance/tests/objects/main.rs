//! Commands and objects: statuses, owners, limits, the state table, and every way to describe memory.

mod commands;
mod limits;
mod queues;
mod regions;
mod srq;
mod states;
mod xrc;

use conformance::layout::{RegMr, access};
use conformance::watchdog::Watchdog;
use conformance::world::{Kind, World};

fn loopback() -> (World, Watchdog) {
    (World::new(Kind::Loopback), Watchdog::new("objects"))
}

/// A request for a region with every right and an address that is at no boundary; its list is still empty.
fn reg(pd: u32, length: u64) -> RegMr {
    RegMr {
        pd,
        access: access::ALL,
        iova: 0xabcd_0000_0123,
        length,
        offset: 0,
        page_shift: 12,
        flags: 0,
        total_entries: 0,
        num_entries: 0,
        entries: Vec::new(),
    }
}
