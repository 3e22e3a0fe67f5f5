//! What devices ask of the hypervisor, without knowing which one it is: message-signalled interrupts towards the guest,
//! and event file descriptors that a guest's store signals without leaving for user space.

use std::io;
use std::sync::Arc;

use vmm_sys_util::eventfd::EventFd;

/// A message-signalled interrupt as the guest programmed it into an MSI-X table entry (PCI local bus 3.0, 6.8.2).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MsiMessage {
    /// Message address (upper and lower halves joined).
    pub address: u64,
    /// Message data.
    pub data: u32,
}

/// The source of interrupt vectors: implemented by whoever owns the interrupt controller.
pub trait MsiController: Send + Sync {
    /// Sets aside `vectors` interrupt sources, all masked. They are given back when the group is dropped.
    fn allocate(&self, vectors: u16) -> io::Result<Arc<dyn MsiGroup>>;
}

/// The vectors of one device.
pub trait MsiGroup: Send + Sync {
    /// Connects `vector` (an index into the group) to a message, or with `None` disconnects it (masked or disabled).
    ///
    /// When this returns, a later [`trigger`](Self::trigger) uses the new message. The caller keeps pending bits: while a
    /// vector is disconnected, it is not triggered.
    fn set(&self, vector: u16, message: Option<MsiMessage>) -> io::Result<()>;

    /// Raises `vector`. May be called from any thread, does not block, and does nothing when the vector is disconnected.
    fn trigger(&self, vector: u16);
}

/// Registers event file descriptors that the guest signals by storing to an address in memory-mapped I/O space.
///
/// Such a store does not reach the bus; a store to the same address that is not registered does.
pub trait IoEvents: Send + Sync {
    /// From now on a write of any length and value to guest physical address `addr` signals `fd`.
    fn register(&self, addr: u64, fd: &EventFd) -> io::Result<()>;

    /// Undoes [`register`](Self::register) with the same arguments.
    fn unregister(&self, addr: u64, fd: &EventFd) -> io::Result<()>;
}
