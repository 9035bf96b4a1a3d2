//! # Safety
//! Messages that are leased, and those that came back. Unsafe, because an envelope or a lease could be made twice; sound,
//! because each is made once, of a step that has just made this process its owner or leaseholder.
#![allow(unsafe_code)]

use mp_core::mem::{Mem, run};
use mp_core::words::{EnvelopeId, Holder, Owner, Place};
use mp_core::{Envelope, Leased};

use super::{RingMemory, Taken};
use crate::ring::{Get, Got, Reclaim, Return, ReturnsAt};

impl RingMemory {
    /// Says that what a dead consumer had is to be delivered again. Before the first lease.
    pub(crate) fn redeliver(&self) {
        let m = Self::words(self.arena);
        if m.load_relaxed(self.header.redelivers()) == 0 {
            m.store(self.header.redelivers(), 1);
        }
    }

    /// Whether there may be messages that came back.
    #[inline]
    pub(crate) fn any_returned(&self) -> bool {
        Self::words(self.arena).load_relaxed(self.header.returned()) != 0
    }

    /// How often a message is delivered at most; 0 is for ever.
    pub(crate) fn deliveries(&self) -> u32 {
        self.header.deliveries(Self::words(self.arena))
    }

    fn returns(&self) -> ReturnsAt {
        ReturnsAt {
            returned: self.header.returned(),
            undeliverable: self.header.undeliverable(),
            limit: self.deliveries(),
        }
    }

    fn reclaim(&self, wanted: Holder, to: Holder) -> Option<(EnvelopeId, Owner)> {
        let arena = self.arena;
        let columns = (arena.owner_words(), arena.place_words());
        let reclaim =
            Reclaim::new(self.returns(), self.chain.block(), arena.envelope_count(), columns, (wanted, to));
        run(reclaim, Self::words(arena))
    }

    /// Takes a message that came back, or one that came back too often, for good.
    pub(crate) fn take_returned(&self, undeliverable: bool) -> mp_core::Result<Option<Envelope>> {
        let wanted = if undeliverable { Holder::Undeliverable } else { Holder::Returned };
        let taken = self.reclaim(wanted, Holder::Member(self.arena.me()?));
        // SAFETY: `Reclaim` has just made this process its owner, and ends once.
        Ok(taken.map(|(id, owner)| unsafe { self.arena.envelope_from_raw(id, owner) }))
    }

    /// Leases a message that came back.
    pub(crate) fn lease_returned(&self) -> mp_core::Result<Option<Leased>> {
        let taken = self.reclaim(Holder::Returned, Holder::Leased(self.arena.me()?));
        // SAFETY: `Reclaim` has just made this process its leaseholder, and ends once.
        Ok(taken.map(|(id, owner)| unsafe { self.arena.lease_from_raw(id, owner) }))
    }

    /// Leases a message of segment `i`, as [`get`](Self::get).
    pub(crate) fn lease(&self, i: u32, into: &mut Option<Leased>) -> mp_core::Result<Taken> {
        let arena = self.arena;
        let got = arena.with_intent(|me, intent| {
            let get = Get::new(self.chain.segment(i), intent, arena.owner_words(), me).leasing();
            run(get, Self::words(arena))
        })?;
        Ok(match got {
            Got::Envelope(id, owner, _) => {
                // SAFETY: `Get` has just made this process its leaseholder, and ends once.
                *into = Some(unsafe { arena.lease_from_raw(id, owner) });
                Taken::Message
            }
            Got::Empty => Taken::Empty,
            Got::Closed => Taken::Closed,
        })
    }

    /// Returns a lease to the queue; whether it will be delivered again.
    pub(crate) fn give_back(&self, lease: &Leased) -> bool {
        self.return_envelope(lease.id(), lease.owner())
    }

    pub(super) fn return_envelope(&self, id: EnvelopeId, owner: Owner) -> bool {
        let arena = self.arena;
        let words = (arena.owner_words().of(id), arena.meta_words().of(id));
        let end = run(Return::new(self.returns(), words.0, words.1, owner), Self::words(arena));
        if end.is_some() {
            self.not_empty().wake_some(u32::from(end == Some(Holder::Returned)));
            self.finished().wake_some(u32::MAX >> 1);
        }
        end == Some(Holder::Returned)
    }

    /// The message of a lease is done: it is this process's to empty.
    pub(crate) fn finish(&self, lease: &Leased) -> mp_core::Result<Envelope> {
        let owner = lease.owner().then(Holder::Member(self.arena.me()?));
        Self::words(self.arena).store(self.arena.owner_words().of(lease.id()), owner.pack());
        // SAFETY: it was this process's lease, of which nobody makes an envelope but this, once: the owner word says
        // now that it is no lease any more.
        Ok(unsafe { self.arena.envelope_from_raw(lease.id(), owner) })
    }

    /// Counts what belongs to this queue and is in this state.
    pub(crate) fn count(&self, is: impl Fn(Holder) -> bool) -> usize {
        let (m, arena) = (Self::words(self.arena), self.arena);
        let mine = |e| Place::unpack(m.load(arena.place_words().of(e))).ring == self.chain.block();
        let state = |e| Owner::unpack(m.load(arena.owner_words().of(e))).holder;
        (0..m.load(arena.envelope_count()) as u32).filter(|&e| is(state(e)) && mine(e)).count()
    }
}
