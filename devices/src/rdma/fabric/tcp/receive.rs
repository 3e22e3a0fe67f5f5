//! What comes in on a link: headers and small payloads through a staging buffer, large payloads straight to where the device wants them.
//!
//! How much is read beyond the payload under way decides whether the next payload is read in place or copied out of the staging buffer.
//! While large payloads come, only the headers that are expected before the next one are read along with each; while none does,
//! as much as there is.

use std::fmt;
use std::io;
use std::net::TcpStream;

use super::hello;
use super::socket::{self, Vectors};
use crate::rdma::fabric::ethernet::{MAX_FRAME, MIN_FRAME};
use crate::rdma::fabric::frame::{FrameHeader, GRH_LEN, HEADER_LEN, MAX_DATAGRAM, flag, kind};
use crate::rdma::fabric::queue::checked;
use crate::rdma::fabric::segments::{Cursor, copy};
use crate::rdma::fabric::{PeerId, Placement, Sink};
use crate::rdma::memory::Segment;
use crate::rdma::stats::PeerCounters;

/// Longest payload that we take.
pub(super) const MAX_FRAME_PAYLOAD: u32 = 1 << 20;
/// Most GIDs in one frame.
pub(super) const MAX_GIDS: usize = 1024;
/// Size of the staging buffer.
const STAGING: usize = 64 << 10;
/// Payloads longer than this are read in place, but for what came along before they were expected.
const STAGED_PAYLOAD: u32 = 4096;
/// So many small frames in a row say that no large one is to be expected.
const SMALL_RUN: usize = 16;

/// Why a link ends for what the peer sent.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Malformed(pub(super) String);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "peer sent {}", self.0)
    }
}

/// What is to be done before more can be taken in.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Input {
    /// More bytes are needed.
    Wanting,
    /// A frame that is not for the device came; its payload is [`Receive::control`].
    Control(FrameHeader),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Destination {
    /// The sink is to be asked.
    Unasked,
    /// Into `Receive::into`.
    Memory,
    /// Into `Receive::buffer`.
    Buffer,
    Discard,
}

/// A frame whose payload is not complete.
struct Current {
    header: FrameHeader,
    done: usize,
    destination: Destination,
}

/// The receiving half of one link.
pub(super) struct Receive {
    /// The lane that frames are said to come by.
    pub(super) lane: u8,
    greeted: bool,
    staging: Box<[u8]>,
    start: usize,
    end: usize,
    current: Option<Current>,
    into: Vec<Segment>,
    at: Cursor,
    buffer: Vec<u8>,
    /// Small frames since the last large one, and before it.
    run: usize,
    last_run: usize,
}

impl Receive {
    pub(super) fn new() -> Self {
        Receive {
            lane: 0,
            greeted: false,
            staging: vec![0; STAGING].into_boxed_slice(),
            start: 0,
            end: 0,
            current: None,
            into: Vec::new(),
            at: Cursor::default(),
            buffer: Vec::new(),
            run: SMALL_RUN,
            last_run: 0,
        }
    }

    /// The payload of the last [`Input::Control`] frame.
    pub(super) fn control(&self) -> &[u8] {
        &self.buffer
    }

    /// Bytes that were read and not taken in yet.
    pub(super) fn staged(&self) -> usize {
        self.end - self.start
    }

    /// Takes in what was read, up to a frame that is not for the device or the end of it. Frames for the device are handed to the sink.
    pub(super) fn advance(
        &mut self,
        peer: PeerId,
        sink: &mut dyn Sink,
        stats: Option<&PeerCounters>,
    ) -> Result<Input, Malformed> {
        loop {
            let Some(current) = &mut self.current else {
                let Some(bytes) = self.staging[self.start..self.end].first_chunk::<HEADER_LEN>()
                else {
                    return Ok(Input::Wanting);
                };
                let header = FrameHeader {
                    lane: self.lane,
                    ..FrameHeader::decode(bytes)
                };
                check(&header, bytes, self.greeted).map_err(Malformed)?;
                self.start += HEADER_LEN;
                if !self.hand_over(peer, &header, sink, stats) {
                    self.begin(header);
                }
                continue;
            };
            let length = current.header.length as usize;
            if current.destination == Destination::Unasked {
                let (into, at) = (&mut self.into, &mut self.at);
                current.destination = match ask(sink, peer, &current.header, current.done, into, at)
                {
                    Placement::Into => Destination::Memory,
                    Placement::Discard => Destination::Discard,
                };
            }
            let staged = (self.end - self.start).min(length - current.done);
            if staged > 0 {
                let done = current.done;
                current.done += staged;
                match current.destination {
                    Destination::Buffer => {
                        let bytes = &self.staging[self.start..self.start + staged];
                        self.buffer[done..done + staged].copy_from_slice(bytes);
                    }
                    Destination::Memory => self.put_in_place(staged, stats),
                    Destination::Discard | Destination::Unasked => (),
                }
                self.start += staged;
            }
            let Some(current) = &self.current else {
                continue;
            };
            if current.done < length {
                return Ok(Input::Wanting);
            }
            let (header, destination) = (current.header, current.destination);
            self.current = None;
            if let Some(stats) = stats {
                stats.rx_frames.add(1);
            }
            if header.kind < kind::SEND {
                self.greeted = true;
                return Ok(Input::Control(header));
            }
            match destination {
                Destination::Buffer => sink.frame(peer, &header, Placement::Into, &self.buffer),
                Destination::Discard => {
                    if let Some(stats) = stats {
                        stats.rx_discarded.add(u64::from(length > 0));
                    }
                    sink.frame(peer, &header, Placement::Discard, &[]);
                }
                Destination::Memory | Destination::Unasked => {
                    self.into.clear();
                    sink.frame(peer, &header, Placement::Into, &[]);
                }
            }
        }
    }

