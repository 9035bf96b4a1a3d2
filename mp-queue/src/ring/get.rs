//! Gets of messages from a ring.

use mp_core::mem::{Column, Mem, Steps, Word};
use mp_core::steps::TouchedGroups;
use mp_core::words::{EnvelopeId, Holder, Member, Owner};

use super::RingAt;
use super::find::{FindOldest, GetOutcome, OldestMessage, TakenMessage};
use super::slot::{Position, Slot};

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Pc {
    FindOldest,
    Touch,
    Mark,
    Intend,
    Take,
    Lost,
    Advance,
    Claim,
    Undo,
    Forget,
    Clear,
}

/// Takes the oldest message out of a ring, if there is one. Never waits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Get {
    find: FindOldest,
    ring: RingAt,
    intent: Word,
    owners: Column,
    touched: Option<TouchedGroups>,
    to: Holder,
    position: Position,
    /// First word of the slot that was read.
    word: u64,
    owner: Owner,
    pc: Pc,
}

impl Get {
    /// Creates the steps to take a message. Its new owner is `me`, the calling process. `intent` is the
    /// intent word of the calling thread's lane.
    pub fn new(ring: RingAt, intent: Word, owners: Column, me: Member) -> Self {
        Self {
            find: FindOldest::new(ring),
            ring,
            intent,
            owners,
            touched: None,
            to: Holder::Member(me),
            position: Position::NONE,
            word: 0,
            owner: Owner { holder: Holder::Free, seq: 0 },
            pc: Pc::FindOldest,
        }
    }

    /// Before an envelope is taken, records in `groups` that the calling process touches the envelope's
    /// group.
    #[inline]
    #[must_use]
    pub fn touching(self, groups: TouchedGroups) -> Self {
        Self { touched: Some(groups), ..self }
    }

    /// Takes the message as a lease: if the caller dies, the message is redelivered.
    #[must_use]
    pub fn leasing(self) -> Self {
        match self.to {
            Holder::Member(me) => Self { to: Holder::Leased(me), find: self.find.leasing(), ..self },
            _ => self,
        }
    }

    /// Makes the get part of a batch. The get starts after `last`, the position of the previous message, and
    /// does not advance the head. The batch ends with [`Advance`](super::Advance).
    #[must_use]
    pub fn batched(self, last: Option<Position>) -> Self {
        Self { find: self.find.batched(last), ..self }
    }

    /// Takes the envelope that was already found at `position`, in a slot with the first word `word`. The
    /// caller must have recorded that it touches the envelope's group.
    #[inline]
    #[must_use]
    pub fn found(self, word: u64, position: Position) -> Self {
        Self { find: self.find.restart(), word, position, pc: Pc::Intend, ..self }
    }

    #[inline]
    fn envelope(&self) -> EnvelopeId {
        Slot::unpack(self.word).envelope().unwrap_or(0)
    }
}

/// Makes `to` the holder of a queued envelope, by adding to its owner word. Returns the new owner word, and
/// `true` if the envelope was queued. If `false`, the caller must [restore](unclaim) the word.
#[inline(always)]
pub(super) fn claim<M: Mem + ?Sized>(m: &M, at: Word, to: Holder) -> (Owner, bool) {
    let found = Owner::unpack(m.add(at, Owner::queued_to(to)));
    let queued = found.holder == Holder::Queued;
    (found.then(to), queued)
}

/// Restores an owner word after a failed [`claim`], by subtracting the same number.
#[inline(always)]
pub(super) fn unclaim<M: Mem + ?Sized>(m: &M, at: Word, to: Holder) {
    m.add(at, Owner::queued_to(to).wrapping_neg());
}

impl Steps for Get {
    type Out = GetOutcome;

