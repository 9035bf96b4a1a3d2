//! Treatment of children at the exit of a process: which are waited for, which are ended, and which failures
//! are printed.

mod common;

use std::time::Duration;

use common::{DEADLINE, Meeting, Outcome, alive, eventually, join, say, wait_for_the_end, wait_for_word};
use mp_spawn::{
    ExitStatus, OnFailure, Process, ProcessContext, ProcessStatus, SpawnError, SpawnOptions, Stdio,
    start_processes,
};

fn fail(_: usize, (): ()) -> Result<(), String> {
    Err("it went wrong".to_string())
}

/// Returns the standard error output of a process that runs `test`.
fn printed(test: fn(usize, ()) -> Outcome, rank: usize) -> String {
    let all = move |_: usize, (test, rank): (u8, usize)| TESTS[usize::from(test)](rank, ());
    let number = TESTS.iter().position(|other| std::ptr::fn_addr_eq(*other, test)).unwrap();
    let options = SpawnOptions::nprocs(1).stderr(Stdio::Capture);
    let context = start_processes(all, (number as u8, rank), options).unwrap();
    join(&context).unwrap();
    context.stderr(0).unwrap().text()
}

const TESTS: [fn(usize, ()) -> Outcome; 3] = [asks_a_context, asks_a_process, kills_and_checks];

/// Exits on the thread that reaps, while two processes run that would be waited for.
fn exits_in_a_callback(_: usize, (): ()) -> Outcome {
    let context = start_processes(|_: usize, (): ()| wait_for_the_end(), (), SpawnOptions::nprocs(2))?;
    let child = Process::spawn(|(): ()| {}, ())?;
    child.on_exit(|| {
        std::process::exit(7);
    });
    wait_for_the_end()?;
    drop(context);
    Ok(())
}

#[test]
fn exit_in_a_callback_does_not_wait_for_children() {
    let worker = |(): ()| exits_in_a_callback(0, ());
    let process = Process::spawn(worker, ()).unwrap();
    assert!(process.wait_timeout(DEADLINE), "it waits for processes that only its thread could reap");
    assert_eq!(process.wait().unwrap(), ExitStatus::Code(7));
}

/// Creates a context whose processes have failed. `how` selects how the status is queried, 0 means no query.
fn asks_a_context(how: usize, (): ()) -> Outcome {
    let context = start_processes(fail, (), SpawnOptions::nprocs(2).on_failure(OnFailure::Continue))?;
    eventually("they have ended", || mp_spawn::active_children().is_empty());
    match how {
        0 => {}
        1 => assert!(context.join().is_err()),
        2 => assert!(context.wait().is_err()),
        3 => assert!(context.results()?.iter().all(Result::is_err)),
        4 => assert_eq!(context.failures().len(), 2),
        5 => assert!((0..2).all(|rank| matches!(context.status(rank), Ok(ProcessStatus::Failed(_))))),
        6 => assert!((0..2).all(|rank| matches!(context.exit(rank), Ok(Some(_))))),
        7 => assert!(context.join_timeout(DEADLINE).is_err()),
        // Queries one of the two processes.
        _ => assert!(matches!(context.status(0), Ok(ProcessStatus::Failed(_)))),
    }
    context.detach();
    Ok(())
}

#[test]
fn reported_failures_of_a_context_are_not_printed() {
    for how in 1..8 {
        assert_eq!(printed(asks_a_context, how), "", "{how}");
    }
    let not_asked = printed(asks_a_context, 0);
    assert!(not_asked.starts_with("mp: rank ") && not_asked.contains("it went wrong"), "{not_asked}");
    assert_eq!(not_asked.lines().count(), 1, "{not_asked}");
    let of_the_other = printed(asks_a_context, 8);
    assert!(of_the_other.starts_with("mp: rank 1 (pid "), "{of_the_other}");
}

fn asks_a_process(how: usize, (): ()) -> Outcome {
    let child = Process::builder().name("asked").spawn(|(): ()| fail(0, ()), ())?;
    match how {
        0 => {}
        1 => assert!(child.join().is_err()),
        2 => assert_ne!(child.wait()?, mp_spawn::ExitStatus::Code(0)),
        3 => eventually("it has failed", || matches!(child.status(), ProcessStatus::Failed(_))),
        4 => eventually("it has ended", || child.exit().is_some()),
        // These queries return no failure, because the process may still run.
        _ => drop((child.is_alive(), child.pid())),
    }
    Ok(())
}

