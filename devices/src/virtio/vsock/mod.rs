//! Socket device (virtio 1.2, 5.10): stream sockets between the guest and processes of the host, which use Unix sockets.
//!
//! - Host to guest: connect to the device's path, send `CONNECT <port>\n`, and read `OK <host port>\n` once the guest has accepted.
//!   From then on the stream is the connection. If nobody listens in the guest, the stream is closed instead.
//! - Guest to host: a connection to CID 2, port P goes to whoever listens at the device's path with `_P` behind it.

mod connection;
mod muxer;
mod packet;
#[cfg(test)]
mod tests;

use std::fs;
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use virtio_bindings::virtio_ids::VIRTIO_ID_VSOCK;

use self::muxer::Muxer;
use super::worker::Worker;
use super::{ActivateError, Activation, COMMON_FEATURES, VirtioDevice, read_config_image};

const QUEUE_SIZES: [u16; 3] = [256, 256, 64];
/// CIDs 0 to 2 and the highest are not a guest's.
const FIRST_GUEST_CID: u32 = 3;

/// Why the device cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum VsockError {
    /// Not a guest's CID.
    #[error("vsock CID {0}: must be 3 to 4294967294")]
    Cid(u32),
    /// The host's socket cannot be made.
    #[error("vsock socket {path}: {source}", path = .path.display())]
    Socket {
        /// Its path.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// The device. It removes its socket when it is dropped.
pub struct Vsock {
    cid: u32,
    path: PathBuf,
    listener: Arc<UnixListener>,
    worker: Option<Worker>,
}

impl Vsock {
    /// A device for the guest `cid`, whose host socket is made at `path`. A socket there that nobody listens on is replaced.
    pub fn new(cid: u32, path: &Path) -> Result<Self, VsockError> {
        if !(FIRST_GUEST_CID..u32::MAX).contains(&cid) {
            return Err(VsockError::Cid(cid));
        }
        let failed = |source| VsockError::Socket {
            path: path.into(),
            source,
        };
        if let Err(e) = UnixStream::connect(path)
            && e.kind() == io::ErrorKind::ConnectionRefused
        {
            fs::remove_file(path).map_err(failed)?;
        }
        let listener = UnixListener::bind(path).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        Ok(Self {
            cid,
            path: path.into(),
            listener: Arc::new(listener),
            worker: None,
        })
    }
}

impl Drop for Vsock {
    fn drop(&mut self) {
        self.worker = None;
        let _ = fs::remove_file(&self.path);
    }
}

impl VirtioDevice for Vsock {
    fn device_type(&self) -> u32 {
        VIRTIO_ID_VSOCK
    }

    fn features(&self) -> u64 {
        COMMON_FEATURES
    }

    fn queue_max_sizes(&self) -> &[u16] {
        &QUEUE_SIZES
    }

    fn read_config(&self, offset: u64, data: &mut [u8]) {
        read_config_image(&u64::from(self.cid).to_le_bytes(), offset, data);
    }

    fn write_config(&mut self, _offset: u64, _data: &[u8]) {}

    fn activate(&mut self, mut activation: Activation) -> Result<(), ActivateError> {
        let mut queue = |index| activation.device_queue(index);
        let queues = [queue(0)?, queue(1)?, queue(2)?];
        let (cid, path, listener) = (self.cid.into(), self.path.clone(), self.listener.clone());
        let run = move |poller| Muxer::new(cid, &path, listener, poller, queues).run();
        self.worker = Some(Worker::spawn("vsock", run)?);
        Ok(())
    }

    fn reset(&mut self) {
        self.worker = None;
    }
}
