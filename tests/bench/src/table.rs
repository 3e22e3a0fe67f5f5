//! Tables of figures: what they hold, how they look on a terminal and in a CSV file.

use std::fmt::Write as _;

use anyhow::Result;

use crate::options::{Options, size_label};
use crate::samples::Samples;

/// The columns of every CSV file.
pub const COLUMNS: &str =
    "table,case,size_bytes,qps,depth,value,unit,reference,reference_value,ratio";

/// What a plot of a table has on its horizontal axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    /// Message or region size; the values on the vertical axis.
    Size,
    /// Number of QPs (or of whatever the title says that the column `qps` counts); the values on the vertical axis.
    Qps,
    /// None: a bar for each row's ratio to its reference.
    Ratio,
}

/// What a figure is measured against.
#[derive(Clone, Debug, PartialEq)]
pub struct Reference {
    /// What was measured.
    pub name: String,
    /// Its median, in the row's unit.
    pub value: f64,
    /// Median of the rounds' ratios, ours divided by the reference's.
    pub ratio: f64,
}

/// One figure, with at most one reference.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// What was measured.
    pub case: String,
    /// Bytes of a message or region, where that has a meaning.
    pub size: Option<u64>,
    /// Queue pairs.
    pub qps: Option<u32>,
    /// Work requests of a queue pair under way at a time.
    pub depth: Option<u32>,
    /// The median.
    pub value: f64,
    /// Of the value and the reference's.
    pub unit: &'static str,
    /// What it is measured against.
    pub reference: Option<Reference>,
    /// The ratio that is wanted, as `>= 0.90`; shown, not in the CSV file.
    pub target: Option<Target>,
}

/// A ratio that is wanted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Target {
    /// At least this.
    AtLeast(f64),
    /// At most this.
    AtMost(f64),
}

impl Target {
    /// Whether a ratio is as wanted.
    pub fn met(self, ratio: f64) -> bool {
        match self {
            Target::AtLeast(least) => ratio >= least,
            Target::AtMost(most) => ratio <= most,
        }
    }
}

impl Row {
    /// A figure that was measured once, as a count is.
    pub fn new(case: impl Into<String>, value: f64, unit: &'static str) -> Row {
        Row {
            case: case.into(),
            size: None,
            qps: None,
            depth: None,
            value,
            unit,
            reference: None,
            target: None,
        }
    }

    /// The median of samples.
    pub fn measured(case: impl Into<String>, samples: &Samples, unit: &'static str) -> Row {
        Row::new(case, samples.median(), unit)
    }

    /// Of messages or regions of so many bytes.
    pub fn size(self, bytes: u64) -> Row {
        let size = Some(bytes);
        Row { size, ..self }
    }

    /// Over so many queue pairs.
    pub fn qps(self, qps: u32) -> Row {
        let qps = Some(qps);
        Row { qps, ..self }
    }

    /// With so many work requests under way on each.
    pub fn depth(self, depth: u32) -> Row {
        let depth = Some(depth);
        Row { depth, ..self }
    }

    /// Against samples of the same rounds. A reference of 0 is none.
    pub fn against(self, name: &str, ours: &Samples, reference: &Samples) -> Row {
        if reference.median() == 0.0 {
            return self;
        }
        self.reference(name, reference.median(), ours.ratio(reference))
    }

    /// Against one figure.
    pub fn against_value(self, name: &str, value: f64) -> Row {
        let ratio = self.value / value;
        self.reference(name, value, ratio)
    }

    fn reference(mut self, name: &str, value: f64, ratio: f64) -> Row {
        let name = name.to_owned();
        self.reference = Some(Reference { name, value, ratio });
        self
    }

    /// With a ratio that is wanted.
    pub fn target(self, target: Target) -> Row {
        let target = Some(target);
        Row { target, ..self }
    }

    /// The line of a CSV file.
    pub fn csv(&self, table: &str) -> String {
        let number = |value: Option<u64>| value.map_or(String::new(), |n| n.to_string());
        let (name, value, ratio) = match &self.reference {
            Some(r) => (r.name.as_str(), figure(r.value), figure(r.ratio)),
            None => ("", String::new(), String::new()),
        };
        let quoted = [table, &self.case, self.unit, name].map(quote);
        format!(
            "{},{},{},{},{},{},{},{},{value},{ratio}",
            quoted[0],
            quoted[1],
            number(self.size),
            number(self.qps.map(u64::from)),
            number(self.depth.map(u64::from)),
            figure(self.value),
            quoted[2],
            quoted[3],
        )
    }

    /// Whether another row is the same figure, against another reference.
    fn same_figure(&self, other: &Row) -> bool {
        let key = |row: &Row| (row.case.clone(), row.size, row.qps, row.depth, row.unit);
        key(self) == key(other)
    }
}

