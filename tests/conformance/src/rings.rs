//! Posting, polling and arming as a provider does it: plain stores into the rings, no call to anybody but the doorbell.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use crate::doorbell::Doorbells;
use crate::layout::{
    Cqe, DatagramAddress, KICK_RQ, KICK_SQ, SendHeader, Sge, cqe_flag, send, wqe_flag,
};
use crate::memory::Buffer;
use crate::node::Mr;

/// A word that device and driver share.
pub(crate) fn shared(ptr: *mut u8) -> &'static AtomicU32 {
    // SAFETY: callers pass aligned addresses inside a Buffer that their queue owns, and use the reference at once; an atomic is
    // the right view of memory that the device changes.
    unsafe { AtomicU32::from_ptr(ptr.cast()) }
}

/// A completion queue.
pub struct Cq {
    /// Its handle.
    pub cqn: u32,
    /// Completion vector.
    pub vector: u32,
    /// Length of the ring.
    pub entries: u32,
    /// Free-running index of the next CQE.
    pub consumer: u32,
    /// Sequence of the next arming.
    pub sequence: u32,
    pub(crate) ctrl: *mut u8,
    pub(crate) ring: *mut u8,
    /// The memory behind it.
    pub buffer: Buffer,
}

// SAFETY: the pointers lead into `buffer`, which goes with the value.
unsafe impl Send for Cq {}

/// What to arm for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arm {
    /// The next solicited completion, or error.
    Solicited = 1,
    /// The next completion.
    Any = 2,
}

impl Cq {
    fn slot(&self, index: u32) -> *mut u8 {
        // SAFETY: the masked index lies in the ring, which lies in the buffer.
        unsafe { self.ring.add(((index & (self.entries - 1)) as usize) * 64) }
    }

    /// Whether the next CQE is there.
    #[inline]
    pub fn ready(&self) -> bool {
        let slot = self.slot(self.consumer);
        // SAFETY: offset 60 of a 64-byte slot.
        let phase = shared(unsafe { slot.add(60) }).load(Ordering::Acquire);
        let pass = self.consumer / self.entries;
        phase & 1 == pass.wrapping_add(1) & 1
    }

    /// Takes the next CQE.
    #[inline]
    pub fn poll(&mut self) -> Option<Cqe> {
        let cqe = self.peek()?;
        self.consumer = self.consumer.wrapping_add(1);
        shared(self.ctrl).store(self.consumer, Ordering::Release);
        Some(cqe)
    }

    /// Reads the next CQE and leaves it there.
    #[inline]
    pub fn peek(&self) -> Option<Cqe> {
        if !self.ready() {
            return None;
        }
        let mut bytes = [0; 64];
        // SAFETY: a whole slot; the device does not write it again before `consumer` moves.
        unsafe { std::ptr::copy_nonoverlapping(self.slot(self.consumer), bytes.as_mut_ptr(), 64) };
        Some(Cqe::decode(&bytes))
    }

    /// Arms under the current sequence. True if a CQE is there already, and the caller ought to poll before it waits.
    pub fn arm(&mut self, kind: Arm) -> bool {
        // SAFETY: offset 4 of the control block.
        let arm = shared(unsafe { self.ctrl.add(4) });
        let now = arm.load(Ordering::Relaxed);
        let stronger = if now >> 2 == self.sequence & 0x3fff_ffff {
            (now & 3).max(kind as u32)
        } else {
            kind as u32
        };
        arm.store(self.sequence << 2 | stronger, Ordering::Release);
        fence(Ordering::SeqCst);
        self.ready()
    }

    /// An event was consumed: the next arming has the next sequence.
    pub fn event_consumed(&mut self) {
        self.sequence = self.sequence.wrapping_add(1) & 0x3fff_ffff;
    }

    /// The device's flags (bit 0: ERROR).
    pub fn flags(&self) -> u32 {
        // SAFETY: offset 64 of the control block.
        shared(unsafe { self.ctrl.add(64) }).load(Ordering::Acquire)
    }

