//! What a thread that waits for a lock says of itself: two words with fields, beside the time since when it waits.

use serde::{Deserialize, Serialize};

use crate::mem::Word;
use crate::words::bits;

/// The first word of a wait note: state 2, thread 22, sequence 40.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct WaitMark {
    /// What the note is.
    pub state: WaitState,
    /// Which thread of the member; at most 22 bits.
    pub thread: u32,
    /// How often the note was claimed, modulo 2^40. Compared for equality only.
    pub sequence: u64,
}

/// What a wait note is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum WaitState {
    /// No thread's. What fresh memory holds.
    Free,
    /// A thread has claimed it, and writes its other words.
    Writing,
    /// Its thread waits for what its other words say.
    Waiting,
}

impl WaitMark {
    /// As a word.
    pub const fn pack(self) -> u64 {
        let state = match self.state {
            WaitState::Free => 0,
            WaitState::Writing => 1,
            WaitState::Waiting => 2,
        };
        state | bits(self.thread as u64, 0, 22) << 2 | self.sequence << 24
    }

    /// From a word.
    pub const fn unpack(w: u64) -> Self {
        let state = match w & 3 {
            0 => WaitState::Free,
            2 => WaitState::Waiting,
            _ => WaitState::Writing,
        };
        Self { state, thread: bits(w, 2, 22) as u32, sequence: w >> 24 }
    }
}

/// As what a lock is wanted, or held.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub enum LockKind {
    /// A `Lock`.
    Lock,
    /// An `Array`, whose lock it is.
    Array,
    /// An `RLock`.
    RLock,
    /// An `RLock` of which the thread has other guards, which say that it has it: it can't come back without.
    RLockAgain,
    /// An `RwLock`, to read.
    Read,
    /// An `RwLock`, to write.
    Write,
    /// A `Once`.
    Once,
}

impl LockKind {
    const ALL: [Self; 7] =
        [Self::Lock, Self::Array, Self::RLock, Self::RLockAgain, Self::Read, Self::Write, Self::Once];

    /// Whether its waiter can do without.
    pub const fn may_give_up(self) -> bool {
        !matches!(self, Self::RLockAgain)
    }

    /// The name of its type.
    pub const fn type_name(self) -> &'static str {
        match self {
            Self::Lock => "Lock",
            Self::Array => "Array",
            Self::RLock | Self::RLockAgain => "RLock",
            Self::Read | Self::Write => "RwLock",
            Self::Once => "Once",
        }
    }
}

/// Where the slots of readers are that a writer waits for: behind the lock's word.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ReadersAt {
    /// How many slots were ever in use.
    pub used: Word,
    /// The first slot; the others follow.
    pub first: Word,
    /// How many there can be.
    pub limit: u32,
}

/// What a thread waits for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct WaitGoal {
    /// As what.
    pub kind: LockKind,
    /// The lock's first word.
    pub lock: Word,
    /// The readers that have to leave; none if it waits for the lock's own holder.
    pub readers: Option<ReadersAt>,
}

impl WaitGoal {
    /// As two words: kind 8, offset of the lock 56; how many words behind it readers are counted 8,
    /// how many there can be 24, how many words behind it their slots begin 32; or 0.
    pub fn pack(self) -> [u64; 2] {
        let kind = LockKind::ALL.iter().position(|&kind| kind == self.kind).unwrap_or(0) as u64;
        let behind = |word: Word| (word.offset() - self.lock.offset()) / 8;
        let readers = self.readers.map_or(0, |at| {
            bits(behind(at.used), 0, 8) | bits(at.limit as u64, 0, 24) << 8 | behind(at.first) << 32
        });
        [kind | self.lock.offset() << 8, readers]
    }

    /// From two words; `None` of what no thread writes.
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
    fn words_keep_their_fields() {
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
