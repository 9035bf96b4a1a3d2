//! Semaphores, whose permits return when their holder dies.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use mp_core::steps::lock::OsThread;
use mp_core::sync::shared::{AtomicU32, Ordering};
use mp_core::waits::BlockingCall;
use mp_core::words::Member;
use mp_core::{AdaptiveSpin, Error, Parking, Wait, WaitPoint, Waitable};

use crate::error::{AcquireError, PeerProcess};
use crate::handle::handle;
use crate::shared::Shared;
use crate::steps::slot::{ClaimSlot, EMPTY, HELD, HolderSlot, OPEN, ObservedSlot, RETAINED, Slots, set};
use crate::wait;

const USED: u64 = 0;
const PARKING: u64 = 16;
const SLOTS: u64 = 32;
/// Maximum number of permits of a semaphore.
const MOST: u32 = 1 << 20;
/// Default limit of a semaphore. A semaphore that begins with more permits has their number as its limit.
const LIMIT: u32 = 1024;

/// State of both kinds of semaphores: for each permit, a slot that names the holder of the permit (see
/// [`crate::steps::slot`]).
#[derive(Clone)]
pub(crate) struct Permits {
    pub(crate) shared: Shared,
    spin: Arc<AdaptiveSpin>,
    /// Slot at which this process begins its search: where it last found or left a permit.
    hint: Arc<AtomicU32>,
}

/// A permit of a [`Semaphore`] or a [`BoundedSemaphore`]. Dropping this value releases the permit.
///
/// A permit can be sent to another thread of the process. If the process dies, the permit returns to the
/// semaphore.
#[must_use = "dropping it gives it back"]
pub struct Permit {
    permits: Permits,
    me: Member,
    seen: ObservedSlot,
    /// State of the slot after the permit is dropped.
    to: u8,
}

impl Permits {
    fn new(name: &str, permits: u32, limit: u32) -> Result<Self, Error> {
        if permits > limit || limit > MOST {
            let (most, wanted) = (limit.min(MOST), permits.max(limit));
            let why = format!("a semaphore can have at most {most} permits, not {wanted}");
            return Err(Error::out_of_range(limit > MOST, why));
        }
        let made = Self::of(Shared::new(name, SLOTS + u64::from(limit))?);
        let open = HolderSlot::unpack(0).vacated(OPEN).pack();
        (0..permits.into()).for_each(|i| made.shared.store(SLOTS + i, open));
        made.shared.store(USED, permits.into());
        Ok(made)
    }

    fn of(shared: Shared) -> Self {
        Self { shared, spin: Arc::default(), hint: Arc::default() }
    }

    fn slots(&self) -> Slots {
        self.shared.slots(USED, SLOTS, u32::MAX)
    }

    fn parking(&self) -> Parking {
        self.shared.parking(PARKING)
    }

    /// Tries once to take a permit.
    fn claim(&self, me: Member) -> Option<ObservedSlot> {
        self.claim_as((HELD, me, 0))
    }

    fn claim_as(&self, to: (u8, Member, u32)) -> Option<ObservedSlot> {
        let from = self.hint.load(Ordering::Relaxed);
        let seen = self.shared.run(ClaimSlot::new(self.slots(), OPEN, to, from))?;
        self.hint.store(seen.index, Ordering::Relaxed);
        Some(seen)
    }

    #[track_caller]
    fn wait_as(&self, wait: Wait, to: (u8, Member, u32)) -> Result<Option<ObservedSlot>, AcquireError> {
        let target = (&self.shared, self.parking(), BlockingCall::Semaphore);
        let check_dead = || {
            self.release_and_wake();
            self.claim_as(to)
        };
        Ok(wait::until(target, &self.spin, wait, || self.claim_as(to), check_dead, true)?)
    }

    #[track_caller]
    fn acquire(&self, wait: Wait) -> Result<Permit, AcquireError> {
        let me = self.shared.me()?;
        match self.wait_as(wait, (HELD, me, 0))? {
            Some(seen) => Ok(Permit { permits: self.clone(), me, seen, to: OPEN }),
            None => Err(AcquireError::Held { holders: self.holders() }),
        }
    }

