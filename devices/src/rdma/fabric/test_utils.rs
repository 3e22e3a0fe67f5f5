//! A sink for tests of fabrics.

use std::collections::BTreeMap;

use super::frame::FrameHeader;
use super::{PeerId, Placement, Sink};
use crate::rdma::memory::Segment;

/// A segment over bytes that outlive its use.
pub(crate) fn segment(bytes: &mut [u8]) -> Segment {
    Segment {
        base: bytes.as_mut_ptr(),
        len: bytes.len(),
    }
}

/// What a [`TestSink`] was told.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// [`Sink::frame`], with the payload wherever it was.
    Frame {
        peer: PeerId,
        header: FrameHeader,
        placement: Placement,
        payload: Vec<u8>,
    },
    Up(PeerId),
    Down(PeerId),
    Routes,
}

/// Gives every payload a buffer of its own, cut into two segments where it is long enough, and notes what it is told.
#[derive(Default)]
pub(crate) struct TestSink {
    pub(crate) events: Vec<Event>,
    /// Throw all payloads away.
    pub(crate) discard: bool,
    /// Calls of [`Sink::place`] so far.
    pub(crate) placed: usize,
    /// The `skip` of each call that had one.
    pub(crate) skips: Vec<u32>,
    /// The payload under way from each peer, by each lane.
    pub(crate) buffers: BTreeMap<(PeerId, u8), Vec<u8>>,
}

impl TestSink {
    /// The payloads of all frames so far.
    pub(crate) fn payloads(&self) -> Vec<Vec<u8>> {
        let payload = |event: &Event| match event {
            Event::Frame { payload, .. } => Some(payload.clone()),
            _ => None,
        };
        self.events.iter().filter_map(payload).collect()
    }

    /// The headers of all frames so far.
    pub(crate) fn headers(&self) -> Vec<FrameHeader> {
        let header = |event: &Event| match event {
            Event::Frame { header, .. } => Some(*header),
            _ => None,
        };
        self.events.iter().filter_map(header).collect()
    }

    /// Frames so far.
    pub(crate) fn frames(&self) -> usize {
        let is_frame = |event: &&Event| matches!(event, Event::Frame { .. });
        self.events.iter().filter(is_frame).count()
    }

    /// Moves the buffer of the payload under way, as if its registration had ended; the old one is overwritten.
    pub(crate) fn move_memory(&mut self) {
        for buffer in self.buffers.values_mut() {
            let mut fresh = Vec::with_capacity(buffer.len());
            fresh.extend_from_slice(buffer);
            buffer.fill(0xee);
            *buffer = fresh;
        }
    }
}

impl Sink for TestSink {
    fn place(
        &mut self,
        peer: PeerId,
        header: &FrameHeader,
        skip: u32,
        into: &mut Vec<Segment>,
    ) -> Placement {
        assert!(into.is_empty());
        self.placed += 1;
        if skip > 0 {
            self.skips.push(skip);
        }
        if self.discard {
            return Placement::Discard;
        }
        let buffer = self.buffers.entry((peer, header.lane)).or_default();
        if skip == 0 {
            *buffer = vec![0; header.length as usize];
        }
        assert_eq!(buffer.len(), header.length as usize);
        let rest = &mut buffer[skip as usize..];
        let (head, tail) = rest.split_at_mut(rest.len() / 3);
        if !head.is_empty() {
            into.push(segment(head));
        }
        if !tail.is_empty() {
            into.push(segment(tail));
        }
        Placement::Into
    }

    fn frame(&mut self, peer: PeerId, header: &FrameHeader, placement: Placement, data: &[u8]) {
        let placed = self
            .buffers
            .remove(&(peer, header.lane))
            .unwrap_or_default();
        let payload = if data.is_empty() && placement == Placement::Into {
            placed
        } else {
            data.to_vec()
        };
        self.events.push(Event::Frame {
            peer,
            header: *header,
            placement,
            payload,
        });
    }

    fn peer_up(&mut self, peer: PeerId) {
        self.events.push(Event::Up(peer));
    }

    fn peer_down(&mut self, peer: PeerId) {
        self.buffers.retain(|(from, _), _| *from != peer);
        self.events.push(Event::Down(peer));
    }

    fn routes_changed(&mut self) {
        self.events.push(Event::Routes);
    }
}
