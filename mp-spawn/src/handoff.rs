//! # Safety
//! What parent and child hand to each other besides frames: arguments, shared memory, the news of a death. Unsafe in
//! that the arena's file is sent and attached, an envelope is claimed by its number, and a member is declared dead;
//! sound, because file and number go to one child, over a socket that only this child has, the parent takes the
//! envelope back by the same compare-and-swap, which one of the two wins, and a death is declared after `waitid`.
//!
//! This is the one place where processes meet shared memory. The arena's file goes to each child, which joins as a
//! member before it says hello. The arguments are packed into an envelope that stays the parent's until the child
//! takes it over; so a child that dies on the way leaves nothing, and neither does a parent. What the function returns
//! goes back the same way: it stays the child's until the parent has claimed it, and the child waits for that.
//!
//! | killed | left | who cleans up |
//! |---|---|---|
//! | parent, before the child claimed its arguments | an envelope of the dead parent | the sweep |
//! | child, before it claimed them | an envelope of the parent's, promised | the parent, when it forgets the child |
//! | child, after that | an envelope of the dead child | the sweep |
//! | child, before the parent claimed its result | an envelope of the dead child | the sweep; the result is lost |
//! | parent, before or after it claimed a result | an envelope of one of the two | the sweep of that one |
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use mp_core::message::Message;
use mp_core::words::{EnvelopeId, Member};
use mp_core::{Arena, Envelope};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::{Result, SpawnError};

/// What goes to a child with its start message.
#[derive(Debug)]
pub(crate) struct ToChild {
    /// Which envelope has the arguments.
    pub(crate) bytes: Vec<u8>,
    /// File descriptors that the child gets first: the arena's.
    pub(crate) fds: Vec<BorrowedFd<'static>>,
    /// Keeps the arguments until the child has taken them.
    pub(crate) parcel: Parcel,
}

impl ToChild {
    /// Encodes arguments for one child.
    pub(crate) fn pack<A: Serialize + DeserializeOwned + 'static>(args: &A) -> Result<ToChild> {
        let arena = Arena::current().map_err(|e| unencodable(e.into()))?;
        let envelope = mp_reduce::pack_ref(arena, args).map_err(unencodable)?;
        ToChild::with(arena, envelope)
    }

    /// Moves arguments to one child.
    pub(crate) fn pack_moved<A: Message>(args: A) -> Result<ToChild> {
        let arena = Arena::current().map_err(|e| unencodable(e.into()))?;
        let envelope = mp_reduce::pack(args).map_err(|e| unencodable(e.error))?;
        ToChild::with(arena, envelope)
    }

    fn with(arena: Arena, envelope: Envelope) -> Result<ToChild> {
        let parcel = Parcel::new(arena, envelope);
        // SAFETY: sent to a child that attaches it, and not duplicated here.
        let fd = unsafe { arena.fd() }.map_err(|e| unencodable(e.into()))?;
        Ok(ToChild { bytes: parcel.ticket(), fds: vec![fd], parcel })
    }
}

fn unencodable(error: mp_reduce::Error) -> SpawnError {
    SpawnError::Arguments { rank: None, message: error.to_string() }
}

/// An envelope that this process has promised to a child. Dropping it takes it back, unless the child has it.
#[derive(Debug)]
pub(crate) struct Parcel {
    arena: Arena,
    id: EnvelopeId,
    owner: u64,
}

impl Parcel {
    fn new(arena: Arena, envelope: Envelope) -> Self {
        let (id, owner) = envelope.into_raw();
        Self { arena, id, owner: owner.pack() }
    }

    /// What the child needs to claim it.
    fn ticket(&self) -> Vec<u8> {
        Ticket { id: self.id, owner: self.owner }.to_bytes()
    }
}

/// How one process names an envelope to another one, which is to claim it.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Ticket {
    id: EnvelopeId,
    owner: u64,
}

impl Ticket {
    fn to_bytes(self) -> Vec<u8> {
        [&self.id.to_le_bytes()[..], &self.owner.to_le_bytes()[..]].concat()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Ticket> {
        let (id, rest) = bytes.split_first_chunk()?;
        let owner = <[u8; 8]>::try_from(rest).ok()?;
        Some(Ticket { id: EnvelopeId::from_le_bytes(*id), owner: u64::from_le_bytes(owner) })
    }

    /// In a child: leaves an envelope to the parent. It stays the child's, so that it goes with it, until the parent
    /// has claimed it.
    pub(crate) fn leave(envelope: Envelope) -> Ticket {
        let (id, owner) = envelope.into_raw();
        Ticket { id, owner: owner.pack() }
    }

    /// In the parent: takes what a child has left to it.
    pub(crate) fn claim(self) -> Result<Envelope, String> {
        let arena = Arena::current().map_err(|e| e.to_string())?;
        // SAFETY: a child sent this ticket to its parent alone, and does nothing with the envelope any more.
        unsafe { arena.claim_envelope(self.id, self.owner) }.map_err(|e| e.to_string())
    }
}

impl Drop for Parcel {
    fn drop(&mut self) {
        // SAFETY: promised to one child, which claims it by the same compare-and-swap: one of the two gets it.
        let back = unsafe { self.arena.claim_envelope(self.id, self.owner) };
        drop(back);
    }
}

/// What a child got with its start message.
#[derive(Debug)]
pub(crate) struct FromParent {
    /// Which envelope has the arguments.
    pub(crate) bytes: Vec<u8>,
}

impl FromParent {
    /// Takes the arguments over, and decodes them.
    pub(crate) fn unpack<A: Message>(self) -> Result<A, String> {
        let ticket = Ticket::from_bytes(&self.bytes).ok_or("the ticket for the arguments makes no sense")?;
        let arena = Arena::current().map_err(|e| e.to_string())?;
        // SAFETY: the parent sent this ticket to this process only.
        let envelope = unsafe { arena.claim_envelope(ticket.id, ticket.owner) }.map_err(|e| e.to_string())?;
        mp_reduce::unpack::<A>(envelope).map_err(|e| e.to_string())
    }
}

/// Joins the shared memory that came with these file descriptors, before anything else in the child; returns
/// who this process is there.
pub(crate) fn child_attach(fds: Vec<OwnedFd>) -> io::Result<Option<u32>> {
    let Some(fd) = fds.into_iter().next() else { return Ok(None) };
    // SAFETY: it came from the parent, which sends its arena's.
    let me = unsafe { Arena::attach(fd) }.and_then(|arena| arena.me()).map_err(io::Error::other)?;
    Ok(Some(me.raw() as u32))
}

/// Tells the shared memory that a child has died, and releases what it held. Called once for each child, right
/// after it was reaped.
pub(crate) fn child_died(member: Option<u32>) {
    let Some(arena) = Arena::get() else { return };
    if let Some(member) = member {
        // SAFETY: the child has been reaped.
        unsafe { arena.declare_dead(Member::from_raw(u64::from(member))) };
    }
    // Fails only in a forked process, whose children these are not.
    let _ = arena.sweep();
}
