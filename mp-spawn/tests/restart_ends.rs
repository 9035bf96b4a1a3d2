//! Ends of the supervision of a process, and their effects.
#![allow(unsafe_code)]

mod common;

use std::sync::mpsc::channel;
use std::time::Duration;

use common::supervised::{
    HOUR, after, at_most, ended, flaky, gave_up, kinds, next, rest, supervised, until_it_runs, until_it_waits,
};
use common::{
    DEADLINE, Meeting, Outcome, alive, alone, children, eventually, next_worker_after, say, server, signal,
    wait_for_the_end, wait_for_word,
};
use mp_spawn::{
    ExitDetail, ExitStatus, GaveUpReason, Interrupt, Process, ProcessEvent, ProcessStatus, Restart,
    SpawnError, StartMethod, Stdio, Waitable, active_children, current_process,
};
use mp_tensor::Tensor;

#[test]
fn kill_ends_a_process_that_waits_for_a_restart() {
    for terminate in [false, true] {
        let (builder, events) = supervised(after(HOUR));
        let child = builder.spawn(|(): ()| Err::<(), _>("no"), ()).unwrap();
        until_it_waits(&events);
        let ProcessStatus::Restarting { attempt: 2, error: Some(error) } = child.status() else {
            panic!("{:?}", child.status())
        };
        assert!(matches!(error, SpawnError::ProcessRaised(_)), "{error}");
        assert!(child.is_alive() && child.exit().is_none() && !child.is_ready());
        assert!(!child.wait_timeout(Duration::ZERO));
        assert!(active_children().iter().all(|active| active.pid != child.pid()), "no process runs");
        assert!(format!("{child:?}").contains("to be started"), "{child:?}");
        if terminate {
            child.terminate().unwrap()
        } else {
            child.kill().unwrap()
        }
        assert!(!child.is_alive() && child.is_ready());
        ended(&child);
        let gave_up = gave_up(child.join().unwrap_err());
        assert_eq!((gave_up.reason, gave_up.attempts), (GaveUpReason::Stopped, 1));
        assert_eq!(kinds(&rest(&events)), ["gave up"]);
        // A second call does nothing.
        child.kill().unwrap();
    }
}

#[test]
fn kill_of_a_running_process_prevents_its_restart() {
    for terminate in [false, true] {
        for restart in [at_most(5), Restart::Always { backoff: Duration::ZERO.into() }] {
            let (builder, events) = supervised(restart);
            let child = builder.spawn(|(): ()| wait_for_the_end(), ()).unwrap();
            if terminate {
                child.terminate().unwrap()
            } else {
                child.kill().unwrap()
            }
            ended(&child);
            let error = child.join().unwrap_err();
            let SpawnError::ProcessExited(exited) = &error else { panic!("{error:?}") };
            assert_eq!(exited.detail, Some(ExitDetail::Requested));
            assert_eq!(kinds(&rest(&events)), ["started 1", "failed 1"]);
        }
    }
}

#[test]
fn supervised_process_that_is_stopped_is_not_replaced() {
    let meeting = Meeting::new("stopped");
    let worker = |name: String| say(&name, "here").and_then(|()| wait_for_the_end());
    let (builder, events) = supervised(at_most(5));
    let child = builder.spawn(worker, meeting.name.clone()).unwrap();
    meeting.recv();
    signal(child.pid(), libc::SIGSTOP);
    assert!(!child.wait_timeout(Duration::from_millis(100)));
    assert!(matches!(child.status(), ProcessStatus::Running));
    child.kill().unwrap();
    ended(&child);
    assert_eq!(kinds(&rest(&events)), ["started 1", "failed 1"]);
}

#[test]
fn dropped_process_handle_keeps_the_supervision() {
    let (builder, events) = supervised(at_most(2));
    let empty = Tensor::<u64>::zeros([1]).unwrap().freeze();
    drop(builder.spawn(flaky, empty).unwrap());
    let events = rest(&events);
    assert_eq!(kinds(&events).last().map(String::as_str), Some("ended 3"));
}

/// Starts a supervised process that fails or waits for a word, and returns before the supervision has ended.
fn leaves((how, daemon, meeting): (u8, bool, String)) -> Outcome {
    let restart = match how {
        0 => after(HOUR),
        _ => Restart::Always { backoff: Duration::ZERO.into() },
    };
    let (builder, events) = supervised(restart);
    let worker = |(how, meeting): (u8, String)| -> Outcome {
        if how > 0 {
            say(&meeting, &std::process::id().to_string())?;
            wait_for_word(&format!("{meeting}-go"))?;
        }
        Err("it went wrong".into())
    };
    let child = builder.daemon(daemon).spawn(worker, (how, meeting))?;
    if how == 0 {
        until_it_waits(&events);
    } else {
        until_it_runs(&events);
    }
    drop(child);
    Ok(())
}

