//! Decision on the owner of the envelope that a dead member's thread was putting or getting.

use mp_core::mem::{Column, Mem, Steps, Word};
use mp_core::words::{BlockId, EnvelopeId, Holder, Member, Owner, RingPlace};

use super::slot::Slot;

/// Result of settling the intent of a dead member.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SettleOutcome {
    /// No envelope was taken over, since the intent was stale, complete or invalid. The intent is cleared.
    Cleared,
    /// The dead member now owns this envelope, which must be released like its other envelopes. The intent is
    /// cleared.
    Owned(EnvelopeId),
    /// The dead member now has a lease of this envelope, because the queue redelivers messages of dead
    /// consumers. The lease must be returned like the member's other leases ([`Return`](super::Return)). The
    /// intent is cleared.
    Leased(EnvelopeId),
    /// A living thread is putting or getting the envelope, in the ring of this block. The intent is
    /// unchanged, and the caller must retry later.
    Undecided(BlockId),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Pc {
    Intent,
    Owner,
    Place,
    Again,
    Load,
    List,
    Ask(usize),
    LoadAgain,
    Take,
    Forget,
}

/// State of the arena that a recovering process needs to settle an intent.
pub trait IntentContext {
    /// Returns the locations of the intent words of all threads whose members are not known to be dead at the
    /// time of the call.
    fn intents(&self) -> Vec<Word>;

    /// Returns the location of slot `slot` of the ring in block `ring`, or `None` if there is no such ring.
    fn slot(&self, ring: BlockId, slot: u32) -> Option<Word>;

    /// Returns `true` if the envelope exists. An intent may contain the number of an envelope that does not
    /// exist.
    fn exists(&self, envelope: EnvelopeId) -> bool;

    /// Returns `true` if the dead member has a seat in block `ring`, or died while it freed the ring. The
    /// member can't get a new seat, and keeps its seat until its intents are settled.
    fn holds(&self, ring: BlockId) -> bool;

    /// Returns `true` if the queue in block `ring` redelivers messages of dead consumers. The first consumer
    /// that leases enables this before its lease.
    fn redelivers(&self, ring: BlockId) -> bool;

    /// Returns the dead member. If the member [holds](Self::holds) a ring, the ring stays held until all
    /// leases of the member are returned. The recovering process may have no seat in the ring.
    fn dead(&self) -> Member;
}

/// Settles the intent of one lane of a dead member. Any number of recovering processes may do this at once,
/// and may be killed or stopped meanwhile: the new owner of the envelope is the dead member, not the
/// recovering process.
///
/// An intent may be *stale*: its thread lost the envelope to another thread and died before it cleared the
/// intent. The envelope may have been in other queues since. So the intent is compared with the actual state:
///
/// | envelope's owner | envelope's slot | dead member | decision |
/// |---|---|---|---|
/// | not `QUEUED` | any | any | the intent is stale or complete: it is cleared |
/// | `QUEUED` | contains the envelope | any | the intent is stale, or its thread has put the envelope or has not taken it: the intent is cleared |
/// | `QUEUED` | does not contain the envelope | does not hold the ring | the intent is stale: it is cleared |
/// | `QUEUED` | does not contain the envelope | holds the ring, and a living thread intends the envelope | undecided: the caller retries later |
/// | `QUEUED` | does not contain the envelope | holds the ring, and no living thread intends the envelope | the envelope is taken over. This is right even if the intent is stale, because another dead member has then taken the envelope |
///
/// **The third row.** A process that puts into a ring or takes out of it holds the ring: by a seat, or
/// because it drains the ring to free it. If the process dies, it holds the ring until its intents are
/// settled. While the envelope is `QUEUED` and in no slot, the process that put or took it last still holds
/// the ring. So if the dead member does not hold the ring, another process put or took the envelope, and the
/// envelope must be left unchanged. Otherwise the dead member could get a lease of a message in a ring in
/// which it has no seat. That lease might be returned after other recovering processes have noted the
/// returned messages and the ring was freed.
///
/// **The last row.** The dead member holds the ring. So the ring exists until the leases of the dead member
/// are returned and noted. If several dead members may have taken the envelope, any of them may become its
/// owner: the swap of the owner word decides.
///
/// **Living threads.** If the envelope is `QUEUED` and not in its slot, there are two cases. If a living
/// thread took the envelope and is about to become its owner, that thread still intends it, and the recovery
/// retries later. If the thread that took the envelope is dead, and no living thread intends it, the recovery
/// takes the envelope over. A thread that writes its intent after the recovery has read the slot can't take
/// the envelope. Therefore the recovery lists the intents only after it has read the slot. The list then
/// includes every thread that may have taken the envelope, even a thread of a member that has just joined.
///
/// **Puts.** A thread that is *putting* the envelope intends it from before the owner word became `QUEUED`
/// until after the slot contains it. So either the recovery finds its intent, or the slot has changed
/// meanwhile. Therefore the recovery reads the slot a second time. If the slot's word is the same, the slot
/// did not contain the envelope between the two reads, since the word never returns to an earlier value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Settle<S> {
    dead: Word,
    others: Vec<Word>,
    owners: Column,
    places: Column,
    context: S,
    envelope: EnvelopeId,
    owner: Owner,
    place: RingPlace,
    /// Location and word of the slot that the envelope's place word names, if that slot exists.
    slot: Option<(Word, u64)>,
    out: SettleOutcome,
    pc: Pc,
}

