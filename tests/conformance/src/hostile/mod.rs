//! Guests and peers that lie. Each of these drives a device with choices from a [`Source`], a seeded generator in the tests and a fuzzer's
//! bytes in the fuzz targets, and checks what must hold whatever is chosen: no panic, no hang, no byte written outside what was
//! registered for writing, and everybody else at work as before.

pub mod commands;
pub mod frames;
pub mod link;
pub mod rings;
mod scripted;
pub mod victim;

use crate::random::Source;

/// A fuzzer's bytes. Small choices take one byte, so that a mutation of a byte is a mutation of a choice.
pub struct Bytes<'a>(pub &'a [u8]);

impl Bytes<'_> {
    fn take(&mut self, n: usize) -> u64 {
        let mut out = [0; 8];
        let n = n.min(self.0.len());
        out[..n].copy_from_slice(&self.0[..n]);
        self.0 = &self.0[n..];
        u64::from_le_bytes(out)
    }
}

impl Source for Bytes<'_> {
    fn word(&mut self) -> u64 {
        self.take(8)
    }
    fn exhausted(&self) -> bool {
        self.0.is_empty()
    }
    fn below(&mut self, bound: u64) -> u64 {
        let len = match bound {
            0..=0x100 => 1,
            0x101..=0x1_0000 => 2,
            0x1_0001..=0x1_0000_0000 => 4,
            _ => 8,
        };
        self.take(len) % bound
    }
}

/// How long the tests go on: LONGARM_HOSTILE_SECONDS, or `seconds`.
pub fn duration(seconds: u64) -> std::time::Duration {
    let asked = std::env::var("LONGARM_HOSTILE_SECONDS")
        .ok()
        .and_then(|text| text.parse().ok());
    std::time::Duration::from_secs(asked.unwrap_or(seconds))
}

/// Seed of a run: LONGARM_HOSTILE_SEED, or `default`. Every failure of a stepped run comes again with its seed.
pub fn seed(default: u64) -> u64 {
    std::env::var("LONGARM_HOSTILE_SEED")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(default)
}