    #[track_caller]
    fn acquire_kept(&self, timeout: Duration) -> Result<bool, AcquireError> {
        let wait = if timeout.is_zero() { Wait::Never } else { Wait::at_most(timeout) };
        let to = (RETAINED, self.shared.me()?, OsThread::here().tid);
        Ok(self.wait_as(wait, to)?.is_some())
    }

    fn find(&self, states: &[u8]) -> impl Iterator<Item = ObservedSlot> + '_ {
        self.shared.find(self.slots(), set(states))
    }

    fn change(&self, seen: ObservedSlot, to: HolderSlot) -> bool {
        self.shared.replace(self.slots(), seen, to)
    }

    /// Releases the permits of dead processes. Returns the number of released permits.
    fn release_dead(&self) -> usize {
        let mut asked: HashMap<Member, bool> = HashMap::new();
        let mut dead = |m: Member| *asked.entry(m).or_insert_with(|| self.shared.is_dead(m));
        let theirs = self.find(&[HELD, RETAINED]).filter(|seen| dead(seen.slot.member));
        theirs.filter(|&seen| self.change(seen, seen.slot.vacated(OPEN))).count()
    }

    /// Releases the permits of dead processes. Wakes all waiters if more than one permit was released, since
    /// the caller takes only one.
    fn release_and_wake(&self) {
        if self.shared.me().is_ok() && self.release_dead() > 1 {
            self.parking().notify_all();
        }
    }

    #[cold]
    fn holders(&self) -> Vec<PeerProcess> {
        let mut holders: Vec<PeerProcess> = Vec::new();
        for ObservedSlot { slot: HolderSlot { member, .. }, .. } in self.find(&[HELD, RETAINED]) {
            if !holders.iter().any(|h| h.member == member) {
                holders.push(self.shared.process(member));
            }
        }
        holders
    }

    /// Releases a permit that this process keeps. Returns `false` if the process keeps none.
    fn release_forgotten(&self) -> Result<bool, AcquireError> {
        let me = self.shared.me()?;
        Ok(self.release_hinted(me) || self.release_where(|member| member == me))
    }

    /// Returns the slot where this process last found a permit, if a process keeps the permit.
    fn hinted(&self) -> Option<ObservedSlot> {
        let (index, slots) = (self.hint.load(Ordering::Relaxed), self.slots());
        if index >= slots.limit {
            return None;
        }
        let slot = HolderSlot::unpack(self.shared.load(SLOTS + u64::from(index)));
        (slot.state == RETAINED).then_some(ObservedSlot { index, slot })
    }

    /// Releases the permit at the hint, if this process keeps it: no search is needed in most cases.
    fn release_hinted(&self, me: Member) -> bool {
        let kept = self.hinted().filter(|seen| seen.slot.member == me);
        let released = kept.is_some_and(|seen| self.change(seen, seen.slot.vacated(OPEN)));
        if released {
            self.parking().wake_one();
        }
        released
    }

    /// Releases a permit that this process keeps, or else a permit that another live process keeps. Returns
    /// `false` if no permit is kept.
    fn release_any(&self) -> Result<bool, AcquireError> {
        if self.release_forgotten()? {
            return Ok(true);
        }
        // The permits of dead processes return anyway, in addition to the permit that this call releases.
        if self.release_dead() > 0 {
            self.parking().notify_all();
        }
        Ok(self.release_where(|_| true))
    }

    fn release_where(&self, matches: impl Fn(Member) -> bool) -> bool {
        let mut kept = self.find(&[RETAINED]).filter(|seen| matches(seen.slot.member));
        // Another thread may release the permit first.
        let released = kept.any(|seen| self.change(seen, seen.slot.vacated(OPEN)));
        if released {
            self.parking().wake_one();
        }
        released
    }

    fn is_kept_here(&self) -> bool {
        let Ok(me) = self.shared.me() else { return false };
        let thread = OsThread::here().tid;
        let is_here = |seen: ObservedSlot| (seen.slot.member, seen.slot.thread) == (me, thread);
        // The hint is the only slot of a semaphore with one permit.
        let others = self.slots().limit > 1;
        self.hinted().is_some_and(is_here) || others && self.find(&[RETAINED]).any(is_here)
    }

    fn forget_kept(&self) {
        let Ok(me) = self.shared.me() else { return };
        for seen in self.find(&[RETAINED]).filter(|seen| seen.slot.member == me) {
            self.change(seen, seen.slot.vacated(EMPTY));
        }
    }

    fn add(&self) -> Result<(), AcquireError> {
        self.shared.me()?;
        let slots = self.slots();
        let nobody = Member::from_raw(0);
        if self.shared.run(ClaimSlot::new(slots, EMPTY, (OPEN, nobody, 0), 0).or_grow()).is_none() {
            return Err(AcquireError::TooMany { limit: slots.limit });
        }
        self.parking().wake_one();
        Ok(())
    }

    fn available(&self) -> usize {
        if self.shared.me().is_ok() { self.find(&[OPEN]).count() } else { 0 }
    }
}

