//! Shared receive queues: sections 4.12 and 6.1.

use std::collections::HashSet;
use std::sync::Arc;

use conformance::layout::{Cqe, Status, event, send, state, wc, wc_opcode};
use conformance::node::{Context, Mr, Node, QpOptions};
use conformance::on_every_fabric;
use conformance::random::payload;
use conformance::rings::{Cq, Qp, SendWr};
use conformance::side::{Connection, Side, SideOptions, connect, success, to_state};
use conformance::srq::Srq;
use conformance::watchdog::Watchdog;
use conformance::world::{Kind, World};
use devices::rdma::fabric::pair;

/// A process whose QPs share one receive queue.
struct Server {
    node: Arc<Node>,
    context: Context,
    pd: u32,
    cq: Cq,
    srq: Srq,
    mr: Mr,
    qps: Vec<Qp>,
}

/// Bytes of the receive with a wr_id, which has that place in the server's region.
const SLOT: usize = 1024;

impl Server {
    fn new(node: &Arc<Node>, entries: u32) -> Server {
        let context = node.create_context().expect("a context");
        let pd = node.create_pd(context).expect("a PD");
        Server {
            cq: node.create_cq(context, 1024, 0).expect("a CQ"),
            srq: node.create_srq(context, pd, entries, 2).expect("an SRQ"),
            mr: node.mr(context, pd, 64 * SLOT),
            node: node.clone(),
            context,
            pd,
            qps: Vec::new(),
        }
    }

    /// Another QP in RESET. Its place.
    fn qp(&mut self) -> usize {
        let options = QpOptions {
            srq: self.srq.srqn,
            ..Default::default()
        };
        let qp = self
            .node
            .create_qp(self.context, self.pd, self.cq.cqn, self.cq.cqn, &options)
            .expect("a QP");
        self.qps.push(qp);
        self.qps.len() - 1
    }

    /// A client on another node, connected to a new QP.
    fn client(&mut self, node: &Arc<Node>, connection: &Connection) -> Side {
        let client = Side::new(node, &SideOptions::default());
        let n = self.qp();
        connect(
            (&client.node, &client.qp),
            (&self.node, &self.qps[n]),
            connection,
        );
        client
    }

    fn post(&mut self, wr_id: u64) {
        let at = wr_id as usize % 64 * SLOT;
        // In two parts, of which the first is short.
        let sges = [self.mr.sge(at, 100), self.mr.sge(at + 100, SLOT - 100)];
        self.srq.post(wr_id, &sges).expect("room in the SRQ");
    }

    /// The next CQE, which says success.
    fn received(&mut self, world: &World) -> Cqe {
        let cqe = world.until("a receive", || self.cq.poll());
        assert_eq!(
            (cqe.status, cqe.opcode),
            (wc::SUCCESS, wc_opcode::RECV),
            "{cqe:?}"
        );
        cqe
    }
}

fn post_send(client: &mut Side, wr_id: u64, data: &[u8]) {
    client.mr.write(0, data);
    let sges = [client.mr.sge(0, data.len())];
    client.send(&SendWr::signaled(wr_id, send::SEND).with_sges(&sges));
}

