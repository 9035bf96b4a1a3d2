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
//! | child, before the parent claimed its result | an envelope of the crashed child | the sweep; the result is lost |
//! | child, which could not read its arguments for lack of descriptors, before the parent claimed them back | the same | the sweep; they are lost |
//! | parent, before or after it claimed a result | an envelope of one of the two | the sweep of that process |
//!
//! # Safety
//! Unsafe, because the arena's file is sent and attached, an envelope is claimed by its number, and a member
//! is declared dead. Sound, because file and number are sent to one child, over a socket that only this child
//! has, because the parent takes the envelope back by the same compare-and-swap, which one of the two wins,
//! and because a death is declared after `waitid`.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use mp_core::message::level::with_nested_message;
use mp_core::message::{Codec, Incoming, Message, Outgoing};
use mp_core::words::Member;
use mp_core::{Arena, Envelope, Promise, Ticket};
use mp_reduce::{Encoded, MessagePack, TypeFingerprint, Unread};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::os_limit;
use crate::error::{LaunchError, Result, SpawnError};
use crate::protocol::control_socket;
use crate::protocol::frame::FrameKind;
use crate::protocol::message::MemberJoined;

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
    pub(crate) fn pack_moved<A: Message>(mut args: A) -> Result<ChildPayload> {
        let mut out = Outgoing::default();
        with_nested_message(|| args.encode::<MessagePack>(&mut out)).map_err(|e| unencodable(e.into()))?;
        // The value now belongs to the message.
        mp_core::user_code::drop_caught(args);
        match out.into_plain(MOST_PLAIN) {
            Ok(bytes) => ChildPayload::plain(&bytes),
            Err(mut out) => {
                let fingerprint = TypeFingerprint::<A>::new().get();
                ChildPayload::with(arena()?.pack(&mut out, fingerprint).map_err(|e| unencodable(e.into()))?)
            }
        }
    }

    fn plain(args: &[u8]) -> Result<ChildPayload> {
        let first = if Arena::children_inherit_settings() { PLAIN_WITH_SETTINGS } else { PLAIN };
        ChildPayload::new([&[first], args].concat(), None)
    }

    fn with(envelope: Envelope) -> Result<ChildPayload> {
        let promise = Promise::new(envelope);
        ChildPayload::new([&[TICKET], &promise.ticket().to_bytes()[..]].concat(), Some(promise))
    }

    fn new(bytes: Vec<u8>, promise: Option<Promise>) -> Result<ChildPayload> {
        // SAFETY: sent to a child that attaches it, and not duplicated here.
        let memory = unsafe { arena()?.fd() }.map_err(no_memory)?;
        Ok(ChildPayload { bytes, memory, promise })
    }
}

/// Returns the shared memory of this process, and joins it if necessary.
pub(crate) fn arena() -> Result<Arena> {
    Arena::current().map_err(no_memory)
}

fn no_memory(error: mp_core::Error) -> SpawnError {
    match os_limit::of_memory() {
        None => unencodable(error.into()),
        cause => SpawnError::Launch(Box::new(LaunchError {
            what: "sharing memory with a worker",
            program: None,
            limit: None,
            cause,
            source: io::Error::other(error).into(),
        })),
    }
}

fn unencodable(error: mp_reduce::Error) -> SpawnError {
    SpawnError::Arguments { who: None, message: error.to_string(), unread: None }
}

/// In the parent: claims an envelope that a child has left to it.
pub(crate) fn claim(ticket: Ticket) -> Result<Envelope, String> {
    let arena = Arena::current().map_err(|e| e.to_string())?;
    // SAFETY: a child sent this ticket to its parent alone, and does not use the envelope any more.
    unsafe { ticket.claim(arena) }.map_err(|e| e.to_string())
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
        let ticket = self.bytes.get(1..).and_then(Ticket::from_bytes);
        let ticket = ticket.ok_or("the ticket for the arguments is malformed")?;
        let arena = Arena::current().map_err(|e| e.to_string())?;
        // SAFETY: the parent sent this ticket to this process only.
        unsafe { ticket.claim(arena) }.map_err(|e| e.to_string())
    }
}

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
                Ok(ReturnValue::Shared(Arena::current()?.pack(&mut out, fingerprint)?))
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

/// Joins the shared memory of this file descriptor, before any other use of it in the child: now, or when
/// this process first needs it. Returns the member that this process is, if it has joined.
#[inline]
pub(crate) fn child_attach(fd: Option<OwnedFd>, now: bool) -> io::Result<Option<u32>> {
    let Some(fd) = fd else { return Ok(None) };
    if !now {
        // SAFETY: the file came from the parent, which sends the file of its arena.
        unsafe { Arena::attach_later(fd, report_joined) };
        return Ok(None);
    }
    // SAFETY: as above.
    let me = unsafe { Arena::attach(fd) }.and_then(|arena| arena.me()).map_err(io::Error::other)?;
    Ok(Some(me.raw() as u32))
}

/// Reports that this process has joined, so that its parent declares it dead at its end. If the parent is
/// gone, nothing is reported.
fn report_joined(me: Member) {
    if let Some(line) = control_socket::get() {
        _ = line.send(FrameKind::Joined, &MemberJoined { member: me.raw() as u32 });
    }
}

/// Declares a dead child in the shared memory, and releases its resources. Returns the number of processes
/// whose resources were released. Called once for each child, right after it was reaped.
pub(crate) fn child_died(member: Option<u32>) -> usize {
    let Some(arena) = Arena::get() else { return 0 };
    if let Some(member) = member {
        // SAFETY: the child has been reaped.
        unsafe { arena.declare_dead(Member::from_raw(u64::from(member))) };
    }
    // Fails only in a forked process, which is not the parent of these children.
    arena.sweep().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The child was killed before it claimed the parcel, or claims it concurrently: one of the two gets it.
    #[test]
    fn a_parcel_that_no_child_has_claimed_is_taken_back() {
        let arena = Arena::current().unwrap();
        let promise = || Promise::new(arena.pack(&mut Outgoing::default(), 0).unwrap());
        let ticket = |promise: &Promise| Ticket::from_bytes(&promise.ticket().to_bytes()).unwrap();
        let claimed = promise();
        assert!(claim(ticket(&claimed)).is_ok());
        let dropped = promise();
        let late = ticket(&dropped);
        drop(dropped);
        assert!(claim(late).is_err(), "a child could claim it still");
    }
}
