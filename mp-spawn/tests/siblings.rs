//! Treatment of the other processes when one fails, and of all processes when they are no longer needed.
#![allow(unsafe_code)]

mod common;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use common::{
    Folder, Meeting, Outcome, alive, eventually, failure, join, say, wait_for_the_end, wait_for_word,
};
use mp_spawn::{ExitStatus, OnFailure, ProcessStatus, Signal, SpawnError, SpawnOptions, start_processes};

/// Rank 0 fails on request. The other ranks wait forever.
fn one_fails(rank: usize, meeting: String) -> Outcome {
    if rank == 0 {
        return Err("rank 0 has had enough".into());
    }
    say(&meeting, "here")?;
    wait_for_the_end()
}

#[test]
fn first_failure_ends_waiting_siblings() {
    let meeting = Meeting::new("first-failure");
    let context = start_processes(one_fails, meeting.name.clone(), SpawnOptions::nprocs(4)).unwrap();
    let error = failure(&context);
    assert!(matches!(&error, SpawnError::ProcessRaised(raised) if raised.who.rank == Some(0)), "{error:?}");
    for rank in 1..4 {
        let status = context.status(rank).unwrap();
        assert!(matches!(status, ProcessStatus::Terminated(Signal::TERM)), "{status:?}");
    }
    assert_eq!(context.failures().len(), 1);
    assert!(context.pids().into_iter().all(|pid| !alive(pid)));
    // A second call returns the same.
    assert_eq!(failure(&context).rank(), Some(0));
}

#[test]
fn siblings_that_ignore_sigterm_get_sigkill() {
    fn worker(rank: usize, (deaf, ready): (String, String)) -> Outcome {
        if rank == 0 {
            // Fails only after the other process ignores SIGTERM.
            wait_for_word(&ready)?;
            return Err("rank 0 fails".into());
        }
        // SAFETY: this installs no handler.
        unsafe { libc::signal(libc::SIGTERM, libc::SIG_IGN) };
        say(&deaf, "deaf")?;
        wait_for_the_end()
    }
    let meeting = Meeting::new("deaf");
    let ready = format!("{}-ready", meeting.name);
    let options = SpawnOptions::nprocs(2).grace_period(Duration::from_millis(50));
    let context = start_processes(worker, (meeting.name.clone(), ready.clone()), options).unwrap();
    assert_eq!(meeting.recv(), "deaf");
    eventually("rank 0 listens", || say(&ready, "go").is_ok());
    assert_eq!(failure(&context).rank(), Some(0));
    let status = context.status(1).unwrap();
    assert!(matches!(status, ProcessStatus::Terminated(Signal::KILL)), "{status:?}");
}

#[test]
fn siblings_continue_with_on_failure_continue() {
    fn worker(rank: usize, meeting: String) -> Outcome {
        match rank {
            0 => Err("rank 0 fails".into()),
            1 => std::process::exit(7),
            _ => {
                say(&meeting, &rank.to_string())?;
                Ok(())
            }
        }
    }
    let meeting = Meeting::new("run-on");
    let options = SpawnOptions::nprocs(4).on_failure(OnFailure::Continue);
    let context = start_processes(worker, meeting.name.clone(), options).unwrap();
    eventually("two failures", || context.failures().len() == 2);
    let mut received = [meeting.recv(), meeting.recv()];
    received.sort();
    assert_eq!(received, ["2", "3"]);
    assert!(failure(&context).rank().is_some_and(|rank| rank < 2));
    assert!(matches!(context.status(2), Ok(ProcessStatus::Ended)));
    assert!(matches!(context.status(3), Ok(ProcessStatus::Ended)));
}

#[test]
fn first_failure_of_ranks_is_the_earliest_in_time() {
    fn worker(rank: usize, word: String) -> Outcome {
        if rank == 0 {
            wait_for_word(&word)?;
        }
        Err(format!("rank {rank} fails").into())
    }
    let word = format!("mp-spawn-{}-first-in-time", std::process::id());
    let options = SpawnOptions::nprocs(2).on_failure(OnFailure::Continue);
    let context = start_processes(worker, word.clone(), options).unwrap();
    eventually("rank 1 has failed", || matches!(context.status(1), Ok(ProcessStatus::Failed(_))));
    eventually("rank 0 listens", || say(&word, "go").is_ok());
    assert_eq!(failure(&context).rank(), Some(1));
    let order: Vec<_> = context.failures().iter().map(SpawnError::rank).collect();
    assert_eq!(order, [Some(1), Some(0)]);
}

