//! Helpers shared by all tests with real processes: deadlines, signals, states of processes, members of a
//! cluster. The crate does not depend on our crates, so that the tests of each crate can use it.

pub mod hostile;
pub mod members;
mod other_build;
mod skip;

use std::fmt::Display;
use std::ops::Range;
use std::time::{Duration, Instant};

pub use other_build::{OtherBuild, install};
use rustix::process::{Pid, Signal, kill_process};
pub use skip::skip;

/// Deadline for operations that take milliseconds on an idle machine.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Waits until `so` returns `true`.
///
/// # Panics
/// If `so` still returns `false` at the deadline.
#[track_caller]
pub fn eventually(what: &str, mut so: impl FnMut() -> bool) {
    eventually_none(what, || (!so()).then_some(""));
}

/// Waits until `missing` returns `None`.
///
/// # Panics
/// If `missing` still returns `Some` at the deadline. The message ends with that value.
#[track_caller]
pub fn eventually_none<M: Display>(what: &str, mut missing: impl FnMut() -> Option<M>) {
    let until = Instant::now() + DEADLINE;
    while let Some(missing) = missing() {
        assert!(Instant::now() < until, "not within {DEADLINE:?}: {what}{missing}");
        std::thread::sleep(Duration::from_millis(1)); // sleep: between two looks at what another process did
    }
}

/// Returns the accesses at which a test kills a process: all in `range`, or a part of them if the variable
/// `MP_EVERY` is set.
///
/// `MP_EVERY=n` selects the first access and each n-th one after it. `MP_EVERY=n+k` begins `k` accesses
/// later, for `k` less than `n`. So runs with all values of `k` together cover all accesses.
///
/// # Panics
/// If `MP_EVERY` is set to something else.
pub fn some_of(range: Range<u64>) -> impl Iterator<Item = u64> {
    let every = std::env::var("MP_EVERY").unwrap_or_else(|_| "1".to_owned());
    let (every, later) = every.split_once('+').unwrap_or((&every, "0"));
    let number = |text: &str| text.parse::<usize>().expect("MP_EVERY is `n` or `n+k`");
    range.skip(number(later)).step_by(number(every))
}

/// Waits until `so` returns `true`, and returns the elapsed time. Delays by the scheduler are left out: the
/// time between two calls of `so` counts at most 5 ms. So limits for the result also hold on a busy machine.
///
/// # Panics
/// If `so` still returns `false` at the deadline.
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

/// Sends a signal to a process that this process has started and has not joined.
///
/// # Panics
/// If there is no such process.
#[track_caller]
pub fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), signal).unwrap();
}

/// Returns the state of a process or thread from its file `stat` (`proc(5)`): `S` is asleep, `T` stopped, `Z`
/// a zombie.
fn state(folder: &str) -> Option<char> {
    let stat = std::fs::read_to_string(format!("{folder}/stat")).ok()?;
    stat.rsplit(')').next()?.trim_start().chars().next()
}

/// Returns `true` if a process exists and isn't a zombie.
pub fn alive(pid: u32) -> bool {
    state(&format!("/proc/{pid}")).is_some_and(|state| state != 'Z' && state != 'X')
}

/// Returns `true` if a process is alive and each of its threads is in this state of `proc(5)`.
pub fn threads_are(pid: u32, wanted: char) -> bool {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    let mut threads = 0;
    // A process that has just ended may have no threads.
    let mut tasks = tasks.filter_map(Result::ok).inspect(|_| threads += 1);
    let all = tasks.all(|task| state(&task.path().to_string_lossy()) == Some(wanted));
    drop(tasks);
    all && threads > 0
}

/// Returns the number of open files of this process.
pub fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}
