//! Workers of a round. This module starts workers, sends signals to them, replaces dead workers, and detects
//! idle workers.

use std::time::{Duration, Instant};

use mp::process::ExitStatus;
use mp::{FrozenTensor, Process, StartMethod};
use rustix::process::{Signal, pidfd_send_signal};

use crate::args::Args;
use crate::bookkeeping::board::{Board, Op};
use crate::bookkeeping::ledger::Account;
use crate::random::Random;
use crate::reporting::finding::Finding;
use crate::rounds::copies;
use crate::rounds::group::{Group, Kind};
use crate::workloads::work::{Post, work};

/// Time for which a worker may be idle. It exceeds the longest stop of a worker, because workers wait for
/// each other.
const DEADLINE: Duration = Duration::from_secs(20);
/// Longest time for which a worker is stopped, in milliseconds.
const MOST_STOPPED: u64 = 200;

/// Clock that advances only while this process runs, so that a pause of the whole machine does not count as
/// idle time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    last: Instant,
    passed: Duration,
}

impl Clock {
    pub(crate) fn new() -> Self {
        Self { last: Instant::now(), passed: Duration::ZERO }
    }

    /// Sleeps for a millisecond, and returns the elapsed time.
    pub(crate) fn tick(&mut self) -> Duration {
        // sleep: the pace of the torture
        std::thread::sleep(Duration::from_millis(1));
        let passed = self.last.elapsed().min(Duration::from_millis(50));
        self.last = Instant::now();
        self.passed += passed;
        passed
    }

    pub(crate) fn passed(&self) -> Duration {
        self.passed
    }
}

/// Numbers of kills, stops and started workers.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Signals {
    pub(crate) kills: u64,
    pub(crate) stops: u64,
    pub(crate) started: u64,
}

/// Signals to which a worker is exposed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exposure {
    /// Percentage of the planned kills that are sent.
    pub(crate) kills: u64,
    /// Percentage of the planned stops that are sent.
    pub(crate) stops: u64,
    /// Longest stop in milliseconds. `None` stands for [`MOST_STOPPED`].
    pub(crate) longest: Option<u64>,
}

impl Default for Exposure {
    fn default() -> Self {
        Self { kills: 100, stops: 100, longest: None }
    }
}

/// Position in a group, with the worker process that currently has the position.
pub(crate) struct Place {
    group: usize,
    index: usize,
    process: Option<Process<()>>,
    killed: bool,
    /// Time at which the stopped worker is continued. `None` if it is not stopped.
    stopped: Option<Duration>,
    beats: u64,
    quiet: Duration,
}

/// All workers of a round.
pub(crate) struct Crew {
    pub(crate) groups: Vec<Group>,
    pub(crate) board: Board,
    places: Vec<Place>,
    common: FrozenTensor<u64>,
    random: Random,
    env: Option<(String, String)>,
    methods: &'static [StartMethod],
    clock: Clock,
    pub(crate) signals: Signals,
}

impl Crew {
    pub(crate) fn new(
        groups: Vec<Group>,
        common: FrozenTensor<u64>,
        random: Random,
        args: &Args,
    ) -> Result<Self, Finding> {
        let places: Vec<Place> = groups
            .iter()
            .enumerate()
            .flat_map(|(group, g)| (0..g.workers).map(move |index| (group, index)))
            .map(|(group, index)| Place {
                group,
                index,
                process: None,
                killed: false,
                stopped: None,
                beats: 0,
                quiet: Duration::ZERO,
            })
            .collect();
        let board = Board::new(places.len())?;
        let (env, methods) = (args.env.clone(), copies::methods(args.copies()));
        let (clock, signals) = (Clock::new(), Signals::default());
        Ok(Self { groups, board, places, common, random, env, methods, clock, signals })
    }

    fn start(&mut self, at: usize) -> Result<(), Finding> {
        let place = &mut self.places[at];
        let group = &mut self.groups[place.group];
        let post = Post {
            work: group.work(place.index)?,
            ledger: group.ledger.clone(),
            common: self.common.clone(),
            row: self.board.row(at),
            seed: self.random.next(),
        };
        let mut process = Process::builder().start_method(self.random.pick(self.methods));
        if let Some((name, value)) = &self.env {
            process = process.env(name, value);
        }
        process = group.prepare(place.index, process);
        place.process = Some(process.spawn(work, post)?);
        (place.killed, place.stopped, place.quiet) = (false, None, Duration::ZERO);
        self.signals.started += 1;
        Ok(())
    }

    /// Starts the missing workers.
    pub(crate) fn fill(&mut self) -> Result<(), Finding> {
        for at in 0..self.places.len() {
            let group = self.places[at].group;
            let together = |p: &Place| p.group == group && p.process.is_some();
            let free = self.groups[group].one_by_one() || self.places[at].index == 0;
            if self.places[at].process.is_some()
                || !free
                || !self.groups[group].one_by_one() && self.places.iter().any(together)
            {
                continue;
            }
            self.start(at)?;
            if !self.groups[group].one_by_one() {
                (1..self.groups[group].workers).try_for_each(|i| self.start(at + i))?;
            }
        }
        Ok(())
    }

