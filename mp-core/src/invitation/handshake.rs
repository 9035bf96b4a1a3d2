//! # Safety
//! Transfer of an invitation from one process to another. Unsafe, because the arena's file is sent and
//! attached, an envelope is claimed by its ticket, a descriptor is adopted by its number, and a child
//! inherits it. Sound, because file and ticket are one packet in a socket that the kernel gives to one
//! receiver, that receiver is of the same user, and it only attaches the file.
#![allow(unsafe_code)]

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::arena::Arena;
use crate::error::{Error, Result};
use crate::invitation::{Invitation, poll_all};
use crate::open;
use crate::process::mutex::Mutex;
use crate::process::{PerProcess, per_process};
use crate::sys::{Errno, gained_privileges, inherited, memory, os, socket};
use crate::transport::envelope::Envelope;
use crate::transport::promise::{EnvelopeTicket, Promise};

/// Environment variable with the location of a child's invitation.
const VARIABLE: &str = "MP_INVITATION";
/// Version of that variable.
const FORMAT: u64 = 1;
/// Version of the packet.
const VERSION: u32 = 2;
const MAGIC: &[u8; 8] = b"mp-guest";
const PACKET: usize = MAGIC.len() + 4 + EnvelopeTicket::BYTES;

/// Answers of the process that has received the packet.
pub(super) const READ: u8 = 1;
pub(super) const NOT_READ: u8 = 0;

/// Error for an invitation that was not sent, and the message, if this process still owns it.
type InviteError = (Error, Option<Envelope>);

/// Puts an invitation into a command. The first of its processes to accept gets the value.
///
/// # Errors
/// The same as for [`invite_by_socket`]; the command is unchanged then.
#[doc(hidden)]
pub fn invite_command(command: &mut Command, envelope: Envelope) -> Result<Invitation, InviteError> {
    let (invitation, theirs) = invite_by_socket(envelope)?;
    let place = FdAddress { fd: theirs.as_raw_fd(), maker: std::process::id() };
    command.env(VARIABLE, place.to_string());
    // A program that runs as another user (`Command::uid`) could use the socket's contents without this
    // library.
    let user = Some(memory::user());
    let inherit = move || socket::leave_open_for(user, theirs.as_fd()).map_err(io::Error::from);
    // SAFETY: only system calls, on a file that the command keeps open; nothing is allocated, and no lock is
    // taken.
    unsafe { command.pre_exec(inherit) };
    Ok(invitation)
}

/// Creates an invitation for the first process that accepts it from the returned socket. The caller must hand
/// the socket to a process of this user.
///
/// # Errors
/// [`Error::Local`](crate::Error::Local), and [`Error::Os`](crate::Error::Os) if no descriptor is available.
#[doc(hidden)]
pub fn invite_by_socket(envelope: Envelope) -> Result<(Invitation, OwnedFd), InviteError> {
    poll_all();
    let pair = Arena::current().and_then(|arena| {
        // SAFETY: the file goes to a process of this user that attaches it, or nowhere; it is not duplicated
        // here.
        let file = unsafe { arena.fd() }?;
        Ok((file, socket::pair().map_err(os("socketpair for an invitation"))?))
    });
    let (file, (ours, theirs)) = match pair {
        Ok(pair) => pair,
        Err(error) => return Err((error, Some(envelope))),
    };
    let promise = Promise::new(envelope);
    let packet = packet_of(promise.ticket());
    match socket::send(ours.as_fd(), &packet, Some(file)) {
        Ok(()) => Ok((Invitation::new(ours, promise), theirs)),
        Err(errno) => Err((os("sendmsg of an invitation")(errno), promise.take_back())),
    }
}

/// Accepts the invitation inherited by this process, and joins its arena.
///
/// # Errors
/// [`Error::NoInvitation`], [`Error::ArenaExists`], and any error of joining.
#[doc(hidden)]
pub fn accept_inherited() -> Result<(Envelope, Acceptance)> {
    static ACCEPTING: PerProcess<Mutex<()>> = per_process!(Mutex::new(()));
    let _one = ACCEPTING.lock();
    no_arena_yet()?;
    let Some(text) = std::env::var_os(VARIABLE) else {
        return Err(none(
            "the environment has no MP_INVITATION. It has one if the program was started by a `Command` \
            that was given to \
             `invite`, and a process can accept it once",
        ));
    };
    inherited::remove_variable(VARIABLE);
    if gained_privileges() {
        return Err(none(
            "this program is set-user-ID, set-group-ID or has file capabilities, and is not at the command \
            of the user who \
             started it: MP_INVITATION is ignored",
        ));
    }
    let place = FdAddress::read(&text)?;
    // SAFETY: the number isn't negative, and comes from the variable, which this thread has removed.
    let socket = unsafe { inherited::adopt(place.fd, place.maker) }.map_err(|why| {
        none(&format!(
            "file descriptor {}, which MP_INVITATION names, does not lead to process {}: {why}. Was it \
            closed on the way here, or \
             does this process run as another user?",
            place.fd, place.maker
        ))
    })?;
    accept_by_socket(socket)
}