on_every_fabric! {
    fn messages_of_all_connections_share_the_receives(world: &World) {
        let mut server = Server::new(world.b(), 64);
        let mut clients: Vec<Side> = (0..8).map(|_| server.client(world.a(), &Connection::default())).collect();
        let mut seen = HashSet::new();
        for round in 0..40u64 {
            for n in 0..8 {
                server.post(round * 8 + n);
            }
            for (n, client) in clients.iter_mut().enumerate() {
                post_send(client, round, &payload(round * 8 + n as u64, 900 + n));
            }
            for _ in 0..8 {
                let cqe = server.received(world);
                let n = server.qps.iter().position(|qp| qp.qpn == cqe.qpn).expect("one of its QPs");
                assert_eq!(cqe.byte_len as usize, 900 + n);
                assert!(seen.insert(cqe.wr_id), "{cqe:?} twice");
                let got = server.mr.read(cqe.wr_id as usize % 64 * SLOT, 900 + n);
                assert_eq!(got, payload(round * 8 + n as u64, 900 + n));
            }
            for client in &mut clients {
                success(world, client, "the send");
            }
        }
        assert_eq!(seen, (0..320).collect());
        assert_eq!(server.srq.left(), 0);
    }

    fn a_write_with_immediate_takes_one_too(world: &World) {
        let mut server = Server::new(world.b(), 4);
        let mut client = server.client(world.a(), &Connection::default());
        server.post(7);
        client.send(&SendWr { imm: [1, 2, 3, 4], ..SendWr::signaled(1, send::WRITE_IMM) });
        success(world, &mut client, "the write");
        let cqe = world.until("a receive", || server.cq.poll());
        assert_eq!((cqe.wr_id, cqe.opcode, cqe.imm), (7, wc_opcode::RECV_RDMA_WITH_IMM, [1, 2, 3, 4]));
        assert_eq!(server.srq.left(), 0);
    }

    fn an_empty_queue_is_not_ready_for_whoever_comes(world: &World) {
        let mut server = Server::new(world.b(), 4);
        let mut patient = server.client(world.a(), &Connection::default());
        let mut hasty = server.client(world.a(), &Connection { rnr_retry: 0, ..Default::default() });
        post_send(&mut patient, 1, &[1; 10]);
        post_send(&mut hasty, 2, &[2; 10]);
        let cqe = world.until("the end of no patience", || hasty.poll());
        assert_eq!((cqe.wr_id, cqe.status), (2, wc::RNR_RETRY_EXC_ERR));
        assert!(patient.poll().is_none() && server.cq.poll().is_none());
        server.post(9);
        assert_eq!(server.received(world).wr_id, 9);
        success(world, &mut patient, "the patient one");
        assert!(world.b().counters().rnr_nak_sent >= 2);
    }

    fn semantics_18_srq_limit_fires_once_and_the_limit_becomes_0(world: &World) {
        let mut server = Server::new(world.b(), 16);
        let mut clients: Vec<Side> = (0..2).map(|_| server.client(world.a(), &Connection::default())).collect();
        let node = server.node.clone();
        node.events.take_asynchronous();
        for n in 0..8 {
            server.post(n);
        }
        node.limit_srq(&server.srq, 6).expect("MODIFY_SRQ");
        assert_eq!(node.query_srq(server.context, server.srq.srqn).expect("QUERY_SRQ").limit, 6);
        let limit = (event::SRQ_LIMIT, server.srq.srqn);
        for n in 0..8u64 {
            post_send(&mut clients[n as usize % 2], n, &[n as u8; 8]);
            server.received(world);
            world.settle();
            let expected: &[_] = if n == 2 { &[limit] } else { &[] };
            let events = node.events.take_asynchronous();
            assert_eq!(events, expected, "with {} left", server.srq.left());
            let armed = node.query_srq(server.context, server.srq.srqn).expect("QUERY_SRQ").limit;
            assert_eq!(armed, if n < 2 { 6 } else { 0 });
        }
        // Armed again it fires again, and at once when fewer wait already; 0 disarms.
        node.limit_srq(&server.srq, 3).expect("MODIFY_SRQ");
        world.settle();
        assert_eq!(node.events.take_asynchronous(), [limit]);
        for n in 0..4 {
            server.post(n);
        }
        node.limit_srq(&server.srq, 4).expect("MODIFY_SRQ");
        node.limit_srq(&server.srq, 0).expect("MODIFY_SRQ");
        post_send(&mut clients[0], 99, &[1]);
        server.received(world);
        world.settle();
        assert_eq!(node.events.take_asynchronous(), []);
    }

    fn semantics_18_last_wqe_reached_once_and_the_receives_stay(world: &World) {
        let mut server = Server::new(world.b(), 16);
        let mut clients: Vec<Side> = (0..2).map(|_| server.client(world.a(), &Connection::default())).collect();
        let node = server.node.clone();
        for n in 0..3 {
            server.post(n);
        }
        post_send(&mut clients[0], 1, &[1]);
        server.received(world);
        node.events.take_asynchronous();
        for round in 0..3 {
            to_state(&node, &server.qps[0], state::ERR).expect("ERR");
            world.settle();
            assert_eq!(node.events.take_asynchronous(), [(event::LAST_WQE_REACHED, server.qps[0].qpn)], "round {round}");
            assert!(server.cq.poll().is_none(), "what is in the SRQ does not flush");
            // Not again in ERR, only after RESET.
            to_state(&node, &server.qps[0], state::ERR).expect("ERR");
            world.settle();
            assert_eq!(node.events.take_asynchronous(), []);
            to_state(&node, &server.qps[0], state::RESET).expect("RESET");
        }
        for n in 1..3 {
            post_send(&mut clients[1], n, &[2]);
            assert_eq!(server.received(world).wr_id, n, "the other has them");
        }
        // An error that comes by itself ends in it too.
        server.post(3);
        let bad = SendWr { rkey: 1, remote_addr: 1, ..SendWr::signaled(9, send::WRITE).with_inline(&[1; 8]) };
        clients[1].send(&bad);
        world.settle();
        let events: HashSet<_> = node.events.take_asynchronous().into_iter().collect();
        let qpn = server.qps[1].qpn;
        assert!(events.contains(&(event::LAST_WQE_REACHED, qpn)), "{events:?}");
        assert!(events.contains(&(event::QP_ACCESS_ERR, qpn)), "{events:?}");
    }

    fn memory_is_that_of_the_queue_s_domain(world: &World) {
        let mut server = Server::new(world.b(), 16);
        // The QPs are in another PD than the SRQ.
        server.pd = server.node.create_pd(server.context).expect("a PD");
        let mut client = server.client(world.a(), &Connection::default());
        server.post(1);
        post_send(&mut client, 1, &[5; 300]);
        assert_eq!(server.received(world).wr_id, 1);
        assert_eq!(server.mr.read(SLOT, 300), [5; 300]);
        success(world, &mut client, "the send");
        let foreign = server.node.mr(server.context, server.pd, 4096);
        let sge = [foreign.sge(0, 4096)];
        server.srq.post(2, &sge).expect("room");
        server.post(3);
        post_send(&mut client, 2, &[6; 300]);
        let cqe = world.until("a receive", || server.cq.poll());
        assert_eq!((cqe.wr_id, cqe.status), (2, wc::LOC_PROT_ERR));
        let cqe = world.until("the send", || client.poll());
        assert_eq!((cqe.wr_id, cqe.status), (2, wc::REM_OP_ERR));
        world.settle();
        assert_eq!(server.srq.left(), 1, "the next stays for others");
    }

    fn a_receive_that_cannot_be_harms_the_message_that_takes_it_only(world: &World) {
        let mut server = Server::new(world.b(), 16);
        let mut clients: Vec<Side> = (0..2).map(|_| server.client(world.a(), &Connection::default())).collect();
        server.post(1);
        // More SGEs than it may have, written where a process can.
        let slot = server.srq.slot(0);
        // SAFETY: a slot of the SRQ's own ring; the device does not look at it before a message comes.
        unsafe { slot.add(8).cast::<u16>().write_volatile(3) };
        server.post(2);
        post_send(&mut clients[0], 1, &[1; 10]);
        let cqe = world.until("a receive", || server.cq.poll());
        assert_eq!((cqe.wr_id, cqe.status, cqe.qpn), (1, wc::LOC_QP_OP_ERR, server.qps[0].qpn));
        assert_eq!(world.until("the send", || clients[0].poll()).status, wc::REM_OP_ERR);
        post_send(&mut clients[1], 2, &[2; 10]);
        assert_eq!(server.received(world).wr_id, 2);
        success(world, &mut clients[1], "the other goes on");
    }

    fn a_producer_that_lies_ends_that_queue_and_no_other(world: &World) {
        for lie in [17u32, 1 << 31, u32::MAX] {
            let mut server = Server::new(world.b(), 16);
            let mut clients: Vec<Side> = (0..2).map(|_| server.client(world.a(), &Connection::default())).collect();
            let mut other = Server::new(world.b(), 16);
            let mut bystander = other.client(world.a(), &Connection::default());
            let node = server.node.clone();
            node.events.take_asynchronous();
            server.srq.producer_word().store(lie, std::sync::atomic::Ordering::Release);
            for (n, client) in clients.iter_mut().enumerate() {
                post_send(client, n as u64, &[1]);
                let cqe = world.until("the send", || client.poll());
                assert_eq!(cqe.status, wc::REM_OP_ERR, "{cqe:?}");
            }
            world.settle();
            assert_eq!(server.srq.flags(), 1);
            let srqn = server.srq.srqn;
            let mut events = node.events.take_asynchronous();
            assert_eq!(events.remove(0), (event::SRQ_ERR, srqn));
            let wanted: HashSet<_> = server.qps.iter().flat_map(|qp| [(event::QP_FATAL, qp.qpn), (event::LAST_WQE_REACHED, qp.qpn)]).collect();
            assert_eq!(events.len(), 4, "each once: {events:?}");
            assert_eq!(events.into_iter().collect::<HashSet<_>>(), wanted);
            other.post(5);
            post_send(&mut bystander, 1, &[1]);
            assert_eq!(other.received(world).wr_id, 5);
            // All of it can be taken down.
            for qp in &server.qps {
                node.destroy_qp(server.context, qp.qpn).expect("DESTROY_QP");
            }
            node.destroy_srq(server.context, srqn).expect("DESTROY_SRQ");
            for client in clients.iter().chain([&bystander]) {
                client.node.destroy_context(client.context).expect("DESTROY_CONTEXT");
            }
            node.destroy_context(other.context).expect("DESTROY_CONTEXT");
        }
    }

    fn it_grows_and_shrinks_under_traffic(world: &World) {
        let mut server = Server::new(world.b(), 8);
        let mut client = server.client(world.a(), &Connection::default());
        let node = server.node.clone();
        let (mut posted, mut received) = (0u64, 0u64);
        for entries in [8u32, 32, 4, 4, 16, 1, 2, 64] {
            node.resize_srq(&mut server.srq, entries).expect("MODIFY_SRQ");
            let now = node.query_srq(server.context, server.srq.srqn).expect("QUERY_SRQ");
            assert_eq!((now.entries, now.max_sge), (entries, 2));
            for _ in 0..100 {
                while server.srq.left() < entries.min(8) {
                    server.post(posted);
                    posted += 1;
                }
                let data = payload(received, 700);
                post_send(&mut client, received, &data);
                let cqe = server.received(world);
                assert_eq!(cqe.wr_id, received, "in the order of posting");
                assert_eq!(server.mr.read(received as usize % 64 * SLOT, 700), data);
                success(world, &mut client, "the send");
                received += 1;
            }
            // The next ring may hold no more than that.
            while server.srq.left() > 1 {
                post_send(&mut client, received, &[1]);
                assert_eq!(server.received(world).wr_id, received);
                success(world, &mut client, "the send");
                received += 1;
            }
        }
    }

    fn connections_have_their_share(world: &World) {
        let mut server = Server::new(world.b(), 4);
        let mut clients: Vec<Side> = (0..6).map(|_| server.client(world.a(), &Connection::default())).collect();
        let (mut posted, mut got) = (0u64, [0u32; 6]);
        let mut sent = [0u32; 6];
        // All send as fast as they can, and receives are few.
        while got.iter().all(|n| *n < 300) {
            for (client, sent) in clients.iter_mut().zip(&mut sent) {
                while *sent < 400 && client.qp.post_send(&SendWr::signaled(1, send::SEND).with_inline(&[1; 8])).is_ok() {
                    *sent += 1;
                }
                while let Some(cqe) = client.poll() {
                    assert_eq!(cqe.status, wc::SUCCESS);
                }
            }
            while server.srq.left() < 4 {
                server.post(posted);
                posted += 1;
            }
            world.step();
            while let Some(cqe) = server.cq.poll() {
                got[server.qps.iter().position(|qp| qp.qpn == cqe.qpn).expect("one of them")] += 1;
            }
        }
        // Without turns there are some that get none at all.
        assert!(got.iter().all(|n| *n >= 40), "{got:?}");
    }
}

