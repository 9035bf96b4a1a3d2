//! TCP sockets between programs of one machine or of several.
//!
//! Handshake, frames and limits are the same as over a Unix socket. TCP differs in these points:
//!
//! | subject | Unix socket | TCP |
//! |---|---|---|
//! | identity of the other end | a process of this user, as reported by the kernel | an address; only a key identifies the peer. Without a key, only loopback addresses are allowed |
//! | duration of connecting | none: `connect` succeeds at once, or fails with `EAGAIN` while the listener's queue is full | the socket becomes writable later, or never. Each address of the listener has a share of the time limit |
//! | death of the other process | end of the stream, at once | end of the stream, at once |
//! | loss of the other host | impossible | detected by keep-alive probes, [`IDLE`] after the last byte; while sent bytes are not acknowledged, the kernel's limit of retransmissions (`net.ipv4.tcp_retries2`, about 15 minutes) |
//! | close of a socket with unread bytes | bytes sent before still arrive | the kernel discards bytes in transit to the other end, so [`discard`] reads the unread bytes before the close |
//!
//! `TCP_USER_TIMEOUT` would detect a lost host sooner while bytes are not acknowledged. It would also end
//! connections to a stopped process, whose host acknowledges all probes. Only the caller's timeout limits the
//! wait for such a process.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::{
    set_socket_keepalive, set_socket_reuseaddr, set_tcp_keepcnt, set_tcp_keepidle, set_tcp_keepintvl,
    set_tcp_nodelay, socket_error,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, getpeername, getsockname, listen};

use super::stream::read;

/// Time without a byte after which the kernel sends the first probe.
const IDLE: Duration = Duration::from_secs(10);
/// Time between two probes.
const INTERVAL: Duration = Duration::from_secs(5);
/// Number of probes without an answer that end a connection.
const PROBES: u32 = 3;

/// Largest number of reads of remaining bytes before a socket is closed.
const READS: usize = 64;

fn new_socket(address: SocketAddr) -> Result<OwnedFd, Errno> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(family, SocketType::STREAM, flags, None)
}

