//! Shared words, and algorithms on them written as steps.
//!
//! Every algorithm that several processes run on the same memory is a small state machine over [`Mem`]:
//! one call of [`Steps::step`] makes **at most one shared access**. That makes "killed at any instruction"
//! a thing that can be enumerated: to kill a process is to stop stepping its machine, to stop it (SIGSTOP) is
//! to step it later. The same machines run
//! - in real processes, over the mapped arena ([`run`] drives them; the compiler folds the loop),
//! - under an exhaustive explorer and under proptest, over a vector,
//! - under loom, over loom's atomics ([`HeapMem`]).
//!
//! # Memory order
//! This is what algorithms may rely on, what loom checks, and what the mapped arena gives, on any processor.
//!
//! Loads acquire, stores release, read-modify-writes do both, unless the name says `relaxed`. Two places need
//! more, because two processes each write one word and then read the other's: a sleeper announces itself and looks
//! again while a waker publishes and looks for sleepers; two holders give up the last two seats of a block and each
//! looks whether it was the last. They use [`Mem::fence_after_rmw`], as Linux's `smp_mb__after_atomic`. Without it, loom
//! finds the lost wake-up and the leaked block.
//!
//! Every implementation takes its orders from one place, `order`: so what loom checks is what the arena has.

pub(crate) mod bytes;
mod heap;

use std::fmt;

pub use heap::HeapMem;

/// The position of a shared 64-bit word: its byte offset from the start of the arena, a multiple of 8.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Word(u64);

impl Word {
    /// The word at byte `offset`, rounded down to a multiple of 8.
    pub const fn at(offset: u64) -> Self {
        Self(offset & !7)
    }

    /// Its byte offset.
    pub const fn offset(self) -> u64 {
        self.0
    }

    /// The word `n` words further on.
    pub const fn plus(self, n: u64) -> Self {
        Self(self.0 + 8 * n)
    }
}

impl fmt::Debug for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "@{:#x}", self.0)
    }
}

/// One field of a table: the same word of every row.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Column {
    /// The word in row 0.
    pub base: Word,
    /// Bytes from one row to the next.
    pub stride: u64,
}

impl Column {
    /// The word in row `i`.
    #[inline]
    pub const fn of(&self, i: u32) -> Word {
        Word::at(self.base.offset() + self.stride * i as u64)
    }
}

/// Memory that several processes share, as 64-bit words.
pub trait Mem {
    /// Acquire load.
    fn load(&self, w: Word) -> u64;
    /// Relaxed load: for hints, and for words that an acquire elsewhere has already made visible.
    fn load_relaxed(&self, w: Word) -> u64;
    /// Release store.
    fn store(&self, w: Word, v: u64);
    /// Relaxed store: for words that a later release makes visible.
    fn store_relaxed(&self, w: Word, v: u64);
    /// Compare and swap, acquire and release; the value found if it was another.
    fn cas(&self, w: Word, old: u64, new: u64) -> Result<(), u64>;
    /// Adds, acquire and release; the value before.
    fn add(&self, w: Word, v: u64) -> u64;
    /// Sets bits, acquire and release; the value before.
    fn or(&self, w: Word, v: u64) -> u64;
    /// Keeps bits, acquire and release; the value before.
    fn and(&self, w: Word, v: u64) -> u64;
    /// Whether there is [`cas_pair`](Self::cas_pair): on x86-64, where the processor has `cmpxchg16b` (all since 2006).
    fn has_pairs(&self) -> bool {
        false
    }
    /// Compares and swaps two neighbouring words at once, acquire and release; whether they were the old ones. `w` is the first
    /// of the two, at a multiple of 16. Where there is no such thing, it never succeeds.
    fn cas_pair(&self, _w: Word, _old: [u64; 2], _new: [u64; 2]) -> bool {
        false
    }
    /// Says that a word is about to be written: its cache line may be fetched meanwhile. Changes nothing.
    fn will_write(&self, _: Word) {}
    /// Says that a word is about to be read: its cache line may be fetched meanwhile. Changes nothing.
    fn will_read(&self, _: Word) {}
    /// Says that another thread or process was faster to change what this one was about to change: it may
    /// leave it alone for a moment. Changes nothing.
    fn lost(&self) {}
    /// Now, in nanoseconds of a clock that all who share the memory read alike, modulo 2^32; 0 where there is none. No access.
    fn ticks(&self) -> u32 {
        0
    }
    /// A full barrier between a read-modify-write just done and the loads that follow.
    fn fence_after_rmw(&self);
}

/// The orders of all accesses, the same for every [`Mem`] over atomics: the arena, regions, and what loom runs.
pub(crate) mod order {
    use crate::sync::Ordering::{self, AcqRel, Acquire, Relaxed, Release};

    #[inline(always)]
    pub(crate) const fn load() -> Ordering {
        Acquire
    }

    pub(crate) const HINT: Ordering = Relaxed;

    #[inline(always)]
    pub(crate) const fn store() -> Ordering {
        Release
    }

    #[inline(always)]
    pub(crate) const fn cas() -> Ordering {
        AcqRel
    }

    /// Of a compare-and-swap that finds another value.
    #[inline(always)]
    pub(crate) const fn found() -> Ordering {
        Acquire
    }

    #[inline(always)]
    pub(crate) const fn add() -> Ordering {
        AcqRel
    }

    #[inline(always)]
    pub(crate) const fn or() -> Ordering {
        AcqRel
    }

    #[inline(always)]
    pub(crate) const fn and() -> Ordering {
        AcqRel
    }
}

/// An algorithm on shared words, in steps of at most one shared access.
pub trait Steps {
    /// What it ends with.
    type Out;

    /// Makes one step; `Some` when it has ended. It must not be stepped again after that.
    fn step<M: Mem + ?Sized>(&mut self, mem: &M) -> Option<Self::Out>;
}

/// Runs `steps` to its end, as [`run`] does, but without a loop for the first twelve steps: so the compiler knows which step is
/// which, and makes one straight piece of code of them. For what is done for every message.
#[inline(always)]
pub fn run_straight<S: Steps + Clone, M: Mem + ?Sized>(mut steps: S, mem: &M) -> S::Out {
    macro_rules! next {
        ($($n:literal)*) => {$(
            let _number = $n;
            if let Some(out) = steps.step(mem) {
                return out;
            }
        )*};
    }
    next!(1 2 3 4 5 6 7 8 9 10 11 12);
    // A clone, so that no address of the original is ever taken: then it needs no memory.
    rest(steps.clone(), mem)
}

/// Other threads or processes interfered, or there was more to do than usual.
#[cold]
#[inline(never)]
fn rest<S: Steps, M: Mem + ?Sized>(steps: S, mem: &M) -> S::Out {
    run(steps, mem)
}

/// Runs `steps` to its end.
#[inline(always)]
pub fn run<S: Steps, M: Mem + ?Sized>(mut steps: S, mem: &M) -> S::Out {
    loop {
        if let Some(out) = steps.step(mem) {
            return out;
        }
    }
}
