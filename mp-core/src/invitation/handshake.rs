//! Transfer of an invitation from one process to another.
//!
//! # Safety
//! The code is `unsafe` because it sends and attaches the arena's file, claims an envelope by its ticket,
//! adopts a descriptor by its number, and lets a child inherit a descriptor. It is sound because file and
//! ticket are one packet in a socket. The kernel gives the packet to one receiver, which is a process of the
//! same user and only attaches the file.
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
use crate::sys::socket::{self, SocketPacket};
use crate::sys::{Errno, gained_privileges, inherited, memory, os};
use crate::transport::envelope::Envelope;
use crate::transport::promise::{EnvelopeTicket, Promise};

/// Environment variable with the location of a child's invitation.
const VARIABLE: &str = "MP_INVITATION";
/// Version of the format of `MP_INVITATION`.
const FORMAT: u64 = 1;
/// Version of the packet.
const VERSION: u32 = 2;
const MAGIC: &[u8; 8] = b"mp-guest";
const PACKET: usize = MAGIC.len() + 4 + EnvelopeTicket::BYTES;

/// Answer byte of the invited process: the value was read.
pub(super) const READ: u8 = 1;
pub(super) const NOT_READ: u8 = 0;

/// Error for an invitation that was not sent, and the message, if this process still owns it.
type InviteError = (Error, Option<Envelope>);

/// Adds an invitation to a command. The first process of the command that accepts the invitation receives the
/// message in `envelope`.
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

/// Creates an invitation to receive the message in `envelope`. The first process that accepts the invitation
/// from the returned socket receives the message. The caller must pass the socket to a process of this user.
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
    accept(socket, TAKEN)
}

/// Accepts the invitation whose socket another process has sent to this process, and joins its arena.
///
/// # Errors
/// The same as for [`accept_inherited`].
#[doc(hidden)]
pub fn accept_by_socket(socket: OwnedFd) -> Result<(Envelope, Acceptance)> {
    let _one = ACCEPTING.lock();
    accept(socket, NOT_FILLED)
}

/// Lock held while a thread accepts an invitation. Without the lock, an arena's file that another thread has
/// just received would look like the file of another copy of this library.
static ACCEPTING: PerProcess<Mutex<()>> = per_process!(Mutex::new(()));

