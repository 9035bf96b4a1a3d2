//! Rows: two words in which holders of a piece of memory, of a device say, leave to the process that made it what they did with it, as
//! steps of one shared access each. What a holder may have been killed in the middle of is seen, and not given away.
//!
//! | a holder | a maker, when the piece has no holder |
//! |---|---|
//! | says that it writes: begun + 1 | looks at *last use*, and then whether begun and ended are the same ([`LookAtReturned`]): |
//! | … gives work to its streams … | if not: never cuts it again |
//! | joins its ticks into *last use* ([`joining`]), in a loop | if so, when that has run: cuts it anew ([`BeginPiece`]) |
//! | says that this is done: ended + 1 ([`EndUse`]) | before, if it is *plain*: for streams that wait for *last use* |
//! | gives up its seat | |
//!
//! A last use is plain if it is behind work of its own process alone. One that is behind work of another process, which had not run, is
//! *mixed*: if its process dies, streams that wait for it go on, and that work may not have run.

use crate::mem::{Mem, Steps, Word};
use crate::words::Tick;

/// One use that has begun, in the word of uses; one that has ended is 1.
const BEGUN: u64 = 1 << 32;
/// In the word of uses, above 31 bits of those that have ended: the last use is mixed, or was.
const MIXED: u64 = 1 << 31;

/// Where a row is: its first word.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RowAt(pub Word);

impl RowAt {
    /// The word of the last use: a tick, or 0.
    pub const fn last_use(self) -> Word {
        self.0
    }

    /// The word of uses with write access: `begun 32, mixed 1, ended 31`.
    pub const fn uses(self) -> Word {
        self.0.plus(1)
    }
}

/// A holder says that it may write from now on: one access.
pub fn begin_use<M: Mem + ?Sized>(at: RowAt, m: &M) {
    m.add(at.uses(), BEGUN);
}

/// A holder says that all that it has written is behind *last use*.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct EndUse {
    at: RowAt,
    seen: Option<u64>,
}

impl EndUse {
    /// Of a use that has begun.
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
        // No carry into what is beside it: it counts modulo 2^31.
        match m.cas(uses, now, (now & !(MIXED - 1)) | ((now + 1) & (MIXED - 1))) {
            Ok(()) => Some(()),
            Err(found) => {
                self.seen = Some(found);
                None
            }
        }
    }
}

/// A holder says that it makes the last use a mixed one: one access, before it does.
pub fn mix<M: Mem + ?Sized>(at: RowAt, m: &M) {
    m.or(at.uses(), MIXED);
}

/// What a process does to *last use* that leaves with work of its streams.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Joining {
    /// It leaves it: that is work of a dead process, which the maker has to find.
    Stays,
    /// It swaps in a tick that is behind all, after it has [said](mix) so if that makes it mixed.
    Swap {
        /// Its own tick; `None`: that of a stream which waits for what is there, and for all its own ticks.
        tick: Option<Tick>,
        /// Whether it is behind work of other processes that had not run.
        mixes: bool,
    },
}

/// How these ticks of a process, at least one, join the last use that it found. `over`: whether a tick's work has run; `None`: it never
/// will. `waited`: whether the stream of the first one has waited for it before its work.
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

/// What a maker finds in the row of a piece without holders.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Returned {
    /// A tick, or 0.
    pub last_use: u64,
    /// Whether each use with write access was ended. If not, a process died in the middle of one.
    pub whole: bool,
    /// Whether the last use may be behind work of several processes.
    pub mixed: bool,
}

/// The maker looks at the row of a piece that has no holder.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LookAtReturned {
    at: RowAt,
    last: Option<u64>,
}

impl LookAtReturned {
    /// Of a piece without holders.
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

/// The maker begins a piece where no other process has one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct BeginPiece {
    at: RowAt,
    cleared: bool,
}

impl BeginPiece {
    /// Of a piece that no other process knows yet.
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