    /// Hands a small frame for the device to the sink from where it lies, if all of it is staged. That is what nearly all of them are when
    /// there are many, so nothing is remembered of it.
    fn hand_over(
        &mut self,
        peer: PeerId,
        header: &FrameHeader,
        sink: &mut dyn Sink,
        stats: Option<&PeerCounters>,
    ) -> bool {
        let length = header.length as usize;
        let as_data = kind::comes_as_data(header.kind);
        if header.kind < kind::SEND
            || header.length > STAGED_PAYLOAD && !as_data
            || self.end - self.start < length
        {
            return false;
        }
        self.run = (self.run + 1).min(SMALL_RUN);
        if let Some(stats) = stats {
            stats.rx_frames.add(1);
        }
        if as_data {
            let data = &self.staging[self.start..self.start + length];
            sink.frame(peer, header, Placement::Into, data);
            if let Some(stats) = stats {
                stats.rx_staged.add(length as u64);
            }
        } else {
            let placement = ask(sink, peer, header, 0, &mut self.into, &mut self.at);
            match placement {
                Placement::Into if length > 0 => self.put_in_place(length, stats),
                Placement::Into => {}
                Placement::Discard => {
                    if let Some(stats) = stats {
                        stats.rx_discarded.add(u64::from(length > 0));
                    }
                }
            }
            self.into.clear();
            sink.frame(peer, header, placement, &[]);
        }
        self.start += length;
        true
    }

    /// Copies the next `staged` bytes of the staging buffer to where the sink wants them.
    fn put_in_place(&mut self, staged: usize, stats: Option<&PeerCounters>) {
        let source = [Segment {
            base: self.staging[self.start..self.start + staged]
                .as_ptr()
                .cast_mut(),
            len: staged,
        }];
        let from = &mut Cursor::default();
        // SAFETY: the source is the staging buffer; the targets were resolved by the sink and are let go of in `forget_memory` before
        // they end.
        unsafe { copy(&source, from, &self.into, &mut self.at, staged) };
        if let Some(stats) = stats {
            stats.rx_staged.add(staged as u64);
        }
    }

    fn begin(&mut self, header: FrameHeader) {
        let buffered = header.kind < kind::SEND || kind::comes_as_data(header.kind);
        if header.length > STAGED_PAYLOAD && !buffered {
            self.last_run = self.run;
            self.run = 0;
        } else {
            self.run = (self.run + 1).min(SMALL_RUN);
        }
        if buffered {
            self.buffer.clear();
            self.buffer.resize(header.length as usize, 0);
        }
        self.current = Some(Current {
            header,
            done: 0,
            destination: match buffered {
                true => Destination::Buffer,
                false => Destination::Unasked,
            },
        });
    }

    /// How far the staging buffer is to be filled.
    fn window(&self) -> usize {
        if self.run >= SMALL_RUN {
            return STAGING;
        }
        // The next large frame is expected after as many small ones as the last one came after.
        let before = self.run.max(self.last_run.min(SMALL_RUN - 1));
        HEADER_LEN * (before + 1)
    }

