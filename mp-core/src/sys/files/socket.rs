//! Unix sockets that transfer a file. References: `socketpair(2)`, `sendmsg(2)`, `recvmsg(2)`, `SCM_RIGHTS`
//! in `unix(7)`.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::{Errno, FdFlags, retry_on_intr};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, RecvMsg, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

/// Maximum number of files in a message.
const MOST: usize = 2;

/// Creates a close-on-exec socket pair. Its descriptors are greater than 2, since a child replaces the
/// standard streams.
pub(crate) fn pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    pair_of(SocketType::STREAM)
}

pub(in crate::sys) fn pair_of(kind: SocketType) -> Result<(OwnedFd, OwnedFd), Errno> {
    let (one, other) = rustix::net::socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
    Ok((above_standard(one)?, above_standard(other)?))
}

fn above_standard(fd: OwnedFd) -> Result<OwnedFd, Errno> {
    const FIRST: i32 = 3;
    if fd.as_raw_fd() >= FIRST { Ok(fd) } else { rustix::io::fcntl_dupfd_cloexec(&fd, FIRST) }
}

/// Makes a file inheritable by programs that this process executes. Has no effect if the real or the
/// effective user of the process is not `user`: otherwise a program of another user would get access to the
/// file. If `user` is `None`, any user is allowed. Only makes system calls, so a copy of a process may call
/// this function before it executes a program.
pub(crate) fn leave_open_for(user: Option<u32>, fd: BorrowedFd<'_>) -> Result<(), Errno> {
    let own = [rustix::process::getuid(), rustix::process::geteuid()];
    if user.is_none_or(|user| own.iter().all(|own| own.as_raw() == user)) {
        rustix::io::fcntl_setfd(fd, FdFlags::empty())?;
    }
    Ok(())
}

/// Sends bytes and at most one file in one message, without blocking. Returns `EAGAIN` if the socket's buffer
/// has not enough room for all bytes.
///
/// # Errors
/// Any error of the kernel.
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8], file: Option<BorrowedFd<'_>>) -> Result<(), Errno> {
    let sent = send_files(socket, bytes, file.as_slice())?;
    if sent == bytes.len() { Ok(()) } else { Err(Errno::AGAIN) }
}

/// Sends bytes with at most [`MOST`] files, without blocking. Returns the number of bytes sent.
pub(in crate::sys) fn send_files(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    files: &[BorrowedFd<'_>],
) -> Result<usize, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() && !control.push(SendAncillaryMessage::ScmRights(files)) {
        return Err(Errno::INVAL);
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    retry_on_intr(|| rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags))
}

/// Receives bytes with at most [`MOST`] files, without blocking.
pub(in crate::sys) fn receive_files(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
    flags: RecvFlags,
) -> Result<(RecvMsg, Vec<OwnedFd>), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = flags | RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let got = retry_on_intr(|| {
        rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut *bytes)], &mut control, flags)
    })?;
    let mut files = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            files.extend(received);
        }
    }
    Ok((got, files))
}

/// Bytes and files that were received by one call.
#[derive(Debug)]
pub struct SocketPacket {
    /// Number of bytes.
    pub len: usize,
    /// `true` if the packet had more bytes than fit (`MSG_TRUNC`). A stream keeps the rest for the next call.
    pub is_cut: bool,
    files: Vec<OwnedFd>,
    /// `true` if the kernel could not open all sent files in this process (`MSG_CTRUNC`).
    files_cut: bool,
}

impl SocketPacket {
    /// Returns the received file, which is close-on-exec.
    ///
    /// # Errors
    /// The reason, if the packet did not contain exactly one file. All received files are then closed.
    pub fn into_only_file(mut self) -> Result<OwnedFd, &'static str> {
        match (self.files.pop(), self.files.is_empty(), self.files_cut) {
            (Some(file), true, false) => Ok(file),
            (None, _, false) => Err("no descriptor was sent with it"),
            (Some(_), false, _) => Err("more than one descriptor was sent with it"),
            (_, _, true) => Err("the kernel could not open in this process all descriptors that were sent \
                                 with it: close some, or raise the limit (RLIMIT_NOFILE, `ulimit -n`)"),
        }
    }
}

/// Receives the available bytes, at most as many as fit, and their files, without blocking. Returns 0 bytes
/// if the other end is closed.
///
/// # Errors
/// Any error of the kernel.
pub fn receive(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> Result<SocketPacket, Errno> {
    let (got, files) = receive_files(socket, bytes, RecvFlags::empty())?;
    let (is_cut, files_cut) = [ReturnFlags::TRUNC, ReturnFlags::CTRUNC].map(|f| got.flags.contains(f)).into();
    Ok(SocketPacket { len: got.bytes, is_cut, files, files_cut })
}

/// Event at the other end of a socket.
pub(crate) enum SocketEvent {
    Byte(u8),
    Closed,
}

/// Returns the next byte from the other end without removing it, or [`Closed`](SocketEvent::Closed). Returns
/// `None` if the other end is open and no byte has arrived.
pub(crate) fn peek_event(socket: &impl AsFd) -> Option<SocketEvent> {
    let mut byte = [0];
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    match retry_on_intr(|| rustix::net::recv(socket, &mut byte, flags)) {
        Ok((_, 1..)) => Some(SocketEvent::Byte(byte[0])),
        // This error means that the other end was closed before it received the data.
        Ok(_) | Err(Errno::CONNRESET) => Some(SocketEvent::Closed),
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    /// The sent files are writing ends of a pipe. A read returns 0 bytes once all of them are closed.
    #[test]
    #[cfg_attr(miri, ignore = "Miri has no such sockets")]
    fn packet_without_exactly_one_file_closes_its_files() {
        for (count, expected) in [
            (0, Some("no descriptor was sent")),
            (1, None),
            (2, Some("more than one descriptor")),
            (5, Some("more than one descriptor")),
        ] {
            let (ours, theirs) = pair().unwrap();
            let (mut end, file) = std::io::pipe().unwrap();
            let files = vec![file.as_fd(); count];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(5))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            assert!(count == 0 || control.push(SendAncillaryMessage::ScmRights(&files)));
            let bytes = [IoSlice::new(b"packet")];
            rustix::net::sendmsg(&ours, &bytes, &mut control, SendFlags::NOSIGNAL).unwrap();
            drop(file);
            let mut bytes = [0; 8];
            let received = receive(theirs.as_fd(), &mut bytes).unwrap();
            assert_eq!((received.len, received.is_cut), (6, false));
            let file = received.into_only_file();
            assert_eq!(file.is_ok(), expected.is_none(), "{count}: {file:?}");
            if let (Err(why), Some(expected)) = (&file, expected) {
                assert!(why.contains(expected), "{count}: {why}");
            }
            drop(file);
            rustix::io::ioctl_fionbio(&end, true).unwrap();
            let read = end.read(&mut bytes);
            assert!(matches!(read, Ok(0)), "{count}: {read:?}");
        }
    }
}
