//! The semantics that verbs programs rely on, point by point: `docs/verbs.md` has the list and says which test stands for which point. Here are those
//! that stand nowhere else, over each transport that they apply to, and a look at the list itself.

mod errors;
mod fields;
mod list;
mod order;
mod states;

use conformance::layout::{DatagramAddress, qp_type};
use conformance::node::QpOptions;
use conformance::rings::SendWr;
use conformance::side::{Connection, Side, SideOptions, connected};
use conformance::world::World;

/// RC, UC and UD.
const KINDS: [u32; 3] = [qp_type::RC, qp_type::UC, qp_type::UD];

/// Bytes before a datagram's data.
const GRH: usize = 40;

/// Two sides with QPs of a type, in RTS; for UC and RC connected.
fn sides_of(world: &World, kind: u32) -> (Side, Side) {
    let options = SideOptions {
        qp: QpOptions {
            kind,
            ..Default::default()
        },
        ..Default::default()
    };
    let sides = connected(world, &options, &Connection::default());
    // What nobody acknowledges is lost before there is a link.
    world.settle();
    sides
}

/// The request, with the address of `to` if it is a datagram.
fn addressed<'a>(wr: SendWr<'a>, to: &Side) -> SendWr<'a> {
    if to.qp.kind != qp_type::UD {
        return wr;
    }
    wr.to(DatagramAddress {
        dest_qpn: to.qp.qpn,
        qkey: Connection::default().qkey,
        dgid: to.node.gid,
        hop_limit: 63,
        ..Default::default()
    })
}
