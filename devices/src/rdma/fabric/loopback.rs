//! Both queue pairs on one device: frames to [`PeerId::LOCAL`], moved from memory to memory.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Instant;

use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

use super::frame::FrameHeader;
use super::queue::{FrameQueue, Mover};
use super::{Fabric, Gid, PeerId, SendError, Sink};
use crate::rdma::memory::Segment;

/// Frames that one poll hands over.
const FRAMES_PER_POLL: usize = 256;
/// Payload bytes that one poll moves, give or take a frame.
const BYTES_PER_POLL: usize = 1 << 20;

/// Frames from the device to itself.
#[derive(Default)]
pub(super) struct LocalQueue {
    queue: FrameQueue,
    mover: Mover,
}

impl LocalQueue {
    pub(super) fn send(
        &mut self,
        header: &FrameHeader,
        inline: &[u8],
        payload: &[Segment],
    ) -> Result<(), SendError> {
        self.queue.push(header, inline, payload)
    }

    pub(super) fn can_send(&self) -> bool {
        self.queue.has_room()
    }

    /// Hands over what is queued, a bounded amount; true if there was anything.
    pub(super) fn poll(&mut self, sink: &mut dyn Sink) -> bool {
        let mut bytes = 0;
        for frame in 0..FRAMES_PER_POLL {
            let Some(header) = self.queue.first() else {
                return frame > 0;
            };
            if bytes >= BYTES_PER_POLL {
                break;
            }
            bytes += header.length as usize;
            self.mover
                .step(&mut self.queue, PeerId::LOCAL, sink, usize::MAX);
        }
        true
    }

    pub(super) fn forget_memory(&mut self) {
        self.queue.forget_memory();
        self.mover.forget_memory();
    }
}

/// A fabric with nobody else on it.
pub struct LoopbackFabric {
    local: LocalQueue,
    gids: Vec<Gid>,
    announced: bool,
    /// Never readable: nothing comes but what its owner sent.
    wake: EventFd,
}

impl LoopbackFabric {
    /// A fabric for one device. Fails when no event descriptor is to be had.
    pub fn new() -> io::Result<Self> {
        Ok(LoopbackFabric {
            local: LocalQueue::default(),
            gids: Vec::new(),
            announced: false,
            wake: EventFd::new(EFD_NONBLOCK | EFD_CLOEXEC)?,
        })
    }
}

impl Fabric for LoopbackFabric {
    fn send(
        &mut self,
        peer: PeerId,
        header: &FrameHeader,
        inline: &[u8],
        payload: &[Segment],
    ) -> Result<(), SendError> {
        if peer != PeerId::LOCAL {
            return Err(SendError::Down);
        }
        self.local.send(header, inline, payload)
    }

    fn can_send(&self, peer: PeerId, _: u8) -> bool {
        peer == PeerId::LOCAL && self.local.can_send()
    }

    fn is_up(&self, peer: PeerId) -> bool {
        peer == PeerId::LOCAL
    }

    fn last_heard(&self, peer: PeerId) -> Option<Instant> {
        (peer == PeerId::LOCAL).then(Instant::now)
    }

    fn flush(&mut self) {}

    fn poll(&mut self, sink: &mut dyn Sink) -> bool {
        let announced = std::mem::take(&mut self.announced);
        if announced {
            sink.routes_changed();
        }
        self.local.poll(sink) || announced
    }

    fn forget_memory(&mut self) {
        self.local.forget_memory();
    }

    fn announce(&mut self, gids: &[Gid]) {
        self.gids.clear();
        self.gids.extend_from_slice(gids);
        self.announced = true;
    }

    fn route(&self, gid: &Gid) -> Option<PeerId> {
        self.gids.contains(gid).then_some(PeerId::LOCAL)
    }

    fn members(&self, gid: &Gid, into: &mut Vec<PeerId>) {
        into.extend(self.route(gid));
    }

