//! Memory of a queue in a model: the segments of its ring, the intents of the actors, and some envelopes.

use mp_core::mem::{Column, Mem, Steps, Word};
use mp_core::steps::{EnvelopesAt, TouchedGroups};
use mp_core::words::{BlockId, GroupState, Holder, Member, Owner};
use mp_queue::ring::{
    ChainAt, IntentContext, Position, ReturnWords, RingAt, Settle, SettleOutcome, Slot, SlotState,
    SmallMessage,
};

use crate::explore::{Fate, Memory};
use crate::members::{actor_of, member};

/// Maximum number of slots of the first segment.
pub const MAX_SLOTS: u32 = 4;
/// Maximum number of actors.
pub const MAX_ACTORS: usize = 5;
/// Number of envelopes.
pub const ENVELOPES: u32 = 6;

const HEAD: Word = Word::at(0);
const TAIL: Word = HEAD.plus(1);
const FIRST_SLOT: Word = HEAD.plus(2);
const INTENTS: Word = FIRST_SLOT.plus(2 * MAX_SLOTS as u64);
const OWNERS: Word = INTENTS.plus(MAX_ACTORS as u64);
const PLACES: Word = OWNERS.plus(ENVELOPES as u64);
const METAS: Word = PLACES.plus(ENVELOPES as u64);
const RETURNED: Word = METAS.plus(ENVELOPES as u64);
const SEATS: Word = COUNT.plus(1);
const LINKS: Word = SEATS.plus(MAX_ACTORS as u64);
/// Word that contains the number of envelopes.
pub const COUNT: Word = RETURNED.plus(1);
const GROUP: Word = LINKS.plus(2);
const TENANCIES: Word = GROUP.plus(1);
const RECOVERING_WORDS: Word = TENANCIES.plus(MAX_ACTORS as u64);
const TOUCHED: Word = RECOVERING_WORDS.plus(MAX_ACTORS as u64);
const SECOND: Word = TOUCHED.plus(MAX_ACTORS as u64);
/// Number of words of the memory without a second segment.
const WORDS: u64 = SECOND.offset() / 8;
/// Number of additional words for a second segment of up to two slots.
const SECOND_WORDS: u64 = 32 + 2 * 2;

/// Owner words of the envelopes.
pub const OWNER: Column = Column { base: OWNERS, stride: 8 };
/// Place words of the envelopes.
pub const PLACE: Column = Column { base: PLACES, stride: 8 };
/// Table of all envelopes.
pub const ENVELOPES_AT: EnvelopesAt =
    EnvelopesAt { count: COUNT, groups: Column { base: GROUP, stride: 8 }, owners: OWNER, places: PLACE };
/// Meta words of the envelopes.
pub const META: Column = Column { base: METAS, stride: 8 };

/// History of the queue, for checks. Actors don't read it.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Ghost {
    /// Envelopes, in the order in which they became visible.
    pub committed: Vec<u32>,
    /// Envelopes, in the order in which consumers got them.
    pub consumed: Vec<u32>,
    /// `true` if the queue was closed.
    pub closed: bool,
}

/// Returns the intent word of an actor.
pub fn intent(actor: usize) -> Word {
    INTENTS.plus(actor as u64)
}

/// Returns the word of an actor's seat in the ring. The word is 0, or the number of the holder plus 1. Used
/// only in models that depend on seats.
pub fn seat(actor: usize) -> Word {
    SEATS.plus(actor as u64)
}

/// Returns the member word of an actor. Used only in models that depend on which actor recovers or reclaims.
pub fn tenancy(actor: usize) -> Word {
    TENANCIES.plus(actor as u64)
}

/// Returns the word in which an actor announces the member that it recovers.
pub fn recovering_word(actor: usize) -> Word {
    RECOVERING_WORDS.plus(actor as u64)
}

/// Returns the word with an actor's bit for the group of all envelopes.
pub fn touched(actor: usize) -> Word {
    TOUCHED.plus(actor as u64)
}

/// Records, without an access, that an actor has touched the group of all envelopes.
pub fn touch(m: &Memory, actor: usize) {
    m.poke(touched(actor), 1);
}

/// Returns the position of an actor's bits for groups of envelopes.
pub fn touched_groups(actor: usize) -> TouchedGroups {
    TouchedGroups::at(touched(actor))
}

