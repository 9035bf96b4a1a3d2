//! Messages on their way into a queue and out of it: in an envelope, or so small that they need none.

use mp_core::message::{Incoming, Outgoing, taken};
use mp_core::user_code::drop_caught;
use mp_core::{Envelope, Message, Wait};
use mp_reduce::{
    Error, Lent, MessagePack, TypeFingerprint, pack_unless, unpack_as, unpack_into, unpack_plain,
};

use crate::error::PutError;
use crate::raw::Raw;
use crate::raw::waiting::Alone;
use crate::ring::Small;

/// A message that is in no queue: not yet, or not any more.
#[derive(Debug)]
pub(crate) enum Payload {
    Envelope(Envelope),
    Small(Small),
}

impl Payload {
    /// The message of a value of few bytes, where it needs no envelope.
    #[inline(always)]
    pub(crate) fn few<T: Message>(raw: &Raw, value: &T) -> Option<Self> {
        // Known when this is compiled, for most types.
        let few = value.to_few_bytes::<MessagePack>()?;
        raw.memory().takes_small().then(|| Payload::Small(Small::of(few)))
    }

    /// The value of few bytes that it is.
    #[inline(always)]
    pub(crate) fn unpack_few<T: Message>(&self) -> Option<T> {
        match self {
            Payload::Small(small) => T::from_few_bytes::<MessagePack>(small.bytes()),
            Payload::Envelope(_) => None,
        }
    }

    /// Reads it; its queue is one of `T`s.
    #[inline]
    pub(crate) fn unpack<T: Message>(self, fingerprint: TypeFingerprint<T>) -> Result<T, Error> {
        match self {
            Payload::Envelope(envelope) => unpack_as(fingerprint, envelope),
            Payload::Small(small) => unpack_plain(small.bytes().as_slice()),
        }
    }

    /// As [`unpack`](Self::unpack), when it was just taken out of this queue: it goes back there if this process may open too few
    /// descriptors for those in it.
    #[inline]
    pub(crate) fn unpack_of<T: Message>(
        mut self,
        raw: &Raw,
        fingerprint: TypeFingerprint<T>,
    ) -> Result<T, Error> {
        let mut slot = None;
        self.unpack_into(raw, fingerprint, &mut slot)?;
        Ok(taken(slot)?)
    }

