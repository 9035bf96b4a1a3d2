//! A block becomes a part of another one, which is its whole, and leaves that when it is freed.
//!
//! The seat of the whole is its maker's before it is the part's. Were it the part's at once, a process that looks whether the whole has
//! holders could come by before the version is counted up, and find the maker's own seat given up, because the maker was killed in
//! between: it would free the whole under the part. (For messages, visitors see to that, who empty a dead member's envelopes before they
//! give its seats up.)

use super::{BlockAt, Note, Release, Released, Take, Taken};
use crate::mem::{Mem, Steps, Word};
use crate::words::{Attach, BlockId, BlockState, Member, Seat};

/// How making a part ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Made {
    /// The part has a seat of the whole.
    Part,
    /// All seats that were looked at are taken: link a page with more, and try again.
    NoneFree,
}

/// Takes a seat of a block for another one. The caller holds the whole until this has ended, and no other process knows the part.
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
    /// To make `part` one of `whole`, for `me`. What `note` says is where the part notes its seat.
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
            // It is this process's until here.
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

/// How leaving a whole ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Left {
    /// The whole is held by others, or is freed elsewhere; or the part had none.
    Held,
    /// The whole is the caller's to free: its state is `BUSY(me)`, this one.
    ToFree(BlockId, BlockState),
}

/// Gives up the seat that a part has of its whole. The caller has claimed the part, and frees it afterwards. If it was done already, nothing
/// happens.
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
    /// For `part`, which has noted its seat in `entry`. `at` finds the block that it says, and is called before that may become the
    /// caller's to free.
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