/// A message of many frames of which some are still to come, into a server's first QP.
fn begun(world: &World, server: &mut Server) -> Side {
    let options = SideOptions {
        mr_len: 4 << 20,
        contiguous: true,
        ..Default::default()
    };
    let mut client = Side::new(world.a(), &options);
    server.mr = server
        .node
        .mr_contiguous(server.context, server.pd, 4 << 20);
    let n = server.qp();
    connect(
        (&client.node, &client.qp),
        (&server.node, &server.qps[n]),
        &Connection::default(),
    );
    let sges = [server.mr.sge(0, 4 << 20)];
    server.srq.post(77, &sges).expect("room");
    world.control().pace(pair::Side::Right, 64 << 10);
    let sges = [client.mr.sge(0, 4 << 20)];
    client.send(&SendWr::signaled(1, send::SEND).with_sges(&sges));
    world.until("the receive is taken", || {
        (server.srq.left() == 0).then_some(())
    });
    for _ in 0..5 {
        world.step();
    }
    assert!(server.cq.poll().is_none(), "more is to come");
    client
}

#[test]
fn a_message_in_progress_holds_its_receive_and_flushes_it() {
    let _watchdog = Watchdog::new("in progress");
    let world = World::new(Kind::Pair);
    let mut server = Server::new(world.b(), 4);
    let _client = begun(&world, &mut server);
    let node = server.node.clone();
    node.events.take_asynchronous();
    to_state(&node, &server.qps[0], state::ERR).expect("ERR");
    let cqe = world.until("the receive", || server.cq.poll());
    assert_eq!(
        (cqe.wr_id, cqe.status, cqe.qpn),
        (77, wc::WR_FLUSH_ERR, server.qps[0].qpn)
    );
    world.until("the event", || {
        (!node.events.asynchronous().is_empty()).then_some(())
    });
    assert_eq!(
        node.events.take_asynchronous(),
        [(event::LAST_WQE_REACHED, server.qps[0].qpn)]
    );
}

