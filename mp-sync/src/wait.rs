//! Waiting: looking for a while, then asleep in slices, asking for dead processes in between.

use std::time::Instant;

use mp_core::{Arena, Asking, LockWait, Parking, Patience};

/// Waits until `look` finds something; `None` when the time is over. `ask` is for what dead processes have
/// left.
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
        if parking.sleep_asking(announced, &asking, wait) {
            patience.slept(asleep);
        }
    }
}
