//! What another program and a session say to each other, each as one message of a socket's connection ([`Connection`]).
//!
//! A message is a head, which serde writes, and for some behind it the bytes of arguments or of a result, which only the method's
//! own types can read. So what can't be read there is an error of that call.
//!
//! A program chooses the numbers of its handles, each once in a session. So it can give up a handle whose request had no reply in time:
//! it closes the connection of that request first, and then says so, by another one. Either the server had replied before, and has the
//! handle when it is told; or it can't reply any more, and gives up the handle by itself.
//!
//! [`Connection`]: mp_queue::Connection

use std::collections::BTreeMap;

use mp_core::message::{Codec, Incoming, Message, Outgoing, Returned};
use serde::{Deserialize, Serialize};

use crate::answer::Body;
use crate::error::CallError;

/// The version of these messages; [`Ask::Open`] has it. Another one is refused.
pub(crate) const VERSION: u32 = 3;

/// What a program asks for.
#[derive(Serialize, Deserialize)]
pub(crate) enum Ask {
    /// A new session, whose objects live as long as this connection; and no longer than the process that has connected, unless its socket
    /// travels to other processes.
    Open {
        version: u32,
        #[serde(default)]
        travels: bool,
    },
    /// Calls by this connection are of that session.
    Join { session: u64 },
    /// The names of types and objects.
    Names,
    /// To make an object of a type. Its arguments follow.
    Create { type_name: String, handle: u64 },
    /// The object that is published by a name.
    Find { name: String, handle: u64 },
    /// A handle to the same object as a handle of another session.
    Share { session: u64, of: u64, handle: u64 },
    /// To call a method. Its arguments follow. What it returns is an object if there is a number for a handle to that, and a value
    /// otherwise.
    Call { handle: u64, method: String, object: Option<u64> },
    /// To free an object.
    Free { handle: u64 },
    /// That the program has given up these handles, or requests for them. There is no reply.
    Forget { handles: Vec<u64> },
}

impl Ask {
    /// The number of the handle that it asks for.
    pub(crate) fn handle(&self) -> Option<u64> {
        match *self {
            Ask::Create { handle, .. } | Ask::Find { handle, .. } | Ask::Share { handle, .. } => Some(handle),
            Ask::Call { object, .. } => object,
            Ask::Open { .. } | Ask::Join { .. } | Ask::Names | Ask::Free { .. } | Ask::Forget { .. } => None,
        }
    }
}

/// What is replied.
#[derive(Serialize, Deserialize)]
pub(crate) enum Reply {
    /// The session's number, and the process id of the server.
    Opened { session: u64, server: u32 },
    /// The connection is of the session.
    Joined,
    /// What there is.
    Names(Names),
    /// A handle to an object.
    Object { object: u64, type_name: String },
    /// The call is done. Its result follows.
    Done,
    /// The object is freed.
    Freed,
    /// It failed.
    Failed(CallError),
    /// The connection can't be used for this: why.
    Refused(String),
}

/// The names of what a server has for other programs.
#[derive(Serialize, Deserialize)]
pub(crate) struct Names {
    /// Types with their methods.
    pub(crate) types: BTreeMap<String, Vec<String>>,
    /// Published objects with their types.
    pub(crate) objects: BTreeMap<String, String>,
}

/// A head, and what follows it.
pub(crate) struct Framed<H> {
    pub(crate) head: H,
    pub(crate) body: Body,
}

impl<H> Framed<H> {
    /// One that nothing follows.
    pub(crate) fn bare(head: H) -> Self {
        Framed { head, body: Body::Out(Box::default()) }
    }
}

impl<H: Serialize + for<'de> Deserialize<'de> + 'static> Message for Framed<H> {
    fn encode<C: Codec>(&mut self, out: &mut Outgoing) -> mp_core::Result<()> {
        C::write(out, &self.head)?;
        self.body.write(out)
    }

    fn take_back(&mut self, _: &mut Returned) {
        // What was in it is dropped with it.
    }

    fn decode<C: Codec>(inc: &mut Incoming) -> mp_core::Result<Self> {
        let head = C::read(inc)?;
        Ok(Framed { head, body: Body::rest(inc) })
    }
}
