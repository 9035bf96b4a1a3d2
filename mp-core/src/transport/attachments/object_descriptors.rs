//! Long-lived descriptors of objects. Any member can copy them, any number of times, as long as the object
//! lives.
//!
//! An object's descriptor is in a compartment of the locker, like the descriptors of messages (see
//! `descriptors`). The object's block then has the kind [`BlockKind::Keeper`], and word 7 of the structure's
//! header stores the compartment and whether the descriptor is in it. Members peek at the packet and leave it
//! there. The process that frees the block, the last holder or a reclaim, first empties the compartment, as
//! for the blocks of messages.
//!
//! | step | state if killed after it | cleared by |
//! |---|---|---|
//! | the block is a keeper | an object without a descriptor, as read by its holders | its last holder, or the reclaim |
//! | its word names a compartment (ahead) | the same: the compartment's word does not name the block | the same, which does not touch the compartment |
//! | the compartment's word names the block | the same, and an empty compartment | the same, which clears the compartment's word |
//! | descriptor sent into it | the same, and a descriptor that no process finds | the same, which removes it |
//! | its word marks the descriptor as present | an object with its descriptor, whichever of its holders is gone | the last of them, or the reclaim |
//!
//! A member that peeks need not hold the object. It checks before and after whether the object
//! [lives](crate::Blocks::lives). While the object lives, its compartment is its own, so the descriptor found
//! in between is the object's.

use std::os::fd::{BorrowedFd, OwnedFd};

use crate::alloc::fd_slots::{FdSlots, look};
use crate::alloc::handles::Hold;
use crate::blocks::Blocks;
use crate::error::{Error, Result};
use crate::mem::Mem;
use crate::setup::fd_store::FdStore;
use crate::sys::Errno;
use crate::sys::packets::{self, refused};
use crate::transport::attachments::Descriptors;
use crate::words::{BlockId, BlockKind};

/// Bit of that word: the descriptor is present.
const READY: u64 = 1 << 32;

impl Descriptors {
    /// Implements [`Structure::keep_descriptor`](crate::Structure::keep_descriptor) for the structure in this
    /// block.
    pub(crate) fn keep_descriptor(self, hold: &Hold, fd: BorrowedFd<'_>) -> Result<()> {
        self.me()?;
        if hold.is_nowhere() {
            return Err(Error::InvalidArgument(
                "a structure that isn't held here can't keep a descriptor".into(),
            ));
        }
        FdSlots(self.0).close_what_was_left();
        FdStore(self.0).locker()?;
        let (block, word) = (hold.block(), FdSlots(self.0).kept_word(hold.block()));
        if Blocks(self.0).object_becomes(block, BlockKind::Keeper) == Err(BlockKind::Child) {
            let why =
                "a structure that is a part of another one can't keep a descriptor: have that one keep it";
            return Err(Error::InvalidArgument(why.into()));
        }
        let i = self.take_compartment(block, word)?;
        let sent = FdSlots(self.0).open_compartment(i).and_then(|(into, _)| {
            packets::send(&into, 0, &[fd]).map_err(|errno| match errno {
                Errno::BADF => Error::InvalidArgument("the descriptor to keep is not open (EBADF)".into()),
                errno => refused("keep a descriptor", errno),
            })
        });
        match sent {
            Ok(()) => self.map().store(word, (i + 1) | READY),
            Err(_) => {
                FdSlots(self.0).empty_compartment(block)?;
                self.map().store(word, 0);
            }
        }
        sent
    }

    /// Returns a copy of the descriptor that an object [keeps](crate::Structure::keep_descriptor), by the
    /// object's [mark](crate::Hold::mark). The copy is close-on-exec. Returns `None` if the object keeps none
    /// (yet), or is gone. The caller need not hold the object, and the process that provided the descriptor
    /// need not live.
    ///
    /// Doesn't block. Uses three descriptors for a moment.
    ///
    /// # Errors
    /// [`Error::OutOfDescriptors`] if this process can't open more descriptors, [`Error::Unsupported`] if it
    /// has no locker, [`Error::Forked`].
    pub fn kept_descriptor(self, mark: u64) -> Result<Option<OwnedFd>> {
        self.me()?;
        let (true, Some(block)) = (Blocks(self.0).lives(mark), Blocks::marked(mark)) else { return Ok(None) };
        if Blocks(self.0).kind_of(block) != BlockKind::Keeper
            || self.map().load(FdSlots(self.0).kept_word(block)) & READY == 0
        {
            return Ok(None);
        }
        let found = self.look_at_kept(block);
        // While the object lived, the compartment was its own.
        if !Blocks(self.0).lives(mark) {
            return Ok(None);
        }
        found
    }

    fn look_at_kept(self, block: BlockId) -> Result<Option<OwnedFd>> {
        let Some(i) = FdSlots(self.0).compartment_of(block) else { return Ok(None) };
        let (_, out) = FdSlots(self.0).open_compartment(i)?;
        let found = look(&out, 0)?.files.pop();
        Ok(found)
    }
}
