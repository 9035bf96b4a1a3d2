//! Exhaustive model of the reentrant lock, with threads of two processes, kills of whole processes, and stops
//! at any access. Some threads wait on a condition: they release all levels of the lock, and take them again.
//! Real processes run the same steps.

use mp_core::mem::{Mem, Steps, Word};
use mp_core::steps::lock::{
    AcquireLock, DeadHolder, LockAt, LockAttempt, LockWord, OsThread, ReleaseLock, SetParked, is_held_by,
};
use mp_core::words::Member;
use mp_models::explore::{Actor, Fate, Memory, World};
use mp_models::random::at_random;
use mp_models::sleepers::Sleepers;
use mp_sync::steps::rlock::{AddLevel, AddLevelOutcome, Depth, ReadDepth, ReleaseLevel, SetDepth};

const LOCK: LockAt = LockAt(Word::at(0));
const DEPTH: Word = Word::at(24);
/// Protected data: two words. A thread writes the first word at the outer level of the lock, and the second
/// word at the inner level.
const A: Word = Word::at(32);
const B: Word = Word::at(40);

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Bug {
    None,
    /// The lock belongs to the process instead of the thread.
    ProcessOwns,
    /// A new holder continues with the depth of the previous holder.
    KeepsDepth,
    /// Dropping the inner level releases the lock.
    ReleasesEarly,
    /// A thread that recovers the lock doesn't record that it repairs the data.
    ForgetsRecovering,
    /// A stopped holder is treated as dead.
    TimeIsDeath,
    /// A thread that takes the lock again after a wait gets only one level of the lock.
    ForgetsOthers,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Doing {
    /// Takes the lock, for the first time or again.
    Begin,
    Acquire(AcquireLock),
    /// The lock was held. The next action depends on the holder.
    Refused(LockWord),
    Mine(LockWord),
    SetParked(SetParked),
    Asleep(LockWord),
    SetDepth(SetDepth),
    AddLevel(AddLevel),
    ReadA,
    ReadB(u64),
    WriteA(u64),
    WriteB,
    /// Releases all levels before a wait.
    LetGo(ReadDepth),
    ReleaseLevel(ReleaseLevel),
    Unlock(ReleaseLock),
}

/// Thread that takes the lock twice, may wait on a condition, and drops both levels.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Thread {
    doing: Doing,
    left: u32,
    waits: bool,
    /// Number of levels that the thread has.
    levels: u64,
    /// Number of levels that the thread had before it released the lock to wait.
    let_go: u64,
    slept: bool,
    recovering: bool,
    /// Value that the thread writes.
    value: u64,
    bug: Bug,
}

/// Thread that has the lock, and threads that sleep.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct Ghost {
    inside: Option<usize>,
    sleepers: Sleepers,
}

/// Returns the process of a thread. The first two threads belong to one process.
fn process_of(actor: usize) -> usize {
    actor / 2
}

fn threads_of(process: usize, fates: &[Fate]) -> impl Iterator<Item = Fate> + '_ {
    fates.iter().enumerate().filter(move |(i, _)| process_of(*i) == process).map(|(_, &f)| f)
}

/// Returns `true` if a thread of the process was killed, which kills the whole process.
fn is_process_killed(process: usize, fates: &[Fate]) -> bool {
    threads_of(process, fates).any(|f| f == Fate::Killed)
}

fn member(actor: usize) -> Member {
    Member::new(process_of(actor) as u32, 1)
}

fn who(actor: usize) -> OsThread {
    OsThread { pid: process_of(actor) as u32 + 1, tid: actor as u32 + 1 }
}

impl Thread {
    fn new(times: u32, waits: bool, bug: Bug) -> Self {
        Self {
            doing: Doing::Begin,
            left: times,
            waits,
            levels: 0,
            let_go: 0,
            slept: false,
            recovering: false,
            value: 0,
            bug,
        }
    }

    fn acquire(&self, me: usize, dead: Option<DeadHolder>) -> Doing {
        Doing::Acquire(AcquireLock::new(LOCK, member(me), who(me), self.slept, dead))
    }

    /// Checks that the depth of the lock equals the thread's number of levels.
    fn check(&self, m: &Memory) {
        let says = Depth(m.peek(DEPTH)).levels();
        assert_eq!(says, self.levels, "a thread has {} levels, and the lock's depth is {says}", self.levels);
    }

    /// Returns the next state after the thread has taken the lock, whose word was `word`.
    fn taken(&mut self, me: usize, m: &Memory, word: LockWord, fates: &[Fate], ghost: &mut Ghost) -> Doing {
        if let Some(other) = ghost.inside.replace(me) {
            assert!(is_process_killed(process_of(other), fates), "two inside");
        }
        let torn = word.is_poisoned();
        let depth = match self.let_go {
            // A holder has died after the release: the thread returns with its other guards' levels.
            n if n > 0 && torn => Depth::new(n - 1, false),
            n if n > 0 => Depth::new(if self.bug == Bug::ForgetsOthers { 1 } else { n }, false),
            _ if torn && !self.recovering => {
                ghost.inside = None;
                self.recovering = true;
                return Doing::Unlock(ReleaseLock::new(LOCK, false));
            }
            _ => Depth::new(1, self.recovering && self.bug != Bug::ForgetsRecovering),
        };
        self.levels = if self.let_go > 0 && !torn { self.let_go } else { depth.levels() };
        match self.bug {
            Bug::KeepsDepth => Doing::SetDepth(SetDepth(DEPTH, Depth(m.peek(DEPTH) + 1))),
            _ => Doing::SetDepth(SetDepth(DEPTH, depth)),
        }
    }
}

