//! `cargo xtask bench`: runs the benchmarks of `benches/` and prints their figures, compared with the limits.

mod figures;

use std::fs;
use std::path::Path;

use crate::args::Args;
use crate::session::Session;
use crate::text_table;
use figures::{Figures, Row};

const MANIFEST: &str = "benches/Cargo.toml";

pub(crate) fn run(args: &mut Args) -> Result<bool, String> {
    let (peers, quick, pin) = (args.flag("--peers"), args.flag("--quick"), args.flag("--pin"));
    let (only, keep) = (args.value("--only")?, args.value("--json")?);
    let minutes = args.value("--minutes")?;
    let (grow, publish, from) = (args.flag("--grow"), args.value("--publish")?, args.value("--from")?);
    args.finish()?;
    if !Path::new(MANIFEST).exists() {
        return Err(format!("there is no {MANIFEST} yet"));
    }
    let scratch = std::env::temp_dir().join(format!("mp-bench-{}.json", std::process::id()));

    let mut session = Session::new();
    if grow {
        let mut command = session.cargo(&["run", "--release", "--manifest-path", MANIFEST]);
        command.args(["--features", "grow", "--", "--grow"]).args(quick.then_some("--quick"));
        let values = [
            ("--only", only),
            ("--json", keep),
            ("--minutes", minutes),
            ("--publish", publish),
            ("--from", from),
        ];
        for (name, value) in values {
            command.args(value.map(|value| [name.to_owned(), value]).into_iter().flatten());
        }
        return Ok(session.run(&mut command).ok);
    }
    let mut command = session.cargo(&["run", "--release", "--manifest-path", MANIFEST]);
    command.args(if peers { &["--features", "peers"][..] } else { &[] }).arg("--");
    if let Some(only) = &only {
        command.args(["--only", only]);
    }
    if let Some(minutes) = &minutes {
        command.args(["--minutes", minutes]);
    }
    command.args(quick.then_some("--quick")).args(pin.then_some("--pin")).arg("--json").arg(&scratch);
    let ran = session.run(&mut command);
    let text = fs::read_to_string(&scratch);
    let _ = fs::remove_file(&scratch);
    if !ran.ok {
        return Ok(false);
    }
    let text = text.map_err(|e| format!("the benchmarks wrote no figures: {e}"))?;
    let figures = Figures::read(&text).map_err(|e| format!("the benchmarks' figures: {e}"))?;
    if let Some(path) = keep {
        fs::write(&path, &text).map_err(|e| format!("{path}: {e}"))?;
    }
    print!("\n{}", page(&figures));
    Ok(true)
}

/// Formats the machine and a table of the rows.
fn page(figures: &Figures) -> String {
    let mut text = String::new();
    figures.machine.iter().for_each(|(name, value)| text += &format!("{name}: {value}\n"));
    let mut heading = ["id", "better", "ours", "spread", "limit", "ours/limit"].map(str::to_owned).to_vec();
    let peers = figures.peers();
    heading.extend(peers.iter().cloned());
    let columns: Vec<usize> = (2..heading.len()).collect();
    let mut rows = vec![heading];
    for row in &figures.rows {
        let shown =
            |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |v| figures::human(v, &row.unit));
        let mut cells = vec![row.id.clone(), row.better().to_owned(), shown(row.ours), spread(row)];
        let of_limit = row.of_limit.map_or_else(|| ratio(row.ours, row.limit), |times| format!("{times:.2}"));
        cells.extend([shown(row.limit), of_limit]);
        for name in &peers {
            cells.push(row.peers.iter().find(|(peer, _)| peer == name).map_or_else(
                || "-".to_owned(),
                |(_, value)| format!("{}{}", figures::human(*value, &row.unit), advantage(row, *value)),
            ));
        }
        rows.push(cells);
    }
    text += &format!("\n{}", text_table::table(&rows, &columns));
    if !peers.is_empty() {
        text += "\nIn brackets: how many times better ours is.\n";
    }
    text
}

/// Formats half of the spread, which is (p90 − p10) / median, as `±…%`.
fn spread(row: &Row) -> String {
    row.spread.map_or_else(|| "-".to_owned(), |spread| format!("±{:.0}%", spread * 50.0))
}

fn ratio(ours: Option<f64>, other: Option<f64>) -> String {
    match (ours, other) {
        (Some(ours), Some(other)) if other > 0.0 => format!("{:.2}", ours / other),
        _ => "-".to_owned(),
    }
}

/// Formats the ratio of a peer's figure to ours in brackets. Empty if we have no figure.
fn advantage(row: &Row, peer: f64) -> String {
    let (over, under) = if row.lower_is_better { (Some(peer), row.ours) } else { (row.ours, Some(peer)) };
    match ratio(over, under).as_str() {
        "-" => String::new(),
        times => format!(" ({times}×)"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_columns_are_aligned() {
        let figures = Figures::read(
            r#"{"machine": {"cores": 2, "cpu": "x"}, "rows": [
                {"id": "rtt", "unit": "ns", "better": "lower", "ours": 1000, "spread": 0.08, "limit": 500,
                 "of_limit": 2.125, "peers": {"other": 15000}},
                {"id": "rate", "unit": "1/s", "better": "higher", "ours": 3e6, "spread": null, "limit": null,
                 "peers": {}}]}"#,
        );
        let expected = "\
cores: 2
cpu: x

id    better      ours  spread   limit  ours/limit             other
rtt   lower    1.00 µs     ±4%  500 ns        2.12  15.0 µs (15.00×)
rate  higher  3.00 M/s       -       -           -                 -
\nIn brackets: how many times better ours is.\n";
        assert_eq!(page(&figures.unwrap()), expected);
    }
}
