//! Public types: [`Queue`] and the types built on it.

pub(crate) mod batch;
pub(crate) mod channel;
pub(crate) mod encoded;
pub(crate) mod future;
mod iter;
pub(crate) mod joinable;
pub(crate) mod lease;
pub(crate) mod retained_end;
#[cfg(feature = "futures")]
pub(crate) mod stream;
pub(crate) mod waitable;

use std::fmt;
use std::marker::PhantomData;

use mp_core::message::{PlainOutcome, Schema, scope};
use mp_core::user_code::drop_caught;
use mp_core::{Message, Spin, Wait};
use mp_reduce::{Error, TypeFingerprint, name_of};
use serde::de::Error as _;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::{GetError, PutError};
use crate::queue::waitable::PutReady;
use crate::raw::RawQueue;
use crate::raw::handles::Capabilities;
use crate::raw::options::{DesertedWhen, QueueOptions};
use crate::raw::payload::Payload;
use crate::raw::pending::PendingMessage;

/// A first-in, first-out queue of messages between processes, with any number of producers and consumers.
///
/// ```
/// use mp_tensor::Tensor;
/// use mp_queue::Queue;
///
/// let queue = Queue::<Tensor<f32>>::bounded(4)?;
/// queue.put(Tensor::full(&[1000], 2.0)?)?; // moves the tensor: its memory stays in place
/// let got = queue.get()?.expect("it is not closed");
/// assert_eq!(got.iter().sum::<f32>(), 2000.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Order
/// Each message gets a position when it is published. Messages are taken in the order of their positions, so
/// the messages of one thread are taken in the order in which it put them.
///
/// # Blocking
/// [`put`](Self::put) waits while the queue is full, and [`get`](Self::get) waits while it is empty. A
/// waiting thread spins for up to 50 µs, or less if spinning rarely succeeds, and then sleeps. `try_` methods
/// don't wait. `_timeout` methods return when the time has expired, as soon as their thread is scheduled.
/// While both sides are awake, no message needs a system call.
///
/// # How much fits
/// - A [`bounded`](Self::bounded) or [`growing`](Self::growing) queue holds as many messages as its limit
///   allows. Further puts wait. An [`unbounded`](Self::unbounded) queue is limited by the arena's
///   [`most_messages`](mp_core::Arena::most_messages): 1,048,576, unless the arena has less than 64 GiB of
///   addresses. Further puts fail at once.
/// - On x86-64, a message of up to 10 bytes when encoded is stored in the queue's 16-byte slot and needs no
///   envelope. This applies from the first put on, while no consumer takes messages [with
///   acknowledgement](Self::get_lease).
/// - Any other message takes an envelope of 256 bytes. A message of more than 216 bytes (200 if the queue has
///   a bound of bytes) needs additional memory. The number of envelopes is the arena's number of messages.
///   All queues of all processes share them. Each thread caches up to 64 envelopes.
/// - The last eighth of the envelopes is reserved for queues with few messages, so that a queue without
///   consumers doesn't starve the others. When all other envelopes are in use, each queue may take 16 of the
///   reserved ones, and one more for each thread that is putting. An arena for 1,048,576 messages has such a
///   reserve for 8,192 queues.
/// - Without a free envelope, a put into a queue with a bound waits, and `try_put` returns
///   [`Full`](PutError::Full). The put continues when a message is taken out of the same queue. If a message
///   of another queue is taken, the put may wait up to 100 ms longer. A put into an unbounded queue returns
///   its value with [`TooManyMessages`](mp_core::Error::TooManyMessages), which lists the queues and their
///   numbers of messages.
///
/// [`Arena::configure`](mp_core::Arena::configure), or the environment variables `MP_ARENA_MESSAGES` and
/// `MP_ARENA_SIZE`, set the size of the arena: 1,024 to 15,728,640 messages, and 64 MiB to 1 TiB of
/// addresses.
///
/// # When a process dies
/// A process may be killed or stopped, or may crash, at any instruction. The other processes continue. A
/// producer that dies in `put` has either sent its message or not. A consumer that dies in `get` or later
/// loses the message that it was getting, or all messages that its `get_many` has taken. A message in the
/// queue does not depend on its producer, which may exit at once.
///
/// A wait for a message ends with `Deserted` when no process or message can put. This is the case when other
/// processes had the queue, and each of them has ended or dropped its last handle. In addition, no message in
/// transit contains a handle, and this process has no further handle that could put. In the same way, a wait
/// for room ends with `Deserted` if no further handle could get. A clone in another thread keeps the wait
/// going until the clone is dropped or blocked in the same kind of wait. Threads that share one handle by
/// reference are counted as one. For such threads, and for processes that keep unused handles, set
/// [`QueueOptions::deserted_when`].
///
/// # As a message
/// Handles are serde types and can be part of messages and arguments. Cloning or sending a handle does not
/// copy the queue. Receiving a handle as a queue of another type returns an error that names both types. A
/// queue that is put into itself stays alive until the program ends.
pub struct Queue<T: Message> {
    raw: RawQueue,
    fingerprint: TypeFingerprint<T>,
    messages: PhantomData<fn(T) -> T>,
}

