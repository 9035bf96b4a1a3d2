//! Return value of a child's function, as the parent receives it.

use mp_core::Envelope;
use mp_core::message::nesting_depth::with_nested_message;
use mp_core::message::{Incoming, Message};
use mp_reduce::{MessagePack, Unread};

/// Return value of a function.
#[derive(Debug)]
pub(crate) enum ReceivedValue {
    Plain(Vec<u8>),
    Shared(Envelope),
    /// Message that was opened and not read yet.
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

    /// Closes the descriptors that [`ready`](Self::ready) has opened, because the value is not read now.
    pub(crate) fn put_aside(&self) {
        if let ReceivedValue::Unread(unread) = self {
            unread.unclaim();
        }
    }
}

fn is_for_lack_of_descriptors(error: &mp_reduce::Error) -> bool {
    matches!(error, mp_reduce::Error::Memory(mp_core::Error::OutOfDescriptors(_)))
}
