//! Common part of [`Lock`](crate::Lock) and [`Array`](crate::Array): a lock, followed by plain data.
//!
//! | words | content | written by |
//! |---|---|---|
//! | 0 – 2 | the lock, see [`mp_core::steps::lock`] | each holder |
//! | 3 | number of elements of an array | creator, before any other code has the structure |
//! | 8 – … | data | holder of the lock |

use std::sync::Arc;

use mp_core::steps::lock::DeathRecord;
use mp_core::words::{LockKind, Member};
use mp_core::{AdaptiveSpin, LockError, RawGuard, RawLock, Result, Wait};
use serde::Deserializer;

use crate::locks::data::{self, Data};
use crate::shared::Shared;

const LOCK: u64 = 0;
const LEN: u64 = 3;
/// Index of the first word of the data, which is not in the cache line of the lock.
const DATA: u64 = 8;

/// A lock and its data.
#[derive(Clone, Debug)]
pub struct LockCell {
    shared: Shared,
    lock: RawLock,
    data: Data,
    spin: Arc<AdaptiveSpin>,
    kind: LockKind,
}

impl LockCell {
    /// Creates a lock of this `kind` around `len` elements of `T`, whose bytes are all zero.
    pub(crate) fn new<T>(kind: LockKind, len: usize) -> Result<Self> {
        Ok(Self::of::<T>(data::new_elements::<T>(kind.type_name(), len, LEN, DATA)?, kind, len))
    }

    fn of<T>(shared: Shared, kind: LockKind, len: usize) -> Self {
        let (lock, data) = (shared.lock(LOCK), Data::of(&shared, DATA, len * size_of::<T>()));
        Self { shared, lock, data, spin: Arc::new(AdaptiveSpin::new()), kind }
    }

    #[inline(always)]
    pub(super) fn data(&self) -> Data {
        self.data
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    pub(crate) fn is_locked(&self) -> bool {
        self.shared.is_locked(LOCK)
    }

    /// Receives a lock around elements of `T`. Returns the lock and the number of elements. `what` names the
    /// lock in errors.
    pub(crate) fn receive<'de, T, D: Deserializer<'de>>(
        what: &'static str,
        kind: LockKind,
        d: D,
    ) -> Result<(Self, usize), D::Error> {
        let (shared, len) = data::receive_elements::<T, D>((what, kind.type_name()), LEN, DATA, d)?;
        Ok((Self::of::<T>(shared, kind, len), len))
    }

    /// Locks a new structure, to which no other code has access yet.
    pub(crate) fn first(&self) -> Result<RawGuard<'_>> {
        self.lock.acquire(self.kind, Wait::Never, &self.spin).map_err(data::new_lock_error)
    }

    /// Returns the kind of lock, for reports.
    pub(crate) fn kind(&self) -> LockKind {
        self.kind
    }

    /// Takes the lock. If `recovering` is `true`, also takes the lock after the death of its holder. Dropping
    /// the guard then marks the data as repaired.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn acquire(
        &self,
        kind: LockKind,
        wait: Wait,
        recovering: bool,
    ) -> Result<RawGuard<'_>, LockError> {
        let mut guard = self.lock.acquire(kind, wait, &self.spin)?;
        if recovering {
            guard.mark_recovered();
        } else if guard.is_poisoned() {
            return Err(owner_died(&guard));
        }
        Ok(guard)
    }
}

/// Creates the error of a lock whose holder died.
#[cold]
pub(crate) fn owner_died(guard: &RawGuard<'_>) -> LockError {
    let DeathRecord { member, pid } =
        guard.died().unwrap_or(DeathRecord { member: Member::from_raw(0), pid: 0 });
    LockError::OwnerDied { member, pid }
}

/// Implements all forms of locking for a type with a field `cell`. `guard(self, raw guard)` creates the
/// guard.
macro_rules! locking {
    ($name:ident, $guarded:ty, |$this:ident, $raw:ident| $guard:expr) => {
        impl<T: $crate::plain::Plain + Send> $name<T> {
            #[inline(always)]
            #[track_caller]
            fn guard(&self, wait: Wait, recovering: bool) -> Result<LockGuard<'_, $guarded>, LockError> {
                let ($this, $raw) = (self, self.cell.acquire(LockKind::$name, wait, recovering)?);
                Ok($guard)
            }

            /// Acquires the lock. Blocks until it is available.
            ///
            /// # Errors
            /// [`LockError::OwnerDied`] if a process died while it held the lock and no caller has recovered
            /// since, [`LockError::WouldDeadlock`] if this thread already holds it, [`LockError::Deadlock`]
            /// if this thread closed a cycle of threads that wait for each other, [`LockError::Failed`] in a
            /// forked copy.
            #[inline]
            #[doc(alias = "acquire")]
            #[doc(alias = "get_lock")]
            #[track_caller]
            pub fn lock(&self) -> Result<LockGuard<'_, $guarded>, LockError> {
                self.guard(Wait::Forever, false)
            }

            mp_core::forms! {
                "Acquires the lock": lock() -> Result<LockGuard<'_, $guarded>, LockError>,
                or "[`LockError::Held`], which names the holder";
                |lock, wait| lock.guard(wait, false);
                never try_lock;
                at_most lock_timeout;
                until lock_deadline;
            }

            /// Acquires the lock, even if a process died while it held it. Blocks until it is available.
            ///
            /// [`LockGuard::died`] names the dead process. Dropping the guard marks the data as repaired. A
            /// panic before that leaves the repair to the next caller.
            ///
            /// # Errors
            /// The errors of [`lock`](Self::lock), without `OwnerDied`.
            #[track_caller]
            pub fn recover(&self) -> Result<LockGuard<'_, $guarded>, LockError> {
                self.guard(Wait::Forever, true)
            }

            mp_core::forms! {
                "Acquires the lock, even if a process died while it held it":
                recover() -> Result<LockGuard<'_, $guarded>, LockError>,
                or "[`LockError::Held`], which names the holder";
                |lock, wait| lock.guard(wait, true);
                at_most recover_timeout;
            }
        }
    };
}
pub(crate) use locking;
