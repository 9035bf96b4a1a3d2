//! The memory of a queue with a message in it, which has a token that others wait for; and of actors that
//! recover for a dead one that has the queue.

use mp_core::mem::Word;
use mp_core::steps::BlockAt;
use mp_core::words::{BlockId, BlockState, Kind, Life, Member, Presence, Seat, Tenancy, Visiting};

use crate::explore::{Fate, Memory};
use crate::members::{is_killed, member};

/// Dead from the beginning; it has the queue.
pub const DEAD: usize = 0;
/// Has it as well, and leaves it.
pub const LEAVER: usize = 1;
/// From here on, the actors that recover for dead ones.
pub const VISITORS: usize = 2;
/// The most actors.
pub const ACTORS: usize = 5;

/// Where pages of seats are: there are none.
pub type Pages = fn(BlockId) -> Option<Word>;
/// No pages of seats.
pub const NO_PAGES: Pages = |_| None;
/// The queue.
pub const QUEUE: BlockAt = BlockAt { id: 0, state: Word::at(0), inline: 2, per_page: 1 };
/// What others wait for is that it is not live any more.
pub const TOKEN: BlockAt = BlockAt { id: 1, state: Word::at(4 * 8), inline: 1, per_page: 1 };
/// The message, which has the token. It lies in the queue as long as that is one.
pub const MESSAGE: Seat = Seat::Envelope(0);
/// What the queue's slab is.
pub const SLAB: Word = Word::at(7 * 8);
/// Memory of the queue: what visitors write, and what the leaver does when it is its memory again.
pub const TOLD: Word = Word::at(8 * 8);
/// What is there then.
pub const OTHER_USE: u64 = 9;

/// The word of an actor as a member.
pub fn tenancy(actor: usize) -> Word {
    Word::at(9 * 8).plus(actor as u64)
}

/// Where an actor says which one it visits.
pub fn visiting(actor: usize) -> Word {
    tenancy(ACTORS).plus(actor as u64)
}

/// A seat that an actor has.
pub fn seat_of(actor: usize) -> Seat {
    Seat::Member(member(actor))
}

/// A block's state; no access.
pub fn state(m: &Memory, block: BlockAt) -> BlockState {
    BlockState::unpack(m.peek(block.state))
}

/// A block's seats, and their holders; no access.
pub fn seats(m: &Memory, block: BlockAt) -> impl Iterator<Item = (Word, Seat)> + '_ {
    (0..block.inline).map(move |i| (block.seat(i), Seat::unpack(m.peek(block.seat(i)))))
}

/// Whether a block is live, and has no holder; no access.
pub fn has_no_seats(m: &Memory, block: BlockAt) -> bool {
    state(m, block).life == Life::Live && seats(m, block).all(|(_, seat)| seat == Seat::Free)
}

/// What an actor's word says; no access.
pub fn presence(m: &Memory, actor: usize) -> Presence {
    Tenancy::unpack(m.peek(tenancy(actor))).presence
}

/// Whether an actor that is not dead says that it visits this one; no access.
pub fn is_visited(m: &Memory, fates: &[Fate], dead: usize) -> bool {
    let visits = |a: usize| fates[a] != Fate::Killed && Visiting::covers(m.peek(visiting(a)), dead as u32);
    (0..fates.len()).any(visits)
}

/// Whether an actor that goes on may know how many visits there were.
pub fn is_remembered(m: &Memory, fates: &[Fate]) -> bool {
    (0..fates.len()).any(|a| fates[a] == Fate::Running && m.peek(visiting(a)) != 0)
}

/// No living actor has the queue; no access.
pub fn is_deserted(m: &Memory, fates: &[Fate]) -> bool {
    let dead = |p: Member| is_killed(fates, p);
    let is_left = |seat| matches!(seat, Seat::Free) || matches!(seat, Seat::Member(p) if dead(p));
    state(m, QUEUE).life == Life::Live && seats(m, QUEUE).all(|(_, seat)| is_left(seat))
}

/// Whether a visit changes anything for others; no access. In processes one visits in any case.
pub fn is_waited_for(m: &Memory, fates: &[Fate], dead: usize) -> bool {
    let queue = state(m, QUEUE);
    let has = seats(m, QUEUE).any(|(_, seat)| seat == seat_of(dead));
    let claimed = queue.life == Life::Busy(member(dead)) && queue.kind == Kind::Ring;
    let deserted = is_deserted(m, fates) && queue.kind == Kind::Ring;
    state(m, TOKEN).life == Life::Live
        && (claimed || deserted && has || has_no_seats(m, QUEUE) || has_no_seats(m, TOKEN))
}

/// The memory at first: the dead actor and the leaver have the queue, with a message in it.
pub fn memory() -> Memory {
    let m = Memory::new(9 + 2 * ACTORS);
    let live = |kind| BlockState { life: Life::Live, kind, version: 1 }.pack();
    m.poke(QUEUE.state, live(Kind::Ring));
    m.poke(QUEUE.seat(0), seat_of(DEAD).pack());
    m.poke(QUEUE.seat(1), seat_of(LEAVER).pack());
    m.poke(TOKEN.state, live(Kind::Object));
    m.poke(TOKEN.seat(0), MESSAGE.pack());
    // Once one is dead, its word says so.
    let dead = Tenancy { presence: Presence::Dead(0), epoch: 1 };
    (0..ACTORS).for_each(|a| m.poke(tenancy(a), dead.pack()));
    m
}
