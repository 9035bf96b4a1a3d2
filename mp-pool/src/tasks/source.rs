//! Sources of a call's arguments, and arguments that are kept in this process until their task is done. A
//! source knows the type of its arguments and encodes them.

use std::collections::VecDeque;
use std::ops::Range;

use mp_core::message::nesting_depth::with_nested_message;
use mp_core::message::{Outgoing, encode_wide};
use mp_core::mutex::Mutex;
use mp_core::user_code::{UserValue, UserValues, drop_caught};
use mp_reduce::{Message, MessagePack};
use mp_spawn::CallFailure;

use crate::child::values::{EndPositions, PackedRange, PackedValues, TaskArgs};
use crate::error::EncodeError;
use crate::tasks::transit::TransitCounter;

/// Maximum size of the arguments of a chunk in bytes, unless one task has more.
const MOST_BYTES: usize = 64 << 10;
/// Number of items that are taken before their size is checked.
const ITEMS_AT_ONCE: usize = 64;

/// Encoded arguments of consecutive tasks.
pub(crate) struct ArgsPiece {
    /// Index of the first task.
    pub(crate) first: usize,
    /// Arguments, or the reason why they are missing.
    pub(crate) args: Result<TaskArgs, EncodeError>,
    /// Arguments for a retry.
    pub(crate) saved: SavedArgs,
}

impl ArgsPiece {
    fn of(first: usize, slice: PackedRange) -> ArgsPiece {
        ArgsPiece { first, args: Ok(TaskArgs::Packed(slice.clone())), saved: SavedArgs::Packed(slice) }
    }

    /// Splits the piece into pieces of at most `size` tasks.
    pub(crate) fn split(self, size: usize, mut piece: impl FnMut(ArgsPiece)) {
        match &self.args {
            Ok(TaskArgs::Packed(slice)) if slice.len() > size => {
                for from in (0..slice.len()).step_by(size) {
                    let part = slice.part(from, (from + size).min(slice.len()));
                    piece(ArgsPiece::of(self.first + from, part));
                }
            }
            _ => piece(self),
        }
    }
}

/// User values that are no longer needed. Each `Drop` of user code is called under a catch of panics.
pub(crate) type UnneededValues = Box<dyn Send>;

/// Lanes of which a worker may receive tasks, by the worker that ran each lane last.
pub(crate) struct LaneFilter {
    pub(crate) worker: usize,
    /// For each worker, `true` if `worker` may receive tasks of the lanes that this worker ran last.
    pub(crate) lanes_of: Vec<bool>,
}

impl LaneFilter {
    /// Returns `true` if lanes of this worker may be taken. `None` stands for lanes without a worker, and for
    /// tasks without a lane.
    pub(crate) fn allows(&self, worker: Option<usize>) -> bool {
        worker.is_none_or(|worker| worker == self.worker || self.lanes_of.get(worker).is_none_or(|may| *may))
    }
}

/// Source of arguments, which knows their type.
pub(crate) trait TaskSource: Send + Sync {
    /// Takes at most `most` items. They form one chunk unless they are too long or have attachments. Items
    /// are counted in `transit` from the moment they are taken.
    fn take(&self, most: usize, filter: Option<&LaneFilter>, transit: &TransitCounter) -> Vec<ArgsPiece>;
    fn remaining(&self) -> usize;
    /// Takes all remaining tasks: their indices, and their values, which the caller drops.
    fn clear(&self) -> (Vec<Range<usize>>, UnneededValues);

    /// Returns `true` if tasks prefer certain workers. [`take`](Self::take) then receives a filter.
    fn has_lanes(&self) -> bool {
        false
    }

    /// Returns `true` if the source has a task that the filter allows.
    fn has_task_for(&self, _: &LaneFilter) -> bool {
        self.remaining() > 0
    }

    /// Records that a worker receives a task.
    fn record_worker(&self, _index: usize, _worker: usize) {}
}

/// Source whose arguments are values in private memory.
pub(crate) struct ItemSource<A> {
    /// Items, and the index of the first.
    queue: Mutex<(UserValues<A>, usize)>,
    /// `true` if arguments are kept for a retry.
    saves: bool,
}

impl<A> ItemSource<A> {
    pub(crate) fn new(saves: bool) -> Self {
        Self { queue: Mutex::new((UserValues::default(), 0)), saves }
    }

    /// Sets the first items.
    pub(crate) fn set_items(&self, items: UserValues<A>) {
        self.queue.lock().0 = items;
    }

    pub(crate) fn push(&self, mut items: UserValues<A>) {
        self.queue.lock().0.append(&mut items);
    }

    fn take_items(&self, most: usize, transit: &TransitCounter) -> (UserValues<A>, usize) {
        let mut queue = self.queue.lock();
        let count = most.min(queue.0.len());
        let first = queue.1;
        queue.1 += count;
        transit.add(count);
        (UserValues::from(queue.0.drain(..count).collect::<VecDeque<A>>()), first)
    }
}

/// Encodes at most `most` items. `taken` is called with a maximum number of items, and returns consecutive
/// items with the index of the first.
pub(crate) fn encode_rows<A: Message + Send>(
    most: usize,
    saves: bool,
    mut taken: impl FnMut(usize) -> (UserValues<A>, usize),
) -> Vec<ArgsPiece> {
    let mut encoder = PieceEncoder::default();
    let mut left = most;
    while left > 0 {
        let (mut items, first) = taken(left.min(ITEMS_AT_ONCE));
        if items.is_empty() {
            break;
        }
        left -= items.len();
        // Another thread may have taken items in between.
        encoder.continues_at(first);
        // User code runs without the lock.
        while !items.is_empty() {
            encoder.encode(&mut items, saves);
        }
        if encoder.is_full() || !encoder.pieces.is_empty() {
            break;
        }
    }
    encoder.end();
    encoder.pieces
}

