//! Structures that are children of another structure, the *parent*, which lives as long as any child has a
//! holder.
//!
//! A child has a seat of its parent, like a process or a message. The seat is taken before any other process
//! has access to the child. The process that frees the child releases the seat: its last holder, or a
//! reclaim. So a message with a child need not carry the parent.
//!
//! Word 7 of the child's header stores the seat. The block's kind, [`BlockKind::Child`], marks that there may
//! be one.
//!
//! The process that frees a child checks whether the parent has another holder. It begins at a seat that an
//! earlier check found held (`steps::block`), so that all checks together read each released seat about once.
//!
//! | step | state if killed after it | cleared by |
//! |---|---|---|
//! | the block is a child | a child without a parent, as after a failure to get a seat | the reclaim of its maker, its only holder |
//! | its word stores a seat of the parent | the same, and the stored seat doesn't name this block | the same, which does not touch that seat |
//! | the seat is the maker's (`steps::block::child` has the reason) | the same, and a second seat of the dead member | recovery of that member, like its first seat |
//! | the parent's version is incremented | the same | the same |
//! | the seat names the block | a child of its parent | its last holder, or the reclaim |
//! | (freeing) the child is claimed | a child that a dead member has claimed | the reclaim, which begins again |
//! | the seat is released | the same, and a parent that may have no holder | the child: the same, as the seat no longer names it. The parent: recovery of that member, which has touched its slab |
//! | the parent is freed, if this was its last holder | the child as before | the same |

use crate::alloc::Allocator;
use crate::alloc::handles::Hold;
use crate::blocks::Blocks;
use crate::envelopes::OBJECT;
use crate::error::{Error, Result};
use crate::layout::SLAB_BLOCKS;
use crate::mem::{Mem, Word, run};
use crate::members::Members;
use crate::steps::{AttachRecord, JoinOutcome, JoinParent, LeaveOutcome, LeaveParent};
use crate::words::{Attachment, BlockId, BlockKind, BlockState, Member};

/// Word of a structure's header that stores the seat of its parent.
const WHOLE: u64 = 7;

impl Allocator {
    /// Implements [`Structure::set_parent`](crate::Structure::set_parent) for the structures in these blocks.
    pub(crate) fn make_child(self, child: &Hold, parent: &Hold) -> Result<()> {
        let me = child.arena().me()?;
        parent.arena().me()?;
        let refused = |why| Err(Error::InvalidArgument(format!("a structure can't be made a child: {why}")));
        // A child can't have children, so freeing a child frees at most one other block.
        let is_whole = !parent.is_nowhere()
            && matches!(Blocks(self.0).kind_of(parent.block()), BlockKind::Object | BlockKind::Keeper);
        if !is_whole {
            return refused("the parent is a child itself");
        }
        let is_unknown = !child.is_nowhere() && child.count() == 1 && child.is_only_holder();
        if !is_unknown || Blocks(self.0).object_becomes(child.block(), BlockKind::Child).is_err() {
            return refused("others have it, or it is one already, or it keeps a descriptor");
        }
        let made = self.take_seat_for(child.block(), parent.block(), me);
        // Restored, so the caller can retry.
        made.inspect_err(|_| {
            let more = BlockState::kind_bits(BlockKind::Child) & !BlockState::kind_bits(BlockKind::Object);
            self.map().store(self.whole_word(child.block()), 0);
            self.map().and(Blocks(self.0).block_at(child.block()).state, !more);
        })
    }

    fn take_seat_for(self, child: BlockId, parent: BlockId, me: Member) -> Result<()> {
        let (entry, first) = (self.whole_word(child), Blocks(self.0).memory_of(child).0);
        // There are no attachments to count here: the step writes the present value of the word.
        let note =
            AttachRecord { entry, count: first, counted: self.map().load_relaxed(first), grant: OBJECT };
        loop {
            let make =
                JoinParent::new(Blocks(self.0).block_at(parent), Blocks(self.0).pages(), me, child, note);
            match run(make, self.map()) {
                JoinOutcome::Joined => return Ok(()),
                JoinOutcome::NoSeat => self.add_seat_page(parent)?,
            }
        }
    }

    fn whole_word(self, child: BlockId) -> Word {
        Blocks(self.0).memory_of(child).0.plus(WHOLE)
    }

    /// Returns the seat that a held child has of its parent.
    pub(crate) fn parent_of(self, child: &Hold) -> Result<Attachment> {
        child.arena().me()?;
        let none = || Error::Malformed("a structure arrived that has no parent".into());
        if child.is_nowhere() || Blocks(self.0).kind_of(child.block()) != BlockKind::Child {
            return Err(none());
        }
        let parent = Attachment::unpack(self.map().load(self.whole_word(child.block())));
        parent.filter(|parent| Blocks(self.0).block_exists(parent.block)).ok_or_else(none)
    }

