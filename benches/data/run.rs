//! Measurement of a row: tries the settings of each contender, and then lets the contenders take turns.

use crate::results::{ContenderFigures, RowResult};
use crate::rows::{Better, Goal, Row, Setup};
use crate::stats::{self, Summary};
use crate::{Result, rows};

/// Result of a round.
#[derive(Clone, Debug)]
pub(crate) enum Round {
    /// Figure in the row's unit, and checksum of the batches.
    Figure { figure: f64, check: u64 },
    /// The contender can't do this work, for this reason.
    Failed(String),
}

/// Loader of a contender at one setting.
pub(crate) struct Contender {
    pub(crate) setting: String,
    /// `true` if a checksum that differs from the other contenders' by up to 1/200 is correct.
    roughly: bool,
    round: Box<dyn FnMut() -> Result<Round>>,
}

impl Contender {
    pub(crate) fn new(setting: impl Into<String>, round: impl FnMut() -> Result<Round> + 'static) -> Self {
        Self { setting: setting.into(), roughly: false, round: Box::new(round) }
    }

    /// Allows a checksum that differs slightly, because the contender's decoder rounds differently.
    pub(crate) fn roughly(self) -> Self {
        Self { roughly: true, ..self }
    }

    /// Converts the figure of each round by `function`.
    pub(crate) fn map(self, function: impl Fn(f64) -> Result<f64> + 'static) -> Self {
        let (roughly, mut round) = (self.roughly, self.round);
        let mapped = Self::new(self.setting, move || {
            Ok(match round()? {
                Round::Figure { figure, check } => Round::Figure { figure: function(figure)?, check },
                failed => failed,
            })
        });
        Self { roughly, ..mapped }
    }

    /// Returns an error in each round whose checksum differs from `right`.
    pub(crate) fn checked(self, right: u64) -> Self {
        let (setting, mut round) = (self.setting, self.round);
        Self::new(setting, move || match round()? {
            Round::Figure { check, .. } if check != right => {
                Err(format!("the batches add up to {check}, not to {right}").into())
            }
            round => Ok(round),
        })
    }
}

/// Contender of a row, with the settings to try.
pub(crate) struct Entrant {
    pub(crate) name: &'static str,
    pub(crate) variants: Vec<Contender>,
}

impl Entrant {
    /// Converts the contender at each setting by `of`.
    pub(crate) fn each(self, of: impl Fn(Contender) -> Contender) -> Self {
        Self { variants: self.variants.into_iter().map(of).collect(), ..self }
    }
}

/// Contender with its best setting, the trials of all its settings, and the figures of its rounds.
struct BestSetting {
    name: &'static str,
    contender: Contender,
    tried: Vec<(String, f64)>,
    figures: Vec<f64>,
    failed: Option<String>,
}

/// Number of trials of each setting, in addition to one trial that warms up.
const TRIES: usize = 2;

/// Measures a row in `rounds` rounds.
///
/// # Errors
/// Returns an error if a contender fails, or its batches differ from the batches of another contender.
pub(crate) fn row(row: &'static Row, setup: &Setup<'_>, rounds: usize) -> Result<RowResult> {
    let mut versions = Vec::new();
    let entrants = (row.contenders)(setup, &mut versions).map_err(|e| format!("{}: {e}", row.id))?;
    let mut right = None;
    let mut chosen = Vec::new();
    for Entrant { name, variants } in entrants {
        let several = variants.len() > 1;
        let mut best: Option<(f64, Contender)> = None;
        let mut tried = Vec::new();
        for mut variant in variants {
            let setting = variant.setting.clone();
            let mut figures = Vec::new();
            // The first round warms up.
            for number in 0..=if several { TRIES } else { 0 } {
                match figure(row, name, &mut variant, &mut right)? {
                    Some(figure) if number > 0 => figures.push(figure),
                    _ => {}
                }
            }
            // All trials of a setting may fail.
            let has_failed = several && figures.is_empty();
            let median = if has_failed { row.better.worst() } else { stats::median(&figures) };
            if has_failed {
                eprintln!("{}: {name}, {setting}: all trials failed", row.id);
            } else if several {
                eprintln!("{}: {name}, {setting}: {}", row.id, rows::human(median, row.unit));
                tried.push((setting, median));
            }
            let better = best.as_ref().is_none_or(|(before, _)| row.better.is(median, *before));
            if better {
                best = Some((median, variant));
            }
        }
        if let Some((_, contender)) = best {
            chosen.push(BestSetting { name, contender, tried, figures: Vec::new(), failed: None });
        }
    }
    for number in 1..=rounds {
        eprintln!("{}: round {number}/{rounds}", row.id);
        for one in chosen.iter_mut().filter(|one| one.failed.is_none()) {
            match round(row, one.name, &mut one.contender, &mut right)? {
                Round::Figure { figure, .. } => one.figures.push(figure),
                Round::Failed(why) => one.failed = Some(why),
            }
        }
    }
    let shown = chosen.iter().map(|one| one.shown(&chosen[0], row.better)).collect();
    let goals = row.goals.iter().filter_map(|goal| reached(*goal, row, &chosen)).collect();
    Ok(RowResult::new(row, rounds, versions, shown, goals))
}

