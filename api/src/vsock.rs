//! The vsock device.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::OptionError;

/// A virtio-vsock device whose host side is a Unix socket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VsockConfig {
    /// The socket lies at a path of our choice, and goes when the machine ends.
    Auto,
    /// The socket lies at this path, which must not exist.
    Path(PathBuf),
}

impl VsockConfig {
    /// Reads the value of `--vsock`: `PATH|auto`.
    pub fn parse(text: &str) -> Result<Self, OptionError> {
        match text {
            "" => Err(OptionError::new("--vsock", "no value", "a path, or auto")),
            "auto" => Ok(Self::Auto),
            path => Ok(Self::Path(path.into())),
        }
    }
}
