//! Structures that are parts of another structure, the *whole*, which lives as long as any part has a holder.
//!
//! A part has a seat of its whole, like a process or a message. The seat is taken before any other process
//! knows the part. The process that frees the part releases the seat: its last holder, or a sweep. So a
//! message with a part need not carry the whole.
//!
//! Word 7 of the part's header stores the seat. The block's kind, [`BlockKind::Child`], marks that there may be
//! one.
//!
//! The process that frees a part checks whether the whole has another holder, beginning at the seat that was
//! taken last: 0.1 µs if a holder is near. If all seats near it were released, it checks each seat of the
//! whole: 70 µs for 60,000 parts.
//!
//! | step | state if killed after it | cleared by |
//! |---|---|---|
//! | the block is a part | a part without a whole, as if there is no memory for a seat | the sweep of its maker, its only holder |
//! | its word stores a seat of the whole | the same, and a seat that doesn't name this block | the same, which does not touch that seat |
//! | the seat is the maker's (`steps::part` has the reason) | the same, and a second seat of the dead member | recovery of that member, like its first seat |
//! | the whole's version is incremented | the same | the same |
//! | the seat names the block | a part of its whole | its last holder, or the sweep |
//! | (freeing) the part is claimed | a part that a dead member has claimed | the sweep, which begins again |
//! | the seat is released | the same, and a whole that may have no holder | the part: the same, as the seat no longer names it. The whole: recovery of that member, which has touched its slab |
//! | the whole is freed, if this was its last holder | the part as before | the same |

use crate::alloc::handles::Hold;
use crate::arena::Arena;
use crate::error::{Error, Result};
use crate::layout::SLAB_BLOCKS;
use crate::mem::{Mem, Word, run};
use crate::messages::incoming::OBJECT;
use crate::steps::{AttachRecord, JoinOutcome, JoinParent, LeaveOutcome, LeaveParent};
use crate::words::{Attachment, BlockId, BlockKind, BlockState, Member};

/// Word of a structure's header that stores the seat of its whole.
const WHOLE: u64 = 7;

impl Arena {
    /// Implements [`Structure::part_of`](crate::Structure::part_of) for the structures in these blocks.
    pub(crate) fn make_part(&self, part: &Hold, whole: &Hold) -> Result<()> {
        let me = part.arena().me()?;
        whole.arena().me()?;
        let refused = |why| Err(Error::InvalidArgument(format!("a structure can't be made a part: {why}")));
        // A part can't have parts, so freeing a part frees at most one other block.
        let is_whole = !whole.is_nowhere()
            && matches!(self.kind_of(whole.block()), BlockKind::Object | BlockKind::Keeper);
        if !is_whole {
            return refused("what it would be a part of is a part itself");
        }
        let is_unknown = !part.is_nowhere() && part.count() == 1 && self.is_only_holder(part);
        if !is_unknown || self.object_becomes(part.block(), BlockKind::Child).is_err() {
            return refused("others have it, or it is one already, or it keeps a descriptor");
        }
        let made = self.take_seat_for(part.block(), whole.block(), me);
        // Restored, so the caller can retry.
        made.inspect_err(|_| {
            let more = BlockState::kind_bits(BlockKind::Child) & !BlockState::kind_bits(BlockKind::Object);
            self.map().store(self.whole_word(part.block()), 0);
            self.map().and(self.block_at(part.block()).state, !more);
        })
    }

    fn take_seat_for(&self, part: BlockId, whole: BlockId, me: Member) -> Result<()> {
        let (entry, first) = (self.whole_word(part), Word::at(self.data_of(part).0));
        // The step that counts notes has nothing to count here: it writes the present value.
        let note =
            AttachRecord { entry, count: first, counted: self.map().load_relaxed(first), grant: OBJECT };
        loop {
            let make = JoinParent::new(self.block_at(whole), self.pages(), me, part, note);
            match run(make, self.map()) {
                JoinOutcome::Joined => return Ok(()),
                JoinOutcome::NoSeat => self.add_seat_page(whole)?,
            }
        }
    }

    fn whole_word(&self, part: BlockId) -> Word {
        Word::at(self.data_of(part).0).plus(WHOLE)
    }

    /// Returns the seat that a held part has of its whole.
    pub(crate) fn whole_of(&self, part: &Hold) -> Result<Attachment> {
        part.arena().me()?;
        let none = || Error::Malformed("a structure arrived that is a part of none".into());
        if part.is_nowhere() || self.kind_of(part.block()) != BlockKind::Child {
            return Err(none());
        }
        let whole = Attachment::unpack(self.map().load(self.whole_word(part.block())));
        whole.filter(|whole| self.block_exists(whole.block)).ok_or_else(none)
    }