    /// The consumer index in the control block, to lie with.
    pub fn consumer_word(&self) -> &AtomicU32 {
        shared(self.ctrl)
    }

    /// The arm word in the control block, to lie with.
    pub fn arm_word(&self) -> &AtomicU32 {
        // SAFETY: offset 4 of the control block.
        shared(unsafe { self.ctrl.add(4) })
    }

    /// All bytes of the ring.
    pub fn ring_bytes(&self) -> Vec<u8> {
        self.buffer.read(
            self.ring as usize - self.buffer.ptr() as usize,
            self.entries as usize * 64,
        )
    }
}

/// A send work request. Lives on the caller's stack; posting copies it into the ring.
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs, reason = "the names are those of the specification")]
pub struct SendWr<'a> {
    pub wr_id: u64,
    pub opcode: u8,
    pub flags: u8,
    pub sges: &'a [Sge],
    /// Posted as inline data when not None.
    pub inline: Option<&'a [u8]>,
    pub imm: [u8; 4],
    pub rkey: u32,
    pub remote_addr: u64,
    pub compare_add: u64,
    pub swap: u64,
    /// Of a datagram.
    pub datagram: Option<DatagramAddress>,
    /// Of an XRC initiator.
    pub srqn: u32,
    pub num_pages: u32,
    pub page_shift: u8,
}

impl<'a> SendWr<'a> {
    /// A request that wants a CQE.
    pub fn signaled(wr_id: u64, opcode: u8) -> Self {
        SendWr {
            wr_id,
            opcode,
            flags: wqe_flag::SIGNALED,
            ..Default::default()
        }
    }

    /// Takes the bytes of a key away.
    pub fn invalidate(wr_id: u64, key: u32) -> Self {
        SendWr {
            imm: key.to_le_bytes(),
            ..SendWr::signaled(wr_id, send::LOCAL_INV)
        }
    }

    /// Binds a window, whose key is to be `key`, to `len` bytes from `at` of a region.
    pub fn bind(wr_id: u64, key: u32, region: &Mr, at: u64, len: u64, access: u32) -> Self {
        SendWr {
            imm: key.to_le_bytes(),
            rkey: region.key,
            remote_addr: region.iova + at,
            compare_add: len,
            swap: access.into(),
            ..SendWr::signaled(wr_id, send::BIND_MW)
        }
    }

    /// With these bytes in the WQE itself.
    pub fn with_inline(self, data: &'a [u8]) -> Self {
        SendWr {
            inline: Some(data),
            ..self
        }
    }

    /// From or into these stretches of the poster's memory.
    pub fn with_sges(self, sges: &'a [Sge]) -> Self {
        SendWr { sges, ..self }
    }

    /// To a QP or group, as a datagram.
    pub fn to(self, address: DatagramAddress) -> Self {
        SendWr {
            datagram: Some(address),
            ..self
        }
    }

    /// For an SRQ at an XRC target.
    pub fn for_srq(self, srqn: u32) -> Self {
        SendWr { srqn, ..self }
    }

    /// Into or from the far region, `at` so many bytes of it.
    pub fn at(self, region: &Mr, at: u64) -> Self {
        SendWr {
            rkey: region.key,
            remote_addr: region.iova + at,
            ..self
        }
    }
}

/// The queue is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// A queue pair's rings.
pub struct Qp {
    /// Its number.
    pub qpn: u32,
    /// Its type.
    pub kind: u32,
    /// Doorbell page of its owner.
    pub page: u32,
    /// Owner.
    pub context: u32,
    /// Ring lengths and strides.
    pub sq_entries: u32,
    /// Bytes of a send WQE.
    pub sq_stride: u32,
    /// Receives.
    pub rq_entries: u32,
    /// Bytes of a receive WQE.
    pub rq_stride: u32,
    /// Free-running producer of the send queue.
    pub sq_producer: u32,
    /// All send WQEs before this one are done with.
    pub sq_retired: u32,
    /// Free-running producer of the receive queue.
    pub rq_producer: u32,
    /// All receives before this one are done with.
    pub rq_retired: u32,
    pub(crate) bells: Arc<Doorbells>,
    pub(crate) ctrl: *mut u8,
    pub(crate) sq: *mut u8,
    pub(crate) rq: *mut u8,
    /// The memory behind it.
    pub buffer: Buffer,
}

