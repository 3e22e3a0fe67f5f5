//! Where a network device's frames go to and come from.

use std::io;
use std::os::fd::RawFd;

/// The other end of a network device's cable. Used from the device's thread only; nothing in it waits.
pub trait Backend: Send {
    /// Sends one Ethernet frame without FCS. A backend that has no room for it now drops it: Ethernet promises nothing.
    ///
    /// # Errors
    /// Only what the operator should hear of; the frame counts as dropped and the device goes on.
    fn send(&mut self, frame: &[u8]) -> io::Result<()>;

    /// Takes the next frame that came, into `buffer`. Returns its length, which is more than `buffer` holds when the frame was cut,
    /// or `None` when there is none.
    fn receive(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>>;

    /// A descriptor that is readable as long as [`receive`](Self::receive) may have a frame. The same one for the backend's life.
    fn wait_fd(&self) -> RawFd;
}
