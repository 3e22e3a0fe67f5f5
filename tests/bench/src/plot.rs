//! A plot of a table, as SVG: values over sizes or numbers of queue pairs on log axes, one pair of axes for each unit, or bars of ratios.

use std::ops::Range;
use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;

use crate::options::size_label;
use crate::table::{Axis, Row, Table};

/// Colours that people with any colour vision tell apart (Okabe and Ito, and a few of Tol's).
const COLOURS: [RGBColor; 10] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
    RGBColor(120, 94, 40),
    RGBColor(51, 34, 136),
    RGBColor(136, 34, 85),
    RGBColor(17, 119, 51),
];
const WIDTH: u32 = 1100;
const FONT: &str = "sans-serif";

/// Figures of one case over the axis.
type Series = Vec<(f64, f64)>;

/// Series with their names, in the order of the table.
type AllSeries = Vec<(String, Series)>;

/// Draws a table into a file. A table with nothing to draw leaves no file.
pub fn draw(table: &Table, path: &Path) -> Result<()> {
    // The backend's errors borrow from the drawing area.
    let drawn = match table.axis {
        Axis::Size => lines(table, path, |row| row.size.map(|n| n as f64)),
        Axis::Qps => lines(table, path, |row| row.qps.map(f64::from)),
        Axis::Ratio => bars(table, path),
    };
    drawn.map_err(|error| anyhow!("plot: {error}"))
}

type Drawn = Result<(), Box<dyn std::error::Error>>;

