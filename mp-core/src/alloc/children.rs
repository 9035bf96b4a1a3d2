//! Structures that are children of another structure, the *parent*. The parent lives as long as any child has
//! a holder.
//!
//! A child holds its parent by a seat of the parent's block, like a process or a message. The child gets the
//! seat before any other process has access to the child. The process that frees the child also releases the
//! seat: the last holder of the child, or the process that reclaims a dead holder. So a message with a child
//! need not carry the parent.
//!
//! Word 7 of the child's header stores the position of the seat. The kind [`BlockKind::Child`] marks a block
//! whose word 7 may store the position of a seat.
//!
//! The process that frees a child checks whether the parent has another holder. The check begins at a
//! seat that an earlier check found held (`steps::block`), so all checks together read each released seat
//! about once.
//!
//! | step | state after a kill at this step | cleanup |
//! |---|---|---|
//! | the block gets the kind *child* | a child without a parent, also left by a failure to get a seat | the reclaim of its maker, which is its only holder |
//! | the child's word 7 stores a seat of the parent | a child whose stored seat does not name it | the reclaim of the maker, which does not change that seat |
//! | the maker gets the seat (reason: `steps::block::child`) | the dead maker has two seats of the parent | recovery of the maker releases both |
//! | the parent's version is incremented | the dead maker has two seats of the parent | recovery of the maker releases both |
//! | the seat names the child | a complete child | its last holder, or the reclaim of that holder |
//! | freeing: the child is claimed | a child that a dead member has claimed | the reclaim, which frees the child from the beginning |
//! | freeing: the seat is released | a claimed child, and a parent that may have no holder | child: the reclaim, as before. Parent: recovery of the dead member, which has marked the parent's slab as touched |
//! | freeing: the parent is freed, if this was its last holder | a claimed child | the reclaim, as before |

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

/// Index of the word in a structure's header that stores the seat of the structure's parent.
const WHOLE: u64 = 7;

impl Allocator {
    /// Makes the block of `child` a child of the block of `parent`, for
    /// [`Structure::set_parent`](crate::Structure::set_parent).
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

    /// Releases the seat that a child has of its parent. This process must have claimed the child to free it.
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
    fn parent_block_lives_until_last_child_is_dropped() {
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

    /// 600 children need more seats than the parent's header and one page of seats contain.
    #[test]
    fn parent_block_of_600_is_freed_with_its_last_child() {
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
