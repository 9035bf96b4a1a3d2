//! Protocol for a process that releases a queue and notifies its waiters.
//!
//! The process wakes the queue's sleepers while it still holds the queue, since it may not access the queue's
//! words afterwards. A waiter that checks between that wake-up and the release still finds the process among
//! the holders, and no wake-up of the queue follows. Three words report the release to this waiter:
//!
//! | word | content | changed by |
//! |---|---|---|
//! | *asked*, one per arena | number of requests by waiters | a waiter that has announced itself, and finds other holders and a leaving process: adds 1, then checks the holders again |
//! | *last gone*, one per queue | process that announced its leaving last (next table) | by one swap: a leaving process, a process that recovers a dead process, or a process that discards a message that no process received |
//! | *noticed*, one per arena | number of deaths and releases | a process that has released a queue and finds that *asked* has changed; deaths: see `parking` |
//!
//! | bits of *last gone* | meaning |
//! |---|---|
//! | all 0 | no process has announced its leaving |
//! | 0 to 61: tag + 1 | member that announced its leaving last |
//! | 62, the lower bits 0 | *never joined*: a process lost a handle, because it never received the message with the handle |
//! | 63, in addition | *several*: a process announced its leaving while the previous process still held the queue. This bit is never cleared |
//!
//! A leaving process makes these accesses in order. It reads *asked*; swaps *last gone*; increments the
//! queue's parking words; releases its seat (a barrier follows); reads *asked* again; increments *noticed* if
//! *asked* has changed.
//!
//! A waiter makes these accesses in order. It announces itself at the parking word; reads *noticed*; reads
//! *last gone*, and checks if the process named there still holds the queue; checks all seats. If there are
//! other holders, and the named process held the queue or *several* is set, the waiter increments *asked* (a
//! barrier follows) and checks the seats again. Then it sleeps while the parking word and *noticed* are
//! unchanged.
//!
//! Proof, for each leaving process and each waiter that finds this process among the holders:
//!
//! - The waiter announced itself before the process incremented the parking word. The increment wakes the
//!   waiter, which checks again, like a waiter that announced itself after the increment.
//! - The waiter announced itself after the increment, and asks. The waiter's increment of *asked* follows the
//!   process's first read of *asked*. If the increment precedes the second read, the process notifies.
//!   Otherwise the waiter's second check of the seats follows the release, and finds the seat free.
//! - The waiter announced itself after the increment, and does not ask. Then the waiter has read a *last
//!   gone* that is not older than the process's own word. If the waiter has read the process's own word, the
//!   process's seat was free by then: otherwise the waiter would ask. If the waiter has read the word of a
//!   second process, the second process swapped its word in later and without *several*, because it found the
//!   first process's seat free. In both cases the waiter checks the seats afterwards, and finds the first
//!   process's seat free as well.
//!
//! A process that discards a message holds the queue while it notes *never joined*. It increments *noticed*
//! after the message and its own handle are gone, and releases its last handle like any process. *Never
//! joined* names no holder, so no waiter asks because of it.
//!
//! | killed | state left behind |
//! |---|---|
//! | a leaving process, at any point | the same as after any death: the death is noticed, and the processes that recover the member note it in its queues |
//! | a waiter that has asked | a number that no process depends on: at most one additional increment of *noticed* |
//!
//! Checked by `loom_queue_waiter_detects_concurrent_releases`, and by
//! `tests/tests/queues/deserted.rs` at each access.

use crate::layout::control;
use crate::mem::{Mem, Word};
use crate::words::Member;

/// Word that counts the requests of waiters to be notified when a process has released a queue.
pub(crate) const ASKED: Word = Word::at(control::ASKED);

/// Process that held a queue, or should have received it, and is gone.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DetachedProcess {
    /// Member that ended, or dropped its last handle.
    Member(Member),
    /// Process that never received the message with its handle.
    NeverJoined,
}

impl DetachedProcess {
    /// Returns the member, if the process was one.
    pub const fn member(self) -> Option<Member> {
        match self {
            Self::Member(member) => Some(member),
            Self::NeverJoined => None,
        }
    }

    /// Packs the value into a word, which is never 0.
    pub const fn pack(self) -> u64 {
        match self {
            Self::Member(member) => member.raw() + 1,
            Self::NeverJoined => 1 << 62,
        }
    }

