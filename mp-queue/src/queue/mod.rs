//! The type that users see.

pub(crate) mod batch;
pub(crate) mod channel;
pub(crate) mod encoded;
pub(crate) mod future;
pub(crate) mod joinable;
pub(crate) mod kept;
pub(crate) mod lease;
pub(crate) mod options;
#[cfg(feature = "futures")]
pub(crate) mod stream;
pub(crate) mod waitable;

use std::fmt;
use std::marker::PhantomData;

use mp_core::message::{PlainOutcome, scope};
use mp_core::user_code::drop_caught;
use mp_core::{Message, Spin, Wait};
use mp_reduce::{Error, TypeFingerprint};
use serde::de::Error as _;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::{GetError, PutError};
use crate::queue::options::QueueOptions;
use crate::queue::waitable::PutReady;
use crate::raw::Raw;
use crate::raw::handles::{Able, DesertedWhen, For};
use crate::raw::payload::{Payload, Unsent};
use crate::raw::waiting::Alone;

/// A queue of messages between processes: many producers, many consumers, first in, first out.
///
/// ```
/// use mp_tensor::Tensor;
/// use mp_queue::Queue;
///
/// let queue = Queue::<Tensor<f32>>::bounded(4)?;
/// queue.put(Tensor::full(&[1000], 2.0)?)?; // moves: the memory itself stays where it is
/// let got = queue.get()?.expect("it is not closed");
/// assert_eq!(got.iter().sum::<f32>(), 2000.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Order
/// Each message gets a ticket when it is published, and messages are taken in the order of their tickets. What one
/// thread puts is taken in that order, too.
///
/// # Blocking
/// [`put`](Self::put) waits while the queue is full, [`get`](Self::get) while it is empty: first spinning for
/// up to 50 µs (less where that rarely pays), then asleep. `try_` forms don't wait, `_timeout` forms give up
/// when the time is over, as soon as their thread has a processor. While both sides are awake, no system call
/// is made for a message.
///
/// # How much fits
/// - Into a [`bounded`](Self::bounded) or [`growing`](Self::growing) queue: as many messages as it says; then puts wait. Into an
///   [`unbounded`](Self::unbounded) one: as many as the arena is made for ([`most_messages`](mp_core::Arena::most_messages):
///   1,048,576, unless its addresses are below 64 GiB); then puts fail at once.
/// - On x86-64, a message of up to 10 bytes when encoded is in its queue's slot, of 16 bytes, from the first put on, as long as no consumer
///   takes messages [with acknowledgement](Self::get_ack). It counts in its queue alone.
/// - Any other message takes an envelope of 256 bytes, and more memory if it has more than 216 bytes (200 where bytes are
///   bounded). The arena has as many envelopes as it is made for messages, for all queues of all its processes together;
///   each thread keeps up to 64 for its next messages.
/// - The last eighth of these is kept for queues that have few messages: when all others are in use, each queue may have 16
///   of them, and one more for each thread that is just putting, so that a queue without consumers doesn't starve the others.
///   There are such shares for 8,192 queues (of an arena for 1,048,576 messages).
/// - Beyond that, a put into a queue with a bound waits (`try_put` returns [`Full`](PutError::Full)), until a message is taken out
///   of that queue, or for up to 100 ms more if it is out of another one. A put into an unbounded queue fails with
///   [`TooManyMessages`](mp_core::Error::TooManyMessages), which says which queues have how many, and gives the value back.
///
/// [`Arena::configure`](mp_core::Arena::configure), or `MP_ARENA_MESSAGES` and `MP_ARENA_SIZE` in the environment, make the
/// arena for 1,024 to 15,728,640 messages, in 64 MiB to 1 TiB of addresses.
///
/// # When a process dies
/// Killed, stopped or crashed, at any instruction: the other processes continue. A producer that dies in
/// `put` has either sent its message or not. With a consumer that dies in `get`, or later, the message that
/// it was getting is lost: one, or of `get_many` those that it has taken. A message that was put does not
/// depend on its producer any more, which may exit at once.
///
/// When a process that had the queue has ended, or dropped its last handle, no other process and no message
/// on its way has it any more, and this process has no further handle that could put, waiting for a message
/// ends with `Deserted`; and so does waiting for room, if no further handle could get. A clone in another
/// thread keeps the wait going until it is dropped, or is blocked in the same kind of wait. Threads that use
/// one handle by reference can't be told apart: for those, and for processes that keep handles without using
/// them, there is [`QueueOptions::deserted_when`].
///
/// # As a message
/// Handles are serde types inside of messages and arguments. Cloning or sending one copies the handle, not the queue.
/// Queues are typed: received as a queue of something else, it is an error that names both types. (A queue that
/// is put into itself keeps itself alive until the program ends.)
pub struct Queue<T: Message> {
    raw: Raw,
    fingerprint: TypeFingerprint<T>,
    messages: PhantomData<fn(T) -> T>,
}