impl<S: IntentContext> Settle<S> {
    /// Creates the steps to settle the intent in the word `dead`.
    pub fn new(dead: Word, (owners, places): (Column, Column), context: S) -> Self {
        Self {
            dead,
            others: Vec::new(),
            owners,
            places,
            context,
            envelope: 0,
            owner: Owner { holder: Holder::Free, seq: 0 },
            place: RingPlace { ring: 0, slot: 0 },
            slot: None,
            out: SettleOutcome::Cleared,
            pc: Pc::Intent,
        }
    }
}

impl<S: IntentContext> Steps for Settle<S> {
    type Out = SettleOutcome;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<SettleOutcome> {
        match self.pc {
            Pc::Intent => match m.load(self.dead) {
                0 => return Some(SettleOutcome::Cleared),
                e => {
                    let named = EnvelopeId::try_from(e - 1).ok().filter(|&e| self.context.exists(e));
                    self.envelope = named.unwrap_or_default();
                    self.pc = if named.is_some() { Pc::Owner } else { Pc::Forget };
                }
            },
            Pc::Owner => {
                self.owner = Owner::unpack(m.load(self.owners.of(self.envelope)));
                self.pc = match self.owner.holder {
                    Holder::Queued => Pc::Place,
                    _ => Pc::Forget,
                };
            }
            Pc::Place => {
                self.place = RingPlace::unpack(m.load(self.places.of(self.envelope)));
                self.pc = Pc::Again;
            }
            // The place belongs to this owner word only if the word did not change meanwhile.
            Pc::Again => {
                let again = m.load(self.owners.of(self.envelope));
                let same = again == self.owner.pack();
                self.pc = if same { Pc::Load } else { Pc::Owner };
            }
            Pc::Load => {
                self.slot = self.context.slot(self.place.ring, self.place.slot).map(|at| (at, m.load(at)));
                self.pc = match self.slot {
                    Some((_, slot)) if Slot::unpack(slot).envelope() == Some(self.envelope) => Pc::Forget,
                    _ if self.context.holds(self.place.ring) => Pc::List,
                    _ => Pc::Forget,
                };
            }
            Pc::List => {
                self.others = self.context.intents();
                self.pc = Pc::Ask(0);
            }
            Pc::Ask(i) => match self.others.get(i) {
                Some(&other) if m.load(other) == self.envelope as u64 + 1 => {
                    return Some(SettleOutcome::Undecided(self.place.ring));
                }
                Some(_) => self.pc = Pc::Ask(i + 1),
                None => self.pc = Pc::LoadAgain,
            },
            Pc::LoadAgain => {
                let same = self.slot.is_none_or(|(at, slot)| m.load(at) == slot);
                self.pc = if same { Pc::Take } else { Pc::Owner };
            }
            // The dead member becomes the owner, so the next recovery finds the envelope if this recovery is
            // killed or stopped.
            Pc::Take => {
                let (dead, e) = (self.context.dead(), self.envelope);
                let (to, out) = match self.context.redelivers(self.place.ring) {
                    true => (Holder::Leased(dead), SettleOutcome::Leased(e)),
                    false => (Holder::Member(dead), SettleOutcome::Owned(e)),
                };
                if m.cas(self.owners.of(e), self.owner.pack(), self.owner.then(to).pack()).is_ok() {
                    self.out = out;
                }
                self.pc = Pc::Forget;
            }
            Pc::Forget => {
                m.store(self.dead, 0);
                return Some(self.out);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Context of an arena with three envelopes and no intents of living threads.
    struct NoIntents;

    impl IntentContext for NoIntents {
        fn intents(&self) -> Vec<Word> {
            Vec::new()
        }
        fn slot(&self, _: BlockId, _: u32) -> Option<Word> {
            None
        }
        fn exists(&self, envelope: EnvelopeId) -> bool {
            envelope < 3
        }
        fn holds(&self, _: BlockId) -> bool {
            true
        }
        fn redelivers(&self, _: BlockId) -> bool {
            false
        }
        fn dead(&self) -> Member {
            Member::new(1, 1)
        }
    }

    #[test]
    fn intent_without_an_envelope_is_cleared() {
        let m = mp_core::mem::HeapMem::new(8);
        let column = |at| Column { base: Word::at(at), stride: 8 };
        for garbage in [4, 1 << 32 | 1, u64::MAX] {
            m.store(Word::at(0), garbage);
            let settle = Settle::new(Word::at(0), (column(16), column(40)), NoIntents);
            assert_eq!(mp_core::mem::run(settle, &m), SettleOutcome::Cleared);
            assert_eq!(m.load(Word::at(0)), 0);
        }
    }
}
