//! Deciding who owns the one envelope that a dead member's thread was putting or getting.

use mp_core::mem::{Column, Mem, Steps, Word};
use mp_core::words::{BlockId, EnvelopeId, Holder, Member, Owner, Place};

use super::slot::Slot;

/// How settling ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Settled {
    /// The intent named nothing in doubt, and is cleared.
    Clear,
    /// The envelope belongs to the dead member now, to be released as all that it owned; the dead intent is cleared.
    Owned(EnvelopeId),
    /// The dead member has a lease of the envelope now, which must be returned as any other of its leases
    /// ([`Return`](super::Return)): its queue delivers again what a dead consumer had. The dead intent is cleared.
    Leased(EnvelopeId),
    /// A live thread is in the middle of this envelope, which was put into that ring: come back later. The dead intent stays.
    Later(BlockId),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Pc {
    Intent,
    Owner,
    Place,
    Again,
    Look,
    List,
    Ask(usize),
    LookAgain,
    Take,
    Forget,
}

/// What a visitor can find out about the world around an intent.
pub trait Surroundings {
    /// The intent words of all threads of members that are not known to be dead, as of now.
    fn intents(&self) -> Vec<Word>;

    /// Where slot `slot` of the ring in `ring` is; `None` if there is no such ring.
    fn slot(&self, ring: BlockId, slot: u32) -> Option<Word>;

    /// Whether there is such an envelope. Any process could have written to an intent.
    fn exists(&self, envelope: EnvelopeId) -> bool;

    /// Whether the dead member has a seat in the ring in `ring`, or died while it freed it. It can't get one
    /// any more, and keeps what it has until its intents are settled.
    fn holds(&self, ring: BlockId) -> bool;

    /// Whether the queue in `ring` delivers again what a dead consumer had. Consumers set this before they
    /// first lease.
    fn redelivers(&self, ring: BlockId) -> bool;

    /// The dead member. If it [holds](Self::holds) the ring, it does so until all its leases are returned:
    /// the visitor may have no seat there.
    fn dead(&self) -> Member;
}

/// Settles the intent of one lane of a dead member. Any number of visitors may do it at once, and be killed
/// or stopped in it: what is taken over is the dead member's, not theirs.
///
/// An intent may be *stale*: its thread died after it had lost the envelope to another thread, and before it
/// cleared the intent. The envelope may have gone through other queues since. So what the word says is
/// compared with what is:
///
/// | owner | its slot | the dead member | the intent |
/// |---|---|---|---|
/// | not `QUEUED` | | | is stale, or was done: cleared |
/// | `QUEUED` | holds it | | is stale, or had not taken it, or had put it: cleared |
/// | `QUEUED` | doesn't | doesn't hold the ring | is stale: cleared |
/// | `QUEUED` | doesn't | holds it, and a living thread intends it | can't be judged: later |
/// | `QUEUED` | doesn't | holds it, and no living thread intends it | may be stale: another dead member may have it. The envelope is taken over in any case |
///
/// **The third row.** A process that puts into a ring or takes out of it holds it: by a seat, or because it
/// drains it to free it. If it dies, it holds it until its intents are settled, and this settles them: while
/// the envelope is `QUEUED` and in no slot, the process that put or took it last still holds the ring. A dead
/// member that doesn't hold the ring is another one, and may leave the envelope alone. It has to: visitors of
/// the member that has it, at work at the same moment, note in the ring what came back as long as that
/// member's seat is there. A lease of a member without a seat would be returned too late for that, into a
/// ring that may be freed already.
///
/// **The last row.** With a seat, the ring stays until what was leased in its name is returned, and noted
/// with that seat. It makes no difference which of the dead members that may have the envelope becomes its
/// owner, and the swap of the owner lets one win.
///
/// If the envelope is `QUEUED` and its slot doesn't hold it, then either a live thread took it out and is
/// about to become its owner (that thread still intends it: come back later), or its taker is dead and it has
/// no other: it is taken over. A thread that starts to intend it after its slot was read can't succeed in
/// taking it; therefore the intents are listed only then: a thread that joined before and took the envelope
/// is among them.
///
/// A thread that was just *putting* the envelope intends it from before the owner word said `QUEUED` until
/// after the slot holds it. So it is seen among the intents, or the slot has changed meanwhile: therefore the
/// slot is looked at once more. If its word is the same, the envelope was not in it in between; the word
/// never comes back to what it was.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Settle<S> {
    dead: Word,
    others: Vec<Word>,
    owners: Column,
    places: Column,
    around: S,
    envelope: EnvelopeId,
    owner: Owner,
    place: Place,
    /// What its slot was, if there is one.
    slot: Option<(Word, u64)>,
    out: Settled,
    pc: Pc,
}

