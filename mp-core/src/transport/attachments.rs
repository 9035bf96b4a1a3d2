//! Descriptors that travel in messages or stay with an object.
//!
//! # Descriptors in messages
//! Each message with descriptors gets one or more compartments of the locker, of up to 256 descriptors each.
//! Any number of receivers can copy the descriptors until the message is released.
//!
//! A compartment is one direction of a socket pair. The pairs are in the packets of the locker's table
//! (`setup::fd_store`), which any member can peek at and no member removes: pair `k` is in packet `k + 1` as
//! long as the arena lives. A compartment's word in the arena names the block that uses the compartment: the
//! message's block of kind [`BlockKind::Descriptors`], which the message holds like tensors. The first word
//! of that block names its compartment.
//!
//! | step | state if killed after it | cleared by |
//! |---|---|---|
//! | block allocated | a block | the reclaim |
//! | the block's word names a compartment | a block; the compartment's word does not name it | the reclaim |
//! | the compartment's word names the block | a block, an empty compartment | the reclaim: like each process that frees such a block, it empties the compartment, then clears the compartment's word |
//! | descriptors sent into the compartment | a block, and descriptors that no message has | the reclaim, which empties the compartment |
//! | message has the block | an ordinary message | the last holder of the block |
//! | receiver peeked at the packets | copies, which are closed with the receiver; the packets are unchanged | the kernel |
//! | block claimed for freeing | a claimed block, a full compartment | the reclaim, which empties the compartment |
//! | packets taken out | a claimed block, an empty compartment whose word names the block | the reclaim, which clears the word |
//! | the compartment's word cleared | a claimed block whose compartment is another block's, or free | the reclaim, which leaves the compartment: its word does not name the block |
//!
//! A process holds a lock while it adds a pair. If the process is killed before the pair is in the table,
//! nothing remains. If it is killed before it counts the pair, a packet remains, which the next holder of the
//! lock finds and counts.
//!
//! # Descriptors of objects
//! Any member can copy an object's descriptor, any number of times, as long as the object lives.
//!
//! An object's descriptor is in a compartment of the locker, like the descriptors of messages. The object's
//! block then has the kind [`BlockKind::Keeper`]. Word 7 of the structure's header stores the compartment,
//! and a bit that is set once the descriptor is in the compartment. Members peek at the packet and leave it
//! there. The process that frees the block (the last holder, or a reclaim) first empties the compartment, as
//! for the blocks of messages.
//!
//! | step | state if killed after it | cleared by |
//! |---|---|---|
//! | the block is a keeper | an object without a descriptor | its last holder, or the reclaim |
//! | word 7 names a compartment (write-ahead) | an object without a descriptor; the compartment's word does not name the block | its last holder, or the reclaim; the compartment is unchanged |
//! | the compartment's word names the block | an object without a descriptor, and an empty compartment | its last holder, or the reclaim, which clears the compartment's word |
//! | descriptor sent into the compartment | an object without a descriptor, and a descriptor that no process finds | its last holder, or the reclaim, which removes the descriptor |
//! | word 7 marks the descriptor as present | an object with its descriptor, whichever of its holders dies | its last holder, or the reclaim |
//!
//! A member that peeks need not hold the object. The member checks before and after the peek that the object
//! [lives](crate::Blocks::lives). As long as the object lives, no other object has its compartment. So a
//! descriptor that was found between two successful checks is the object's.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use crate::alloc::Allocator;
use crate::alloc::fd_slots::{FdSlots, HINT, PAIRS, compartment, look, name_of};
use crate::alloc::handles::Hold;
use crate::arena::{Arena, view};
use crate::blocking::lock::{LockError, RawLock};
use crate::blocking::wait_limit::Wait;
use crate::blocks::Blocks;
use crate::error::{Error, Result};
use crate::layout::{COMPARTMENTS, control};
use crate::mem::{Mem, Word};
use crate::parking::spin::AdaptiveSpin;
use crate::sys::Errno;
use crate::sys::packets::{self, refused};
use crate::words::{BlockId, BlockKind, Grant, LockKind};

view! {
    /// Descriptors of an arena, in messages and of objects.
    pub struct Descriptors;
}

/// An attachment of a message. Only handles can create one, so the receiver's access to a block follows from
/// the type of the sender's handle.
#[derive(Debug)]
pub struct AttachRequest {
    /// Handle of the attached block. For an exclusive tensor, this is the tensor's own handle, which was
    /// moved into the message.
    pub(crate) hold: Hold,
    /// Access of the receiver. [`Access::Exclusive`](crate::words::Access::Exclusive) moves the seat of the
    /// block to the receiver. All other kinds of access add a holder.
    pub(crate) grant: Grant,
}

