//! What a condition does with the lock of its waiters.

use mp_core::{LockError, Wait};

/// A guard that a [`Condition`](crate::Condition) can wait with: a [`LockGuard`](crate::LockGuard) or an
/// [`RLockGuard`](crate::RLockGuard). Nothing else implements it.
pub trait ConditionGuard: Relock {}

impl<G: Relock> ConditionGuard for G {}

/// Only this crate makes one: so no other code unlocks what guards protect.
#[derive(Clone, Copy, Debug)]
pub struct Waiting(());

impl Waiting {
    pub(crate) const TOKEN: Self = Self(());
}

/// How a guard's lock is unlocked and locked again.
pub trait Relock: Sized {
    /// What [`wait_for`](crate::Condition::wait_for) looks at.
    type Seen: ?Sized;
    /// What it takes to lock again. Dropped, it leaves the thread with what its other guards say that it has.
    type Unlocked;

    /// What the lock protects.
    fn seen(&mut self) -> &mut Self::Seen;
    /// Unlocks, however often the thread has the lock.
    fn unlock(self, token: Waiting) -> Self::Unlocked;
    /// Locks again, as often as before.
    ///
    /// # Errors
    /// As the lock's own functions.
    fn relock(unlocked: Self::Unlocked, wait: Wait, token: Waiting) -> Result<Self, LockError>;
}
