//! Implementation of `Waitable` for connections.

use std::os::fd::AsFd;

use mp_core::{WaitPoint, Waitable};

use crate::connection::{Connection, Ends};
use crate::queue::waitable::{has_message, messages, room};

/// Ready when a receive would not wait: there is a message, the other end is gone, or this end only sends, so
/// that receiving returns an error.
impl Waitable for Connection {
    fn place(&self) -> WaitPoint<'_> {
        match self.ends() {
            Ends::Both { into, .. } | Ends::Into(into) => messages(into.raw()),
            Ends::Out(out) => room(out.raw()),
            Ends::Socket(socket) => WaitPoint::Readable(socket.as_fd()),
        }
    }

    fn is_ready(&self) -> bool {
        match self.ends() {
            Ends::Both { into, .. } | Ends::Into(into) => has_message(into.raw(), || into.alone()),
            Ends::Out(out) => out.raw().arena().me().is_ok(),
            Ends::Socket(socket) => socket.has_arrived(),
        }
    }

    fn described(&self) -> Option<String> {
        match (self.ends(), self.given_name()) {
            (Ends::Socket(socket), _) => Some(socket.described()),
            (_, Some(name)) => Some(format!("pipe {name:?}")),
            (_, None) => Some("pipe".into()),
        }
    }
}
