//! Waiting: looking for a while, then asleep in slices, asking for the dead in between.

use std::time::Instant;

use mp_core::{Arena, Asking, LockWait, Parking, Patience};

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
    let mut asking = Asking::default();
    loop {
        if wait != LockWait::Never
            && let Some(found) = patience.look(&mut look)
        {
            return Ok(Some(found));
        }
        if asking.is_due(arena, wait)?
            && let Some(found) = ask()
        {
            return Ok(Some(found));
        }
        if wait.is_over() {
            return Ok(None);
        }
        let announced = parking.announce();
        if let Some(found) = look() {
            return Ok(Some(found));
        }
        let asleep = Instant::now();
        if parking.sleep(announced, Some(asking.until(wait))) {
            patience.slept(asleep.elapsed());
        }
    }
}
