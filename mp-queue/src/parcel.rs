//! Messages on their way into a queue and out of it: in an envelope, or so small that they need none.

use mp_core::users::drop_caught;
use mp_core::{Envelope, Message};
use mp_reduce::{Error, TypeFingerprint, Written, pack_as, pack_unless, unpack_as, unpack_plain};

use crate::error::PutError;
use crate::raw::Raw;
use crate::ring::Small;

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

/// A value that is to be put into a queue.
#[derive(Debug)]
pub(crate) enum Letter<T> {
    /// The message is the value.
    Envelope(Envelope),
    /// The message, and the value until it is put.
    Small(Small, T),
}

impl<T: Message> Letter<T> {
    /// Writes a value, for this queue.
    #[inline]
    pub(crate) fn write(raw: &Raw, fingerprint: TypeFingerprint<T>, value: T) -> Result<Self, PutError<T>> {
        let written = if raw.memory().takes_small() {
            pack_unless(raw.arena(), fingerprint, value, Small::new)
        } else {
            pack_as(raw.arena(), fingerprint, value).map(Written::Envelope)
        };
        match written {
            Ok(Written::Envelope(envelope)) => Ok(Letter::Envelope(envelope)),
            Ok(Written::Plain(small, value)) => Ok(Letter::Small(small, value)),
            Err(e) => Err(PutError::Failed { value: e.value, error: e.error }),
        }
    }

    /// To put it.
    #[inline]
    pub(crate) fn item(&mut self) -> Item<'_> {
        match self {
            Letter::Envelope(envelope) => Item::Envelope(envelope),
            Letter::Small(small, _) => Item::Small(*small),
        }
    }

    /// The message alone; the value is in it.
    pub(crate) fn into_parcel(self) -> Parcel {
        match self {
            Letter::Envelope(envelope) => Parcel::Envelope(envelope),
            Letter::Small(small, value) => {
                drop_caught(value);
                Parcel::Small(small)
            }
        }
    }

    /// It was put: the value is dropped, and a panic of its `Drop` ends here, for the message is on its way.
    #[inline]
    pub(crate) fn sent(self) {
        if let Letter::Small(_, value) = self {
            drop_caught(value);
        }
    }

    /// The value, of a message that was not put.
    pub(crate) fn back(self, fingerprint: TypeFingerprint<T>) -> Result<T, Error> {
        match self {
            Letter::Envelope(envelope) => unpack_as(fingerprint, envelope),
            Letter::Small(_, value) => Ok(value),
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
