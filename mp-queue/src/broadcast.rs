//! A channel of which each receiver gets each message.
//!
//! ```
//! use mp_queue::broadcast::{self, RecvError};
//!
//! let (sender, one) = broadcast::channel::<String>(2)?;
//! let other = one.resubscribe()?;
//! for text in ["a", "b", "c"] {
//!     sender.send(text.into())?; // never waits: the oldest goes where there is no room
//! }
//! // "a" is gone: a receiver is told how many it has missed, and goes on with the oldest that is there.
//! assert!(matches!(one.recv(), Err(RecvError::Lagged(1))));
//! assert_eq!((one.recv()?, one.recv()?), ("b".to_string(), "c".to_string()));
//! drop(sender);
//! assert!(matches!(other.recv(), Err(RecvError::Lagged(1))));
//! assert_eq!(other.recv()?, "b"); // what was sent before the last sender left is still received
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The three to know: [`channel`], which makes one; [`Sender`], of which there may be any number; and [`Receiver`], which gets what is
//! sent from the time on at which it was [made](Receiver::resubscribe). Both can be sent to other processes. Names and meaning are
//! those of `tokio::sync::broadcast`; calls that block have their usual forms.
//!
//! No receiver holds a sender up: the channel keeps the newest messages, as many as it was made for, and a receiver that is slower
//! misses the others. Messages are read where they are, by each receiver for itself, so they are in memory once; which values
//! can be sent is as for [`watch`](crate::watch#what-a-value-may-be). All receivers get them in the same order.
//!
//! # When a process dies
//! A sender that is killed while it sends has sent the whole message, or nothing. A receiver that is killed keeps nothing. A process
//! that is stopped while it reads holds up no other; it keeps the message that it was reading.

use std::fmt;
use std::sync::Arc;

use mp_core::mutex::Mutex;
use mp_core::waits::Call;
use mp_core::{SharedWaitable, Wait, WaitPoint, Waitable};
use mp_reduce::{Error, TypeFingerprint};
use serde::de::{DeserializeOwned, Error as _};
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::PutError;
use crate::queue::kept::KeptEnd;
use crate::raw::memory::kept::Position;
use crate::raw::waiting::Unmet;
use crate::ring::{Next, RingAt, Ticket};

/// Why nothing was received.
#[derive(Serialize, Deserialize)]
#[non_exhaustive]
pub enum RecvError {
    /// The receiver was too slow: exactly this many messages were replaced before it read them. The next call continues with the
    /// oldest message that is there.
    Lagged(u64),
    /// There is no message, and no sender any more: they were dropped, or their processes are dead.
    Closed,
    /// There was no message as long as this call was willing to wait.
    Empty,
    /// This process was interrupted (SIGINT, SIGTERM) while the call waited for a message ([`interrupted`](mp_core::interrupted)).
    Interrupted,
    /// The message could not be decoded, and is skipped; or this process was forked.
    Failed(Error),
}

impl RecvError {
    /// Whether it was only that there is no message yet.
    pub fn is_empty(&self) -> bool {
        matches!(self, RecvError::Empty)
    }
}

impl fmt::Display for RecvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RecvError::Lagged(n) => {
                write!(
                    f,
                    "the receiver was too slow and has missed {n} messages: receive faster, or keep more of them"
                )
            }
            RecvError::Closed => f.write_str("the channel is empty and has no sender any more"),
            RecvError::Empty => f.write_str("the channel is empty, and stayed so in the time given"),
            RecvError::Interrupted => f.write_str(mp_core::INTERRUPTED),
            RecvError::Failed(error) => error.fmt(f),
        }
    }
}

mp_core::readable_debug!(RecvError);

impl std::error::Error for RecvError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            RecvError::Failed(error) => std::error::Error::source(error),
            _ => None,
        }
    }
}

impl From<Error> for RecvError {
    fn from(error: Error) -> Self {
        RecvError::Failed(error)
    }
}

impl From<Unmet> for RecvError {
    #[cold]
    fn from(unmet: Unmet) -> Self {
        match unmet {
            Unmet::Waited => RecvError::Empty,
            Unmet::Alone(_) => RecvError::Closed,
            Unmet::Interrupted => RecvError::Interrupted,
            Unmet::Failed(error) => RecvError::Failed(error),
        }
    }
}