    /// Reads once, at most `limit` bytes, which is at least the length of a header. To be called when [`Receive::advance`] wants more. Gives the bytes
    /// read, and whether there was room for more.
    pub(super) fn read(
        &mut self,
        stream: &TcpStream,
        vectors: &mut Vectors,
        scratch: &mut [u8],
        limit: usize,
    ) -> io::Result<(usize, bool)> {
        vectors.clear();
        self.staging.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        // Bytes that the payload under way still wants, and of those the ones that this call has a place for.
        let mut wanted = 0;
        let mut placed = 0;
        if let Some(current) = &self.current {
            wanted = current.header.length as usize - current.done;
            let whole = |bytes: &mut [u8]| Segment {
                base: bytes.as_mut_ptr(),
                len: bytes.len(),
            };
            match current.destination {
                Destination::Memory => {
                    for mut segment in self.at.rest(&self.into) {
                        if vectors.is_full() || placed == limit {
                            break;
                        }
                        segment.len = segment.len.min(limit - placed);
                        vectors.push(segment);
                        placed += segment.len;
                    }
                }
                Destination::Buffer => {
                    placed = wanted.min(limit);
                    vectors.push(whole(&mut self.buffer[current.done..current.done + placed]));
                }
                Destination::Discard | Destination::Unasked => {
                    placed = wanted.min(scratch.len()).min(limit);
                    vectors.push(whole(&mut scratch[..placed]));
                }
            }
        }
        let mut asked = placed;
        if placed == wanted && placed < limit && !vectors.is_full() {
            let window = self.window().max(HEADER_LEN);
            let window = window.min((self.end + limit - placed).max(HEADER_LEN));
            let room = &mut self.staging[self.end..window];
            asked += room.len();
            vectors.push(Segment {
                base: room.as_mut_ptr(),
                len: room.len(),
            });
        }
        // SAFETY: the places are buffers of ours, not touched before the call returns, and segments that the sink resolved, which are
        // let go of in `forget_memory` before they end.
        let read = unsafe { socket::read(stream, vectors) }?;
        let payload = read.min(placed);
        if let Some(current) = &mut self.current {
            current.done += payload;
            if current.destination == Destination::Memory {
                self.at.advance(&self.into, payload);
            }
        }
        self.end += read - payload;
        Ok((read, read < asked))
    }

    /// Lets go of guest memory: the sink is asked anew for the rest of the payload under way.
    pub(super) fn forget_memory(&mut self) {
        self.into.clear();
        self.at = Cursor::default();
        // What is thrown away stays so: its first bytes are nowhere.
        if let Some(current) = &mut self.current
            && current.destination == Destination::Memory
        {
            current.destination = Destination::Unasked;
        }
    }
}

/// Asks the sink where the payload goes from `done` on: to `into`, from its begin on.
fn ask(
    sink: &mut dyn Sink,
    peer: PeerId,
    header: &FrameHeader,
    done: usize,
    into: &mut Vec<Segment>,
    at: &mut Cursor,
) -> Placement {
    into.clear();
    *at = Cursor::default();
    let answer = sink.place(peer, header, done as u32, into);
    checked(answer, into, header.length as usize - done)
}

/// Checks what a header says by itself; the error says what the peer sent.
fn check(header: &FrameHeader, bytes: &[u8; HEADER_LEN], greeted: bool) -> Result<(), String> {
    let FrameHeader {
        kind: frame_kind,
        length,
        ..
    } = *header;
    if greeted == (frame_kind == kind::HELLO) {
        return Err(match greeted {
            true => "a second HELLO".to_owned(),
            false => format!("{:02x?} where HELLO was to come", &bytes[..8]),
        });
    }
    if bytes[2..4] != [0, 0] {
        return Err(format!("reserved bytes {:02x?}", &bytes[2..4]));
    }
    let known = flag::LAST | flag::IMM | flag::SOLICITED | flag::INVALIDATE;
    if header.flags & !known != 0 {
        return Err(format!(
            "flags {:#04x}, known are {known:#04x}",
            header.flags
        ));
    }
    let gids = 16 * MAX_GIDS as u32;
    let (allowed, multiple) = match frame_kind {
        kind::HELLO => (hello::LEN..=hello::MAX_LEN, 1),
        kind::PING | kind::PONG | kind::READ | kind::ACK | kind::NAK => (0..=0, 1),
        kind::GID_ADD | kind::GID_DEL => (0..=gids, 16),
        kind::ETHERNET => (MIN_FRAME as u32..=MAX_FRAME as u32, 1),
        kind::SEND | kind::WRITE | kind::READ_DATA => (0..=MAX_FRAME_PAYLOAD, 1),
        kind::ATOMIC => (16..=16, 1),
        kind::ATOMIC_DATA => (8..=8, 1),
        kind::DATAGRAM => (GRH_LEN..=GRH_LEN + MAX_DATAGRAM, 1),
        unknown => return Err(format!("a frame of unknown type {unknown:#04x}")),
    };
    if !allowed.contains(&length) || length % multiple != 0 {
        return Err(format!(
            "a frame of type {frame_kind:#04x} with {length} bytes, {} to {} allowed",
            allowed.start(),
            allowed.end()
        ));
    }
    Ok(())
}
