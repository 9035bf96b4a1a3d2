//! A reader's way in, beside the lock of writers.
//!
//! # Words, and what may change them
//! | word | states | changed by |
//! |---|---|---|
//! | lock: see [`mp_core::steps::lock`] | | a thread that wants to write; and a reader that found it held, for as long as it takes to get a slot |
//! | slot, see [`slot`](super::slot) | [`EMPTY`], [`HELD`] | a reader, in and out; when it is dead, a thread that waits for it to go |
//! | again: how often more the thread in that slot reads | a count | the thread that has the slot: 0 when it takes it, then up and down |
//! | writing: 0 or 1 | | the thread that holds the lock and has seen all slots empty → 1; it → 0 before it releases the lock |
//!
//! A reader takes a slot and **then** looks at the lock; a writer takes the lock and **then** looks at the slots. So one of
//! them sees the other, and the reader steps back. A reader that finds the lock held waits for the lock itself, takes a
//! slot while it has it, and releases it: so writers are not starved by readers that come one after the other, and a
//! reader waits, gives up and finds a dead writer as any taker of a lock does.
//!
//! A writer looks at one slot after the other, and has to know that all are empty at once. So a thread that
//! finds the lock held and reads already takes no second slot, but counts in the one that it has: every
//! thread that reads when the look ends had that slot when it began. (With a second slot, behind the look,
//! and the first one given back before the look comes to it, a reader would be overlooked.) The count is the
//! thread's own: no other reads it, and what a dead thread left there is overwritten.
//!
//! # What a death leaves
//! | killed | left | then |
//! |---|---|---|
//! | reading once or again, counting, or stepping back | a slot that names a dead process, with any count | a writer that waits gives it back: what was only read is whole |
//! | holding the lock, not writing | held by a dead process, writing 0 | the next one adopts the lock and takes its mark away |
//! | writing | held by a dead process, writing 1 | the next one adopts the lock, marked; locking returns `OwnerDied` until a caller recovers |
//! | repairing | the same | the same |

use mp_core::mem::{Mem, Steps, Word};
use mp_core::steps::lock::LockWord;
use mp_core::words::Member;

use super::slot::{Claim, EMPTY, Find, HELD, Seen, Slots, set};

/// Where the readers are.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Readers {
    /// A slot for each thread that reads.
    pub slots: Slots,
    /// How often more the thread in the first slot reads; the others follow, as many as there are slots.
    pub again: Word,
}

impl Readers {
    const fn again(&self, seen: Seen) -> Word {
        self.again.plus(seen.index as u64)
    }
}

/// How a reader's attempt ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Entered {
    /// It may read until it gives this slot back.
    Reading(Seen),
    /// The lock is held, or marked.
    Blocked {
        /// The lock.
        by: LockWord,
        /// Whether a slot was taken and given back: a writer may have seen it, and sleep.
        stepped_back: bool,
    },
    /// There are as many readers as there can be.
    Full,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Pc {
    Lock,
    Inside(Inside),
    Again(Seen),
    Back(Seen, LockWord),
}

/// A reader's attempt to get in; it never waits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Enter {
    lock: Word,
    inside: Inside,
    pc: Pc,
}

impl Enter {
    /// For a thread of `me`. `lock` is the word of the writers' lock.
    pub fn new(lock: Word, readers: Readers, me: Member, thread: u32) -> Self {
        Self { lock, inside: Inside::new(readers, me, thread), pc: Pc::Lock }
    }
}

fn blocks(word: LockWord) -> bool {
    word.holder().is_some() || word.is_marked() && !mp_core::mutant!("rwlock.mark-ignored")
}

impl Steps for Enter {
    type Out = Entered;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<Entered> {
        match &mut self.pc {
            Pc::Lock => {
                let by = LockWord(m.load(self.lock));
                if blocks(by) {
                    return Some(Entered::Blocked { by, stepped_back: false });
                }
                self.pc = Pc::Inside(self.inside);
            }
            Pc::Inside(inside) => match inside.step(m)? {
                None => return Some(Entered::Full),
                Some(seen) => self.pc = Pc::Again(seen),
            },
            Pc::Again(seen) => {
                let seen = *seen;
                if mp_core::mutant!("rwlock.enter.second-look-away") {
                    return Some(Entered::Reading(seen));
                }
                if !mp_core::mutant!("rwlock.enter.fence-away") {
                    m.fence_after_rmw();
                }
                let by = LockWord(m.load(self.lock));
                if !blocks(by) {
                    return Some(Entered::Reading(seen));
                }
                self.pc = Pc::Back(seen, by);
            }
            Pc::Back(seen, by) => {
                let (seen, by) = (*seen, *by);
                if mp_core::mutant!("rwlock.enter.not-given-back") {
                    return Some(Entered::Blocked { by, stepped_back: true });
                }
                _ = m.cas(
                    self.inside.readers.slots.at(seen.index),
                    seen.slot.pack(),
                    seen.slot.given_back(EMPTY).pack(),
                );
                let stepped_back = !mp_core::mutant!("rwlock.enter.wake-dropped");
                return Some(Entered::Blocked { by, stepped_back });
            }
        }
        None
    }
}

