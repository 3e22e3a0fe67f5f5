//! A vsock listener, which the standard library does not have.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Listens for connections from the host.
pub struct Listener {
    fd: OwnedFd,
}

impl Listener {
    /// Listens on `port`.
    pub fn bind(port: u32) -> io::Result<Self> {
        // SAFETY: a system call without pointers.
        let fd = check(unsafe {
            libc::socket(libc::AF_VSOCK, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0)
        })?;
        // SAFETY: the descriptor was just made and belongs to nobody else.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: an address of all zeroes is a valid value.
        let mut addr: libc::sockaddr_vm = unsafe { std::mem::zeroed() };
        addr.svm_family = libc::AF_VSOCK as libc::sa_family_t;
        addr.svm_cid = libc::VMADDR_CID_ANY;
        addr.svm_port = port;
        let len = size_of::<libc::sockaddr_vm>() as libc::socklen_t;
        // SAFETY: `addr` is a valid address of the length given.
        check(unsafe { libc::bind(fd.as_raw_fd(), (&raw const addr).cast(), len) })?;
        // SAFETY: a system call without pointers.
        check(unsafe { libc::listen(fd.as_raw_fd(), 64) })?;
        Ok(Self { fd })
    }

    /// Waits for the next connection.
    pub fn accept(&self) -> io::Result<OwnedFd> {
        loop {
            // SAFETY: no address is asked for, so no pointer is given.
            let fd = unsafe {
                libc::accept4(
                    self.fd.as_raw_fd(),
                    std::ptr::null_mut(),
                    std::ptr::null_mut(),
                    libc::SOCK_CLOEXEC,
                )
            };
            match check(fd) {
                // SAFETY: the descriptor was just made and belongs to nobody else.
                Ok(fd) => return Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}
