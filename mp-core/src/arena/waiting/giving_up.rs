//! A process gives a queue up, and tells its waiters.
//!
//! It wakes the queue's sleepers while it still has the queue, since it may not touch the queue's words afterwards. So a waiter that
//! looks between that and the release finds the process there still, and no wake-up of the queue follows. By three words
//! the waiter hears of the release all the same:
//!
//! | word | states | changed by |
//! |---|---|---|
//! | asked, one of the arena | how often waiters have asked | a waiter that has announced itself, finds other holders, and a process that goes: adds 1, then looks at the holders again |
//! | last gone, one of each queue | 0; tag + 1 of the process that said last that it goes; bit 62 alone: *never joined*, a handle in a message was lost; bit 63: *several*: a process said so while the one before it had the queue still | a process that goes, a visitor of a dead one, or a process that discards a message that no process received, by one swap. *Several* stays |
//! | noticed, one of the arena | how many deaths and releases | a process that has released a queue, and finds asked changed |
//!
//! In order of its accesses, a process that goes reads *asked*; swaps *last gone*; counts the queue's parking words up; releases its
//! seat (a barrier follows); reads *asked* again; counts *noticed* up, or not. A waiter announces itself at the parking word; reads
//! *noticed*; reads *last gone*, and whether the process in it has the queue still; looks at all seats; if there are other holders, and
//! that process had it, or *several* is set, it counts *asked* up (a barrier follows), and looks at the seats again; then it sleeps
//! while parking word and *noticed* are as they were.
//!
//! Why that is enough, for each process that goes and each waiter that finds it there:
//!
//! - The waiter was announced before the process counted the parking word up: that wakes it, and it looks anew, as a waiter that was
//!   announced after that.
//! - It was announced after that, and asks. Its addition comes after the first look at *asked*. If it comes before the second one, the
//!   process tells; else the waiter's second look at the seats comes after the release, and finds it.
//! - It was announced after that, and does not ask: then it has read a *last gone* that is not older than the process's own word. That
//!   word would make it ask, unless this process's seat was free by then. Or it is another one's, which was swapped in later: without
//!   *several*, since that one had found this process's seat free. In both cases the waiter, which looks at the seats after that, finds it
//!   free as well.
//!
//! A process that discards a message has the queue while it notes *never joined*, counts *noticed* up when the message and its own
//! handle are gone, and gives its last handle up as any process does. *Never joined* names no holder, so no waiter asks because of it.
//!
//! | killed | left |
//! |---|---|
//! | a process that goes, anywhere | what any dead process leaves: its death is noticed, and visitors note it in its queues |
//! | a waiter that has asked | a number that no process depends on: at most, one more count of *noticed* |
//!
//! Checked by `loom_two_processes_give_a_queue_up_and_a_waiter_comes`, and by `tests/tests/queues/deserted.rs` at each access.

use crate::mem::{Mem, Word};
use crate::words::Member;

/// Process that had a queue, or was to have it, and is gone.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Gone {
    /// A member that ended, or dropped its last handle.
    Member(Member),
    /// A process that never received the message with its handle.
    NeverJoined,
}

impl Gone {
    /// The member, if the process was one.
    pub const fn member(self) -> Option<Member> {
        match self {
            Self::Member(member) => Some(member),
            Self::NeverJoined => None,
        }
    }

    /// As a word, never 0.
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

/// The word of a queue that says which process gave it up last.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LastGone(pub Word);

impl LastGone {
    const SEVERAL: u64 = 1 << 63;

    fn of(word: u64) -> Option<Gone> {
        Gone::unpack(word & !Self::SEVERAL)
    }

    /// Notes a process that goes; `has`: whether a process has the queue.
    pub fn note<M: Mem + ?Sized>(self, m: &M, who: Gone, has: impl Fn(Member) -> bool) {
        let mut old = m.load(self.0);
        loop {
            let before = Self::of(old).filter(|before| *before != who).and_then(Gone::member);
            let several = before.is_some_and(&has);
            let new = who.pack() | old & Self::SEVERAL | if several { Self::SEVERAL } else { 0 };
            match m.cas(self.0, old, new) {
                Ok(()) => return,
                Err(now) => old = now,
            }
        }
    }

    /// The process that was noted last.
    pub fn read<M: Mem + ?Sized>(self, m: &M) -> Option<Gone> {
        Self::of(m.load(self.0))
    }

    /// Whether a process that was noted may have the queue still, so that a waiter has to [`ask`]; `has` as in [`note`](Self::note).
    pub fn may_come<M: Mem + ?Sized>(self, m: &M, has: impl Fn(Member) -> bool) -> bool {
        let word = m.load(self.0);
        word & Self::SEVERAL != 0 || Self::of(word).and_then(Gone::member).is_some_and(has)
    }
}

/// Whether a waiter of a queue finds that no other process has it: `alone` looks, once or twice; `has` as in [`LastGone::note`]. If it
/// does not, the processes that are about to give the queue up will tell.
pub fn is_alone<M: Mem + ?Sized>(
    m: &M,
    asked: Word,
    last: LastGone,
    has: impl Fn(Member) -> bool,
    alone: impl Fn() -> bool,
) -> bool {
    // Before it looks: a process that is gone here is gone there.
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

/// Asks processes that are giving queues up to tell when they have. The caller looks again after this, and only then sleeps.
fn ask<M: Mem + ?Sized>(m: &M, asked: Word) {
    m.add(asked, 1);
    m.fence_after_rmw();
}

/// Gives a queue up: `says` notes that, and wakes the sleepers; `releases` ends with a barrier behind its swap. Returns whether waiters
/// have to be told now.
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
    fn lost_handle_is_noted_and_hides_no_holder() {
        let (m, last) = (HeapMem::new(8), LastGone(Word::at(0)));
        let (first, second) = (Member::new(0, 0), Member::new(4095, 4095));
        assert_eq!(last.read(&m), None);
        for gone in [Gone::NeverJoined, Gone::Member(first), Gone::Member(second), Gone::NeverJoined] {
            last.note(&m, gone, |_| false);
            assert_eq!((last.read(&m), last.may_come(&m, |_| true)), (Some(gone), gone.member().is_some()));
        }
        last.note(&m, Gone::Member(first), |_| true);
        assert!(!last.may_come(&m, |_| false));
        last.note(&m, Gone::NeverJoined, |member| member == first);
        assert_eq!((last.read(&m), last.may_come(&m, |_| false)), (Some(Gone::NeverJoined), true));
    }
}
