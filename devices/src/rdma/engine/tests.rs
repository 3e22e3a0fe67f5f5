//! Whole connections: two devices over a pair of fabrics with faults, and one device with itself.

use std::time::{Duration, Instant};

use super::test_utils::*;
use crate::rdma::fabric::frame::kind;
use crate::rdma::fabric::pair::{PairControl, PairFabric, Side, pair_with};
use crate::rdma::fabric::{Fabric, Gid};
use crate::rdma::objects::{QpAttributes, QpState};
use crate::rdma::test_utils::Random;
use crate::rdma::wire::{access, cqe_opcode, cqe_status, send_flag, send_opcode};

const LEFT: Gid = [1; 16];
const RIGHT: Gid = [2; 16];

struct Two {
    left: Node<PairFabric>,
    right: Node<PairFabric>,
    control: PairControl,
    a: Queue,
    b: Queue,
}

impl Two {
    fn new() -> Self {
        Self::with(|_| {})
    }

    fn with(adjust: impl Fn(&mut QpAttributes)) -> Self {
        Self::with_lanes(1, adjust)
    }

    fn with_lanes(lanes: u8, adjust: impl Fn(&mut QpAttributes)) -> Self {
        let (left, right, control) = pair_with(lanes).unwrap();
        let (mut left, mut right) = (Node::with_fabric(left), Node::with_fabric(right));
        left.fabric.announce(&[LEFT]);
        right.fabric.announce(&[RIGHT]);
        let (a, b) = (left.queue_with(1024), right.queue_with(1024));
        left.connect(&a, b.qpn, |attrs| {
            (attrs.dgid, attrs.sq_psn, attrs.rq_psn) = (RIGHT, 77, 88);
            adjust(attrs);
        });
        right.connect(&b, a.qpn, |attrs| {
            (attrs.dgid, attrs.sq_psn, attrs.rq_psn) = (LEFT, 88, 77);
            adjust(attrs);
        });
        Two {
            left,
            right,
            control,
            a,
            b,
        }
    }

    /// Polls both until neither has work for a while, or `enough` says so.
    fn run_until(&mut self, mut enough: impl FnMut(&mut Self) -> bool) {
        let end = Instant::now() + Duration::from_secs(60);
        while !enough(self) {
            assert!(Instant::now() < end, "nothing comes of it");
            let worked = self.left.poll() | self.right.poll();
            if !worked {
                std::thread::sleep(Duration::from_micros(50));
            }
        }
    }

    /// Polls both until `count` completions have come to the left.
    fn completions(&mut self, count: usize) -> Vec<(u64, u8)> {
        let mut done = Vec::new();
        self.run_until(|two| {
            done.extend(two.left.done(&mut two.a));
            done.len() >= count
        });
        done
    }
}

#[test]
fn every_operation_arrives_whole_over_a_pair() {
    let mut two = Two::new();
    let (key, far) = (two.left.key, two.right.key);
    let length = 150_000;
    two.left.ram.write(DATA, &pattern(length));
    two.right
        .receive(&mut two.b, 50, &[(DATA + 0x4_0000, length as u32, far)]);
    two.right.receive(&mut two.b, 51, &[]);
    let sges = vec![(DATA, 1000, key), (DATA + 1000, length as u32 - 1000, key)];
    let base = Post {
        flags: send_flag::SIGNALED,
        rkey: far,
        remote_addr: DATA,
        sges: sges.clone(),
        ..Post::default()
    };
    for (wr_id, opcode) in [
        (1, send_opcode::WRITE),
        (2, send_opcode::SEND_IMM),
        (3, send_opcode::WRITE_IMM),
    ] {
        let post = Post {
            wr_id,
            opcode,
            imm: [wr_id as u8; 4],
            remote_addr: DATA + 0x8_0000 * (wr_id / 3),
            ..base.clone()
        };
        two.left.send(&mut two.a, post);
    }
    let post = Post {
        wr_id: 4,
        opcode: send_opcode::READ,
        remote_addr: DATA + 0x4_0000,
        sges: vec![(DATA + 0x4_0001, length as u32, key)],
        ..base.clone()
    };
    two.left.send(&mut two.a, post);
    let post = Post {
        wr_id: 5,
        opcode: send_opcode::FETCH_AND_ADD,
        remote_addr: DATA + 0xf_0000,
        operands: [3, 0],
        sges: vec![(DATA + 0xf_0000, 8, key)],
        ..base
    };
    two.right.ram.write(DATA + 0xf_0000, &40_u64.to_le_bytes());
    two.left.send(&mut two.a, post);

    let done = two.completions(5);

    assert_eq!(
        done,
        (1..6).map(|n| (n, cqe_status::SUCCESS)).collect::<Vec<_>>()
    );
    assert_eq!(two.right.bytes(DATA, length), pattern(length));
    assert_eq!(two.right.bytes(DATA + 0x4_0000, length), pattern(length));
    assert_eq!(two.right.bytes(DATA + 0x8_0000, length), pattern(length));
    assert_eq!(two.left.bytes(DATA + 0x4_0001, length), pattern(length));
    assert_eq!(two.left.bytes(DATA + 0xf_0000, 8), 40_u64.to_le_bytes());
    assert_eq!(two.right.bytes(DATA + 0xf_0000, 8), 43_u64.to_le_bytes());
    let received = two.right.poll_cq(&mut two.b);
    let short: Vec<_> = received
        .iter()
        .map(|c| (c.wr_id.get(), c.opcode, c.byte_len.get(), c.imm))
        .collect();
    let length = length as u32;
    assert_eq!(
        short,
        [
            (50, cqe_opcode::RECV, length, [2; 4]),
            (51, cqe_opcode::RECV_RDMA_WITH_IMM, length, [3; 4])
        ]
    );
}

