//! Exhaustive model of the detection of deadlocks. Threads take two locks each, in any order, some for
//! reading or writing. They announce their waits, search for cycles, and may return the error of a deadlock,
//! with kills and stops at any access. Checked: no thread gets a false error, at most one thread of a cycle
//! gets the error, and a thread waits forever only for a stopped thread. Real processes run the same steps.

use mp_core::mem::{Steps, Word};
use mp_core::steps::lock::cycle::{FindCycle, LockCycle, MemberThread};
use mp_core::steps::lock::wait_note::{WaitNotesAt, WriteNote, WrittenNote};
use mp_core::steps::lock::{AcquireLock, DeadHolder, LockAt, LockAttempt, LockWord, OsThread, ReleaseLock};
use mp_core::words::{LockKind, ReadersAt, WaitGoal};
use mp_models::explore::{Actor, Fate, Memory, World};
use mp_models::members::{actor_of, member};
use mp_models::random::at_random;
use mp_sync::steps::rwlock::{ClaimReader, Enter, EnterOutcome, Leave, Readers};
use mp_sync::steps::slot::{EMPTY, FindSlot, HELD, ObservedSlot, ReplaceSlot, Slots, set};

use self::Want::{Alone, Read, Write};

/// Number of locks. Each lock has three words. The last lock is the writers' lock of a readers-writer lock,
/// and is followed by the slots of readers, and by a wait note for each actor.
const LOCKS: usize = 4;
const WRITERS: usize = LOCKS - 1;
const SLOTS: Slots = Slots { used: lock(LOCKS).word(), first: lock(LOCKS).word().plus(1), limit: 3 };
const READERS: Readers = Readers { slots: SLOTS, extra_reads: SLOTS.first.plus(3) };
const NOTES: WaitNotesAt = WaitNotesAt { base: READERS.extra_reads.plus(3), stride: 32, entries: 1 };
const WORDS: usize = 3 * LOCKS + 7 + 4 * 3;

const fn lock(i: usize) -> LockAt {
    LockAt(Word::at(24 * i as u64))
}

/// Lock that a thread takes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Want {
    /// Lock with a single holder.
    Alone(usize),
    Read,
    Write,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Bug {
    None,
    /// A thread that has taken its lock does not clear its wait note.
    KeepsNote,
    /// Each thread that finds a cycle gets the error.
    AllGiveUp,
    /// A thread that finds a cycle does not check whether a thread of the cycle is dead.
    IgnoresDeath,
    /// A wait with a time-out is announced, although it can't be part of a deadlock.
    SaysTimedWaits,
    /// A thread announces its wait, but does not search for cycles.
    NeverLooks,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Doing {
    Begin,
    /// First attempt of a reader to enter without waiting.
    Enter(Enter),
    Acquire(AcquireLock),
    /// The lock was held. The next action depends on whether the owner is dead.
    Refused(LockWord),
    /// A reader that has the writers' lock claims its slot.
    ClaimReader(ClaimReader),
    LetOthersIn(ReleaseLock),
    /// A writer that has the writers' lock checks for readers.
    Readers(FindSlot),
    GiveBack(ReplaceSlot),
    WriteNote(WriteNote),
    FindSlot(FindCycle),
    /// Clears the wait note of a thread whose wait has ended, with the lock or with the error.
    TakeBack(WrittenNote),
    Leave(Leave),
    Unlock(ReleaseLock),
}

/// Thread that takes its locks one after the other, and releases them in reverse order.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Thread {
    /// Locks that the thread takes, in this order.
    wants: [Want; 2],
    /// Remaining number of rounds.
    left: u32,
    has: usize,
    doing: Doing,
    note: Option<WrittenNote>,
    /// Slot of the thread among the readers.
    reads: Option<ObservedSlot>,
    /// `true` if the thread has the writers' lock, and waits for the readers.
    inside: bool,
    /// `true` if the thread waits for its second lock with a time-out.
    timed: bool,
    /// `true` if the thread no longer waits for its second lock, after a time-out or a deadlock.
    leaving: bool,
    bug: Bug,
}

/// Target of a thread's wait: the owner of a lock, or the readers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum For {
    Owner(usize),
    Readers,
}

