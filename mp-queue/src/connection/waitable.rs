//! Implementation of `Waitable` for connections.

use std::os::fd::AsFd;

use mp_core::{WaitPoint, Waitable};

use crate::connection::{Connection, Transport};
use crate::queue::waitable::{has_message, message_wait_point, room_wait_point};

/// Ready when a receive would not wait: there is a message, the other end is gone, or this end only sends, so
/// that receiving returns an error.
impl Waitable for Connection {
    fn wait_point(&self) -> WaitPoint<'_> {
        match self.transport() {
            Transport::Duplex { recv: into, .. } | Transport::RecvOnly(into) => {
                message_wait_point(into.raw())
            }
            Transport::SendOnly(out) => room_wait_point(out.raw()),
            Transport::Socket(socket) => WaitPoint::Readable(socket.as_fd()),
        }
    }

    fn is_ready(&self) -> bool {
        match self.transport() {
            Transport::Duplex { recv: into, .. } | Transport::RecvOnly(into) => {
                has_message(into.raw(), || into.peer_gone())
            }
            Transport::SendOnly(out) => out.raw().arena().me().is_ok(),
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
