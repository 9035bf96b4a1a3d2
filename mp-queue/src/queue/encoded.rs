//! Messages that are encoded before they are put, or taken without being decoded.

use std::collections::VecDeque;
use std::fmt;

use mp_core::message::Outgoing;
use mp_core::user_code::drop_caught;
use mp_core::words::EnvelopeId;
use mp_core::{Message, Messages, RelayedMessage, Wait};
use mp_reduce::{Error, PackError, TypeFingerprint, pack_as};

use crate::error::{GetError, PutError};
use crate::queue::Queue;
use crate::queue::batch::BatchOperation;
use crate::raw::payload::{Payload, pack_envelope, put_error};

/// An encoded message outside of any queue. Putting the message runs no code of the value, so a thread can
/// put the message while it holds a lock.
///
/// ```
/// use mp_queue::Queue;
///
/// let (here, there) = (Queue::bounded(4)?, Queue::bounded(4)?);
/// let packed = here.pack("a job".to_string())?;
/// here.try_put_packed(packed)?;
/// // Moves the job into the queue of another worker, without decoding it.
/// let packed = here.try_get_packed()?.expect("it is not closed");
/// there.try_put_packed(packed)?;
/// assert_eq!(there.get()?.as_deref(), Some("a job"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// The message belongs to this process and is lost when the process dies. Dropping it releases its contents.
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
    /// Returns the message's number, which is unique among existing messages and stays the same while the
    /// message is in a queue. Returns `None` if the message was [taken](Queue::try_get_packed) and is too
    /// small to have a number.
    pub fn number(&self) -> Option<EnvelopeId> {
        match &self.payload {
            Payload::Envelope(envelope) => Some(envelope.id()),
            Payload::Small(_) => None,
        }
    }

    /// Decodes the message.
    ///
    /// # Errors
    /// Returns an error if the message can't be decoded. The error contains its bytes.
    pub fn unpack(self) -> Result<T, Error> {
        self.payload.unpack(self.fingerprint)
    }
}

impl<T: Message> EncodedMessage<T> {
    /// Returns the message for a relay to another arena: its bytes, and the access and size of each
    /// attachment.
    ///
    /// # Errors
    /// Returns an error if an attachment can't leave this arena, or the words of the message are invalid.
    #[doc(hidden)]
    pub fn relayed(&self) -> Result<RelayedMessage, Error> {
        match &self.payload {
            Payload::Envelope(envelope) => Ok(envelope.relayed()?),
            Payload::Small(small) => Ok((small.bytes().as_slice().to_vec(), Vec::new())),
        }
    }

    /// Returns the number of bytes that the message adds to a queue with a bound of bytes.
    #[doc(hidden)]
    pub fn weight(&self) -> u64 {
        self.payload.weight()
    }

    /// Returns the memory of an attachment, whose number is its index in the list of
    /// [`relayed`](Self::relayed).
    #[doc(hidden)]
    pub fn relayed_memory(&self, attachment: usize) -> &[u8] {
        match &self.payload {
            Payload::Envelope(envelope) => envelope.relayed_memory(attachment),
            Payload::Small(_) => &[],
        }
    }
}

impl<T: Message> Queue<T> {
    /// Packs a message that arrived from another arena. The caller must have checked that the message has
    /// this queue's type.
    ///
    /// # Errors
    /// Returns the same errors as [`put`](Self::put) if there is not enough memory. The message is then
    /// unchanged.
    #[doc(hidden)]
    pub fn pack_relayed(&self, out: &mut Outgoing) -> Result<EncodedMessage<T>, PutError<()>> {
        let fingerprint = self.fingerprint();
        match pack_envelope(self.raw(), out, fingerprint.get()) {
            Ok(envelope) => Ok(EncodedMessage { payload: Payload::Envelope(envelope), fingerprint }),
            Err(error) => Err(put_error(self.raw(), error.into())),
        }
    }

    /// Makes all later puts store their messages in envelopes, so that the messages can be [put
    /// back](Self::put_back).
    #[doc(hidden)]
    pub fn allow_put_back(&self) {
        self.raw().memory().enable_redelivery();
    }

    /// Puts a message back into the queue from which it was taken, which must be this queue. Consumers take
    /// the message before all other messages.
    ///
    /// # Errors
    /// Returns the message if it is small and has no envelope because it was put before
    /// [`allow_put_back`](Self::allow_put_back). The caller can put it as a new message.
    #[doc(hidden)]
    pub fn put_back(&self, mut message: EncodedMessage<T>) -> Result<(), EncodedMessage<T>> {
        match &mut message.payload {
            // Fails only in a forked child, which has no messages.
            Payload::Envelope(envelope) => _ = self.raw().memory().put_back(envelope),
            Payload::Small(_) => return Err(message),
        }
        Ok(())
    }

