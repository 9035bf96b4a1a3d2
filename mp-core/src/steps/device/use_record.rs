//! Rows: two words in which holders of a piece of memory, for example of a device, record their use for the
//! process that created it, as steps of one shared access each. A use that was interrupted by a death is
//! detected, and its piece is not reused.
//!
//! | a holder | the creator, when the piece has no holder |
//! |---|---|
//! | records that it writes: begun + 1 | reads *last use*, and then compares begun with ended ([`ReadUseRecord`]): |
//! | … submits work to its streams … | if they differ: never reuses the piece |
//! | joins its ticks into *last use* ([`last_use_change`]), in a loop | if they are equal: reuses the piece ([`ResetUseRecord`]) after *last use* has run, if *last use* is [conclusive](UseRecord::is_conclusive) |
//! | records that this is done: ended + 1 ([`EndUse`]) | … or earlier, for streams that wait for *last use*, if *last use* is *plain* and the creator's own |
//! | releases its seat | |
//!
//! A last use is plain if it follows only work of its own process. A last use that follows work of another
//! process, which had not run, is *mixed*. If a process dies, streams that wait for its ticks continue.
//! Suppose that the holders A, B and C join in this order, each while the previous tick is pending:
//!
//! | killed | *last use* |
//! |---|---|
//! | A, before B joins | A's tick, which died. B and C leave it |
//! | A, after B joined | the tick of B or C, which completes, although A's device may write late |
//! | B, before B joins | the tick of A or C, which doesn't follow B |
//! | B, between the joins of B and C | B's tick, which died. C leaves it |
//! | B, after C joined | C's tick, which completes, although A's work may be pending |
//! | C, after C joined | C's tick, which died |
//!
//! So a mixed tick may be complete before all work has run, but only after the death of a process whose work
//! was unfinished. The ends of such clocks are counted before streams continue. The creator compares the
//! count with the count from before any other process had the piece. If they differ, the creator never reuses
//! the piece. A process that died before the first count can't have used the piece.

use crate::mem::{Mem, Steps, Word};
use crate::words::Tick;

/// A begun use, in the word of uses; an ended use is 1.
const BEGUN: u64 = 1 << 32;
/// Flag in the word of uses, above the 31 bits of ended uses: the last use, or an earlier one, is mixed.
const MIXED: u64 = 1 << 31;

/// Position of a row: its first word.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct UseRecordAt(pub Word);

impl UseRecordAt {
    /// Returns the word of the last use: a tick, or 0.
    pub const fn last_use(self) -> Word {
        self.0
    }

    /// Returns the word of uses with write access: `begun 32, is_mixed 1, ended 31`.
    pub const fn uses(self) -> Word {
        self.0.plus(1)
    }
}

/// Records that a holder may write from now on. Makes one access.
pub fn begin_use<M: Mem + ?Sized>(at: UseRecordAt, m: &M) {
    m.add(at.uses(), BEGUN);
}

/// Records that *last use* follows all writes of a holder.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct EndUse {
    at: UseRecordAt,
    loaded: Option<u64>,
}

impl EndUse {
    /// Creates the steps for a use that has begun.
    pub const fn new(at: UseRecordAt) -> Self {
        Self { at, loaded: None }
    }
}

impl Steps for EndUse {
    type Out = ();

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<()> {
        let uses = self.at.uses();
        let Some(now) = self.loaded else {
            self.loaded = Some(m.load(uses));
            return None;
        };
        // Without a carry into the neighboring bits: the count is modulo 2^31.
        match m.cas(uses, now, (now & !(MIXED - 1)) | ((now + 1) & (MIXED - 1))) {
            Ok(()) => Some(()),
            Err(found) => {
                self.loaded = Some(found);
                None
            }
        }
    }
}

/// Records that the last use becomes mixed. The holder calls this before it changes the last use. Makes one
/// access.
pub fn mark_mixed<M: Mem + ?Sized>(at: UseRecordAt, m: &M) {
    m.or(at.uses(), MIXED);
}

/// Change of *last use* by a process that releases a piece while its streams may still use the piece.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LastUseChange {
    /// No change: the last use is work of a dead process, which the creator must detect.
    Unchanged,
    /// Swap to a tick that follows all work, after a [record](mark_mixed) if that makes it mixed.
    Swap {
        /// New last use: the process's own tick. If `None`, the caller makes a new tick, in a stream that has
        /// waited for the old last use and for all own ticks.
        tick: Option<Tick>,
        /// `true` if the new last use follows work of other processes that had not run.
        mixes: bool,
    },
}

/// Returns the change from the last use `last` for the ticks `own` of a process, at least one. `over` returns
/// `Some(true)` if a tick's work has run, `Some(false)` if not yet, and `None` if it never will. `waited`
/// returns `true` if the stream of the first own tick waited for the last use before that tick's work.
pub fn last_use_change(
    last: Option<Tick>,
    own: &[Tick],
    over: impl Fn(Tick) -> Option<bool>,
    waited: impl Fn(Tick) -> bool,
) -> LastUseChange {
    let one = own.first().copied();
    let (follows, mixes) = match last.map(|tick| (tick, over(tick))) {
        Some((_, None)) => return LastUseChange::Unchanged,
        None | Some((_, Some(true))) => (true, false),
        Some((tick, Some(false))) => (waited(tick), true),
    };
    LastUseChange::Swap { tick: one.filter(|_| own.len() == 1 && follows), mixes }
}

/// Contents of the row of a piece without holders.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct UseRecord {
    /// Tick, or 0.
    pub last_use: u64,
    /// `true` if each use with write access was ended. Otherwise a process died during a use.
    pub is_complete: bool,
    /// `true` if the last use may follow work of several processes.
    pub is_mixed: bool,
}

impl UseRecord {
    /// Returns `true` if all work has run, given that the last use has. `ends`: number of clocks that ended
    /// with unfinished work, before another process had the piece, and after the last use was found complete.
    pub const fn is_conclusive(&self, ends: [u64; 2]) -> bool {
        !self.is_mixed || ends[0] == ends[1]
    }
}

/// Reads the row of a piece without holders. Only the process that created the piece does this.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ReadUseRecord {
    at: UseRecordAt,
    last: Option<u64>,
}

impl ReadUseRecord {
    /// Creates the steps for a piece without holders.
    pub const fn new(at: UseRecordAt) -> Self {
        Self { at, last: None }
    }
}

impl Steps for ReadUseRecord {
    type Out = UseRecord;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<UseRecord> {
        let Some(last_use) = self.last else {
            self.last = Some(m.load(self.at.last_use()));
            return None;
        };
        let now = m.load(self.at.uses());
        let is_complete = (now / BEGUN) % MIXED == now % MIXED;
        Some(UseRecord { last_use, is_complete, is_mixed: now & MIXED != 0 })
    }
}

/// Initializes the row of a piece. Only the process that created the piece does this, while no other process
/// has a handle to it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ResetUseRecord {
    at: UseRecordAt,
    cleared: bool,
}

impl ResetUseRecord {
    /// Creates the steps for a piece that no other process has a handle to yet.
    pub const fn new(at: UseRecordAt) -> Self {
        Self { at, cleared: false }
    }
}

impl Steps for ResetUseRecord {
    type Out = ();

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<()> {
        if self.cleared {
            m.store(self.at.uses(), 0);
            return Some(());
        }
        m.store(self.at.last_use(), 0);
        self.cleared = true;
        None
    }
}
