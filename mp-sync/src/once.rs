//! Execution of a closure exactly once among many processes.

use std::sync::Arc;

use mp_core::steps::lock::DeathRecord;
use mp_core::words::LockKind;
use mp_core::{AdaptiveSpin, LockError, Result, Wait};

use crate::handle::handle;
use crate::shared::Shared;
use crate::steps::once::{IsDone, SetDone};

const NAME: &str = "mp_sync::Once";
const LOCK: u64 = 0;
const DONE: u64 = 3;
const WORDS: u64 = 4;

/// Runs a closure once, in whichever process calls first. Other callers wait until the closure has finished.
///
/// ```
/// use mp_sync::Once;
///
/// let warm_up = Once::new()?;
/// let mut times = 0;
/// for _ in 0..3 {
///     warm_up.call_once(|_| times += 1)?;
/// }
/// assert_eq!(times, 1);
/// assert!(warm_up.is_completed());
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
///
/// State words and the effect of a death at each point: [`steps::once`](crate::steps::once).
///
/// # When a process dies
/// If a process dies or panics in the closure, the next caller runs its own closure. The first run may be
/// half done: [`OnceState::died`] names a process that died in an earlier run. After one run has finished, no
/// closure runs again.
#[derive(Clone)]
pub struct Once {
    pub(crate) shared: Shared,
    spin: Arc<AdaptiveSpin>,
}

/// Argument of the closure of [`Once::call_once`].
#[derive(Clone, Copy, Debug)]
pub struct OnceState {
    died: Option<DeathRecord>,
}

impl OnceState {
    /// Returns the process that died during an earlier run, if any.
    pub fn died(&self) -> Option<DeathRecord> {
        self.died
    }
}

impl Once {
    /// Creates a `Once` whose closure has not run.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](mp_core::Error::OutOfMemory) or
    /// [`Error::ArenaFull`](mp_core::Error::ArenaFull).
    pub fn new() -> Result<Self> {
        Ok(Self::of(Shared::new(NAME, WORDS)?))
    }

    fn of(shared: Shared) -> Self {
        Self { shared, spin: Arc::default() }
    }

    /// Returns `true` if a run has finished. Always `false` in a forked copy.
    pub fn is_completed(&self) -> bool {
        self.shared.me().is_ok() && self.is_done()
    }

    fn is_done(&self) -> bool {
        self.shared.run(IsDone(self.shared.at(DONE)))
    }

    /// Calls `f`, unless a run has finished already. Waits while another thread runs its closure. When this
    /// call returns, everything that the closure wrote to shared memory is visible to the caller.
    ///
    /// # Errors
    /// [`LockError::WouldDeadlock`] if the closure of the same `Once` makes this call,
    /// [`LockError::Deadlock`] if this thread closed a cycle of threads that wait for each other,
    /// [`LockError::Failed`] in a forked copy.
    #[track_caller]
    pub fn call_once(&self, f: impl FnOnce(&OnceState)) -> Result<(), LockError> {
        self.call_once_wait(Wait::Forever, f)
    }

    mp_core::forms! {
        "Calls `f`, unless a call has already completed":
        call_once(; f: impl FnOnce(&OnceState)) -> Result<(), LockError>,
        or "[`LockError::Held`], which names the process that runs its closure";
        |once, wait| once.call_once_wait(wait, f);
        never try_call_once;
        at_most call_once_timeout;
        until call_once_deadline;
    }

    #[track_caller]
    fn call_once_wait(&self, wait: Wait, f: impl FnOnce(&OnceState)) -> Result<(), LockError> {
        self.shared.me()?;
        if self.is_done() {
            return Ok(());
        }
        let lock = self.shared.lock(LOCK);
        let mut guard = lock.acquire(LockKind::Once, wait, &self.spin)?;
        guard.mark_recovered();
        if !self.is_done() {
            f(&OnceState { died: guard.died() });
            self.shared.run(SetDone(self.shared.at(DONE)));
        }
        Ok(())
    }
}

handle! {
    Once, "a Once", |once| once.shared, if once.is_completed() { "done, " } else { "not done, " };
    |d| Shared::receive("a Once", NAME, WORDS, d).map(Self::of)
}
