//! Extreme numbers from users: an impossible number is an error that names it, and never a panic.

mod common;

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use common::{DEADLINE, alone, eventually, say, wait_for_the_end, wait_for_word};
use mp_spawn::{
    ExitStatus, Process, ProcessStatus, Signal, SpawnError, SpawnOptions, StartMethod, start_processes,
};

const DURATIONS: [Duration; 5] = [
    Duration::ZERO,
    Duration::from_nanos(1),
    Duration::from_secs(u64::MAX / 2),
    Duration::new(u64::MAX, 0),
    Duration::MAX,
];

/// Times that expire at once.
const SHORT: [Duration; 4] =
    [Duration::ZERO, Duration::from_nanos(1), Duration::from_nanos(999), Duration::from_micros(1)];

/// Times that overflow a clock, with seconds or nanoseconds at the limits of integers.
const ENDLESS: [Duration; 7] = [
    Duration::MAX,
    Duration::from_secs(u64::MAX),
    Duration::from_secs(i64::MAX as u64),
    Duration::from_secs(i64::MAX as u64 - (1 << 40)),
    Duration::from_nanos(u64::MAX),
    Duration::from_nanos(i64::MAX as u64),
    Duration::from_secs(u32::MAX as u64 + 1),
];

/// Runs `wait` on another thread, calls `then` once that thread sleeps, and returns the result of `wait`.
fn woken<R: Send>(wait: impl FnOnce() -> R + Send, then: impl FnOnce()) -> R {
    thread::scope(|scope| {
        let (says, hears) = mpsc::channel();
        let waiter = scope.spawn(move || {
            says.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
            wait()
        });
        let thread: i32 = hears.recv().unwrap();
        let stat = || std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap_or_default();
        let sleeps = || stat().rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('S'));
        // If the thread has ended without a wait, its result shows that.
        eventually("the thread sleeps", || waiter.is_finished() || sleeps());
        then();
        waiter.join().unwrap()
    })
}

/// Returns the name under which a process waits for a line.
fn word(number: usize) -> String {
    format!("mp-spawn-{}-numbers-{number}", std::process::id())
}

fn give(word: &str) {
    eventually("the process waits for its word", || say(word, "go on").is_ok());
}

#[test]
fn short_waits_for_running_processes_time_out() {
    alone(|()| {
        let waits = |_: usize, word: String| wait_for_word(&word);
        let begun = Instant::now();
        let (first, second) = (word(0), word(1));
        let context = start_processes(waits, first.clone(), SpawnOptions::nprocs(1)).unwrap();
        let child = Process::spawn(|word: String| wait_for_word(&word), second.clone()).unwrap();
        for time in SHORT {
            assert!(!context.join_timeout(time).unwrap(), "{time:?}");
            assert!(!context.join_with_grace(Some(time), Duration::MAX).unwrap(), "{time:?}");
            assert!(!child.wait_timeout(time), "{time:?}");
        }
        assert!(begun.elapsed() < DEADLINE, "{:?}", begun.elapsed());
        give(&first);
        give(&second);
        context.join().unwrap();
        child.join().unwrap();
        for (number, time) in (1..).zip(ENDLESS) {
            let words: Vec<_> = (0..3).map(|i| word(10 * number + i)).collect();
            let start =
                |word: &String| start_processes(waits, word.clone(), SpawnOptions::nprocs(1)).unwrap();
            let (one, other) = (start(&words[0]), start(&words[1]));
            let child = Process::spawn(|word: String| wait_for_word(&word), words[2].clone()).unwrap();
            assert!(woken(|| one.join_timeout(time).unwrap(), || give(&words[0])), "{time:?}");
            let joins = || other.join_with_grace(Some(time), Duration::ZERO).unwrap();
            assert!(woken(joins, || give(&words[1])), "{time:?}");
            assert!(woken(|| child.wait_timeout(time), || give(&words[2])), "{time:?}");
        }
    });
}

/// The first rank fails. The second rank ignores SIGTERM, and ends when it gets a line under the name `word`.
#[allow(unsafe_code)]
fn fails_or_stays(rank: usize, (ready, word): (String, String)) -> common::Outcome {
    if rank == 0 {
        wait_for_word(&ready)?;
        return Err("the first fails".into());
    }
    // SAFETY: this installs no handler.
    unsafe { libc::signal(libc::SIGTERM, libc::SIG_IGN) };
    give(&ready);
    wait_for_word(&word)
}

#[test]
fn processes_are_killed_after_the_grace_period() {
    alone(|()| {
        let start = |number: usize, grace: Duration| {
            let (ready, word) = (word(number), word(number + 1));
            let options = SpawnOptions::nprocs(2).grace_period(grace);
            (start_processes(fails_or_stays, (ready, word.clone()), options).unwrap(), word)
        };
        let failed = |joined: Result<Vec<()>, SpawnError>| match joined {
            Err(SpawnError::ProcessRaised(raised)) => assert_eq!(raised.message, "the first fails"),
            other => panic!("{other:?}"),
        };
        for (number, grace) in (0..).step_by(2).zip(SHORT) {
            let begun = Instant::now();
            let (context, _) = start(number, grace);
            failed(context.join());
            assert!(begun.elapsed() < DEADLINE, "{grace:?}: {:?}", begun.elapsed());
            let status = context.status(1).unwrap();
            assert!(matches!(status, ProcessStatus::Terminated(Signal::KILL)), "{grace:?}: {status:?}");
        }
        for (number, grace) in (100..).step_by(2).zip(ENDLESS) {
            let (context, word) = start(number, grace);
            let then = || {
                eventually("the first has failed", || !context.failures().is_empty());
                give(&word);
            };
            failed(woken(|| context.join(), then));
            assert_eq!(context.exit(1).unwrap(), Some(ExitStatus::Code(0)), "{grace:?}");
        }
        // A context that is dropped sends a SIGTERM at once, and waits equally long for the end.
        for time in SHORT.into_iter().chain(ENDLESS) {
            let options = SpawnOptions::nprocs(2).grace_period(time);
            drop(start_processes(|_: usize, (): ()| wait_for_the_end(), (), options).unwrap());
            assert!(common::children().is_empty(), "{time:?}");
        }
    });
}

