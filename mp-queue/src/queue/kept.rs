//! Ends of channels whose messages are not taken, shared by [`watch`](crate::watch) and
//! [`broadcast`](crate::broadcast).

use std::fmt;

use mp_core::message::Incoming;
use mp_core::sync::Ordering;
use mp_core::sync::shared::AtomicU64;
use mp_core::waits::Call;
use mp_core::{Message, Parking, Wait};
use mp_reduce::{Error, TypeFingerprint, unpack_with};

use crate::error::{GetError, PutError};
use crate::queue::channel::{End, ends_of};
use crate::raw::Raw;
use crate::raw::memory::kept::{Kept, Read};
use crate::raw::payload::Unsent;
use crate::raw::waiting::{At, Unmet};
use crate::ring::{PutEnd, Slot, Ticket};

/// Side of the channel, and its ring.
pub(crate) struct KeptEnd {
    end: End,
    kept: Kept,
    /// Process that had left last when this handle last released the pins of dead readers. 0 means none.
    collected: AtomicU64,
}

impl Clone for KeptEnd {
    fn clone(&self) -> Self {
        Self::of(self.end.clone(), self.kept)
    }
}

/// Methods for names, of both sides of a channel with kept ends.
macro_rules! named {
    ($($side:ident)*) => {$(
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
pub(crate) use named;

impl fmt::Debug for KeptEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.end.fmt(f)
    }
}

/// Result of sending a value.
pub(crate) enum Sent<T> {
    /// The value was sent with this ticket.
    Done(Ticket),
    /// Another value has become the newest. Contains the value that was not sent.
    Overtaken(T),
}

impl KeptEnd {
    fn of(end: End, kept: Kept) -> Self {
        Self { end, kept, collected: AtomicU64::new(0) }
    }

    /// Creates a channel that keeps `keep` messages and returns the sender's and the receiver's end.
    pub(crate) fn ends(keep: u32, type_of: (u64, &str)) -> Result<(Self, Self), Error> {
        let (sender, receiver) = ends_of(Raw::create_kept(keep, type_of)?)?;
        let kept = Self::kept_of(&sender)?;
        Ok((Self::of(sender, kept), Self::of(receiver, kept)))
    }

    fn kept_of(end: &End) -> mp_core::Result<Kept> {
        let none = || mp_core::Error::Malformed("the attachment is a queue whose messages are taken".into());
        end.raw().memory().kept().ok_or_else(none)
    }

    /// Takes an end out of the message that is being read.
    pub(crate) fn take(
        what: &'static str,
        attachments: (u32, u32),
        receivers: bool,
        type_of: (u64, &str),
    ) -> Result<Self, String> {
        let end = End::take(what, attachments, receivers, type_of)?;
        let kept = Self::kept_of(&end).map_err(|e| e.to_string())?;
        Ok(Self::of(end, kept))
    }

    /// Attaches this end to the message that is being written.
    pub(crate) fn attach(&self, what: &'static str) -> mp_core::Result<(u32, u32)> {
        self.end.attach(what)
    }

    pub(crate) fn raw(&self) -> &Raw {
        self.end.raw()
    }

    /// Returns `true` if no process and no message has a handle of the other side.
    pub(crate) fn is_alone(&self) -> bool {
        self.end.alone().is_some()
    }

    /// Returns the ring, or an error in a forked copy of the process, which must not access it.
    pub(crate) fn kept(&self) -> Result<&Kept, Error> {
        self.raw().arena().me()?;
        Ok(&self.kept)
    }

    /// Returns the wait point of receivers.
    pub(crate) fn news(&self) -> Parking {
        self.kept.memory().not_empty()
    }

    /// Returns the wait point of senders.
    pub(crate) fn departures(&self) -> Parking {
        self.kept.memory().not_full()
    }

    /// Publishes a value. With `after`, only if the newest value has this ticket.
    pub(crate) fn send<T: Message>(
        &self,
        fingerprint: TypeFingerprint<T>,
        mut value: T,
        after: Option<Ticket>,
    ) -> Result<Sent<T>, PutError<T>> {
        let mut unsent = match Unsent::of(self.raw(), fingerprint, &mut value) {
            Ok(unsent) => unsent,
            Err(Error::Memory(e)) if e.is_out_of_envelopes() => {
                return Err(PutError::Full(value));
            }
            Err(error) => return Err(PutError::Failed { value, error }),
        };
        let gone = self.kept.memory().last_gone().map_or(0, |(gone, _)| gone.pack());
        match self.kept.publish(&mut unsent.payload, after) {
            Ok(PutEnd::Done(ticket)) => {
                self.news().notify_all();
                unsent.sent(value);
                let died = self.collected.swap(gone, Ordering::Relaxed) != gone;
                if died {
                    // If this fails, the next sender does it.
                    _ = self.kept.collect_all();
                }
                Ok(Sent::Done(ticket))
            }
            Ok(PutEnd::Closed(())) => Ok(Sent::Overtaken(unsent.back(value))),
            Ok(PutEnd::Full(())) => Err(PutError::Full(unsent.back(value))),
            Err(error) => Err(PutError::Failed { value: unsent.back(value), error: error.into() }),
        }
    }

    /// Reads the message that was found at `at`. Returns `None` if the message was replaced. `done` is called
    /// after the copy, before any code of the value runs.
    pub(crate) fn read<T: Message>(
        &self,
        fingerprint: TypeFingerprint<T>,
        at: (Slot, Ticket),
        done: impl FnOnce(),
    ) -> Result<Option<T>, Error> {
        let kept = self.kept()?;
        let mut gone = false;
        let value = unpack_with(fingerprint, |inc: &mut Incoming| match kept.read(at, inc)? {
            Read::Done => {
                // Claim before the message counts as read: a receiver that has no free descriptors now can
                // then read it later.
                inc.claim()?;
                done();
                Ok(())
            }
            Read::Gone => {
                gone = true;
                Err(mp_core::Error::Stale("a message was replaced while it was read".into()))
            }
            Read::Busy => Err(kept.is_busy()),
        });
        if gone { Ok(None) } else { value.map(Some) }
    }

    /// Waits until `attempt` returns a result or no sender is left. Messages that were sent before the end
    /// come first.
    pub(crate) fn wait<R, E: From<Unmet>>(
        &self,
        (wait, call): (Wait, Call),
        attempt: impl Fn() -> Option<Result<R, E>>,
        is_late: impl Fn(&E) -> bool,
    ) -> Result<R, E> {
        let raw = self.raw();
        let at = At { parking: self.news(), what: None, call };
        match raw.within(wait, (raw.getting(), None), at, &attempt, || self.end.alone()) {
            Err(late) if is_late(&late) => match self.end.alone() {
                None => Err(late),
                Some(alone) => attempt().unwrap_or_else(|| Err(Unmet::Alone(alone).into())),
            },
            end => end,
        }
    }

    /// Returns the result of `attempt`, or an error if no sender is left, for a future.
    pub(crate) fn look<R, E: From<Unmet>>(
        &self,
        attempt: impl Fn() -> Option<Result<R, E>>,
    ) -> Option<Result<R, E>> {
        attempt().or_else(|| {
            let alone = self.end.alone()?;
            // The senders may have sent messages before they disconnected.
            Some(attempt().unwrap_or_else(|| Err(Unmet::Alone(alone).into())))
        })
    }

    /// Waits until the other side is gone. Returns `true` if it is.
    pub(crate) fn wait_alone(&self, wait: Wait) -> Result<bool, Error> {
        let raw = self.raw();
        let at = At { parking: self.departures(), what: None, call: Call::WatchClosed };
        let attempt = || match raw.arena().me() {
            Ok(_) => self.end.alone().map(|_| Ok(())),
            Err(e) => Some(Err(GetError::Failed(e.into()))),
        };
        match raw.within(wait, (raw.getting(), None), at, attempt, || None) {
            Ok(()) => Ok(true),
            Err(GetError::Failed(e)) => Err(e),
            Err(GetError::Interrupted) => Err(mp_core::Error::Interrupted.into()),
            Err(_) => Ok(self.is_alone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use serde::de::Error as _;
    use serde::ser::Error as _;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::*;

    fn ends(keep: u32) -> (KeptEnd, KeptEnd) {
        KeptEnd::ends(keep, (7, "u32")).unwrap()
    }

    fn send(sender: &KeptEnd, n: u32) {
        assert!(matches!(sender.send(TypeFingerprint::new(), n, None), Ok(Sent::Done(_))));
    }

    #[test]
    fn what_was_replaced_before_it_was_read_is_not_there_any_more() {
        let (sender, receiver) = ends(1);
        let newest = || receiver.kept().unwrap().newest().unwrap();
        let read = |at| receiver.read(TypeFingerprint::<u32>::new(), at, || {}).unwrap();
        send(&sender, 1);
        let first = newest();
        assert_eq!(read(first), Some(1));
        send(&sender, 2);
        assert_eq!((read(first), read(newest())), (None, Some(2)));
    }

    /// Written as a channel of `u32`, and read as a channel of a type whose name has the same hash.
    #[derive(Debug)]
    struct Misnamed(KeptEnd);

    impl Serialize for Misnamed {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            self.0.attach("a test's channel").map_err(S::Error::custom)?.serialize(serializer)
        }
    }

    impl<'de> Deserialize<'de> for Misnamed {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            let attachments = Deserialize::deserialize(deserializer)?;
            let end = KeptEnd::take("a test's channel", attachments, true, (7, "there::Count"));
            end.map(Self).map_err(D::Error::custom)
        }
    }

    #[test]
    fn a_channel_of_a_type_that_has_the_fingerprint_and_another_name_is_refused() {
        let (_sender, receiver) = ends(1);
        let queue = crate::Queue::bounded(1).unwrap();
        queue.put(Misnamed(receiver)).unwrap();
        let error = queue.get().unwrap_err().to_string();
        assert!(error.contains("of u32 arrived where one of there::Count is expected"), "{error}");
    }

    /// The value is sent and the last sender is dropped between the checks for messages and for senders.
    #[test]
    fn what_the_last_sender_sent_comes_before_its_end() {
        let (sender, receiver) = ends(4);
        let sender = RefCell::new(Some(sender));
        let attempt = || match sender.take() {
            Some(last) => {
                send(&last, 1);
                None
            }
            None => Some(Ok::<_, GetError>(())),
        };
        assert!(matches!(receiver.look(attempt), Some(Ok(()))));
        assert!(matches!(receiver.look(|| None::<Result<(), _>>), Some(Err(GetError::Disconnected))));
    }
}
