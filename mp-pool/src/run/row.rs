//! Execution of consecutive items of a chunk.
//!
//! Most items are short, and their results have no attachments. As long as this holds, the
//! [`Runner`](super::runner::Runner) of their function continues by itself: it knows the types, so decoding,
//! calling and encoding form one loop that the compiler optimizes as a whole, inside one catch of panics.
//! [`Row::advance`] runs between two items: it stores the result in the journal, then claims the next item.
//! The row ends at an item after which other work is needed, which is left to the worker's loop
//! ([`child::work`](crate::child::work)). The row contains the index of that item, even after a panic.

use std::ops::Range;

use mp_core::message::{Incoming, Message, Outgoing};
use mp_core::{Error, Result};
use mp_reduce::MessagePack;

use crate::clock::now;
use crate::run::ends::{AllOf, Ends};
use crate::run::runner::{alone, plain};
use crate::run::values::{Args, Plain};
use crate::steps::chunk::Turn;
use crate::watch::Own;

/// Maximum time for which results are held back while the next tasks of the chunk run, in nanoseconds.
const KEPT_BACK: u64 = 1_000_000;
/// Maximum number of tasks between two reads of the clock,
const MOST_UNTIMED: u32 = 256;
/// as long as they take no longer than this together, in nanoseconds.
const UNTIMED: u64 = 50_000;

/// Results that were not sent yet.
#[derive(Default)]
pub(crate) struct Part {
    pub(crate) id: u64,
    /// Item of the first result.
    pub(crate) item: usize,
    pub(crate) ends: Ends,
    pub(crate) out: Outgoing,
    /// Time at which the previous part was sent.
    since: u64,
    /// Time of the last read of the clock, number of tasks between two reads, and number of tasks until the
    /// next read.
    looked: u64,
    untimed: u32,
    left: u32,
}

impl Part {
    /// Creates an empty part for a chunk that begins now.
    pub(crate) fn of(id: u64) -> Part {
        let now = now();
        Part { id, since: now, looked: now, ..Part::default() }
    }

    /// Splits off the bytes from `start` on as a message of their own.
    pub(crate) fn split(&mut self, start: usize) -> Outgoing {
        let mut alone = std::mem::take(&mut self.out);
        *self.out.bytes() = alone.bytes().drain(..start).collect();
        alone
    }

    /// Takes the results for sending, with their duration in nanoseconds. The next result will be of the next
    /// item.
    pub(crate) fn take(&mut self) -> (Plain, u64) {
        let plain = Plain { ends: std::mem::take(&mut self.ends), bytes: std::mem::take(self.out.bytes()) };
        let since = self.since;
        self.go_on(self.item + plain.ends.len());
        (plain, self.since.saturating_sub(since))
    }

    /// Sets the next item after all earlier ones were sent. Their duration does not count for later items.
    pub(crate) fn go_on(&mut self, item: usize) {
        self.item = item;
        self.since = now();
        self.looked = self.since;
    }

    /// Returns `true` if the part should be sent. While tasks are short, the clock is read only for some of
    /// them.
    pub(crate) fn is_late(&mut self, timed: bool) -> bool {
        if self.left > 0 && !timed {
            self.left -= 1;
            return false;
        }
        let now = now();
        self.untimed = if now.saturating_sub(self.looked) < UNTIMED {
            (2 * self.untimed + 1).min(MOST_UNTIMED)
        } else {
            0
        };
        (self.looked, self.left) = (now, self.untimed);
        now.saturating_sub(self.since) >= KEPT_BACK
    }
}

/// Progress of the running item.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reached {
    Nothing,
    /// The function has returned a result.
    Result,
    /// The result is encoded.
    Written,
}

/// Source of the arguments.
enum Source<'a> {
    Many(AllOf<'a>),
    One(&'a mut Incoming),
}

/// Running item, and the items that may follow it.
pub(crate) struct Row<'a> {
    args: Source<'a>,
    own: &'a mut Own,
    pub(crate) part: &'a mut Part,
    /// Index of the running item.
    pub(crate) item: usize,
    /// End of the row (exclusive).
    end: usize,
    /// Start of the running item's result in the part.
    pub(crate) start: usize,
    pub(crate) reached: Reached,
    /// Reason why the next item was not claimed. The running item is done then: its result is in the part and
    /// in the journal.
    pub(crate) refused: Option<Turn>,
}

impl<'a> Row<'a> {
    /// Creates a row of these items. The first one must be claimed.
    pub(crate) fn new(own: &'a mut Own, part: &'a mut Part, args: &'a mut Args, items: Range<usize>) -> Self {
        let args = match args {
            Args::Many(many) => Source::Many(many.all()),
            Args::One(inc) => Source::One(inc),
            // These variants exist only before sending.
            Args::Plain(_) | Args::Alone(_) => Source::Many(AllOf::default()),
        };
        let start = part.out.bytes().len();
        let Range { start: item, end } = items;
        Row { args, own, part, item, end, start, reached: Reached::Nothing, refused: None }
    }

    /// Returns the arguments of the running item if they are a number.
    #[inline(always)]
    pub(crate) fn number<A: Message>(&self) -> Option<A> {
        match &self.args {
            Source::Many(all) => A::decode_number::<MessagePack>(all.get(self.item)?),
            Source::One(_) => None,
        }
    }

    /// Decodes the arguments of the running item.
    pub(crate) fn args<A: Message>(&mut self) -> Result<A> {
        match &mut self.args {
            Source::Many(all) => plain(all.get(self.item).ok_or_else(not_there)?),
            Source::One(inc) => {
                // While claiming fails, the arguments are kept.
                inc.claim()?;
                alone(std::mem::take(&mut **inc))
            }
        }
    }

    /// Finishes the running item: stores its result, and claims the next one. Returns `true` if the next item
    /// runs now. If it returns `false`, nothing was done, unless `refused` is set.
    pub(crate) fn advance(&mut self) -> bool {
        // An interrupt ends the chunk after the running item.
        if self.part.left == 0 || self.item + 1 >= self.end || mp_core::interrupted() {
            return false;
        }
        let Some(bytes) = self.part.out.plain() else { return false };
        let end = bytes.len();
        if !self.own.keep(&bytes[self.start..]) {
            return false;
        }
        self.part.ends.push(end);
        self.part.left -= 1;
        self.own.clear_note();
        match self.own.claim() {
            Turn::Go(_) => {
                self.item += 1;
                (self.start, self.reached) = (end, Reached::Nothing);
                true
            }
            turn => {
                self.refused = Some(turn);
                false
            }
        }
    }
}

#[cold]
fn not_there() -> Error {
    Error::Malformed("the message is not of this pool".into())
}