    /// Encodes a message, to be put later.
    ///
    /// # Errors
    /// Returns the same errors as [`put`](Self::put), if the value can't be encoded or there is not enough
    /// memory. The error contains the value.
    pub fn pack(&self, mut value: T) -> Result<EncodedMessage<T>, PackError<T>> {
        let fingerprint = self.fingerprint();
        match pack_as(&mut value, |out| pack_envelope(self.raw(), out, fingerprint.get())) {
            Ok((envelope, lent)) => {
                // The encoded message has replaced the value.
                lent.commit();
                drop_caught(value);
                Ok(EncodedMessage { payload: Payload::Envelope(envelope), fingerprint })
            }
            Err(error) => Err(PackError { value, error }),
        }
    }

    /// Returns `true` if [`pack`](Self::pack) would find an envelope for a message now. This thread keeps the
    /// envelope for its next `pack`, unless the envelope belongs to the queue's share.
    #[doc(hidden)]
    pub fn can_pack(&self) -> bool {
        Messages(self.raw().arena()).keeps_envelope(self.raw().hold().block())
    }

    /// Returns the error for a [`pack`](Self::pack) without a free envelope. The error lists the queues with
    /// messages.
    #[doc(hidden)]
    pub fn too_many_messages(&self) -> Error {
        self.raw().too_many()
    }

    /// Puts an encoded message if the queue is not full.
    ///
    /// # Errors
    /// Returns the same errors as [`try_put`](Self::try_put). The error contains the message.
    pub fn try_put_packed(&self, mut packed: EncodedMessage<T>) -> Result<(), PutError<EncodedMessage<T>>> {
        self.put_encoded(&mut packed).map_err(|e| e.with(packed))
    }

    fn put_encoded(&self, packed: &mut EncodedMessage<T>) -> Result<(), PutError<()>> {
        packed.payload.fit_into(self.raw(), packed.fingerprint.get())?;
        self.raw().put(&mut packed.payload, Wait::Never)
    }

    /// Puts encoded messages from the front of `from` until the queue is full. Returns the number of messages
    /// put. The others stay in `from`. Sleeping consumers are woken once for up to 64 messages.
    ///
    /// # Errors
    /// Returns an error in a process that was forked from a member.
    pub fn try_put_packed_many(&self, from: &mut VecDeque<EncodedMessage<T>>) -> Result<usize, Error> {
        let mut run = BatchOperation::new(self.raw(), true);
        let mut put = 0;
        while let Some(mut packed) = from.pop_front() {
            let at_once = match packed.payload.fit_into(self.raw(), packed.fingerprint.get()) {
                Ok(()) => run.put(&mut packed.payload),
                Err(PutError::Failed { error, .. }) => Err(error),
                Err(_) => Ok(false),
            };
            match at_once {
                Ok(true) => {}
                Ok(false) => {
                    // The full path may succeed, for example with the next segment.
                    run.flush();
                    if let Err(end) = self.put_encoded(&mut packed) {
                        from.push_front(packed);
                        return match end {
                            PutError::Failed { error, .. } => Err(error),
                            _ => Ok(put),
                        };
                    }
                    run = BatchOperation::new(self.raw(), true);
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

    /// Takes the oldest message, if there is one, without decoding it. Returns `None` if the queue is closed
    /// and drained.
    ///
    /// # Errors
    /// Returns the same errors as [`try_get`](Self::try_get).
    pub fn try_get_packed(&self) -> Result<Option<EncodedMessage<T>>, GetError> {
        let mut payload = None;
        self.raw().get(&mut payload, Wait::Never)?;
        let fingerprint = self.fingerprint();
        Ok(payload.map(|payload| EncodedMessage { payload, fingerprint }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw::options::QueueOptions;

    /// A small message without an envelope is taken from one queue and put into a queue with a bound of
    /// bytes. Its bytes and the bytes of the other messages are counted.
    #[test]
    fn byte_bound_counts_packed_small_messages() {
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

    #[test]
    fn messages_put_back_count_in_the_queue_length() {
        let queue = Queue::<u64>::bounded(2).unwrap();
        queue.allow_put_back();
        let state = || (queue.len(), queue.is_empty(), queue.raw().memory().describe().len, queue.is_full());
        for number in 0..2 {
            queue.put(number).unwrap();
        }
        let message = queue.try_get_packed().unwrap().unwrap();
        assert_eq!(state(), (1, false, 1, false));
        queue.put_back(message).unwrap();
        assert_eq!(state(), (2, false, 2, false));
        assert!(format!("{queue:?}").contains("(2 of 2, "), "{queue:?}");
        drop(queue.get_lease().unwrap());
        assert_eq!(state(), (2, false, 2, false));
        queue.put(2).unwrap();
        assert_eq!(state(), (3, false, 3, true), "a returned message occupies no slot");
        for (number, left) in [(0, 2), (1, 1), (2, 0)] {
            assert_eq!(queue.get().unwrap(), Some(number));
            assert_eq!(state(), (left, left == 0, left as u64, left == 2));
        }
    }
}
