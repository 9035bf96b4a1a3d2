//! # Safety
//! Sockets whose packets have descriptors with them, and of which any packet can be looked at. Unsafe, because `setsockopt` takes a
//! pointer; the one call passes that of a number on the stack, its size, and a descriptor that is open.
//!
//! A packet is one number, 8 bytes, and up to [`MOST`] descriptors. That they all have the same length makes the option `SO_PEEK_OFF`,
//! which counts bytes, an index of packets. The offset is the socket's, not the caller's: processes that look at the same time get each
//! other's packets, and tell by the number. References: `socket(7)`, `unix(7)`, `recvmsg(2)`.
#![allow(unsafe_code)]

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

use crate::error::Error;
use crate::sys::limits;
use crate::sys::socket::above_standard;

/// How many descriptors a packet has at most.
const MOST: usize = 2;
/// The bytes of a packet.
const LEN: usize = 8;
/// What a privileged process has a socket keep at most; another one gets what `net.core.wmem_max` allows.
const PRIVILEGED: usize = 32 << 20;
const UNPRIVILEGED: usize = 1 << 20;

/// A packet that was looked at: it is where it was, too.
#[derive(Debug)]
pub(crate) struct Packet {
    pub(crate) number: u64,
    pub(crate) files: Vec<OwnedFd>,
    /// There were more descriptors than this process may open.
    pub(crate) cut: bool,
}

/// Two ends that keep packets apart.
pub(crate) fn pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    let (one, other) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    Ok((above_standard(one)?, above_standard(other)?))
}

/// Has the other end keep as much of what is sent through this one as this process may ask for.
pub(crate) fn enlarge(socket: &OwnedFd) {
    if rustix::net::sockopt::set_socket_send_buffer_size_force(socket, PRIVILEGED).is_err() {
        // Cut by the kernel to what it allows. Refused, it is as large as it was.
        _ = rustix::net::sockopt::set_socket_send_buffer_size(socket, UNPRIVILEGED);
    }
}

/// Sends a packet; does not wait. `EAGAIN`: the other end keeps no more. `ETOOMANYREFS`: too many descriptors of this user are in
/// messages.
pub(crate) fn send(socket: &OwnedFd, number: u64, files: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(files)) {
        return Err(Errno::INVAL);
    }
    let (number, flags) = (number.to_ne_bytes(), SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
    retry_on_intr(|| rustix::net::sendmsg(socket, &[IoSlice::new(&number)], &mut control, flags)).map(drop)
}

/// Looks at the oldest packet, or at another one by its place in the row: `EAGAIN` if it is not there, or another process looked
/// meanwhile.
pub(crate) fn peek(socket: &OwnedFd, place: Option<u64>) -> Result<Packet, Errno> {
    if let Some(place) = place {
        set_place(socket, place)?;
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT | RecvFlags::PEEK;
    let mut number = [0; LEN];
    let got = retry_on_intr(|| {
        rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut number)], &mut control, flags)
    })?;
    let mut files = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(arrived) = message {
            files.extend(arrived);
        }
    }
    if got.bytes != LEN {
        return Err(Errno::AGAIN);
    }
    let cut = got.flags.contains(ReturnFlags::CTRUNC);
    Ok(Packet { number: u64::from_ne_bytes(number), files, cut })
}

/// How many packets there are. Of sockets that keep packets apart, the kernel counts the bytes of all.
pub(crate) fn count(socket: &OwnedFd) -> Result<u64, Errno> {
    rustix::io::ioctl_fionread(socket).map(|bytes| bytes / LEN as u64)
}

/// Takes the oldest packet out and closes what came with it; whether there was one.
pub(crate) fn discard(socket: &OwnedFd) -> bool {
    let mut control = RecvAncillaryBuffer::new(&mut []);
    let mut number = [0; LEN];
    retry_on_intr(|| {
        rustix::net::recvmsg(
            socket,
            &mut [IoSliceMut::new(&mut number)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT,
        )
    })
    .is_ok_and(|got| got.bytes != 0)
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

/// Why descriptors could not be sent or received.
pub(crate) fn refused(doing: &str, errno: Errno) -> Error {
    let open = limits::open_files();
    match errno {
        Errno::MFILE | Errno::NFILE => Error::OutOfDescriptors(format!(
            "this process could not {doing}: it may have {open} descriptors open at once, and has (RLIMIT_NOFILE, `ulimit -n`); \
             close some, or raise the limit"
        )),
        Errno::TOOMANYREFS => Error::TooManyDescriptors(format!(
            "could not {doing}: the programs of this user have more descriptors in messages on their way than the kernel allows \
             this process, {open} (RLIMIT_NOFILE, `ulimit -n`, counts for these as well); receive some, or raise the limit"
        )),
        other => Error::Os { what: "sendmsg or recvmsg of descriptors in a message", source: other.into() },
    }
}

/// Whether a descriptor leads to a socket.
pub(crate) fn is_socket(fd: BorrowedFd<'_>) -> bool {
    rustix::fs::fstat(fd)
        .is_ok_and(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::Socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no such sockets")]
    fn any_packet_is_looked_at_and_stays() {
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
