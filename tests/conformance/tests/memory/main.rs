//! Registrations that change: by work request, by memory windows, by REREG_MR.

mod fast;
mod rereg;
mod unacked;
mod windows;

use conformance::layout::{Cqe, send, wc};
use conformance::node::KERNEL;
use conformance::rings::SendWr;
use conformance::side::{Connection, Side, SideOptions, connect};
use conformance::watchdog::Watchdog;
use conformance::world::{Kind, World};

const EVERY: [Kind; 3] = [Kind::Loopback, Kind::Pair, Kind::Tcp];

fn watched(kind: Kind) -> (World, Watchdog) {
    (World::new(kind), Watchdog::new("memory"))
}

/// A user of the kernel on each node, connected.
fn kernel_sides(world: &World) -> (Side, Side) {
    let options = SideOptions {
        mr_len: 256 << 10,
        ..SideOptions::default()
    };
    let a = Side::in_context(world.a(), KERNEL, &options);
    let b = Side::in_context(world.b(), KERNEL, &options);
    connect((&a.node, &a.qp), (&b.node, &b.qp), &Connection::default());
    (a, b)
}

/// Posts a work request and waits for its completion.
fn done(world: &World, side: &mut Side, wr: &SendWr<'_>) -> Cqe {
    side.send(wr);
    world.until("a completion", || side.poll())
}

/// Posts a work request, which must succeed.
fn works(world: &World, side: &mut Side, wr: &SendWr<'_>) -> Cqe {
    let cqe = done(world, side, wr);
    assert_eq!(cqe.status, wc::SUCCESS, "{cqe:?}");
    cqe
}

/// WRITEs `len` bytes of the side's region to the far one.
fn write<'a>(sges: &'a [conformance::layout::Sge], rkey: u32, remote_addr: u64) -> SendWr<'a> {
    SendWr {
        rkey,
        remote_addr,
        ..SendWr::signaled(0, send::WRITE).with_sges(sges)
    }
}
