//! Picture of the figures: a group of bars for each row. The background is part of the picture, so the colour
//! of the page does not matter.

use std::fmt::Write as _;

use crate::results::{ContenderFigures, Results, RowResult};
use crate::rows;

const WIDTH: u32 = 880;
/// Left edge of the bars in pixels. The next constant is the length of the longest bar.
const LEFT: u32 = 190;
const LONGEST: f64 = 400.0;
const LINE: u32 = 21;
const FONT: &str = "font-family=\"Helvetica, Arial, sans-serif\"";

/// Returns the picture as SVG.
pub(crate) fn draw(results: &Results) -> String {
    let (mut parts, mut y) = (String::new(), 20);
    for row in &results.rows {
        group(&mut parts, row, &mut y);
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{y}\" viewBox=\"0 0 {WIDTH} \
         {y}\" {FONT}>\n\
         <rect x=\"0.5\" y=\"0.5\" width=\"{}\" height=\"{}\" rx=\"8\" fill=\"#ffffff\" \
         stroke=\"#d0d7de\"/>\n{parts}</svg>\n",
        WIDTH - 1,
        y - 1,
    )
}

fn group(parts: &mut String, row: &RowResult, y: &mut u32) {
    let goes = if row.higher_is_better { "longer is better" } else { "shorter is better" };
    let title = format!(
        "<tspan font-weight=\"bold\">{}</tspan>: {} <tspan fill=\"#6e7781\">({goes})</tspan>",
        escaped(&row.id),
        escaped(&row.about)
    );
    text(parts, (18, *y + 12), "start", "#1f2328", &title);
    *y += 22;
    let longest = row.contenders.iter().filter_map(|shown| shown.figure).fold(0.0, f64::max);
    for (number, shown) in row.contenders.iter().enumerate() {
        text(parts, (LEFT - 10, *y + 13), "end", "#1f2328", &escaped(&shown.name));
        let length = shown.figure.map_or(0.0, |figure| (LONGEST * figure / longest).max(1.0));
        let colour = match (number, shown.name.as_str()) {
            (0, _) => "#1a7f6b",
            (
                _,
                "threads" | "rayon" | "at batch 0" | "one copy" | "1 worker" | "no worker" | "mp, two ahead",
            ) => "#8c959f",
            _ => "#d4a72c",
        };
        _ = writeln!(
            parts,
            "<rect x=\"{LEFT}\" y=\"{}\" width=\"{length:.1}\" height=\"14\" rx=\"2\" fill=\"{colour}\"/>",
            *y + 2
        );
        let end = LEFT + length as u32 + 8;
        text(parts, (end, *y + 13), "start", "#1f2328", &escaped(&label(shown, &row.unit)));
        *y += LINE;
    }
    *y += 16;
}

/// Returns the label of a bar.
fn label(shown: &ContenderFigures, unit: &str) -> String {
    match (shown.figure, shown.times) {
        (Some(figure), Some(times)) => {
            format!("{} (mp: {times:.2} times as good)", rows::human(figure, unit))
        }
        (Some(figure), None) => rows::human(figure, unit),
        (None, _) => "the epoch ends with an error".to_owned(),
    }
}

fn text(parts: &mut String, (x, y): (u32, u32), anchor: &str, colour: &str, words: &str) {
    _ = writeln!(
        parts,
        "<text x=\"{x}\" y=\"{y}\" font-size=\"13\" text-anchor=\"{anchor}\" fill=\"{colour}\">{words}</text>"
    );
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
