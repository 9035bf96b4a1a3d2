//! Messages between callers and the server.
//!
//! Each object has its own channel. The object's proxies hold the senders, and its thread in the server has
//! the receiver: the object ends with the channel. Each caller has a channel for its answers, whose sender it
//! passes to the object with its first request ([`ObjectRequest::Hello`]).
//!
//! Each caller sends the code of a closure once ([`ObjectRequest::Learn`]). After that, a number identifies
//! the code. So a call of a closure without captures is a message that needs no memory of its own.
//!
//! Each message begins with its kind and its caller, unencoded: no user code runs before these are written or
//! read. If the rest can't be decoded, the caller gets the error.

use mp_core::Error;
use mp_core::message::{Codec, Incoming, Message, Outgoing, SmallBytes, UnsentValues};
use mp_queue::{Receiver, Sender};
use mp_spawn::LazyClosure;
use serde::{Deserialize, Serialize};

use crate::answer::{CallAnswer, MessageBody, bytes};
use crate::object::{ObjectCall, ObjectResult};

/// Request to the server's main thread.
#[derive(Serialize, Deserialize)]
pub(crate) enum Control {
    /// Serve a new object. The first request contains the closure that creates the object.
    Serve { requests: Receiver<ObjectRequest> },
    /// End, after giving running calls this time in milliseconds.
    Stop { grace: u64 },
}

/// Request of a caller to an object.
pub(crate) enum ObjectRequest {
    /// Send answers for this caller to this channel.
    Hello { caller: u32, answers: Box<Sender<CallAnswer>> },
    /// Create the object.
    Make { caller: u32, maker: LazyClosure<ObjectResult> },
    /// Store this code of this caller under this number.
    Learn { caller: u32, code: u16, task: LazyClosure<ObjectCall> },
    /// Call the code with this number. The body contains captures and arguments.
    Call { caller: u32, code: u16, body: MessageBody },
    /// Free the object.
    Free { caller: u32 },
}

/// Maximum number of closures of a caller.
pub(crate) const MOST_CODES: usize = 0xff00;
const HELLO: u16 = 0xff00;
const MAKE: u16 = 0xff01;
const LEARN: u16 = 0xff02;
const FREE: u16 = 0xff03;

fn write_head(out: &mut Outgoing, kind: u16, caller: u32) {
    out.bytes().extend_from_slice(&kind.to_le_bytes());
    out.bytes().extend_from_slice(&caller.to_le_bytes());
}

impl Message for ObjectRequest {
    fn encode<C: Codec>(&mut self, out: &mut Outgoing) -> mp_core::Result<()> {
        match self {
            ObjectRequest::Hello { caller, answers } => {
                write_head(out, HELLO, *caller);
                C::write(out, answers)
            }
            ObjectRequest::Make { caller, maker } => {
                write_head(out, MAKE, *caller);
                maker.write::<C>(out)
            }
            ObjectRequest::Learn { caller, code, task } => {
                write_head(out, LEARN, *caller);
                out.bytes().extend_from_slice(&code.to_le_bytes());
                task.write::<C>(out)
            }
            ObjectRequest::Call { caller, code, body } => {
                write_head(out, *code, *caller);
                body.write(out)
            }
            ObjectRequest::Free { caller } => {
                write_head(out, FREE, *caller);
                Ok(())
            }
        }
    }

    fn take_back(&mut self, _: &mut UnsentValues) {
        // If a request can't be sent, it is dropped together with the values that moved into it.
    }

    #[inline(always)]
    fn to_small_bytes<C: Codec>(&self) -> Option<SmallBytes> {
        let ObjectRequest::Call { caller, code, body } = self else { return None };
        let ([a, b], [c, d, e, f]) = (code.to_le_bytes(), caller.to_le_bytes());
        body.with_head([a, b, c, d, e, f])
    }

    #[inline(always)]
    fn from_small_bytes<C: Codec>(few: SmallBytes) -> Option<Self> {
        let ([a, b, c, d, e, f], body) = MessageBody::split_head(few)?;
        let (code, caller) = (u16::from_le_bytes([a, b]), u32::from_le_bytes([c, d, e, f]));
        let is_call = usize::from(code) < MOST_CODES;
        is_call.then_some(ObjectRequest::Call { caller, code, body })
    }

    fn decode<C: Codec>(inc: &mut Incoming) -> mp_core::Result<Self> {
        let kind = u16::from_le_bytes(bytes(inc)?);
        let caller = u32::from_le_bytes(bytes(inc)?);
        match kind {
            HELLO => Ok(ObjectRequest::Hello { caller, answers: C::read(inc)? }),
            MAKE => Ok(ObjectRequest::Make { caller, maker: LazyClosure::rest(inc) }),
            LEARN => {
                let code = u16::from_le_bytes(bytes(inc)?);
                Ok(ObjectRequest::Learn { caller, code, task: LazyClosure::rest(inc) })
            }
            FREE => Ok(ObjectRequest::Free { caller }),
            code if usize::from(code) < MOST_CODES => {
                Ok(ObjectRequest::Call { caller, code, body: MessageBody::rest(inc) })
            }
            other => Err(Error::Malformed(format!("a request of kind {other}"))),
        }
    }
}