impl<T: Message> Clone for Queue<T> {
    fn clone(&self) -> Self {
        self.able(Able::BOTH)
    }
}

impl<T: Message> PlainOutcome for Queue<T> {}

impl<T: Message> fmt::Debug for Queue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, block) = (std::any::type_name::<T>(), self.raw.hold().block());
        write!(f, "Queue<{name}>({} of {}, block {block}", self.len(), self.capacity())?;
        match self.given_name() {
            Some(name) => write!(f, ", {name:?})"),
            None => f.write_str(")"),
        }
    }
}

/// Python's name for a queue without a bound, which [`SimpleQueue::unbounded`](Queue::unbounded) makes. Nothing is simpler in
/// it: it is a [`Queue`].
pub type SimpleQueue<T> = Queue<T>;

impl<T: Message> Queue<T> {
    /// A queue for up to `capacity` messages (at least one), whose room is there from the start.
    ///
    /// # Errors
    /// When there is no shared memory for it, or `capacity` is 0 or above 2^24.
    #[doc(alias = "maxsize")]
    pub fn bounded(capacity: usize) -> Result<Self, Error> {
        QueueOptions::new().capacity(capacity).create()
    }

    /// A queue that grows: [`put`](Self::put) does not wait; where there is no room, it fails.
    ///
    /// ```
    /// use mp_queue::Queue;
    ///
    /// let queue = Queue::<u64>::unbounded()?;
    /// for i in 0..10_000 {
    ///     queue.try_put(i)?;
    /// }
    /// assert_eq!(queue.len(), 10_000);
    /// queue.close();
    /// assert!(queue.iter().map(Result::unwrap).eq(0..10_000));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// It grows by segments, each four times as large as the one before it, up to as many messages as the arena can have
    /// on their way; it does not shrink before it is dropped. What that takes is said [above](Self#how-much-fits). Beyond it, or
    /// when memory runs out, `put` fails and gives the value back.
    ///
    /// # Errors
    /// When there is no shared memory for it.
    pub fn unbounded() -> Result<Self, Error> {
        QueueOptions::new().create()
    }

    /// A queue that grows as [`unbounded`](Self::unbounded), up to `limit` messages; then [`put`](Self::put) waits.
    ///
    /// For limits that are rarely reached: it takes memory for what has been in it, not for what could be. Producers that
    /// reach the limit at the same moment may exceed it by one message each.
    ///
    /// # Errors
    /// When there is no shared memory for it, or `limit` is 0 or above 2^24.
    pub fn growing(limit: usize) -> Result<Self, Error> {
        QueueOptions::new().growing(limit).create()
    }

    /// One more handle, that may do this.
    pub(crate) fn able(&self, able: Able) -> Self {
        Self { raw: self.raw.counted(able), fingerprint: self.fingerprint, messages: PhantomData }
    }

    /// The same queue, only to wait with: a handle that keeps no other wait going.
    pub(crate) fn to_wait_with(&self) -> Self {
        Self { raw: self.raw.clone(), fingerprint: self.fingerprint, messages: PhantomData }
    }

    pub(crate) fn raw(&self) -> &Raw {
        &self.raw
    }
    pub(crate) fn fingerprint(&self) -> TypeFingerprint<T> {
        self.fingerprint
    }