    fn wait_fd(&self) -> RawFd {
        self.wake.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rdma::fabric::Placement;
    use crate::rdma::fabric::frame::kind;
    use crate::rdma::fabric::test_utils::{Event, TestSink, segment};

    fn header(kind: u8, length: u32) -> FrameHeader {
        FrameHeader {
            kind,
            length,
            ..FrameHeader::default()
        }
    }

    #[test]
    fn inline_bytes_and_segments_arrive_as_one_payload() {
        let mut fabric = LoopbackFabric::new().unwrap();
        let mut sink = TestSink::default();
        let mut payload = *b"payload";
        fabric
            .send(
                PeerId::LOCAL,
                &header(kind::WRITE, 10),
                b"in ",
                &[segment(&mut payload)],
            )
            .unwrap();
        assert!(sink.events.is_empty());
        assert!(fabric.poll(&mut sink));
        assert_eq!(
            sink.events,
            [Event::Frame {
                peer: PeerId::LOCAL,
                header: header(kind::WRITE, 10),
                placement: Placement::Into,
                payload: b"in payload".to_vec(),
            }]
        );
        assert!(!fabric.poll(&mut sink));
    }

    #[test]
    fn an_atomic_comes_as_data_and_is_not_placed() {
        let mut fabric = LoopbackFabric::new().unwrap();
        let mut sink = TestSink::default();
        fabric
            .send(PeerId::LOCAL, &header(kind::ATOMIC, 16), &[5; 16], &[])
            .unwrap();
        fabric.poll(&mut sink);
        assert_eq!(sink.placed, 0);
        assert_eq!(sink.payloads(), [vec![5; 16]]);
    }

    #[test]
    fn memory_changed_after_forget_memory_is_not_sent() {
        let mut fabric = LoopbackFabric::new().unwrap();
        let mut sink = TestSink::default();
        let mut payload = vec![1; 5000];
        fabric
            .send(
                PeerId::LOCAL,
                &header(kind::SEND, 5001),
                &[9],
                &[segment(&mut payload)],
            )
            .unwrap();
        fabric
            .send(PeerId::LOCAL, &header(kind::SEND, 2), &[7, 8], &[])
            .unwrap();
        fabric.forget_memory();
        payload.fill(2);
        fabric.poll(&mut sink);
        let mut expected = vec![1; 5001];
        expected[0] = 9;
        assert_eq!(sink.payloads(), [expected, vec![7, 8]]);
    }

    #[test]
    fn a_full_queue_refuses_payloads_before_acknowledgements() {
        let mut fabric = LoopbackFabric::new().unwrap();
        let mut payload = vec![0; 65_536];
        let bulk = header(kind::WRITE, 65_536);
        while fabric.can_send(PeerId::LOCAL, 0) {
            fabric
                .send(PeerId::LOCAL, &bulk, &[], &[segment(&mut payload)])
                .unwrap();
        }
        assert_eq!(
            fabric.send(PeerId::LOCAL, &bulk, &[], &[segment(&mut payload)]),
            Err(SendError::Full)
        );
        let ack = header(kind::ACK, 0);
        let mut taken = 0;
        while fabric.send(PeerId::LOCAL, &ack, &[], &[]).is_ok() {
            taken += 1;
        }
        assert!((4096..100_000).contains(&taken));
        let mut sink = TestSink::default();
        while fabric.poll(&mut sink) {}
        assert!(fabric.can_send(PeerId::LOCAL, 0));
        assert_eq!(sink.events.len(), 16 + taken);
    }

    #[test]
    fn discarded_payloads_are_announced_as_such() {
        let mut fabric = LoopbackFabric::new().unwrap();
        let mut sink = TestSink {
            discard: true,
            ..TestSink::default()
        };
        fabric
            .send(PeerId::LOCAL, &header(kind::SEND, 3), &[1, 2, 3], &[])
            .unwrap();
        fabric.poll(&mut sink);
        assert!(matches!(
            sink.events[..],
            [Event::Frame {
                placement: Placement::Discard,
                ..
            }]
        ));
    }

    #[test]
    fn own_gids_lead_home_and_others_nowhere() {
        let mut fabric = LoopbackFabric::new().unwrap();
        let mut sink = TestSink::default();
        fabric.announce(&[[1; 16], [2; 16]]);
        assert!(fabric.poll(&mut sink));
        assert_eq!(sink.events, [Event::Routes]);
        assert_eq!(fabric.route(&[2; 16]), Some(PeerId::LOCAL));
        fabric.announce(&[[1; 16]]);
        assert_eq!(fabric.route(&[2; 16]), None);
        assert_eq!(
            fabric.send(PeerId(1), &header(kind::ACK, 0), &[], &[]),
            Err(SendError::Down)
        );
    }
}
