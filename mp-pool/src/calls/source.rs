//! Sources of a call's arguments, which encode them because they know their type.

use std::collections::VecDeque;
use std::ops::Range;

use mp_core::message::Outgoing;
use mp_core::message::level::with_nested_message;
use mp_core::mutex::Mutex;
use mp_core::user_code::{UserValue, UserValues, drop_caught};
use mp_reduce::{Message, MessagePack};
use mp_spawn::CallFailure;

use crate::calls::chunk::Kept;
use crate::calls::hand::Hand;
use crate::calls::lanes::Takes;
use crate::error::Unsendable;
use crate::run::ends::Ends;
use crate::run::values::{Args, Plain, Slice};

/// Maximum size of the arguments of a chunk in bytes, unless one task has more.
const MOST_BYTES: usize = 64 << 10;
/// Number of items that are taken before their size is checked.
const TAKEN: usize = 64;

/// Encoded arguments of consecutive tasks.
pub(crate) struct Piece {
    /// Index of the first task.
    pub(crate) first: usize,
    /// Number of earlier attempts at the task.
    pub(crate) tries: u32,
    /// Arguments, or the reason why they are missing.
    pub(crate) args: Result<Args, Unsendable>,
    /// Arguments for a retry.
    pub(crate) kept: Kept,
}

impl Piece {
    /// Creates a piece of tasks that have not been begun.
    fn plain(first: usize, plain: Plain) -> Piece {
        Piece::of(first, Slice::of(plain))
    }

    fn of(first: usize, slice: Slice) -> Piece {
        Piece { first, tries: 0, args: Ok(Args::Plain(slice.clone())), kept: Kept::Plain(slice) }
    }

    /// Splits the piece into pieces of at most `size` tasks.
    pub(crate) fn split(self, size: usize, mut piece: impl FnMut(Piece)) {
        match &self.args {
            Ok(Args::Plain(slice)) if slice.len() > size => {
                for from in (0..slice.len()).step_by(size) {
                    let part = slice.part(from, (from + size).min(slice.len()));
                    piece(Piece::of(self.first + from, part));
                }
            }
            _ => piece(self),
        }
    }

    /// Creates a piece of one task that was begun `tries` times.
    pub(crate) fn again(first: usize, tries: u32, mut kept: Kept) -> Piece {
        let args = match &mut kept {
            Kept::Plain(slice) => Ok(Args::Plain(slice.clone())),
            Kept::Original(original) => original
                .get_mut()
                .map_or_else(|| Err(Unsendable::said("they were not kept")), |kept| kept.again())
                .map(Args::Alone),
            Kept::Not => Err(Unsendable::said("they were not kept")),
        };
        Piece { first, tries, args, kept }
    }
}

/// Arguments that were kept for a retry, for which they are encoded again.
pub(crate) trait Keep: Send {
    fn again(&mut self) -> Result<Outgoing, Unsendable>;
}

pub(crate) struct Original<A>(pub(crate) A);

impl<A: Message + Send> Keep for Original<A> {
    fn again(&mut self) -> Result<Outgoing, Unsendable> {
        let mut out = Outgoing::default();
        encode(&mut self.0, &mut out)?;
        Ok(out)
    }
}

/// Encodes arguments. Calls user code: a panic of it is returned as an error.
fn encode<A: Message>(args: &mut A, out: &mut Outgoing) -> Result<(), Unsendable> {
    match CallFailure::catch(|| with_nested_message(|| args.encode::<MessagePack>(out))) {
        Ok(written) => written.map_err(unsendable),
        Err(raise) => Err(panicked(&raise)),
    }
}

fn unsendable(error: mp_core::Error) -> Unsendable {
    mp_reduce::Error::from(error).into()
}

fn panicked(raise: &CallFailure) -> Unsendable {
    let error = mp_core::Error::Unsendable(format!("its `Serialize` panicked: {}", raise.message()));
    unsendable(error)
}

/// User values that are no longer needed. Dropping them catches panics.
pub(crate) type Rubbish = Box<dyn Send>;

/// Source of arguments, which knows their type.
pub(crate) trait Source: Send + Sync {
    /// Takes at most `most` items. They form one chunk unless they are too long or have attachments. Items
    /// are counted in `hand` from the moment they are taken.
    fn take(&self, most: usize, takes: Option<&Takes>, hand: &Hand, into: &mut Vec<Piece>);
    fn left(&self) -> usize;
    /// Takes the rest: the indices of the tasks, and their values, for the caller to drop.
    fn clear(&self) -> (Vec<Range<usize>>, Rubbish);

    /// Returns `true` if tasks prefer certain workers: then [`take`](Self::take) gets the worker.
    fn has_lanes(&self) -> bool {
        false
    }

    /// Returns `true` if there is a task for that worker.
    fn has_for(&self, _: &Takes) -> bool {
        self.left() > 0
    }

    /// Records that a worker receives a task.
    fn goes_to(&self, _index: usize, _worker: usize) {}
}

/// Arguments that are in memory.
pub(crate) struct Items<A> {
    /// Items, and the index of the first.
    queue: Mutex<(UserValues<A>, usize)>,
    /// `true` if arguments are kept for a retry.
    keeps: bool,
}

impl<A> Items<A> {
    pub(crate) fn new(keeps: bool) -> Self {
        Self { queue: Mutex::new((UserValues::default(), 0)), keeps }
    }

    /// Sets the first items.
    pub(crate) fn bring(&self, items: UserValues<A>) {
        self.queue.lock().0 = items;
    }

    pub(crate) fn push(&self, mut items: UserValues<A>) {
        self.queue.lock().0.append(&mut items);
    }

