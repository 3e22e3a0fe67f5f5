//! Where the suites that boot VMs run: the files under test, and a network namespace of their own with taps in it.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use scenarios::vm::Lab;

use crate::options::Options;

/// Words for a guest's command line, and the end of its console, are in every VM's files below this directory of `--out`.
const LOGS: &str = "logs";

/// Reads `--longarm BINARY --image DIR`, and refuses any other word.
pub fn lab(options: &Options) -> Result<Lab> {
    let (mut longarm, mut image) = (None, None);
    let mut words = options.rest.iter();
    while let Some(word) = words.next() {
        let value = || words.clone().next().map(PathBuf::from);
        let place = match word.as_str() {
            "--longarm" => &mut longarm,
            "--image" => &mut image,
            _ => bail!("not understood: {word}"),
        };
        *place = Some(value().with_context(|| format!("{word} wants a value"))?);
        words.next();
    }
    Ok(Lab {
        longarm: longarm.context("--longarm BINARY is missing")?,
        image: image.context("--image DIR is missing")?,
        out: options.out.join(LOGS),
    })
}

/// Sets up the network namespace, which must be the suite's own (`unshare --net`): loopback, and taps of these names and this
/// MTU on a bridge.
///
/// # Errors
/// Without the right to do so, or when the kernel has no taps or bridges.
pub fn network(taps: &[&str], mtu: u32) -> Result<()> {
    let mtu = mtu.to_string();
    ip(&["link", "set", "lo", "up"])?;
    ip(&["link", "add", "bridge0", "type", "bridge"])?;
    for tap in taps {
        ip(&["tuntap", "add", "dev", tap, "mode", "tap"])?;
        ip(&["link", "set", tap, "mtu", &mtu, "master", "bridge0", "up"])?;
    }
    ip(&["link", "set", "bridge0", "up"])
}

fn ip(words: &[&str]) -> Result<()> {
    let output = Command::new("ip").args(words).output();
    let output = output.with_context(|| format!("ip {}", words.join(" ")))?;
    ensure!(
        output.status.success(),
        "ip {}: {}",
        words.join(" "),
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Lab> {
        lab(&Options::parse(text.split_whitespace().map(str::to_owned))?)
    }

    #[test]
    fn both_files_are_wanted_and_nothing_else() {
        let lab = parse("--image i --out o --longarm l").unwrap();
        assert_eq!((lab.longarm, lab.image), ("l".into(), "i".into()));
        assert_eq!(lab.out, PathBuf::from("o/logs"));
        for wrong in [
            "--image i",
            "--longarm l --image",
            "--longarm l --image i --x y",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
