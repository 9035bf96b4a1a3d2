//! Rows: two words in which holders of a piece of memory, for example of a device, record their use for the
//! process that created it, as steps of one shared access each. A use that was interrupted by a death is
//! detected, and its piece is not reused.
//!
//! | a holder | the creator, when the piece has no holder |
//! |---|---|
//! | records that it writes: begun + 1 | reads *last use*, and then compares begun with ended ([`LookAtReturned`]): |
//! | … submits work to its streams … | if they differ: never reuses the piece |
//! | joins its ticks into *last use* ([`joining`]), in a loop | if they are equal, after *last use* has run: reuses it ([`BeginPiece`]) |
//! | records that this is done: ended + 1 ([`EndUse`]) | earlier, if *last use* is *plain*: for streams that wait for it |
//! | releases its seat | |
//!
//! A last use is plain if it follows only work of its own process. A last use that follows work of another
//! process, which had not run, is *mixed*: if its process dies, streams that wait for it continue, and that
//! work may not have run.

use crate::mem::{Mem, Steps, Word};
use crate::words::Tick;

/// A begun use, in the word of uses; an ended use is 1.
const BEGUN: u64 = 1 << 32;
/// In the word of uses, above 31 bits of ended uses: the last use is mixed, or was.
const MIXED: u64 = 1 << 31;

/// Position of a row: its first word.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RowAt(pub Word);

impl RowAt {
    /// Returns the word of the last use: a tick, or 0.
    pub const fn last_use(self) -> Word {
        self.0
    }

    /// Returns the word of uses with write access: `begun 32, mixed 1, ended 31`.
    pub const fn uses(self) -> Word {
        self.0.plus(1)
    }
}

/// Records that a holder may write from now on: one access.
pub fn begin_use<M: Mem + ?Sized>(at: RowAt, m: &M) {
    m.add(at.uses(), BEGUN);
}

/// Records that *last use* follows all writes of a holder.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct EndUse {
    at: RowAt,
    seen: Option<u64>,
}

impl EndUse {
    /// Creates the steps for a use that has begun.
    pub const fn new(at: RowAt) -> Self {
        Self { at, seen: None }
    }
}

impl Steps for EndUse {
    type Out = ();

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<()> {
        let uses = self.at.uses();
        let Some(now) = self.seen else {
            self.seen = Some(m.load(uses));
            return None;
        };
        // Without a carry into the neighboring bits: the count is modulo 2^31.
        match m.cas(uses, now, (now & !(MIXED - 1)) | ((now + 1) & (MIXED - 1))) {
            Ok(()) => Some(()),
            Err(found) => {
                self.seen = Some(found);
                None
            }
        }
    }
}

/// Records that a holder makes the last use a mixed one: one access, before it does so.
pub fn mix<M: Mem + ?Sized>(at: RowAt, m: &M) {
    m.or(at.uses(), MIXED);
}

/// Change of *last use* by a process that leaves with work of its streams.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Joining {
    /// Unchanged: it is work of a dead process, which the creator has to find.
    Stays,
    /// Swap to a tick that follows all work, after a [record](mix) if that makes it mixed.
    Swap {
        /// Own tick of the process; `None`: a tick of a stream that waits for the last use, and for all own
        /// ticks.
        tick: Option<Tick>,
        /// `true` if it follows work of other processes that had not run.
        mixes: bool,
    },
}

/// Determines how the ticks of a process, at least one, join the last use found. `over`: returns
/// `Some(true)` if a tick's work has run, `Some(false)` if not yet, and `None` if it never will. `waited`:
/// returns `true` if the stream of the first own tick has waited for the given last use before its work.
pub fn joining(
    last: Option<Tick>,
    own: &[Tick],
    over: impl Fn(Tick) -> Option<bool>,
    waited: impl Fn(Tick) -> bool,
) -> Joining {
    let one = own.first().copied();
    let (follows, mixes) = match last.map(|tick| (tick, over(tick))) {
        Some((_, None)) => return Joining::Stays,
        None | Some((_, Some(true))) => (true, false),
        Some((tick, Some(false))) => (waited(tick), true),
    };
    Joining::Swap { tick: one.filter(|_| own.len() == 1 && follows), mixes }
}

/// Contents of the row of a piece without holders.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Returned {
    /// Tick, or 0.
    pub last_use: u64,
    /// `true` if each use with write access was ended. Otherwise a process died during a use.
    pub whole: bool,
    /// `true` if the last use may follow work of several processes.
    pub mixed: bool,
}

/// Reads the row of a piece without holders, by its creator.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LookAtReturned {
    at: RowAt,
    last: Option<u64>,
}

impl LookAtReturned {
    /// Creates the steps for a piece without holders.
    pub const fn new(at: RowAt) -> Self {
        Self { at, last: None }
    }
}

impl Steps for LookAtReturned {
    type Out = Returned;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<Returned> {
        let Some(last_use) = self.last else {
            self.last = Some(m.load(self.at.last_use()));
            return None;
        };
        let now = m.load(self.at.uses());
        let whole = (now / BEGUN) % MIXED == now % MIXED;
        Some(Returned { last_use, whole, mixed: now & MIXED != 0 })
    }
}

/// Initializes the row of a piece that no other process has, by its creator.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct BeginPiece {
    at: RowAt,
    cleared: bool,
}

impl BeginPiece {
    /// Creates the steps for a piece that no other process knows yet.
    pub const fn new(at: RowAt) -> Self {
        Self { at, cleared: false }
    }
}

impl Steps for BeginPiece {
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
