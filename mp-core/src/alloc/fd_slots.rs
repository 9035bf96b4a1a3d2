//! Compartments of the locker, the store for descriptors of messages: search for the compartment of a block,
//! and removal of its descriptors.
//!
//! `transport::attachments` describes the states of a compartment.

use std::os::fd::OwnedFd;

use crate::alloc::Allocator;
use crate::arena::{Arena, view};
use crate::blocks::Blocks;
use crate::error::{Error, Result};
use crate::layout::{COMPARTMENTS, control};
use crate::mem::{Mem, Word};
use crate::process::mutex::Mutex;
use crate::process::{PerProcess, per_process};
use crate::sys::Errno;
use crate::sys::packets::{self, Packet, refused};
use crate::words::{BlockId, BlockKind, BlockState};

/// Control word with the number of socket pairs in the locker. Each pair serves two compartments.
pub(crate) const PAIRS: Word = Word::at(control::LOCKER);
pub(crate) const HINT: Word = Word::at(control::LOCKER + 32);
/// Maximum number of attempts to peek at a packet while other processes peek at the same socket.
const TRIES: u32 = 10_000;
/// Index of the word in a structure's header that names the compartment of its long-lived descriptor.
pub(crate) const KEPT: u64 = 7;

/// Blocks that this process could not free yet, because opening their compartments failed.
static LATER: PerProcess<Mutex<Vec<(Arena, BlockId, BlockState)>>> = per_process!(Mutex::new(Vec::new()));

pub(crate) fn compartment(i: u64) -> Word {
    Word::at(control::COMPARTMENTS).plus(i)
}

/// Returns the value that a compartment's word contains if the compartment belongs to this block.
pub(crate) fn name_of(block: BlockId) -> u64 {
    u64::from(block) + 1
}

/// Returns the packet at a position of the locker, without taking it. A truncated packet is an error.
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

view! {
    /// Compartments of the locker, the store for descriptors of messages.
    pub struct FdSlots;
}

impl FdSlots {
    pub(crate) fn pairs(self) -> u64 {
        self.map().load(PAIRS).min(COMPARTMENTS / 2)
    }

    /// Returns both ends of a compartment: the input and the output.
    pub(crate) fn open_compartment(self, i: u64) -> Result<(OwnedFd, OwnedFd)> {
        let mut files = look(self.0.files().locker()?, 1 + i / 2)?.files.into_iter();
        match (files.next(), files.next()) {
            (Some(one), Some(other)) if i.is_multiple_of(2) => Ok((one, other)),
            (Some(one), Some(other)) => Ok((other, one)),
            _ => Err(Error::Malformed(format!("compartment {i} of the locker of descriptors has no ends"))),
        }
    }

    /// Returns the compartment of a block.
    pub(crate) fn compartment_of(self, block: BlockId) -> Option<u64> {
        let i = (self.map().load(self.compartment_word(block)?) & u64::from(u32::MAX)).checked_sub(1)?;
        let has = i < 2 * self.pairs() && self.map().load(compartment(i)) == name_of(block);
        has.then_some(i).filter(|i| *i < COMPARTMENTS)
    }

    /// Closes the descriptors of a block that this process has claimed for freeing. Returns `false` on
    /// failure. The block then stays claimed until this process retries, or until the reclaim after its
    /// death.
    pub(crate) fn close_descriptors(self, block: BlockId, state: BlockState) -> bool {
        if self.empty_compartment(block).is_ok() {
            return true;
        }
        LATER.lock().push((self.0, block, state));
        false
    }

    pub(crate) fn empty_compartment(self, block: BlockId) -> Result<()> {
        let Some(i) = self.compartment_of(block) else { return Ok(()) };
        let (_, out) = self.open_compartment(i)?;
        while packets::discard(&out) {}
        self.map().store(compartment(i), 0);
        if i < self.map().load_relaxed(HINT) {
            self.map().store_relaxed(HINT, i);
        }
        Ok(())
    }

    /// Frees the blocks whose descriptors could not be closed earlier.
    pub(crate) fn close_what_was_left(self) {
        let left = std::mem::take(&mut *LATER.lock());
        for (arena, block, state) in left {
            if arena == self.0 {
                Allocator(self.0).finish_free(block, state);
            }
        }
    }

    /// Returns the number of descriptors in all compartments, for tests.
    ///
    /// # Errors
    /// The errors of opening a compartment.
    #[doc(hidden)]
    pub fn descriptors_in_locker(self) -> Result<u64> {
        let count = |i| {
            let (_, out) = self.open_compartment(i)?;
            packets::count(&out).map_err(|errno| refused("count the descriptors in messages", errno))
        };
        (0..2 * self.pairs()).map(count).sum()
    }

    /// Returns the number of compartments that belong to a block, for tests.
    #[doc(hidden)]
    pub fn compartments_in_use(self) -> u64 {
        (0..2 * self.pairs()).filter(|i| self.map().load(compartment(*i)) != 0).count() as u64
    }

    pub(crate) fn kept_word(self, block: BlockId) -> Word {
        Blocks(self.0).memory_of(block).0.plus(KEPT)
    }

    /// Returns the word in which a block stores the number of its compartment. Returns `None` for a kind of
    /// blocks that have no compartment.
    pub(crate) fn compartment_word(self, block: BlockId) -> Option<Word> {
        match Blocks(self.0).kind_of(block) {
            BlockKind::Descriptors => Some(Blocks(self.0).memory_of(block).0),
            BlockKind::Keeper => Some(self.kept_word(block)),
            _ => None,
        }
    }
}