/// Makes a channel that keeps the newest `capacity` messages.
///
/// # Errors
/// When there is no shared memory for it, or `capacity` is 0, or more than 2^24 less some hundred.
pub fn channel<T: Serialize + DeserializeOwned + 'static>(
    capacity: usize,
) -> Result<(Sender<T>, Receiver<T>), Error> {
    let most = RingAt::MAX_SLOTS as usize - 512;
    if capacity == 0 || capacity > most {
        let why = format!("a broadcast channel that keeps {capacity} messages: 1 to {most} are possible");
        return Err(mp_core::Error::not_within(capacity > 0, why).into());
    }
    let (sender, receiver) = KeptEnd::ends(capacity as u32, type_of::<T>())?;
    let fingerprint = TypeFingerprint::new();
    let next = receiver.kept()?.end();
    let receiver = Receiver { end: receiver, fingerprint, next: Mutex::new(next) };
    Ok((Sender { end: sender, fingerprint }, receiver))
}

/// The ring of such a channel is another type than a queue of its messages.
fn type_of<T: 'static>() -> (u64, &'static str) {
    (TypeFingerprint::<Sender<T>>::new().get(), std::any::type_name::<T>())
}

/// The sending side of a [`channel()`].
pub struct Sender<T> {
    end: KeptEnd,
    fingerprint: TypeFingerprint<T>,
}

impl<T: Serialize + DeserializeOwned + 'static> Sender<T> {
    /// Sends a message to all receivers. It never waits: the oldest message goes where there is no room.
    ///
    /// # Errors
    /// [`PutError::Disconnected`] when there is no receiver any more; [`PutError::Full`] when as many messages are on their way in
    /// all as the arena has room for; [`PutError::Failed`] when it can't be encoded, or there is no memory. The value is given back.
    pub fn send(&self, value: T) -> Result<(), PutError<T>> {
        if self.end.is_alone() {
            return Err(PutError::Disconnected(value));
        }
        self.end.send(self.fingerprint, value, None).map(drop)
    }
}

impl<T> Sender<T> {
    /// Whether there is no receiver any more, in any process and in any message.
    pub fn is_closed(&self) -> bool {
        self.end.is_alone()
    }

    /// How many messages the channel keeps.
    pub fn capacity(&self) -> usize {
        self.end.kept().map_or(0, |kept| kept.capacity() as usize)
    }
}

/// The receiving side of a [`channel()`]: it has a place of its own in the order of messages.
///
/// Threads that use one receiver share its place: each message goes to one of them. What another process receives begins at the
/// place that this receiver had when it was sent.
pub struct Receiver<T> {
    end: KeptEnd,
    fingerprint: TypeFingerprint<T>,
    /// Position of the message that it receives next.
    next: Mutex<Position>,
}

impl<T: Serialize + DeserializeOwned + 'static> Receiver<T> {
    /// Receives the next message; waits while there is none.
    ///
    /// # Errors
    /// [`RecvError::Lagged`] when messages were replaced before this receiver read them: it has their exact number, once, and the next
    /// call continues with the oldest message that is there. What a receiver has received and missed is together what was sent.
    /// [`RecvError::Closed`] when there is no message and no sender any more; [`RecvError::Failed`] when the message can't be
    /// decoded; it is skipped then.
    pub fn recv(&self) -> Result<T, RecvError> {
        self.recv_within(Wait::Forever)
    }

    mp_core::forms! {
        "Receives the next message": recv() -> Result<T, RecvError>, or "[`RecvError::Empty`]";
        |receiver, wait| receiver.recv_within(wait);
        never try_recv;
        at_most recv_timeout;
        until recv_deadline;
    }

    fn recv_within(&self, wait: Wait) -> Result<T, RecvError> {
        self.end.wait((wait, Call::BroadcastRecv), || self.attempt(), RecvError::is_empty)
    }

    /// As [`recv`](Self::recv), as a future, for whatever runtime. One that is dropped before it is ready has received nothing.
    ///
    /// # Errors
    /// As [`recv`](Self::recv).
    pub async fn recv_async(&self) -> Result<T, RecvError> {
        let what =
            || Arc::new(News { end: self.end.clone(), next: self.next.lock().ticket }) as SharedWaitable;
        mp_core::until(what, || Ok::<_, Error>(self.end.look(|| self.attempt()))).await?
    }

    /// The next message, or that some were missed; nothing yet.
    fn attempt(&self) -> Option<Result<T, RecvError>> {
        loop {
            let kept = match self.end.kept() {
                Ok(kept) => kept,
                Err(e) => return Some(Err(e.into())),
            };
            // Held until the message is copied: no code of the value runs meanwhile.
            let mut next = self.next.lock();
            match kept.next(next.ticket) {
                Next::Nothing => return None,
                // Tickets that were passed over have no messages: the number of the next message says how many were missed.
                Next::Missed(on, _) => next.ticket = on,
                Next::Message(slot) => {
                    let ticket = next.ticket;
                    // None: the message was replaced meanwhile.
                    let Some(number) = kept.number(slot, ticket) else { continue };
                    let missed = next.missed(number);
                    next.number = number;
                    if missed > 0 {
                        return Some(Err(RecvError::Lagged(missed)));
                    }
                    let done = move || {
                        *next = kept.after(*next);
                        drop(next);
                    };
                    match self.end.read(self.fingerprint, (slot, ticket), done) {
                        Ok(Some(value)) => return Some(Ok(value)),
                        Ok(None) => {}
                        Err(error) => return Some(Err(RecvError::Failed(error))),
                    }
                }
            }
        }
    }
}

