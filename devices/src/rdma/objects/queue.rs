//! Send and receive rings, and the flags by which a QP asks to be woken: sections 5 and 6.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use zerocopy::transmute;

use crate::rdma::memory::{RingMemory, Scope, access};
use crate::rdma::wire::{ReceiveWqeHeader, SendWqeHeader, Sge, kick, qp_control, vendor_err};

/// A producer index that the ring cannot hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a producer index is more than the ring's size ahead")]
pub struct RingFault;

/// The place of a ring in a queue's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingPlace {
    /// Of element 0.
    pub offset: u64,
    /// Elements, a power of two; 0 for none.
    pub entries: u32,
    /// Bytes of an element, a power of two.
    pub stride: u32,
}

impl RingPlace {
    /// Bytes of the ring.
    pub fn bytes(&self) -> u64 {
        u64::from(self.entries) * u64::from(self.stride)
    }

    /// Offset of the element with a free-running index. The ring must have entries.
    #[inline]
    fn element(&self, index: u32) -> u64 {
        let slot = index & self.entries.wrapping_sub(1);
        self.offset + u64::from(slot) * u64::from(self.stride)
    }
}

/// A ring that a process fills.
struct Ring {
    memory: Arc<RingMemory>,
    place: RingPlace,
    /// Offset of the producer index.
    producer: u64,
}

impl Ring {
    /// The producer index, checked against the first element that is not taken.
    #[inline]
    fn produced(&self, taken: u32) -> Result<u32, RingFault> {
        if self.place.entries == 0 {
            return Ok(taken);
        }
        // SAFETY: the control block lies inside the registered memory (checked at creation) at a multiple of 64, and an index at a multiple
        // of 64 from there.
        let producer = unsafe { access::load32(self.memory.at(self.producer)) };
        if producer.wrapping_sub(taken) > self.place.entries {
            return Err(RingFault);
        }
        Ok(producer)
    }

    /// The place of `len` bytes of an element, from `from` on.
    #[inline(always)]
    fn at(&self, index: u32, from: usize, len: usize) -> *const u8 {
        let stride = self.place.stride as usize;
        assert!(self.place.entries > 0 && from <= stride && len <= stride - from);
        // The ring lies inside the registered memory, its stride divides 4096 and its offset is a multiple of the stride (checked at
        // creation), so that an element is in one piece.
        let element = self.memory.at(self.place.element(index));
        element.wrapping_add(from)
    }

    /// A copy of `N` words of an element, from `from` on, a multiple of 8.
    #[inline(always)]
    fn words<const N: usize>(&self, index: u32, from: usize) -> [u64; N] {
        // SAFETY: `at` vouches for that many bytes. The ring's memory begins at a multiple of 4096 and its stride is at least 16 and a
        // power of two (checked at creation), so a multiple of 8 from an element's begin is one.
        unsafe { access::read_words(self.at(index, from, 8 * N)) }
    }
}

/// A send queue as the device reads it. The device's own index lives with the transport.
pub struct SendQueue {
    ring: Ring,
}

impl SendQueue {
    /// A queue in memory that holds it.
    pub(crate) fn new(memory: Arc<RingMemory>, place: RingPlace, control: u64) -> Self {
        SendQueue {
            ring: Ring {
                memory,
                place,
                producer: control + qp_control::SQ_PRODUCER,
            },
        }
    }

    /// Elements of the ring.
    pub fn entries(&self) -> u32 {
        self.ring.place.entries
    }

    /// The free-running index of the next WQE that the process will fill; `taken` is that of the first one which the device has not
    /// taken.
    ///
    /// # Errors
    /// When the index cannot be: the QP has to fail.
    #[inline]
    pub fn pending(&self, taken: u32) -> Result<u32, RingFault> {
        self.ring.produced(taken)
    }

    /// A copy of the first 64 bytes of a WQE.
    #[inline]
    pub fn header(&self, index: u32) -> SendWqeHeader {
        transmute!(self.ring.words::<8>(index, 0))
    }

    /// A copy of an SGE. `position` must be below the QP's `max_send_sge`.
    #[inline]
    pub fn sge(&self, index: u32, position: u16) -> Sge {
        let from = size_of::<SendWqeHeader>() + usize::from(position) * size_of::<Sge>();
        transmute!(self.ring.words::<2>(index, from))
    }

