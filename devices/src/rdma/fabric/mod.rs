//! The fabric: what carries frames between devices.
//!
//! The device is given a [`Fabric`] and drives it from its own thread: it queues frames with [`Fabric::send`], lets a batch go with
//! [`Fabric::flush`], and takes in what came with [`Fabric::poll`], which asks the device, its [`Sink`], where each payload goes before
//! it reads it. Payloads travel between guest memory and the wire without a copy in between; [`Segment`]s name that memory.
//! The wire protocol is `docs/fabric.md`.

use std::os::fd::RawFd;

use crate::rdma::memory::Segment;

pub mod ethernet;
pub mod frame;
pub mod loopback;
#[cfg(any(test, feature = "test-utils"))]
pub mod pair;
mod queue;
mod segments;
pub mod tcp;
#[cfg(test)]
pub(crate) mod test_utils;

use frame::FrameHeader;

/// A GID, in network order.
pub type Gid = [u8; 16];

/// A device at the other end of the fabric. Stays the same when its link is lost and comes back, as long as its monitor lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId(pub u32);

impl PeerId {
    /// The device itself: both QPs in one virtual machine.
    pub const LOCAL: PeerId = PeerId(0);
}

/// Why a frame was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendError {
    /// The peer's queue is full; [`Fabric::can_send`] says when it is worth trying again.
    Full,
    /// There is no link to the peer now.
    Down,
}

/// What the device says about a payload that is about to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Into the segments given; they hold exactly the bytes asked for.
    Into,
    /// Nowhere: read and thrown away.
    Discard,
}

/// The receiving side: the device. Called from [`Fabric::poll`] only; a sink answers later, by [`Fabric::send`], never from within a call.
pub trait Sink {
    /// The header of a frame has come. `skip` bytes of its payload are already in memory; the sink pushes the segments for the bytes
    /// from there to the end of the frame onto `into` (empty when called). `skip` is not 0 when the fabric asks anew after
    /// [`Fabric::forget_memory`]; then the earlier answer, which was `Into`, is void, and this one is told to [`Sink::frame`]. Called for every frame
    /// of the types from SEND on, those without payload too, but not for those whose payload comes as data ([`frame::kind::comes_as_data`]).
    fn place(
        &mut self,
        peer: PeerId,
        header: &FrameHeader,
        skip: u32,
        into: &mut Vec<Segment>,
    ) -> Placement;

    /// A frame is complete: its payload lies where [`Sink::place`] said, or was thrown away. `data` holds the payload of frames that
    /// are not placed in guest memory ([`frame::kind::comes_as_data`]; their placement is `Into`), and is empty otherwise. The fabric has
    /// checked what the header says by itself (type, the length that the type wants, the largest frame); everything else in it
    /// is as the peer sent it.
    fn frame(&mut self, peer: PeerId, header: &FrameHeader, placement: Placement, data: &[u8]);

    /// A link to the peer is up; frames can be sent.
    fn peer_up(&mut self, peer: PeerId);

    /// The link is lost. Frames that were queued or under way may or may not have arrived.
    fn peer_down(&mut self, peer: PeerId);

    /// A route appeared or changed; queue pairs that wait for one may look again.
    fn routes_changed(&mut self);
}

/// Something that carries frames. One thread owns it.
pub trait Fabric: Send {
    /// Queues a frame. `inline` bytes are copied; `payload` is not, and is sent from where it lies by a later [`Fabric::flush`]
    /// or [`Fabric::poll`]. Their lengths add up to `header.length`, at most [`Fabric::max_payload`]. Frames to one peer arrive in
    /// the order they were sent if they take the same lane, `header.lane`. Frames without payload (READ, ACK, NAK) are taken far beyond the point where those with payload are
    /// refused as [`SendError::Full`], so that acknowledgements never wait for room.
    fn send(
        &mut self,
        peer: PeerId,
        header: &FrameHeader,
        inline: &[u8],
        payload: &[Segment],
    ) -> Result<(), SendError>;

    /// Whether the peer's queue of that lane has room for another frame of any size, and the link is up.
    fn can_send(&self, peer: PeerId, lane: u8) -> bool;

    /// Lanes to the peer, at least 1: ways for frames that do not wait for one another. The first, 0, is for what is little and in a hurry; what
    /// fills a lane belongs in another. Their number may grow while a link is up, and falls only with [`Sink::peer_down`].
    fn lanes(&self, _peer: PeerId) -> u8 {
        1
    }

    /// The largest payload that a frame to the peer may carry; at least [`frame::MAX_PAYLOAD`].
    fn max_payload(&self, _peer: PeerId) -> u32 {
        frame::MAX_PAYLOAD
    }

    /// Whether a link to the peer is up.
    fn is_up(&self, peer: PeerId) -> bool;

    /// When something last came from the peer; None before anything did.
    fn last_heard(&self, peer: PeerId) -> Option<std::time::Instant>;

    /// Starts sending what is queued, with as few system calls as it takes; never blocks.
    fn flush(&mut self);

    /// Takes in what has come and sends on what is queued: a bounded amount of work, never blocking. True if there was any.
    fn poll(&mut self, sink: &mut dyn Sink) -> bool;

    /// Lets go of guest memory: queued payloads are copied, and payloads that are being read in will be asked for anew. When it
    /// returns, the fabric holds no [`Segment`]. Called before a registration ends.
    fn forget_memory(&mut self);

    /// Makes `gids` the set of GIDs that lead here.
    fn announce(&mut self, gids: &[Gid]);

    /// The peer that announced the GID; [`PeerId::LOCAL`] for our own.
    fn route(&self, gid: &Gid) -> Option<PeerId>;

    /// Pushes all who announced the GID and whose link is up, [`PeerId::LOCAL`] included if it is our own: where multicast goes.
    fn members(&self, gid: &Gid, into: &mut Vec<PeerId>);

    /// Becomes readable when [`Fabric::poll`] has work to do that came from outside, timers of the fabric included. To be slept
    /// on only after a poll that returned false, with nothing sent or announced since.
    fn wait_fd(&self) -> RawFd;
}
