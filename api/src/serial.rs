//! The serial console.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::OptionError;

/// Where COM1 leads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SerialConfig {
    /// Our standard input and output.
    Stdio,
    /// Output into a file, which is emptied first; no input.
    File(PathBuf),
    /// Nowhere.
    Off,
}

impl SerialConfig {
    /// Reads the value of `--serial`: `stdio|file=PATH|off`.
    pub fn parse(text: &str) -> Result<Self, OptionError> {
        match text.split_once('=') {
            None if text == "stdio" => Ok(Self::Stdio),
            None if text == "off" => Ok(Self::Off),
            Some(("file", path)) if !path.is_empty() => Ok(Self::File(path.into())),
            _ => Err(OptionError::new(
                "--serial",
                format!("'{text}'"),
                "stdio, file=PATH or off",
            )),
        }
    }
}
