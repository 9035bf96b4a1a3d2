//! # Safety
//! Where this crate touches the words of the arena. Unsafe, because the words could be of another structure;
//! sound, because a [`Shared`] is made only of a [`Structure`] under a name of this crate, whose words are
//! used for nothing else, and which lives as long as the handle that holds it.
#![allow(unsafe_code)]

use mp_core::mem::{Mem, Steps, Word, run};
use mp_core::mutant;
use mp_core::words::Member;
use mp_core::{Arena, Error, Parking, RawGuard, RawLock, Result, Structure};
use serde::{Deserializer, Serializer};

use crate::steps::slot::Slots;

/// A structure of this crate.
#[derive(Clone, Debug)]
pub(crate) struct Shared(Structure);

impl Shared {
    /// Of `words` zeros, as `name`, which is one of this crate.
    pub(crate) fn new(name: &str, words: u64) -> Result<Self> {
        Structure::new(name, words).map(Self)
    }

    /// As [`new`](Self::new), received; it has `least` words or more.
    pub(crate) fn receive<'de, D: Deserializer<'de>>(
        what: &'static str,
        name: &str,
        least: u64,
        d: D,
    ) -> Result<Self, D::Error> {
        Self::of(Structure::receive(what, name, d)?, least, what).map_err(serde::de::Error::custom)
    }

    /// Of a structure under a name of this crate, which has `least` words or more.
    pub(crate) fn of(structure: Structure, least: u64, what: &str) -> Result<Self> {
        if structure.len() < least {
            return Err(Error::Malformed(format!("{what} of {} words arrived", structure.len())));
        }
        Ok(Self(structure))
    }

    pub(crate) fn send<S: Serializer>(&self, what: &'static str, s: S) -> Result<S::Ok, S::Error> {
        self.0.send(what, s)
    }

    pub(crate) fn structure(&self) -> &Structure {
        &self.0
    }
    pub(crate) fn arena(&self) -> Arena {
        self.0.arena()
    }
    pub(crate) fn me(&self) -> Result<Member> {
        self.arena().me()
    }
    pub(crate) fn at(&self, i: u64) -> Word {
        self.0.word(i)
    }
    pub(crate) fn len(&self) -> u64 {
        self.0.len()
    }

    /// Its words, and all others: to run steps on its own.
    pub(crate) fn words(&self) -> &'static (impl Mem + use<>) {
        // SAFETY: only words of this structure are changed, by the steps that they belong to, see above.
        unsafe { self.arena().words() }
    }

    /// Runs steps on its words.
    #[inline]
    pub(crate) fn run<S: Steps>(&self, steps: S) -> S::Out {
        run(steps, self.words())
    }

    pub(crate) fn load(&self, i: u64) -> u64 {
        self.words().load(self.at(i))
    }

    pub(crate) fn store(&self, i: u64, v: u64) {
        self.words().store(self.at(i), v);
    }

    /// The parking word at `i`.
    pub(crate) fn parking(&self, i: u64) -> Parking {
        // SAFETY: each structure of this crate has its parking words in places of their own; it is held by the handle.
        unsafe { Parking::new(self.arena(), self.at(i)) }
    }

    /// The lock at `i` and the two words that follow.
    pub(crate) fn lock(&self, i: u64) -> RawLock {
        _ = self.at(i + 2);
        // SAFETY: as for `parking`, three words.
        unsafe { RawLock::at(self.arena(), self.at(i)) }.in_block(self.0.hold())
    }

    /// Whether a process that lives has the lock at `i`. In a forked copy, none has.
    pub(crate) fn is_locked(&self, i: u64) -> bool {
        let alive = |holder| !self.arena().is_dead(holder) || mutant!("lock.locked-by-the-dead");
        self.me().is_ok() && self.lock(i).look().holder().is_some_and(alive)
    }

    /// Slots from `first` on, up to the end of the structure, at most `limit`.
    pub(crate) fn slots(&self, used: u64, first: u64, limit: u32) -> Slots {
        let room = u32::try_from(self.len().saturating_sub(first)).unwrap_or(u32::MAX);
        let first = if room == 0 { self.at(used) } else { self.at(first) };
        Slots { used: self.at(used), first, limit: limit.min(room) }
    }
}

/// A lock that the calling thread holds, without a guard.
#[derive(Debug)]
pub(crate) struct Kept(RawLock);

impl Kept {
    /// Of a guard of `lock`, which is forgotten.
    pub(crate) fn of(lock: RawLock, guard: RawGuard<'_>) -> Self {
        std::mem::forget(guard);
        Self(lock)
    }

    /// Of a lock that [`of`](Self::of) was called for, by this thread, and that it has not released since.
    pub(crate) fn again(lock: RawLock) -> Self {
        Self(lock)
    }

    /// Releases it. In a forked copy it does nothing.
    pub(crate) fn release(self, arena: Arena, recovered: bool) {
        // SAFETY: made of a guard that was forgotten, by the thread that holds the lock; and there is no other, see
        // `RLock`, which counts.
        if let Ok(mut guard) = unsafe { self.0.resume(arena) }
            && recovered
        {
            guard.mark_recovered();
        }
    }
}
