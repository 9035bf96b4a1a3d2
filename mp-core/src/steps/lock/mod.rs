//! Lock between processes whose holder may die, as steps of one shared access each.
//!
//! # Words, and the processes that change them
//! | word | states | changed by |
//! |---|---|---|
//! | lock: `held, parked, poisoned, member 24, sequence 32` | free | an acquirer → held by it, sequence + 1 |
//! |  | held by `m` | `m` → free; if `m` is dead, an adopter that read exactly this sequence → held by it, poisoned |
//! |  | parked | a waiter that is about to sleep sets it, in the same word; the holder's release clears it and wakes one waiter |
//! |  | poisoned | an adopter sets it; a holder that declares the data sound clears it when it releases |
//! | by: `sequence 20, thread 22, pid 22` | any | the holder, after it acquired the lock: valid only with its sequence |
//! | died: `member 24, pid 22` | any | an adopter, while it holds the lock |
//!
//! # Effects of a death
//! | killed process | remaining state | next acquirer |
//! |---|---|---|
//! | before the swap | free | acquires the lock |
//! | holding | held by the dead process | adopts the lock, by a swap of exactly the word that it read: poisoned |
//! | holding, before it wrote `by` | held by the dead process, with a `by` of an earlier sequence | adopts the lock; the dead holder's pid comes from the member table, or is unknown |
//! | adopting, before or after it wrote `died` | held by the dead adopter, poisoned | adopts the lock from the dead adopter |
//! | released, before it woke a sleeper | free, `parked` clear | sleepers check again within a poll interval |
//! | woken, before it acquired the lock | free, `parked` clear | sleepers check again within a poll interval |
//!
//! A holder that is stopped is not dead: other processes wait, or return when their time has expired. A lock
//! can't be taken from a live process. If an adopter is stopped after its decision and continues a week
//! later, the sequence has changed, and its swap fails. (A member's tag is reused after 4096 tenants of its
//! slot. If a lock's holder died and no process used the lock for that long, the lock's word names a live
//! member that never acquired the lock.)

pub mod cycle;
pub mod wait_note;

use crate::mem::{Mem, Steps, Word};
use crate::words::Member;

const HELD: u64 = 1;
const PARKED: u64 = 2;
const POISONED: u64 = 4;
const MEMBER_AT: u32 = 3;
const SEQ_AT: u32 = 32;
const ID_BITS: u32 = 22;
const ID: u64 = (1 << ID_BITS) - 1;

/// Word of a lock.
///
/// Its low half, on which waiters sleep, contains all fields except the sequence.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LockWord(pub u64);

impl LockWord {
    /// Bit that waiters set before they sleep. It can change while the holder stays the same.
    pub(crate) const PARKED: u64 = PARKED;

    /// Creates the word of a lock that a member holds.
    pub const fn held(by: Member, sequence: u32) -> Self {
        Self(HELD | by.raw() << MEMBER_AT | (sequence as u64) << SEQ_AT)
    }

    /// Returns the holder.
    pub const fn holder(self) -> Option<Member> {
        if self.0 & HELD == 0 { None } else { Some(Member::from_raw(self.0 >> MEMBER_AT)) }
    }

    /// Returns `true` if a holder died, and no later holder has declared the data sound.
    pub const fn is_poisoned(self) -> bool {
        self.0 & POISONED != 0
    }

    /// Returns `true` if a waiter may be asleep.
    pub const fn is_parked(self) -> bool {
        self.0 & PARKED != 0
    }

    /// Returns the number of acquisitions, modulo 2^32. Compare it for equality only.
    pub const fn sequence(self) -> u32 {
        (self.0 >> SEQ_AT) as u32
    }

    /// Returns the word of the lock after `by` has acquired it.
    fn taken(self, by: Member, parked: bool, poisoned: bool) -> Self {
        let next = Self::held(by, self.sequence().wrapping_add(1)).0 | self.0 & (PARKED | POISONED);
        Self(next | if parked { PARKED } else { 0 } | if poisoned { POISONED } else { 0 })
    }
}

/// Thread and its process, by the ids of the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct OsThread {
    /// Process id, at most 22 bits as in Linux.
    pub pid: u32,
    /// Thread id.
    pub tid: u32,
}

impl OsThread {
    const fn sign(self, sequence: u32) -> u64 {
        let low = 64 - 2 * ID_BITS;
        (self.pid as u64 & ID) << (64 - ID_BITS)
            | (self.tid as u64 & ID) << low
            | sequence as u64 & ((1 << low) - 1)
    }

