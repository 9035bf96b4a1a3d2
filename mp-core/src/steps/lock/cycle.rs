//! Cycles of threads, each of which waits for a lock held by the next one. `blocking::deadlock` searches for
//! them.
//!
//! A lock's words name the thread that holds the lock ([`lock`](super)). A thread that has waited for a while
//! writes a [note](super::wait_note), which names the lock that it waits for. So a waiting thread follows a
//! path: the lock that it waits for, its holder, the lock that the holder waits for, until it reaches itself,
//! or a thread without a note. The search changes nothing. A writer waits for all readers, so the search
//! follows each of them.
//!
//! # Proof that a reported cycle is a deadlock
//! Words change while they are read. So the words of the cycle are read in two passes. The first pass reads
//! for each thread the mark of its note, then its goal (the lock that it waits for), then the words that name
//! the lock's holder. When the cycle is closed, the second pass reads the marks and the words of the holders
//! again. If none of them has changed, there was an instant between the two passes at which all of them had
//! these values at once. No old value can return, because marks and locks have sequence numbers. At that
//! instant each thread of the cycle
//! - was within its wait, or had decided to give up the wait: its note was set;
//! - did not hold the lock that it waited for: the lock's word named the next thread;
//! - held the lock that the previous thread waited for, and could not release it: only the holder of a lock
//!   releases it, and the holder waits, without a time-out (a wait with a time-out writes no note).
//!
//! Only a thread of the cycle, or the death of its process, can end the deadlock. Threads of a stopped
//! process still wait when the process continues. A thread of a stopped process that holds a lock and does
//! not wait has no note, so it is in no cycle. The caller checks afterwards if a process of the cycle is
//! dead: locks of dead processes are adopted, and their waiters continue.
//!
//! # Memory order
//! Acquire and release are sufficient. A thread frees its note before it releases the lock that it acquired.
//! So a search that reads a later holder in the lock's word finds the note freed in the second pass. The
//! exception is the note of a thread that has given up its wait: a search can still read the note's previous
//! value. Such a search finds the deadlock that has just ended, with the same victim.
//!
//! # Choice of the thread that gives up
//! Every thread of a cycle finds the cycle, since each searches after every poll interval. The thread that
//! began to wait last gives up ([`LockCycle::victim`]): it closed the cycle. If two threads began in the same
//! nanosecond, the thread with the larger number gives up. All threads decide by the same words, so no two
//! threads of one cycle give up. If cycles share threads, the thread that began to wait last in all of them
//! gives up in each of its own cycles. So at least one thread finds a cycle in which it has to give up. A
//! thread that can't continue without the lock ([`LockKind::may_be_victim`](crate::words::LockKind)) is
//! skipped.
//!
//! # Effects of a death or a stop
//! None: the search only reads. If the victim is stopped between its decision and its return, its note stays
//! until it continues. The other threads find the cycle again, with the same victim, and wait for the victim.

use crate::mem::{Mem, Steps, Word};
use crate::steps::lock::wait_note::WaitNotesAt;
use crate::steps::lock::{LockAt, LockWord, OsThread};
use crate::words::holder_slot::{HELD, HolderSlot};
use crate::words::{Member, WaitGoal, WaitMark, WaitState};

/// Maximum number of threads that one search reads. A cycle that needs more is not found.
const MAX_THREADS: usize = 1024;

/// Thread of a member.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct MemberThread {
    /// Process of the thread.
    pub member: Member,
    /// Thread id in the pid namespace of its own process.
    pub thread: u32,
}

/// Word, and the value that was read from it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct WordSnapshot {
    word: Word,
    value: u64,
    /// Bits that the second pass does not compare, because they can change during a deadlock.
    volatile_bits: u64,
}

/// Thread of a cycle, and its goal: the lock that the next thread holds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CycleStep {
    /// Waiting thread.
    pub thread: MemberThread,
    /// Lock for which the thread waits.
    pub goal: WaitGoal,
    /// Start of the wait, in nanoseconds of the monotonic clock.
    pub since: u64,
    mark: WordSnapshot,
    /// Words that name the holder of the lock.
    owner: [Option<WordSnapshot>; 2],
    /// If the thread waits for readers: the index of the next reader slot to search, and the number of slots.
    slots: Option<(u32, u32)>,
}

impl CycleStep {
    fn snapshots(&self) -> impl Iterator<Item = WordSnapshot> {
        [Some(self.mark)].into_iter().chain(self.owner).flatten()
    }
}