/// Actual state, independent of what the threads have observed.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct Ghost {
    /// Thread that has each lock.
    owner: [Option<usize>; LOCKS],
    /// `true` for each thread that reads.
    reads: [bool; 3],
    /// Target of each thread's wait without a time-out.
    waits: [Option<For>; 3],
    /// Number of the wait that began last.
    since: u64,
    /// Threads of each reported deadlock. A deadlock is removed when one of its threads continues.
    reported: Vec<Vec<usize>>,
}

impl Ghost {
    /// Returns `true` if thread `a` waits for a lock that thread `b` holds.
    fn waits_for(&self, a: usize, b: usize) -> bool {
        match self.waits[a] {
            None => false,
            Some(For::Owner(lock)) => self.owner[lock] == Some(b),
            Some(For::Readers) => self.reads[b],
        }
    }

    fn goes_on(&mut self, me: usize) {
        self.reported.retain(|reported| !reported.contains(&me));
    }
}

impl Thread {
    fn new(wants: [Want; 2], left: u32, timed: bool, bug: Bug) -> Self {
        Self {
            wants,
            left,
            has: 0,
            doing: Doing::Begin,
            note: None,
            reads: None,
            inside: false,
            timed,
            leaving: false,
            bug,
        }
    }

    /// Returns the lock for which the thread waits.
    fn lock(&self) -> usize {
        match self.wants[self.has] {
            Alone(i) => i,
            Read | Write => WRITERS,
        }
    }

    fn acquire(&self, me: usize, dead: Option<DeadHolder>) -> Doing {
        let who = OsThread { pid: me as u32 + 1, tid: me as u32 + 1 };
        Doing::Acquire(AcquireLock::new(lock(self.lock()), member(me), who, false, dead))
    }

    fn thread(me: usize) -> MemberThread {
        MemberThread { member: member(me), thread: me as u32 + 1 }
    }

    /// Returns the next state after a check that found no cycle, or a cycle whose error another thread gets.
    fn again(&self, me: usize) -> Doing {
        if self.inside { readers() } else { self.acquire(me, None) }
    }

    fn found(&mut self, me: usize, cycle: &LockCycle, fates: &[Fate], ghost: &mut Ghost) -> Doing {
        let threads: Vec<usize> = cycle.steps.iter().map(|step| actor_of(step.thread.member)).collect();
        let dead = threads.iter().any(|&a| fates[a] == Fate::Killed);
        let mine = cycle.victim() == Some(Self::thread(me)) || self.bug == Bug::AllGiveUp;
        if dead && self.bug != Bug::IgnoresDeath || !mine || self.bug == Bug::NeverLooks {
            return self.again(me);
        }
        assert!(!dead, "a dead thread's locks have other owners");
        assert_eq!(threads[0], me, "a cycle begins with the thread that finds it");
        for (i, &a) in threads.iter().enumerate() {
            let next = threads[(i + 1) % threads.len()];
            assert!(ghost.waits_for(a, next), "false deadlock: {a} waits for no lock of {next}");
        }
        let again = ghost.reported.iter().any(|reported| reported.iter().all(|a| threads.contains(a)));
        assert!(!again, "two threads of one deadlock get the error");
        ghost.reported.push(threads);
        self.give_up(me, ghost)
    }

    /// Ends the wait for the second lock, although the thread has not got the lock.
    fn give_up(&mut self, me: usize, ghost: &mut Ghost) -> Doing {
        self.leaving = true;
        self.over(me, ghost)
    }

    /// Announces the wait, if it is not announced yet, and checks for cycles.
    fn wait(&mut self, me: usize, ghost: &mut Ghost) -> Doing {
        let says = !self.timed || self.has == 0 || self.bug == Bug::SaysTimedWaits;
        if self.timed && self.has == 1 && (self.note.is_some() || !says) {
            return self.give_up(me, ghost);
        }
        if self.note.is_some() {
            return find(me);
        }
        ghost.since += 1;
        let (kind, readers) = match (self.wants[self.has], self.inside) {
            (Alone(_), _) => (LockKind::Lock, None),
            (Read, _) => (LockKind::Read, None),
            (Write, false) => (LockKind::Write, None),
            (Write, true) => {
                let Slots { used, first, limit } = SLOTS;
                (LockKind::Write, Some(ReadersAt { used, first, limit }))
            }
        };
        if !self.timed || self.has == 0 {
            ghost.waits[me] = Some(if self.inside { For::Readers } else { For::Owner(self.lock()) });
        }
        let goal = WaitGoal { kind, lock: lock(self.lock()).word(), readers };
        Doing::WriteNote(WriteNote::new(NOTES, member(me), me as u32 + 1, goal, ghost.since))
    }

