//! Execution of consecutive items of a chunk.
//!
//! Most items are short, and their results have no attachments. The [`Runner`](crate::child::runner::Runner)
//! of a function executes a run of such items without the main loop. The runner knows the types, so decoding,
//! calling and encoding form one loop that the compiler optimizes as a whole, inside one catch of panics.
//! [`ItemCursor::advance`] runs between two items: it stores the result in the journal, then claims the next
//! item. A run ends after an item that requires work of the worker's main loop
//! ([`main_loop`](crate::child::main_loop)). The cursor contains the index of the last item, even after a
//! panic.

use std::ops::Range;

use mp_core::message::{Incoming, Message, Outgoing, Undecodable, decode_number};
use mp_core::{Error, Result};
use mp_reduce::MessagePack;

use crate::child::clock::now;
use crate::child::journal_words::WordsWriter;
#[cfg(feature = "tracing")]
use crate::child::task_span::TaskSpan;
use crate::child::task_span::{FirstTask, WorkerLabel};
use crate::child::values::{EndPositions, PackedValues, TaskArgs, ValuesView};
use crate::steps::chunk::Turn;

/// Maximum time for which results are held back while the next tasks of the chunk run, in nanoseconds.
const LONGEST_DELAY: u64 = 1_000_000;
/// Maximum number of tasks between two reads of the clock.
const MOST_UNTIMED: u32 = 256;
/// Target for the time between two reads of the clock, in nanoseconds. If less time has passed, the number of
/// tasks between two reads grows. Otherwise the clock is read after the next task.
const UNTIMED: u64 = 50_000;

/// Part of a chunk's results: results that are collected for one reply and not sent yet.
#[derive(Default)]
pub(crate) struct ReplyPart {
    pub(crate) id: u64,
    /// Index of the item in its chunk to which the first result belongs.
    pub(crate) item: usize,
    pub(crate) ends: EndPositions,
    pub(crate) out: Outgoing,
    /// Time at which the previous part was sent, in nanoseconds of the monotonic clock.
    since: u64,
    /// Time of the last read of the clock, number of tasks between two reads (`untimed`), and number of tasks
    /// until the next read (`left`).
    clock_read: u64,
    untimed: u32,
    left: u32,
}

impl ReplyPart {
    /// Creates an empty part for a chunk that begins now.
    pub(crate) fn of(id: u64) -> ReplyPart {
        let now = now();
        ReplyPart { id, since: now, clock_read: now, ..ReplyPart::default() }
    }

    /// Splits off the bytes from `start` on as a message of their own.
    pub(crate) fn split(&mut self, start: usize) -> Outgoing {
        let mut alone = std::mem::take(&mut self.out);
        *self.out.bytes() = alone.bytes().drain(..start).collect();
        alone
    }

    /// Takes the results for sending, with the time since the previous part in nanoseconds. The part is then
    /// empty and continues with the next item.
    pub(crate) fn take(&mut self) -> (PackedValues, u64) {
        let plain =
            PackedValues { ends: std::mem::take(&mut self.ends), bytes: std::mem::take(self.out.bytes()) };
        let since = self.since;
        self.continue_at(self.item + plain.ends.len());
        (plain, self.since.saturating_sub(since))
    }

    /// Makes `item` the item of the next result, after all earlier results were sent. The time until now is
    /// not counted for later items.
    pub(crate) fn continue_at(&mut self, item: usize) {
        self.item = item;
        self.since = now();
        self.clock_read = self.since;
    }

    /// Returns `true` if the part should be sent. While tasks are short, the clock is read only for some of
    /// them.
    pub(crate) fn is_late(&mut self, timed: bool) -> bool {
        if self.left > 0 && !timed {
            self.left -= 1;
            return false;
        }
        let now = now();
        self.untimed = if now.saturating_sub(self.clock_read) < UNTIMED {
            (2 * self.untimed + 1).min(MOST_UNTIMED)
        } else {
            0
        };
        (self.clock_read, self.left) = (now, self.untimed);
        now.saturating_sub(self.since) >= LONGEST_DELAY
    }
}

/// Progress of the running item.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ItemStage {
    Started,
    /// The function has returned a result.
    Returned,
    /// The result is encoded.
    Encoded,
}

