//! What fabrics count. Written by the fabric's thread alone, read by any.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;

/// A number that one thread writes and others read.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds to it; from the writing thread only.
    pub(super) fn add(&self, amount: u64) {
        // One writer, so no read-modify-write is needed.
        let value = self.0.load(Ordering::Relaxed).wrapping_add(amount);
        self.0.store(value, Ordering::Relaxed);
    }

    /// Its value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The counters of one peer.
#[derive(Debug, Default)]
pub struct PeerStats {
    pub(super) id: u32,
    pub(super) instance: [u8; 16],
    pub(super) address: Mutex<Option<SocketAddr>>,
    pub(super) up: AtomicBool,
    pub(super) frames_sent: Counter,
    pub(super) frames_received: Counter,
    pub(super) bytes_sent: Counter,
    pub(super) bytes_received: Counter,
    pub(super) send_calls: Counter,
    pub(super) receive_calls: Counter,
    pub(super) staged_bytes: Counter,
    pub(super) links_made: Counter,
    pub(super) links_lost: Counter,
    pub(super) bytes_unsent: Counter,
    pub(super) discarded: Counter,
    pub(super) ethernet_dropped: Counter,
}

/// The counters of one peer at one time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PeerSnapshot {
    /// The number of the peer, as in [`super::PeerId`].
    pub peer: u32,
    /// The peer's instance, in hexadecimal.
    pub instance: String,
    /// The address at the other end of the latest link.
    pub address: Option<SocketAddr>,
    /// Whether there is a link now.
    pub up: bool,
    /// Frames taken for sending, of all types.
    pub frames_sent: u64,
    /// Frames that came complete, of all types.
    pub frames_received: u64,
    /// Bytes written to the links, headers included.
    pub bytes_sent: u64,
    /// Bytes read from the links, headers included.
    pub bytes_received: u64,
    /// System calls that wrote.
    pub send_calls: u64,
    /// System calls that read.
    pub receive_calls: u64,
    /// Payload bytes that were copied out of the staging buffer and not read in place.
    pub staged_bytes: u64,
    /// Links that came up.
    pub links_made: u64,
    /// Links that were lost.
    pub links_lost: u64,
    /// Bytes that were queued or half sent when a link was lost.
    pub bytes_unsent: u64,
    /// Payloads that the device had thrown away.
    pub discarded: u64,
    /// Ethernet frames dropped because too many were queued.
    pub ethernet_dropped: u64,
}

impl PeerStats {
    fn snapshot(&self) -> PeerSnapshot {
        PeerSnapshot {
            peer: self.id,
            instance: hexadecimal(&self.instance),
            address: *self.address.lock().unwrap_or_else(PoisonError::into_inner),
            up: self.up.load(Ordering::Relaxed),
            frames_sent: self.frames_sent.get(),
            frames_received: self.frames_received.get(),
            bytes_sent: self.bytes_sent.get(),
            bytes_received: self.bytes_received.get(),
            send_calls: self.send_calls.get(),
            receive_calls: self.receive_calls.get(),
            staged_bytes: self.staged_bytes.get(),
            links_made: self.links_made.get(),
            links_lost: self.links_lost.get(),
            bytes_unsent: self.bytes_unsent.get(),
            discarded: self.discarded.get(),
            ethernet_dropped: self.ethernet_dropped.get(),
        }
    }
}

/// Bytes as hexadecimal digits.
pub(super) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The counters of the local Ethernet port.
#[derive(Debug, Default)]
pub struct EthernetStats {
    pub(super) sent: Counter,
    pub(super) received: Counter,
    pub(super) flooded: Counter,
    pub(super) filtered: Counter,
    pub(super) malformed: Counter,
}

/// The counters of the local Ethernet port at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct EthernetSnapshot {
    /// Frames that came from the local interface.
    pub sent: u64,
    /// Frames handed to the local interface.
    pub received: u64,
    /// Frames from the local interface that went to every peer.
    pub flooded: u64,
    /// Frames that were for somebody else and went nowhere.
    pub filtered: u64,
    /// Frames from the local interface that were no Ethernet frames.
    pub malformed: u64,
    /// Frames from the local interface that found the queue to the fabric full.
    pub dropped_outgoing: u64,
    /// Frames for the local interface that found its queue full.
    pub dropped_incoming: u64,
}

/// All that a fabric counts.
#[derive(Debug, Default)]
pub struct FabricStats {
    peers: Mutex<Vec<Arc<PeerStats>>>,
    pub(super) ethernet: EthernetStats,
    pub(super) ethernet_outgoing_dropped: Arc<AtomicU64>,
    pub(super) ethernet_incoming_dropped: Arc<AtomicU64>,
}

/// All that a fabric counted at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FabricSnapshot {
    /// Every peer that was seen and is remembered.
    pub peers: Vec<PeerSnapshot>,
    /// The local Ethernet port.
    pub ethernet: EthernetSnapshot,
}

impl FabricStats {
    /// Adds a peer, in the place of another (whose counters end) or as a new one.
    pub(super) fn set(&self, index: usize, peer: Arc<PeerStats>) {
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        match peers.get_mut(index) {
            Some(place) => *place = peer,
            None => peers.push(peer),
        }
    }

    /// The values now.
    pub fn snapshot(&self) -> FabricSnapshot {
        let peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        FabricSnapshot {
            peers: peers.iter().map(|peer| peer.snapshot()).collect(),
            ethernet: EthernetSnapshot {
                sent: self.ethernet.sent.get(),
                received: self.ethernet.received.get(),
                flooded: self.ethernet.flooded.get(),
                filtered: self.ethernet.filtered.get(),
                malformed: self.ethernet.malformed.get(),
                dropped_outgoing: self.ethernet_outgoing_dropped.load(Ordering::Relaxed),
                dropped_incoming: self.ethernet_incoming_dropped.load(Ordering::Relaxed),
            },
        }
    }
}
