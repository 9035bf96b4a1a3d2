//! Descriptors in messages. Each message with descriptors gets one or more compartments of the locker, of 256
//! descriptors each. Any number of receivers can copy the descriptors until the message is gone.
//!
//! A compartment is one direction of a socket pair. The pairs are in the packets of the locker's table
//! (`setup::locker`), which any member can peek at and no member removes: pair `k` is in packet `k + 1` as
//! long as the arena lives. A compartment's word in the arena names its user: the message's block of kind
//! [`BlockKind::Descriptors`], which the message holds like tensors. The first word of that block names its
//! compartment.
//!
//! | step | state if killed after it | cleared by |
//! |---|---|---|
//! | block allocated | a block | the sweep |
//! | its word names a compartment | the same: the compartment's word does not name the block | the sweep |
//! | the compartment's word names the block | an empty compartment | the sweep, like every freeing: it empties, then clears the word |
//! | descriptors sent into it | descriptors that no message has | the same |
//! | message has the block | an ordinary message | the last holder of the block |
//! | receiver peeked at the packets | copies, which are closed with the receiver; the packets are unchanged | the kernel |
//! | block claimed for freeing | a claimed block, a full compartment | the sweep, again |
//! | packets taken out | a claimed block, an empty compartment with its name | the same |
//! | the compartment's word cleared | a claimed block whose compartment is another block's, or free | the same: the word does not name the block |
//!
//! Adding a pair is done under a lock. A process killed before the pair is in the table leaves nothing. A
//! process killed before it counts the pair leaves a packet that the next holder finds and counts.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use crate::alloc::handles::Hold;
use crate::arena::Arena;
use crate::error::{Error, Result};
use crate::layout::{COMPARTMENTS, control};
use crate::mem::{Mem, Word};
use crate::parking::spin::AdaptiveSpin;
use crate::process::mutex::Mutex;
use crate::process::{GENERATIONS, PerProcess};
use crate::sys::packets::{Packet, refused};
use crate::sys::{Errno, packets};
use crate::waiting::block_on::Wait;
use crate::waiting::lock::{LockError, RawLock};
use crate::words::{BlockId, BlockKind, BlockState, LockKind};

/// The locker's control words.
const PAIRS: Word = Word::at(control::LOCKER);
const LOCK: Word = Word::at(control::LOCKER + 8);
const HINT: Word = Word::at(control::LOCKER + 32);
/// Maximum number of attempts to peek at a packet while other processes peek at the same socket.
const TRIES: u32 = 10_000;
/// Maximum time that another process may take to add a pair, even if stopped.
const TIME_LIMIT: Duration = Duration::from_secs(10);
/// Maximum number of descriptors of a compartment. Below the default limit of a socket, some 270 packets.
const MOST: u64 = 256;

/// Blocks whose compartments this process could not open when it was freeing them.
static LATER: PerProcess<Mutex<Vec<(Arena, BlockId, BlockState)>>> =
    PerProcess::new([const { Mutex::new(Vec::new()) }; GENERATIONS]);

fn compartment(i: u64) -> Word {
    Word::at(control::COMPARTMENTS).plus(i)
}

/// Returns the value by which a compartment's word names a block.
fn name_of(block: BlockId) -> u64 {
    u64::from(block) + 1
}

/// Compartment of a message that is being written.
#[derive(Debug)]
pub(crate) struct Parking {
    hold: Hold,
    into: OwnedFd,
    /// Number of descriptors in it.
    count: u64,
}

impl Parking {
    /// Takes a compartment.
    ///
    /// # Errors
    /// [`Error::TooManyDescriptors`], [`Error::OutOfDescriptors`], [`Error::Unsupported`], [`Error::Held`],
    /// and the errors of an allocation.
    pub(crate) fn new() -> Result<Self> {
        let arena = Arena::current()?;
        arena.close_what_was_left();
        arena.locker()?;
        let hold = arena.alloc_kind(16, BlockKind::Descriptors)?;
        let words = Word::at(hold.memory().0);
        (0..2).for_each(|i| arena.map().store(words.plus(i), 0));
        let i = arena.take_compartment(hold.block(), words)?;
        let (into, _) = arena.open_compartment(i)?;
        Ok(Self { hold, into, count: 0 })
    }

    /// Returns the block that the message attaches.
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

/// Returns a packet by its number, which is its position. A truncated packet is an error.
pub(crate) fn look(socket: &OwnedFd, place: u64) -> Result<Packet> {
    for _ in 0..TRIES {
        match packets::peek(socket, Some(place)) {
            Ok(packet) if packet.number == place => {
                return if packet.cut {
                    Err(refused("receive the descriptors of a message", Errno::MFILE))
                } else {
                    Ok(packet)
                };
            }
            // Another process peeked at the same socket meanwhile.
            Ok(_) | Err(Errno::AGAIN) => std::thread::yield_now(),
            Err(errno) => return Err(refused("look into the locker of descriptors", errno)),
        }
    }
    Err(Error::Malformed(format!("packet {place} of the locker of descriptors is missing")))
}

impl Arena {
    fn pairs(&self) -> u64 {
        self.map().load(PAIRS).min(COMPARTMENTS / 2)
    }

