//! A fabric that delivers what an attacker puts into its script, and looks at what the device sends.

use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use devices::rdma::fabric::frame::{FrameHeader, MAX_PAYLOAD, kind};
use devices::rdma::fabric::loopback::LoopbackFabric;
use devices::rdma::fabric::{Fabric, Gid, PeerId, Placement, SendError, Sink};
use devices::rdma::memory::Segment;

use crate::memory::CANARY;

/// The peers of the script.
pub(super) const PEERS: [PeerId; 2] = [PeerId(1), PeerId(2)];
/// Lanes to each of them: a frame that has come in part may be overtaken by one of another lane.
pub(super) const LANES: usize = 3;
/// The GID that leads to the first of them.
pub(super) const PEER_GID: Gid = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x99];

/// What comes from outside.
pub(super) enum Incoming {
    Frame {
        peer: PeerId,
        header: FrameHeader,
        payload: Vec<u8>,
        parts: usize,
    },
    Up(PeerId),
    Down(PeerId),
    Routes,
}

#[derive(Default)]
pub(super) struct Script {
    pub(super) incoming: VecDeque<Incoming>,
    /// What the device sent, for the attacker to answer.
    pub(super) sent: Vec<(PeerId, FrameHeader)>,
    pub(super) full: bool,
    pub(super) down: bool,
}

/// A frame of which a part has come.
struct Current {
    placement: Option<Placement>,
    into: Vec<Segment>,
    /// Bytes that had come when the sink was last asked, and bytes that have come.
    asked: usize,
    done: usize,
}

/// A fabric that delivers what a script says, and loopback beside it.
pub(super) struct Scripted {
    script: Arc<Mutex<Script>>,
    local: LoopbackFabric,
    /// By lane.
    current: [Option<Current>; LANES],
}

impl Scripted {
    pub(super) fn new(script: Arc<Mutex<Script>>) -> Scripted {
        Scripted {
            script,
            local: LoopbackFabric::new().expect("a fabric"),
            current: Default::default(),
        }
    }
}

/// Writes into segments, from `skip` bytes on.
fn put(into: &[Segment], mut skip: usize, mut bytes: &[u8]) {
    for segment in into {
        if skip >= segment.len {
            skip -= segment.len;
            continue;
        }
        let n = bytes.len().min(segment.len - skip);
        // SAFETY: the device has resolved the segment from a live registration, and is told before that ends (forget_memory).
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), segment.base.add(skip), n) };
        bytes = &bytes[n..];
        skip = 0;
    }
    assert!(
        bytes.is_empty(),
        "the device placed fewer bytes than the frame has"
    );
}

impl Fabric for Scripted {
    fn send(
        &mut self,
        peer: PeerId,
        header: &FrameHeader,
        inline: &[u8],
        payload: &[Segment],
    ) -> Result<(), SendError> {
        if peer == PeerId::LOCAL {
            return self.local.send(peer, header, inline, payload);
        }
        let mut script = self.script.lock().expect("the script");
        if script.down {
            return Err(SendError::Down);
        }
        let total = inline.len() + payload.iter().map(|segment| segment.len).sum::<usize>();
        assert_eq!(total, header.length as usize, "the parts of a frame add up");
        assert!(
            header.length <= MAX_PAYLOAD,
            "a frame larger than the peer takes"
        );
        if script.full && total > 0 {
            return Err(SendError::Full);
        }
        // What goes out is registered memory, so no run of canaries is in it.
        let mut bytes = inline.to_vec();
        for segment in payload {
            let at = bytes.len();
            bytes.resize(at + segment.len, 0);
            // SAFETY: the device has resolved the segment from a live registration and is in this very call.
            unsafe {
                std::ptr::copy_nonoverlapping(segment.base, bytes[at..].as_mut_ptr(), segment.len)
            };
        }
        let leaked = bytes
            .windows(16)
            .any(|window| window.iter().all(|byte| *byte == CANARY));
        assert!(
            !leaked,
            "memory that nobody registered was sent: {header:?}"
        );
        if script.sent.len() < 256 {
            script.sent.push((peer, *header));
        }
        Ok(())
    }

