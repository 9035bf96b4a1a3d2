//! # Safety
//! Leased and returned messages. The code is unsafe because an envelope or a lease could be created twice. It
//! is sound because every `Envelope` and `Leased` is created from the result of a step that has just made
//! this process the owner or leaseholder.
#![allow(unsafe_code)]

use mp_core::Envelopes;
use mp_core::Members;
use mp_core::Messages;
use mp_core::mem::{Mem, run};
use mp_core::message::Outgoing;
use mp_core::words::{EnvelopeId, Holder, Member, Owner, RingPlace};
use mp_core::{Envelope, Leased};

use super::RingMemory;
use crate::raw::header::consumers;
use crate::ring::{
    Census, Enclose, Get, GetOutcome, Link, MessageCounts, NoteReturned, Position, Reclaim, Return,
    ReturnWords, Slot, SmallMessage, TakenMessage, may_have_returned,
};

impl RingMemory {
    /// Records that a consumer leases messages of this queue, so that messages of dead consumers are
    /// redelivered. Called before the first lease.
    pub(crate) fn enable_redelivery(&self) {
        let m = Self::words(self.arena);
        if m.load_relaxed(self.header.consumers()) & consumers::LEASE == 0 {
            m.or(self.header.consumers(), consumers::LEASE);
        }
    }

    /// Returns `true` if messages of dead consumers are redelivered. If `false`, no message was ever
    /// returned.
    pub(super) fn redelivers(&self) -> bool {
        Self::words(self.arena).load(self.header.consumers()) & consumers::LEASE != 0
    }

    /// Returns `true` if the hint reports that there may be returned messages.
    #[inline]
    pub(crate) fn any_returned(&self) -> bool {
        may_have_returned(Self::words(self.arena).load_relaxed(self.header.returned()))
    }

    fn return_words(&self) -> ReturnWords {
        ReturnWords { returned: self.header.returned(), limit: self.deliveries() }
    }

    /// Creates the steps that take a message whose holder is `wanted`. The scan of the envelopes
    /// [starts](Reclaim::starting_at) at `start`. The new holder is the result of `to` for this process.
    fn reclaim(
        &self,
        wanted: Holder,
        to: fn(Member) -> Holder,
        start: EnvelopeId,
    ) -> mp_core::Result<Reclaim> {
        let (arena, me) = (self.arena, self.arena.me()?);
        let change = (wanted, to(me));
        let take =
            Reclaim::new(self.return_words(), self.chain.first, Envelopes(arena).envelopes_at(), change);
        Ok(take.touching(Members(arena).touched_groups(me)).starting_at(start))
    }

    /// Takes a returned message, or a dead letter if `undeliverable` is `true`. The scan starts at `start`.
    pub(crate) fn take_returned(
        &self,
        undeliverable: bool,
        start: EnvelopeId,
    ) -> mp_core::Result<Option<Envelope>> {
        let wanted = if undeliverable { Holder::Undeliverable } else { Holder::Returned };
        self.run_reclaim(self.reclaim(wanted, Holder::Member, start)?)
    }

    /// Takes a message whose holder is `wanted`, regardless of the hint of returned messages. Used for a
    /// queue that no process holds.
    pub(super) fn drain_returned(
        &self,
        wanted: Holder,
        start: EnvelopeId,
    ) -> mp_core::Result<Option<Envelope>> {
        self.run_reclaim(self.reclaim(wanted, Holder::Member, start)?.ignoring_hint())
    }

    /// Runs the steps and returns the message that they have taken, which now belongs to this process.
    fn run_reclaim(&self, reclaim: Reclaim) -> mp_core::Result<Option<Envelope>> {
        let taken = run(reclaim, Self::words(self.arena));
        // SAFETY: `Reclaim` has just made this process its owner, and ends once.
        Ok(taken.map(|(id, owner)| unsafe { Envelope::from_raw(self.arena, id, owner) }))
    }

