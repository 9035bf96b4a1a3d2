//! Messages that are encoded before it is known where they go, and taken before they are read.

use std::collections::VecDeque;
use std::fmt;

use mp_core::user_code::drop_caught;
use mp_core::words::EnvelopeId;
use mp_core::{Message, Wait};
use mp_reduce::{Error, PackError, TypeFingerprint, pack_as};

use crate::error::{GetError, PutError};
use crate::queue::Queue;
use crate::queue::batch::Run;
use crate::raw::payload::{Payload, seal};

/// A message that is encoded already, and in no queue: to be put without running any code of the value, for
/// example while holding a lock.
///
/// ```
/// use mp_queue::Queue;
///
/// let (here, there) = (Queue::bounded(4)?, Queue::bounded(4)?);
/// let packed = here.pack("a job".to_string())?;
/// here.try_put_packed(packed)?;
/// // It was given to the wrong worker, which has not begun yet: from one queue into another, unread.
/// let packed = here.try_get_packed()?.expect("it is not closed");
/// there.try_put_packed(packed)?;
/// assert_eq!(there.get()?.as_deref(), Some("a job"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// It belongs to this process: when this dies, so does the message. Dropped, it releases what is in it.
pub struct EncodedMessage<T> {
    payload: Payload,
    fingerprint: TypeFingerprint<T>,
}

impl<T> fmt::Debug for EncodedMessage<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = std::any::type_name::<T>();
        match &self.payload {
            Payload::Envelope(envelope) => write!(f, "EncodedMessage<{name}>({})", envelope.id()),
            Payload::Small(_) => write!(f, "EncodedMessage<{name}>(small)"),
        }
    }
}

impl<T: Message> EncodedMessage<T> {
    /// Its number: no two messages that exist at the same time have the same one. As long as it is in a queue, it keeps it.
    /// `None` if it was [taken](Queue::try_get_packed) and is so small that it has none.
    pub fn number(&self) -> Option<EnvelopeId> {
        match &self.payload {
            Payload::Envelope(envelope) => Some(envelope.id()),
            Payload::Small(_) => None,
        }
    }

    /// Reads it.
    ///
    /// # Errors
    /// When it can't be decoded; its bytes are in the error.
    pub fn unpack(self) -> Result<T, Error> {
        self.payload.unpack(self.fingerprint)
    }
}

impl<T: Message> Queue<T> {
    /// Encodes a message, to be put later.
    ///
    /// # Errors
    /// As [`put`](Self::put), when it can't be encoded or there is no memory; the value comes back.
    pub fn pack(&self, mut value: T) -> Result<EncodedMessage<T>, PackError<T>> {
        let fingerprint = self.fingerprint();
        match pack_as(&mut value, |out| seal(self.raw(), out, fingerprint)) {
            Ok((envelope, lent)) => {
                // The message is the value now.
                lent.sent();
                drop_caught(value);
                Ok(EncodedMessage { payload: Payload::Envelope(envelope), fingerprint })
            }
            Err(error) => Err(PackError { value, error }),
        }
    }

    /// Whether [`pack`](Self::pack) would find room for a message now. A thread that packs its next message at once finds it.
    #[doc(hidden)]
    pub fn can_pack(&self) -> bool {
        self.raw().arena().keeps_envelope(self.raw().hold())
    }

    /// Why [`pack`](Self::pack) finds no room for a message: which queues have those that are on their way.
    #[doc(hidden)]
    pub fn too_many_messages(&self) -> Error {
        self.raw().too_many()
    }

    /// Puts a packed message if the queue is not full.
    ///
    /// # Errors
    /// As [`try_put`](Self::try_put); the message comes back.
    pub fn try_put_packed(&self, mut packed: EncodedMessage<T>) -> Result<(), PutError<EncodedMessage<T>>> {
        self.put_encoded(&mut packed).map_err(|e| e.map(|()| packed))
    }

    fn put_encoded(&self, packed: &mut EncodedMessage<T>) -> Result<(), PutError<()>> {
        packed.payload.fit(self.raw(), packed.fingerprint)?;
        self.raw().put(&mut packed.payload, Wait::Never, || None)
    }

    /// Puts packed messages, the first ones first, as long as the queue is not full. Returns how many; the
    /// others stay in `from`. Consumers that sleep are woken once for up to 64.
    ///
    /// # Errors
    /// In a process that was forked from a member.
    pub fn try_put_packed_many(&self, from: &mut VecDeque<EncodedMessage<T>>) -> Result<usize, Error> {
        let mut run = Run::new(self.raw(), true);
        let mut put = 0;
        while let Some(mut packed) = from.pop_front() {
            let at_once = match packed.payload.fit(self.raw(), packed.fingerprint) {
                Ok(()) => run.put(&mut packed.payload),
                Err(PutError::Failed { error, .. }) => Err(error),
                Err(_) => Ok(false),
            };
            match at_once {
                Ok(true) => {}
                Ok(false) => {
                    // It may need more than that: the next segment, say.
                    run.tell();
                    if let Err(end) = self.put_encoded(&mut packed) {
                        from.push_front(packed);
                        return match end {
                            PutError::Failed { error, .. } => Err(error),
                            _ => Ok(put),
                        };
                    }
                    run = Run::new(self.raw(), true);
                }
                Err(error) => {
                    from.push_front(packed);
                    return Err(error);
                }
            }
            put += 1;
        }
        Ok(put)
    }

    /// Takes the oldest message without reading it, if there is one. `None` when the queue is closed and drained.
    ///
    /// # Errors
    /// As [`try_get`](Self::try_get).
    pub fn try_get_packed(&self) -> Result<Option<EncodedMessage<T>>, GetError> {
        let mut payload = None;
        self.raw().get(&mut payload, Wait::Never, || None)?;
        let fingerprint = self.fingerprint();
        Ok(payload.map(|payload| EncodedMessage { payload, fingerprint }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::options::QueueOptions;

    /// A message that had no envelope in the queue that it comes from counts in one that is bounded by bytes, and so do those
    /// before it and behind it.
    #[test]
    fn a_bound_of_bytes_holds_around_a_small_message_of_another_queue() {
        let other = Queue::<Vec<u8>>::bounded(4).unwrap();
        let bound = QueueOptions::new().capacity(8).bytes(1000).create::<Vec<u8>>().unwrap();
        let large = vec![7; 600];
        for many in [false, true] {
            other.put(vec![1]).unwrap();
            let small = other.try_get_packed().unwrap().unwrap();
            bound.put(large.clone()).unwrap();
            if many {
                assert_eq!(bound.try_put_packed_many(&mut VecDeque::from([small])).unwrap(), 1);
            } else {
                bound.try_put_packed(small).unwrap();
            }
            assert!(bound.try_put(large.clone()).unwrap_err().is_full(), "1200 bytes of 1000");
            assert_eq!(bound.get().unwrap(), Some(large.clone()));
            assert_eq!(bound.get().unwrap(), Some(vec![1]));
        }
    }
}
