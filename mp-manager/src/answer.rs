//! What an object answers, and what both kinds of messages are made of: see [`request`](crate::request).

use std::cell::Cell;

use mp_core::Error;
use mp_core::message::{Codec, Incoming, Message, Outgoing, Returned, Undecodable, scope};
use mp_reduce::MessagePack;
use mp_spawn::Raise;

/// What is left of a message when its head is read, or what is to be written behind that.
///
/// A small value: it moves from hand to hand several times in each call.
pub(crate) enum Body {
    Out(Box<Outgoing>),
    In(Box<Incoming>),
    /// Bytes to which nothing is attached, sent or received.
    Short(Short),
}

/// A few bytes, which need no memory of their own.
pub(crate) struct Short {
    bytes: [u8; Short::MOST],
    at: u8,
    end: u8,
}

impl Short {
    const MOST: usize = 30;

    fn new(from: &[u8]) -> Option<Short> {
        let mut bytes = [0; Short::MOST];
        bytes.get_mut(..from.len())?.copy_from_slice(from);
        Some(Short { bytes, at: 0, end: from.len() as u8 })
    }

    fn rest(&self) -> &[u8] {
        self.bytes.get(usize::from(self.at)..usize::from(self.end)).unwrap_or_default()
    }
}

thread_local! {
    /// The buffers of this thread's last short message, for the next one.
    static SPARE: Cell<Option<Box<Outgoing>>> = const { Cell::new(None) };
}

/// A message to be written, which becomes a [`Body`].
pub(crate) fn blank() -> Box<Outgoing> {
    SPARE.try_with(Cell::take).ok().flatten().unwrap_or_default()
}

impl Body {
    /// What was written into a [`blank`].
    pub(crate) fn of(mut out: Box<Outgoing>) -> Body {
        let Some(short) = out.plain().and_then(Short::new) else { return Body::Out(out) };
        if out.reuse() {
            _ = SPARE.try_with(|spare| spare.set(Some(out)));
        }
        Body::Short(short)
    }

    /// Of a call without captures and arguments: the length of those, and what `()` is written as.
    #[inline(always)]
    pub(crate) fn nothing() -> Body {
        const UNIT: [u8; 3] = [0, 1, 0xc0];
        let mut bytes = [0; Short::MOST];
        bytes[..UNIT.len()].copy_from_slice(&UNIT);
        Body::Short(Short { bytes, at: 0, end: UNIT.len() as u8 })
    }

    /// What was received, if it is short.
    pub(crate) fn short(bytes: &[u8]) -> Option<Body> {
        Short::new(bytes).map(Body::Short)
    }

    pub(crate) fn write(&mut self, out: &mut Outgoing) -> mp_core::Result<()> {
        match self {
            Body::Out(body) => out.append(std::mem::take(&mut **body)),
            Body::Short(short) => {
                out.bytes().extend_from_slice(short.rest());
                Ok(())
            }
            Body::In(_) => Err(received()),
        }
    }

    pub(crate) fn rest(inc: &mut Incoming) -> Body {
        Body::In(Box::new(std::mem::take(inc)))
    }

    #[cfg(feature = "authkey")]
    pub(crate) fn into_incoming(self) -> Incoming {
        match self {
            Body::In(inc) => *inc,
            Body::Out(out) => out.into_incoming(),
            Body::Short(short) => Incoming::from_plain(short.rest().to_vec()),
        }
    }

    /// The bytes that were not read yet.
    pub(crate) fn unread(&self) -> &[u8] {
        match self {
            Body::In(inc) => inc.rest(),
            Body::Short(short) => short.rest(),
            Body::Out(_) => &[],
        }
    }

    /// Notes that bytes were read, of which there are that many.
    pub(crate) fn advance(&mut self, n: usize) {
        match self {
            Body::In(inc) => inc.advance(n),
            Body::Short(short) => short.at = (usize::from(short.at) + n).min(usize::from(short.end)) as u8,
            Body::Out(_) => {}
        }
    }

    /// Calls `f` with the bytes that were not read yet, while serde values can take what is attached.
    pub(crate) fn with_unread<R>(&mut self, f: impl FnOnce(&[u8]) -> R) -> mp_core::Result<R> {
        match self {
            Body::In(inc) => scope::with_incoming(inc, f),
            Body::Short(short) => Ok(scope::with_nothing(|| f(short.rest()))),
            Body::Out(_) => Err(too_short()),
        }
    }

    /// Reads the rest as one value; an error has its type and bytes.
    #[inline(always)]
    pub(crate) fn read<V: Message>(&mut self) -> mp_core::Result<V> {
        if let Body::Short(short) = self
            && let Some(number) = V::decode_number::<MessagePack>(short.rest())
        {
            return Ok(number);
        }
        self.read_any()
    }

    fn read_any<V: Message>(&mut self) -> mp_core::Result<V> {
        match self {
            Body::In(inc) => read_whole(inc),
            Body::Short(short) => V::decode_plain::<MessagePack>(short.rest())
                .map_err(|error| Undecodable::of_message::<V>(error, short.rest())),
            Body::Out(_) => Err(too_short()),
        }
    }
}

/// Reads the rest of a message as one value; an error has its type and bytes.
pub(crate) fn read_whole<A: Message>(inc: &mut Incoming) -> mp_core::Result<A> {
    let before = inc.whole().len() - inc.rest().len();
    A::decode::<MessagePack>(inc).map_err(|error| {
        let bytes = inc.whole().get(before..).unwrap_or_default();
        Undecodable::of_message::<A>(error, bytes)
    })
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

    fn decode_plain<C: Codec>(bytes: &[u8]) -> mp_core::Result<Self> {
        if let Some((&DONE, rest)) = bytes.split_first()
            && let Some(body) = Body::short(rest)
        {
            return Ok(Answer::Done(body));
        }
        Self::decode::<C>(&mut Incoming::from_plain(bytes.to_vec()))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_of_nothing_is_written_as_any_other() {
        let mut out = blank();
        out.bytes().push(0);
        ().encode::<MessagePack>(&mut out).unwrap();
        assert_eq!(Body::of(out).unread(), Body::nothing().unread());
        let mut body = Body::nothing();
        body.advance(1);
        body.read::<()>().unwrap();
    }
}
