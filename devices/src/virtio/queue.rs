//! A virtqueue as a device works it: chains copied out once and checked, and a refusal instead of a loop when the driver's
//! indices make no sense.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

use virtio_queue::{Queue, QueueOwnedT, QueueT};
use vm_memory::{Bytes, GuestAddress, GuestMemory, Permissions};
use vmm_sys_util::eventfd::EventFd;

use super::{ActiveQueue, VirtioInterrupt};
use crate::GuestRam;

/// Why a queue, or a chain of it, cannot be served.
#[derive(Debug, thiserror::Error)]
pub(crate) enum QueueError {
    /// The rings themselves make no sense: the device needs a reset.
    #[error("virtqueue {index} is broken: {source}")]
    Broken {
        index: u16,
        source: virtio_queue::Error,
    },
    /// A buffer lies outside of guest memory.
    #[error("buffer outside of guest memory: {0}")]
    Memory(#[from] vm_memory::GuestMemoryError),
    /// A buffer is shorter than what must fit.
    #[error("descriptor chain has {have} bytes where {need} are needed")]
    Short { have: usize, need: usize },
}

/// A part of guest memory that a descriptor names.
#[derive(Debug, Clone, Copy)]
struct Segment {
    addr: GuestAddress,
    len: usize,
}

/// The buffers of one direction of a chain, as one run of bytes.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    segments: Vec<Segment>,
    len: usize,
}

impl Buffers {
    fn clear(&mut self) {
        self.segments.clear();
        self.len = 0;
    }

    fn push(&mut self, addr: GuestAddress, len: u32) {
        let len = len as usize;
        self.segments.push(Segment { addr, len });
        // A chain is at most 2^32 bytes: `DescriptorChain` ends there.
        self.len += len;
    }

    /// Bytes in all.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The parts that hold bytes `offset..offset + len`.
    fn parts(
        &self,
        offset: usize,
        len: usize,
    ) -> Result<impl Iterator<Item = Segment>, QueueError> {
        let end = offset.saturating_add(len);
        if end > self.len {
            return Err(QueueError::Short {
                have: self.len,
                need: end,
            });
        }
        let mut start = 0;
        Ok(self.segments.iter().filter_map(move |segment| {
            let (first, last) = (offset.max(start), end.min(start + segment.len));
            let skip = first.saturating_sub(start);
            start += segment.len;
            (first < last).then(|| Segment {
                // The end of the address space holds no memory: a segment that runs past it is refused when it is used.
                addr: GuestAddress(segment.addr.0.saturating_add(skip as u64)),
                len: last - first,
            })
        }))
    }

    /// Copies out `out.len()` bytes from `offset` on.
    pub(crate) fn read(
        &self,
        memory: &GuestRam,
        offset: usize,
        out: &mut [u8],
    ) -> Result<(), QueueError> {
        let mut at = 0;
        for part in self.parts(offset, out.len())? {
            memory.read_slice(&mut out[at..at + part.len], part.addr)?;
            at += part.len;
        }
        Ok(())
    }

    /// Copies in `data` from `offset` on.
    pub(crate) fn write(
        &self,
        memory: &GuestRam,
        offset: usize,
        data: &[u8],
    ) -> Result<(), QueueError> {
        let mut at = 0;
        for part in self.parts(offset, data.len())? {
            memory.write_slice(&data[at..at + part.len], part.addr)?;
            at += part.len;
        }
        Ok(())
    }

    /// Appends to `out` the host's view of bytes `offset..offset + len`, for a gathering or scattering system call. The
    /// pointers are good as long as `memory` is.
    pub(crate) fn iovecs(
        &self,
        memory: &GuestRam,
        offset: usize,
        len: usize,
        access: Permissions,
        out: &mut Vec<libc::iovec>,
    ) -> Result<(), QueueError> {
        for part in self.parts(offset, len)? {
            for slice in memory.get_slices(part.addr, part.len, access)? {
                let slice = slice?;
                out.push(libc::iovec {
                    iov_base: slice.ptr_guard_mut().as_ptr().cast(),
                    iov_len: slice.len(),
                });
            }
        }
        Ok(())
    }
}

/// A descriptor chain: the device's own copy of the addresses and lengths.
#[derive(Debug, Default)]
pub(crate) struct Chain {
    head: u16,
    /// What the device may read.
    pub(crate) readable: Buffers,
    /// What the device may write.
    pub(crate) writable: Buffers,
}

/// A queue at work, with all that serving it needs.
pub(crate) struct DeviceQueue {
    index: u16,
    queue: Queue,
    kick: EventFd,
    memory: Arc<GuestRam>,
    interrupt: Arc<dyn VirtioInterrupt>,
}