    /// Takes a free compartment for a block that this process holds, and whose word `mine` has no
    /// compartment. Only one caller gets a compartment for a block.
    pub(crate) fn take_compartment(&self, block: BlockId, mine: Word) -> Result<u64> {
        let map = self.map();
        let has_one = |_| Error::InvalidArgument("this object keeps a descriptor already".into());
        let mut said = 0;
        loop {
            let pairs = self.pairs();
            let hint = map.load_relaxed(HINT).min(2 * pairs);
            for i in (hint..2 * pairs).chain(0..hint) {
                if map.load_relaxed(compartment(i)) != 0 {
                    continue;
                }
                // Written first: the process that frees the block reads this word, and checks whether the
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

    /// Adds a socket pair to the table, unless another process has added one since there were `seen` pairs.
    #[cold]
    fn add_pair(&self, seen: u64) -> Result<()> {
        let lock = RawLock::new(*self, LOCK);
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
        let (map, pairs) = (self.map(), self.pairs());
        if pairs != seen {
            return Ok(());
        }
        if 2 * pairs >= COMPARTMENTS {
            return Err(Error::TooManyDescriptors(format!(
                "{COMPARTMENTS} messages with descriptors are on their way, and there can't be more: \
                receive some"
            )));
        }
        let table = self.locker()?;
        const PAGE: u64 = 4096;
        if (16 * pairs).is_multiple_of(PAGE) {
            self.commit_at(control::COMPARTMENTS + 16 * pairs, PAGE)?;
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
                        "{} messages with descriptors are on their way, and the kernel keeps no more: \
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

    /// Returns both ends of a compartment: the input and the output.
    pub(crate) fn open_compartment(&self, i: u64) -> Result<(OwnedFd, OwnedFd)> {
        let mut files = look(self.locker()?, 1 + i / 2)?.files.into_iter();
        match (files.next(), files.next()) {
            (Some(one), Some(other)) if i.is_multiple_of(2) => Ok((one, other)),
            (Some(one), Some(other)) => Ok((other, one)),
            _ => Err(Error::Malformed(format!("compartment {i} of the locker of descriptors has no ends"))),
        }
    }

    /// Returns the compartment of a block.
    pub(crate) fn compartment_of(&self, block: BlockId) -> Option<u64> {
        let i = (self.map().load(self.compartment_word(block)?) & u64::from(u32::MAX)).checked_sub(1)?;
        let has = i < 2 * self.pairs() && self.map().load(compartment(i)) == name_of(block);
        has.then_some(i).filter(|i| *i < COMPARTMENTS)
    }

    /// Returns copies of a block's descriptors, in order. This process or one of its envelopes holds the
    /// block.
    ///
    /// # Errors
    /// [`Error::OutOfDescriptors`], [`Error::Unsupported`], or [`Error::Malformed`].
    pub(crate) fn descriptors_of(&self, block: BlockId) -> Result<Vec<OwnedFd>> {
        let nothing = || Error::Malformed(format!("block {block} has no descriptors"));
        if self.kind_of(block) != BlockKind::Descriptors {
            return Err(nothing());
        }
        let i = self.compartment_of(block).ok_or_else(nothing)?;
        let count = self.map().load(Word::at(self.data_of(block).0).plus(1)).min(MOST);
        let (_, out) = self.open_compartment(i)?;
        let one = |place| look(&out, place)?.files.pop().ok_or_else(nothing);
        (0..count).map(one).collect()
    }

    /// Closes the descriptors of a block that this process has claimed for freeing. Returns `false` if that
    /// failed. This process then retries later, or its sweep does.
    pub(crate) fn close_descriptors(&self, block: BlockId, state: BlockState) -> bool {
        if self.empty_compartment(block).is_ok() {
            return true;
        }
        LATER.lock().push((*self, block, state));
        false
    }

    pub(crate) fn empty_compartment(&self, block: BlockId) -> Result<()> {
        let Some(i) = self.compartment_of(block) else { return Ok(()) };
        let (_, out) = self.open_compartment(i)?;
        while packets::discard(&out) {}
        self.map().store(compartment(i), 0);
        if i < self.map().load_relaxed(HINT) {
            self.map().store_relaxed(HINT, i);
        }
        Ok(())
    }

    /// Frees the blocks that could not be freed before.
    pub(crate) fn close_what_was_left(&self) {
        let left = std::mem::take(&mut *LATER.lock());
        for (arena, block, state) in left {
            if arena == *self {
                self.finish_free(block, state);
            }
        }
    }

    /// Returns the number of descriptors in all compartments, for tests.
    ///
    /// # Errors
    /// The errors of opening a compartment.
    #[doc(hidden)]
    pub fn descriptors_in_locker(&self) -> Result<u64> {
        let count = |i| {
            let (_, out) = self.open_compartment(i)?;
            packets::count(&out).map_err(|errno| refused("count the descriptors in messages", errno))
        };
        (0..2 * self.pairs()).map(count).sum()
    }

    /// Returns the number of compartments that have a message, for tests.
    #[doc(hidden)]
    pub fn compartments_in_use(&self) -> u64 {
        (0..2 * self.pairs()).filter(|i| self.map().load(compartment(*i)) != 0).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The block's process died before the compartment was its own, and another process has the compartment.
    #[test]
    #[cfg_attr(miri, ignore = "Miri has no such sockets")]
    fn a_block_that_names_anothers_compartment_leaves_it_alone() {
        let arena = Arena::current().unwrap();
        let (file, _writer) = std::io::pipe().unwrap();
        let mut parking = Parking::new().unwrap();
        assert_eq!(parking.push(file.as_fd()).unwrap(), Some(0));
        let named = arena.map().load(Word::at(parking.hold().memory().0));
        let other = arena.alloc_kind(16, BlockKind::Descriptors).unwrap();
        arena.map().store(Word::at(other.memory().0), named);
        drop(other);
        let block = parking.hold().block();
        assert_eq!(arena.descriptors_of(block).unwrap().len(), 1);
        drop(parking);
        assert_eq!(arena.map().load(compartment(named - 1)), 0);
    }
}
