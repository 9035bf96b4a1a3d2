//! What is measured: one row each.

mod memory;
mod messages;
mod processes;

use crate::work::Round;

/// Which way a figure should go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Better {
    /// Times and counts.
    Lower,
    /// Rates.
    Higher,
}

/// One row: a piece of work, and its contenders.
#[derive(Debug)]
pub(crate) struct Row {
    /// Its name; never changes its meaning.
    pub(crate) id: &'static str,
    /// What its figures count.
    pub(crate) unit: &'static str,
    /// Which way they should go.
    pub(crate) better: Better,
    /// The work, in a few words.
    pub(crate) about: &'static str,
    /// How many rounds it has.
    pub(crate) rounds: usize,
    /// What the machine itself allows.
    pub(crate) limit: Round,
    /// mp.
    pub(crate) ours: Round,
    /// The others, where they can do this work.
    pub(crate) peers: &'static [(&'static str, Round)],
    /// How the others were used, or why one is missing.
    pub(crate) note: fn() -> &'static str,
}

/// The peers of a row; none without the feature.
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

/// As many rounds as most rows have.
const USUAL: usize = 7;
/// Short rounds, so that contenders take turns within the seconds for which a machine keeps its pace.
const SHORT: usize = 25;

/// All rows, in the order in which they run.
pub(crate) fn all() -> impl Iterator<Item = &'static Row> {
    messages::ROWS.iter().chain(memory::ROWS).chain(processes::ROWS)
}
