//! Joining a block to another block, its parent, and leaving the parent when the child is freed.
//!
//! The new seat in the parent first names the caller, and then the child. Otherwise a kill could free the
//! parent too early. Suppose that the new seat named the child at once, and that the caller was killed before
//! it incremented the parent's version. The caller's recovery releases the caller's own seat. Another process
//! that read the new seat as free, and reads the caller's seat afterwards, finds no holder and an unchanged
//! version. So that process frees the parent, which the child still needs. (Seats of messages don't have this
//! problem: a recovery empties a dead member's envelopes before it releases the member's seats.)

use super::{AttachRecord, BlockAt, ReleaseOutcome, ReleaseSeat, TakeOutcome, TakeSeat};
use crate::mem::{Mem, Steps, Word};
use crate::words::{Attachment, BlockId, BlockState, Member, Seat};

/// Result of making a child.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum JoinOutcome {
    /// The child has a seat of the parent.
    Joined,
    /// All checked seats are taken. The caller links a page of seats and retries.
    NoSeat,
}

/// Takes a seat of a block, the parent, for another block, its child. The caller holds the parent until these
/// steps have ended, and no other process has a handle to the child.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct JoinParent<F> {
    parent: BlockAt,
    pages: F,
    mine: Seat,
    child: Seat,
    take: TakeSeat<F>,
    taken: Option<Word>,
}

impl<F: Fn(BlockId) -> Option<Word> + Clone> JoinParent<F> {
    /// Creates the steps to make `child` a child of `parent`, for the member `me`. The child records its seat
    /// in the parent at `note`.
    pub fn new(parent: BlockAt, pages: F, me: Member, child: BlockId, note: AttachRecord) -> Self {
        let (mine, child) = (Seat::Member(me), Seat::Block(child));
        let first = mine;
        let take = TakeSeat::new(parent, pages.clone(), first, note);
        Self { parent, pages, mine, child, take, taken: None }
    }
}

impl<F: Fn(BlockId) -> Option<Word> + Clone> Steps for JoinParent<F> {
    type Out = JoinOutcome;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<JoinOutcome> {
        if let Some(seat) = self.taken {
            // The seat belongs to this process until here.
            _ = m.cas(seat, self.mine.pack(), self.child.pack());
            return Some(JoinOutcome::Joined);
        }
        match self.take.step(m)? {
            TakeOutcome::NoSeat => return Some(JoinOutcome::NoSeat),
            TakeOutcome::Seat(at) => self.taken = Some(self.parent.seat_word(at, &self.pages)?),
        }
        None
    }
}

/// Result of leaving a parent.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LeaveOutcome {
    /// The caller has nothing to free: the parent has other holders, another process frees the parent, or the
    /// child had no parent.
    Held,
    /// The caller must free the parent. Contains the parent and its state, `BUSY(me)`.
    MustFree(BlockId, BlockState),
}

/// Releases the seat of a child in its parent. The caller has claimed the child, and frees it afterwards.
/// Has no effect if the seat was already released.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct LeaveParent<F, A> {
    child: BlockId,
    entry: Word,
    me: Member,
    pages: F,
    at: A,
    release: Option<(BlockId, ReleaseSeat<F>)>,
}

impl<F: Fn(BlockId) -> Option<Word> + Clone, A: Fn(BlockId) -> Option<BlockAt>> LeaveParent<F, A> {
    /// Creates the steps for `child`, which has recorded its seat in the word `entry`. `at` returns the words
    /// of the parent, and is only called while the parent can't be freed.
    pub fn new(child: BlockId, entry: Word, me: Member, pages: F, at: A) -> Self {
        Self { child, entry, me, pages, at, release: None }
    }
}

impl<F: Fn(BlockId) -> Option<Word> + Clone, A: Fn(BlockId) -> Option<BlockAt>> Steps for LeaveParent<F, A> {
    type Out = LeaveOutcome;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<LeaveOutcome> {
        if let Some((parent, release)) = &mut self.release {
            return match release.step(m)? {
                ReleaseOutcome::Held => Some(LeaveOutcome::Held),
                ReleaseOutcome::MustFree(state) => Some(LeaveOutcome::MustFree(*parent, state)),
            };
        }
        let noted = Attachment::unpack(m.load(self.entry));
        let found = noted.and_then(|noted| {
            let parent = (self.at)(noted.block)?;
            let seat = parent.seat_word(noted.seat, &self.pages)?;
            let release =
                ReleaseSeat::new(parent, self.pages.clone(), self.me, seat, Seat::Block(self.child));
            Some((noted.block, release.neighbor(parent.neighbor(noted.seat, seat))))
        });
        match found {
            Some(found) => self.release = Some(found),
            _ => return Some(LeaveOutcome::Held),
        }
        None
    }
}
