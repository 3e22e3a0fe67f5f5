//! A device without commands, over a fabric that a test plays by hand: frames that were sent are looked at, frames that come are made up, and time
//! passes when the test says so.

mod queue;
mod script;

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Engine, Receiver};
use crate::rdma::events::{AsyncEvent, EventKind, EventSink};
use crate::rdma::fabric::frame::FrameHeader;
use crate::rdma::fabric::{Fabric, PeerId, Placement, Sink};
use crate::rdma::limits::Limits;
use crate::rdma::memory::{DmaSpace, RegionEntry, RegionRequest, RingBuffer, RingMemory};
use crate::rdma::objects::Objects;
use crate::rdma::test_utils::FakeRam;
use crate::rdma::wire::{access, feature};

pub(super) use queue::*;
pub(super) use script::*;

/// The peer of all QPs, unless a test connects them to [`PeerId::LOCAL`].
pub(super) const PEER: PeerId = PeerId(7);

/// The peer's QP.
pub(super) const PEER_QPN: u32 = 0x1234;

/// First message numbers: of ours, and of the peer's. Both are near the wrap of 24 bits, which numbers go beyond.
pub(super) const SQ_PSN: u32 = 0xff_fffe;
pub(super) const RQ_PSN: u32 = 0xff_fff0;

/// Data that a QP's work requests may name.
pub(super) const DATA: u64 = 0x10_0000;
pub(super) const DATA_LEN: u64 = 0x10_0000;

/// A device, its RAM and its QPs.
pub(super) struct Node<F: Fabric = Script> {
    pub ram: Arc<FakeRam>,
    pub objects: Objects,
    pub engine: Engine,
    pub fabric: F,
    pub now: Instant,
    pd: u32,
    /// Key of [`DATA`], all access.
    pub key: u32,
    next_free: u64,
}

impl<F: Fabric> Node<F> {
    pub fn with_fabric(fabric: F) -> Self {
        let ram = Arc::new(FakeRam::new(0x200_0000));
        let features = feature::ATOMICS | feature::FRWR | feature::MW;
        let mut objects = Objects::new(Limits::default(), features, ram.clone(), Arc::default());
        let pd = objects.create_pd(0).unwrap();
        let mut node = Node {
            key: 0,
            ram,
            engine: Engine::default(),
            fabric,
            now: Instant::now(),
            pd,
            next_free: 0x20_0000,
            objects,
        };
        node.key = node.register(DATA, DATA_LEN, access::ALL);
        node
    }

    /// One poll as the device makes it, at the real time. True if there was work.
    pub fn poll(&mut self) -> bool {
        self.now = Instant::now();
        let mut receiver = Receiver {
            engine: &mut self.engine,
            objects: &mut self.objects,
            now: self.now,
        };
        let came = self.fabric.poll(&mut receiver);
        let worked = self
            .engine
            .round(&mut self.objects, &mut self.fabric, self.now);
        self.fabric.flush();
        came | worked
    }

    /// A region whose addresses are those of guest RAM.
    pub fn register(&mut self, iova: u64, length: u64, rights: u32) -> u32 {
        let pages = length.div_ceil(4096);
        let request = RegionRequest {
            context: 0,
            pd: self.pd,
            access: rights,
            iova,
            length,
            offset: iova & 4095,
            page_shift: 12,
            extents: false,
            total_entries: pages as u32,
        };
        let key = self.objects.memory.register(&request).unwrap();
        let entries: Vec<RegionEntry> = (0..pages)
            .map(|page| RegionEntry {
                address: (iova & !4095) + page * 4096,
                length: 0,
            })
            .collect();
        let memory = &mut self.objects.memory;
        memory
            .append(&*self.ram, 0, key, &mut entries.into_iter())
            .unwrap();
        memory.commit(0, key).unwrap();
        key
    }

    fn map(&mut self, length: u64) -> (u64, RingMemory) {
        let base = self.next_free;
        self.next_free += length;
        let pages: Vec<u64> = (0..length / 4096).map(|page| base + page * 4096).collect();
        let buffer = RingBuffer {
            length,
            page_shift: 12,
            offset: 0,
        };
        let dma: &dyn DmaSpace = &*self.ram;
        (base, RingMemory::map(dma, buffer, &pages).unwrap())
    }

    /// Rounds until there is no work.
    pub fn run(&mut self) {
        for _ in 0..10_000 {
            let worked = self
                .engine
                .round(&mut self.objects, &mut self.fabric, self.now);
            if !worked {
                return;
            }
        }
        panic!("the engine finds work without end");
    }

    /// Time passes, and rounds with it.
    pub fn pass(&mut self, time: Duration) {
        self.now += time;
        self.run();
    }

    /// Asks where the payload goes from `skip` on, and puts it there.
    pub fn begin_frame(
        &mut self,
        peer: PeerId,
        header: &FrameHeader,
        skip: u32,
        payload: &[u8],
    ) -> Placement {
        let mut into = Vec::new();
        let placement = self.receiver().place(peer, header, skip, &mut into);
        if placement == Placement::Into {
            let mut rest = &payload[skip as usize..];
            for segment in &into {
                let (now, later) = rest.split_at(segment.len);
                for (at, byte) in now.iter().enumerate() {
                    // SAFETY: the segment was just resolved from RAM that the node holds.
                    unsafe { segment.base.add(at).write_volatile(*byte) };
                }
                rest = later;
            }
            assert!(rest.is_empty(), "segments for less than the payload");
        } else {
            assert!(into.is_empty());
        }
        placement
    }

    pub fn receiver(&mut self) -> Receiver<'_> {
        Receiver {
            engine: &mut self.engine,
            objects: &mut self.objects,
            now: self.now,
        }
    }

    /// The asynchronous events that were raised since.
    pub fn events(&mut self) -> Vec<(EventKind, u32)> {
        struct Collect(Vec<(EventKind, u32)>);
        impl EventSink for Collect {
            fn asynchronous(&mut self, event: AsyncEvent) -> bool {
                self.0.push((event.kind, event.handle));
                true
            }
            fn completion(&mut self, _: u16, _: u32, _: u32) -> bool {
                true
            }
        }
        let mut collect = Collect(Vec::new());
        self.objects.events.deliver(&mut collect);
        collect.0
    }

    pub fn bytes(&self, at: u64, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        self.ram.read(at, &mut out);
        out
    }
}

/// Bytes that are all different from their neighbours.
pub(super) fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|i| (i * 7 + i / 256) as u8).collect()
}
