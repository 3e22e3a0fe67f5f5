//! Ethernet addresses.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// An Ethernet address, in transmission order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MacAddr(pub [u8; 6]);

/// The text is not a usable address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a unicast Ethernet address; one looks like 02:00:5e:10:00:01")]
pub struct NotAMac;

impl MacAddr {
    /// Makes `bytes` into a locally administered unicast address: sets and clears the two bits that say so.
    pub fn local(mut bytes: [u8; 6]) -> Self {
        bytes[0] = bytes[0] & !1 | 2;
        Self(bytes)
    }
}

impl FromStr for MacAddr {
    type Err = NotAMac;

    fn from_str(text: &str) -> Result<Self, NotAMac> {
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let part = parts.next().ok_or(NotAMac)?;
            if part.len() != 2 || !part.bytes().all(|b| b.is_ascii_hexdigit()) {
                return Err(NotAMac);
            }
            *byte = u8::from_str_radix(part, 16).map_err(|_| NotAMac)?;
        }
        // The lowest bit of the first byte marks a group; all zero is nobody.
        if parts.next().is_some() || bytes[0] & 1 != 0 || bytes == [0; 6] {
            return Err(NotAMac);
        }
        Ok(Self(bytes))
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl Serialize for MacAddr {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for MacAddr {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_written_alike() {
        let mac: MacAddr = "02:00:5E:10:00:01".parse().unwrap();
        assert_eq!(mac.0, [2, 0, 0x5e, 0x10, 0, 1]);
        assert_eq!(mac.to_string(), "02:00:5e:10:00:01");
    }

    #[test]
    fn groups_and_malformed_text_are_refused() {
        for text in [
            "",
            "01:00:5e:00:00:01",
            "00:00:00:00:00:00",
            "02:00:5e:10:00",
            "02:00:5e:10:00:01:02",
            "02-00-5e-10-00-01",
            "2:0:5e:10:0:1",
            "02:00:5e:10:00:+1",
        ] {
            assert_eq!(text.parse::<MacAddr>(), Err(NotAMac), "{text}");
        }
    }
}
