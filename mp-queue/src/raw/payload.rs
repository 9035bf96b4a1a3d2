//! Messages outside of queues: in an envelope, or small enough to need none.

use mp_core::message::{Incoming, Outgoing, taken};
use mp_core::user_code::drop_caught;
use mp_core::{Envelope, Message, Wait};
use mp_reduce::{
    Error, LoanedParts, MessagePack, TypeFingerprint, pack_unless, unpack_as, unpack_into, unpack_plain,
};

use crate::error::PutError;
use crate::raw::RawQueue;
use crate::raw::waiting::PeerGone;
use crate::ring::SmallMessage;

/// A message that is not in a queue: not yet put, or already taken.
#[derive(Debug)]
pub(crate) enum Payload {
    Envelope(Envelope),
    Small(SmallMessage),
}

impl Payload {
    /// Returns the message of a small value that needs no envelope.
    #[inline(always)]
    pub(crate) fn from_small<T: Message>(raw: &RawQueue, value: &T) -> Option<Self> {
        // Known at compile time for most types.
        let few = value.to_few_bytes::<MessagePack>()?;
        raw.memory().accepts_small().then(|| Payload::Small(SmallMessage::of(few)))
    }

    /// Decodes a small value.
    #[inline(always)]
    pub(crate) fn unpack_small<T: Message>(&self) -> Option<T> {
        match self {
            Payload::Small(small) => T::from_few_bytes::<MessagePack>(small.bytes()),
            Payload::Envelope(_) => None,
        }
    }

    /// Decodes the message. Its queue must be a queue of `T`.
    #[inline]
    pub(crate) fn unpack<T: Message>(self, fingerprint: TypeFingerprint<T>) -> Result<T, Error> {
        match self {
            Payload::Envelope(envelope) => unpack_as(fingerprint, envelope),
            Payload::Small(small) => unpack_plain(small.bytes().as_slice()),
        }
    }

    /// Decodes a message that was just taken out of this queue: see [`unpack`](Self::unpack). If this process
    /// can't open enough descriptors for those in the message, the message is put back into the queue.
    #[inline]
    pub(crate) fn unpack_from<T: Message>(
        mut self,
        raw: &RawQueue,
        fingerprint: TypeFingerprint<T>,
    ) -> Result<T, Error> {
        let mut slot = None;
        self.unpack_into(raw, fingerprint, &mut slot)?;
        Ok(taken(slot)?)
    }

    /// Like [`unpack_of`](Self::unpack_from), into `slot`, which must be empty.
    #[inline]
    pub(crate) fn unpack_into<T: Message>(
        &mut self,
        raw: &RawQueue,
        fingerprint: TypeFingerprint<T>,
        slot: &mut Option<T>,
    ) -> Result<(), Error> {
        match self {
            Payload::Envelope(envelope) if T::READ_LATER || !envelope.has_attachments() => {
                unpack_into(fingerprint, |inc| envelope.open(inc), slot)
            }
            Payload::Envelope(envelope) => unpack_attached(raw, fingerprint, envelope, slot),
            Payload::Small(small) => {
                *slot = Some(unpack_plain(small.bytes().as_slice())?);
                Ok(())
            }
        }
    }

    /// Moves a small message of another queue into an envelope if this queue does not store small messages.
    ///
    /// # Errors
    /// Returns an error if there is no envelope. The message is then unchanged.
    pub(crate) fn fit_into<T>(
        &mut self,
        raw: &RawQueue,
        fingerprint: TypeFingerprint<T>,
    ) -> Result<(), PutError<()>> {
        if let Payload::Small(small) = self
            && !raw.memory().accepts_small()
        {
            let mut out = Outgoing::default();
            out.bytes().extend_from_slice(small.bytes().as_slice());
            let envelope = pack_envelope(raw, &mut out, fingerprint).map_err(|e| put_error(raw, e.into()))?;
            *self = Payload::Envelope(envelope);
        }
        Ok(())
    }

    /// Returns the number of bytes that the message counts in a queue with a bound of bytes, where no message
    /// is small.
    pub(crate) fn weight(&self) -> u64 {
        match self {
            Payload::Envelope(envelope) => envelope.weight(),
            Payload::Small(small) => small.bytes().len() as u64,
        }
    }
}

/// Like [`Payload::unpack_into`], for a message that may contain descriptors.
fn unpack_attached<T: Message>(
    raw: &RawQueue,
    fingerprint: TypeFingerprint<T>,
    envelope: &mut Envelope,
    slot: &mut Option<T>,
) -> Result<(), Error> {
    match envelope.claim() {
        Ok(none) if none.is_empty() => unpack_into(fingerprint, |inc| envelope.open(inc), slot),
        Ok(claimed) => {
            let open = |inc: &mut Incoming| {
                envelope.open(inc)?;
                inc.brings(claimed);
                Ok(())
            };
            unpack_into(fingerprint, open, slot)
        }
        Err(error @ mp_core::Error::OutOfDescriptors(_)) => {
            raw.memory().put_back(envelope)?;
            Err(error.into())
        }
        Err(error) => Err(error.into()),
    }
}