    /// Decodes the lock's word `by`. Returns `None` if `by` was not written by the holder that `word` names.
    pub const fn of(by: u64, word: LockWord) -> Option<Self> {
        let low = 64 - 2 * ID_BITS;
        let thread = Self { pid: (by >> (64 - ID_BITS)) as u32, tid: (by >> low & ID) as u32 };
        if thread.sign(word.sequence()) == by { Some(thread) } else { None }
    }
}

/// Process that died while holding a lock.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct DeathRecord {
    /// Tag of the process.
    pub member: Member,
    /// Process id; 0 if it is unknown.
    pub pid: u32,
}

impl DeathRecord {
    const fn pack(self) -> u64 {
        self.member.raw() | (self.pid as u64 & ID) << Member::BITS
    }

    /// Decodes the lock's word `died`.
    pub const fn unpack(w: u64) -> Self {
        Self { member: Member::from_raw(w), pid: (w >> Member::BITS & ID) as u32 }
    }
}

/// Position of a lock: its lock word. The other two words follow.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LockAt(pub Word);

impl LockAt {
    /// Number of words of a lock.
    pub const WORDS: u64 = 3;

    /// Returns the lock word.
    pub const fn word(&self) -> Word {
        self.0
    }
    /// Returns the word that identifies the holder.
    pub const fn by(&self) -> Word {
        self.0.plus(1)
    }
    /// Returns the word that identifies the process that died holding the lock.
    pub const fn died(&self) -> Word {
        self.0.plus(2)
    }
}

/// Dead holder of a lock, from which the lock may be adopted.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct DeadHolder {
    /// Lock word before the holder was found dead.
    pub word: LockWord,
    /// Process id of the holder, or 0 if the member table does not have it.
    pub pid: u32,
}

/// Result of an attempt to acquire a lock.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LockAttempt {
    /// Acquired by the caller, with this word.
    Acquired(LockWord),
    /// Held by a process.
    Held(LockWord),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Pc {
    Load,
    Swap(u64),
    PastHolder,
    NoteDeath(u32),
    Sign,
}

/// Acquires the lock if it is free, or adopts it from a holder that is known to be dead.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct AcquireLock {
    at: LockAt,
    me: Member,
    thread: OsThread,
    parked: bool,
    dead: Option<DeadHolder>,
    mine: LockWord,
    adopted: bool,
    pc: Pc,
}

impl AcquireLock {
    /// Creates the steps for `me`. `parked` is `true` if the caller has slept: other waiters may be asleep
    /// although the waker has cleared their bit. `dead` is a dead holder, from which the lock is adopted if
    /// that process still holds it.
    #[inline]
    pub fn new(at: LockAt, me: Member, thread: OsThread, parked: bool, dead: Option<DeadHolder>) -> Self {
        Self { at, me, thread, parked, dead, mine: LockWord(0), adopted: false, pc: Pc::Load }
    }
}

impl Steps for AcquireLock {
    type Out = LockAttempt;

    #[inline(always)]
    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<LockAttempt> {
        match self.pc {
            Pc::Load => {
                let found = m.load(self.at.word());
                self.adopted = false;
                if found & HELD != 0 {
                    // Waiters set `parked` at any time. All other bits must be unchanged.
                    let same = |d: DeadHolder| (d.word.0 ^ found) & !PARKED == 0;
                    if !self.dead.is_some_and(same) {
                        return Some(LockAttempt::Held(LockWord(found)));
                    }
                    self.adopted = true;
                }
                self.mine = LockWord(found).taken(self.me, self.parked, self.adopted);
                self.pc = Pc::Swap(found);
            }
            Pc::Swap(found) => {
                let done = m.cas(self.at.word(), found, self.mine.0).is_ok();
                self.pc = match (done, self.adopted) {
                    (false, _) => Pc::Load,
                    (true, true) => Pc::PastHolder,
                    (true, false) => Pc::Sign,
                };
            }
            Pc::PastHolder => {
                let by = m.load(self.at.by());
                let signed = self.dead.and_then(|d| OsThread::of(by, d.word)).map(|thread| thread.pid);
                self.pc = Pc::NoteDeath(signed.or(self.dead.map(|d| d.pid)).unwrap_or(0));
            }
            Pc::NoteDeath(pid) => {
                let dead = self.dead.and_then(|d| d.word.holder());
                m.store(self.at.died(), DeathRecord { member: dead.unwrap_or(self.me), pid }.pack());
                self.pc = Pc::Sign;
            }
            Pc::Sign => {
                m.store_relaxed(self.at.by(), self.thread.sign(self.mine.sequence()));
                return Some(LockAttempt::Acquired(self.mine));
            }
        }
        None
    }
}

