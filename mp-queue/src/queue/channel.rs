//! Channels: queues whose sides detect each other's disconnection.
//!
//! In addition to its queue, a channel has two tokens: blocks of shared memory without contents. Each sender
//! holds one token, and each receiver holds the other. Handles of this process, other processes, and messages
//! that contain a handle all hold blocks in the same way, and a recovery removes crashed holders. A side is
//! therefore connected as long as its token's block is alive. A freed block never becomes alive again.
//!
//! | killed | left | effect on other processes |
//! |---|---|---|
//! | with a handle | a seat in the token | they consider the side connected until the crashed process is recovered, within about 100 ms |
//! | after it freed the token, before it woke the sleepers | sleepers that were not woken | they check for a disconnection within 100 ms |

use mp_core::Allocator;
use mp_core::Blocks;
use std::fmt;

use mp_core::message::scope;
use mp_core::{Hold, Message, Wait};
use mp_reduce::{Error, TypeFingerprint, name_of};
use serde::de::Error as _;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::{GetError, PutError};
use crate::queue::put_as;
use crate::raw::RawQueue;
use crate::raw::options::QueueOptions;
use crate::raw::payload::Payload;

/// Handle of one side of a channel: a handle to the queue, and a hold on the token of that side.
pub(crate) struct ChannelEnd {
    raw: RawQueue,
    token: Option<Hold>,
    mine: u64,
}

impl Clone for ChannelEnd {
    fn clone(&self) -> Self {
        Self { raw: self.raw.clone(), token: self.token.clone(), ..*self }
    }
}

impl Drop for ChannelEnd {
    fn drop(&mut self) {
        self.token = None;
        if self.raw.arena().me().is_ok() && !Blocks(self.raw.arena()).lives(self.mine) {
            self.raw.memory().wake_all();
        }
    }
}

/// Makes a new queue a channel. Returns the sender's end and the receiver's end.
pub(crate) fn ends_for(raw: RawQueue) -> Result<(ChannelEnd, ChannelEnd), Error> {
    let arena = raw.arena();
    let (sender, receiver) = (Allocator(arena).alloc(1)?, Allocator(arena).alloc(1)?);
    let (sending, receiving) = (sender.mark(), receiver.mark());
    raw.memory().set_token(false, sending);
    raw.memory().set_token(true, receiving);
    let end =
        |raw: RawQueue, token, mine, peer| ChannelEnd { raw: raw.with_peer(peer), token: Some(token), mine };
    Ok((end(raw.clone(), sender, sending, receiving), end(raw, receiver, receiving, sending)))
}

impl ChannelEnd {
    pub(crate) fn raw(&self) -> &RawQueue {
        &self.raw
    }

    /// Attaches this end to the message that is being written.
    pub(crate) fn attach(&self, what: &'static str) -> mp_core::Result<(u32, u32)> {
        scope::outgoing(what, |out| {
            let token = self.token.as_ref().ok_or(mp_core::Error::OutsideMessage(what))?;
            Ok((out.attach_object(self.raw.hold())?, out.attach_object(token)?))
        })
    }

    /// Takes a channel end out of the message that is being read.
    pub(crate) fn take(
        what: &'static str,
        (queue, token): (u32, u32),
        receivers: bool,
        type_of: (u64, &str),
    ) -> Result<Self, String> {
        let (hold, token) =
            scope::incoming(what, |inc| Ok((inc.take_object(queue)?, inc.take_object(token)?)))
                .map_err(|e| e.to_string())?;
        let raw = RawQueue::open(hold, None).map_err(|e| e.to_string())?;
        if !raw.memory().is_of_type(type_of) {
            let found = raw.memory().type_name();
            return Err(format!("{what} of {found} arrived where one of {} is expected", type_of.1));
        }
        let mine = raw.memory().token(receivers);
        if token.mark() != mine {
            return Err(format!("the attachments are not those of {what}"));
        }
        let peer = raw.memory().token(!receivers);
        Ok(Self { raw: raw.with_peer(peer), token: Some(token), mine })
    }