/// Accepts the invitation that another process sent through this socket, and joins its arena.
///
/// # Errors
/// The same as for [`accept_inherited`].
#[doc(hidden)]
pub fn accept_by_socket(socket: OwnedFd) -> Result<(Envelope, Acceptance)> {
    no_arena_yet()?;
    let mut packet = [0; PACKET];
    let (got, file) = match socket::receive(socket.as_fd(), &mut packet) {
        Err(Errno::AGAIN) => return Err(none(TAKEN)),
        Ok((0, _)) => return Err(none(&format!("{TAKEN}; and the one that invited is gone"))),
        other => other.map_err(os("recvmsg of an invitation"))?,
    };
    let acceptance = Acceptance { socket, answer: NOT_READ, process: std::process::id() };
    let ticket = read_packet(&packet, got)?;
    let file = file.ok_or_else(|| {
        none(
            "the arena's file did not come with it: this process may have no descriptor to spare \
        (RLIMIT_NOFILE)",
        )
    })?;
    // SAFETY: the file came with an invitation, over a socket of a process of this user, which sends its
    // arena's file.
    let arena = unsafe { Arena::attach(file) }?;
    // SAFETY: the ticket came in a packet that only one process receives.
    let envelope = unsafe { ticket.claim(arena) }.map_err(|_| {
        none(
            "it was withdrawn, or the process that invited has ended: keep that one until this one has \
        accepted",
        )
    })?;
    Ok((envelope, acceptance))
}

/// Invitation whose packet this process has received. On drop, it reports a failure unless the value was
/// read.
#[doc(hidden)]
#[derive(Debug)]
pub struct Acceptance {
    socket: OwnedFd,
    answer: u8,
    /// Process that accepts. A forked copy of it sends no answer.
    process: u32,
}

impl Acceptance {
    /// Reports to the inviting process that the value was read.
    pub fn was_read(mut self) {
        self.answer = READ;
    }
}

impl Drop for Acceptance {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            // The inviting process may have ended.
            _ = socket::send(self.socket.as_fd(), &[self.answer], None);
        }
    }
}

/// Encodes the packet of an invitation.
fn packet_of(ticket: EnvelopeTicket) -> Vec<u8> {
    [&MAGIC[..], &VERSION.to_le_bytes(), &ticket.to_bytes()].concat()
}

/// Decodes a packet, of which `got` bytes were received.
fn read_packet(packet: &[u8; PACKET], got: usize) -> Result<EnvelopeTicket> {
    let (magic, rest) = packet.split_at(MAGIC.len());
    let (version, ticket) = rest.split_at(4);
    let version = version.iter().rev().fold(0, |all, byte| all << 8 | u64::from(*byte));
    if got < MAGIC.len() + 4 || magic != MAGIC {
        return Err(none("what came is none, or was cut off"));
    }
    if version != u64::from(VERSION) {
        let (what, ours) = ("the version of an invitation", u64::from(VERSION));
        return Err(Error::Version { what, theirs: version, ours });
    }
    let ticket = EnvelopeTicket::from_bytes(ticket).filter(|_| got == PACKET);
    ticket.ok_or_else(|| none("it was cut off"))
}

const TAKEN: &str = "another process has accepted it, or was about to: each invitation is for one process. \
For another one, \
                     call `invite` again with a command of its own";

/// Checks that this process has no arena: otherwise it can't join another one.
fn no_arena_yet() -> Result<()> {
    if open::has_or_will() {
        return Err(Error::ArenaExists("accept the invitation before anything uses shared memory"));
    }
    Ok(())
}

fn none(why: &str) -> Error {
    Error::NoInvitation(why.into())
}

/// Value of the variable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct FdAddress {
    fd: RawFd,
    /// Process that created the socket.
    maker: u32,
}

impl std::fmt::Display for FdAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "v{FORMAT}:{}:{}", self.fd, self.maker)
    }
}

impl FdAddress {
    fn read(text: &OsStr) -> Result<Self> {
        let malformed = || none(&format!("MP_INVITATION holds {text:?}, which is not from `invite`"));
        let (format, rest) = std::str::from_utf8(text.as_bytes())
            .ok()
            .and_then(|text| text.strip_prefix('v')?.split_once(':'))
            .ok_or_else(malformed)?;
        let theirs = format.parse().map_err(|_| malformed())?;
        if theirs != FORMAT {
            return Err(Error::Version { what: "the format of MP_INVITATION", theirs, ours: FORMAT });
        }
        let (fd, maker) = rest.split_once(':').ok_or_else(malformed)?;
        let fd = fd.parse().ok().filter(|fd| *fd >= 0).ok_or_else(malformed)?;
        Ok(Self { fd, maker: maker.parse().map_err(|_| malformed())? })
    }
}

#[cfg(all(any(test, feature = "fuzz"), not(mp_loom)))]
#[path = "fuzz.rs"]
pub(crate) mod fuzz;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_variable_round_trips_or_is_refused() {
        let place = FdAddress { fd: 7, maker: 4711 };
        assert_eq!(FdAddress::read(place.to_string().as_ref()).unwrap(), place);
        for nonsense in
            ["", "v", "v1", "v1:", "v1:7", "v1:-7:1", "v1:7:x", "v1:7:1:", "1:7:1", "vx:7:1", "v1:7:-1"]
        {
            let error = FdAddress::read(nonsense.as_ref()).unwrap_err();
            assert!(matches!(error, Error::NoInvitation(_)), "{nonsense}: {error}");
        }
        let error = FdAddress::read("v2:something else".as_ref()).unwrap_err();
        assert!(matches!(error, Error::Version { theirs: 2, ours: 1, .. }), "{error}");
    }
}