    /// As [`unpack_of`](Self::unpack_of), into `slot`, which is empty.
    #[inline]
    pub(crate) fn unpack_into<T: Message>(
        &mut self,
        raw: &Raw,
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

    /// Goes into an envelope if it is small and this queue takes nothing small: it came out of another queue.
    ///
    /// # Errors
    /// When there is no envelope; it is unchanged.
    pub(crate) fn fit<T>(&mut self, raw: &Raw, fingerprint: TypeFingerprint<T>) -> Result<(), PutError<()>> {
        if let Payload::Small(small) = self
            && !raw.memory().takes_small()
        {
            let mut out = Outgoing::default();
            out.bytes().extend_from_slice(small.bytes().as_slice());
            let envelope = seal(raw, &mut out, fingerprint).map_err(|e| refused(raw, e.into()))?;
            *self = Payload::Envelope(envelope);
        }
        Ok(())
    }

    /// What it counts where bytes are bounded. (In such queues no message is small.)
    pub(crate) fn weight(&self) -> u64 {
        match self {
            Payload::Envelope(envelope) => envelope.weight(),
            Payload::Small(small) => small.bytes().len() as u64,
        }
    }
}

/// As [`Payload::unpack_into`], where there may be descriptors.
fn unpack_attached<T: Message>(
    raw: &Raw,
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

/// The message of a value, written for a queue and not put yet. Until it is [`sent`](Self::sent), or the value has it
/// [back](Self::back), it has what is exclusive in the value, which stays where it is.
#[derive(Debug)]
pub(crate) struct Unsent {
    pub(crate) payload: Payload,
    lent: Lent,
}

impl Unsent {
    /// Writes a value; waits as a put does.
    ///
    /// # Errors
    /// Why there is no message; the value is unchanged.
    #[inline]
    pub(crate) fn write<T: Message>(
        raw: &Raw,
        fingerprint: TypeFingerprint<T>,
        value: &mut T,
        wait: Wait,
        alone: impl Fn() -> Option<Alone>,
    ) -> Result<Self, PutError<()>> {
        match Self::of(raw, fingerprint, value) {
            Ok(unsent) => Ok(unsent),
            Err(error) => Self::write_later(raw, fingerprint, value, error, wait, alone),
        }
    }

    /// As [`write`](Self::write), once: [`PutError::Full`] where that would wait.
    #[inline]
    pub(crate) fn attempt<T: Message>(
        raw: &Raw,
        fingerprint: TypeFingerprint<T>,
        value: &mut T,
    ) -> Result<Self, PutError<()>> {
        Self::of(raw, fingerprint, value).map_err(|error| refused(raw, error))
    }

    /// Writes a value, at once; what is wrong is for [`write_later`](Self::write_later).
    #[inline]
    pub(crate) fn of<T: Message>(
        raw: &Raw,
        fingerprint: TypeFingerprint<T>,
        value: &mut T,
    ) -> Result<Self, Error> {
        if let Some(payload) = Payload::few(raw, value) {
            return Ok(Self { payload, lent: Lent::nothing() });
        }
        let small = |bytes: &[u8]| {
            if raw.memory().takes_small() { Small::new(bytes).map(Payload::Small) } else { None }
        };
        let (payload, lent) =
            pack_unless(value, small, |out| seal(raw, out, fingerprint).map(Payload::Envelope))?;
        Ok(Self { payload, lent })
    }

    /// Writes a value that was refused, perhaps for lack of envelopes. Where too many messages are on their way, it
    /// waits, if the queue has a bound.
    #[cold]
    #[inline(never)]
    pub(crate) fn write_later<T: Message>(
        raw: &Raw,
        fingerprint: TypeFingerprint<T>,
        value: &mut T,
        error: Error,
        wait: Wait,
        alone: impl Fn() -> Option<Alone>,
    ) -> Result<Self, PutError<()>> {
        let refusal = refused(raw, error);
        if !refusal.is_full() {
            return Err(refusal);
        }
        let attempt = || match Self::attempt(raw, fingerprint, value) {
            Err(PutError::Full(())) => None,
            end => Some(end),
        };
        raw.wait_for_envelope(wait, attempt, alone)
    }

    /// After a put: the value was put, too, and is dropped. A panic of its `Drop` ends here, for the message is on its
    /// way.
    #[inline]
    pub(crate) fn sent<T>(self, value: T) {
        self.lent.sent();
        drop_caught(value);
    }

    /// When it was not put: the value, as it was.
    #[cold]
    pub(crate) fn back<T: Message>(self, mut value: T) -> T {
        if let Payload::Envelope(envelope) = self.payload {
            self.lent.back(&mut value, envelope);
        }
        value
    }
}

/// The error for a refusal: [`PutError::Full`] where a put waits.
#[cold]
fn refused(raw: &Raw, error: Error) -> PutError<()> {
    let Error::Memory(why) = &error else { return PutError::Failed { value: (), error } };
    if !why.is_for_lack_of_room() {
        PutError::Failed { value: (), error }
    } else if raw.memory().refuses() {
        PutError::Closed(())
    } else if raw.memory().is_unbounded() {
        let error = if why.is_out_of_envelopes() { raw.too_many() } else { error };
        PutError::Failed { value: (), error }
    } else {
        PutError::Full(())
    }
}

/// The message in an envelope: also when too many messages are on their way, if the queue has few. No code of
/// the value runs in here, which could use the queue's share for another message.
#[inline]
pub(crate) fn seal<T>(
    raw: &Raw,
    out: &mut Outgoing,
    fingerprint: TypeFingerprint<T>,
) -> mp_core::Result<Envelope> {
    match raw.arena().pack_for_queue(out, fingerprint.get()) {
        Ok(envelope) => Ok(envelope),
        Err(e) if e.is_out_of_envelopes() => of_share(raw, out, fingerprint.get()),
        Err(e) => Err(e),
    }
}

#[cold]
#[inline(never)]
fn of_share(raw: &Raw, out: &mut Outgoing, fingerprint: u64) -> mp_core::Result<Envelope> {
    raw.arena().with_share(raw.hold(), || raw.arena().pack_for_queue(out, fingerprint))
}
