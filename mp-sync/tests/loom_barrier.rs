//! Loom models of the barrier with two or three threads, some of which die.
//!
//! A thread dies by making no further step. Then its word in [`DEAD`] is written, just as the kernel frees a
//! dead process's locks. A death is tried at each step of the thread.
//!
//! `RUSTFLAGS="--cfg mp_loom" cargo test --release -p mp-sync --test loom_barrier`
#![cfg(mp_loom)]

use loom::sync::Arc;
use loom::thread;
use mp_core::mem::HeapMem;
use mp_core::mem::{Mem, Steps, Word, run};
use mp_core::words::Member;
use mp_core::{Announce, NotifyAll};
use mp_sync::steps::barrier::{
    Arrive, ArriveOutcome, BarrierAt, Break, BreakCause, CompletePhase, Phase, PhaseOutcome, Reset,
};
use mp_sync::steps::slot::{ClaimSlot, EMPTY, FindSlot, HELD, Slots, set};

const PHASE: Word = Word::at(0);
const PARKING: Word = Word::at(8);
/// First of the words that threads write before they arrive, one word for each thread.
const WROTE: Word = Word::at(16);
/// First of the death flags, one for each thread.
const DEAD: Word = Word::at(40);
/// Result of the action of the last party.
const DONE: Word = Word::at(64);
/// Enrolled members: their number, then three slots.
const ENROLLED: Slots = Slots { used: Word::at(72), first: Word::at(80), limit: 3 };
const ARRIVALS: Word = Word::at(104);
const WORDS: usize = 16;

fn at(parties: u32) -> BarrierAt {
    BarrierAt { phase: PHASE, arrivals: ARRIVALS, parties }
}

fn member(i: u32) -> Member {
    Member::new(i, 1)
}

fn look(m: &HeapMem, phase: Phase) -> PhaseOutcome {
    phase.outcome(Phase::unpack(m.load(PHASE)))
}

/// A process: its index, its barrier, and the number of steps before it is killed.
#[derive(Clone, Copy)]
struct Process {
    me: u32,
    at: BarrierAt,
    acts: bool,
    left: u32,
}

/// The process was killed.
struct Killed;

impl Process {
    fn new(me: u32, parties: u32) -> Self {
        Self { me, at: at(parties), acts: false, left: u32::MAX }
    }

    fn with_action(self) -> Self {
        Self { acts: true, ..self }
    }

    fn killed_after(self, steps: u32) -> Self {
        Self { left: steps, ..self }
    }

    fn run<S: Steps>(&mut self, mut steps: S, m: &HeapMem) -> Result<S::Out, Killed> {
        loop {
            self.left = self.left.checked_sub(1).ok_or(Killed)?;
            if let Some(out) = steps.step(m) {
                return Ok(out);
            }
        }
    }

    /// Writes the process's word and arrives. The last party ends the phase. Returns the phase, and `true` if
    /// the process woke a waiter.
    fn arrive(&mut self, m: &HeapMem) -> Result<Option<(Phase, bool)>, Killed> {
        m.store_relaxed(WROTE.plus(self.me.into()), 7);
        let arrive = Arrive::new(self.at, member(self.me));
        let arrived = self.run(if self.acts { arrive.with_action() } else { arrive }, m)?;
        let ArriveOutcome::Arrived { index, phase, helped } = arrived else { return Ok(None) };
        let mut woke = helped && self.run(NotifyAll::new(PARKING), m)?;
        if index + 1 == self.at.parties {
            let complete = CompletePhase::new(self.at, phase);
            if self.acts {
                self.left = self.left.checked_sub(1).ok_or(Killed)?;
                m.store_relaxed(DONE, 5);
            }
            let ended = self.run(if self.acts { complete.after_action() } else { complete }, m)?;
            woke |= ended && self.run(NotifyAll::new(PARKING), m)?;
        }
        Ok(Some((phase, woke)))
    }

    /// Checks for dead parties, as a waiter does periodically. Returns the outcome of the phase.
    fn ask(&mut self, m: &HeapMem, phase: Phase) -> Result<PhaseOutcome, Killed> {
        if self.run(CompletePhase::new(self.at, phase), m)? {
            self.run(NotifyAll::new(PARKING), m)?;
        }
        if look(m, phase) == PhaseOutcome::Open && self.finds_a_dead_party(m, phase)? {
            self.run(Break::new(self.at, phase, BreakCause::Died), m)?;
            self.run(NotifyAll::new(PARKING), m)?;
        }
        Ok(look(m, phase))
    }

