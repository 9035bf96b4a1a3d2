//! A channel whose receivers each get every message.
//!
//! ```
//! use mp_queue::broadcast::{self, RecvError};
//!
//! let (sender, one) = broadcast::channel::<String>(2)?;
//! let other = one.resubscribe()?;
//! for text in ["a", "b", "c"] {
//!     sender.send(text.into())?; // never waits: a full channel drops its oldest message
//! }
//! // "a" was dropped. A receiver gets the number of missed messages, and continues with the oldest one left.
//! assert!(matches!(one.recv(), Err(RecvError::Lagged(1))));
//! assert_eq!((one.recv()?, one.recv()?), ("b".to_string(), "c".to_string()));
//! drop(sender);
//! assert!(matches!(other.recv(), Err(RecvError::Lagged(1))));
//! assert_eq!(other.recv()?, "b"); // messages of dropped senders are still received
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`channel`] creates a [`Sender`] and a [`Receiver`]. A receiver gets the messages that are sent after it
//! was [created](Receiver::resubscribe). Both handles can be cloned and sent to other processes. Names and
//! semantics are the same as in `tokio::sync::broadcast`. Blocking calls have the usual `try_`, `_timeout`
//! and `_deadline` forms.
//!
//! A sender never waits for receivers: the channel keeps the newest messages, up to its capacity, and a
//! slower receiver misses older ones. A message is stored once, and each receiver reads it in place. For the
//! values that can be sent, see [`watch`](crate::watch#what-a-value-may-be). All receivers get the messages
//! in the same order.
//!
//! # When a process dies
//! A sender that is killed while it sends has sent the whole message or nothing. After a receiver is killed,
//! no message stays allocated for it. A process that is stopped while it reads a message blocks no other
//! process. That message stays allocated until the process has read it.

use mp_core::message::Outgoing;
use mp_core::mutex::Mutex;
use mp_core::waits::BlockingCall;
use mp_core::{Message, Wait, WaitPoint, Waitable};
use mp_reduce::{Error, TypeFingerprint};
use serde::de::{DeserializeOwned, Error as _};
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::PutError;
use crate::queue::retained_end::{FoundMessage, RetainedEnd};
use crate::raw::RawQueue;
use crate::raw::memory::pinned_read::{ReadPosition, RetainedRing, TURNS};
use crate::raw::waiting::WaitError;
use crate::ring::{NextMessage, Position, RingAt};

/// Error returned when no message was received.
#[derive(thiserror::Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum RecvError {
    /// The receiver was too slow: exactly this number of messages were replaced before it read them. The next
    /// call continues with the oldest message in the channel.
    #[error(
        "the receiver was too slow and has missed {}: receive faster, or keep more messages",
        mp_core::quantity(.0, "message")
    )]
    Lagged(u64),
    /// The channel has no messages for this receiver and no senders: they were dropped, or their processes
    /// died.
    #[error("the channel is empty and has no sender any more")]
    Closed,
    /// There was no message during the wait.
    #[error("the channel is empty, and stayed so in the time given")]
    Empty,
    /// This process was interrupted (`SIGINT`, `SIGTERM`) while the call waited for a message
    /// ([`interrupted`](mp_core::interrupted)).
    #[error("{}", mp_core::INTERRUPTED)]
    Interrupted,
    /// The message could not be decoded and is skipped, or this process was forked.
    #[error(transparent)]
    Failed(#[from] Error),
}

impl RecvError {
    /// Returns `true` if there was no message during the wait, and messages may still arrive.
    pub fn is_empty(&self) -> bool {
        matches!(self, RecvError::Empty)
    }
}

mp_core::readable_debug!(RecvError);

impl From<WaitError> for RecvError {
    #[cold]
    fn from(unmet: WaitError) -> Self {
        match unmet {
            WaitError::TimedOut => RecvError::Empty,
            WaitError::Deserted(..) | WaitError::Disconnected => RecvError::Closed,
            WaitError::Interrupted => RecvError::Interrupted,
            WaitError::Failed(error) => RecvError::Failed(error),
        }
    }
}

