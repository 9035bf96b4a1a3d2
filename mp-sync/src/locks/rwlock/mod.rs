//! A lock for many readers or one writer.

mod guard;

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Instant;

use mp_core::steps::lock::Who;
use mp_core::sync::{Ordering, compiler_fence};
use mp_core::waits::Call;
use mp_core::words::{LockKind, Member, ReadersAt, WaitGoal};
use mp_core::{AdaptiveSpin, Error, LockError, LockWait, Parking, RawGuard, RawLock, Result, Wait};

pub use self::guard::{ReadGuard, WriteGuard};
pub(crate) use self::guard::{Reading, Writing};
use crate::handle::handle;
use crate::locks::data::{self, Guarded};
use crate::locks::locked::owner_died;
use crate::plain::Plain;
use crate::shared::Shared;
use crate::steps::rwlock::{Again, Enter, Entered, Inside, Leave, Readers};
use crate::steps::slot::{Change, EMPTY, Find, HELD, Seen, Slots, set};
use crate::wait;

const NAME: &str = "RwLock";

const LOCK: u64 = 0;
const WRITING: u64 = 3;
const USED: u64 = 4;
const PARKING: u64 = 16;
const DATA: u64 = 32;
/// Readers at once, unless said otherwise.
const READERS: u32 = 128;
/// How often a reader looks for a place when its time is over, and the readers that had them all have left
/// meanwhile.
const TRIES: u32 = 3;

/// A lock between processes for many readers or one writer, and the plain data that it protects.
///
/// ```
/// use mp_sync::RwLock;
///
/// let settings = RwLock::new([0.1_f32, 0.9])?;
/// {
///     let (a, b) = (settings.read()?, settings.read()?); // up to 128 at once, in any processes
///     assert_eq!(a[0] + b[1], 1.0);
/// }
/// settings.write()?[0] = 0.2; // alone
/// assert_eq!(settings.read()?[0], 0.2);
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
///
/// A writer that waits goes before readers that come after it. A thread that reads already may read again, also then, and
/// when there are as many readers as there can be. It can't become a writer: that is [`LockError::WouldDeadlock`], as is
/// writing or reading while it writes.
///
/// # When a process dies
/// While it reads: its place is given back, and nothing else happens. While it writes: reading or writing
/// returns [`LockError::OwnerDied`] until a caller [`recover`](Self::recover)s. A stopped process keeps what
/// it has; a waiter gives up with [`LockError::Held`], which names it, also beside readers that continue.
#[derive(Clone)]
pub struct RwLock<T: Plain + Send + Sync> {
    pub(crate) shared: Shared,
    raw: RawLock,
    patience: Arc<AdaptiveSpin>,
    data: PhantomData<fn(T) -> T>,
}

impl<T: Plain + Send + Sync> RwLock<T> {
    const SLOTS: u64 = DATA + data::words_of::<T>();

    /// Each reader has a slot and a count.
    const fn words_for(readers: u32) -> u64 {
        Self::SLOTS + 2 * readers as u64
    }

    /// A lock around `value`, for up to 128 readers at once.
    ///
    /// # Errors
    /// As [`with_readers`](Self::with_readers).
    pub fn new(value: T) -> Result<Self> {
        Self::with_readers(value, READERS)
    }

    /// A lock around `value`, for up to `readers` readers at once; more than those wait.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::ArenaFull`], [`Error::InvalidArgument`] for no readers, or
    /// [`Error::LimitExceeded`] for more than 2^20, and for a type that is aligned to more than 64 bytes.
    pub fn with_readers(value: T, readers: u32) -> Result<Self> {
        data::check::<T>()?;
        if !(1..=1 << 20).contains(&readers) {
            let why = format!("a lock for {readers} readers: 1 to {} are possible", 1 << 20);
            return Err(Error::not_within(readers > 0, why));
        }
        let made = Self::of(Shared::new(&data::name_of::<T>(NAME), Self::words_for(readers))?);
        match made.write() {
            Ok(mut guard) => *guard = value,
            Err(LockError::Failed(e)) => return Err(e),
            Err(other) => return Err(Error::Malformed(other.to_string())),
        }
        Ok(made)
    }

    fn of(shared: Shared) -> Self {
        let raw = shared.lock(LOCK);
        Self { shared, raw, patience: Arc::default(), data: PhantomData }
    }

    fn places(&self) -> Readers {
        let limit = u32::try_from((self.shared.len() - Self::SLOTS) / 2).unwrap_or(u32::MAX);
        let slots = self.shared.slots(USED, Self::SLOTS, limit);
        Readers { slots, again: self.shared.at(Self::SLOTS + u64::from(slots.limit)) }
    }