    /// Ends the wait for the lock, and clears the wait note.
    fn over(&mut self, me: usize, ghost: &mut Ghost) -> Doing {
        match self.note.take().filter(|_| self.bug != Bug::KeepsNote) {
            // The thread first clears its note, so that other threads read that the wait is over.
            Some(note) => Doing::TakeBack(note),
            None => {
                ghost.waits[me] = None;
                self.next(me, ghost)
            }
        }
    }

    /// Returns the next state after the thread got the lock, or ended its wait without the lock.
    fn next(&mut self, me: usize, ghost: &mut Ghost) -> Doing {
        if self.leaving {
            return self.back();
        }
        match self.wants[self.has] {
            Read if self.reads.is_none() => {
                Doing::ClaimReader(ClaimReader::new(READERS, member(me), me as u32 + 1))
            }
            Write if !self.inside => {
                self.inside = true;
                readers()
            }
            _ => {
                self.inside = false;
                self.has += 1;
                ghost.goes_on(me);
                if self.has < 2 { self.begin(me) } else { self.back() }
            }
        }
    }

    fn begin(&self, me: usize) -> Doing {
        match self.wants[self.has] {
            Read => Doing::Enter(Enter::new(lock(WRITERS).word(), READERS, member(me), me as u32 + 1)),
            Alone(_) | Write => self.acquire(me, None),
        }
    }

    /// Releases the lock that was taken last. A writer that no longer waits for readers first releases the
    /// writers' lock.
    fn back(&self) -> Doing {
        if self.inside {
            return Doing::Unlock(ReleaseLock::new(lock(WRITERS), true));
        }
        match (self.wants[self.has - 1], self.reads) {
            (Read, Some(seen)) => Doing::Leave(Leave::new(READERS, seen)),
            (Alone(i), _) => Doing::Unlock(ReleaseLock::new(lock(i), true)),
            _ => Doing::Unlock(ReleaseLock::new(lock(WRITERS), true)),
        }
    }

    /// Continues after a release. Returns `true` if the thread has ended.
    fn gave(&mut self, me: usize, ghost: &mut Ghost) -> bool {
        ghost.goes_on(me);
        if !std::mem::take(&mut self.inside) {
            self.has -= 1;
        }
        if self.has > 0 {
            self.doing = self.back();
            return false;
        }
        self.left -= 1;
        self.leaving = false;
        self.doing = Doing::Begin;
        self.left == 0
    }
}

impl Actor for Thread {
    type Ghost = Ghost;

