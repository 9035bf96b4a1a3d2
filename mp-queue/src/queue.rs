//! The queue that users see.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mp_core::message::scope;
use mp_core::words::Member;
use mp_core::{Arena, Envelope, Hold, Message, Parking, Patience};
use mp_reduce::{Error, TypeFingerprint, pack_as, unpack_as};
use serde::de::Error as _;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::{GetError, PutError};
use crate::ring::RingAt;
use crate::shared::{Given, RingMemory, Rings, Taken};

/// A queue of messages between processes: many producers, many consumers, first in, first out.
///
/// ```
/// use mp_core::Tensor;
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
/// [`put`](Self::put) waits while the queue is full, [`get`](Self::get) while it is empty: first looking for up to 50 µs
/// (less where that rarely pays), then asleep. `try_` forms never wait, `_timeout` forms not longer than told.
/// While both sides are awake, no system call is made.
///
/// # When a process dies
/// Killed, stopped or crashed, in whatever instruction: the others go on. A producer that dies in `put` has either sent
/// its message or not. A consumer that dies in `get`, or later, takes the message that it was getting with it
/// (at most one). A message that was put does not depend on its producer any more, which may exit at once.
/// When a process that had the queue has ended, or dropped its last handle, and no other process has it any more, waiting
/// on it ends with `Deserted` (also if another thread of this same process could still put or get: that is not known).
///
/// # As a message
/// Handles are serde types inside of messages and arguments. Cloning or sending one copies the handle, not the queue.
/// Queues are typed: received as a queue of something else, it is an error that names both types. (A queue that
/// is put into itself keeps itself alive until the program ends.)
pub struct Queue<T: Message> {
    hold: Hold,
    ring: RingMemory,
    fingerprint: TypeFingerprint<T>,
    getting: Arc<Patience>,
    putting: Arc<Patience>,
    messages: PhantomData<fn(T) -> T>,
}

impl<T: Message> Clone for Queue<T> {
    fn clone(&self) -> Self {
        Self {
            hold: self.hold.clone(),
            ring: self.ring,
            fingerprint: self.fingerprint,
            getting: Arc::clone(&self.getting),
            putting: Arc::clone(&self.putting),
            messages: PhantomData,
        }
    }
}

impl<T: Message> fmt::Debug for Queue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = std::any::type_name::<T>();
        write!(f, "Queue<{name}>({} of {}, block {})", self.len(), self.capacity(), self.hold.block())
    }
}

/// How long a call is willing to wait.
#[derive(Clone, Copy)]
enum Wait {
    Never,
    Until(Instant),
    Forever,
}

impl Wait {
    /// A time-out that is too long for the clock is none.
    fn at_most(timeout: Duration) -> Self {
        Instant::now().checked_add(timeout).map_or(Wait::Forever, Wait::Until)
    }
}

impl<T: Message> Queue<T> {
    /// A queue for up to `capacity` messages (at least one).
    ///
    /// # Errors
    /// When there is no shared memory for it, or `capacity` is 0 or above 2^24.
    #[doc(alias = "maxsize")]
    pub fn bounded(capacity: usize) -> Result<Self, Error> {
        let slots = u32::try_from(capacity).ok().filter(|&n| n > 0 && n <= RingAt::MAX_SLOTS);
        let Some(slots) = slots else {
            let why = format!("a queue for {capacity} messages: 1 to {} are possible", RingAt::MAX_SLOTS);
            return Err(mp_core::Error::Shape(why).into());
        };
        let arena = Arena::current()?;
        arena.set_ring_layer(&Rings)?;
        let hold = arena.alloc(crate::header::Header::bytes(slots))?;
        let fingerprint = TypeFingerprint::<T>::new();
        let ring = RingMemory::create(&hold, slots, fingerprint.get(), std::any::type_name::<T>());
        Ok(Self::from_parts(hold, ring))
    }

    fn from_parts(hold: Hold, ring: RingMemory) -> Self {
        Self {
            hold,
            ring,
            fingerprint: TypeFingerprint::new(),
            getting: Arc::default(),
            putting: Arc::default(),
            messages: PhantomData,
        }
    }

    /// The same queue; calls through this handle and its clones sleep at once instead of looking first.
    ///
    /// For programs with more busy processes than processors.
    pub fn without_spinning(mut self) -> Self {
        self.getting = Arc::new(Patience::none());
        self.putting = Arc::new(Patience::none());
        self
    }

