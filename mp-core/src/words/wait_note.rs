//! Wait note of a thread that waits for a lock: two words with fields, in addition to the start time of the
//! wait.

use serde::{Deserialize, Serialize};

use crate::mem::Word;
use crate::words::bits;

/// First word of a wait note: state 2, thread 22, sequence 40.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct WaitMark {
    /// State of the note.
    pub state: WaitState,
    /// Thread of the member; at most 22 bits.
    pub thread: u32,
    /// Number of claims of the note, modulo 2^40. Compared for equality only.
    pub sequence: u64,
}

/// State of a wait note.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum WaitState {
    /// Unused: the contents of fresh memory.
    Free,
    /// A thread has claimed the note, and writes its other words.
    Writing,
    /// The thread waits for the goal in the other words.
    Waiting,
}

impl WaitMark {
    /// Encodes the mark as a word.
    pub const fn pack(self) -> u64 {
        let state = match self.state {
            WaitState::Free => 0,
            WaitState::Writing => 1,
            WaitState::Waiting => 2,
        };
        state | bits(self.thread as u64, 0, 22) << 2 | self.sequence << 24
    }

    /// Creates the mark from a word.
    pub const fn unpack(w: u64) -> Self {
        let state = match w & 3 {
            0 => WaitState::Free,
            2 => WaitState::Waiting,
            _ => WaitState::Writing,
        };
        Self { state, thread: bits(w, 2, 22) as u32, sequence: w >> 24 }
    }
}

/// Kind of a lock, and of the access for which a thread waits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub enum LockKind {
    /// Lock of the type `Lock`.
    Lock,
    /// Lock of an `Array`.
    Array,
    /// Lock of the type `RLock`.
    RLock,
    /// `RLock` of which the waiting thread already has guards. The thread can't continue without the lock.
    RLockReentry,
    /// `RwLock`, to read.
    Read,
    /// `RwLock`, to write.
    Write,
    /// Lock of a `Once`.
    Once,
}

impl LockKind {
    const ALL: [Self; 7] =
        [Self::Lock, Self::Array, Self::RLock, Self::RLockReentry, Self::Read, Self::Write, Self::Once];

    /// Returns `true` if the waiting thread may give up to end a deadlock, because it can continue without
    /// the lock.
    pub const fn may_be_victim(self) -> bool {
        !matches!(self, Self::RLockReentry)
    }

    /// Returns the name of the lock's type.
    pub const fn type_name(self) -> &'static str {
        match self {
            Self::Lock => "Lock",
            Self::Array => "Array",
            Self::RLock | Self::RLockReentry => "RLock",
            Self::Read | Self::Write => "RwLock",
            Self::Once => "Once",
        }
    }
}

/// Position of the slots of a lock's readers, for which a writer waits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ReadersAt {
    /// Word with the number of slots that were ever in use.
    pub used: Word,
    /// First slot. The other slots follow.
    pub first: Word,
    /// Maximum number of slots.
    pub limit: u32,
}

/// Lock or readers for which a thread waits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct WaitGoal {
    /// Kind of the lock and of the access.
    pub kind: LockKind,
    /// First word of the lock.
    pub lock: Word,
    /// Readers that have to release the lock; `None` if the thread waits for the lock's holder.
    pub readers: Option<ReadersAt>,
}

impl WaitGoal {
    /// Returns the two words of the goal: kind 8, offset of the lock 56; and distance of the readers' count
    /// from the lock in words 8, maximum number of readers 24, distance of the readers' slots in words 32.
    /// The second word is 0 without readers.
    pub fn pack(self) -> [u64; 2] {
        let kind = LockKind::ALL.iter().position(|&kind| kind == self.kind).unwrap_or(0) as u64;
        let behind = |word: Word| (word.offset() - self.lock.offset()) / 8;
        let readers = self.readers.map_or(0, |at| {
            bits(behind(at.used), 0, 8) | bits(at.limit as u64, 0, 24) << 8 | behind(at.first) << 32
        });
        [kind | self.lock.offset() << 8, readers]
    }

    /// Creates the goal from two words. Returns `None` for invalid words.
    pub fn unpack([goal, readers]: [u64; 2]) -> Option<Self> {
        let (kind, lock) = (*LockKind::ALL.get((goal & 0xff) as usize)?, Word::at(goal >> 8));
        let readers = (readers != 0).then(|| ReadersAt {
            used: lock.plus(bits(readers, 0, 8)),
            first: lock.plus(readers >> 32),
            limit: bits(readers, 8, 24) as u32,
        });
        Some(Self { kind, lock, readers })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_notes_round_trip() {
        for state in [WaitState::Free, WaitState::Writing, WaitState::Waiting] {
            let mark = WaitMark { state, thread: (1 << 22) - 1, sequence: (1 << 40) - 1 };
            assert_eq!(WaitMark::unpack(mark.pack()), mark);
        }
        assert_eq!(WaitMark::unpack(0).state, WaitState::Free);
        let lock = Word::at((1 << 42) - 4096);
        let readers = ReadersAt { used: lock.plus(4), first: lock.plus((1 << 32) - 1), limit: 1 << 20 };
        for kind in LockKind::ALL {
            for readers in [None, Some(readers)] {
                let goal = WaitGoal { kind, lock, readers };
                assert_eq!(WaitGoal::unpack(goal.pack()), Some(goal));
            }
        }
        assert_eq!(WaitGoal::unpack([0xff, 0]), None);
    }
}