impl<T> Receiver<T> {
    /// A receiver of what is sent from now on.
    ///
    /// # Errors
    /// In a forked copy of the process.
    pub fn resubscribe(&self) -> Result<Self, Error> {
        let end = self.end.kept()?.end();
        let next = Mutex::new(end);
        Ok(Self { end: self.end.clone(), fingerprint: self.fingerprint, next })
    }

    /// Whether there is no sender any more, in any process and in any message. What they sent may still be there.
    pub fn is_closed(&self) -> bool {
        self.end.is_alone()
    }

    /// Whether both receive from the same channel.
    pub fn same_channel(&self, other: &Self) -> bool {
        self.end.raw().hold().block() == other.end.raw().hold().block()
    }
}

fn is_ready(end: &KeptEnd, next: Ticket) -> bool {
    end.kept().is_ok_and(|kept| kept.next(next) != Next::Nothing) || end.is_alone()
}

/// Ready when [`try_recv`](Receiver::try_recv) would not return [`Empty`](RecvError::Empty).
impl<T> Waitable for Receiver<T> {
    fn place(&self) -> WaitPoint<'_> {
        WaitPoint::Parking(self.end.news().into())
    }

    fn is_ready(&self) -> bool {
        let next = self.next.lock().ticket;
        is_ready(&self.end, next)
    }
}

/// A message, as something that futures wait for.
struct News {
    end: KeptEnd,
    next: Ticket,
}

impl Waitable for News {
    fn place(&self) -> WaitPoint<'_> {
        WaitPoint::Parking(self.end.news().into())
    }

    fn is_ready(&self) -> bool {
        self.end.kept().is_err() || is_ready(&self.end, self.next)
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Self { end: self.end.clone(), fingerprint: self.fingerprint }
    }
}

/// One more receiver, at the same place.
impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Self {
        let next = Mutex::new(*self.next.lock());
        Self { end: self.end.clone(), fingerprint: self.fingerprint, next }
    }
}

crate::queue::kept::named!(Sender Receiver);

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "broadcast::Sender<{}>{:?}", std::any::type_name::<T>(), self.end)
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "broadcast::Receiver<{}>{:?}", std::any::type_name::<T>(), self.end)
    }
}

impl<T: 'static> Serialize for Sender<T> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        self.end.attach("a broadcast::Sender").map_err(S::Error::custom)?.serialize(s)
    }
}

impl<'de, T: 'static> Deserialize<'de> for Sender<T> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let attachments = <(u32, u32)>::deserialize(d)?;
        let end = KeptEnd::take("a broadcast::Sender", attachments, false, type_of::<T>());
        Ok(Self { end: end.map_err(D::Error::custom)?, fingerprint: TypeFingerprint::new() })
    }
}

impl<T: 'static> Serialize for Receiver<T> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let attachments = self.end.attach("a broadcast::Receiver").map_err(S::Error::custom)?;
        let Position { ticket, number } = *self.next.lock();
        (attachments, ticket.pack(), number).serialize(s)
    }
}

impl<'de, T: 'static> Deserialize<'de> for Receiver<T> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let (attachments, ticket, number) = <((u32, u32), u64, u64)>::deserialize(d)?;
        let end = KeptEnd::take("a broadcast::Receiver", attachments, true, type_of::<T>());
        let (end, fingerprint) = (end.map_err(D::Error::custom)?, TypeFingerprint::new());
        let next = Position { ticket: Ticket::unpack(ticket), number };
        Ok(Self { end, fingerprint, next: Mutex::new(next) })
    }
}