    /// Removes workers that have ended, and continues stopped workers. Returns a finding if a worker failed
    /// without being killed, or is idle for too long.
    pub(crate) fn look(&mut self) -> Result<(), Finding> {
        let passed = self.clock.tick();
        let now = self.clock.passed();
        for at in 0..self.places.len() {
            let place = &mut self.places[at];
            let Some(process) = &place.process else { continue };
            if let Some(exit) = process.exit() {
                let kill = mp::process::Signal::KILL;
                let ours =
                    place.killed && matches!(exit, ExitStatus::Signal { signal, .. } if signal == kill);
                let pid = process.pid();
                let end = place.process.take().map_or(Ok(()), |process| process.join());
                if ours {
                    let polled = self.board.is_at(at, Op::Poll);
                    self.groups[place.group].killed(place.index, pid, polled);
                } else {
                    end.map_err(|e| Finding::of(&e))?;
                }
                continue;
            }
            if place.stopped.is_some_and(|until| until <= now) {
                place.stopped = None;
                self.signal(at, Signal::CONT);
            }
            let (place, beats) = (&mut self.places[at], self.board.beats(at));
            let quiet = beats == place.beats && place.stopped.is_none();
            place.quiet = if quiet { place.quiet + passed } else { Duration::ZERO };
            place.beats = beats;
            if place.quiet <= DEADLINE {
                continue;
            }
            let group = place.group;
            if self.a_worker_waits_for_a_disk() {
                self.places.iter_mut().for_each(|place| place.quiet = Duration::ZERO);
            } else {
                let kind = self.groups[group].kind.name();
                return Err(Finding::hang(format!("worker {at} ({kind}) does nothing for {DEADLINE:?}")));
            }
        }
        Ok(())
    }

    /// Returns `true` if a worker waits for a disk, for example while a page of the program is read. In this
    /// case, idle workers are not a finding, because they may wait for that worker.
    fn a_worker_waits_for_a_disk(&self) -> bool {
        let waits = |process: &Process<()>| {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.pid())).unwrap_or_default();
            stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('D'))
        };
        self.places.iter().filter_map(|place| place.process.as_ref()).any(waits)
    }

    fn signal(&self, at: usize, signal: Signal) -> bool {
        let process = self.places[at].process.as_ref();
        process.is_some_and(|p| pidfd_send_signal(p.sentinel(), signal).is_ok())
    }

    fn kill(&mut self, at: usize) {
        let place = &self.places[at];
        let exposure = self.groups[place.group].exposure(place.index);
        if self.random.percent(exposure.kills) && self.signal(at, Signal::KILL) {
            self.signals.kills += u64::from(!self.places[at].killed);
            self.places[at].killed = true;
        }
    }

    fn stop(&mut self, at: usize, most: u64) {
        let place = &self.places[at];
        let Exposure { stops, longest, .. } = self.groups[place.group].exposure(place.index);
        if !self.random.percent(stops) || longest.is_some() && place.stopped.is_some() {
            return;
        }
        let most = longest.unwrap_or(most);
        let until = self.clock.passed() + Duration::from_millis(1 + self.random.below(most));
        if self.signal(at, Signal::STOP) {
            self.places[at].stopped = Some(until);
            self.signals.stops += 1;
        }
    }

    /// Kills or stops one or more random workers.
    pub(crate) fn torment(&mut self) {
        let victim = self.random.below(self.places.len() as u64) as usize;
        match self.random.below(100) {
            0..45 => self.kill(victim),
            45..52 => {
                // Several kills at once also hit processes that would recover and reclaim the others.
                for _ in 0..3 {
                    let other = self.random.below(self.places.len() as u64) as usize;
                    self.kill(other);
                }
            }
            52..85 => self.stop(victim, MOST_STOPPED),
            85..93 => {
                self.stop(victim, MOST_STOPPED);
                self.kill(victim);
            }
            _ => (0..self.places.len()).for_each(|at| {
                if self.random.percent(50) {
                    self.stop(at, MOST_STOPPED / 4);
                }
            }),
        }
    }

    /// Returns the time at which the next signals are sent.
    pub(crate) fn pause(&mut self) -> Duration {
        self.clock.passed() + Duration::from_micros(500 + self.random.below(40_000))
    }

    pub(crate) fn now(&self) -> Duration {
        self.clock.passed()
    }

    /// Waits until all workers that `which` selects have ended.
    pub(crate) fn wait_for(&mut self, which: impl Fn(&Self, &Place) -> bool) -> Result<(), Finding> {
        loop {
            self.look()?;
            if !self.places.iter().any(|place| place.process.is_some() && which(self, place)) {
                return Ok(());
            }
        }
    }

    /// Returns `true` if the worker was killed.
    pub(crate) fn was_killed(&self, place: &Place) -> bool {
        place.killed
    }

    /// Returns `true` if the worker puts messages, and so ends with the round.
    pub(crate) fn produces(&self, place: &Place) -> bool {
        self.groups[place.group].produces(place.index)
    }

    /// Checks the guarantees of all groups, after all workers have ended.
    pub(crate) fn settle(&mut self) -> Result<Vec<(Kind, Account)>, Finding> {
        let settle = |(g, group): (usize, &mut Group)| {
            let beats =
                |(at, place): (usize, &Place)| if place.group == g { self.board.beats(at) } else { 0 };
            let mut account = group.settle()?;
            if group.kind.counts_operations() {
                account.done = self.places.iter().enumerate().map(beats).sum();
            }
            Ok((group.kind, account))
        };
        self.groups.iter_mut().enumerate().map(settle).collect()
    }

    /// Describes the last operations of each worker, and the state of the structures.
    pub(crate) fn describe(&self) -> String {
        let mut lines = Vec::new();
        for (g, group) in self.groups.iter().enumerate() {
            lines.push(format!("{group}"));
            for (at, place) in self.places.iter().enumerate().filter(|(_, p)| p.group == g) {
                let pid = place.process.as_ref().map_or("-".to_owned(), |p| p.pid().to_string());
                lines.push(format!("  worker {at}, pid {pid}, {}", self.board.last(at)));
            }
        }
        lines.join("\n")
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        for place in &self.places {
            if let Some(process) = &place.process {
                _ = process.kill();
                process.wait_timeout(DEADLINE);
                _ = process.status();
            }
        }
    }
}