    /// What a writer waits for that has the lock.
    fn readers_to_leave(&self) -> WaitGoal {
        let Slots { used, first, limit } = self.places().slots;
        let readers = Some(ReadersAt { used, first, limit });
        WaitGoal { kind: LockKind::Write, lock: self.shared.at(LOCK), readers }
    }

    fn parking(&self) -> Parking {
        self.shared.parking(PARKING)
    }

    /// Locks it for reading; waits as long as it takes.
    ///
    /// # Errors
    /// [`LockError::OwnerDied`] when a process died while it wrote and no caller has recovered since,
    /// [`LockError::WouldDeadlock`] when this thread writes, [`LockError::Deadlock`] when threads wait for each other in a
    /// cycle and this one closed it, [`LockError::Failed`] in a forked copy.
    pub fn read(&self) -> Result<ReadGuard<'_, T>, LockError> {
        self.read_within(Wait::Forever)
    }

    mp_core::forms! {
        "Locks it for reading": read() -> Result<ReadGuard<'_, T>, LockError>,
        or "[`LockError::Held`], which names the process that writes, or waits to write";
        |lock, wait| lock.read_within(wait);
        never try_read;
        at_most read_timeout;
        until read_deadline;
    }

    /// Locks it for writing; waits as long as it takes.
    ///
    /// # Errors
    /// [`LockError::OwnerDied`] when a process died while it wrote and no caller has recovered since,
    /// [`LockError::WouldDeadlock`] when this thread reads or writes already, [`LockError::Deadlock`] when threads wait for each
    /// other in a cycle and this one closed it, [`LockError::Failed`] in a forked copy.
    pub fn write(&self) -> Result<WriteGuard<'_, T>, LockError> {
        self.write_within(Wait::Forever, false)
    }

    mp_core::forms! {
        "Locks it for writing": write() -> Result<WriteGuard<'_, T>, LockError>,
        or "[`LockError::Held`], which names a process that reads or writes";
        |lock, wait| lock.write_within(wait, false);
        never try_write;
        at_most write_timeout;
        until write_deadline;
    }

    /// Locks it for writing also when a process died while it wrote. Dropping the guard says that the data is as it should
    /// be; a panic meanwhile leaves the mark for the next one.
    ///
    /// # Errors
    /// As [`write`](Self::write), without `OwnerDied`.
    pub fn recover(&self) -> Result<WriteGuard<'_, T>, LockError> {
        self.write_within(Wait::Forever, true)
    }

    mp_core::forms! {
        "Locks it for writing also when a process died while it wrote":
        recover() -> Result<WriteGuard<'_, T>, LockError>,
        or "[`LockError::Held`], which names a process that reads or writes";
        |lock, wait| lock.write_within(wait, true);
        at_most recover_timeout;
    }

    fn reading(&self, me: Member, seen: Seen) -> ReadGuard<'_, T> {
        ReadGuard(Guarded::new(&self.shared, DATA, Reading::new(self, me, seen)))
    }

    fn read_within(&self, wait: Wait) -> Result<ReadGuard<'_, T>, LockError> {
        let (me, thread, places) = (self.shared.me()?, Who::here().tid, self.places());
        match self.shared.run(Enter::new(self.shared.at(LOCK), places, me, thread)) {
            Entered::Reading(seen) => return Ok(self.reading(me, seen)),
            Entered::Blocked { stepped_back: true, .. } => self.parking().notify_all(),
            Entered::Blocked { .. } | Entered::Full => {}
        }
        // A thread that reads keeps writers out already, and would wait for one that waits for it.
        if let Some(seen) = self.shared.run(Again::new(places, me, thread)) {
            return Ok(self.reading(me, seen));
        }
        let inside = || self.shared.run(Inside::new(places, me, thread));
        let mut guard = self.raw.acquire(LockKind::Read, wait, &self.patience)?;
        self.is_whole(&mut guard)?;
        let free = || {
            self.give_back_dead();
            inside()
        };
        let place = (&self.shared, self.parking(), Call::RwLockRead);
        let mut found = wait::until(place, &self.patience, wait, inside, free)?;
        for _ in 0..TRIES {
            match found {
                Some(seen) => return Ok(self.reading(me, seen)),
                None => self.no_reader_left(wait)?,
            }
            found = inside();
        }
        Err(Error::Malformed("a lock that has no place for a reader, and no readers".into()).into())
    }

    /// Ends one reading; gives the place back with the last one.
    fn leave(&self, seen: Seen) {
        if self.shared.run(Leave::new(self.places(), seen)) {
            self.parking().notify_all();
        }
    }

    /// Whether this thread has a place among the readers.
    fn reads(&self, me: Member, thread: u32) -> bool {
        self.readers().any(|seen| seen.slot.member == me && seen.slot.thread == thread)
    }

    fn readers(&self) -> impl Iterator<Item = Seen> + '_ {
        let (slots, mut next) = (self.places().slots, 0);
        std::iter::from_fn(move || {
            let seen = self.shared.run(Find::new(slots, set(&[HELD]), next))?;
            next = seen.index + 1;
            Some(seen)
        })
    }

    /// Gives the places of dead readers back.
    fn give_back_dead(&self) {
        for seen in self.readers() {
            if self.shared.arena().is_dead(seen.slot.member) {
                let back = seen.slot.given_back(EMPTY);
                self.shared.run(Change::new(self.places().slots.at(seen.index), seen.slot, back));
            }
        }
    }

    /// Whether a mark means anything: a holder that died before it began to write, or as a reader, left nothing torn. Then
    /// it is taken away.
    fn is_whole(&self, guard: &mut RawGuard<'_>) -> Result<(), LockError> {
        if !guard.is_marked() {
            return Ok(());
        }
        if self.shared.load(WRITING) != 0 {
            return Err(owner_died(guard));
        }
        guard.mark_recovered();
        Ok(())
    }

    /// For a writer that has waited long enough for the readers: an error that names one of them; if one is
    /// stopped, that one, as the likeliest reason. (A caller that does not wait wants to know quickly.) No
    /// error if all have left meanwhile.
    #[cold]
    fn no_reader_left(&self, wait: Wait) -> Result<(), LockError> {
        let (arena, readers) = (self.shared.arena(), self.readers().map(|seen| seen.slot.member));
        let readers: Vec<Member> = readers.collect();
        let Some(&first) = readers.first() else { return Ok(()) };
        let stopped = readers.into_iter().find(|&m| wait != Wait::Never && arena.is_stopped(m));
        let holder = stopped.unwrap_or(first);
        Err(LockError::Held { holder, pid: arena.pid_of(holder) })
    }

    fn write_within(&self, wait: Wait, recovering: bool) -> Result<WriteGuard<'_, T>, LockError> {
        let (me, thread) = (self.shared.me()?, Who::here().tid);
        let mut guard = self.raw.acquire(LockKind::Write, wait, &self.patience)?;
        let torn = self.is_whole(&mut guard);
        let died = guard.died().filter(|_| torn.is_err());
        if !recovering {
            torn?;
        }
        if self.reads(me, thread) {
            return Err(LockError::WouldDeadlock);
        }
        let alone = || self.readers().next().is_none().then_some(Ok(()));
        let mut cycles = LockWait::new(self.shared.arena(), me, self.readers_to_leave(), wait);
        let ask = || {
            self.give_back_dead();
            alone().or_else(|| cycles.look(Instant::now()).map(Err))
        };
        let place = (&self.shared, self.parking(), Call::RwLockWrite);
        match wait::until(place, &self.patience, wait, alone, ask)? {
            Some(Ok(())) => {}
            Some(Err(cycle)) => return Err(LockError::Deadlock(cycle)),
            None => self.no_reader_left(wait)?,
        }
        drop(cycles);
        if recovering {
            guard.mark_recovered();
        }
        self.shared.store(WRITING, 1);
        // A kill comes between two instructions. A release store does not keep what is written after it behind it: the
        // compiler may write data first, and a kill there would leave torn data without an `OwnerDied`.
        compiler_fence(Ordering::SeqCst);
        Ok(WriteGuard(Guarded::new(&self.shared, DATA, Writing::new(self, me, died, guard))))
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
    fn only_who_reads_is_named() {
        let lock = RwLock::with_readers(5_u64, 2).unwrap();
        let reading = lock.read().unwrap();
        let me = lock.shared.me().unwrap();
        match lock.no_reader_left(Wait::Forever) {
            Err(LockError::Held { holder, pid }) => assert_eq!((holder, pid), (me, std::process::id())),
            other => panic!("{other:?}"),
        }
        drop(reading);
        lock.no_reader_left(Wait::Forever).unwrap();
    }

    #[test]
    fn places_without_a_holder_name_no_process() {
        let lock = RwLock::with_readers(5_u64, 1).unwrap();
        drop(lock.read().unwrap());
        // Written by a process that does not use the lock: a place that is neither free nor held.
        lock.shared.store(RwLock::<u64>::SLOTS, OPEN.into());
        assert!(matches!(lock.try_read(), Err(LockError::Failed(Error::Malformed(_)))));
    }
}
