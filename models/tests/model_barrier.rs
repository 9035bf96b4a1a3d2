//! The barrier, exhaustively: all pass or none does, whoever is killed at whatever access; a death breaks it. The steps are
//! the ones that run in processes.

use mp_core::mem::{Mem, Steps, Word};
use mp_core::words::Member;
use mp_models::explore::{Actor, Fate, Memory, World};
use mp_sync::steps::barrier::{Arrive, Arrived, BarrierAt, Break, Complete, How, Phase, Reset, Verdict};
use mp_sync::steps::slot::{Find, HELD, Slot, Slots, set};

fn at(parties: u32) -> BarrierAt {
    BarrierAt { phase: Word::at(0), arrivals: Word::at(16), parties }
}

/// All are enrolled.
fn enrolled(parties: u32, processes: u32) -> Slots {
    Slots { used: Word::at(8), first: Word::at(16).plus(parties.into()), limit: processes }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Bug {
    None,
    /// Only the last one to arrive says that all have.
    NoHelp,
    /// Who finds a dead party goes, whether its word was the last one or not.
    GoesAnyway,
    /// Nobody looks for the dead.
    NoSweep,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Doing {
    Begin,
    Arrive(Arrive),
    Complete(Complete),
    Look,
    Help(Complete),
    Arrivals(u32),
    Parties(Find),
    Break(Break),
    Reset(Reset),
}

/// Waits some times, or resets once.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Process {
    left: u32,
    parties: u32,
    doing: Doing,
    phase: Phase,
    bug: Bug,
}

/// For each phase, by its word: who arrived where, and how it ended for those who waited.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct Ghost {
    arrived: Vec<(u64, u32, usize)>,
    ended: Vec<(u64, bool)>,
    processes: u32,
    /// So far.
    resets: u32,
}

impl Ghost {
    fn end(&mut self, phase: Phase, passed: bool, parties: u32) {
        let phase = phase.pack();
        let arrived = self.arrived.iter().filter(|a| a.0 == phase).count();
        assert!(!passed || arrived == parties as usize, "passed with {arrived} of {parties}");
        assert!(!self.ended.contains(&(phase, !passed)), "passed for some, broken for others");
        if !self.ended.contains(&(phase, passed)) {
            self.ended.push((phase, passed));
        }
    }
}

impl Process {
    fn ended(&mut self, passed: bool, ghost: &mut Ghost) -> bool {
        ghost.end(self.phase, passed, self.parties);
        self.left -= 1;
        self.doing = Doing::Begin;
        !passed || self.left == 0
    }
}

impl Actor for Process {
    type Ghost = Ghost;

    fn step(&mut self, me: usize, m: &Memory, fates: &[Fate], ghost: &mut Ghost) -> bool {
        let at = at(self.parties);
        let party =
            |from| Doing::Parties(Find::new(enrolled(at.parties, ghost.processes), set(&[HELD]), from));
        match &mut self.doing {
            Doing::Begin => self.doing = Doing::Arrive(Arrive::new(at, Member::new(me as u32, 1))),
            Doing::Arrive(steps) => match steps.step(m) {
                None => {}
                Some(Arrived::Broken(_)) => return true,
                Some(Arrived::Here { index, phase, .. }) => {
                    let taken = ghost.arrived.iter().any(|a| (a.0, a.1) == (phase.pack(), index));
                    assert!(!taken, "number {index} was given twice");
                    ghost.arrived.push((phase.pack(), index, me));
                    self.phase = phase;
                    let last = index + 1 == self.parties;
                    self.doing = if last { Doing::Complete(Complete::new(at, phase)) } else { Doing::Look };
                }
            },
            Doing::Complete(steps) => {
                if steps.step(m).is_some() {
                    self.doing = Doing::Look;
                }
            }
            Doing::Look => match self.phase.verdict(Phase::unpack(m.load(at.phase))) {
                // Reset twice before it looked: it can't know what was before, and says so to be safe.
                Verdict::Broken(None) if ghost.resets == 2 => return true,
                Verdict::Passed => return self.ended(true, ghost),
                Verdict::Broken(_) => return self.ended(false, ghost),
                Verdict::Open if self.bug == Bug::NoHelp => self.doing = Doing::Arrivals(0),
                Verdict::Open if self.bug == Bug::NoSweep => {}
                Verdict::Open => self.doing = Doing::Help(Complete::new(at, self.phase)),
            },
            Doing::Help(steps) => {
                if let Some(helped) = steps.step(m) {
                    self.doing = if helped { Doing::Look } else { Doing::Arrivals(0) };
                }
            }
            Doing::Arrivals(i) => {
                let dead = self
                    .phase
                    .arrived(m.load(at.arrival(*i)))
                    .is_some_and(|who| fates[who.slot() as usize] == Fate::Killed);
                self.doing = match *i + 1 {
                    // With `NoHelp`, who has arrived may die without harm: only the others matter.
                    _ if dead && self.bug != Bug::NoHelp => {
                        Doing::Break(Break::new(at, self.phase, How::Died))
                    }
                    next if next < at.parties => Doing::Arrivals(next),
                    _ if self.bug == Bug::NoHelp => Doing::Look,
                    _ => party(0),
                };
            }
            Doing::Parties(steps) => match steps.step(m) {
                None => {}
                Some(None) => self.doing = Doing::Look,
                Some(Some(seen)) => {
                    let dead = fates[seen.slot.member.slot() as usize] == Fate::Killed;
                    self.doing = match dead {
                        true => Doing::Break(Break::new(at, self.phase, How::Died)),
                        false => party(seen.index + 1),
                    };
                }
            },
            Doing::Break(steps) => {
                steps.step(m);
                self.doing = Doing::Look;
                if self.bug == Bug::GoesAnyway {
                    return self.ended(false, ghost);
                }
            }
            Doing::Reset(steps) => {
                let done = steps.step(m).is_some();
                ghost.resets += u32::from(done);
                return done;
            }
        }
        false
    }
}

