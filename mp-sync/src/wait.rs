//! Waiting: looking for a while, then asleep in slices, asking for the dead in between.

use std::time::Instant;

use mp_core::{Arena, LockWait, Parking, Patience, SLICE};

/// Something that becomes ready, and that one may wait for beside other things.
///
/// ```
/// use mp_sync::{Event, Waitable};
///
/// let event = Event::new()?;
/// assert!(!event.is_ready());
/// let announced = event.parking().announce(); // then look again, then sleep
/// event.set()?;
/// assert!(event.is_ready());
/// assert!(event.parking().sleep(announced, None), "the word is another one: it does not sleep");
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
///
/// Whoever waits announces itself at the [`parking`](Self::parking) word, looks again, and sleeps until that word changes,
/// a slice at most: what makes it ready may have been done by a process that was killed before it woke anybody.
pub trait Waitable {
    /// The one word that changes when it may have become ready, if somebody is announced there.
    fn parking(&self) -> Parking;

    /// Whether it is ready, as of now. Never in a forked copy.
    fn is_ready(&self) -> bool;
}

/// Until when, if there is a limit.
pub(crate) fn deadline(wait: LockWait) -> Option<Instant> {
    match wait {
        LockWait::Until(t) => Some(t),
        LockWait::Never | LockWait::Forever => None,
    }
}

/// Whether there is time left to wait.
pub(crate) fn is_over(wait: LockWait) -> bool {
    wait == LockWait::Never || deadline(wait).is_some_and(|d| Instant::now() >= d)
}

/// When the dead were asked for last. By the clock, not by how a sleep ended: signals may end each of them early.
#[derive(Debug, Default)]
pub(crate) struct Asked(Option<Instant>);

impl Asked {
    /// Whether to ask now: before the first sleep, and after each slice. Then the arena is swept as well.
    pub(crate) fn is_due(&mut self, arena: Arena) -> mp_core::Result<bool> {
        let due = self.0.is_none_or(|t| t.elapsed() >= SLICE);
        if due {
            if self.0.is_some() {
                arena.sweep_if_due()?;
            }
            self.0 = Some(Instant::now());
        }
        Ok(due)
    }
}

/// Waits until `look` finds something; `None` when the time is over. `ask` is for what the dead have left.
pub(crate) fn until<R>(
    (arena, parking): (Arena, Parking),
    patience: &Patience,
    wait: LockWait,
    mut look: impl FnMut() -> Option<R>,
    mut ask: impl FnMut() -> Option<R>,
) -> mp_core::Result<Option<R>> {
    if let Some(found) = look() {
        return Ok(Some(found));
    }
    let mut asked = Asked::default();
    loop {
        if wait != LockWait::Never
            && let Some(found) = patience.look(&mut look)
        {
            return Ok(Some(found));
        }
        if asked.is_due(arena)?
            && let Some(found) = ask()
        {
            return Ok(Some(found));
        }
        if is_over(wait) {
            return Ok(None);
        }
        let announced = parking.announce();
        if let Some(found) = look() {
            return Ok(Some(found));
        }
        let asleep = Instant::now();
        if parking.sleep(announced, deadline(wait)) {
            patience.slept(asleep.elapsed());
        }
    }
}