    /// Appends a copy of the first `length` inline bytes, at most the QP's `max_inline`, to `out`.
    pub fn inline(&self, index: u32, length: u32, out: &mut Vec<u8>) {
        let start = out.len();
        out.resize(start + length as usize, 0);
        let at = self
            .ring
            .at(index, size_of::<SendWqeHeader>(), length as usize);
        // SAFETY: `at` vouches for that many bytes.
        unsafe { access::read(at, &mut out[start..]) };
    }
}

/// A receive, copied from its ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiveWqe {
    /// Echoed in the CQE.
    pub wr_id: u64,
    /// Free-running index.
    pub index: u32,
    /// Whose memory its SGEs name: that of the queue it came from.
    pub scope: Scope,
    /// The CQ that it completes on.
    pub cqn: u32,
    /// A `vendor_err` when the WQE cannot be used: it is consumed and fails.
    pub fault: Option<u32>,
}

/// A receive queue as the device reads it.
pub struct ReceiveQueue {
    ring: Ring,
    max_sge: u32,
    scope: Scope,
    cqn: u32,
    taken: u32,
    produced: u32,
}

impl ReceiveQueue {
    /// A queue in memory that holds it, whose producer index lies at `producer`. Its receives complete on `cqn`.
    pub(crate) fn new(
        memory: Arc<RingMemory>,
        place: RingPlace,
        producer: u64,
        max_sge: u32,
        scope: Scope,
        cqn: u32,
    ) -> Self {
        ReceiveQueue {
            ring: Ring {
                memory,
                place,
                producer,
            },
            max_sge,
            scope,
            cqn,
            taken: 0,
            produced: 0,
        }
    }

    /// Elements of the ring.
    pub fn entries(&self) -> u32 {
        self.ring.place.entries
    }

    /// Back to index 0.
    pub(crate) fn reset(&mut self) {
        (self.taken, self.produced) = (0, 0);
    }

    /// Whether a receive is posted.
    ///
    /// # Errors
    /// When the producer index cannot be: the QP has to fail.
    #[inline]
    pub fn is_ready(&mut self) -> Result<bool, RingFault> {
        if self.taken == self.produced {
            self.produced = self.ring.produced(self.taken)?;
        }
        Ok(self.taken != self.produced)
    }

    /// Receives that are posted and not taken, by the producer index as it is now.
    ///
    /// # Errors
    /// As [`ReceiveQueue::is_ready`].
    pub(crate) fn waiting(&mut self) -> Result<u32, RingFault> {
        self.produced = self.ring.produced(self.taken)?;
        Ok(self.produced.wrapping_sub(self.taken))
    }

    /// Free-running index of the next receive to take.
    pub(crate) fn taken(&self) -> u32 {
        self.taken
    }

    /// Goes on, at the same index, in memory that has the same receives.
    ///
    /// # Errors
    /// When what is posted does not fit there: nothing has changed.
    pub(crate) fn move_to(
        &mut self,
        memory: Arc<RingMemory>,
        place: RingPlace,
        producer: u64,
    ) -> Result<(), RingFault> {
        let ring = Ring {
            memory,
            place,
            producer,
        };
        self.produced = ring.produced(self.taken)?;
        self.ring = ring;
        Ok(())
    }

    /// Takes the next receive and puts its SGEs in place of what is in `sges`; none when it has a `fault`. None when none is posted.
    ///
    /// # Errors
    /// As [`ReceiveQueue::is_ready`].
    pub fn next(&mut self, sges: &mut Vec<Sge>) -> Result<Option<ReceiveWqe>, RingFault> {
        if !self.is_ready()? {
            return Ok(None);
        }
        let index = self.taken;
        self.taken = index.wrapping_add(1);
        let header: ReceiveWqeHeader = transmute!(self.ring.words::<2>(index, 0));
        let mut wqe = ReceiveWqe {
            wr_id: header.wr_id.get(),
            index,
            scope: self.scope,
            cqn: self.cqn,
            fault: None,
        };
        sges.clear();
        let count = u32::from(header.num_sge.get());
        if count > self.max_sge {
            wqe.fault = Some(vendor_err::SGE_COUNT);
            return Ok(Some(wqe));
        }
        for position in 0..count as usize {
            let from = size_of::<ReceiveWqeHeader>() + position * size_of::<Sge>();
            sges.push(transmute!(self.ring.words::<2>(index, from)));
        }
        Ok(Some(wqe))
    }
}