    /// Puts a message; waits while the queue is full.
    ///
    /// # Errors
    /// [`PutError::Closed`], [`PutError::Deserted`], or [`PutError::Failed`] when it can't be encoded or there is no memory.
    /// The value is given back.
    #[inline]
    pub fn put(&self, value: T) -> Result<(), PutError<T>> {
        self.put_within(value, Wait::Forever)
    }

    /// Puts a message if the queue is not full.
    ///
    /// # Errors
    /// [`PutError::Full`], and as [`put`](Self::put).
    #[doc(alias = "put_nowait")]
    #[inline]
    pub fn try_put(&self, value: T) -> Result<(), PutError<T>> {
        self.put_within(value, Wait::Never)
    }

    /// Puts a message; waits while the queue is full, at most `timeout`.
    ///
    /// # Errors
    /// [`PutError::Full`], and as [`put`](Self::put).
    #[inline]
    pub fn put_timeout(&self, value: T, timeout: Duration) -> Result<(), PutError<T>> {
        self.put_within(value, Wait::at_most(timeout))
    }

    #[inline]
    fn put_within(&self, value: T, wait: Wait) -> Result<(), PutError<T>> {
        let mut envelope = match pack_as(self.hold.arena(), self.fingerprint, value) {
            Ok(envelope) => envelope,
            Err(e) => return Err(PutError::Failed { value: e.value, error: e.error }),
        };
        let mut closed = false;
        let attempt = || {
            Ok(match self.ring.put(&mut envelope)? {
                Given::Done => true,
                Given::Closed => {
                    closed = true;
                    true
                }
                Given::Full => false,
            })
        };
        match self.within(wait, &self.putting, self.ring.not_full(), attempt) {
            Ok(Ended::Attempted) if !closed => {
                self.ring.not_empty().wake_one();
                Ok(())
            }
            end => Err(self.not_put(envelope, end)),
        }
    }

    /// The message returns to its sender.
    #[cold]
    fn not_put(&self, envelope: Envelope, end: Result<Ended, Error>) -> PutError<T> {
        let Ok(value) = unpack_as(self.fingerprint, envelope) else {
            let lost = mp_core::Error::Malformed("the value that was not put can't be decoded again".into());
            let error = end.err().unwrap_or_else(|| lost.into());
            return PutError::Failed { value: None, error };
        };
        match end {
            Ok(Ended::Attempted) => PutError::Closed(value),
            Ok(Ended::Waited) => PutError::Full(value),
            Ok(Ended::Deserted(last, pid)) => PutError::Deserted { value, last, pid },
            Err(error) => PutError::Failed { value: Some(value), error },
        }
    }

    /// Takes the oldest message; waits while the queue is empty. `None` when it is closed and drained.
    ///
    /// # Errors
    /// [`GetError::Deserted`], or [`GetError::Failed`] when the message can't be decoded; it is lost then.
    #[inline]
    pub fn get(&self) -> Result<Option<T>, GetError> {
        self.get_within(Wait::Forever)
    }

    /// Takes the oldest message, if there is one. `None` when the queue is closed and drained.
    ///
    /// # Errors
    /// [`GetError::Empty`], and as [`get`](Self::get).
    #[doc(alias = "get_nowait")]
    #[inline]
    pub fn try_get(&self) -> Result<Option<T>, GetError> {
        self.get_within(Wait::Never)
    }

    /// Takes the oldest message; waits while the queue is empty, at most `timeout`. `None` when it is closed and drained.
    ///
    /// # Errors
    /// [`GetError::Empty`], and as [`get`](Self::get).
    #[inline]
    pub fn get_timeout(&self, timeout: Duration) -> Result<Option<T>, GetError> {
        self.get_within(Wait::at_most(timeout))
    }

    #[inline]
    fn get_within(&self, wait: Wait) -> Result<Option<T>, GetError> {
        let mut envelope = None;
        let attempt = || {
            Ok(match self.ring.get(&mut envelope)? {
                Taken::Message | Taken::Closed => true,
                Taken::Empty => false,
            })
        };
        match self.within(wait, &self.getting, self.ring.not_empty(), attempt)? {
            Ended::Attempted => {
                let Some(envelope) = envelope else { return Ok(None) };
                self.ring.not_full().wake_one();
                Ok(Some(unpack_as(self.fingerprint, envelope)?))
            }
            Ended::Waited => Err(GetError::Empty),
            Ended::Deserted(last, pid) => Err(GetError::Deserted { last, pid }),
        }
    }

