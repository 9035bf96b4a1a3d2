//! Takes turns: limit, ours, each peer, limit, ours, …

use crate::Result;
use crate::rows::{self, Row};
use crate::stats::{self, Summary};
use crate::work::{Plan, Round};

/// The figures of one row.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// Which row.
    pub(crate) row: &'static Row,
    /// What the machine itself allows.
    pub(crate) limit: Option<Summary>,
    /// mp.
    pub(crate) ours: Option<Summary>,
    /// The others, by name.
    pub(crate) peers: Vec<(&'static str, Option<Summary>)>,
}

/// Someone who does a row's work, and the figures so far.
struct Contender {
    name: &'static str,
    is_peer: bool,
    round: Round,
    figures: Vec<f64>,
    out: bool,
}

/// Measures the rows called `only`, or all of them.
///
/// # Errors
/// The first thing that goes wrong with the limit or with mp, wrong results included. Of a peer it is shown, and its figures are
/// left out.
pub(crate) fn all(only: &[String], plan: &Plan) -> Result<Vec<Outcome>> {
    let wanted = |row: &&'static Row| only.is_empty() || only.iter().any(|id| id == row.id);
    rows::all().filter(wanted).map(|row| one(row, plan)).collect()
}

fn one(row: &'static Row, plan: &Plan) -> Result<Outcome> {
    let rounds = if plan.quick { 3 } else { 7 }.min(row.rounds);
    let own = [("limit", row.limit), ("ours", row.ours)];
    let mut contenders: Vec<Contender> = own
        .iter()
        .chain(row.peers)
        .enumerate()
        .map(|(i, &(name, round))| Contender {
            name,
            is_peer: i >= own.len(),
            round,
            figures: Vec::new(),
            out: false,
        })
        .collect();
    // The first round warms up.
    for number in 0..=rounds {
        match number {
            0 => eprintln!("{}: warm-up", row.id),
            _ => eprintln!("{}: round {number}/{rounds}", row.id),
        }
        for contender in contenders.iter_mut().filter(|contender| !contender.out) {
            let figure = match (contender.round)(plan) {
                Ok(figure) => figure,
                // The others' figures are no worse for it.
                Err(error) if contender.is_peer => {
                    eprintln!("{}: {} is left out: {error}", row.id, contender.name);
                    contender.figures.clear();
                    None
                }
                Err(error) => return Err(format!("{}, {}: {error}", row.id, contender.name).into()),
            };
            match figure {
                None => contender.out = true,
                Some(_) if number == 0 => {}
                Some(figure) if figure.is_nan() => {
                    eprintln!(
                        "{}: {}: this round doesn't count: the machine is too busy",
                        row.id, contender.name
                    );
                }
                Some(figure) => contender.figures.push(figure),
            }
        }
    }
    let mut summaries =
        contenders.iter().map(|contender| (contender.name, stats::summary(&contender.figures)));
    let limit = summaries.next().and_then(|(_, summary)| summary);
    let ours = summaries.next().and_then(|(_, summary)| summary);
    Ok(Outcome { row, limit, ours, peers: summaries.collect() })
}