    /// Returns the [mark](Self::mark) of the whole of a held [part](crate::Structure::part_of). The whole
    /// lives as long as the part has a holder.
    ///
    /// # Errors
    /// [`Error::Malformed`] if the structure has no whole. [`Error::Forked`].
    #[inline]
    pub fn whole_mark(&self, part: &Hold) -> Result<u64> {
        Ok(self.mark_of(self.whole_of(part)?.block))
    }

    /// Returns a handle to the whole of a held [part](crate::Structure::part_of), even if this process did
    /// not hold the whole before.
    ///
    /// # Errors
    /// [`Error::Malformed`] if the structure has no whole. [`Error::OutOfMemory`] and [`Error::ArenaFull`] if
    /// an additional holder needs memory. [`Error::Forked`].
    pub fn whole(&self, part: &Hold) -> Result<Hold> {
        let whole = self.whole_of(part)?;
        match self.hold_again(whole.block, self.generation(whole.block)) {
            Some(hold) => Ok(hold),
            // The part keeps its seat meanwhile.
            None => self.share(&self.spare_envelope()?, whole),
        }
    }

    /// Releases the seat that a part has of its whole. This process has claimed the part to free it.
    pub(crate) fn leave_whole(&self, part: BlockId) {
        let Ok(me) = self.me() else { return };
        let at = |whole| {
            let exists = self.block_exists(whole);
            // This process may have to free it.
            if exists {
                self.touch(me, whole / SLAB_BLOCKS);
            }
            exists.then(|| self.block_at(whole))
        };
        let leave = LeaveParent::new(part, self.whole_word(part), me, self.pages(), at);
        if let LeaveOutcome::MustFree(whole, state) = run(leave, self.map()) {
            self.finish_free(whole, state);
        }
    }
}

#[cfg(all(test, not(mp_loom)))]
mod tests {
    use crate::messages::Outgoing;
    use crate::{Result, Structure};

    fn new() -> Structure {
        Structure::new("test::Part", 1).unwrap()
    }

    #[track_caller]
    fn refused(made: Result<()>, why: &str) {
        let error = made.unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }

    #[test]
    fn a_whole_lives_as_long_as_its_parts() {
        let (whole, mut parts) = (new(), [new(), new(), new()]);
        let (arena, mark) = (whole.arena(), whole.mark());
        for part in &mut parts {
            part.part_of(&whole).unwrap();
        }
        let holders = whole.holders();
        assert_eq!((holders.processes.len(), holders.messages, holders.parts), (1, 0, 3), "{holders}");
        drop(whole);
        let [one, other, last] = parts;
        assert!(arena.lives(mark) && arena.whole_mark(one.hold()).unwrap() == mark);
        drop((one, other));
        let found = arena.whole(last.hold()).unwrap();
        assert!(arena.mark(&found) == mark && found.count() == 1);
        assert_eq!(arena.whole(last.hold()).unwrap().count(), 2, "it is held already");
        drop(last);
        assert!(arena.lives(mark), "this process holds it");
        drop(found);
        assert!(!arena.lives(mark));
    }

    /// More parts than a header and a page have seats.
    #[test]
    fn a_structure_may_have_many_parts() {
        let whole = new();
        let (arena, mark) = (whole.arena(), whole.mark());
        let mut parts: Vec<Structure> = (0..600).map(|_| new()).collect();
        parts.iter_mut().for_each(|part| part.part_of(&whole).unwrap());
        assert_eq!(whole.holders().parts, 600);
        drop(whole);
        assert!(parts.iter().all(|part| arena.whole_mark(part.hold()).unwrap() == mark));
        drop(parts);
        assert!(!arena.lives(mark));
    }

    #[test]
    fn what_others_know_or_what_is_a_part_is_refused() {
        let (mut whole, mut part) = (new(), new());
        let clone = part.clone();
        refused(part.part_of(&whole), "others have it");
        refused(part.part_of(&clone), "others have it");
        drop(clone);
        let mut message = Outgoing::default();
        message.attached().attach_object(part.hold()).unwrap();
        let envelope = whole.arena().pack(&mut message, 0).unwrap();
        refused(part.part_of(&whole), "others have it");
        drop(envelope);
        part.part_of(&whole).unwrap();
        refused(part.part_of(&whole), "it is one already");
        refused(new().part_of(&part), "is a part itself");
        refused(whole.part_of(&new()), "others have it");
        refused(part.keep_descriptor(std::io::stderr()), "is a part of another one");
        let mut keeper = new();
        keeper.keep_descriptor(std::io::stderr()).unwrap();
        refused(keeper.part_of(&whole), "it keeps a descriptor");
        new().part_of(&keeper).unwrap();
        let arena = whole.arena();
        refused(arena.whole(whole.hold()).map(drop), "part of none");
        refused(arena.whole_mark(&arena.alloc(64).unwrap()).map(drop), "part of none");
    }
}
