//! The figures as tables: for a terminal, and for the page of benchmarks.

use std::fmt::Write as _;
use std::path::Path;

use super::figures::{CurveFigures, Figures, LineFigures, Point};
use crate::{Result, page};

/// Maximum growth of a flat curve's median from the smallest to the largest size. If the limit's curve grows,
/// too, this is the maximum ratio of the two growths.
const FLAT: f64 = 1.5;
/// Maximum exponent of a linear curve between its two largest sizes. If the exponent of the limit's curve is
/// larger, that exponent is the maximum.
const LINEAR: f64 = 1.1;

/// Formats a time.
pub(super) fn human(ns: f64) -> String {
    let (value, unit) = match ns {
        ns if ns >= 1e9 => (ns / 1e9, "s"),
        ns if ns >= 1e6 => (ns / 1e6, "ms"),
        ns if ns >= 1e3 => (ns / 1e3, "µs"),
        ns => return format!("{ns:.0} ns"),
    };
    let places = if value >= 99.95 { 0 } else { usize::from(value >= 9.995) ^ 1 };
    format!("{value:.places$} {unit}")
}

/// Formats a size.
pub(super) fn count(size: f64) -> String {
    match size {
        size if size >= 1e6 => format!("{:.0} M", size / 1e6),
        size if size >= 1e3 => format!("{:.0} K", size / 1e3),
        size => format!("{size:.0}"),
    }
}

/// Returns the verdict about mp's results in a curve: flat, as its limit, linear, or a missed expectation.
fn verdict(curve: &CurveFigures, line: &LineFigures) -> &'static str {
    let limit = curve.line("limit");
    let last = |line: &LineFigures| line.exponents().last().copied();
    if curve.flat {
        let limit = limit.and_then(LineFigures::growth).unwrap_or(1.0);
        return match line.growth() {
            Some(growth) if growth <= FLAT => "flat",
            Some(growth) if growth <= FLAT * limit => "as its limit",
            _ => "NOT FLAT",
        };
    }
    let most = limit.and_then(last).unwrap_or(LINEAR).max(LINEAR);
    if last(line).is_some_and(|last| last > most) { "NOT LINEAR" } else { "linear" }
}

/// Formats the median of a contender other than mp at its largest size.
fn other(line: &LineFigures) -> Option<String> {
    let last = line.points.last()?;
    Some(format!("{} {} at {}", line.name, human(last.p50 as f64), count(last.size as f64)))
}

/// Returns a row of cells for each curve.
fn rows(curves: &[CurveFigures]) -> Vec<[String; 6]> {
    let row = |curve: &CurveFigures| {
        let line = curve.line("mp")?;
        let (first, last) = (line.points.first()?, line.points.last()?);
        let tail = |part: fn(&Point) -> Option<u64>| part(last).map_or("–".into(), |ns| human(ns as f64));
        let exponents: Vec<_> = line.exponents().iter().map(|one| format!("{one:.2}")).collect();
        let others = curve.lines.iter().filter(|line| line.name != "mp").filter_map(other);
        Some([
            curve.id.clone(),
            format!("{} to {}", human(first.p50 as f64), human(last.p50 as f64)),
            format!("{}, {}", tail(Point::p99), tail(Point::p999)),
            exponents.join(" "),
            verdict(curve, line).to_owned(),
            others.collect::<Vec<_>>().join(", "),
        ])
    };
    curves.iter().filter_map(row).collect()
}

/// Returns a line for each contender that is left out from some size on.
fn left_out(figures: &Figures) -> Vec<String> {
    let lines = figures.curves.iter().flat_map(|curve| curve.lines.iter().map(move |line| (curve, line)));
    let said = lines.filter_map(|(curve, line)| {
        let (size, why) = line.left_out.as_ref()?;
        Some(format!("`{}`, {}, from {} on: {why}", curve.id, line.name, count(*size as f64)))
    });
    said.collect()
}

/// Returns the figures for a terminal.
pub(super) fn text(figures: &Figures) -> String {
    let mut text = format!("{} passes in {} s\n", figures.passes, figures.seconds);
    for cells in rows(&figures.curves) {
        let [id, p50, tail, exponents, verdict, others] = cells;
        _ = writeln!(text, "{id:<26} {p50:<22} {tail:<20} {verdict:<10} [{exponents}] {others}");
    }
    left_out(figures).iter().for_each(|line| text += &format!("left out: {line}\n"));
    text
}

/// Returns the section of the page: a picture and a table for each axis.
fn section(figures: &Figures) -> String {
    let mut text = String::new();
    for curves in figures.axes() {
        let Some(first) = curves.first() else { continue };
        _ = writeln!(text, "\n![{0}](grow/{1}.svg)\n", first.label, first.axis);
        text += "| curve | p50, smallest to largest | p99, p99.9 | exponents | | limit, peers |\n";
        text += "|---|---|---|---|---|---|\n";
        for [id, p50, tail, exponents, verdict, others] in rows(curves) {
            let about = curves.iter().find(|curve| curve.id == id).map_or("", |curve| &curve.about);
            _ = writeln!(text, "| `{id}`: {about} | {p50} | {tail} | {exponents} | {verdict} | {others} |");
        }
    }
    let left_out = left_out(figures);
    if !left_out.is_empty() {
        text += "\nLeft out:\n\n";
        left_out.iter().for_each(|line| text += &format!("- {line}\n"));
    }
    text
}

/// Replaces the section of growth in the page at `path`.
///
/// # Errors
/// Returns an error if the page can't be read or written, or lacks the marks of the section.
pub(super) fn publish(figures: &Figures, path: &Path) -> Result<()> {
    page::replace(path, "growth", &section(figures))
}