#[test]
fn a_receive_held_by_a_queue_pair_that_goes_serves_another() {
    let _watchdog = Watchdog::new("given back");
    for how in ["destroyed", "reset"] {
        let world = World::new(Kind::Pair);
        let mut server = Server::new(world.b(), 4);
        let _client = begun(&world, &mut server);
        let node = server.node.clone();
        if how == "reset" {
            to_state(&node, &server.qps[0], state::RESET).expect("RESET");
        } else {
            node.destroy_qp(server.context, server.qps[0].qpn)
                .expect("DESTROY_QP");
        }
        assert!(server.cq.poll().is_none());
        world.control().pace(pair::Side::Right, usize::MAX);
        let mut next = server.client(world.a(), &Connection::default());
        server.srq.post(78, &[]).expect("room");
        let data = payload(3, 5000);
        post_send(&mut next, 1, &data);
        let cqe = server.received(&world);
        assert_eq!((cqe.wr_id, cqe.byte_len), (77, 5000), "{how}");
        assert_eq!(server.mr.read(0, 5000), data);
        post_send(&mut next, 2, &[]);
        assert_eq!(server.received(&world).wr_id, 78);
    }
}

#[test]
fn a_region_that_goes_is_not_written_through_a_shared_receive() {
    let _watchdog = Watchdog::new("deregistered");
    let world = World::new(Kind::Pair);
    let mut server = Server::new(world.b(), 4);
    let mut client = begun(&world, &mut server);
    server
        .node
        .dereg_mr(server.context, server.mr.key)
        .expect("DEREG_MR");
    let before = server.mr.read(0, 4 << 20);
    let cqe = world.until("the receive", || server.cq.poll());
    assert_eq!((cqe.wr_id, cqe.status), (77, wc::LOC_PROT_ERR));
    assert_eq!(
        world.until("the send", || client.poll()).status,
        wc::REM_OP_ERR
    );
    assert!(
        server.mr.read(0, 4 << 20) == before,
        "memory was written after DEREG_MR"
    );
}

