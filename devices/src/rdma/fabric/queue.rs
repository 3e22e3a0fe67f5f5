//! Frames that stay in this process: the queue they wait in, and how they are moved to the sink from there.

use std::collections::VecDeque;

use super::frame::{FrameHeader, kind};
use super::segments::{Cursor, copy, total};
use super::{PeerId, Placement, SendError, Sink};
use crate::rdma::memory::Segment;

/// Queued bytes above which no frame with a payload is taken.
const HIGH_WATER: usize = 1 << 20;
/// Queued frames above which no frame with a payload is taken.
const HIGH_FRAMES: usize = 4096;
/// Queued frames above which no frame at all is taken: acknowledgements have this much room of their own.
const MAX_FRAMES: usize = 4 * HIGH_FRAMES;

struct Queued {
    header: FrameHeader,
    inline: usize,
    segments: usize,
}

/// Frames in order, payloads by reference. Reuses its memory: nothing is allocated per frame once it has grown.
#[derive(Default)]
pub(super) struct FrameQueue {
    frames: VecDeque<Queued>,
    bytes: VecDeque<u8>,
    segments: VecDeque<Segment>,
    queued: usize,
}

impl FrameQueue {
    /// Whether a frame with a payload is taken.
    pub(super) fn has_room(&self) -> bool {
        self.queued < HIGH_WATER && self.frames.len() < HIGH_FRAMES
    }

    /// Takes a frame; the bytes of `inline` are copied.
    pub(super) fn push(
        &mut self,
        header: &FrameHeader,
        inline: &[u8],
        payload: &[Segment],
    ) -> Result<(), SendError> {
        let length = inline.len() + total(payload);
        debug_assert_eq!(length, header.length as usize);
        if self.frames.len() >= MAX_FRAMES || (length > 0 && !self.has_room()) {
            return Err(SendError::Full);
        }
        self.bytes.extend(inline);
        self.segments.extend(payload);
        self.queued += length;
        self.frames.push_back(Queued {
            header: *header,
            inline: inline.len(),
            segments: payload.len(),
        });
        Ok(())
    }

    /// The header of the first frame.
    pub(super) fn first(&self) -> Option<&FrameHeader> {
        self.frames.front().map(|frame| &frame.header)
    }

    /// Copies what is held by reference.
    pub(super) fn forget_memory(&mut self) {
        if self.segments.is_empty() {
            return;
        }
        let mut bytes = VecDeque::with_capacity(self.queued);
        for frame in &mut self.frames {
            bytes.extend(self.bytes.drain(..frame.inline));
            for segment in self.segments.drain(..frame.segments) {
                for at in 0..segment.len {
                    // SAFETY: the segment is mapped while the queue holds it (contract of `Segment`); the byte is read as
                    // volatile since a guest may change it.
                    bytes.push_back(unsafe { segment.base.add(at).read_volatile() });
                }
                frame.inline += segment.len;
            }
            frame.segments = 0;
        }
        self.bytes = bytes;
    }

    /// Drops every frame.
    #[cfg(any(test, feature = "test-utils"))]
    pub(super) fn clear(&mut self) {
        self.frames.clear();
        self.bytes.clear();
        self.segments.clear();
        self.queued = 0;
    }

    /// Lists where the payload of the first frame lies, first to last.
    fn sources(&self, from: &mut Vec<Segment>) {
        from.clear();
        let Some(frame) = self.frames.front() else {
            return;
        };
        let (head, tail) = self.bytes.as_slices();
        let head_len = head.len().min(frame.inline);
        for bytes in [&head[..head_len], &tail[..frame.inline - head_len]] {
            if !bytes.is_empty() {
                from.push(Segment {
                    base: bytes.as_ptr().cast_mut(),
                    len: bytes.len(),
                });
            }
        }
        from.extend(self.segments.range(..frame.segments));
    }

    fn pop(&mut self) {
        if let Some(frame) = self.frames.pop_front() {
            self.bytes.drain(..frame.inline);
            self.segments.drain(..frame.segments);
            self.queued -= frame.header.length as usize;
        }
    }
}

/// Moves payloads from a [`FrameQueue`] to where the sink wants them.
#[derive(Default)]
pub(super) struct Mover {
    /// Bytes of the first frame that were moved.
    done: usize,
    /// Asked and answered for the bytes from `asked_at` on.
    placement: Option<Placement>,
    asked_at: usize,
    into: Vec<Segment>,
    from: Vec<Segment>,
    /// A payload that is handed over as data.
    data: Vec<u8>,
}

impl Mover {
    /// Moves at most `limit` bytes of the queue's first frame, and hands the frame over when it is complete: then true, and the
    /// frame is gone from the queue. There must be a frame.
    pub(super) fn step(
        &mut self,
        queue: &mut FrameQueue,
        peer: PeerId,
        sink: &mut dyn Sink,
        limit: usize,
    ) -> bool {
        let Some(header) = queue.first().copied() else {
            return false;
        };
        let length = header.length as usize;
        queue.sources(&mut self.from);
        self.data.clear();
        if kind::comes_as_data(header.kind) {
            self.data.resize(length, 0);
            let target = [Segment {
                base: self.data.as_mut_ptr(),
                len: length,
            }];
            let (mut from_at, mut into_at) = Default::default();
            // SAFETY: the sources are mapped while the queue holds them; the target is `data`.
            unsafe { copy(&self.from, &mut from_at, &target, &mut into_at, length) };
            self.placement = Some(Placement::Into);
            self.done = length;
        }
        let placement = *self.placement.get_or_insert_with(|| {
            self.into.clear();
            self.asked_at = self.done;
            let placement = sink.place(peer, &header, self.done as u32, &mut self.into);
            checked(placement, &mut self.into, length - self.done)
        });
        let step = limit.min(length - self.done);
        if placement == Placement::Into && step > 0 {
            let (mut from_at, mut into_at) = (Cursor::default(), Cursor::default());
            from_at.advance(&self.from, self.done);
            into_at.advance(&self.into, self.done - self.asked_at);
            // SAFETY: the sources are mapped while the queue holds them, the targets while the mover does: `forget_memory`
            // is called before either ends.
            unsafe { copy(&self.from, &mut from_at, &self.into, &mut into_at, step) };
        }
        self.done += step;
        if self.done < length {
            return false;
        }
        queue.pop();
        self.reset();
        sink.frame(peer, &header, placement, &self.data);
        true
    }

    /// Bytes of the first frame that were moved.
    #[cfg(any(test, feature = "test-utils"))]
    pub(super) fn done(&self) -> usize {
        self.done
    }

    /// Lets go of the targets; the sink is asked anew. What is thrown away stays so: its first bytes are nowhere.
    pub(super) fn forget_memory(&mut self) {
        self.placement = self.placement.filter(|it| *it == Placement::Discard);
        self.into.clear();
        self.from.clear();
    }

    /// Forgets the frame under way.
    pub(super) fn reset(&mut self) {
        self.done = 0;
        self.placement = None;
        self.forget_memory();
    }
}

/// The sink's answer, with its promise checked: segments that hold exactly the bytes asked for. Anything else is thrown away.
pub(super) fn checked(placement: Placement, into: &mut Vec<Segment>, wanted: usize) -> Placement {
    if placement == Placement::Into && total(into) == wanted {
        return Placement::Into;
    }
    if placement == Placement::Into {
        debug_assert!(
            false,
            "sink placed {} bytes where {wanted} were to come",
            total(into)
        );
        log::error!(
            "fabric: sink placed {} bytes where {wanted} were to come: payload thrown away",
            total(into)
        );
    }
    into.clear();
    Placement::Discard
}