// SAFETY: the pointers lead into `buffer`, which goes with the value.
unsafe impl Send for Qp {}

impl Qp {
    /// A send WQE's slot.
    pub fn sq_slot(&self, index: u32) -> *mut u8 {
        // SAFETY: the masked index lies in the ring, which lies in the buffer.
        unsafe {
            self.sq
                .add((index & (self.sq_entries - 1)) as usize * self.sq_stride as usize)
        }
    }

    /// A receive WQE's slot.
    pub fn rq_slot(&self, index: u32) -> *mut u8 {
        // SAFETY: the masked index lies in the ring, which lies in the buffer.
        unsafe {
            self.rq
                .add((index & (self.rq_entries - 1)) as usize * self.rq_stride as usize)
        }
    }

    /// Writes a WQE without telling the device. Its index.
    #[inline]
    pub fn write_send(&mut self, wr: &SendWr<'_>) -> Result<u32, Full> {
        if self.sq_producer.wrapping_sub(self.sq_retired) >= self.sq_entries {
            return Err(Full);
        }
        let index = self.sq_producer;
        let slot = self.sq_slot(index);
        let (flags, inline_len, num_sge) = match wr.inline {
            Some(data) => (wr.flags | wqe_flag::INLINE, data.len() as u32, 0),
            None => (wr.flags, 0, wr.sges.len() as u16),
        };
        let header = SendHeader {
            wr_id: wr.wr_id,
            opcode: wr.opcode,
            flags,
            num_sge,
            inline_len,
            imm: wr.imm,
            rkey: wr.rkey,
            remote_addr: wr.remote_addr,
            compare_add: wr.compare_add,
            swap: wr.swap,
            datagram: wr.datagram,
            srqn: wr.srqn,
            num_pages: wr.num_pages,
            page_shift: wr.page_shift,
        }
        .encode();
        let room = self.sq_stride as usize - 64;
        assert!(
            wr.inline.map_or(16 * wr.sges.len(), <[u8]>::len) <= room,
            "a provider checks this before it posts"
        );
        // SAFETY: header and body fit in the stride, as just asserted; the slot is not the device's now.
        unsafe {
            std::ptr::copy_nonoverlapping(header.as_ptr(), slot, 64);
            match wr.inline {
                Some(data) => {
                    std::ptr::copy_nonoverlapping(data.as_ptr(), slot.add(64), data.len())
                }
                None => {
                    for (n, sge) in wr.sges.iter().enumerate() {
                        std::ptr::copy_nonoverlapping(
                            sge.encode().as_ptr(),
                            slot.add(64 + 16 * n),
                            16,
                        );
                    }
                }
            }
        }
        self.sq_producer = index.wrapping_add(1);
        Ok(index)
    }

    /// Tells the device about all that was written, and rings if it asks for that. True if it rang.
    #[inline]
    pub fn publish_sends(&mut self) -> bool {
        shared(self.ctrl).store(self.sq_producer, Ordering::Release);
        fence(Ordering::SeqCst);
        let ring = self.flags() & KICK_SQ != 0;
        if ring {
            self.bells.ring(self.page, self.qpn);
        }
        ring
    }

    /// Posts one send work request. Its index.
    #[inline]
    pub fn post_send(&mut self, wr: &SendWr<'_>) -> Result<u32, Full> {
        let index = self.write_send(wr)?;
        self.publish_sends();
        Ok(index)
    }