    /// Leases a returned message, if there is one. The scan starts at `start`.
    pub(crate) fn lease_returned(&self, start: EnvelopeId) -> mp_core::Result<Option<Leased>> {
        let reclaim = self.reclaim(Holder::Returned, Holder::Leased, start)?;
        let taken = run(reclaim, Self::words(self.arena));
        // SAFETY: `Reclaim` has just made this process its leaseholder, and ends once.
        Ok(taken.map(|(id, owner)| unsafe { Leased::from_raw(self.arena, id, owner) }))
    }

    /// Leases the oldest message of segment `i` into `into`, if there is one.
    pub(crate) fn lease(&self, i: u32, into: &mut Option<Leased>) -> mp_core::Result<GetOutcome<()>> {
        let arena = self.arena;
        loop {
            let got = Members(arena).with_intent(|me, intent| {
                let get = Get::new(self.chain.segment(i), intent, Envelopes(arena).owner_words(), me)
                    .touching(Members(arena).touched_groups(me))
                    .leasing();
                run(get, Self::words(arena))
            })?;
            return Ok(match got {
                GetOutcome::Done(TakenMessage::Envelope(id, owner, _)) => {
                    // SAFETY: `Get` has just made this process its leaseholder, and ends once.
                    *into = Some(unsafe { Leased::from_raw(arena, id, owner) });
                    GetOutcome::Done(())
                }
                GetOutcome::Done(TakenMessage::Small(small, position)) => {
                    match self.enclose(i, small, position)? {
                        Some(leased) => {
                            *into = Some(leased);
                            GetOutcome::Done(())
                        }
                        None => continue,
                    }
                }
                GetOutcome::Done(TakenMessage::Stray(e)) => return Err(self.stray_error(e)),
                GetOutcome::Empty => GetOutcome::Empty,
                GetOutcome::Closed => GetOutcome::Closed,
            });
        }
    }

    /// Leases the small message at a position in segment `i`, after copying it into an envelope. Returns
    /// `None` if another consumer took the message first.
    #[cold]
    fn enclose(&self, i: u32, small: SmallMessage, position: Position) -> mp_core::Result<Option<Leased>> {
        let (arena, me) = (self.arena, self.arena.me()?);
        let mut out = Outgoing::default();
        out.bytes().extend_from_slice(small.bytes().as_slice());
        let mut envelope = Messages(arena).pack(&mut out, self.fingerprint())?;
        let id = envelope.id();
        let words = (Envelopes(arena).owner_words().of(id), Envelopes(arena).place_words().of(id));
        let enclose = Enclose::new(self.chain.segment(i), words, (me, envelope.owner()), (small, position));
        let (owner, leased) = run(enclose, Self::words(arena));
        if leased {
            _ = envelope.into_raw();
            // SAFETY: `Enclose` has just made this process its leaseholder, and ends once. The envelope was
            // consumed by `into_raw`.
            return Ok(Some(unsafe { Leased::from_raw(arena, id, owner) }));
        }
        // SAFETY: not leased, the envelope still belongs to this process, with the owner word that `Enclose`
        // returned.
        unsafe { envelope.set_owner(owner) };
        Ok(None)
    }

    fn return_steps(&self, id: EnvelopeId, owner: Owner) -> Return {
        let (owners, metas) = (Envelopes(self.arena).owner_words(), Envelopes(self.arena).meta_words());
        Return::new(self.return_words(), owners.of(id), metas.of(id), owner)
    }

    /// Returns a leased message to the queue. Returns `true` if the message will be redelivered.
    pub(crate) fn give_back(&self, lease: &Leased) -> bool {
        let end = run(self.return_steps(lease.id(), lease.owner()), Self::words(self.arena));
        if end.is_some() {
            self.not_empty().wake_some(u32::from(end == Some(Holder::Returned)));
            self.finished().wake_some(u32::MAX >> 1);
        }
        end == Some(Holder::Returned)
    }

    /// Puts an unchanged message back into the queue from which it was taken, which must be this queue.
    /// Consumers take the message before all other messages. If this process is killed in this call, it still
    /// owns the message, or has it as a lease.
    pub(crate) fn put_back(&self, envelope: &mut Envelope) -> mp_core::Result<()> {
        self.enable_redelivery();
        let leased = envelope.owner().then(Holder::Leased(self.arena.me()?));
        let at = Envelopes(self.arena).owner_words().of(envelope.id());
        if Self::words(self.arena).cas(at, envelope.owner().pack(), leased.pack()).is_ok() {
            // SAFETY: the swap has stored this owner word. Dropping the envelope then does nothing.
            unsafe { envelope.set_owner(leased) };
            // SAFETY: the swap has just made this process its leaseholder, once.
            self.give_back(&unsafe { Leased::from_raw(self.arena, envelope.id(), leased) });
        }
        Ok(())
    }

