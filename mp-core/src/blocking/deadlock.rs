//! Detection of deadlocks: cycles of threads in any processes that wait for each other's locks. The waiting
//! threads detect a deadlock, and one of them gets an error.
//!
//! A thread that has waited for a lock for a poll interval, without a time-out, writes a
//! [note](crate::steps::lock::wait_note) with the lock that it waits for. After each poll interval it
//! searches for a [cycle](crate::steps::lock::cycle) that leads back to itself. So a deadlock is found within
//! about 200 ms after the last of its threads began to wait. The detection costs nothing for a lock that is
//! acquired within a poll interval.
//!
//! The detection covers waits without a time-out for `Lock`, `Array`, `RLock`, `RwLock` and `Once`. It
//! excludes:
//!
//! - waits with a time-out, which end by themselves;
//! - waits of a reader because of too many readers;
//! - waits for queues, semaphores, conditions and barriers, because any process can put, release or notify.

use std::fmt;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::arena::Arena;
use crate::blocking::reports::table;
use crate::blocking::wait_limit::Wait;
use crate::blocks::Blocks;
use crate::layout::control;
use crate::mem::{Mem, Word, run};
use crate::members::Members;
use crate::parking::POLL_INTERVAL;
use crate::process::{PerProcess, per_process};
use crate::steps::lock::cycle::{CycleStep, FindCycle, LockCycle, MemberThread};
use crate::steps::lock::wait_note::{WriteNote, WrittenNote};
use crate::sys::{identity, memory, monotonic};
use crate::words::{BlockId, LockKind, Member, WaitGoal};

/// A deadlock: a cycle of threads, each of which waits for a lock that the next thread holds.
///
/// `Display` writes one sentence with the number, name and process of each thread, the lock that the thread
/// waits for, and the time waited.
///
/// | question | answer |
/// |---|---|
/// | Which deadlocks are found? | cycles of any length of `Lock`, `Array`, `RLock`, `RwLock` and `Once`, in calls without a time-out, of threads of any processes |
/// | Which are not found? | cycles that include a wait with a time-out, which ends by itself; a wait for a queue, semaphore, event, condition or barrier; a reader that waits because there are too many readers; a thread that waits while 64 other threads of its process wait |
/// | Which thread gets the error? | the thread that began to wait last. If its process is stopped, the error is returned when the process continues, otherwise within about 200 ms. Exception: a thread that returns from a `Condition` and locks the condition's `RLock` again, while it has other guards of that `RLock`, never gets the error, because it needs the lock |
/// | What should this thread do? | drop its guards, as `?` does. The other threads then continue. To avoid deadlocks, acquire locks in the same order everywhere |
/// | What if a process dies? | no cycle includes a dead process: other threads acquire its locks, with `OwnerDied` |
/// | What does the detection cost? | nothing if a lock is acquired within 100 ms. After that some microseconds each 100 ms, in the waiting thread |
/// | How is it disabled? | [`Arena::set_deadlock_detection`], or `MP_DEADLOCK=off` in the environment of a process |
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Deadlock {
    /// Threads of the cycle. The thread that got the error is first.
    pub steps: Vec<DeadlockStep>,
}

/// Thread in a [`Deadlock`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DeadlockStep {
    /// Process of the thread.
    pub member: Member,
    /// Process ID, or 0 if the process has left the arena.
    pub pid: u32,
    /// Name of the process, as in reports of hangs, if it has one.
    pub process_name: Option<String>,
    /// Thread ID in the kernel.
    pub thread: u32,
    /// Name of the thread, as shown by `ps -L`, if it is readable.
    pub thread_name: Option<String>,
    /// Kind of lock and of access that the thread waits for. The next thread holds the lock.
    pub kind: LockKind,
    /// Name of the lock, if it has one.
    pub lock_name: Option<String>,
    /// Block of the lock, as in the lock's `Debug` output.
    pub block: Option<BlockId>,
    /// Time that the thread had waited.
    pub waited: Duration,
}

/// Formats a lock for a message.
struct LockLabel<'a>(&'a DeadlockStep);

impl fmt::Display for LockLabel<'_> {
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
            write!(f, "has waited {:.1} s for the {}", step.waited.as_secs_f64(), LockLabel(step))?;
        }
        f.write_str(
            ", which this thread holds; the lock was not taken: drop the guards of this thread, so that \
            the others go on, and \
             lock in the same order everywhere",
        )
    }
}

static OFF_HERE: PerProcess<OnceLock<bool>> = per_process!(OnceLock::new());
const VARIABLE: &str = "MP_DEADLOCK";

/// Returns `true` if the environment of this process disables the detection.
fn is_off_here() -> bool {
    *OFF_HERE.get_or_init(|| {
        !crate::gained_privileges() && std::env::var_os(VARIABLE).is_some_and(|value| value == "off")
    })
}

fn is_on(arena: Arena) -> bool {
    arena.map().load(Word::at(control::NO_DEADLOCKS)) == 0 && !is_off_here()
}