/// The message of a value, encoded for a queue and not yet put. It owns the exclusive parts of the value
/// until it is [committed](Self::commit) or moved [back](Self::into_value). The value itself stays in place.
#[derive(Debug)]
pub(crate) struct PendingMessage {
    pub(crate) payload: Payload,
    lent: LoanedParts,
}

impl PendingMessage {
    /// Encodes a value. Waits like a put.
    ///
    /// # Errors
    /// Returns the cause if the value could not be encoded. The value is unchanged.
    #[inline]
    pub(crate) fn encode<T: Message>(
        raw: &RawQueue,
        fingerprint: TypeFingerprint<T>,
        value: &mut T,
        wait: Wait,
        peer_gone: impl Fn() -> Option<PeerGone>,
    ) -> Result<Self, PutError<()>> {
        match Self::encode_once(raw, fingerprint, value) {
            Ok(unsent) => Ok(unsent),
            Err(error) => Self::encode_waiting(raw, fingerprint, value, error, wait, peer_gone),
        }
    }

    /// Like [`encode`](Self::encode), without waiting: returns [`PutError::Full`] instead.
    #[inline]
    pub(crate) fn try_encode<T: Message>(
        raw: &RawQueue,
        fingerprint: TypeFingerprint<T>,
        value: &mut T,
    ) -> Result<Self, PutError<()>> {
        Self::encode_once(raw, fingerprint, value).map_err(|error| put_error(raw, error))
    }

    /// Encodes a value without waiting. Pass an error to [`encode_waiting`](Self::encode_waiting).
    #[inline]
    pub(crate) fn encode_once<T: Message>(
        raw: &RawQueue,
        fingerprint: TypeFingerprint<T>,
        value: &mut T,
    ) -> Result<Self, Error> {
        if let Some(payload) = Payload::from_small(raw, value) {
            return Ok(Self { payload, lent: LoanedParts::none() });
        }
        let small = |bytes: &[u8]| {
            if raw.memory().accepts_small() { SmallMessage::new(bytes).map(Payload::Small) } else { None }
        };
        let (payload, lent) =
            pack_unless(value, small, |out| pack_envelope(raw, out, fingerprint).map(Payload::Envelope))?;
        Ok(Self { payload, lent })
    }

    /// Encodes a value whose first attempt failed, perhaps for lack of envelopes. If there are too many
    /// messages and the queue has a bound, it waits.
    #[cold]
    #[inline(never)]
    pub(crate) fn encode_waiting<T: Message>(
        raw: &RawQueue,
        fingerprint: TypeFingerprint<T>,
        value: &mut T,
        error: Error,
        wait: Wait,
        peer_gone: impl Fn() -> Option<PeerGone>,
    ) -> Result<Self, PutError<()>> {
        let refusal = put_error(raw, error);
        if !refusal.is_full() {
            return Err(refusal);
        }
        let attempt = || match Self::try_encode(raw, fingerprint, value) {
            Err(PutError::Full(())) => None,
            end => Some(end),
        };
        raw.wait_for_envelope(wait, attempt, peer_gone)
    }

    /// Drops the value after its message was put. A panic in its `Drop` is caught, since the message was
    /// sent.
    #[inline]
    pub(crate) fn commit<T>(self, value: T) {
        self.lent.commit();
        drop_caught(value);
    }

    /// Returns the value, unchanged, after its message was not put.
    #[cold]
    pub(crate) fn into_value<T: Message>(self, mut value: T) -> T {
        if let Payload::Envelope(envelope) = self.payload {
            self.lent.restore(&mut value, envelope);
        }
        value
    }
}

/// Converts an encoding error: [`PutError::Full`] if a put waits in this case.
#[cold]
fn put_error(raw: &RawQueue, error: Error) -> PutError<()> {
    let Error::Memory(why) = &error else { return PutError::Failed { value: (), error } };
    if !why.is_for_lack_of_room() {
        PutError::Failed { value: (), error }
    } else if raw.memory().is_put_closed() {
        PutError::Closed(())
    } else if raw.memory().is_unbounded() {
        let error = if why.is_out_of_envelopes() { raw.too_many() } else { error };
        PutError::Failed { value: (), error }
    } else {
        PutError::Full(())
    }
}

/// Encodes the message into an envelope. If there are too many messages, a queue with few messages uses its
/// reserved share. No code of the value runs here, so it can't use the share for another message.
#[inline]
pub(crate) fn pack_envelope<T>(
    raw: &RawQueue,
    out: &mut Outgoing,
    fingerprint: TypeFingerprint<T>,
) -> mp_core::Result<Envelope> {
    match raw.arena().pack_for_queue(out, fingerprint.get()) {
        Ok(envelope) => Ok(envelope),
        Err(e) if e.is_out_of_envelopes() => pack_from_reserve(raw, out, fingerprint.get()),
        Err(e) => Err(e),
    }
}

#[cold]
#[inline(never)]
fn pack_from_reserve(raw: &RawQueue, out: &mut Outgoing, fingerprint: u64) -> mp_core::Result<Envelope> {
    raw.arena().with_share(raw.hold(), || raw.arena().pack_for_queue(out, fingerprint))
}
