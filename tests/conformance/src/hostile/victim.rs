//! The others: a connected pair that minds its own business, and must go on to the byte whatever its neighbours do.

use crate::layout::{access, send, state, wc, wqe_flag};
use crate::node::Mr;
use crate::random::payload;
use crate::rings::SendWr;
use crate::side::{Connection, Side, SideOptions, connected};
use crate::world::World;

/// A pair of its own contexts, and memory that only the owner may write.
pub struct Victim {
    a: Side,
    b: Side,
    readonly: Mr,
    round: u64,
}

impl Victim {
    /// Makes one.
    pub fn new(world: &World) -> Victim {
        let options = SideOptions {
            mr_len: 32 << 10,
            ..Default::default()
        };
        // Patient: a machine under a fuzzer may be slow.
        let connection = Connection {
            timeout: 20,
            ..Default::default()
        };
        let (a, b) = connected(world, &options, &connection);
        let buffer = a.node.memory.scattered(8192);
        buffer.fill(0x3c);
        let readonly = a
            .node
            .reg_mr(a.context, a.pd, buffer, 0, 8192, access::REMOTE_READ)
            .expect("a region");
        Victim {
            a,
            b,
            readonly,
            round: 0,
        }
    }

    /// Keys, numbers and addresses that an attacker might guess: the guess is free, and must be worth nothing.
    pub fn secrets(&self) -> Secrets {
        Secrets {
            keys: [self.a.mr.key, self.b.mr.key, self.readonly.key],
            iovas: [self.a.mr.iova, self.b.mr.iova, self.readonly.iova],
            contexts: [self.a.context.handle, self.b.context.handle],
            handles: [
                self.a.pd,
                self.b.pd,
                self.a.cq.cqn,
                self.b.cq.cqn,
                self.a.qp.qpn,
                self.b.qp.qpn,
            ],
        }
    }

    /// Some traffic, checked to the byte.
    pub fn works(&mut self, world: &World) {
        self.round += 1;
        let len = [1, 64, 4097, 16_000][self.round as usize % 4];
        let data = payload(self.round, len);
        self.a.mr.write(0, &data);
        self.b.recv(self.round, 0, 16_384);
        let from = [self.a.mr.sge(0, len)];
        let into = [self.a.mr.sge(16_384, len)];
        let wr = SendWr {
            flags: wqe_flag::SIGNALED,
            rkey: self.b.mr.key,
            remote_addr: self.b.mr.iova + 16_384,
            ..Default::default()
        };
        self.a.send(&SendWr {
            opcode: send::WRITE,
            sges: &from,
            ..wr
        });
        self.a.send(&SendWr {
            opcode: send::READ,
            sges: &into,
            flags: wqe_flag::SIGNALED | wqe_flag::FENCE,
            ..wr
        });
        self.a.send(&SendWr {
            opcode: send::SEND,
            sges: &from,
            ..wr
        });
        for _ in 0..3 {
            let cqe = world.until("the others' traffic", || self.a.poll());
            assert_eq!(
                cqe.status,
                wc::SUCCESS,
                "the others' traffic failed: {cqe:?}"
            );
        }
        let cqe = world.until("the others' receive", || self.b.poll());
        assert_eq!(
            (cqe.status, cqe.wr_id),
            (wc::SUCCESS, self.round),
            "{cqe:?}"
        );
        assert!(
            self.b.mr.read(16_384, len) == data,
            "the others' WRITE arrived changed"
        );
        assert!(
            self.a.mr.read(16_384, len) == data,
            "the others' READ arrived changed"
        );
        assert!(
            self.b.mr.read(0, len) == data,
            "the others' SEND arrived changed"
        );
        assert!(
            self.readonly.buffer.holds_only(0x3c),
            "memory without LOCAL_WRITE was written"
        );
        assert_eq!((self.a.state(), self.b.state()), (state::RTS, state::RTS));
    }
}

/// See [`Victim::secrets`].
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Secrets {
    pub keys: [u32; 3],
    pub iovas: [u64; 3],
    pub contexts: [u32; 2],
    pub handles: [u32; 6],
}

/// No page that nobody was given, on any node, was written.
pub fn canaries(world: &World) {
    for node in world.nodes() {
        if let Some(at) = node.memory.disturbed_canary() {
            panic!("RAM at {at:#x}, which nobody registered, was written");
        }
    }
}