/// Returns `true` if the other end must be a process of this machine.
pub(super) fn is_loopback(address: &SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

/// Listens at the first of these addresses that this machine has. Returns the socket and its address, with
/// the port that the kernel has chosen for port 0.
///
/// If another listener uses that address, returns the error and does not try the next address: clients would
/// find the other listener.
pub(super) fn listen_at(addresses: &[SocketAddr], backlog: i32) -> io::Result<(OwnedFd, SocketAddr)> {
    let mut failed = Errno::ADDRNOTAVAIL;
    for &address in addresses {
        match listen_at_one(address, backlog) {
            Ok(listening) => return Ok(listening),
            Err(errno @ (Errno::ADDRNOTAVAIL | Errno::AFNOSUPPORT)) => failed = errno,
            Err(errno) => return Err(errno.into()),
        }
    }
    Err(failed.into())
}

fn listen_at_one(address: SocketAddr, backlog: i32) -> Result<(OwnedFd, SocketAddr), Errno> {
    let socket = new_socket(address)?;
    // Connections of an earlier listener may still be in `TIME_WAIT`. Two concurrent listeners are refused
    // nevertheless.
    set_socket_reuseaddr(&socket, true)?;
    bind(&socket, &address)?;
    listen(&socket, backlog)?;
    let bound = getsockname(&socket)?.try_into()?;
    Ok((socket, bound))
}

/// Begins to connect. The socket becomes writable when the attempt has succeeded or failed: see [`opened`].
pub(super) fn open(address: SocketAddr) -> Result<OwnedFd, Errno> {
    let socket = new_socket(address)?;
    match connect(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => Ok(socket),
        Err(errno) => Err(errno),
    }
}

/// Sets up a socket whose attempt to connect has ended. Returns an error if the attempt has failed.
pub(super) fn opened(socket: BorrowedFd<'_>) -> Result<(), Errno> {
    socket_error(socket)??;
    if is_own(socket)? {
        // The kernel has given the socket the target's port and connected the socket to itself, so no process
        // listens there.
        return Err(Errno::CONNREFUSED);
    }
    set_up(socket)
}

/// Returns `true` if the socket is connected to itself.
fn is_own(socket: BorrowedFd<'_>) -> Result<bool, Errno> {
    let (here, there) = (getsockname(socket)?, getpeername(socket)?);
    Ok(there.is_some_and(|there| there == here))
}

/// Sets a socket up to send short messages at once and to detect lost hosts.
pub(super) fn set_up(socket: BorrowedFd<'_>) -> Result<(), Errno> {
    set_tcp_nodelay(socket, true)?;
    set_tcp_keepidle(socket, IDLE)?;
    set_tcp_keepintvl(socket, INTERVAL)?;
    set_tcp_keepcnt(socket, PROBES)?;
    set_socket_keepalive(socket, true)
}

/// Reads the remaining bytes of a socket that is about to be closed. If a socket is closed with unread bytes,
/// the kernel sends a reset, and discards sent bytes that have not arrived.
pub(super) fn discard(socket: BorrowedFd<'_>) {
    let mut bytes = [0; 1 << 14];
    for _ in 0..READS {
        if !matches!(read(socket, &mut bytes), Ok(1..)) {
            return;
        }
    }
}

/// Returns `true` if an error of a connection means that the other end is closed.
pub(super) fn is_gone(errno: Errno) -> bool {
    // The kernel reports network errors (ICMP) as errors of a connection.
    let is_end = matches!(
        errno,
        Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN | Errno::TIMEDOUT | Errno::CONNREFUSED
    );
    is_end || is_of_connection(errno)
}

/// Returns `true` if an error of `accept` belongs to a connection that failed before it was accepted, and not
/// to the listener. Reference: `accept(2)`, "Error handling".
pub(super) fn is_of_connection(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::CONNABORTED
            | Errno::NETDOWN
            | Errno::PROTO
            | Errno::NOPROTOOPT
            | Errno::HOSTDOWN
            | Errno::NONET
            | Errno::HOSTUNREACH
            | Errno::OPNOTSUPP
            | Errno::NETUNREACH
    )
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn socket_connected_to_itself_is_refused() {
        let socket = new_socket((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        bind(&socket, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
        let own = SocketAddr::try_from(getsockname(&socket).unwrap()).unwrap();
        match connect(&socket, &own) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(errno) => panic!("{errno}"),
        }
        assert_eq!(opened(socket.as_fd()), Err(Errno::CONNREFUSED));
    }

    #[test]
    fn network_errors_end_a_socket_connection() {
        use Errno as E;
        let reset = [E::PIPE, E::CONNRESET, E::NOTCONN, E::TIMEDOUT, E::CONNREFUSED, E::CONNABORTED];
        let network = [E::HOSTUNREACH, E::NETUNREACH, E::NETDOWN, E::HOSTDOWN, E::NONET];
        let protocol = [E::PROTO, E::NOPROTOOPT, E::OPNOTSUPP];
        for errno in [&reset[..], &network, &protocol].concat() {
            assert!(is_gone(errno), "{errno:?}");
        }
        for errno in [E::AGAIN, E::INTR, E::NOBUFS, E::NOMEM, E::BADF, E::INVAL, E::MFILE] {
            assert!(!is_gone(errno), "{errno:?}");
        }
    }

    #[test]
    fn loopback_address_is_recognized_in_each_form() {
        let is_loopback = |address: &str| is_loopback(&address.parse().unwrap());
        for here in ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
            assert!(is_loopback(here), "{here}");
        }
        for beyond in ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "[::ffff:10.0.0.1]:1", "[fe80::1]:1"] {
            assert!(!is_loopback(beyond), "{beyond}");
        }
    }
}
