//! Exhaustive model of the readers-writer lock. No reader observes a partial write, a dead writer is
//! reported, and no thread waits for a dead reader. Real processes run the same steps.

use mp_core::mem::{Mem, Steps, Word};
use mp_core::steps::lock::{AcquireLock, DeadHolder, LockAt, LockAttempt, LockWord, OsThread, ReleaseLock};
use mp_models::explore::{Actor, Fate, Memory, World};
use mp_models::members::member;
use mp_models::random::at_random;
use mp_sync::steps::rwlock::{AddRead, ClaimReader, Enter, EnterOutcome, Leave, Readers};
use mp_sync::steps::slot::{EMPTY, FindSlot, HELD, ObservedSlot, ReplaceSlot, Slots, set};

const LOCK: LockAt = LockAt(Word::at(0));
const WRITING: Word = Word::at(24);
const A: Word = Word::at(32);
const B: Word = Word::at(40);
const SLOTS: Slots = Slots { used: Word::at(48), first: Word::at(56), limit: 3 };
const READERS: Readers = Readers { slots: SLOTS, extra_reads: Word::at(80) };

/// Initial value of each slot's count of further reads, as if a dead reader had left it.
const LEFT_BEHIND: u64 = 1;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Bug {
    None,
    /// A reader that has its slot does not read the lock again.
    NoSecondLook,
    /// A writer does not wait for readers.
    IgnoresReaders,
    /// No writer frees a dead reader's slot.
    NoRecovery,
    /// A thread that takes over the lock of a dead holder always clears the mark.
    IgnoresWriting,
    /// Each mark of a dead holder is treated as a death during a write, even if the holder did not write.
    TakesMarksSeriously,
    /// A thread that already reads, and takes the lock for reading again, takes any free slot instead of its
    /// own.
    AnotherSlot,
    /// A thread that reads again in the same slot does not increment the count of its reads.
    DoesNotCount,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Doing {
    Begin,
    Enter(Enter),
    /// Planted bug: takes a slot without reading the lock afterwards.
    Slip(ClaimReader),
    Acquire(AcquireLock),
    Refused(LockWord),
    LookWriting,
    ClaimReader(ClaimReader),
    LetOthersIn(ReleaseLock, ObservedSlot),
    ReadA(ObservedSlot),
    /// Begins a second read during the first read.
    EnterAgain(Enter, ObservedSlot),
    AddRead(AddRead, ObservedSlot),
    AnotherSlot(ClaimReader, ObservedSlot),
    /// Ends the first read during the second read.
    LeaveFirst(Leave, ObservedSlot),
    ReadB(ObservedSlot),
    Leave(Leave),
    Readers(FindSlot),
    GiveBack(ReplaceSlot),
    StoreWriting,
    LoadA,
    StoreA,
    StoreB,
    ClearWriting,
    Unlock(ReleaseLock),
}

/// Process that reads once or writes once, and repairs inconsistent data that it finds.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Process {
    writes: bool,
    /// `true` if the process begins a second read during its first read, and ends the first read first.
    again: bool,
    doing: Doing,
    marked: bool,
    a: u64,
    bug: Bug,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct Ghost {
    reading: Vec<usize>,
    writing: Option<usize>,
}

fn acquire(me: usize, dead: Option<DeadHolder>) -> Doing {
    let who = OsThread { pid: me as u32 + 1, tid: me as u32 + 1 };
    Doing::Acquire(AcquireLock::new(LOCK, member(me), who, false, dead))
}

fn inside(me: usize) -> ClaimReader {
    ClaimReader::new(READERS, member(me), me as u32)
}

fn enter(me: usize) -> Enter {
    Enter::new(LOCK.word(), READERS, member(me), me as u32)
}

fn readers() -> Doing {
    Doing::Readers(FindSlot::new(SLOTS, set(&[HELD]), 0))
}

impl Process {
    fn has_lock(&self, me: usize) -> Doing {
        match self.writes {
            true if self.bug == Bug::IgnoresReaders => Doing::StoreWriting,
            true => readers(),
            false => Doing::ClaimReader(inside(me)),
        }
    }

    fn reads_again(&self, first: ObservedSlot, seen: ObservedSlot) -> Doing {
        Doing::LeaveFirst(Leave::new(READERS, first), seen)
    }

    fn unlock(&self) -> ReleaseLock {
        ReleaseLock::new(LOCK, self.marked)
    }
}

impl Actor for Process {
    type Ghost = Ghost;

    fn step(&mut self, me: usize, m: &Memory, fates: &[Fate], ghost: &mut Ghost) -> bool {
        let killed = |i: usize| fates[i] == Fate::Killed;
        match &mut self.doing {
            Doing::Begin if self.writes => self.doing = acquire(me, None),
            Doing::Begin if self.bug == Bug::NoSecondLook => {
                let held = LockWord(m.load(LOCK.word())).holder().is_some();
                self.doing = if held { Doing::Begin } else { Doing::Slip(inside(me)) };
            }
            Doing::Begin => self.doing = Doing::Enter(enter(me)),
            Doing::Enter(steps) => match steps.step(m) {
                None => {}
                Some(EnterOutcome::Reading(seen)) => self.doing = Doing::ReadA(seen),
                Some(EnterOutcome::Blocked { .. }) => self.doing = acquire(me, None),
                Some(EnterOutcome::Full) => unreachable!("there are slots for all"),
            },
            Doing::Slip(steps) => {
                if let Some(seen) = steps.step(m) {
                    self.doing = Doing::ReadA(seen.expect("there are slots for all"));
                }
            }
            Doing::Acquire(steps) => match steps.step(m) {
                None => {}
                Some(LockAttempt::Held(word)) => self.doing = Doing::Refused(word),
                Some(LockAttempt::Acquired(word)) => {
                    self.marked = word.is_poisoned();
                    self.doing = if self.marked { Doing::LookWriting } else { self.has_lock(me) };
                }
            },
            Doing::Refused(word) => {
                let word = *word;
                let holder = word.holder().expect("it was held").slot() as usize;
                self.doing = acquire(me, killed(holder).then_some(DeadHolder { word, pid: 0 }));
            }
            Doing::LookWriting => {
                let wrote = m.load(WRITING) != 0 || self.bug == Bug::TakesMarksSeriously;
                if wrote && self.bug != Bug::IgnoresWriting {
                    assert!(ghost.writing.is_some_and(killed), "a mark without a dead writer");
                    // The actor recovers the data, no matter whether it was going to read or to write.
                    self.writes = true;
                }
                self.doing = self.has_lock(me);
            }
            Doing::ClaimReader(steps) => {
                if let Some(seen) = steps.step(m) {
                    let unlock = self.unlock();
                    self.doing = Doing::LetOthersIn(unlock, seen.expect("there are slots for all"));
                }
            }
            Doing::LetOthersIn(steps, seen) => {
                let seen = *seen;
                steps.step(m);
                self.doing = Doing::ReadA(seen);
            }
            Doing::ReadA(seen) => {
                self.a = m.load(A);
                ghost.reading.push(me);
                self.doing = match self.again {
                    true => Doing::EnterAgain(enter(me), *seen),
                    false => Doing::ReadB(*seen),
                };
            }
            Doing::EnterAgain(steps, first) => {
                let first = *first;
                match steps.step(m) {
                    None => {}
                    Some(EnterOutcome::Reading(seen)) => self.doing = self.reads_again(first, seen),
                    Some(_) if self.bug == Bug::DoesNotCount => self.doing = self.reads_again(first, first),
                    Some(_) if self.bug == Bug::AnotherSlot => {
                        self.doing = Doing::AnotherSlot(inside(me), first);
                    }
                    Some(_) => {
                        self.doing = Doing::AddRead(AddRead::new(READERS, member(me), me as u32), first);
                    }
                }
            }
            Doing::AddRead(steps, first) => {
                let first = *first;
                if let Some(seen) = steps.step(m) {
                    self.doing = self.reads_again(first, seen.expect("it has a slot"));
                }
            }
            Doing::AnotherSlot(steps, first) => {
                let first = *first;
                if let Some(seen) = steps.step(m) {
                    self.doing = self.reads_again(first, seen.expect("there are slots for all"));
                }
            }
            Doing::LeaveFirst(steps, seen) => {
                let seen = *seen;
                if steps.step(m).is_some() {
                    self.doing = Doing::ReadB(seen);
                }
            }
            Doing::ReadB(seen) => {
                assert_eq!(m.load(B), self.a, "torn, and not reported");
                ghost.reading.retain(|&i| i != me);
                self.doing = Doing::Leave(Leave::new(READERS, *seen));
            }
            Doing::Leave(steps) => {
                let gone = steps.step(m);
                assert!(gone != Some(false), "its place had another reader, or remains");
                return gone.is_some();
            }
            Doing::Readers(steps) => match steps.step(m) {
                None => {}
                Some(None) => self.doing = Doing::StoreWriting,
                Some(Some(seen)) if killed(seen.slot.thread as usize) && self.bug != Bug::NoRecovery => {
                    let back = seen.slot.vacated(EMPTY);
                    self.doing = Doing::GiveBack(ReplaceSlot::new(SLOTS.at(seen.index), seen.slot, back));
                }
                Some(Some(_)) => self.doing = readers(),
            },
            Doing::GiveBack(steps) => {
                steps.step(m);
                self.doing = readers();
            }
            Doing::StoreWriting => {
                m.store(WRITING, 1);
                assert!(ghost.reading.iter().all(|&i| killed(i)), "a writer and a reader hold the lock");
                assert!(ghost.writing.is_none_or(killed), "two writers");
                ghost.writing = Some(me);
                self.doing = Doing::LoadA;
            }
            Doing::LoadA => {
                self.a = m.load(A) + 1;
                self.doing = Doing::StoreA;
            }
            Doing::StoreA => {
                m.store(A, self.a);
                self.doing = Doing::StoreB;
            }
            Doing::StoreB => {
                m.store(B, self.a);
                self.doing = Doing::ClearWriting;
            }
            Doing::ClearWriting => {
                m.store(WRITING, 0);
                ghost.writing = None;
                self.doing = Doing::Unlock(self.unlock());
            }
            Doing::Unlock(steps) => {
                steps.step(m);
                return true;
            }
        }
        false
    }
}

fn explore(readers: usize, writers: usize, faults: (u32, u32), bug: Bug) {
    explore_again((readers, 0), writers, faults, bug);
}

/// Explores `readers` readers and `writers` writers. The last `again` readers read a second time during the
/// first read.
fn explore_again((readers, again): (usize, usize), writers: usize, (kills, stops): (u32, u32), bug: Bug) {
    let process = Process { writes: false, again: false, doing: Doing::Begin, marked: false, a: 0, bug };
    let mut actors = vec![process.clone(); readers - again];
    actors.extend(vec![Process { again: true, ..process.clone() }; again]);
    actors.extend(vec![Process { writes: true, ..process }; writers]);
    let memory = Memory::new(13);
    (0..SLOTS.limit).for_each(|i| memory.poke(READERS.extra_reads.plus(i.into()), LEFT_BEHIND));
    let world = World::new(memory, actors, Ghost::default());
    let wedged = |w: &World<Process>| w.fates.contains(&Fate::Running) && !w.fates.contains(&Fate::Stopped);
    world.explore(kills, stops, |_| {}, wedged);
}

#[test]
fn readers_and_writers_exclude_each_other() {
    explore(2, 1, (0, 0), Bug::None);
    explore(1, 2, (0, 0), Bug::None);
}

#[test]
fn rwlock_survives_process_killed_at_any_step() {
    explore(2, 1, (1, 0), Bug::None);
    explore(1, 2, (1, 0), Bug::None);
}

#[test]
fn rwlock_survives_a_killed_recoverer() {
    explore(1, 2, (2, 0), Bug::None);
    explore(2, 1, (2, 0), Bug::None);
}

#[test]
fn rwlock_survives_process_stopped_at_any_step() {
    explore(2, 1, (0, 1), Bug::None);
    explore(1, 1, (1, 1), Bug::None);
}

#[test]
fn repeated_read_of_an_rwlock_is_counted() {
    explore_again((2, 1), 1, (0, 0), Bug::None);
    explore_again((2, 1), 1, (1, 0), Bug::None);
    explore_again((1, 1), 1, (1, 1), Bug::None);
}

#[test]
fn rwlock_holds_in_long_random_schedules() {
    at_random(|| {
        explore(2, 4, (0, 0), Bug::None);
        explore_again((2, 2), 3, (3, 0), Bug::None);
        explore_again((2, 1), 3, (2, 1), Bug::None);
    });
}

#[test]
#[should_panic(expected = "a writer and a reader hold the lock")]
fn model_finds_second_read_in_another_slot() {
    explore_again((2, 1), 1, (0, 0), Bug::AnotherSlot);
}

#[test]
#[should_panic(expected = "its place had another reader")]
fn model_finds_uncounted_repeated_read() {
    explore_again((1, 1), 1, (0, 0), Bug::DoesNotCount);
}

#[test]
#[should_panic(expected = "a writer and a reader hold the lock")]
fn model_finds_reader_without_second_check() {
    explore(1, 1, (0, 0), Bug::NoSecondLook);
}

#[test]
#[should_panic(expected = "a writer and a reader hold the lock")]
fn model_finds_writer_that_ignores_readers() {
    explore(1, 1, (0, 0), Bug::IgnoresReaders);
}

#[test]
#[should_panic(expected = "wedged")]
fn model_finds_unfreed_slot_of_a_dead_reader() {
    explore(1, 1, (1, 0), Bug::NoRecovery);
}

#[test]
#[should_panic(expected = "torn, and not reported")]
fn model_finds_cleared_mark_of_a_dead_writer() {
    explore(1, 1, (1, 0), Bug::IgnoresWriting);
}

#[test]
#[should_panic(expected = "a mark without a dead writer")]
fn model_finds_poison_mark_without_a_write() {
    explore(2, 1, (1, 0), Bug::TakesMarksSeriously);
}
