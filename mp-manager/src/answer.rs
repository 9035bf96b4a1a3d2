//! Body of a message between a caller and an object, and answers of an object. The messages are described in
//! [`request`](crate::request).

use std::cell::Cell;

use mp_core::Error;
use mp_core::message::{
    self, Codec, Incoming, Message, Outgoing, SmallBytes, Undecodable, UnsentValues, scope,
};
use mp_reduce::MessagePack;
use mp_spawn::CallFailure;
use serde::{Deserialize, Serialize};

/// Body of a message: everything after the head. Either received, or to be sent.
///
/// The size of this type is two words, because each call moves it several times.
pub(crate) enum MessageBody {
    Out(Box<Outgoing>),
    In(Box<Incoming>),
    /// Few bytes without attachments, received or to be sent. The first `read` bytes were read.
    Few {
        few: SmallBytes,
        read: u8,
    },
}

const _: () = assert!(size_of::<MessageBody>() == 16);

thread_local! {
    /// Buffers of this thread's last message without attachments, which the next message reuses.
    static SPARE: Cell<Option<Box<Outgoing>>> = const { Cell::new(None) };
}

/// Returns an empty buffer for the message that a [`MessageBody`] contains.
pub(crate) fn empty_buffer() -> Box<Outgoing> {
    SPARE.try_with(Cell::take).ok().flatten().unwrap_or_default()
}

/// Stores the buffers of a message that is no longer needed.
fn recycle_buffer(mut out: Box<Outgoing>) {
    if out.reuse() {
        _ = SPARE.try_with(|spare| spare.set(Some(out)));
    }
}

impl MessageBody {
    const EMPTY: MessageBody = MessageBody::Few { few: SmallBytes::EMPTY, read: 0 };

    /// Creates a body from the contents of an [`empty_buffer`].
    pub(crate) fn of(out: Box<Outgoing>) -> MessageBody {
        let Some(few) = out.plain().and_then(SmallBytes::new) else { return MessageBody::Out(out) };
        recycle_buffer(out);
        MessageBody::Few { few, read: 0 }
    }

    /// Encodes `head` and a value in a short body. Returns `None` if they do not fit, or if user code would
    /// encode the value.
    #[inline(always)]
    pub(crate) fn few<const N: usize, V: Message>(head: [u8; N], value: &V) -> Option<MessageBody> {
        MessageBody::Few { few: value.to_small_bytes::<MessagePack>()?, read: 0 }
            .with_head(head)
            .map(|few| MessageBody::Few { few, read: 0 })
    }

    /// Returns `head` followed by the bytes of a short body. Returns `None` if they do not fit, the body is
    /// not short, or some of its bytes were read.
    #[inline(always)]
    pub(crate) fn with_head<const N: usize>(&self, head: [u8; N]) -> Option<SmallBytes> {
        let MessageBody::Few { few, read: 0 } = *self else { return None };
        let mut all = [0; SmallBytes::MOST];
        all[..N].copy_from_slice(&head);
        all[N..].copy_from_slice(&few.all()[..SmallBytes::MOST - N]);
        let len = N + few.len();
        (len <= SmallBytes::MOST).then(|| SmallBytes::first(len, all))
    }

    /// Splits the first `N` bytes off short bytes.
    #[inline(always)]
    pub(crate) fn split_head<const N: usize>(few: SmallBytes) -> Option<([u8; N], MessageBody)> {
        let (all, len) = (few.all(), few.len().checked_sub(N)?);
        let mut rest = [0; SmallBytes::MOST];
        rest[..SmallBytes::MOST - N].copy_from_slice(&all[N..]);
        Some((
            std::array::from_fn(|i| all[i]),
            MessageBody::Few { few: SmallBytes::first(len, rest), read: 0 },
        ))
    }

    /// Moves the body into another message. The body is empty after that.
    pub(crate) fn write(&mut self, out: &mut Outgoing) -> mp_core::Result<()> {
        match std::mem::replace(self, MessageBody::EMPTY) {
            MessageBody::Out(body) => match body.plain() {
                Some(bytes) => {
                    out.bytes().extend_from_slice(bytes);
                    recycle_buffer(body);
                    Ok(())
                }
                None => out.append(*body),
            },
            few @ MessageBody::Few { .. } => {
                out.bytes().extend_from_slice(few.unread());
                Ok(())
            }
            MessageBody::In(_) => Err(received()),
        }
    }

    pub(crate) fn rest(inc: &mut Incoming) -> MessageBody {
        MessageBody::In(Box::new(std::mem::take(inc)))
    }

    #[cfg(feature = "authkey")]
    pub(crate) fn into_incoming(self) -> Incoming {
        match self {
            MessageBody::In(inc) => *inc,
            MessageBody::Out(out) => out.into_incoming(),
            few @ MessageBody::Few { .. } => Incoming::from_plain(few.unread().to_vec()),
        }
    }

    /// Returns the bytes that were not read yet.
    #[inline(always)]
    pub(crate) fn unread(&self) -> &[u8] {
        match self {
            MessageBody::In(inc) => inc.rest(),
            MessageBody::Few { few, read } => few.as_slice().get(usize::from(*read)..).unwrap_or_default(),
            MessageBody::Out(_) => &[],
        }
    }

    /// Records that `n` bytes were read.
    #[inline(always)]
    pub(crate) fn advance(&mut self, n: usize) {
        match self {
            MessageBody::In(inc) => inc.advance(n),
            MessageBody::Few { few, read } => *read = (usize::from(*read) + n).min(few.len()) as u8,
            MessageBody::Out(_) => {}
        }
    }

