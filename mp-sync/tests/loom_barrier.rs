//! The barrier under loom: what the memory model allows, for two or three threads, of which some die.
//!
//! A thread dies by making no further step; then its word [`Dead`] is written, as the kernel frees a dead process's locks. The
//! deaths are tried one after the other: at each step of what the thread does.
//!
//! `RUSTFLAGS="--cfg mp_loom" cargo test --release -p mp-sync --test loom_barrier`
#![cfg(mp_loom)]

use loom::sync::Arc;
use loom::thread;
use mp_core::mem::HeapMem;
use mp_core::mem::{Mem, Steps, Word, run};
use mp_core::words::Member;
use mp_core::{Announce, NotifyAll};
use mp_sync::steps::barrier::{Arrive, Arrived, BarrierAt, Break, Complete, How, Phase, Reset, Verdict};
use mp_sync::steps::slot::{Claim, EMPTY, Find, HELD, Slots, set};

const PHASE: Word = Word::at(0);
const PARKING: Word = Word::at(8);
/// One for each thread: what it wrote before it arrived.
const WROTE: Word = Word::at(16);
/// One for each thread: whether it is dead.
const DEAD: Word = Word::at(40);
/// What the last one has done before the others go on.
const DONE: Word = Word::at(64);
/// The enrolled members: how many, then three slots.
const ENROLLED: Slots = Slots { used: Word::at(72), first: Word::at(80), limit: 3 };
const ARRIVALS: Word = Word::at(104);
const WORDS: usize = 16;

fn at(parties: u32) -> BarrierAt {
    BarrierAt { phase: PHASE, arrivals: ARRIVALS, parties }
}

fn member(i: u32) -> Member {
    Member::new(i, 1)
}

fn look(m: &HeapMem, phase: Phase) -> Verdict {
    phase.verdict(Phase::unpack(m.load(PHASE)))
}

/// A process: which, of how many, and how many steps it makes before it is killed.
#[derive(Clone, Copy)]
struct Process {
    me: u32,
    at: BarrierAt,
    acts: bool,
    left: u32,
}

/// It was killed.
struct Killed;

impl Process {
    fn new(me: u32, parties: u32) -> Self {
        Self { me, at: at(parties), acts: false, left: u32::MAX }
    }

