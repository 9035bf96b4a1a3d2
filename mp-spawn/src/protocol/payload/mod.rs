//! Data that parent and child exchange besides frames: arguments, shared memory, the report of a crash.
//!
//! This is the only place where processes get shared memory. The arena's file is sent to each child. Short
//! arguments without tensors or similar objects are sent through the socket. The child then joins as a member
//! when it first needs shared memory, and notifies its parent. (A child that is killed between the two is
//! found by its locks, like one without a parent.) All other arguments are packed into an envelope that
//! belongs to the parent until the child claims it, and the child joins before it sends its hello. So a child
//! that crashes in between leaves nothing, and neither does a parent. The return value of the function is
//! sent back in the same two ways: in the report, or in an envelope that belongs to the child until the
//! parent has claimed it, and the child waits for that.
//!
//! The envelope of the arguments is a [`Promise`], whose documentation covers the death of either process.
//! For the envelope of the result:
//!
//! | killed | left | cleaned up by |
//! |---|---|---|
//! | child, before the parent claimed its result | an envelope of the crashed child | the reclaim; the result is lost |
//! | child, which could not read its arguments for lack of descriptors, before the parent claimed them back | the same | the reclaim; they are lost |
//! | parent, before or after it claimed a result | an envelope of one of the two | the reclaim of that process |
pub(crate) mod receive;
pub(crate) mod result;
pub(crate) mod send;
pub(crate) mod shared_memory;

use mp_core::message::level::with_nested_message;
use mp_core::message::{Message, Outgoing};
use mp_core::{Arena, Envelope, Messages};
use mp_reduce::{MessagePack, TypeFingerprint};

/// Maximum size of arguments that are sent through the socket, in bytes: the capacity of a socket is limited,
/// and so is a frame. Longer arguments are sent through shared memory.
const MOST_PLAIN: usize = 2 << 10;
/// First byte of a payload of which the rest is the arguments.
const PLAIN: u8 = 0;
/// First byte of a payload of which the rest is a ticket for the arguments.
pub(crate) const TICKET: u8 = 1;
/// First byte of a payload of which the rest is the arguments, for a child that inherits settings of the
/// arena.
const PLAIN_WITH_SETTINGS: u8 = 2;

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
