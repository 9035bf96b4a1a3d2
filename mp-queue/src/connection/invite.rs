//! Another program is invited into this one's memory, over a connection.

use std::os::fd::AsFd;

use mp_core::{Invitation, Message, Wait};
use mp_reduce::{Error, hand_over, unpack};

use super::socket::WriteError;
use super::{Connection, Ends};
use crate::error::{GetError, PutError};

/// Why it did not go out.
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
    /// With the value: [`PutError::Full`] when the other end does not receive what was sent before, [`PutError::Disconnected`] when
    /// it is gone, [`PutError::Failed`] when the value can't be packed, or this is a pipe, whose ends are in one memory already.
    pub fn invite<T: Message>(&self, value: T) -> Result<Invitation, PutError<T>> {
        let Ends::Socket(socket) = &self.ends else {
            return Err(PutError::Failed { value, error: pipe("send the value itself") });
        };
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
        let way = socket.recv_invitation(wait)?;
        self.looked();
        Ok(unpack(mp_core::accept_held(way).map_err(Error::from)?)?)
    }
}

fn pipe(instead: &str) -> Error {
    mp_core::Error::Unsupported(format!("both ends of a pipe are in one memory: {instead}")).into()
}
