//! A flag that many processes may wait for.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mp_core::waits::Call;
use mp_core::{AdaptiveSpin, Error, Parking, Result, Wait, WaitPoint, Waitable};

use crate::handle::handle;
use crate::shared::Shared;
use crate::steps::event::{Clear, EventWord, Set};
use crate::wait;

const NAME: &str = "mp_sync::Event";
const WORD: u64 = 0;
/// Apart from the flag: a thread that only looks at the flag is not disturbed by threads that fall asleep.
const PARKING: u64 = 16;
const WORDS: u64 = 17;

/// A flag between processes: set or not, and to be waited for.
///
/// ```
/// use std::time::Duration;
/// use mp_sync::Event;
///
/// let ready = Event::new()?;
/// assert!(!ready.wait_timeout(Duration::from_millis(1))?);
/// ready.set()?;
/// ready.wait()?; // at once, in whatever process
/// ready.clear()?;
/// assert!(!ready.is_set());
/// # Ok::<(), mp_core::Error>(())
/// ```
///
/// # Blocking
/// [`wait`](Self::wait) returns when the event is set, or was set since it began to wait: it does not miss one that was
/// cleared again at once.
///
/// # When a process dies
/// An event has no owner: it stays as it is. A process that is killed in `set` has set it or not; if it has,
/// waiters notice within 100 ms, also if it could not wake them any more.
///
/// # Errors
/// Its functions fail in a forked copy only, with [`Error::Forked`].
#[derive(Clone)]
#[doc(alias = "multiprocessing.Event")]
pub struct Event {
    pub(crate) shared: Shared,
    patience: Arc<AdaptiveSpin>,
}

impl Event {
    /// An event that is not set.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] or [`Error::ArenaFull`].
    pub fn new() -> Result<Self> {
        Ok(Self::of(Shared::new(NAME, WORDS)?))
    }

    fn of(shared: Shared) -> Self {
        Self { shared, patience: Arc::default() }
    }

    fn parking(&self) -> Parking {
        self.shared.parking(PARKING)
    }

    fn word(&self) -> EventWord {
        EventWord(self.shared.load(WORD))
    }

    /// Whether it is set: a snapshot. Never in a forked copy.
    pub fn is_set(&self) -> bool {
        self.shared.me().is_ok() && self.word().is_set()
    }

    /// Sets it, and wakes all waiters; returns whether it was not set before.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn set(&self) -> Result<bool> {
        self.shared.me()?;
        let changed = self.shared.run(Set::new(self.shared.at(WORD)));
        self.shared.parking(PARKING).notify_all();
        Ok(changed)
    }

    /// Clears it; whether it was set.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn clear(&self) -> Result<bool> {
        self.shared.me()?;
        Ok(self.shared.run(Clear(self.shared.at(WORD))))
    }

    /// Waits until it is set.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn wait(&self) -> Result<()> {
        self.wait_within(Wait::Forever).map(drop)
    }

    /// Waits until it is set, at most `timeout`; whether it was.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn wait_timeout(&self, timeout: Duration) -> Result<bool> {
        self.wait_within(Wait::at_most(timeout))
    }

    /// Waits until it is set, or until `deadline`; whether it was set.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn wait_deadline(&self, deadline: Instant) -> Result<bool> {
        self.wait_within(Wait::Until(deadline))
    }

    /// Waits until it is set, as a future. It does not miss one that is cleared at once if it was polled before.
    ///
    /// # Errors
    /// [`Error::Forked`]; [`Error::Os`] when there is no thread left to wait.
    pub async fn wait_async(&self) -> Result<()> {
        self.shared.me()?;
        let before = self.word();
        let look = || Ok(self.word().was_set_since(before).then_some(()));
        mp_core::until(|| Arc::new(self.clone()), look).await
    }

    fn wait_within(&self, wait: Wait) -> Result<bool, Error> {
        self.shared.me()?;
        let before = self.word();
        let look = || self.word().was_set_since(before).then_some(());
        let place = (&self.shared, self.parking(), Call::Event);
        wait::until_or_interrupt(place, &self.patience, wait, look, || None, true)
            .map(|found| found.is_some())
    }
}

/// To be waited for beside other things: it is ready while it is set. (A setting that is cleared at once may
/// be missed by a thread that waits for several things; [`wait`](Event::wait) does not miss it.)
///
/// ```
/// use mp_sync::{Event, wait};
///
/// let (stop, pause) = (Event::new()?, Event::new()?);
/// pause.set()?;
/// assert_eq!(wait(&[&stop, &pause], None)?, [1]);
/// # Ok::<(), mp_core::Error>(())
/// ```
impl Waitable for Event {
    fn place(&self) -> WaitPoint<'_> {
        WaitPoint::Parking(self.parking().into())
    }

    fn is_ready(&self) -> bool {
        self.is_set()
    }
}

handle! {
    Event, "an Event", |event| event.shared, if event.is_set() { "set, " } else { "not set, " };
    |d| Shared::receive("an Event", NAME, WORDS, d).map(Self::of)
}