    const fn unpack(w: u64) -> Option<Self> {
        match w {
            0 => None,
            w if w >> 62 == 1 => Some(Self::NeverJoined),
            w => Some(Self::Member(Member::from_raw(w - 1))),
        }
    }
}

/// Word of a queue that stores the last process that announced its leaving.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LastDetached(pub Word);

impl LastDetached {
    const SEVERAL: u64 = 1 << 63;

    fn of(word: u64) -> Option<DetachedProcess> {
        DetachedProcess::unpack(word & !Self::SEVERAL)
    }

    /// Records a leaving process in this word. `has` returns `true` if a member holds the queue.
    pub fn note<M: Mem + ?Sized>(self, m: &M, who: DetachedProcess, has: impl Fn(Member) -> bool) {
        let mut old = m.load(self.0);
        loop {
            let before = Self::of(old).filter(|before| *before != who).and_then(DetachedProcess::member);
            let several = before.is_some_and(&has);
            let new = who.pack() | old & Self::SEVERAL | if several { Self::SEVERAL } else { 0 };
            match m.cas(self.0, old, new) {
                Ok(()) => return,
                Err(now) => old = now,
            }
        }
    }

    /// Returns the process that last announced its leaving.
    pub fn read<M: Mem + ?Sized>(self, m: &M) -> Option<DetachedProcess> {
        Self::of(m.load(self.0))
    }

    /// Returns `true` if a noted process may still hold the queue, so that a waiter has to [`ask`]. `has` is
    /// as in [`note`](Self::note).
    pub fn may_come<M: Mem + ?Sized>(self, m: &M, has: impl Fn(Member) -> bool) -> bool {
        let word = m.load(self.0);
        word & Self::SEVERAL != 0 || Self::of(word).and_then(DetachedProcess::member).is_some_and(has)
    }
}

/// Returns `true` if no other process holds a waiter's queue. `alone` checks the seats, and is called once or
/// twice. `has` is as in [`LastDetached::note`]. If the result is `false`, the processes that are about to
/// release the queue will notify the waiter.
pub fn is_alone<M: Mem + ?Sized>(
    m: &M,
    asked: Word,
    last: LastDetached,
    has: impl Fn(Member) -> bool,
    alone: impl Fn() -> bool,
) -> bool {
    // Read before the seats are checked: a process that has left by now has no seat in that check.
    let may_come = last.may_come(m, &has);
    if alone() {
        return true;
    }
    if !may_come {
        return false;
    }
    ask(m, asked);
    alone()
}

/// Asks processes that are leaving queues to notify waiters afterwards. The caller must check again after
/// this, before it sleeps.
fn ask<M: Mem + ?Sized>(m: &M, asked: Word) {
    m.add(asked, 1);
    m.fence_after_rmw();
}

/// Releases a queue. Calls `says`, which records the leaving process and wakes the sleepers. Then calls
/// `releases`, which releases the seat and ends with a barrier after its swap. Returns `true` if waiters must
/// be notified.
pub fn give_up<M: Mem + ?Sized>(m: &M, asked: Word, says: impl FnOnce(), releases: impl FnOnce()) -> bool {
    let before = m.load(asked);
    says();
    releases();
    m.load(asked) != before
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::HeapMem;

    #[test]
    fn detach_note_remembers_an_earlier_live_holder() {
        let (m, last) = (HeapMem::new(8), LastDetached(Word::at(0)));
        let (first, second) = (Member::new(0, 0), Member::new(4095, 4095));
        assert_eq!(last.read(&m), None);
        for gone in [
            DetachedProcess::NeverJoined,
            DetachedProcess::Member(first),
            DetachedProcess::Member(second),
            DetachedProcess::NeverJoined,
        ] {
            last.note(&m, gone, |_| false);
            assert_eq!((last.read(&m), last.may_come(&m, |_| true)), (Some(gone), gone.member().is_some()));
        }
        last.note(&m, DetachedProcess::Member(first), |_| true);
        assert!(!last.may_come(&m, |_| false));
        last.note(&m, DetachedProcess::NeverJoined, |member| member == first);
        assert_eq!((last.read(&m), last.may_come(&m, |_| false)), (Some(DetachedProcess::NeverJoined), true));
    }
}
