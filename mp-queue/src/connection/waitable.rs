//! Implementation of `Waitable` for connections.

use std::os::fd::AsFd;

use mp_core::{WaitPoint, Waitable};

use crate::connection::{Connection, Transport};

/// Ready when a receive would not wait: there is a message, the other end is gone, or this end only sends, so
/// that receiving returns an error.
impl Waitable for Connection {
    fn wait_point(&self) -> WaitPoint<'_> {
        match self.transport() {
            Transport::Pipe { recv: Some(into), .. } => into.raw().message_wait_point(),
            Transport::Pipe { recv: None, send } => {
                send.as_ref().map_or(WaitPoint::Nowhere, |out| out.raw().room_wait_point())
            }
            Transport::Socket(socket) => WaitPoint::Readable(socket.as_fd()),
        }
    }

    fn is_ready(&self) -> bool {
        match self.transport() {
            Transport::Pipe { recv: Some(into), .. } => into.raw().has_message(),
            Transport::Pipe { recv: None, send } => {
                send.as_ref().is_none_or(|out| out.raw().memory().is_accessible())
            }
            Transport::Socket(socket) => socket.has_arrived(),
        }
    }

    fn description(&self) -> Option<String> {
        match (self.transport(), self.given_name()) {
            (Transport::Socket(socket), _) => Some(socket.description()),
            (_, Some(name)) => Some(format!("pipe {name:?}")),
            (_, None) => Some("pipe".into()),
        }
    }
}