fn figure(row: &Row, name: &str, of: &mut Contender, right: &mut Option<u64>) -> Result<Option<f64>> {
    Ok(match round(row, name, of, right)? {
        Round::Figure { figure, .. } => Some(figure),
        Round::Failed(_) => None,
    })
}

/// Runs a round of a contender. Returns an error if its checksum differs from `right`, the checksum of the
/// first round of any contender.
fn round(row: &Row, name: &str, of: &mut Contender, right: &mut Option<u64>) -> Result<Round> {
    let round = (of.round)().map_err(|e| format!("{}: {name}, {}: {e}", row.id, of.setting))?;
    if let Round::Figure { check, .. } = round {
        let right = *right.get_or_insert(check);
        let off = if of.roughly { right / 200 } else { 0 };
        if check.abs_diff(right) > off {
            return Err(format!("{}: {name}: the batches add up to {check}, not to {right}", row.id).into());
        }
    }
    Ok(round)
}

impl BestSetting {
    /// Combines the figures of both contenders in each round by `of`, and summarizes the results.
    fn paired(&self, other: &BestSetting, of: impl Fn(f64, f64) -> f64) -> Option<Summary> {
        let pairs: Vec<f64> = self.figures.iter().zip(&other.figures).map(|(a, b)| of(*a, *b)).collect();
        stats::summary(&pairs)
    }

    /// Returns the factor by which the figures of `ours` are better than the figures of this contender.
    fn beaten_by(&self, ours: &BestSetting, better: Better) -> Option<Summary> {
        ours.paired(self, |ours, theirs| match better {
            Better::Higher => ours / theirs,
            Better::Lower => theirs / ours,
        })
    }

    fn shown(&self, ours: &BestSetting, better: Better) -> ContenderFigures {
        let times = if self.name == ours.name { None } else { self.beaten_by(ours, better) };
        let summary = stats::summary(&self.figures).filter(|_| self.failed.is_none());
        ContenderFigures {
            name: self.name.to_owned(),
            setting: self.contender.setting.clone(),
            figure: summary.map(|summary| summary.median),
            spread: summary.map(|summary| summary.spread),
            times: times.map(|times| times.median),
            times_spread: times.map(|times| times.spread),
            failed: self.failed.clone(),
            tried: self.tried.clone(),
        }
    }
}

/// Returns a text with the goal and the measured value, and `true` if the goal is met. Returns `None` if a
/// figure is missing.
fn reached(goal: Goal, row: &Row, all: &[BestSetting]) -> Option<(String, bool)> {
    let ours = all.first()?;
    let other = |name: &str| all.iter().find(|one| one.name == name && !one.figures.is_empty());
    let human = |figure| rows::human(figure, row.unit);
    Some(match goal {
        Goal::AtMost(most) => {
            let got = stats::summary(&ours.figures)?.median;
            (format!("at most {}: {}", human(most), human(got)), got <= most)
        }
        Goal::Times(name, least) => {
            let got = other(name)?.beaten_by(ours, row.better)?.median;
            (format!("at least {least:.2} times as good as {name}: {got:.2}"), got >= least)
        }
        Goal::LaterBy(name, most) => {
            let got = ours.paired(other(name)?, |ours, theirs| ours - theirs)?.median;
            (format!("at most {} more than {name}: {}", human(most), human(got)), got <= most)
        }
    })
}
