//! Ends of channels with retained messages: the implementation that [`watch`](crate::watch) and
//! [`broadcast`](crate::broadcast) share.

use std::fmt;

use mp_core::message::{Incoming, Outgoing};
use mp_core::sync::Ordering;
use mp_core::sync::shared::AtomicU64;
use mp_core::user_code::drop_caught;
use mp_core::waits::BlockingCall;
use mp_core::{Message, Wait};
use mp_reduce::{Error, TypeFingerprint, unpack_with};

use crate::error::{GetError, PutError};
use crate::queue::channel::{ChannelEnd, ends_for};
use crate::raw::RawQueue;
use crate::raw::handles::WaitPurpose;
use crate::raw::memory::pinned_read::RetainedRing;
use crate::raw::pace::Pace;
use crate::raw::payload::{Payload, pack_envelope};
use crate::raw::pending::PendingMessage;
use crate::raw::waiting::{WaitError, WaitSite};
use crate::ring::{Position, PutOutcome, Slot, SmallMessage};

/// End of a channel with retained messages, and the channel's ring.
pub(crate) struct RetainedEnd {
    end: ChannelEnd,
    retained: RetainedRing,
    /// Last process that had detached from the ring when this handle last collected the messages that dead
    /// readers had pinned, as a word. 0 if no process had detached. After another process has detached, the
    /// next send collects these messages again.
    collected: AtomicU64,
}

impl Clone for RetainedEnd {
    fn clone(&self) -> Self {
        Self::of(self.end.clone(), self.retained)
    }
}

impl fmt::Debug for RetainedEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.end.fmt(f)
    }
}

/// Result of sending a value.
pub(crate) enum SendOutcome<T> {
    /// The value was sent with this position.
    Done(Position),
    /// Nothing was sent, because the newest value is not at the expected position. Contains the unsent value.
    Superseded(T),
}

/// Message that a reader has found in the ring.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FoundMessage {
    /// Small message, copied out of its slot.
    Small(SmallMessage),
    /// Slot that contained the message when it was found, and the message's position.
    InSlot(Slot, Position),
}

impl RetainedEnd {
    fn of(end: ChannelEnd, retained: RetainedRing) -> Self {
        Self { end, retained, collected: AtomicU64::new(0) }
    }

    /// Creates a channel that keeps `keep` messages and returns the sender's and the receiver's end.
    pub(crate) fn create(keep: u32, type_of: (u64, &str)) -> Result<(Self, Self), Error> {
        let (sender, receiver) = ends_for(RawQueue::create_retained(keep, type_of)?)?;
        let retained = Self::retained_ring(&sender)?;
        Ok((Self::of(sender, retained), Self::of(receiver, retained)))
    }

    fn retained_ring(end: &ChannelEnd) -> mp_core::Result<RetainedRing> {
        let none = || {
            mp_core::Error::Malformed("the attachment is a queue, not a watch or broadcast channel".into())
        };
        end.raw().memory().retained().ok_or_else(none)
    }

    /// Takes a channel end out of the message that is being read.
    pub(crate) fn take(
        what: &'static str,
        attachments: (u32, u32),
        receivers: bool,
        type_of: (u64, &str),
    ) -> Result<Self, String> {
        let end = ChannelEnd::take(what, attachments, receivers, type_of)?;
        let retained = Self::retained_ring(&end).map_err(|e| e.to_string())?;
        Ok(Self::of(end, retained))
    }

    /// Attaches this end to the message that is being written.
    pub(crate) fn attach(&self, what: &'static str) -> mp_core::Result<(u32, u32)> {
        self.end.attach(what)
    }

    pub(crate) fn raw(&self) -> &RawQueue {
        self.end.raw()
    }

    /// Returns `true` if the other side has no handles left, neither in a process nor in a message in
    /// transit.
    pub(crate) fn is_peer_gone(&self) -> bool {
        self.raw().is_disconnected()
    }

    /// Returns the ring. Returns an error in a forked copy of the process, which must not access the ring.
    pub(crate) fn retained(&self) -> Result<&RetainedRing, Error> {
        self.raw().arena().me()?;
        Ok(&self.retained)
    }

    /// Publishes a value. With `after`, publishes only if the newest value has that position.
    pub(crate) fn send<T: Message>(
        &self,
        fingerprint: TypeFingerprint<T>,
        mut value: T,
        after: Option<Position>,
    ) -> Result<SendOutcome<T>, PutError<T>> {
        // Small values take this short path, as in `put_as`.
        if let Some(mut payload) = Payload::from_small(self.raw(), &value) {
            return match self.publish(&mut payload, after) {
                Ok(PutOutcome::Done(position)) => {
                    drop_caught(value);
                    Ok(SendOutcome::Done(position))
                }
                Ok(PutOutcome::Closed(())) => Ok(SendOutcome::Superseded(value)),
                Ok(PutOutcome::Full(())) => Err(PutError::Full(value)),
                Err(error) => Err(PutError::Failed { value, error: error.into() }),
            };
        }
        let mut unsent = match PendingMessage::encode_once(self.raw(), fingerprint, &mut value) {
            Ok(unsent) => unsent,
            Err(Error::Memory(e)) if e.is_out_of_envelopes() => {
                return Err(PutError::Full(value));
            }
            Err(error) => return Err(PutError::Failed { value, error }),
        };
        match self.publish(&mut unsent.payload, after) {
            Ok(PutOutcome::Done(position)) => {
                unsent.commit(value);
                Ok(SendOutcome::Done(position))
            }
            Ok(PutOutcome::Closed(())) => Ok(SendOutcome::Superseded(unsent.into_value(value))),
            Ok(PutOutcome::Full(())) => Err(PutError::Full(unsent.into_value(value))),
            Err(error) => Err(PutError::Failed { value: unsent.into_value(value), error: error.into() }),
        }
    }

