//! One connection, from its first SYN to its end.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

use thiserror::Error;

use super::receive::{Malformed, Receive};
use super::transmit::Transmit;
use crate::rdma::fabric::PeerId;

/// How far a link has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Dialled, not connected yet.
    Connecting,
    /// Our HELLO is on its way, the peer's has not come.
    Greeting,
    /// In use.
    Up(PeerId),
}

/// Why a link ends.
#[derive(Debug, Error)]
pub(super) enum LinkEnd {
    #[error("peer closed it")]
    Closed,
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("peer sent {}", .0.0)]
    Malformed(Malformed),
    #[error("refused: {0}")]
    Hello(String),
    #[error("nothing came for {0:?}")]
    Silent(std::time::Duration),
    #[error("no HELLO within {0:?}")]
    NoHello(std::time::Duration),
    #[error("peer does not read what it is sent")]
    Stuck,
    #[error("there is another link to the same peer")]
    Duplicate,
    #[error("the link that it was a part of has ended")]
    Whole,
    #[error("a lane of no link that there is")]
    NoLink,
    #[error("the address is our own")]
    Own,
    #[error("too many peers")]
    TooMany,
}

/// The link that a connection is a further lane of, on the side that dials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Whole {
    /// The slot of its first lane.
    pub(super) slot: usize,
    /// Of that.
    pub(super) generation: u32,
}

/// One connection: a link, or a further lane of one.
pub(super) struct Link {
    pub(super) stream: TcpStream,
    pub(super) address: SocketAddr,
    pub(super) phase: Phase,
    /// Which of the addresses to dial it came from; `None` if the peer dialled.
    pub(super) target: Option<usize>,
    /// The link that we dialled it for as a further lane.
    pub(super) whole: Option<Whole>,
    /// Which lane of a link it is.
    pub(super) lane: u8,
    /// The number that who dialled gave to the link.
    pub(super) number: u32,
    /// When lanes that are missing are to be dialled.
    pub(super) lanes_due: Option<Instant>,
    pub(super) transmit: Transmit,
    pub(super) receive: Receive,
    /// When it was made.
    pub(super) born: Instant,
    /// When something came last, or when it was made.
    pub(super) heard: Instant,
    /// Bytes that came.
    pub(super) received: u64,
    /// Something was sent since something came; kept for further lanes only.
    pub(super) unanswered: bool,
    /// When the peer was asked for a sign of life, if it gave none since.
    pub(super) pinged: Option<Instant>,
    /// The peer's first GID_ADD came: it replaces what it announced on an earlier link.
    pub(super) gids_came: bool,
    /// The socket had something to read when last asked.
    pub(super) readable: bool,
    /// The socket took all it was given when last asked.
    pub(super) writable: bool,
    /// It did not take all, and has not said that it takes more.
    pub(super) blocked: bool,
    /// The peer has closed, or the socket failed: read on until it says so.
    pub(super) closing: bool,
    /// In the list of links to read from.
    pub(super) in_ready: bool,
    /// In the list of links to write to.
    pub(super) in_unsent: bool,
    /// Why it ends; such a link is not used any more.
    pub(super) end: Option<LinkEnd>,
    /// Tells it from others that had its slot.
    pub(super) generation: u32,
}

impl Link {
    pub(super) fn new(
        stream: TcpStream,
        address: SocketAddr,
        phase: Phase,
        target: Option<usize>,
        generation: u32,
    ) -> Self {
        let now = Instant::now();
        Link {
            stream,
            address,
            phase,
            target,
            whole: None,
            lane: 0,
            number: generation,
            lanes_due: None,
            transmit: Transmit::default(),
            receive: Receive::new(),
            born: now,
            heard: now,
            received: 0,
            unanswered: false,
            pinged: None,
            gids_came: false,
            readable: false,
            writable: false,
            blocked: false,
            closing: false,
            in_ready: false,
            in_unsent: false,
            end: None,
            generation,
        }
    }

    /// The peer, if the link is in use.
    pub(super) fn peer(&self) -> Option<PeerId> {
        match self.phase {
            Phase::Up(peer) if self.end.is_none() => Some(peer),
            _ => None,
        }
    }
}