    fn step(&mut self, me: usize, m: &Memory, fates: &[Fate], ghost: &mut Ghost) -> bool {
        match &mut self.doing {
            Doing::Begin => self.doing = self.begin(me),
            Doing::Enter(steps) => match steps.step(m) {
                None => {}
                Some(EnterOutcome::Reading(seen)) => {
                    ghost.reads[me] = true;
                    self.reads = Some(seen);
                    self.doing = self.next(me, ghost);
                }
                Some(EnterOutcome::Blocked { .. }) => self.doing = self.acquire(me, None),
                Some(EnterOutcome::Full) => panic!("each reader has a place"),
            },
            Doing::Acquire(steps) => {
                let end = steps.step(m);
                // The swap was made: the thread owns the lock before the step returns.
                let at = self.lock();
                if LockWord(m.peek(lock(at).word())).holder() == Some(member(me)) {
                    ghost.owner[at] = Some(me);
                }
                match end {
                    None => {}
                    Some(LockAttempt::Held(word)) => self.doing = Doing::Refused(word),
                    Some(LockAttempt::Acquired(_)) => self.doing = self.over(me, ghost),
                }
            }
            Doing::Refused(word) => {
                let word = *word;
                let owner = word.holder().expect("it was held");
                self.doing = match fates[actor_of(owner)] == Fate::Killed {
                    true => self.acquire(me, Some(DeadHolder { word, pid: 0 })),
                    false => self.wait(me, ghost),
                };
            }
            Doing::ClaimReader(steps) => {
                if let Some(seen) = steps.step(m) {
                    self.reads = Some(seen.expect("there is a place for each"));
                    ghost.reads[me] = true;
                    self.doing = Doing::LetOthersIn(ReleaseLock::new(lock(WRITERS), true));
                }
            }
            Doing::LetOthersIn(steps) => {
                steps.step(m).expect("one step");
                ghost.owner[WRITERS] = None;
                self.doing = self.next(me, ghost);
            }
            Doing::Readers(steps) => match steps.step(m) {
                None => {}
                Some(None) => self.doing = self.over(me, ghost),
                Some(Some(seen)) if fates[actor_of(seen.slot.member)] == Fate::Killed => {
                    let back = seen.slot.vacated(EMPTY);
                    self.doing = Doing::GiveBack(ReplaceSlot::new(SLOTS.at(seen.index), seen.slot, back));
                }
                Some(Some(_)) => self.doing = self.wait(me, ghost),
            },
            Doing::GiveBack(steps) => {
                steps.step(m).expect("one step");
                self.doing = readers();
            }
            Doing::WriteNote(steps) => {
                if let Some(note) = steps.step(m) {
                    self.note = note;
                    self.doing = find(me);
                }
            }
            Doing::FindSlot(steps) => {
                if let Some(found) = steps.step(m) {
                    self.doing = match found {
                        Some(cycle) => self.found(me, &cycle, fates, ghost),
                        None => self.again(me),
                    };
                }
            }
            Doing::TakeBack(note) => {
                note.take_back(m);
                ghost.waits[me] = None;
                self.doing = self.next(me, ghost);
            }
            Doing::Leave(steps) => {
                if steps.step(m).is_some() {
                    ghost.reads[me] = false;
                    self.reads = None;
                    return self.gave(me, ghost);
                }
            }
            Doing::Unlock(steps) => {
                steps.step(m).expect("one step");
                let at = match (self.inside, self.wants[self.has.saturating_sub(1)]) {
                    (false, Alone(i)) => i,
                    _ => WRITERS,
                };
                ghost.owner[at] = None;
                return self.gave(me, ghost);
            }
        }
        false
    }
}

fn readers() -> Doing {
    Doing::Readers(FindSlot::new(SLOTS, set(&[HELD]), 0))
}

fn find(me: usize) -> Doing {
    Doing::FindSlot(FindCycle::new(NOTES, Thread::thread(me)))
}

fn explore(threads: Vec<Thread>, kills: u32, stops: u32) {
    let world = World::new(Memory::new(WORDS), threads, Ghost::default());
    let end = |w: &World<Thread>| {
        if w.fates.iter().all(|&fate| fate == Fate::Ended) {
            let held = (0..LOCKS).filter(|&i| LockWord(w.memory.peek(lock(i).word())).holder().is_some());
            assert_eq!(held.count(), 0, "a lock is held, and all have ended");
        }
    };
    // A stopped thread keeps its locks, and may be the thread that has to get the error. Nothing else makes
    // other threads wait forever.
    let wedged = |w: &World<Thread>| w.fates.contains(&Fate::Running) && !w.fates.contains(&Fate::Stopped);
    world.explore(kills, stops, end, wedged);
}

fn two(bug: Bug) -> Vec<Thread> {
    vec![Thread::new([Alone(0), Alone(1)], 1, false, bug), Thread::new([Alone(1), Alone(0)], 1, false, bug)]
}

#[test]
fn deadlock_of_opposite_lock_orders_is_detected() {
    explore(two(Bug::None), 0, 0);
    explore(
        vec![
            Thread::new([Alone(0), Alone(1)], 2, false, Bug::None),
            Thread::new([Alone(1), Alone(0)], 1, false, Bug::None),
        ],
        0,
        0,
    );
}

