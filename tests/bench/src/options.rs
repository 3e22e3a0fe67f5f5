//! What every suite is told on its command line.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use devices::rdma::fabric::tcp::MAX_LANES;

use crate::samples::LEAST_ROUNDS;

/// Options that all suites share; those of one suite are in [`Options::rest`].
#[derive(Debug)]
pub struct Options {
    /// Which cases to run.
    pub only: Selection,
    /// Rounds of each case, at least [`LEAST_ROUNDS`].
    pub rounds: usize,
    /// Time of a sample, if the suite's own choice is not wanted.
    pub seconds: Option<Duration>,
    /// Connections between two native devices, if the fabric's own choice is not wanted.
    pub lanes: Option<u8>,
    /// Where files go.
    pub out: PathBuf,
    /// Says what there is, and measures nothing.
    pub list: bool,
    /// Words that no shared option took, in order.
    pub rest: Vec<String>,
}

impl Options {
    /// Reads a command line.
    pub fn parse(mut words: impl Iterator<Item = String>) -> Result<Options> {
        let mut options = Options {
            only: Selection::default(),
            rounds: LEAST_ROUNDS,
            seconds: None,
            lanes: None,
            out: "target/bench".into(),
            list: false,
            rest: Vec::new(),
        };
        while let Some(word) = words.next() {
            let mut value = || {
                words
                    .next()
                    .with_context(|| format!("{word} wants a value"))
            };
            match word.as_str() {
                "--only" => options.only = Selection::parse(&value()?),
                "--rounds" => options.rounds = value()?.parse().context("--rounds")?,
                "--seconds" => {
                    let seconds = value()?.parse().context("--seconds")?;
                    let time = Duration::try_from_secs_f64(seconds).context("--seconds")?;
                    options.seconds = Some(time);
                }
                "--lanes" => options.lanes = Some(value()?.parse().context("--lanes")?),
                "--out" => options.out = value()?.into(),
                "--list" => options.list = true,
                _ => options.rest.push(word),
            }
        }
        ensure!(
            options.rounds >= LEAST_ROUNDS,
            "a median wants at least {LEAST_ROUNDS} rounds"
        );
        ensure!(
            options
                .lanes
                .is_none_or(|lanes| (1..=MAX_LANES).contains(&lanes)),
            "--lanes: 1 to {MAX_LANES}"
        );
        Ok(options)
    }

    /// Refuses what no option took, for a suite that has none of its own.
    pub fn nothing_else(&self) -> Result<()> {
        ensure!(self.rest.is_empty(), "not understood: {:?}", self.rest);
        Ok(())
    }

    /// Whether a case with these labels is to be measured. With `--list` none is, and the labels are printed.
    pub fn wants<S: AsRef<str>>(&self, labels: &[S]) -> bool {
        let wanted = self.only.wants(labels);
        if self.list && wanted {
            let labels: Vec<&str> = labels.iter().map(AsRef::as_ref).collect();
            println!("{}", labels.join(","));
        }
        wanted && !self.list
    }

    /// Time of a sample: as asked for, else as the suite likes it.
    pub fn time(&self, usual: Duration) -> Duration {
        self.seconds.unwrap_or(usual)
    }
}

/// Words that a case's labels must all have; none of them selects everything.
#[derive(Clone, Debug, Default)]
pub struct Selection(Vec<String>);

impl Selection {
    /// From words with commas between them.
    pub fn parse(text: &str) -> Selection {
        Selection(text.split(',').map(str::to_owned).collect())
    }

    /// Whether a case with these labels is wanted.
    pub fn wants<S: AsRef<str>>(&self, labels: &[S]) -> bool {
        let has = |word: &String| labels.iter().any(|label| label.as_ref() == word);
        self.0.iter().all(has)
    }
}

/// A size as labels and tables show it: `8`, `64k`, `1m`, `16g`.
pub fn size_label(bytes: u64) -> String {
    match bytes {
        0 => "0".into(),
        n if n % (1 << 30) == 0 => format!("{}g", n >> 30),
        n if n % (1 << 20) == 0 => format!("{}m", n >> 20),
        n if n % (1 << 10) == 0 => format!("{}k", n >> 10),
        n => n.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Options> {
        Options::parse(text.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn options_are_read_and_the_rest_is_kept() {
        let options =
            parse("--only write,64k --seconds 0.5 --image x --rounds 7 --lanes 4").unwrap();
        assert_eq!(options.lanes, Some(4));
        assert_eq!(options.rounds, 7);
        assert_eq!(options.time(Duration::ZERO), Duration::from_millis(500));
        assert_eq!(options.rest, ["--image", "x"]);
        assert!(options.nothing_else().is_err());
    }

    #[test]
    fn what_cannot_be_is_refused() {
        assert!(parse("--rounds 4").is_err());
        assert!(parse("--rounds").is_err());
        assert!(parse("--seconds -1").is_err());
        assert!(parse("--lanes 0").is_err());
        assert!(parse("--lanes 9").is_err());
    }

    #[test]
    fn a_case_is_selected_by_all_words() {
        let selection = Selection::parse("write,64k");
        assert!(selection.wants(&["bandwidth", "write", "64k"]));
        assert!(!selection.wants(&["bandwidth", "write", "4k"]));
        assert!(Selection::default().wants(&["write"]));
    }

    #[test]
    fn sizes_are_short() {
        let labels = [8, 1000, 65536, 1 << 20, 16 << 30].map(size_label);
        assert_eq!(labels, ["8", "1000", "64k", "1m", "16g"]);
    }
}
