//! Output: a line of JSON for each row.

use mp_bench::stats::quantile;
use serde::{Deserialize, Serialize};

/// Figure of one side in one round of a row.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) row: String,
    pub(crate) who: String,
    pub(crate) unit: String,
    pub(crate) median: f64,
    pub(crate) p10: f64,
    pub(crate) p90: f64,
    pub(crate) n: usize,
    /// Number of the round, set by the program that runs both sides.
    #[serde(default)]
    pub(crate) round: usize,
}

impl Row {
    /// Creates a row from these samples. Returns `None` if there are no samples.
    pub(crate) fn of(row: &str, who: &str, unit: &str, samples: &[f64]) -> Option<Self> {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let rounded = |value: f64| (value * 1000.0).round() / 1000.0;
        let at = |share| (!sorted.is_empty()).then(|| rounded(quantile(&sorted, share)));
        Some(Self {
            row: row.to_owned(),
            who: who.to_owned(),
            unit: unit.to_owned(),
            median: at(0.5)?,
            p10: at(0.1)?,
            p90: at(0.9)?,
            n: sorted.len(),
            round: 0,
        })
    }
}

/// All rows, the most important first. Each has a number of rounds, in which mp and torch take turns.
pub(crate) const ROWS: [(&str, usize); 17] = [
    ("kernel_floor", 3),
    ("cpu_round_trip", 3),
    ("switch_floor", 3),
    ("warm_4k", 3),
    ("warm_64m", 3),
    ("ready_4k", 3),
    ("cold", 3),
    ("relay", 2),
    ("relay_memory", 1),
    ("killed", 1),
    ("same_2000", 3),
    ("views_1000", 3),
    ("event_hop", 3),
    ("two_streams", 3),
    ("alloc_free", 3),
    ("reuse", 1),
    ("broadcast_4", 2),
];
