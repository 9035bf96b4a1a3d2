//! Exhaustive model of the barrier. Either all parties pass or none, even if a party is killed at any access.
//! A death breaks the barrier. Real processes run the same steps.

use mp_core::mem::{Mem, Steps, Word};
use mp_core::words::Member;
use mp_models::explore::{Actor, Fate, Memory, World};
use mp_models::members::is_killed;
use mp_models::random::at_random;
use mp_sync::steps::barrier::{
    Arrive, ArriveOutcome, BarrierAt, Break, BreakCause, CompletePhase, Phase, PhaseOutcome, Reset,
};
use mp_sync::steps::slot::{FindSlot, HELD, HolderSlot, Slots, set};

fn at(parties: u32) -> BarrierAt {
    BarrierAt { phase: Word::at(0), arrivals: Word::at(16), parties }
}

/// Returns the slots of enrolled processes.
fn enrolled(parties: u32, processes: u32) -> Slots {
    Slots { used: Word::at(8), first: Word::at(16).plus(parties.into()), limit: processes }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Bug {
    None,
    /// If the last party to arrive dies before it has ended the phase, no other party ends the phase.
    NoHelp,
    /// A party that finds a dead party leaves as if the barrier was broken, even if all parties had arrived.
    GoesAnyway,
    /// No party checks for dead parties.
    NoRecovery,
    /// Other parties end the phase while the last party runs its action.
    HelpsWhoActs,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Doing {
    Begin,
    Arrive(Arrive),
    Act,
    CompletePhase(CompletePhase),
    Look,
    Help(CompletePhase),
    Last,
    Arrivals(u32),
    Parties(FindSlot),
    Break(Break),
    Reset(Reset),
    /// The party arrived while the last party of a phase runs its action. Checks whether the phase has ended
    /// or the last party is dead. In the latter case, breaks the barrier.
    Full(Phase),
    FullLast(Phase),
    FullBreak(Break),
}

/// Process that waits several times at the barrier, or resets it once.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Process {
    left: u32,
    parties: u32,
    /// `true` if the last party to arrive runs an action before the phase ends.
    acts: bool,
    doing: Doing,
    phase: Phase,
    bug: Bug,
}

/// History of each phase, identified by its word: which party arrived at each index, and the outcome for the
/// waiters.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct Ghost {
    arrived: Vec<(u64, u32, usize)>,
    ended: Vec<(u64, bool)>,
    /// Phases whose action is done. `None` if phases have no action.
    acted: Option<Vec<u64>>,
    processes: u32,
    /// Number of resets so far.
    resets: u32,
}

