//! What an object answers, and what both kinds of messages are made of: see [`request`](crate::request).

use mp_core::Error;
use mp_core::message::{Codec, Incoming, Message, Outgoing, Returned, Undecodable};
use mp_spawn::Raise;

/// What is left of a message when its head is read, or what is to be written behind that.
pub(crate) enum Body {
    Out(Outgoing),
    In(Incoming),
}

impl Body {
    pub(crate) fn write(&mut self, out: &mut Outgoing) -> mp_core::Result<()> {
        match self {
            Body::Out(body) => out.append(std::mem::take(body)),
            Body::In(_) => Err(received()),
        }
    }

    pub(crate) fn rest(inc: &mut Incoming) -> Body {
        Body::In(std::mem::take(inc))
    }

    pub(crate) fn into_incoming(self) -> Incoming {
        match self {
            Body::In(inc) => inc,
            Body::Out(out) => out.into_incoming(),
        }
    }
}

#[cold]
pub(crate) fn received() -> Error {
    Error::Unsendable("it was received, and is not sent again".into())
}

#[cold]
pub(crate) fn too_short() -> Error {
    Error::Malformed("a message of a manager is too short".into())
}

/// Reads numbers as they are.
pub(crate) fn bytes<const N: usize>(inc: &mut Incoming) -> mp_core::Result<[u8; N]> {
    let bytes = *inc.rest().first_chunk().ok_or_else(too_short)?;
    inc.advance(N);
    Ok(bytes)
}

/// What an object answers.
pub(crate) enum Answer {
    /// It is made, and has this number in its server.
    Made { object: u64 },
    /// The call is done; this is its result.
    Done(Body),
    /// It failed, or panicked; or so did what was to make the object.
    Raised(Box<Raise>),
    /// The arguments can't be read: where, and why.
    Undecodable(Box<Undecodable>),
    /// What the closure captures, or the closure itself, can't be read: why.
    Unreadable(String),
    /// The result can't be sent: why.
    Unsendable(String),
    /// The object is of this type, and not of the proxy's.
    WrongType(String),
    /// It was freed.
    Freed,
    /// There is no thread for the object: why.
    NoThread(String),
}

const MADE: u8 = 0;
const DONE: u8 = 1;
const RAISED: u8 = 2;
const UNDECODABLE: u8 = 3;
const UNREADABLE: u8 = 4;
const UNSENDABLE: u8 = 5;
const WRONG_TYPE: u8 = 6;
const FREED: u8 = 7;
const NO_THREAD: u8 = 8;

impl Answer {
    fn kind(&self) -> u8 {
        match self {
            Answer::Made { .. } => MADE,
            Answer::Done(_) => DONE,
            Answer::Raised(_) => RAISED,
            Answer::Undecodable(_) => UNDECODABLE,
            Answer::Unreadable(_) => UNREADABLE,
            Answer::Unsendable(_) => UNSENDABLE,
            Answer::WrongType(_) => WRONG_TYPE,
            Answer::Freed => FREED,
            Answer::NoThread(_) => NO_THREAD,
        }
    }
}

impl Message for Answer {
    fn encode<C: Codec>(&mut self, out: &mut Outgoing) -> mp_core::Result<()> {
        let kind = self.kind();
        out.bytes().push(kind);
        match self {
            Answer::Made { object } => C::write(out, object),
            Answer::Done(body) => body.write(out),
            Answer::Raised(raise) => C::write(out, raise),
            Answer::Undecodable(arguments) => {
                C::write(out, &arguments.to_parts())?;
                out.bytes().extend_from_slice(arguments.bytes());
                Ok(())
            }
            Answer::Unreadable(why)
            | Answer::Unsendable(why)
            | Answer::WrongType(why)
            | Answer::NoThread(why) => C::write(out, why),
            Answer::Freed => Ok(()),
        }
    }

    fn take_back(&mut self, _: &mut Returned) {
        // An answer whose caller is gone is dropped, with what has moved into it.
    }

    fn decode<C: Codec>(inc: &mut Incoming) -> mp_core::Result<Self> {
        let [kind] = bytes(inc)?;
        match kind {
            MADE => Ok(Answer::Made { object: C::read(inc)? }),
            DONE => Ok(Answer::Done(Body::rest(inc))),
            RAISED => Ok(Answer::Raised(C::read(inc)?)),
            UNDECODABLE => {
                let parts = C::read::<[String; 3]>(inc)?;
                Ok(Answer::Undecodable(Box::new(Undecodable::from_parts(parts, inc.rest().to_vec()))))
            }
            UNREADABLE => Ok(Answer::Unreadable(C::read(inc)?)),
            UNSENDABLE => Ok(Answer::Unsendable(C::read(inc)?)),
            WRONG_TYPE => Ok(Answer::WrongType(C::read(inc)?)),
            FREED => Ok(Answer::Freed),
            NO_THREAD => Ok(Answer::NoThread(C::read(inc)?)),
            other => Err(Error::Malformed(format!("an answer of kind {other}"))),
        }
    }
}
