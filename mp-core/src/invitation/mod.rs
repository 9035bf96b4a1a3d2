//! Invitations: a value for a process that another program starts, or that was started by itself, and that joins the arena to
//! take it.
//!
//! # What is where
//! The process that invites packs the value into an envelope, which stays its own, and promises it
//! ([`Promise`](crate::Promise)). Into a socket it puts one packet: magic, version, the ticket of the envelope, and, as
//! `SCM_RIGHTS`, the arena's file. The other end of the socket is what is handed over: inherited by a child that
//! `std::process::Command` starts, which finds its number in the variable `MP_INVITATION`; or connected by a program of the same
//! user. So a process that accepts gets all of it by one `recvmsg`, at most once, whichever processes have the socket.
//!
//! `MP_INVITATION` is `v1:FD:PID`: format, number of the socket, the process that made it. The socket is close-on-exec in the
//! process that invites; the child makes it inheritable between `fork` and `exec`, in its own table of files alone.
//!
//! # States
//! | state | what there is | changed by |
//! |---|---|---|
//! | open | the envelope is the inviter's, promised; the packet is in the socket | a process that accepts: receives the packet (no other can from then on), joins, claims the envelope by one swap → claimed; the inviter: takes the envelope back by the same swap → lapsed |
//! | claimed | the envelope is the invited process's, which reads the value; the inviter shows it as open | the invited process: has read the value, and sends [`way::READ`] → accepted; can't read it, and sends [`way::NOT_READ`], or ends → lapsed |
//! | accepted | the invited process has the value | for good |
//! | lapsed | the envelope was emptied: what the value held is released | for good |
//!
//! The inviter takes it back when it is withdrawn, or when the other end of the socket is closed everywhere:
//! in the `Command`, which is dropped then, and in each process that has inherited it. It finds that when it
//! looks ([`Invitation::state`], [`Arena::sweep`](crate::Arena::sweep), the next invitation). The swap alone
//! decides which process has the envelope; the byte says whether its value was read.
//!
//! # Deaths
//! | killed | left | released by |
//! |---|---|---|
//! | the inviter, before it is claimed | an envelope of the dead inviter: the process that accepts gets the value before the sweep, and an error after it; one swap decides | the sweep of any member |
//! | the inviter, after that | nothing | |
//! | the child, before it accepts: by a signal, or because the program could not be executed | a closed end, once the `Command` is gone as well | the inviter, when it looks |
//! | the child, between receiving and claiming | the same; it may be a member by then, with nothing | the inviter, when it looks; the sweep |
//! | the child, after it has claimed | what any member leaves | the sweep |
//! | the child, before it sends the byte | the same, and a closed end: the inviter can't take the envelope back, and the invitation lapses once the `Command` is gone as well | the sweep |
//!
//! The kernel frees the arena's file in a socket whose ends are both closed.

pub(crate) mod way;

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::arena::{Arena, Envelope, Promise};
use crate::error::{Error, Result};
use crate::process::mutex::Mutex;
use crate::process::{GENERATIONS, PerProcess};
use crate::sys::socket::{self, News};
use crate::wait::{Descriptor, WaitPoint, Waitable, wait};

/// Those of this process that may be open.
static OPEN: PerProcess<Mutex<Vec<Arc<Sent>>>> =
    PerProcess::new([const { Mutex::new(Vec::new()) }; GENERATIONS]);

/// What has become of an [`Invitation`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum InvitationState {
    /// It can be accepted: it lies in a command that may start a process, or a process has it that has not accepted it.
    Open,
    /// A process has accepted it, and read its value. It may have died since.
    Accepted,
    /// It can't be accepted any more, and no process did: it was withdrawn, all that had it are gone, or the
    /// process that took it could not read its value, of another type for example. What its value held is
    /// released.
    Lapsed,
}

/// A value that waits for another process to accept it.
///
/// The functions that make one are in the layers above: `mp_queue::invite`, for a program that `std::process::Command` starts, and
/// `mp_queue::Connection::invite`, for one that has connected.
///
/// Dropping this changes nothing: the invitation stays open until a process accepts it, or none can any more.
/// [`withdraw`](Self::withdraw) ends it.
///
/// It can be [waited for](crate::wait()): it is ready when it is no longer open.
#[derive(Clone)]
pub struct Invitation(Arc<Sent>);

struct Sent {
    /// That made it: in a copy of that process it is the original's.
    process: u32,
    socket: OwnedFd,
    standing: Mutex<Standing>,
}

enum Standing {
    Open(Promise),
    /// A process has the envelope, and has not reported that the value was read.
    Claimed,
    Ended(InvitationState),
}

