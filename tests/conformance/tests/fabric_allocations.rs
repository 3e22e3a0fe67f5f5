//! Frames cross the fabric without a single allocation, once its buffers have grown.

use std::sync::Arc;
use std::time::{Duration, Instant};

use conformance::counting::{Counting, allocations};
use devices::rdma::fabric::frame::{FrameHeader, kind};
use devices::rdma::fabric::tcp::{TcpConfig, TcpFabric};
use devices::rdma::fabric::{Fabric, PeerId, Placement, Sink};
use devices::rdma::memory::Segment;
use devices::rdma::stats::Stats;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

struct Target {
    memory: Vec<u8>,
    peer: Option<PeerId>,
    frames: usize,
}

impl Sink for Target {
    fn place(
        &mut self,
        _: PeerId,
        header: &FrameHeader,
        skip: u32,
        into: &mut Vec<Segment>,
    ) -> Placement {
        assert_eq!(skip, 0);
        let bytes = &mut self.memory[..header.length as usize];
        let (head, tail) = bytes.split_at_mut(bytes.len() / 2);
        for part in [head, tail] {
            into.push(Segment {
                base: part.as_mut_ptr(),
                len: part.len(),
            });
        }
        Placement::Into
    }
    fn frame(&mut self, _: PeerId, _: &FrameHeader, _: Placement, _: &[u8]) {
        self.frames += 1;
    }
    fn peer_up(&mut self, peer: PeerId) {
        self.peer = Some(peer);
    }
    fn peer_down(&mut self, _: PeerId) {
        self.peer = None;
    }
    fn routes_changed(&mut self) {}
}

fn node(config: TcpConfig) -> (TcpFabric, Target) {
    let target = Target {
        memory: vec![0; 65_536],
        peer: None,
        frames: 0,
    };
    let fabric = TcpFabric::new(config, Arc::new(Stats::default())).unwrap();
    (fabric, target)
}

#[test]
fn frames_of_every_size_cross_without_allocation() {
    let mut config = TcpConfig::new().unwrap();
    config.listen = Some(([127, 0, 0, 1], 0).into());
    let (mut left, mut at_left) = node(config);
    let mut config = TcpConfig::new().unwrap();
    config.peers = vec![left.local_address().unwrap()];
    let (mut right, mut at_right) = node(config);
    let deadline = Instant::now() + Duration::from_secs(60);
    let all_up =
        |fabric: &TcpFabric, at: &Target| at.peer.is_some_and(|peer| fabric.lanes(peer) > 1);
    while !all_up(&left, &at_left) || !all_up(&right, &at_right) {
        left.poll(&mut at_left);
        right.poll(&mut at_right);
        assert!(Instant::now() < deadline);
    }
    let peer = at_left.peer.unwrap();
    let mut payload = vec![7; 65_536];
    let sizes = [0, 8, 64, 200, 300, 4096, 5000, 65_536];
    let mut cross = |frames: usize| {
        let (start, mut sent) = (at_right.frames, 0);
        while at_right.frames - start < frames {
            assert!(Instant::now() < deadline);
            loop {
                // Runs of the same lane, so that each sees every size.
                let lane = (sent / sizes.len() % 2) as u8;
                if sent == frames || !left.can_send(peer, lane) {
                    break;
                }
                let size = sizes[sent % sizes.len()];
                let header = FrameHeader {
                    kind: kind::WRITE,
                    length: size as u32,
                    lane,
                    ..FrameHeader::default()
                };
                let segment = Segment {
                    base: payload.as_mut_ptr(),
                    len: size,
                };
                let (inline, segments) = match size {
                    ..64 => (&[7; 64][..size], &[][..]),
                    _ => (&[][..], std::slice::from_ref(&segment)),
                };
                left.send(peer, &header, inline, segments).unwrap();
                sent += 1;
            }
            left.flush();
            left.poll(&mut at_left);
            right.poll(&mut at_right);
        }
    };
    // Buffers grow to what the load wants.
    cross(4000);
    let before = allocations();
    assert_ne!(before, 0, "the allocator counts");
    cross(4000);
    assert_eq!(allocations() - before, 0);
}