impl DeviceQueue {
    pub(crate) fn new(
        index: u16,
        active: ActiveQueue,
        memory: Arc<GuestRam>,
        interrupt: Arc<dyn VirtioInterrupt>,
    ) -> Self {
        Self {
            index,
            queue: active.queue,
            kick: active.kick,
            memory,
            interrupt,
        }
    }

    pub(crate) fn memory(&self) -> &Arc<GuestRam> {
        &self.memory
    }

    /// Becomes readable when the driver notifies.
    pub(crate) fn kick_fd(&self) -> RawFd {
        self.kick.as_raw_fd()
    }

    /// Forgets notifications so far.
    pub(crate) fn clear_kick(&self) {
        // WouldBlock: another reader, or none since the last time.
        let _ = self.kick.read();
    }

    /// Takes the next chain into `chain`. Returns false when there is none.
    ///
    /// A descriptor that the device may read after one that it may write ends the chain there, as does more descriptors than the
    /// queue is long (virtio 1.2, 2.7.5.3.1): what is missing then is found missing by its length.
    pub(crate) fn pop(&mut self, chain: &mut Chain) -> Result<bool, QueueError> {
        let index = self.index;
        let memory: &GuestRam = &self.memory;
        let next = self
            .queue
            .iter(memory)
            .map_err(|source| QueueError::Broken { index, source })?
            .next();
        let Some(descriptors) = next else {
            return Ok(false);
        };
        let limit = usize::from(self.queue.size());
        chain.head = descriptors.head_index();
        chain.readable.clear();
        chain.writable.clear();
        for descriptor in descriptors.take(limit) {
            if descriptor.is_write_only() {
                chain.writable.push(descriptor.addr(), descriptor.len());
            } else if chain.writable.segments.is_empty() {
                chain.readable.push(descriptor.addr(), descriptor.len());
            } else {
                break;
            }
        }
        Ok(true)
    }

    /// Undoes the last [`pop`](Self::pop), whose chain was not used.
    pub(crate) fn unpop(&mut self) {
        self.queue.go_to_previous_position();
    }

    /// Gives `chain` back, `written` bytes of its writable part filled.
    pub(crate) fn push(&mut self, chain: &Chain, written: usize) -> Result<(), QueueError> {
        let written = u32::try_from(written).unwrap_or(u32::MAX);
        self.queue
            .add_used(&*self.memory, chain.head, written)
            .map_err(|e| self.broken(e))
    }

    /// Raises the queue's interrupt if the driver wants to know of the chains pushed since the last call.
    pub(crate) fn signal(&mut self) -> Result<(), QueueError> {
        if self
            .queue
            .needs_notification(&*self.memory)
            .map_err(|e| self.broken(e))?
        {
            self.interrupt.queue(self.index);
        }
        Ok(())
    }

    /// Asks the driver not to notify, while the device looks for itself.
    pub(crate) fn disable_notification(&mut self) -> Result<(), QueueError> {
        self.queue
            .disable_notification(&*self.memory)
            .map_err(|e| self.broken(e))
    }

    /// Asks the driver to notify again. Returns true when chains came in meanwhile, of which there is no notification.
    pub(crate) fn enable_notification(&mut self) -> Result<bool, QueueError> {
        self.queue
            .enable_notification(&*self.memory)
            .map_err(|e| self.broken(e))
    }

    /// Says that the device cannot go on: logs why, and asks the driver for a reset.
    pub(crate) fn fail(&self, error: &QueueError) {
        log::warn!("virtio device stopped: {error}");
        self.interrupt.needs_reset();
    }

    fn broken(&self, source: virtio_queue::Error) -> QueueError {
        QueueError::Broken {
            index: self.index,
            source,
        }
    }
}

/// How many chains are served between two looks at other work and at the stop flag.
const BATCH: usize = 64;

