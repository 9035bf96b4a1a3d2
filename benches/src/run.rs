//! Rounds of a row, in which the contenders take turns: limit, ours, each peer, limit, ours, …

use crate::Result;
use crate::args::Options;
use crate::rows::{self, Row};
use crate::stats::{self, Summary};
use crate::work::{Plan, Round};

/// Figures of one row.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// Row that was measured.
    pub(crate) row: &'static Row,
    /// Figure of the limit.
    pub(crate) limit: Option<Summary>,
    /// Figure of mp.
    pub(crate) ours: Option<Summary>,
    /// Ratio of our figure to the limit, round by round.
    pub(crate) of_limit: Option<Summary>,
    /// Figures of the peers.
    pub(crate) peers: Vec<Peer>,
}

/// Figure of another library.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) name: &'static str,
    pub(crate) summary: Option<Summary>,
    /// Ratio of our figure to the peer's figure, round by round.
    pub(crate) ratio: Option<Summary>,
}

/// Contender that does a row's work, and its figures so far.
struct Contender {
    name: &'static str,
    is_peer: bool,
    round: Round,
    /// Figure of each round, or `None` if the machine was too busy in the round.
    figures: Vec<Option<f64>>,
    out: bool,
}

/// Measures the rows that the options name, or all of them.
///
/// # Errors
/// Returns the first error of the limit or of mp, including wrong results. Errors of a peer are printed, and
/// the peer is left out.
pub(crate) fn all(options: &Options, plan: &Plan) -> Result<Vec<Outcome>> {
    rows::all().filter(|row| options.wants(row.id)).map(|row| one(row, plan)).collect()
}

fn one(row: &'static Row, plan: &Plan) -> Result<Outcome> {
    let rounds = if plan.quick { row.rounds.min(3) } else { row.rounds };
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
                // The figures of other contenders are unaffected.
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
                    contender.figures.push(None);
                }
                Some(figure) => contender.figures.push(Some(figure)),
            }
        }
    }
    let [limit, ours, peers @ ..] = contenders.as_slice() else { return Err("a row without a limit".into()) };
    let peer = |peer: &Contender| Peer { name: peer.name, summary: peer.summary(), ratio: ours.times(peer) };
    Ok(Outcome {
        row,
        limit: limit.summary(),
        ours: ours.summary(),
        of_limit: ours.times(limit),
        peers: peers.iter().map(peer).collect(),
    })
}

impl Contender {
    fn summary(&self) -> Option<Summary> {
        let figures: Vec<f64> = self.figures.iter().flatten().copied().collect();
        stats::summary(&figures)
    }

    /// Returns the ratio of this contender's figure to the other contender's: the median of the rounds'
    /// ratios, so that a change of the machine's speed between rounds has no effect.
    fn times(&self, other: &Contender) -> Option<Summary> {
        let pairs = self.figures.iter().zip(&other.figures);
        let ratios = pairs.filter_map(|(ours, other)| Some((*ours)? / other.filter(|other| *other > 0.0)?));
        stats::summary(&ratios.collect::<Vec<_>>())
    }
}
