//! # Safety
//! Sockets whose packets carry descriptors, and allow reading any packet without removing it. Unsafe, because
//! `setsockopt` takes a pointer. The one call passes a number on the stack, its size, and an open descriptor.
//!
//! A packet consists of a number (8 bytes) and up to two descriptors. Since all packets have the same length,
//! the option `SO_PEEK_OFF`, which counts bytes, serves as an index of packets. The offset belongs to the
//! socket, not to the caller: processes that peek at the same time may get each other's packets, and detect
//! this by the number. References: `socket(7)`, `unix(7)`, `recvmsg(2)`.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{RecvFlags, ReturnFlags, SocketType};

use crate::error::Error;
use crate::sys::limits;
use crate::sys::socket::{pair_of, receive_files, send_files};

/// Size of a packet in bytes.
const LEN: usize = 8;
/// Size in bytes of the send buffer, for a privileged process. For other processes, `net.core.wmem_max`
/// limits the size.
const PRIVILEGED: usize = 32 << 20;
const UNPRIVILEGED: usize = 1 << 20;

/// Copy of a packet, which is still in the socket.
#[derive(Debug)]
pub(crate) struct Packet {
    pub(crate) number: u64,
    pub(crate) files: Vec<OwnedFd>,
    /// `true` if the packet has more descriptors than this process can open.
    pub(crate) cut: bool,
}

/// Creates a socket pair that preserves packet boundaries.
pub(crate) fn pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    pair_of(SocketType::SEQPACKET)
}

/// Enlarges the send buffer of a socket as far as this process may. The buffer limits the number of packets
/// that wait at the other end.
pub(crate) fn enlarge(socket: &OwnedFd) {
    if rustix::net::sockopt::set_socket_send_buffer_size_force(socket, PRIVILEGED).is_err() {
        // The kernel reduces the size to its limit. After an error the size is unchanged.
        _ = rustix::net::sockopt::set_socket_send_buffer_size(socket, UNPRIVILEGED);
    }
}

/// Sends a packet without blocking. `EAGAIN`: the buffer is full. `ETOOMANYREFS`: too many descriptors of
/// this user are in messages.
pub(crate) fn send(socket: &OwnedFd, number: u64, files: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    send_files(socket.as_fd(), &number.to_ne_bytes(), files).map(drop)
}

/// Returns the oldest packet, or the packet at an index, without removing it. `EAGAIN` if the packet does not
/// exist, or another process peeked meanwhile.
pub(crate) fn peek(socket: &OwnedFd, place: Option<u64>) -> Result<Packet, Errno> {
    if let Some(place) = place {
        set_place(socket, place)?;
    }
    let mut number = [0; LEN];
    let (got, files) = receive_files(socket.as_fd(), &mut number, RecvFlags::PEEK)?;
    if got.bytes != LEN {
        return Err(Errno::AGAIN);
    }
    let cut = got.flags.contains(ReturnFlags::CTRUNC);
    Ok(Packet { number: u64::from_ne_bytes(number), files, cut })
}

/// Returns the number of queued packets: `FIONREAD` of this socket gives the bytes of all of them, and each
/// has `LEN` bytes.
pub(crate) fn count(socket: &OwnedFd) -> Result<u64, Errno> {
    rustix::io::ioctl_fionread(socket).map(|bytes| bytes / LEN as u64)
}

/// Removes the oldest packet and closes its descriptors. Returns `true` if there was one.
pub(crate) fn discard(socket: &OwnedFd) -> bool {
    let got = receive_files(socket.as_fd(), &mut [0; LEN], RecvFlags::empty());
    got.is_ok_and(|(got, _)| got.bytes != 0)
}

fn set_place(socket: &OwnedFd, place: u64) -> Result<(), Errno> {
    let offset = libc::c_int::try_from(LEN as u64 * place).map_err(|_| Errno::INVAL)?;
    let len = size_of::<libc::c_int>() as libc::socklen_t;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the descriptor is open, and the option takes one `int`, which lives on the stack.
    let done = unsafe {
        libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_PEEK_OFF, std::ptr::from_ref(&offset).cast(), len)
    };
    if done == 0 {
        Ok(())
    } else {
        Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL))
    }
}

/// Creates the error of a failed attempt to send or receive descriptors. `doing` names the attempt, as in
/// "could not …".
pub(crate) fn refused(doing: &str, errno: Errno) -> Error {
    let open = limits::open_files();
    match errno {
        Errno::MFILE | Errno::NFILE => Error::OutOfDescriptors(format!(
            "this process could not {doing}: it has reached its limit of {open} descriptors \
             (RLIMIT_NOFILE, `ulimit -n`); close some, or raise the limit"
        )),
        Errno::TOOMANYREFS => Error::TooManyDescriptors(format!(
            "could not {doing}: the programs of this user have more descriptors in messages in flight \
            than the kernel allows \
             this process, {open} (RLIMIT_NOFILE, `ulimit -n`, counts for these as well); receive some, or \
             raise the limit"
        )),
        other => Error::Os { what: "sendmsg or recvmsg of descriptors in a message", source: other.into() },
    }
}

/// Returns `true` if a descriptor is a socket.
pub(crate) fn is_socket(fd: BorrowedFd<'_>) -> bool {
    rustix::fs::fstat(fd)
        .is_ok_and(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::Socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no such sockets")]
    fn peeking_a_packet_leaves_it_in_the_socket() {
        let (ours, theirs) = pair().unwrap();
        let file = rustix::fs::memfd_create("packets", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        for number in 0..20 {
            send(&ours, number, &[file.as_fd()]).unwrap();
        }
        for place in [7, 19, 0, 7] {
            let packet = peek(&theirs, Some(place)).unwrap();
            assert_eq!((packet.number, packet.files.len(), packet.cut), (place, 1, false));
        }
        assert_eq!(peek(&theirs, Some(20)).unwrap_err(), Errno::AGAIN);
        assert_eq!(count(&theirs), Ok(20));
        assert!((0..20).all(|_| discard(&theirs)));
        assert_eq!(count(&theirs), Ok(0));
        assert!(!discard(&theirs));
    }
}
