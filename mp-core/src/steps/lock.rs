//! A lock between processes whose holder may die, as steps of one shared access each.
//!
//! # Words, and which process may change them
//! | word | states | changed by |
//! |---|---|---|
//! | lock: `held, parked, marked, member 24, sequence 32` | free | a taker → held by it, sequence + 1 |
//! |  | held by `m` | `m` → free; if `m` is dead, an adopter that saw exactly this sequence → held by it, marked |
//! |  | parked | a waiter that is about to sleep sets it, in the same word; the holder's release clears it and wakes one |
//! |  | marked | an adopter sets it; a holder that says that the data is sound clears it when it releases |
//! | by: `sequence 20, thread 22, pid 22` | anything | the holder, after it took the lock: counts only with its sequence |
//! | died: `member 24, pid 22` | anything | an adopter, while it holds the lock |
//!
//! # What a death leaves
//! | killed | left | the next one to want it |
//! |---|---|---|
//! | before the swap | nothing | takes it |
//! | holding | held by the dead process | adopts it, by a swap of exactly the word that it saw: marked |
//! | holding, before it wrote `by` | a `by` of an earlier sequence | adopts it; the pid comes from the member table, or is not known |
//! | adopting, before or after it wrote `died` | held by the dead adopter, marked | adopts it in turn |
//! | released, before it woke a sleeper | free, `parked` clear | sleepers look again within a poll interval |
//! | woken, before it took it | free, `parked` clear | the same |
//!
//! A holder that is stopped is not dead: a process that wants the lock waits, or gives up when its time is
//! over. There is no way to take a lock from a live process. An adopter that decides, is stopped, and
//! continues a week later finds another sequence, and its swap fails. (A member's tag comes again after 4096
//! tenants of its slot. A lock whose holder died and that no process looked at for that long has a live
//! holder again, which does not know of it.)

use crate::mem::{Mem, Steps, Word};
use crate::words::Member;

const HELD: u64 = 1;
const PARKED: u64 = 2;
const MARKED: u64 = 4;
const MEMBER_AT: u32 = 3;
const SEQ_AT: u32 = 32;
const ID_BITS: u32 = 22;
const ID: u64 = (1 << ID_BITS) - 1;

/// A lock's word.
///
/// Its low half, on which waiters sleep, has everything but the sequence.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LockWord(pub u64);

impl LockWord {
    /// The bit that waiters set at any time.
    pub(crate) const PARKED: u64 = PARKED;

    /// Held by a member.
    pub const fn held(by: Member, sequence: u32) -> Self {
        Self(HELD | by.raw() << MEMBER_AT | (sequence as u64) << SEQ_AT)
    }

    /// The holder.
    pub const fn holder(self) -> Option<Member> {
        if self.0 & HELD == 0 { None } else { Some(Member::from_raw(self.0 >> MEMBER_AT)) }
    }

    /// Whether a holder died, and none has said since that the data is sound.
    pub const fn is_marked(self) -> bool {
        self.0 & MARKED != 0
    }

    /// Whether a waiter may be asleep.
    pub const fn is_parked(self) -> bool {
        self.0 & PARKED != 0
    }

    /// Counts how often it was taken. Compared for equality only.
    pub const fn sequence(self) -> u32 {
        (self.0 >> SEQ_AT) as u32
    }

    /// Taken by `by`, once more than in this word.
    fn taken(self, by: Member, parked: bool, marked: bool) -> Self {
        let next = Self::held(by, self.sequence().wrapping_add(1)).0 | self.0 & (PARKED | MARKED);
        Self(next | if parked { PARKED } else { 0 } | if marked { MARKED } else { 0 })
    }
}

/// A process and a thread of it, as the kernel numbers them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Who {
    /// The process, at most 22 bits as in Linux.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
}

impl Who {
    const fn sign(self, sequence: u32) -> u64 {
        let low = 64 - 2 * ID_BITS;
        (self.pid as u64 & ID) << (64 - ID_BITS)
            | (self.tid as u64 & ID) << low
            | sequence as u64 & ((1 << low) - 1)
    }