    /// Returns the [mark](Hold::mark) of the parent of a held [child](crate::Structure::set_parent). The
    /// parent lives as long as the child has a holder.
    ///
    /// # Errors
    /// [`Error::Malformed`] if the structure has no parent. [`Error::Forked`].
    #[inline]
    pub fn parent_mark(self, child: &Hold) -> Result<u64> {
        Ok(Blocks(self.0).mark_of(self.parent_of(child)?.block))
    }

    /// Releases the seat that a child has of its parent. This process has claimed the child to free it.
    pub(crate) fn leave_parent(self, child: BlockId) {
        let Ok(me) = self.me() else { return };
        let at = |parent| {
            let exists = Blocks(self.0).block_exists(parent);
            // This process may have to free the parent.
            if exists {
                Members(self.0).touch(me, parent / SLAB_BLOCKS);
            }
            exists.then(|| Blocks(self.0).block_at(parent))
        };
        let leave = LeaveParent::new(child, self.whole_word(child), me, Blocks(self.0).pages(), at);
        if let LeaveOutcome::MustFree(parent, state) = run(leave, self.map()) {
            self.finish_free(parent, state);
        }
    }
}

#[cfg(all(test, not(mp_loom)))]
mod tests {
    use crate::alloc::Allocator;
    use crate::blocks::Blocks;
    use crate::transport::Messages;
    use crate::transport::Outgoing;
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
    fn parent_lives_until_its_last_child_is_dropped() {
        let (parent, mut children) = (new(), [new(), new(), new()]);
        let (arena, mark) = (parent.arena(), parent.mark());
        for child in &mut children {
            child.set_parent(&parent).unwrap();
        }
        let holders = parent.holders();
        assert_eq!((holders.processes.len(), holders.messages, holders.children), (1, 0, 3), "{holders}");
        drop(parent);
        let [one, other, last] = children;
        assert!(Blocks(arena).lives(mark) && Allocator(arena).parent_mark(one.hold()).unwrap() == mark);
        drop((one, other));
        let found = Messages(arena).parent(last.hold()).unwrap();
        assert!(found.mark() == mark && found.count() == 1);
        assert_eq!(Messages(arena).parent(last.hold()).unwrap().count(), 2, "the second handle is counted");
        drop(last);
        assert!(Blocks(arena).lives(mark), "`found` holds the parent");
        drop(found);
        assert!(!Blocks(arena).lives(mark));
    }

    /// More children than a header and a page have seats.
    #[test]
    fn parent_with_600_children_is_freed_with_the_last() {
        let parent = new();
        let (arena, mark) = (parent.arena(), parent.mark());
        let mut children: Vec<Structure> = (0..600).map(|_| new()).collect();
        children.iter_mut().for_each(|child| child.set_parent(&parent).unwrap());
        assert_eq!(parent.holders().children, 600);
        drop(parent);
        assert!(children.iter().all(|child| Allocator(arena).parent_mark(child.hold()).unwrap() == mark));
        drop(children);
        assert!(!Blocks(arena).lives(mark));
    }

    #[test]
    fn set_parent_refuses_shared_and_nested_blocks() {
        let (mut parent, mut child) = (new(), new());
        let clone = child.clone();
        refused(child.set_parent(&parent), "others have it");
        refused(child.set_parent(&clone), "others have it");
        drop(clone);
        let mut message = Outgoing::default();
        message.attached().attach_object(child.hold()).unwrap();
        let envelope = Messages(parent.arena()).pack(&mut message, 0).unwrap();
        refused(child.set_parent(&parent), "others have it");
        drop(envelope);
        child.set_parent(&parent).unwrap();
        refused(child.set_parent(&parent), "it is one already");
        refused(new().set_parent(&child), "is a child itself");
        refused(parent.set_parent(&new()), "others have it");
        refused(child.keep_descriptor(std::io::stderr()), "is a part of another one");
        let mut keeper = new();
        keeper.keep_descriptor(std::io::stderr()).unwrap();
        refused(keeper.set_parent(&parent), "it keeps a descriptor");
        new().set_parent(&keeper).unwrap();
        let arena = parent.arena();
        refused(Messages(arena).parent(parent.hold()).map(drop), "has no parent");
        refused(
            Allocator(arena).parent_mark(&Allocator(arena).alloc(64).unwrap()).map(drop),
            "has no parent",
        );
    }
}