impl Ghost {
    fn end(&mut self, phase: Phase, passed: bool, parties: u32) {
        let phase = phase.pack();
        let arrived = self.arrived.iter().filter(|a| a.0 == phase).count();
        assert!(!passed || arrived == parties as usize, "passed with {arrived} of {parties}");
        let done = self.acted.as_ref().is_none_or(|acted| acted.contains(&phase));
        assert!(!passed || done, "passed before the last one had acted");
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
            |from| Doing::Parties(FindSlot::new(enrolled(at.parties, ghost.processes), set(&[HELD]), from));
        match &mut self.doing {
            Doing::Begin => {
                let arrive = Arrive::new(at, Member::new(me as u32, 1));
                self.doing = Doing::Arrive(if self.acts { arrive.with_action() } else { arrive });
            }
            Doing::Arrive(steps) => match steps.step(m) {
                None => {}
                Some(ArriveOutcome::Broken(_)) => return true,
                Some(ArriveOutcome::Full(phase)) => self.doing = Doing::Full(phase),
                Some(ArriveOutcome::Arrived { index, phase, .. }) => {
                    let taken = ghost.arrived.iter().any(|a| (a.0, a.1) == (phase.pack(), index));
                    assert!(!taken, "number {index} was given twice");
                    ghost.arrived.push((phase.pack(), index, me));
                    self.phase = phase;
                    self.doing = match index + 1 == self.parties {
                        true if self.acts => Doing::Act,
                        true => Doing::CompletePhase(CompletePhase::new(at, phase)),
                        false => Doing::Look,
                    };
                }
            },
            Doing::Act => {
                let acted = ghost.acted.as_mut().expect("a party acts");
                assert!(!acted.contains(&self.phase.pack()), "acted twice");
                acted.push(self.phase.pack());
                self.doing = Doing::CompletePhase(CompletePhase::new(at, self.phase).after_action());
            }
            Doing::CompletePhase(steps) => {
                if steps.step(m).is_some() {
                    self.doing = Doing::Look;
                }
            }
            Doing::Look => match self.phase.outcome(Phase::unpack(m.load(at.phase))) {
                // The barrier was reset twice before the actor checked. The actor can't read the earlier
                // state, and reports a reset to be safe.
                PhaseOutcome::Broken(None) if ghost.resets == 2 => return true,
                PhaseOutcome::Passed => return self.ended(true, ghost),
                PhaseOutcome::Broken(_) => return self.ended(false, ghost),
                PhaseOutcome::Open if self.bug == Bug::NoHelp => self.doing = Doing::Arrivals(0),
                PhaseOutcome::Open if self.bug == Bug::NoRecovery => {}
                PhaseOutcome::Open => {
                    let help = CompletePhase::new(at, self.phase);
                    let bug = self.bug == Bug::HelpsWhoActs;
                    self.doing = Doing::Help(if bug { help.after_action() } else { help });
                }
            },
            Doing::Help(steps) => {
                if let Some(helped) = steps.step(m) {
                    self.doing = if helped { Doing::Look } else { Doing::Last };
                }
            }
            // If the last party acts, only the death of that party breaks the barrier.
            Doing::Last => {
                let word = m.load(at.arrival(at.parties - 1));
                self.doing = match self.phase.arrived(word).filter(|_| Phase::acts(word)) {
                    Some(who) if is_killed(fates, who) => {
                        Doing::Break(Break::new(at, self.phase, BreakCause::Died))
                    }
                    Some(_) => Doing::Look,
                    None => Doing::Arrivals(0),
                };
            }
            Doing::Full(phase) => {
                let open = m.load(at.phase) == phase.pack();
                self.doing = if open { Doing::FullLast(*phase) } else { Doing::Begin };
            }
            Doing::FullLast(phase) => {
                let who = phase.arrived(m.load(at.arrival(at.parties - 1)));
                self.doing = match who.is_some_and(|who| is_killed(fates, who)) {
                    true => Doing::FullBreak(Break::new(at, *phase, BreakCause::Died)),
                    false => Doing::Full(*phase),
                };
            }
            Doing::FullBreak(steps) => {
                steps.step(m);
                self.doing = Doing::Begin;
            }
            Doing::Arrivals(i) => {
                let dead =
                    self.phase.arrived(m.load(at.arrival(*i))).is_some_and(|who| is_killed(fates, who));
                self.doing = match *i + 1 {
                    // With `NoHelp`, the death of a party that has arrived is harmless: only the other
                    // parties are checked.
                    _ if dead && self.bug != Bug::NoHelp => {
                        Doing::Break(Break::new(at, self.phase, BreakCause::Died))
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
                    let dead = is_killed(fates, seen.slot.member);
                    self.doing = match dead {
                        true => Doing::Break(Break::new(at, self.phase, BreakCause::Died)),
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
    let waits =
        Process { left: times, parties, acts: false, doing: Doing::Begin, phase: Phase::unpack(0), bug };
    let mut actors = vec![waits.clone(); parties as usize];
    actors.extend(vec![Process { doing: Doing::Reset(Reset::new(at(parties))), ..waits }; resets]);
    let memory = Memory::new(2 + 2 * parties as usize);
    let slots = enrolled(parties, parties);
    memory.poke(slots.used, parties.into());
    for i in 0..parties {
        memory.poke(slots.at(i), HolderSlot::unpack(0).then(HELD, Member::new(i, 1), 0).pack());
    }
    let world = World::new(memory, actors, Ghost { processes: parties, ..Ghost::default() });
    check(world, parties as usize, resets, (kills, stops));
}

/// Explores a barrier at which the last party to arrive in each phase runs an action. If there are more
/// processes than parties, the processes are not enrolled.
fn act(parties: u32, processes: u32, times: u32, (kills, stops): (u32, u32), bug: Bug) {
    let waits =
        Process { left: times, parties, acts: true, doing: Doing::Begin, phase: Phase::unpack(0), bug };
    let memory = Memory::new((2 + parties + processes) as usize);
    let enroll = if processes == parties { parties } else { 0 };
    let slots = enrolled(parties, enroll);
    memory.poke(slots.used, enroll.into());
    for i in 0..enroll {
        memory.poke(slots.at(i), HolderSlot::unpack(0).then(HELD, Member::new(i, 1), 0).pack());
    }
    let ghost = Ghost { processes: enroll, acted: Some(Vec::new()), ..Ghost::default() };
    let world = World::new(memory, vec![waits; processes as usize], ghost);
    check(world, processes as usize, 0, (kills, stops));
}

fn check(world: World<Process>, waiting: usize, resets: usize, (kills, stops): (u32, u32)) {
    // A party that is stopped, or that leaves after a reset, makes the other parties wait.
    let wedged = |w: &World<Process>| {
        let running = w.count(0..waiting, Fate::Running) > 0;
        running && !w.fates.contains(&Fate::Stopped) && resets == 0
    };
    world.explore(kills, stops, |_| {}, wedged);
}

#[test]
fn all_parties_pass_each_barrier_phase() {
    explore(1, 2, 0, (0, 0), Bug::None);
    explore(2, 3, 0, (0, 0), Bug::None);
    explore(3, 2, 0, (0, 0), Bug::None);
}

#[test]
fn party_death_breaks_barrier_for_all_or_none() {
    explore(2, 2, 0, (1, 0), Bug::None);
    explore(3, 1, 0, (1, 0), Bug::None);
}

#[test]
fn barrier_survives_a_killed_breaking_party() {
    explore(3, 1, 0, (2, 0), Bug::None);
}

#[test]
fn barrier_does_not_treat_a_stopped_party_as_dead() {
    explore(2, 2, 0, (0, 1), Bug::None);
    explore(3, 1, 0, (1, 1), Bug::None);
}

#[test]
fn waiters_distinguish_barrier_reset_from_passing() {
    explore(2, 2, 1, (0, 0), Bug::None);
    explore(2, 2, 2, (0, 0), Bug::None);
    explore(2, 1, 2, (1, 0), Bug::None);
}

#[test]
fn barrier_parties_continue_only_after_its_action() {
    act(1, 1, 2, (0, 0), Bug::None);
    act(2, 2, 2, (0, 0), Bug::None);
    act(3, 3, 1, (0, 0), Bug::None);
}

#[test]
fn party_death_during_the_action_breaks_the_barrier() {
    act(2, 2, 2, (1, 0), Bug::None);
    act(2, 2, 1, (2, 0), Bug::None);
    act(3, 3, 1, (1, 1), Bug::None);
}

#[test]
fn party_arriving_during_barrier_action_waits() {
    act(1, 2, 2, (0, 0), Bug::None);
    act(1, 3, 1, (1, 0), Bug::None);
    act(1, 2, 2, (1, 1), Bug::None);
}

#[test]
fn barrier_holds_in_long_random_schedules() {
    at_random(|| {
        explore(5, 6, 0, (0, 0), Bug::None);
        explore(5, 4, 2, (2, 1), Bug::None);
        act(4, 4, 4, (2, 1), Bug::None);
        act(1, 5, 4, (2, 1), Bug::None);
    });
}

#[test]
#[should_panic(expected = "passed before the last one had acted")]
fn model_finds_phase_ended_during_an_action() {
    act(2, 2, 1, (0, 0), Bug::HelpsWhoActs);
}

#[test]
#[should_panic(expected = "wedged")]
fn model_finds_barrier_hang_without_helping_parties() {
    explore(2, 1, 0, (1, 0), Bug::NoHelp);
}

#[test]
#[should_panic(expected = "wedged")]
fn model_finds_barrier_without_death_checks() {
    explore(2, 1, 0, (1, 0), Bug::NoRecovery);
}

#[test]
#[should_panic(expected = "for some, broken for others")]
fn model_finds_party_leaving_an_unbroken_barrier() {
    explore(3, 1, 0, (1, 0), Bug::GoesAnyway);
}

#[test]
#[should_panic(expected = "wedged")]
fn random_schedules_find_barrier_without_death_checks() {
    at_random(|| explore(4, 3, 0, (1, 0), Bug::NoRecovery));
}
