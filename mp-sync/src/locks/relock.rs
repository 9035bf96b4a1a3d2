//! Interface between conditions and the guards of their waiters.

use mp_core::{LockError, Wait};

/// A guard that a [`Condition`](crate::Condition) can wait with: a [`LockGuard`](crate::LockGuard) or an
/// [`RLockGuard`](crate::RLockGuard). The trait is sealed.
pub trait ConditionGuard: Relock {}

impl<G: Relock> ConditionGuard for G {}

/// Token that only this crate can create, so that no other code can unlock the data of a guard.
#[derive(Clone, Copy, Debug)]
pub struct WaitToken(());

impl WaitToken {
    pub(crate) const TOKEN: Self = Self(());
}

/// Unlocking and relocking of a guard.
pub trait Relock: Sized {
    /// Argument of the predicate of [`wait_for`](crate::Condition::wait_for).
    type Contents: ?Sized;
    /// State needed to lock again. Dropping it restores the levels of the thread's other guards.
    type Unlocked;

    /// Returns the argument of the predicate.
    fn contents(&mut self) -> &mut Self::Contents;
    /// Releases the lock at all levels.
    fn unlock(self, token: WaitToken) -> Self::Unlocked;
    /// Takes the lock again at the same number of levels.
    ///
    /// # Errors
    /// The errors of the lock's own functions.
    #[track_caller]
    fn relock(unlocked: Self::Unlocked, wait: Wait, token: WaitToken) -> Result<Self, LockError>;
}