/// Returns the block that contains a word.
fn block_around(arena: Arena, word: Word) -> Option<BlockId> {
    let slabs = arena.map().load(Word::at(control::SLABS)).min(u64::from(arena.layout().slabs)) as u32;
    let blocks = |slab| slab * crate::layout::SLAB_BLOCKS;
    (0..slabs).find_map(|slab| {
        let (base, len) = Blocks(arena).data_of(blocks(slab));
        let nth = word.offset().checked_sub(base)?.checked_div(len)?;
        (nth < u64::from(blocks(1))).then(|| blocks(slab) + nth as u32)
    })
}

/// A wait for a lock, as used by the deadlock detection. Dropping this value withdraws the note of the wait.
#[derive(Debug)]
pub struct LockWait {
    arena: Arena,
    me: Member,
    goal: WaitGoal,
    endless: bool,
    /// Time of the first call of `look`, about a millisecond after the wait began. Not the beginning itself,
    /// because short waits do not read the clock.
    begun: Option<Instant>,
    note: Option<WrittenNote>,
}

impl LockWait {
    /// Begins a wait of the calling thread, of member `me`, for `goal`. A wait with a time-out writes no note
    /// and finds no deadlock.
    pub fn new(arena: Arena, me: Member, goal: WaitGoal, wait: Wait) -> Self {
        let endless = wait == Wait::Forever;
        Self { arena, me, goal, endless, begun: None, note: None }
    }

    /// Searches for a deadlock, if the wait has lasted a poll interval. Returns the deadlock if the calling
    /// thread is the thread of the cycle that gets the error.
    pub fn look(&mut self, now: Instant) -> Option<Box<Deadlock>> {
        let waited = now.saturating_duration_since(*self.begun.get_or_insert(now));
        if !self.endless || waited < POLL_INTERVAL {
            return None;
        }
        self.find(waited)
    }

    #[cold]
    fn find(&mut self, waited: Duration) -> Option<Box<Deadlock>> {
        if !is_on(self.arena) {
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
        let dies = |step: &CycleStep| Members(self.arena).is_dead(step.thread.member);
        if cycle.victim() != Some(who) || cycle.steps.iter().any(dies) {
            return None;
        }
        Some(Box::new(self.describe(&cycle)))
    }

    #[cold]
    fn describe(&self, cycle: &LockCycle) -> Deadlock {
        let now = monotonic();
        let describe = |step: &CycleStep| {
            let MemberThread { member, thread } = step.thread;
            let (pid, block) = (Members(self.arena).pid_of(member), block_around(self.arena, step.goal.lock));
            let known = |name: String| Some(name).filter(|name| !name.is_empty());
            DeadlockStep {
                member,
                pid,
                process_name: known(Members(self.arena).name_of(member)),
                thread,
                thread_name: memory::thread_name(pid, thread),
                kind: step.goal.kind,
                lock_name: block.and_then(|block| known(table::name_in(self.arena, block))),
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
            note.take_back(self.arena.map());
        }
    }
}

#[cfg(all(test, not(mp_loom)))]
mod tests {
    use super::*;
    use crate::setup::Backing;

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
    fn deadlock_report_names_the_whole_cycle() {
        let steps = vec![
            step(1, Some("main"), LockKind::Lock, 31),
            step(2, Some("worker 1"), LockKind::Write, 32),
            step(0, None, LockKind::RLockReentry, 0),
        ];
        assert_eq!(
            Deadlock { steps }.to_string(),
            "deadlock: this thread, thread 32 \"main\" of process 31 (member 1.1), has waited 1.2 s for \
            the Lock \"weights\" in block 71, which \
             thread 33 of process 32 (member 2.1) \"worker 1\" holds; that has waited 1.2 s for the RwLock \
             in block 72 to write, which thread 1 \
             of member 0.1 (process id not known) holds; that has waited 1.2 s for the RLock in an unknown \
             block, which this thread \
             holds; the lock was not taken: drop the guards of this thread, so that the others go on, and \
             lock in the same order \
             everywhere"
        );
    }

    /// Notes of a slot's previous member, in any state, don't belong to the next member.
    #[test]
    fn wait_notes_of_an_old_member_are_freed_for_the_next() {
        let arena = Arena::current().unwrap();
        let (notes, map) = (arena.layout().wait_notes(), arena.map());
        // A slot that has no member here.
        let last = Member::new(Members(arena).used_slots().count() as u32, 7);
        let (at, len) = arena.layout().member_bytes(last.slot());
        Backing(arena).commit_at(at, len).unwrap();
        let goal = WaitGoal { kind: LockKind::Lock, lock: Word::at(4096), readers: None };
        assert!((0..64).all(|i| run(WriteNote::new(notes, last, i, goal, 1), map).is_some()));
        assert!(run(WriteNote::new(notes, last, 64, goal, 1), map).is_none());
        let before = map.load(notes.mark(last, 0));
        Members(arena).free_wait_notes(last);
        assert!((0..64).all(|i| run(WriteNote::new(notes, last, i, goal, 1), map).is_some()));
        assert_ne!(map.load(notes.mark(last, 0)), before, "a new note has a new mark");
        Members(arena).free_wait_notes(last);
    }
}