impl Permit {
    /// Keeps the permit without a handle. The permit is released by the semaphore's `release` in any thread
    /// of this process, by its `release_any` in any process, or by the death of the process. For callers that
    /// acquire in one place and release in another.
    pub fn keep(mut self) {
        self.to = RETAINED;
    }

    /// Removes the permit: the semaphore has one permit less.
    pub fn forget(mut self) {
        self.to = EMPTY;
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let Self { permits, me, seen, to } = self;
        // The permit belongs to the parent, not to a forked copy.
        if permits.shared.me().ok() != Some(*me) {
            return;
        }
        let then = match *to {
            RETAINED => seen.slot.then(RETAINED, *me, OsThread::here().tid),
            to => seen.slot.vacated(to),
        };
        permits.change(*seen, then);
        if *to == OPEN {
            permits.hint.store(seen.index, Ordering::Relaxed);
            permits.parking().wake_one();
        }
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Permit({} of {:?})", self.seen.index, self.permits.shared.structure().hold())
    }
}

/// A semaphore between processes: a number of permits, which can grow.
///
/// ```
/// use std::time::Duration;
/// use mp_sync::{AcquireError, Semaphore};
///
/// let gpus = Semaphore::new(2)?;
/// let (one, two) = (gpus.acquire()?, gpus.acquire()?);
/// match gpus.acquire_timeout(Duration::from_millis(1)) {
///     Err(AcquireError::Held { holders }) => assert_eq!(holders[0].pid, std::process::id()),
///     other => panic!("{other:?}"),
/// }
/// drop(one); // releases it
/// gpus.try_acquire()?;
/// # drop(two);
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
///
/// # Blocking
/// [`acquire`](Self::acquire) waits without a limit. The `_timeout` and `_deadline` forms return an error
/// that names the processes with permits. [`try_acquire`](Self::try_acquire) never waits, and can miss a
/// permit that is being released at that moment. The search for a permit checks each taken permit, so use
/// semaphores for up to some thousand permits.
///
/// # When a process dies
/// The permits of a dead process return. A waiter gets one about 1 ms after the death if the parent of the
/// dead process can notice the death, otherwise within about 100 ms (see the
/// [table](crate#latency-after-a-death)). So a permit is a resource, not a message. A consumer that uses
/// permits as signals calls [`Permit::forget`] after it has taken one.
#[derive(Clone)]
#[doc(alias = "multiprocessing.Semaphore")]
pub struct Semaphore(pub(crate) Permits);

/// A semaphore between processes that never has more permits than initially.
///
/// ```
/// use mp_sync::{AcquireError, BoundedSemaphore};
///
/// let slots = BoundedSemaphore::new(1)?;
/// slots.acquire()?.keep(); // without a guard, until `release`
/// slots.release()?;
/// assert!(matches!(slots.release(), Err(AcquireError::NotKept)));
/// assert_eq!(slots.available(), 1);
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
///
/// Otherwise like [`Semaphore`].
#[derive(Clone)]
#[doc(alias = "multiprocessing.BoundedSemaphore")]
pub struct BoundedSemaphore(pub(crate) Permits);

