//! Where the arguments of a call come from: they are encoded here, where their type is known, one after the other.

use std::collections::VecDeque;
use std::ops::Range;

use mp_core::message::Outgoing;
use mp_core::message::level::afresh;
use mp_core::mutex::Mutex;
use mp_core::user_code::{Apart, Each, drop_caught};
use mp_reduce::{Message, MessagePack};
use mp_spawn::Raise;

use crate::calls::chunk::Kept;
use crate::calls::hand::Hand;
use crate::calls::lanes::Takes;
use crate::error::Unsendable;
use crate::run::ends::Ends;
use crate::run::values::{Args, Plain, Slice};

/// How many bytes of arguments go into a chunk, unless one task has more.
const MOST_BYTES: usize = 64 << 10;
/// How many items are taken at a time, before it is looked how many bytes they have.
const TAKEN: usize = 64;

/// Arguments of tasks in a row, encoded.
pub(crate) struct Piece {
    /// The index of the first one.
    pub(crate) first: usize,
    /// How often it was begun before.
    pub(crate) tries: u32,
    /// Or why there are none.
    pub(crate) args: Result<Args, Unsendable>,
    /// What another attempt is made with.
    pub(crate) kept: Kept,
}

impl Piece {
    /// Of tasks that have not been begun.
    fn plain(first: usize, plain: Plain) -> Piece {
        Piece::of(first, Slice::of(plain))
    }

    fn of(first: usize, slice: Slice) -> Piece {
        Piece { first, tries: 0, args: Ok(Args::Plain(slice.clone())), kept: Kept::Plain(slice) }
    }

    /// Hands it out in pieces of this many tasks.
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

    /// Of one task that was begun `tries` times.
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

/// Arguments that were kept for another attempt, for which they are written once more.
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

/// Writes arguments. Code of the user runs here: a panic of it is an error.
fn encode<A: Message>(args: &mut A, out: &mut Outgoing) -> Result<(), Unsendable> {
    match Raise::catch(|| afresh(|| args.encode::<MessagePack>(out))) {
        Ok(written) => written.map_err(unsendable),
        Err(raise) => Err(panicked(&raise)),
    }
}

fn unsendable(error: mp_core::Error) -> Unsendable {
    mp_reduce::Error::from(error).into()
}

fn panicked(raise: &Raise) -> Unsendable {
    let error = mp_core::Error::Unsendable(format!("its `Serialize` panicked: {}", raise.message()));
    unsendable(error)
}

/// What the user has made and nothing needs any more; dropping it lets no panic out.
pub(crate) type Rubbish = Box<dyn Send>;

/// Where arguments come from; knows their type.
pub(crate) trait Source: Send + Sync {
    /// Takes at most `most` items, which are together in one chunk unless they are too long, or have attachments. They are in `hand` from
    /// when they are taken.
    fn take(&self, most: usize, takes: Option<&Takes>, hand: &Hand, into: &mut Vec<Piece>);
    fn left(&self) -> usize;
    /// Takes what is left: which they were, and themselves, to be dropped when nothing depends on it.
    fn clear(&self) -> (Vec<Range<usize>>, Rubbish);

    /// Whether it matters which worker takes them: then [`take`](Self::take) is told.
    fn has_lanes(&self) -> bool {
        false
    }

    /// Whether there is something for that worker.
    fn has_for(&self, _: &Takes) -> bool {
        self.left() > 0
    }

    /// This worker is given that task.
    fn goes_to(&self, _index: usize, _worker: usize) {}
}

/// Arguments that are there already.
pub(crate) struct Items<A> {
    /// And the index of the first.
    queue: Mutex<(Each<A>, usize)>,
    /// Whether they are kept for another attempt.
    keeps: bool,
}

impl<A> Items<A> {
    pub(crate) fn new(keeps: bool) -> Self {
        Self { queue: Mutex::new((Each::default(), 0)), keeps }
    }

    /// The first items, all at once.
    pub(crate) fn bring(&self, items: Each<A>) {
        self.queue.lock().0 = items;
    }

    pub(crate) fn push(&self, mut items: Each<A>) {
        self.queue.lock().0.append(&mut items);
    }

    fn taken(&self, most: usize, hand: &Hand) -> (Each<A>, usize) {
        let mut queue = self.queue.lock();
        let count = most.min(queue.0.len());
        let first = queue.1;
        queue.1 += count;
        hand.take(count);
        (Each::from(queue.0.drain(..count).collect::<VecDeque<A>>()), first)
    }
}

/// Encodes at most `most` items that `taken` gives in rows, each with the index of its first one.
pub(crate) fn encode_rows<A: Message + Send>(
    most: usize,
    keeps: bool,
    into: &mut Vec<Piece>,
    mut taken: impl FnMut(usize) -> (Each<A>, usize),
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
        // Another thread may have taken some in between.
        encoder.continues_at(first);
        // Code of the user runs here, without the lock.
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

/// Encodes items, and puts into one piece what can be.
struct Encoder<'a> {
    /// The index of the first item that is written in `out`.
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

    /// What is written is a piece.
    fn end(&mut self) {
        if !self.ends.is_empty() {
            let plain =
                Plain { ends: std::mem::take(&mut self.ends), bytes: std::mem::take(self.out.bytes()) };
            let first = self.first;
            self.first += plain.ends.len();
            self.into.push(Piece::plain(first, plain));
        }
    }

    /// Encodes the first of these items, and those behind it as long as nothing happens that concerns one item alone.
    fn encode<A: Message + Send>(&mut self, items: &mut Each<A>, keeps: bool) {
        // Out here it is dropped by itself, whatever panics.
        let mut item = None;
        let failed = Raise::catch(|| {
            afresh(|| {
                while let Some(args) = items.pop_front() {
                    let args = item.insert(args);
                    args.encode_wide::<MessagePack>(&mut self.out)?;
                    let Some(bytes) = self.out.plain() else { return Ok(()) };
                    let end = bytes.len();
                    if end - self.ends.last() > MOST_BYTES {
                        return Ok(());
                    }
                    self.ends.push(end);
                    // Its own drop is no matter of whether it is sent: without a drop, it costs nothing.
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
        // The last item goes alone, or not at all.
        let (mut alone, kept) = (std::mem::take(&mut self.out), self.written());
        *self.out.bytes() = alone.bytes().drain(..kept).collect();
        self.end();
        let index = self.first;
        self.first += 1;
        let item = Apart::new(item);
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

/// Why such arguments can't be kept.
const MOVES: &str = "the call is to be tried again if it fails, and an exclusive tensor among its arguments would be gone with the \
    first attempt: freeze or share it, or call it without `retries` and `retry_if`";

/// Keeps arguments that were written, nothing of which has moved.
fn kept_as_it_is<A: Message + Send>(item: Apart<Option<A>>) -> Kept {
    match item.into_inner().flatten() {
        Some(args) => Kept::Original(Apart::new(Box::new(Original(args)) as Box<dyn Keep>)),
        None => Kept::Not,
    }
}
