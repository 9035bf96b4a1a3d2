//! Exhaustive model of the once cell, with kills and stops at any access of the initializing process, of
//! waiters, and of a process that takes over the lock of a dead process. A process that finds the cell
//! initialized reads the complete value, and no two processes initialize it at the same time. Real processes
//! run the same steps.

use mp_core::mem::{Mem, Steps, Word};
use mp_core::steps::lock::{
    AcquireLock, DeadHolder, LockAt, LockAttempt, LockWord, OsThread, ReleaseLock, SetParked,
};
use mp_models::explore::{Actor, Fate, Memory, World};
use mp_models::members::member;
use mp_models::random::at_random;
use mp_models::sleepers::Sleepers;
use mp_sync::steps::once::{IsDone, SetDone};

const LOCK: LockAt = LockAt(Word::at(0));
const DONE: Word = Word::at(24);
/// Two words of the value, written one after the other.
const A: Word = Word::at(32);
const B: Word = Word::at(40);

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Bug {
    None,
    /// A process that gets the lock does not check again whether the cell is initialized.
    NoSecondLook,
    /// The cell is marked as initialized before its value is complete.
    SaidTooEarly,
    /// A stopped holder is treated as dead.
    TimeIsDeath,
    /// The cell is never marked as initialized.
    NotSaid,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Doing {
    Look(IsDone),
    Acquire(AcquireLock),
    /// The lock was held. The next action depends on whether the holder is dead.
    Refused(LockWord),
    SetParked(SetParked),
    Asleep(LockWord),
    LookAgain(IsDone),
    WriteA,
    WriteB,
    Say(SetDone),
    Unlock(ReleaseLock),
    ReadA,
    ReadB(u64),
}

/// Process that initializes the cell once, or waits for the initialization.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Process {
    doing: Doing,
    slept: bool,
    bug: Bug,
}

/// State for checks: the initializing process, a flag that is set when the cell is marked as initialized, and
/// the sleeping processes.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct Ghost {
    doing: Option<usize>,
    said: bool,
    sleepers: Sleepers,
}

impl Process {
    fn new(bug: Bug) -> Self {
        Self { doing: Doing::Look(IsDone(DONE)), slept: false, bug }
    }

    fn acquire(&self, me: usize, dead: Option<DeadHolder>) -> Doing {
        let who = OsThread { pid: me as u32 + 1, tid: me as u32 + 1 };
        Doing::Acquire(AcquireLock::new(LOCK, member(me), who, self.slept, dead))
    }

    /// Returns `true` if the process waits for the lock.
    fn is_in_line(&self) -> bool {
        matches!(self.doing, Doing::Acquire(_) | Doing::Refused(_) | Doing::SetParked(_) | Doing::Asleep(_))
    }

    /// Returns the next step of a process that has the lock.
    fn begin(&self, me: usize, fates: &[Fate], ghost: &mut Ghost) -> Doing {
        assert!(!ghost.said, "initialized again");
        if let Some(other) = ghost.doing.replace(me) {
            assert_eq!(fates[other], Fate::Killed, "two initialize");
        }
        if self.bug == Bug::SaidTooEarly { Doing::Say(SetDone(DONE)) } else { Doing::WriteA }
    }
}

impl Actor for Process {
    type Ghost = Ghost;