#[test]
fn exiting_program_starts_no_replacement() {
    for daemon in [false, true] {
        let builder = Process::builder().stderr(Stdio::Capture);
        let program = builder.spawn(leaves, (0, daemon, String::new())).unwrap();
        ended(&program);
        program.join().unwrap();
        let text = program.stderr().text();
        assert!(text.contains("was ended while it waited for the next start"), "{text}");
        assert!(text.contains("it went wrong"), "{text}");
    }
    for daemon in [false, true] {
        let meeting = Meeting::new(&format!("exits-{daemon}"));
        let program = Process::spawn(leaves, (1, daemon, meeting.name.clone())).unwrap();
        if !daemon {
            let worker: u32 = meeting.recv().parse().unwrap();
            assert!(!program.wait_timeout(Duration::from_millis(50)), "the exit must wait");
            assert!(alive(worker));
            eventually("the process listens", || say(&format!("{}-go", meeting.name), "go").is_ok());
        }
        ended(&program);
        program.join().unwrap();
    }
}

/// Puts this process into a new process group, in which SIGINT has its default effect.
fn own_group() {
    rustix::process::setpgid(None, None).unwrap();
    // SAFETY: this installs no handler.
    unsafe { libc::signal(libc::SIGINT, libc::SIG_DFL) };
}

/// Sends the signal that a terminal sends at Ctrl-C.
fn press_ctrl_c() {
    // SAFETY: to the group of this process.
    assert_eq!(unsafe { libc::kill(0, libc::SIGINT) }, 0);
}

#[test]
fn graceful_interrupt_prevents_restarts() {
    alone(|()| {
        own_group();
        let meeting = Meeting::new("ctrl-c");
        let worker = |(name, fails): (String, bool)| -> Outcome {
            say(&name, "here")?;
            eventually("Ctrl-C", mp_spawn::interrupted);
            if fails { Err("interrupted".into()) } else { Ok(()) }
        };
        let always = Restart::Always { backoff: Duration::ZERO.into() };
        let running = [false, true].map(|fails| {
            let (builder, events) = supervised(always);
            let builder = builder.interrupt(Interrupt::Graceful);
            (builder.spawn(worker, (meeting.name.clone(), fails)).unwrap(), events)
        });
        let (builder, events) = supervised(after(HOUR));
        let waiting = builder.interrupt(Interrupt::Graceful).spawn(|(): ()| Err::<(), _>("no"), ()).unwrap();
        until_it_waits(&events);
        (0..2).for_each(|_| _ = meeting.recv());
        press_ctrl_c();
        for (child, events) in &running {
            ended(child);
            assert_eq!(kinds(&rest(events)).len(), 2);
        }
        running[0].0.join().unwrap();
        assert!(matches!(running[1].0.join(), Err(SpawnError::ProcessRaised(_))));
        ended(&waiting);
        assert_eq!(gave_up(waiting.join().unwrap_err()).reason, GaveUpReason::Interrupted);
        assert_eq!(kinds(&rest(&events)), ["gave up"]);
        // After the interrupt is taken, processes are restarted again.
        assert!(mp_spawn::take_interrupt());
        let child = Process::builder().restart(at_most(2)).spawn(|(): ()| Err::<(), _>("no"), ()).unwrap();
        ended(&child);
        assert_eq!(gave_up(child.join().unwrap_err()).attempts, 3);
    });
}

#[test]
fn process_ended_by_sigint_is_not_restarted() {
    let meeting = Meeting::new("sigint");
    let worker = |name: String| {
        // SAFETY: this installs no handler.
        unsafe { libc::signal(libc::SIGINT, libc::SIG_DFL) };
        say(&name, "here").and_then(|()| wait_for_the_end())
    };
    let (builder, events) = supervised(Restart::always());
    let child = builder.spawn(worker, meeting.name.clone()).unwrap();
    meeting.recv();
    signal(child.pid(), libc::SIGINT);
    ended(&child);
    assert!(matches!(child.join(), Err(SpawnError::ProcessExited(_))));
    assert_eq!(kinds(&rest(&events)), ["started 1", "failed 1"]);
}

#[test]
fn end_after_restarts_wakes_callbacks_and_waits_once() {
    let (report, reported) = channel();
    let (builder, _events) = supervised(at_most(2));
    let child = builder.spawn(flaky, Tensor::<u64>::zeros([1]).unwrap().freeze()).unwrap();
    child.on_exit(move || _ = report.send(()));
    assert_eq!(mp_spawn::wait(&[&child], Some(DEADLINE)).unwrap(), [0]);
    assert_eq!(child.exit(), Some(ExitStatus::Code(0)));
    reported.recv_timeout(DEADLINE).unwrap();
    assert!(reported.recv_timeout(DEADLINE).is_err(), "once");
}

