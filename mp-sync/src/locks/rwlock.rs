//! Reader-writer locks.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Instant;

use mp_core::steps::lock::{DeathRecord, OsThread};
use mp_core::sync::{Ordering, compiler_fence};
use mp_core::waits::BlockingCall;
use mp_core::words::{LockKind, Member, ReadersAt, WaitGoal};
use mp_core::{AdaptiveSpin, Error, LockError, LockWait, Members, Parking, RawGuard, RawLock, Result, Wait};

use crate::handle::handle;
use crate::locks::cell::owner_died;
use crate::locks::data::{self, GuardedData};
use crate::plain::Plain;
use crate::shared::Shared;
use crate::steps::rwlock::{AddRead, ClaimReader, Enter, EnterOutcome, Leave, Readers};
use crate::steps::slot::{EMPTY, HELD, ObservedSlot, Slots, set};
use crate::wait;

const NAME: &str = "RwLock";

const LOCK: u64 = 0;
const WRITING: u64 = 3;
const USED: u64 = 4;
const PARKING: u64 = 16;
const DATA: u64 = 32;
/// Default maximum number of concurrent readers.
const READERS: u32 = 128;
/// Number of times that a timed-out reader retries because the readers that occupied all slots have left
/// meanwhile.
const TRIES: u32 = 3;

/// A reader-writer lock between processes, around plain data.
///
/// ```
/// use mp_sync::RwLock;
///
/// let settings = RwLock::new([0.1_f32, 0.9])?;
/// {
///     let (a, b) = (settings.read()?, settings.read()?); // up to 128 at once, in any processes
///     assert_eq!(a[0] + b[1], 1.0);
/// }
/// settings.write()?[0] = 0.2; // exclusive
/// assert_eq!(settings.read()?[0], 0.2);
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
///
/// A waiting writer has priority over readers that arrive later. A thread that already reads may read again
/// at any time, even while a writer waits or all slots are taken. A thread that reads can't write: `write`
/// returns [`LockError::WouldDeadlock`]. In a thread that writes, both `write` and `read` return this error.
///
/// # When a process dies
/// The slot of a dead reader is released, without further effect. After the death of a writer, reading and
/// writing return [`LockError::OwnerDied`] until a caller [`recover`](Self::recover)s. A stopped process
/// keeps its lock or slot: waiters return [`LockError::Held`], which names the stopped process even if there
/// are other readers.
#[derive(Clone)]
pub struct RwLock<T: Plain + Send + Sync> {
    pub(crate) shared: Shared,
    raw: RawLock,
    spin: Arc<AdaptiveSpin>,
    data: PhantomData<fn(T) -> T>,
}

impl<T: Plain + Send + Sync> RwLock<T> {
    const SLOTS: u64 = DATA + data::words_of::<T>();

    /// Returns the number of words of a lock for this number of readers. Each reader needs a slot and a
    /// count.
    const fn words_for(readers: u32) -> u64 {
        Self::SLOTS + 2 * readers as u64
    }

    /// Creates a lock around `value`, for up to 128 concurrent readers.
    ///
    /// # Errors
    /// See [`with_readers`](Self::with_readers).
    pub fn new(value: T) -> Result<Self> {
        Self::with_readers(value, READERS)
    }

    /// Creates a lock around `value`, for up to `readers` concurrent readers. Further readers wait.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::ArenaFull`], [`Error::InvalidArgument`] for zero readers, or
    /// [`Error::LimitExceeded`] for more than 2^20 readers and for a type with an alignment above 64 bytes.
    pub fn with_readers(value: T, readers: u32) -> Result<Self> {
        data::check::<T>()?;
        if !(1..=1 << 20).contains(&readers) {
            let why = format!("a lock for {readers} readers: 1 to {} are possible", 1 << 20);
            return Err(Error::out_of_range(readers > 0, why));
        }
        let made = Self::of(Shared::new(&data::name_of::<T>(NAME), Self::words_for(readers))?);
        *made.write().map_err(data::new_lock_error)? = value;
        Ok(made)
    }

    fn of(shared: Shared) -> Self {
        let raw = shared.lock(LOCK);
        Self { shared, raw, spin: Arc::default(), data: PhantomData }
    }

