//! Deadlocks between locks, of threads in any processes: found by the threads that wait, and an error of one of them.
//!
//! A thread that has waited for a lock for a poll interval, and would wait for ever, writes a
//! [note](crate::steps::wait_note) of what it waits for, and then, after each poll interval, looks for a
//! [cycle](crate::steps::lock_cycle) that leads back to it. So a deadlock is found within about 200 ms after the last of its
//! threads began to wait. Nothing of this is on the way of a lock that is had sooner.
//!
//! What is looked at: waits without a time-out, of `Lock`, `Array`, `RLock`, `RwLock` and `Once`. What isn't: waits with a time-out,
//! which end by themselves, and so do the waits for those; readers that wait for a place among too many readers; and waits
//! at queues, semaphores, conditions and barriers, since any process can put, release or notify.

use std::fmt;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::arena::layout::control;
use crate::arena::waiting::block_on::Wait;
use crate::arena::waiting::waits::table::name_of;
use crate::arena::{Arena, POLL_INTERVAL};
use crate::mem::{Mem, Word, run};
use crate::process::{GENERATIONS, PerProcess};
use crate::steps::lock_cycle::{CycleStep, FindCycle, LockCycle, MemberThread};
use crate::steps::wait_note::{TakeNoteBack, WaitNotesAt, WriteNote, WrittenNote};
use crate::sys::{identity, memory, monotonic};
use crate::words::{BlockId, LockKind, Member, WaitGoal, WaitMark, WaitState};

/// A deadlock: threads each of which waits for a lock that the next one holds, and the last one for one that the first one holds.
///
/// It prints as one sentence: for each thread its number, name and process, what it waits for and for how long, and that the next
/// one holds it.
///
/// | | |
/// |---|---|
/// | found | cycles of any length of `Lock`, `Array`, `RLock`, `RwLock` and `Once`, in calls without a time-out, of threads of any processes |
/// | not found | cycles by way of waits with a time-out, which end by themselves; of waits at queues, semaphores, events, conditions and barriers; of readers that wait since there are too many; of a thread that waits while 64 others of its process do |
/// | which thread gets it | the one that began to wait last, within about 200 ms; if its process is stopped, when it continues. Not one that comes back from a `Condition` to an `RLock` of which it has other guards: it can't do without |
/// | what to do | drop the guards of this thread, as `?` does; then the others go on. Lock in the same order everywhere |
/// | a process dies | no cycle leads through it: its locks are adopted, which is `OwnerDied` |
/// | costs | nothing where a lock is had within 100 ms; then some microseconds each 100 ms, in the thread that waits |
/// | off | [`Arena::set_deadlock_detection`], or `MP_DEADLOCK=off` in the environment of a process |
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Deadlock {
    /// The threads; the one that has got the error first.
    pub steps: Vec<DeadlockStep>,
}

/// A thread of a [`Deadlock`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DeadlockStep {
    /// Its process.
    pub member: Member,
    /// The process id; 0 if it is not known any more.
    pub pid: u32,
    /// The name of the process, as reports of hangs have it, if it has one.
    pub process_name: Option<String>,
    /// The kernel's number of the thread.
    pub thread: u32,
    /// The thread's name, as `ps -L` shows it, if it can be seen.
    pub thread_name: Option<String>,
    /// What it waits for, and as what. The next thread holds it.
    pub kind: LockKind,
    /// The name of the lock, if it has one.
    pub lock_name: Option<String>,
    /// The block that the lock is in, as the lock's `Debug` says it.
    pub block: Option<BlockId>,
    /// How long it had waited.
    pub waited: Duration,
}

/// A lock in a message.
struct Named<'a>(&'a DeadlockStep);

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.kind.type_name())?;
        if let Some(name) = &self.0.lock_name {
            write!(f, " {name:?}")?;
        }
        match self.0.block {
            Some(block) => write!(f, " in block {block}")?,
            None => f.write_str(" in an unknown block")?,
        }
        match self.0.kind {
            LockKind::Read => f.write_str(" to read"),
            LockKind::Write => f.write_str(" to write"),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for DeadlockStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "thread {} ", self.thread)?;
        // The main thread of a worker has the worker's name.
        if let Some(name) = self.thread_name.as_ref().filter(|_| self.thread_name != self.process_name) {
            write!(f, "{name:?} ")?;
        }
        write!(f, "of {}", self.member.process(self.pid))?;
        match &self.process_name {
            Some(name) => write!(f, " {name:?}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Deadlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("deadlock: ")?;
        for (i, step) in self.steps.iter().enumerate() {
            match i {
                0 => write!(f, "this thread, {step}, ")?,
                _ => write!(f, ", which {step} holds; that ")?,
            }
            write!(f, "has waited {:.1} s for the {}", step.waited.as_secs_f64(), Named(step))?;
        }
        f.write_str(
            ", which this thread holds; the lock was not taken: drop the guards of this thread, so that the others go on, and \
             lock in the same order everywhere",
        )
    }
}