/// Cycle of threads, each of which waits for a lock held by the next one. The last thread waits for a lock
/// held by the first.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct LockCycle {
    /// Threads of the cycle. The searching thread is first.
    pub steps: Vec<CycleStep>,
}

impl LockCycle {
    /// Returns the thread that gives up, or `None` if no thread of the cycle can give up.
    pub fn victim(&self) -> Option<MemberThread> {
        let can = self.steps.iter().filter(|step| step.goal.kind.may_be_victim());
        can.max_by_key(|step| (step.since, step.thread)).map(|step| step.thread)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Pc {
    /// Searches for the note of a thread.
    Note(MemberThread, u32),
    Goal(MemberThread, WordSnapshot),
    Readers(MemberThread, WordSnapshot, u64),
    Since(MemberThread, WordSnapshot, WaitGoal),
    /// Finds the holder of the lock for which the thread of the last step waits.
    Lock,
    By(LockWord),
    Used,
    Slot(u32, u32),
    /// Reads the word of the cycle with this index again.
    Recheck(usize),
    End,
}

/// Searches for a cycle of waiters that leads back to the searching thread. Ends with the cycle, or with
/// `None` if there is no cycle.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct FindCycle {
    notes: WaitNotesAt,
    me: MemberThread,
    path: Vec<CycleStep>,
    visited: Vec<MemberThread>,
    pc: Pc,
}

impl FindCycle {
    /// Creates the steps for the thread `me`, which has a note.
    pub fn new(notes: WaitNotesAt, me: MemberThread) -> Self {
        Self { notes, me, path: Vec::new(), visited: Vec::new(), pc: Pc::Note(me, 0) }
    }

    /// Continues the search with `thread`, which holds the lock of the last step. `owner` has the words that
    /// name this thread.
    fn follow(&mut self, thread: MemberThread, owner: [Option<WordSnapshot>; 2]) {
        if let Some(last) = self.path.last_mut() {
            last.owner = owner;
        }
        if thread == self.me {
            self.pc = Pc::Recheck(0);
        } else if self.visited.contains(&thread) || self.visited.len() >= MAX_THREADS {
            self.back();
        } else {
            self.visited.push(thread);
            self.pc = Pc::Note(thread, 0);
        }
    }

    /// Leaves a dead end: continues with the next reader for which a writer of the path waits.
    fn back(&mut self) {
        self.pc = loop {
            match self.path.last() {
                None => break Pc::End,
                Some(CycleStep { slots: Some((next, used)), .. }) => break Pc::Slot(*next, *used),
                Some(_) => _ = self.path.pop(),
            }
        };
    }

    /// Returns the word with this index among the words of the cycle.
    fn snapshots(&self, i: usize) -> Option<WordSnapshot> {
        self.path.iter().flat_map(CycleStep::snapshots).nth(i)
    }