    /// Returns a leased message of a dead member that holds this queue. Changes no word of the queue, which
    /// this process may not hold. Waiters are woken later: see [`note_returned`](Self::note_returned).
    pub(super) fn return_for_dead_holder(&self, id: EnvelopeId, owner: Owner) {
        run(self.return_steps(id, owner).for_dead_holder(), Self::words(self.arena));
    }

    /// Updates the hint if there are returned messages. Called by a process that recovers a dead member,
    /// after it has returned the member's leases. The seat of the dead member keeps the queue alive.
    pub(super) fn note_returned(&self) {
        if self.redelivers() && self.count(|h| h == Holder::Returned) > 0 {
            run(NoteReturned::new(self.return_words()), Self::words(self.arena));
        }
    }

    /// Acknowledges a leased message. Returns its envelope, which now belongs to this process. Returns `None`
    /// if this process no longer has the lease.
    pub(crate) fn finish(&self, lease: &Leased) -> mp_core::Result<Option<Envelope>> {
        let owner = lease.owner().then(Holder::Member(self.arena.me()?));
        let at = Envelopes(self.arena).owner_words().of(lease.id());
        // A read-modify-write: it precedes the check for sleepers that wait for the last lease to end.
        if Self::words(self.arena).cas(at, lease.owner().pack(), owner.pack()).is_err() {
            return Ok(None);
        }
        // SAFETY: the lease belonged to this process, and the swap, which succeeds once, has just made this
        // process the owner.
        Ok(Some(unsafe { Envelope::from_raw(self.arena, lease.id(), owner) }))
    }

    /// Counts the unfinished and the lost messages of this queue.
    pub(crate) fn census(&self) -> MessageCounts {
        let arena = self.arena;
        run(Census::new(self.chain, Envelopes(arena).envelopes_at()), Self::words(arena))
    }

    /// Counts the messages of this queue for whose holder `is` returns `true`.
    pub(crate) fn count(&self, is: impl Fn(Holder) -> bool) -> usize {
        self.all_that(is).count()
    }

    /// Calls `each` with the leaseholder of each leased message of this queue.
    pub(crate) fn each_leaseholder(&self, mut each: impl FnMut(Member)) {
        for e in self.all_that(|holder| matches!(holder, Holder::Leased(_))) {
            // Another process may have the lease by now.
            let owner = Self::words(self.arena).load(Envelopes(self.arena).owner_words().of(e));
            if let Holder::Leased(m) = Owner::unpack(owner).holder {
                each(m);
            }
        }
    }

    /// Returns the envelopes of this queue for whose holder `is` returns `true`.
    fn all_that(&self, is: impl Fn(Holder) -> bool) -> impl Iterator<Item = EnvelopeId> {
        Envelopes(self.arena).envelopes_in_use(0).filter(move |&e| self.has(e, &is))
    }

    /// Returns `true` if an envelope belongs to this queue and `is` returns `true` for its holder.
    fn has(&self, e: EnvelopeId, is: impl Fn(Holder) -> bool) -> bool {
        let (m, arena) = (Self::words(self.arena), self.arena);
        is(Owner::unpack(m.load(Envelopes(arena).owner_words().of(e))).holder)
            && RingPlace::unpack(m.load(Envelopes(arena).place_words().of(e))).ring == self.chain.block()
    }