    fn publish(&self, payload: &mut Payload, after: Option<Position>) -> mp_core::Result<PutOutcome<()>> {
        let gone = self.raw().memory().last_gone().map_or(0, |(gone, _)| gone.pack());
        let outcome = self.retained.publish(payload, after)?;
        if let PutOutcome::Done(_) = outcome {
            self.raw().memory().not_empty().notify_all();
            let died = self.collected.load(Ordering::Relaxed) != gone;
            if died {
                self.collected.store(gone, Ordering::Relaxed);
                // If this fails, a later sender collects them.
                _ = self.retained.collect_all();
            }
        }
        Ok(outcome)
    }

    /// Publishes a message that is already encoded. The caller must have checked that the message has the
    /// channel's type.
    ///
    /// # Errors
    /// Returns [`PutError::Full`] if the arena has no envelope left. The message is then unchanged.
    pub(crate) fn send_encoded<T: Message>(
        &self,
        fingerprint: TypeFingerprint<T>,
        out: &mut Outgoing,
    ) -> Result<(), PutError<()>> {
        self.retained().map_err(|error| PutError::Failed { value: (), error })?;
        let failed = |error: mp_core::Error| PutError::Failed { value: (), error: error.into() };
        let mut payload = match pack_envelope(self.raw(), out, fingerprint.get()) {
            Ok(envelope) => Payload::Envelope(envelope),
            Err(error) if error.is_out_of_envelopes() => return Err(PutError::Full(())),
            Err(error) => return Err(failed(error)),
        };
        self.publish(&mut payload, None).map(drop).map_err(failed)
    }

    /// Copies a small message out of its slot, and returns any other message unchanged. Returns `None` if the
    /// small message was replaced.
    fn small(&self, found: FoundMessage) -> Result<Option<FoundMessage>, Error> {
        Ok(match found {
            FoundMessage::InSlot(slot, position) if slot.envelope().is_none() => {
                self.retained()?.small(position).map(FoundMessage::Small)
            }
            found => Some(found),
        })
    }

    /// Reads a found message like [`read`](Self::read), without decoding it.
    pub(crate) fn read_encoded(
        &self,
        found: FoundMessage,
        done: impl FnOnce(),
    ) -> Result<Option<Outgoing>, Error> {
        let at = match self.small(found)? {
            None => return Ok(None),
            Some(FoundMessage::Small(small)) => {
                done();
                let mut out = Outgoing::default();
                out.bytes().extend_from_slice(small.bytes().as_slice());
                return Ok(Some(out));
            }
            Some(FoundMessage::InSlot(slot, position)) => (slot, position),
        };
        let mut incoming = Incoming::default();
        if !self.retained()?.read(at, &mut incoming)? {
            return Ok(None);
        }
        done();
        // Not `None`: no exclusive value was taken out of the message.
        Ok(Some(incoming.into_outgoing().unwrap_or_default()))
    }

    /// Reads and decodes a found message. Returns `None` if the message was replaced. Calls `done` after the
    /// bytes are copied, before any code of the value's type runs.
    #[inline]
    pub(crate) fn read<T: Message>(
        &self,
        fingerprint: TypeFingerprint<T>,
        found: FoundMessage,
        done: impl FnOnce(),
    ) -> Result<Option<T>, Error> {
        match self.small(found)? {
            None => Ok(None),
            Some(FoundMessage::Small(small)) => {
                done();
                let payload = Payload::Small(small);
                match payload.unpack_small() {
                    Some(value) => Ok(Some(value)),
                    None => payload.unpack(fingerprint).map(Some),
                }
            }
            Some(FoundMessage::InSlot(slot, position)) => {
                self.read_in_slot(fingerprint, (slot, position), done)
            }
        }
    }

    fn read_in_slot<T: Message>(
        &self,
        fingerprint: TypeFingerprint<T>,
        at: (Slot, Position),
        done: impl FnOnce(),
    ) -> Result<Option<T>, Error> {
        let retained = self.retained()?;
        let mut gone = false;
        let value = unpack_with(fingerprint, |inc: &mut Incoming| {
            if !retained.read(at, inc)? {
                gone = true;
                return Err(mp_core::Error::Stale("a message was replaced while it was read".into()));
            }
            // The message's descriptors are claimed before it counts as read, so a receiver that has no free
            // descriptors can read the message later.
            inc.claim()?;
            done();
            Ok(())
        });
        if gone { Ok(None) } else { value.map(Some) }
    }

