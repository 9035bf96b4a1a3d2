//! Measured rows.

mod memory;
mod messages;
mod processes;

use crate::work::Round;

/// Preferred direction of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Better {
    /// Lower figures are better: times and counts.
    Lower,
    /// Higher figures are better: rates.
    Higher,
}

/// Row: a piece of work, and its contenders.
#[derive(Debug)]
pub(crate) struct Row {
    /// Permanent name, whose meaning never changes.
    pub(crate) id: &'static str,
    /// Unit of the figure.
    pub(crate) unit: &'static str,
    /// Preferred direction of the figure.
    pub(crate) better: Better,
    /// Description of the work.
    pub(crate) about: &'static str,
    /// Number of rounds.
    pub(crate) rounds: usize,
    /// Function that runs a round of the limit.
    pub(crate) limit: Round,
    /// Function that runs a round of mp.
    pub(crate) ours: Round,
    /// Peers that can do this work, each with the function that runs a round.
    pub(crate) peers: &'static [(&'static str, Round)],
    /// Note about the use of the peers, or the reason why a peer is missing.
    pub(crate) note: fn() -> &'static str,
}

/// List of a row's peers, which is empty without the feature `peers`.
#[cfg(feature = "peers")]
macro_rules! peers {
    ($($name:literal => $round:path),* $(,)?) => { &[$(($name, $round as $crate::work::Round)),*] };
}
#[cfg(not(feature = "peers"))]
macro_rules! peers {
    ($($name:literal => $round:path),* $(,)?) => {
        &[]
    };
}

use peers;

/// Number of rounds of most rows.
const USUAL: usize = 7;
/// Number of rounds of a row with short rounds, so that contenders take turns before the machine's speed
/// changes.
const SHORT: usize = 25;

/// Returns all rows, in the order in which they run.
pub(crate) fn all() -> impl Iterator<Item = &'static Row> {
    messages::ROWS.iter().chain(memory::ROWS).chain(processes::ROWS)
}