#[test]
fn join_timeout_returns_while_processes_run() {
    let meeting = Meeting::new("time-out");
    let worker = |_: usize, meeting: String| -> Outcome {
        say(&meeting, "here")?;
        wait_for_the_end()
    };
    let context = start_processes(worker, meeting.name.clone(), SpawnOptions::nprocs(1)).unwrap();
    meeting.recv();
    assert!(!context.join_timeout(Duration::from_millis(1)).unwrap());
    assert!(!context.join_timeout(Duration::ZERO).unwrap());
    assert!(matches!(context.status(0), Ok(ProcessStatus::Running)));
    let shown = format!("{context:?}");
    assert!(shown.contains("rank-0 (pid ") && shown.contains("running"), "{shown}");
    context.terminate(0).unwrap();
    let error = failure(&context);
    let SpawnError::ProcessExited(exited) = &error else { panic!("unexpected: {error:?}") };
    assert!(matches!(exited.exit, ExitStatus::Signal { signal: Signal::TERM, .. }), "{error}");
    assert!(error.to_string().contains("this program sent the signal"), "{error}");
    // Signalling a process that has ended is not an error.
    context.kill(0).unwrap();
}

#[test]
fn dropped_context_ends_and_reaps_its_processes() {
    let meeting = Meeting::new("drop");
    let worker = |_: usize, meeting: String| -> Outcome {
        say(&meeting, "here")?;
        wait_for_the_end()
    };
    let context = start_processes(worker, meeting.name.clone(), SpawnOptions::nprocs(3)).unwrap();
    let pids = context.pids();
    (0..3).for_each(|_| drop(meeting.recv()));
    drop(context);
    for pid in pids {
        // Not even a zombie is left.
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    }
}

#[test]
fn process_survives_its_starting_thread() {
    let meeting = Meeting::new("thread");
    let listening = format!("{}-go", meeting.name);
    fn worker(_: usize, (meeting, listening): (String, String)) -> Outcome {
        say(&meeting, "started")?;
        wait_for_word(&listening)?;
        say(&meeting, "still here")
    }
    let args = (meeting.name.clone(), listening.clone());
    let thread = std::thread::spawn(move || start_processes(worker, args, SpawnOptions::nprocs(1)).unwrap());
    assert_eq!(meeting.recv(), "started");
    let context = thread.join().unwrap();
    // The thread has ended, and the kernel has had time to send the signal that must not arrive.
    assert!(!context.join_timeout(Duration::from_millis(100)).unwrap());
    eventually("the worker waits for its word", || say(&listening, "go").is_ok());
    assert_eq!(meeting.recv(), "still here");
    join(&context).unwrap();
}

#[test]
fn process_that_closes_all_files_can_be_joined() {
    let worker = |rank: usize, folder: PathBuf| -> Outcome {
        for fd in 3..1024 {
            // SAFETY: the owners of these files are no longer used, except by the crate under test.
            unsafe { libc::close(fd) };
        }
        // One of these files takes the number of the socket, and must not get the report.
        for number in 0..32 {
            let file = std::fs::File::create_new(folder.join(format!("{rank}-{number}")))?;
            std::mem::forget(file);
        }
        if rank == 1 { Err("rank 1 fails".into()) } else { Ok(()) }
    };
    let folder = Folder::new("closed");
    let options = SpawnOptions::nprocs(2).on_failure(OnFailure::Continue);
    let context = start_processes(worker, folder.0.clone(), options).unwrap();
    let error = failure(&context);
    assert!(
        matches!(&error, SpawnError::ProcessExited(exited) if exited.exit == ExitStatus::Code(1)),
        "{error:?}"
    );
    assert!(matches!(context.status(0), Ok(ProcessStatus::Ended)));
    let sizes: Vec<u64> =
        std::fs::read_dir(&folder.0).unwrap().map(|file| file.unwrap().metadata().unwrap().len()).collect();
    assert_eq!(sizes, [0; 64]);
}

#[test]
fn grandchild_with_the_socket_does_not_delay_the_end() {
    let worker = |_: usize, meeting: String| -> Outcome {
        // SAFETY: the child only sleeps and exits, which is allowed after a fork.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // SAFETY: plain system calls.
            unsafe { libc::sleep(120) };
            // SAFETY: ends the process at once.
            unsafe { libc::_exit(0) };
        }
        say(&meeting, &pid.to_string())
    };
    let meeting = Meeting::new("grandchild");
    let context = start_processes(worker, meeting.name.clone(), SpawnOptions::nprocs(1)).unwrap();
    let grandchild: i32 = meeting.recv().parse().unwrap();
    let begin = Instant::now();
    join(&context).unwrap();
    assert!(begin.elapsed() < Duration::from_secs(30));
    // SAFETY: the test's own grandchild, which sleeps for two minutes.
    unsafe { libc::kill(grandchild, libc::SIGKILL) };
}

#[test]
fn many_caught_panics_of_a_worker_are_not_a_failure() {
    let worker = |_: usize, (): ()| {
        std::panic::set_hook(Box::new(|_| {}));
        for _ in 0..1000 {
            let _ = std::panic::catch_unwind(|| panic!("again"));
        }
    };
    join(&start_processes(worker, (), SpawnOptions::nprocs(1)).unwrap()).unwrap();
}