/// The table's own series of a unit and those of its references, by name.
fn series(table: &Table, unit: &str, x: impl Fn(&Row) -> Option<f64>) -> (AllSeries, AllSeries) {
    let (mut own, mut references) = (AllSeries::new(), AllSeries::new());
    let varied = |part: fn(&Row) -> Option<u32>| {
        let first = table.rows.first().map(part);
        table.rows.iter().any(|row| Some(part(row)) != first)
    };
    let (qps_varied, depth_varied) = (varied(|row| row.qps), varied(|row| row.depth));
    for row in table.rows.iter().filter(|row| row.unit == unit) {
        let Some(x) = x(row) else { continue };
        let mut name = row.case.clone();
        if let Some(qps) = row.qps.filter(|_| qps_varied && table.axis != Axis::Qps) {
            name += &format!(", {qps} QP");
        }
        if let Some(depth) = row.depth.filter(|_| depth_varied) {
            name += &format!(", depth {depth}");
        }
        let add = |all: &mut AllSeries, name: String, y: f64| {
            let place = all.iter().position(|(known, _)| *known == name);
            let place = place.unwrap_or_else(|| {
                all.push((name, Series::new()));
                all.len() - 1
            });
            let points = &mut all[place].1;
            // A figure has a row for each of its references, a reference one for each figure: the first one is drawn.
            if y > 0.0 && points.iter().all(|point| point.0 != x) {
                points.push((x, y));
            }
        };
        add(&mut own, name, row.value);
        if let Some(reference) = row.reference.as_ref().filter(|_| table.references) {
            add(&mut references, reference.name.clone(), reference.value);
        }
    }
    for (_, points) in own.iter_mut().chain(&mut references) {
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    (own, references)
}

/// From the lowest to the highest, with some room.
fn span(values: impl Iterator<Item = f64>, room: f64) -> Range<f64> {
    let (low, high) = values.fold((f64::MAX, f64::MIN), |(low, high), v| {
        (low.min(v), high.max(v))
    });
    low / room..high * room
}

fn axis_label(value: &f64) -> String {
    match *value {
        v if v >= 0.999 && (v.round() - v).abs() < 1e-6 * v => size_label(v.round() as u64),
        v => format!("{v:.3}"),
    }
}

fn value_label(value: &f64) -> String {
    let text = format!("{value:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// What is drawn on one pair of axes.
struct Panel<'a> {
    unit: &'a str,
    own: AllSeries,
    references: AllSeries,
}

impl Panel<'_> {
    fn points(&self) -> impl Iterator<Item = &(f64, f64)> {
        let all = self.own.iter().chain(&self.references);
        all.flat_map(|(_, points)| points)
    }
}

fn lines(table: &Table, path: &Path, x: impl Fn(&Row) -> Option<f64>) -> Drawn {
    let mut units: Vec<&str> = Vec::new();
    for row in &table.rows {
        if !units.contains(&row.unit) {
            units.push(row.unit);
        }
    }
    let panels: Vec<Panel<'_>> = units
        .into_iter()
        .map(|unit| {
            let (own, references) = series(table, unit, &x);
            Panel {
                unit,
                own,
                references,
            }
        })
        .filter(|panel| panel.points().next().is_some())
        .collect();
    let height = match panels.len() {
        0 => return Ok(()),
        1 => 640,
        n => 420 * n as u32,
    };
    let area = SVGBackend::new(path, (WIDTH, height)).into_drawing_area();
    area.fill(&WHITE)?;
    for (panel, part) in panels.iter().zip(area.split_evenly((panels.len(), 1))) {
        axes(table, panel, &part)?;
    }
    area.present()?;
    Ok(())
}

fn axes(table: &Table, panel: &Panel<'_>, area: &DrawingArea<SVGBackend<'_>, Shift>) -> Drawn {
    let (across, up) = (
        span(panel.points().map(|p| p.0), 1.2),
        span(panel.points().map(|p| p.1), 1.5),
    );
    let (plot, legend) = area.split_horizontally(WIDTH - 260);
    let under = if table.axis == Axis::Size {
        "bytes"
    } else {
        "number"
    };
    let mut chart = ChartBuilder::on(&plot)
        .caption(&table.title, (FONT, 17))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(70)
        .build_cartesian_2d(
            across
                .log_scale()
                .base(if table.axis == Axis::Size { 2.0 } else { 10.0 }),
            up.log_scale(),
        )?;
    chart
        .configure_mesh()
        .light_line_style(BLACK.mix(0.06))
        .x_desc(under)
        .y_desc(panel.unit)
        .x_label_formatter(&axis_label)
        .y_label_formatter(&value_label)
        .label_style((FONT, 13))
        .draw()?;
    let mut entries = Vec::new();
    for (n, (name, points)) in panel.own.iter().enumerate() {
        let style = COLOURS[n % COLOURS.len()].stroke_width(2);
        chart.draw_series(LineSeries::new(points.iter().copied(), style).point_size(3))?;
        entries.push((name, style));
    }
    for (n, (name, points)) in panel.references.iter().enumerate() {
        let style = BLACK.mix(0.8 - 0.2 * (n % 4) as f64).stroke_width(2);
        chart.draw_series(DashedLineSeries::new(points.iter().copied(), 6, 4, style))?;
        entries.push((name, style));
    }
    for (n, (name, style)) in entries.into_iter().enumerate() {
        let y = 48 + 20 * n as i32;
        legend.draw(&PathElement::new(vec![(0, y), (24, y)], style))?;
        legend.draw(&Text::new(name.as_str(), (30, y - 7), (FONT, 13)))?;
    }
    Ok(())
}

fn bars(table: &Table, path: &Path) -> Drawn {
    let rows: Vec<(&Row, &str, f64)> = table
        .rows
        .iter()
        .filter_map(|row| {
            let r = row.reference.as_ref()?;
            (r.ratio > 0.0 && r.ratio.is_finite()).then_some((row, r.name.as_str(), r.ratio))
        })
        .collect();
    if rows.is_empty() {
        return Ok(());
    }
    let height = 100 + 26 * rows.len() as u32;
    let area = SVGBackend::new(path, (WIDTH, height)).into_drawing_area();
    area.fill(&WHITE)?;
    let ratios = span(rows.iter().map(|row| row.2).chain([1.0]), 1.3);
    let (names, plot) = area.split_horizontally(520);
    let last = rows.len() as f64;
    let mut chart = ChartBuilder::on(&plot)
        .caption(&table.title, (FONT, 15))
        .margin(12)
        .x_label_area_size(44)
        .build_cartesian_2d(ratios.clone().log_scale(), RangedCoordf64::from(0.0..last))?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .light_line_style(BLACK.mix(0.06))
        .x_desc("ratio to the reference")
        .x_label_formatter(&value_label)
        .label_style((FONT, 13))
        .draw()?;
    for (n, (row, reference, ratio)) in rows.iter().enumerate() {
        let top = last - n as f64;
        let bar = [(ratios.start, top - 0.2), (*ratio, top - 0.8)];
        chart.draw_series([Rectangle::new(bar, COLOURS[0].mix(0.7).filled())])?;
        chart.draw_series([PathElement::new(vec![(1.0, top), (1.0, top - 1.0)], BLACK)])?;
        let (_, y) = chart.backend_coord(&(1.0, top - 0.5));
        let mut name = row.case.clone();
        if let Some(size) = row.size {
            name += &format!(", {}", size_label(size));
        }
        if let Some(qps) = row.qps {
            name += &format!(", {qps} QP");
        }
        if let Some(depth) = row.depth {
            name += &format!(", depth {depth}");
        }
        let text = format!("{name}; of {reference}: {ratio:.2}");
        names.draw(&Text::new(text, (10, y - 7), (FONT, 13)))?;
    }
    area.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(table: &Table) -> String {
        let path =
            std::env::temp_dir().join(format!("longarm-{}-{}.svg", table.name, std::process::id()));
        draw(table, &path).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        text
    }

    #[test]
    fn lines_name_each_case_and_each_reference_once() {
        let mut table = Table::new("lines", "bandwidth", Axis::Size);
        for size in [8, 4096, 1 << 20] {
            for depth in [1, 16] {
                let row = Row::new("WRITE", size as f64 / 100.0, "Gb/s")
                    .size(size)
                    .qps(1)
                    .depth(depth);
                table.push(row.against_value("tcp", 2.0 * size as f64));
            }
        }
        let text = drawn(&table);
        for (what, count) in [
            ("WRITE, depth 1\n", 1),
            ("WRITE, depth 16\n", 1),
            ("tcp\n", 1),
            ("1 QP", 0),
        ] {
            assert_eq!(text.matches(what).count(), count, "{what}");
        }
    }

    #[test]
    fn each_unit_has_axes_of_its_own() {
        let mut table = Table::new("units", "growth", Axis::Qps);
        for qps in [1, 10, 100] {
            table.push(Row::new("latency", 10.0 + f64::from(qps), "us").qps(qps));
            table.push(Row::new("rate", 1e6 / f64::from(qps), "M/s").qps(qps));
        }
        let text = drawn(&table);
        for (what, count) in [("us\n", 1), ("M/s\n", 1), ("growth\n", 2), ("number\n", 2)] {
            assert_eq!(text.matches(what).count(), count, "{what}");
        }
        assert!(text.contains("height=\"840\""), "{text}");
    }

    #[test]
    fn bars_leave_out_what_has_no_ratio() {
        let mut table = Table::new("bars", "targets", Axis::Ratio);
        table.push(
            Row::new("WRITE", 9.0, "Gb/s")
                .size(65536)
                .against_value("tcp", 10.0),
        );
        table.push(Row::new("lonely", 1.0, "s"));
        let text = drawn(&table);
        assert!(text.contains("WRITE, 64k; of tcp: 0.90"), "{text}");
        assert!(!text.contains("lonely"));
    }
}
