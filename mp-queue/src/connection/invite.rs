//! Invitations of another program into this program's memory, in a command that starts it or over a
//! connection.

use std::os::fd::AsFd;
use std::process::Command;

use mp_core::{Invitation, Message, Wait};
use mp_reduce::{Error, hand_over, read_accepted};

use super::socket::{Socket, WriteError};
use super::{Connection, Transport};
use crate::error::{GetError, PutError};

/// Adds an invitation with a value to a command. The started program takes the value with
/// [`accept_invitation`](crate::accept_invitation()) and then shares this process's memory. Any program that
/// uses this library can be invited. The started program runs no function of this program.
///
/// ```
/// # // This program is also the started one: the variable is set only for the child.
/// # if std::env::var_os("EXAMPLE_CHILD").is_some() {
/// #     let (jobs, sums) = mp_queue::accept_invitation::<(String, u64)>().unwrap();
/// #     std::process::exit((jobs != "jobs" || sums != 3) as i32);
/// # }
/// use std::process::Command;
/// use mp_queue::invite;
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
/// The value can contain queues, locks and tensors, like any message. The invitation takes over exclusive
/// parts of the value. This function does not wait for the child.
///
/// # One invitation, one process
/// The first process that accepts gets the value. This process may be a descendant of the child, for example
/// if the command runs a shell or a debugger. A second process that the same command starts gets an error
/// when it accepts. A second invitation in the same command replaces the first one, which can't be accepted
/// then: put several values into one tuple. `Command::env_clear` removes the invitation, so call it first.
///
/// The program must run as the same user: a program started as another user (`Command::uid`) does not find
/// the invitation. Each invited program gets access to all shared memory, so invite only programs that you
/// trust as far as your own.
///
/// The child is an ordinary child of `std::process`: it does not end with this process, and its errors and
/// panics are not reported here. If it is killed, other members detect this by its locks, as for any member.
///
/// # Lifetime of the value
/// The value stays in the invitation until it is accepted. The value is released when it can no longer be
/// accepted. That is the case if the command is dropped without having started a process, the program could
/// not be executed, or the child ended without accepting. This process detects that when the command is
/// dropped, and when it checks ([`Invitation::state`], `Arena::reclaim`, the next `invite`). If this process
/// ends before the child accepts, the next reclaim of any member releases the value, and the child gets an
/// error after that. So wait for [`Invitation::wait`] to report the acceptance before this process ends.
///
/// # Errors
/// Returns [`PutError::Failed`] with the value if it can't be sent, there is no memory or descriptor left, or
/// this process's arena is local. The command is then unchanged.
pub fn invite<T: Message>(command: &mut Command, value: T) -> Result<Invitation, PutError<T>> {
    let put =
        |envelope| mp_core::invite_command(command, envelope).map_err(|(e, back)| (Error::from(e), back));
    hand_over(value, put).map_err(|(value, error)| PutError::Failed { value, error })
}