    fn step(&mut self, me: usize, m: &Memory, fates: &[Fate], ghost: &mut Ghost) -> bool {
        self.doing = match &mut self.doing {
            Doing::Look(look) => match look.step(m).expect("one step") {
                true => Doing::ReadA,
                false => self.acquire(me, None),
            },
            Doing::Acquire(steps) => match steps.step(m) {
                None => return false,
                Some(LockAttempt::Held(word)) => Doing::Refused(word),
                Some(LockAttempt::Acquired(word)) => {
                    // Only a process that is informed of a death may find a partial value.
                    let half = ghost.doing.is_some() && !ghost.said;
                    assert!(word.is_poisoned() || !half, "a partial value, and no poison mark");
                    match self.bug {
                        Bug::NoSecondLook => self.begin(me, fates, ghost),
                        _ => Doing::LookAgain(IsDone(DONE)),
                    }
                }
            },
            Doing::LookAgain(look) => match look.step(m).expect("one step") {
                true => Doing::Unlock(ReleaseLock::new(LOCK, true)),
                false => self.begin(me, fates, ghost),
            },
            Doing::WriteA => {
                m.store(A, me as u64 + 1);
                Doing::WriteB
            }
            Doing::WriteB => {
                m.store(B, me as u64 + 1);
                match self.bug {
                    Bug::SaidTooEarly | Bug::NotSaid => Doing::Unlock(ReleaseLock::new(LOCK, true)),
                    _ => Doing::Say(SetDone(DONE)),
                }
            }
            Doing::Say(say) => {
                say.step(m);
                ghost.said = true;
                match self.bug {
                    Bug::SaidTooEarly => Doing::WriteA,
                    _ => Doing::Unlock(ReleaseLock::new(LOCK, true)),
                }
            }
            Doing::Unlock(steps) => {
                if ghost.doing == Some(me) {
                    ghost.doing = None;
                }
                if steps.step(m).expect("one step") {
                    ghost.sleepers.wake_one();
                }
                Doing::ReadA
            }
            Doing::Refused(word) => {
                let word = *word;
                let holder = word.holder().expect("it was held").slot() as usize;
                let dead = match self.bug {
                    Bug::TimeIsDeath => fates[holder].gone(),
                    _ => fates[holder] == Fate::Killed,
                };
                match dead {
                    true => self.acquire(me, Some(DeadHolder { word, pid: 0 })),
                    false => Doing::SetParked(SetParked::new(LOCK, word)),
                }
            }
            Doing::SetParked(steps) => match steps.step(m) {
                None => return false,
                Some(None) => self.acquire(me, None),
                Some(Some(word)) => {
                    self.slept = true;
                    Doing::Asleep(word)
                }
            },
            Doing::Asleep(word) => {
                let word = *word;
                if ghost.sleepers.sleep(me, || m.load(LOCK.word()) as u32 == word.0 as u32) {
                    return false;
                }
                self.acquire(me, None)
            }
            Doing::ReadA => Doing::ReadB(m.load(A)),
            Doing::ReadB(a) => {
                let b = m.load(B);
                assert!(*a == b && b != 0, "initialized, with a partial value");
                return true;
            }
        };
        false
    }
}

fn explore(processes: usize, (kills, stops): (u32, u32), poll_interval: bool, bug: Bug) {
    let ghost = Ghost { sleepers: Sleepers::new(poll_interval), ..Ghost::default() };
    let world = World::new(Memory::new(6), vec![Process::new(bug); processes], ghost);
    let end = |w: &World<Process>| {
        let reported = w.count(0..processes, Fate::Ended) > 0;
        assert!(!reported || w.memory.peek(DONE) == 1, "a process ended, and the cell is not marked");
    };
    // While a process is stopped with the lock, processes that want the lock wait. Once the value is
    // initialized, no process wants the lock.
    let wedged = |w: &World<Process>| {
        let holder = LockWord(w.memory.peek(LOCK.word())).holder();
        let stopped = holder.is_some_and(|h| w.fates[h.slot() as usize] == Fate::Stopped);
        let running = |i: &usize| w.fates[*i] == Fate::Running;
        let asked = (0..processes).filter(running).any(|i| w.actors[i].is_in_line());
        let excused = stopped && (asked || w.memory.peek(DONE) == 0);
        w.fates.contains(&Fate::Running) && !excused
    };
    world.explore(kills, stops, end, wedged);
}

#[test]
fn once_waiters_wake_without_poll_intervals() {
    explore(2, (0, 0), false, Bug::None);
    explore(3, (0, 0), false, Bug::None);
}

#[test]
fn once_runs_again_after_a_killed_initialization() {
    explore(2, (1, 0), true, Bug::None);
    explore(3, (1, 0), true, Bug::None);
}

#[test]
fn once_survives_two_killed_initializers() {
    explore(3, (2, 0), true, Bug::None);
}

#[test]
fn stopped_once_caller_delays_no_later_caller() {
    explore(3, (0, 1), true, Bug::None);
    explore(3, (1, 1), true, Bug::None);
}

#[test]
fn once_holds_in_long_random_schedules() {
    at_random(|| {
        explore(6, (0, 0), false, Bug::None);
        explore(6, (3, 0), true, Bug::None);
        explore(6, (2, 1), true, Bug::None);
    });
}

#[test]
#[should_panic(expected = "initialized again")]
fn model_finds_once_that_initializes_twice() {
    explore(2, (0, 0), false, Bug::NoSecondLook);
}

#[test]
#[should_panic(expected = "with a partial value")]
fn model_finds_once_marked_before_its_value() {
    explore(2, (0, 0), false, Bug::SaidTooEarly);
}

#[test]
#[should_panic(expected = "two initialize")]
fn model_finds_stopped_once_holder_treated_as_dead() {
    explore(2, (0, 1), true, Bug::TimeIsDeath);
}

#[test]
#[should_panic(expected = "the cell is not marked")]
fn model_finds_once_that_is_never_marked() {
    explore(1, (0, 0), false, Bug::NotSaid);
}
