//! Results, and their JSON.

use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::effort::Times;
use super::{Axis, Curve, Expected};
use crate::machine::Machine;
use crate::{Result, report};

/// Results of a run.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Figures {
    /// Description of the machine.
    pub(super) machine: Value,
    /// Seconds that the run took.
    pub(super) seconds: u64,
    pub(super) passes: usize,
    pub(super) curves: Vec<CurveFigures>,
}

/// Results of a curve.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct CurveFigures {
    pub(super) id: String,
    /// Id and label of its axis.
    pub(super) axis: String,
    pub(super) label: String,
    pub(super) about: String,
    /// `true` if the same time is expected at every size, `false` if it grows with the size.
    pub(super) flat: bool,
    pub(super) lines: Vec<LineFigures>,
}

/// Line of a plot: the results of a contender at several sizes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct LineFigures {
    pub(super) name: String,
    pub(super) points: Vec<Point>,
    /// Size from which on the contender is left out, and the reason.
    pub(super) left_out: Option<(u64, String)>,
}

/// Results at a size, in ns.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Point {
    pub(super) size: u64,
    /// Number of recorded times in a pass.
    pub(super) count: u64,
    pub(super) p50: u64,
    p99: u64,
    p999: u64,
}

impl Point {
    pub(super) fn new(size: u64, times: &Times) -> Self {
        let [p50, p99, p999] = [0.5, 0.99, 0.999].map(|share| times.value_at_quantile(share));
        Self { size, count: times.len(), p50, p99, p999 }
    }

    /// Returns the 99th percentile, or `None` if too few times were recorded for it.
    pub(super) fn p99(&self) -> Option<u64> {
        (self.count >= 100).then_some(self.p99)
    }

    /// Returns the 99.9th percentile, or `None` if too few times were recorded for it.
    pub(super) fn p999(&self) -> Option<u64> {
        (self.count >= 1_000).then_some(self.p999)
    }

    /// Returns the medians over the passes.
    fn median(passes: &[Self]) -> Self {
        let median = |part: fn(&Self) -> u64| {
            let mut values: Vec<u64> = passes.iter().map(part).collect();
            values.sort_unstable();
            let half = values.len() / 2;
            if values.len() % 2 == 1 { values[half] } else { values[half - 1].midpoint(values[half]) }
        };
        Self {
            size: passes[0].size,
            count: median(|point| point.count),
            p50: median(|point| point.p50),
            p99: median(|point| point.p99),
            p999: median(|point| point.p999),
        }
    }
}

impl LineFigures {
    /// Returns the results of the contender `name`. Appends empty results if the contender is new.
    pub(super) fn find<'a>(lines: &'a mut Vec<Self>, name: &str) -> &'a mut Self {
        let place = lines.iter().position(|line| line.name == name).unwrap_or_else(|| {
            lines.push(Self { name: name.to_owned(), points: Vec::new(), left_out: None });
            lines.len() - 1
        });
        &mut lines[place]
    }

    /// Replaces each point by the median of its size in all passes.
    fn merge(&mut self, passes: &[Vec<CurveFigures>], curve: &str) {
        for point in &mut self.points {
            let curves = passes.iter().flatten().filter(|other| other.id == curve);
            let lines = curves.flat_map(|other| &other.lines).filter(|line| line.name == self.name);
            let same: Vec<Point> = lines
                .flat_map(|line| &line.points)
                .filter(|other| other.size == point.size)
                .copied()
                .collect();
            *point = Point::median(&same);
        }
    }

    /// Returns the exponents of the median between neighbouring sizes: 0 is flat, 1 is linear.
    pub(super) fn exponents(&self) -> Vec<f64> {
        let exponent = |pair: &[Point]| {
            let [before, after] = pair else { return f64::NAN };
            let times = after.p50.max(1) as f64 / before.p50.max(1) as f64;
            times.ln() / (after.size as f64 / before.size as f64).ln()
        };
        self.points.windows(2).map(exponent).collect()
    }

    /// Returns the ratio of the median at the largest size to the median at the smallest.
    pub(super) fn growth(&self) -> Option<f64> {
        Some(self.points.last()?.p50.max(1) as f64 / self.points.first()?.p50.max(1) as f64)
    }
}

impl CurveFigures {
    /// Returns the results of a curve. Appends empty results if the curve is new.
    pub(super) fn find<'a>(curves: &'a mut Vec<Self>, axis: &Axis, curve: &Curve) -> &'a mut Self {
        let place = curves.iter().position(|known| known.id == curve.id).unwrap_or_else(|| {
            curves.push(Self {
                id: curve.id.to_owned(),
                axis: axis.id.to_owned(),
                label: axis.label.to_owned(),
                about: curve.about.to_owned(),
                flat: curve.expected == Expected::Flat,
                lines: Vec::new(),
            });
            curves.len() - 1
        });
        &mut curves[place]
    }

    /// Returns the results of the contender `name`.
    pub(super) fn line(&self, name: &str) -> Option<&LineFigures> {
        self.lines.iter().find(|line| line.name == name && !line.points.is_empty())
    }
}

impl Figures {
    /// Creates the results of a few passes, of which the first has all curves.
    pub(super) fn new(machine: &Machine, took: Duration, passes: Vec<Vec<CurveFigures>>) -> Self {
        let mut curves = passes.first().cloned().unwrap_or_default();
        for curve in &mut curves {
            curve.lines.iter_mut().for_each(|line| line.merge(&passes, &curve.id));
        }
        Self { machine: report::machine(machine), seconds: took.as_secs(), passes: passes.len(), curves }
    }

    /// Writes the results to `path`.
    ///
    /// # Errors
    /// Returns an error if the file can't be written.
    pub(super) fn write(&self, path: &Path) -> Result<()> {
        Ok(std::fs::write(path, serde_json::to_string_pretty(self)? + "\n")?)
    }

    /// Returns the curves of each axis, in order.
    pub(super) fn axes(&self) -> impl Iterator<Item = &[CurveFigures]> {
        self.curves.chunk_by(|one, next| one.axis == next.axis)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(points: &[(u64, u64)]) -> LineFigures {
        let point = |&(size, p50)| Point { size, count: 1, p50, p99: p50, p999: p50 };
        LineFigures { name: "mp".to_owned(), points: points.iter().map(point).collect(), left_out: None }
    }

    #[test]
    fn growth_exponents_differ_for_flat_and_linear_lines() {
        assert_eq!(line(&[(1, 70), (10, 70)]).exponents(), [0.0]);
        let steps = line(&[(1, 10), (10, 100), (1_000, 1_000)]).exponents();
        assert!((steps[0] - 1.0).abs() < 1e-9 && (steps[1] - 0.5).abs() < 1e-9, "{steps:?}");
        assert_eq!(line(&[(1, 10), (100, 25)]).growth(), Some(2.5));
    }

    #[test]
    fn points_of_a_growth_curve_are_medians_of_passes() {
        let curve = |p50| CurveFigures {
            id: "a".to_owned(),
            axis: String::new(),
            label: String::new(),
            about: String::new(),
            flat: true,
            lines: vec![line(&[(1, 7), (8, p50)])],
        };
        let mut merged = line(&[(1, 7), (8, 30)]);
        merged.merge(&[30, 10, 20].map(|p50| vec![curve(p50)]), "a");
        assert_eq!(merged.points.iter().map(|point| point.p50).collect::<Vec<_>>(), [7, 20]);
    }
}
