//! UC and datagram QPs (UD, GSI), and multicast: what they carry, what they refuse, and what is lost without harm.

mod destroy;
mod multicast;
mod shared;
mod uc;
mod ud;

use conformance::layout::{DatagramAddress, qp_type};
use conformance::node::QpOptions;
use conformance::side::{Connection, Side, SideOptions};
use conformance::world::World;

/// Sides with QPs of a type.
fn options(kind: u32) -> SideOptions {
    SideOptions {
        qp: QpOptions {
            kind,
            ..Default::default()
        },
        mr_len: 256 << 10,
        ..Default::default()
    }
}

/// A UD QP in RTS and what it needs.
fn datagram_side(node: &std::sync::Arc<conformance::node::Node>) -> Side {
    let side = Side::new(node, &options(qp_type::UD));
    to_rts(&side);
    side
}

/// Two such sides, on nodes that are linked: what is sent before is lost.
fn linked(world: &World) -> (Side, Side) {
    let sides = (datagram_side(world.a()), datagram_side(world.b()));
    world.settle();
    sides
}

/// Takes a datagram QP to RTS.
fn to_rts(side: &Side) {
    for step in Connection::default().steps(&side.qp, 0, (0, [0; 16])) {
        side.node
            .modify_qp(side.qp.context, &step)
            .expect("a step to RTS");
    }
}

/// The address of a side's QP.
fn address(of: &Side) -> DatagramAddress {
    DatagramAddress {
        dest_qpn: of.qp.qpn,
        qkey: Connection::default().qkey,
        dgid: of.node.gid,
        flow_label: 0x12345,
        sgid_index: 0,
        hop_limit: 63,
        traffic_class: 0x21,
        sl: 5,
    }
}
