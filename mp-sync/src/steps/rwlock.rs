//! Steps of a reader-writer lock: admission of readers to a lock of writers.
//!
//! # Words and their transitions
//! | word | states | changed by |
//! |---|---|---|
//! | lock: see [`mp_core::steps::lock`] | | a thread that wants to write; and a reader that found the lock held, until it has a slot |
//! | slot, see [`slot`](super::slot) | [`EMPTY`], [`HELD`] | a reader, when it enters and leaves; if the reader is dead, a thread that waits for it |
//! | extra reads: number of further reads by the thread in that slot | a count | the thread that has the slot: 0 when it takes the slot, then up and down |
//! | writing: 0 or 1 | | the thread that holds the lock and has found all slots empty → 1, and → 0 before it releases the lock |
//!
//! A reader takes a slot and **then** loads the lock. A writer takes the lock and **then** loads the slots.
//! So at least one of them detects the other. If the reader detects the writer, it releases its slot (*steps
//! back*). A reader that finds the lock held waits for the lock itself, takes a slot while it holds the lock,
//! and releases the lock. So a stream of readers does not starve writers, and a reader waits, times out and
//! detects a dead writer like any other caller of the lock.
//!
//! A writer loads one slot after the other, but needs all of them to be empty at once. So a thread that
//! already reads when it finds the lock held takes no second slot: it increments the count of its slot. Every
//! thread that reads when the scan ends had its slot when the scan began. (If a thread could take a second
//! slot that the scan has passed, and release its first slot before the scan reaches that one, the writer
//! would miss the reader.) Only the thread itself accesses its count, and a new owner of the slot overwrites
//! the count.
//!
//! # Effect of a death
//! | killed | remaining state | effect |
//! |---|---|---|
//! | reading, counting, or stepping back | a slot that names a dead process, with any count | a waiting writer releases the slot: a reader leaves the data whole |
//! | with the lock, not writing | held by a dead process, writing 0 | the next caller adopts the lock and clears its mark *poisoned* |
//! | writing | held by a dead process, writing 1 | the next caller adopts the lock, poisoned; locking returns `OwnerDied` until a caller recovers |
//! | repairing | the same | the same |

use mp_core::mem::{Mem, Steps, Word};
use mp_core::steps::lock::LockWord;
use mp_core::words::Member;

use super::slot::{ClaimSlot, EMPTY, FindSlot, HELD, ObservedSlot, Slots, set};

/// Location of the readers' words.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Readers {
    /// Slots of the reading threads.
    pub slots: Slots,
    /// First count of further reads. The counts of the other slots follow.
    pub extra_reads: Word,
}

impl Readers {
    const fn extra_reads(&self, seen: ObservedSlot) -> Word {
        self.extra_reads.plus(seen.index as u64)
    }
}

/// Result of [`Enter`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum EnterOutcome {
    /// The caller may read until it releases this slot.
    Reading(ObservedSlot),
    /// The lock is held or poisoned.
    Blocked {
        /// Lock word.
        by: LockWord,
        /// `true` if a slot was taken and released. A writer may have found the slot taken, and sleep.
        stepped_back: bool,
    },
    /// All slots are taken by reading threads.
    Full,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Pc {
    Lock,
    ClaimSlot(ClaimReader),
    Recheck(ObservedSlot),
    StepBack(ObservedSlot, LockWord),
}

/// Enters as a reader. Never waits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Enter {
    lock: Word,
    claim: ClaimReader,
    pc: Pc,
}

impl Enter {
    /// Creates the steps for an attempt of a thread of `me`. `lock` is the word of the writers' lock.
    pub fn new(lock: Word, readers: Readers, me: Member, thread: u32) -> Self {
        Self { lock, claim: ClaimReader::new(readers, me, thread), pc: Pc::Lock }
    }
}

fn blocks(word: LockWord) -> bool {
    word.holder().is_some() || word.is_poisoned()
}

impl Steps for Enter {
    type Out = EnterOutcome;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<EnterOutcome> {
        match &mut self.pc {
            Pc::Lock => {
                let by = LockWord(m.load(self.lock));
                if blocks(by) {
                    return Some(EnterOutcome::Blocked { by, stepped_back: false });
                }
                self.pc = Pc::ClaimSlot(self.claim);
            }
            Pc::ClaimSlot(claim) => match claim.step(m)? {
                None => return Some(EnterOutcome::Full),
                Some(seen) => self.pc = Pc::Recheck(seen),
            },
            Pc::Recheck(seen) => {
                let seen = *seen;
                m.fence_after_rmw();
                let by = LockWord(m.load(self.lock));
                if !blocks(by) {
                    return Some(EnterOutcome::Reading(seen));
                }
                self.pc = Pc::StepBack(seen, by);
            }
            Pc::StepBack(seen, by) => {
                let (seen, by) = (*seen, *by);
                _ = m.cas(
                    self.claim.readers.slots.at(seen.index),
                    seen.slot.pack(),
                    seen.slot.vacated(EMPTY).pack(),
                );
                return Some(EnterOutcome::Blocked { by, stepped_back: true });
            }
        }
        None
    }
}