    /// Calls `f` with the bytes that were not read yet. While `f` runs, decoding a serde value can take
    /// attachments from the body.
    pub(crate) fn with_unread<R>(&mut self, f: impl FnOnce(&[u8]) -> R) -> mp_core::Result<R> {
        match self {
            MessageBody::In(inc) => scope::with_incoming(inc, f),
            MessageBody::Few { .. } => Ok(scope::with_nothing(|| f(self.unread()))),
            MessageBody::Out(_) => Err(too_short_error()),
        }
    }

    /// Decodes the unread part of the body as one value. An error contains the type and the bytes of the
    /// value.
    #[inline(always)]
    pub(crate) fn read<V: Message>(&mut self) -> mp_core::Result<V> {
        if let MessageBody::Few { .. } = self
            && let Some(number) = message::decode_number::<V, MessagePack>(self.unread())
        {
            return Ok(number);
        }
        self.read_any()
    }

    fn read_any<V: Message>(&mut self) -> mp_core::Result<V> {
        match self {
            MessageBody::In(inc) => read_whole(inc),
            MessageBody::Few { .. } => V::decode_plain::<MessagePack>(self.unread())
                .map_err(|error| Undecodable::of_message::<V>(error, self.unread())),
            MessageBody::Out(_) => Err(too_short_error()),
        }
    }
}

/// Decodes the unread part of a message as one value. An error contains the type and the bytes of the value.
pub(crate) fn read_whole<A: Message>(inc: &mut Incoming) -> mp_core::Result<A> {
    let before = inc.whole().len() - inc.rest().len();
    A::decode::<MessagePack>(inc).map_err(|error| {
        let bytes = inc.whole().get(before..).unwrap_or_default();
        Undecodable::of_message::<A>(error, bytes)
    })
}

#[cold]
fn received() -> Error {
    Error::Unsendable("it was received, and is not sent again".into())
}

#[cold]
pub(crate) fn too_short_error() -> Error {
    Error::Malformed("a message of a manager is too short".into())
}

/// Reads the next `N` bytes, which are not encoded.
pub(crate) fn bytes<const N: usize>(inc: &mut Incoming) -> mp_core::Result<[u8; N]> {
    let bytes = *inc.rest().first_chunk().ok_or_else(too_short_error)?;
    inc.advance(N);
    Ok(bytes)
}

/// Answer of an object: the result of a call, or a status in place of a result.
pub(crate) struct CallAnswer(pub(crate) Result<MessageBody, AnswerStatus>);

/// Answer without a result.
#[derive(Serialize, Deserialize)]
pub(crate) enum AnswerStatus {
    /// The object is created, with this number in its server.
    Created { object: u64 },
    /// The call, or the closure that creates the object, failed or panicked.
    Raised(Box<CallFailure>),
    /// The arguments can't be decoded. Contains the path of the undecodable part and the reason.
    Undecodable(Box<Undecodable>),
    /// The captures, or the closure itself, can't be decoded. Contains the reason.
    Unreadable(String),
    /// The result can't be sent. Contains the reason.
    Unsendable(String),
    /// The object does not have the proxy's type. Contains the object's type.
    WrongType(String),
    /// The object was freed.
    Freed,
    /// No thread could be started for the object. Contains the reason.
    NoThread(String),
}

/// First byte of an answer with a result. The result follows.
const DONE: u8 = 1;
/// First byte of an answer without a result. The status follows.
const STATUS: u8 = 0;

impl Message for CallAnswer {
    fn encode<C: Codec>(&mut self, out: &mut Outgoing) -> mp_core::Result<()> {
        match &mut self.0 {
            Ok(body) => {
                out.bytes().push(DONE);
                body.write(out)
            }
            Err(status) => {
                out.bytes().push(STATUS);
                C::write(out, status)
            }
        }
    }

    fn take_back(&mut self, _: &mut UnsentValues) {
        // If the caller has ended, its answer is dropped together with the values that moved into the answer.
    }

    #[inline(always)]
    fn to_small_bytes<C: Codec>(&self) -> Option<SmallBytes> {
        self.0.as_ref().ok()?.with_head([DONE])
    }

    #[inline(always)]
    fn from_small_bytes<C: Codec>(few: SmallBytes) -> Option<Self> {
        match MessageBody::split_head(few)? {
            ([DONE], body) => Some(CallAnswer(Ok(body))),
            _ => None,
        }
    }

    fn decode<C: Codec>(inc: &mut Incoming) -> mp_core::Result<Self> {
        let [kind] = bytes(inc)?;
        match kind {
            DONE => Ok(CallAnswer(Ok(MessageBody::rest(inc)))),
            STATUS => C::read(inc).map(|status| CallAnswer(Err(status))),
            other => Err(Error::Malformed(format!("an answer of kind {other}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_manager_answers_are_encoded_like_long_ones() {
        let encode_args = |mut value: Option<u64>| {
            let mut out = empty_buffer();
            out.bytes().push(0);
            value.encode::<MessagePack>(&mut out).unwrap();
            MessageBody::of(out)
        };
        for value in [None, Some(0), Some(1 << 20), Some(u64::MAX >> 32)] {
            let mut few = MessageBody::few([0], &value).unwrap();
            assert_eq!(few.unread(), encode_args(value).unread());
            few.advance(1);
            assert!(few.with_head([]).is_none(), "a byte of the body was read");
            assert_eq!(few.read::<Option<u64>>().unwrap(), value);
        }
        assert_eq!(MessageBody::few([], &u64::MAX).unwrap().read::<u64>().unwrap(), u64::MAX);
        assert!(MessageBody::few([0], &u64::MAX).is_none() && MessageBody::few([], &String::new()).is_none());
    }
}