    fn finds_a_dead_party(&mut self, m: &HeapMem, phase: Phase) -> Result<bool, Killed> {
        let dead = |who: Member| m.load(DEAD.plus(who.slot().into())) == 1;
        let arrival = |i: u32| m.load(self.at.arrival(i));
        let last = arrival(self.at.parties - 1);
        if let Some(who) = phase.arrived(last).filter(|_| Phase::acts(last)) {
            return Ok(dead(who));
        }
        if (0..self.at.parties).any(|i| phase.arrived(arrival(i)).is_some_and(dead)) {
            return Ok(true);
        }
        let mut next = 0;
        while let Some(seen) = self.run(FindSlot::new(ENROLLED, set(&[HELD]), next), m)? {
            if dead(seen.slot.member) {
                return Ok(true);
            }
            next = seen.index + 1;
        }
        Ok(false)
    }

    /// Runs `doing` until `doing` ends or the process is killed, and marks the process as dead.
    fn dies(mut self, m: &HeapMem, doing: impl FnOnce(&mut Self) -> Result<(), Killed>) {
        _ = doing(&mut self);
        m.store(DEAD.plus(self.me.into()), 1);
    }
}

/// Announces a sleeper, and checks the phase again. Returns `true` if the thread then sleeps until it is
/// woken.
fn falls_asleep(m: &HeapMem, phase: Phase) -> bool {
    let announced = run(Announce::new(PARKING), m);
    look(m, phase) == PhaseOutcome::Open && m.load(PARKING) as u32 == announced as u32
}

fn memory() -> Arc<HeapMem> {
    Arc::new(HeapMem::new(WORDS))
}

/// Creates [`memory`] with these processes enrolled.
fn enrolled(processes: u32) -> Arc<HeapMem> {
    let m = memory();
    for me in 0..processes {
        let claim = ClaimSlot::new(ENROLLED, EMPTY, (HELD, member(me), 0), 0).or_grow();
        run(claim, &*m).expect("there is room");
    }
    m
}

