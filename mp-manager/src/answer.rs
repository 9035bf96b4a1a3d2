//! Answers of an object, and the bodies of both kinds of messages: see [`request`](crate::request).

use std::cell::Cell;

use mp_core::Error;
use mp_core::message::{Codec, FewBytes, Incoming, Message, Outgoing, Returned, Undecodable, scope};
use mp_reduce::MessagePack;
use mp_spawn::Raise;

/// Rest of a message after its head: received, or to be sent.
///
/// Two words, because it is moved several times in each call.
pub(crate) enum Body {
    Out(Box<Outgoing>),
    In(Box<Incoming>),
    /// Few bytes without attachments, received or to be sent; `read` of them were read.
    Few {
        few: FewBytes,
        read: u8,
    },
}

const _: () = assert!(size_of::<Body>() == 16);

thread_local! {
    /// Buffers of this thread's last message without attachments, for reuse by the next one.
    static SPARE: Cell<Option<Box<Outgoing>>> = const { Cell::new(None) };
}

/// Returns an empty message, which becomes a [`Body`].
pub(crate) fn blank() -> Box<Outgoing> {
    SPARE.try_with(Cell::take).ok().flatten().unwrap_or_default()
}

/// Stores the buffers of a message that is no longer needed.
fn used(mut out: Box<Outgoing>) {
    if out.reuse() {
        _ = SPARE.try_with(|spare| spare.set(Some(out)));
    }
}

impl Body {
    const EMPTY: Body = Body::Few { few: FewBytes::EMPTY, read: 0 };

    /// Creates a body from the contents of a [`blank`].
    pub(crate) fn of(out: Box<Outgoing>) -> Body {
        let Some(few) = out.plain().and_then(FewBytes::new) else { return Body::Out(out) };
        used(out);
        Body::Few { few, read: 0 }
    }

    /// Encodes `head` and a value, if they are few bytes and no user code encodes them, as for a number.
    #[inline(always)]
    pub(crate) fn few<const N: usize, V: Message>(head: [u8; N], value: &V) -> Option<Body> {
        Body::Few { few: value.to_few_bytes::<MessagePack>()?, read: 0 }
            .behind(head)
            .map(|few| Body::Few { few, read: 0 })
    }

    /// Puts `head` before the bytes, if they are few and none was read.
    #[inline(always)]
    pub(crate) fn behind<const N: usize>(&self, head: [u8; N]) -> Option<FewBytes> {
        let Body::Few { few, read: 0 } = *self else { return None };
        let mut all = [0; FewBytes::MOST];
        all[..N].copy_from_slice(&head);
        all[N..].copy_from_slice(&few.all()[..FewBytes::MOST - N]);
        let len = N + few.len();
        (len <= FewBytes::MOST).then(|| FewBytes::first(len, all))
    }

    /// Splits the first `N` bytes off few bytes.
    #[inline(always)]
    pub(crate) fn without<const N: usize>(few: FewBytes) -> Option<([u8; N], Body)> {
        let (all, len) = (few.all(), few.len().checked_sub(N)?);
        let mut rest = [0; FewBytes::MOST];
        rest[..FewBytes::MOST - N].copy_from_slice(&all[N..]);
        Some((std::array::from_fn(|i| all[i]), Body::Few { few: FewBytes::first(len, rest), read: 0 }))
    }

