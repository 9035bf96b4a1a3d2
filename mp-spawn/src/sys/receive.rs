//! Receives bytes, and the file descriptors that are sent with them: `recvmsg(2)`. A wrapper from another
//! crate would be one more part of the program that a child has to load.
//!
//! # Safety
//! Unsafe, because it passes the kernel a header of pointers. Sound, because the header names buffers of this
//! call alone, and a descriptor that arrives is owned once.
#![allow(unsafe_code)]

use std::io;
use std::mem::{self, MaybeUninit};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use crate::sys::MAX_FDS;

/// Receives bytes, and the file descriptors that are sent with the bytes. The received descriptors are
/// close-on-exec. See `recvmsg(2)`.
#[inline]
pub(crate) fn receive(socket: &OwnedFd, bytes: &mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<usize> {
    // An array of words, for the alignment of a header, with room for the maximum of one message.
    const MOST: usize = size_of::<libc::cmsghdr>() + MAX_FDS * size_of::<RawFd>();
    let mut control = [MaybeUninit::<u64>::uninit(); MOST.div_ceil(size_of::<u64>())];
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: all zeroes is a header that names nothing.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
    (message.msg_control, message.msg_controllen) = (control.as_mut_ptr().cast(), size_of_val(&control) as _);
    let received = loop {
        // SAFETY: the header names `bytes` and `control`, with their sizes, and nothing else. Both live
        // longer.
        let count = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) };
        match usize::try_from(count) {
            Ok(count) => break count,
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    };
    // SAFETY: the kernel has filled in the header, and as much of `control` as it says there.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    while !next.is_null() {
        // SAFETY: the macro returns null or a whole header within `control`.
        let header = unsafe { next.read() };
        if (header.cmsg_level, header.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            // SAFETY: a header is followed by its data.
            let data = unsafe { libc::CMSG_DATA(next) }.cast::<RawFd>();
            let size = (header.cmsg_len as usize).saturating_sub(data.addr() - next.addr());
            for at in 0..size / size_of::<RawFd>() {
                // SAFETY: guaranteed by the length in the header.
                let fd = unsafe { data.add(at) };
                // SAFETY: as above. It need not be aligned.
                let fd = unsafe { fd.read_unaligned() };
                // SAFETY: the kernel has created it just now, for the receiver of the message.
                fds.push(unsafe { OwnedFd::from_raw_fd(fd) });
            }
        }
        // SAFETY: the message and a header of it.
        next = unsafe { libc::CMSG_NXTHDR(&raw const message, next) };
    }
    if message.msg_flags & libc::MSG_CTRUNC != 0 {
        return Err(io::Error::from_raw_os_error(libc::EMFILE));
    }
    Ok(received)
}