impl<T: Message> Clone for Queue<T> {
    fn clone(&self) -> Self {
        self.with_capabilities(Capabilities::BOTH)
    }
}

impl<T: Message> PlainOutcome for Queue<T> {}

impl<T: Message> fmt::Debug for Queue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, block) = (name_of::<T>(), self.raw.hold().block());
        write!(f, "Queue<{name}>({} of {}, block {block}", self.len(), self.capacity())?;
        match self.given_name() {
            Some(name) => write!(f, ", {name:?})"),
            None => f.write_str(")"),
        }
    }
}

/// Python's name for a [`Queue`] without a bound, created with [`SimpleQueue::unbounded`](Queue::unbounded).
pub type SimpleQueue<T> = Queue<T>;

impl<T: Message> Schema for Queue<T> {
    fn schema_text() -> String {
        format!("queue<{}>", name_of::<T>())
    }
}

impl<T: Message> Queue<T> {
    /// Returns the name of the messages' type: the schema of a named message (`name` in
    /// `#[derive(Message)]`), or else the name in Rust. At most 128 bytes of the name are stored.
    ///
    /// ```
    /// let queue = mp_queue::Queue::<u64>::bounded(4)?;
    /// assert_eq!(queue.type_name(), "u64");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn type_name(&self) -> String {
        self.raw.memory().type_name()
    }

    /// Returns the hash of the name of the messages' type.
    #[doc(hidden)]
    #[must_use]
    pub fn type_fingerprint(&self) -> u64 {
        self.fingerprint.get()
    }

    /// Creates a queue for up to `capacity` messages. Its slots are allocated at once.
    ///
    /// # Errors
    /// Returns an error if there is not enough shared memory, or if `capacity` is 0 or above 2^24.
    #[doc(alias = "maxsize")]
    pub fn bounded(capacity: usize) -> Result<Self, Error> {
        QueueOptions::new().capacity(capacity).create()
    }

    /// Creates a queue that grows. [`put`](Self::put) never waits: it returns an error if there is no room.
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
    /// The queue grows by segments, each four times as large as the one before it, up to the number of
    /// messages that the arena allows. The queue does not shrink until it is dropped. See
    /// [above](Self#how-much-fits) for the limits. Beyond them, or when memory runs out, `put` returns its
    /// value in an error.
    ///
    /// # Errors
    /// Returns an error if there is not enough shared memory.
    pub fn unbounded() -> Result<Self, Error> {
        QueueOptions::new().create()
    }

    /// Creates a queue that grows as [`unbounded`](Self::unbounded), up to `limit` messages. At the limit,
    /// [`put`](Self::put) waits.
    ///
    /// Suited to limits that are rarely reached: the queue takes memory for the messages that it has held,
    /// not for its limit. Producers that reach the limit at the same moment may exceed it by one message
    /// each.
    ///
    /// # Errors
    /// Returns an error if there is not enough shared memory, or if `limit` is 0 or above 2^24.
    pub fn growing(limit: usize) -> Result<Self, Error> {
        QueueOptions::new().growing(limit).create()
    }

    /// Returns another handle to this queue, which is counted with these capabilities.
    pub(crate) fn with_capabilities(&self, capabilities: Capabilities) -> Self {
        Self { raw: self.raw.counted(capabilities), fingerprint: self.fingerprint, messages: PhantomData }
    }

    /// Returns another handle to this queue that is used only for waiting. This handle does not prevent a
    /// wait of other handles from ending with `Deserted`.
    pub(crate) fn for_waiting(&self) -> Self {
        Self { raw: self.raw.clone(), fingerprint: self.fingerprint, messages: PhantomData }
    }

    pub(crate) fn of_raw(raw: RawQueue, fingerprint: TypeFingerprint<T>) -> Self {
        Self { raw, fingerprint, messages: PhantomData }
    }

    pub(crate) fn raw(&self) -> &RawQueue {
        &self.raw
    }
    pub(crate) fn fingerprint(&self) -> TypeFingerprint<T> {
        self.fingerprint
    }

    /// Names the queue, for all processes that have it. The name appears in `Debug` output and in reports of
    /// long waits. The name is cut at 32 bytes, and a later name replaces it. Names need not be unique, and a
    /// queue can't be looked up by name.
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

    /// Returns the name that a process has [given](Self::named) the queue.
    pub fn given_name(&self) -> Option<String> {
        mp_core::waits::object_name(self.raw.hold())
    }

    /// Returns this handle with another spin policy. Calls through the returned handle and its clones follow
    /// this policy before they sleep.
    ///
    /// [`QueueOptions::spin`] sets the policy for the handles of all processes.
    pub fn spinning(self, spin: Spin) -> Self {
        Self { raw: self.raw.spinning(spin), ..self }
    }

    /// Returns this handle with another condition for `Deserted`. Waits by the returned handle and its clones
    /// end by this condition.
    ///
    /// [`QueueOptions::deserted_when`] sets the condition for the handles of all processes.
    ///
    /// ```
    /// use std::time::Duration;
    /// use mp_queue::{DesertedWhen, Queue};
    ///
    /// // Threads share this handle, so no wait ends with `Deserted`.
    /// let jobs = Queue::<u32>::bounded(4)?.deserted_when(DesertedWhen::Never);
    /// assert!(jobs.get_timeout(Duration::ZERO).unwrap_err().is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn deserted_when(self, deserted: DesertedWhen) -> Self {
        Self { raw: self.raw.deserted_when(deserted), ..self }
    }

    /// Puts a message. Waits while the queue is full, or while it has used its share of the
    /// [envelopes](Self#how-much-fits). An [unbounded](Self::unbounded) queue returns an error instead of
    /// waiting.
    ///
    /// Some contents of a value are copied once here and once by the receiver, as by `memcpy`. These are a
    /// `Vec`, boxed slice, `Cow` or slice of numbers (`u8` to `u128`, `i8` to `i128`, `f32`, `f64`), a
    /// `String`, and every type that serde writes as bytes (`serde_bytes`, `bytes::Bytes`). Data received as
    /// `bytes::Bytes` (feature `bytes`) is copied only here. Sequences of other elements are written and read
    /// one element at a time. A tensor's memory is handed over without a copy, regardless of its length.
    ///
    /// # Errors
    /// Returns [`PutError::Closed`], [`PutError::Deserted`], or [`PutError::Failed`] if the value can't be
    /// encoded or there is no room. The error contains the value.
    #[inline]
    #[track_caller]
    pub fn put(&self, value: T) -> Result<(), PutError<T>> {
        self.put_wait(value, Wait::Forever)
    }

    mp_core::forms! {
        "Puts a message": put(value: T) -> Result<(), PutError<T>>, or "[`PutError::Full`]";
        |queue, wait| queue.put_wait(value, wait);
        #[doc(alias = "put_nowait")] #[inline] never try_put;
        #[inline] at_most put_timeout;
        #[inline] until put_deadline;
    }

    #[inline]
    #[track_caller]
    pub(crate) fn put_wait(&self, value: T, wait: Wait) -> Result<(), PutError<T>> {
        put_as(&self.raw, self.fingerprint, value, wait)
    }

    /// Takes the oldest message. Waits while the queue is empty. Returns `None` if the queue is closed and
    /// drained.
    ///
    /// # Errors
    /// Returns [`GetError::Deserted`], or [`GetError::Failed`] if the message can't be decoded. The error
    /// contains the message's bytes.
    #[inline]
    #[track_caller]
    pub fn get(&self) -> Result<Option<T>, GetError> {
        self.get_wait(Wait::Forever)
    }

    mp_core::forms! {
        "Takes the oldest message": get() -> Result<Option<T>, GetError>, or "[`GetError::Empty`]";
        |queue, wait| queue.get_wait(wait);
        #[doc(alias = "get_nowait")] #[inline] never try_get;
        #[inline] at_most get_timeout;
        #[inline] until get_deadline;
    }

    #[inline]
    #[track_caller]
    pub(crate) fn get_wait(&self, wait: Wait) -> Result<Option<T>, GetError> {
        get_as(&self.raw, self.fingerprint, wait)
    }

    /// Closes the queue. Nothing more can be put, and consumers get the remaining messages and then `None`.
    /// Returns `true` if the queue was open.
    ///
    /// A message that is put concurrently is either refused or taken later.
    #[doc(alias = "join_thread")]
    #[doc(alias = "cancel_join_thread")]
    pub fn close(&self) -> bool {
        self.raw.close()
    }

    /// Returns the number of messages in the queue, a snapshot. It includes the messages of dropped
    /// [leases](Self::get_lease), also beyond the capacity, and excludes dead letters.
    #[doc(alias = "qsize")]
    pub fn len(&self) -> usize {
        self.raw.len()
    }

    /// Returns `true` if the queue is empty: a snapshot.
    #[doc(alias = "empty")]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns `true` if the queue holds as many messages as fit: a snapshot. A bound of
    /// [bytes](crate::QueueOptions::bytes) may be reached earlier, depending on the message to be put.
    #[doc(alias = "full")]
    pub fn is_full(&self) -> bool {
        self.raw.is_full()
    }

    /// Returns a `Waitable` for room in the queue. The `Waitable` is ready when [`try_put`](Self::try_put)
    /// would not return `Full`. If the queue has a bound of [bytes](crate::QueueOptions::bytes), this is room
    /// for the smallest message. For larger messages, use [`put_ready_for`](Self::put_ready_for).
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

    /// Returns a `Waitable` for room for a message of `bytes` bytes, counted as described at
    /// [`QueueOptions::bytes`](crate::QueueOptions::bytes). The `Waitable` is ready when
    /// [`try_put`](Self::try_put) of that message would not return `Full`. Sizes above the bound count as the
    /// bound. Without a bound of bytes, this is [`put_ready`](Self::put_ready).
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
        PutReady { queue: self.for_waiting(), bytes }
    }

    /// Returns the number of messages that the queue can contain. For a queue without a bound, this is the
    /// arena's number of messages.
    pub fn capacity(&self) -> usize {
        self.raw.capacity()
    }

    /// Returns an iterator that takes messages until the queue is closed and drained.
    pub fn iter(&self) -> impl Iterator<Item = Result<T, GetError>> + '_ {
        iter::QueueMessages(self)
    }
}