    /// Takes and decodes a message. Returns an error if the channel is empty and has no senders.
    #[inline]
    #[track_caller]
    pub(crate) fn get_as<T: Message>(
        &self,
        fingerprint: TypeFingerprint<T>,
        wait: Wait,
    ) -> Result<T, GetError> {
        let mut payload = None;
        self.raw.get(&mut payload, wait)?;
        if let Some(value) = payload.as_ref().and_then(Payload::unpack_small) {
            return Ok(value);
        }
        match payload {
            Some(payload) => Ok(payload.unpack_from(&self.raw, fingerprint)?),
            None => Err(GetError::Disconnected),
        }
    }
}

impl fmt::Debug for ChannelEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let other = if self.raw.is_disconnected() { "disconnected" } else { "connected" };
        let messages = mp_core::quantity(self.raw.len(), "message");
        write!(f, "({messages}, block {}, {other}", self.raw.hold().block())?;
        match mp_core::waits::object_name(self.raw.hold()) {
            Some(name) => write!(f, ", {name:?})"),
            None => f.write_str(")"),
        }
    }
}

/// Creates a channel without a bound.
///
/// ```
/// let (sender, receiver) = mp_queue::channel::<String>()?;
/// let another = sender.clone();
/// sender.send("one".into())?;
/// drop(sender);
/// another.send("two".into())?;
/// drop(another);
/// // No sender is left, so the iteration ends after the last message.
/// assert_eq!(receiver.iter().collect::<Result<Vec<_>, _>>()?, ["one", "two"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Both handles can be cloned and sent to other processes. When the last [`Sender`] in all processes is
/// dropped or its process dies, receivers get the remaining messages and then [`GetError::Disconnected`].
/// When the last [`Receiver`] is dropped, senders get their values back in [`PutError::Disconnected`]. A
/// handle in a message in transit keeps its side connected. A sender that is sent through its own channel and
/// never received keeps the channel connected.
///
/// A crashed process is recovered at once by its parent, and within about 100 ms by other processes that
/// wait.
///
/// # Errors
/// Returns an error if there is not enough shared memory.
pub fn channel<T: Message>() -> Result<(Sender<T>, Receiver<T>), Error> {
    make(QueueOptions::new())
}

/// Creates a channel for up to `capacity` messages. See [`channel()`].
///
/// # Errors
/// Returns an error if there is not enough shared memory, or if `capacity` is 0 or above 2^24.
#[doc(alias = "sync_channel")]
pub fn bounded_channel<T: Message>(capacity: usize) -> Result<(Sender<T>, Receiver<T>), Error> {
    make(QueueOptions::new().capacity(capacity))
}

fn make<T: Message>(options: QueueOptions) -> Result<(Sender<T>, Receiver<T>), Error> {
    let fingerprint = TypeFingerprint::<T>::new();
    let name = name_of::<T>();
    let type_of = (fingerprint.get(), &*name);
    let (sender, receiver) = ends_for(RawQueue::create(options.deliveries(0), type_of, true)?)?;
    Ok((Sender { end: sender, fingerprint }, Receiver { end: receiver, fingerprint }))
}

/// Sending side of a [`channel()`].
pub struct Sender<T> {
    end: ChannelEnd,
    fingerprint: TypeFingerprint<T>,
}

/// Receiving side of a [`channel()`].
pub struct Receiver<T> {
    end: ChannelEnd,
    fingerprint: TypeFingerprint<T>,
}

impl<T: Message> Sender<T> {
    /// Sends a message. Waits while the channel is full.
    ///
    /// # Errors
    /// Returns [`PutError::Disconnected`] if there are no receivers, or [`PutError::Failed`] if the message
    /// can't be encoded or there is not enough memory. The error contains the value.
    #[track_caller]
    pub fn send(&self, value: T) -> Result<(), PutError<T>> {
        self.send_wait(value, Wait::Forever)
    }

    mp_core::forms! {
        "Sends a message": send(value: T) -> Result<(), PutError<T>>, or "[`PutError::Full`]";
        |sender, wait| sender.send_wait(value, wait);
        never try_send;
        at_most send_timeout;
        until send_deadline;
    }

    #[track_caller]
    fn send_wait(&self, value: T, wait: Wait) -> Result<(), PutError<T>> {
        if self.end.raw.is_disconnected() {
            return Err(PutError::Disconnected(value));
        }
        put_as(&self.end.raw, self.fingerprint, value, wait)
    }
}

