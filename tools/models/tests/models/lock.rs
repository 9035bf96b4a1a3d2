//! Exhaustive model of the lock, with kills and stops at any access. Threads that take over the lock of a
//! dead holder are killed, too. Sleepers have no poll interval. Real processes run the same steps.

use mp_core::mem::{Mem, Steps, Word};
use mp_core::steps::lock::{
    AcquireLock, DeadHolder, LockAt, LockAttempt, LockWord, OsThread, ReleaseLock, SetParked,
};
use mp_core::words::Member;
use mp_models::explore::{Actor, Fate, Memory, World};
use mp_models::members::member;
use mp_models::random::at_random;
use mp_models::sleepers::Sleepers;

const LOCK: LockAt = LockAt(Word::at(0));
const A: Word = Word::at(24);
const B: Word = Word::at(32);

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Doing {
    Acquire(AcquireLock),
    /// The lock was held. The next action depends on whether the holder is dead.
    Refused(LockWord),
    SetParked(SetParked),
    Asleep(LockWord),
    ReadA,
    ReadB,
    WriteA,
    WriteB,
    Unlock(ReleaseLock),
}

/// Process that increments two words under the lock, several times.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Process {
    left: u32,
    doing: Doing,
    slept: bool,
    marked: bool,
    a: u64,
    b: u64,
    bug: Bug,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Bug {
    None,
    /// A thread that has slept takes the lock without recording that other threads may sleep.
    ForgetsSleepers,
    /// A stopped holder is treated as dead.
    TimeIsDeath,
    /// The mark that the data may be inconsistent is ignored.
    IgnoresMark,
}

/// Thread that has the lock, and threads that sleep.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct Ghost {
    inside: Option<usize>,
    sleepers: Sleepers,
    done: u64,
}

impl Process {
    fn new(left: u32, bug: Bug) -> Self {
        // The first step, which has the number of its actor, replaces this state by the real beginning.
        Self { left, doing: Doing::Asleep(LockWord(u64::MAX)), slept: false, marked: false, a: 0, b: 0, bug }
    }

    fn acquire(&self, me: usize, dead: Option<DeadHolder>) -> Doing {
        let who = OsThread { pid: me as u32 + 1, tid: me as u32 + 1 };
        let parked = self.slept && self.bug != Bug::ForgetsSleepers;
        Doing::Acquire(AcquireLock::new(LOCK, member(me), who, parked, dead))
    }
}

impl Actor for Process {
    type Ghost = Ghost;

    fn step(&mut self, me: usize, m: &Memory, fates: &[Fate], ghost: &mut Ghost) -> bool {
        match &mut self.doing {
            Doing::Asleep(LockWord(u64::MAX)) => self.doing = self.acquire(me, None),
            Doing::Acquire(steps) => match steps.step(m) {
                None => {}
                Some(LockAttempt::Held(word)) => self.doing = Doing::Refused(word),
                Some(LockAttempt::Acquired(word)) => {
                    if let Some(other) = ghost.inside {
                        assert!(fates[other] == Fate::Killed, "two inside");
                    }
                    ghost.inside = Some(me);
                    self.marked = word.is_poisoned();
                    self.doing = Doing::ReadA;
                }
            },
            Doing::Refused(word) => {
                let word = *word;
                let holder = word.holder().expect("it was held").slot() as usize;
                let dead = match self.bug {
                    Bug::TimeIsDeath => fates[holder] != Fate::Running,
                    _ => fates[holder] == Fate::Killed,
                };
                self.doing = match dead {
                    true => self.acquire(me, Some(DeadHolder { word, pid: 0 })),
                    false => Doing::SetParked(SetParked::new(LOCK, word)),
                };
            }
            Doing::SetParked(steps) => match steps.step(m) {
                None => {}
                Some(None) => self.doing = self.acquire(me, None),
                Some(Some(word)) => {
                    self.slept = true;
                    self.doing = Doing::Asleep(word);
                }
            },
            Doing::Asleep(word) => {
                let word = *word;
                if ghost.sleepers.sleep(me, || m.load(LOCK.word()) as u32 == word.0 as u32) {
                    return false;
                }
                self.doing = self.acquire(me, None);
            }
            Doing::ReadA => {
                self.a = m.load(A);
                self.doing = Doing::ReadB;
            }
            Doing::ReadB => {
                self.b = m.load(B);
                if self.marked && self.bug != Bug::IgnoresMark {
                    self.b = self.a;
                }
                assert_eq!(self.a, self.b, "torn, and not marked");
                self.doing = Doing::WriteA;
            }
            Doing::WriteA => {
                m.store(A, self.a + 1);
                self.doing = Doing::WriteB;
            }
            Doing::WriteB => {
                m.store(B, self.b + 1);
                ghost.inside = None;
                ghost.done += 1;
                self.doing = Doing::Unlock(ReleaseLock::new(LOCK, true));
            }
            Doing::Unlock(steps) => {
                if steps.step(m).expect("one step") {
                    // FUTEX_WAKE of one sleeper, in the same step. A waker that dies between the two leaves
                    // the sleeper to its poll interval, which all worlds with kills have.
                    ghost.sleepers.wake_one();
                }
                self.left -= 1;
                self.slept = false;
                if self.left == 0 {
                    return true;
                }
                self.doing = self.acquire(me, None);
            }
        }
        false
    }
}