/// The flags by which the device asks for a doorbell. Set in a new QP, and cleared while the device looks at its queues anyway.
pub struct Kick {
    memory: Arc<RingMemory>,
    offset: u64,
    bits: u32,
}

impl Kick {
    /// The flags of a new QP, all set.
    pub(crate) fn new(memory: Arc<RingMemory>, control: u64) -> Self {
        let mut flags = Kick {
            memory,
            offset: control + qp_control::FLAGS,
            bits: 0,
        };
        flags.set(kick::SQ | kick::RQ);
        flags
    }

    /// Asks for doorbells ([`kick`] bits). Before the queue is left alone, a fence ([`kick_fence`]) and another look at its producer must
    /// follow.
    pub fn set(&mut self, bits: u32) {
        self.store(self.bits | bits);
    }

    /// Wants no doorbells for now.
    pub fn clear(&mut self, bits: u32) {
        self.store(self.bits & !bits);
    }

    /// List entries that the QP's memory was registered with.
    pub(super) fn entries(&self) -> u64 {
        self.memory.entries()
    }

    /// The bits that are set.
    pub fn bits(&self) -> u32 {
        self.bits
    }

    #[inline]
    fn store(&mut self, bits: u32) {
        if bits != self.bits {
            self.bits = bits;
            // SAFETY: the control block lies inside the registered memory at a multiple of 64 (checked at creation), and the flags at a
            // multiple of 64 from there.
            unsafe { access::store32(self.memory.at(self.offset), bits) };
        }
    }
}

