//! What all tests with real processes share, in every crate: deadlines, signals, the states of processes. Nothing of ours is
//! used here, so that the tests of each crate can use it.

pub mod hostile;
mod skip;

use std::fmt::Display;
use std::ops::Range;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
pub use skip::skip;

/// For what should take milliseconds on a machine that is busy with something else.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Waits until something is so.
///
/// # Panics
/// When it is not so by the deadline.
#[track_caller]
pub fn eventually(what: &str, mut so: impl FnMut() -> bool) {
    eventually_none(what, || (!so()).then_some(""));
}

/// Waits until `missing` has nothing more to say.
///
/// # Panics
/// When it still has by the deadline, with what it said behind `what`.
#[track_caller]
pub fn eventually_none<M: Display>(what: &str, mut missing: impl FnMut() -> Option<M>) {
    let until = Instant::now() + DEADLINE;
    while let Some(missing) = missing() {
        assert!(Instant::now() < until, "not within {DEADLINE:?}: {what}{missing}");
        std::thread::sleep(Duration::from_millis(1)); // sleep: between two looks at what another process did
    }
}

/// Returns the accesses at which a test kills: all in `range`, or a part of them if the variable `MP_EVERY` is set.
///
/// With `MP_EVERY=n` these are the first access and each n-th one after it; with `MP_EVERY=n+k` the first is `k` later, for
/// `k` less than `n`. So runs with all values of `k` together cover all accesses.
///
/// # Panics
/// If `MP_EVERY` is set to something else.
pub fn some_of(range: Range<u64>) -> impl Iterator<Item = u64> {
    let every = std::env::var("MP_EVERY").unwrap_or_else(|_| "1".to_owned());
    let (every, later) = every.split_once('+').unwrap_or((&every, "0"));
    let number = |text: &str| text.parse::<usize>().expect("MP_EVERY is `n` or `n+k`");
    range.skip(number(later)).step_by(number(every))
}

/// Waits until `so` holds, and returns the time that took, as far as this thread ran: where the machine lets the thread wait for a
/// processor, 5 ms count for each look at `so`. So limits for that time hold on a busy machine, too.
///
/// # Panics
/// If `so` does not hold by the deadline.
#[track_caller]
pub fn time_until(what: &str, mut so: impl FnMut() -> bool) -> Duration {
    let (mut took, mut last) = (Duration::ZERO, Instant::now());
    eventually(what, || {
        let now = Instant::now();
        took += (now - last).min(Duration::from_millis(5));
        last = now;
        so()
    });
    took
}

/// Sends a signal to a process that was started here and has not been joined.
///
/// # Panics
/// When there is no such process.
#[track_caller]
pub fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), signal).unwrap();
}

/// The state of a process or thread, as its file `stat` of `proc(5)` has it: `S` is asleep, `T` stopped, `Z` a zombie.
fn state(folder: &str) -> Option<char> {
    let stat = std::fs::read_to_string(format!("{folder}/stat")).ok()?;
    stat.rsplit(')').next()?.trim_start().chars().next()
}

/// Whether a process exists and is no zombie.
pub fn alive(pid: u32) -> bool {
    state(&format!("/proc/{pid}")).is_some_and(|state| state != 'Z' && state != 'X')
}

/// Whether a process lives and each of its threads is in this state of `proc(5)`.
pub fn threads_are(pid: u32, wanted: char) -> bool {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    let mut threads = 0;
    // One that ends between the look at it and at its threads has none.
    let mut tasks = tasks.filter_map(Result::ok).inspect(|_| threads += 1);
    let all = tasks.all(|task| state(&task.path().to_string_lossy()) == Some(wanted));
    drop(tasks);
    all && threads > 0
}

/// How many files this process has open.
pub fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}