#[test]
fn silent_program_is_awaited_for_the_handshake_time() {
    alone(|()| {
        for time in SHORT {
            let begun = Instant::now();
            let command = || ["sleep", "600"];
            let child = Process::builder().handshake_timeout(time).command(command());
            let context = SpawnOptions::nprocs(1).handshake_timeout(time).command(command());
            let errors = [
                child.spawn(|(): ()| {}, ()).unwrap().join().unwrap_err(),
                start_processes(|_: usize, (): ()| {}, (), context).unwrap().join().unwrap_err(),
            ];
            for error in errors {
                assert!(matches!(error, SpawnError::Timeout { .. }), "{time:?}: {error:?}");
                assert!(error.to_string().contains("`ProcessBuilder`"), "{error}");
            }
            assert!(begun.elapsed() < DEADLINE, "{time:?}: {:?}", begun.elapsed());
        }
    });
}

#[test]
fn extreme_process_counts_are_started_or_refused() {
    alone(|()| {
        for count in [usize::MAX, usize::MAX - 1, isize::MAX as usize, 1 << 40, 1 << 20, 1025, 1024] {
            for method in [StartMethod::Spawn, StartMethod::ForkServer] {
                let options = SpawnOptions::nprocs(count).start_method(method);
                let error = start_processes(|_: usize, (): ()| {}, (), options).unwrap_err();
                let text = error.to_string();
                assert!(matches!(error, SpawnError::Launch(_)), "{error:?}");
                assert!(text.contains(&format!("{count} were asked for")), "{text}");
                assert!(text.contains("processes that share memory"), "{text}");
                assert!(common::children().is_empty(), "something was started");
            }
        }
        let none = start_processes(|_: usize, (): ()| {}, (), SpawnOptions::nprocs(0)).unwrap();
        assert_eq!(none.join().unwrap().len(), 0);
        assert!(none.pids().is_empty() && none.sentinels().is_empty() && none.failures().is_empty());
        assert_eq!(mp_spawn::spawn(|rank: usize, (): ()| Ok::<_, String>(rank), (), 0).unwrap(), []);
    });
}

#[test]
fn waits_for_processes_accept_any_duration() {
    alone(|()| {
        for time in DURATIONS {
            let options = SpawnOptions::nprocs(2).grace_period(time).handshake_timeout(Duration::MAX);
            let context = start_processes(|rank: usize, (): ()| assert!(rank < 2), (), options).unwrap();
            if time > DEADLINE {
                assert!(context.join_timeout(time).unwrap());
            } else {
                // The process may or may not be over by then.
                context.join_timeout(time).unwrap();
                context.join_with_grace(None, time).unwrap();
            }
            context.join().unwrap();
            let child = Process::spawn(|(): ()| {}, ()).unwrap();
            assert!(child.wait_timeout(time) || time < DEADLINE);
            child.join().unwrap();
        }
        // Without any time to report, a start times out or succeeds if the worker is quick.
        for time in [Duration::ZERO, Duration::from_nanos(1)] {
            let hasty = SpawnOptions::nprocs(1).handshake_timeout(time);
            let outcome = start_processes(|_: usize, (): ()| {}, (), hasty).unwrap().join();
            assert!(matches!(outcome, Ok(_) | Err(SpawnError::Timeout { .. })), "{outcome:?}");
        }
    });
}

#[test]
fn extreme_ranks_and_numbers_never_panic() {
    alone(|()| {
        let context = start_processes(|_: usize, (): ()| {}, (), SpawnOptions::nprocs(2)).unwrap();
        for rank in [2, usize::MAX / 2, usize::MAX] {
            let is_error =
                |e: SpawnError| matches!(e, SpawnError::NoSuchRank { rank: r, nprocs: 2 } if r == rank);
            assert!(is_error(context.status(rank).unwrap_err()) && is_error(context.exit(rank).unwrap_err()));
            assert!(
                is_error(context.kill(rank).unwrap_err()) && is_error(context.terminate(rank).unwrap_err())
            );
            assert!(
                is_error(context.stdout(rank).unwrap_err()) && is_error(context.stderr(rank).unwrap_err())
            );
        }
        context.join().unwrap();
        for processor in [1 << 20, usize::MAX] {
            let error = Process::builder()
                .processors([processor])
                .spawn(|(): ()| {}, ())
                .unwrap()
                .join()
                .unwrap_err();
            assert!(error.to_string().contains(&format!("no processor {processor}")), "{error}");
        }
        for number in [0, usize::MAX] {
            let tee = Process::builder().number(number).stdout(mp_spawn::Stdio::Tee);
            tee.spawn(|(): ()| {}, ()).unwrap().join().unwrap();
        }
        for number in [i32::MIN, -1, 0, 64, 65, i32::MAX] {
            assert!(!Signal::from_number(number).name().is_empty());
        }
    });
}