fn explore(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// Number of steps of the last party, and a few more: the process is killed at each of them.
const STEPS: std::ops::Range<u32> = 0..16;

fn ok<T>(done: Result<T, Killed>) -> T {
    done.unwrap_or_else(|Killed| panic!("this process is not killed"))
}

/// After two concurrent arrivals, the phase has ended. A party that passes reads what the other party wrote
/// before its arrival.
#[test]
fn loom_last_arrival_ends_the_barrier_phase() {
    loom::model(|| {
        let m = memory();
        let arrive = |m: &HeapMem, me: u32| {
            let (phase, _) = ok(Process::new(me, 2).arrive(m)).expect("no party breaks the barrier");
            if look(m, phase) == PhaseOutcome::Passed {
                assert_eq!(m.load_relaxed(WROTE.plus((1 - me).into())), 7);
            }
        };
        let other = {
            let m = Arc::clone(&m);
            thread::spawn(move || arrive(&m, 1))
        };
        arrive(&m, 0);
        other.join().unwrap();
        assert_eq!(Phase::unpack(m.load(PHASE)).trips, 1, "both have arrived, but the phase has not ended");
    });
}

/// The last party wakes a party that sleeps at the barrier.
#[test]
fn loom_last_barrier_party_wakes_sleeper() {
    loom::model(|| {
        let m = memory();
        let waits = |m: &HeapMem, me: u32| {
            let (phase, woke) = ok(Process::new(me, 2).arrive(m)).expect("no party breaks the barrier");
            (falls_asleep(m, phase), woke)
        };
        let other = {
            let m = Arc::clone(&m);
            thread::spawn(move || waits(&m, 1))
        };
        let mine = waits(&m, 0);
        let theirs = other.join().unwrap();
        assert!(!(mine.0 && theirs.0), "both sleep");
        assert!(!mine.0 || theirs.1, "a lost wake-up");
        assert!(!theirs.0 || mine.1, "a lost wake-up");
    });
}

/// A late party does not replace an arrival of a later phase in the word that it loads. Three waits at a
/// barrier for one party each end their own phase.
#[test]
fn loom_late_barrier_party_keeps_later_arrivals() {
    loom::model(|| {
        let m = memory();
        let wait = |m: &HeapMem, me: u32| {
            let (phase, _) = ok(Process::new(me, 1).arrive(m)).expect("no party breaks the barrier");
            assert_eq!(look(m, phase), PhaseOutcome::Passed, "the arrival was replaced");
        };
        let other = {
            let m = Arc::clone(&m);
            thread::spawn(move || (0..2).for_each(|_| wait(&m, 1)))
        };
        wait(&m, 0);
        other.join().unwrap();
        assert_eq!(Phase::unpack(m.load(PHASE)).trips, 3);
    });
}

/// The last party runs its action before the other parties continue, even if another party checks meanwhile.
/// The other parties read the effects of the action.
#[test]
fn loom_barrier_action_runs_before_others_continue() {
    loom::model(|| {
        let m = memory();
        let arrive = |m: &HeapMem, me: u32| {
            let mut process = Process::new(me, 2).with_action();
            let (phase, _) = ok(process.arrive(m)).expect("no party breaks the barrier");
            if ok(process.ask(m, phase)) == PhaseOutcome::Passed {
                assert_eq!(m.load_relaxed(DONE), 5, "the action has not run");
            }
        };
        let other = {
            let m = Arc::clone(&m);
            thread::spawn(move || arrive(&m, 1))
        };
        arrive(&m, 0);
        other.join().unwrap();
        assert_eq!(Phase::unpack(m.load(PHASE)).trips, 1);
    });
}

/// A process aborts while the last party arrives: the outcome is the same for both, and a sleeper is woken.
#[test]
fn loom_abort_during_last_arrival_has_one_outcome() {
    explore(|| {
        let m = memory();
        let (phase, _) = ok(Process::new(0, 2).arrive(&m)).expect("no party breaks the barrier");
        let last = {
            let m = Arc::clone(&m);
            thread::spawn(move || {
                let arrived = ok(Process::new(1, 2).arrive(&m));
                arrived.map(|(phase, woke)| (look(&m, phase), woke))
            })
        };
        let aborts = {
            let m = Arc::clone(&m);
            thread::spawn(move || {
                let phase = Phase::unpack(m.load(PHASE));
                run(Break::new(at(2), phase, BreakCause::Aborted), &*m) && run(NotifyAll::new(PARKING), &*m)
            })
        };
        let sleeps = falls_asleep(&m, phase);
        let (last, aborted) = (last.join().unwrap(), aborts.join().unwrap());
        let verdict = look(&m, phase);
        assert_ne!(verdict, PhaseOutcome::Open);
        match last {
            Some((theirs, woke)) => {
                assert_eq!(theirs, verdict, "passed for one, broken for the other");
                assert!(!sleeps || woke || aborted, "a lost wake-up");
            }
            None => {
                assert_eq!(verdict, PhaseOutcome::Broken(Some(BreakCause::Aborted)));
                assert!(!sleeps || aborted, "a lost wake-up");
            }
        }
    });
}

/// A reset during two arrivals: both parties pass, or none. A party that arrives after the reset waits in a
/// new phase.
#[test]
fn loom_reset_during_arrivals_lets_both_or_none_pass() {
    explore(|| {
        let m = memory();
        let waits = |m: &HeapMem, me: u32| ok(Process::new(me, 2).arrive(m)).expect("not broken").0;
        let others = [1, 2].map(|me| {
            let m = Arc::clone(&m);
            thread::spawn(move || match me {
                1 => Some(waits(&m, 1)),
                _ => {
                    run(Reset::new(at(2)), &*m);
                    None
                }
            })
        });
        let mine = waits(&m, 0);
        let [theirs, _] = others.map(|t| t.join().unwrap());
        let (mine, theirs) = (look(&m, mine), look(&m, theirs.expect("an arrival")));
        match (mine, theirs) {
            (PhaseOutcome::Passed, PhaseOutcome::Passed) => {
                assert_eq!([0, 1].map(|i| m.load_relaxed(WROTE.plus(i))), [7, 7]);
            }
            (PhaseOutcome::Broken(None), PhaseOutcome::Broken(None))
            | (PhaseOutcome::Broken(None), PhaseOutcome::Open)
            | (PhaseOutcome::Open, PhaseOutcome::Broken(None)) => {}
            other => panic!("{other:?}"),
        }
    });
}

/// A party is killed at each step while another party waits. The waiting party passes if both have arrived.
/// Otherwise its next check finds the death.
#[test]
fn loom_death_of_a_party_at_each_step_is_detected() {
    for (steps, acts) in STEPS.flat_map(|steps| [(steps, false), (steps, true)]) {
        loom::model(move || {
            let m = enrolled(2);
            let process = move |me| Process { acts, ..Process::new(me, 2) };
            let victim = {
                let m = Arc::clone(&m);
                thread::spawn(move || {
                    process(1).killed_after(steps).dies(&m, |p| p.arrive(&m).map(drop));
                })
            };
            let mut mine = process(0);
            // No other live party can break the barrier because of the death.
            let (phase, _) = ok(mine.arrive(&m)).expect("no other party breaks the barrier");
            let before = ok(mine.ask(&m, phase));
            victim.join().unwrap();
            let verdict = ok(mine.ask(&m, phase));
            assert!(before == PhaseOutcome::Open || before == verdict, "{before:?}, then {verdict:?}");
            match verdict {
                PhaseOutcome::Passed => {
                    assert_eq!(m.load_relaxed(WROTE.plus(1)), 7);
                    assert!(!acts || m.load_relaxed(DONE) == 5, "the action has not run");
                }
                verdict => assert_eq!(verdict, PhaseOutcome::Broken(Some(BreakCause::Died))),
            }
        });
    }
}

/// The last of three parties is killed while it ends the phase, and the others check: both pass, or for both
/// the phase is broken by the death.
#[test]
fn loom_death_while_ending_a_phase_has_one_outcome() {
    for (steps, acts) in STEPS.flat_map(|steps| [(steps, false), (steps, true)]) {
        explore(move || {
            let m = enrolled(3);
            let process = move |me| Process { acts, ..Process::new(me, 3) };
            let (phase, _) = ok(process(0).arrive(&m)).expect("not broken");
            assert_eq!(ok(process(1).arrive(&m)).expect("not broken").0, phase);
            let others = [1, 2].map(|me| {
                let m = Arc::clone(&m);
                thread::spawn(move || match me {
                    1 => ok(process(1).ask(&m, phase)),
                    _ => {
                        process(2).killed_after(steps).dies(&m, |p| p.arrive(&m).map(drop));
                        PhaseOutcome::Open
                    }
                })
            });
            let mine = ok(process(0).ask(&m, phase));
            let [theirs, _] = others.map(|t| t.join().unwrap());
            let end = ok(process(0).ask(&m, phase));
            assert_ne!(end, PhaseOutcome::Open, "all wait for a dead party");
            for seen in [mine, theirs] {
                assert!(seen == PhaseOutcome::Open || seen == end, "{seen:?} for one, {end:?} for another");
            }
            assert!(!acts || end != PhaseOutcome::Passed || m.load_relaxed(DONE) == 5, "no action has run");
        });
    }
}

/// The last of three parties is dead. Another party detects that, and is killed at each step while it ends or
/// breaks the phase. The remaining party completes the repair.
#[test]
fn loom_barrier_repair_of_a_killed_repairer_completes() {
    // The last party is killed during its arrival, or at one of two points after it.
    for (left_at, steps, acts) in
        [3, 6, 8].into_iter().flat_map(|at| STEPS.flat_map(move |s| [(at, s, false), (at, s, true)]))
    {
        loom::model(move || {
            let m = enrolled(3);
            let process = move |me| Process { acts, ..Process::new(me, 3) };
            let (phase, _) = ok(process(0).arrive(&m)).expect("not broken");
            ok(process(1).arrive(&m)).expect("not broken");
            process(2).killed_after(left_at).dies(&m, |p| p.arrive(&m).map(drop));
            let repairs = {
                let m = Arc::clone(&m);
                thread::spawn(move || {
                    let mut seen = None;
                    process(1).killed_after(steps).dies(&m, |p| {
                        seen = Some(p.ask(&m, phase)?);
                        Ok(())
                    });
                    seen
                })
            };
            let mine = ok(process(0).ask(&m, phase));
            let theirs = repairs.join().unwrap();
            assert_ne!(mine, PhaseOutcome::Open, "the party waits for a dead one");
            assert!(theirs.is_none_or(|v| v == mine), "{theirs:?} for one, {mine:?} for another");
        });
    }
}
