//! # Safety
//! What the layers above may do to shared words. Nothing here dereferences anything; these functions are
//! `unsafe` because a caller that breaks their contract could make two owners of one piece of memory.
#![allow(unsafe_code)]

use super::layout::control;
use super::{Arena, Envelope, Hold, Parking};
use crate::error::{Error, Result};
use crate::mem::{Mem, Word};
use crate::words::{BlockState, EnvelopeId, Holder, Kind, Member, Owner};

impl Arena {
    /// Its words, to run [`Steps`](crate::mem::Steps) on.
    ///
    /// # Safety
    /// Words are changed only by the protocols that they belong to, and only within memory that the caller holds.
    #[inline]
    pub unsafe fn words(&self) -> &'static (impl Mem + use<>) {
        self.map()
    }

    /// An envelope that this process owns already.
    ///
    /// # Safety
    /// - `id` and `owner` come from a protocol that has just made this process the owner: taking it out of a ring, or
    ///   [`Envelope::into_raw`];
    /// - they are made into an [`Envelope`] once.
    #[inline]
    pub unsafe fn envelope_from_raw(&self, id: EnvelopeId, owner: Owner) -> Envelope {
        debug_assert_eq!(owner.holder, Holder::Member(self.me().unwrap_or(Member::from_raw(0))));
        Envelope { arena: *self, id: id.min(self.layout().envelopes - 1), owner }
    }

    /// Takes over an envelope that another member handed to this one by its id and owner word, at most once.
    ///
    /// # Errors
    /// [`Error::Malformed`] if it isn't that envelope any more.
    ///
    /// # Safety
    /// The other member handed it to this process, and to nobody else; it does nothing with it but take it back,
    /// by this same function.
    pub unsafe fn claim_envelope(&self, id: EnvelopeId, owner: u64) -> Result<Envelope> {
        let me = self.me()?;
        let gone = || Error::Malformed(format!("envelope {id} was taken back, or never sent"));
        let used = self.map().load(Word::at(control::ENVELOPES));
        let old = Owner::unpack(owner);
        if u64::from(id) >= used || !matches!(old.holder, Holder::Member(_)) {
            return Err(gone());
        }
        let new = old.then(Holder::Member(me));
        self.map().cas(self.owner_words().of(id), owner, new.pack()).map_err(|_| gone())?;
        Ok(Envelope { arena: *self, id, owner: new })
    }

    /// Says that a held block, whose memory is ready, is a ring from now on: when nobody holds it, it is drained first.
    ///
    /// # Safety
    /// The block is held by this process alone, and its memory is a ring's as the ring layer
    /// ([`Arena::set_ring_layer`]) understands it.
    pub unsafe fn become_ring(&self, hold: &Hold) {
        let at = self.block_at(hold.block()).state;
        let state = BlockState { kind: Kind::Ring, ..BlockState::unpack(self.map().load(at)) };
        self.map().store(at, state.pack());
    }
}

impl Parking {
    /// The parking word at `word`.
    ///
    /// # Safety
    /// `word` is used for nothing else, and lives as long as this is used.
    pub unsafe fn new(arena: Arena, word: Word) -> Self {
        Self { arena, word }
    }
}
