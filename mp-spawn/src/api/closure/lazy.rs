//! Closures in messages, which are decoded after the message was received.

use mp_core::Error;
use mp_core::message::{Codec, Incoming, Message, Outgoing};
use mp_reduce::MessagePack;

use crate::api::closure::Closure;
use crate::error::CallFailure;

/// Closure in a message. The receiver decodes the closure later, in code that can report an error.
#[derive(Debug)]
pub enum LazyClosure<R: 'static> {
    /// Closure to be sent.
    ToSend(Closure<(), R>),
    /// Part of a received message that contains the closure and was not read yet.
    Received(Box<Incoming>),
}

impl<R: 'static> LazyClosure<R> {
    /// Takes the part of a received message that contains the closure and was not read yet.
    pub fn rest(inc: &mut Incoming) -> LazyClosure<R> {
        LazyClosure::Received(Box::new(std::mem::take(inc)))
    }

    /// Encodes the closure. Calls user code.
    pub fn write<C: Codec>(&mut self, out: &mut Outgoing) -> mp_core::Result<()> {
        match self {
            LazyClosure::ToSend(closure) => CallFailure::catch_encode(|| closure.encode::<C>(out)),
            LazyClosure::Received(_) => {
                Err(Error::Unsendable("it was received, and is not sent again".into()))
            }
        }
    }

    /// Decodes a received closure, or returns the reason why that failed. Calls user code.
    pub fn read(self) -> Result<Closure<(), R>, String> {
        let LazyClosure::Received(mut inc) = self else { return Err("it was not sent".into()) };
        match CallFailure::catch(|| Closure::decode::<MessagePack>(&mut inc)) {
            Ok(read) => read.map_err(|error| error.to_string()),
            Err(raise) => Err(raise.message().to_string()),
        }
    }
}