/// Implements the functions that both kinds of semaphores have.
macro_rules! semaphore {
    ($name:ident, $what:literal, $full:literal) => {
        impl $name {
            /// Takes a permit. Blocks until one is available.
            ///
            /// # Errors
            /// [`AcquireError::Failed`] in a forked copy.
            #[track_caller]
            pub fn acquire(&self) -> Result<Permit, AcquireError> {
                self.0.acquire(Wait::Forever)
            }

            mp_core::forms! {
                "Takes a permit": acquire() -> Result<Permit, AcquireError>,
                or "[`AcquireError::Held`], which names the holders";
                |semaphore, wait| semaphore.0.acquire(wait);
                never try_acquire;
                at_most acquire_timeout;
                until acquire_deadline;
            }

            /// Takes a permit asynchronously. If the future is dropped before it is ready, no permit is
            /// taken.
            ///
            /// # Errors
            /// [`AcquireError::Failed`] in a forked copy, or if the thread that waits for all tasks can't be
            /// started.
            pub async fn acquire_async(&self) -> Result<Permit, AcquireError> {
                let me = self.0.shared.me()?;
                let take = || Ok::<_, Error>(self.0.claim(me));
                let seen = mp_core::until(|| Arc::new(self.clone()), take).await?;
                Ok(Permit { permits: self.0.clone(), me, seen, to: OPEN })
            }

            /// Returns the number of available permits: a snapshot. 0 in a forked copy.
            #[doc(alias = "get_value")]
            pub fn available(&self) -> usize {
                self.0.available()
            }

            /// Takes a permit, and [keeps](Permit::keep) it without a handle. Waits at most `timeout`, and
            /// returns `false` when the time has expired.
            ///
            /// # Errors
            /// [`AcquireError::Failed`] in a forked copy.
            #[track_caller]
            pub fn acquire_kept(&self, timeout: Duration) -> Result<bool, AcquireError> {
                self.0.acquire_kept(timeout)
            }

            /// Returns `true` if the calling thread has [kept](Permit::keep) a permit that is not released:
            /// a snapshot. `false` in a forked copy.
            pub fn is_kept_here(&self) -> bool {
                self.0.is_kept_here()
            }

            /// Returns the live processes that hold or keep permits, each once: a snapshot. Permits of dead
            /// processes are released. Empty in a forked copy.
            pub fn holders(&self) -> Vec<PeerProcess> {
                if self.0.shared.me().is_err() {
                    return Vec::new();
                }
                if self.0.release_dead() > 0 {
                    self.0.parking().notify_all();
                }
                self.0.holders()
            }
        }

        impl Waitable for $name {
            fn wait_point(&self) -> WaitPoint<'_> {
                WaitPoint::Parking(self.0.parking().into())
            }

            fn is_ready(&self) -> bool {
                self.available() > 0
            }

            fn is_ready_recheck(&self) -> bool {
                self.0.release_and_wake();
                self.is_ready()
            }
        }

        handle! {
            $name, $what,
            |semaphore| semaphore.0.shared, format_args!("{} available, ", semaphore.available());
            |d| Shared::receive($what, $full, SLOTS, d).map(|shared| Self(Permits::of(shared)))
        }
    };
}

semaphore!(Semaphore, "a Semaphore", "mp_sync::Semaphore");
semaphore!(BoundedSemaphore, "a BoundedSemaphore", "mp_sync::BoundedSemaphore");

impl Semaphore {
    /// Creates a semaphore with `permits` permits. Its limit is 1024, or `permits` if that is more.
    ///
    /// # Errors
    /// See [`with_limit`](Self::with_limit).
    pub fn new(permits: u32) -> Result<Self, Error> {
        Self::with_limit(permits, permits.max(LIMIT))
    }

    /// Creates a semaphore with `permits` permits, which can grow to `limit`.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::ArenaFull`], [`Error::InvalidArgument`] if `permits` exceeds `limit`,
    /// or [`Error::LimitExceeded`] if `limit` exceeds 2^20.
    pub fn with_limit(permits: u32, limit: u32) -> Result<Self, Error> {
        Permits::new("mp_sync::Semaphore", permits, limit).map(Self)
    }

    /// Adds `permits` permits.
    ///
    /// # Errors
    /// [`AcquireError::TooMany`] if the limit is reached: fewer permits, or none, were added.
    /// [`AcquireError::Failed`] in a forked copy.
    pub fn add_permits(&self, permits: u32) -> Result<(), AcquireError> {
        (0..permits).try_for_each(|_| self.0.add())
    }

