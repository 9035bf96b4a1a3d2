//! Reports on stderr of supervised processes that fail repeatedly, and their lines in a dump.

mod common;

use std::time::Duration;

use common::{DEADLINE, eventually};
use mp_spawn::{
    IntoOutcome, Process, ProcessStatus, Restart, SpawnError, SpawnOptions, Stdio, start_processes,
};

/// Returns the standard error output of a process that runs `function`.
fn stderr_of<R: IntoOutcome<Value = ()>>(
    function: impl Fn(usize, ()) -> R + Copy + Send + 'static,
) -> String {
    let options = SpawnOptions::nprocs(1).stderr(Stdio::Capture);
    let context = start_processes(function, (), options).unwrap();
    assert!(context.join_timeout(DEADLINE).unwrap());
    context.stderr(0).unwrap().text()
}

fn fails(delay: Duration) -> mp_spawn::ProcessBuilder<mp_spawn::Supervised> {
    Process::builder().name("loader").restart(Restart::OnFailure { max: 5, backoff: delay.into() })
}

#[test]
fn first_of_many_failures_is_printed_with_its_cause() {
    let text = stderr_of(|_, ()| {
        let error = fails(Duration::from_millis(1)).spawn(|(): ()| Err::<(), _>("no such file"), ()).unwrap();
        assert!(matches!(error.join(), Err(SpawnError::GaveUp(_))));
    });
    let line = "mp: attempt 1 of loader failed, and attempt 2 follows in 1.0ms: loader (pid ";
    assert_eq!(text.matches(line).count(), 1, "{text}");
    assert_eq!(text.matches("no such file").count(), 1, "{text}");
}

#[test]
fn failures_with_an_event_listener_are_not_printed() {
    let text = stderr_of(|_, ()| {
        let builder = fails(Duration::from_millis(1)).on_event(drop);
        assert!(builder.spawn(|(): ()| Err::<(), _>("no such file"), ()).unwrap().join().is_err());
    });
    assert!(!text.contains("no such file"), "{text}");
}

#[test]
fn dump_of_waits_lists_processes_in_restart_back_off() {
    let text = stderr_of(|_, ()| {
        let loader = fails(Duration::from_secs(3600)).on_event(drop);
        let loader = loader.spawn(|(): ()| Err::<(), _>("no such file"), ()).unwrap();
        eventually("the process waits", || matches!(loader.status(), ProcessStatus::Restarting { .. }));
        mp_core::waits::dump();
        loader.kill().unwrap();
        _ = loader.join();
    });
    assert!(text.contains("mp: attempt 2 of loader follows in 3"), "{text}");
    assert!(text.contains("no such file"), "{text}");
}

/// The reader of stderr may end before the program does. A write then fails with EPIPE.
#[test]
fn failure_report_to_a_closed_stderr_ends_no_thread() {
    let text = stderr_of(|_, ()| {
        let (reader, writer) = std::io::pipe().unwrap();
        let kept = rustix::io::dup(std::io::stderr()).unwrap();
        rustix::stdio::dup2_stderr(&writer).unwrap();
        drop((reader, writer));
        for _ in 0..2 {
            let worker =
                fails(Duration::from_millis(1)).spawn(|(): ()| Err::<(), _>("no such file"), ()).unwrap();
            assert!(worker.wait_timeout(DEADLINE), "{:?}", worker.status());
            assert!(matches!(worker.join(), Err(SpawnError::GaveUp(_))));
        }
        drop(start_processes(|_, ()| Err::<(), _>("it is not read"), (), SpawnOptions::nprocs(1)).unwrap());
        rustix::stdio::dup2_stderr(kept).unwrap();
        eprintln!("all ended");
    });
    assert!(text.contains("all ended"), "{text}");
}
