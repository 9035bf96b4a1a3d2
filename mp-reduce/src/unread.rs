//! Messages that arrived where no descriptors are to spare for those in them.

use std::fmt;
use std::sync::Arc;

use mp_core::message::{Incoming, Message};
use mp_core::mutex::Mutex;
use mp_core::{Envelope, Error as CoreError};

use crate::error::{Error, Result};
use crate::pack::{TypeFingerprint, decode, mismatch, unpack_with};

/// A message that arrived in a process that had no descriptors to spare for those in it: it is whole, and can be read when some were
/// closed.
///
/// ```no_run
/// # fn example(error: Box<dyn std::error::Error>, unread: &mp_reduce::Unread, cache: Vec<std::fs::File>) -> mp_reduce::Result<()> {
/// use mp_reduce::Fd;
/// use std::fs::File;
///
/// // `unread` is in the error: `SpawnError::unread()`, `TaskError::unread()`.
/// drop(cache); // some files that this process can do without
/// let Fd(file) = unread.read::<Fd<File>>()?;
/// # Ok(())
/// # }
/// ```
///
/// Clones are one message, which is read once. Its descriptors stay open until it is read, or the last clone is dropped; what is in it
/// belongs to this process, so that it ends with it.
#[derive(Clone)]
pub struct Unread(Arc<Mutex<Option<Held>>>);

struct Held {
    inc: Box<Incoming>,
    /// 0 if its sender has not said it.
    fingerprint: u64,
}

impl fmt::Debug for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_there() { "Unread" } else { "Unread(read)" })
    }
}

impl Unread {
    /// What is left of a message, of a type with this fingerprint; 0 if it is not known.
    #[doc(hidden)]
    #[must_use]
    pub fn new(inc: Box<Incoming>, fingerprint: u64) -> Self {
        Self(Arc::new(Mutex::new(Some(Held { inc, fingerprint }))))
    }

    /// A message in an envelope.
    ///
    /// # Errors
    /// Those of opening it.
    #[doc(hidden)]
    pub fn of(mut envelope: Envelope) -> Result<Self> {
        let mut inc = Box::<Incoming>::default();
        envelope.open(&mut inc)?;
        let fingerprint = inc.fingerprint();
        Ok(Self::new(inc, fingerprint))
    }

    /// Whether it was not read yet.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.0.lock().is_some()
    }

    /// Reads it, as the type that was sent.
    ///
    /// # Errors
    /// [`Error::Memory`] with [`OutOfDescriptors`](CoreError::OutOfDescriptors) while there are too few descriptors to spare still, and
    /// [`Error::TypeMismatch`] where it is of another type: then it stays, to be read later. Those of
    /// [`unpack`](crate::unpack), whose errors have its bytes; [`Stale`](CoreError::Stale) when it was read already.
    pub fn read<T: Message>(&self) -> Result<T> {
        let mut held = self.0.lock();
        let (sent, read) =
            (held.as_ref().map_or(0, |held| held.fingerprint), TypeFingerprint::<T>::new().get());
        if let Some(other) = held.as_ref().filter(|_| sent != 0 && sent != read) {
            return Err(mismatch::<T>(other.inc.rest().to_vec()));
        }
        claim(&mut held)?;
        let taken = held.take();
        // Code of the user runs behind this.
        drop(held);
        taken.map_or_else(|| Err(gone()), |mut held| decode(&mut held.inc))
    }

    /// Opens the descriptors in it, all or none, so that reading it fails for no lack of them.
    ///
    /// # Errors
    /// As for [`read`](Self::read).
    #[doc(hidden)]
    pub fn claim(&self) -> Result<()> {
        claim(&mut self.0.lock())
    }

    /// Closes what [`claim`](Self::claim) has opened.
    #[doc(hidden)]
    pub fn unclaim(&self) {
        if let Some(held) = &mut *self.0.lock() {
            held.inc.unclaim();
        }
    }
}

fn claim(held: &mut Option<Held>) -> Result<()> {
    let held = held.as_mut().ok_or_else(gone)?;
    held.inc.claim().map_err(Error::from)
}

#[cold]
fn gone() -> Error {
    CoreError::Stale("this message was read already".into()).into()
}

/// As [`unpack`](crate::unpack); where this process has no descriptors to spare for those in it, the message comes back beside the
/// error, as it was.
///
/// # Errors
/// As for `unpack`.
#[doc(hidden)]
pub fn unpack_or_keep<T: Message>(mut envelope: Envelope) -> Result<T, (Error, Option<Envelope>)> {
    let claimed = match envelope.claim() {
        Ok(claimed) => claimed,
        Err(error @ CoreError::OutOfDescriptors(_))
            if !mp_core::mutant!("locker.unread.arguments-dropped") =>
        {
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
    fn it_is_read_once_and_as_what_it_is() {
        let unread = Unread::of(pack((7_u32, "text".to_string())).unwrap()).unwrap();
        let (same, text) = (unread.clone(), unread.read::<String>().unwrap_err());
        assert!(matches!(text, Error::TypeMismatch { .. }) && same.is_there());
        assert_eq!(same.read::<(u32, String)>().unwrap(), (7, "text".into()));
        let error = unread.read::<(u32, String)>().unwrap_err();
        assert!(matches!(error, Error::Memory(CoreError::Stale(_))) && !unread.is_there(), "{error}");
    }
}
