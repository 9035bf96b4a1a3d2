//! Connected socket and its peer, without any state of messages.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use mp_core::peer;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::RecvFlags;

/// Peer of a connection, as reported by the kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PeerIdentity {
    /// Process of this machine that is connected over a Unix socket.
    Process(peer::Peer),
    /// Address of a TCP peer.
    Host(SocketAddr),
}

impl PeerIdentity {
    /// Returns the process id, or 0 if it is unknown.
    pub(crate) fn pid(&self) -> u32 {
        match self {
            PeerIdentity::Process(process) => process.pid,
            PeerIdentity::Host(_) => 0,
        }
    }

    pub(crate) fn host(&self) -> Option<SocketAddr> {
        match *self {
            PeerIdentity::Process(_) => None,
            PeerIdentity::Host(host) => Some(host),
        }
    }
}

/// Connected socket and its peer.
pub(super) struct SocketStream {
    pub(super) fd: OwnedFd,
    pub(super) peer: PeerIdentity,
}

impl SocketStream {
    /// Returns `true` if the other end is closed. Its messages may still be unread.
    pub(super) fn is_disconnected(&self) -> bool {
        // Over TCP, the kernel reports a closed other side as `RDHUP` without `HUP`.
        let gone = PollFlags::HUP | PollFlags::ERR | PollFlags::RDHUP;
        found(self.as_fd(), PollFlags::RDHUP).intersects(gone)
    }

    /// Returns `true` if sending over TCP would be useless, because the other side is closed: the kernel
    /// accepts bytes until the other host has refused them. For a Unix socket, the send itself fails.
    pub(super) fn is_peer_closed(&self) -> bool {
        self.peer.host().is_some() && self.is_disconnected()
    }
}

impl AsFd for SocketStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Reads available bytes without waiting. Returns their number, which is 0 if the other end is closed.
pub(super) fn read(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<usize, Errno> {
    rustix::net::recv(fd, buffer, RecvFlags::empty()).map(|(_, n)| n)
}

/// Returns the present events of a descriptor, among the events in `asked`.
pub(super) fn found(fd: BorrowedFd<'_>, asked: PollFlags) -> PollFlags {
    let mut fds = [PollFd::from_borrowed_fd(fd, asked)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    match rustix::event::poll(&mut fds, Some(&now)) {
        Ok(_) => fds[0].revents(),
        Err(_) => PollFlags::empty(),
    }
}
