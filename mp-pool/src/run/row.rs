//! The items of a chunk in a row, one after the other.
//!
//! Most items are quick, and their results are plain. As long as they are, the [`Runner`](super::runner::Runner) of their function
//! goes on by itself: it knows the types, so reading, calling and writing are one loop, which the compiler sees as a whole, under one
//! catch of panics. [`Row::advance`] is what is between two items: the result into the journal, then the claim of the next one. The row
//! ends at an item after which something else is to be done, which is left to the worker's loop
//! ([`child::work`](crate::child::work)); which item that is, the row says, also after a panic.

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

/// How long results are kept back, in nanoseconds, while the next task of the chunk is begun.
const KEPT_BACK: u64 = 1_000_000;
/// How many tasks are done without a look at the clock, at most,
const MOST_UNTIMED: u32 = 256;
/// as long as they take no longer than this together, in nanoseconds.
const UNTIMED: u64 = 50_000;

/// Results that are not sent yet.
#[derive(Default)]
pub(crate) struct Part {
    pub(crate) id: u64,
    /// The item that the first one is of.
    pub(crate) item: usize,
    pub(crate) ends: Ends,
    pub(crate) out: Outgoing,
    /// When the part before was sent.
    since: u64,
    /// When the worker looked at the clock, for how many tasks it does not, and of those how many are left.
    looked: u64,
    untimed: u32,
    left: u32,
}

impl Part {
    /// Of a chunk that is begun now.
    pub(crate) fn of(id: u64) -> Part {
        let now = now();
        Part { id, since: now, looked: now, ..Part::default() }
    }

    /// What was written from `start` on, as a message of its own; the rest stays.
    pub(crate) fn split(&mut self, start: usize) -> Outgoing {
        let mut alone = std::mem::take(&mut self.out);
        *self.out.bytes() = alone.bytes().drain(..start).collect();
        alone
    }

    /// The results, which are sent now, and how long they took; the next one is of item `item`.
    pub(crate) fn take(&mut self) -> (Plain, u64) {
        let plain = Plain { ends: std::mem::take(&mut self.ends), bytes: std::mem::take(self.out.bytes()) };
        let since = self.since;
        self.go_on(self.item + plain.ends.len());
        (plain, self.since.saturating_sub(since))
    }

    /// All before this item is sent. The time that it took is not that of those behind it.
    pub(crate) fn go_on(&mut self, item: usize) {
        self.item = item;
        self.since = now();
        self.looked = self.since;
    }

    /// Whether it is time to send it. While tasks are quick, the clock is looked at for some of them only.
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

/// How far the item is that runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reached {
    Nothing,
    /// Its function has returned a result.
    Result,
    /// That is written.
    Written,
}

/// Where the arguments are.
enum Source<'a> {
    Many(AllOf<'a>),
    One(&'a mut Incoming),
}

/// The item that runs, and those that may follow it.
pub(crate) struct Row<'a> {
    args: Source<'a>,
    own: &'a mut Own,
    pub(crate) part: &'a mut Part,
    /// The item that runs.
    pub(crate) item: usize,
    /// The row does not go on to this one.
    end: usize,
    /// Where its result begins in what the part has.
    pub(crate) start: usize,
    pub(crate) reached: Reached,
    /// Why the next item was not claimed, although this one is done: its result is in the part and in the journal.
    pub(crate) refused: Option<Turn>,
}

impl<'a> Row<'a> {
    /// From the first of these items on, which is claimed, and not beyond the last.
    pub(crate) fn new(own: &'a mut Own, part: &'a mut Part, args: &'a mut Args, items: Range<usize>) -> Self {
        let args = match args {
            Args::Many(many) => Source::Many(many.all()),
            Args::One(inc) => Source::One(inc),
            // They are there before they are sent, and not behind.
            Args::Plain(_) | Args::Alone(_) => Source::Many(AllOf::default()),
        };
        let start = part.out.bytes().len();
        let Range { start: item, end } = items;
        Row { args, own, part, item, end, start, reached: Reached::Nothing, refused: None }
    }

    /// The arguments of the item that runs, if they are a number.
    #[inline(always)]
    pub(crate) fn number<A: Message>(&self) -> Option<A> {
        match &self.args {
            Source::Many(all) => A::decode_number::<MessagePack>(all.get(self.item)?),
            Source::One(_) => None,
        }
    }

    /// Reads the arguments of the item that runs.
    pub(crate) fn args<A: Message>(&mut self) -> Result<A> {
        match &mut self.args {
            Source::Many(all) => plain(all.get(self.item).ok_or_else(not_there)?),
            Source::One(inc) => {
                // As long as this fails, they are there.
                inc.claim()?;
                alone(std::mem::take(&mut **inc))
            }
        }
    }

    /// The item is done. Keeps its result, and claims the next item; whether that runs now. If not, nothing was done, unless it
    /// is said in `refused`.
    pub(crate) fn advance(&mut self) -> bool {
        // An interrupt ends the chunk behind the item that runs.
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
