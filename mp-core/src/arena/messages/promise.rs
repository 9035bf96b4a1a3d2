//! # Safety
//! Envelopes that one process promises to another, outside of any queue. Unsafe, because an envelope is claimed by its number;
//! sound, because the ticket goes to one process, and its owner takes it back by the same compare-and-swap, which one of the
//! two wins.
//!
//! | killed | left | cleaned up by |
//! |---|---|---|
//! | the owner, before the receiver has claimed it | an envelope of the crashed owner | the sweep |
//! | the receiver, before it has claimed it | an envelope of the owner, promised | the owner, when it drops the [`Promise`] |
//! | the receiver, after that | an envelope of the crashed receiver | the sweep |
#![allow(unsafe_code)]

use serde::{Deserialize, Serialize};

use crate::arena::{Arena, Envelope};
use crate::error::Result;
use crate::words::EnvelopeId;

/// An envelope that this process has promised to another one. Dropping it [loses](Envelope::lose) the message, unless the other
/// process has it.
#[derive(Debug)]
pub struct Promise {
    arena: Arena,
    ticket: Ticket,
    /// Process id of the receiver; 0: unknown.
    receiver: u32,
}

impl Promise {
    /// Of this envelope.
    pub fn new(envelope: Envelope) -> Self {
        let arena = envelope.arena;
        Self { arena, ticket: Ticket::leave(envelope), receiver: 0 }
    }

    /// What the receiver needs to claim it.
    pub fn ticket(&self) -> Ticket {
        self.ticket
    }

    /// Loses the message, unless process `pid` has received it.
    pub fn lose(mut self, pid: u32) {
        self.receiver = pid;
    }

    /// Takes it back, unless the receiver has it.
    pub fn take_back(self) -> Option<Envelope> {
        let this = std::mem::ManuallyDrop::new(self);
        this.claim_back()
    }

    fn claim_back(&self) -> Option<Envelope> {
        // SAFETY: promised to one process, which claims it by the same compare-and-swap: one of the two gets it.
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

/// How one process names an envelope to another one, which is to claim it.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Ticket {
    id: EnvelopeId,
    owner: u64,
}

impl Ticket {
    /// How many bytes [`to_bytes`](Self::to_bytes) makes.
    pub const BYTES: usize = 12;

    /// As bytes.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&self.id.to_le_bytes());
        bytes[4..].copy_from_slice(&self.owner.to_le_bytes());
        bytes
    }

    /// From exactly these.
    pub fn from_bytes(bytes: &[u8]) -> Option<Ticket> {
        let (id, rest) = bytes.split_first_chunk()?;
        let owner = <[u8; 8]>::try_from(rest).ok()?;
        Some(Ticket { id: EnvelopeId::from_le_bytes(*id), owner: u64::from_le_bytes(owner) })
    }

    /// Leaves an envelope to another process. It stays this one's, so that it goes with it, until the other has claimed it.
    pub fn leave(envelope: Envelope) -> Ticket {
        let (id, owner) = envelope.into_raw();
        Ticket { id, owner: owner.pack() }
    }

    /// Claims the envelope.
    ///
    /// # Errors
    /// [`Error::Stale`](crate::Error::Stale) if it was taken back, or its owner is gone.
    ///
    /// # Safety
    /// Its owner gave this ticket to this process and to no other, and does nothing with the envelope but take it back.
    pub unsafe fn claim(self, arena: Arena) -> Result<Envelope> {
        // SAFETY: as the caller says.
        unsafe { arena.claim_envelope(self.id, self.owner) }
    }
}
