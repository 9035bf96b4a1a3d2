//! Messages that are encoded and not put yet.

use mp_core::user_code::drop_caught;
use mp_core::{Message, Wait};
use mp_reduce::{Error, LoanedParts, TypeFingerprint, pack_unless};

use crate::error::PutError;
use crate::raw::RawQueue;
use crate::raw::payload::{Payload, enveloped, put_error, small_payload};

/// Encoded message of a value, not put yet. The message owns the exclusive parts of the value until it is
/// [committed](Self::commit) or the parts are moved [back](Self::into_value). The caller keeps the rest of
/// the value.
#[derive(Debug)]
pub(crate) struct PendingMessage {
    pub(crate) payload: Payload,
    lent: LoanedParts,
}

impl PendingMessage {
    /// Encodes a value without waiting.
    ///
    /// # Errors
    /// Returns [`PutError::Full`] if the caller may wait for a free envelope, and otherwise the cause. The
    /// value is unchanged.
    #[inline]
    pub(crate) fn try_encode<T: Message>(
        raw: &RawQueue,
        fingerprint: TypeFingerprint<T>,
        value: &mut T,
    ) -> Result<Self, PutError<()>> {
        Self::encode_once(raw, fingerprint, value).map_err(|error| put_error(raw, error))
    }

    /// Encodes a value without waiting. After an error, [`encode_waiting`](Self::encode_waiting) can try
    /// again.
    #[inline]
    pub(crate) fn encode_once<T: Message>(
        raw: &RawQueue,
        fingerprint: TypeFingerprint<T>,
        value: &mut T,
    ) -> Result<Self, Error> {
        match Payload::from_small(raw, value) {
            Some(payload) => Ok(Self { payload, lent: LoanedParts::none() }),
            None => Self::encode_large(raw, fingerprint, value),
        }
    }

    /// Encodes a value without waiting, like [`encode_once`](Self::encode_once). For values for which
    /// [`Payload::from_small`] returns `None`.
    #[inline]
    pub(crate) fn encode_large<T: Message>(
        raw: &RawQueue,
        fingerprint: TypeFingerprint<T>,
        value: &mut T,
    ) -> Result<Self, Error> {
        let (payload, lent) = pack_unless(value, small_payload(raw), enveloped(raw, fingerprint.get()))?;
        Ok(Self { payload, lent })
    }

    /// Encodes a value for which [`Payload::from_small`] returns `None`. Waits if there are too many messages
    /// and the queue has a bound.
    #[inline]
    #[track_caller]
    pub(crate) fn encode<T: Message>(
        raw: &RawQueue,
        fingerprint: TypeFingerprint<T>,
        value: &mut T,
        wait: Wait,
    ) -> Result<Self, PutError<()>> {
        match Self::encode_large(raw, fingerprint, value) {
            Ok(unsent) => Ok(unsent),
            Err(e) => Self::encode_waiting(raw, fingerprint, value, e, wait),
        }
    }

    /// Encodes a value after a first attempt has failed with `error`. If there were too many messages and the
    /// queue has a bound, waits for an envelope. Otherwise returns the error.
    #[cold]
    #[inline(never)]
    #[track_caller]
    pub(crate) fn encode_waiting<T: Message>(
        raw: &RawQueue,
        fingerprint: TypeFingerprint<T>,
        value: &mut T,
        error: Error,
        wait: Wait,
    ) -> Result<Self, PutError<()>> {
        let refusal = put_error(raw, error);
        if !refusal.is_full() {
            return Err(refusal);
        }
        let mut attempt = || match Self::try_encode(raw, fingerprint, value) {
            Err(PutError::Full(())) => None,
            end => Some(end),
        };
        raw.wait_for_envelope(wait, &mut attempt)
    }

    /// Ends a put with the result `put`: drops the value if its message was put, and otherwise returns the
    /// value in the error.
    #[inline]
    pub(crate) fn end<T: Message>(self, value: T, put: Result<(), PutError<()>>) -> Result<(), PutError<T>> {
        match put {
            Ok(()) => {
                self.commit(value);
                Ok(())
            }
            Err(e) => Err(e.with(self.into_value(value))),
        }
    }

    /// Drops the value of a message that was put. A panic in its `Drop` is caught, since the put has
    /// succeeded.
    #[inline]
    pub(crate) fn commit<T>(self, value: T) {
        self.lent.commit();
        drop_caught(value);
    }

    /// Returns the unchanged value of a message that was not put.
    #[cold]
    pub(crate) fn into_value<T: Message>(self, mut value: T) -> T {
        if let Payload::Envelope(envelope) = self.payload {
            self.lent.restore(&mut value, envelope);
        }
        value
    }
}
