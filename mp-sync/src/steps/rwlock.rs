//! A reader's way in, beside the lock of writers.
//!
//! # Words, and who may change them
//! | word | states | changed by |
//! |---|---|---|
//! | lock: see [`mp_core::steps::lock`] | | who wants to write; and a reader that found it held, for as long as it takes to get a slot |
//! | slot, see [`slot`](super::slot) | [`EMPTY`], [`HELD`] | a reader, in and out; when it is dead, whoever waits for it to go |
//! | writing: 0 or 1 | | who holds the lock and has seen all slots empty → 1; it → 0 before it releases the lock |
//!
//! A reader takes a slot and **then** looks at the lock; a writer takes the lock and **then** looks at the slots. So one of
//! them sees the other, and the reader steps back. A reader that finds the lock held waits for the lock itself, takes a
//! slot while it has it, and releases it: so writers are not starved by readers that come one after the other, and a
//! reader waits, gives up and finds a dead writer as any taker of a lock does.
//!
//! # What a death leaves
//! | killed | left | then |
//! |---|---|---|
//! | reading, or stepping back | a slot that names the dead | a writer that waits gives it back: what was only read is whole |
//! | holding the lock, not writing | held by the dead, writing 0 | the next one adopts the lock and takes its mark away |
//! | writing | held by the dead, writing 1 | the next one adopts the lock, marked; everybody gets `OwnerDied` until somebody recovers |
//! | mending | the same | the same |

use mp_core::mem::{Mem, Steps, Word};
use mp_core::steps::lock::LockWord;
use mp_core::words::Member;

use super::slot::{Claim, EMPTY, HELD, Seen, Slots};

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
    Claim(Claim),
    Again(Seen),
    Back(Seen, LockWord),
}

/// A reader's attempt to get in; it never waits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Enter {
    lock: Word,
    slots: Slots,
    me: Member,
    thread: u32,
    pc: Pc,
}

impl Enter {
    /// For a thread of `me`. `lock` is the word of the writers' lock.
    pub fn new(lock: Word, slots: Slots, me: Member, thread: u32) -> Self {
        Self { lock, slots, me, thread, pc: Pc::Lock }
    }

    /// Without a look at the lock: for a thread that holds the lock, or reads already.
    pub fn inside(slots: Slots, me: Member, thread: u32) -> Claim {
        Claim::new(slots, EMPTY, (HELD, me, thread), me.slot()).or_new()
    }
}

const fn blocks(word: LockWord) -> bool {
    word.holder().is_some() || word.is_marked()
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
                self.pc = Pc::Claim(Self::inside(self.slots, self.me, self.thread));
            }
            Pc::Claim(claim) => match claim.step(m)? {
                None => return Some(Entered::Full),
                Some(seen) => self.pc = Pc::Again(seen),
            },
            Pc::Again(seen) => {
                let seen = *seen;
                m.fence_after_rmw();
                let by = LockWord(m.load(self.lock));
                if !blocks(by) {
                    return Some(Entered::Reading(seen));
                }
                self.pc = Pc::Back(seen, by);
            }
            Pc::Back(seen, by) => {
                let (seen, by) = (*seen, *by);
                _ = m.cas(self.slots.at(seen.index), seen.slot.pack(), seen.slot.given_back(EMPTY).pack());
                return Some(Entered::Blocked { by, stepped_back: true });
            }
        }
        None
    }
}