impl QueueOptions {
    /// Creates a queue with these options.
    ///
    /// # Errors
    /// Returns an error in the same cases as [`Queue::bounded`], and if there is a bound of bytes without a
    /// [capacity](Self::capacity).
    pub fn create<T: Message>(self) -> Result<Queue<T>, Error> {
        self.check()?;
        let fingerprint = TypeFingerprint::<T>::new();
        let raw = RawQueue::create(self, (fingerprint.get(), &name_of::<T>()), true)?;
        Ok(Queue::of_raw(raw, fingerprint))
    }
}

/// Encodes a value and puts the message.
#[inline]
#[track_caller]
pub(crate) fn put_as<T: Message>(
    raw: &RawQueue,
    fingerprint: TypeFingerprint<T>,
    mut value: T,
    wait: Wait,
) -> Result<(), PutError<T>> {
    // Small values take this short path, since `PendingMessage` is larger than the state needed for them.
    if let Some(mut payload) = Payload::from_small(raw, &value) {
        return match raw.put(&mut payload, wait) {
            Ok(()) => {
                drop_caught(value);
                Ok(())
            }
            Err(e) => Err(e.with(value)),
        };
    }
    let mut unsent = match PendingMessage::encode(raw, fingerprint, &mut value, wait) {
        Ok(unsent) => unsent,
        Err(e) => return Err(e.with(value)),
    };
    let put = raw.put(&mut unsent.payload, wait);
    unsent.end(value, put)
}