    /// The process and thread that wrote `by`, if they are the holder that `word` names.
    pub const fn of(by: u64, word: LockWord) -> Option<Self> {
        let low = 64 - 2 * ID_BITS;
        let who = Self { pid: (by >> (64 - ID_BITS)) as u32, tid: (by >> low & ID) as u32 };
        if who.sign(word.sequence()) == by { Some(who) } else { None }
    }
}

/// The process that died while holding a lock.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Died {
    /// Its tag.
    pub member: Member,
    /// Its process id; 0 if it is not known any more.
    pub pid: u32,
}

impl Died {
    const fn pack(self) -> u64 {
        self.member.raw() | (self.pid as u64 & ID) << Member::BITS
    }

    /// From a word.
    pub const fn unpack(w: u64) -> Self {
        Self { member: Member::from_raw(w), pid: (w >> Member::BITS & ID) as u32 }
    }
}

/// Where the words of a lock are: three, the lock word first.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LockAt(pub Word);

impl LockAt {
    /// How many words it has.
    pub const WORDS: u64 = 3;

    /// The lock word.
    pub const fn word(&self) -> Word {
        self.0
    }
    /// What the holder wrote of itself.
    pub const fn by(&self) -> Word {
        self.0.plus(1)
    }
    /// Which process died holding it.
    pub const fn died(&self) -> Word {
        self.0.plus(2)
    }
}

/// A holder that is known to be dead: the word that named it, and its pid if the member table has it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct DeadHolder {
    /// The lock word as it was before the holder was found dead.
    pub word: LockWord,
    /// Its process id, or 0.
    pub pid: u32,
}

/// What became of an attempt.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Acquired {
    /// It is the caller's, with this word.
    Mine(LockWord),
    /// A process holds it.
    Held(LockWord),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Pc {
    Look,
    Swap(u64),
    PastHolder,
    NoteDeath(u32),
    Sign,
}

/// Takes the lock if it is free, or adopts it from a holder that is known to be dead.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Acquire {
    at: LockAt,
    me: Member,
    who: Who,
    parked: bool,
    dead: Option<DeadHolder>,
    mine: LockWord,
    adopted: bool,
    pc: Pc,
}

impl Acquire {
    /// For `me`. `parked`: the caller has slept, so that other waiters may be asleep whose bit its waker
    /// cleared. `dead`: take it also if it is still held by this holder.
    #[inline]
    pub fn new(at: LockAt, me: Member, who: Who, parked: bool, dead: Option<DeadHolder>) -> Self {
        Self { at, me, who, parked, dead, mine: LockWord(0), adopted: false, pc: Pc::Look }
    }
}

impl Steps for Acquire {
    type Out = Acquired;

    #[inline(always)]
    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<Acquired> {
        match self.pc {
            Pc::Look => {
                let found = m.load(self.at.word());
                self.adopted = false;
                if found & HELD != 0 {
                    // Waiters set `parked` at any time; everything else must be as it was.
                    let same = |d: DeadHolder| (d.word.0 ^ found) & !PARKED == 0;
                    if !self.dead.is_some_and(same) {
                        return Some(Acquired::Held(LockWord(found)));
                    }
                    self.adopted = true;
                }
                self.mine = LockWord(found).taken(self.me, self.parked, self.adopted);
                self.pc = Pc::Swap(found);
            }
            Pc::Swap(found) => {
                let done = m.cas(self.at.word(), found, self.mine.0).is_ok();
                self.pc = match (done, self.adopted) {
                    (false, _) => Pc::Look,
                    (true, true) => Pc::PastHolder,
                    (true, false) => Pc::Sign,
                };
            }
            Pc::PastHolder => {
                let by = m.load(self.at.by());
                let signed = self.dead.and_then(|d| Who::of(by, d.word)).map(|who| who.pid);
                self.pc = Pc::NoteDeath(signed.or(self.dead.map(|d| d.pid)).unwrap_or(0));
            }
            Pc::NoteDeath(pid) => {
                let dead = self.dead.and_then(|d| d.word.holder());
                m.store(self.at.died(), Died { member: dead.unwrap_or(self.me), pid }.pack());
                self.pc = Pc::Sign;
            }
            Pc::Sign => {
                m.store_relaxed(self.at.by(), self.who.sign(self.mine.sequence()));
                return Some(Acquired::Mine(self.mine));
            }
        }
        None
    }
}