impl<A: Message + Send> TaskSource for ItemSource<A> {
    fn take(&self, most: usize, _: Option<&LaneFilter>, transit: &TransitCounter) -> Vec<ArgsPiece> {
        encode_rows(most, self.saves, |most| self.take_items(most, transit))
    }

    fn remaining(&self) -> usize {
        self.queue.lock().0.len()
    }

    fn clear(&self) -> (Vec<Range<usize>>, UnneededValues) {
        let mut queue = self.queue.lock();
        let items = std::mem::take(&mut queue.0);
        let first = queue.1;
        queue.1 += items.len();
        let range = first..first + items.len();
        (vec![range], Box::new(items))
    }
}

/// Encoder that combines items into pieces.
#[derive(Default)]
struct PieceEncoder {
    /// Index of the first item encoded in `out`.
    first: usize,
    out: Outgoing,
    ends: EndPositions,
    pieces: Vec<ArgsPiece>,
}

impl PieceEncoder {
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
            let plain = PackedValues {
                ends: std::mem::take(&mut self.ends),
                bytes: std::mem::take(self.out.bytes()),
            };
            let first = self.first;
            self.first += plain.ends.len();
            self.pieces.push(ArgsPiece::of(first, PackedRange::of(plain)));
        }
    }

    /// Encodes the first of these items, and the following ones until an item must be sent alone.
    fn encode<A: Message + Send>(&mut self, items: &mut UserValues<A>, saves: bool) {
        // The item is declared outside, so that it is dropped separately whatever panics.
        let mut item = None;
        let written = CallFailure::catch_encode(|| {
            with_nested_message(|| {
                while let Some(args) = items.pop_front() {
                    let args = item.insert(args);
                    encode_wide::<_, MessagePack>(args, &mut self.out)?;
                    let Some(bytes) = self.out.plain() else { return Ok(()) };
                    let end = bytes.len();
                    if end - self.ends.last() > MOST_BYTES {
                        return Ok(());
                    }
                    self.ends.push(end);
                    // A panic while an item is dropped must not affect whether the item is sent, so items
                    // with a `Drop` are encoded one by one.
                    if std::mem::needs_drop::<A>() || end >= MOST_BYTES {
                        return Ok(());
                    }
                }
                Ok(())
            })
        });
        let end = self.out.bytes().len();
        let is_written = written.is_ok() && self.out.plain().is_some() && end == self.written();
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
        let (mut alone, saved) = (std::mem::take(&mut self.out), self.written());
        *self.out.bytes() = alone.bytes().drain(..saved).collect();
        self.end();
        let index = self.first;
        self.first += 1;
        let item = UserValue::new(item);
        let (args, saved) = match written.map(|()| alone).map_err(unsendable) {
            Ok(out) if saves && out.lends() => (Err(EncodeError::new(MOVED_TENSOR)), SavedArgs::None),
            Ok(out) if saves => (Ok(out), save_original(item)),
            args => (args, SavedArgs::None),
        };
        self.pieces.push(ArgsPiece { first: index, args: args.map(TaskArgs::Single), saved });
    }
}

/// Reason why arguments with an exclusive tensor can't be kept.
const MOVED_TENSOR: &str = "the call is to be tried again if it fails, and an exclusive tensor among its \
    arguments would be gone with the first attempt: freeze or share it, or call it without `retries` and \
    `retry_if`";

/// Arguments kept for a retry, or for sending the remaining items of a chunk to another worker. Panics of
/// user code are caught when the value is dropped.
pub(crate) enum SavedArgs {
    /// Bytes of the arguments.
    Packed(PackedRange),
    /// Arguments with attachments: a function that encodes the original values again.
    Values(UserValue<Box<EncodeAgain>>),
    None,
}

type EncodeAgain = dyn FnMut() -> Result<Outgoing, EncodeError> + Send;

impl SavedArgs {
    /// Returns the arguments to be sent again. Calls user code: a panic is returned as an error.
    pub(crate) fn args(&mut self) -> Result<TaskArgs, EncodeError> {
        let again = match self {
            SavedArgs::Packed(slice) => return Ok(TaskArgs::Packed(slice.clone())),
            SavedArgs::Values(encode) => encode.get_mut(),
            SavedArgs::None => None,
        };
        let encode = again.ok_or_else(|| EncodeError::new("they were not kept"))?;
        encode().map(TaskArgs::Single)
    }
}

fn unsendable(error: mp_core::Error) -> EncodeError {
    mp_reduce::Error::from(error).into()
}

/// Keeps arguments with attachments, so that they can be encoded again. Encoding must not have moved any part
/// of them.
fn save_original<A: Message + Send>(item: UserValue<Option<A>>) -> SavedArgs {
    let Some(mut args) = item.into_inner().flatten() else { return SavedArgs::None };
    let encode = move || {
        let mut out = Outgoing::default();
        CallFailure::catch_encode(|| with_nested_message(|| args.encode::<MessagePack>(&mut out)))
            .map_err(unsendable)?;
        Ok(out)
    };
    SavedArgs::Values(UserValue::new(Box::new(encode)))
}
