//! Supervised processes: the ends that cause a restart, and the events that the program receives.
#![allow(unsafe_code)]

mod common;

use std::sync::mpsc::channel;
use std::time::Duration;

use common::supervised::{
    at_most, ended, flaky, gave_up, kinds, next, rest, supervised, until_it_runs, with_events,
};
use common::{
    DEADLINE, Folder, Meeting, alive, alone, children, eventually, say, server, signal, wait_for_the_end,
    wait_for_word,
};
use mp_spawn::{
    Backoff, ExitDetail, ExitStatus, GaveUpReason, Process, ProcessEvent, ProcessStatus, Restart, SpawnError,
    StartMethod, Stdio, closure, current_process, get_context,
};
use mp_tensor::Tensor;

fn by_every_method(test: impl Fn(StartMethod)) {
    // SAFETY: the process of this test has no threads except the library's when it starts others.
    unsafe { mp_spawn::allow_fork() };
    [StartMethod::Spawn, StartMethod::ForkServer, StartMethod::Fork].into_iter().for_each(test);
}

#[test]
fn restarts_succeed_after_failures_by_every_method() {
    alone(|()| {
        by_every_method(|method| {
            let numbers = Tensor::<u64>::from_slice(&[1, 2, 3, 4], [4]).unwrap().freeze();
            let builder = get_context(method).process().name("worker").restart(at_most(2));
            let (builder, events) = with_events(builder);
            let child = builder.spawn(flaky, numbers).unwrap();
            ended(&child);
            assert_eq!(child.join().unwrap(), (3, 10), "{method}");
            assert_eq!((child.restarts(), child.exit()), (2, Some(ExitStatus::Code(0))), "{method}");
            assert!(matches!(child.status(), ProcessStatus::Ended) && !child.is_alive());
            let events = rest(&events);
            let expected = [
                "started 1",
                "failed 1",
                "next 2",
                "started 2",
                "failed 2",
                "next 3",
                "started 3",
                "ended 3",
            ];
            assert_eq!(kinds(&events), expected, "{method}");
            let pids: Vec<u32> = events
                .iter()
                .filter_map(|event| match event {
                    ProcessEvent::Started { pid, .. } => Some(*pid),
                    _ => None,
                })
                .collect();
            assert_eq!(child.pid(), pids[2], "{method}");
            assert!(pids.iter().all(|pid| !children().contains(pid)), "{method}: all are reaped");
        });
    });
}

#[test]
fn exhausted_restarts_return_all_failures() {
    fn failing((): ()) -> Result<u8, String> {
        let attempt = current_process().attempt;
        eprintln!("attempt {attempt} begins");
        match attempt {
            1 => Err("no such file".to_string()),
            2 => panic!("out of luck"),
            _ => std::process::exit(7),
        }
    }
    let (builder, events) = supervised(at_most(2));
    let child = builder.stderr(Stdio::Capture).spawn(failing, ()).unwrap();
    ended(&child);
    let error = child.join().unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("worker was started 3 times and is given up: worker (pid "), "{text}");
    for words in [
        "exited with code 7",
        "attempt 3 begins",
        "attempt 2, after ",
        "panicked: out of luck",
        "no such file",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert_eq!(error.who().map(|who| who.pid), Some(child.pid()));
    assert_eq!(child.exit(), Some(ExitStatus::Code(7)));
    assert!(matches!(child.status(), ProcessStatus::Failed(SpawnError::GaveUp(_))));
    let gave_up = gave_up(error);
    assert_eq!((gave_up.reason, gave_up.attempts), (GaveUpReason::Limit, 3));
    assert!(matches!(&gave_up.last, SpawnError::ProcessExited(exited) if exited.stderr.is_some()));
    let earlier: Vec<u32> = gave_up.earlier.iter().map(|failed| failed.attempt).collect();
    assert_eq!(earlier, [1, 2]);
    let events = rest(&events);
    assert_eq!(kinds(&events).last().map(String::as_str), Some("gave up"));
    assert_eq!(events.last().unwrap().to_string(), text);
}

#[test]
fn process_without_restarts_starts_only_once() {
    let (builder, events) = supervised(Restart::Never);
    let child = builder.spawn(|(): ()| Err::<(), _>("no"), ()).unwrap();
    ended(&child);
    assert!(matches!(child.join(), Err(SpawnError::ProcessRaised(_))));
    assert_eq!(kinds(&rest(&events)), ["started 1", "failed 1"]);
    assert_eq!(child.restarts(), 0);
}

