//! What waits to be sent on a link: headers and small payloads in an arena, large payloads by reference, written by one gathering
//! call for as much as it holds.

use std::collections::VecDeque;
use std::io;
use std::net::TcpStream;

use super::socket::{self, Vectors};
use crate::rdma::fabric::frame::{FrameHeader, HEADER_LEN};
use crate::rdma::fabric::segments::total;
use crate::rdma::memory::Segment;
use crate::rdma::stats::PeerCounters;

/// Queued bytes above which no frame with a payload is taken.
pub(super) const HIGH_WATER: usize = 1 << 20;
/// Queued bytes above which no frame at all is taken: READ, ACK and NAK have the difference to themselves.
const HARD_LIMIT: usize = 3 << 20;
/// Queued pieces above which no frame with a payload is taken.
const HIGH_PIECES: usize = 8192;
/// Bytes of Ethernet frames that may be queued beside the rest.
const ETHERNET_ROOM: usize = 512 << 10;
/// Payloads up to this size are copied into the arena, which costs less than a place of their own in the gathering call.
const COPIED_PAYLOAD: usize = 256;
/// Consumed bytes at the front of the arena from which on it is moved together.
const SLACK: usize = 64 << 10;

/// How a write ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    /// Nothing is queued any more.
    All,
    /// The socket takes no more now.
    Blocked,
    /// It may take more, but as much as was allowed is written.
    Limit,
}

enum Piece {
    /// Bytes of the arena, by their place in the stream of all bytes that were ever put there.
    Arena { start: usize, len: usize },
    /// Guest memory.
    Memory(Segment),
}

/// The queue of one link.
#[derive(Default)]
pub(super) struct Transmit {
    arena: Vec<u8>,
    /// Arena bytes that were dropped from its front, ever.
    dropped: usize,
    /// Arena bytes that were sent, ever.
    arena_sent: usize,
    pieces: VecDeque<Piece>,
    queued: usize,
    /// Bytes sent, ever.
    sent: u64,
    /// For each Ethernet frame that is queued, where it ends in the stream, and its length.
    ethernet: VecDeque<(u64, usize)>,
    ethernet_queued: usize,
}

impl Transmit {
    /// Whether nothing is queued.
    pub(super) fn is_empty(&self) -> bool {
        self.queued == 0
    }

    /// Bytes queued.
    pub(super) fn queued(&self) -> usize {
        self.queued
    }

    /// Bytes sent so far.
    pub(super) fn sent(&self) -> u64 {
        self.sent
    }

    /// Whether a frame of any size is taken.
    pub(super) fn has_room(&self) -> bool {
        self.queued < HIGH_WATER + self.ethernet_queued && self.pieces.len() < HIGH_PIECES
    }

    /// Whether a frame without payload is taken.
    pub(super) fn has_room_for_header(&self) -> bool {
        self.queued < HARD_LIMIT
    }

    /// Whether an Ethernet frame is taken.
    pub(super) fn has_room_for_ethernet(&mut self) -> bool {
        while let Some((end, len)) = self.ethernet.front().copied() {
            if end > self.sent {
                break;
            }
            self.ethernet.pop_front();
            self.ethernet_queued -= len;
        }
        self.ethernet_queued < ETHERNET_ROOM && self.has_room_for_header()
    }

    /// Queues bytes as they are.
    pub(super) fn push_bytes(&mut self, bytes: &[u8]) {
        self.make_room();
        self.arena.extend_from_slice(bytes);
        self.added(bytes.len());
    }

    /// Moves the arena together when much of it was sent.
    #[inline]
    fn make_room(&mut self) {
        if self.pieces.is_empty() {
            self.dropped += self.arena.len();
            self.arena_sent = self.dropped;
            self.arena.clear();
        } else if self.arena_sent - self.dropped >= SLACK.max(self.arena.len() / 2) {
            self.arena.drain(..self.arena_sent - self.dropped);
            self.dropped = self.arena_sent;
        }
    }