/// Creates a channel that keeps the newest `capacity` messages.
///
/// # Errors
/// Returns an error if there is not enough shared memory, or if `capacity` is 0 or above 2^24 minus a few
/// hundred.
pub fn channel<T: Serialize + DeserializeOwned + 'static>(
    capacity: usize,
) -> Result<(Sender<T>, Receiver<T>), Error> {
    let most = RingAt::MAX_SLOTS as usize - 512;
    if capacity == 0 || capacity > most {
        let why = format!("a broadcast channel that keeps {capacity} messages: 1 to {most} are possible");
        return Err(mp_core::Error::out_of_range(capacity > 0, why).into());
    }
    let (sender, receiver) = RetainedEnd::create(capacity as u32, type_of::<T>())?;
    let fingerprint = TypeFingerprint::of_rust_name();
    let next = receiver.retained()?.end();
    let receiver = Receiver { end: receiver, fingerprint, next: Mutex::new(next) };
    Ok((Sender { end: sender, fingerprint }, receiver))
}

/// Returns the fingerprint and name of the type of the channel's ring. The fingerprint differs from that of a
/// queue with the same message type.
fn type_of<T: 'static>() -> (u64, &'static str) {
    (TypeFingerprint::<Sender<T>>::of_rust_name().get(), std::any::type_name::<T>())
}

/// Sending side of a [`channel()`].
pub struct Sender<T> {
    end: RetainedEnd,
    fingerprint: TypeFingerprint<T>,
}

impl<T: Serialize + DeserializeOwned + 'static> Sender<T> {
    /// Sends a message to all receivers. Never waits: if there is no room, it replaces the oldest message.
    ///
    /// # Errors
    /// Returns [`PutError::Disconnected`] if there are no receivers, [`PutError::Full`] if the arena has no
    /// envelope left, or [`PutError::Failed`] if the message can't be encoded or there is not enough memory.
    /// The error contains the value.
    pub fn send(&self, value: T) -> Result<(), PutError<T>> {
        if self.end.is_peer_gone() {
            return Err(PutError::Disconnected(value));
        }
        self.end.send(self.fingerprint, value, None).map(drop)
    }

    /// Sends a message that is already encoded. Succeeds even if there are no receivers. The caller must have
    /// checked that the message has the channel's type.
    ///
    /// # Errors
    /// Returns [`PutError::Full`] if the arena has no envelope left. The message is then unchanged.
    #[doc(hidden)]
    pub fn send_encoded(&self, out: &mut Outgoing) -> Result<(), PutError<()>> {
        self.end.send_encoded(self.fingerprint, out)
    }
}

impl<T> Sender<T> {
    /// Returns `true` if there are no receivers left, neither in a process nor in a message in transit.
    pub fn is_closed(&self) -> bool {
        self.end.is_peer_gone()
    }

    /// Returns the number of messages that the channel keeps.
    pub fn capacity(&self) -> usize {
        self.end.retained().map_or(0, |retained| retained.capacity() as usize)
    }
}

/// Receiving side of a [`channel()`], with its own position in the order of messages.
///
/// Threads that share one receiver share its position, so each message goes to one of them. A receiver that
/// is sent to another process starts at the position that it had when it was sent.
pub struct Receiver<T> {
    end: RetainedEnd,
    fingerprint: TypeFingerprint<T>,
    /// Position of the next message to receive.
    next: Mutex<ReadPosition>,
}

impl<T: Serialize + DeserializeOwned + 'static> Receiver<T> {
    /// Receives the next message. Waits while there is none.
    ///
    /// # Errors
    /// Returns [`RecvError::Lagged`] if messages were replaced before this receiver read them. Each missed
    /// message is counted exactly once, and the next call continues with the oldest message in the channel.
    /// Returns [`RecvError::Closed`] if there are no messages and no senders. Returns [`RecvError::Failed`]
    /// if the message can't be decoded. That message is skipped.
    #[track_caller]
    pub fn recv(&self) -> Result<T, RecvError> {
        self.recv_wait(Wait::Forever)
    }

    mp_core::forms! {
        "Receives the next message": recv() -> Result<T, RecvError>, or "[`RecvError::Empty`]";
        |receiver, wait| receiver.recv_wait(wait);
        never try_recv;
        at_most recv_timeout;
        until recv_deadline;
    }

    #[track_caller]
    fn recv_wait(&self, wait: Wait) -> Result<T, RecvError> {
        self.end.wait((wait, BlockingCall::BroadcastRecv), || self.attempt(&self.decode(self.fingerprint)))
    }

    /// Receives the next message, asynchronously, on any runtime: see [`recv`](Self::recv). A future that is
    /// dropped before it is ready has received nothing.
    ///
    /// # Errors
    /// Returns the same errors as [`recv`](Self::recv).
    pub async fn recv_async(&self) -> Result<T, RecvError> {
        self.until(|| self.attempt(&self.decode(self.fingerprint))).await
    }
}

