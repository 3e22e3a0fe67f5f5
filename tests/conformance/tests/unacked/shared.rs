//! UC and UD with a shared receive queue.

use conformance::layout::{qp_type, send, wc};
use conformance::node::QpOptions;
use conformance::on_every_fabric;
use conformance::random::payload;
use conformance::rings::SendWr;
use conformance::side::{Connection, Side, SideOptions, connect, success};
use conformance::srq::Srq;
use conformance::world::World;

use super::{address, datagram_side, options, to_rts};

/// A side whose QP, in RESET, shares receives of 2,000 bytes, of which there are so many.
fn sharing(node: &std::sync::Arc<conformance::node::Node>, kind: u32, count: u64) -> (Side, Srq) {
    let mut side = Side::new(node, &SideOptions::default());
    let mut srq = side
        .node
        .create_srq(side.context, side.pd, 16, 1)
        .expect("an SRQ");
    let options = QpOptions {
        kind,
        srq: srq.srqn,
        ..Default::default()
    };
    side.qp = side
        .node
        .create_qp(side.context, side.pd, side.cq.cqn, side.cq.cqn, &options)
        .expect("a QP");
    for n in 0..count {
        let sges = [side.mr.sge(n as usize * 2048, 2000)];
        srq.post(n, &sges).expect("room");
    }
    (side, srq)
}

on_every_fabric! {
    fn datagrams_take_shared_receives_and_give_back_those_that_are_too_short(world: &World) {
        let mut from = datagram_side(world.a());
        let (mut to, mut srq) = sharing(world.b(), qp_type::UD, 2);
        to_rts(&to);
        world.settle();
        let data = payload(1, 1000);
        let too_long = [from.mr.sge(0, 3000)];
        from.send(&SendWr::signaled(1, send::SEND).with_sges(&too_long).to(address(&to)));
        success(world, &mut from, "too long, and gone");
        world.settle();
        assert!(to.poll().is_none());
        from.mr.write(0, &data);
        let sges = [from.mr.sge(0, 1000)];
        for n in 0..3 {
            // The third finds none, and is dropped.
            from.send(&SendWr::signaled(n, send::SEND).with_sges(&sges).to(address(&to)));
            success(world, &mut from, "sent");
        }
        for n in 0..2 {
            let cqe = success(world, &mut to, "received");
            assert_eq!((cqe.wr_id, cqe.byte_len), (n, 1040));
            assert_eq!(to.mr.read(n as usize * 2048 + 40, 1000), data);
        }
        world.settle();
        assert!(to.poll().is_none());
        // Nobody waits for one that does not come again.
        srq.post(9, &[to.mr.sge(0, 2000)]).expect("room");
        from.send(&SendWr::signaled(9, send::SEND).with_sges(&sges).to(address(&to)));
        assert_eq!(success(world, &mut to, "received").wr_id, 9);
    }

    fn messages_of_uc_take_shared_receives(world: &World) {
        let mut from = Side::new(world.a(), &options(qp_type::UC));
        let (mut to, mut srq) = sharing(world.b(), qp_type::UC, 1);
        connect((&from.node, &from.qp), (&to.node, &to.qp), &Connection::default());
        world.settle();
        let data = payload(2, 2000);
        from.mr.write(0, &data);
        let sges = [from.mr.sge(0, 2000)];
        for n in 0..2 {
            from.send(&SendWr::signaled(n, send::SEND).with_sges(&sges));
            success(world, &mut from, "sent");
        }
        assert_eq!(success(world, &mut to, "the first").wr_id, 0);
        assert_eq!(to.mr.read(0, 2000), data);
        world.settle();
        assert!(to.poll().is_none(), "for the second there was none");
        srq.post(7, &[to.mr.sge(0, 1000)]).expect("room");
        from.send(&SendWr::signaled(2, send::SEND).with_sges(&sges));
        let cqe = world.until("the third", || to.poll());
        assert_eq!((cqe.wr_id, cqe.status), (7, wc::LOC_LEN_ERR));
    }
}