    /// Waits until `attempt` returns a result. Returns an error if there are no senders left and `attempt`
    /// still returns `None`.
    #[track_caller]
    pub(crate) fn wait<R, E: From<WaitError>>(
        &self,
        (wait, call): (Wait, BlockingCall),
        attempt: impl Fn() -> Option<Result<R, E>>,
    ) -> Result<R, E> {
        let raw = self.raw();
        let pace = (self.retained.capacity() >= Pace::MIN_RETAINED).then_some(raw.get_pace());
        raw.attempt_until(wait, (raw.get_spin(), pace), WaitSite::for_message(raw, call), attempt)
    }

    /// Returns the result of `attempt`, for a future. If there are no senders left and `attempt` returns
    /// `None`, returns an error.
    pub(crate) fn poll<R, E: From<WaitError>>(
        &self,
        attempt: impl Fn() -> Option<Result<R, E>>,
    ) -> Option<Result<R, E>> {
        attempt().or_else(|| self.raw().end_if_gone(Some(WaitPurpose::Message), Wait::Never, attempt))
    }

    /// Waits until the other side has no handles left. Returns `false` if the time has expired before that.
    #[track_caller]
    pub(crate) fn wait_peer_gone(&self, wait: Wait) -> Result<bool, Error> {
        let raw = self.raw();
        let parking = raw.memory().not_full();
        let at = WaitSite { parking, purpose: None, call: BlockingCall::WatchClosed };
        let attempt = || match raw.arena().me() {
            Ok(_) => self.is_peer_gone().then_some(Ok(())),
            Err(e) => Some(Err(GetError::Failed(e.into()))),
        };
        match raw.attempt_until(wait, (raw.get_spin(), None), at, attempt) {
            Ok(()) => Ok(true),
            Err(GetError::Failed(e)) => Err(e),
            Err(GetError::Interrupted) => Err(mp_core::Error::Interrupted.into()),
            Err(_) => Ok(self.is_peer_gone()),
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

    fn ends(keep: u32) -> (RetainedEnd, RetainedEnd) {
        RetainedEnd::create(keep, (7, "u32")).unwrap()
    }

    fn send(sender: &RetainedEnd, n: u32) {
        assert!(matches!(sender.send(TypeFingerprint::new(), n, None), Ok(SendOutcome::Done(_))));
    }

    #[test]
    fn replaced_retained_message_is_not_read() {
        let (sender, receiver) = ends(1);
        let newest = || {
            let (slot, position) = receiver.retained().unwrap().newest().unwrap();
            FoundMessage::InSlot(slot, position)
        };
        let read = |found| receiver.read(TypeFingerprint::<u32>::new(), found, || {}).unwrap();
        send(&sender, 1);
        let first = newest();
        assert_eq!(read(first), Some(1));
        send(&sender, 2);
        assert_eq!((read(first), read(newest())), (None, Some(2)));
    }

    #[test]
    fn skipped_position_of_a_ring_has_no_message() {
        let (sender, receiver) = ends(1);
        send(&sender, 0);
        let ring = receiver.retained().unwrap();
        let next = ring.end().position;
        ring.skip_next();
        assert!(!ring.has_message(next));
        send(&sender, 1);
        assert!(ring.has_message(next));
    }

    /// Receiver that is written as a channel of `u32`, and read as a channel of another type with the same
    /// fingerprint.
    #[derive(Debug)]
    struct Misnamed(RetainedEnd);

    impl Serialize for Misnamed {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            self.0.attach("a test's channel").map_err(S::Error::custom)?.serialize(serializer)
        }
    }

    impl<'de> Deserialize<'de> for Misnamed {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            let attachments = Deserialize::deserialize(deserializer)?;
            let end = RetainedEnd::take("a test's channel", attachments, true, (7, "there::Count"));
            end.map(Self).map_err(D::Error::custom)
        }
    }

    #[test]
    fn channel_with_equal_fingerprint_is_refused_by_name() {
        let (_sender, receiver) = ends(1);
        let queue = crate::Queue::bounded(1).unwrap();
        queue.put(Misnamed(receiver)).unwrap();
        let error = queue.get().unwrap_err().to_string();
        assert!(error.contains("of u32 arrived where one of there::Count is expected"), "{error}");
    }

    /// The last sender sends a value and is dropped between the check for messages and the check for senders.
    #[test]
    fn retained_receiver_gets_last_message_before_the_end() {
        let (sender, receiver) = ends(4);
        let sender = RefCell::new(Some(sender));
        let attempt = || match sender.take() {
            Some(last) => {
                send(&last, 1);
                None
            }
            None => Some(Ok::<_, GetError>(())),
        };
        assert!(matches!(receiver.poll(attempt), Some(Ok(()))));
        assert!(matches!(receiver.poll(|| None::<Result<(), _>>), Some(Err(GetError::Disconnected))));
    }
}
