//! A tap interface of the host as a backend.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;

use super::Backend;

/// `_IOW('T', 202, int)`
const TUNSETIFF: libc::c_ulong = 0x4004_54ca;

/// A tap interface, without packet information and without virtio-net headers.
pub struct Tap {
    file: File,
}

impl Tap {
    /// Opens the interface `name` (1 to 15 bytes), which is made if it does not exist and the process may.
    ///
    /// # Errors
    /// `InvalidInput` for such a name, and what the kernel returns: `PermissionDenied`, or `ResourceBusy` when another process has it.
    pub fn open(name: &str) -> io::Result<Self> {
        if name.is_empty() || name.len() >= libc::IFNAMSIZ {
            let text = format!(
                "tap interface name `{name}`: 1 to {} bytes are allowed",
                libc::IFNAMSIZ - 1
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let mut options = OpenOptions::new();
        let file = options
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK)
            .open("/dev/net/tun")?;
        // SAFETY: a request of all zeroes is a valid value.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI) as libc::c_short;
        // SAFETY: TUNSETIFF reads and writes an `ifreq`, and `request` is one.
        if unsafe { libc::ioctl(file.as_raw_fd(), TUNSETIFF, &raw mut request) } < 0 {
            let e = io::Error::last_os_error();
            return Err(io::Error::new(
                e.kind(),
                format!("tap interface `{name}`: {e}"),
            ));
        }
        Ok(Self { file })
    }

    /// A tap interface that somebody else opened: a descriptor of `/dev/net/tun` after `TUNSETIFF` with `IFF_TAP | IFF_NO_PI`.
    pub fn from_fd(fd: OwnedFd) -> io::Result<Self> {
        // SAFETY: a system call on an open descriptor, without pointers.
        let flags = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) };
        if flags < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: as above.
        if unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            file: File::from(fd),
        })
    }
}

impl Backend for Tap {
    fn send(&mut self, frame: &[u8]) -> io::Result<()> {
        match self.file.write(frame) {
            Ok(_) => Ok(()),
            // The interface is down, or its queue is full.
            Err(e)
                if matches!(
                    e.raw_os_error(),
                    Some(libc::EAGAIN | libc::EIO | libc::ENOBUFS)
                ) =>
            {
                Ok(())
            }
            Err(e) => Err(e),
        }
    }

    fn receive(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        match self.file.read(buffer) {
            Ok(0) => Ok(None),
            Ok(n) => Ok(Some(n)),
            Err(e)
                if matches!(
                    e.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) =>
            {
                Ok(None)
            }
            Err(e) => Err(e),
        }
    }

    fn wait_fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        for name in ["", "sixteen-bytes-xx"] {
            assert_eq!(
                Tap::open(name).err().unwrap().kind(),
                io::ErrorKind::InvalidInput
            );
        }
    }
}