    fn reader_words(&self) -> Readers {
        let limit = u32::try_from((self.shared.len() - Self::SLOTS) / 2).unwrap_or(u32::MAX);
        let slots = self.shared.slots(USED, Self::SLOTS, limit);
        Readers { slots, extra_reads: self.shared.at(Self::SLOTS + u64::from(slots.limit)) }
    }

    /// Returns the goal of a writer that already has the writers' lock, for the detection of deadlocks: the
    /// lock, and the slots of the readers that must leave.
    fn wait_goal(&self) -> WaitGoal {
        let Slots { used, first, limit } = self.reader_words().slots;
        let readers = Some(ReadersAt { used, first, limit });
        WaitGoal { kind: LockKind::Write, lock: self.shared.at(LOCK), readers }
    }

    fn parking(&self) -> Parking {
        self.shared.parking(PARKING)
    }

    /// Acquires the lock for reading. Blocks until it is available.
    ///
    /// # Errors
    /// [`LockError::OwnerDied`] if a process died while it wrote and no caller has recovered since,
    /// [`LockError::WouldDeadlock`] if this thread writes, [`LockError::Deadlock`] if this thread closed a
    /// cycle of threads that wait for each other, [`LockError::Failed`] in a forked copy.
    #[track_caller]
    pub fn read(&self) -> Result<ReadGuard<'_, T>, LockError> {
        self.read_wait(Wait::Forever)
    }

    mp_core::forms! {
        "Acquires the lock for reading": read() -> Result<ReadGuard<'_, T>, LockError>,
        or "[`LockError::Held`], which names the process that writes, or waits to write";
        |lock, wait| lock.read_wait(wait);
        never try_read;
        at_most read_timeout;
        until read_deadline;
    }

    /// Acquires the lock for writing. Blocks until it is available.
    ///
    /// # Errors
    /// [`LockError::OwnerDied`] if a process died while it wrote and no caller has recovered since,
    /// [`LockError::WouldDeadlock`] if this thread already reads or writes, [`LockError::Deadlock`] if this
    /// thread closed a cycle of threads that wait for each other, [`LockError::Failed`] in a forked copy.
    #[track_caller]
    pub fn write(&self) -> Result<WriteGuard<'_, T>, LockError> {
        self.write_wait(Wait::Forever, false)
    }

    mp_core::forms! {
        "Acquires the lock for writing": write() -> Result<WriteGuard<'_, T>, LockError>,
        or "[`LockError::Held`], which names a process that reads or writes";
        |lock, wait| lock.write_wait(wait, false);
        never try_write;
        at_most write_timeout;
        until write_deadline;
    }

    /// Acquires the lock for writing, even if a process died while it wrote. Dropping the guard marks the
    /// data as repaired. A panic before that leaves the repair to the next caller.
    ///
    /// # Errors
    /// The errors of [`write`](Self::write), without `OwnerDied`.
    #[track_caller]
    pub fn recover(&self) -> Result<WriteGuard<'_, T>, LockError> {
        self.write_wait(Wait::Forever, true)
    }

    mp_core::forms! {
        "Acquires the lock for writing, even if a process died while it wrote":
        recover() -> Result<WriteGuard<'_, T>, LockError>,
        or "[`LockError::Held`], which names a process that reads or writes";
        |lock, wait| lock.write_wait(wait, true);
        at_most recover_timeout;
    }

    fn reading(&self, me: Member, seen: ObservedSlot) -> ReadGuard<'_, T> {
        let hold = ReadHold { lock: self, me, seen, thread: PhantomData };
        ReadGuard(GuardedData::new(&self.shared, DATA, hold))
    }

    #[track_caller]
    fn read_wait(&self, wait: Wait) -> Result<ReadGuard<'_, T>, LockError> {
        let (me, thread, readers) = (self.shared.me()?, OsThread::here().tid, self.reader_words());
        match self.shared.run(Enter::new(self.shared.at(LOCK), readers, me, thread)) {
            EnterOutcome::Reading(seen) => return Ok(self.reading(me, seen)),
            EnterOutcome::Blocked { stepped_back: true, .. } => self.parking().notify_all(),
            EnterOutcome::Blocked { .. } | EnterOutcome::Full => {}
        }
        // A thread that already reads blocks writers anyway, and must not wait for a writer that waits for
        // this thread.
        if let Some(seen) = self.shared.run(AddRead::new(readers, me, thread)) {
            return Ok(self.reading(me, seen));
        }
        let claim = || self.shared.run(ClaimReader::new(readers, me, thread));
        let mut guard = self.raw.acquire(LockKind::Read, wait, &self.spin)?;
        self.check_whole(&mut guard)?;
        let free = || {
            self.release_dead();
            claim()
        };
        let target = (&self.shared, self.parking(), BlockingCall::RwLockRead);
        let mut found = wait::until(target, &self.spin, wait, claim, free, false)?;
        for _ in 0..TRIES {
            match found {
                Some(seen) => return Ok(self.reading(me, seen)),
                None => self.check_no_readers(wait)?,
            }
            found = claim();
        }
        Err(Error::Malformed("a lock that has no place for a reader, and no readers".into()).into())
    }

    /// Ends one read. The last read of a thread releases the slot.
    fn leave(&self, seen: ObservedSlot) {
        if self.shared.run(Leave::new(self.reader_words(), seen)) {
            self.parking().notify_all();
        }
    }

    /// Returns `true` if this thread has a reader's slot.
    fn is_reading(&self, me: Member, thread: u32) -> bool {
        self.readers().any(|seen| seen.slot.member == me && seen.slot.thread == thread)
    }

    fn readers(&self) -> impl Iterator<Item = ObservedSlot> + '_ {
        self.shared.find(self.reader_words().slots, set(&[HELD]))
    }

    /// Releases the slots of dead readers.
    fn release_dead(&self) {
        for seen in self.readers() {
            if self.shared.is_dead(seen.slot.member) {
                self.shared.replace(self.reader_words().slots, seen, seen.slot.vacated(EMPTY));
            }
        }
    }

    /// Returns an error if a dead holder of the writers' lock may have left the data half changed. If that
    /// holder had not begun to write, or was a reader, the data is whole, and the mark *poisoned* is removed.
    fn check_whole(&self, guard: &mut RawGuard<'_>) -> Result<(), LockError> {
        if !guard.is_poisoned() {
            return Ok(());
        }
        if self.shared.load(WRITING) != 0 {
            return Err(owner_died(guard));
        }
        guard.mark_recovered();
        Ok(())
    }

    /// Returns the error of a caller that has timed out because of readers. The error names a stopped reader,
    /// as the likeliest cause, or else any reader. (`Wait::Never` skips the search for a stopped reader, to
    /// return quickly.) Returns `Ok` if all readers have left meanwhile.
    #[cold]
    fn check_no_readers(&self, wait: Wait) -> Result<(), LockError> {
        let (arena, readers) = (self.shared.arena(), self.readers().map(|seen| seen.slot.member));
        let readers: Vec<Member> = readers.collect();
        let Some(&first) = readers.first() else { return Ok(()) };
        let stopped = readers.into_iter().find(|&m| wait != Wait::Never && Members(arena).is_stopped(m));
        let holder = stopped.unwrap_or(first);
        Err(LockError::Held { holder, pid: Members(arena).pid_of(holder) })
    }

    #[track_caller]
    fn write_wait(&self, wait: Wait, recovering: bool) -> Result<WriteGuard<'_, T>, LockError> {
        let (me, thread) = (self.shared.me()?, OsThread::here().tid);
        let mut guard = self.raw.acquire(LockKind::Write, wait, &self.spin)?;
        let torn = self.check_whole(&mut guard);
        let died = guard.died().filter(|_| torn.is_err());
        if !recovering {
            torn?;
        }
        if self.is_reading(me, thread) {
            return Err(LockError::WouldDeadlock);
        }
        let no_readers = || self.readers().next().is_none().then_some(Ok(()));
        let mut cycles = LockWait::new(self.shared.arena(), me, self.wait_goal(), wait);
        let check_dead = || {
            self.release_dead();
            no_readers().or_else(|| cycles.look(Instant::now()).map(Err))
        };
        let target = (&self.shared, self.parking(), BlockingCall::RwLockWrite);
        match wait::until(target, &self.spin, wait, no_readers, check_dead, false)? {
            Some(Ok(())) => {}
            Some(Err(cycle)) => return Err(LockError::Deadlock(cycle)),
            None => self.check_no_readers(wait)?,
        }
        drop(cycles);
        if recovering {
            guard.mark_recovered();
        }
        self.shared.store(WRITING, 1);
        // A kill can happen between any two instructions. The release store does not order later writes: the
        // compiler may move data writes before it, and a kill there would leave torn data without an
        // `OwnerDied`.
        compiler_fence(Ordering::SeqCst);
        let hold = WriteHold { lock: self, me, died, _raw: guard };
        Ok(WriteGuard(GuardedData::new(&self.shared, DATA, hold)))
    }
}