/// Fails if an actor owns, leases or intends an envelope and has not recorded that it touches the envelope's
/// group: a recovery reads no other groups. Does not count as an access.
pub fn check_touched(m: &Memory, actor: usize) {
    let names = |e| match owner(m, e).holder {
        Holder::Member(o) | Holder::Leased(o) => actor_of(o) == actor,
        _ => false,
    };
    let any = m.peek(intent(actor)) != 0 || (0..ENVELOPES).any(names);
    assert!(!any || m.peek(touched(actor)) != 0, "actor {actor} has not touched the group of its envelope");
}

/// Returns the owner of an envelope. Does not count as an access.
pub fn owner(m: &Memory, e: u32) -> Owner {
    Owner::unpack(m.peek(OWNER.of(e)))
}

/// Returns a ring of one segment with `slots` slots.
pub fn ring(slots: u32) -> RingAt {
    RingAt { block: 0, slots, before: 0, head: HEAD, tail: TAIL, first: FIRST_SLOT, envelopes: ENVELOPES }
}

/// Returns a chain with a first segment of `slots` slots and, if `most` is larger, a second segment of `most`
/// slots.
pub fn chain(slots: u32, most: u32) -> ChainAt {
    let segments = if most > slots { 2 } else { 1 };
    ChainAt { first: ring(slots), links: LINKS, segments, most, second: SECOND }
}

/// Returns the words that count returned messages. A message is delivered at most `limit` times.
pub fn returns(limit: u32) -> ReturnWords {
    ReturnWords { returned: RETURNED, limit }
}

/// Returns the memory of an empty queue whose first segment begins in `lap`.
pub fn memory(chain: &ChainAt, lap: u64) -> Memory {
    let more = if chain.segments > 1 { SECOND_WORDS } else { 0 };
    let m = Memory::new((WORDS + more) as usize);
    let ring = chain.first;
    let first = Position { lap, index: 0 }.pack();
    m.poke(ring.head, first);
    m.poke(ring.tail, first);
    (0..ring.slots).for_each(|i| m.poke(ring.slot(i), Slot { lap, state: SlotState::Empty }.pack()));
    m.poke(COUNT, u64::from(ENVELOPES));
    m.poke(GROUP, GroupState::InUse.pack());
    m
}

/// Returns all slots of the ring. Does not count as an access.
pub fn slots(m: &Memory, chain: &ChainAt) -> Vec<Slot> {
    let segments = (0..chain.segments).map(|i| chain.segment(i));
    segments.flat_map(|ring| (0..ring.slots).map(move |i| Slot::unpack(m.peek(ring.slot(i))))).collect()
}

/// Returns the small message with this number.
pub fn small(e: u32) -> SmallMessage {
    SmallMessage::new(&[e as u8 + 1; SmallMessage::MOST]).expect("it fits")
}

/// Returns the number of a small message. Fails if the message is torn.
pub fn number_of(message: SmallMessage) -> u32 {
    let few = message.bytes();
    let bytes = few.as_slice();
    assert!(bytes.len() == SmallMessage::MOST && bytes.iter().all(|&b| b == bytes[0]), "torn: {bytes:?}");
    u32::from(bytes[0]) - 1
}

/// Returns the contents of a slot: the envelope, or the number of the small message. Does not count as an
/// access.
pub fn item(m: &Memory, slot: Word) -> Option<u32> {
    let words = [m.peek(slot), m.peek(slot.plus(1))];
    match SmallMessage::in_slot(words) {
        Some(message) => Some(number_of(message)),
        None => {
            assert_eq!(words[1], 0, "a second word that no actor reads");
            Slot::unpack(words[0]).envelope()
        }
    }
}

/// Knowledge of an actor that settles a dead actor's intent, for example the intent words of all actors whose
/// deaths are unknown.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct TestContext {
    intents: Vec<Word>,
    chain: ChainAt,
    /// Dead actor whose intent is settled.
    dead: Member,
    /// `true` if the queue delivers the dead actor's messages again.
    redelivers: bool,
    /// `true` if the dead actor holds the ring.
    holds: bool,
}

impl TestContext {
    /// Creates the context for settling the intent of the actor `dead`.
    pub fn new(fates: &[Fate], chain: ChainAt, dead: usize) -> Self {
        let alive = (0..fates.len()).filter(|&a| fates[a] != Fate::Killed);
        let intents = alive.map(intent).collect();
        Self { intents, chain, dead: member(dead), redelivers: false, holds: true }
    }

