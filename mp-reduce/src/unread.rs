//! Messages that could not be decoded for lack of descriptors.

use std::fmt;
use std::sync::Arc;

use mp_core::message::{Incoming, Message};
use mp_core::mutex::Mutex;
use mp_core::{Envelope, Error as CoreError};

use crate::error::{Error, Result};
use crate::pack::{TypeFingerprint, decode, mismatch, unpack_with};

/// Complete message that arrived in a process without enough spare descriptors for the descriptors of the
/// message. The message can be read after this process has closed some descriptors.
///
/// ```no_run
/// # fn example(unread: &mp_reduce::Unread, cache: Vec<std::fs::File>) -> mp_reduce::Result<()> {
/// use mp_reduce::Fd;
/// use std::fs::File;
///
/// // The error contains `unread`: `SpawnError::unread()`, `TaskError::unread()`.
/// drop(cache); // some files that this process can close
/// let Fd(file) = unread.read::<Fd<File>>()?;
/// # Ok(())
/// # }
/// ```
///
/// All clones refer to one message, which can be read once. The descriptors of the message stay open until it
/// is read or the last clone is dropped. The message belongs to this process, and is lost when this process
/// ends.
#[derive(Clone)]
pub struct Unread(Arc<Mutex<Option<UnreadContents>>>);

struct UnreadContents {
    inc: Box<Incoming>,
    /// Fingerprint of the message's type, or 0 if it is unknown.
    fingerprint: u64,
}

impl fmt::Debug for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_unread() { "Unread" } else { "Unread(read)" })
    }
}

impl Unread {
    /// Creates an `Unread` of a message that was opened. `fingerprint` is that of the message's type, or 0 if
    /// it is unknown.
    #[doc(hidden)]
    #[must_use]
    pub fn new(inc: Box<Incoming>, fingerprint: u64) -> Self {
        Self(Arc::new(Mutex::new(Some(UnreadContents { inc, fingerprint }))))
    }

    /// Creates an `Unread` of the message in an envelope.
    ///
    /// # Errors
    /// Returns an error if the envelope can't be opened.
    #[doc(hidden)]
    pub fn of(mut envelope: Envelope) -> Result<Self> {
        let mut inc = Box::<Incoming>::default();
        envelope.open(&mut inc)?;
        let fingerprint = inc.fingerprint();
        Ok(Self::new(inc, fingerprint))
    }

    /// Returns `true` if the message was not read yet.
    #[must_use]
    pub fn is_unread(&self) -> bool {
        self.0.lock().is_some()
    }

    /// Decodes the message as the type that was sent.
    ///
    /// # Errors
    /// Returns [`Error::Memory`] with [`OutOfDescriptors`](CoreError::OutOfDescriptors) while there are too
    /// few spare descriptors, and [`Error::TypeMismatch`] for another type. In both cases the message can be
    /// read later. Returns [`Error::Memory`] with [`Stale`](CoreError::Stale) if the message was read
    /// already. Other errors of [`unpack`](crate::unpack) contain the message's bytes.
    pub fn read<T: Message>(&self) -> Result<T> {
        let mut held = self.0.lock();
        let (sent, read) =
            (held.as_ref().map_or(0, |held| held.fingerprint), TypeFingerprint::<T>::new().get());
        if let Some(other) = held.as_ref().filter(|_| sent != 0 && sent != read) {
            return Err(mismatch::<T>(other.inc.rest().to_vec()));
        }
        claim(&mut held)?;
        let taken = held.take();
        // Unlocked first, because code of the user runs below.
        drop(held);
        taken.map_or_else(|| Err(gone()), |mut held| decode(&mut held.inc))
    }

    /// Opens all descriptors of the message, or none, so that reading the message can't fail for lack of
    /// descriptors.
    ///
    /// # Errors
    /// See [`read`](Self::read).
    #[doc(hidden)]
    pub fn claim(&self) -> Result<()> {
        claim(&mut self.0.lock())
    }

    /// Closes the descriptors that [`claim`](Self::claim) opened.
    #[doc(hidden)]
    pub fn unclaim(&self) {
        if let Some(held) = &mut *self.0.lock() {
            held.inc.unclaim();
        }
    }
}

fn claim(held: &mut Option<UnreadContents>) -> Result<()> {
    let held = held.as_mut().ok_or_else(gone)?;
    held.inc.claim().map_err(Error::from)
}

#[cold]
fn gone() -> Error {
    CoreError::Stale("this message was read already".into()).into()
}

/// Works like [`unpack`](crate::unpack). If this process has too few spare descriptors, the error contains
/// the unchanged message.
///
/// # Errors
/// See `unpack`.
#[doc(hidden)]
pub fn unpack_or_keep<T: Message>(mut envelope: Envelope) -> Result<T, (Error, Option<Envelope>)> {
    let claimed = match envelope.claim() {
        Ok(claimed) => claimed,
        Err(error @ CoreError::OutOfDescriptors(_)) => {
            return Err((error.into(), Some(envelope)));
        }
        Err(error) => return Err((error.into(), None)),
    };
    let open = |inc: &mut Incoming| {
        envelope.open(inc)?;
        if !claimed.is_empty() {
            inc.brings(claimed);
        }
        Ok(())
    };
    unpack_with(TypeFingerprint::new(), open).map_err(|error| (error, None))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pack;

    #[test]
    fn unread_message_is_read_once_as_its_type() {
        let unread = Unread::of(pack((7_u32, "text".to_string())).unwrap()).unwrap();
        let (same, text) = (unread.clone(), unread.read::<String>().unwrap_err());
        assert!(matches!(text, Error::TypeMismatch { .. }) && same.is_unread());
        assert_eq!(same.read::<(u32, String)>().unwrap(), (7, "text".into()));
        let error = unread.read::<(u32, String)>().unwrap_err();
        assert!(matches!(error, Error::Memory(CoreError::Stale(_))) && !unread.is_unread(), "{error}");
    }
}