#[test]
fn restart_always_restarts_after_a_success() {
    let (builder, events) = supervised(Restart::Always { backoff: Duration::ZERO.into() });
    let child = builder.spawn(|(): ()| Ok::<_, String>(current_process().attempt), ()).unwrap();
    let mut seen = Vec::new();
    while seen.len() < 5 {
        match next(&events) {
            ProcessEvent::Exited { exit, attempt, error: None, .. } => {
                assert_eq!(exit, ExitStatus::Code(0));
                seen.push(attempt);
            }
            ProcessEvent::GaveUp { error } => panic!("{error}"),
            _ => {}
        }
    }
    assert_eq!(seen, [1, 2, 3, 4, 5]);
    child.kill().unwrap();
    ended(&child);
    rest(&events);
    match child.join() {
        // The process waited for its next start, or was about to exit: the last return value is available.
        Ok(attempt) => assert!(attempt >= 5),
        Err(error) => assert!(
            matches!(&error, SpawnError::ProcessExited(e) if e.detail == Some(ExitDetail::Requested)),
            "{error}"
        ),
    }
}

#[test]
fn process_killed_by_another_program_is_restarted() {
    let meeting = Meeting::new("killed-by-another");
    let worker =
        |name: String| say(&name, &current_process().attempt.to_string()).and_then(|()| wait_for_the_end());
    let (builder, events) = supervised(at_most(5));
    let child = builder.spawn(worker, meeting.name.clone()).unwrap();
    for attempt in 1..4 {
        let pid = until_it_runs(&events);
        assert_eq!(meeting.recv(), attempt.to_string());
        assert_eq!(child.pid(), pid);
        signal(pid, libc::SIGKILL);
    }
    until_it_runs(&events);
    child.kill().unwrap();
    ended(&child);
}

#[test]
fn healthy_run_resets_the_count_of_restart_failures() {
    fn often((): ()) -> Result<u32, String> {
        let attempt = current_process().attempt;
        if attempt < 6 { Err(format!("{attempt}")) } else { Ok(attempt) }
    }
    // Each process that has become a worker is healthy.
    let child =
        Process::builder().restart(at_most(1)).healthy_after(Duration::ZERO).spawn(often, ()).unwrap();
    ended(&child);
    assert_eq!(child.join().unwrap(), 6);
    let child = Process::builder().restart(at_most(1)).healthy_after(Duration::MAX).spawn(often, ()).unwrap();
    ended(&child);
    assert_eq!(gave_up(child.join().unwrap_err()).attempts, 2);
}

#[test]
fn restart_delays_follow_the_backoff() {
    let backoff =
        Backoff::new(Duration::from_millis(4)).factor(2.0).max(Duration::from_millis(10)).jitter(0.0);
    let (builder, events) = supervised(Restart::OnFailure { max: 4, backoff });
    let child = builder.spawn(|(): ()| Err::<(), _>("no"), ()).unwrap();
    ended(&child);
    assert!(child.join().is_err());
    let delays: Vec<_> = rest(&events)
        .into_iter()
        .filter_map(|event| match event {
            ProcessEvent::Restarting { after, .. } => Some(after.as_millis()),
            _ => None,
        })
        .collect();
    assert_eq!(delays, [4, 8, 10, 10]);
}

/// Creates a program that is not a worker.
fn script(folder: &Folder, words: &str) -> std::path::PathBuf {
    let (draft, program) = (folder.0.join("draft"), folder.0.join("program"));
    std::fs::write(&draft, format!("#!/bin/sh\n{words}\n")).unwrap();
    // Done by another process: a program that is open for writing can't be executed.
    let made = std::process::Command::new("install").args(["-m", "755"]).arg(draft).arg(&program).status();
    assert!(made.unwrap().success());
    program
}

#[test]
fn supervised_start_without_a_report_is_a_failure() {
    let folder = Folder::new("never-reports");
    let (builder, events) = supervised(at_most(1));
    let time = Duration::from_millis(100);
    // The process is never healthy, however long it runs.
    let builder =
        builder.executable(script(&folder, "exec sleep 100")).handshake_timeout(time).healthy_after(time);
    let child = builder.spawn(|(): ()| {}, ()).unwrap();
    ended(&child);
    let gave_up = gave_up(child.join().unwrap_err());
    assert!(matches!(gave_up.last, SpawnError::Timeout { .. }), "{gave_up}");
    assert!(matches!(gave_up.earlier[..], [ref first] if first.lasted.is_zero()), "{gave_up}");
    assert_eq!(
        kinds(&rest(&events)),
        ["started 1", "failed 1", "next 2", "started 2", "failed 2", "gave up"]
    );
}

