//! Events: flags that many processes can wait for.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mp_core::waits::BlockingCall;
use mp_core::{AdaptiveSpin, Error, Parking, Result, Wait, WaitPoint, Waitable};

use crate::handle::handle;
use crate::shared::Shared;
use crate::steps::event::{Clear, EventWord, Set};
use crate::wait;

const NAME: &str = "mp_sync::Event";
const WORD: u64 = 0;
/// Index of the parking word. The word is in another cache line than the flag, so that threads that fall
/// asleep do not delay threads that poll the flag.
const PARKING: u64 = 16;
const WORDS: u64 = 17;

/// State of an [`Event`] at one moment, returned by [`Event::observe`].
#[derive(Clone, Copy, Debug)]
pub struct EventState(EventWord);

/// A flag between processes, which threads can wait for.
///
/// ```
/// use std::time::Duration;
/// use mp_sync::Event;
///
/// let ready = Event::new()?;
/// assert!(!ready.wait_timeout(Duration::from_millis(1))?);
/// ready.set()?;
/// ready.wait()?; // returns at once, in every process
/// ready.clear()?;
/// assert!(!ready.is_set());
/// # Ok::<(), mp_core::Error>(())
/// ```
///
/// # Blocking
/// [`wait`](Self::wait) returns if the event is set, or was set after the wait began, even if it was cleared
/// again at once.
///
/// # When a process dies
/// An event has no owner, so its state stays. If a process is killed in `set` after setting the flag, waiters
/// notice within 100 ms, even if that process could not wake them.
///
/// # Errors
/// All functions fail only in a forked copy, with [`Error::Forked`].
#[derive(Clone)]
#[doc(alias = "multiprocessing.Event")]
pub struct Event {
    pub(crate) shared: Shared,
    spin: Arc<AdaptiveSpin>,
}

impl Event {
    /// Creates an event that is not set.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] or [`Error::ArenaFull`].
    pub fn new() -> Result<Self> {
        Ok(Self::of(Shared::new(NAME, WORDS)?))
    }

    fn of(shared: Shared) -> Self {
        Self { shared, spin: Arc::default() }
    }

    fn parking(&self) -> Parking {
        self.shared.parking(PARKING)
    }

    fn word(&self) -> EventWord {
        EventWord(self.shared.load(WORD))
    }

    /// Returns `true` if the event is set: a snapshot. Always `false` in a forked copy.
    pub fn is_set(&self) -> bool {
        self.shared.me().is_ok() && self.word().is_set()
    }

    /// Sets the event and wakes all waiters. Returns `true` if it was not set before.
    ///
    /// # Errors
    /// [`Error::Forked`] in a forked copy.
    pub fn set(&self) -> Result<bool> {
        self.shared.me()?;
        let changed = self.shared.run(Set::new(self.shared.at(WORD)));
        self.shared.parking(PARKING).notify_all();
        Ok(changed)
    }

    /// Clears the event. Returns `true` if it was set.
    ///
    /// # Errors
    /// [`Error::Forked`] in a forked copy.
    pub fn clear(&self) -> Result<bool> {
        self.shared.me()?;
        Ok(self.shared.run(Clear(self.shared.at(WORD))))
    }

    /// Waits until the event is set.
    ///
    /// # Errors
    /// [`Error::Forked`] in a forked copy.
    #[track_caller]
    pub fn wait(&self) -> Result<()> {
        self.wait_until_set(Wait::Forever).map(drop)
    }

    /// Waits until the event is set, at most `timeout`. Returns `true` if it was set.
    ///
    /// # Errors
    /// [`Error::Forked`] in a forked copy.
    #[track_caller]
    pub fn wait_timeout(&self, timeout: Duration) -> Result<bool> {
        self.wait_until_set(Wait::at_most(timeout))
    }

    /// Waits until the event is set, or until `deadline`. Returns `true` if it was set.
    ///
    /// # Errors
    /// [`Error::Forked`] in a forked copy.
    #[track_caller]
    pub fn wait_deadline(&self, deadline: Instant) -> Result<bool> {
        self.wait_until_set(Wait::Until(deadline))
    }

    /// Returns the state for [`wait_since`](Self::wait_since). With it, callers that wait in several attempts
    /// don't miss an event that is set and cleared between two attempts.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let event = mp_sync::Event::new()?;
    /// let before = event.observe()?;
    /// event.set()?;
    /// event.clear()?;
    /// assert!(!event.wait_timeout(Duration::ZERO)?);
    /// assert!(event.wait_since(before, Duration::ZERO)?);
    /// # Ok::<(), mp_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Forked`] in a forked copy.
    pub fn observe(&self) -> Result<EventState> {
        self.shared.me()?;
        Ok(EventState(self.word()))
    }

    /// Waits until the event is set, or was set since the state was observed, at most `timeout`. Returns
    /// `true` if it was set.
    ///
    /// # Errors
    /// [`Error::Forked`] in a forked copy.
    #[track_caller]
    pub fn wait_since(&self, before: EventState, timeout: Duration) -> Result<bool> {
        self.shared.me()?;
        self.wait_word(before.0, Wait::at_most(timeout))
    }

    /// Waits asynchronously until the event is set. After the first poll, the future does not miss an event
    /// that is cleared at once.
    ///
    /// # Errors
    /// [`Error::Forked`], or [`Error::Os`] if the thread that waits for all tasks can't be started.
    pub async fn wait_async(&self) -> Result<()> {
        self.shared.me()?;
        let before = self.word();
        let is_set_since = || Ok(self.word().was_set_since(before).then_some(()));
        mp_core::until(|| Arc::new(self.clone()), is_set_since).await
    }

    #[track_caller]
    fn wait_until_set(&self, wait: Wait) -> Result<bool, Error> {
        self.shared.me()?;
        self.wait_word(self.word(), wait)
    }

    #[track_caller]
    fn wait_word(&self, before: EventWord, wait: Wait) -> Result<bool, Error> {
        let is_set_since = || self.word().was_set_since(before).then_some(());
        let target = (&self.shared, self.parking(), BlockingCall::Event);
        wait::until(target, &self.spin, wait, is_set_since, || None, true).map(|found| found.is_some())
    }
}

/// An event is ready while it is set. A thread that waits for several objects can miss an event that is
/// cleared at once; [`wait`](Event::wait) does not miss it.
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
    fn wait_point(&self) -> WaitPoint<'_> {
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