    pub(crate) fn create(
        size: Option<usize>,
        growing: bool,
        deliveries: u32,
        bytes: u64,
        (deserted, spin): (DesertedWhen, Spin),
    ) -> Result<Self, Error> {
        let fingerprint = TypeFingerprint::<T>::new();
        let type_of = (fingerprint.get(), std::any::type_name::<T>());
        let mut raw = Raw::create(size, growing, deliveries, type_of, true)?;
        raw.bound_bytes(bytes);
        raw.set_deserted_when(deserted);
        if spin != Spin::Adaptive {
            raw = raw.with_spin(spin);
        }
        Ok(Self { raw, fingerprint, messages: PhantomData })
    }

    /// Gives the queue a name, for all processes that have it: for reports of waits that last long, and for `Debug`. A name is cut
    /// at 32 bytes; the last one given counts. It finds nothing, and no other queue is told apart by it.
    ///
    /// ```
    /// let jobs = mp_queue::Queue::<u32>::bounded(4)?.named("jobs");
    /// assert_eq!(jobs.clone().given_name().as_deref(), Some("jobs"));
    /// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        mp_core::waits::name_object(self.raw.hold(), name);
        self
    }

    /// The name that some process [gave](Self::named) it.
    pub fn given_name(&self) -> Option<String> {
        mp_core::waits::object_name(self.raw.hold())
    }

    /// The same queue; calls through this handle and its clones look for a message, or for room, like this before they sleep.
    ///
    /// [`QueueOptions::spin`] says it for the handles of all processes.
    pub fn spinning(self, spin: Spin) -> Self {
        Self { raw: self.raw.spinning(spin), ..self }
    }

    /// Puts a message; waits while the queue is full, or has its share of [what fits](Self#how-much-fits). An
    /// [unbounded](Self::unbounded) queue fails then.
    ///
    /// A `Vec`, boxed slice, `Cow` or slice of numbers (`u8` to `u128`, `i8` to `i128`, `f32`, `f64`), a `String`, and what serde writes as
    /// bytes (`serde_bytes`, `bytes::Bytes`) are copied once here and once by the receiver, as `memcpy` does, wherever they are in the
    /// value; what arrives as `bytes::Bytes` (feature `bytes`) is copied here alone. Sequences of other elements are written
    /// and read one by one. A tensor's memory is handed over, whatever its length, and copied nowhere.
    ///
    /// # Errors
    /// [`PutError::Closed`], [`PutError::Deserted`], or [`PutError::Failed`] when it can't be encoded or there is no room.
    /// The value is given back.
    #[inline]
    pub fn put(&self, value: T) -> Result<(), PutError<T>> {
        self.put_within(value, Wait::Forever)
    }

    mp_core::forms! {
        "Puts a message": put(value: T) -> Result<(), PutError<T>>, or "[`PutError::Full`]";
        |queue, wait| queue.put_within(value, wait);
        #[doc(alias = "put_nowait")] #[inline] never try_put;
        #[inline] at_most put_timeout;
        #[inline] until put_deadline;
    }

    #[inline]
    pub(crate) fn put_within(&self, value: T, wait: Wait) -> Result<(), PutError<T>> {
        put_as(&self.raw, self.fingerprint, value, wait, || self.raw.deserted(For::Room))
    }

    /// Takes the oldest message; waits while the queue is empty. `None` when it is closed and drained.
    ///
    /// # Errors
    /// [`GetError::Deserted`], or [`GetError::Failed`] when the message can't be decoded; its bytes are in the error.
    #[inline]
    pub fn get(&self) -> Result<Option<T>, GetError> {
        self.get_within(Wait::Forever)
    }

    mp_core::forms! {
        "Takes the oldest message": get() -> Result<Option<T>, GetError>, or "[`GetError::Empty`]";
        |queue, wait| queue.get_within(wait);
        #[doc(alias = "get_nowait")] #[inline] never try_get;
        #[inline] at_most get_timeout;
        #[inline] until get_deadline;
    }

    #[inline]
    pub(crate) fn get_within(&self, wait: Wait) -> Result<Option<T>, GetError> {
        get_as(&self.raw, self.fingerprint, wait, || self.raw.deserted(For::Message))
    }

    /// Closes the queue: what is in it can still be taken, then consumers get `None`; nothing more can be
    /// put. Returns whether it was open.
    ///
    /// Exact also against producers that are just putting: a message is either refused or will be taken.
    #[doc(alias = "join_thread")]
    #[doc(alias = "cancel_join_thread")]
    pub fn close(&self) -> bool {
        self.raw.close()
    }

    /// How many messages are in it: a snapshot.
    #[doc(alias = "qsize")]
    pub fn len(&self) -> usize {
        self.raw.len()
    }

    /// Whether it is empty: a snapshot.
    #[doc(alias = "empty")]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether it has as many messages in it as fit: a snapshot. A bound of
    /// [bytes](crate::QueueOptions::bytes) may be reached before: that depends on the message that is to be put.
    #[doc(alias = "full")]
    pub fn is_full(&self) -> bool {
        // One that grows may exceed its limit by a message of each producer.
        self.len() >= self.capacity()
    }

    /// Its room, as something to wait for beside other things: ready when [`try_put`](Self::try_put) would
    /// not find it full. Where [bytes](crate::QueueOptions::bytes) are bounded, too, that is the room for the
    /// smallest message; for larger ones there is [`put_ready_for`](Self::put_ready_for).
    ///
    /// ```
    /// use std::time::Duration;
    /// use mp_queue::{Queue, wait};
    ///
    /// let queue = Queue::<u32>::bounded(1)?;
    /// queue.put(1)?;
    /// assert!(wait(&[&queue.put_ready()], Some(Duration::ZERO))?.is_empty());
    /// queue.get()?;
    /// assert_eq!(wait(&[&queue, &queue.put_ready()], None)?, [1]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn put_ready(&self) -> PutReady<T> {
        self.put_ready_for(1)
    }

    /// Its room for a message that counts `bytes` bytes, as
    /// [`QueueOptions::bytes`](crate::QueueOptions::bytes) says: ready when [`try_put`](Self::try_put) of
    /// that message would not find the queue full. More than may be in the queue counts as that much. Where
    /// bytes are not bounded, it is [`put_ready`](Self::put_ready).
    ///
    /// ```
    /// use std::time::Duration;
    /// use mp_queue::{QueueOptions, wait};
    ///
    /// let queue = QueueOptions::new().capacity(100).bytes(1000).create()?;
    /// queue.put(vec![0_u8; 600])?;
    /// let (room, more) = (queue.put_ready(), queue.put_ready_for(610));
    /// assert_eq!(wait(&[&room, &more], Some(Duration::ZERO))?, [0]);
    /// queue.get()?;
    /// assert_eq!(wait(&[&room, &more], None)?, [0, 1]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn put_ready_for(&self, bytes: u64) -> PutReady<T> {
        PutReady { queue: self.to_wait_with(), bytes }
    }

    /// How many messages fit; of a queue without a bound, how many the arena has room for.
    pub fn capacity(&self) -> usize {
        self.raw.capacity()
    }

    /// Takes messages until the queue is closed and drained.
    pub fn iter(&self) -> impl Iterator<Item = Result<T, GetError>> + '_ {
        std::iter::from_fn(|| self.get().transpose())
    }
}