/// Callback that runs after the bytes of a message were copied.
type Copied<'a> = &'a mut dyn FnMut();

impl<T> Receiver<T> {
    /// Receives the next message without decoding it.
    ///
    /// # Errors
    /// Returns the same errors as [`try_recv`](Self::try_recv).
    #[doc(hidden)]
    pub fn try_recv_encoded(&self) -> Result<Outgoing, RecvError> {
        let attempt = || self.attempt(&|found, copied| self.end.read_encoded(found, copied));
        self.end.poll(attempt).unwrap_or(Err(RecvError::Empty))
    }

    /// Blocks until there is a message.
    ///
    /// # Errors
    /// Returns the same errors as [`recv`](Self::recv), except `Lagged`.
    #[doc(hidden)]
    #[track_caller]
    pub fn wait_message(&self, wait: Wait) -> Result<(), RecvError> {
        self.end.wait((wait, BlockingCall::BroadcastRecv), || self.has_message())
    }

    /// Waits asynchronously until there is a message.
    ///
    /// # Errors
    /// Returns the same errors as [`recv`](Self::recv), except `Lagged`.
    #[doc(hidden)]
    pub async fn wait_message_async(&self) -> Result<(), RecvError> {
        self.until(|| self.has_message()).await
    }

    fn has_message(&self) -> Option<Result<(), RecvError>> {
        match self.end.retained() {
            Ok(ring) => ring.has_message(self.next.lock().position).then_some(Ok(())),
            Err(error) => Some(Err(error.into())),
        }
    }

    /// Receives the next message asynchronously, without decoding it.
    ///
    /// # Errors
    /// Returns the same errors as [`recv`](Self::recv).
    #[doc(hidden)]
    pub async fn recv_encoded(&self) -> Result<Outgoing, RecvError> {
        self.until(|| self.attempt(&|found, copied| self.end.read_encoded(found, copied))).await
    }

    fn decode<M: Message>(
        &self,
        fingerprint: TypeFingerprint<M>,
    ) -> impl Fn(FoundMessage, Copied<'_>) -> Result<Option<M>, Error> {
        move |found, copied| self.end.read(fingerprint, found, copied)
    }

    /// Waits asynchronously until `attempt` returns a result. Returns an error if there are no senders left
    /// and `attempt` still returns `None`.
    async fn until<R>(&self, attempt: impl Fn() -> Option<Result<R, RecvError>>) -> Result<R, RecvError> {
        let ring = *self.end.retained()?;
        let what = || {
            let next = self.next.lock().position;
            self.end
                .raw()
                .ready_at(self.end.raw().memory().not_empty(), move |raw| is_ready(raw, &ring, next))
        };
        mp_core::until(what, || Ok::<_, Error>(self.end.poll(&attempt))).await?
    }

