//! Messages on their way into a queue and out of it: in an envelope, or so small that they need none.

use mp_core::users::drop_caught;
use mp_core::{Envelope, Message};
use mp_reduce::{
    Error, Kept, PackError, TypeFingerprint, Written, pack_as, pack_unless, unpack_as, unpack_plain,
};

use crate::error::PutError;
use crate::raw::not_put;
use crate::raw::{Alone, PutRaw, Raw, Wait};
use crate::ring::Small;

/// Whether as many messages are on their way as can be.
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

    /// To put it.
    #[inline]
    pub(crate) fn item(&mut self) -> Item<'_> {
        match self {
            Parcel::Envelope(envelope) => Item::Envelope(envelope),
            Parcel::Small(small) => Item::Small(*small),
        }
    }
}

/// A value that is to be put into a queue: its message, and the value itself until that is put. Then it is [`sent`](Self::sent).
#[derive(Debug)]
pub(crate) enum Letter<T> {
    Envelope(Envelope, Kept<T>),
    Small(Small, T),
}

impl<T: Message> Letter<T> {
    /// Writes a value, for this queue. Where too many messages are on their way, it waits, if the queue has a bound.
    #[inline]
    pub(crate) fn write(
        raw: &Raw,
        fingerprint: TypeFingerprint<T>,
        value: T,
        wait: Wait,
        alone: impl Fn() -> Option<Alone>,
    ) -> Result<Self, PutError<T>> {
        match Self::pack(raw, fingerprint, value) {
            Ok(letter) => Ok(letter),
            Err(e) => Self::write_later(raw, fingerprint, e, wait, alone),
        }
    }

    /// It was refused: maybe only for now.
    #[cold]
    #[inline(never)]
    fn write_later(
        raw: &Raw,
        fingerprint: TypeFingerprint<T>,
        refused: PackError<T>,
        wait: Wait,
        alone: impl Fn() -> Option<Alone>,
    ) -> Result<Self, PutError<T>> {
        match Self::refused(raw, fingerprint, refused) {
            Err(PutError::Full(value)) => Self::wait(raw, fingerprint, value, wait, alone),
            end => end,
        }
    }

    #[cold]
    fn wait(
        raw: &Raw,
        fingerprint: TypeFingerprint<T>,
        value: T,
        wait: Wait,
        alone: impl Fn() -> Option<Alone>,
    ) -> Result<Self, PutError<T>> {
        let mut end = Some(Err(PutError::Full(value)));
        let attempt = || {
            if let Some(Err(PutError::Full(value))) = end.take_if(|end| matches!(end, Err(PutError::Full(_))))
            {
                end = Some(Self::attempt(raw, fingerprint, value));
            }
            Ok(!matches!(end, Some(Err(PutError::Full(_)))))
        };
        let ended = raw.wait_for_envelope(wait, attempt, alone);
        match end {
            Some(Err(PutError::Full(value))) => Err(not_put(value, ended.map(PutRaw::Not))),
            Some(end) => end,
            None => unreachable!("each attempt ends with the message or the value"),
        }
    }

    /// As [`write`](Self::write), once: [`PutError::Full`] where it would wait.
    #[inline]
    pub(crate) fn attempt(raw: &Raw, fingerprint: TypeFingerprint<T>, value: T) -> Result<Self, PutError<T>> {
        match Self::pack(raw, fingerprint, value) {
            Ok(letter) => Ok(letter),
            Err(e) => Self::refused(raw, fingerprint, e),
        }
    }

    #[cold]
    fn refused(raw: &Raw, fingerprint: TypeFingerprint<T>, e: PackError<T>) -> Result<Self, PutError<T>> {
        if is_out(&e.error) {
            return Self::of_share(raw, fingerprint, e.value);
        }
        Err(PutError::Failed { value: e.value, error: e.error })
    }

    /// Too many messages are on their way, but a queue that has few has its share.
    #[cold]
    fn of_share(raw: &Raw, fingerprint: TypeFingerprint<T>, value: T) -> Result<Self, PutError<T>> {
        match raw.arena().with_share(raw.hold(), || Self::pack(raw, fingerprint, value)) {
            Ok(letter) => Ok(letter),
            Err(PackError { value, error }) if is_out(&error) => Err(if raw.memory().refuses() {
                PutError::Closed(value)
            } else if raw.memory().is_unbounded() {
                PutError::Failed { value, error: raw.too_many() }
            } else {
                PutError::Full(value)
            }),
            Err(e) => Err(PutError::Failed { value: e.value, error: e.error }),
        }
    }

    #[inline]
    fn pack(raw: &Raw, fingerprint: TypeFingerprint<T>, value: T) -> Result<Self, PackError<T>> {
        let written = if raw.memory().takes_small() {
            pack_unless(raw.arena(), fingerprint, value, Small::new)
        } else {
            pack_as(raw.arena(), fingerprint, value).map(|(envelope, kept)| Written::Envelope(envelope, kept))
        };
        Ok(match written? {
            Written::Envelope(envelope, kept) => Letter::Envelope(envelope, kept),
            Written::Plain(small, value) => Letter::Small(small, value),
        })
    }

    /// To put it.
    #[inline]
    pub(crate) fn item(&mut self) -> Item<'_> {
        match self {
            Letter::Envelope(envelope, _) => Item::Envelope(envelope),
            Letter::Small(small, _) => Item::Small(*small),
        }
    }

    /// It was put: the value is dropped, and a panic of its `Drop` ends here, for the message is on its way.
    #[inline]
    pub(crate) fn sent(self) {
        match self {
            Letter::Envelope(_, kept) => kept.sent(),
            Letter::Small(_, value) => drop_caught(value),
        }
    }

    /// The value, as it was, of a message that was not put.
    pub(crate) fn back(self) -> T {
        match self {
            Letter::Envelope(envelope, kept) => kept.back(envelope),
            Letter::Small(_, value) => value,
        }
    }
}

/// What a ring is given.
#[derive(Debug)]
pub(crate) enum Item<'a> {
    Envelope(&'a mut Envelope),
    Small(Small),
}

impl Item<'_> {
    /// What it counts for where bytes are counted. (In such queues nothing is small.)
    pub(crate) fn weight(&self) -> u64 {
        match self {
            Item::Envelope(envelope) => envelope.weight(),
            Item::Small(small) => small.bytes().1 as u64,
        }
    }
}