impl AttachRequest {
    /// Returns an attachment of the same block with the same access.
    pub(crate) fn again(&self) -> Self {
        Self { hold: self.hold.clone(), grant: self.grant }
    }
}

const LOCK: Word = Word::at(control::LOCKER + 8);
/// Maximum time to wait for the lock while another process adds a pair. That process may be stopped.
const TIME_LIMIT: Duration = Duration::from_secs(10);
/// Maximum number of descriptors in a compartment. Less than the default limit of a socket, about 270
/// packets.
const MOST: u64 = 256;

/// Compartment for the descriptors of a message that is being written.
#[derive(Debug)]
pub(crate) struct FdBatch {
    hold: Hold,
    into: OwnedFd,
    /// Number of descriptors in the compartment.
    count: u64,
}

impl FdBatch {
    /// Takes a free compartment.
    ///
    /// # Errors
    /// [`Error::TooManyDescriptors`], [`Error::OutOfDescriptors`], [`Error::Unsupported`], [`Error::Held`],
    /// and the errors of an allocation.
    pub(crate) fn new() -> Result<Self> {
        let arena = Arena::current()?;
        FdSlots(arena).close_what_was_left();
        arena.files().locker()?;
        let hold = Allocator(arena).alloc_kind(16, BlockKind::Descriptors)?;
        let words = Word::at(hold.memory().0);
        (0..2).for_each(|i| arena.map().store(words.plus(i), 0));
        let i = Descriptors(arena).take_compartment(hold.block(), words)?;
        let (into, _) = FdSlots(arena).open_compartment(i)?;
        Ok(Self { hold, into, count: 0 })
    }

    /// Returns the block that names the compartment. The message attaches this block.
    pub(crate) fn hold(&self) -> &Hold {
        &self.hold
    }

    /// Copies a descriptor into the compartment, and returns its number there. Returns `None` if the
    /// compartment is full.
    ///
    /// # Errors
    /// [`Error::TooManyDescriptors`].
    pub(crate) fn push(&mut self, fd: BorrowedFd<'_>) -> Result<Option<u32>> {
        if self.count == MOST {
            return Ok(None);
        }
        match packets::send(&self.into, self.count, &[fd]) {
            Ok(()) => {}
            Err(Errno::AGAIN) => return Ok(None),
            Err(Errno::BADF) => {
                return Err(Error::Unsendable("a descriptor in the message is not open (EBADF)".into()));
            }
            Err(errno) => return Err(refused("send a descriptor", errno)),
        }
        let number = self.count as u32;
        self.count += 1;
        let words = Word::at(self.hold.memory().0);
        self.hold.arena().map().store(words.plus(1), self.count);
        Ok(Some(number))
    }
}

impl Descriptors {
    /// Takes a free compartment for a block that this process holds. Returns the number of the compartment.
    /// The block's word `mine` must name no compartment. If several callers do this for one block, only one
    /// of them succeeds.
    pub(crate) fn take_compartment(self, block: BlockId, mine: Word) -> Result<u64> {
        let map = self.map();
        let has_one = |_| Error::InvalidArgument("this object keeps a descriptor already".into());
        let mut said = 0;
        loop {
            let pairs = FdSlots(self.0).pairs();
            let hint = map.load_relaxed(HINT).min(2 * pairs);
            for i in (hint..2 * pairs).chain(0..hint) {
                if map.load_relaxed(compartment(i)) != 0 {
                    continue;
                }
                // Written first: the process that frees the block reads this word, and checks that the
                // compartment names the block.
                map.cas(mine, said, i + 1).map_err(has_one)?;
                said = i + 1;
                if map.cas(compartment(i), 0, name_of(block)).is_ok() {
                    map.store_relaxed(HINT, i + 1);
                    return Ok(i);
                }
            }
            map.cas(mine, said, 0).map_err(has_one)?;
            said = 0;
            self.add_pair(pairs)?;
        }
    }

