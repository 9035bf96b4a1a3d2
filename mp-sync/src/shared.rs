//! # Safety
//! Access of this crate to the words of the arena. Unsafe, because the words could belong to another
//! structure. Sound, because a [`Shared`] wraps only a [`Structure`] under a name of this crate, whose words
//! have no other use. The structure lives as long as the handle that holds it.
#![allow(unsafe_code)]

use mp_core::mem::{Mem, Steps, Word, run};
use mp_core::words::Member;
use mp_core::{Arena, Error, Members, Parking, RawGuard, RawLock, Result, Structure};
use serde::{Deserializer, Serializer};

use crate::error::PeerProcess;
use crate::steps::slot::{FindSlot, HolderSlot, ObservedSlot, ReplaceSlot, Slots};

/// Handle to a structure of this crate in the arena.
#[derive(Clone, Debug)]
pub(crate) struct Shared(Structure);

impl Shared {
    /// Creates a structure of `words` zeros under `name`, a name of this crate.
    pub(crate) fn new(name: &str, words: u64) -> Result<Self> {
        Structure::new(name, words).map(Self)
    }

    /// Receives a structure of at least `least` words.
    pub(crate) fn receive<'de, D: Deserializer<'de>>(
        what: &'static str,
        name: &str,
        least: u64,
        d: D,
    ) -> Result<Self, D::Error> {
        Self::of(Structure::receive(what, name, d)?, least, what).map_err(serde::de::Error::custom)
    }

    /// Wraps a structure under a name of this crate. Returns an error if the structure has fewer than `least`
    /// words.
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

    /// Returns the words of the arena, for steps on the words of this structure.
    pub(crate) fn words(&self) -> &'static (impl Mem + use<>) {
        // SAFETY: only words of this structure are changed, by the steps of its type, see above.
        unsafe { self.arena().words() }
    }

    /// Runs steps on the words of this structure.
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

    /// Returns the parking word at `i`.
    pub(crate) fn parking(&self, i: u64) -> Parking {
        // SAFETY: the parking words of each structure of this crate have no other use. The handle holds the
        // structure.
        unsafe { Parking::new(self.arena(), self.at(i)) }
    }

    /// Returns the lock in the words `i` to `i + 2`.
    pub(crate) fn lock(&self, i: u64) -> RawLock {
        _ = self.at(i + 2);
        // SAFETY: see `parking`; three words.
        unsafe { RawLock::at(self.arena(), self.at(i)) }.in_block(self.0.hold())
    }

    /// Returns `true` if a live process holds the lock at `i`. Returns `false` in a forked copy.
    pub(crate) fn is_locked(&self, i: u64) -> bool {
        let alive = |holder| !self.is_dead(holder);
        self.me().is_ok() && self.lock(i).look().holder().is_some_and(alive)
    }

    /// Returns the slots from word `first` up to the end of the structure, at most `limit`.
    pub(crate) fn slots(&self, used: u64, first: u64, limit: u32) -> Slots {
        let room = u32::try_from(self.len().saturating_sub(first)).unwrap_or(u32::MAX);
        let first = if room == 0 { self.at(used) } else { self.at(first) };
        Slots { used: self.at(used), first, limit: limit.min(room) }
    }

    /// Returns the slots that are in one of these `states` (a [`set`](crate::steps::slot::set)) when the
    /// iterator reaches them.
    pub(crate) fn find(&self, slots: Slots, states: u8) -> impl Iterator<Item = ObservedSlot> + '_ {
        let mut next = 0;
        std::iter::from_fn(move || {
            let seen = self.run(FindSlot::new(slots, states, next))?;
            next = seen.index + 1;
            Some(seen)
        })
    }

    /// Changes a slot. Returns `false` if its word has changed since it was observed.
    pub(crate) fn replace(&self, slots: Slots, seen: ObservedSlot, to: HolderSlot) -> bool {
        self.run(ReplaceSlot::new(slots.at(seen.index), seen.slot, to))
    }

    /// Returns `true` if the process is known to be dead.
    pub(crate) fn is_dead(&self, member: Member) -> bool {
        Members(self.arena()).is_dead(member)
    }

    pub(crate) fn process(&self, member: Member) -> PeerProcess {
        PeerProcess { member, pid: Members(self.arena()).pid_of(member) }
    }
}

/// A lock that the calling thread holds without a guard.
#[derive(Debug)]
pub(crate) struct HeldLock(RawLock);

impl HeldLock {
    /// Forgets a guard of `lock`.
    pub(crate) fn forget(lock: RawLock, guard: RawGuard<'_>) -> Self {
        std::mem::forget(guard);
        Self(lock)
    }

    /// Returns the held lock again. This thread has called [`forget`](Self::forget) for `lock`, and has not
    /// released it since.
    pub(crate) fn resume(lock: RawLock) -> Self {
        Self(lock)
    }

    /// Releases the lock. Does nothing in a forked copy.
    pub(crate) fn release(self, arena: Arena, recovered: bool) {
        // SAFETY: this thread holds the lock, by a guard that was forgotten. There is no other guard, because
        // `RLock` counts its levels.
        if let Ok(mut guard) = unsafe { self.0.resume(arena) }
            && recovered
        {
            guard.mark_recovered();
        }
    }
}