    /// Releases a permit that this process [keeps](Permit::keep). Adds a permit if the process keeps none.
    ///
    /// # Errors
    /// See [`add_permits`](Self::add_permits).
    pub fn release(&self) -> Result<(), AcquireError> {
        if self.0.release_forgotten()? { Ok(()) } else { self.0.add() }
    }

    /// Removes the permits that this process [keeps](Permit::keep): they don't return when the process ends.
    /// For permits that were used as signals. Does nothing in a forked copy.
    pub fn forget_kept(&self) {
        self.0.forget_kept();
    }

    /// Releases a permit that this process [keeps](Permit::keep), or else a permit that another process
    /// keeps, or else adds a permit: like `sem_post(3)`, which records no holders. If a permit is released
    /// for another process that dies later, the permit does not return a second time.
    ///
    /// # Errors
    /// See [`add_permits`](Self::add_permits).
    pub fn release_any(&self) -> Result<(), AcquireError> {
        if self.0.release_any()? { Ok(()) } else { self.0.add() }
    }
}

impl BoundedSemaphore {
    /// Creates a semaphore with `permits` permits.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::ArenaFull`], or [`Error::LimitExceeded`] for more than 2^20.
    pub fn new(permits: u32) -> Result<Self, Error> {
        Permits::new("mp_sync::BoundedSemaphore", permits, permits).map(Self)
    }

    /// Releases a permit that this process [keeps](Permit::keep).
    ///
    /// # Errors
    /// [`AcquireError::NotKept`] if this process keeps no permit, [`AcquireError::Failed`] in a forked copy.
    pub fn release(&self) -> Result<(), AcquireError> {
        if self.0.release_forgotten()? { Ok(()) } else { Err(AcquireError::NotKept) }
    }

    /// Releases a permit that this process [keeps](Permit::keep), or else a permit that another process
    /// keeps. For permits that are acquired in one process and released in another.
    ///
    /// # Errors
    /// [`AcquireError::NotKept`] if no live process keeps a permit, [`AcquireError::Failed`] in a forked
    /// copy.
    pub fn release_any(&self) -> Result<(), AcquireError> {
        if self.0.release_any()? { Ok(()) } else { Err(AcquireError::NotKept) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keeps a permit for `member`, which does not exist in this test and so counts as dead.
    fn keep_as(permits: &Permits, member: Member) {
        let claim = ClaimSlot::new(permits.slots(), OPEN, (RETAINED, member, 0), 0);
        permits.shared.run(claim).unwrap();
    }

    #[test]
    fn kept_semaphore_permit_belongs_to_its_thread() {
        let one = BoundedSemaphore::new(1).unwrap();
        assert!(one.acquire_kept(Duration::ZERO).unwrap());
        assert!(one.is_kept_here() && !one.acquire_kept(Duration::from_millis(1)).unwrap());
        assert_eq!(one.holders()[0].pid, std::process::id());
        let theirs = one.clone();
        let there = std::thread::spawn(move || (theirs.is_kept_here(), theirs.release_any().is_ok()));
        assert_eq!(there.join().unwrap(), (false, true));
        assert!(!one.is_kept_here());
        assert!(matches!(one.release_any(), Err(AcquireError::NotKept)));
    }

    #[test]
    fn release_any_adds_to_permits_of_dead_holder() {
        let dead = Member::new(4000, 7);
        let one = BoundedSemaphore::new(1).unwrap();
        keep_as(&one.0, dead);
        // The permit has returned because its holder is dead, so there is none to release.
        assert!(matches!(one.release_any(), Err(AcquireError::NotKept)));
        assert_eq!(one.available(), 1);
        let signals = Semaphore::new(1).unwrap();
        keep_as(&signals.0, dead);
        signals.release_any().unwrap();
        assert_eq!(signals.available(), 2);
        assert!(signals.acquire_kept(Duration::ZERO).unwrap());
        signals.forget_kept();
        assert_eq!((signals.available(), signals.holders().len()), (1, 0));
    }
}