/// Takes a reader's slot without a look at the lock: for a thread that holds the lock. Ends with it, or with nothing if
/// there is none.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Inside {
    readers: Readers,
    claim: Claim,
    taken: Option<Seen>,
}

impl Inside {
    /// For a thread of `me`.
    pub fn new(readers: Readers, me: Member, thread: u32) -> Self {
        let claim = Claim::new(readers.slots, EMPTY, (HELD, me, thread), me.slot()).or_new();
        Self { readers, claim, taken: None }
    }
}

impl Steps for Inside {
    type Out = Option<Seen>;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<Option<Seen>> {
        if let Some(seen) = self.taken {
            if !mp_core::mutant!("rwlock.first-count-not-written") {
                m.store_relaxed(self.readers.again(seen), 0);
            }
            return Some(Some(seen));
        }
        self.taken = self.claim.step(m)?;
        self.taken.is_none().then_some(None)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Counting {
    Find(Find),
    Load(Seen),
    Store(Seen, u64),
}

/// Reads again, in the slot that the thread has, if it has one; ends with it. The lock does not matter.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Again {
    readers: Readers,
    me: Member,
    thread: u32,
    pc: Counting,
}

impl Again {
    /// For a thread of `me`.
    pub fn new(readers: Readers, me: Member, thread: u32) -> Self {
        Self { readers, me, thread, pc: Counting::Find(Self::find(readers, 0)) }
    }

    fn find(readers: Readers, from: u32) -> Find {
        Find::new(readers.slots, set(&[HELD]), from)
    }
}

impl Steps for Again {
    type Out = Option<Seen>;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<Option<Seen>> {
        match &mut self.pc {
            Counting::Find(find) => match find.step(m)? {
                None => return Some(None),
                Some(seen)
                    if seen.slot.member == self.me
                        && (seen.slot.thread == self.thread
                            || mp_core::mutant!("rwlock.again.any-thread")) =>
                {
                    self.pc = Counting::Load(seen);
                }
                Some(seen) => self.pc = Counting::Find(Self::find(self.readers, seen.index + 1)),
            },
            Counting::Load(seen) => {
                let seen = *seen;
                self.pc = Counting::Store(seen, m.load_relaxed(self.readers.again(seen)));
            }
            Counting::Store(seen, n) => {
                // Never back to 0, even if this is garbage: others of this thread still read.
                if !mp_core::mutant!("rwlock.again.not-counted") {
                    m.store_relaxed(self.readers.again(*seen), n.saturating_add(1));
                }
                return Some(Some(*seen));
            }
        }
        None
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Leaving {
    Load,
    Store(u64),
    Back,
}

/// Ends one reading; ends with whether it gave the slot back, since it was the last one of its thread in there.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Leave {
    readers: Readers,
    seen: Seen,
    pc: Leaving,
}

impl Leave {
    /// For the thread that has `seen`.
    pub fn new(readers: Readers, seen: Seen) -> Self {
        Self { readers, seen, pc: Leaving::Load }
    }
}

impl Steps for Leave {
    type Out = bool;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<bool> {
        let again = self.readers.again(self.seen);
        match self.pc {
            Leaving::Load => {
                let n = m.load_relaxed(again);
                let last = n == 0 || mp_core::mutant!("rwlock.leave.at-once");
                self.pc = if last { Leaving::Back } else { Leaving::Store(n) };
            }
            Leaving::Store(n) => {
                if !mp_core::mutant!("rwlock.leave.not-counted") {
                    m.store_relaxed(again, n - 1);
                }
                return Some(false);
            }
            Leaving::Back => {
                let Seen { index, slot } = self.seen;
                return Some(
                    m.cas(self.readers.slots.at(index), slot.pack(), slot.given_back(EMPTY).pack()).is_ok(),
                );
            }
        }
        None
    }
}