impl<S: Surroundings> Settle<S> {
    /// To settle the intent word `dead`.
    pub fn new(dead: Word, (owners, places): (Column, Column), around: S) -> Self {
        Self {
            dead,
            others: Vec::new(),
            owners,
            places,
            around,
            envelope: 0,
            owner: Owner { holder: Holder::Free, seq: 0 },
            place: Place { ring: 0, slot: 0 },
            slot: None,
            out: Settled::Clear,
            pc: Pc::Intent,
        }
    }
}

impl<S: Surroundings> Steps for Settle<S> {
    type Out = Settled;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<Settled> {
        match self.pc {
            Pc::Intent => match m.load(self.dead) {
                0 => return Some(Settled::Clear),
                e => {
                    let named = EnvelopeId::try_from(e - 1).ok().filter(|&e| self.around.exists(e));
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
                self.place = Place::unpack(m.load(self.places.of(self.envelope)));
                self.pc = Pc::Again;
            }
            // The place belongs to this owner word only if the word did not change meanwhile.
            Pc::Again => {
                let again = m.load(self.owners.of(self.envelope));
                let same = again == self.owner.pack();
                self.pc = if same { Pc::Look } else { Pc::Owner };
            }
            Pc::Look => {
                self.slot = self.around.slot(self.place.ring, self.place.slot).map(|at| (at, m.load(at)));
                self.pc = match self.slot {
                    Some((_, slot)) if Slot::unpack(slot).envelope() == Some(self.envelope) => Pc::Forget,
                    _ if self.around.holds(self.place.ring) => Pc::List,
                    _ => Pc::Forget,
                };
            }
            Pc::List => {
                self.others = self.around.intents();
                self.pc = Pc::Ask(0);
            }
            Pc::Ask(i) => match self.others.get(i) {
                Some(&other) if m.load(other) == self.envelope as u64 + 1 => {
                    return Some(Settled::Later(self.place.ring));
                }
                Some(_) => self.pc = Pc::Ask(i + 1),
                None => self.pc = Pc::LookAgain,
            },
            Pc::LookAgain => {
                let same = self.slot.is_none_or(|(at, slot)| m.load(at) == slot);
                self.pc = if same { Pc::Take } else { Pc::Owner };
            }
            // In the dead member's name: so its next visitor finds it, if this one does not continue.
            Pc::Take => {
                let (dead, e) = (self.around.dead(), self.envelope);
                let (to, out) = match self.around.redelivers(self.place.ring) {
                    true => (Holder::Leased(dead), Settled::Leased(e)),
                    false => (Holder::Member(dead), Settled::Owned(e)),
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

    /// An arena with three envelopes.
    struct Small;

    impl Surroundings for Small {
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
    fn an_intent_that_names_no_envelope_is_cleared() {
        let m = mp_core::mem::HeapMem::new(8);
        let column = |at| Column { base: Word::at(at), stride: 8 };
        for garbage in [4, 1 << 32 | 1, u64::MAX] {
            m.store(Word::at(0), garbage);
            let settle = Settle::new(Word::at(0), (column(16), column(40)), Small);
            assert_eq!(mp_core::mem::run(settle, &m), Settled::Clear);
            assert_eq!(m.load(Word::at(0)), 0);
        }
    }
}
