//! Structures that are parts of another one, which lives as long as any of them has a holder.
//!
//! A part has a seat of its whole, as a process or a message has one. It is taken before any other process knows the part, and given up
//! when the part is freed, by the process that frees it: its last holder, or a sweep. So a message with a part need not take its whole along.
//!
//! The seat is the maker's first. Were it the part's before the version is counted up, then a process that looks whether the whole has
//! holders could come by before, and find the maker's own seat given up, after the maker was killed in between: it would free the whole
//! under the part. (For messages visitors see to that, who empty a dead member's envelopes before they give its seats up.)
//!
//! Which seat it is, is in word 7 of the part's header, and that there may be one in its kind, [`Kind::Part`].
//!
//! | step | killed after it, there is left | who clears it |
//! |---|---|---|
//! | the block is a part | a part of nothing | the sweep of its maker, its only holder |
//! | its word names a seat of the whole | the same, and a seat that doesn't name this block | the same, which leaves that seat alone |
//! | the seat is the maker's | the same, and a second seat of the dead member | visitors of that member, as its first one |
//! | the whole's version is counted up | the same | the same |
//! | the seat names the block | a part of its whole | its last holder, or the sweep |
//! | (freeing) the part is claimed | a part that a dead member has claimed | the sweep, which begins again |
//! | the seat is given up | the same; the whole, perhaps without a holder | the same: the seat names this block no more. The whole: visitors of that member, which has touched its slab |
//! | the whole is freed, if this was its last holder | the part as before | the same |

use crate::arena::layout::SLAB_BLOCKS;
use crate::arena::messages::incoming::OBJECT;
use crate::arena::{Arena, Hold};
use crate::error::{Error, Result};
use crate::mem::{Mem, Word, run};
use crate::steps::{Note, Release, Released};
use crate::words::{Attach, BlockId, Kind, Seat};

/// The word of a structure's header that names the seat of its whole.
const WHOLE: u64 = 7;

impl Arena {
    /// As [`Structure::part_of`](crate::Structure::part_of) says, of the structures in these blocks.
    pub(crate) fn make_part(&self, part: &Hold, whole: &Hold) -> Result<()> {
        let me = self.me()?;
        let refused = |why| Err(Error::InvalidArgument(format!("a structure can't be made a part: {why}")));
        let is_known = part.is_nowhere() || part.count() != 1 || !self.is_only_holder(part);
        let is_known = is_known && !mutant!("arena.part.others-ignored");
        let is_whole = !whole.is_nowhere()
            && whole.block() != part.block()
            && matches!(self.kind_of(whole.block()), Kind::Object | Kind::Keeper);
        if !is_whole && !mutant!("arena.part.of-a-part") {
            return refused("what it would be a part of is a part itself, or the same");
        }
        // Parts are not parts of each other, so that freeing one frees no more than one other.
        let (block, map) = (part.block(), self.map());
        if is_known || self.object_becomes(block, Kind::Part).is_err() {
            return refused("others have it, or it is one already, or it keeps a descriptor");
        }
        let (entry, first) = (self.whole_word(block), Word::at(self.data_of(block).0));
        // The step that counts notes has nothing to count: it writes what is there.
        let note = Note { entry, count: first, counted: map.load_relaxed(first), grant: OBJECT };
        let (mine, its) = (Seat::Member(me), Seat::Block(block));
        let handed = self.share_block_seat(mine, note, whole.block()).and_then(|()| {
            let seat =
                Attach::unpack(map.load_relaxed(entry)).and_then(|at| self.seat_word(at.block, at.seat));
            let seat = seat.ok_or_else(|| Error::Malformed("a seat vanished".into()))?;
            _ = map.cas(seat, mine.pack(), its.pack());
            Ok(())
        });
        handed.inspect_err(|_| map.store(entry, 0))
    }

    fn whole_word(&self, part: BlockId) -> Word {
        Word::at(self.data_of(part).0).plus(WHOLE)
    }