impl Sent {
    /// What has become of it; if all are gone that could accept it, it lapses.
    fn look(&self) -> InvitationState {
        let mut standing = self.standing.lock();
        match &*standing {
            Standing::Ended(state) => return *state,
            // In a copy of the process it is the original's.
            _ if self.process != std::process::id() => return InvitationState::Open,
            _ => {}
        }
        let Some(news) = socket::news(&self.socket) else { return InvitationState::Open };
        let lost = Self::claim_back(&mut standing);
        let was_read = matches!(news, News::Said(way::READ)) && lost.is_none();
        let state = if was_read { InvitationState::Accepted } else { InvitationState::Lapsed };
        *standing = Standing::Ended(state);
        drop(standing);
        drop(lost);
        state
    }

    /// Takes the message back, unless a process has claimed it.
    fn claim_back(standing: &mut Standing) -> Option<Envelope> {
        let Standing::Open(promise) = std::mem::replace(standing, Standing::Claimed) else { return None };
        promise.take_back()
    }
}

impl Invitation {
    /// One that was sent just now.
    fn new(socket: OwnedFd, promise: Promise) -> Self {
        Arena::before_sweeps(look_at_all);
        let (process, standing) = (std::process::id(), Mutex::new(Standing::Open(promise)));
        let sent = Arc::new(Sent { process, socket, standing });
        OPEN.lock().push(sent.clone());
        Self(sent)
    }

    /// What has become of it by now. It never waits.
    ///
    /// As long as the command that it was put into is there, it is open until it is accepted: another process may be started.
    pub fn state(&self) -> InvitationState {
        self.0.look()
    }

    /// Waits until it is no longer open.
    ///
    /// Drop the command before: it is not known to be gone, if no process accepts, as long as the command may start another one.
    ///
    /// # Errors
    /// [`Error::Interrupted`], [`Error::Os`] when the kernel refuses to wait, and [`Error::Forked`] in a copy of the process that
    /// invited.
    pub fn wait(&self) -> Result<InvitationState> {
        self.wait_until(None)
    }

    /// Waits until it is no longer open, at most `timeout`; it may be [`Open`](InvitationState::Open) then.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub fn wait_timeout(&self, timeout: Duration) -> Result<InvitationState> {
        self.wait_until(Instant::now().checked_add(timeout))
    }

    fn wait_until(&self, deadline: Option<Instant>) -> Result<InvitationState> {
        // In a copy of the process it is open for ever, and the socket may say otherwise.
        if self.0.process != std::process::id() {
            return Err(Error::Forked);
        }
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let state = self.state();
            if state != InvitationState::Open || left == Some(Duration::ZERO) {
                return Ok(state);
            }
            wait(&[&Descriptor(self.0.socket.as_fd())], left)?;
        }
    }

    /// Takes it back, and releases what its value held. Returns [`Lapsed`](InvitationState::Lapsed) then, and
    /// [`Accepted`](InvitationState::Accepted) if a process has accepted it. [`Open`](InvitationState::Open): a process is reading the value just
    /// now, which can't be taken back any more.
    pub fn withdraw(self) -> InvitationState {
        drop(self.take_back());
        self.state()
    }

    /// The message, unless a process has claimed it, or it has lapsed.
    #[doc(hidden)]
    pub fn take_back(&self) -> Option<Envelope> {
        let mut standing = self.0.standing.lock();
        // In a copy of the process it is the original's.
        if self.0.process != std::process::id() {
            return None;
        }
        match &*standing {
            Standing::Open(_) => {
                let back = Sent::claim_back(&mut standing);
                if back.is_some() {
                    *standing = Standing::Ended(InvitationState::Lapsed);
                }
                back
            }
            _ => None,
        }
    }
}

impl Waitable for Invitation {
    fn place(&self) -> WaitPoint<'_> {
        WaitPoint::Readable(self.as_fd())
    }

    fn is_ready(&self) -> bool {
        self.state() != InvitationState::Open
    }
}

/// Readable when it is no longer open, as long as it was not withdrawn.
impl AsFd for Invitation {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.socket.as_fd()
    }
}

impl fmt::Debug for Invitation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Invitation").field(&self.state()).finish()
    }
}

/// Looks at all that may be open: those that no process can accept any more lapse.
fn look_at_all() {
    let all = std::mem::take(&mut *OPEN.lock());
    let open = all.into_iter().filter(|sent| sent.look() == InvitationState::Open);
    let open: Vec<_> = open.collect();
    OPEN.lock().extend(open);
}
