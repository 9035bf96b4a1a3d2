//! Another program is invited into this one's memory: in a command that starts it, or over a connection.

use std::os::fd::AsFd;
use std::process::Command;

use mp_core::{Invitation, Message, Wait};
use mp_reduce::{Error, hand_over, read_accepted};

use super::socket::{Socket, WriteError};
use super::{Connection, Ends};
use crate::error::{GetError, PutError};

/// Puts a value into a command: the program that it starts takes it with
/// [`accept_invitation`](crate::accept_invitation()), and shares this process's memory
/// from then on. It may be any program that uses this library; no function of this one runs in it.
///
/// ```
/// # // This program is the other one as well: it finds out by the variable, which is only there for a child.
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
/// Queues, locks and tensors travel in it as in any message. What is exclusive in the value is the
/// invitation's from now on. It does not wait for the child.
///
/// # One invitation, one process
/// The first process that accepts gets the value; it may be a child of the child, as where the command runs a
/// shell or a debugger. A second process that the same command starts gets an error when it accepts. So does
/// a child whose command was given a second invitation, for the first: put several values into one tuple.
/// `Command::env_clear` takes the invitation out as well: call it before.
///
/// The program runs as this user: one that the command runs as another (`Command::uid`) does not find the
/// invitation. Put it only into commands whose programs you trust as far as your own: each of them gets all
/// of its shared memory.
///
/// The child is this process's as any child of `std::process`: it does not end with it, and errors and panics
/// in it don't come here. A member that was killed is found by its locks, as any other.
///
/// # What is held
/// The value lies in the invitation until it is accepted, and is released when it no longer can be: the
/// command is dropped without having started a process, the program could not be executed, or the child died,
/// or ended, without accepting. This process finds that when it looks ([`Invitation::state`], `Arena::sweep`,
/// the next `invite`), and once the command is dropped. If this process ends before the child accepts, the
/// value is released by the next sweep of any member; the child gets it before, and an error after that. So a
/// process that starts another one should not end before [`Invitation::wait`] says that it was accepted.
///
/// # Errors
/// [`PutError::Failed`], with the value: when it can't be sent, there is no memory or no descriptor, or this
/// process's arena is local. The command is as it was then.
pub fn invite<T: Message>(command: &mut Command, value: T) -> Result<Invitation, PutError<T>> {
    let put =
        |envelope| mp_core::invite_command(command, envelope).map_err(|(e, back)| (Error::from(e), back));
    hand_over(value, put).map_err(|(value, error)| PutError::Failed { value, error })
}

/// Cause of an invitation that was not sent.
enum Unsent {
    Full,
    Gone,
    Failed(Error),
}

impl From<Error> for Unsent {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl Connection {
    /// Invites the program at the other end of a socket into the memory of this process, with a value: queues, locks and tensors
    /// in it are shared then, as between processes of one program. The other end takes it with
    /// [`accept_invitation`](Self::accept_invitation).
    ///
    /// ```
    /// # // This program is the other one as well.
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
    /// The other program is of the same user, says the kernel, and knows the key, if there is one. It becomes a member: it can
    /// reach all of this memory, as any process that this one starts. It needs the same version of this library, and must not have
    /// used shared memory before.
    ///
    /// It does not wait. The value is the invitation's, and is released if no process accepts it: see
    /// [`invite`](crate::invite()). The connection goes on as before.
    ///
    /// # Errors
    /// With the value: [`PutError::Full`] when the other end does not receive what was sent before,
    /// [`PutError::Disconnected`] when it is gone, [`PutError::Failed`] when the value can't be packed, or
    /// this is a pipe, whose ends are in one memory already, or TCP, which carries no descriptors.
    pub fn invite<T: Message>(&self, value: T) -> Result<Invitation, PutError<T>> {
        let Ends::Socket(socket) = &self.ends else {
            return Err(PutError::Failed { value, error: pipe("send the value itself") });
        };
        if let Some(error) = tcp(socket) {
            return Err(PutError::Failed { value, error });
        }
        let sent = hand_over(value, |envelope| {
            let (invitation, way) =
                mp_core::invite_holder(envelope).map_err(|(e, back)| (Unsent::Failed(e.into()), back))?;
            let unsent = match socket.send_invitation(way.as_fd()) {
                Ok(true) => return Ok(invitation),
                Ok(false) => Unsent::Full,
                Err(WriteError::Gone) => Unsent::Gone,
                Err(WriteError::Failed(e)) => Unsent::Failed(e.into()),
            };
            Err((unsent, invitation.take_back()))
        });
        sent.map_err(|(value, unsent)| match unsent {
            Unsent::Full => PutError::Full(value),
            Unsent::Gone => PutError::Disconnected(value),
            Unsent::Failed(error) => PutError::Failed { value, error },
        })
    }

    /// Accepts the [invitation](Self::invite) of the program at the other end of a socket, and becomes a member of its memory;
    /// waits until it comes. It is the next message, or that is an error. Call it before anything uses shared memory.
    ///
    /// # Errors
    /// [`GetError::Disconnected`] when the other end is gone; [`GetError::Failed`] as
    /// [`accept_invitation`](crate::accept_invitation()), when a message comes instead, which can be received then, and of a pipe.
    pub fn accept_invitation<T: Message>(&self) -> Result<T, GetError> {
        self.accept_within(Wait::Forever)
    }

    mp_core::forms! {
        "Accepts an invitation": accept_invitation[T: Message]() -> Result<T, GetError>, or "[`GetError::Empty`]";
        |connection, wait| connection.accept_within(wait);
        at_most accept_invitation_timeout;
    }

    fn accept_within<T: Message>(&self, wait: Wait) -> Result<T, GetError> {
        let Ends::Socket(socket) = &self.ends else {
            return Err(pipe("receive the value itself").into());
        };
        if let Some(error) = tcp(socket) {
            return Err(error.into());
        }
        let way = socket.recv_invitation(wait)?;
        self.looked();
        Ok(read_accepted(mp_core::accept_held(way).map_err(Error::from)?)?)
    }
}

fn pipe(instead: &str) -> Error {
    mp_core::Error::Unsupported(format!("both ends of a pipe are in one memory: {instead}")).into()
}

/// The error of an invitation over TCP.
fn tcp(socket: &Socket) -> Option<Error> {
    let host = socket.peer().host()?;
    let why = format!(
        "an invitation leads to memory of this machine, and TCP (to {host}) can't carry it: connect by a path or \
         a name (@…) instead"
    );
    Some(mp_core::Error::Unsupported(why).into())
}