/// Takes a message and decodes it. Returns `None` if the queue is closed and drained.
// Inlined into the caller: otherwise the returned value would be copied once more. For a large value that was
// just written, that copy takes as long as reading some of it.
#[inline(always)]
#[track_caller]
pub(crate) fn get_as<T: Message>(
    raw: &RawQueue,
    fingerprint: TypeFingerprint<T>,
    wait: Wait,
) -> Result<Option<T>, GetError> {
    let mut payload = None;
    raw.get(&mut payload, wait)?;
    let Some(payload) = &mut payload else { return Ok(None) };
    if let Some(value) = payload.unpack_small() {
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
        scope::attach_object("a Queue", self.raw.hold()).map_err(S::Error::custom)?.serialize(s)
    }
}

impl<'de, T: Message> Deserialize<'de> for Queue<T> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let attachment = u32::deserialize(d)?;
        let hold = scope::take_object("a Queue", attachment).map_err(D::Error::custom)?;
        let raw = RawQueue::open(hold, Some(Capabilities::BOTH)).map_err(D::Error::custom)?;
        if T::DYNAMIC {
            let fingerprint = TypeFingerprint::stored(raw.memory().fingerprint());
            return Ok(Self { raw, fingerprint, messages: PhantomData });
        }
        let (expected, name) = (TypeFingerprint::<T>::new(), name_of::<T>());
        if !raw.memory().is_of_type((expected.get(), &name)) {
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
    use mp_core::Blocks;
    use mp_core::Storage;
    use mp_core::words::BlockKind;

    use super::*;

    /// The queue's message type has another name with the same fingerprint.
    #[test]
    fn queue_with_equal_fingerprint_is_refused_by_name() {
        let long = |end: &str| format!("{}{end}", "a".repeat(122));
        let named = |name: &str| RawQueue::create(QueueOptions::new().capacity(1), (7, name), false).unwrap();
        for name in ["there::Point", "", &long("-hundred"), &"ä".repeat(100)] {
            let queue = named(name);
            assert!(queue.memory().is_of_type((7, name)) && !queue.memory().is_of_type((8, name)));
            for other in ["there::Joint", "there::Points", "there::Poin", &long("-thousand")] {
                assert!(!queue.memory().is_of_type((7, other)), "{name} {other}");
            }
        }
    }

    /// Messages of two programs: two types with one schema, and a type with another schema.
    mod named {
        pub(super) mod here {
            #[derive(mp_reduce::Message, Debug, PartialEq)]
            #[message(crate = mp_reduce, name = "point/1")]
            pub(crate) struct Point {
                pub(crate) x: f64,
                pub(crate) tags: Vec<String>,
            }
        }

        pub(super) mod there {
            #[derive(mp_reduce::Message, Debug, PartialEq)]
            #[message(crate = mp_reduce, name = "point/1")]
            pub(crate) struct Place {
                pub(crate) x: f64,
                pub(crate) tags: Vec<String>,
            }

            #[derive(mp_reduce::Message, Debug)]
            #[message(crate = mp_reduce, name = "point/2")]
            pub(crate) struct Point {
                at: super::here::Point,
                next: Option<crate::Queue<Place>>,
            }
        }
    }

    #[test]
    fn types_of_equal_schema_read_each_others_messages() {
        use named::{here, there};
        let queue = Queue::<here::Point>::bounded(4).unwrap();
        assert_eq!(queue.type_name(), "point/1(x:f64,tags:list<str>)");
        let tags = vec!["a".to_string()];
        queue.put(here::Point { x: 1.5, tags: tags.clone() }).unwrap();
        // A handle of the same schema in another program.
        let same = RawQueue::open(queue.raw.hold().clone(), Some(Capabilities::BOTH)).unwrap();
        let name = name_of::<there::Place>();
        assert!(same.memory().is_of_type((TypeFingerprint::<there::Place>::new().get(), &name)));
        let other =
            Queue::<there::Place> { raw: same, fingerprint: TypeFingerprint::new(), messages: PhantomData };
        assert_eq!(other.get().unwrap(), Some(there::Place { x: 1.5, tags }));
    }

    #[test]
    fn queue_of_another_schema_is_refused_with_both_names() {
        use named::there;
        let schema =
            "point/2(at:point/1(x:f64,tags:list<str>),next:option<queue<point/1(x:f64,tags:list<str>)>>)";
        assert_eq!(name_of::<there::Point>(), schema);
        let envelope = mp_reduce::pack(Queue::<there::Place>::bounded(1).unwrap()).unwrap();
        let sent = TypeFingerprint::<Queue<there::Place>>::new().get();
        let read = TypeFingerprint::<Queue<there::Point>>::stored(sent);
        let error = mp_reduce::unpack_as(read, envelope).unwrap_err().to_string();
        let both = [name_of::<there::Place>(), name_of::<there::Point>()];
        assert!(both.iter().all(|name| error.contains(&**name)), "{error}");
    }

    /// A queue's block stays a queue if another kind is set for it, so its messages are released on drop.
    #[test]
    fn queue_block_stays_a_queue_after_sharing() {
        for kind in [BlockKind::Frozen, BlockKind::Shared] {
            let queue = Queue::<Vec<u8>>::bounded(2).unwrap();
            queue.put(vec![7; 500]).unwrap();
            Storage::from_hold(queue.raw.hold().clone(), 16).share_as(kind);
            let arena = queue.raw.arena();
            assert!(Blocks(arena).ring_memory(queue.raw.hold().block()).is_some(), "{kind:?}");
            queue.put(vec![8; 500]).unwrap();
            assert_eq!(queue.get().unwrap(), Some(vec![7; 500]));
        }
    }
}