    /// Adds a socket pair to the table, unless the table has more than `seen` pairs by now.
    #[cold]
    fn add_pair(self, seen: u64) -> Result<()> {
        let lock = RawLock::new(self.0, LOCK);
        let mut guard = lock
            .acquire(LockKind::Lock, Wait::at_most(TIME_LIMIT), &AdaptiveSpin::none())
            .map_err(|e| match e {
                LockError::Held { holder, pid } => {
                    Error::Held { what: "the locker of descriptors", holder, pid }
                }
                LockError::Failed(e) => e,
                other => Error::Unsupported(other.to_string()),
            })?;
        // A holder that died left the table unchanged, or with one more pair.
        guard.mark_recovered();
        let (map, pairs) = (self.map(), FdSlots(self.0).pairs());
        if pairs != seen {
            return Ok(());
        }
        if 2 * pairs >= COMPARTMENTS {
            return Err(Error::TooManyDescriptors(format!(
                "{COMPARTMENTS} messages with descriptors are in flight, which is the limit: \
                receive some"
            )));
        }
        let table = self.0.files().locker()?;
        const PAGE: u64 = 4096;
        if (16 * pairs).is_multiple_of(PAGE) {
            self.0.commit(control::COMPARTMENTS + 16 * pairs, PAGE)?;
        }
        // Counted, not peeked at: concurrent peeks move the peek offset.
        let kept = packets::count(table)
            .map_err(|errno| refused("count the packets of the locker of descriptors", errno))?;
        let found = kept > pairs + 1;
        if !found {
            let what = "make room for the descriptors of one more message";
            let first = look(table, 0)?;
            let into = first.files.first().ok_or_else(|| Error::Malformed("the locker has no end".into()))?;
            let (one, other) = packets::pair().map_err(|errno| refused(what, errno))?;
            match packets::send(into, pairs + 1, &[one.as_fd(), other.as_fd()]) {
                Ok(()) => {}
                Err(Errno::AGAIN) => {
                    return Err(Error::TooManyDescriptors(format!(
                        "{} messages with descriptors are in flight, and the kernel keeps no more: \
                        receive some, or raise \
                         net.core.wmem_max before the program starts",
                        2 * pairs
                    )));
                }
                Err(errno) => return Err(refused(what, errno)),
            }
        }
        map.store(PAIRS, pairs + 1);
        drop(guard);
        Ok(())
    }

    /// Returns copies of a block's descriptors, in order. This process or one of its envelopes holds the
    /// block.
    ///
    /// # Errors
    /// [`Error::OutOfDescriptors`], [`Error::Unsupported`], or [`Error::Malformed`].
    pub(crate) fn descriptors_of(self, block: BlockId) -> Result<Vec<OwnedFd>> {
        let nothing = || Error::Malformed(format!("block {block} has no descriptors"));
        if Blocks(self.0).kind_of(block) != BlockKind::Descriptors {
            return Err(nothing());
        }
        let i = FdSlots(self.0).compartment_of(block).ok_or_else(nothing)?;
        let count = self.map().load(Blocks(self.0).memory_of(block).0.plus(1)).min(MOST);
        let (_, out) = FdSlots(self.0).open_compartment(i)?;
        let one = |place| look(&out, place)?.files.pop().ok_or_else(nothing);
        (0..count).map(one).collect()
    }
}

/// Bit in the word of a keeper. Set if the descriptor is in the compartment.
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
        self.0.files().locker()?;
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
    /// object's [mark](crate::Hold::mark). The copy is close-on-exec. Returns `None` if the object has
    /// no descriptor yet, or was freed. The caller need not hold the object, and the process that provided
    /// the descriptor need not live.
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
        // The compartment belongs to the object as long as the object lives.
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

/// Copies of the descriptors of a message.
#[derive(Debug, Default)]
pub struct Claimed(Vec<(BlockId, Vec<Option<OwnedFd>>)>);

impl Claimed {
    /// Adds copies of a block's descriptors.
    pub(crate) fn add(&mut self, arena: Arena, block: BlockId) -> Result<()> {
        let files = Descriptors(arena).descriptors_of(block)?.into_iter().map(Some).collect();
        self.0.retain(|(there, _)| *there != block);
        self.0.push((block, files));
        Ok(())
    }

    pub(crate) fn take(&mut self, block: BlockId, number: u32) -> Option<OwnedFd> {
        let (_, files) = self.0.iter_mut().find(|(there, _)| *there == block)?;
        files.get_mut(number as usize)?.take()
    }

    pub(crate) fn has(&self, block: BlockId) -> bool {
        self.0.iter().any(|(there, _)| *there == block)
    }

    /// Returns `true` if there are no descriptors.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A block can name a compartment of another block. For example, a process wrote the compartment's number
    /// into its own block, and died before it claimed the compartment.
    #[test]
    #[cfg_attr(miri, ignore = "Miri has no such sockets")]
    fn descriptor_batch_frees_only_its_own_compartments() {
        let arena = Arena::current().unwrap();
        let (file, _writer) = std::io::pipe().unwrap();
        let mut parking = FdBatch::new().unwrap();
        assert_eq!(parking.push(file.as_fd()).unwrap(), Some(0));
        let named = arena.map().load(Word::at(parking.hold().memory().0));
        let other = Allocator(arena).alloc_kind(16, BlockKind::Descriptors).unwrap();
        arena.map().store(Word::at(other.memory().0), named);
        drop(other);
        let block = parking.hold().block();
        assert_eq!(Descriptors(arena).descriptors_of(block).unwrap().len(), 1);
        drop(parking);
        assert_eq!(arena.map().load(compartment(named - 1)), 0);
    }
}
