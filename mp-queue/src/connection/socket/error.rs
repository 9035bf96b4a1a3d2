//! Errors of connection attempts between two programs.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use mp_core::serde_with;
use serde::{Deserialize, Serialize};

use super::Address;
use crate::error::{GetError, PutError};

/// Error returned when a connection between two programs was not established.
#[derive(thiserror::Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ConnectError {
    /// A system call failed. If no process listens at the address, `source` is `ConnectionRefused` or
    /// `NotFound`.
    #[error("{what} {address}: {source}{}", advice(what, source))]
    Io {
        /// Name of the operation that failed.
        #[serde(with = "serde_with::text")]
        what: &'static std::primitive::str,
        /// Address at which the operation failed.
        address: Address,
        /// Error of the kernel.
        #[serde(with = "serde_with::io")]
        source: io::Error,
    },
    /// The other side belongs to another user.
    #[error("the other side (pid {pid}) runs as user {uid}; both sides must run as the same user")]
    OtherUser {
        /// User id of the other side.
        uid: u32,
        /// Process id of the other side, or 0 if unknown.
        pid: u32,
    },
    /// The other side has another authentication key.
    #[doc(alias = "AuthenticationError")]
    #[error(
        "the other side ({}) has another authentication key; use the same key on both sides",
        host.map_or_else(|| format!("pid {pid}"), |host| host.to_string())
    )]
    KeyMismatch {
        /// Process id of the other side, or 0 if unknown, as over TCP.
        pid: u32,
        /// TCP address of the other side, or `None` for a Unix socket.
        host: Option<SocketAddr>,
    },
    /// Only one side has an authentication key.
    #[error(
        "only {} has an authentication key; use the same key on both sides",
        if *here { "the other side" } else { "this side" }
    )]
    KeyMissing {
        /// `true` if this side has no key.
        here: bool,
    },
    /// The key of this side is empty. To connect without a key, use
    /// [`SocketOptions::no_key`](crate::SocketOptions::no_key).
    #[error(
        "the authentication key is empty (is an environment variable not set?): set a key, or call \
         `no_key()` to use none"
    )]
    EmptyKey,
    /// This side has no key, and the address can be reached from other machines. Such an address requires a
    /// key, for listening and for connecting.
    #[error(
        "other machines can reach {address}, so an authentication key is required: set one (`authkey`), or \
         use a loopback address, such as 127.0.0.1"
    )]
    KeyRequired {
        /// Address that includes a host other than loopback.
        address: Address,
    },
    /// The other side does not use this library, or uses an incompatible version. Contains the reason.
    #[error("the other side does not use this library, or uses another version of it: {0}")]
    Incompatible(#[serde(with = "serde_with::text")] &'static std::primitive::str),
    /// The other side closed the connection during the handshake: it ended, or refused this side.
    #[error(
        "the other side closed the connection during the handshake: it ended or refused this side; its own \
         error has the cause"
    )]
    Gone,
    /// The other side did not answer in time. Contains the time limit.
    #[error("the other side did not answer within {0:?}; is it stopped, or busy?")]
    TimedOut(Duration),
}

mp_core::readable_debug!(ConnectError);

impl ConnectError {
    pub(super) fn io(what: &'static str, address: &Address, source: impl Into<io::Error>) -> Self {
        Self::Io { what, address: address.clone(), source: source.into() }
    }

    /// Returns `true` if the error was caused by one peer, so that a listener can continue with other peers.
    /// Returns `false` for [`Io`](Self::Io), [`EmptyKey`](Self::EmptyKey) and
    /// [`KeyRequired`](Self::KeyRequired), which are errors of this side.
    pub fn is_of_peer(&self) -> bool {
        use ConnectError::{EmptyKey, Io, KeyRequired};
        !matches!(self, Io { .. } | EmptyKey | KeyRequired { .. })
    }
}

/// Text in [`ConnectError::Io`] for a failed attempt to connect.
pub(super) const CONNECTING: &str = "connecting to";

/// Converts the error of a handshake into the error of a send or receive. A client without a key may send and
/// receive before its handshake is complete.
pub(super) fn refusal(error: ConnectError) -> mp_reduce::Error {
    mp_core::Error::Os { what: "a connection without a key", source: io::Error::other(error) }.into()
}

/// Returns the [`ConnectError`] inside an error that [`refusal`] created.
fn refused(error: &mp_reduce::Error) -> Option<&ConnectError> {
    match error {
        mp_reduce::Error::Memory(mp_core::Error::Os { source, .. }) => source.get_ref()?.downcast_ref(),
        _ => None,
    }
}

impl GetError {
    /// Returns the cause of a failed handshake that [`connect`](crate::connect) did not wait for.
    pub fn refused(&self) -> Option<&ConnectError> {
        match self {
            GetError::Failed(error) => refused(error),
            _ => None,
        }
    }
}

impl<T> PutError<T> {
    /// Returns the cause of a failed handshake that [`connect`](crate::connect) did not wait for.
    pub fn refused(&self) -> Option<&ConnectError> {
        match self {
            PutError::Failed { error, .. } => refused(error),
            _ => None,
        }
    }
}

/// Returns advice that is appended to the text of a failed system call.
fn advice(what: &str, source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound if what == CONNECTING => {
            "; no process listens there: start the process with the Listener first"
        }
        io::ErrorKind::AddrInUse => "; another Listener uses the address: end it, or choose another address",
        io::ErrorKind::InvalidFilename => "; an address has at most 107 bytes",
        _ => "",
    }
}
