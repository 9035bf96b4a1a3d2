//! Values for processes that are invited into the arena.

use mp_core::message::Message;
use mp_core::user_code::drop_caught;
use mp_core::{Acceptance, Arena, Envelope};

use crate::error::{Error, Result};
use crate::pack::{TypeFingerprint, pack_as, unpack};

/// Packs a value, and hands its envelope over.
///
/// # Errors
/// When it can't be packed, or is not taken; the value comes back, without what is exclusive in it if its envelope doesn't.
#[doc(hidden)]
pub fn hand_over<T: Message, R, E: From<Error>>(
    mut value: T,
    take: impl FnOnce(Envelope) -> Result<R, (E, Option<Envelope>)>,
) -> Result<R, (T, E)> {
    let fingerprint = TypeFingerprint::<T>::new().get();
    let packed = Arena::current().map_err(Into::into);
    let packed = packed.and_then(|arena| pack_as(&mut value, |out| arena.pack(out, fingerprint)));
    let (envelope, lent) = match packed {
        Ok(packed) => packed,
        Err(error) => return Err((value, E::from(error))),
    };
    match take(envelope) {
        Ok(taken) => {
            // The message is the value now.
            lent.sent();
            drop_caught(value);
            Ok(taken)
        }
        Err((error, envelope)) => {
            if let Some(envelope) = envelope {
                lent.back(&mut value, envelope);
            }
            Err((value, error))
        }
    }
}

/// Takes the value that this process was invited with (`mp_queue::invite`), and becomes a member of the
/// memory of the process that invited.
///
/// Call it before anything uses shared memory, and once. It never waits. Processes that this one starts later don't find the
/// invitation: its variable (`MP_INVITATION`) is taken out of the environment, and its descriptor closed. As for all that changes the
/// environment, no other thread should read it by C's functions meanwhile.
///
/// If this process is killed in here, the value is released: by the process that invited, or, once it was taken, by the next
/// sweep of any.
///
/// # Errors
/// [`mp_core::Error::NoInvitation`], which says why: there is none, it was accepted by another process or withdrawn, the process that
/// invited has ended or is another user's, or this program has privileges that its user lacks (`AT_SECURE`).
/// [`mp_core::Error::ArenaExists`] if something has used shared memory before, [`mp_core::Error::Version`] if the other process has
/// another version of this library, [`mp_core::Error::ArenaFull`] if there are as many members as can be.
/// [`Error::TypeMismatch`](crate::Error::TypeMismatch), with the bytes, if the value has another type: types have to be named alike
/// in both programs.
pub fn accept_invitation<T: Message>() -> Result<T> {
    read_accepted(mp_core::accept_inherited()?)
}

/// Reads the value of an invitation that was accepted, and reports that to the process that invited.
///
/// # Errors
/// As [`accept_invitation`].
#[doc(hidden)]
pub fn read_accepted<T: Message>((envelope, acceptance): (Envelope, Acceptance)) -> Result<T> {
    let value = unpack(envelope)?;
    acceptance.was_read();
    Ok(value)
}