    /// Moves the body into another message, once.
    pub(crate) fn write(&mut self, out: &mut Outgoing) -> mp_core::Result<()> {
        match std::mem::replace(self, Body::EMPTY) {
            Body::Out(body) => match body.plain() {
                Some(bytes) => {
                    out.bytes().extend_from_slice(bytes);
                    used(body);
                    Ok(())
                }
                None => out.append(*body),
            },
            few @ Body::Few { .. } => {
                out.bytes().extend_from_slice(few.unread());
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
            few @ Body::Few { .. } => Incoming::from_plain(few.unread().to_vec()),
        }
    }

    /// Returns the bytes that were not read yet.
    #[inline(always)]
    pub(crate) fn unread(&self) -> &[u8] {
        match self {
            Body::In(inc) => inc.rest(),
            Body::Few { few, read } => few.as_slice().get(usize::from(*read)..).unwrap_or_default(),
            Body::Out(_) => &[],
        }
    }

    /// Records that `n` bytes were read.
    #[inline(always)]
    pub(crate) fn advance(&mut self, n: usize) {
        match self {
            Body::In(inc) => inc.advance(n),
            Body::Few { few, read } => *read = (usize::from(*read) + n).min(few.len()) as u8,
            Body::Out(_) => {}
        }
    }

    /// Calls `f` with the bytes that were not read yet, in a scope in which serde values can take
    /// attachments.
    pub(crate) fn with_unread<R>(&mut self, f: impl FnOnce(&[u8]) -> R) -> mp_core::Result<R> {
        match self {
            Body::In(inc) => scope::with_incoming(inc, f),
            Body::Few { .. } => Ok(scope::with_nothing(|| f(self.unread()))),
            Body::Out(_) => Err(too_short()),
        }
    }

    /// Decodes the rest as one value. An error contains its type and bytes.
    #[inline(always)]
    pub(crate) fn read<V: Message>(&mut self) -> mp_core::Result<V> {
        if let Body::Few { .. } = self
            && let Some(number) = V::decode_number::<MessagePack>(self.unread())
        {
            return Ok(number);
        }
        self.read_any()
    }

    fn read_any<V: Message>(&mut self) -> mp_core::Result<V> {
        match self {
            Body::In(inc) => read_whole(inc),
            Body::Few { .. } => V::decode_plain::<MessagePack>(self.unread())
                .map_err(|error| Undecodable::of_message::<V>(error, self.unread())),
            Body::Out(_) => Err(too_short()),
        }
    }
}

/// Decodes the rest of a message as one value. An error contains its type and bytes.
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

/// Reads unencoded numbers.
pub(crate) fn bytes<const N: usize>(inc: &mut Incoming) -> mp_core::Result<[u8; N]> {
    let bytes = *inc.rest().first_chunk().ok_or_else(too_short)?;
    inc.advance(N);
    Ok(bytes)
}

/// Answer of an object.
pub(crate) enum Answer {
    /// The object is created, with this number in its server.
    Made { object: u64 },
    /// The call is done, with this result.
    Done(Body),
    /// The call, or the closure that creates the object, failed or panicked.
    Raised(Box<Raise>),
    /// The arguments can't be decoded. Contains path and reason.
    Undecodable(Box<Undecodable>),
    /// The captures, or the closure itself, can't be decoded. Contains the reason.
    Unreadable(String),
    /// The result can't be sent. Contains the reason.
    Unsendable(String),
    /// The object has this type, which differs from the proxy's.
    WrongType(String),
    /// The object was freed.
    Freed,
    /// No thread could be started for the object. Contains the reason.
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
        // An answer whose caller is gone is dropped, with the values that moved into it.
    }

    #[inline(always)]
    fn to_few_bytes<C: Codec>(&self) -> Option<FewBytes> {
        let Answer::Done(body) = self else { return None };
        body.behind([DONE])
    }

    #[inline(always)]
    fn from_few_bytes<C: Codec>(few: FewBytes) -> Option<Self> {
        match Body::without(few)? {
            ([DONE], body) => Some(Answer::Done(body)),
            _ => None,
        }
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
    fn few_bytes_are_written_as_any_others() {
        let written = |mut value: Option<u64>| {
            let mut out = blank();
            out.bytes().push(0);
            value.encode::<MessagePack>(&mut out).unwrap();
            Body::of(out)
        };
        for value in [None, Some(0), Some(1 << 20), Some(u64::MAX >> 32)] {
            let mut few = Body::few([0], &value).unwrap();
            assert_eq!(few.unread(), written(value).unread());
            few.advance(1);
            assert!(few.behind([]).is_none(), "a byte of it was read");
            assert_eq!(few.read::<Option<u64>>().unwrap(), value);
        }
        assert_eq!(Body::few([], &u64::MAX).unwrap().read::<u64>().unwrap(), u64::MAX);
        assert!(Body::few([0], &u64::MAX).is_none() && Body::few([], &String::new()).is_none());
    }
}
