//! A file that travels over a connection: the socket from which the other side accepts an invitation.
//!
//! It comes with a message of no bytes, whose type has a name of its own. So a side that receives a value instead gets an error
//! that says what came; the kernel closes the file then.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use mp_core::{Wait, fnv1a, socket};
use mp_reduce::Error;
use rustix::io::Errno;
use rustix::net::RecvFlags;

use super::frame::Socket;
use super::outbox::WriteError;
use crate::error::GetError;

const NAME: &[u8; 56] = b"an invitation, for Connection::accept_invitation to take";
const FRAME: [u8; 14 + NAME.len()] = frame();

/// As a message: no bytes, fingerprint of the type, length of its name, name.
const fn frame() -> [u8; 14 + NAME.len()] {
    let mut frame = [0; 14 + NAME.len()];
    let fingerprint = fnv1a(NAME).to_le_bytes();
    let mut i = 0;
    while i < 8 {
        frame[4 + i] = fingerprint[i];
        i += 1;
    }
    frame[12] = NAME.len() as u8;
    i = 0;
    while i < NAME.len() {
        frame[14 + i] = NAME[i];
        i += 1;
    }
    frame
}

impl Socket {
    /// Sends it, if there is room; whether there was.
    pub(in crate::connection) fn send_invitation(&self, way: BorrowedFd<'_>) -> Result<bool, WriteError> {
        let mut writer = self.writer.lock();
        if !writer.flush(self)? {
            return Ok(false);
        }
        match socket::send(self.as_fd(), &FRAME, Some(way)) {
            Ok(()) => Ok(true),
            Err(Errno::AGAIN) => Ok(false),
            Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => Err(WriteError::Gone),
            Err(e) => {
                let what = "sending an invitation over a socket";
                Err(WriteError::Failed(mp_core::Error::Os { what, source: e.into() }))
            }
        }
    }

    /// Receives it.
    pub(in crate::connection) fn recv_invitation(self: &Arc<Self>, wait: Wait) -> Result<OwnedFd, GetError> {
        self.wait_for(wait, || self.look_for_invitation())
    }

    fn look_for_invitation(&self) -> Result<Option<OwnedFd>, GetError> {
        let mut reader = self.reader.lock();
        if !reader.is_greeted(self.as_fd())? {
            return Ok(None);
        }
        let mut found = [0; FRAME.len()];
        let peeked = match rustix::net::recv(self.as_fd(), &mut found, RecvFlags::PEEK | RecvFlags::DONTWAIT)
        {
            Ok((_, 0)) | Err(Errno::CONNRESET) => return Err(GetError::Disconnected),
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            peeked => peeked.map_err(failed)?.1,
        };
        // It is sent at once, and so arrives whole.
        if !reader.is_between_messages() || found[..peeked] != FRAME {
            let why = "a message comes before it, or in its place: receive that first";
            return Err(GetError::Failed(mp_core::Error::NoInvitation(why.into()).into()));
        }
        let (_, way) = socket::receive(self.as_fd(), &mut found).map_err(failed)?;
        let lost =
            || mp_core::Error::NoInvitation("it came without its socket: is RLIMIT_NOFILE reached?".into());
        Ok(Some(way.ok_or_else(|| Error::from(lost()))?))
    }
}

fn failed(e: Errno) -> Error {
    mp_core::Error::Os { what: "receiving an invitation over a socket", source: e.into() }.into()
}
