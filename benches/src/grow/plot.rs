//! Pictures of the curves, one for each axis. A picture has a panel for each curve of the axis, with
//! logarithmic scales. The background is part of the picture, so the picture is readable on light and dark
//! pages.

use plotters::coord::Shift;
use plotters::prelude::*;

use super::figures::{CurveFigures, LineFigures, Point};
use super::page;
use crate::{Failure, Result};

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Size of a panel.
const PANEL: (u32, u32) = (430, 270);
/// Height of the legend.
const LEGEND: u32 = 34;
const INK: RGBColor = RGBColor(31, 35, 40);
const OURS: RGBColor = RGBColor(26, 127, 107);

/// Returns the colour of a contender.
fn colour(name: &str) -> RGBColor {
    match name {
        "mp" => OURS,
        "limit" => RGBColor(140, 149, 159),
        "iceoryx2" => RGBColor(191, 135, 0),
        "ipc-channel polling" => RGBColor(207, 34, 46),
        "crossbeam-channel" => RGBColor(9, 105, 218),
        _ => RGBColor(130, 80, 223),
    }
}

fn failed(error: impl std::fmt::Display) -> Failure {
    format!("can't draw: {error}").into()
}

/// Draws the curves of an axis.
///
/// # Errors
/// Returns the error of the drawing library, which does not occur in practice.
pub(super) fn draw(curves: &[CurveFigures]) -> Result<String> {
    let columns = curves.len().min(2) as u32;
    let rows = (curves.len() as u32).div_ceil(columns);
    let mut svg = String::new();
    {
        let size = (columns * PANEL.0, rows * PANEL.1 + LEGEND);
        let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        root.fill(&WHITE).map_err(failed)?;
        let (top, panels) = root.split_vertically(LEGEND);
        legend(&top, curves)?;
        for (curve, area) in curves.iter().zip(panels.split_evenly((rows as usize, columns as usize))) {
            panel(&area, curve)?;
        }
        root.present().map_err(failed)?;
    }
    Ok(svg)
}

/// Draws the names of all contenders, each after a piece of its line.
fn legend(area: &Area, curves: &[CurveFigures]) -> Result<()> {
    let mut names: Vec<&str> = Vec::new();
    for line in curves.iter().flat_map(|curve| &curve.lines) {
        if !line.points.is_empty() && !names.contains(&line.name.as_str()) {
            names.push(&line.name);
        }
    }
    let mut x = 14;
    for name in names {
        let style = colour(name).stroke_width(3);
        area.draw(&PathElement::new([(x, 20), (x + 22, 20)], style)).map_err(failed)?;
        let label = if name == "mp" { "mp: p50 (p99, p99.9 thin)" } else { name };
        let font = ("sans-serif", 14).into_font().color(&INK);
        area.draw(&Text::new(label, (x + 28, 12), font)).map_err(failed)?;
        x += 42 + (6.4 * label.len() as f64) as i32;
    }
    Ok(())
}

/// Draws one curve.
fn panel(area: &Area, curve: &CurveFigures) -> Result<()> {
    let all = || curve.lines.iter().flat_map(|line| &line.points);
    let sizes = || all().map(|point| point.size as f64);
    let (left, right) = (sizes().fold(f64::MAX, f64::min), sizes().fold(1.0, f64::max));
    let tails = curve.line("mp").into_iter().flat_map(|line| &line.points);
    let tails = tails.filter_map(Point::p999).map(|time| time as f64);
    let times = || all().map(|point| point.p50 as f64).chain(tails.clone());
    let (low, high) = (times().fold(f64::MAX, f64::min), times().fold(1.0, f64::max));
    // At least three decades, so that noise doesn't look like growth.
    let (low, high) = (low / 2.0, (high * 2.0).max(low * 500.0));
    let mut chart = ChartBuilder::on(area)
        .margin(8)
        .margin_right(24)
        .caption(format!("{}: {}", curve.id, curve.about), ("sans-serif", 14).into_font().color(&INK))
        .x_label_area_size(38)
        .y_label_area_size(58)
        .build_cartesian_2d((left..right.max(left * 2.0)).log_scale(), (low..high).log_scale())
        .map_err(failed)?;
    chart
        .configure_mesh()
        .bold_line_style(RGBColor(226, 230, 234))
        .light_line_style(TRANSPARENT)
        .axis_style(RGBColor(140, 149, 159))
        .x_labels(8)
        .y_labels(6)
        .label_style(("sans-serif", 12).into_font().color(&INK))
        .x_label_formatter(&|size| page::count(*size))
        .y_label_formatter(&|time| page::human(*time))
        .x_desc(&curve.label)
        .draw()
        .map_err(failed)?;
    let mut add = |line: &LineFigures, part: fn(&Point) -> Option<u64>, style: ShapeStyle| -> Result<()> {
        let place = |point: &Point| Some((point.size as f64, part(point)? as f64));
        let points: Vec<_> = line.points.iter().filter_map(place).collect();
        let dots = points.iter().map(|&place| Circle::new(place, style.stroke_width, style.filled()));
        chart.draw_series(dots).map_err(failed)?;
        chart.draw_series(LineSeries::new(points.iter().copied(), style)).map_err(failed)?;
        Ok(())
    };
    for line in curve.lines.iter().rev() {
        if line.name == "mp" {
            add(line, Point::p999, OURS.mix(0.4).stroke_width(1))?;
            add(line, Point::p99, OURS.mix(0.7).stroke_width(1))?;
        }
        let width = if line.name == "mp" { 3 } else { 2 };
        add(line, |point| Some(point.p50), colour(&line.name).stroke_width(width))?;
    }
    Ok(())
}
