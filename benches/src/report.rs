//! The figures as a table for people and as JSON for programs.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::{Map, Value, json};

use crate::Result;
use crate::machine::Machine;
use crate::rows::Better;
use crate::run::Outcome;
use crate::stats::Summary;

/// Returns the table of all rows.
pub(crate) fn table(machine: &Machine, outcomes: &[Outcome]) -> String {
    let mut peers: Vec<&str> =
        outcomes.iter().flat_map(|outcome| &outcome.peers).map(|peer| peer.name).collect();
    peers.sort_unstable();
    peers.dedup();

    let mut head = vec!["row".to_owned(), "limit".to_owned(), "ours".to_owned(), "ours/limit".to_owned()];
    head.extend(peers.iter().map(|&name| name.to_owned()));
    let mut lines = vec![head];
    for outcome in outcomes {
        let unit = outcome.row.unit;
        let ratio = outcome.of_limit.map_or_else(|| "–".to_owned(), times);
        let mut line =
            vec![outcome.row.id.to_owned(), cell(outcome.limit, unit), cell(outcome.ours, unit), ratio];
        line.extend(peers.iter().map(|wanted| {
            let found = outcome.peers.iter().find(|peer| peer.name == *wanted);
            cell(found.and_then(|peer| peer.summary), unit)
        }));
        lines.push(line);
    }

    let columns = lines[0].len();
    let widest = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(widest).collect();
    let mut text = origin(machine) + "\n";
    for line in &lines {
        let cells = line.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| match column {
            0 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        let _ = writeln!(text, "{}", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
    text.push_str("median of the rounds ± half of (p90 − p10); ours/limit: of what it was in each round\n");
    text
}

/// Describes the machine and the run in a line.
pub(crate) fn origin(machine: &Machine) -> String {
    let mut text = format!(
        "{} · {} cores · {:.0} GiB · Linux {} · {} · load {:.1} before · {} · commit {}",
        machine.cpu,
        machine.cores,
        machine.mem as f64 / (1_u64 << 30) as f64,
        machine.kernel,
        machine.rustc,
        machine.load,
        machine.date,
        machine.commit,
    );
    machine.versions.iter().for_each(|(name, version)| _ = write!(text, " · {name} {version}"));
    text + if machine.pinned { " · pinned" } else { "" } + if machine.quick { " · quick" } else { "" }
}

/// Formats a figure with its spread, in a suitable unit.
pub(crate) fn cell(summary: Option<Summary>, unit: &str) -> String {
    let Some(Summary { median, spread }) = summary else { return "–".to_owned() };
    let figure = match unit {
        "ns" if median >= 1e6 => format!("{:.2} ms", median / 1e6),
        "ns" if median >= 1e3 => format!("{:.2} µs", median / 1e3),
        "ns" if median >= 10.0 => format!("{median:.0} ns"),
        "ns" => format!("{median:.2} ns"),
        "1/s" if median >= 1e6 => format!("{:.2} M/s", median / 1e6),
        "1/s" => format!("{:.0} K/s", median / 1e3),
        // Too close to 0 for a spread in percent.
        _ => return format!("{median:.4}"),
    };
    format!("{figure} ±{:.0}%", spread * 50.0)
}

/// Formats a ratio with its spread.
pub(crate) fn times(Summary { median, spread }: Summary) -> String {
    format!("{median:.2} ±{:.0}%", spread * 50.0)
}

/// Writes the figures to `path`.
///
/// # Errors
/// Returns an error if the file can't be written.
pub(crate) fn write_json(path: &Path, machine: &Machine, outcomes: &[Outcome]) -> Result<()> {
    let text = format!("{:#}\n", json(machine, outcomes));
    std::fs::write(path, text).map_err(|error| format!("can't write {}: {error}", path.display()).into())
}

/// Returns the description of the machine as JSON.
pub(crate) fn machine(machine: &Machine) -> Value {
    let versions: Map<String, Value> =
        machine.versions.iter().map(|(name, version)| ((*name).to_owned(), json!(version))).collect();
    json!({
        "cpu": machine.cpu,
        "cores": machine.cores,
        "kernel": machine.kernel,
        "rustc": machine.rustc,
        "mem": machine.mem,
        "date": machine.date,
        "commit": machine.commit,
        "versions": versions,
        "load": machine.load,
        "quick": machine.quick,
        "pinned": machine.pinned,
    })
}

fn json(about: &Machine, outcomes: &[Outcome]) -> Value {
    json!({ "machine": machine(about), "rows": outcomes.iter().map(row).collect::<Vec<_>>() })
}

fn row(outcome: &Outcome) -> Value {
    let peers = |part: fn(Option<Summary>) -> Value| -> Map<String, Value> {
        outcome.peers.iter().map(|peer| (peer.name.to_owned(), part(peer.summary))).collect()
    };
    json!({
        "id": outcome.row.id,
        "unit": outcome.row.unit,
        "better": match outcome.row.better {
            Better::Lower => "lower",
            Better::Higher => "higher",
        },
        "ours": median(outcome.ours),
        "spread": spread(outcome.ours),
        "limit": median(outcome.limit),
        "of_limit": median(outcome.of_limit),
        "peers": peers(median),
        "limit_spread": spread(outcome.limit),
        "peer_spread": peers(spread),
        "note": (outcome.row.note)(),
    })
}

fn median(summary: Option<Summary>) -> Value {
    summary.map_or(Value::Null, |summary| rounded(summary.median))
}

fn spread(summary: Option<Summary>) -> Value {
    summary.map_or(Value::Null, |summary| rounded(summary.spread))
}

/// Rounds a number to its reliable digits.
fn rounded(value: f64) -> Value {
    let digits = if value.abs() >= 1000.0 { 0 } else { 4 };
    let scale = 10_f64.powi(digits);
    json!((value * scale).round() / scale)
}
