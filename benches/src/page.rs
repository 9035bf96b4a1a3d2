//! Tables of a run in the page of benchmarks and in the README.

use std::fmt::Write as _;
use std::path::Path;

use crate::machine::Machine;
use crate::rows::Better;
use crate::run::{Outcome, Peer};
use crate::stats::Summary;
use crate::{Result, goals, report};

/// Rows of the README, with their texts.
const README: &[(&str, &str)] = &[
    ("rtt_awake", "round trip of a `u64`, both processes awake"),
    ("one_way_1p1c", "`u64`s per second, one way"),
    ("struct_200b", "serde structs of 200 bytes per second"),
    ("tensor_fresh_1k", "a new tensor of 1 KiB: allocate, fill, send, sum, answer"),
    ("tensor_again_64m", "send the same 64 MiB tensor again, read an element, answer"),
    ("spawn_exec", "start a process and wait for its end"),
    ("spawn_forkserver", "the same by the fork server"),
    ("pool_map_1m", "each of a million tasks of a pool of 2 workers"),
];

/// Formats the figure of a contender, without its spread.
fn figure(outcome: &Outcome, summary: Option<Summary>) -> String {
    let cell = report::cell(summary, outcome.row.unit);
    cell.split_once(" ±").map_or(cell.clone(), |(figure, _)| figure.to_owned())
}

/// Formats the figures of the peers that were measured.
fn peers(outcome: &Outcome, one: impl Fn(&Peer) -> String) -> String {
    outcome.peers.iter().filter(|peer| peer.summary.is_some()).map(one).collect::<Vec<_>>().join(", ")
}

/// Returns the section of the page of benchmarks.
fn section(machine: &Machine, outcomes: &[Outcome]) -> String {
    let mut text = wrapped(&report::origin(machine)) + "\n";
    text += "| row | physical limit | mp | of the limit | peers (factor by which mp is better) |\n";
    text += "|---|---|---|---|---|\n";
    for outcome in outcomes {
        let advantage = |peer: &Peer| {
            let ratio = peer.ratio.map(|ratio| match outcome.row.better {
                Better::Lower => 1.0 / ratio.median,
                Better::Higher => ratio.median,
            });
            let ratio = ratio.map_or(String::new(), |ratio| format!(" ({ratio:.2})"));
            format!("{} {}{ratio}", peer.name, report::cell(peer.summary, outcome.row.unit))
        };
        _ = writeln!(
            text,
            "| `{}`: {} | {} | {} | {} | {} |",
            outcome.row.id,
            outcome.row.about,
            figure(outcome, outcome.limit),
            report::cell(outcome.ours, outcome.row.unit),
            outcome.of_limit.map_or_else(String::new, report::times),
            peers(outcome, advantage),
        );
    }
    text += "\n| goal | | measured |\n|---|---|---|\n";
    for (id, what, met) in goals::of(outcomes) {
        let (goal, measured) = what.rsplit_once(": ").unwrap_or((&what, ""));
        _ = writeln!(text, "| `{id}` {goal} | {} | {measured} |", if met { "met" } else { "**missed**" });
    }
    text
}

/// Returns the table of the README.
fn readme(machine: &Machine, outcomes: &[Outcome]) -> String {
    let mut text = "| work | mp | compared with |\n|---|---|---|\n".to_owned();
    for (id, work) in README {
        let Some(outcome) = outcomes.iter().find(|outcome| outcome.row.id == *id) else { continue };
        let one = |peer: &Peer| format!("{} {}", peer.name, figure(outcome, peer.summary));
        let others = [peers(outcome, one), format!("limit {}", figure(outcome, outcome.limit))];
        let others: Vec<_> =
            others.into_iter().filter(|part| !part.is_empty() && part != "limit –").collect();
        let ours = figure(outcome, outcome.ours);
        _ = writeln!(text, "| {work} | **{ours}** | {} |", others.join("; "));
    }
    let date = machine.date.split('T').next().unwrap_or_default();
    let Machine { commit, cores, cpu, kernel, .. } = machine;
    text + "\n" + &wrapped(&format!("{date}, commit `{commit}`, {cores} cores ({cpu}), Linux {kernel}."))
}

/// Breaks a text into lines of at most 110 characters.
fn wrapped(text: &str) -> String {
    let (mut lines, mut len) = (String::new(), 0);
    for word in text.split(' ') {
        let more = 1 + word.chars().count();
        lines += match len {
            0 => "",
            _ if len + more > 110 => "\n",
            _ => " ",
        };
        len = if lines.ends_with('\n') { more - 1 } else { len + more };
        lines += word;
    }
    lines + "\n"
}

/// Replaces the tables in `folder`/benchmarks.md and in the README two folders above it.
///
/// # Errors
/// Returns an error if a page can't be read or written, or lacks the marks of its section.
pub(crate) fn publish(machine: &Machine, outcomes: &[Outcome], folder: &Path) -> Result<()> {
    replace(&folder.join("benchmarks.md"), "processes and messages", &section(machine, outcomes))?;
    replace(&folder.join("../../README.md"), "processes and messages", &readme(machine, outcomes))
}

/// Replaces the text between the marks of a section in the page at `path`.
///
/// # Errors
/// Returns an error if the page can't be read or written, or lacks the marks.
pub(crate) fn replace(path: &Path, section: &str, text: &str) -> Result<()> {
    let (begin, end) =
        (format!("<!-- figures of {section}: begin -->\n"), format!("<!-- figures of {section}: end -->"));
    let lacks = || format!("{} lacks the marks of the figures of {section}", path.display());
    let page = std::fs::read_to_string(path)?;
    let (before, rest) = page.split_once(&begin).ok_or_else(lacks)?;
    let (_, after) = rest.split_once(&end).ok_or_else(lacks)?;
    Ok(std::fs::write(path, format!("{before}{begin}{text}\n{end}{after}"))?)
}
