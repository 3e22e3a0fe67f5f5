//! Where figures go: the terminal, a CSV file, a plot for each table.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::plot;
use crate::table::{COLUMNS, Table};

/// The files of one suite. Each table is written when it is complete, so a run that is ended early leaves what it had.
pub struct Report {
    suite: &'static str,
    out: PathBuf,
    /// Once there is a table.
    csv: Option<File>,
    refused: usize,
}

impl Report {
    /// For `SUITE.csv` in a directory, which is made. The first table starts the file anew.
    pub fn new(out: &Path, suite: &'static str) -> Result<Report> {
        fs::create_dir_all(out).with_context(|| format!("{}", out.display()))?;
        Ok(Report {
            suite,
            out: out.to_owned(),
            csv: None,
            refused: 0,
        })
    }

    fn csv(&mut self) -> Result<&mut File> {
        let csv = match self.csv.take() {
            Some(csv) => csv,
            None => {
                let path = self.out.join(format!("{}.csv", self.suite));
                let mut csv = File::create(&path).with_context(|| format!("{}", path.display()))?;
                writeln!(csv, "{COLUMNS}")?;
                csv
            }
        };
        Ok(self.csv.insert(csv))
    }

    /// Prints a table, adds it to the CSV file and plots it into `SUITE-TABLE.svg`. Nothing of a table that is empty.
    pub fn add(&mut self, table: &Table) -> Result<()> {
        self.refused += table.refused.len();
        if table.rows.is_empty() && table.refused.is_empty() {
            return Ok(());
        }
        print!("{}", table.render());
        let csv = self.csv()?;
        for row in &table.rows {
            writeln!(csv, "{}", row.csv(&table.name))?;
        }
        let path = self.out.join(format!("{}-{}.svg", self.suite, table.name));
        plot::draw(table, &path).with_context(|| format!("{}", path.display()))
    }

    /// True if no figure was refused.
    pub fn finish(self) -> bool {
        if self.csv.is_some() {
            println!(
                "\n{}: {}.csv, a plot of each table",
                self.out.display(),
                self.suite
            );
        }
        if self.refused > 0 {
            println!("{} figures REFUSED", self.refused);
        }
        self.refused == 0
    }
}
