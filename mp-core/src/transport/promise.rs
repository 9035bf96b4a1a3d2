//! Envelopes that one process promises to another, outside of any queue.
//!
//! # Safety
//! Unsafe, because an envelope is claimed by its number. Sound, because the ticket is sent to one process.
//! The receiver of the ticket claims the envelope, and the owner takes it back, by the same compare-and-swap,
//! so only one of the two succeeds.
//!
//! | killed | remaining state | cleaned up by |
//! |---|---|---|
//! | the owner, before the receiver has claimed the envelope | an envelope of the crashed owner | the reclaim |
//! | the receiver, before it has claimed the envelope | a promised envelope of the owner | the owner, when it drops the [`Promise`] |
//! | the receiver, after that | an envelope of the crashed receiver | the reclaim |
#![allow(unsafe_code)]

use serde::{Deserialize, Serialize};

use crate::arena::Arena;
use crate::envelopes::Envelopes;
use crate::error::{Error, Result};
use crate::mem::Mem;
use crate::members::Members;
use crate::transport::envelope::Envelope;
use crate::words::{EnvelopeId, Holder, Owner};

/// An envelope that this process has promised to another one. Dropping the promise [loses](Envelope::lose)
/// the message, unless the other process has claimed the envelope.
#[derive(Debug)]
pub struct Promise {
    arena: Arena,
    ticket: EnvelopeTicket,
    /// Process ID of the receiver, or 0 if unknown.
    receiver: u32,
}

impl Promise {
    /// Creates a promise of this envelope.
    pub fn new(envelope: Envelope) -> Self {
        let arena = envelope.arena;
        Self { arena, ticket: EnvelopeTicket::leave(envelope), receiver: 0 }
    }

    /// Returns the ticket with which the receiver claims the envelope.
    pub fn ticket(&self) -> EnvelopeTicket {
        self.ticket
    }

    /// [Loses](Envelope::lose) the message, unless the receiver, process `pid`, has claimed the envelope.
    pub fn lose(mut self, pid: u32) {
        self.receiver = pid;
    }

    /// Takes the envelope back. Returns `None` if the receiver has claimed it.
    pub fn take_back(self) -> Option<Envelope> {
        let this = std::mem::ManuallyDrop::new(self);
        this.claim_back()
    }

    fn claim_back(&self) -> Option<Envelope> {
        // SAFETY: promised to one process, which claims the envelope by the same compare-and-swap: only one
        // of the two gets it.
        unsafe { self.ticket.claim(self.arena) }.ok()
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        if let Some(envelope) = self.claim_back() {
            envelope.lose(self.receiver);
        }
    }
}

/// Reference to an envelope. The owner of the envelope sends the ticket to another process, which claims the
/// envelope with it.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct EnvelopeTicket {
    id: EnvelopeId,
    owner: u64,
}

impl EnvelopeTicket {
    /// Number of bytes of [`to_bytes`](Self::to_bytes).
    pub const BYTES: usize = 12;

    /// Serializes the ticket.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&self.id.to_le_bytes());
        bytes[4..].copy_from_slice(&self.owner.to_le_bytes());
        bytes
    }

    /// Deserializes a ticket from exactly these bytes.
    pub fn from_bytes(bytes: &[u8]) -> Option<EnvelopeTicket> {
        let (id, rest) = bytes.split_first_chunk()?;
        let owner = <[u8; 8]>::try_from(rest).ok()?;
        Some(EnvelopeTicket { id: EnvelopeId::from_le_bytes(*id), owner: u64::from_le_bytes(owner) })
    }

    /// Returns a ticket, by which another process may claim the envelope. This process owns the envelope
    /// until it is claimed. If this process dies before that, the message is lost.
    pub fn leave(envelope: Envelope) -> EnvelopeTicket {
        let (id, owner) = envelope.into_raw();
        EnvelopeTicket { id, owner: owner.pack() }
    }

    /// Claims the envelope.
    ///
    /// # Errors
    /// [`Error::Stale`](crate::Error::Stale) if the envelope was taken back, or its owner has ended.
    ///
    /// # Safety
    /// The owner of the envelope sent this ticket to this process only, and does nothing with the envelope
    /// except taking it back.
    pub unsafe fn claim(self, arena: Arena) -> Result<Envelope> {
        // SAFETY: same contract as this function's.
        unsafe { Envelope::take_over(arena, self.id, self.owner) }
    }
}

impl Envelope {
    /// Takes over an envelope that another member passed to this one by its ID and owner word, at most once.
    ///
    /// # Errors
    /// [`Error::Stale`] if the envelope was taken back or never sent.
    ///
    /// # Safety
    /// The other member passed the envelope to this process only. That member does nothing with the envelope
    /// except taking it back, by this same function.
    pub unsafe fn take_over(arena: Arena, id: EnvelopeId, owner: u64) -> Result<Self> {
        let me = arena.me()?;
        let gone = || Error::Stale(format!("envelope {id} was taken back, or never sent"));
        let old = Owner::unpack(owner);
        if !Envelopes(arena).may_be_in_use(id) || !matches!(old.holder, Holder::Member(_)) {
            return Err(gone());
        }
        Members(arena).touch_group_of(me, id);
        let new = old.then(Holder::Member(me));
        let at = Envelopes(arena).owner_words().of(id);
        let expected = owner;
        arena.map().cas(at, expected, new.pack()).map_err(|_| gone())?;
        Ok(Self::new(arena, id, new.pack()))
    }
}
