//! Network interfaces.

use serde::{Deserialize, Serialize};

use crate::keyval::Items;
use crate::{MacAddr, OptionError};

/// Least MTU: what IPv6 needs of a link.
pub const MIN_MTU: u16 = 1280;
/// Largest MTU.
pub const MAX_MTU: u16 = 9216;

/// What carries the frames.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum NetBackend {
    /// A tap interface of the host, which must exist.
    Tap(String),
    /// The fabric of the machine's rdma device.
    Fabric,
}

/// A virtio network interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetConfig {
    /// What carries its frames.
    pub backend: NetBackend,
    /// Its address; a random locally administered one otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<MacAddr>,
    /// Largest packet, in bytes without the Ethernet header; 1500 unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u16>,
}

impl NetConfig {
    /// Reads the value of `--net`: `tap=NAME|fabric[,mac=MAC][,mtu=BYTES]`.
    pub fn parse(text: &str) -> Result<Self, OptionError> {
        let items = Items::new(
            "--net",
            "tap=NAME or fabric, then [,mac=XX:XX:XX:XX:XX:XX][,mtu=1280..9216]",
            text,
        );
        let (mut backend, mut mac, mut mtu) = (None, None, None);
        for item in items.iter() {
            match item.key {
                "tap" if backend.is_none() => {
                    backend = Some(NetBackend::Tap(items.value(item)?.into()));
                }
                "fabric" if backend.is_none() && item.value.is_none() => {
                    backend = Some(NetBackend::Fabric);
                }
                "tap" | "fabric" => return Err(items.error(format!("two backends in '{text}'"))),
                "mac" => mac = Some(items.parse(item)?),
                "mtu" => mtu = Some(items.parse(item)?),
                _ => return Err(items.unknown(item)),
            }
        }
        let backend = backend.ok_or_else(|| items.error(format!("no backend in '{text}'")))?;
        Ok(Self { backend, mac, mtu })
    }

    pub(crate) fn validate(&self) -> Result<(), OptionError> {
        if let Some(mtu) = self.mtu
            && !(MIN_MTU..=MAX_MTU).contains(&mtu)
        {
            return Err(OptionError::new(
                "--net",
                format!("mtu={mtu}"),
                format!("{MIN_MTU} to {MAX_MTU}"),
            ));
        }
        if let NetBackend::Tap(name) = &self.backend
            // The kernel's IFNAMSIZ, less the closing NUL.
            && (name.is_empty() || name.len() > 15 || name.contains(['/', '\0']))
        {
            return Err(OptionError::new(
                "--net",
                format!("tap={name}"),
                "the name of a tap interface, 1 to 15 characters",
            ));
        }
        Ok(())
    }
}
