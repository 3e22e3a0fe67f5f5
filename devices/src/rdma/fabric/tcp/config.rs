//! What a [`super::TcpFabric`] is told at start.

use std::io::{self, Read};
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use thiserror::Error;

/// Most connections to a peer.
pub const MAX_LANES: u8 = 8;

/// Connections to a peer unless told otherwise: one for what is little, one for bulk.
const DEFAULT_LANES: u8 = 2;

/// Why a fabric could not be made.
#[derive(Debug, Error)]
pub enum TcpError {
    /// fabric: cannot listen on the address
    #[error("fabric: cannot listen on {address}: {source}")]
    Listen {
        /// The address asked for.
        address: SocketAddr,
        /// What the host said.
        source: io::Error,
    },
    /// fabric: not an address
    #[error("fabric: {text:?} is no address of a peer: {reason}; it wants HOST:PORT")]
    Address {
        /// What was given.
        text: String,
        /// What is wrong with it.
        reason: String,
    },
    /// fabric: no descriptors or randomness
    #[error("fabric: cannot set up: {0}")]
    Setup(#[from] io::Error),
}

/// When a link is asked whether it is there, given up and made anew.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// A link on which nothing came for this long is sent a PING.
    pub ping: Duration,
    /// A link on which nothing came for this long is lost. More than `ping`.
    pub loss: Duration,
    /// Connection and handshake take at most this long.
    pub handshake: Duration,
    /// First pause before dialling again.
    pub redial_min: Duration,
    /// Longest pause before dialling again.
    pub redial_max: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Timing {
            ping: Duration::from_secs(1),
            loss: Duration::from_secs(3),
            handshake: Duration::from_secs(3),
            redial_min: Duration::from_millis(50),
            redial_max: Duration::from_secs(2),
        }
    }
}

/// Configuration of a [`super::TcpFabric`].
#[derive(Clone, Debug)]
pub struct TcpConfig {
    /// Where to listen. Port 0: any.
    pub listen: Option<SocketAddr>,
    /// Whom to dial.
    pub peers: Vec<SocketAddr>,
    /// Sixteen random bytes that name this fabric as long as it lives.
    pub instance: [u8; 16],
    /// Times.
    pub timing: Timing,
    /// Connections to each peer, 1 to [`MAX_LANES`]: as many as both sides would have are made. With one, what is little waits behind what is much.
    pub lanes: u8,
    /// Size of the sockets' send buffers in bytes; `None` leaves them to the host, which fits them to the load.
    pub send_buffer: Option<u32>,
}

impl TcpConfig {
    /// A fabric that listens nowhere and dials nobody, with a fresh instance. Fails when the host gives no randomness.
    pub fn new() -> io::Result<Self> {
        let mut instance = [0; 16];
        std::fs::File::open("/dev/urandom")?.read_exact(&mut instance)?;
        Ok(TcpConfig {
            listen: None,
            peers: Vec::new(),
            instance,
            timing: Timing::default(),
            lanes: DEFAULT_LANES,
            send_buffer: None,
        })
    }

    /// The address that `HOST:PORT` stands for; a name is looked up now.
    pub fn resolve(text: &str) -> Result<SocketAddr, TcpError> {
        let wrong = |reason: String| TcpError::Address {
            text: text.to_owned(),
            reason,
        };
        text.to_socket_addrs()
            .map_err(|error| wrong(error.to_string()))?
            .next()
            .ok_or_else(|| wrong("the name has no address".to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_wrong_ones_named() {
        assert_eq!(
            TcpConfig::resolve("127.0.0.1:7").unwrap(),
            SocketAddr::from(([127, 0, 0, 1], 7))
        );
        assert!(TcpConfig::resolve("[::1]:7").unwrap().is_ipv6());
        let error = TcpConfig::resolve("127.0.0.1").unwrap_err().to_string();
        assert!(error.contains("\"127.0.0.1\"") && error.contains("HOST:PORT"));
    }

    #[test]
    fn instances_differ() {
        let instance = || TcpConfig::new().unwrap().instance;
        assert_ne!(instance(), instance());
    }
}
