//! Memory for models in which actors recover a dead holder of a queue. A message in the queue holds a token,
//! and other actors wait for the release of the token.

use mp_core::mem::Word;
use mp_core::steps::BlockAt;
use mp_core::words::{
    BlockId, BlockKind, BlockLife, BlockState, Member, Presence, RecoveringSlots, Seat, Tenancy,
};

use crate::explore::{Fate, Memory};
use crate::members::{is_killed, member};

/// Index of the actor that is dead from the beginning, and holds the queue.
pub const DEAD: usize = 0;
/// Index of the leaver: the actor that also holds the queue, and drops it.
pub const LEAVER: usize = 1;
/// Index of the first actor that recovers dead actors.
pub const RECOVERERS: usize = 2;
/// Maximum number of actors.
pub const ACTORS: usize = 5;

/// Function that returns the page of seats of a block.
pub type Pages = fn(BlockId) -> Option<Word>;
/// Function for blocks without pages of seats.
pub const NO_PAGES: Pages = |_| None;
/// Block of the queue.
pub const QUEUE: BlockAt = BlockAt { id: 0, state: Word::at(0), inline: 2, per_page: 1 };
/// Block of the token. Other actors wait until it is no longer live.
pub const TOKEN: BlockAt = BlockAt { id: 1, state: Word::at(4 * 8), inline: 1, per_page: 1 };
/// Holder of the token: the message, which is in the queue as long as the queue exists.
pub const MESSAGE: Seat = Seat::Envelope(0);
/// Word with the kind of the queue's slab.
pub const SLAB: Word = Word::at(7 * 8);
/// Word in the queue's memory. Recovering actors write this word to notify waiters. The leaver writes
/// [`OTHER_USE`] to it when it reuses the memory.
pub const NOTIFIED: Word = Word::at(8 * 8);
/// Value of [`NOTIFIED`] after the reuse of the memory.
pub const OTHER_USE: u64 = 9;

/// Returns the member word of an actor.
pub fn tenancy(actor: usize) -> Word {
    Word::at(9 * 8).plus(actor as u64)
}

/// Returns the word in which an actor announces the member that it recovers.
pub fn recovering_word(actor: usize) -> Word {
    tenancy(ACTORS).plus(actor as u64)
}

/// Returns the seat value that names an actor.
pub fn seat_of(actor: usize) -> Seat {
    Seat::Member(member(actor))
}

/// Returns a block's state. Does not count as an access.
pub fn state(m: &Memory, block: BlockAt) -> BlockState {
    BlockState::unpack(m.peek(block.state))
}

/// Returns a block's seats, and their holders. Does not count as an access.
pub fn seats(m: &Memory, block: BlockAt) -> impl Iterator<Item = (Word, Seat)> + '_ {
    (0..block.inline).map(move |i| (block.seat(i), Seat::unpack(m.peek(block.seat(i)))))
}

/// Returns `true` if a block is live, and has no holder. Does not count as an access.
pub fn has_no_seats(m: &Memory, block: BlockAt) -> bool {
    state(m, block).life == BlockLife::Live && seats(m, block).all(|(_, seat)| seat == Seat::Free)
}

/// Returns the presence in an actor's member word. Does not count as an access.
pub fn presence(m: &Memory, actor: usize) -> Presence {
    Tenancy::unpack(m.peek(tenancy(actor))).presence
}

/// Returns `true` if a living actor announces a recovery of `dead`. Does not count as an access.
pub fn is_being_recovered(m: &Memory, fates: &[Fate], dead: usize) -> bool {
    let recovers = |a: usize| {
        fates[a] != Fate::Killed && RecoveringSlots::covers(m.peek(recovering_word(a)), dead as u32)
    };
    (0..fates.len()).any(recovers)
}

/// Returns `true` if a running actor announces a recovery. Such an actor may have stored the number of
/// recoveries. If no actor has stored it, a model can reset the number to have fewer states.
pub fn is_remembered(m: &Memory, fates: &[Fate]) -> bool {
    (0..fates.len()).any(|a| fates[a] == Fate::Running && m.peek(recovering_word(a)) != 0)
}

/// Returns `true` if no living actor holds the queue. Does not count as an access.
pub fn is_deserted(m: &Memory, fates: &[Fate]) -> bool {
    let dead = |p: Member| is_killed(fates, p);
    let is_left = |seat| matches!(seat, Seat::Free) || matches!(seat, Seat::Member(p) if dead(p));
    state(m, QUEUE).life == BlockLife::Live && seats(m, QUEUE).all(|(_, seat)| is_left(seat))
}

/// Returns `true` if a recovery of `dead` could change the state for other actors. Does not count as an
/// access. Real processes always recover.
pub fn is_waited_for(m: &Memory, fates: &[Fate], dead: usize) -> bool {
    let queue = state(m, QUEUE);
    let has = seats(m, QUEUE).any(|(_, seat)| seat == seat_of(dead));
    let claimed = queue.life == BlockLife::Busy(member(dead)) && queue.kind == BlockKind::Ring;
    let deserted = is_deserted(m, fates) && queue.kind == BlockKind::Ring;
    state(m, TOKEN).life == BlockLife::Live
        && (claimed || deserted && has || has_no_seats(m, QUEUE) || has_no_seats(m, TOKEN))
}

/// Returns the initial memory: the dead actor and the leaver hold the queue, which contains a message.
pub fn memory() -> Memory {
    let m = Memory::new(9 + 2 * ACTORS);
    let live = |kind| BlockState { life: BlockLife::Live, kind, version: 1 }.pack();
    m.poke(QUEUE.state, live(BlockKind::Ring));
    m.poke(QUEUE.seat(0), seat_of(DEAD).pack());
    m.poke(QUEUE.seat(1), seat_of(LEAVER).pack());
    m.poke(TOKEN.state, live(BlockKind::Object));
    m.poke(TOKEN.seat(0), MESSAGE.pack());
    // The word is read only after its actor has died.
    let dead = Tenancy { presence: Presence::Dead(0), epoch: 1 };
    (0..ACTORS).for_each(|a| m.poke(tenancy(a), dead.pack()));
    m
}