    /// The seat that a held part has of its whole.
    pub(crate) fn whole_of(&self, part: &Hold) -> Result<Attach> {
        let none = || Error::Malformed("a structure arrived that is a part of none".into());
        if part.is_nowhere() || self.kind_of(part.block()) != Kind::Part {
            return Err(none());
        }
        let whole = Attach::unpack(self.map().load(self.whole_word(part.block())));
        whole.filter(|whole| self.block_exists(whole.block)).ok_or_else(none)
    }

    /// The [mark](Self::mark) of the structure that a held one is a [part](crate::Structure::part_of) of: it lives as long as the part has
    /// a holder.
    ///
    /// # Errors
    /// [`Error::Malformed`] if it is a part of none; [`Error::Forked`].
    #[inline]
    pub fn whole_mark(&self, part: &Hold) -> Result<u64> {
        self.me()?;
        Ok(self.mark_of(self.whole_of(part)?.block))
    }

    /// The structure that a held one is a [part](crate::Structure::part_of) of: this process holds it then, whether or not it did before.
    ///
    /// # Errors
    /// [`Error::Malformed`] if it is a part of none; [`Error::OutOfMemory`] and [`Error::ArenaFull`] where one more holder takes memory;
    /// [`Error::Forked`].
    pub fn whole(&self, part: &Hold) -> Result<Hold> {
        self.me()?;
        let whole = self.whole_of(part)?;
        match self.hold_again(whole.block, self.generation(whole.block)) {
            Some(hold) => Ok(hold),
            // The part has its seat meanwhile.
            None => self.share(&self.spare_envelope()?, whole),
        }
    }

    /// Gives up the seat that a part has of its whole, which this process has claimed to free it.
    pub(in crate::arena) fn leave_whole(&self, part: BlockId) {
        let (Ok(me), Some(whole)) = (self.me(), Attach::unpack(self.map().load(self.whole_word(part))))
        else {
            return;
        };
        if !self.block_exists(whole.block) || mutant!("arena.part.whole-kept") {
            return;
        }
        let Some(seat) = self.seat_word(whole.block, whole.seat) else { return };
        // It may become this process's to free.
        if !mutant!("arena.part.whole-not-touched") {
            self.touch(me, whole.block / SLAB_BLOCKS);
        }
        let release = Release::new(self.block_at(whole.block), self.pages(), me, seat, Seat::Block(part));
        if let Released::ToFree(state) = run(release, self.map()) {
            self.finish_free(whole.block, state);
        }
    }
}

#[cfg(all(test, not(mp_loom)))]
mod tests {
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
        let (whole, parts) = (new(), [new(), new(), new()]);
        let (arena, mark) = (whole.arena(), whole.mark());
        for part in &parts {
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

    /// More than there are seats in a header, and in a page.
    #[test]
    fn a_structure_may_have_many_parts() {
        let whole = new();
        let (arena, mark) = (whole.arena(), whole.mark());
        let parts: Vec<Structure> = (0..600).map(|_| new()).collect();
        parts.iter().for_each(|part| part.part_of(&whole).unwrap());
        assert_eq!(whole.holders().parts, 600);
        drop(whole);
        assert!(parts.iter().all(|part| arena.whole_mark(part.hold()).unwrap() == mark));
        drop(parts);
        assert!(!arena.lives(mark));
    }

    #[test]
    fn what_others_know_or_what_is_a_part_is_refused() {
        let (whole, part) = (new(), new());
        refused(part.part_of(&part), "or the same");
        let clone = part.clone();
        refused(part.part_of(&whole), "others have it");
        drop(clone);
        part.part_of(&whole).unwrap();
        refused(part.part_of(&whole), "it is one already");
        refused(new().part_of(&part), "is a part itself");
        refused(part.keep_descriptor(std::io::stderr()), "is a part of another one");
        let keeper = new();
        keeper.keep_descriptor(std::io::stderr()).unwrap();
        refused(keeper.part_of(&whole), "it keeps a descriptor");
        new().part_of(&keeper).unwrap();
        let arena = whole.arena();
        refused(arena.whole(whole.hold()).map(drop), "part of none");
        refused(arena.whole_mark(&arena.alloc(64).unwrap()).map(drop), "part of none");
    }
}
