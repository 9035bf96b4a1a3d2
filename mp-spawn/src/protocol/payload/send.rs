//! In the parent: arguments of a child.

use std::os::fd::BorrowedFd;

use mp_core::children_inherit_settings;
use mp_core::message::level::with_nested_message;
use mp_core::message::{Codec, Message, Outgoing};
use mp_core::{Envelope, Promise};
use mp_reduce::{Encoded, MessagePack};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Result, SpawnError};
use crate::protocol::payload::shared_memory::{arena, arena_file};
use crate::protocol::payload::{MOST_PLAIN, PLAIN, PLAIN_WITH_SETTINGS, Packed, TICKET};

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