impl<T: Message> Receiver<T> {
    /// Receives the oldest message. Waits while the channel is empty.
    ///
    /// # Errors
    /// Returns [`GetError::Disconnected`] if the channel is empty and has no senders. Returns
    /// [`GetError::Failed`] if the message can't be decoded. That message is lost.
    #[track_caller]
    pub fn recv(&self) -> Result<T, GetError> {
        self.recv_wait(Wait::Forever)
    }

    mp_core::forms! {
        "Receives the oldest message": recv() -> Result<T, GetError>, or "[`GetError::Empty`]";
        |receiver, wait| receiver.recv_wait(wait);
        never try_recv;
        at_most recv_timeout;
        until recv_deadline;
    }

    #[track_caller]
    fn recv_wait(&self, wait: Wait) -> Result<T, GetError> {
        self.end.get_as(self.fingerprint, wait)
    }

    /// Returns an iterator that receives until the channel is empty and has no senders.
    pub fn iter(&self) -> impl Iterator<Item = Result<T, GetError>> + '_ {
        ChannelMessages(self)
    }
}

/// Implements `Debug` and the methods that `Sender` and `Receiver` have in common.
macro_rules! sides {
    ($($side:ident: $name:literal)*) => {$(
        impl<T> ::std::fmt::Debug for $side<T> {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                write!(f, concat!($name, "<{}>{:?}"), ::std::any::type_name::<T>(), self.end)
            }
        }

        impl<T> $side<T> {
            /// Names the channel, like [`Queue::named`](crate::Queue::named).
            #[must_use]
            pub fn named(self, name: &str) -> Self {
                mp_core::waits::name_object(self.end.raw().hold(), name);
                self
            }

            /// Returns the name that a process has [given](Self::named) the channel.
            pub fn given_name(&self) -> Option<String> {
                mp_core::waits::object_name(self.end.raw().hold())
            }
        }
    )*};
}
pub(crate) use sides;

macro_rules! side {
    ($side:ident, $name:literal, $receivers:literal) => {
        /// Methods that `Sender` and `Receiver` have in common.
        impl<T: Message> $side<T> {
            pub(crate) fn end(&self) -> &ChannelEnd {
                &self.end
            }

            pub(crate) fn fingerprint(&self) -> TypeFingerprint<T> {
                self.fingerprint
            }

            /// Returns `true` if the other side has no handles left, neither in a process nor in a message in
            /// transit. Messages may still be in the channel.
            pub fn is_disconnected(&self) -> bool {
                self.end.raw.is_disconnected()
            }

            /// Returns the number of messages in the channel: a snapshot.
            pub fn len(&self) -> usize {
                self.end.raw().len()
            }

            /// Returns `true` if the channel is empty: a snapshot.
            pub fn is_empty(&self) -> bool {
                self.len() == 0
            }

            /// Returns the number of messages that the channel can contain. For a channel without a bound,
            /// this is the arena's number of messages.
            pub fn capacity(&self) -> usize {
                self.end.raw().capacity()
            }

            /// Returns `true` if the channel holds as many messages as fit: a snapshot.
            pub fn is_full(&self) -> bool {
                self.end.raw().is_full()
            }
        }

        impl<T> Clone for $side<T> {
            fn clone(&self) -> Self {
                Self { end: self.end.clone(), fingerprint: self.fingerprint }
            }
        }

        sides!($side: $name);

        impl<T: Message> Serialize for $side<T> {
            fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                self.end.attach(concat!("a ", $name)).map_err(S::Error::custom)?.serialize(s)
            }
        }

        impl<'de, T: Message> Deserialize<'de> for $side<T> {
            fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                let attachments = <(u32, u32)>::deserialize(d)?;
                let fingerprint = TypeFingerprint::<T>::new();
                let name = name_of::<T>();
                let type_of = (fingerprint.get(), &*name);
                let end = ChannelEnd::take(concat!("a ", $name), attachments, $receivers, type_of)
                    .map_err(D::Error::custom)?;
                Ok(Self { end, fingerprint })
            }
        }
    };
}

side!(Sender, "Sender", false);
side!(Receiver, "Receiver", true);

/// Iterator over the messages of a channel.
struct ChannelMessages<'a, T>(&'a Receiver<T>);

impl<T: Message> Iterator for ChannelMessages<'_, T> {
    type Item = Result<T, GetError>;

    #[track_caller]
    fn next(&mut self) -> Option<Self::Item> {
        match self.0.recv() {
            Err(GetError::Disconnected) => None,
            got => Some(got),
        }
    }
}