#[test]
fn killed_or_stopped_thread_causes_no_false_deadlock() {
    explore(two(Bug::None), 1, 0);
    explore(two(Bug::None), 0, 1);
    explore(two(Bug::None), 1, 1);
}

#[test]
fn locks_taken_in_one_order_report_no_deadlock() {
    let thread = |wants| Thread::new(wants, 1, false, Bug::None);
    explore(
        vec![thread([Alone(0), Alone(1)]), thread([Alone(0), Alone(1)]), thread([Alone(1), Alone(2)])],
        0,
        0,
    );
    explore(vec![thread([Alone(0), Alone(1)]), thread([Alone(0), Alone(1)])], 1, 1);
}

#[test]
fn lock_cycle_of_three_threads_is_detected() {
    let thread = |wants| Thread::new(wants, 1, false, Bug::None);
    explore(
        vec![thread([Alone(0), Alone(1)]), thread([Alone(1), Alone(2)]), thread([Alone(2), Alone(0)])],
        0,
        0,
    );
}

#[test]
fn lock_cycle_with_a_timed_wait_is_no_deadlock() {
    let thread = |wants, timed| Thread::new(wants, 1, timed, Bug::None);
    explore(vec![thread([Alone(0), Alone(1)], false), thread([Alone(1), Alone(0)], true)], 1, 1);
}

#[test]
fn lock_cycle_of_readers_and_writers_is_detected() {
    let thread = |wants| Thread::new(wants, 1, false, Bug::None);
    // A writer waits for a reader, and a reader for a writer.
    explore(vec![thread([Read, Alone(0)]), thread([Alone(0), Write])], 1, 1);
    explore(vec![thread([Write, Alone(0)]), thread([Alone(0), Read])], 1, 1);
    // With the same order, no cycle exists.
    explore(vec![thread([Alone(0), Read]), thread([Alone(0), Write])], 1, 1);
}

#[test]
fn writer_in_a_lock_cycle_waits_for_each_reader() {
    let thread = |wants| Thread::new(wants, 1, false, Bug::None);
    explore(vec![thread([Read, Alone(0)]), thread([Alone(1), Read]), thread([Alone(0), Write])], 0, 0);
}

#[test]
fn deadlock_detection_holds_in_long_random_schedules() {
    let thread = |wants| Thread::new(wants, 4, false, Bug::None);
    at_random(|| {
        explore(
            vec![thread([Alone(0), Alone(1)]), thread([Alone(1), Alone(2)]), thread([Alone(2), Alone(0)])],
            0,
            0,
        );
        explore(
            vec![thread([Alone(0), Alone(1)]), thread([Alone(1), Alone(0)]), thread([Alone(1), Alone(2)])],
            1,
            1,
        );
        explore(
            vec![thread([Alone(0), Alone(1)]), thread([Alone(0), Alone(2)]), thread([Alone(1), Alone(2)])],
            2,
            0,
        );
        explore(vec![thread([Read, Alone(0)]), thread([Alone(0), Read]), thread([Alone(0), Write])], 1, 1);
    });
}

#[test]
#[should_panic(expected = "waits for no lock of")]
fn model_finds_uncleared_wait_note_of_a_lock() {
    explore(two(Bug::KeepsNote), 0, 0);
}

#[test]
#[should_panic(expected = "two threads of one deadlock get the error")]
fn model_finds_deadlock_reported_twice() {
    explore(two(Bug::AllGiveUp), 0, 0);
}

#[test]
#[should_panic(expected = "a dead thread's locks have other owners")]
fn model_finds_deadlock_reported_despite_a_death() {
    explore(two(Bug::IgnoresDeath), 1, 0);
}

#[test]
#[should_panic(expected = "waits for no lock of")]
fn model_finds_timed_wait_reported_as_deadlock() {
    let thread = |wants, timed| Thread::new(wants, 1, timed, Bug::SaysTimedWaits);
    explore(vec![thread([Alone(0), Alone(1)], false), thread([Alone(1), Alone(0)], true)], 0, 0);
}

#[test]
#[should_panic(expected = "wedged")]
fn model_finds_undetected_deadlock() {
    explore(two(Bug::NeverLooks), 0, 0);
}