/// Accepts the invitation in a socket, and joins its arena. `empty` is the reason for the error if the socket
/// is empty. The caller holds `ACCEPTING`.
fn accept(socket: OwnedFd, empty: &str) -> Result<(Envelope, Acceptance)> {
    no_arena_yet()?;
    let mut packet = [0; PACKET + 1];
    let received = receive(&socket, &mut packet, empty)?;
    let acceptance = Acceptance { socket, answer: NOT_READ, process: std::process::id() };
    let (ticket, file) = open_packet(&packet, received);
    if file.as_ref().is_ok_and(|file| memory::is_open_twice(file.as_fd())) {
        // Closing the file would drop the POSIX locks of the other copy.
        std::mem::forget(file);
        return Err(Error::ArenaExists(OTHER_COPY));
    }
    let (ticket, file) = (ticket?, file?);
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

/// Receives a packet. `empty` is the reason for the error if the socket is empty.
fn receive(socket: &OwnedFd, packet: &mut [u8; PACKET + 1], empty: &str) -> Result<SocketPacket> {
    let closed = || none(&format!("{empty}. The other end of the socket is closed"));
    match socket::receive(socket.as_fd(), packet) {
        Err(Errno::AGAIN) => Err(none(empty)),
        Err(Errno::CONNRESET) => Err(closed()),
        Err(Errno::NOTSOCK) => Err(none("the descriptor that was sent for it is no socket")),
        Ok(received) if received.len == 0 => Err(closed()),
        other => other.map_err(os("recvmsg of an invitation")),
    }
}

/// Returns the ticket and the arena's file in a received packet.
fn open_packet(
    packet: &[u8; PACKET + 1],
    received: SocketPacket,
) -> (Result<EnvelopeTicket>, Result<OwnedFd>) {
    let ticket = read_packet(&packet[..received.len], received.is_cut);
    let file = received.into_only_file().map_err(|why| none(&format!("of the arena's file: {why}")));
    (ticket, file)
}

/// Invitation whose packet this process has received. Dropping this value reports to the inviting process
/// that the invitation's value was not read, unless [`was_read`](Self::was_read) was called.
#[doc(hidden)]
#[derive(Debug)]
pub struct Acceptance {
    socket: OwnedFd,
    answer: u8,
    /// Process that accepts. A forked copy of that process sends no answer.
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

/// Decodes the received bytes of a packet. `is_cut` is `true` if the kernel has truncated the packet.
fn read_packet(bytes: &[u8], is_cut: bool) -> Result<EnvelopeTicket> {
    let got = bytes.len();
    let short = || none(&format!("only {got} of the {PACKET} bytes of an invitation were sent"));
    let Some((magic, rest)) = bytes.split_first_chunk::<{ MAGIC.len() }>() else {
        return Err(if MAGIC.starts_with(bytes) { short() } else { foreign() });
    };
    if magic != MAGIC {
        return Err(foreign());
    }
    let (version, ticket) = rest.split_first_chunk().ok_or_else(short)?;
    let version = u32::from_le_bytes(*version);
    if version != VERSION {
        let (what, theirs, ours) = ("the version of an invitation", version.into(), VERSION.into());
        return Err(Error::Version { what, theirs, ours });
    }
    if is_cut || got > PACKET {
        return Err(none(&format!("what was sent is longer than the {PACKET} bytes of an invitation")));
    }
    EnvelopeTicket::from_bytes(ticket).ok_or_else(short)
}

fn foreign() -> Error {
    none("what was sent is no invitation: the other program has to call `invite` of this library")
}

/// Error text for an empty socket that other processes have inherited, too.
const TAKEN: &str = "its socket is empty: another process has accepted it, or was about to; each invitation \
                     is for one process. For another one, call `invite` again with a command of its own";
/// Error text for an empty socket that was sent to this process alone.
const NOT_FILLED: &str = "the other program has sent a socket with no invitation in it. It has to call \
                          `Connection::invite`, which fills the socket before it sends it";

/// Error text for a process that is a member of the inviting program through another copy of this library.
const OTHER_COPY: &str = "another copy of this library in this process is a member of the program that \
                          invites: accept the invitation with that copy, or use its objects";

/// Returns an error if this process has an arena. A process can't join a second one.
fn no_arena_yet() -> Result<()> {
    if open::has_or_will() {
        return Err(Error::ArenaExists("accept the invitation before anything uses shared memory"));
    }
    Ok(())
}

fn none(why: &str) -> Error {
    Error::NoInvitation(why.into())
}

/// Value of `MP_INVITATION`: the number of the socket, and the process that created it.
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
    use crate::sys::packets;

    /// Receives a packet. Asserts that it is refused with the reason `expected`, or accepted if `expected` is
    /// empty.
    #[track_caller]
    fn receives(socket: &OwnedFd, expected: &str) {
        let mut packet = [0; PACKET + 1];
        let received = receive(socket, &mut packet, NOT_FILLED);
        let opened = received.map(|received| open_packet(&packet, received));
        match opened.and_then(|(ticket, file)| ticket.and(file)) {
            Ok(_) => assert_eq!(expected, ""),
            Err(error @ (Error::NoInvitation(_) | Error::Version { .. })) => {
                assert!(!expected.is_empty() && error.to_string().contains(expected), "{expected}: {error}");
            }
            Err(error) => panic!("{expected}: {error:?}"),
        }
    }

    /// Tests stream sockets, which this library uses, and sockets that preserve packets.
    #[test]
    #[cfg_attr(miri, ignore = "Miri has no such sockets")]
    fn invalid_invitation_packets_are_refused() {
        let whole = packet_of(EnvelopeTicket::from_bytes(&[5; EnvelopeTicket::BYTES]).unwrap());
        let other = [&MAGIC[..], &[9, 0, 0, 0], &[0; 100]].concat();
        let (stream, packet) = (true, false);
        for (kind, bytes, sends_file, expected) in [
            (stream, &whole[..], true, ""),
            (packet, &whole, true, ""),
            (stream, &[], false, "a socket with no invitation in it"),
            (stream, &whole[..5], true, "only 5 of the 24 bytes"),
            (stream, &whole[..9], true, "only 9 of the 24 bytes"),
            (packet, &whole[..23], true, "only 23 of the 24 bytes"),
            (stream, b"GET /", false, "what was sent is no invitation"),
            (stream, &[0xff; 24], true, "what was sent is no invitation"),
            (stream, &[&whole[..], &[0]].concat(), true, "longer than the 24 bytes"),
            (packet, &[&whole[..], &[0]].concat(), true, "longer than the 24 bytes"),
            (packet, &[&whole[..], &[0; 9]].concat(), true, "longer than the 24 bytes"),
            (stream, &other, true, "the version of an invitation is 9, this build has 2"),
            (packet, &other, true, "the version of an invitation is 9, this build has 2"),
            (stream, &whole, false, "of the arena's file: no descriptor was sent"),
        ] {
            let (ours, theirs) = if kind == stream { socket::pair() } else { packets::pair() }.unwrap();
            if !bytes.is_empty() {
                socket::send(ours.as_fd(), bytes, sends_file.then_some(ours.as_fd())).unwrap();
            }
            receives(&theirs, expected);
        }
        let (ours, theirs) = socket::pair().unwrap();
        drop(ours);
        receives(&theirs, "The other end of the socket is closed");
        let no_socket = OwnedFd::from(std::io::pipe().unwrap().0);
        receives(&no_socket, "the descriptor that was sent for it is no socket");
    }

    #[test]
    fn invitation_fd_address_round_trips_or_is_refused() {
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
