//! Something that is done once, by one of many processes.

use std::sync::Arc;

use mp_core::steps::lock::Died;
use mp_core::words::LockKind;
use mp_core::{AdaptiveSpin, LockError, Result, Wait};

use crate::handle::handle;
use crate::shared::Shared;
use crate::steps::once::{IsDone, SetDone};

const NAME: &str = "mp_sync::Once";
const LOCK: u64 = 0;
const DONE: u64 = 3;
const WORDS: u64 = 4;

/// Something that is done once, by whichever process comes first; the others wait until it is done.
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
/// Words, and what each point of death leaves: [`steps::once`](crate::steps::once).
///
/// # When a process dies
/// If it dies while it is doing it, or panics, the next one does it again; [`OnceState::died`] says so, since the first one
/// may have done half of it. Once it is done, it is done.
#[derive(Clone)]
pub struct Once {
    pub(crate) shared: Shared,
    patience: Arc<AdaptiveSpin>,
}

/// What the thread that does it gets.
#[derive(Clone, Copy, Debug)]
pub struct OnceState {
    died: Option<Died>,
}

impl OnceState {
    /// The process that died while doing it before, if one did.
    pub fn died(&self) -> Option<Died> {
        self.died
    }
}

impl Once {
    /// Nothing was done yet.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](mp_core::Error::OutOfMemory) or [`Error::ArenaFull`](mp_core::Error::ArenaFull).
    pub fn new() -> Result<Self> {
        Ok(Self::of(Shared::new(NAME, WORDS)?))
    }

    fn of(shared: Shared) -> Self {
        Self { shared, patience: Arc::default() }
    }

    /// Whether it is done. Never in a forked copy.
    pub fn is_completed(&self) -> bool {
        self.shared.me().is_ok() && self.is_done()
    }

    fn is_done(&self) -> bool {
        self.shared.run(IsDone(self.shared.at(DONE)))
    }

    /// Calls `f`, unless it was done already; waits while another one is doing it. Every caller that returns
    /// from here sees what `f` wrote to shared memory.
    ///
    /// # Errors
    /// [`LockError::WouldDeadlock`] inside of `f`, [`LockError::Deadlock`] when threads wait for each other in a cycle and this
    /// one closed it, [`LockError::Failed`] in a forked copy.
    pub fn call_once(&self, f: impl FnOnce(&OnceState)) -> Result<(), LockError> {
        self.within(Wait::Forever, f)
    }

    mp_core::forms! {
        "Calls `f`, unless it was done already": call_once(; f: impl FnOnce(&OnceState)) -> Result<(), LockError>,
        or "[`LockError::Held`], which names the process that is doing it";
        |once, wait| once.within(wait, f);
        never try_call_once;
        at_most call_once_timeout;
        until call_once_deadline;
    }

    fn within(&self, wait: Wait, f: impl FnOnce(&OnceState)) -> Result<(), LockError> {
        self.shared.me()?;
        if self.is_done() {
            return Ok(());
        }
        let lock = self.shared.lock(LOCK);
        let mut guard = lock.acquire(LockKind::Once, wait, &self.patience)?;
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
