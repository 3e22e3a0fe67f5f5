//! Disks.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::OptionError;
use crate::keyval::Items;

/// A raw image that the guest sees as a virtio block device, `/dev/vda` onwards in the order given.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskConfig {
    /// The image: a file, or a block device of the host.
    pub path: PathBuf,
    /// The guest may only read it; several machines may then share it.
    #[serde(default)]
    pub readonly: bool,
}

impl DiskConfig {
    /// Reads the value of `--disk`: `PATH[,ro]`.
    pub fn parse(text: &str) -> Result<Self, OptionError> {
        let items = Items::new("--disk", "PATH[,ro] (a path without a comma)", text);
        let (path, rest) = text
            .split_once(',')
            .map_or((text, None), |(p, r)| (p, Some(r)));
        if path.is_empty() {
            return Err(items.error("no path given"));
        }
        let readonly = match rest {
            None | Some("rw") => false,
            Some("ro") => true,
            Some(other) => return Err(items.error(format!("unknown '{other}' in '{text}'"))),
        };
        Ok(Self {
            path: path.into(),
            readonly,
        })
    }
}
