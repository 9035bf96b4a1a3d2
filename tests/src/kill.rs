//! Processes that are killed at their n-th access to shared memory, for every n of a script. A script is the
//! code that such a process runs.

use std::time::Duration;

use mp::process::{ExitStatus, Signal};
use mp::{Arena, ProcessContext, SpawnError};
use mp_core::Envelopes;
use mp_harness::some_of;

use crate::{DEADLINE, alone, eventually, eventually_none, in_use, settled, threads_are};

/// Signal SIGKILL as a number, for `mp_core::inject::arm`.
pub const KILL: i32 = 9;
/// Signal SIGSTOP as a number, for `mp_core::inject::arm`.
pub const STOP: i32 = 19;

/// Maximum number of accesses of a script. A test panics if its script has more.
pub const MOST: u64 = 6000;

/// Waits for the end of the process. Returns `true` if it was killed.
pub fn killed(context: &ProcessContext) -> bool {
    match context.join_timeout(DEADLINE) {
        Ok(true) => false,
        Err(SpawnError::ProcessExited(e)) => {
            let ours = matches!(e.exit, ExitStatus::Signal { signal, .. } if signal == Signal::KILL);
            assert!(ours, "{e}");
            true
        }
        other => panic!("{other:?} of {context:?}"),
    }
}

/// Waits until the process is stopped. Returns `false` if it has ended instead.
pub fn stopped(context: &ProcessContext) -> bool {
    let (pid, mut ended) = (context.pids()[0], false);
    eventually("the process stops or ends", || {
        ended = context.join_timeout(Duration::ZERO).expect("the process does not fail");
        ended || threads_are(pid, 'T')
    });
    !ended
}

/// Runs `round` for n = 1, 2, …, in which a process is killed at its n-th access, until the script ends
/// without reaching the access. After each round, checks that the killed process has left nothing in shared
/// memory.
pub fn for_every_access(mut round: impl FnMut(u64) -> bool) {
    // Resources of processes of an earlier test may be reclaimed only here. A process that forks is itself a
    // child, so `settled` would wait forever for the end of its parent. It finds no earlier resources.
    let _alone = if mp::parent_process().is_some() { alone() } else { settled() };
    Arena::current().unwrap();
    let mut before = in_use();
    until_the_end(20, |at| {
        let reached = round(at);
        eventually_none(&format!("nothing is left of a process that was killed at access {at}"), || {
            Arena::current().unwrap().reclaim().unwrap();
            let (now, unfinished) = (in_use(), Envelopes(Arena::current().unwrap()).unfinished_groups());
            let more = now.0 > before.0 || now.1 > before.1 || now.2 > before.2 || unfinished > 0;
            more.then(|| {
                format!(
                    ": blocks, messages, members: {now:?}, before {before:?}; {unfinished} unfinished groups"
                )
            })
        });
        // Resources of an earlier test may have been freed during this round.
        before = in_use();
        reached
    });
}

/// Returns each `step`-th access below `end`, or a part of them if `MP_EVERY` is set: see [`some_of`].
pub fn each(step: u64, end: u64) -> impl Iterator<Item = u64> {
    some_of(0..end / step + 1).map(move |number| 1 + number * step)
}

/// Runs `round` for every access, or every change, of a script. Stops when the script ends before the access
/// or change is reached. Panics if the script ends before `least` accesses.
///
/// If `MP_EVERY` is set in the environment, only some accesses are used: see [`some_of`].
pub fn until_the_end(least: u64, mut round: impl FnMut(u64) -> bool) {
    let mut accesses = some_of(1..MOST);
    let end =
        accesses.find(|&at| !round(at)).unwrap_or_else(|| panic!("a script with more than {MOST} accesses"));
    assert!(end > least, "the script ended after {end} accesses");
    println!("{end} accesses");
}