/// Ends with whether the lock, which was seen held with this word, is held by this very thread. No other thread's answer can
/// become true meanwhile; its own can't become false.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct IsMine {
    at: LockAt,
    seen: LockWord,
    who: Who,
}

impl IsMine {
    /// For a thread of the member that `seen` names; a lock of another member is not its.
    pub fn new(at: LockAt, seen: LockWord, who: Who) -> Self {
        Self { at, seen, who }
    }
}

impl Steps for IsMine {
    type Out = bool;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<bool> {
        let by = Who::of(m.load(self.at.by()), self.seen);
        Some(by == Some(self.who))
    }
}

/// Gives the lock up; ends with whether a sleeper has to be woken. By its holder only.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Unlock {
    at: LockAt,
    keep: u64,
}

impl Unlock {
    /// `sound`: the holder says that the data is as it should be, whichever process died before.
    #[inline]
    pub fn new(at: LockAt, sound: bool) -> Self {
        let sequence = u64::MAX << SEQ_AT;
        Self { at, keep: if sound { sequence } else { sequence | MARKED } }
    }
}

impl Steps for Unlock {
    type Out = bool;

    #[inline(always)]
    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<bool> {
        Some(LockWord(m.and(self.at.word(), self.keep)).is_parked())
    }
}

/// Says that a waiter is about to sleep; ends with the value of the word to sleep on, or nothing if it is
/// free.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Park {
    at: LockAt,
    seen: u64,
}

impl Park {
    /// The caller has seen the lock held with this word.
    pub fn new(at: LockAt, seen: LockWord) -> Self {
        Self { at, seen: seen.0 }
    }
}

impl Steps for Park {
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
    fn words_keep_their_fields() {
        let m = Member::new(4095, 4095);
        let w = LockWord::held(m, u32::MAX);
        assert_eq!((w.holder(), w.sequence()), (Some(m), u32::MAX));
        assert!(!w.is_marked() && !w.is_parked());
        let next = w.taken(Member::new(0, 1), true, true);
        assert_eq!((next.holder(), next.sequence()), (Some(Member::new(0, 1)), 0));
        assert!(next.is_marked() && next.is_parked());
        assert_eq!(LockWord(0).holder(), None);
        let who = Who { pid: (1 << 22) - 1, tid: 1 << 21 };
        assert_eq!(Who::of(who.sign(w.sequence()), w), Some(who));
        assert_eq!(Who::of(who.sign(w.sequence()), next), None);
        let died = Died { member: m, pid: (1 << 22) - 1 };
        assert_eq!(Died::unpack(died.pack()), died);
    }

    #[test]
    fn a_stale_adopter_cannot_steal() {
        let m = crate::mem::HeapMem::new(4);
        let (at, who) = (LockAt(Word::at(0)), Who { pid: 7, tid: 7 });
        let take = |me: u32, dead| {
            let steps = Acquire::new(at, Member::new(me, 1), who, false, dead);
            crate::mem::run(steps, &m)
        };
        let Acquired::Mine(seen) = take(0, None) else { panic!("it is free") };
        let dead = Some(DeadHolder { word: seen, pid: 0 });
        assert!(matches!(take(1, dead), Acquired::Mine(w) if w.is_marked()));
        assert_eq!(Died::unpack(m.load(at.died())), Died { member: Member::new(0, 1), pid: 7 });
        // The same tag takes it again, as a reused slot would: another sequence.
        assert!(!crate::mem::run(Unlock::new(at, true), &m));
        assert!(matches!(take(0, None), Acquired::Mine(w) if !w.is_marked()));
        assert!(matches!(take(2, dead), Acquired::Held(_)));
    }
}
