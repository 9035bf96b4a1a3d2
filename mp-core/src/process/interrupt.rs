//! SIGINT (Ctrl-C) and SIGTERM, in programs that asked to be notified instead of being ended: `mp-spawn`'s
//! `Interrupt::Graceful`.
//!
//! | word | meaning | changed by |
//! |---|---|---|
//! | 0 | no interrupt | [`take_interrupt`] |
//! | n | number of interrupts since the last call of `take_interrupt` | the signal handler, which adds 1 |
//!
//! The handler does nothing else. The signal itself ends the sleep of the thread that received it. Other
//! threads check the word within a poll interval ([`POLL_INTERVAL`](crate::POLL_INTERVAL)).

use std::cell::Cell;

use crate::process::{PerProcess, per_process};
use crate::sync::shared::{AtomicU32, Ordering};

static INTERRUPTS: PerProcess<AtomicU32> = per_process!(AtomicU32::new(0));

thread_local!(static INTERRUPTS_MASKED: Cell<bool> = const { Cell::new(false) });

/// Returns `true` if this process was interrupted by SIGINT (Ctrl-C) or SIGTERM since the last
/// [`take_interrupt`]. Always `false` in processes that handle these signals in another way, or not at all.
///
/// ```
/// fn work() -> Result<u32, mp_core::Error> {
///     let mut steps = 0;
///     while steps < 1000 && !mp_core::interrupted() {
///         steps += 1;
///     }
///     Ok(steps) // what was done so far is kept
/// }
/// assert_eq!(work()?, 1000);
/// # Ok::<(), mp_core::Error>(())
/// ```
#[doc(alias = "KeyboardInterrupt")]
#[must_use]
#[inline]
pub fn interrupted() -> bool {
    INTERRUPTS.load(Ordering::Relaxed) != 0
}

/// Resets [`interrupted`] to `false`, so that calls block again. Returns `true` if there was an interrupt.
///
/// For programs that continue after Ctrl-C, for example a prompt that cancels the current command.
pub fn take_interrupt() -> bool {
    INTERRUPTS.swap(0, Ordering::Relaxed) != 0
}

/// Records an interrupt. Returns the number of previous ones. For signal handlers: changes one word and
/// nothing else.
#[doc(hidden)]
pub fn record_interrupt() -> u32 {
    INTERRUPTS.fetch_add(1, Ordering::Relaxed)
}

/// Calls `f` with waits that ignore interrupts, for the library's own waits.
#[doc(hidden)]
pub fn with_interrupts_masked<R>(f: impl FnOnce() -> R) -> R {
    struct MaskRestore(bool);
    impl Drop for MaskRestore {
        fn drop(&mut self) {
            INTERRUPTS_MASKED.set(self.0);
        }
    }
    let _before = MaskRestore(INTERRUPTS_MASKED.replace(true));
    f()
}

/// Returns `true` if a wait that would sleep must end now.
pub(crate) fn should_end_waits() -> bool {
    interrupted() && !INTERRUPTS_MASKED.get()
}