impl Connection {
    /// Invites the program at the other end of a socket into this process's memory, with a value. Queues,
    /// locks and tensors in the value are then shared, as between processes of one program. The other end
    /// takes the value with [`accept_invitation`](Self::accept_invitation).
    ///
    /// ```
    /// # // This program is also the one at the other end.
    /// # if let Some(address) = std::env::var_os("EXAMPLE_ADDRESS") {
    /// #     let there = mp_queue::connect(address.to_str().unwrap()).unwrap();
    /// #     let jobs: mp_queue::Queue<u32> = there.accept_invitation().unwrap();
    /// #     jobs.put(7).unwrap();
    /// #     std::process::exit(0);
    /// # }
    /// use mp_queue::{Listener, Queue};
    ///
    /// let address = format!("@example-of-invite-{}", std::process::id());
    /// let listener = Listener::bind(address.as_str())?;
    /// # let mut command = std::process::Command::new(std::env::current_exe()?);
    /// # let mut other = command.env("EXAMPLE_ADDRESS", &address).spawn()?;
    /// let jobs = Queue::<u32>::bounded(8)?;
    /// let here = listener.accept()?;
    /// here.invite(jobs.clone())?; // there: let jobs: Queue<u32> = connect(address)?.accept_invitation()?;
    /// assert_eq!(jobs.get()?, Some(7));
    /// # assert!(other.wait()?.success());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// The kernel ensures that the other program belongs to the same user. The other program must have the
    /// key, if there is one. As a member, it can access all of this memory, like any process that this
    /// process starts. The other program must use the same version of this library, and must not have used
    /// shared memory before.
    ///
    /// This function does not wait. The value belongs to the invitation and is released if no process accepts
    /// it: see [`invite`](crate::invite()). The connection can still be used afterwards.
    ///
    /// # Errors
    /// All errors contain the value. Returns [`PutError::Full`] if the other end has not received earlier
    /// messages, and [`PutError::Disconnected`] if the other end is closed. Returns [`PutError::Failed`] if
    /// the value can't be packed, if this is a pipe, whose ends already share memory, or for TCP, which
    /// carries no descriptors.
    pub fn invite<T: Message>(&self, value: T) -> Result<Invitation, PutError<T>> {
        let Transport::Socket(socket) = &self.transport else {
            return Err(PutError::Failed { value, error: pipe("send the value itself") });
        };
        if let Some(error) = tcp(socket) {
            return Err(PutError::Failed { value, error });
        }
        let sent = hand_over(value, |envelope| {
            let (invitation, way) =
                mp_core::invite_by_socket(envelope).map_err(|(e, back)| (WriteError::from(e), back))?;
            match socket.send_invitation(way.as_fd()) {
                Ok(()) => Ok(invitation),
                Err(unsent) => Err((unsent, invitation.take_back())),
            }
        });
        sent.map_err(|(value, unsent)| unsent.with(value))
    }

    /// Accepts the [invitation](Self::invite) of the program at the other end of a socket, and becomes a
    /// member of its memory. Waits until the invitation arrives, which must be the next message. Call this
    /// before any use of shared memory.
    ///
    /// # Errors
    /// Returns [`GetError::Disconnected`] if the other end is closed. Returns [`GetError::Failed`] in the
    /// same cases as [`accept_invitation`](crate::accept_invitation()), if another message arrives instead
    /// (which can still be received), and for a pipe.
    #[track_caller]
    pub fn accept_invitation<T: Message>(&self) -> Result<T, GetError> {
        self.accept_wait(Wait::Forever)
    }

    mp_core::forms! {
        "Accepts an invitation": accept_invitation[T: Message]() -> Result<T, GetError>,
        or "[`GetError::Empty`]";
        |connection, wait| connection.accept_wait(wait);
        at_most accept_invitation_timeout;
    }

    #[track_caller]
    fn accept_wait<T: Message>(&self, wait: Wait) -> Result<T, GetError> {
        let Transport::Socket(socket) = &self.transport else {
            return Err(pipe("receive the value itself").into());
        };
        if let Some(error) = tcp(socket) {
            return Err(error.into());
        }
        let way = socket.recv_invitation(wait)?;
        self.update_ready_fd();
        Ok(read_accepted(mp_core::accept_by_socket(way).map_err(Error::from)?)?)
    }
}

fn pipe(instead: &str) -> Error {
    mp_core::Error::Unsupported(format!("both ends of a pipe are in one memory: {instead}")).into()
}

/// Returns the error for an invitation over a TCP socket, or `None` for a Unix socket.
fn tcp(socket: &Socket) -> Option<Error> {
    let host = socket.peer().host()?;
    let why = format!(
        "an invitation leads to memory of this machine, and TCP (to {host}) can't carry it: connect by a \
         path or a name (@…) instead"
    );
    Some(mp_core::Error::Unsupported(why).into())
}