    #[inline(always)]
    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<GetOutcome> {
        match self.pc {
            Pc::FindOldest => match self.find.step(m)? {
                GetOutcome::Done(OldestMessage::Envelope(word, position)) => {
                    *self = self.found(word, position);
                    self.pc = if self.touched.is_some() { Pc::Touch } else { Pc::Intend };
                    // Prefetches the owner word's line while the slot is being taken.
                    m.will_write(self.owners.of(self.envelope()));
                }
                GetOutcome::Done(OldestMessage::Stray(e)) => {
                    return Some(GetOutcome::Done(TakenMessage::Stray(e)));
                }
                GetOutcome::Done(OldestMessage::Small(small, position)) => {
                    return Some(GetOutcome::Done(TakenMessage::Small(small, position)));
                }
                GetOutcome::Empty => return Some(GetOutcome::Empty),
                GetOutcome::Closed => return Some(GetOutcome::Closed),
            },
            Pc::Touch => {
                let has = self.touched.is_none_or(|groups| groups.has(m, self.envelope()));
                self.pc = if has { Pc::Intend } else { Pc::Mark };
            }
            Pc::Mark => {
                self.touched.into_iter().for_each(|groups| groups.add(m, self.envelope()));
                self.pc = Pc::Intend;
            }
            Pc::Intend => {
                m.store(self.intent, self.envelope() as u64 + 1);
                self.pc = Pc::Take;
            }
            Pc::Take => {
                let slot_at = self.ring.slot(self.position.index);
                self.pc = match m.cas(slot_at, self.word, Slot::unpack(self.word).after_take().pack()) {
                    Ok(()) if self.find.is_batched() => Pc::Claim,
                    Ok(()) => Pc::Advance,
                    Err(_) => Pc::Lost,
                };
            }
            Pc::Lost => {
                m.store(self.intent, 0);
                m.lost();
                self.pc = Pc::FindOldest;
            }
            Pc::Advance => {
                self.ring.pass(m, self.ring.head, self.position);
                self.pc = Pc::Claim;
            }
            // A single addition: it fetches the envelope's line once, for writing, instead of first for
            // reading and then for writing. No other process changes the owner word now: while the caller's
            // intent names the envelope, no recovery takes the envelope over.
            Pc::Claim => {
                let (owner, queued) = claim(m, self.owners.of(self.envelope()), self.to);
                self.owner = owner;
                self.pc = if queued { Pc::Clear } else { Pc::Undo };
            }
            // Restores the word: the sum of both additions is 0.
            Pc::Undo => {
                unclaim(m, self.owners.of(self.envelope()), self.to);
                self.pc = Pc::Forget;
            }
            Pc::Forget => {
                m.store(self.intent, 0);
                return Some(GetOutcome::Done(TakenMessage::Stray(self.envelope())));
            }
            Pc::Clear => {
                m.store(self.intent, 0);
                let taken = TakenMessage::Envelope(self.envelope(), self.owner, self.position);
                return Some(GetOutcome::Done(taken));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use mp_core::mem::HeapMem;
    use mp_core::mem::run;

    use super::super::slot::{Content, SlotState};
    use super::super::{Put, PutOutcome};
    use super::*;

    const INTENT: Word = Word::at(8 * 10);
    const OWNERS: Column = Column { base: Word::at(8 * 12), stride: 16 };
    const PLACES: Column = Column { base: Word::at(8 * 13), stride: 16 };

    fn ring() -> RingAt {
        let (head, tail, first) = (Word::at(0), Word::at(8), Word::at(16));
        RingAt { block: 0, slots: 2, before: 0, head, tail, first, envelopes: 2 }
    }

    fn memory() -> HeapMem {
        let m = HeapMem::new(160);
        for at in [ring().head, ring().tail] {
            m.store(at, Position { lap: 1, index: 0 }.pack());
        }
        (0..2).for_each(|i| m.store(ring().slot(i), Slot { lap: 1, state: SlotState::Empty }.pack()));
        m
    }

    /// The intent of a living thread is cleared when the operation ends, whatever its result. With a stale
    /// intent of a living thread, processes that recover a dead member would have to retry.
    #[test]
    fn intent_is_cleared_after_each_put_and_get() {
        let m = memory();
        let me = Member::new(1, 1);
        let put = |e: EnvelopeId| {
            let owner = Owner { holder: Holder::Member(me), seq: 1 };
            m.store(OWNERS.of(e), owner.pack());
            run(Put::new(ring(), INTENT, (e, OWNERS.of(e), PLACES.of(e)), me, owner), &m)
        };
        let get = || run(Get::new(ring(), INTENT, OWNERS, me), &m);
        let idle = || assert_eq!(m.load(INTENT), 0);
        assert!(matches!(put(0), PutOutcome::Done(_)));
        idle();
        assert!(matches!(put(1), PutOutcome::Done(_)));
        assert!(matches!(put(1), PutOutcome::Full(_)));
        idle();
        assert!(matches!(get(), GetOutcome::Done(TakenMessage::Envelope(0, ..))));
        idle();
        // The owner word is not `QUEUED`, as if a process wrote garbage. The word is unchanged afterwards.
        let garbage = Owner { holder: Holder::Free, seq: 9 };
        m.store(OWNERS.of(1), garbage.pack());
        assert_eq!(get(), GetOutcome::Done(TakenMessage::Stray(1)));
        assert_eq!(m.load(OWNERS.of(1)), garbage.pack());
        idle();
        assert_eq!(get(), GetOutcome::Empty);
        idle();
    }

    /// A recovery reads only groups that the dead process has touched. In this test, the consumer loses the
    /// message that it has found first, and takes a message of another group.
    #[test]
    fn envelope_group_is_touched_before_message_is_taken() {
        let (m, me, others) = (memory(), Member::new(1, 1), [0, 64]);
        let ring = RingAt { envelopes: 65, ..ring() };
        for (i, e) in others.into_iter().enumerate() {
            let full = Slot { lap: 1, state: SlotState::Full(Content::of(e)) };
            m.store(ring.slot(i as u32), full.pack());
            m.store(OWNERS.of(e), Owner { holder: Holder::Queued, seq: 1 }.pack());
        }
        let touched = TouchedGroups::at(Word::at(8 * 150));
        let mut get = Get::new(ring, INTENT, OWNERS, me).touching(touched);
        let mut step = || {
            let end = get.step(&m);
            let is_mine = |&e: &EnvelopeId| {
                let owner = Owner::unpack(m.load(OWNERS.of(e)));
                m.load(INTENT) == u64::from(e) + 1 || owner.holder == Holder::Member(me)
            };
            assert!(others.iter().filter(|e| is_mine(e)).all(|&e| touched.has(&m, e)));
            end
        };
        while m.load(INTENT) == 0 {
            assert!(step().is_none());
        }
        run(Get::new(ring, Word::at(8 * 11), OWNERS, Member::new(2, 1)), &m);
        let got = std::iter::repeat_with(&mut step).find_map(|end| end);
        assert!(matches!(got, Some(GetOutcome::Done(TakenMessage::Envelope(64, ..)))), "{got:?}");
    }

    #[test]
    fn consumer_losing_race_for_a_message_clears_intent() {
        let m = memory();
        m.store(ring().slot(0), Slot { lap: 1, state: SlotState::Full(Content::of(0)) }.pack());
        m.store(OWNERS.of(0), Owner { holder: Holder::Queued, seq: 1 }.pack());
        let mut late = Get::new(ring(), INTENT, OWNERS, Member::new(1, 1));
        while m.load(INTENT) == 0 {
            assert!(late.step(&m).is_none());
        }
        let other = Get::new(ring(), Word::at(8 * 11), OWNERS, Member::new(2, 1));
        assert!(matches!(run(other, &m), GetOutcome::Done(TakenMessage::Envelope(0, ..))));
        assert_eq!(run(late, &m), GetOutcome::Empty);
        assert_eq!(m.load(INTENT), 0);
    }
}