/// Six significant digits, and no exponent.
fn figure(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return value.to_string();
    }
    let before = value.abs().log10().floor() as i32 + 1;
    let digits = (6 - before).clamp(0, 12) as usize;
    let text = format!("{value:.digits$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// Four significant digits or so, for a terminal.
fn short(value: f64) -> String {
    match value.abs() {
        1000.0.. => format!("{value:.0}"),
        100.0.. => format!("{value:.1}"),
        1.0.. => format!("{value:.2}"),
        0.0 => "0".into(),
        0.001.. => format!("{value:.4}"),
        _ => format!("{value:.2e}"),
    }
}

fn quote(text: &str) -> String {
    if text.contains([',', '"', '\n']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

/// Figures of one kind.
#[derive(Clone, Debug)]
pub struct Table {
    /// Short name: of its plot's file, and in the CSV file.
    pub name: String,
    /// What it shows.
    pub title: String,
    /// How it is plotted.
    pub axis: Axis,
    /// Whether references are plotted too.
    pub references: bool,
    /// The figures.
    pub rows: Vec<Row>,
    /// Cases without a figure, and why.
    pub refused: Vec<(String, String)>,
}

impl Table {
    /// An empty table.
    pub fn new(name: impl Into<String>, title: impl Into<String>, axis: Axis) -> Table {
        Table {
            name: name.into(),
            title: title.into(),
            axis,
            references: true,
            rows: Vec::new(),
            refused: Vec::new(),
        }
    }

    /// Whose references are figures of its own, and are not plotted again.
    pub fn of_its_own(self) -> Table {
        Table {
            references: false,
            ..self
        }
    }

    /// Adds a figure.
    pub fn push(&mut self, row: Row) {
        self.rows.push(row);
    }

    /// Measures a case if it is selected: its rows, or why there are none.
    pub fn case<S: AsRef<str>>(
        &mut self,
        options: &Options,
        labels: &[S],
        measure: impl FnOnce() -> Result<Vec<Row>>,
    ) {
        if !options.wants(labels) {
            return;
        }
        match measure() {
            Ok(rows) => self.rows.extend(rows),
            Err(error) => {
                let labels: Vec<&str> = labels.iter().map(AsRef::as_ref).collect();
                self.refuse(labels.join(" "), error);
            }
        }
    }

    /// Notes that a case has no figure. The run fails, after everything else was measured.
    pub fn refuse(&mut self, case: impl Into<String>, why: impl std::fmt::Display) {
        self.refused.push((case.into(), format!("{why:#}")));
    }

    /// The table for a terminal: a line for each figure, its references behind it.
    pub fn render(&self) -> String {
        let mut out = format!("\n{}: {}\n", self.name, self.title);
        let width = self.rows.iter().map(|row| row.case.chars().count()).max();
        let width = width.unwrap_or(0).max(4);
        let _ = writeln!(
            out,
            "  {:<width$} {:>5} {:>5} {:>6} {:>12} {:<8}  reference (ratio)",
            "case", "size", "qps", "depth", "value", "unit"
        );
        let mut rows = self.rows.iter().peekable();
        while let Some(row) = rows.next() {
            let number = |value: Option<u32>| value.map_or(String::new(), |n| n.to_string());
            let _ = write!(
                out,
                "  {:<width$} {:>5} {:>5} {:>6} {:>12} {:<8} ",
                row.case,
                row.size.map(size_label).unwrap_or_default(),
                number(row.qps),
                number(row.depth),
                short(row.value),
                row.unit
            );
            write_reference(&mut out, row);
            while let Some(next) = rows.next_if(|next| next.same_figure(row)) {
                write_reference(&mut out, next);
            }
            while out.ends_with(' ') {
                out.pop();
            }
            out.push('\n');
        }
        for (case, why) in &self.refused {
            let _ = writeln!(out, "  {case}: REFUSED: {why}");
        }
        out
    }
}

fn write_reference(out: &mut String, row: &Row) {
    let Some(r) = &row.reference else { return };
    let _ = write!(out, " {} {} ({:.3})", r.name, short(r.value), r.ratio);
    let Some(target) = row.target else { return };
    let (sign, wanted) = match target {
        Target::AtLeast(least) => (">=", least),
        Target::AtMost(most) => ("<=", most),
    };
    let verdict = if target.met(r.ratio) { "met" } else { "MISSED" };
    let _ = write!(out, " target {sign} {wanted:.2}: {verdict}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(factor: f64) -> Samples {
        Samples::of(&[1.0, 2.0, 3.0, 4.0, 5.0], |v| v * factor)
    }

    fn row() -> Row {
        let ours = samples(2.0);
        Row::measured("WRITE, inline", &ours, "Gb/s")
            .size(65536)
            .qps(1)
            .depth(16)
            .against("tcp", &ours, &samples(4.0))
    }

    #[test]
    fn a_csv_line_has_the_columns() {
        let line = row().csv("targets");
        assert_eq!(
            line,
            "targets,\"WRITE, inline\",65536,1,16,6,Gb/s,tcp,12,0.5"
        );
        let bare = Row::new("allocations", 0.0, "1").csv("cost");
        assert_eq!(bare, "cost,allocations,,,,0,1,,,");
        assert_eq!(bare.matches(',').count(), COLUMNS.matches(',').count());
    }

    #[test]
    fn figures_keep_six_digits() {
        let figures = [1234567.8, 0.00012345678, 12.5, 0.1].map(figure);
        assert_eq!(figures, ["1234568", "0.000123457", "12.5", "0.1"]);
    }

    #[test]
    fn references_of_one_figure_share_a_line() {
        let mut table = Table::new("write", "bandwidth", Axis::Size);
        table.push(row());
        table.push(row().against("memcpy", &samples(2.0), &samples(8.0)));
        table.push(row().size(8).target(Target::AtLeast(0.9)));
        table.refuse("READ", "3 losses");
        let text = table.render();
        assert_eq!(
            text.lines().filter(|l| l.contains("Gb/s")).count(),
            2,
            "{text}"
        );
        assert!(
            text.contains("tcp 12.00 (0.500) memcpy 24.00 (0.250)\n"),
            "{text}"
        );
        assert!(text.contains("target >= 0.90: MISSED"), "{text}");
        assert!(text.contains("READ: REFUSED: 3 losses"), "{text}");
    }
}