#[test]
fn restarts_leave_no_descriptor_and_no_process() {
    alone(|()| {
        let run = || {
            let (builder, events) = supervised(at_most(2));
            let builder = builder.stderr(Stdio::Capture);
            let numbers = Tensor::<u64>::zeros([1]).unwrap().freeze();
            let child = builder.spawn(flaky, numbers).unwrap();
            ended(&child);
            child.join().unwrap();
            rest(&events);
            let (builder, events) = supervised(after(HOUR));
            let child = builder.spawn(|(): ()| Err::<(), _>("no"), ()).unwrap();
            until_it_waits(&events);
            child.kill().unwrap();
            assert!(child.join().is_err());
            rest(&events);
        };
        let files = || {
            assert!(active_children().is_empty());
            mp_harness::open_files()
        };
        run();
        let before = files();
        (0..10).for_each(|_| run());
        eventually("all files are closed", || files() == before);
        assert!(children().is_empty());
    });
}

/// Outcome of a start by a stopped fork server.
#[derive(Clone, Copy, PartialEq)]
enum Then {
    /// The server continues.
    Goes,
    /// The process is killed before the server continues.
    Killed,
    /// The start times out.
    GivenUp,
}

fn started_by_a_server_that_stands_still(then: Then) {
    let first_waits =
        |(): ()| -> Outcome { if current_process().attempt == 1 { wait_for_the_end() } else { Ok(()) } };
    let (builder, events) = supervised(at_most(5));
    // Long enough for a busy machine, in the cases in which the server continues.
    let time = if then == Then::GivenUp { Duration::from_secs(2) } else { 2 * DEADLINE };
    let builder = builder.start_method(StartMethod::ForkServer).handshake_timeout(time);
    let child = builder.spawn(first_waits, ()).unwrap();
    let pid = until_it_runs(&events);
    // A second process that needs no server.
    let (builder, _others) = supervised(at_most(5));
    let other = builder.start_method(StartMethod::Spawn).spawn(|(): ()| wait_for_the_end(), ()).unwrap();
    let (server, ahead) = (server(), next_worker_after(pid));
    signal(server, libc::SIGSTOP);
    // The next start would take the process made in advance, and request another. Now the start has to wait
    // for an answer. The process must be dead: a process that the kernel has not ended yet can still be
    // taken.
    signal(ahead, libc::SIGKILL);
    eventually("the next worker is dead", || mp_harness::threads_are(ahead, 'Z'));
    signal(pid, libc::SIGKILL);
    until_it_waits(&events);
    eventually("the start has reaped the dead next worker", || !children().contains(&ahead));
    if then != Then::GivenUp {
        assert!(
            matches!(child.status(), ProcessStatus::Restarting { attempt: 2, error: Some(_) }),
            "{child:?}"
        );
        assert!(child.is_alive() && child.exit().is_none());
        // Neither the ends of others nor signals to them are delayed.
        other.kill().unwrap();
        ended(&other);
        if then == Then::Killed {
            child.kill().unwrap();
        }
        signal(server, libc::SIGCONT);
    }
    match then {
        Then::Goes => assert_eq!(kinds(&rest(&events)), ["started 2", "ended 2"]),
        Then::Killed => assert_eq!(kinds(&rest(&events)), ["started 2", "failed 2"]),
        Then::GivenUp => {
            let event = next(&events);
            let ProcessEvent::NotStarted { attempt: 2, error, .. } = &event else { panic!("{event:?}") };
            let text = error.to_string();
            assert!(text.contains("did not report in time"), "{text}");
            assert_eq!(kinds(&rest(&events)), ["next 3", "started 3", "ended 3"]);
            other.kill().unwrap();
            ended(&other);
        }
    }
    ended(&child);
    match child.join() {
        Ok(()) => assert!(then != Then::Killed),
        Err(SpawnError::ProcessExited(exited)) if then == Then::Killed => {
            assert_eq!(exited.detail, Some(ExitDetail::Requested));
        }
        Err(error) => panic!("{error}"),
    }
    assert!(other.join().is_err());
}

#[test]
fn stopped_fork_server_delays_only_its_own_starts() {
    alone(|()| started_by_a_server_that_stands_still(Then::Goes));
    alone(|()| started_by_a_server_that_stands_still(Then::Killed));
}

#[test]
fn start_by_a_stopped_server_is_retried_by_another() {
    alone(|()| started_by_a_server_that_stands_still(Then::GivenUp));
}