impl Actor for Thread {
    type Ghost = Ghost;

    fn step(&mut self, me: usize, m: &Memory, fates: &[Fate], ghost: &mut Ghost) -> bool {
        if is_process_killed(process_of(me), fates) {
            // The thread dies with its process, and stops waiting.
            ghost.sleepers.forget(me);
            return true;
        }
        let mut doing = self.doing.clone();
        self.doing = match &mut doing {
            Doing::Begin => self.acquire(me, None),
            Doing::Acquire(steps) => match steps.step(m) {
                None => doing,
                Some(LockAttempt::Held(word)) => Doing::Refused(word),
                Some(LockAttempt::Acquired(word)) => self.taken(me, m, word, fates, ghost),
            },
            Doing::Refused(word) => {
                let word = *word;
                let holder = word.holder().expect("it was held");
                let process = holder.slot() as usize;
                let dead = match self.bug {
                    Bug::TimeIsDeath => threads_of(process, fates).any(Fate::gone),
                    _ => is_process_killed(process, fates),
                };
                match dead {
                    _ if holder == member(me) => Doing::Mine(word),
                    true => self.acquire(me, Some(DeadHolder { word, pid: 0 })),
                    false => Doing::SetParked(SetParked::new(LOCK, word)),
                }
            }
            Doing::Mine(word) => match is_held_by(LOCK, *word, who(me), m) || self.bug == Bug::ProcessOwns {
                true => Doing::AddLevel(AddLevel::new(DEPTH)),
                false => {
                    assert_eq!(self.levels, 0, "the thread holds the lock without counting a level");
                    Doing::SetParked(SetParked::new(LOCK, *word))
                }
            },
            Doing::SetParked(steps) => match steps.step(m) {
                None => doing,
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
            Doing::SetDepth(steps) => {
                steps.step(m);
                self.check(m);
                self.slept = false;
                match self.let_go {
                    0 => Doing::ReadA,
                    _ => Doing::ReleaseLevel(ReleaseLevel::new(DEPTH)),
                }
            }
            Doing::ReadA => Doing::ReadB(m.load(A)),
            Doing::ReadB(a) => {
                let (a, b) = (*a, m.load(B));
                assert!(a == b || self.recovering, "torn, and not marked");
                Doing::WriteA(a)
            }
            Doing::WriteA(a) => {
                m.store(A, *a + 1);
                self.value = *a + 1;
                self.acquire(me, None)
            }
            Doing::AddLevel(_) if ghost.inside != Some(me) => panic!("two inside"),
            Doing::AddLevel(steps) => match steps.step(m) {
                None => doing,
                Some(AddLevelOutcome::Added) => {
                    self.levels += 1;
                    self.check(m);
                    Doing::WriteB
                }
                Some(end) => panic!("{end:?}: the thread has the lock"),
            },
            Doing::WriteB => {
                m.store(B, self.value);
                match self.waits {
                    true => Doing::LetGo(ReadDepth(DEPTH)),
                    false => Doing::ReleaseLevel(ReleaseLevel::new(DEPTH)),
                }
            }
            Doing::LetGo(steps) => {
                let depth = steps.step(m).expect("one step");
                self.check(m);
                (self.let_go, self.levels) = (depth.levels(), 0);
                ghost.inside = None;
                Doing::Unlock(ReleaseLock::new(LOCK, depth.is_recovering()))
            }
            Doing::ReleaseLevel(steps) => match steps.step(m) {
                None => doing,
                Some(None) => {
                    self.levels -= 1;
                    self.check(m);
                    match self.bug {
                        Bug::ReleasesEarly => Doing::Unlock(ReleaseLock::new(LOCK, false)),
                        _ => Doing::ReleaseLevel(ReleaseLevel::new(DEPTH)),
                    }
                }
                Some(Some(depth)) => {
                    assert_eq!(self.levels, 1, "released a lock with {} levels", self.levels);
                    (self.levels, self.let_go) = (0, 0);
                    ghost.inside = None;
                    Doing::Unlock(ReleaseLock::new(LOCK, depth.is_recovering()))
                }
            },
            Doing::Unlock(steps) => {
                let recovered = self.recovering && self.value > 0;
                if steps.step(m).expect("one step") {
                    // FUTEX_WAKE of one sleeper, in the same step. A waker that dies between the two leaves
                    // the sleeper to its poll interval, which all worlds with kills have.
                    ghost.sleepers.wake_one();
                }
                let marked = LockWord(m.peek(LOCK.word())).is_poisoned();
                assert!(!recovered || !marked, "it is repaired, and still marked");
                if recovered {
                    self.recovering = false;
                }
                // The thread got an error about a death, or has released the lock to wait: it takes the lock
                // again.
                let over = self.value > 0 && self.let_go == 0;
                if over {
                    self.left -= 1;
                    (self.value, self.waits) = (0, false);
                    if self.left == 0 {
                        return true;
                    }
                }
                self.acquire(me, None)
            }
        };
        false
    }
}

fn explore(threads: &[(u32, bool)], (kills, stops): (u32, u32), poll_interval: bool, bug: Bug) {
    let ghost = Ghost { sleepers: Sleepers::new(poll_interval), ..Ghost::default() };
    let actors: Vec<_> = threads.iter().map(|&(times, waits)| Thread::new(times, waits, bug)).collect();
    let world = World::new(Memory::new(6), actors, ghost);
    let end = |w: &World<Thread>| {
        let word = LockWord(w.memory.peek(LOCK.word()));
        if word.holder().is_none() && !word.is_poisoned() {
            assert_eq!(w.memory.peek(A), w.memory.peek(B), "torn");
        }
    };
    // Threads may wait forever only for a stopped holder.
    let wedged = |w: &World<Thread>| {
        let holder = LockWord(w.memory.peek(LOCK.word())).holder();
        let stopped = |h: Member| threads_of(h.slot() as usize, &w.fates).any(|f| f == Fate::Stopped);
        w.fates.contains(&Fate::Running) && !holder.is_some_and(stopped)
    };
    world.explore(kills, stops, end, wedged);
}

/// Program of a thread: number of rounds, each of which takes the lock twice, and `true` if the thread waits
/// on a condition in each round.
const ONCE: (u32, bool) = (1, false);
const TWICE: (u32, bool) = (2, false);
const WAITS: (u32, bool) = (1, true);

#[test]
fn rlock_waiters_wake_without_poll_intervals() {
    explore(&[ONCE, ONCE], (0, 0), false, Bug::None);
    explore(&[TWICE, WAITS], (0, 0), false, Bug::None);
    explore(&[ONCE, ONCE, WAITS], (0, 0), false, Bug::None);
}

#[test]
fn lock_of_a_killed_process_is_marked_and_recovered() {
    explore(&[ONCE, ONCE, TWICE], (1, 0), true, Bug::None);
    explore(&[WAITS, ONCE, ONCE], (1, 0), true, Bug::None);
    explore(&[ONCE, ONCE, WAITS], (1, 0), true, Bug::None);
}

#[test]
fn rlock_survives_a_killed_recoverer() {
    explore(&[ONCE, ONCE, ONCE], (2, 0), true, Bug::None);
}

#[test]
fn stopped_thread_keeps_only_its_own_rlock() {
    explore(&[ONCE, ONCE, ONCE], (0, 1), true, Bug::None);
    explore(&[WAITS, ONCE, ONCE], (0, 1), true, Bug::None);
    explore(&[ONCE, ONCE, ONCE], (1, 1), true, Bug::None);
}

#[test]
fn rlock_holds_in_long_random_schedules() {
    at_random(|| {
        explore(&[TWICE, WAITS, TWICE, WAITS, TWICE], (0, 0), false, Bug::None);
        explore(&[TWICE, WAITS, TWICE, WAITS, TWICE, WAITS], (2, 0), true, Bug::None);
        explore(&[TWICE, WAITS, TWICE, WAITS, TWICE, WAITS], (1, 1), true, Bug::None);
    });
}

#[test]
#[should_panic(expected = "two inside")]
fn model_finds_rlock_held_by_process_not_thread() {
    explore(&[ONCE, ONCE], (0, 0), false, Bug::ProcessOwns);
}

#[test]
#[should_panic(expected = "and the lock's depth is")]
fn model_finds_inherited_depth_of_a_dead_holder() {
    explore(&[ONCE, ONCE, ONCE], (1, 0), true, Bug::KeepsDepth);
}

#[test]
#[should_panic(expected = "two inside")]
fn model_finds_rlock_released_at_an_inner_level() {
    explore(&[ONCE, ONCE], (0, 0), false, Bug::ReleasesEarly);
}

#[test]
#[should_panic(expected = "still marked")]
fn model_finds_unrecorded_repair_of_an_rlock() {
    explore(&[ONCE, ONCE, ONCE], (1, 0), true, Bug::ForgetsRecovering);
}

#[test]
#[should_panic(expected = "two inside")]
fn model_finds_stopped_rlock_holder_treated_as_dead() {
    explore(&[ONCE, ONCE, ONCE], (0, 1), true, Bug::TimeIsDeath);
}

#[test]
#[should_panic(expected = "and the lock's depth is")]
fn model_finds_rlock_retaken_with_one_level() {
    explore(&[WAITS, ONCE], (0, 0), false, Bug::ForgetsOthers);
}