/// Packs a value and puts it.
#[inline]
pub(crate) fn put_as<T: Message>(
    raw: &Raw,
    fingerprint: TypeFingerprint<T>,
    mut value: T,
    wait: Wait,
    alone: impl Fn() -> Option<Alone>,
) -> Result<(), PutError<T>> {
    // Here, and not only in `Unsent`, which is larger than what has to be known of these.
    if let Some(mut payload) = Payload::few(raw, &value) {
        return match raw.put(&mut payload, wait, alone) {
            Ok(()) => {
                drop_caught(value);
                Ok(())
            }
            Err(e) => Err(e.map(|()| value)),
        };
    }
    let mut unsent = match Unsent::of(raw, fingerprint, &mut value) {
        Ok(unsent) => unsent,
        Err(e) => match Unsent::write_later(raw, fingerprint, &mut value, e, wait, &alone) {
            Ok(unsent) => unsent,
            Err(e) => return Err(e.map(|()| value)),
        },
    };
    match raw.put(&mut unsent.payload, wait, alone) {
        Ok(()) => {
            unsent.sent(value);
            Ok(())
        }
        Err(e) => Err(e.map(|()| unsent.back(value))),
    }
}

/// Takes a message and unpacks it.
// In the caller: what it returns would be copied once more, which for a large value that was just written takes as long as to read
// some of it.
#[inline(always)]
pub(crate) fn get_as<T: Message>(
    raw: &Raw,
    fingerprint: TypeFingerprint<T>,
    wait: Wait,
    alone: impl Fn() -> Option<Alone>,
) -> Result<Option<T>, GetError> {
    let mut payload = None;
    raw.get(&mut payload, wait, alone)?;
    let Some(payload) = &mut payload else { return Ok(None) };
    if let Some(value) = payload.unpack_few() {
        return Ok(Some(value));
    }
    let mut got = Ok(None);
    if let Ok(slot) = &mut got
        && let Err(e) = payload.unpack_into(raw, fingerprint, slot)
    {
        got = Err(e.into());
    }
    debug_assert!(!matches!(got, Ok(None)), "it was read without an error");
    got
}

