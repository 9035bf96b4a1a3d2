//! Return value of a worker's function, in the child and in the parent.

use mp_core::Messages;
use mp_core::message::level::with_nested_message;
use mp_core::message::{Incoming, Message, Outgoing};
use mp_core::{Arena, Envelope};
use mp_reduce::{MessagePack, TypeFingerprint, Unread};

use crate::protocol::payload::MOST_PLAIN;

/// Return value of a function, to be sent to the parent.
#[derive(Debug)]
pub(crate) enum ReturnValue {
    Plain(Vec<u8>),
    Shared(Envelope),
}

impl ReturnValue {
    /// In a child: packs the return value of its function.
    pub(crate) fn pack<T: Message>(mut value: T) -> mp_reduce::Result<ReturnValue> {
        let mut out = Outgoing::default();
        with_nested_message(|| value.encode::<MessagePack>(&mut out))?;
        // The value now belongs to the message.
        mp_core::user_code::drop_caught(value);
        match out.into_plain(MOST_PLAIN) {
            Ok(bytes) => Ok(ReturnValue::Plain(bytes)),
            Err(mut out) => {
                let fingerprint = TypeFingerprint::<T>::new().get();
                Ok(ReturnValue::Shared(Messages(Arena::current()?).pack(&mut out, fingerprint)?))
            }
        }
    }
}

/// In the parent: return value of a function.
#[derive(Debug)]
pub(crate) enum ReceivedValue {
    Plain(Vec<u8>),
    Shared(Envelope),
    /// Opened, and not read yet.
    Unread(Unread),
}

impl ReceivedValue {
    /// Prepares the value for reading, so that descriptors are available for all objects in it.
    ///
    /// # Errors
    /// The reason, and the value, if it can be read later.
    pub(crate) fn ready(self) -> Result<ReceivedValue, (mp_reduce::Error, Option<Unread>)> {
        let unread = match self {
            ReceivedValue::Plain(bytes) => return Ok(ReceivedValue::Plain(bytes)),
            ReceivedValue::Shared(envelope) => Unread::of(envelope).map_err(|error| (error, None))?,
            ReceivedValue::Unread(unread) => unread,
        };
        match unread.claim() {
            Err(error) if is_for_lack_of_descriptors(&error) => Err((error, Some(unread))),
            Err(error) => Err((error, None)),
            Ok(()) => Ok(ReceivedValue::Unread(unread)),
        }
    }

    /// Decodes the value.
    pub(crate) fn unpack<T: Message>(self) -> mp_reduce::Result<T> {
        match self {
            ReceivedValue::Plain(bytes) => {
                Ok(with_nested_message(|| T::decode::<MessagePack>(&mut Incoming::from_plain(bytes)))?)
            }
            ReceivedValue::Shared(envelope) => mp_reduce::unpack(envelope),
            ReceivedValue::Unread(unread) => unread.read(),
        }
    }

    /// Releases the preparation of a value that is not read now.
    pub(crate) fn put_aside(&self) {
        if let ReceivedValue::Unread(unread) = self {
            unread.unclaim();
        }
    }
}

fn is_for_lack_of_descriptors(error: &mp_reduce::Error) -> bool {
    matches!(error, mp_reduce::Error::Memory(mp_core::Error::OutOfDescriptors(_)))
}