#[test]
fn failed_restart_counts_as_a_failure() {
    let folder = Folder::new("no-program");
    let program = folder.0.join("copy");
    assert!(std::fs::copy("/proc/self/exe", &program).is_ok());
    let worker = |program: String| -> Result<(), std::io::Error> {
        std::fs::remove_file(program)?;
        std::process::exit(3)
    };
    let name = program.to_str().unwrap().to_string();
    let (builder, events) = supervised(at_most(2));
    let child = builder.clone().executable(&program).spawn(worker, name.clone()).unwrap();
    ended(&child);
    let gave_up = gave_up(child.join().unwrap_err());
    assert!(matches!(gave_up.last, SpawnError::Launch(_)), "{gave_up}");
    assert_eq!((gave_up.attempts, child.exit()), (3, Some(ExitStatus::Unknown)));
    let error = builder.executable(&program).spawn(worker, name).unwrap_err();
    assert!(matches!(error, SpawnError::Launch(_)), "{error}");
    let expected = ["started 1", "failed 1", "next 2", "not started 2", "next 3", "not started 3", "gave up"];
    assert_eq!(kinds(&rest(&events)), expected);
}

#[test]
fn killed_fork_server_is_replaced_for_a_restart() {
    alone(|()| {
        let meeting = Meeting::new("no-server");
        let worker = |name: String| -> Result<u32, String> {
            let attempt = current_process().attempt;
            if attempt == 1 {
                wait_for_word(&name).unwrap();
                std::process::abort()
            }
            Ok(attempt)
        };
        let (builder, _events) = supervised(at_most(1));
        let child = builder
            .start_method(StartMethod::ForkServer)
            .spawn(worker, meeting.name.clone() + "-go")
            .unwrap();
        let old = server();
        signal(old, libc::SIGKILL);
        eventually("the server is dead", || !alive(old));
        eventually("the worker listens", || say(&format!("{}-go", meeting.name), "go").is_ok());
        ended(&child);
        assert_eq!(child.join().unwrap(), 2);
    });
}

#[test]
fn output_file_of_restarts_collects_all_attempts() {
    let folder = Folder::new("restarted-output");
    let path = folder.0.join("{name}.txt");
    let worker = |(): ()| {
        println!("attempt {}", current_process().attempt);
        if current_process().attempt < 3 { Err("no") } else { Ok(()) }
    };
    std::fs::write(folder.0.join("worker.txt"), "old\n").unwrap();
    let (builder, _events) = supervised(at_most(2));
    let child = builder.stdout(Stdio::file(&path)).spawn(worker, ()).unwrap();
    ended(&child);
    child.join().unwrap();
    let text = std::fs::read_to_string(folder.0.join("worker.txt")).unwrap();
    assert_eq!(text, "attempt 1\nattempt 2\nattempt 3\n");
}

#[test]
fn closure_keeps_its_captures_for_each_restart() {
    let word = "captured".to_string();
    let body = closure!([word] |last: u32| {
        let attempt = current_process().attempt;
        if attempt < last { Err(format!("{word} {attempt}")) } else { Ok(format!("{word} {attempt}")) }
    });
    let (builder, _events) = supervised(at_most(2));
    let child = builder.spawn_closure(body, 3).unwrap();
    ended(&child);
    assert_eq!(child.join().unwrap(), "captured 3");
}

#[test]
fn restart_callbacks_may_panic_and_start_processes() {
    let (report, reported) = channel();
    let child = Process::builder()
        .restart(at_most(2))
        .on_event(move |event| {
            let helper = Process::spawn(|n: u32| Ok::<_, String>(n + 1), 1).unwrap();
            assert!(helper.wait_timeout(DEADLINE) && helper.join().unwrap() == 2);
            _ = report.send(event);
            std::panic::resume_unwind(Box::new("a callback"));
        })
        .spawn(|(): ()| Err::<(), _>("no"), ())
        .unwrap();
    ended(&child);
    assert!(child.join().is_err());
    assert_eq!(kinds(&rest(&reported)).len(), 9);
}