    /// Returns the next message or an error for missed messages, or `None` if there is no message yet.
    #[inline]
    fn attempt<R>(
        &self,
        read: &impl Fn(FoundMessage, Copied<'_>) -> Result<Option<R>, Error>,
    ) -> Option<Result<R, RecvError>> {
        let retained = match self.end.retained() {
            Ok(retained) => retained,
            Err(e) => return Some(Err(e.into())),
        };
        // Locked until the message is copied. No code of the value runs meanwhile.
        let mut next = self.next.lock();
        let mut position = next.position;
        for _ in 0..TURNS {
            let found = match retained.next(position) {
                NextMessage::Nothing => return None,
                NextMessage::Missed(on) => {
                    position = on;
                    continue;
                }
                NextMessage::Small(small) => FoundMessage::Small(small),
                NextMessage::Envelope(slot) => FoundMessage::InSlot(slot, position),
            };
            // Positions before this one may have been skipped. `None` means that the message was replaced in
            // the meantime.
            let Some((at, missed)) = retained.advance(*next, position) else { continue };
            *next = at;
            if missed > 0 {
                return Some(Err(RecvError::Lagged(missed)));
            }
            let mut locked = Some(next);
            let mut copied = || {
                if let Some(mut next) = locked.take() {
                    *next = retained.after(*next);
                }
            };
            match read(found, &mut copied) {
                Ok(Some(value)) => {
                    self.end.raw().get_pace().record_message();
                    return Some(Ok(value));
                }
                Ok(None) => next = locked.unwrap_or_else(|| self.next.lock()),
                Err(error) => return Some(Err(RecvError::Failed(error))),
            }
        }
        None
    }
}

impl<T> Receiver<T> {
    /// Creates a receiver for messages that are sent after this call.
    ///
    /// # Errors
    /// Returns an error in a forked copy of the process.
    pub fn resubscribe(&self) -> Result<Self, Error> {
        let end = self.end.retained()?.end();
        let next = Mutex::new(end);
        Ok(Self { end: self.end.clone(), fingerprint: self.fingerprint, next })
    }

    /// Returns the number of messages that the channel keeps.
    pub fn capacity(&self) -> usize {
        self.end.retained().map_or(0, |retained| retained.capacity() as usize)
    }

    /// Returns `true` if there are no senders left, neither in a process nor in a message in transit. The
    /// channel may still contain messages that were not received.
    pub fn is_closed(&self) -> bool {
        self.end.is_peer_gone()
    }

    /// Returns `true` if both receivers belong to the same channel.
    pub fn same_channel(&self, other: &Self) -> bool {
        self.end.raw().hold().block() == other.end.raw().hold().block()
    }
}

fn is_ready(raw: &RawQueue, ring: &RetainedRing, next: Position) -> bool {
    ring.has_message(next) || raw.is_disconnected()
}

/// Ready when [`try_recv`](Receiver::try_recv) would not return [`Empty`](RecvError::Empty).
impl<T> Waitable for Receiver<T> {
    fn wait_point(&self) -> WaitPoint<'_> {
        WaitPoint::Parking(self.end.raw().memory().not_empty().into())
    }

    fn is_ready(&self) -> bool {
        let next = self.next.lock().position;
        self.end.retained().is_ok_and(|ring| is_ready(self.end.raw(), ring, next))
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Self { end: self.end.clone(), fingerprint: self.fingerprint }
    }
}

/// Clones the receiver. The clone starts at the present position of this receiver.
impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Self {
        let next = Mutex::new(*self.next.lock());
        Self { end: self.end.clone(), fingerprint: self.fingerprint, next }
    }
}

crate::queue::channel::sides!(Sender: "broadcast::Sender" Receiver: "broadcast::Receiver");

impl<T: 'static> Serialize for Sender<T> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        self.end.attach("a broadcast::Sender").map_err(S::Error::custom)?.serialize(s)
    }
}

impl<'de, T: 'static> Deserialize<'de> for Sender<T> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let attachments = <(u32, u32)>::deserialize(d)?;
        let end = RetainedEnd::take("a broadcast::Sender", attachments, false, type_of::<T>());
        Ok(Self { end: end.map_err(D::Error::custom)?, fingerprint: TypeFingerprint::of_rust_name() })
    }
}

impl<T: 'static> Serialize for Receiver<T> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let attachments = self.end.attach("a broadcast::Receiver").map_err(S::Error::custom)?;
        let ReadPosition { position, skips } = *self.next.lock();
        (attachments, position.pack(), skips).serialize(s)
    }
}

impl<'de, T: 'static> Deserialize<'de> for Receiver<T> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let (attachments, position, skips) = <((u32, u32), u64, u64)>::deserialize(d)?;
        let end = RetainedEnd::take("a broadcast::Receiver", attachments, true, type_of::<T>());
        let (end, fingerprint) = (end.map_err(D::Error::custom)?, TypeFingerprint::of_rust_name());
        let next = ReadPosition { position: Position::unpack(position), skips };
        Ok(Self { end, fingerprint, next: Mutex::new(next) })
    }
}