    /// The last `added` bytes of the arena are to be sent.
    #[inline]
    fn added(&mut self, added: usize) {
        self.queued += added;
        // The last piece, if in the arena, ends where the arena did.
        match self.pieces.back_mut() {
            Some(Piece::Arena { len, .. }) => *len += added,
            _ => self.pieces.push_back(Piece::Arena {
                start: self.dropped + self.arena.len() - added,
                len: added,
            }),
        }
    }

    /// Queues a frame: `inline` is copied, `payload` is as a rule not. Their length is what goes into the header. Limits are the
    /// caller's to check.
    pub(super) fn push(&mut self, header: &FrameHeader, inline: &[u8], payload: &[Segment]) {
        let referred = total(payload);
        let header = FrameHeader {
            length: (inline.len() + referred) as u32,
            ..*header
        };
        let copied = if referred <= COPIED_PAYLOAD {
            referred
        } else {
            0
        };
        self.make_room();
        let start = self.arena.len();
        self.arena.reserve(HEADER_LEN + inline.len() + copied);
        self.arena.extend_from_slice(&header.encode());
        self.arena.extend_from_slice(inline);
        if copied > 0 {
            for segment in payload {
                let filled = self.arena.len();
                // SAFETY: the segment is mapped (contract of `Fabric::send`), and room for all of them was reserved above. A guest that
                // writes meanwhile changes what is sent and nothing else.
                unsafe {
                    std::ptr::copy_nonoverlapping(
                        segment.base.cast_const(),
                        self.arena.as_mut_ptr().add(filled),
                        segment.len,
                    );
                    self.arena.set_len(filled + segment.len);
                }
            }
        }
        self.added(self.arena.len() - start);
        if copied == referred {
            return;
        }
        for segment in payload {
            if segment.len > 0 {
                self.pieces.push_back(Piece::Memory(*segment));
            }
        }
        self.queued += referred;
    }

    /// Queues an Ethernet frame.
    pub(super) fn push_ethernet(&mut self, header: &FrameHeader, frame: &[u8]) {
        self.push(header, frame, &[]);
        let len = frame.len() + HEADER_LEN;
        self.ethernet_queued += len;
        self.ethernet
            .push_back((self.sent + self.queued as u64, len));
    }

