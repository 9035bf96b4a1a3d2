//! Messages between another program and a session, each sent as one message of a socket's connection
//! ([`Connection`]).
//!
//! A message is a head, encoded by serde. In some messages, the bytes of arguments or of a result follow,
//! which only the method's own types can decode. If they can't be decoded, the call returns an error.
//!
//! A program chooses the numbers of its handles, and uses each number once in a session. So the program can
//! release a handle whose request had no reply in time: it closes the connection of that request first, and
//! then reports the release over another connection. If the server had already replied, it has the handle
//! when the report arrives, and releases the handle. Otherwise the server can't reply any more, and releases
//! the handle for this reason.
//!
//! The names and the module of [`Ask`], [`Reply`] and [`Framed`] are part of the format: each message carries
//! the name of its type.
//!
//! [`Connection`]: mp_queue::Connection

use std::collections::BTreeMap;

use mp_core::message::{Codec, Incoming, Message, Outgoing, UnsentValues};
use serde::{Deserialize, Serialize};

use crate::answer::MessageBody;
use crate::error::CallError;

/// Version of these messages, sent in [`Ask::Open`]. Other versions are refused.
pub(crate) const VERSION: u32 = 3;

/// Request of a program.
#[derive(Serialize, Deserialize)]
pub(crate) enum Ask {
    /// Open a session, whose handles live as long as this connection. The session also ends with the process
    /// that opened it, unless the socket of the connection `travels` to other processes.
    Open {
        version: u32,
        #[serde(default)]
        travels: bool,
    },
    /// Use this connection for calls of an open session.
    Join { session: u64 },
    /// List the names of types and objects.
    Names,
    /// Create an object of a type. The arguments follow.
    Create { type_name: String, handle: u64 },
    /// Find an object by its published name.
    Find { name: String, handle: u64 },
    /// Get a handle to the same object as a handle of another session.
    Share { session: u64, of: u64, handle: u64 },
    /// Call a method. The arguments follow. If `object` is the number of a new handle, the method must return
    /// an object, otherwise a value.
    Call { handle: u64, method: String, object: Option<u64> },
    /// Free an object.
    Free { handle: u64 },
    /// Release these handles, including handles whose request had no reply in time. This request has no
    /// reply.
    Forget { handles: Vec<u64> },
}

impl Ask {
    /// Returns the number of the requested handle.
    pub(crate) fn handle(&self) -> Option<u64> {
        match *self {
            Ask::Create { handle, .. } | Ask::Find { handle, .. } | Ask::Share { handle, .. } => Some(handle),
            Ask::Call { object, .. } => object,
            Ask::Open { .. } | Ask::Join { .. } | Ask::Names | Ask::Free { .. } | Ask::Forget { .. } => None,
        }
    }
}

/// Reply of the server.
#[derive(Serialize, Deserialize)]
pub(crate) enum Reply {
    /// Contains the session's number, and the process id of the server.
    Opened { session: u64, server: u32 },
    /// The connection belongs to the session.
    Joined,
    /// Names of types and objects.
    Names(OfferedNames),
    /// Handle to an object.
    Object { object: u64, type_name: String },
    /// The call is done. The result follows.
    Done,
    /// The object is freed.
    Freed,
    /// The request failed.
    Failed(CallError),
    /// The connection can't be used for this request. Contains the reason.
    Refused(String),
}

/// Names that a server offers to other programs.
#[derive(Serialize, Deserialize)]
pub(crate) struct OfferedNames {
    /// Types with their methods.
    pub(crate) types: BTreeMap<String, Vec<String>>,
    /// Published objects with their types.
    pub(crate) objects: BTreeMap<String, String>,
}

/// Head, and the bytes that follow it.
pub(crate) struct Framed<H> {
    pub(crate) head: H,
    pub(crate) body: MessageBody,
}

impl<H> Framed<H> {
    /// Creates a message without a body.
    pub(crate) fn bare(head: H) -> Self {
        Framed { head, body: MessageBody::Out(Box::default()) }
    }
}

impl<H: Serialize + for<'de> Deserialize<'de> + 'static> Message for Framed<H> {
    /// Returns the name of the type and the version of the protocol, because programs of other builds read
    /// the message.
    fn schema() -> Option<String> {
        Some(format!("{}/{VERSION}", std::any::type_name::<Self>()))
    }

    fn encode<C: Codec>(&mut self, out: &mut Outgoing) -> mp_core::Result<()> {
        C::write(out, &self.head)?;
        self.body.write(out)
    }

    fn take_back(&mut self, _: &mut UnsentValues) {
        // Values in the message are dropped together with it.
    }

    fn decode<C: Codec>(inc: &mut Incoming) -> mp_core::Result<Self> {
        let head = C::read(inc)?;
        Ok(Framed { head, body: MessageBody::rest(inc) })
    }
}
