//! Steps of a recursive lock: the depth of its holder.
//!
//! # Words and their transitions
//! | word | states | changed by |
//! |---|---|---|
//! | lock: see [`mp_core::steps::lock`] | | the thread that takes the lock; the second word names the holder ([`is_held_by`](mp_core::steps::lock::is_held_by)) |
//! | depth: `depth 32, recovering 1` | any value | the thread that holds the lock: 1 at the first level, then up and down |
//!
//! The depth is valid only while the lock is held, and only its holder accesses it. So it needs no
//! read-modify-write, and a new holder overwrites the value of the previous holder.
//!
//! # Effect of a death
//! | killed | remaining state | effect |
//! |---|---|---|
//! | before it has the lock | nothing | |
//! | with the lock, at any depth; also before it wrote the first depth | held by a dead process, any depth | the next caller adopts the lock, poisoned; locking returns `OwnerDied` until a caller recovers at depth 1 |
//! | while it recovers | the same, already poisoned | the same: only the release of the last level clears the mark |
//! | waiting at a condition | free | none: the thread has released all levels, and their number is in its private memory |

use mp_core::mem::{Mem, Steps, Word};

/// Lowest bit above the depth. Set while the holder repairs the data.
const RECOVERING: u64 = 1 << 32;
const DEEPEST: u64 = u32::MAX as u64;

/// Content of the depth word.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Depth(pub u64);

impl Depth {
    /// Creates the depth of a lock that was just taken at `levels` levels. If `recovering`, releasing the
    /// last level marks the data as repaired.
    pub fn new(levels: u64, recovering: bool) -> Self {
        Self(levels & DEEPEST | if recovering { RECOVERING } else { 0 })
    }

    /// Returns the number of levels of the holder.
    pub const fn levels(self) -> u64 {
        self.0 & DEEPEST
    }

    /// Returns `true` if the holder repairs the data.
    pub const fn is_recovering(self) -> bool {
        self.0 & RECOVERING != 0
    }
}

/// Stores the depth after the lock was taken. The caller holds the lock.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SetDepth(pub Word, pub Depth);

impl Steps for SetDepth {
    type Out = ();

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<()> {
        m.store(self.0, self.1.0);
        Some(())
    }
}

/// Result of [`AddLevel`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AddLevelOutcome {
    /// The thread holds one more level.
    Added,
    /// The thread has the maximum number of levels.
    Overflow,
    /// The depth is 0 although the thread holds the lock: a foreign process overwrote it.
    Corrupt,
}

/// Adds a level. The caller holds the lock.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct AddLevel {
    at: Word,
    seen: Option<u64>,
}

impl AddLevel {
    /// Creates the steps for the depth word at `at`.
    pub fn new(at: Word) -> Self {
        Self { at, seen: None }
    }
}

impl Steps for AddLevel {
    type Out = AddLevelOutcome;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<AddLevelOutcome> {
        let Some(seen) = self.seen else {
            let seen = m.load(self.at);
            self.seen = Some(seen);
            return match Depth(seen).levels() {
                DEEPEST => Some(AddLevelOutcome::Overflow),
                0 => Some(AddLevelOutcome::Corrupt),
                _ => None,
            };
        };
        m.store(self.at, seen + 1);
        Some(AddLevelOutcome::Added)
    }
}

/// Releases one level. The caller holds the lock. Ends with `None` if the caller has other levels. Otherwise
/// ends with the depth before the release, and the caller has to release the lock.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ReleaseLevel {
    at: Word,
    seen: Option<u64>,
}

impl ReleaseLevel {
    /// Creates the steps for the depth word at `at`.
    pub fn new(at: Word) -> Self {
        Self { at, seen: None }
    }
}

impl Steps for ReleaseLevel {
    type Out = Option<Depth>;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<Option<Depth>> {
        let Some(seen) = self.seen else {
            let seen = m.load(self.at);
            self.seen = Some(seen);
            let last = 1;
            return (Depth(seen).levels() <= last).then_some(Some(Depth(seen)));
        };
        m.store(self.at, seen - 1);
        Some(None)
    }
}

/// Loads the depth, for a release of all levels at once. The caller holds the lock, and releases it
/// afterwards.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ReadDepth(pub Word);

impl Steps for ReadDepth {
    type Out = Depth;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<Depth> {
        Some(Depth(m.load(self.0)))
    }
}
