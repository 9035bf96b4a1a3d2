//! Shared words, and algorithms on them written as steps.
//!
//! Every algorithm that several processes run on the same memory is a small state machine over [`Mem`]: one
//! call of [`Steps::step`] makes **at most one shared access**. So all points at which a process can be
//! killed can be enumerated. Killing a process means that its machine makes no more steps. Stopping it
//! (SIGSTOP) means that its machine makes the next step later. The same machines run
//! - in real processes, over the mapped arena ([`run`] drives them; the compiler folds the loop),
//! - under an exhaustive explorer and under proptest, over a vector,
//! - under loom, over loom's atomics ([`HeapMem`]).
//!
//! # Memory order
//! Algorithms may rely on the following rules. Loom checks them, and the mapped arena implements them on all
//! processors.
//!
//! Loads acquire, stores release, and read-modify-writes do both, unless the name contains `relaxed`. Two
//! places need a stronger order, because each of two processes writes a word and then reads the word that the
//! other process writes. First, a sleeper announces itself and checks its condition again, while a waker
//! publishes a change and checks for sleepers. Second, two holders release the last two seats of a block, and
//! each checks if it was the last. Both places use [`Mem::fence_after_rmw`], like Linux's
//! `smp_mb__after_atomic`. Without it, loom finds the lost wake-up and the leaked block.
//!
//! Every implementation takes its orders from one place, `order`, so loom checks the orders that the arena
//! uses.
//!
//! # Stability
//! Public for the models, for verification and for the other crates of this project. Not covered by semantic
//! versioning: any release may change or remove an item.

pub(crate) mod bytes;
mod heap;

use std::fmt;

pub use heap::HeapMem;

/// Position of a shared 64-bit word: its byte offset from the start of the arena, a multiple of 8.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Word(u64);

impl Word {
    /// Returns the word at byte `offset`, rounded down to a multiple of 8.
    pub const fn at(offset: u64) -> Self {
        Self(offset & !7)
    }

    /// Returns the byte offset.
    pub const fn offset(self) -> u64 {
        self.0
    }

    /// Returns the word `n` words after this one.
    pub const fn plus(self, n: u64) -> Self {
        Self(self.0 + 8 * n)
    }
}

impl fmt::Debug for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "@{:#x}", self.0)
    }
}

/// Field of a table: the same word of every row.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Column {
    /// Word in row 0.
    pub base: Word,
    /// Bytes from one row to the next.
    pub stride: u64,
}

impl Column {
    /// Returns the word in row `i`.
    #[inline]
    pub const fn of(&self, i: u32) -> Word {
        Word::at(self.base.offset() + self.stride * i as u64)
    }
}

/// Memory that several processes share, as 64-bit words.
pub trait Mem {
    /// Loads with acquire order.
    fn load(&self, w: Word) -> u64;
    /// Loads with relaxed order: for hints, and for words already made visible by an acquire of another word.
    fn load_relaxed(&self, w: Word) -> u64;
    /// Stores with release order.
    fn store(&self, w: Word, v: u64);
    /// Stores with relaxed order: for words that a later release makes visible.
    fn store_relaxed(&self, w: Word, v: u64);
    /// Compares and swaps, with acquire and release order. Returns the value found if it differs from `old`.
    fn cas(&self, w: Word, old: u64, new: u64) -> Result<(), u64>;
    /// Adds, with acquire and release order. Returns the previous value.
    fn add(&self, w: Word, v: u64) -> u64;
    /// Sets the bits of `v`, with acquire and release order. Returns the previous value.
    fn or(&self, w: Word, v: u64) -> u64;
    /// Clears all bits except those of `v`, with acquire and release order. Returns the previous value.
    fn and(&self, w: Word, v: u64) -> u64;
    /// Returns `true` if [`cas_pair`](Self::cas_pair) is available: on x86-64 with `cmpxchg16b` (all
    /// processors since 2006).
    fn has_pairs(&self) -> bool {
        false
    }
    /// Compares and swaps two neighboring words at once, with acquire and release order. Returns `true` if
    /// both had the old values. `w` is the first word, at a multiple of 16. Always fails if
    /// `has_pairs` is `false`.
    fn cas_pair(&self, _w: Word, _old: [u64; 2], _new: [u64; 2]) -> bool {
        false
    }
    /// Announces a write to a word, so that its cache line can be fetched in advance. Changes nothing.
    fn will_write(&self, _: Word) {}
    /// Announces a read of a word, so that its cache line can be fetched in advance. Changes nothing.
    fn will_read(&self, _: Word) {}
    /// Reports that this thread lost a race for a word to another thread or process, so that the
    /// implementation may back off for a moment. Changes nothing.
    fn lost(&self) {}
    /// Returns the time in nanoseconds, modulo 2^32, of a clock that all users of the memory share. Returns 0
    /// without a clock. Not a shared access.
    fn ticks(&self) -> u32 {
        0
    }
    /// Full barrier between the preceding read-modify-write and the following loads.
    fn fence_after_rmw(&self);
}