static OFF_HERE: PerProcess<OnceLock<bool>> = PerProcess::new([const { OnceLock::new() }; GENERATIONS]);
const VARIABLE: &str = "MP_DEADLOCK";

/// Whether the environment of this process says that it looks for none.
fn is_off_here() -> bool {
    *OFF_HERE.get_or_init(|| {
        !crate::gained_privileges() && std::env::var_os(VARIABLE).is_some_and(|value| value == "off")
    })
}

impl Arena {
    /// From now on, threads that wait for locks look for deadlocks, or don't; for all members. They do unless they are told.
    ///
    /// ```
    /// let arena = mp_core::Arena::current()?;
    /// arena.set_deadlock_detection(false); // locks may be waited for in a cycle for good
    /// arena.set_deadlock_detection(true);
    /// # Ok::<(), mp_core::Error>(())
    /// ```
    ///
    /// A process in whose environment `MP_DEADLOCK` is `off` never looks, and is part of no deadlock that others find. Looking
    /// costs nothing while locks are had within 100 ms, and some microseconds each 100 ms after that. What is found is
    /// [`LockError::Deadlock`](crate::LockError::Deadlock).
    pub fn set_deadlock_detection(&self, on: bool) {
        self.map().store(Word::at(control::NO_DEADLOCKS), u64::from(!on));
    }

    fn looks_for_deadlocks(&self) -> bool {
        self.map().load(Word::at(control::NO_DEADLOCKS)) == 0 && !is_off_here()
    }

    /// Before this process becomes a member: what the last tenant of its slot said.
    pub(in crate::arena) fn free_wait_notes(&self, me: Member) {
        for entry in 0..WaitNotesAt::ENTRIES {
            let word = self.layout().wait_notes().mark(me, entry);
            let mark = WaitMark::unpack(self.map().load(word));
            if mark.state != WaitState::Free {
                let free = WaitMark { state: WaitState::Free, thread: 0, sequence: mark.sequence };
                self.map().store(word, free.pack());
            }
        }
    }

    /// The block that a word lies in.
    fn block_around(&self, word: Word) -> Option<BlockId> {
        let slabs = self.map().load(Word::at(control::SLABS)).min(u64::from(self.layout().slabs)) as u32;
        let blocks = |slab| slab * crate::arena::layout::SLAB_BLOCKS;
        (0..slabs).find_map(|slab| {
            let (base, len) = self.data_of(blocks(slab));
            let nth = word.offset().checked_sub(base)?.checked_div(len)?;
            (nth < u64::from(blocks(1))).then(|| blocks(slab) + nth as u32)
        })
    }
}

/// A wait for a lock, as seen by those that look for deadlocks. What it says is taken back when it is dropped.
#[derive(Debug)]
pub struct LockWait {
    arena: Arena,
    me: Member,
    goal: WaitGoal,
    endless: bool,
    /// When it was first asked to look, which is a millisecond after it began: what is short pays for no look at the clock.
    begun: Option<Instant>,
    note: Option<WrittenNote>,
}

impl LockWait {
    /// The calling thread, of member `me`, begins to wait for `goal`. With a time-out it says nothing and finds nothing.
    pub fn new(arena: Arena, me: Member, goal: WaitGoal, wait: Wait) -> Self {
        let endless = wait == Wait::Forever;
        Self { arena, me, goal, endless, begun: None, note: None }
    }

    /// Looks for a deadlock, if the wait has taken a poll interval: ends with it if the calling thread is the one that
    /// gives up.
    pub fn look(&mut self, now: Instant) -> Option<Box<Deadlock>> {
        let waited = now.saturating_duration_since(*self.begun.get_or_insert(now));
        if !self.endless || waited < POLL_INTERVAL {
            return None;
        }
        self.find(waited)
    }

