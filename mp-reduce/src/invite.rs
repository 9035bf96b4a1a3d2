//! Values for processes that are invited into the arena.

use std::process::Command;

use mp_core::message::Message;
use mp_core::user_code::drop_caught;
use mp_core::{Arena, Envelope, Invitation};

use crate::error::{Error, Result};
use crate::pack::{PackError, TypeFingerprint, pack_as, unpack};

/// Puts a value into a command: the program that it starts takes it with [`accept_invitation`], and shares this process's memory
/// from then on. It may be any program that uses this library; no function of this one runs in it.
///
/// ```
/// # // This program is the other one as well: it finds out by the variable, which is only there for a child.
/// # if std::env::var_os("EXAMPLE_CHILD").is_some() {
/// #     let (jobs, sums) = mp_reduce::accept_invitation::<(String, u64)>().unwrap();
/// #     std::process::exit((jobs != "jobs" || sums != 3) as i32);
/// # }
/// use std::process::Command;
/// use mp_reduce::invite;
///
/// let mut command = Command::new(std::env::current_exe()?); // or any other program
/// # command.env("EXAMPLE_CHILD", "1");
/// let invitation = invite(&mut command, ("jobs".to_string(), 3_u64))?;
/// let mut child = command.spawn()?; // begins with: let (jobs, sums) = accept_invitation::<(String, u64)>()?
/// drop(command);
/// assert_eq!(invitation.wait()?, mp_core::InvitationState::Accepted);
/// assert!(child.wait()?.success());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Queues, locks and tensors travel in it as in any message. What is exclusive in the value is the invitation's from now on.
/// It does not wait for the child.
///
/// # One invitation, one process
/// The first process that accepts gets the value; it may be a child of the child, as where the command runs a shell or a debugger.
/// A second process that the same command starts gets an error when it accepts. So does a child whose command was given a second
/// invitation, for the first: put several values into one tuple. `Command::env_clear` takes the invitation out as well: call it
/// before.
///
/// The program runs as this user: one that the command runs as another (`Command::uid`) does not find the invitation. Put it only into
/// commands whose programs you trust as far as your own: each of them gets all of its shared memory.
///
/// The child is this process's as any child of `std::process`: it does not end with it, and errors and panics in it don't come
/// here. A member that was killed is found by its locks, as any other.
///
/// # What is held
/// The value lies in the invitation until it is accepted, and is released when it no longer can be: the command is dropped
/// without having started a process, the program could not be executed, or the child died, or ended, without accepting. This
/// process finds that when it looks ([`Invitation::state`], `Arena::sweep`, the next `invite`), and once the command is dropped. If
/// this process ends before the child accepts, the value is released by the next sweep of any member; the child gets it before, and
/// an error after that. So a process that starts another one should not end before [`Invitation::wait`] says that it was accepted.
///
/// # Errors
/// [`PackError`], with the value: when it can't be sent, there is no memory or no descriptor, or this process's arena is local. The
/// command is as it was then.
pub fn invite<T: Message>(command: &mut Command, value: T) -> Result<Invitation, PackError<T>> {
    let put =
        |envelope| mp_core::invite_command(command, envelope).map_err(|(e, back)| (Error::from(e), back));
    hand_over(value, put).map_err(|(value, error)| PackError { value, error })
}

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

/// Takes the value that this process was [invited](invite) with, and becomes a member of the memory of the process that invited.
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
    unpack(mp_core::accept_inherited()?)
}
