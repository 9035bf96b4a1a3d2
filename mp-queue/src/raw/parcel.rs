//! Messages on their way into a queue and out of it: in an envelope, or so small that they need none.

use mp_core::message::Outgoing;
use mp_core::users::drop_caught;
use mp_core::{Envelope, Message};
use mp_reduce::{Error, TypeFingerprint, Written, pack_unless, unpack_as, unpack_plain};

use crate::error::PutError;
use crate::raw::not_put;
use crate::raw::{Alone, PutRaw, Raw, Wait};
use crate::ring::Small;

/// Whether as many messages are on their way as the arena has room for.
pub(crate) fn is_out(error: &Error) -> bool {
    matches!(error, Error::Memory(e) if e.is_out_of_envelopes())
}

/// A message that was taken out of a queue.
#[derive(Debug)]
pub(crate) enum Parcel {
    Envelope(Envelope),
    Small(Small),
}

impl Parcel {
    /// Reads it; its queue is one of `T`s.
    #[inline]
    pub(crate) fn unpack<T: Message>(self, fingerprint: TypeFingerprint<T>) -> Result<T, Error> {
        match self {
            Parcel::Envelope(envelope) => unpack_as(fingerprint, envelope),
            Parcel::Small(small) => {
                let (bytes, len) = small.bytes();
                unpack_plain(&bytes[..len])
            }
        }
    }

    /// For a put.
    #[inline]
    pub(crate) fn item(&mut self) -> Item<'_> {
        match self {
            Parcel::Envelope(envelope) => Item::Envelope(envelope),
            Parcel::Small(small) => Item::Small(*small),
        }
    }
}

/// The message of a value, written for a queue and not put yet. Meanwhile the message has what is exclusive
/// in the value.
pub(crate) type Sealed = Written<Small>;

/// Writes a value for a queue.
///
/// # Errors
/// Why there is no message, for [`refused`] or [`write_later`]; the value is unchanged.
#[inline]
pub(crate) fn write<T: Message>(
    raw: &Raw,
    fingerprint: TypeFingerprint<T>,
    value: &mut T,
) -> Result<Sealed, Error> {
    let small = |bytes: &[u8]| if raw.memory().takes_small() { Small::new(bytes) } else { None };
    pack_unless(value, small, |out| seal(raw, out, fingerprint))
}

/// Writes a value that was refused, perhaps for lack of envelopes. Where too many messages are on their way, it waits,
/// if the queue has a bound.
///
/// # Errors
/// Why there is no message; the value is unchanged.
#[cold]
#[inline(never)]
pub(crate) fn write_later<T: Message>(
    raw: &Raw,
    fingerprint: TypeFingerprint<T>,
    value: &mut T,
    error: Error,
    wait: Wait,
    alone: impl Fn() -> Option<Alone>,
) -> Result<Sealed, PutError<()>> {
    let mut end = Err(refused(raw, error));
    if !matches!(end, Err(PutError::Full(()))) {
        return end;
    }
    let attempt = || {
        end = write(raw, fingerprint, value).map_err(|e| refused(raw, e));
        Ok(!matches!(end, Err(PutError::Full(()))))
    };
    let ended = raw.wait_for_envelope(wait, attempt, alone);
    match end {
        Err(PutError::Full(())) => Err(not_put((), ended.map(PutRaw::Not))),
        end => end,
    }
}

/// The error for a refusal: [`PutError::Full`] where a put waits.
#[cold]
fn refused(raw: &Raw, error: Error) -> PutError<()> {
    if !is_out(&error) {
        PutError::Failed { value: (), error }
    } else if raw.memory().refuses() {
        PutError::Closed(())
    } else if raw.memory().is_unbounded() {
        PutError::Failed { value: (), error: raw.too_many() }
    } else {
        PutError::Full(())
    }
}

/// For a put.
#[inline]
pub(crate) fn item(sealed: &mut Sealed) -> Item<'_> {
    match sealed {
        Written::Envelope(envelope, _) => Item::Envelope(envelope),
        Written::Plain(small) => Item::Small(*small),
    }
}

/// After a put: the value was put, too, and is dropped. A panic of its `Drop` ends here, for the message is
/// on its way.
#[inline]
pub(crate) fn sent<T>(sealed: Sealed, value: T) {
    if let Written::Envelope(_, lent) = sealed {
        lent.sent();
    }
    drop_caught(value);
}

/// When it was not put: the value is what it was.
#[cold]
pub(crate) fn back<T: Message>(sealed: Sealed, value: &mut T) {
    if let Written::Envelope(envelope, lent) = sealed {
        lent.back(value, envelope);
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
        Err(e) if e.is_out_of_envelopes() => of_share(raw, out, fingerprint.get()),
        sealed => sealed,
    }
}

#[cold]
#[inline(never)]
fn of_share(raw: &Raw, out: &mut Outgoing, fingerprint: u64) -> mp_core::Result<Envelope> {
    raw.arena().with_share(raw.hold(), || raw.arena().pack_for_queue(out, fingerprint))
}

/// A value that is put into a queue later than it is written: its message, and the value itself until that is
/// put. Then it is [`sent`](Self::sent).
#[derive(Debug)]
pub(crate) struct Letter<T> {
    value: T,
    sealed: Sealed,
}

impl<T: Message> Letter<T> {
    /// Writes a value; waits as a put does.
    ///
    /// # Errors
    /// Why there is no message, with the value unchanged.
    pub(crate) fn write(
        raw: &Raw,
        fingerprint: TypeFingerprint<T>,
        mut value: T,
        wait: Wait,
        alone: impl Fn() -> Option<Alone>,
    ) -> Result<Self, PutError<T>> {
        let written = match write(raw, fingerprint, &mut value) {
            Ok(sealed) => Ok(sealed),
            Err(e) => write_later(raw, fingerprint, &mut value, e, wait, alone),
        };
        Self::of(value, written)
    }

    /// As [`write`](Self::write), once: [`PutError::Full`] where that would wait.
    #[inline]
    pub(crate) fn attempt(
        raw: &Raw,
        fingerprint: TypeFingerprint<T>,
        mut value: T,
    ) -> Result<Self, PutError<T>> {
        let written = write(raw, fingerprint, &mut value).map_err(|e| refused(raw, e));
        Self::of(value, written)
    }

    #[inline]
    fn of(value: T, written: Result<Sealed, PutError<()>>) -> Result<Self, PutError<T>> {
        match written {
            Ok(sealed) => Ok(Self { value, sealed }),
            Err(e) => Err(e.map(|()| value)),
        }
    }

    /// For a put.
    #[inline]
    pub(crate) fn item(&mut self) -> Item<'_> {
        item(&mut self.sealed)
    }

    /// After a put.
    #[inline]
    pub(crate) fn sent(self) {
        sent(self.sealed, self.value);
    }

    /// The value, as it was, of a message that was not put.
    pub(crate) fn back(mut self) -> T {
        back(self.sealed, &mut self.value);
        self.value
    }
}

/// What a put publishes.
#[derive(Debug)]
pub(crate) enum Item<'a> {
    Envelope(&'a mut Envelope),
    Small(Small),
}

impl Item<'_> {
    /// What it counts where bytes are bounded. (In such queues no message is small.)
    pub(crate) fn weight(&self) -> u64 {
        match self {
            Item::Envelope(envelope) => envelope.weight(),
            Item::Small(small) => small.bytes().1 as u64,
        }
    }
}
