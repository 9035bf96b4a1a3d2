//! Updates of several words at once, under a lock that survives the death of its holder.
//!
//! The holder first writes down, in a record, the absolute values that it is about to write, then a flag, then
//! the values, then takes the flag back. Whoever gets the lock after a death finds the flag: set, and it writes the
//! values again (which changes nothing if they are there already); not set, and nothing had been written.
//!
//! | killed | the next one finds | the update has |
//! |---|---|---|
//! | before the flag | lock held by a dead member, no flag | not happened |
//! | after the flag | lock held by a dead member, flag | happened: it is completed |
//! | after the flag was taken back | lock held by a dead member, no flag | happened |

use crate::mem::{Mem, Steps, Word};
use crate::words::{Member, Seat};

/// Most words that one update reads or writes.
pub(crate) const MAX_WORDS: usize = 6;

/// Where the lock and its record are: lock, flag, then pairs of position and value.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RedoAt {
    /// The lock word; the flag and the record follow.
    pub lock: Word,
}

impl RedoAt {
    /// How many words it takes.
    pub const WORDS: u64 = 2 + 2 * MAX_WORDS as u64;

    const fn flag(self) -> Word {
        self.lock.plus(1)
    }
    const fn position(self, i: usize) -> Word {
        self.lock.plus(2 + 2 * i as u64)
    }
    const fn value(self, i: usize) -> Word {
        self.lock.plus(3 + 2 * i as u64)
    }
}

/// What to change: reads some words, then says what to write.
pub trait Plan {
    /// The words to read, at most four.
    fn reads(&self) -> &[Word];

    /// From their values, the words to write with their new values, at most four. Nothing: no change.
    fn writes(&self, values: &[u64]) -> Vec<(Word, u64)>;
}

/// Says whether a member is known to be dead.
pub trait Oracle {
    /// `false` when in doubt.
    fn is_dead(&self, m: Member) -> bool;
}

impl<F: Fn(Member) -> bool> Oracle for F {
    fn is_dead(&self, m: Member) -> bool {
        self(m)
    }
}

/// How it ended.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum RedoEnd {
    /// The update happened; these were the values read.
    Done([u64; MAX_WORDS]),
    /// The lock is held by a live member; try again.
    Held(Member),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Pc {
    Look,
    Acquire,
    Flag,
    RecordPosition(usize),
    RecordValue(usize),
    ReplayPosition(usize),
    ReplayValue(usize),
    Replay(usize),
    Replayed,
    Read(usize),
    Commit,
    Apply(usize),
    Applied,
    Unlock,
}

/// Runs one [`Plan`] under the lock, after completing what a dead holder had begun.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Redo<P, D> {
    at: RedoAt,
    me: Member,
    plan: P,
    dead: D,
    found: u64,
    values: [u64; MAX_WORDS],
    writes: Vec<(Word, u64)>,
    old: (u64, u64),
    pc: Pc,
}

impl<P: Plan, D: Oracle> Redo<P, D> {
    /// To run `plan` for `me`; `dead` says whether a member is known to be dead.
    pub fn new(at: RedoAt, me: Member, plan: P, dead: D) -> Self {
        Self {
            at,
            me,
            plan,
            dead,
            found: 0,
            values: [0; MAX_WORDS],
            writes: Vec::new(),
            old: (0, 0),
            pc: Pc::Look,
        }
    }

    /// After the values were read: either there is something to write, or the lock is let go.
    fn planned(&mut self) -> Pc {
        self.writes = self.plan.writes(&self.values[..self.plan.reads().len()]);
        self.writes.truncate(MAX_WORDS);
        if self.writes.is_empty() { Pc::Unlock } else { Pc::RecordPosition(0) }
    }
}

impl<P: Plan, D: Oracle> Steps for Redo<P, D> {
    type Out = RedoEnd;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<RedoEnd> {
        let at = self.at;
        match self.pc {
            Pc::Look => {
                self.found = m.load(at.lock);
                if let Seat::Member(holder) = Seat::unpack(self.found)
                    && !self.dead.is_dead(holder)
                {
                    return Some(RedoEnd::Held(holder));
                }
                self.pc = Pc::Acquire;
            }
            Pc::Acquire => {
                let mine = Seat::Member(self.me).pack();
                self.pc = if m.cas(at.lock, self.found, mine).is_ok() { Pc::Flag } else { Pc::Look };
            }
            // The flag is how many words the record has.
            Pc::Flag => {
                self.found = m.load(at.flag());
                self.pc = match (self.found, self.plan.reads().is_empty()) {
                    (0, false) => Pc::Read(0),
                    (0, true) => self.planned(),
                    _ => Pc::ReplayPosition(0),
                };
            }
            Pc::ReplayPosition(i) => {
                self.old.0 = m.load(at.position(i));
                self.pc = Pc::ReplayValue(i);
            }
            Pc::ReplayValue(i) => {
                self.old.1 = m.load(at.value(i));
                self.pc = Pc::Replay(i);
            }
            Pc::Replay(i) => {
                m.store(Word::at(self.old.0), self.old.1);
                let more = (i as u64) + 1 < self.found.min(MAX_WORDS as u64);
                self.pc = if more { Pc::ReplayPosition(i + 1) } else { Pc::Replayed };
            }
            Pc::Replayed => {
                m.store(at.flag(), 0);
                self.pc = if self.plan.reads().is_empty() { self.planned() } else { Pc::Read(0) };
            }
            Pc::Read(i) => {
                self.values[i] = m.load(self.plan.reads()[i]);
                let more = i + 1 < self.plan.reads().len().min(MAX_WORDS);
                self.pc = if more { Pc::Read(i + 1) } else { self.planned() };
            }
            Pc::RecordPosition(i) => {
                m.store(at.position(i), self.writes[i].0.offset());
                self.pc = Pc::RecordValue(i);
            }
            Pc::RecordValue(i) => {
                m.store(at.value(i), self.writes[i].1);
                self.pc = if i + 1 < self.writes.len() { Pc::RecordPosition(i + 1) } else { Pc::Commit };
            }
            Pc::Commit => {
                m.store(at.flag(), self.writes.len() as u64);
                self.pc = Pc::Apply(0);
            }
            Pc::Apply(i) => {
                m.store(self.writes[i].0, self.writes[i].1);
                self.pc = if i + 1 < self.writes.len() { Pc::Apply(i + 1) } else { Pc::Applied };
            }
            Pc::Applied => {
                m.store(at.flag(), 0);
                self.pc = Pc::Unlock;
            }
            Pc::Unlock => {
                m.store(at.lock, 0);
                return Some(RedoEnd::Done(self.values));
            }
        }
        None
    }
}
