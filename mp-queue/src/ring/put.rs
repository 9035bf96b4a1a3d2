//! Puts of envelopes into a ring.

use mp_core::mem::{Mem, Steps, Word};
use mp_core::words::{EnvelopeId, Holder, Member, Owner};

use super::RingAt;
use super::slot::{Content, Lag, Position, Slot, SlotState, Turns};

/// Result of an attempt to put a message, for steps and for the callers in `raw` and `queue`. If the message
/// was not put, the caller still owns it, and for an envelope, `Back` is its owner word. `At` is the
/// position, or `()` for callers that need no position.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PutOutcome<Back = Owner, At = Position> {
    /// The message was published at this position. The caller no longer owns it.
    Done(At),
    /// No slot was free.
    Full(Back),
    /// The ring is closed.
    Closed(Back),
}

impl<Back> PutOutcome<Back> {
    /// Returns the same result without the position, so that it has one word instead of three.
    #[inline]
    pub(crate) fn without_position(self) -> PutOutcome<Back, ()> {
        match self {
            PutOutcome::Done(_) => PutOutcome::Done(()),
            PutOutcome::Full(back) => PutOutcome::Full(back),
            PutOutcome::Closed(back) => PutOutcome::Closed(back),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Pc {
    Intend,
    Tail,
    Load,
    Help,
    Place,
    Queue,
    Publish,
    Retreat,
    Advance,
    Clear,
}

/// Tries once to put an envelope owned by the caller into a ring. Never waits.
///
/// Writes the lane's intent, the envelope's place and owner, and one slot, and advances the tail.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Put {
    ring: RingAt,
    intent: Word,
    owner_at: Word,
    place_at: Word,
    envelope: EnvelopeId,
    me: Member,
    owner: Owner,
    position: Position,
    end: Option<PutOutcome>,
    /// `true` if the put is part of a batch and does not advance the tail past its message.
    batched: bool,
    /// `true` if the search starts at `position`, which the caller has set, and not at the tail.
    known: bool,
    /// `true` if the message may be published only at `position`.
    only: bool,
    /// Slot at `position`, which is in use, so that the tail must be advanced past it.
    seen: Slot,
    turns: Turns,
    pc: Pc,
}

impl Put {
    /// Creates the steps to put `envelope`, which belongs to `me`, the calling process. Its owner word at
    /// `owner_at` is `owner`. Its place word is at `place_at`. `intent` is the intent word of the calling
    /// thread's lane.
    pub fn new(
        ring: RingAt,
        intent: Word,
        (envelope, owner_at, place_at): (EnvelopeId, Word, Word),
        me: Member,
        owner: Owner,
    ) -> Self {
        Self {
            ring,
            intent,
            owner_at,
            place_at,
            envelope,
            me,
            owner,
            position: Position::NONE,
            end: None,
            batched: false,
            known: false,
            only: false,
            seen: Slot::NONE,
            turns: Turns::default(),
            pc: Pc::Intend,
        }
    }

    /// Restricts the put to this position. If the message can't be published there, the put ends with
    /// [`PutOutcome::Full`].
    #[must_use]
    pub fn at(self, position: Position) -> Self {
        Self { position, known: true, only: true, ..self }
    }

    /// Makes the put part of a batch. The put starts after `last`, the position of the previous message, and
    /// does not advance the tail. The batch ends with [`Advance`].
    #[must_use]
    pub fn batched(self, last: Option<Position>) -> Self {
        let position = last.map_or(self.position, |last| last.next(self.ring.slots));
        Self { position, batched: true, known: last.is_some(), ..self }
    }

    fn end(&mut self, end: PutOutcome) -> Option<PutOutcome> {
        self.end = Some(end);
        self.pc = Pc::Clear;
        None
    }

    // Each step computes this itself. With common code before the `match`, the compiler would not merge all
    // steps into straight-line code.
    #[inline(always)]
    fn slot_at(&self) -> Word {
        self.ring.slot(self.position.index)
    }
}

impl Steps for Put {
    type Out = PutOutcome;

    #[inline(always)]
    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<PutOutcome> {
        match self.pc {
            Pc::Intend => {
                m.store(self.intent, self.envelope as u64 + 1);
                self.pc = if self.known { Pc::Load } else { Pc::Tail };
            }
            Pc::Tail => {
                self.position = Position::unpack(m.load(self.ring.tail));
                // Fetches the line once, for writing, as `PutSmall` does.
                m.will_write(self.slot_at());
                self.pc = Pc::Load;
            }
            Pc::Load => {
                let slot = Slot::unpack(m.load(self.slot_at()));
                match (self.position.lag(slot), slot.state) {
                    (Lag::Equal, SlotState::Empty) => self.pc = Pc::Place,
                    (Lag::Equal, SlotState::Closed) | (Lag::Behind, SlotState::Last(_)) => {
                        return self.end(PutOutcome::Closed(self.owner));
                    }
                    (Lag::Equal | Lag::Ahead, _) if self.only => {
                        return self.end(PutOutcome::Full(self.owner));
                    }
                    (Lag::Equal | Lag::Ahead, _) => {
                        self.seen = slot;
                        self.pc = Pc::Help;
                    }
                    (Lag::Behind, _) => return self.end(PutOutcome::Full(self.owner)),
                }
            }
            Pc::Help => {
                if !self.turns.one_more() {
                    return self.end(PutOutcome::Full(self.owner));
                }
                if !self.ring.help(m, self.ring.tail, self.position, self.seen) {
                    m.lost();
                }
                self.pc = Pc::Tail;
            }
            Pc::Place => {
                m.store_relaxed(self.place_at, self.ring.place(self.position));
                self.pc = Pc::Queue;
            }
            Pc::Queue => {
                self.owner = self.owner.then(Holder::Queued);
                m.store(self.owner_at, self.owner.pack());
                self.pc = Pc::Publish;
            }
            Pc::Publish => {
                let empty = self.position.empty_slot();
                let full = Slot { state: SlotState::Full(Content::of(self.envelope)), ..empty };
                self.pc = match m.cas(self.slot_at(), empty.pack(), full.pack()) {
                    Ok(()) if self.batched => return self.end(PutOutcome::Done(self.position)),
                    Ok(()) => Pc::Advance,
                    Err(_) => Pc::Retreat,
                };
            }
            Pc::Retreat => {
                self.owner = self.owner.then(Holder::Member(self.me));
                m.store(self.owner_at, self.owner.pack());
                m.lost();
                if self.only {
                    return self.end(PutOutcome::Full(self.owner));
                }
                self.pc = Pc::Tail;
            }
            Pc::Advance => {
                self.ring.pass(m, self.ring.tail, self.position);
                return self.end(PutOutcome::Done(self.position));
            }
            Pc::Clear => {
                m.store(self.intent, 0);
                return self.end;
            }
        }
        None
    }
}

/// Advances a hint past a batch of messages, from the position of the first message to the position after the
/// last one. Changes nothing if another process has advanced the hint meanwhile. Later operations then
/// advance the hint.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Advance {
    hint: Word,
    from: Position,
    to: Position,
}

impl Advance {
    /// Creates the steps for the tail of `ring`, after a batch of puts.
    pub fn tail(ring: RingAt, first: Position, last: Position) -> Self {
        let to = last.next(ring.slots);
        Self { hint: ring.tail, from: first, to }
    }

    /// Creates the steps for the head of `ring`, after a batch of gets.
    pub fn head(ring: RingAt, first: Position, last: Position) -> Self {
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
