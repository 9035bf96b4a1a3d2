//! Processes that a signal ends before they have reported as workers: the error names the signal, as for any
//! other process.

mod common;

use common::{Folder, alone, eventually, failure, next_worker, signal, wait_for_the_end};
use mp_spawn::{
    ExitDetail, ExitStatus, Process, ProcessExited, Signal, SpawnError, SpawnOptions, StartMethod,
    start_processes,
};

fn exited(error: SpawnError) -> ProcessExited {
    match error {
        SpawnError::ProcessExited(exited) => *exited,
        other => panic!("unexpected: {other:?}"),
    }
}

/// Creates a program that is not a worker, and ends itself.
fn script(folder: &Folder, words: &str) -> std::path::PathBuf {
    let (draft, program) = (folder.0.join("draft"), folder.0.join("program"));
    std::fs::write(&draft, format!("#!/bin/sh\n{words}\n")).unwrap();
    // Done by another process: a program that is open for writing can't be executed.
    let made = std::process::Command::new("install").args(["-m", "755"]).arg(draft).arg(&program).status();
    assert!(made.unwrap().success());
    program
}

#[test]
fn kill_before_a_workers_hello_is_reported_as_signal() {
    for (name, number) in [("KILL", libc::SIGKILL), ("TERM", libc::SIGTERM), ("SEGV", libc::SIGSEGV)] {
        let folder = Folder::new(&format!("killed-early-{name}"));
        let program = script(&folder, &format!("ulimit -c 0; kill -{name} $$"));
        let context =
            start_processes(|_: usize, (): ()| {}, (), SpawnOptions::nprocs(1).executable(program)).unwrap();
        let error = exited(failure(&context));
        let text = error.to_string();
        assert!(
            matches!(error.exit, ExitStatus::Signal { signal, .. } if signal.number() == number),
            "{text}"
        );
        assert_eq!((&error.detail, error.begun), (&Some(ExitDetail::NotBegun), false), "{text}");
        assert!(text.contains("before it had begun"), "{text}");
        assert!(!text.contains("Only a program"), "{text}");
    }
}

#[test]
fn kill_just_after_a_start_is_reported_as_requested() {
    // Some of the processes have begun when the signal arrives, others have not.
    let mut not_begun = 0;
    for _ in 0..20 {
        let child = Process::spawn(|(): ()| wait_for_the_end(), ()).unwrap();
        child.kill().unwrap();
        let error = exited(child.join().unwrap_err());
        assert_eq!(error.detail, Some(ExitDetail::Requested), "{error}");
        not_begun += u32::from(!error.begun);
    }
    println!("{not_begun} of 20 had not begun");
}

#[test]
fn exit_before_a_workers_hello_returns_never_reported() {
    let context =
        start_processes(|_: usize, (): ()| {}, (), SpawnOptions::nprocs(1).executable("/bin/true")).unwrap();
    let error = failure(&context);
    assert!(
        matches!(
            &error,
            SpawnError::NeverReported { exit: ExitStatus::Code(0), method: StartMethod::Spawn, .. }
        ),
        "{error:?}"
    );
    assert!(error.to_string().contains("ran /bin/true"), "{error}");
}

#[test]
fn kill_of_a_fork_servers_next_process_is_reported() {
    alone(|()| {
        let served = || SpawnOptions::nprocs(1).start_method(StartMethod::ForkServer);
        start_processes(|_: usize, (): ()| {}, (), served()).unwrap().join().unwrap();
        let next = next_worker();
        signal(next, libc::SIGSTOP);
        eventually("the prepared process is stopped", || {
            std::fs::read_to_string(format!("/proc/{next}/stat")).unwrap().contains(") T ")
        });
        let context = start_processes(|_: usize, (): ()| {}, (), served()).unwrap();
        assert_eq!(context.pids(), [next]);
        signal(next, libc::SIGKILL);
        let error = exited(failure(&context));
        let killed = ExitStatus::Signal { signal: Signal::KILL, core_dumped: false };
        assert_eq!(
            (error.exit, &error.detail, error.begun),
            (killed, &Some(ExitDetail::NotBegun), false),
            "{error}"
        );
        assert!(!error.to_string().contains("/proc/self/exe"), "{error}");
    });
}
