//! Connections in numbers: hundreds alive at once, thousands one after the other, and nothing left of them on either side.

use conformance::counting::{Counting, live};
use conformance::node::QpOptions;
use conformance::side::{Connection, Side, SideOptions, connect, success};
use conformance::world::{Kind, World};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Alive at once.
const ALIVE: usize = 500;
/// Rounds of them.
const ROUNDS: usize = 4;
/// In all of these.
const COUNT: usize = ALIVE * ROUNDS;
/// Bytes for each of all connections that are too few to be something left behind.
const SLACK: usize = 2;

/// A process on each node with connections to that on the other; each is used, and ended object by object.
fn round(world: &World) {
    let small = SideOptions {
        qp: QpOptions {
            sq_entries: 4,
            rq_entries: 4,
            ..Default::default()
        },
        cq_entries: 8,
        mr_len: 8192,
        contiguous: false,
    };
    let nodes = [world.a(), world.b()];
    let contexts = nodes.map(|node| node.create_context().expect("a context"));
    let mut pairs: Vec<[Side; 2]> = (0..ALIVE)
        .map(|_| [0, 1].map(|n| Side::in_context(nodes[n], contexts[n], &small)))
        .collect();
    for [a, b] in &pairs {
        connect((&a.node, &a.qp), (&b.node, &b.qp), &Connection::default());
    }
    for (n, [a, b]) in (0..).zip(&mut pairs) {
        a.write_number(b, n);
        b.write_number(a, n);
    }
    for [a, b] in &mut pairs {
        success(world, a, "a WRITE");
        success(world, b, "a WRITE back");
    }
    for (n, [a, b]) in (0_u64..).zip(&pairs) {
        for side in [a, b] {
            assert_eq!(side.mr.read(8 * (n as usize % 1024), 8), n.to_le_bytes());
        }
    }
    for side in pairs.into_iter().flatten() {
        let (node, context) = (&side.node, side.context);
        node.destroy_qp(context, side.qp.qpn).expect("DESTROY_QP");
        node.destroy_cq(context, side.cq.cqn).expect("DESTROY_CQ");
        node.dereg_mr(context, side.mr.key).expect("DEREG_MR");
        node.destroy_pd(context, side.pd).expect("DESTROY_PD");
    }
    for (node, context) in nodes.into_iter().zip(contexts) {
        node.destroy_context(context).expect("DESTROY_CONTEXT");
    }
    world.settle();
}

#[test]
fn two_thousand_connections_leave_nothing() {
    for kind in [Kind::Pair, Kind::Tcp] {
        let world = World::new(kind);
        let objects = || {
            world
                .nodes()
                .iter()
                .map(|node| {
                    node.host
                        .with_device(|device| device.stats().snapshot().objects)
                })
                .collect::<Vec<_>>()
        };
        let base = objects();
        // Tables grow until numbers that were given back are given out again.
        round(&world);
        round(&world);
        let before = live();
        for _ in 0..ROUNDS {
            round(&world);
            assert_eq!(objects(), base, "{kind:?}");
        }
        let grown = live().saturating_sub(before);
        println!(
            "{kind:?}: {grown} bytes of host memory grown in {} connections",
            COUNT
        );
        assert!(grown < SLACK * COUNT, "{kind:?}: {grown} bytes");
    }
}
