//! Data that parent and child exchange in addition to frames: arguments, shared memory, the report of a
//! crash.
//!
//! This is the only place where processes get shared memory. The arena's file is sent to each child. Short
//! arguments without tensors or similar objects are sent through the socket. The child then joins as a member
//! when it first needs shared memory, and notifies its parent. (A child that is killed after it joined and
//! before it notified its parent is detected by its locks, like a member without a parent.) All other
//! arguments are packed into an envelope that belongs to the parent until the child claims it, and the child
//! joins before it sends its hello. So the envelope is freed if either process crashes before the hello.
//! The return value of the function is sent back in the same two ways: in the report, or in an envelope. The
//! envelope belongs to the child until the parent has claimed it, and the child waits for that.
//!
//! The envelope of the arguments is a [`Promise`], whose documentation covers the death of either process.
//! For the envelope of the result:
//!
//! | killed | remains | cleaned up by |
//! |---|---|---|
//! | child, before the parent claimed its result | an envelope of the crashed child | the reclaim; the result is lost |
//! | child, after it failed to read its arguments for lack of descriptors, and before the parent claimed their envelope back | an envelope of the crashed child | the reclaim; the arguments are lost |
//! | parent, before or after it claimed a result | an envelope of one of the two | the reclaim of that process |

pub(crate) mod shared_memory;

use std::os::fd::BorrowedFd;

use mp_core::message::nesting_depth::with_nested_message;
use mp_core::message::{Codec, Incoming, Message, Outgoing};
use mp_core::{Arena, Envelope, EnvelopeTicket, Messages, Promise, children_inherit_settings};
use mp_reduce::{Encoded, MessagePack, TypeFingerprint, Unread};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Result, SpawnError};
use crate::protocol::payload::shared_memory::{arena, arena_file, claim};

/// Maximum size of arguments that are sent through the socket, in bytes: the capacity of a socket is limited,
/// and so is a frame. Longer arguments are sent through shared memory.
const MOST_PLAIN: usize = 2 << 10;
/// First byte of a payload whose other bytes are the arguments.
const PLAIN: u8 = 0;
/// First byte of a payload whose other bytes are a ticket for the arguments.
pub(crate) const TICKET: u8 = 1;
/// First byte of a payload whose other bytes are the arguments, for a child that inherits settings of the
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
