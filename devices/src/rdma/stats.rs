//! Counters: of the device, of each QP, of each peer. They are written by the device's thread alone and read by any.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};

/// A counter with one writer.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds. Only the thread that owns the device may call it: it costs no locked instruction that way.
    #[inline]
    pub fn add(&self, n: u64) {
        let now = self.0.load(Ordering::Relaxed);
        self.0.store(now.wrapping_add(n), Ordering::Relaxed);
    }

    /// Says how many there are, where that can become less. Only the thread that owns the device may call it.
    pub fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }

    /// The count now.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

macro_rules! counters {
    ($(#[$doc:meta])* $name:ident, $snapshot:ident { $($(#[$field_doc:meta])* $field:ident,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Default)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: Counter,)*
        }

        /// The same at one moment.
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        pub struct $snapshot {
            $($(#[$field_doc])* pub $field: u64,)*
        }

        impl $name {
            /// All counts now. They move while they are read; each one is exact.
            pub fn snapshot(&self) -> $snapshot {
                $snapshot { $($field: self.$field.get(),)* }
            }

            /// All counts now, in the order of their declaration.
            pub fn values(&self) -> Vec<u64> {
                vec![$(self.$field.get(),)*]
            }

            /// Says how many there are of each, as [`Counter::set`] does.
            pub fn set(&self, counts: &$snapshot) {
                $(self.$field.set(counts.$field);)*
            }
        }
    };
}

counters! {
    /// Counters of a device, in the order of section 4.9.
    DeviceCounters, DeviceSnapshot {
        /// Messages sent and acknowledged, or asked of the peer and answered.
        tx_messages,
        /// Their bytes.
        tx_bytes,
        /// Messages taken in whole.
        rx_messages,
        /// Their bytes.
        rx_bytes,
        /// CQEs written.
        completions,
        /// RNR NAKs sent.
        rnr_nak_sent,
        /// RNR NAKs received.
        rnr_nak_received,
        /// Messages sent again.
        retries,
        /// Requester timers that ran out.
        timeouts,
        /// Accesses that were refused.
        access_errors,
        /// CQs that overflowed.
        cq_overflows,
        /// CQEs with the status WR_FLUSH_ERR.
        flushed,
        /// Frames received and thrown away.
        rx_discarded,
        /// Messages or completions dropped where the verbs promise delivery.
        lost,
        /// Messages of UC and datagram QPs that were not sent, or not whole: no route, no link, no room for too long or
        /// when the QP was destroyed.
        tx_discarded,
        /// Datagrams thrown away for their Q_Key.
        qkey_errors,
    }
}

counters! {
    /// Counters of a QP.
    QpCounters, QpSnapshot {
        /// Messages sent and acknowledged, or asked of the peer and answered.
        tx_messages,
        /// Their bytes.
        tx_bytes,
        /// Messages taken in whole.
        rx_messages,
        /// Their bytes.
        rx_bytes,
        /// Messages sent again.
        retries,
        /// RNR NAKs received.
        rnr_nak_received,
        /// Requester timers that ran out.
        timeouts,
    }
}

counters! {
    /// Counters of a peer, kept by the fabric.
    PeerCounters, PeerSnapshot {
        /// Frames sent.
        tx_frames,
        /// Bytes sent, headers included.
        tx_bytes,
        /// Frames received.
        rx_frames,
        /// Bytes received, headers included.
        rx_bytes,
        /// Links that came up.
        links_up,
        /// Links that were lost.
        links_lost,
        /// Further connections that joined a link.
        lanes_up,
        /// System calls that sent.
        tx_calls,
        /// System calls that received.
        rx_calls,
        /// Payload bytes that were copied out of the staging buffer, and not received in place.
        rx_staged,
        /// Frames whose payload the device had thrown away.
        rx_discarded,
        /// Bytes that were queued when a link was lost.
        tx_unsent,
        /// Ethernet frames sent.
        ethernet_tx,
        /// Ethernet frames received.
        ethernet_rx,
        /// Ethernet frames that were not sent because a queue was full or there was no link.
        ethernet_dropped,
    }
}

counters! {
    /// Counters of the fabric's Ethernet port for the local interface.
    EthernetCounters, EthernetSnapshot {
        /// Frames from the interface.
        tx_frames,
        /// Of those, frames that went to every peer.
        tx_flooded,
        /// Frames that the interface had no room for in the queue to the fabric, or that were malformed. Written by the interface's thread.
        tx_dropped,
        /// Frames for the interface.
        rx_frames,
        /// Frames for the interface that its queue had no room for.
        rx_dropped,
        /// Frames, either way, that the switch had to keep from going where they came from, or from one peer to another.
        filtered,
    }
}

counters! {
    /// Objects that there are, the kernel's and those of processes, as of the last command.
    ObjectCounts, ObjectSnapshot {
        /// User contexts.
        contexts,
        /// Protection domains.
        pds,
        /// Memory regions.
        mrs,
        /// Memory windows.
        mws,
        /// Completion queues.
        cqs,
        /// Shared receive queues.
        srqs,
        /// XRC domains.
        xrcds,
        /// Queue pairs.
        qps,
        /// List entries of all regions and rings (`mr_entries` of the limits).
        mr_entries,
    }
}

counters! {
    /// Counters of the device's thread, where it has one of its own: what its sleep costs the guest.
    ThreadCounters, ThreadSnapshot {
        /// Doorbells it took. The driver rings only when asked, which the thread does before it sleeps; each ring is an exit of the guest.
        doorbells,
        /// Times it slept.
        sleeps,
    }
}

/// All counters of a device, shared with whoever shows them.
#[derive(Debug, Default)]
pub struct Stats {
    /// The device's.
    pub device: DeviceCounters,
    /// How many objects it has.
    pub objects: ObjectCounts,
    /// Those of the fabric's Ethernet port.
    pub ethernet: EthernetCounters,
    /// Those of the device's thread.
    pub thread: ThreadCounters,
    qps: Mutex<BTreeMap<u32, Arc<QpCounters>>>,
    peers: Mutex<BTreeMap<String, Arc<PeerCounters>>>,
}

/// All counters at one moment; what `longarm stats` prints.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatsSnapshot {
    /// The device's.
    pub device: DeviceSnapshot,
    /// How many objects it has.
    pub objects: ObjectSnapshot,
    /// Those of the fabric's Ethernet port.
    pub ethernet: EthernetSnapshot,
    /// Those of the device's thread.
    pub thread: ThreadSnapshot,
    /// By QPN, of the QPs that exist.
    pub qps: BTreeMap<u32, QpSnapshot>,
    /// By what the fabric calls the peer.
    pub peers: BTreeMap<String, PeerSnapshot>,
}

impl StatsSnapshot {
    /// What was lost; anything but 0 makes a measurement worthless.
    pub fn losses(&self) -> u64 {
        self.device.lost + self.device.cq_overflows
    }
}

impl Stats {
    /// Counters for a new QP.
    pub(crate) fn add_qp(&self, qpn: u32) -> Arc<QpCounters> {
        let counters = Arc::new(QpCounters::default());
        let mut qps = self.qps.lock().unwrap_or_else(PoisonError::into_inner);
        qps.insert(qpn, counters.clone());
        counters
    }

    /// The QP is gone.
    pub(crate) fn remove_qp(&self, qpn: u32) {
        let mut qps = self.qps.lock().unwrap_or_else(PoisonError::into_inner);
        qps.remove(&qpn);
    }

    /// Shows the counters of a peer under a name, from now on.
    pub fn add_peer(&self, name: String, counters: Arc<PeerCounters>) {
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        peers.insert(name, counters);
    }

    /// The peer is forgotten.
    pub(crate) fn remove_peer(&self, name: &str) {
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        peers.remove(name);
    }

    /// All counters now.
    pub fn snapshot(&self) -> StatsSnapshot {
        let qps = self.qps.lock().unwrap_or_else(PoisonError::into_inner);
        let qps = qps.iter().map(|(qpn, c)| (*qpn, c.snapshot())).collect();
        let peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        let peers = peers
            .iter()
            .map(|(name, c)| (name.clone(), c.snapshot()))
            .collect();
        StatsSnapshot {
            device: self.device.snapshot(),
            objects: self.objects.snapshot(),
            ethernet: self.ethernet.snapshot(),
            thread: self.thread.snapshot(),
            qps,
            peers,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_device_counters_come_in_the_order_of_the_specification() {
        let stats = Stats::default();
        stats.device.tx_messages.add(1);
        stats.device.flushed.add(12);
        stats.device.lost.add(14);
        stats.device.qkey_errors.add(16);
        let values = stats.device.values();
        assert_eq!(values.len(), 16);
        assert_eq!((values[0], values[11], values[13]), (1, 12, 14));
        assert_eq!((values[14], values[15]), (0, 16));
    }

    #[test]
    fn a_snapshot_holds_the_qps_that_exist_and_their_losses() {
        let stats = Stats::default();
        let qp = stats.add_qp(5);
        qp.tx_bytes.add(3);
        stats.add_qp(6);
        stats.remove_qp(6);
        stats.device.cq_overflows.add(1);
        let snapshot = stats.snapshot();
        assert_eq!(snapshot.qps.len(), 1);
        assert_eq!(snapshot.qps[&5].tx_bytes, 3);
        assert_eq!(snapshot.losses(), 1);
    }
}
