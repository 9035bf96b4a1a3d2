//! Putting an envelope into a ring.

use mp_core::mem::{Mem, Steps, Word};
use mp_core::words::{EnvelopeId, Holder, Member, Owner, Place};

use super::RingAt;
use super::slot::{Content, Lag, Slot, SlotState, Ticket, Turns};

/// How an attempt to put ended, of every kind of message and on every floor. A message that was not put is still the
/// caller's; `Back` is what the caller has to know of it then: of an envelope, its owner word. `At` is the ticket, where it
/// is needed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PutEnd<Back = Owner, At = Ticket> {
    /// Published under this ticket; the message is no longer the caller's.
    Done(At),
    /// No slot was free.
    Full(Back),
    /// The ring is closed.
    Closed(Back),
}

impl<Back> PutEnd<Back> {
    /// The same without the ticket: a word instead of three on the way up.
    #[inline]
    pub(crate) fn without_ticket(self) -> PutEnd<Back, ()> {
        match self {
            PutEnd::Done(_) => PutEnd::Done(()),
            PutEnd::Full(back) => PutEnd::Full(back),
            PutEnd::Closed(back) => PutEnd::Closed(back),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Pc {
    Intend,
    Tail,
    Look,
    Help,
    Place,
    Queue,
    Publish,
    Retreat,
    Advance,
    Clear,
}

/// Puts an envelope owned by the caller into a ring, once; it never waits.
///
/// It writes the lane's intent, the envelope's place and owner, one slot, and helps the tail.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Put {
    ring: RingAt,
    intent: Word,
    owner_at: Word,
    place_at: Word,
    envelope: EnvelopeId,
    me: Member,
    owner: Owner,
    ticket: Ticket,
    end: Option<PutEnd>,
    /// One of a batch: it helps the tail no further.
    batched: bool,
    /// Where to begin to look is given.
    known: bool,
    /// To be published under that ticket or not at all.
    only: bool,
    /// A slot that is used.
    seen: Slot,
    turns: Turns,
    pc: Pc,
}

impl Put {
    /// To put `envelope`, whose owner word (at `owner_at`, with its place at `place_at`) is `owner` and says that
    /// it is `me`'s. `intent` is the intent word of the calling thread's lane.
    pub fn new(
        ring: RingAt,
        intent: Word,
        (envelope, owner_at, place_at): (EnvelopeId, Word, Word),
        me: Member,
        owner: Owner,
    ) -> Self {
        let ticket = Ticket { lap: 0, index: 0 };
        Self {
            ring,
            intent,
            owner_at,
            place_at,
            envelope,
            me,
            owner,
            ticket,
            end: None,
            batched: false,
            known: false,
            only: false,
            seen: Slot { lap: 0, state: SlotState::Empty },
            turns: Turns::default(),
            pc: Pc::Intend,
        }
    }

    /// To be published under this ticket, or not: then it ends with [`PutEnd::Full`].
    #[must_use]
    pub fn at(self, ticket: Ticket) -> Self {
        Self { ticket, known: true, only: true, ..self }
    }

    /// As one of a batch: it begins to look after `last`, the ticket of the message before it, and leaves the tail where
    /// it is. The batch ends with [`Advance`].
    #[must_use]
    pub fn batched(self, last: Option<Ticket>) -> Self {
        let ticket = last.map_or(self.ticket, |last| last.next(self.ring.slots));
        Self { ticket, batched: true, known: last.is_some(), ..self }
    }

    fn end(&mut self, end: PutEnd) -> Option<PutEnd> {
        self.end = Some(end);
        self.pc = Pc::Clear;
        None
    }

    // Not at the beginning of each step: with nothing there, the compiler makes one straight piece of code of all steps.
    #[inline(always)]
    fn slot_at(&self) -> Word {
        self.ring.slot(self.ticket.index)
    }
}

impl Steps for Put {
    type Out = PutEnd;

    #[inline(always)]
    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<PutEnd> {
        match self.pc {
            Pc::Intend => {
                m.store(self.intent, self.envelope as u64 + 1);
                self.pc = if self.known { Pc::Look } else { Pc::Tail };
            }
            Pc::Tail => {
                self.ticket = Ticket::unpack(m.load(self.ring.tail));
                // As for a small message.
                m.will_write(self.slot_at());
                self.pc = Pc::Look;
            }
            Pc::Look => {
                let slot = Slot::unpack(m.load(self.slot_at()));
                match (self.ticket.lag(slot), slot.state) {
                    (Lag::At, SlotState::Empty) => self.pc = Pc::Place,
                    (Lag::At, SlotState::Closed) | (Lag::Behind, SlotState::Last(_)) => {
                        return self.end(PutEnd::Closed(self.owner));
                    }
                    (Lag::At | Lag::Ahead, _) if self.only => {
                        return self.end(PutEnd::Full(self.owner));
                    }
                    (Lag::At | Lag::Ahead, _) => {
                        self.seen = slot;
                        self.pc = Pc::Help;
                    }
                    (Lag::Behind, _) => return self.end(PutEnd::Full(self.owner)),
                }
            }
            Pc::Help => {
                if !self.turns.one_more() {
                    return self.end(PutEnd::Full(self.owner));
                }
                let next = self.ticket.over(self.seen, self.ring.slots);
                if m.cas(self.ring.tail, self.ticket.pack(), next.pack()).is_err() {
                    m.lost();
                }
                self.pc = Pc::Tail;
            }
            Pc::Place => {
                let place = Place {
                    ring: self.ring.block,
                    slot: self.ring.before + self.ring.index(self.ticket.index),
                };
                m.store_relaxed(self.place_at, place.pack());
                self.pc = Pc::Queue;
            }
            Pc::Queue => {
                self.owner = self.owner.then(Holder::Queued);
                m.store(self.owner_at, self.owner.pack());
                self.pc = Pc::Publish;
            }
            Pc::Publish => {
                let empty = Slot { lap: self.ticket.lap, state: SlotState::Empty };
                let state = SlotState::Full(Content::of(self.envelope));
                let full = Slot { lap: self.ticket.lap, state };
                self.pc = match m.cas(self.slot_at(), empty.pack(), full.pack()) {
                    Ok(()) if self.batched => return self.end(PutEnd::Done(self.ticket)),
                    Ok(()) => Pc::Advance,
                    Err(_) => Pc::Retreat,
                };
            }
            Pc::Retreat => {
                self.owner = self.owner.then(Holder::Member(self.me));
                m.store(self.owner_at, self.owner.pack());
                m.lost();
                if self.only {
                    return self.end(PutEnd::Full(self.owner));
                }
                self.pc = Pc::Tail;
            }
            Pc::Advance => {
                _ = m.cas(self.ring.tail, self.ticket.pack(), self.ticket.next(self.ring.slots).pack());
                return self.end(PutEnd::Done(self.ticket));
            }
            Pc::Clear => {
                m.store(self.intent, 0);
                return self.end;
            }
        }
        None
    }
}

/// Helps a hint over a batch of messages: from the ticket of the first one to behind the last one. If another
/// process has helped it meanwhile, the others help it the rest of the way.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Advance {
    hint: Word,
    from: Ticket,
    to: Ticket,
}

impl Advance {
    /// The tail of `ring`, over what was put.
    pub fn tail(ring: RingAt, first: Ticket, last: Ticket) -> Self {
        let to = last.next(ring.slots);
        Self { hint: ring.tail, from: first, to }
    }

    /// The head of `ring`, over what was taken.
    pub fn head(ring: RingAt, first: Ticket, last: Ticket) -> Self {
        Self { hint: ring.head, ..Self::tail(ring, first, last) }
    }
}

impl Steps for Advance {
    type Out = ();

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<()> {
        _ = m.cas(self.hint, self.from.pack(), self.to.pack());
        Some(())
    }
}
