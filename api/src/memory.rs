//! Guest memory.

use serde::{Deserialize, Serialize};

use crate::keyval::Items;
use crate::{ByteSize, OptionError};

/// How much memory the guest has, and from where.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemoryConfig {
    /// Bytes of RAM.
    pub size: ByteSize,
    /// Take it from the host's pool of 2 MiB huge pages.
    #[serde(default)]
    pub hugepages: bool,
}

impl Default for MemoryConfig {
    fn default() -> Self {
        Self {
            size: ByteSize(1 << 30),
            hugepages: false,
        }
    }
}

impl MemoryConfig {
    /// Reads the value of `--memory`: `SIZE[,hugepages=on|off]`.
    pub fn parse(text: &str) -> Result<Self, OptionError> {
        let items = Items::new(
            "--memory",
            "SIZE[,hugepages=on|off], SIZE such as 512M or 4G",
            text,
        );
        let mut all = items.iter();
        let size = all
            .next()
            .filter(|i| i.value.is_none())
            .and_then(|i| i.key.parse().ok())
            .ok_or_else(|| items.error(format!("'{text}' does not start with a size")))?;
        let mut config = Self {
            size,
            hugepages: false,
        };
        for item in all {
            match item.key {
                "hugepages" => config.hugepages = items.switch(item)?,
                _ => return Err(items.unknown(item)),
            }
        }
        Ok(config)
    }
}