/// Read access to the data of an [`RwLock`]. Dropping the thread's last guard releases the reader's slot.
#[must_use = "dropping it unlocks: bind it by `let guard =`"]
pub struct ReadGuard<'a, T: Plain + Send + Sync>(GuardedData<T, ReadHold<'a, T>>);

/// Write access to the data of an [`RwLock`]. Dropping it unlocks.
#[must_use = "dropping it unlocks: bind it by `let guard =`"]
pub struct WriteGuard<'a, T: Plain + Send + Sync>(GuardedData<T, WriteHold<'a, T>>);

/// A reader's slot, or one more read in the slot of its thread.
pub(crate) struct ReadHold<'a, T: Plain + Send + Sync> {
    lock: &'a RwLock<T>,
    me: Member,
    seen: ObservedSlot,
    thread: PhantomData<*const ()>,
}

/// The writers' lock, held by a writer after the last reader has left.
pub(crate) struct WriteHold<'a, T: Plain + Send + Sync> {
    lock: &'a RwLock<T>,
    me: Member,
    died: Option<DeathRecord>,
    /// Guard of the writers' lock, released after `WRITING` is reset.
    _raw: RawGuard<'a>,
}

impl<T: Plain + Send + Sync> Drop for ReadHold<'_, T> {
    fn drop(&mut self) {
        // The slot belongs to the parent, not to a forked copy.
        if self.lock.shared.me().ok() == Some(self.me) {
            self.lock.leave(self.seen);
        }
    }
}

