//! Invitations: one value for a process that does not belong to the program yet. The process was started by
//! another program, or by `std::process::Command`. It joins the arena to receive the value.
//!
//! # Layout
//! The inviting process packs the value into an envelope, and promises the envelope
//! ([`Promise`](crate::Promise)), of which it remains the owner. It writes one packet into a socket: magic,
//! version, the ticket of the envelope, and, as `SCM_RIGHTS`, the arena's file. The invited process gets the
//! other end of the socket. A child started by `std::process::Command` inherits this end, and finds the
//! number of its descriptor in the variable `MP_INVITATION`. A connected program of the same user receives
//! this end over its connection. An accepting process receives the whole packet by one `recvmsg`. So only one
//! process gets the packet, even if several have the socket.
//!
//! `MP_INVITATION` is `v1:FD:PID`: format, number of the socket, process that created it. The socket is
//! close-on-exec in the inviting process. The child makes it inheritable between `fork` and `exec`, only
//! in its own table of files.
//!
//! # States
//! | state | situation | changed by |
//! |---|---|---|
//! | open | the inviter owns the envelope, which is promised; the packet is in the socket | an accepting process: receives the packet (which no other process can receive after that), joins, claims the envelope by one swap → claimed; the inviter: takes the envelope back by the same swap → lapsed |
//! | claimed | the invited process owns the envelope and reads the value; the inviter reports the invitation as open | the invited process: has read the value, and sends [`handshake::READ`] → accepted; can't read it, and sends [`handshake::NOT_READ`], or ends → lapsed |
//! | accepted | the invited process has the value | no process: final |
//! | lapsed | the envelope was emptied, and the objects held by the value are released | no process: final |
//!
//! The inviter takes the envelope back when the invitation is withdrawn, or when the other end of the socket
//! is closed everywhere. This end is closed once the `Command` was dropped, and each process that has
//! inherited the socket has closed it or ended. The inviter detects this when it checks
//! ([`Invitation::state`], [`Arena::reclaim`](crate::Arena::reclaim), the next invitation). Only the swap
//! decides which process owns the envelope. The answer byte reports only the result of reading the value.
//!
//! # Deaths
//! | killed process | state left behind | released by |
//! |---|---|---|
//! | the inviter, before the claim | an envelope owned by the dead inviter. A process that accepts gets the value if its swap precedes the recovery of the inviter, and an error otherwise | the reclaim by any member |
//! | the inviter, after the claim | nothing | no process |
//! | the child, before it accepts: by a signal, or because the program could not be executed | a closed end of the socket, once the `Command` is dropped as well | the inviter, when it checks |
//! | the child, after it has received the packet and before the claim | a closed end of the socket, as above; possibly a dead member without blocks | the inviter, when it checks; the reclaim |
//! | the child, after the claim | a dead member that owns the envelope | the reclaim |
//! | the child, before it sends the answer byte | a dead member that owns the envelope, and a closed end of the socket. The inviter can't take the envelope back, and the invitation lapses once the `Command` is dropped as well | the reclaim |
//!
//! The kernel frees the arena's file in a socket whose ends are both closed.

pub(crate) mod handshake;

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::process::mutex::Mutex;
use crate::process::{PerProcess, per_process};
use crate::recovery::Recovery;
use crate::sys::socket::{self, SocketEvent};
use crate::transport::envelope::Envelope;
use crate::transport::promise::Promise;
use crate::waitable::{Descriptor, WaitPoint, Waitable, wait};

/// Invitations of this process that may be open.
static OPEN: PerProcess<Mutex<Vec<Arc<InvitationInner>>>> = per_process!(Mutex::new(Vec::new()));

/// State of an [`Invitation`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum InvitationState {
    /// Can be accepted. Either the invitation is in a command that may start a process, or some process
    /// has it and has not accepted it.
    Open,
    /// A process has accepted the invitation and read its value. That process may have died since.
    Accepted,
    /// Can no longer be accepted, and no process has received the value. The invitation was withdrawn, or all
    /// processes that had it have ended, or the accepting process could not read the value, for example
    /// because of its type. The objects held by the value are released.
    Lapsed,
}

/// Value that waits for another process to accept it.
///
/// Created by the layers above: `mp_queue::invite`, for a program that `std::process::Command` starts, and
/// `mp_queue::Connection::invite`, for a program that has connected.
///
/// Dropping the handle changes nothing: the invitation stays open until a process accepts it, or no process
/// can accept it any more. [`withdraw`](Self::withdraw) ends it.
///
/// An invitation can be [waited for](crate::wait()). It is ready once it was accepted, or can no longer be
/// accepted.
#[derive(Clone)]
pub struct Invitation(Arc<InvitationInner>);

struct InvitationInner {
    /// Process that created the invitation. A forked copy of that process can't change the state of the
    /// invitation.
    process: u32,
    socket: OwnedFd,
    phase: Mutex<InvitationPhase>,
}