/// Returns `true` if `thread`, a thread of the caller's process, holds the lock. `seen` is the lock's word,
/// which names the caller's member. The result stays valid: only `thread` could acquire or release the lock.
pub fn is_held_by<M: Mem + ?Sized>(at: LockAt, seen: LockWord, thread: OsThread, m: &M) -> bool {
    let by = OsThread::of(m.load(at.by()), seen);
    by == Some(thread)
}

/// Releases the lock. Only the holder may run these steps. Ends with `true` if a sleeper has to be woken.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ReleaseLock {
    at: LockAt,
    keep: u64,
}

impl ReleaseLock {
    /// Creates the steps. `sound` is `true` if the holder declares the data sound, which clears the mark
    /// *poisoned*.
    #[inline]
    pub fn new(at: LockAt, sound: bool) -> Self {
        let sequence = u64::MAX << SEQ_AT;
        Self { at, keep: if sound { sequence } else { sequence | POISONED } }
    }
}

impl Steps for ReleaseLock {
    type Out = bool;

    #[inline(always)]
    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<bool> {
        Some(LockWord(m.and(self.at.word(), self.keep)).is_parked())
    }
}

/// Sets the bit `parked`, for a waiter that is about to sleep. Ends with the value of the lock word to sleep
/// on, or `None` if the lock is free.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SetParked {
    at: LockAt,
    seen: u64,
}

impl SetParked {
    /// Creates the steps for a caller that has read the word `seen` of a held lock.
    pub fn new(at: LockAt, seen: LockWord) -> Self {
        Self { at, seen: seen.0 }
    }
}

impl Steps for SetParked {
    type Out = Option<LockWord>;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<Option<LockWord>> {
        let parked = PARKED;
        match m.cas(self.at.word(), self.seen, self.seen | parked) {
            Ok(()) => Some(Some(LockWord(self.seen | PARKED))),
            Err(now) if now & HELD == 0 => Some(None),
            Err(now) => {
                self.seen = now;
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_words_round_trip() {
        let m = Member::new(4095, 4095);
        let w = LockWord::held(m, u32::MAX);
        assert_eq!((w.holder(), w.sequence()), (Some(m), u32::MAX));
        assert!(!w.is_poisoned() && !w.is_parked());
        let next = w.taken(Member::new(0, 1), true, true);
        assert_eq!((next.holder(), next.sequence()), (Some(Member::new(0, 1)), 0));
        assert!(next.is_poisoned() && next.is_parked());
        assert_eq!(LockWord(0).holder(), None);
        let thread = OsThread { pid: (1 << 22) - 1, tid: 1 << 21 };
        assert_eq!(OsThread::of(thread.sign(w.sequence()), w), Some(thread));
        assert_eq!(OsThread::of(thread.sign(w.sequence()), next), None);
        let died = DeathRecord { member: m, pid: (1 << 22) - 1 };
        assert_eq!(DeathRecord::unpack(died.pack()), died);
    }

    #[test]
    fn stale_adopter_cannot_acquire_the_lock() {
        let m = crate::mem::HeapMem::new(4);
        let (at, thread) = (LockAt(Word::at(0)), OsThread { pid: 7, tid: 7 });
        let take = |me: u32, dead| {
            let steps = AcquireLock::new(at, Member::new(me, 1), thread, false, dead);
            crate::mem::run(steps, &m)
        };
        let LockAttempt::Acquired(seen) = take(0, None) else { panic!("the lock is free") };
        let dead = Some(DeadHolder { word: seen, pid: 0 });
        assert!(matches!(take(1, dead), LockAttempt::Acquired(w) if w.is_poisoned()));
        assert_eq!(DeathRecord::unpack(m.load(at.died())), DeathRecord { member: Member::new(0, 1), pid: 7 });
        // A member with the same tag (of a reused slot) acquires the lock, with another sequence.
        assert!(!crate::mem::run(ReleaseLock::new(at, true), &m));
        assert!(matches!(take(0, None), LockAttempt::Acquired(w) if !w.is_poisoned()));
        assert!(matches!(take(2, dead), LockAttempt::Held(_)));
    }
}
