//! The RDMA device.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::keyval::Items;
use crate::{MacAddr, OptionError};

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

macro_rules! limits {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Most of each kind of thing that a guest may create. What is not given is the device's own limit.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct RdmaLimits {
            $($(#[$doc])*
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub $name: Option<u32>,)*
        }

        impl RdmaLimits {
            /// The limit of this name, to be set.
            fn by_name(&mut self, name: &str) -> Option<&mut Option<u32>> {
                match name {
                    $(stringify!($name) => Some(&mut self.$name),)*
                    _ => None,
                }
            }
        }
    };
}

limits! {
    /// User contexts.
    contexts,
    /// Protection domains.
    pds,
    /// Memory regions.
    mrs,
    /// Completion queues.
    cqs,
    /// Entries of a completion queue, a power of two.
    cqe,
    /// Queue pairs.
    qps,
    /// Entries of a send queue, a power of two.
    send_wr,
    /// Entries of a receive queue, a power of two.
    recv_wr,
    /// Scatter/gather elements of a send.
    send_sge,
    /// Scatter/gather elements of a receive.
    recv_sge,
    /// Slots of the GID table.
    gids,
    /// Bytes of a message.
    msg_size,
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
    /// Address of the network interface it is paired with; that of the first `--net` unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<MacAddr>,
    /// What the guest may create.
    #[serde(default)]
    pub limits: RdmaLimits,
}

impl RdmaConfig {
    /// Reads the value of `--rdma`: `fabric=tcp[,listen=ADDR:PORT][,peer=ADDR:PORT]...[,lanes=N][,mac=MAC][,LIMIT=N]...`.
    pub fn parse(text: &str) -> Result<Self, OptionError> {
        let items = Items::new(
            "--rdma",
            "fabric=tcp, then [,listen=ADDR:PORT][,peer=ADDR:PORT]...[,lanes=N][,mac=MAC], ADDR an IP address, and limits \
             [,contexts=N][,pds=N][,mrs=N][,cqs=N][,cqe=N][,qps=N][,send_wr=N][,recv_wr=N][,send_sge=N]\
             [,recv_sge=N][,gids=N][,msg_size=N]",
            text,
        );
        let mut fabric = None;
        let mut config = Self {
            fabric: FabricKind::Tcp,
            listen: None,
            peers: Vec::new(),
            lanes: None,
            mac: None,
            limits: RdmaLimits::default(),
        };
        for item in items.iter() {
            let limits = &mut config.limits;
            match item.key {
                "fabric" if item.value == Some("tcp") => fabric = Some(FabricKind::Tcp),
                "fabric" => {
                    let value = item.value.unwrap_or_default();
                    return Err(items.error(format!("unknown fabric '{value}'")));
                }
                "listen" => config.listen = Some(items.parse(item)?),
                "peer" => config.peers.push(items.parse(item)?),
                "lanes" => config.lanes = Some(items.parse(item)?),
                "mac" => config.mac = Some(items.parse(item)?),
                name => match limits.by_name(name) {
                    Some(limit) => *limit = Some(items.parse(item)?),
                    None => return Err(items.unknown(item)),
                },
            }
        }
        config.fabric = fabric.ok_or_else(|| items.error(format!("no fabric in '{text}'")))?;
        Ok(config)
    }

    pub(crate) fn validate(&self) -> Result<(), OptionError> {
        if self.peers.len() > MAX_PEERS {
            return Err(OptionError::new(
                "--rdma",
                format!("{} peers", self.peers.len()),
                format!("at most {MAX_PEERS}"),
            ));
        }
        if let Some(lanes) = self.lanes
            && !(1..=MAX_LANES).contains(&lanes)
        {
            return Err(OptionError::new(
                "--rdma",
                format!("lanes={lanes}"),
                format!("1 to {MAX_LANES}"),
            ));
        }
        if let Some(peer) = self.peers.iter().find(|p| p.port() == 0) {
            return Err(OptionError::new(
                "--rdma",
                format!("peer={peer} has port 0"),
                "a port from 1 to 65535",
            ));
        }
        Ok(())
    }
}
