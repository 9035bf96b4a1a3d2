//! Encoded values: short ones as bytes, others in an envelope.

use mp_core::message::nesting_depth::with_nested_message;
use mp_core::message::{Message, Outgoing};
use mp_core::{Arena, Envelope, Messages};
use mp_reduce::{MessagePack, TypeFingerprint};

/// Maximum size of arguments that are sent through the socket, in bytes: the capacity of a socket is limited,
/// and so is a frame. Longer arguments are sent through shared memory.
pub(super) const MOST_PLAIN: usize = 2 << 10;
/// Encoded value.
#[derive(Debug)]
pub(crate) enum Packed {
    Plain(Vec<u8>),
    Shared(Envelope),
}

impl Packed {
    /// Encodes a value, and drops it.
    pub(crate) fn new<T: Message>(mut value: T) -> mp_reduce::Result<Packed> {
        let mut out = Outgoing::default();
        with_nested_message(|| value.encode::<MessagePack>(&mut out))?;
        // The value now belongs to the message.
        mp_core::user_code::drop_caught(value);
        match out.into_plain(MOST_PLAIN) {
            Ok(bytes) => Ok(Packed::Plain(bytes)),
            Err(mut out) => {
                let fingerprint = TypeFingerprint::<T>::new().get();
                Ok(Packed::Shared(Messages(Arena::current()?).pack(&mut out, fingerprint)?))
            }
        }
    }
}