#[test]
fn a_qp_may_be_connected_to_itself() {
    let mut two = Two::new();
    let mut queue = two.left.queue_with(64);
    two.left.connect(&queue, queue.qpn, |attrs| {
        (attrs.dgid, attrs.sq_psn, attrs.rq_psn) = (LEFT, 5, 5);
    });
    let key = two.left.key;
    two.left.ram.write(DATA, &pattern(100));
    two.left.receive(&mut queue, 1, &[(DATA + 4096, 100, key)]);
    let post = Post {
        opcode: send_opcode::SEND,
        ..write(&two.left, 2, 100)
    };
    two.left.send(&mut queue, post);
    while two.left.poll() {}
    assert_eq!(two.left.done(&mut queue), [(1, 0), (2, 0)]);
    assert_eq!(two.left.bytes(DATA + 4096, 100), pattern(100));
}

#[test]
fn nothing_completes_while_acknowledgements_are_held_back() {
    let mut two = Two::with(|attrs| attrs.timeout = 20);
    two.control.hold(Side::Left, kind::ACK);
    let post = Post {
        rkey: two.right.key,
        remote_addr: DATA,
        ..write(&two.left, 1, 4096)
    };
    two.left.ram.write(DATA, &pattern(4096));
    two.left.send(&mut two.a, post);
    let end = Instant::now() + Duration::from_millis(1500);
    two.run_until(|two| {
        assert_eq!(two.left.done(&mut two.a), []);
        Instant::now() > end
    });
    assert_eq!(two.right.bytes(DATA, 4096), pattern(4096));
    two.control.release(Side::Left);
    assert_eq!(two.completions(1), [(1, 0)]);
}

#[test]
fn a_peer_killed_in_the_middle_of_a_write_is_retry_exceeded() {
    let mut two = Two::with(|attrs| attrs.timeout = 10);
    two.control.kill_after(Side::Left, 300_000);
    let post = Post {
        rkey: two.right.key,
        remote_addr: DATA,
        ..write(&two.left, 1, 1_000_000)
    };
    two.left.send(&mut two.a, post);
    two.run_until(|two| !two.left.fabric.is_up(crate::rdma::fabric::pair::OTHER));
    assert_eq!(two.completions(1), [(1, cqe_status::RETRY_EXC_ERR)]);
    assert_eq!(two.left.qp(&two.a).state, QpState::Err);
}

#[test]
fn a_qp_that_ends_at_the_far_side_is_retry_exceeded_here() {
    let mut two = Two::with(|attrs| attrs.timeout = 10);
    let post = Post {
        rkey: two.right.key,
        remote_addr: DATA,
        ..read(&two.left, 1, 1_000_000)
    };
    two.left.send(&mut two.a, post);
    two.left.poll();
    two.right
        .engine
        .qp_destroyed(&mut two.right.objects, two.b.qpn);
    two.right.objects.remove_qp(two.b.qpn);
    assert_eq!(two.completions(1), [(1, cqe_status::RETRY_EXC_ERR)]);
}