    #[cold]
    fn find(&mut self, waited: Duration) -> Option<Box<Deadlock>> {
        if !self.arena.looks_for_deadlocks() {
            return None;
        }
        let (map, notes) = (self.arena.map(), self.arena.layout().wait_notes());
        let who = MemberThread { member: self.me, thread: identity::thread() };
        if self.note.is_none() {
            let since = monotonic().saturating_sub(waited).as_nanos() as u64;
            self.note = run(WriteNote::new(notes, who.member, who.thread, self.goal, since), map);
        }
        self.note?;
        let cycle = run(FindCycle::new(notes, who), map)?;
        let dies = |step: &CycleStep| self.arena.is_dead(step.who.member);
        if cycle.gives_up() != Some(who) || cycle.steps.iter().any(dies) {
            return None;
        }
        Some(Box::new(self.describe(&cycle)))
    }

    #[cold]
    fn describe(&self, cycle: &LockCycle) -> Deadlock {
        let now = monotonic();
        let describe = |step: &CycleStep| {
            let MemberThread { member, thread } = step.who;
            let (pid, block) = (self.arena.pid_of(member), self.arena.block_around(step.goal.lock));
            let known = |name: String| Some(name).filter(|name| !name.is_empty());
            DeadlockStep {
                member,
                pid,
                process_name: known(name_of(self.arena, member)),
                thread,
                thread_name: memory::thread_name(pid, thread),
                kind: step.goal.kind,
                lock_name: block.and_then(|block| known(self.arena.object_name(block))),
                block,
                waited: now.saturating_sub(Duration::from_nanos(step.since)),
            }
        };
        Deadlock { steps: cycle.steps.iter().map(describe).collect() }
    }
}

impl Drop for LockWait {
    fn drop(&mut self) {
        if let Some(note) = self.note.take() {
            run(TakeNoteBack(note), self.arena.map());
        }
    }
}

#[cfg(all(test, not(mp_loom)))]
mod tests {
    use super::*;

    fn step(i: u32, name: Option<&str>, kind: LockKind, pid: u32) -> DeadlockStep {
        DeadlockStep {
            member: Member::new(i, 1),
            pid,
            process_name: (i == 2).then(|| "worker 1".into()),
            thread: pid + 1,
            thread_name: name.map(Into::into),
            kind,
            lock_name: (i == 1).then(|| "weights".into()),
            block: (i > 0).then_some(70 + i),
            waited: Duration::from_millis(1250),
        }
    }

    #[test]
    fn the_whole_cycle_is_named() {
        let steps = vec![
            step(1, Some("main"), LockKind::Lock, 31),
            step(2, Some("worker 1"), LockKind::Write, 32),
            step(0, None, LockKind::RLockAgain, 0),
        ];
        assert_eq!(
            Deadlock { steps }.to_string(),
            "deadlock: this thread, thread 32 \"main\" of process 31 (member 1.1), has waited 1.2 s for the Lock \"weights\" in block 71, which \
             thread 33 of process 32 (member 2.1) \"worker 1\" holds; that has waited 1.2 s for the RwLock in block 72 to write, which thread 1 \
             of member 0.1 (process id not known) holds; that has waited 1.2 s for the RLock in an unknown block, which this thread \
             holds; the lock was not taken: drop the guards of this thread, so that the others go on, and lock in the same order \
             everywhere"
        );
    }

    /// What the last tenant of a slot said is none of the next one's, whatever state it was in.
    #[test]
    fn notes_are_freed_for_the_next_tenant() {
        let arena = Arena::current().unwrap();
        let (notes, map) = (arena.layout().wait_notes(), arena.map());
        // A slot that has no tenant here.
        let last = Member::new(arena.used_slots().count() as u32, 7);
        let (at, len) = arena.layout().member_bytes(last.slot());
        arena.commit_at(at, len).unwrap();
        let goal = WaitGoal { kind: LockKind::Lock, lock: Word::at(4096), readers: None };
        assert!((0..64).all(|i| run(WriteNote::new(notes, last, i, goal, 1), map).is_some()));
        assert!(run(WriteNote::new(notes, last, 64, goal, 1), map).is_none());
        let before = map.load(notes.mark(last, 0));
        arena.free_wait_notes(last);
        assert!((0..64).all(|i| run(WriteNote::new(notes, last, i, goal, 1), map).is_some()));
        assert_ne!(map.load(notes.mark(last, 0)), before, "another note has another mark");
        arena.free_wait_notes(last);
    }
}