/// Serves every chain of `queue` by `handle`, which returns the number of bytes it wrote, until none is left or `stop` says so.
pub(crate) fn serve(
    queue: &mut DeviceQueue,
    chain: &mut Chain,
    stop: &super::worker::StopFlag,
    mut handle: impl FnMut(&GuestRam, &Chain) -> usize,
) -> Result<(), QueueError> {
    let memory = queue.memory.clone();
    loop {
        queue.disable_notification()?;
        let mut served = 0;
        while queue.pop(chain)? {
            let written = handle(&memory, chain);
            queue.push(chain, written)?;
            served += 1;
            if served == BATCH {
                queue.signal()?;
                served = 0;
            }
            if stop.is_set() {
                break;
            }
        }
        if served > 0 {
            queue.signal()?;
        }
        if !queue.enable_notification()? || stop.is_set() {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::virtio::test_utils::{Driver, R, W};
    use crate::virtio::worker::StopFlag;

    #[test]
    fn a_chain_is_split_by_direction_and_copied() {
        let mut d = Driver::new(16);
        let mut q = d.device_queue();
        d.memory
            .write_slice(b"abcdef", GuestAddress(0x1_0000))
            .unwrap();
        d.add(&[
            (0x1_0000, 3, R),
            (0x1_0003, 3, R),
            (0x1_0100, 4, W),
            (0x1_0200, 4, W),
        ]);
        let mut chain = Chain::default();
        assert!(q.pop(&mut chain).unwrap());
        assert_eq!((chain.readable.len(), chain.writable.len()), (6, 8));
        let mut out = [0; 4];
        chain.readable.read(&d.memory, 1, &mut out).unwrap();
        assert_eq!(&out, b"bcde");
        chain.writable.write(&d.memory, 2, b"wxyz").unwrap();
        assert_eq!(d.bytes(0x1_0102, 2), b"wx");
        assert_eq!(d.bytes(0x1_0200, 2), b"yz");
        assert!(matches!(
            chain.readable.read(&d.memory, 3, &mut out),
            Err(QueueError::Short { have: 6, need: 7 })
        ));
        let mut iov = Vec::new();
        chain
            .writable
            .iovecs(&d.memory, 3, 2, Permissions::Write, &mut iov)
            .unwrap();
        assert_eq!(iov.iter().map(|v| v.iov_len).collect::<Vec<_>>(), [1, 1]);
        q.push(&chain, 8).unwrap();
        assert_eq!(d.used(), [(0, 8)]);
        assert!(!q.pop(&mut chain).unwrap());
    }

    #[test]
    fn readable_after_writable_ends_the_chain() {
        let mut d = Driver::new(16);
        let mut q = d.device_queue();
        d.add(&[
            (0x1_0000, 3, R),
            (0x1_0100, 4, W),
            (0x1_0200, 5, R),
            (0x1_0300, 6, W),
        ]);
        let mut chain = Chain::default();
        q.pop(&mut chain).unwrap();
        assert_eq!((chain.readable.len(), chain.writable.len()), (3, 4));
    }

    #[test]
    fn a_chain_that_loops_is_as_long_as_the_queue() {
        let mut d = Driver::new(16);
        let mut q = d.device_queue();
        d.raw_descriptor(0, 0x1_0000, 1, 1, 1);
        d.raw_descriptor(1, 0x1_0000, 1, 1, 0);
        d.make_available(0);
        let mut chain = Chain::default();
        q.pop(&mut chain).unwrap();
        assert_eq!(chain.readable.len(), 16);
    }

    #[test]
    fn buffers_outside_of_memory_are_an_error_when_used() {
        let mut d = Driver::new(16);
        let mut q = d.device_queue();
        d.add(&[(u64::MAX - 1, 8, R), (0xfff_ffff_0000, 8, W)]);
        let mut chain = Chain::default();
        q.pop(&mut chain).unwrap();
        assert!(matches!(
            chain.readable.read(&d.memory, 4, &mut [0; 4]),
            Err(QueueError::Memory(_))
        ));
        assert!(matches!(
            chain.writable.write(&d.memory, 0, &[0; 4]),
            Err(QueueError::Memory(_))
        ));
        let mut iov = Vec::new();
        assert!(
            chain
                .writable
                .iovecs(&d.memory, 0, 8, Permissions::Write, &mut iov)
                .is_err()
        );
    }

    #[test]
    fn indices_that_make_no_sense_break_the_queue_and_do_not_loop() {
        let mut d = Driver::new(16);
        let mut q = d.device_queue();
        d.set_avail_idx(1000);
        let served = serve(&mut q, &mut Chain::default(), &StopFlag::never(), |_, _| 0);
        assert!(matches!(served, Err(QueueError::Broken { index: 0, .. })));
        q.fail(&served.unwrap_err());
        assert_eq!(d.interrupt.resets_asked(), 1);
    }

    #[test]
    fn a_head_that_does_not_exist_breaks_the_queue() {
        let mut d = Driver::new(16);
        let mut q = d.device_queue();
        d.make_available(99);
        assert!(serve(&mut q, &mut Chain::default(), &StopFlag::never(), |_, _| 0).is_err());
    }

    #[test]
    fn everything_available_is_served_and_signalled() {
        let mut d = Driver::new(256);
        let mut q = d.device_queue();
        for _ in 0..200 {
            d.add(&[(0x1_0000, 3, R)]);
        }
        serve(&mut q, &mut Chain::default(), &StopFlag::never(), |_, c| {
            c.readable.len()
        })
        .unwrap();
        let used = d.used();
        assert_eq!(used.len(), 200);
        assert!(used.iter().all(|u| u.1 == 3));
        assert!(d.interrupt.raised(0) >= 1);
    }
}