/// Random operations while the link is lost and comes back at random, payloads arrive in parts, and the fabric is asked to forget memory: every one
/// completes once, in order, with success, and what it moved is right. With several lanes, frames of one overtake those of others.
#[test]
fn a_link_that_comes_and_goes_loses_nothing_and_repeats_nothing() {
    for seed in 1..9_u64 {
        let lanes = 1 + (seed % 4) as u8;
        let mut two = Two::with_lanes(lanes, |attrs| {
            (attrs.timeout, attrs.rnr_retry, attrs.min_rnr_timer) = (20, 7, 1);
        });
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        two.control.pace(Side::Left, 10_000);
        two.control.pace(Side::Right, 10_000);
        let (key, far) = (two.left.key, two.right.key);
        let rights = access::ALL;
        assert_ne!(two.right.register(DATA, 4096, rights), far);
        // Operation n moves slot n of 8 KiB: near to far, or back.
        let slot = |n: u64| DATA + n * 8192;
        let total = 100;
        let (mut counter, mut receives) = (0_u64, Vec::new());
        let mut expected = Vec::new();
        for n in 0..total {
            let length = [0, 1, 4096, 5000, 8192][random.below(5) as usize];
            let bytes: Vec<u8> = (0..length).map(|i| (i as u64 * 3 + n) as u8).collect();
            let mut post = Post {
                wr_id: n,
                flags: send_flag::SIGNALED,
                rkey: far,
                remote_addr: slot(n),
                sges: vec![(slot(n), length, key)],
                ..Post::default()
            };
            match random.below(5) {
                0 => post.opcode = send_opcode::WRITE,
                1 => post.opcode = send_opcode::SEND,
                2 => {
                    post.opcode = send_opcode::WRITE_IMM;
                    post.imm = (n as u32).to_be_bytes();
                }
                3 => post.opcode = send_opcode::READ,
                _ => {
                    post.opcode = send_opcode::FETCH_AND_ADD;
                    post.operands = [1, 0];
                    post.remote_addr = DATA + DATA_LEN - 8;
                    post.sges = vec![(slot(n), 8, key)];
                }
            }
            match post.opcode {
                send_opcode::READ => {
                    two.right.ram.write(slot(n), &bytes);
                    expected.push((false, slot(n), bytes));
                }
                send_opcode::FETCH_AND_ADD => {
                    expected.push((false, slot(n), counter.to_le_bytes().to_vec()));
                    counter += 1;
                }
                _ => {
                    two.left.ram.write(slot(n), &bytes);
                    expected.push((true, slot(n), bytes));
                    if post.opcode != send_opcode::WRITE {
                        receives.push((n, slot(n)));
                    }
                }
            }
            two.left.send(&mut two.a, post);
        }
        let (mut done, mut got, mut posted) = (Vec::new(), Vec::new(), 0);
        let mut cuts = 0;
        two.run_until(|two| {
            if random.below(40) == 0 && cuts < 30 {
                cuts += 1;
                two.control.cut();
                for _ in 0..random.below(5) {
                    two.left.poll();
                    two.right.poll();
                }
                two.control.restore();
            }
            if random.below(30) == 0 {
                two.left.fabric.forget_memory();
                two.right.fabric.forget_memory();
            }
            if random.below(10) == 0 && posted < receives.len() && posted < got.len() + 32 {
                let (n, at) = receives[posted];
                two.right.receive(&mut two.b, n, &[(at, 8192, far)]);
                posted += 1;
            }
            done.extend(two.left.done(&mut two.a));
            got.extend(two.right.done(&mut two.b));
            done.len() as u64 >= total
        });
        got.extend(two.right.done(&mut two.b));
        assert_eq!(done, (0..total).map(|n| (n, 0)).collect::<Vec<_>>());
        let in_order: Vec<_> = receives.iter().map(|(n, _)| (*n, 0)).collect();
        assert_eq!(got, in_order, "seed {seed}");
        for (n, (far_side, at, bytes)) in expected.iter().enumerate() {
            let found = if *far_side {
                two.right.bytes(*at, bytes.len())
            } else {
                two.left.bytes(*at, bytes.len())
            };
            assert!(found == *bytes, "operation {n} of seed {seed}");
        }
        let last = two.right.bytes(DATA + DATA_LEN - 8, 8);
        assert_eq!(last, counter.to_le_bytes(), "seed {seed}");
        assert!(cuts > 0 && two.left.objects.stats.device.retries.get() > 0);
        assert_eq!(two.left.objects.stats.device.lost.get(), 0);
    }
}