/// Takes a reader's slot without loading the lock, for a thread that holds the lock. Ends with `None` if no
/// slot is free.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ClaimReader {
    readers: Readers,
    claim: ClaimSlot,
    taken: Option<ObservedSlot>,
}

impl ClaimReader {
    /// Creates the steps that take a reader's slot for this thread of member `me`.
    pub fn new(readers: Readers, me: Member, thread: u32) -> Self {
        let claim = ClaimSlot::new(readers.slots, EMPTY, (HELD, me, thread), me.slot()).or_grow();
        Self { readers, claim, taken: None }
    }
}

impl Steps for ClaimReader {
    type Out = Option<ObservedSlot>;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<Option<ObservedSlot>> {
        if let Some(seen) = self.taken {
            m.store_relaxed(self.readers.extra_reads(seen), 0);
            return Some(Some(seen));
        }
        self.taken = self.claim.step(m)?;
        self.taken.is_none().then_some(None)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum AddReadPc {
    FindSlot(FindSlot),
    Load(ObservedSlot),
    Store(ObservedSlot, u64),
}

/// Adds a read to the slot that the thread already has, regardless of the lock. Ends with `None` if the
/// thread has no slot.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct AddRead {
    readers: Readers,
    me: Member,
    thread: u32,
    pc: AddReadPc,
}

impl AddRead {
    /// Creates the steps for a thread of `me`.
    pub fn new(readers: Readers, me: Member, thread: u32) -> Self {
        Self { readers, me, thread, pc: AddReadPc::FindSlot(Self::find(readers, 0)) }
    }

    fn find(readers: Readers, from: u32) -> FindSlot {
        FindSlot::new(readers.slots, set(&[HELD]), from)
    }
}

impl Steps for AddRead {
    type Out = Option<ObservedSlot>;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<Option<ObservedSlot>> {
        match &mut self.pc {
            AddReadPc::FindSlot(find) => match find.step(m)? {
                None => return Some(None),
                Some(seen) if seen.slot.member == self.me && (seen.slot.thread == self.thread) => {
                    self.pc = AddReadPc::Load(seen);
                }
                Some(seen) => self.pc = AddReadPc::FindSlot(Self::find(self.readers, seen.index + 1)),
            },
            AddReadPc::Load(seen) => {
                let seen = *seen;
                self.pc = AddReadPc::Store(seen, m.load_relaxed(self.readers.extra_reads(seen)));
            }
            AddReadPc::Store(seen, n) => {
                // Saturates instead of wrapping to 0, even if a foreign process overwrote the count: other
                // reads of this thread continue.
                m.store_relaxed(self.readers.extra_reads(*seen), n.saturating_add(1));
                return Some(Some(*seen));
            }
        }
        None
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum LeavePc {
    Load,
    Store(u64),
    Back,
}

/// Ends one read. Ends with `true` if this was the last read in the slot, which is released then.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Leave {
    readers: Readers,
    seen: ObservedSlot,
    pc: LeavePc,
}

impl Leave {
    /// Creates the steps for the thread that has the slot `seen`.
    pub fn new(readers: Readers, seen: ObservedSlot) -> Self {
        Self { readers, seen, pc: LeavePc::Load }
    }
}

impl Steps for Leave {
    type Out = bool;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<bool> {
        let again = self.readers.extra_reads(self.seen);
        match self.pc {
            LeavePc::Load => {
                let n = m.load_relaxed(again);
                let last = n == 0;
                self.pc = if last { LeavePc::Back } else { LeavePc::Store(n) };
            }
            LeavePc::Store(n) => {
                m.store_relaxed(again, n - 1);
                return Some(false);
            }
            LeavePc::Back => {
                let ObservedSlot { index, slot } = self.seen;
                return Some(
                    m.cas(self.readers.slots.at(index), slot.pack(), slot.vacated(EMPTY).pack()).is_ok(),
                );
            }
        }
        None
    }
}
