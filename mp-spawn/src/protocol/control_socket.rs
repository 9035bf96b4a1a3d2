//! Connection of a child to its parent.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use mp_core::fork::{PerProcess, SetOnce};
use mp_core::mutex::Mutex;
use rustix::io::Errno;
use rustix::net::RecvFlags;
use serde::Serialize;

use crate::protocol::frame::{self, FrameKind};
use crate::sys::send_all;

static PARENT: PerProcess<SetOnce<ParentSocket>> = mp_core::per_process!(SetOnce::new());

/// Socket to the parent, for the life of the process.
#[derive(Debug)]
pub(crate) struct ParentSocket {
    socket: OwnedFd,
    /// Device and inode of the socket. If the worker closes the socket, its number may refer to another file
    /// later.
    identity: (u64, u64),
    /// Process that the socket belongs to. A forked copy must not send on this socket.
    pub(crate) process: u32,
    /// Lock that is held while a frame is written.
    writing: Mutex<()>,
}

/// Opens the connection, once.
#[inline]
pub(crate) fn open(socket: OwnedFd) -> io::Result<&'static ParentSocket> {
    let identity = identity(&socket)?;
    let line = ParentSocket { socket, identity, process: std::process::id(), writing: Mutex::new(()) };
    Ok(PARENT.set(line))
}

/// Returns the connection, if this process is a child.
pub(crate) fn get() -> Option<&'static ParentSocket> {
    PARENT.get()
}

impl ParentSocket {
    /// Returns the number of the socket, for signal handlers, which can only write to the socket.
    pub(crate) fn raw(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Sends a frame. Blocks until the socket has accepted the whole frame.
    pub(crate) fn send<T: Serialize>(&self, kind: FrameKind, message: &T) -> io::Result<()> {
        self.send_bytes(kind, &rmp_serde::to_vec(message).map_err(io::Error::other)?)
    }

    /// Sends a frame with this payload. Blocks until the socket has accepted the whole frame.
    #[inline]
    pub(crate) fn send_bytes(&self, kind: FrameKind, payload: &[u8]) -> io::Result<()> {
        if self.process != std::process::id() {
            return Err(io::Error::other("this process was forked from the worker that owns the socket"));
        }
        let mut bytes = Vec::with_capacity(frame::HEADER + payload.len());
        frame::append(&mut bytes, kind, payload).map_err(io::Error::other)?;
        let _writing = self.writing.lock();
        if identity(&self.socket)? != self.identity {
            return Err(Errno::BADF.into());
        }
        send_all(&self.socket, &bytes)
    }
}

/// Methods that read from the parent. A worker calls them only at its end.
impl ParentSocket {
    /// Waits until the parent sends a frame. Returns an error if the parent has ended.
    pub(crate) fn wait(&self) -> io::Result<()> {
        let mut frame = [0; frame::HEADER];
        let mut rest = frame.as_mut_slice();
        while !rest.is_empty() {
            let (_, read) = rustix::io::retry_on_intr(|| {
                rustix::net::recv(&self.socket, &mut *rest, RecvFlags::empty())
            })?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            rest = rest.get_mut(read..).unwrap_or_default();
        }
        Ok(())
    }
}

/// Returns the identity of a file: device and inode.
#[inline]
pub(crate) fn identity(file: &OwnedFd) -> io::Result<(u64, u64)> {
    let stat = rustix::fs::fstat(file)?;
    Ok((stat.st_dev, stat.st_ino))
}
