//! Measured rows.

mod memory;
mod messages;
mod processes;

use crate::work::Round;

/// Preferred direction of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Better {
    /// Times and counts.
    Lower,
    /// Rates.
    Higher,
}

/// Row: a piece of work, and its contenders.
#[derive(Debug)]
pub(crate) struct Row {
    /// Permanent name. Its meaning never changes.
    pub(crate) id: &'static str,
    /// Unit of its figures.
    pub(crate) unit: &'static str,
    /// Preferred direction.
    pub(crate) better: Better,
    /// The work, in a few words.
    pub(crate) about: &'static str,
    /// Number of rounds.
    pub(crate) rounds: usize,
    /// Limit of the machine.
    pub(crate) limit: Round,
    /// mp.
    pub(crate) ours: Round,
    /// Peers that can do this work.
    pub(crate) peers: &'static [(&'static str, Round)],
    /// Note about the use of the peers, or the reason why one is missing.
    pub(crate) note: fn() -> &'static str,
}

/// Returns the peers of a row. Empty without the feature.
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
/// Number of short rounds: contenders take turns within the seconds for which a machine keeps its pace.
const SHORT: usize = 25;

/// All rows, in the order in which they run.
pub(crate) fn all() -> impl Iterator<Item = &'static Row> {
    messages::ROWS.iter().chain(memory::ROWS).chain(processes::ROWS)
}
