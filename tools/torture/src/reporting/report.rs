//! Progress bar, and table of totals at the end of the run.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::args::Args;
use crate::bookkeeping::leaks::Leaked;
use crate::bookkeeping::ledger::Account;
use crate::reporting::finding::{Finding, FindingKind};
use crate::rounds::crew::Signals;
use crate::rounds::group::Kind;
use crate::rounds::round::RoundEnd;

/// Progress bar.
pub(crate) struct Bar(ProgressBar);

impl Bar {
    pub(crate) fn new(time: Duration) -> Self {
        let bar = ProgressBar::new(time.as_millis() as u64);
        let style = ProgressStyle::with_template("{wide_bar} {percent:>3}%  {msg}");
        Self(bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar())))
    }

    pub(crate) fn show(&self, elapsed: Duration, report: &Report, messages: u64, signals: Signals) {
        let kills = report.signals.kills + signals.kills;
        let all = report.messages() + messages;
        self.0.set_position(elapsed.as_millis() as u64);
        self.0.set_message(format!("round {}: {kills} kills, {all} messages", report.rounds + 1));
    }

    pub(crate) fn done(&self) {
        self.0.finish_and_clear();
    }
}

/// Totals of all rounds.
pub(crate) struct Report {
    args: Args,
    rounds: u64,
    signals: Signals,
    sums: BTreeMap<Kind, (u64, Account)>,
    found: Option<(Finding, String)>,
}

impl Report {
    pub(crate) fn new(args: Args) -> Self {
        Self { args, rounds: 0, signals: Signals::default(), sums: BTreeMap::new(), found: None }
    }

    pub(crate) fn add(&mut self, ended: RoundEnd) {
        self.rounds += 1;
        self.signals.kills += ended.signals.kills;
        self.signals.stops += ended.signals.stops;
        self.signals.started += ended.signals.started;
        for (kind, a) in ended.accounts {
            let (groups, sum) = self.sums.entry(kind).or_default();
            *groups += 1;
            sum.done += a.done;
            sum.put += a.put;
            sum.got += a.got;
            sum.again += a.again;
            sum.missing += a.missing;
            sum.undone += a.undone;
            sum.lost += a.lost;
        }
        self.found = ended.found;
    }

    fn messages(&self) -> u64 {
        self.sums.values().map(|(_, sum)| sum.put).sum()
    }

    pub(crate) fn clean(&self) -> bool {
        self.found.is_none()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Signals { kills, stops, started } = self.signals;
        let Args { seed, processes, .. } = &self.args;
        writeln!(f, "seed {seed}, {} rounds of some {processes} processes", self.rounds)?;
        writeln!(f, "{started} processes started, {kills} killed, {stops} stopped and continued\n")?;
        writeln!(
            f,
            "{:<31}{:>7}{:>12}{:>12}{:>10}{:>10}",
            "structure", "groups", "put", "got", "again", "with dead"
        )?;
        for (kind, (groups, a)) in &self.sums {
            if kind.counts_operations() {
                writeln!(f, "{:<31}{groups:>7}{:>12} operations", kind.name(), a.done)?;
                continue;
            }
            // Messages lost with a killed consumer, or, with acknowledgement, reported or redelivered.
            let with_dead = a.missing + a.lost;
            writeln!(
                f,
                "{:<31}{groups:>7}{:>12}{:>12}{:>10}{with_dead:>10}",
                kind.name(),
                a.put,
                a.got,
                a.again
            )?;
        }
        writeln!(f)?;
        for (what, word) in FindingKind::ALL {
            let count = self.found.iter().filter(|(finding, _)| finding.what == what).count();
            writeln!(f, "{word:<12}{count}")?;
        }
        match &self.found {
            Some((finding, _)) if finding.what != FindingKind::Leaked => {
                writeln!(f, "left at the end: not looked at")?
            }
            found => {
                let left = found.as_ref().map(|(finding, _)| finding.leaked).unwrap_or_default();
                let Leaked { bytes, fds, names, slots } = left;
                writeln!(f, "left at the end: {bytes} bytes, {fds} fds, {names} names, {slots} slots")?;
            }
        }
        if let Some((finding, state)) = &self.found {
            writeln!(f, "\nFOUND in round {}, seed {seed}: {finding}\n{state}", self.rounds)?;
        }
        Ok(())
    }
}