    fn last(&self) -> Option<CycleStep> {
        self.path.last().copied()
    }
}

impl Steps for FindCycle {
    type Out = Option<LockCycle>;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<Option<LockCycle>> {
        match self.pc {
            Pc::Note(_, entry) if entry == self.notes.entries => self.back(),
            Pc::Note(thread, entry) => {
                let word = self.notes.mark(thread.member, entry);
                let value = m.load(word);
                let mark = WaitMark::unpack(value);
                let its = mark.thread == thread.thread;
                self.pc = match its && mark.state == WaitState::Waiting {
                    true => Pc::Goal(thread, WordSnapshot { word, value, volatile_bits: 0 }),
                    false => Pc::Note(thread, entry + 1),
                };
            }
            Pc::Goal(thread, mark) => self.pc = Pc::Readers(thread, mark, m.load(mark.word.plus(1))),
            Pc::Readers(thread, mark, goal) => match WaitGoal::unpack([goal, m.load(mark.word.plus(2))]) {
                Some(goal) => self.pc = Pc::Since(thread, mark, goal),
                None => self.back(),
            },
            Pc::Since(thread, mark, goal) => {
                let since = m.load(mark.word.plus(3));
                self.path.push(CycleStep { thread, goal, since, mark, owner: [None; 2], slots: None });
                self.pc = if goal.readers.is_some() { Pc::Used } else { Pc::Lock };
            }
            Pc::Lock => {
                let lock = self.last().map(|last| LockWord(m.load(last.goal.lock)));
                match lock.filter(|lock| lock.holder().is_some()) {
                    Some(lock) => self.pc = Pc::By(lock),
                    None => self.back(),
                }
            }
            Pc::By(lock) => {
                let owner = self.last().zip(lock.holder()).and_then(|(last, member)| {
                    let at = LockAt(last.goal.lock);
                    let by = m.load(at.by());
                    let thread = OsThread::of(by, lock)?.tid;
                    let word =
                        WordSnapshot { word: at.word(), value: lock.0, volatile_bits: LockWord::PARKED };
                    let by = WordSnapshot { word: at.by(), value: by, volatile_bits: 0 };
                    Some((MemberThread { member, thread }, [Some(word), Some(by)]))
                });
                match owner {
                    Some((thread, words)) => self.follow(thread, words),
                    None => self.back(),
                }
            }
            Pc::Used => match self.last().and_then(|last| last.goal.readers) {
                Some(at) => self.pc = Pc::Slot(0, m.load(at.used).min(u64::from(at.limit)) as u32),
                None => self.back(),
            },
            Pc::Slot(next, used) if next == used => {
                self.path.pop();
                self.back();
            }
            Pc::Slot(next, used) => {
                let Some(at) = self.last().and_then(|last| last.goal.readers) else {
                    self.back();
                    return None;
                };
                let word = at.first.plus(u64::from(next));
                let value = m.load(word);
                let slot = HolderSlot::unpack(value);
                if slot.state == HELD {
                    if let Some(last) = self.path.last_mut() {
                        last.slots = Some((next + 1, used));
                    }
                    let thread = MemberThread { member: slot.member, thread: slot.thread };
                    self.follow(thread, [Some(WordSnapshot { word, value, volatile_bits: 0 }), None]);
                } else {
                    self.pc = Pc::Slot(next + 1, used);
                }
            }
            Pc::Recheck(i) => match self.snapshots(i) {
                Some(found) if (m.load(found.word) ^ found.value) & !found.volatile_bits == 0 => {
                    self.pc = Pc::Recheck(i + 1);
                }
                // There was no cycle, or it has ended.
                Some(_) => self.pc = Pc::End,
                None => return Some(Some(LockCycle { steps: std::mem::take(&mut self.path) })),
            },
            Pc::End => return Some(None),
        }
        None
    }
}

#[cfg(all(test, not(mp_loom)))]
mod tests {
    use super::*;
    use crate::mem::{HeapMem, run};
    use crate::steps::lock::wait_note::{WriteNote, WrittenNote};
    use crate::steps::lock::{AcquireLock, LockAttempt, ReleaseLock, SetParked};
    use crate::words::holder_slot::EMPTY;
    use crate::words::{LockKind, ReadersAt};

    const A: LockAt = LockAt(Word::at(0));
    const B: LockAt = LockAt(Word::at(24));
    /// Word with the number of reader slots in use. The slots follow.
    const USED: Word = Word::at(48);
    const NOTES: WaitNotesAt = WaitNotesAt { base: Word::at(96), stride: 64, entries: 2 };

    fn thread(member: u32, thread: u32) -> MemberThread {
        MemberThread { member: Member::new(member, 1), thread }
    }

    fn take(m: &HeapMem, at: LockAt, thread: MemberThread) {
        let steps = AcquireLock::new(at, thread.member, OsThread { pid: 9, tid: thread.thread }, false, None);
        assert!(matches!(run(steps, m), LockAttempt::Acquired(_)));
    }

    fn wait(m: &HeapMem, thread: MemberThread, goal: WaitGoal, since: u64) -> WrittenNote {
        run(WriteNote::new(NOTES, thread.member, thread.thread, goal, since), m).expect("there are two notes")
    }

    fn goal(kind: LockKind, lock: LockAt) -> WaitGoal {
        WaitGoal { kind, lock: lock.word(), readers: None }
    }

    fn find(m: &HeapMem, me: MemberThread) -> Option<LockCycle> {
        run(FindCycle::new(NOTES, me), m)
    }

    /// Prepares three waiting threads, two of one member and one of another. The first holds A and waits for
    /// B. The second waits for B. The last holds B and waits for A.
    fn cycle() -> (HeapMem, [MemberThread; 3], [WrittenNote; 3]) {
        let m = HeapMem::new(64);
        let all = [thread(0, 5), thread(0, 6), thread(1, 5)];
        take(&m, A, all[0]);
        take(&m, B, all[2]);
        let kinds = [(LockKind::Lock, B, 3), (LockKind::Lock, B, 1), (LockKind::RLock, A, 2)];
        let notes = [0, 1, 2].map(|i| wait(&m, all[i], goal(kinds[i].0, kinds[i].1), kinds[i].2));
        (m, all, notes)
    }