impl<T: Plain + Send + Sync> Drop for WriteHold<'_, T> {
    fn drop(&mut self) {
        // After a panic during the repair, the next caller has to repair: the mark and `WRITING` stay.
        let whole = self.died.is_none() || !std::thread::panicking();
        if whole && self.lock.shared.me().ok() == Some(self.me) {
            self.lock.shared.store(WRITING, 0);
        }
    }
}

impl<T: Plain + Send + Sync> WriteGuard<'_, T> {
    /// Returns the process that died while it wrote, if the data has to be checked for that reason.
    pub fn died(&self) -> Option<DeathRecord> {
        self.0.key.died
    }
}

impl<T: Plain + Send + Sync> Deref for ReadGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        self.0.get_ref()
    }
}

impl<T: Plain + Send + Sync> Deref for WriteGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        self.0.get_ref()
    }
}

impl<T: Plain + Send + Sync> DerefMut for WriteGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }
}

impl<T: Plain + Send + Sync + fmt::Debug> fmt::Debug for ReadGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl<T: Plain + Send + Sync + fmt::Debug> fmt::Debug for WriteGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

handle! {
    RwLock<T: Plain + Send + Sync>, "an RwLock", |lock| lock.shared, "";
    |d| data::receive::<T, D>("an RwLock", NAME, Self::words_for(1), d).map(Self::of)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steps::slot::OPEN;

    #[test]
    fn rwlock_held_error_names_the_process_of_a_reader() {
        let lock = RwLock::with_readers(5_u64, 2).unwrap();
        let reading = lock.read().unwrap();
        let me = lock.shared.me().unwrap();
        match lock.check_no_readers(Wait::Forever) {
            Err(LockError::Held { holder, pid }) => assert_eq!((holder, pid), (me, std::process::id())),
            other => panic!("{other:?}"),
        }
        drop(reading);
        lock.check_no_readers(Wait::Forever).unwrap();
    }

    #[test]
    fn rwlock_slot_in_an_unknown_state_is_malformed() {
        let lock = RwLock::with_readers(5_u64, 1).unwrap();
        drop(lock.read().unwrap());
        // A foreign process wrote a slot that is neither free nor held.
        lock.shared.store(RwLock::<u64>::SLOTS, OPEN.into());
        assert!(matches!(lock.try_read(), Err(LockError::Failed(Error::Malformed(_)))));
    }
}