fn explore(parties: u32, times: u32, resets: usize, (kills, stops): (u32, u32), bug: Bug) {
    let waits = Process { left: times, parties, doing: Doing::Begin, phase: Phase::unpack(0), bug };
    let mut actors = vec![waits.clone(); parties as usize];
    actors.extend(vec![Process { doing: Doing::Reset(Reset::new(at(parties))), ..waits }; resets]);
    let memory = Memory::new(2 + 2 * parties as usize);
    let slots = enrolled(parties, parties);
    memory.poke(slots.used, parties.into());
    for i in 0..parties {
        memory.poke(slots.at(i), Slot::unpack(0).then(HELD, Member::new(i, 1), 0).pack());
    }
    let world = World::new(memory, actors, Ghost { processes: parties, ..Ghost::default() });
    // Who is stopped, or was told of a reset and goes, keeps the others waiting.
    let wedged = |w: &World<Process>| {
        let running = w.count(0..parties as usize, Fate::Running) > 0;
        running && !w.fates.contains(&Fate::Stopped) && resets == 0
    };
    let explored = world.explore(kills, stops, |_| {}, wedged);
    println!("{} states, {} ends", explored.states, explored.ends);
    assert!(explored.ends > 0);
}

#[test]
fn all_pass_again_and_again() {
    explore(1, 2, 0, (0, 0), Bug::None);
    explore(2, 3, 0, (0, 0), Bug::None);
    explore(3, 2, 0, (0, 0), Bug::None);
}

#[test]
fn a_death_breaks_it_for_all_or_for_none() {
    explore(2, 2, 0, (1, 0), Bug::None);
    explore(3, 1, 0, (1, 0), Bug::None);
}

#[test]
fn who_breaks_it_is_killed_too() {
    explore(3, 1, 0, (2, 0), Bug::None);
}

#[test]
fn a_stopped_party_is_not_dead() {
    explore(2, 2, 0, (0, 1), Bug::None);
    explore(3, 1, 0, (1, 1), Bug::None);
}

#[test]
fn resets_are_told_apart_from_passing() {
    explore(2, 2, 1, (0, 0), Bug::None);
    explore(2, 2, 2, (0, 0), Bug::None);
    explore(2, 1, 2, (1, 0), Bug::None);
}

#[test]
#[should_panic(expected = "wedged")]
fn who_leaves_the_end_to_the_last_one_waits_for_ever() {
    explore(2, 1, 0, (1, 0), Bug::NoHelp);
}

#[test]
#[should_panic(expected = "wedged")]
fn a_skipped_sweep_is_found_out() {
    explore(2, 1, 0, (1, 0), Bug::NoSweep);
}

#[test]
#[should_panic(expected = "for some, broken for others")]
fn a_decision_of_ones_own_is_found_out() {
    explore(3, 1, 0, (1, 0), Bug::GoesAnyway);
}