    /// Calls `each` with every message that is in a slot of this queue or was returned to it. Leased messages
    /// are not included.
    pub(super) fn contents(&self, each: &mut dyn FnMut(EnvelopeId)) {
        let m = Self::words(self.arena);
        for i in 0..self.segments() {
            let ring = self.chain.segment(i);
            for slot in 0..ring.slots {
                let found = Slot::unpack(m.load(ring.slot(slot))).envelope();
                let is_there =
                    |&e: &EnvelopeId| e < self.arena.most_messages() && self.has(e, |h| h == Holder::Queued);
                found.filter(is_there).into_iter().for_each(&mut *each);
            }
            if self.link(i) != Link::Open {
                break;
            }
        }
        // This checks all envelopes, so it is skipped for a queue to which nothing can have been returned.
        if self.redelivers() {
            self.all_that(|h| matches!(h, Holder::Returned | Holder::Undeliverable)).for_each(each);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Queue;
    use crate::checkpoint::fuzz::with_clean_memory;

    /// Returns a queue that seems to have no leases. Tests that overwrite the words of a queue lose messages,
    /// which stay marked as queued in its block. A later queue in the same block would seem to have leases.
    fn unburdened() -> Queue<String> {
        // Queues that seem to have leases are retained, so that the next queue gets other memory.
        let mut burdened = Vec::new();
        loop {
            let queue = Queue::bounded(1).unwrap();
            if !queue.raw().has_other_leases() {
                return queue;
            }
            burdened.push(queue);
        }
    }

    /// A consumer leases a copy of a small message while another consumer takes the message.
    #[test]
    fn small_message_taken_during_a_lease_is_not_leased() {
        let queue = with_clean_memory(|| Queue::bounded(1).unwrap());
        queue.put(7_u64).unwrap();
        let memory = *queue.raw().memory();
        memory.enable_redelivery();
        let (arena, m) = (memory.arena, RingMemory::words(memory.arena));
        let ring = memory.chain.segment(0);
        let got = Members(arena).with_intent(|me, intent| {
            run(Get::new(ring, intent, Envelopes(arena).owner_words(), me).leasing(), m)
        });
        let GetOutcome::Done(TakenMessage::Small(small, position)) = got.unwrap() else {
            panic!("there is a small message")
        };
        let mut out = Outgoing::default();
        out.bytes().extend_from_slice(small.bytes().as_slice());
        let mut envelope = Messages(arena).pack(&mut out, memory.fingerprint()).unwrap();
        let id = envelope.id();
        let words = (Envelopes(arena).owner_words().of(id), Envelopes(arena).place_words().of(id));
        let me = arena.me().unwrap();
        let mut enclose = Enclose::new(ring, words, (me, envelope.owner()), (small, position));
        while !matches!(Owner::unpack(m.load(words.0)).holder, Holder::Leased(_)) {
            assert!(mp_core::mem::Steps::step(&mut enclose, m).is_none());
        }
        assert_eq!(memory.held_messages(), None);
        assert_eq!(queue.get().unwrap(), Some(7));
        assert_eq!(memory.held_messages(), None);
        let (owner, leased) = run(enclose, m);
        assert!(!leased);
        // SAFETY: not leased, the envelope still belongs to this process, with the owner word that `Enclose`
        // returned.
        unsafe { envelope.set_owner(owner) };
        assert_eq!(memory.held_messages(), Some(vec![]));
    }

    #[test]
    fn message_counts_as_leased_while_its_lease_begins() {
        let queue = unburdened();
        // Too long for a slot, so it has an envelope, which is leased.
        let text = "a message in an envelope".to_owned();
        queue.put(text.clone()).unwrap();
        queue.close();
        let (raw, memory) = (queue.raw(), queue.raw().memory());
        let (arena, m) = (memory.arena, RingMemory::words(memory.arena));
        let got = Members(arena).with_intent(|me, intent| {
            let mut get =
                Get::new(memory.chain.segment(0), intent, Envelopes(arena).owner_words(), me).leasing();
            while !memory.is_at_end() {
                assert!(mp_core::mem::Steps::step(&mut get, m).is_none());
            }
            assert!(raw.has_other_leases(), "its slot is empty, and no process is its leaseholder yet");
            run(get, m)
        });
        let GetOutcome::Done(TakenMessage::Envelope(id, owner, _)) = got.unwrap() else {
            panic!("there is a message")
        };
        assert!(!raw.has_other_leases(), "a lease of this process");
        run(memory.return_steps(id, owner), m);
        assert_eq!(queue.get().unwrap(), Some(text));
    }
}
