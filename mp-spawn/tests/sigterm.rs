//! SIGTERM, which a service manager sends to all processes of a program. Each test runs in a separate process
//! and process group.
#![allow(unsafe_code)]

mod common;

use std::process::Command;

use common::{Meeting, alone, eventually, next_worker, say, server, wait_for_the_end, wait_for_word};
use mp_spawn::{
    ExitStatus, Interrupt, InterruptSignals, Process, ProcessBuilder, RaisedKind, SpawnError, SpawnOptions,
    StartMethod, interrupted, start_processes, take_interrupt,
};

const METHODS: [StartMethod; 2] = [StartMethod::Spawn, StartMethod::ForkServer];

/// Puts this process into a new process group, in which SIGTERM has its default effect.
fn lead_a_group() {
    rustix::process::setpgid(None, None).unwrap();
    // SAFETY: this installs no handler.
    unsafe { libc::signal(libc::SIGTERM, libc::SIG_DFL) };
}

/// Sends SIGTERM to the group of this process, like a service manager: from a process outside of the group.
fn stop_the_group() {
    kill(&format!("-{}", std::process::id()));
}

fn kill(target: &str) {
    let mut kill = Command::new("kill");
    std::os::unix::process::CommandExt::process_group(&mut kill, 0);
    assert!(kill.args(["-TERM", "--", target]).status().unwrap().success());
}

fn started(method: StartMethod) -> ProcessBuilder {
    Process::builder().start_method(method)
}

fn ended_by_sigterm(error: &SpawnError) -> bool {
    let SpawnError::ProcessExited(exited) = error else { return false };
    matches!(exited.exit, ExitStatus::Signal { signal, .. } if signal.number() == libc::SIGTERM)
}

#[test]
fn graceful_processes_return_after_sigterm() {
    alone(|()| {
        lead_a_group();
        for method in METHODS {
            let meeting = Meeting::new(&format!("graceful-{method}"));
            let work = |rank: usize, name: String| -> common::Outcome {
                say(&name, "here")?;
                let until = std::time::Instant::now() + common::DEADLINE;
                while !interrupted() && std::time::Instant::now() < until {
                    std::thread::yield_now();
                }
                if rank == 1 { Err("interrupted".into()) } else { Ok(()) }
            };
            let options = SpawnOptions::nprocs(2).start_method(method).interrupt(Interrupt::Graceful);
            let context = start_processes(work, meeting.name.clone(), options).unwrap();
            for _ in 0..2 {
                meeting.recv();
            }
            stop_the_group();
            eventually("the parent is informed", interrupted);
            let error = context.join().unwrap_err();
            let SpawnError::ProcessRaised(raised) = &error else { panic!("{method}: {error}") };
            assert_eq!((raised.kind, raised.who.rank), (RaisedKind::Interrupted, Some(1)), "{error}");
            assert!(take_interrupt());
        }
    });
}

/// Models a service that decides when its workers end, although the workers get the signal too.
#[test]
fn process_ignoring_sigterm_is_ended_by_its_parent() {
    alone(|()| {
        lead_a_group();
        // Installs the handler of this process.
        start_processes(|_: usize, (): ()| {}, (), SpawnOptions::nprocs(1).interrupt(Interrupt::Graceful))
            .and_then(|context| context.join().map(drop))
            .unwrap();
        for method in METHODS {
            let meeting = Meeting::new(&format!("ignoring-{method}"));
            let work = |name: String| -> common::Outcome {
                say(&name, "here")?;
                wait_for_word(&format!("{name}-word"))?;
                say(&name, "still here")?;
                wait_for_the_end()
            };
            let child =
                started(method).interrupt(Interrupt::Ignore).spawn(work, meeting.name.clone()).unwrap();
            meeting.recv();
            stop_the_group();
            kill(&child.pid().to_string());
            eventually("the parent is informed", interrupted);
            assert!(take_interrupt());
            eventually("the worker listens", || say(&format!("{}-word", meeting.name), "go").is_ok());
            assert_eq!(meeting.recv(), "still here", "{method}");
            child.terminate().unwrap();
            let error = child.join().unwrap_err();
            assert!(ended_by_sigterm(&error), "{method}: {error}");
        }
    });
}

#[test]
fn terminate_ends_a_graceful_process() {
    alone(|()| {
        for method in METHODS {
            let meeting = Meeting::new(&format!("terminated-{method}"));
            let work = |name: String| say(&name, "here").and_then(|()| wait_for_the_end());
            let child =
                started(method).interrupt(Interrupt::Graceful).spawn(work, meeting.name.clone()).unwrap();
            meeting.recv();
            child.terminate().unwrap();
            let error = child.join().unwrap_err();
            assert!(ended_by_sigterm(&error), "{method}: {error}");
        }
    });
}

#[test]
fn sigterm_ends_a_process_that_ignores_only_sigint() {
    alone(|()| {
        for method in METHODS {
            let meeting = Meeting::new(&format!("left-out-{method}"));
            let work = |name: String| say(&name, "here").and_then(|()| wait_for_the_end());
            let child =
                started(method).interrupt(Interrupt::Ignore).interrupt_signals(InterruptSignals::Sigint);
            let child = child.spawn(work, meeting.name.clone()).unwrap();
            meeting.recv();
            kill(&child.pid().to_string());
            let error = child.join().unwrap_err();
            assert!(ended_by_sigterm(&error), "{method}: {error}");
        }
    });
}

#[test]
fn second_sigterm_ends_a_graceful_program() {
    alone(|()| {
        let program = |(): ()| -> common::Outcome {
            lead_a_group();
            let graceful = SpawnOptions::nprocs(1).interrupt(Interrupt::Graceful);
            start_processes(|_: usize, (): ()| {}, (), graceful)?.join()?;
            stop_the_group();
            eventually("the program is informed", interrupted);
            stop_the_group();
            wait_for_the_end()
        };
        let error = started(StartMethod::Spawn).spawn(program, ()).unwrap().join().unwrap_err();
        assert!(ended_by_sigterm(&error), "{error}");
    });
}

#[test]
fn fork_server_survives_sigterm_to_the_group() {
    alone(|()| {
        lead_a_group();
        start_processes(|_: usize, (): ()| {}, (), SpawnOptions::nprocs(1).interrupt(Interrupt::Graceful))
            .and_then(|context| context.join().map(drop))
            .unwrap();
        started(StartMethod::ForkServer).spawn(|(): ()| {}, ()).unwrap().join().unwrap();
        let (server_before, next) = (server(), next_worker());
        stop_the_group();
        eventually("the parent is informed", interrupted);
        take_interrupt();
        let used = started(StartMethod::ForkServer).spawn(|(): ()| {}, ()).unwrap();
        assert_eq!(used.pid(), next, "the process made in advance waits");
        used.join().unwrap();
        assert_eq!(server(), server_before);
    });
}
