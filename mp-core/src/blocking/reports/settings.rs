//! Settings: times after which waits are reported.

use std::sync::OnceLock;
use std::time::Duration;

use crate::blocking::reports::HANGS_AFTER;
use crate::parking::POLL_INTERVAL;
use crate::process::{PerProcess, per_process};
use crate::sync::Ordering;
use crate::sync::shared::{AtomicU32, AtomicU64};

const VARIABLE: &str = "MP_STALL";
/// Value of a time setting: no reports.
const NEVER: u64 = u64::MAX;
/// Value of a time setting: the environment determines the time.
const UNSET: u64 = u64::MAX - 1;

// fork: a child reports like its parent.
static WAITS: AtomicU64 = AtomicU64::new(UNSET);
// fork: a child reports like its parent.
static HANGS: AtomicU64 = AtomicU64::new(UNSET);
// fork: a child reports like its parent.
static VERSION: AtomicU32 = AtomicU32::new(1);

/// Function called with the text of each report, and with `true` for a report of a hang.
type Hook = fn(&str, bool);
static HOOK: PerProcess<OnceLock<Hook>> = per_process!(OnceLock::new());

/// Times after which waits and hangs are reported, according to the environment.
type Times = (Option<Duration>, Option<Duration>);
const DEFAULT: Times = (None, Some(HANGS_AFTER));
static ENVIRONMENT: PerProcess<OnceLock<Times>> = per_process!(OnceLock::new());

fn parse(text: &str) -> Option<Times> {
    if text == "off" {
        return Some((None, None));
    }
    let seconds = text.parse::<f64>().ok().filter(|seconds| *seconds > 0.0)?;
    let after = Duration::try_from_secs_f64(seconds).ok()?;
    Some((Some(after), Some(after.min(HANGS_AFTER))))
}

fn environment() -> Times {
    *ENVIRONMENT.get_or_init(|| match std::env::var(VARIABLE) {
        Ok(text) if !crate::gained_privileges() => parse(&text).unwrap_or_else(|| {
            eprintln!(
                "mp: {VARIABLE}={text} is ignored: it takes a number of seconds above 0, as {VARIABLE}=30, \
                 after which each wait is reported, or `off`"
            );
            DEFAULT
        }),
        _ => DEFAULT,
    })
}

fn get(word: &AtomicU64, otherwise: impl FnOnce(Times) -> Option<Duration>) -> Option<Duration> {
    match word.load(Ordering::Relaxed) {
        NEVER => None,
        UNSET => otherwise(environment()),
        millis => Some(Duration::from_millis(millis)),
    }
}

fn set(word: &AtomicU64, after: Option<Duration>) {
    let millis = |after: Duration| u64::try_from(after.as_millis()).unwrap_or(NEVER).min(UNSET - 1);
    word.store(after.map_or(NEVER, millis), Ordering::Relaxed);
    VERSION.fetch_add(1, Ordering::Release);
}

/// Returns the number of changes of the settings.
pub(super) fn version() -> u32 {
    VERSION.load(Ordering::Acquire)
}

pub(super) fn waits_after() -> Option<Duration> {
    get(&WAITS, |(waits, _)| waits)
}

pub(super) fn hangs_after() -> Option<Duration> {
    get(&HANGS, |(_, hangs)| hangs)
}

/// Returns the time between two checks of a thread that no event wakes.
pub(super) fn pause() -> Duration {
    (reported_after().unwrap_or(HANGS_AFTER) / 4).clamp(POLL_INTERVAL, Duration::from_secs(1))
}

pub(super) fn hook() -> Option<Hook> {
    HOOK.get().copied()
}

/// Enables reports of each wait of this process that lasts for the time `after`. A wait is reported again
/// when it has lasted twice as long, four times as long, and so on. `None` disables these reports,
/// regardless of `MP_STALL`. Idle waits are also reported, such as the wait of a consumer for work.
///
/// ```
/// use std::time::Duration;
///
/// mp_core::waits::report_waits_after(Some(Duration::from_secs(60)));
/// # mp_core::waits::report_waits_after(None);
/// ```
///
/// A report is one block of text on stderr, and an event of the crate `log` or `tracing` if that feature is
/// enabled. Processes started later have their own settings. `MP_STALL=60` in the environment applies to all
/// processes.
pub fn report_waits_after(after: Option<Duration>) {
    set(&WAITS, after);
}

/// Sets the time after which a wait of this process that provably can't end by itself is reported. `None`
/// disables these reports. The default is 10 s, or `MP_STALL` seconds if that is less.
pub fn report_hangs_after(after: Option<Duration>) {
    set(&HANGS, after);
}

/// Returns the time after which a wait may first be reported, as a long wait or as a hang. Returns `None` if
/// reports are disabled.
#[doc(hidden)]
pub fn reported_after() -> Option<Duration> {
    hangs_after().into_iter().chain(waits_after()).min()
}

/// Sets a function that the waiting thread calls with each report. The second argument is `true` for a report
/// of a hang. Only the first call of this function has an effect.
#[doc(hidden)]
pub fn on_report(hook: Hook) {
    _ = HOOK.set(hook);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hang_report_variable_accepts_only_seconds_and_off() {
        assert_eq!(parse("off"), Some((None, None)));
        let after = Some(Duration::from_millis(2500));
        assert_eq!(parse("2.5"), Some((after, after)));
        for wrong in ["", "0", "-1", "ten", "inf", "NaN", "1e300", "10s"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