/// Implements the accesses of [`Mem`] to single words, and its fence. The method `$word` returns the atomic
/// of a word.
macro_rules! atomic_accesses {
    ($word:ident) => {
        fn load(&self, w: Word) -> u64 {
            self.$word(w).load(order::load())
        }
        fn load_relaxed(&self, w: Word) -> u64 {
            self.$word(w).load(order::HINT)
        }
        fn store(&self, w: Word, v: u64) {
            self.$word(w).store(v, order::store());
        }
        fn store_relaxed(&self, w: Word, v: u64) {
            self.$word(w).store(v, order::HINT);
        }
        fn cas(&self, w: Word, old: u64, new: u64) -> Result<(), u64> {
            self.$word(w).compare_exchange(old, new, order::cas(), order::cas_failure()).map(drop)
        }
        fn add(&self, w: Word, v: u64) -> u64 {
            self.$word(w).fetch_add(v, order::add())
        }
        fn or(&self, w: Word, v: u64) -> u64 {
            self.$word(w).fetch_or(v, order::or())
        }
        fn and(&self, w: Word, v: u64) -> u64 {
            self.$word(w).fetch_and(v, order::and())
        }
        fn fence_after_rmw(&self) {
            fence(Ordering::SeqCst);
        }
    };
}
pub(crate) use atomic_accesses;

/// Memory orders of all accesses, the same for every [`Mem`] over atomics: the arena, regions, and the loom
/// models.
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

    /// Memory order of a compare-and-swap that fails, because it finds a value other than the expected one.
    #[inline(always)]
    pub(crate) const fn cas_failure() -> Ordering {
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
    /// Result of the algorithm.
    type Out;

    /// Makes one step. Returns `Some` with the result after the last step. The caller must not call it again
    /// then.
    fn step<M: Mem + ?Sized>(&mut self, mem: &M) -> Option<Self::Out>;
}

/// Runs `steps` to the end, like [`run`], with the first twelve steps unrolled. So the compiler knows the
/// number of each step and emits straight-line code. For operations performed for every message.
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
    // A clone, so that the address of the original is never taken and the original stays in registers.
    rest(steps.clone(), mem)
}

/// Runs the steps after the unrolled ones. Needed if another thread or process interfered, or if the
/// operation takes more steps than usual.
#[cold]
#[inline(never)]
fn rest<S: Steps, M: Mem + ?Sized>(steps: S, mem: &M) -> S::Out {
    run(steps, mem)
}

/// Runs `steps` to the end.
#[inline(always)]
pub fn run<S: Steps, M: Mem + ?Sized>(mut steps: S, mem: &M) -> S::Out {
    loop {
        if let Some(out) = steps.step(mem) {
            return out;
        }
    }
}

/// Raises a word to at least `to`.
pub(crate) fn raise<M: Mem + ?Sized>(m: &M, at: Word, to: u64) {
    let mut now = m.load(at);
    while now < to {
        match m.cas(at, now, to) {
            Ok(()) => return,
            Err(other) => now = other,
        }
    }
}