/// Source of the arguments.
enum ArgsSource<'a> {
    Many(ValuesView<'a>),
    One(&'a mut Incoming),
}

/// Position of a worker in consecutive items of a chunk: the running item, and the items after it.
pub(crate) struct ItemCursor<'a> {
    args: ArgsSource<'a>,
    words: &'a mut WordsWriter,
    pub(crate) part: &'a mut ReplyPart,
    /// Index of the running item.
    pub(crate) item: usize,
    /// End of the items (exclusive).
    end: usize,
    /// Byte offset of the running item's result in the part.
    pub(crate) start: usize,
    pub(crate) reached: ItemStage,
    /// Reason why the next item was not claimed. If set, the running item is finished, with its result in the
    /// part and in the journal.
    pub(crate) refused: Option<Turn>,
    /// Worker and first task of the chunk, for the spans of tasks.
    #[cfg(feature = "tracing")]
    origin: (&'a WorkerLabel, FirstTask),
}

impl<'a> ItemCursor<'a> {
    /// Creates a cursor over the items `items` of a chunk. The worker must have claimed the first of them.
    pub(crate) fn new(
        words: &'a mut WordsWriter,
        part: &'a mut ReplyPart,
        args: &'a mut TaskArgs,
        items: Range<usize>,
        _origin: (&'a WorkerLabel, FirstTask),
    ) -> Self {
        let args = match args {
            TaskArgs::Received(many) => ArgsSource::Many(many.all()),
            TaskArgs::ReceivedSingle(inc) => ArgsSource::One(inc),
            // These variants exist only before sending.
            TaskArgs::Packed(_) | TaskArgs::Single(_) => ArgsSource::Many(ValuesView::default()),
        };
        let start = part.out.bytes().len();
        let Range { start: item, end } = items;
        ItemCursor {
            args,
            words,
            part,
            item,
            end,
            start,
            reached: ItemStage::Started,
            refused: None,
            #[cfg(feature = "tracing")]
            origin: _origin,
        }
    }

    /// Enters the span of the running item.
    #[cfg(feature = "tracing")]
    pub(crate) fn enter_span(&self) -> Option<TaskSpan> {
        let (label, first) = self.origin;
        TaskSpan::enter(label, first, self.item)
    }

    /// Returns the arguments of the running item if they are a number.
    #[inline(always)]
    pub(crate) fn number<A: Message>(&self) -> Option<A> {
        match &self.args {
            ArgsSource::Many(all) => decode_number::<A, MessagePack>(all.get(self.item)?),
            ArgsSource::One(_) => None,
        }
    }

    /// Decodes the arguments of the running item.
    pub(crate) fn args<A: Message>(&mut self) -> Result<A> {
        match &mut self.args {
            ArgsSource::Many(all) => plain(all.get(self.item).ok_or_else(not_there)?),
            ArgsSource::One(inc) => {
                // If claiming fails, the arguments are kept.
                inc.claim()?;
                alone(std::mem::take(&mut **inc))
            }
        }
    }

    /// Finishes the running item: stores its result, and claims the next item. Returns `true` if the next
    /// item was claimed. If `false` is returned and `refused` is `None`, the caller has to finish the running
    /// item.
    pub(crate) fn advance(&mut self) -> bool {
        // An interrupt ends the chunk after the running item.
        if self.part.left == 0 || self.item + 1 >= self.end || mp_core::interrupted() {
            return false;
        }
        let Some(bytes) = self.part.out.plain() else { return false };
        let end = bytes.len();
        if !self.words.append_result(&bytes[self.start..]) {
            return false;
        }
        self.part.ends.push(end);
        self.part.left -= 1;
        self.words.clear_note();
        match self.words.claim() {
            Turn::Go(_) => {
                self.item += 1;
                (self.start, self.reached) = (end, ItemStage::Started);
                true
            }
            turn => {
                self.refused = Some(turn);
                false
            }
        }
    }
}

/// Decodes arguments from a message that contains only the arguments of one task.
fn alone<A: Message>(mut inc: Incoming) -> Result<A> {
    // The bytes before the arguments were written by the pool.
    let before = inc.whole().len() - inc.rest().len();
    let args = A::decode::<MessagePack>(&mut inc);
    // Attachments that are not part of the arguments are dropped here, not kept while the arguments are used.
    args.map_err(|error| Undecodable::of_message::<A>(error, inc.whole().get(before..).unwrap_or_default()))
}

/// Decodes arguments from the bytes of one task in a message of many tasks.
#[inline]
fn plain<A: Message>(bytes: &[u8]) -> Result<A> {
    A::decode_plain::<MessagePack>(bytes).map_err(|error| Undecodable::of_message::<A>(error, bytes))
}

#[cold]
fn not_there() -> Error {
    Error::Malformed("the message is not of this pool".into())
}