    /// Writes a receive WQE without telling the device. Its index.
    #[inline]
    pub fn write_recv(&mut self, wr_id: u64, sges: &[Sge]) -> Result<u32, Full> {
        if self.rq_producer.wrapping_sub(self.rq_retired) >= self.rq_entries {
            return Err(Full);
        }
        let index = self.rq_producer;
        let slot = self.rq_slot(index);
        // SAFETY: the slot has rq_stride bytes, and is not the device's now.
        unsafe { fill_recv(slot, self.rq_stride, wr_id, sges) };
        self.rq_producer = index.wrapping_add(1);
        Ok(index)
    }

    /// Tells the device about all receives that were written. True if it rang.
    #[inline]
    pub fn publish_recvs(&mut self) -> bool {
        // SAFETY: offset 64 of the control block.
        shared(unsafe { self.ctrl.add(64) }).store(self.rq_producer, Ordering::Release);
        fence(Ordering::SeqCst);
        let ring = self.flags() & KICK_RQ != 0;
        if ring {
            self.bells.ring(self.page, self.qpn);
        }
        ring
    }

    /// Posts one receive. Its index.
    #[inline]
    pub fn post_recv(&mut self, wr_id: u64, sges: &[Sge]) -> Result<u32, Full> {
        let index = self.write_recv(wr_id, sges)?;
        self.publish_recvs();
        Ok(index)
    }

    /// Takes note of a completion: the slots up to it can be used again.
    #[inline]
    pub fn retire(&mut self, cqe: &Cqe) {
        debug_assert_eq!(cqe.qpn, self.qpn);
        if cqe.flags & cqe_flag::SEND_QUEUE != 0 {
            self.sq_retired = cqe.wqe_index.wrapping_add(1);
        } else {
            self.rq_retired = cqe.wqe_index.wrapping_add(1);
        }
    }

    /// What a driver does after MODIFY_QP to RESET: indices start again on its side too.
    pub fn reset_indices(&mut self) {
        (
            self.sq_producer,
            self.sq_retired,
            self.rq_producer,
            self.rq_retired,
        ) = (0, 0, 0, 0);
        shared(self.ctrl).store(0, Ordering::Release);
        // SAFETY: offset 64 of the control block.
        shared(unsafe { self.ctrl.add(64) }).store(0, Ordering::Release);
    }

    /// The device's KICK flags.
    #[inline]
    pub fn flags(&self) -> u32 {
        // SAFETY: offset 128 of the control block.
        shared(unsafe { self.ctrl.add(128) }).load(Ordering::Relaxed)
    }

    /// The send queue's producer index in the control block, to lie with.
    pub fn sq_producer_word(&self) -> &AtomicU32 {
        shared(self.ctrl)
    }

    /// The receive queue's producer index in the control block, to lie with.
    pub fn rq_producer_word(&self) -> &AtomicU32 {
        // SAFETY: offset 64 of the control block.
        shared(unsafe { self.ctrl.add(64) })
    }

    /// Rings the doorbell, asked or not.
    pub fn ring(&self) {
        self.bells.ring(self.page, self.qpn);
    }
}

/// Writes a receive WQE (section 6), of a QP's queue or an SRQ.
///
/// # Safety
/// `slot` has `stride` bytes of guest memory, which are the driver's now.
#[inline]
pub(crate) unsafe fn fill_recv(slot: *mut u8, stride: u32, wr_id: u64, sges: &[Sge]) {
    assert!(
        16 + 16 * sges.len() <= stride as usize,
        "a provider checks this before it posts"
    );
    let mut header = [0; 16];
    header[0..8].copy_from_slice(&wr_id.to_le_bytes());
    header[8..10].copy_from_slice(&(sges.len() as u16).to_le_bytes());
    // SAFETY: header and SGEs fit in the stride, as just asserted; the rest is the caller's word.
    unsafe {
        std::ptr::copy_nonoverlapping(header.as_ptr(), slot, 16);
        for (n, sge) in sges.iter().enumerate() {
            std::ptr::copy_nonoverlapping(sge.encode().as_ptr(), slot.add(16 + 16 * n), 16);
        }
    }
}