enum InvitationPhase {
    Open(Promise),
    /// A process has claimed the envelope, and has not reported that the value was read.
    Claimed,
    Ended(InvitationState),
}

impl InvitationInner {
    /// Returns the state. The invitation lapses if no process can accept it.
    fn poll(&self) -> InvitationState {
        let mut phase = self.phase.lock();
        match &*phase {
            InvitationPhase::Ended(state) => return *state,
            // In a forked copy, the original owns the invitation.
            _ if self.process != std::process::id() => return InvitationState::Open,
            _ => {}
        }
        let Some(peek_event) = socket::peek_event(&self.socket) else { return InvitationState::Open };
        let lost = Self::claim_back(&mut phase);
        let was_read = matches!(peek_event, SocketEvent::Byte(handshake::READ)) && lost.is_none();
        let state = if was_read { InvitationState::Accepted } else { InvitationState::Lapsed };
        *phase = InvitationPhase::Ended(state);
        drop(phase);
        drop(lost);
        state
    }

    /// Takes the message back, unless a process has claimed it.
    fn claim_back(phase: &mut InvitationPhase) -> Option<Envelope> {
        let InvitationPhase::Open(promise) = std::mem::replace(phase, InvitationPhase::Claimed) else {
            return None;
        };
        promise.take_back()
    }
}

impl Invitation {
    /// Creates the handle of an invitation that was just sent.
    fn new(socket: OwnedFd, promise: Promise) -> Self {
        Recovery::before_reclaims(poll_all);
        let (process, phase) = (std::process::id(), Mutex::new(InvitationPhase::Open(promise)));
        let sent = Arc::new(InvitationInner { process, socket, phase });
        OPEN.lock().push(sent.clone());
        Self(sent)
    }

    /// Returns the current state. Does not block.
    ///
    /// While its command exists, an invitation stays open until it is accepted, since the command may start
    /// another process.
    pub fn state(&self) -> InvitationState {
        self.0.poll()
    }

    /// Blocks until the invitation is no longer open.
    ///
    /// Drop the command first. Otherwise, if no process accepts, the wait does not end, since the command may
    /// start another process.
    ///
    /// # Errors
    /// [`Error::Interrupted`], [`Error::Os`] if the kernel refuses to wait, and [`Error::Forked`] in a forked
    /// copy of the inviting process.
    pub fn wait(&self) -> Result<InvitationState> {
        self.wait_until(None)
    }

    /// Blocks until the invitation is no longer open, at most for `timeout`. Returns
    /// [`Open`](InvitationState::Open) if the time has expired.
    ///
    /// # Errors
    /// The same as for [`wait`](Self::wait).
    pub fn wait_timeout(&self, timeout: Duration) -> Result<InvitationState> {
        self.wait_until(Instant::now().checked_add(timeout))
    }

    fn wait_until(&self, deadline: Option<Instant>) -> Result<InvitationState> {
        // In a forked copy the state is always open, even if the socket reports something else.
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

    /// Withdraws the invitation, releases the objects held by its value, and returns
    /// [`Lapsed`](InvitationState::Lapsed). Returns [`Accepted`](InvitationState::Accepted) if a process has
    /// already accepted the invitation, and [`Open`](InvitationState::Open) if a process is reading the
    /// value, which can no longer be taken back.
    pub fn withdraw(self) -> InvitationState {
        drop(self.take_back());
        self.state()
    }

    /// Returns the message, unless a process has claimed it, or the invitation has lapsed.
    #[doc(hidden)]
    pub fn take_back(&self) -> Option<Envelope> {
        let mut phase = self.0.phase.lock();
        // In a forked copy, the original owns the invitation.
        if self.0.process != std::process::id() {
            return None;
        }
        match &*phase {
            InvitationPhase::Open(_) => {
                let back = InvitationInner::claim_back(&mut phase);
                if back.is_some() {
                    *phase = InvitationPhase::Ended(InvitationState::Lapsed);
                }
                back
            }
            _ => None,
        }
    }
}

impl Waitable for Invitation {
    fn wait_point(&self) -> WaitPoint<'_> {
        WaitPoint::Readable(self.as_fd())
    }

    fn is_ready(&self) -> bool {
        self.state() != InvitationState::Open
    }
}

/// Descriptor that becomes readable when the invitation is accepted, or lapses without a call of
/// [`withdraw`](Invitation::withdraw).
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

/// Checks all invitations that may be open. An invitation that no process can accept lapses.
fn poll_all() {
    let all = std::mem::take(&mut *OPEN.lock());
    let open = all.into_iter().filter(|sent| sent.poll() == InvitationState::Open);
    let open: Vec<_> = open.collect();
    OPEN.lock().extend(open);
}
