//! Non-blocking sockets, and reading and writing them in many places at once.

use std::io;
use std::mem;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::rdma::memory::Segment;

/// Most places that one system call reads or writes (IOV_MAX).
pub(super) const MAX_VECTORS: usize = 1024;

/// What a socket sends from and has no answer to, in bytes, where both its ends are on this host: what lies there is to stay in the
/// processor's cache, and there is no way to fill.
const LOCAL_SEND_BUFFER: u32 = 512 << 10;

/// The places of one call. Kept between calls for its memory only.
pub(super) struct Vectors(Vec<libc::iovec>);

// SAFETY: the addresses in it are used within the call that filled it, by the thread that owns the segments.
unsafe impl Send for Vectors {}

impl Vectors {
    pub(super) fn new() -> Self {
        Vectors(Vec::with_capacity(MAX_VECTORS))
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    pub(super) fn is_full(&self) -> bool {
        self.0.len() >= MAX_VECTORS
    }

    /// Adds a place; a full list or an empty place is ignored.
    pub(super) fn push(&mut self, place: Segment) {
        if place.len > 0 && !self.is_full() {
            self.0.push(libc::iovec {
                iov_base: place.base.cast(),
                iov_len: place.len,
            });
        }
    }

    fn header(&mut self) -> libc::msghdr {
        // SAFETY: all bytes zero is a valid msghdr: no name, no control data.
        let mut message: libc::msghdr = unsafe { mem::zeroed() };
        message.msg_iov = self.0.as_mut_ptr();
        message.msg_iovlen = self.0.len();
        message
    }
}

/// Reads into the places, in order. `Ok(0)` is the end of the stream.
///
/// # Safety
/// Every place is writable memory, or at least address space of this process that nothing relies on: the kernel checks each access
/// and fails with EFAULT where there is no memory.
pub(super) unsafe fn read(stream: &TcpStream, vectors: &mut Vectors) -> io::Result<usize> {
    let fd = stream.as_raw_fd();
    let got = if let [place] = vectors.0[..] {
        // SAFETY: the place is valid by the caller's word.
        unsafe { libc::recv(fd, place.iov_base, place.iov_len, libc::MSG_DONTWAIT) }
    } else {
        let mut message = vectors.header();
        // SAFETY: the header's places are valid by the caller's word.
        unsafe { libc::recvmsg(fd, &mut message, libc::MSG_DONTWAIT) }
    };
    usize::try_from(got).map_err(|_| io::Error::last_os_error())
}

/// Writes from the places, in order; a closed stream is an error and no signal.
///
/// # Safety
/// Every place is readable memory, or address space that the kernel will refuse with EFAULT.
pub(super) unsafe fn write(stream: &TcpStream, vectors: &mut Vectors) -> io::Result<usize> {
    let fd = stream.as_raw_fd();
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    let put = if let [place] = vectors.0[..] {
        // SAFETY: the place is valid by the caller's word.
        unsafe { libc::send(fd, place.iov_base, place.iov_len, flags) }
    } else {
        let message = vectors.header();
        // SAFETY: the header's places are valid by the caller's word.
        unsafe { libc::sendmsg(fd, &message, flags) }
    };
    usize::try_from(put).map_err(|_| io::Error::last_os_error())
}

/// Begins to connect. The stream becomes writable when it is connected or has failed.
pub(super) fn dial(address: SocketAddr, send_buffer: Option<u32>) -> io::Result<TcpStream> {
    let (storage, length, family) = socket_address(address);
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: takes no pointers.
    let fd = unsafe { libc::socket(family, kind, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was made above and nothing else owns it.
    let stream = TcpStream::from(unsafe { OwnedFd::from_raw_fd(fd) });
    prepare(&stream, send_buffer)?;
    // SAFETY: `storage` holds an address of that family and `length`.
    if unsafe { libc::connect(fd, (&raw const storage).cast(), length) } < 0 {
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::EINPROGRESS) {
            return Err(error);
        }
    }
    Ok(stream)
}

/// Sets what every link's socket has: small frames leave at once, and the send buffer asked for.
pub(super) fn prepare(stream: &TcpStream, send_buffer: Option<u32>) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    send_buffer.map_or(Ok(()), |size| set_send_buffer(stream, size))
}

/// Fits a connection that does not leave this host to that, and leaves others alone. It has nobody to be fair to, and a congestion control
/// that paces (bbr) costs a timer for what it holds back: `reno` is in every kernel, and without loss does nothing but count.
pub(super) fn fit_to_this_host(stream: &TcpStream, send_buffer: Option<u32>) -> io::Result<()> {
    let (near, far) = (stream.local_addr()?.ip(), stream.peer_addr()?.ip());
    if near != far && !far.is_loopback() {
        return Ok(());
    }
    if send_buffer.is_none() {
        set_send_buffer(stream, LOCAL_SEND_BUFFER)?;
    }
    set_option(stream, libc::IPPROTO_TCP, libc::TCP_CONGESTION, b"reno")
}

fn set_send_buffer(stream: &TcpStream, size: u32) -> io::Result<()> {
    let size = size.min(i32::MAX as u32) as libc::c_int;
    set_option(
        stream,
        libc::SOL_SOCKET,
        libc::SO_SNDBUF,
        &size.to_ne_bytes(),
    )
}

fn set_option(stream: &TcpStream, level: i32, option: i32, value: &[u8]) -> io::Result<()> {
    // SAFETY: the value has as many bytes as is said.
    let set = unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            level,
            option,
            value.as_ptr().cast(),
            value.len() as libc::socklen_t,
        )
    };
    match set {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn socket_address(address: SocketAddr) -> (libc::sockaddr_storage, libc::socklen_t, libc::c_int) {
    // SAFETY: all bytes zero is a valid sockaddr_storage.
    let mut storage: libc::sockaddr_storage = unsafe { mem::zeroed() };
    let (length, family) = match address {
        SocketAddr::V4(v4) => {
            let value = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr {
                    s_addr: u32::from_ne_bytes(v4.ip().octets()),
                },
                sin_zero: [0; 8],
            };
            // SAFETY: a sockaddr_storage is large and aligned enough for any address.
            unsafe { (&raw mut storage).cast::<libc::sockaddr_in>().write(value) };
            (mem::size_of_val(&value), libc::AF_INET)
        }
        SocketAddr::V6(v6) => {
            let value = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr {
                    s6_addr: v6.ip().octets(),
                },
                sin6_scope_id: v6.scope_id(),
            };
            // SAFETY: a sockaddr_storage is large and aligned enough for any address.
            unsafe { (&raw mut storage).cast::<libc::sockaddr_in6>().write(value) };
            (mem::size_of_val(&value), libc::AF_INET6)
        }
    };
    (storage, length as libc::socklen_t, family)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn option<const N: usize>(stream: &TcpStream, level: i32, option: i32) -> [u8; N] {
        let mut value = [0; N];
        let mut length = N as libc::socklen_t;
        // SAFETY: the value has room for as many bytes as `length` says.
        let got = unsafe {
            libc::getsockopt(
                stream.as_raw_fd(),
                level,
                option,
                value.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        assert_eq!(got, 0);
        value
    }

    fn congestion_control(stream: &TcpStream) -> String {
        let name: [u8; 16] = option(stream, libc::IPPROTO_TCP, libc::TCP_CONGESTION);
        let end = name.iter().position(|byte| *byte == 0).unwrap();
        String::from_utf8(name[..end].to_vec()).unwrap()
    }

    fn send_buffer(stream: &TcpStream) -> u32 {
        u32::from_ne_bytes(option(stream, libc::SOL_SOCKET, libc::SO_SNDBUF))
    }

    #[test]
    fn a_connection_on_this_host_is_neither_paced_nor_given_more_than_fits_the_cache() {
        for (address, asked) in [
            ("127.0.0.1:0", None),
            ("127.0.0.2:0", None),
            ("[::1]:0", Some(5000)),
        ] {
            let listener = TcpListener::bind(address).unwrap();
            let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (far, _) = listener.accept().unwrap();
            for stream in [near, far] {
                prepare(&stream, asked).unwrap();
                fit_to_this_host(&stream, asked).unwrap();
                assert_eq!(congestion_control(&stream), "reno");
                // The kernel doubles what it is told, up to what the host allows.
                let buffer = send_buffer(&stream);
                match asked {
                    Some(size) => assert_eq!(buffer, 2 * size),
                    None => assert!((100_000..=2 * LOCAL_SEND_BUFFER).contains(&buffer)),
                }
            }
        }
    }
}