fn explore(processes: usize, times: u32, kills: u32, stops: u32, poll_interval: bool, bug: Bug) {
    let ghost = Ghost { sleepers: Sleepers::new(poll_interval), ..Ghost::default() };
    let world = World::new(Memory::new(5), vec![Process::new(times, bug); processes], ghost);
    let end = |w: &World<Process>| {
        let word = LockWord(w.memory.peek(LOCK.word()));
        if word.holder().is_none() && !word.is_poisoned() {
            let (a, b) = (w.memory.peek(A), w.memory.peek(B));
            assert_eq!(a, b, "torn");
            assert!(a >= w.ghost.done, "{} done, {a} seen", w.ghost.done);
        }
    };
    // Threads may wait forever only for a stopped holder.
    let wedged = |w: &World<Process>| {
        let holder = LockWord(w.memory.peek(LOCK.word())).holder();
        let stopped = |h: Member| w.fates[h.slot() as usize] == Fate::Stopped;
        w.fates.contains(&Fate::Running) && !holder.is_some_and(stopped)
    };
    world.explore(kills, stops, end, wedged);
}

#[test]
fn lock_waiters_wake_without_poll_intervals() {
    explore(3, 1, 0, 0, false, Bug::None);
    explore(2, 2, 0, 0, false, Bug::None);
}

#[test]
fn lock_of_two_processes_survives_one_kill() {
    explore(2, 2, 1, 0, true, Bug::None);
}

#[test]
fn lock_survives_kills_during_its_takeover() {
    explore(3, 1, 2, 0, true, Bug::None);
}

#[test]
fn stopped_process_keeps_only_its_own_lock() {
    explore(3, 1, 0, 1, true, Bug::None);
    explore(2, 1, 1, 1, true, Bug::None);
}

#[test]
fn lock_holds_in_long_random_schedules() {
    at_random(|| {
        explore(6, 4, 0, 0, false, Bug::None);
        explore(6, 4, 3, 0, true, Bug::None);
        explore(5, 4, 2, 1, true, Bug::None);
    });
}

#[test]
#[should_panic(expected = "wedged")]
fn model_finds_lock_holder_that_forgets_sleepers() {
    explore(3, 1, 0, 0, false, Bug::ForgetsSleepers);
}

#[test]
#[should_panic(expected = "two inside")]
fn model_finds_stopped_lock_holder_treated_as_dead() {
    explore(2, 1, 0, 1, true, Bug::TimeIsDeath);
}

#[test]
#[should_panic(expected = "torn, and not marked")]
fn model_finds_ignored_poison_mark_of_a_lock() {
    explore(2, 1, 1, 0, true, Bug::IgnoresMark);
}

#[test]
#[should_panic(expected = "two inside")]
fn random_schedules_find_stopped_holder_taken_as_dead() {
    at_random(|| explore(6, 2, 0, 2, true, Bug::TimeIsDeath));
}