    fn lanes(&self, peer: PeerId) -> u8 {
        match peer {
            PeerId::LOCAL => 1,
            _ => LANES as u8,
        }
    }

    fn can_send(&self, peer: PeerId, lane: u8) -> bool {
        if peer == PeerId::LOCAL {
            return self.local.can_send(peer, lane);
        }
        let script = self.script.lock().expect("the script");
        !script.full && !script.down
    }

    fn is_up(&self, peer: PeerId) -> bool {
        peer == PeerId::LOCAL
            || (PEERS.contains(&peer) && !self.script.lock().expect("the script").down)
    }

    fn last_heard(&self, _peer: PeerId) -> Option<Instant> {
        Some(Instant::now())
    }

    fn flush(&mut self) {
        self.local.flush();
    }

    fn poll(&mut self, sink: &mut dyn Sink) -> bool {
        let mut worked = self.local.poll(sink);
        for _ in 0..64 {
            let mut script = self.script.lock().expect("the script");
            let Some(next) = script.incoming.pop_front() else {
                break;
            };
            worked = true;
            match next {
                Incoming::Up(peer) => {
                    script.down = false;
                    drop(script);
                    sink.peer_up(peer);
                }
                Incoming::Down(peer) => {
                    script.down = true;
                    drop(script);
                    self.current = Default::default();
                    sink.peer_down(peer);
                }
                Incoming::Routes => {
                    drop(script);
                    sink.routes_changed();
                }
                Incoming::Frame {
                    peer,
                    header,
                    payload,
                    parts,
                } => {
                    drop(script);
                    if kind::comes_as_data(header.kind) {
                        sink.frame(peer, &header, Placement::Into, &payload);
                        continue;
                    }
                    let slot = &mut self.current[usize::from(header.lane)];
                    let current = slot.get_or_insert_with(|| Current {
                        placement: None,
                        into: Vec::new(),
                        asked: 0,
                        done: 0,
                    });
                    let placement = *current.placement.get_or_insert_with(|| {
                        current.into.clear();
                        current.asked = current.done;
                        sink.place(peer, &header, current.done as u32, &mut current.into)
                    });
                    if placement == Placement::Into {
                        let room: usize = current.into.iter().map(|segment| segment.len).sum();
                        assert_eq!(
                            room,
                            payload.len() - current.asked,
                            "segments hold exactly the bytes asked for"
                        );
                    }
                    let left = payload.len() - current.done;
                    let now = if parts > 1 { left / parts } else { left };
                    if placement == Placement::Into {
                        put(
                            &current.into,
                            current.done - current.asked,
                            &payload[current.done..current.done + now],
                        );
                    }
                    current.done += now;
                    if current.done == payload.len() {
                        *slot = None;
                        sink.frame(peer, &header, placement, &[]);
                    } else {
                        let rest = Incoming::Frame {
                            peer,
                            header,
                            payload,
                            parts: parts - 1,
                        };
                        let incoming = &mut self.script.lock().expect("the script").incoming;
                        let overtakes = |next: &Incoming| matches!(next, Incoming::Frame { header: other, .. } if other.lane != header.lane);
                        let behind = incoming.front().is_some_and(overtakes);
                        incoming.insert(usize::from(behind), rest);
                        break;
                    }
                }
            }
        }
        worked
    }

    fn forget_memory(&mut self) {
        self.local.forget_memory();
        for current in self.current.iter_mut().flatten() {
            current.placement = None;
            current.into.clear();
        }
    }

    fn announce(&mut self, gids: &[Gid]) {
        self.local.announce(gids);
    }

    fn route(&self, gid: &Gid) -> Option<PeerId> {
        if *gid == PEER_GID {
            Some(PEERS[0])
        } else {
            self.local.route(gid)
        }
    }

    fn members(&self, gid: &Gid, into: &mut Vec<PeerId>) {
        into.extend(self.route(gid));
    }

    fn wait_fd(&self) -> RawFd {
        self.local.wait_fd()
    }
}