    fn taken(&self, most: usize, hand: &Hand) -> (UserValues<A>, usize) {
        let mut queue = self.queue.lock();
        let count = most.min(queue.0.len());
        let first = queue.1;
        queue.1 += count;
        hand.take(count);
        (UserValues::from(queue.0.drain(..count).collect::<VecDeque<A>>()), first)
    }
}

/// Encodes at most `most` items, which `taken` returns in consecutive rows with the index of the first item.
pub(crate) fn encode_rows<A: Message + Send>(
    most: usize,
    keeps: bool,
    into: &mut Vec<Piece>,
    mut taken: impl FnMut(usize) -> (UserValues<A>, usize),
) {
    let before = into.len();
    let mut encoder = Encoder { first: 0, out: Outgoing::default(), ends: Ends::default(), into };
    let mut left = most;
    while left > 0 {
        let (mut items, first) = taken(left.min(TAKEN));
        if items.is_empty() {
            break;
        }
        left -= items.len();
        // Another thread may have taken items in between.
        encoder.continues_at(first);
        // User code runs without the lock.
        while !items.is_empty() {
            encoder.encode(&mut items, keeps);
        }
        if encoder.is_full() || encoder.into.len() > before {
            break;
        }
    }
    encoder.end();
}

impl<A: Message + Send> Source for Items<A> {
    fn take(&self, most: usize, _: Option<&Takes>, hand: &Hand, into: &mut Vec<Piece>) {
        encode_rows(most, self.keeps, into, |most| self.taken(most, hand));
    }

    fn left(&self) -> usize {
        self.queue.lock().0.len()
    }

    fn clear(&self) -> (Vec<Range<usize>>, Rubbish) {
        let mut queue = self.queue.lock();
        let items = std::mem::take(&mut queue.0);
        let first = queue.1;
        queue.1 += items.len();
        let range = first..first + items.len();
        (vec![range], Box::new(items))
    }
}

/// Encoder that combines items into pieces.
struct Encoder<'a> {
    /// Index of the first item encoded in `out`.
    first: usize,
    out: Outgoing,
    ends: Ends,
    into: &'a mut Vec<Piece>,
}

impl Encoder<'_> {
    fn continues_at(&mut self, index: usize) {
        if index != self.first + self.ends.len() {
            self.end();
            self.first = index;
        }
    }

    fn is_full(&mut self) -> bool {
        self.out.bytes().len() >= MOST_BYTES
    }

    fn written(&self) -> usize {
        self.ends.last()
    }

    /// Finishes the current piece.
    fn end(&mut self) {
        if !self.ends.is_empty() {
            let plain =
                Plain { ends: std::mem::take(&mut self.ends), bytes: std::mem::take(self.out.bytes()) };
            let first = self.first;
            self.first += plain.ends.len();
            self.into.push(Piece::plain(first, plain));
        }
    }

    /// Encodes the first of these items, and the following ones until an item must be sent alone.
    fn encode<A: Message + Send>(&mut self, items: &mut UserValues<A>, keeps: bool) {
        // The item is declared outside, so that it is dropped separately whatever panics.
        let mut item = None;
        let failed = CallFailure::catch(|| {
            with_nested_message(|| {
                while let Some(args) = items.pop_front() {
                    let args = item.insert(args);
                    args.encode_wide::<MessagePack>(&mut self.out)?;
                    let Some(bytes) = self.out.plain() else { return Ok(()) };
                    let end = bytes.len();
                    if end - self.ends.last() > MOST_BYTES {
                        return Ok(());
                    }
                    self.ends.push(end);
                    // A drop of the item must not affect whether it is sent. Items without a drop need no
                    // separation.
                    if std::mem::needs_drop::<A>() || end >= MOST_BYTES {
                        return Ok(());
                    }
                }
                Ok(())
            })
        });
        let end = self.out.bytes().len();
        let is_written = matches!(failed, Ok(Ok(()))) && self.out.plain().is_some() && end == self.written();
        if is_written {
            if let Some(args) = item {
                drop_caught(args);
            }
            if self.is_full() {
                self.end();
            }
            return;
        }
        // The last item is sent alone, or not at all.
        let (mut alone, kept) = (std::mem::take(&mut self.out), self.written());
        *self.out.bytes() = alone.bytes().drain(..kept).collect();
        self.end();
        let index = self.first;
        self.first += 1;
        let item = UserValue::new(item);
        let args = match failed {
            Ok(Ok(())) => Ok(alone),
            Ok(Err(error)) => Err(unsendable(error)),
            Err(raise) => Err(panicked(&raise)),
        };
        let (args, kept) = match args {
            Ok(out) if keeps && out.lends() => (Err(Unsendable::said(MOVES)), Kept::Not),
            Ok(out) if keeps => (Ok(out), kept_as_it_is(item)),
            args => (args, Kept::Not),
        };
        self.into.push(Piece { first: index, tries: 0, args: args.map(Args::Alone), kept });
    }
}

/// Reason why arguments with an exclusive tensor can't be kept.
const MOVES: &str = "the call is to be tried again if it fails, and an exclusive tensor among its arguments would be gone with the \
    first attempt: freeze or share it, or call it without `retries` and `retry_if`";

/// Keeps arguments that were encoded without moving any part.
fn kept_as_it_is<A: Message + Send>(item: UserValue<Option<A>>) -> Kept {
    match item.into_inner().flatten() {
        Some(args) => Kept::Original(UserValue::new(Box::new(Original(args)) as Box<dyn Keep>)),
        None => Kept::Not,
    }
}
