//! Transfer of an invitation's descriptor over a connection: the socket from which the other side accepts the
//! invitation.
//!
//! The descriptor is attached to an empty message, whose type has a special name. A side that receives a
//! value instead gets an error with that name, and the kernel closes the descriptor.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use mp_core::{Wait, socket};
use mp_reduce::Error;
use rustix::io::Errno;

use super::endpoint::Socket;
use super::frame::{INVITATION, invitation, is_note_start, peek};
use super::reader::{FrameEvent, NOTES_AT_ONCE};
use super::writer::WriteError;
use crate::connection::socket::tcp;
use crate::error::GetError;

impl Socket {
    /// Sends the descriptor `way` as an invitation, if there is room in the socket.
    pub(in crate::connection) fn send_invitation(&self, way: BorrowedFd<'_>) -> Result<(), WriteError> {
        let mut writer = self.writer.lock();
        if !writer.flush(&self.stream)? {
            return Err(WriteError::Full);
        }
        socket::send(self.as_fd(), &invitation(), Some(way)).map_err(|e| match e {
            Errno::AGAIN => WriteError::Full,
            e if tcp::is_gone(e) => WriteError::Gone,
            e => mp_core::Error::Os { what: "sending an invitation over a socket", source: e.into() }.into(),
        })
    }

    /// Receives the descriptor of an invitation, which must be the next message.
    #[track_caller]
    pub(in crate::connection) fn recv_invitation(self: &Arc<Self>, wait: Wait) -> Result<OwnedFd, GetError> {
        self.wait_for(wait, || self.look_for_invitation())
    }

    fn look_for_invitation(&self) -> Result<Option<OwnedFd>, GetError> {
        let mut reader = self.reader.lock();
        if !reader.has_early() && !reader.is_greeted(self.as_fd())? {
            return Ok(None);
        }
        let (mut found, mut notes) = ([0; INVITATION], 0);
        let has = loop {
            let has = match peek(self.as_fd(), &mut found) {
                Ok(0) | Err(Errno::CONNRESET) if reader.is_between_messages() => return Err(reader.gone()),
                Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
                has => has.map_err(failed)?,
            };
            let is_note = reader.is_between_messages() && is_note_start(&found[..has]);
            if !is_note && !reader.is_in_note() {
                break has;
            }
            // A note reports a refusal of the other side and is not a message that could be received.
            match reader.read_next(self.as_fd(), self.limit)? {
                FrameEvent::Note if notes < NOTES_AT_ONCE => notes += 1,
                FrameEvent::Note | FrameEvent::Pending => return Ok(None),
                FrameEvent::Message(frame) => reader.store(frame),
            }
        };
        if !reader.is_between_messages() || !invitation().starts_with(&found[..has]) {
            return Err(none("a message comes before it, or in its place: receive that first"));
        }
        if has < INVITATION {
            let then = if self.is_disconnected() { ", and the connection is closed" } else { "" };
            return Err(none(&format!(
                "the first {has} of the {INVITATION} bytes that announce one came by themselves{then}. \
                 `Connection::invite` sends them by one call, so this is the beginning of a message, or the \
                 other program does not use this library: receive the message, or close the connection"
            )));
        }
        let received = socket::receive(self.as_fd(), &mut found).map_err(failed)?;
        received.into_only_file().map(Some).map_err(|why| none(&format!("of its socket: {why}")))
    }
}

fn none(why: &str) -> GetError {
    GetError::Failed(mp_core::Error::NoInvitation(why.into()).into())
}

fn failed(e: Errno) -> Error {
    mp_core::Error::Os { what: "receiving an invitation over a socket", source: e.into() }.into()
}
