//! Processes that are killed at their n-th access to shared memory, for every n of a script.

use std::time::Duration;

use mp::process::{ExitStatus, Signal};
use mp::{Arena, ProcessContext, SpawnError};

use crate::{DEADLINE, alone, eventually, eventually_none, in_use, settled, threads_are};

/// SIGKILL and SIGSTOP, as `mp_core::inject::arm` takes them.
pub const KILL: i32 = 9;
/// See [`KILL`].
pub const STOP: i32 = 19;

/// No script has more accesses than this; if one has, the test says so.
pub const MOST: u64 = 6000;

/// Waits for the end of the process; whether it was killed.
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

/// Waits until the one process is stopped; `false` if it has ended instead.
pub fn stopped(context: &ProcessContext) -> bool {
    let (pid, mut ended) = (context.pids()[0], false);
    eventually("it stops or ends", || {
        ended = context.join_timeout(Duration::ZERO).expect("it does not fail");
        ended || threads_are(pid, 'T')
    });
    !ended
}

/// Runs `round` for every access of a script, until the script ends without reaching the access. Each time, nothing of
/// the process is left in shared memory.
pub fn for_every_access(mut round: impl FnMut(u64) -> bool) {
    // What processes of the test before have had may be swept only now. An original that makes copies of itself is a child, beside
    // its parent, and finds nothing of that.
    let _alone = if mp::parent_process().is_some() { alone() } else { settled() };
    Arena::current().unwrap();
    let mut before = in_use();
    until_the_end(20, |at| {
        let reached = round(at);
        eventually_none(&format!("nothing is left of a process that was killed at access {at}"), || {
            Arena::current().unwrap().sweep().unwrap();
            let (now, unfinished) = (in_use(), Arena::current().unwrap().unfinished_groups());
            let more = now.0 > before.0 || now.1 > before.1 || now.2 > before.2 || unfinished > 0;
            more.then(|| {
                format!(
                    ": blocks, messages, members: {now:?}, before {before:?}; {unfinished} unfinished groups"
                )
            })
        });
        // What a test before has left may have gone only now.
        before = in_use();
        reached
    });
}

/// Runs `round` for every access, or every change, of a script, until the script ends without reaching it, after `least` at least.
///
/// With `MP_EVERY` in the environment, for some accesses only: see [`some_of`].
pub fn until_the_end(least: u64, mut round: impl FnMut(u64) -> bool) {
    let mut accesses = mp_harness::some_of(1..MOST);
    let end =
        accesses.find(|&at| !round(at)).unwrap_or_else(|| panic!("a script with more than {MOST} accesses"));
    assert!(end > least, "the script ended after {end} accesses");
    println!("{end} accesses");
}
