//! The RDMA device.

use std::net::SocketAddr;
use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use crate::keyval::{Item, Items};
use crate::{ByteSize, MacAddr, OptionError};

/// Most peers of a fabric.
pub const MAX_PEERS: usize = 256;

/// Most connections to a peer.
pub const MAX_LANES: u8 = 8;

/// What carries the device's traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FabricKind {
    /// TCP connections between monitors.
    Tcp,
}

/// Longest time, in microseconds, that the device's thread may poll before it sleeps.
pub const MAX_POLL: u32 = 1_000_000;

/// Sizes of a link's send buffer.
pub const SEND_BUFFER: RangeInclusive<ByteSize> = ByteSize(4 << 10)..=ByteSize(1 << 30);

macro_rules! limits {
    ($($(#[$doc:meta])* $name:ident: $type:ty,)*) => {
        /// Most of each kind of thing that a guest may create. What is not given is the device's own limit.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct RdmaLimits {
            $($(#[$doc])*
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub $name: Option<$type>,)*
        }

        impl RdmaLimits {
            /// The names of all limits.
            pub const NAMES: &[&str] = &[$(stringify!($name),)*];

            /// Sets the limit that `item` names; false if there is none of that name.
            fn set<'a>(&mut self, items: &Items<'a>, item: Item<'a>) -> Result<bool, OptionError> {
                match item.key {
                    $(stringify!($name) => self.$name = Some(items.parse(item)?),)*
                    _ => return Ok(false),
                }
                Ok(true)
            }
        }
    };
}

limits! {
    /// User contexts.
    contexts: u32,
    /// Protection domains.
    pds: u32,
    /// Memory regions.
    mrs: u32,
    /// Bytes of a memory region.
    mr_size: ByteSize,
    /// Pages and extents of all memory regions and rings together.
    mr_entries: u64,
    /// Pages of a fast registration.
    fast_reg_pages: u32,
    /// Memory windows.
    mws: u32,
    /// Completion queues.
    cqs: u32,
    /// Entries of a completion queue, a power of two.
    cqe: u32,
    /// Queue pairs.
    qps: u32,
    /// Entries of a send queue, a power of two.
    send_wr: u32,
    /// Entries of a receive queue, a power of two.
    recv_wr: u32,
    /// Shared receive queues.
    srqs: u32,
    /// Entries of a shared receive queue, a power of two.
    srq_wr: u32,
    /// XRC domains.
    xrcds: u32,
    /// Scatter/gather elements of a send.
    send_sge: u32,
    /// Scatter/gather elements of a receive.
    recv_sge: u32,
    /// Inline bytes of a send.
    inline: u32,
    /// Bytes of a send's slot in its queue, a power of two.
    sq_stride: u32,
    /// READs and atomics of a queue pair under way, in each direction.
    rd_atomic: u8,
    /// Slots of the GID table.
    gids: u32,
    /// Multicast groups.
    mcast_groups: u32,
    /// Queue pairs of a multicast group.
    mcast_qps: u32,
    /// Bytes of a message.
    msg_size: u32,
}

/// A virtio-rdma device and its fabric.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RdmaConfig {
    /// What carries its traffic.
    pub fabric: FabricKind,
    /// Address to accept peers on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listen: Option<SocketAddr>,
    /// Addresses of peers to call; they may call us instead.
    #[serde(default)]
    pub peers: Vec<SocketAddr>,
    /// Connections to each peer; as many as the fabric thinks fit unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lanes: Option<u8>,
    /// Microseconds that the device's thread looks for more work before it sleeps, at most; 0: it sleeps at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub poll: Option<u32>,
    /// Send buffer of each connection; the host fits it to the load unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub send_buffer: Option<ByteSize>,
    /// Address of the network interface it is paired with; that of the first `--net` unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<MacAddr>,
    /// What the guest may create.
    #[serde(default)]
    pub limits: RdmaLimits,
}

impl RdmaConfig {
    /// Reads the value of `--rdma`: `fabric=tcp`, then `listen=ADDR:PORT`, `peer=ADDR:PORT` any number of times, `lanes=N`,
    /// `poll=MICROSECONDS`, `send_buffer=SIZE`, `mac=MAC`, and limits.
    pub fn parse(text: &str) -> Result<Self, OptionError> {
        let items = Items::new(
            "--rdma",
            "fabric=tcp, then [,listen=ADDR:PORT][,peer=ADDR:PORT]...[,lanes=N][,poll=MICROSECONDS][,send_buffer=SIZE][,mac=MAC], \
             ADDR an IP address, and limits [,LIMIT=N]..., which `longarm help` lists",
            text,
        );
        let mut fabric = None;
        let mut config = Self {
            fabric: FabricKind::Tcp,
            listen: None,
            peers: Vec::new(),
            lanes: None,
            poll: None,
            send_buffer: None,
            mac: None,
            limits: RdmaLimits::default(),
        };
        for item in items.iter() {
            match item.key {
                "fabric" if item.value == Some("tcp") => fabric = Some(FabricKind::Tcp),
                "fabric" => {
                    let value = item.value.unwrap_or_default();
                    return Err(items.error(format!("unknown fabric '{value}'")));
                }
                "listen" => config.listen = Some(items.parse(item)?),
                "peer" => config.peers.push(items.parse(item)?),
                "lanes" => config.lanes = Some(items.parse(item)?),
                "poll" => config.poll = Some(items.parse(item)?),
                "send_buffer" => config.send_buffer = Some(items.parse(item)?),
                "mac" => config.mac = Some(items.parse(item)?),
                _ if config.limits.set(&items, item)? => {}
                _ => return Err(items.unknown(item)),
            }
        }
        config.fabric = fabric.ok_or_else(|| items.error(format!("no fabric in '{text}'")))?;
        Ok(config)
    }

    pub(crate) fn validate(&self) -> Result<(), OptionError> {
        let refuse =
            |wrong: String, allowed: String| Err(OptionError::new("--rdma", wrong, allowed));
        if self.peers.len() > MAX_PEERS {
            return refuse(
                format!("{} peers", self.peers.len()),
                format!("at most {MAX_PEERS}"),
            );
        }
        if let Some(lanes) = self.lanes
            && !(1..=MAX_LANES).contains(&lanes)
        {
            return refuse(format!("lanes={lanes}"), format!("1 to {MAX_LANES}"));
        }
        if let Some(poll) = self.poll
            && poll > MAX_POLL
        {
            return refuse(
                format!("poll={poll}"),
                format!("0 to {MAX_POLL} microseconds"),
            );
        }
        if let Some(size) = self.send_buffer
            && !SEND_BUFFER.contains(&size)
        {
            return refuse(
                format!("send_buffer={size}"),
                format!("{} to {}", SEND_BUFFER.start(), SEND_BUFFER.end()),
            );
        }
        if let Some(peer) = self.peers.iter().find(|p| p.port() == 0) {
            return refuse(
                format!("peer={peer} has port 0"),
                "a port from 1 to 65535".into(),
            );
        }
        Ok(())
    }
}
