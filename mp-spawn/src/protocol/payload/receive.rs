//! In the child: its arguments.

use mp_core::message::level::with_nested_message;
use mp_core::message::{Incoming, Message};
use mp_core::{Envelope, EnvelopeTicket};
use mp_reduce::MessagePack;

use crate::protocol::payload::shared_memory::claim;
use crate::protocol::payload::{PLAIN, TICKET};

/// Payload that a child received with its start message.
#[derive(Debug)]
pub(crate) struct ParentPayload {
    /// Arguments, or a ticket for their envelope.
    pub(crate) bytes: Vec<u8>,
}

impl ParentPayload {
    /// Returns `true` if the child needs shared memory at once.
    #[inline]
    pub(crate) fn need_memory(&self) -> bool {
        self.bytes.first() != Some(&PLAIN)
    }

    /// Claims the arguments, and decodes them.
    ///
    /// # Errors
    /// The reason in words, and the arguments, if the reason is a lack of descriptors.
    pub(crate) fn unpack<A: Message>(mut self) -> Result<A, (String, Option<Envelope>)> {
        if !matches!(self.bytes.first(), Some(&TICKET)) {
            let args = self.bytes.split_off(self.bytes.len().min(1));
            let decoded = with_nested_message(|| A::decode::<MessagePack>(&mut Incoming::from_plain(args)));
            return decoded.map_err(|e| (mp_reduce::Error::from(e).to_string(), None));
        }
        let envelope = self.claim().map_err(|why| (why, None))?;
        mp_reduce::unpack_or_keep::<A>(envelope).map_err(|(error, kept)| (error.to_string(), kept))
    }

    fn claim(&self) -> Result<Envelope, String> {
        let ticket = self.bytes.get(1..).and_then(EnvelopeTicket::from_bytes);
        claim(ticket.ok_or("the ticket for the arguments is malformed")?)
    }
}