    /// Turns the queue into one that delivers a dead consumer's messages again.
    #[must_use]
    pub fn redelivering(self) -> Self {
        Self { redelivers: true, ..self }
    }

    /// Removes the dead actor's seat in the ring.
    #[must_use]
    pub fn without_a_seat(self) -> Self {
        Self { holds: false, ..self }
    }

    /// Settles the intent of the dead actor.
    pub fn settle(self) -> Box<Settle<Self>> {
        Box::new(Settle::new(intent(actor_of(self.dead)), (OWNER, PLACE), self))
    }
}

impl IntentContext for TestContext {
    fn intents(&self) -> Vec<Word> {
        self.intents.clone()
    }
    fn slot(&self, _: BlockId, slot: u32) -> Option<Word> {
        self.chain.slot(slot)
    }
    fn exists(&self, envelope: u32) -> bool {
        envelope < ENVELOPES
    }
    fn holds(&self, _: BlockId) -> bool {
        self.holds
    }
    fn redelivers(&self, _: BlockId) -> bool {
        self.redelivers
    }
    fn dead(&self) -> Member {
        self.dead
    }
}

/// Remains of a dead actor, which must be recovered or reclaimed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Remains {
    /// Intent of this dead actor.
    Intent(usize),
    /// Envelope that the dead actor owned or leased, with the owner word.
    Envelope(u32, Owner),
}

/// Returns remains of a dead actor, if there are any. Does not count as an access. Real processes use loops
/// of loads, which may miss remains, or return remains that no longer exist.
pub fn find_remains(m: &Memory, fates: &[Fate]) -> Option<Remains> {
    let dead = |a: usize| fates.get(a) == Some(&Fate::Killed);
    if let Some(d) = (0..fates.len()).find(|&d| dead(d) && m.peek(intent(d)) != 0) {
        return Some(Remains::Intent(d));
    }
    (0..ENVELOPES).find_map(|e| match owner(m, e).holder {
        Holder::Member(o) | Holder::Leased(o) if dead(actor_of(o)) => Some(Remains::Envelope(e, owner(m, e))),
        _ => None,
    })
}

/// Makes `me` the owner of an envelope, if its owner word is still `found`. Makes one access.
pub fn own(m: &Memory, e: u32, found: u64, me: usize) -> bool {
    let mine = Owner::unpack(found).then(Holder::Member(member(me)));
    m.cas(OWNER.of(e), found, mine.pack()).is_ok()
}

/// Frees an envelope that `me` owns. Makes one access.
pub fn free(m: &Memory, e: u32, me: usize) {
    let found = owner(m, e);
    assert_eq!(found.holder, Holder::Member(member(me)), "envelope {e}");
    m.store(OWNER.of(e), found.then(Holder::Free).pack());
}

/// State of an actor that recovers and reclaims dead actors, in a queue without acknowledgement.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub enum RingRecovery {
    /// Finds remains of a dead actor.
    #[default]
    Look,
    /// Settles the dead actor's intent.
    Settle(Box<Settle<TestContext>>),
    /// Takes over the dead actor's envelope, whose owner word had this value.
    Own(u32, u64),
    /// Frees the envelope that was taken over.
    Free(u32),
}

impl RingRecovery {
    /// Makes one step. Returns `true` if there are no remains of dead actors.
    pub fn step(&mut self, me: usize, m: &Memory, fates: &[Fate], chain: ChainAt) -> bool {
        *self = match self {
            Self::Look => match find_remains(m, fates) {
                Some(Remains::Intent(dead)) => Self::Settle(TestContext::new(fates, chain, dead).settle()),
                Some(Remains::Envelope(e, owner)) => Self::Own(e, owner.pack()),
                None => return true,
            },
            Self::Settle(settle) => match settle.step(m) {
                None => return false,
                Some(SettleOutcome::Cleared | SettleOutcome::Undecided(_) | SettleOutcome::Owned(_)) => {
                    Self::Look
                }
                Some(SettleOutcome::Leased(_)) => unreachable!("nothing is leased here"),
            },
            Self::Own(e, found) if own(m, *e, *found, me) => Self::Free(*e),
            Self::Own(..) => Self::Look,
            Self::Free(e) => {
                free(m, *e, me);
                Self::Look
            }
        };
        false
    }
}
