//! Goals for the figures. After the table, each goal is printed as met or missed.

use std::fmt::Write as _;

use crate::run::Outcome;

/// Goal for our figure in a row.
#[derive(Clone, Copy, Debug)]
enum Goal {
    /// Maximum in the row's unit.
    AtMost(f64),
    AtLeast(f64),
    /// Maximum multiple of the limit.
    OfLimit(f64),
    /// Factor by which our figure must be better than the figure of the named contender.
    Than(&'static str, f64),
    /// Minimum multiple of our figure in the named row.
    OfRow(&'static str, f64),
}

use Goal::{AtLeast, AtMost, OfLimit, OfRow, Than};

const ALL: &[(&str, &[Goal])] = &[
    ("rtt_awake", &[OfLimit(1.25), Than("iceoryx2", 2.5)]),
    ("rtt_asleep", &[OfLimit(1.15)]),
    ("one_way_1p1c", &[AtLeast(6e6), Than("ipc-channel", 15.0)]),
    ("one_way_2p2c", &[OfRow("one_way_1p1c", 1.0)]),
    ("struct_200b", &[AtLeast(1.5e6)]),
    ("plain_200b", &[AtLeast(4e6)]),
    ("tensors_100", &[AtMost(15_000.0)]),
    ("broadcast_1p1c", &[Than("tokio", 1.0)]),
    ("put_at_65k_queued", &[OfLimit(1.2)]),
    ("put_at_900k_queued", &[OfLimit(1.2)]),
    ("socket_1m", &[OfLimit(1.3)]),
    ("socket_64m", &[OfLimit(1.3)]),
    ("socket_1g", &[OfLimit(1.3)]),
    ("socket_again_1m", &[OfLimit(1.3)]),
    ("socket_again_64m", &[OfLimit(1.3)]),
    ("socket_again_1g", &[OfLimit(1.3)]),
    ("idle_1", &[AtMost(5.0)]),
    ("idle_100", &[AtMost(1_000.0)]),
    ("syscalls_per_message", &[AtMost(0.001)]),
    ("tensor_again_64m", &[OfLimit(1.5)]),
    ("tensor_fresh_1k", &[Than("iceoryx2", 1.0)]),
    ("tensor_stream_1k", &[Than("iceoryx2", 1.0)]),
    ("tensor_fresh_64m", &[Than("iceoryx2", 1.0)]),
    ("alloc_1k_at_1k_live", &[AtMost(50.0)]),
    ("alloc_1k_8_processes", &[AtMost(300.0)]),
    ("view", &[AtMost(25.0)]),
    ("lock_uncontended", &[OfLimit(1.5)]),
    ("lock_contended", &[OfLimit(1.0)]),
    ("spawn_exec", &[OfLimit(1.25)]),
    ("spawn_exec_2g", &[OfLimit(1.25 * 1.2)]),
    ("spawn_forkserver", &[AtMost(450e3)]),
    ("spawn_forkserver_2g", &[AtMost(1.2 * 450e3)]),
    ("spawn_64", &[AtMost(80e6)]),
    ("first_failure", &[AtMost(5e6)]),
    ("siblings_gone", &[AtMost(50e6)]),
    ("pool_map", &[AtLeast(1e6)]),
    ("manager_call", &[OfLimit(2.0)]),
    ("pool_map_1m", &[Than("Python", 3.0)]),
    ("pool_collatz_1m", &[Than("rayon", 1.0 / 1.3)]),
    ("pool_files_8m", &[Than("rayon", 1.0 / 1.05)]),
    ("pool_tensor_1m", &[AtLeast(100e3)]),
];

impl Goal {
    /// Returns a description of the goal, and `true` if `outcome`, an element of `all`, meets the goal.
    /// Returns `None` if a necessary figure is missing.
    fn of(self, outcome: &Outcome, all: &[Outcome]) -> Option<(String, bool)> {
        let ours = outcome.ours?.median;
        let unit = outcome.row.unit;
        Some(match self {
            AtMost(most) => (format!("at most {most} {unit}: {ours:.4}"), ours <= most),
            AtLeast(least) => (format!("at least {least} {unit}: {ours:.0}"), ours >= least),
            OfLimit(times) => {
                let ratio = outcome.of_limit?.median;
                (format!("at most {times:.2} times the limit: {ratio:.2}"), ratio <= times)
            }
            OfRow(id, times) => {
                let other = all.iter().find(|other| other.row.id == id)?.ours?.median;
                (format!("at least {times} times {id}: {:.2}", ours / other), ours >= times * other)
            }
            Than(name, times) => {
                let ratio = outcome.peers.iter().find(|peer| peer.name == name)?.ratio?.median;
                let ratio = match outcome.row.better {
                    crate::rows::Better::Lower => 1.0 / ratio,
                    crate::rows::Better::Higher => ratio,
                };
                (format!("at least {times:.2} times as fast as {name}: {ratio:.2}"), ratio >= times)
            }
        })
    }
}

/// Returns the goals of these rows: each with the id of its row, its description, and `true` if it is met.
pub(crate) fn of(outcomes: &[Outcome]) -> impl Iterator<Item = (&'static str, String, bool)> {
    outcomes.iter().flat_map(move |outcome| {
        let goals = ALL.iter().find(|(id, _)| *id == outcome.row.id).map_or(&[][..], |(_, goals)| goals);
        goals
            .iter()
            .filter_map(move |goal| goal.of(outcome, outcomes).map(|(what, met)| (outcome.row.id, what, met)))
    })
}

/// Returns a line for each goal of these rows.
pub(crate) fn list(outcomes: &[Outcome]) -> String {
    let mut text = String::new();
    for (id, what, met) in of(outcomes) {
        let sign = if met { "met   " } else { "MISSED" };
        let _ = writeln!(text, "{sign}  {id:<22} {what}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows;
    use crate::run::Peer;
    use crate::stats::Summary;

    #[test]
    fn benchmark_goals_name_existing_rows() {
        for (id, _) in ALL {
            assert!(rows::all().any(|row| row.id == *id), "{id}");
        }
    }

    #[test]
    fn benchmark_goal_compares_median_with_its_bound() {
        let row = rows::all().find(|row| row.id == "rtt_asleep").expect("a row");
        let summary = |median| Some(Summary { median, spread: 0.0 });
        let outcome = |ours: f64| Outcome {
            row,
            limit: summary(100.0),
            ours: summary(ours),
            of_limit: summary(ours / 100.0),
            peers: vec![Peer { name: "slow", summary: summary(300.0), ratio: summary(ours / 300.0) }],
        };
        assert!(list(&[outcome(114.0)]).starts_with("met") && list(&[outcome(116.0)]).starts_with("MISSED"));
        let met = |wanted: Goal| wanted.of(&outcome(100.0), &[outcome(90.0)]).map(|(_, met)| met);
        assert_eq!(
            [met(Than("slow", 3.0)), met(Than("slow", 3.1)), met(Than("none", 1.0))],
            [Some(true), Some(false), None]
        );
        assert_eq!(
            [met(AtMost(100.0)), met(AtMost(99.0)), met(AtLeast(101.0))],
            [Some(true), Some(false), Some(false)]
        );
        assert_eq!([met(OfRow("rtt_asleep", 1.1)), met(OfRow("rtt_asleep", 1.2))], [Some(true), Some(false)]);
    }
}
