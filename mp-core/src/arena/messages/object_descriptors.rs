//! Descriptors that objects keep: any member finds them, as often as it likes, for as long as the object lives.
//!
//! An object keeps its descriptor where messages have theirs, in a compartment of the locker (see `descriptors`). The object's block
//! is then of kind [`Kind::Keeper`], and what the header of a structure has in its word 7 says which compartment it is, and
//! whether the descriptor is in it. Members look at the packet there and leave it. The process that frees the block, the last
//! holder or a sweep, empties the compartment before that, as it does for the blocks of messages.
//!
//! | step | killed after it, there is left | who clears it |
//! |---|---|---|
//! | the block is a keeper | an object that keeps nothing, as its holders see it | its last holder, or the sweep |
//! | its word names a compartment (ahead) | the same: the compartment's word does not name the block | the same, which leaves the compartment alone |
//! | the compartment's word names the block | the same, and an empty compartment | the same, which clears the compartment's word |
//! | descriptor sent into it | the same, and a descriptor that no process finds | the same, which takes it out |
//! | its word says that it is there | an object with its descriptor, whichever of its holders is gone | the last of them, or the sweep |
//!
//! A member that looks need not hold the object. It asks before and after whether the object [lives](Arena::lives): while it does, its
//! compartment is its own, so what was found in between is its descriptor.

use std::os::fd::{BorrowedFd, OwnedFd};

use crate::arena::messages::descriptors::look;
use crate::arena::{Arena, Hold};
use crate::error::{Error, Result};
use crate::mem::{Mem, Word};
use crate::sys::Errno;
use crate::sys::packets::{self, refused};
use crate::words::{BlockId, Kind};

/// The word of a structure's header that says what it keeps.
const KEPT: u64 = 7;
/// In that word: the descriptor is there.
const READY: u64 = 1 << 32;

impl Arena {
    /// As [`Structure::keep_descriptor`](crate::Structure::keep_descriptor) says, of the structure in this block.
    pub(crate) fn keep_descriptor(&self, hold: &Hold, fd: BorrowedFd<'_>) -> Result<()> {
        self.me()?;
        if hold.is_nowhere() {
            return Err(Error::InvalidArgument(
                "a structure that isn't held here can't keep a descriptor".into(),
            ));
        }
        self.close_what_was_left();
        self.locker()?;
        let (block, word) = (hold.block(), self.kept_word(hold.block()));
        if self.object_becomes(block, Kind::Keeper) == Err(Kind::Part) {
            let why =
                "a structure that is a part of another one can't keep a descriptor: have that one keep it";
            return Err(Error::InvalidArgument(why.into()));
        }
        let i = self.take_compartment(block, word)?;
        let sent = self.open_compartment(i).and_then(|(into, _)| {
            packets::send(&into, 0, &[fd]).map_err(|errno| match errno {
                Errno::BADF => Error::InvalidArgument("the descriptor to keep is not open (EBADF)".into()),
                errno => refused("keep a descriptor", errno),
            })
        });
        match sent {
            Ok(()) => self.map().store(word, (i + 1) | READY),
            Err(_) => {
                self.empty_compartment(block)?;
                self.map().store(word, 0);
            }
        }
        sent
    }

    fn kept_word(&self, block: BlockId) -> Word {
        Word::at(self.data_of(block).0).plus(KEPT)
    }

    /// The word in which a block says which compartment it has, if it is of a kind that has one.
    pub(in crate::arena) fn compartment_word(&self, block: BlockId) -> Option<Word> {
        match self.kind_of(block) {
            Kind::Descriptors => Some(Word::at(self.data_of(block).0)),
            Kind::Keeper => Some(self.kept_word(block)),
            _ => None,
        }
    }

    /// The descriptor that an object [keeps](crate::Structure::keep_descriptor), by the object's [mark](Self::mark): a copy, which is
    /// close-on-exec. `None` if it keeps none (yet), or is gone. The caller need not hold the object, and the process that gave the
    /// descriptor need not live.
    ///
    /// It doesn't block; it takes three descriptors for a moment.
    ///
    /// # Errors
    /// [`Error::OutOfDescriptors`] if this process may open no more, [`Error::Unsupported`] if it has no locker,
    /// [`Error::Forked`].
    pub fn kept_descriptor(&self, mark: u64) -> Result<Option<OwnedFd>> {
        self.me()?;
        let (true, Some(block)) = (self.lives(mark), Self::marked(mark)) else { return Ok(None) };
        if self.kind_of(block) != Kind::Keeper || self.map().load(self.kept_word(block)) & READY == 0 {
            return Ok(None);
        }
        let found = self.look_at_kept(block);
        // While it lived, the compartment was its own.
        if !self.lives(mark) {
            return Ok(None);
        }
        found
    }

    fn look_at_kept(&self, block: BlockId) -> Result<Option<OwnedFd>> {
        let Some(i) = self.compartment_of(block) else { return Ok(None) };
        let (_, out) = self.open_compartment(i)?;
        let found = look(&out, 0)?.files.pop();
        Ok(found)
    }
}