    /// Writes until all is written, the socket takes no more, or `limit` bytes are written.
    pub(super) fn write(
        &mut self,
        stream: &TcpStream,
        vectors: &mut Vectors,
        limit: usize,
        stats: Option<&PeerCounters>,
    ) -> io::Result<Written> {
        let mut left = limit;
        while self.queued > 0 {
            if left == 0 {
                return Ok(Written::Limit);
            }
            vectors.clear();
            let mut asked = 0;
            for piece in &self.pieces {
                if vectors.is_full() || asked == left {
                    break;
                }
                let mut place = match *piece {
                    Piece::Memory(segment) => segment,
                    Piece::Arena { start, len } => Segment {
                        // The piece lies in the arena, so this is in bounds; it is only read from.
                        base: self.arena[start - self.dropped..].as_ptr().cast_mut(),
                        len,
                    },
                };
                place.len = place.len.min(left - asked);
                asked += place.len;
                vectors.push(place);
            }
            // SAFETY: arena pieces point into the arena, which is not touched before the call returns; memory pieces are mapped as
            // long as they are queued (contract of `Fabric::send` and `forget_memory`).
            let result = unsafe { socket::write(stream, vectors) };
            if let Some(stats) = stats {
                stats.tx_calls.add(1);
            }
            match result {
                Ok(written) => {
                    if let Some(stats) = stats {
                        stats.tx_bytes.add(written as u64);
                    }
                    self.consume(written);
                    left -= written;
                    if written < asked {
                        return Ok(Written::Blocked);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(Written::Blocked);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
                Err(error) => return Err(error),
            }
        }
        Ok(Written::All)
    }

    fn consume(&mut self, mut bytes: usize) {
        self.queued -= bytes;
        self.sent += bytes as u64;
        while bytes > 0 {
            let Some(piece) = self.pieces.front_mut() else {
                return;
            };
            let (step, rest) = match piece {
                Piece::Arena { start, len } => {
                    let step = bytes.min(*len);
                    *start += step;
                    *len -= step;
                    self.arena_sent += step;
                    (step, *len)
                }
                Piece::Memory(segment) => {
                    let step = bytes.min(segment.len);
                    segment.base = segment.base.wrapping_add(step);
                    segment.len -= step;
                    (step, segment.len)
                }
            };
            bytes -= step;
            if rest == 0 {
                self.pieces.pop_front();
            }
        }
    }

    /// Copies what is held by reference: at most [`HIGH_WATER`] and a frame.
    pub(super) fn forget_memory(&mut self) {
        if !self
            .pieces
            .iter()
            .any(|piece| matches!(piece, Piece::Memory(_)))
        {
            return;
        }
        let mut arena = Vec::with_capacity(self.queued);
        for piece in self.pieces.drain(..) {
            match piece {
                Piece::Arena { start, len } => {
                    let start = start - self.dropped;
                    arena.extend_from_slice(&self.arena[start..start + len]);
                }
                Piece::Memory(segment) => {
                    let filled = arena.len();
                    arena.resize(filled + segment.len, 0);
                    // SAFETY: the segment is mapped while it is queued; the room was made above.
                    unsafe {
                        let target = arena.as_mut_ptr().add(filled);
                        std::ptr::copy_nonoverlapping(
                            segment.base.cast_const(),
                            target,
                            segment.len,
                        );
                    }
                }
            }
        }
        self.arena = arena;
        self.dropped = 0;
        self.arena_sent = 0;
        self.pieces.push_back(Piece::Arena {
            start: 0,
            len: self.arena.len(),
        });
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::TcpListener;

    use super::*;
    use crate::rdma::fabric::frame::kind;
    use crate::rdma::fabric::test_utils::segment;
    use crate::rdma::test_utils::Random;

    #[test]
    fn what_is_queued_is_sent_whatever_happens_in_between() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        socket::prepare(&stream, Some(1)).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        let mut random = Random(88_172_645_463_325_252);
        let mut vectors = Vectors::new();
        let mut transmit = Transmit::default();
        let mut expected = Vec::new();
        let mut got = vec![0; 1 << 20];
        let mut read = 0;
        // Payloads stay where they are until they are sent or let go of.
        let mut memory: Vec<Vec<u8>> = Vec::new();
        for round in 0..20_000 {
            if transmit.has_room() && random.index(3) > 0 {
                let limit = [1, 100, 300, 3000][random.index(4)];
                let (inline, length) = (random.index(limit), random.index(limit));
                let mut payload: Vec<u8> =
                    (0..inline + length).map(|i| (i ^ round) as u8).collect();
                let header = FrameHeader {
                    kind: kind::WRITE,
                    seq: round as u32,
                    length: payload.len() as u32,
                    ..FrameHeader::default()
                };
                expected.extend(header.encode());
                expected.extend(&payload);
                let (head, tail) = payload.split_at_mut(inline);
                let (first, second) = tail.split_at_mut(length / 2);
                transmit.push(&header, head, &[segment(first), segment(second)]);
                memory.push(payload);
            }
            if random.index(4) == 0 {
                transmit
                    .write(&stream, &mut vectors, usize::MAX, None)
                    .unwrap();
            }
            if random.index(500) == 0 {
                transmit.forget_memory();
                memory.iter_mut().for_each(|payload| payload.fill(0));
                memory.clear();
            }
            if random.index(8) == 0 && read < transmit.sent() as usize {
                let there = transmit.sent() as usize - read;
                let size = (1 + random.index(65_536)).min(there);
                far.read_exact(&mut got[..size]).unwrap();
                assert!(expected[..size] == got[..size]);
                expected.drain(..size);
                read += size;
            }
        }
        assert!(read > 1 << 20, "only {read} bytes crossed");
        assert_eq!(
            transmit.queued(),
            expected.len() + read - transmit.sent() as usize
        );
        // The arena was moved together, not left to grow.
        assert!(transmit.arena.capacity() < 8 << 20);
    }
}