    /// Attempts until it succeeds, or the wait ends: looking first, then asleep in slices. After each slice it looks for
    /// dead members, and whether anybody is left.
    #[inline]
    fn within(
        &self,
        wait: Wait,
        patience: &Patience,
        parking: Parking,
        mut attempt: impl FnMut() -> Result<bool, Error>,
    ) -> Result<Ended, Error> {
        if attempt()? {
            return Ok(Ended::Attempted);
        }
        let deadline = match wait {
            Wait::Never => return Ok(Ended::Waited),
            Wait::Until(t) => Some(t),
            Wait::Forever => None,
        };
        self.wait(deadline, patience, parking, attempt)
    }

    fn wait(
        &self,
        deadline: Option<Instant>,
        patience: &Patience,
        parking: Parking,
        mut attempt: impl FnMut() -> Result<bool, Error>,
    ) -> Result<Ended, Error> {
        let mut look = || match attempt() {
            Ok(true) => Some(Ok(Ended::Attempted)),
            Ok(false) => None,
            Err(e) => Some(Err(e)),
        };
        loop {
            if let Some(found) = patience.look(&mut look) {
                return found;
            }
            if deadline.is_some_and(|d| Instant::now() >= d) {
                return Ok(self.deserted().map_or(Ended::Waited, |(last, pid)| Ended::Deserted(last, pid)));
            }
            let announced = parking.announce();
            if let Some(found) = look() {
                return found;
            }
            let asleep = Instant::now();
            if parking.sleep(announced, deadline) {
                patience.slept(asleep.elapsed());
            } else {
                self.hold.arena().sweep_if_due()?;
            }
            if let Some((last, pid)) = self.deserted() {
                // What they put before they died comes first.
                return look().unwrap_or(Ok(Ended::Deserted(last, pid)));
            }
        }
    }

    /// Whether some process that had the queue is gone, and no other has it: who went last.
    fn deserted(&self) -> Option<(Member, u32)> {
        let last = self.ring.last_gone()?;
        (self.hold.arena().other_holders(&self.hold) == 0).then_some(last)
    }

    /// Closes the queue: what is in it can still be taken, then consumers get `None`; nothing more can be put. Whether it
    /// was open.
    ///
    /// Exact also against producers that are just putting: a message is either refused or will be taken.
    pub fn close(&self) -> bool {
        if self.hold.arena().me().is_err() {
            return false;
        }
        let closed = self.ring.close();
        self.ring.not_empty().wake_all();
        self.ring.not_full().wake_all();
        closed
    }

    /// How many messages are in it: a moment's picture.
    #[doc(alias = "qsize")]
    pub fn len(&self) -> usize {
        // In a forked copy there is no queue to look at.
        if self.hold.arena().me().is_ok() { self.ring.len() } else { 0 }
    }

    /// Whether it is empty: a moment's picture.
    #[doc(alias = "empty")]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether it is full: a moment's picture.
    #[doc(alias = "full")]
    pub fn is_full(&self) -> bool {
        self.len() == self.capacity()
    }

    /// How many messages fit.
    pub fn capacity(&self) -> usize {
        self.ring.slots() as usize
    }

    /// Takes messages until the queue is closed and drained.
    pub fn iter(&self) -> impl Iterator<Item = Result<T, GetError>> + '_ {
        std::iter::from_fn(|| self.get().transpose())
    }
}

/// How a wait ended.
enum Ended {
    Attempted,
    Waited,
    Deserted(Member, u32),
}

impl<T: Message> Serialize for Queue<T> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        scope::outgoing("a Queue", |out| out.attach_object(&self.hold))
            .map_err(S::Error::custom)?
            .serialize(s)
    }
}

impl<'de, T: Message> Deserialize<'de> for Queue<T> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let attachment = u32::deserialize(d)?;
        let hold = scope::incoming("a Queue", |inc| inc.take_object(attachment)).map_err(D::Error::custom)?;
        hold.arena().set_ring_layer(&Rings).map_err(D::Error::custom)?;
        let ring = RingMemory::open(hold.arena(), hold.block())
            .ok_or_else(|| D::Error::custom("the attachment is no queue"))?;
        let (expected, name) = (TypeFingerprint::<T>::new(), std::any::type_name::<T>());
        if ring.fingerprint() != expected.get() {
            let found = ring.type_name();
            return Err(D::Error::custom(format!(
                "a queue of {found} arrived where one of {name} is expected"
            )));
        }
        Ok(Self::from_parts(hold, ring))
    }
}
