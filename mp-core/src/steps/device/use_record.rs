//! Records of the use of a piece of memory, for example of a device, as steps of one shared access each. A
//! record is a row of two words. Holders of the piece record in it how they use the piece, and the process
//! that created the piece reads the record. If a death has interrupted a use, the creator detects that, and
//! does not reuse the piece.
//!
//! | a holder | the creator, when the piece has no holder |
//! |---|---|
//! | records that it writes: begun + 1 | reads *last use*, and then compares begun with ended ([`ReadUseRecord`]): |
//! | submits work to its streams | if they differ, never reuses the piece |
//! | adds its ticks to *last use* ([`last_use_change`]), in a loop | if they are equal, reuses the piece ([`ResetUseRecord`]) after *last use* has run, if *last use* is [conclusive](UseRecord::is_conclusive) |
//! | records the end of the use: ended + 1 ([`EndUse`]) | if they are equal, and *last use* is *plain* and the creator's own, reuses the piece at once, for streams that wait for *last use* |
//! | releases its seat | |
//!
//! *Last use* is a tick. It is *plain* if it follows only work of its own process, and *mixed* if it follows
//! work of another process that had not run. If a process dies, streams that wait for its ticks continue.
//! Suppose that the holders A, B and C add their ticks in this order, each while the previous tick is
//! pending:
//!
//! | killed | *last use* |
//! |---|---|
//! | A, before B adds its tick | A's tick, which never completes. B and C don't replace it |
//! | A, after B added its tick | the tick of B or C, which completes, although A's device may write late |
//! | B, before B adds its tick | the tick of A or C, which doesn't follow B's work |
//! | B, after B added its tick, before C adds its tick | B's tick, which never completes. C doesn't replace it |
//! | B, after C added its tick | C's tick, which completes, although A's work may be pending |
//! | C, after C added its tick | C's tick, which never completes |
//!
//! So a mixed tick may be complete before all work has run, but only after the death of a process whose work
//! was unfinished. Before the streams continue, the end of such a process's clock is counted. The creator
//! compares the count with the count from before any other process had the piece. If they differ, the creator
//! never reuses the piece. A process that died before the first count can't have used the piece.

use crate::mem::{Mem, Steps, Word};
use crate::words::Tick;

/// Value added to the word of uses when a use begins. When a use ends, 1 is added.
const BEGUN: u64 = 1 << 32;
/// Flag in the word of uses, above the 31 bits of ended uses. Set if the last use, or an earlier one, is
/// mixed.
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

/// Records that a holder begins a use with write access. Makes one access.
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
    /// The caller swaps *last use* to a tick that follows all work. If `mixes` is `true`, the caller first
    /// calls [`mark_mixed`].
    Swap {
        /// New last use, a tick of the caller's process. If `None`, the caller creates a tick in a stream
        /// that has waited for the old last use and for all ticks of the process.
        tick: Option<Tick>,
        /// `true` if the new last use follows work of other processes that had not run.
        mixes: bool,
    },
}

/// Returns the change of *last use*, whose present value is `last`, for a process with the ticks `own`, at
/// least one.
///
/// `over` returns `Some(true)` if a tick's work has run, `Some(false)` if it has not run yet, and `None` if
/// it never will. `waited` returns `true` if the stream of the first own tick waited for a given tick before
/// it did its own work.
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

/// Contents of the row of a piece that has no holders.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct UseRecord {
    /// Tick of the last use, or 0.
    pub last_use: u64,
    /// `true` if each use with write access was ended. Otherwise a process died during a use.
    pub is_complete: bool,
    /// `true` if the last use may follow work of several processes.
    pub is_mixed: bool,
}

impl UseRecord {
    /// Returns `true` if all work on the piece has run, provided that the last use is complete.
    ///
    /// `ends` has two counts of the clocks that ended with unfinished work. The creator read the first count
    /// before any other process had the piece, and the second after it found the last use complete.
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