#[test]
fn reported_failures_of_a_process_are_not_printed() {
    for how in 1..5 {
        assert_eq!(printed(asks_a_process, how), "", "{how}");
    }
    for how in [0, 5] {
        let text = printed(asks_a_process, how);
        assert!(text.starts_with("mp: asked (pid ") && text.contains("it went wrong"), "{text}");
    }
}

/// Kills a child, and checks that the child has ended.
fn kills_and_checks(how: usize, (): ()) -> Outcome {
    let child = Process::spawn(|(): ()| wait_for_the_end(), ())?;
    assert!(matches!(child.status(), ProcessStatus::Running));
    match how {
        0 => child.kill()?,
        _ => child.terminate()?,
    }
    assert!(child.wait_timeout(DEADLINE) && !child.is_alive());
    Ok(())
}

#[test]
fn killed_processes_are_not_reported_at_exit() {
    for how in 0..2 {
        assert_eq!(printed(kills_and_checks, how), "", "{how}");
    }
}

#[test]
fn failure_after_a_status_query_is_printed() {
    fn late(meeting: String) -> Outcome {
        wait_for_word(&meeting)?;
        Err("it went wrong at last".into())
    }
    let worker = |_: usize, meeting: String| -> Outcome {
        let child = Process::spawn(late, meeting.clone())?;
        assert!(matches!(child.status(), ProcessStatus::Running) && child.exit().is_none());
        eventually("it listens", || say(&meeting, "go").is_ok());
        Ok(())
    };
    let name = Meeting::new("late-failure").name;
    let context = start_processes(worker, name, SpawnOptions::nprocs(1).stderr(Stdio::Capture)).unwrap();
    join(&context).unwrap();
    let text = context.stderr(0).unwrap().text();
    assert!(text.contains("it went wrong at last"), "{text}");
}

/// By default children are waited for, and daemons are ended, whether a `Process` or a live context holds
/// them.
#[test]
fn contexts_and_processes_are_treated_alike_at_exit() {
    fn sleeper(_: usize, meeting: String) -> Outcome {
        say(&meeting, &std::process::id().to_string())?;
        wait_for_word(&format!("{meeting}-go"))
    }
    let worker = |_: usize, (kind, daemon, meeting): (u8, bool, String)| -> Outcome {
        match kind {
            0 => drop(
                Process::builder().daemon(daemon).spawn(|meeting: String| sleeper(0, meeting), meeting)?,
            ),
            1 => start_processes(sleeper, meeting, SpawnOptions::nprocs(1).daemon(daemon))?.detach(),
            _ => {
                _ = Box::leak(Box::new(start_processes(
                    sleeper,
                    meeting,
                    SpawnOptions::nprocs(1).daemon(daemon),
                )?))
            }
        }
        Ok(())
    };
    let start = |kind: u8, daemon: bool| -> (Meeting, ProcessContext) {
        let meeting = Meeting::new(&format!("alike-{kind}-{daemon}"));
        let args = (kind, daemon, meeting.name.clone());
        let context = start_processes(worker, args, SpawnOptions::nprocs(1)).unwrap();
        (meeting, context)
    };
    for kind in 0..3 {
        // The sleeper may be ended before it has sent a line.
        let (_, context) = start(kind, true);
        join(&context).unwrap();
        let (meeting, context) = start(kind, false);
        let sleeper: u32 = meeting.recv().parse().unwrap();
        assert!(!context.join_timeout(Duration::from_millis(50)).unwrap(), "{kind}: the exit must wait");
        assert!(alive(sleeper));
        eventually("it listens", || say(&format!("{}-go", meeting.name), "go").is_ok());
        join(&context).unwrap();
    }
}

#[test]
fn second_join_returns_an_error() -> Result<(), SpawnError> {
    let context = start_processes(|rank: usize, (): ()| Ok::<_, String>(rank), (), SpawnOptions::nprocs(2))?;
    assert_eq!(context.join()?, [0, 1]);
    let error = context.join().unwrap_err();
    assert!(error.to_string().contains("an earlier call has taken it"), "{error}");
    let child = Process::spawn(|(): ()| Ok::<_, String>(1), ())?;
    assert_eq!((child.wait()?, child.join()?), (mp_spawn::ExitStatus::Code(0), 1));
    assert!(matches!(child.join(), Err(SpawnError::Value { .. })));
    // `()` is always available.
    let nothing = start_processes(|_: usize, (): ()| {}, (), SpawnOptions::nprocs(2))?;
    assert_eq!((nothing.join()?.len(), nothing.join()?.len()), (2, 2));
    Ok(())
}