    #[test]
    fn lock_cycle_is_found_only_by_threads_in_it() {
        let (m, all, _) = cycle();
        let steps =
            |me| find(&m, me).map(|cycle| cycle.steps.iter().map(|step| step.thread).collect::<Vec<_>>());
        assert_eq!(steps(all[0]), Some(vec![all[0], all[2]]));
        assert_eq!(steps(all[2]), Some(vec![all[2], all[0]]));
        assert_eq!(steps(all[1]), None, "the thread waits for a thread of the cycle, but is not in it");
    }

    /// Each change happens between the two passes.
    #[test]
    fn lock_cycle_that_changes_during_search_is_ignored() {
        let all_steps = {
            let (m, all, _) = cycle();
            let mut steps = FindCycle::new(NOTES, all[0]);
            (1..).find(|_| steps.step(&m).is_some()).expect("the search ends")
        };
        // The second pass reads three words of each of two threads. The last step finds that none is left.
        let first_read = all_steps - 7;
        type Change = fn(&HeapMem, &[MemberThread; 3], &[WrittenNote; 3]);
        let changes: [Change; 4] = [
            |m, all, notes| {
                notes[2].take_back(m);
                // Another wait with the same words.
                wait(m, all[2], goal(LockKind::RLock, A), 2);
            },
            |m, _, notes| notes[2].take_back(m),
            |m, all, _| {
                run(ReleaseLock::new(B, true), m);
                take(m, B, all[2]);
            },
            |m, _, _| _ = run(ReleaseLock::new(A, true), m),
        ];
        for change in changes {
            let (m, all, notes) = cycle();
            let mut steps = FindCycle::new(NOTES, all[0]);
            (0..first_read).for_each(|_| assert!(steps.step(&m).is_none()));
            change(&m, &all, &notes);
            assert_eq!(run(steps, &m), None);
        }
        // Other waiters may fall asleep at any time.
        let (m, all, _) = cycle();
        let mut steps = FindCycle::new(NOTES, all[0]);
        (0..first_read).for_each(|_| assert!(steps.step(&m).is_none()));
        run(SetParked::new(B, LockWord(m.load(B.word()))), &m);
        assert!(run(steps, &m).is_some());
    }

    #[test]
    fn writer_and_awaited_reader_form_a_lock_cycle() {
        let (writer, idle, reader) = (thread(0, 5), thread(1, 5), thread(2, 5));
        let first = USED.plus(1);
        for left in [false, true] {
            let m = HeapMem::new(64);
            take(&m, A, writer);
            take(&m, B, writer);
            for (i, thread) in [idle, reader].into_iter().enumerate() {
                let state = if left && thread == reader { EMPTY } else { HELD };
                let slot = HolderSlot { state, member: thread.member, thread: thread.thread, sequence: 0 };
                m.store(first.plus(i as u64), slot.pack());
            }
            m.store(USED, 2);
            let readers = Some(ReadersAt { used: USED, first, limit: 3 });
            wait(&m, writer, WaitGoal { kind: LockKind::Write, lock: A.word(), readers }, 1);
            wait(&m, reader, goal(LockKind::Lock, B), 2);
            let found = [writer, reader].map(|me| find(&m, me).map(|cycle| cycle.victim()));
            assert_eq!(found, if left { [None; 2] } else { [Some(Some(reader)); 2] });
        }
    }

    #[test]
    fn deadlock_victim_is_the_last_thread_to_wait() {
        let (m, all, notes) = cycle();
        let gives_up = |m: &HeapMem| [all[0], all[2]].map(|me| find(m, me).expect("a cycle").victim());
        assert_eq!(gives_up(&m), [Some(all[0]); 2]);
        notes[0].take_back(&m);
        let stubborn = wait(&m, all[0], goal(LockKind::RLockReentry, B), 3);
        assert_eq!(gives_up(&m), [Some(all[2]); 2]);
        notes[2].take_back(&m);
        wait(&m, all[2], goal(LockKind::RLockReentry, A), 4);
        assert_eq!(gives_up(&m), [None; 2]);
        // All notes are claimed: a third thread of the member writes none.
        assert!(run(WriteNote::new(NOTES, all[0].member, 7, goal(LockKind::Lock, A), 5), &m).is_none());
        stubborn.take_back(&m);
        assert!(run(WriteNote::new(NOTES, all[0].member, 7, goal(LockKind::Lock, A), 5), &m).is_some());
    }
}