#[test]
fn sixty_four_connections_and_several_processes() {
    let _watchdog = Watchdog::new("64 QPs");
    let world = World::new(Kind::Loopback);
    let mut servers: Vec<Server> = (0..3).map(|_| Server::new(world.b(), 64)).collect();
    for server in &mut servers {
        let mut clients: Vec<Side> = (0..64)
            .map(|_| server.client(world.a(), &Connection::default()))
            .collect();
        for round in 0..10u64 {
            for n in 0..64 {
                server.post(n);
            }
            for (n, client) in clients.iter_mut().enumerate() {
                post_send(client, round, &(n as u64).to_le_bytes());
            }
            let mut seen = HashSet::new();
            for _ in 0..64 {
                let cqe = server.received(&world);
                let n = server
                    .qps
                    .iter()
                    .position(|qp| qp.qpn == cqe.qpn)
                    .expect("its own QP");
                assert_eq!(
                    server.mr.read(cqe.wr_id as usize * SLOT, 8),
                    (n as u64).to_le_bytes()
                );
                assert!(seen.insert(n), "each connection once");
            }
            for client in &mut clients {
                success(&world, client, "the send");
            }
        }
    }
    // What an SRQ refers to stays until it goes, and it stays until its QPs go.
    for server in &servers {
        let (node, me) = (&server.node, server.context);
        let busy = Err(Status::Busy);
        assert_eq!(node.destroy_srq(me, server.srq.srqn), busy);
        for qp in &server.qps {
            node.destroy_qp(me, qp.qpn).expect("DESTROY_QP");
        }
        node.dereg_mr(me, server.mr.key).expect("DEREG_MR");
        assert_eq!(node.destroy_pd(me, server.pd), busy);
        node.destroy_srq(me, server.srq.srqn).expect("DESTROY_SRQ");
        node.destroy_pd(me, server.pd).expect("DESTROY_PD");
    }
}

#[test]
fn the_end_of_a_context_ends_its_shared_queues_too() {
    let _watchdog = Watchdog::new("context");
    let world = World::new(Kind::Loopback);
    let mut server = Server::new(world.b(), 4);
    let mut client = server.client(
        world.a(),
        &Connection {
            timeout: 8,
            retry_cnt: 1,
            ..Default::default()
        },
    );
    server.post(1);
    post_send(&mut client, 1, &[1]);
    server.received(&world);
    server
        .node
        .destroy_context(server.context)
        .expect("DESTROY_CONTEXT");
    world
        .b()
        .host
        .with_device(|device| assert!(device.objects().srqs.is_empty()));
    // An RC pair whose QP is gone gets an error.
    success(&world, &mut client, "the first");
    post_send(&mut client, 2, &[1]);
    assert_ne!(
        world.until("the second", || client.poll()).status,
        wc::SUCCESS
    );
}
