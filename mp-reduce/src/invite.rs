//! Invitations: values for processes that join an arena.

use mp_core::message::Message;
use mp_core::user_code::drop_caught;
use mp_core::{Acceptance, Arena, Envelope, Messages};

use crate::error::{Error, Result};
use crate::pack::{TypeFingerprint, pack_as, unpack};

/// Packs a value, and passes its envelope to `take`.
///
/// # Errors
/// Returns an error and the value if the value can't be packed, or `take` returns an error. If `take` fails
/// without returning the envelope, the value lacks its exclusive parts.
#[doc(hidden)]
pub fn hand_over<T: Message, R, E: From<Error>>(
    mut value: T,
    take: impl FnOnce(Envelope) -> Result<R, (E, Option<Envelope>)>,
) -> Result<R, (T, E)> {
    let fingerprint = TypeFingerprint::<T>::new().get();
    let packed = Arena::current().map_err(Into::into);
    let packed = packed.and_then(|arena| pack_as(&mut value, |out| Messages(arena).pack(out, fingerprint)));
    let (envelope, lent) = match packed {
        Ok(packed) => packed,
        Err(error) => return Err((value, E::from(error))),
    };
    match take(envelope) {
        Ok(taken) => {
            // The message owns the value's contents now.
            lent.commit();
            drop_caught(value);
            Ok(taken)
        }
        Err((error, envelope)) => {
            if let Some(envelope) = envelope {
                lent.restore(&mut value, envelope);
            }
            Err((value, error))
        }
    }
}

/// Takes the value with which this process was invited (`mp_queue::invite`), and joins the memory of the
/// inviting process.
///
/// Call this once, before any use of shared memory. The call never waits. Processes that this one starts
/// later do not find the invitation: its variable (`MP_INVITATION`) is removed from the environment, and its
/// descriptor closed. This call changes the environment. So no other thread should read the environment by
/// functions of C at the same time.
///
/// If this process is killed during the call, the inviting process releases the value. If this process is
/// killed after it has taken the value, the next reclaim of any member releases the value.
///
/// # Errors
/// - [`mp_core::Error::NoInvitation`] with the reason: there is no invitation, it is malformed or truncated,
///   another process has accepted it, it was withdrawn, the inviting process has ended or belongs to another
///   user, or this program has privileges that its user lacks (`AT_SECURE`).
/// - [`mp_core::Error::ArenaExists`] if this process has already used shared memory.
/// - [`mp_core::Error::Version`] if the other process has another version of this library.
/// - [`mp_core::Error::ArenaFull`] if the arena has its maximum number of members.
/// - [`Error::TypeMismatch`](crate::Error::TypeMismatch) with the bytes if the value has another type: types
///   need equal names in both programs.
pub fn accept_invitation<T: Message>() -> Result<T> {
    read_accepted(mp_core::accept_inherited()?)
}

/// Decodes the value of an accepted invitation. If this succeeds, reports to the inviting process that the
/// value was read.
///
/// # Errors
/// See [`accept_invitation`].
#[doc(hidden)]
pub fn read_accepted<T: Message>((envelope, acceptance): (Envelope, Acceptance)) -> Result<T> {
    let value = unpack(envelope)?;
    acceptance.was_read();
    Ok(value)
}
