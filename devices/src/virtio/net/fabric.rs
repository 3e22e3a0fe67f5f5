//! The fabric's Ethernet as a backend.

use std::io;
use std::os::fd::RawFd;

use super::Backend;
use crate::rdma::fabric::ethernet::EthernetPort;

impl Backend for EthernetPort {
    fn send(&mut self, frame: &[u8]) -> io::Result<()> {
        // The fabric counts what it drops.
        EthernetPort::send(self, &[frame]);
        Ok(())
    }

    fn receive(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        Ok(EthernetPort::receive(self, buffer))
    }

    fn wait_fd(&self) -> RawFd {
        EthernetPort::wait_fd(self)
    }
}
