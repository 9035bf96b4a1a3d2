//! Messages outside of queues, in an envelope or, if they are small, without an envelope.

use mp_core::message::{Incoming, Outgoing, taken};
use mp_core::{Envelope, Message, Messages};
use mp_reduce::{Error, MessagePack, TypeFingerprint, unpack_as, unpack_into, unpack_plain};

use crate::error::PutError;
use crate::raw::RawQueue;
use crate::ring::SmallMessage;

/// Message that is not in a queue: not put yet, or already taken.
#[derive(Debug)]
pub(crate) enum Payload {
    Envelope(Envelope),
    Small(SmallMessage),
}

impl Payload {
    /// Encodes a small value that needs no envelope. Returns `None` for any other value, or if the queue
    /// stores no small messages at present.
    #[inline(always)]
    pub(crate) fn from_small<T: Message>(raw: &RawQueue, value: &T) -> Option<Self> {
        // Decided at compile time for most types.
        let few = value.to_small_bytes::<MessagePack>()?;
        raw.memory().accepts_small().then(|| Payload::Small(SmallMessage::of(few)))
    }

    /// Decodes a small value. Returns `None` if the message needs the general decoder.
    #[inline(always)]
    pub(crate) fn unpack_small<T: Message>(&self) -> Option<T> {
        match self {
            Payload::Small(small) => T::from_small_bytes::<MessagePack>(small.bytes()),
            Payload::Envelope(_) => None,
        }
    }

    /// Decodes the message, which was taken from a queue of `T`.
    #[inline]
    pub(crate) fn unpack<T: Message>(self, fingerprint: TypeFingerprint<T>) -> Result<T, Error> {
        match self {
            Payload::Envelope(envelope) => unpack_as(fingerprint, envelope),
            Payload::Small(small) => unpack_plain(small.bytes().as_slice()),
        }
    }

    /// Decodes a message that was just taken from the queue `raw`, which must be a queue of `T`. If this
    /// process can't open as many descriptors as the message contains, puts the message back into the queue.
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

    /// Decodes a message like [`unpack_from`](Self::unpack_from), into `slot`, which must be empty.
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

    /// Moves a small message into an envelope if the queue stores no small messages at present.
    ///
    /// # Errors
    /// Returns an error if there is no envelope. The message is then unchanged.
    pub(crate) fn fit_into(&mut self, raw: &RawQueue, fingerprint: u64) -> Result<(), PutError<()>> {
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

    /// Returns the number of bytes that the message adds to a queue with a bound of bytes.
    pub(crate) fn weight(&self) -> u64 {
        match self {
            Payload::Envelope(envelope) => envelope.weight(),
            Payload::Small(small) => small.bytes().len() as u64,
        }
    }
}

/// Decodes an envelope that may contain descriptors, like [`Payload::unpack_into`].
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

/// Converts an encoding error into the error of a put. Returns [`PutError::Full`] if the put may wait and
/// succeed later.
#[cold]
pub(crate) fn put_error(raw: &RawQueue, error: Error) -> PutError<()> {
    let Error::Memory(why) = &error else { return PutError::Failed { value: (), error } };
    if !why.is_out_of_space() {
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

/// Returns a function that makes a small message of the bytes of a message without attachments. It returns
/// `None` for too many bytes, or if the queue stores no small messages at present.
#[inline]
pub(crate) fn small_payload(raw: &RawQueue) -> impl FnOnce(&[u8]) -> Option<Payload> {
    |bytes| if raw.memory().accepts_small() { SmallMessage::new(bytes).map(Payload::Small) } else { None }
}

/// Returns a function that packs an encoded message like [`pack_envelope`].
#[inline]
pub(crate) fn enveloped(
    raw: &RawQueue,
    fingerprint: u64,
) -> impl FnOnce(&mut Outgoing) -> mp_core::Result<Payload> {
    move |out| pack_envelope(raw, out, fingerprint).map(Payload::Envelope)
}

/// Packs an encoded message into an envelope. If no other envelope is free, uses one of the envelopes that
/// are reserved for queues with few messages.
#[inline]
pub(crate) fn pack_envelope(
    raw: &RawQueue,
    out: &mut Outgoing,
    fingerprint: u64,
) -> mp_core::Result<Envelope> {
    Messages(raw.arena()).pack_for_queue(out, fingerprint, Some(raw.hold().block()))
}
