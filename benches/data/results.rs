//! Figures of a run, stored in a JSON file and printed as a table.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::Result;
use crate::machine::Machine;
use crate::rows::{self, Better, Row};

/// Marks that enclose the table in a page.
const BEGIN: &str = "<!-- figures of data loaders: begin -->";
const END: &str = "<!-- figures of data loaders: end -->";

/// Figures of some rows.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Results {
    pub(crate) rows: Vec<RowResult>,
}

/// Figures of one row.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RowResult {
    pub(crate) id: String,
    pub(crate) about: String,
    pub(crate) unit: String,
    pub(crate) higher_is_better: bool,
    pub(crate) rounds: usize,
    pub(crate) contenders: Vec<ContenderFigures>,
    /// Goals of the row: a description with the measured value, and `true` if the goal is met.
    pub(crate) goals: Vec<(String, bool)>,
    /// Versions of the peers.
    pub(crate) versions: Vec<String>,
    pub(crate) machine: BTreeMap<String, String>,
}

/// Figures of one contender of a row at its best setting.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ContenderFigures {
    pub(crate) name: String,
    pub(crate) setting: String,
    /// Median of the rounds. `None` if the contender has failed.
    pub(crate) figure: Option<f64>,
    /// Spread of the rounds: (p90 − p10) / median.
    pub(crate) spread: Option<f64>,
    /// Factor by which mp's figure is better: the median of the rounds' factors. `None` for mp.
    pub(crate) times: Option<f64>,
    pub(crate) times_spread: Option<f64>,
    pub(crate) failed: Option<String>,
    /// Settings that were tried, with their figures.
    pub(crate) tried: Vec<(String, f64)>,
}

impl RowResult {
    pub(crate) fn new(
        row: &Row,
        rounds: usize,
        versions: Vec<String>,
        contenders: Vec<ContenderFigures>,
        goals: Vec<(String, bool)>,
    ) -> Self {
        RowResult {
            id: row.id.to_owned(),
            about: row.about.to_owned(),
            unit: row.unit.to_owned(),
            higher_is_better: row.better == Better::Higher,
            rounds,
            contenders,
            goals,
            versions,
            machine: BTreeMap::new(),
        }
    }

    /// Stores the description of the machine in the row.
    pub(crate) fn on(mut self, machine: &Machine) -> Self {
        let words = [
            ("cpu", machine.cpu.clone()),
            ("cores", machine.cores.to_string()),
            ("memory", format!("{:.0} GiB", machine.mem as f64 / (1_u64 << 30) as f64)),
            ("kernel", machine.kernel.clone()),
            ("compiler", machine.rustc.to_owned()),
            ("date", machine.date.clone()),
            ("load before", machine.load.to_string()),
        ];
        self.machine = words.into_iter().map(|(name, word)| (name.to_owned(), word)).collect();
        self
    }
}

/// Reads the figures in a file.
///
/// # Errors
/// Returns an error if the file can't be read or has another format.
pub(crate) fn read(path: &Path) -> Result<Results> {
    let text = std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()))?;
    Ok(serde_json::from_slice(&text).map_err(|e| format!("{}: {e}", path.display()))?)
}

impl Results {
    /// Writes the rows to a file. Rows of the file with other ids stay.
    ///
    /// # Errors
    /// Returns an error if the file can't be written, or has another format.
    pub(crate) fn write(mut self, path: &Path) -> Result<()> {
        if path.exists() {
            let before = read(path)?.rows.into_iter();
            let others: Vec<_> = before.filter(|row| self.rows.iter().all(|new| new.id != row.id)).collect();
            self.rows.extend(others);
        }
        self.rows.sort_by_key(|row| rows::ALL.iter().position(|one| one.id == row.id));
        Ok(std::fs::write(path, serde_json::to_string_pretty(&self)? + "\n")?)
    }

    /// Returns the figures as a table in Markdown, followed by the goals and the description of the machine.
    pub(crate) fn table(&self) -> String {
        let mut text = String::from("| work | contender | figure | mp is better by |\n|---|---|---|---|\n");
        for row in &self.rows {
            for (number, shown) in row.contenders.iter().enumerate() {
                let work = match number {
                    0 => format!("`{}`: {}", row.id, row.about),
                    _ => String::new(),
                };
                let name = match shown.setting.as_str() {
                    "" => shown.name.clone(),
                    setting => format!("{} ({setting})", shown.name),
                };
                let times =
                    shown.times.zip(shown.times_spread).map_or_else(String::new, |(times, spread)| {
                        format!("{times:.2} times ±{:.0} %", spread * 50.0)
                    });
                _ = writeln!(text, "| {work} | {name} | {} | {times} |", shown.words(&row.unit));
            }
        }
        text.push('\n');
        for row in &self.rows {
            for (goal, met) in &row.goals {
                _ = writeln!(text, "- {}: `{}`: {goal}", if *met { "met" } else { "MISSED" }, row.id);
            }
        }
        let mut notes: Vec<String> = self.rows.iter().flat_map(|row| row.versions.clone()).collect();
        for row in &self.rows {
            let of_each = |name: &str| ["date", "load before", "rounds"].contains(&name);
            notes.extend(row.machine.iter().filter(|one| !of_each(one.0)).map(|(n, w)| format!("{n} {w}")));
        }
        notes.sort_unstable();
        notes.dedup();
        notes.extend(["date", "load before", "rounds"].into_iter().filter_map(|name| self.range(name)));
        _ = writeln!(text, "\n{}", notes.join(" · "));
        text
    }

    /// Returns the text `NAME FIRST to LAST` for a property that may differ between rows, such as the date.
    fn range(&self, name: &str) -> Option<String> {
        let words = self.rows.iter().filter_map(|row| match name {
            "rounds" => Some(row.rounds.to_string()),
            _ => row.machine.get(name).cloned(),
        });
        let mut words: Vec<String> = words.collect();
        // Dates sort as words, the others as numbers.
        words.sort_by(|a, b| match (a.parse::<f64>(), b.parse::<f64>()) {
            (Ok(a), Ok(b)) => a.total_cmp(&b),
            _ => a.cmp(b),
        });
        let (first, last) = (words.first()?, words.last()?);
        Some(if first == last { format!("{name} {first}") } else { format!("{name} {first} to {last}") })
    }

    /// Replaces the text between [`BEGIN`] and [`END`] in a page with the table.
    ///
    /// # Errors
    /// Returns an error if the page can't be read or written, or lacks a mark.
    pub(crate) fn publish(&self, page: &Path) -> Result<()> {
        let text = std::fs::read_to_string(page).map_err(|e| format!("{}: {e}", page.display()))?;
        let lacks = || format!("{} has no {BEGIN} before an {END}", page.display());
        let (before, rest) = text.split_once(BEGIN).ok_or_else(lacks)?;
        let (_, after) = rest.split_once(END).ok_or_else(lacks)?;
        Ok(std::fs::write(page, format!("{before}{BEGIN}\n\n{}\n{END}{after}", self.table()))?)
    }
}

impl ContenderFigures {
    /// Formats the figure, or the reason why the contender has no figure.
    pub(crate) fn words(&self, unit: &str) -> String {
        match (self.figure, &self.failed) {
            (Some(figure), _) => {
                format!(
                    "{} ±{:.0} %",
                    rows::human(figure, unit),
                    50.0 * self.spread.unwrap_or_default().abs()
                )
            }
            (None, Some(why)) => why.clone(),
            (None, None) => "–".to_owned(),
        }
    }
}