/// Orders the flags set so far before the producers read from now on; its counterpart is the fence of the process that posts.
pub fn kick_fence() {
    fence(Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;
    use crate::rdma::memory::RingBuffer;
    use crate::rdma::test_utils::FakeRam;
    use crate::rdma::wire::{Le16, Le32, Le64};

    const CONTROL: u64 = 0x1000;
    const ENTRIES: u32 = 8;
    const STRIDE: u32 = 128;

    struct Rig {
        ram: FakeRam,
        memory: Arc<RingMemory>,
    }

    impl Rig {
        fn new() -> Self {
            let ram = FakeRam::new(0x8000);
            let buffer = RingBuffer {
                length: 0x2000,
                page_shift: 12,
                offset: 0,
            };
            let memory = RingMemory::map(&ram, buffer, &[0x4000, 0x2000]).unwrap();
            Rig {
                ram,
                memory: Arc::new(memory),
            }
        }

        fn place(&self) -> RingPlace {
            RingPlace {
                offset: 0,
                entries: ENTRIES,
                stride: STRIDE,
            }
        }

        fn sends(&self) -> SendQueue {
            SendQueue::new(self.memory.clone(), self.place(), CONTROL)
        }

        fn receives(&self) -> ReceiveQueue {
            ReceiveQueue::new(
                self.memory.clone(),
                self.place(),
                CONTROL + qp_control::RQ_PRODUCER,
                2,
                Scope::default(),
                9,
            )
        }

        fn produce_sends(&self, producer: u32) {
            self.ram.write32(0x2000, producer);
        }

        fn produce_receives(&self, producer: u32) {
            self.ram.write32(0x2040, producer);
        }

        fn element(&self, slot: u32, data: &[u8]) {
            self.ram.write(0x4000 + u64::from(slot * STRIDE), data);
        }
    }

    #[test]
    fn a_producer_up_to_the_ring_ahead_is_believed_and_no_more() {
        let rig = Rig::new();
        let sq = rig.sends();
        for taken in [0, 5, u32::MAX - 3, u32::MAX] {
            for ahead in 0..=ENTRIES {
                rig.produce_sends(taken.wrapping_add(ahead));
                assert_eq!(sq.pending(taken), Ok(taken.wrapping_add(ahead)));
            }
            for lie in [ENTRIES + 1, 1 << 31, u32::MAX] {
                rig.produce_sends(taken.wrapping_add(lie));
                assert_eq!(sq.pending(taken), Err(RingFault));
            }
        }
    }

    #[test]
    fn a_queue_without_entries_never_has_work() {
        let rig = Rig::new();
        let none = RingPlace {
            entries: 0,
            ..rig.place()
        };
        rig.produce_sends(1);
        rig.produce_receives(1);
        let sq = SendQueue::new(rig.memory.clone(), none, CONTROL);
        let mut rq = ReceiveQueue::new(
            rig.memory.clone(),
            none,
            CONTROL + qp_control::RQ_PRODUCER,
            2,
            Scope::default(),
            9,
        );
        assert_eq!(sq.pending(0), Ok(0));
        assert_eq!(rq.next(&mut Vec::new()), Ok(None));
    }

    #[test]
    fn a_send_is_copied_from_its_slot() {
        let rig = Rig::new();
        let header = SendWqeHeader {
            wr_id: Le64::new(7),
            num_sge: Le16::new(2),
            ..SendWqeHeader::default()
        };
        let sge = |n| Sge {
            addr: Le64::new(n),
            length: Le32::new(1),
            lkey: Le32::new(2),
        };
        let sges = [sge(10), sge(11)];
        rig.element(3, &[header.as_bytes(), sges.as_bytes()].concat());
        let sq = rig.sends();
        for index in [3, 3 + ENTRIES, u32::MAX - 4] {
            assert_eq!(sq.header(index).wr_id.get(), 7);
            assert_eq!(sq.sge(index, 1), sge(11));
        }
        let mut inline = vec![0xee];
        sq.inline(3, 16, &mut inline);
        assert_eq!(inline[1..], *sge(10).as_bytes());
    }

    #[test]
    fn receives_are_taken_in_order_and_once() {
        let rig = Rig::new();
        for slot in 0..2_u32 {
            let header = ReceiveWqeHeader {
                wr_id: Le64::new(u64::from(slot) + 50),
                num_sge: Le16::new(1),
                ..ReceiveWqeHeader::default()
            };
            let sge = Sge {
                length: Le32::new(slot),
                ..Sge::default()
            };
            rig.element(slot, &[header.as_bytes(), sge.as_bytes()].concat());
        }
        let mut rq = rig.receives();
        let mut sges = Vec::new();
        assert_eq!(rq.next(&mut sges), Ok(None));
        rig.produce_receives(2);
        for slot in 0..2 {
            let wqe = rq.next(&mut sges).unwrap().unwrap();
            assert_eq!((wqe.wr_id, wqe.index), (u64::from(slot) + 50, slot));
            assert_eq!((sges.len(), sges[0].length.get()), (1, slot));
        }
        assert_eq!(rq.next(&mut sges), Ok(None));
        rig.produce_receives(1);
        assert_eq!(rq.next(&mut sges), Err(RingFault));
        rq.reset();
        assert_eq!(rq.next(&mut sges).unwrap().unwrap().index, 0);
    }

    #[test]
    fn a_receive_with_too_many_sges_is_taken_with_its_fault() {
        let rig = Rig::new();
        let header = ReceiveWqeHeader {
            num_sge: Le16::new(3),
            ..ReceiveWqeHeader::default()
        };
        rig.element(0, header.as_bytes());
        rig.produce_receives(1);
        let mut sges = vec![Sge::default()];
        let wqe = rig.receives().next(&mut sges).unwrap().unwrap();
        assert_eq!(wqe.fault, Some(vendor_err::SGE_COUNT));
        assert!(sges.is_empty());
    }

    #[test]
    fn doorbells_are_asked_for_at_first_and_flags_follow() {
        let rig = Rig::new();
        let mut flags = Kick::new(rig.memory.clone(), CONTROL);
        assert_eq!(rig.ram.read32(0x2080), kick::SQ | kick::RQ);
        flags.clear(kick::SQ);
        assert_eq!(rig.ram.read32(0x2080), kick::RQ);
        flags.set(kick::SQ);
        kick_fence();
        assert_eq!(rig.ram.read32(0x2080), flags.bits());
    }
}