impl<T: Message> Serialize for Queue<T> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        scope::outgoing("a Queue", |out| out.attach_object(self.raw.hold()))
            .map_err(S::Error::custom)?
            .serialize(s)
    }
}

impl<'de, T: Message> Deserialize<'de> for Queue<T> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let attachment = u32::deserialize(d)?;
        let hold = scope::incoming("a Queue", |inc| inc.take_object(attachment)).map_err(D::Error::custom)?;
        let raw = Raw::open(hold, Some(Able::BOTH)).map_err(D::Error::custom)?;
        let (expected, name) = (TypeFingerprint::<T>::new(), std::any::type_name::<T>());
        if !raw.memory().carries((expected.get(), name)) {
            let found = raw.memory().type_name();
            return Err(D::Error::custom(format!(
                "a queue of {found} arrived where one of {name} is expected"
            )));
        }
        Ok(Self { raw, fingerprint: expected, messages: PhantomData })
    }
}

#[cfg(all(test, not(mp_loom)))]
mod tests {
    use mp_core::Storage;
    use mp_core::words::Kind;

    use super::*;

    /// Two names of types may have one fingerprint.
    #[test]
    fn a_queue_of_a_type_that_has_the_fingerprint_and_another_name_is_refused() {
        let long = |end: &str| format!("{}{end}", "a".repeat(122));
        let named = |name: &str| Raw::create(Some(1), false, 0, (7, name), false).unwrap();
        for name in ["there::Point", "", &long("-hundred"), &"ä".repeat(100)] {
            let queue = named(name);
            assert!(queue.memory().carries((7, name)) && !queue.memory().carries((8, name)));
            for other in ["there::Joint", "there::Points", "there::Poin", &long("-thousand")] {
                assert!(!queue.memory().carries((7, other)), "{name} {other}");
            }
        }
    }

    /// Its block is a queue's for as long as it lives: what is in it is released when it is dropped.
    #[test]
    fn a_queue_stays_one_whatever_its_memory_is_opened_as() {
        for kind in [Kind::Frozen, Kind::Shared] {
            let queue = Queue::<Vec<u8>>::bounded(2).unwrap();
            queue.put(vec![7; 500]).unwrap();
            Storage::of(queue.raw.hold().clone(), 16).open_to_others(kind);
            let arena = queue.raw.arena();
            assert!(arena.ring_memory(queue.raw.hold().block()).is_some(), "{kind:?}");
            queue.put(vec![8; 500]).unwrap();
            assert_eq!(queue.get().unwrap(), Some(vec![7; 500]));
        }
    }
}
