//! How often the holder of a lock has it.
//!
//! # Words, and what may change them
//! | word | states | changed by |
//! |---|---|---|
//! | lock: see [`mp_core::steps::lock`] | | the thread that takes it; whose it is, its second word says ([`IsMine`](mp_core::steps::lock::IsMine)) |
//! | depth: `depth 32, recovering 1` | anything | the thread that holds the lock: one when it takes it anew, then up and down |
//!
//! The depth counts only while the lock is held, by the thread that holds it; no other reads it. So it needs
//! no read-modify-write, and what a former holder left there is overwritten before it is read.
//!
//! # What a death leaves
//! | killed | left | then |
//! |---|---|---|
//! | before it has the lock | nothing | |
//! | having the lock, however often; also before it wrote the first depth | held by a dead process, any depth | the next one adopts the lock, marked; locking returns `OwnerDied` until a caller recovers, whose depth is one |
//! | having recovered | the same, marked already | the same: only the release of the last level takes the mark away |
//! | waiting at a condition | free | nothing: it has let go of all levels, whose number it keeps to itself |

use mp_core::mem::{Mem, Steps, Word};

/// The lowest bit above the depth: its holder repairs the data.
const RECOVERING: u64 = 1 << 32;
const DEEPEST: u64 = u32::MAX as u64;

/// What the depth of a lock says.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Depth(pub u64);

impl Depth {
    /// Taken anew, so often at once; `recovering`: if the last level is dropped, the data is as it should be.
    pub fn new(levels: u64, recovering: bool) -> Self {
        let recovering = recovering && !mp_core::mutant!("rlock.recovering-forgotten");
        Self(levels & DEEPEST | if recovering { RECOVERING } else { 0 })
    }

    /// How often its holder has it.
    pub const fn levels(self) -> u64 {
        self.0 & DEEPEST
    }

    /// Whether its holder repairs the data.
    pub const fn is_recovering(self) -> bool {
        self.0 & RECOVERING != 0
    }
}

/// The lock was taken: so often. By its holder.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SetDepth(pub Word, pub Depth);

impl Steps for SetDepth {
    type Out = ();

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<()> {
        if !mp_core::mutant!("rlock.first-depth-not-written") {
            m.store(self.0, self.1.0);
        }
        Some(())
    }
}

/// What became of another level.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Deeper {
    /// The thread has the lock once more.
    Taken,
    /// It has it as often as can be counted.
    TooOften,
    /// The depth says that it doesn't have it: a process that does not use the lock has written to it.
    Garbage,
}

/// Takes the lock once more: by the thread that holds it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Deepen {
    at: Word,
    seen: Option<u64>,
}

impl Deepen {
    /// The depth is at `at`.
    pub fn new(at: Word) -> Self {
        Self { at, seen: None }
    }
}

impl Steps for Deepen {
    type Out = Deeper;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<Deeper> {
        let Some(seen) = self.seen else {
            let seen = m.load(self.at);
            self.seen = Some(seen);
            return match Depth(seen).levels() {
                DEEPEST if !mp_core::mutant!("rlock.deeper-than-can-be-counted") => Some(Deeper::TooOften),
                0 if !mp_core::mutant!("rlock.garbage-believed") => Some(Deeper::Garbage),
                _ => None,
            };
        };
        if !mp_core::mutant!("rlock.level-not-counted") {
            m.store(self.at, seen + 1);
        }
        Some(Deeper::Taken)
    }
}

/// Gives up one level: by the thread that holds the lock. Ends with nothing if it has others; else the lock is to be released,
/// and it ends with what the depth said.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Rise {
    at: Word,
    seen: Option<u64>,
}

impl Rise {
    /// The depth is at `at`.
    pub fn new(at: Word) -> Self {
        Self { at, seen: None }
    }
}

impl Steps for Rise {
    type Out = Option<Depth>;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<Option<Depth>> {
        let Some(seen) = self.seen else {
            let seen = m.load(self.at);
            self.seen = Some(seen);
            let last = 1 + u64::from(mp_core::mutant!("rlock.released-a-level-too-early"));
            return (Depth(seen).levels() <= last).then_some(Some(Depth(seen)));
        };
        if !mp_core::mutant!("rlock.level-not-given-up") {
            m.store(self.at, seen - 1);
        }
        Some(None)
    }
}

/// Reads the depth, to let go of all levels at once: by the thread that holds the lock, which releases it then.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct AllLevels(pub Word);

impl Steps for AllLevels {
    type Out = Depth;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<Depth> {
        Some(Depth(m.load(self.0)))
    }
}
