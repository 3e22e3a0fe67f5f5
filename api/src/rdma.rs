//! The RDMA device.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::keyval::Items;
use crate::{MacAddr, OptionError};

/// Most peers of a fabric.
pub const MAX_PEERS: usize = 256;

/// What carries the device's traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FabricKind {
    /// TCP connections between monitors.
    Tcp,
}

/// Most of each kind of object that a guest may create. What is not given is the device's own limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RdmaLimits {
    /// Queue pairs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_qp: Option<u32>,
    /// Completion queues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_cq: Option<u32>,
    /// Memory regions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_mr: Option<u32>,
    /// Protection domains.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_pd: Option<u32>,
    /// Work requests of a queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_qp_wr: Option<u32>,
    /// Entries of a completion queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_cqe: Option<u32>,
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
    /// Address of the network interface it is paired with; that of the first `--net` unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<MacAddr>,
    /// What the guest may create.
    #[serde(default)]
    pub limits: RdmaLimits,
}

impl RdmaConfig {
    /// Reads the value of `--rdma`: `fabric=tcp[,listen=ADDR:PORT][,peer=ADDR:PORT]...[,mac=MAC][,LIMIT=N]...`.
    pub fn parse(text: &str) -> Result<Self, OptionError> {
        let items = Items::new(
            "--rdma",
            "fabric=tcp, then [,listen=ADDR:PORT][,peer=ADDR:PORT]...[,mac=MAC] and limits \
             max_qp, max_cq, max_mr, max_pd, max_qp_wr, max_cqe =N; ADDR is an IP address",
            text,
        );
        let mut fabric = None;
        let mut config = Self {
            fabric: FabricKind::Tcp,
            listen: None,
            peers: Vec::new(),
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
                "mac" => config.mac = Some(items.parse(item)?),
                "max_qp" => limits.max_qp = Some(items.parse(item)?),
                "max_cq" => limits.max_cq = Some(items.parse(item)?),
                "max_mr" => limits.max_mr = Some(items.parse(item)?),
                "max_pd" => limits.max_pd = Some(items.parse(item)?),
                "max_qp_wr" => limits.max_qp_wr = Some(items.parse(item)?),
                "max_cqe" => limits.max_cqe = Some(items.parse(item)?),
                _ => return Err(items.unknown(item)),
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
