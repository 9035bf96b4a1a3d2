//! Making a block a part of another one, its whole, and leaving the whole when the part is freed.
//!
//! The seat in the whole belongs to the caller before it belongs to the part. If it belonged to the part at
//! once, a process that checks the holders of the whole could do so before the version is incremented, and
//! find the caller's own seat released, because the caller was killed in between: it would free the whole
//! while the part needs it. (For messages, visitors prevent that: they empty a dead member's envelopes before
//! they release its seats.)

use super::{BlockAt, Note, Release, Released, Take, Taken};
use crate::mem::{Mem, Steps, Word};
use crate::words::{Attach, BlockId, BlockState, Member, Seat};

/// Result of making a part.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Made {
    /// The part has a seat of the whole.
    Part,
    /// All seats that were checked are taken: link a page with more, and try again.
    NoneFree,
}

/// Takes a seat of a block for another block. The caller holds the whole until this has ended, and no other
/// process knows the part.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct MakePart<F> {
    whole: BlockAt,
    pages: F,
    mine: Seat,
    part: Seat,
    take: Take<F>,
    taken: Option<Word>,
}

impl<F: Fn(BlockId) -> Option<Word> + Clone> MakePart<F> {
    /// Creates the steps to make `part` a part of `whole`, for `me`. `note` is the place where the part
    /// records its seat.
    pub fn new(whole: BlockAt, pages: F, me: Member, part: BlockId, note: Note) -> Self {
        let (mine, part) = (Seat::Member(me), Seat::Block(part));
        let first = mine;
        let take = Take::new(whole, pages.clone(), first, note);
        Self { whole, pages, mine, part, take, taken: None }
    }
}

impl<F: Fn(BlockId) -> Option<Word>> Steps for MakePart<F> {
    type Out = Made;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<Made> {
        if let Some(seat) = self.taken {
            // The seat belongs to this process until here.
            _ = m.cas(seat, self.mine.pack(), self.part.pack());
            return Some(Made::Part);
        }
        match self.take.step(m)? {
            Taken::NoneFree => return Some(Made::NoneFree),
            Taken::Seat(at) => self.taken = Some(self.whole.seat_word(at, &self.pages)?),
        }
        None
    }
}

/// Result of leaving a whole.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Left {
    /// The whole has other holders, or another process frees it; or the part had no whole.
    Held,
    /// The caller must free the whole: its state is `BUSY(me)`, with this value.
    ToFree(BlockId, BlockState),
}

/// Releases the seat of a part in its whole. The caller has claimed the part, and frees it afterwards. Has no
/// effect if the seat was already released.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct LeaveWhole<F, A> {
    part: BlockId,
    entry: Word,
    me: Member,
    pages: F,
    at: A,
    release: Option<(BlockId, Release<F>)>,
}

impl<F: Fn(BlockId) -> Option<Word> + Clone, A: Fn(BlockId) -> Option<BlockAt>> LeaveWhole<F, A> {
    /// Creates the steps for `part`, which has recorded its seat in `entry`. `at` returns the positions of
    /// the block named there, and is called before the caller may have to free that block.
    pub fn new(part: BlockId, entry: Word, me: Member, pages: F, at: A) -> Self {
        Self { part, entry, me, pages, at, release: None }
    }
}

impl<F: Fn(BlockId) -> Option<Word> + Clone, A: Fn(BlockId) -> Option<BlockAt>> Steps for LeaveWhole<F, A> {
    type Out = Left;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<Left> {
        if let Some((whole, release)) = &mut self.release {
            return match release.step(m)? {
                Released::Held => Some(Left::Held),
                Released::ToFree(state) => Some(Left::ToFree(*whole, state)),
            };
        }
        let noted = Attach::unpack(m.load(self.entry));
        let found = noted.and_then(|noted| {
            let whole = (self.at)(noted.block)?;
            let seat = whole.seat_word(noted.seat, &self.pages)?;
            let release = Release::new(whole, self.pages.clone(), self.me, seat, Seat::Block(self.part));
            Some((noted.block, release.beside(whole.beside(noted.seat, seat))))
        });
        match found {
            Some(found) => self.release = Some(found),
            _ => return Some(Left::Held),
        }
        None
    }
}
