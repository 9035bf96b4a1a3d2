//! Arguments of a child's function, from the parent's encoding to the child's decoding.

use std::os::fd::BorrowedFd;

use mp_core::message::nesting_depth::with_nested_message;
use mp_core::message::{Codec, Incoming, Message, Outgoing};
use mp_core::{Envelope, EnvelopeTicket, Promise, children_inherit_settings};
use mp_reduce::{Encoded, MessagePack};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Result, SpawnError};
use crate::protocol::payload::packed::{MOST_PLAIN, Packed};
use crate::protocol::payload::shared_memory::{arena, arena_file, claim};

/// First byte of a payload whose other bytes are the arguments.
const PLAIN: u8 = 0;
/// First byte of a payload whose other bytes are a ticket for the arguments.
pub(crate) const TICKET: u8 = 1;
/// First byte of a payload whose other bytes are the arguments, for a child that inherits settings of the
/// arena.
const PLAIN_WITH_SETTINGS: u8 = 2;

/// Data that is sent to a child with its start message.
#[derive(Debug)]
pub(crate) struct ChildPayload {
    /// Arguments, or a ticket for their envelope.
    pub(crate) bytes: Vec<u8>,
    /// File of the arena.
    pub(crate) memory: BorrowedFd<'static>,
    /// Owner of arguments in an envelope, until the child has taken them.
    pub(crate) promise: Option<Promise>,
}

/// Arguments, encoded once for any number of children.
#[derive(Debug)]
pub(crate) enum EncodedArgs<A> {
    Plain(Vec<u8>),
    Shared(Encoded<A>),
}

impl ChildPayload {
    /// Encodes arguments, to be packed for each of several children.
    pub(crate) fn encode<A: Serialize + DeserializeOwned + 'static>(args: &A) -> Result<EncodedArgs<A>> {
        let mut out = Outgoing::default();
        with_nested_message(|| MessagePack::write_whole(&mut out, args))
            .map_err(|e| unencodable(e.into()))?;
        match out.into_plain(MOST_PLAIN) {
            Ok(bytes) => Ok(EncodedArgs::Plain(bytes)),
            Err(out) => Ok(EncodedArgs::Shared(Encoded::finish(arena()?, out).map_err(unencodable)?)),
        }
    }

    /// Packs arguments for one child.
    pub(crate) fn pack<A: Serialize + DeserializeOwned + 'static>(
        args: &EncodedArgs<A>,
    ) -> Result<ChildPayload> {
        match args {
            EncodedArgs::Plain(bytes) => ChildPayload::plain(bytes),
            EncodedArgs::Shared(args) => ChildPayload::with(args.pack().map_err(unencodable)?),
        }
    }

    /// Moves arguments to one child.
    pub(crate) fn pack_moved<A: Message>(args: A) -> Result<ChildPayload> {
        match Packed::new(args).map_err(unencodable)? {
            Packed::Plain(bytes) => ChildPayload::plain(&bytes),
            Packed::Shared(envelope) => ChildPayload::with(envelope),
        }
    }

    fn plain(args: &[u8]) -> Result<ChildPayload> {
        let first = if children_inherit_settings() { PLAIN_WITH_SETTINGS } else { PLAIN };
        ChildPayload::new([&[first], args].concat(), None)
    }

    fn with(envelope: Envelope) -> Result<ChildPayload> {
        let promise = Promise::new(envelope);
        ChildPayload::new([&[TICKET], &promise.ticket().to_bytes()[..]].concat(), Some(promise))
    }

    fn new(bytes: Vec<u8>, promise: Option<Promise>) -> Result<ChildPayload> {
        Ok(ChildPayload { bytes, memory: arena_file()?, promise })
    }
}

fn unencodable(error: mp_reduce::Error) -> SpawnError {
    SpawnError::Arguments { who: None, message: error.to_string(), unread: None }
}

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