    fn acting(self) -> Self {
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

    /// Arrives, once it has written its word; as the last one, it ends the phase. In which phase, and whether
    /// it woke a waiter.
    fn arrive(&mut self, m: &HeapMem) -> Result<Option<(Phase, bool)>, Killed> {
        m.store_relaxed(WROTE.plus(self.me.into()), 7);
        let arrive = Arrive::new(self.at, member(self.me));
        let arrived = self.run(if self.acts { arrive.acting() } else { arrive }, m)?;
        let Arrived::Here { index, phase, helped } = arrived else { return Ok(None) };
        let mut woke = helped && self.run(NotifyAll::new(PARKING), m)?;
        if index + 1 == self.at.parties {
            let complete = Complete::new(self.at, phase);
            if self.acts {
                self.left = self.left.checked_sub(1).ok_or(Killed)?;
                m.store_relaxed(DONE, 5);
            }
            let ended = self.run(if self.acts { complete.acted() } else { complete }, m)?;
            woke |= ended && self.run(NotifyAll::new(PARKING), m)?;
        }
        Ok(Some((phase, woke)))
    }

    /// Asks whether a party is dead, as a waiter does once in a while: what the phase is then.
    fn ask(&mut self, m: &HeapMem, phase: Phase) -> Result<Verdict, Killed> {
        if self.run(Complete::new(self.at, phase), m)? {
            self.run(NotifyAll::new(PARKING), m)?;
        }
        if look(m, phase) == Verdict::Open && self.finds_a_dead_party(m, phase)? {
            self.run(Break::new(self.at, phase, How::Died), m)?;
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
        while let Some(seen) = self.run(Find::new(ENROLLED, set(&[HELD]), next), m)? {
            if dead(seen.slot.member) {
                return Ok(true);
            }
            next = seen.index + 1;
        }
        Ok(false)
    }

    /// Does what a process does until it is killed, and is dead then.
    fn dies(mut self, m: &HeapMem, doing: impl FnOnce(&mut Self) -> Result<(), Killed>) {
        _ = doing(&mut self);
        m.store(DEAD.plus(self.me.into()), 1);
    }
}

/// One that falls asleep: whether it sleeps, which is what a wake-up is for.
fn falls_asleep(m: &HeapMem, phase: Phase) -> bool {
    let announced = run(Announce::new(PARKING), m);
    look(m, phase) == Verdict::Open && m.load(PARKING) as u32 == announced as u32
}

fn memory() -> Arc<HeapMem> {
    Arc::new(HeapMem::new(WORDS))
}

/// As [`memory`], with these processes enrolled.
fn enrolled(processes: u32) -> Arc<HeapMem> {
    let m = memory();
    for me in 0..processes {
        let claim = Claim::new(ENROLLED, EMPTY, (HELD, member(me), 0), 0).or_new();
        run(claim, &*m).expect("there is room");
    }
    m
}

fn explore(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// What a process that arrives last does, and a little more: at every one of these steps it is killed.
const STEPS: std::ops::Range<u32> = 0..16;

fn ok<T>(done: Result<T, Killed>) -> T {
    done.unwrap_or_else(|Killed| panic!("nothing kills it"))
}

/// Two arrive at once: at least one of them sees that both have, and each sees what the other wrote before.
#[test]
fn loom_last_arrival_ends_the_phase() {
    loom::model(|| {
        let m = memory();
        let arrive = |m: &HeapMem, me: u32| {
            let (phase, _) = ok(Process::new(me, 2).arrive(m)).expect("no party breaks it");
            if look(m, phase) == Verdict::Passed {
                assert_eq!(m.load_relaxed(WROTE.plus((1 - me).into())), 7);
            }
        };
        let other = {
            let m = Arc::clone(&m);
            thread::spawn(move || arrive(&m, 1))
        };
        arrive(&m, 0);
        other.join().unwrap();
        assert_eq!(Phase::unpack(m.load(PHASE)).trips, 1, "both have come; the phase does not say so");
    });
}

/// A party that falls asleep at a barrier is woken by the last one to come.
#[test]
fn loom_a_sleeper_is_woken_by_the_last_party() {
    loom::model(|| {
        let m = memory();
        let waits = |m: &HeapMem, me: u32| {
            let (phase, woke) = ok(Process::new(me, 2).arrive(m)).expect("no party breaks it");
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

/// A party that comes late, and finds in its place an arrival of a phase that began meanwhile, leaves it
/// there: each of three waits at a barrier for one ends a phase of its own.
#[test]
fn loom_a_late_party_takes_no_place_of_a_later_phase() {
    loom::model(|| {
        let m = memory();
        let wait = |m: &HeapMem, me: u32| {
            let (phase, _) = ok(Process::new(me, 1).arrive(m)).expect("no party breaks it");
            assert_eq!(look(m, phase), Verdict::Passed, "its arrival was taken away");
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

/// The last one acts before the others go on, although one asks meanwhile: they see what it has done.
#[test]
fn loom_the_last_one_acts_first() {
    loom::model(|| {
        let m = memory();
        let arrive = |m: &HeapMem, me: u32| {
            let mut process = Process::new(me, 2).acting();
            let (phase, _) = ok(process.arrive(m)).expect("no party breaks it");
            if ok(process.ask(m, phase)) == Verdict::Passed {
                assert_eq!(m.load_relaxed(DONE), 5, "it has not acted yet");
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

/// A process aborts while the last one comes: it is passed for both, or broken for both, and a sleeper is
/// woken.
#[test]
fn loom_abort_or_the_last_one_decides() {
    explore(|| {
        let m = memory();
        let (phase, _) = ok(Process::new(0, 2).arrive(&m)).expect("no party breaks it");
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
                run(Break::new(at(2), phase, How::Aborted), &*m) && run(NotifyAll::new(PARKING), &*m)
            })
        };
        let sleeps = falls_asleep(&m, phase);
        let (last, aborted) = (last.join().unwrap(), aborts.join().unwrap());
        let verdict = look(&m, phase);
        assert_ne!(verdict, Verdict::Open);
        match last {
            Some((theirs, woke)) => {
                assert_eq!(theirs, verdict, "passed for one, broken for the other");
                assert!(!sleeps || woke || aborted, "a lost wake-up");
            }
            None => {
                assert_eq!(verdict, Verdict::Broken(Some(How::Aborted)));
                assert!(!sleeps || aborted, "a lost wake-up");
            }
        }
    });
}

/// It is reset while two come: both pass, or the first to come gets the reset, and the other waits anew.
#[test]
fn loom_reset_beside_arrivals() {
    explore(|| {
        let m = memory();
        let waits = |m: &HeapMem, me: u32| ok(Process::new(me, 2).arrive(m)).expect("no party breaks it").0;
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
        let (mine, theirs) = (look(&m, mine), look(&m, theirs.expect("it came")));
        match (mine, theirs) {
            (Verdict::Passed, Verdict::Passed) => {
                assert_eq!([0, 1].map(|i| m.load_relaxed(WROTE.plus(i))), [7, 7]);
            }
            (Verdict::Broken(None), Verdict::Broken(None))
            | (Verdict::Broken(None), Verdict::Open)
            | (Verdict::Open, Verdict::Broken(None)) => {}
            other => panic!("{other:?}"),
        }
    });
}

/// A party is killed at any of its steps while another one waits: that one passes if both have come, and else
/// learns of it, by what it finds when it looks once more.
#[test]
fn loom_a_party_dies() {
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
            // No other party has broken the barrier: so it is the only one to say so.
            let (phase, _) = ok(mine.arrive(&m)).expect("no other party breaks it");
            let before = ok(mine.ask(&m, phase));
            victim.join().unwrap();
            let verdict = ok(mine.ask(&m, phase));
            assert!(before == Verdict::Open || before == verdict, "{before:?}, then {verdict:?}");
            match verdict {
                Verdict::Passed => {
                    assert_eq!(m.load_relaxed(WROTE.plus(1)), 7);
                    assert!(!acts || m.load_relaxed(DONE) == 5, "it has not acted");
                }
                verdict => assert_eq!(verdict, Verdict::Broken(Some(How::Died))),
            }
        });
    }
}

/// The last of three is killed in the middle of letting the others go, while these look: both go on, or both
/// get the death.
#[test]
fn loom_the_last_one_dies_while_it_ends_the_phase() {
    for (steps, acts) in STEPS.flat_map(|steps| [(steps, false), (steps, true)]) {
        explore(move || {
            let m = enrolled(3);
            let process = move |me| Process { acts, ..Process::new(me, 3) };
            let (phase, _) = ok(process(0).arrive(&m)).expect("whole");
            assert_eq!(ok(process(1).arrive(&m)).expect("whole").0, phase);
            let others = [1, 2].map(|me| {
                let m = Arc::clone(&m);
                thread::spawn(move || match me {
                    1 => ok(process(1).ask(&m, phase)),
                    _ => {
                        process(2).killed_after(steps).dies(&m, |p| p.arrive(&m).map(drop));
                        Verdict::Open
                    }
                })
            });
            let mine = ok(process(0).ask(&m, phase));
            let [theirs, _] = others.map(|t| t.join().unwrap());
            let end = ok(process(0).ask(&m, phase));
            assert_ne!(end, Verdict::Open, "all wait for a dead party");
            for seen in [mine, theirs] {
                assert!(seen == Verdict::Open || seen == end, "{seen:?} for one, {end:?} for another");
            }
            assert!(!acts || end != Verdict::Passed || m.load_relaxed(DONE) == 5, "it has not acted");
        });
    }
}

/// The last of three is dead, and the party that does what it left is killed as well, at any step: the third
/// one does the rest.
#[test]
fn loom_a_process_that_recovers_dies_too() {
    // In the middle of arriving; arrived; arrived, and everything else is to be done.
    for (left_at, steps, acts) in
        [3, 6, 8].into_iter().flat_map(|at| STEPS.flat_map(move |s| [(at, s, false), (at, s, true)]))
    {
        loom::model(move || {
            let m = enrolled(3);
            let process = move |me| Process { acts, ..Process::new(me, 3) };
            let (phase, _) = ok(process(0).arrive(&m)).expect("whole");
            ok(process(1).arrive(&m)).expect("whole");
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
            assert_ne!(mine, Verdict::Open, "it waits for a dead party");
            assert!(theirs.is_none_or(|v| v == mine), "{theirs:?} for one, {mine:?} for another");
        });
    }
}
