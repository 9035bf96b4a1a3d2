//! Processes with their own handles, and return values of functions.
#![allow(unsafe_code)]

mod common;

use std::error::Error;
use std::time::{Duration, Instant};

use common::{DEADLINE, Meeting, Outcome, alive, eventually, join, say, wait_for_the_end, wait_for_word};
use mp_spawn::{
    Descriptor, ExitDetail, ExitStatus, OnFailure, Process, Signal, SpawnError, SpawnOptions, Waitable,
    active_children, current_process, parent_process, start_processes, wait,
};
use mp_tensor::{FrozenTensor, Tensor};

#[test]
fn spawn_returns_the_values_of_workers_by_rank() {
    let worker = |rank: usize, text: String| text.parse::<usize>().map(|number| (rank, number + rank));
    assert_eq!(mp_spawn::spawn(worker, "7".to_string(), 3).unwrap(), [(0, 7), (1, 8), (2, 9)]);
    assert_eq!(mp_spawn::spawn(|_: usize, (): ()| {}, (), 2).unwrap(), [(), ()]);
}

#[test]
fn frozen_tensors_return_without_a_copy() {
    let frozen = Tensor::<u32>::from_slice(&[0, 1, 2, 3], [4]).unwrap().freeze();
    let worker = |tensor: FrozenTensor<u32>| -> Result<FrozenTensor<u32>, String> {
        assert_eq!(tensor.as_slice().unwrap()[3], 3);
        Ok(tensor)
    };
    let back = Process::spawn(worker, frozen.clone()).unwrap().join().unwrap();
    assert_eq!(back.storage(), frozen.storage());
}

#[test]
fn exclusive_tensor_moves_to_a_worker_and_back() {
    let worker = |mut tensor: Tensor<u8>| -> Result<Tensor<u8>, String> {
        tensor.as_mut_slice().unwrap().reverse();
        Ok(tensor)
    };
    let tensor = Tensor::<u8>::from_slice(&[1, 2, 3], [3]).unwrap();
    let back = Process::spawn(worker, tensor).unwrap().join().unwrap();
    assert_eq!(back.as_slice().unwrap(), [3, 2, 1]);
}

#[test]
fn missing_return_value_is_an_error() {
    let leaver = |_: usize, (): ()| -> Result<u8, String> { std::process::exit(0) };
    let error = start_processes(leaver, (), SpawnOptions::nprocs(1)).unwrap().join().unwrap_err();
    let SpawnError::ProcessExited(exited) = &error else { panic!("unexpected: {error:?}") };
    assert_eq!((exited.exit, &exited.detail), (ExitStatus::Code(0), &Some(ExitDetail::NoValue)));
    assert!(error.to_string().contains("before its function returned"), "{error}");
}

#[test]
fn each_rank_has_its_own_result() {
    let worker = |rank: usize, (): ()| match rank {
        0 => Ok("fine".to_string()),
        1 => Err("not fine"),
        _ => std::process::exit(4),
    };
    let options = SpawnOptions::nprocs(3).on_failure(OnFailure::Continue);
    let results = start_processes(worker, (), options).unwrap().results().unwrap();
    assert_eq!(results[0].as_deref().unwrap(), "fine");
    assert!(matches!(&results[1], Err(SpawnError::ProcessRaised(raised)) if raised.message == "not fine"));
    assert!(
        matches!(&results[2], Err(SpawnError::ProcessExited(exited)) if exited.exit == ExitStatus::Code(4))
    );
}

#[test]
fn process_handle_shows_whether_its_process_runs() {
    let meeting = Meeting::new("whole");
    let go = format!("{}-go", meeting.name);
    let worker = |(meeting, go): (String, String)| -> Outcome {
        say(&meeting, &format!("{:?}", current_process()))?;
        wait_for_word(&go)
    };
    let child = Process::builder().name("loader").spawn(worker, (meeting.name.clone(), go.clone())).unwrap();
    let received = meeting.recv();
    assert!(
        received.contains("name: \"loader\"") && received.contains(&format!("pid: {}", child.pid())),
        "{received}"
    );
    assert!(child.is_alive() && !child.wait_timeout(Duration::ZERO));
    assert_eq!((child.name(), child.exit(), child.daemon()), ("loader", None, false));
    assert!(active_children().iter().any(|active| active.name == "loader" && active.pid == child.pid()));
    let mut said = Err("not yet".into());
    eventually("the worker waits for its word", || {
        said = say(&go, "go");
        said.is_ok()
    });
    assert!(child.wait_timeout(DEADLINE));
    assert_eq!((child.is_alive(), child.exit()), (false, Some(ExitStatus::Code(0))));
    assert!(!active_children().iter().any(|active| active.pid == child.pid()));
    let sentinel = child.sentinel();
    let mut fds = [rustix::event::PollFd::new(&sentinel, rustix::event::PollFlags::IN)];
    assert_eq!(rustix::event::poll(&mut fds, None), Ok(1));
    child.terminate().unwrap();
    child.join().unwrap();
}

#[test]
fn error_of_a_terminated_process_names_the_request() {
    let child = Process::spawn(|(): ()| wait_for_the_end(), ()).unwrap();
    child.terminate().unwrap();
    let error = child.join().unwrap_err();
    let SpawnError::ProcessExited(exited) = &error else { panic!("unexpected: {error:?}") };
    assert_eq!(exited.exit, ExitStatus::Signal { signal: Signal::TERM, core_dumped: false });
    assert_eq!(exited.detail, Some(ExitDetail::Requested));
}

#[test]
fn each_rank_has_its_own_environment() {
    type Seen = (Option<String>, bool, String, usize);
    let worker = |_: usize, (): ()| -> Result<Seen, std::io::Error> {
        let gone = std::env::var_os("MP_TEST_GONE").is_none();
        let directory = std::env::current_dir()?.display().to_string();
        let processors = std::thread::available_parallelism()?.get();
        Ok((std::env::var("MP_TEST_RANK").ok(), gone, directory, processors))
    };
    let options = SpawnOptions::nprocs(2)
        .env("MP_TEST_GONE", "here")
        .env_remove("MP_TEST_GONE")
        .env("MP_TEST_RANK", "all")
        .current_dir("/")
        .processors([0])
        .per_rank(
            |rank, setup| {
                if rank == 1 { setup.env("MP_TEST_RANK", "one").current_dir("/proc") } else { setup }
            },
        );
    let seen = start_processes(worker, (), options).unwrap().join().unwrap();
    let expected = |rank: &str, directory: &str| (Some(rank.to_string()), true, directory.to_string(), 1);
    assert_eq!(seen, [expected("all", "/"), expected("one", "/proc")]);
}

#[test]
fn invalid_spawn_options_are_named_in_errors() {
    let attempt = |options: SpawnOptions| {
        let started = start_processes(|_: usize, (): ()| {}, (), options);
        started.and_then(|context| join(&context)).unwrap_err().to_string()
    };
    let error = attempt(SpawnOptions::nprocs(1).current_dir("/no/such/place"));
    assert!(error.contains("changing to the directory /no/such/place failed: No such file"), "{error}");
    let error = attempt(SpawnOptions::nprocs(1).processors([1000]));
    assert!(error.contains("choosing the processors [1000] failed"), "{error}");
    let error = attempt(SpawnOptions::nprocs(1).processors([1 << 20]));
    assert!(error.contains("there is no processor 1048576"), "{error}");
    let error = attempt(SpawnOptions::nprocs(1).env("a=b", "c"));
    assert!(error.contains("it is not a valid name of a variable"), "{error}");
}

#[test]
fn exit_waits_for_started_processes() {
    fn late(meeting: String) -> Outcome {
        wait_for_word(&format!("{meeting}-go"))?;
        say(&meeting, "late")
    }
    // The handle is dropped, and the worker returns.
    let worker = |_: usize, meeting: String| -> Outcome {
        drop(Process::spawn(late, meeting)?);
        Ok(())
    };
    let meeting = Meeting::new("at-exit");
    let context = start_processes(worker, meeting.name.clone(), SpawnOptions::nprocs(1)).unwrap();
    assert!(!context.join_timeout(Duration::from_millis(50)).unwrap(), "the exit must wait");
    eventually("the late process waits for its word", || say(&format!("{}-go", meeting.name), "go").is_ok());
    assert_eq!(meeting.recv(), "late");
    join(&context).unwrap();
}

#[test]
fn detached_ranks_outlive_their_context() {
    fn late(rank: usize, meeting: String) -> Outcome {
        wait_for_word(&format!("{meeting}-go-{rank}"))?;
        assert!(!mp_spawn::current_process().daemon);
        if rank == 1 { Err("rank 1 failed at last".into()) } else { say(&meeting, "late") }
    }
    let worker = |_: usize, meeting: String| -> Outcome {
        start_processes(late, meeting, SpawnOptions::nprocs(2))?.detach();
        Ok(())
    };
    let meeting = Meeting::new("no-daemons");
    let options = SpawnOptions::nprocs(1).stderr(mp_spawn::Stdio::Capture);
    let context = start_processes(worker, meeting.name.clone(), options).unwrap();
    assert!(!context.join_timeout(Duration::from_millis(50)).unwrap(), "the exit must wait");
    for rank in [0, 1] {
        eventually("late ranks listen", || say(&format!("{}-go-{rank}", meeting.name), "go").is_ok());
    }
    assert_eq!(meeting.recv(), "late");
    join(&context).unwrap();
    let text = context.stderr(0).unwrap().text();
    assert!(text.contains("rank 1 failed at last"), "{text}");
}

/// Each rank waits for all other ranks. The ranks would wait forever if a rank had to do anything before the
/// next rank is started.
#[test]
fn ranks_start_concurrently() {
    const RANKS: usize = 8;
    let worker = |rank: usize, meeting: String| -> Outcome {
        say(&meeting, &rank.to_string())?;
        wait_for_word(&format!("{meeting}-go-{rank}"))
    };
    let meeting = Meeting::new("all-at-once");
    let context = start_processes(worker, meeting.name.clone(), SpawnOptions::nprocs(RANKS)).unwrap();
    let mut received: Vec<String> = (0..RANKS).map(|_| meeting.recv()).collect();
    received.sort_unstable();
    assert_eq!(received, (0..RANKS).map(|rank| rank.to_string()).collect::<Vec<_>>());
    for rank in 0..RANKS {
        eventually("each rank listens", || say(&format!("{}-go-{rank}", meeting.name), "go").is_ok());
    }
    join(&context).unwrap();
}

/// Blocks SIGTERM and sends a line. After a SIGTERM, reports whether the process `before` is alive. Then
/// waits until another process ends it.
fn stand(meeting: String, before: Option<u32>) -> Outcome {
    let mut set = std::mem::MaybeUninit::uninit();
    let mut got = 0;
    // SAFETY: the function initialises the set.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: initialised just now.
    let mut set = unsafe { set.assume_init() };
    // SAFETY: the set is initialised, and the signal exists.
    unsafe { libc::sigaddset(&raw mut set, libc::SIGTERM) };
    // SAFETY: the set is initialised. A null pointer means that the old set is not requested.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
    say(&meeting, "stands")?;
    // SAFETY: both are valid, and the signal is blocked.
    unsafe { libc::sigwait(&raw const set, &raw mut got) };
    say(
        &meeting,
        if before.is_none_or(alive) { "asked, and the others live" } else { "asked when others were dead" },
    )?;
    wait_for_the_end()
}

#[test]
fn daemons_that_ignore_sigterm_share_one_grace() {
    const DAEMONS: usize = 3;
    let worker = |_: usize, meeting: String| -> Result<Vec<u32>, Box<dyn Error + Send + Sync>> {
        let mut pids: Vec<u32> = Vec::new();
        for _ in 0..DAEMONS {
            let args = (meeting.clone(), pids.last().copied());
            let daemon = Process::builder()
                .daemon(true)
                .spawn(|(meeting, before): (String, Option<u32>)| stand(meeting, before), args)?;
            pids.push(daemon.pid());
        }
        wait_for_word(&format!("{meeting}-go"))?;
        Ok(pids)
    };
    let meeting = Meeting::new("grace");
    let context = start_processes(worker, meeting.name.clone(), SpawnOptions::nprocs(1)).unwrap();
    let recv_all = || (0..DAEMONS).map(|_| meeting.recv()).collect::<Vec<_>>();
    assert_eq!(recv_all(), ["stands"; DAEMONS]);
    eventually("the parent listens", || say(&format!("{}-go", meeting.name), "go").is_ok());
    // No process gets a SIGKILL before every process got a SIGTERM.
    assert_eq!(recv_all(), ["asked, and the others live"; DAEMONS]);
    let pids = context.join().unwrap().remove(0);
    assert!(!pids.into_iter().any(alive), "processes that ignored SIGTERM were killed");
}

#[test]
fn process_ends_its_daemons_at_its_exit() {
    let worker = |_: usize, (): ()| -> Result<u32, SpawnError> {
        let daemon = Process::builder().daemon(true).spawn(|(): ()| wait_for_the_end(), ())?;
        Ok(daemon.pid())
    };
    let since = Instant::now();
    let daemons = start_processes(worker, (), SpawnOptions::nprocs(1)).unwrap().join().unwrap();
    assert!(since.elapsed() < DEADLINE);
    eventually("the daemon is gone", || !alive(daemons[0]));
}

#[test]
fn unreported_failure_of_a_process_is_printed_at_exit() {
    let worker = |_: usize, (): ()| -> Result<(), SpawnError> {
        drop(Process::builder().name("orphan").spawn(|(): ()| Err::<(), _>("not joined"), ())?);
        Ok(())
    };
    let options = SpawnOptions::nprocs(1).stderr(mp_spawn::Stdio::Capture);
    let context = start_processes(worker, (), options).unwrap();
    join(&context).unwrap();
    let text = context.stderr(0).unwrap().text();
    assert!(text.contains("mp: orphan (pid ") && text.contains("failed: not joined"), "{text}");
}

/// Returns a context whose only process has failed. No call has returned the failure.
fn failed_context() -> mp_spawn::ProcessContext {
    let fails = |_: usize, (): ()| Err::<(), _>("the disk is full");
    let context = start_processes(fails, (), SpawnOptions::nprocs(1)).unwrap();
    eventually("the process has ended", || Descriptor(context.sentinels()[0]).is_ready());
    context
}

/// Returns the standard error output of a process that runs `function`.
fn stderr_of<R: mp_spawn::IntoOutcome<Value = ()>>(
    function: impl Fn(usize, ()) -> R + Copy + Send + 'static,
) -> String {
    let options = SpawnOptions::nprocs(1).stderr(mp_spawn::Stdio::Capture);
    let context = start_processes(function, (), options).unwrap();
    assert!(context.join_timeout(DEADLINE).unwrap());
    context.stderr(0).unwrap().text()
}

#[test]
fn unreported_failure_is_printed_at_context_drop() {
    let text = stderr_of(|_, ()| drop(failed_context()));
    assert!(text.contains("mp: rank 0 (pid ") && text.contains("failed: the disk is full"), "{text}");
    assert_eq!(text.matches("the disk is full").count(), 1, "{text}");
}

#[test]
fn unreported_failure_of_a_context_is_printed_at_exit() {
    let text = stderr_of(|_, ()| {
        std::mem::forget(failed_context());
        // Another start removes the groups that have ended.
        drop(Process::spawn(|(): ()| {}, ()).unwrap());
        std::process::exit(0);
    });
    assert_eq!(text.matches("failed: the disk is full").count(), 1, "{text}");
}

#[test]
fn reported_failure_is_not_printed() {
    let text = stderr_of(|_, ()| {
        let context = failed_context();
        assert!(context.wait().is_err());
    });
    assert!(!text.contains("the disk is full"), "{text}");
}

#[test]
fn parent_handle_refers_to_the_live_parent() {
    let worker = |parent: u32| -> Result<bool, std::io::Error> {
        let found = parent_process().expect("the parent lives");
        assert_eq!(found.pid(), parent);
        found.wait_timeout(Duration::from_millis(1))
    };
    assert!(!Process::spawn(worker, std::process::id()).unwrap().join().unwrap());
    assert!(parent_process().is_none());
}

#[test]
fn panic_in_an_exit_callback_is_caught() {
    let (report, reported) = std::sync::mpsc::channel();
    let first = Process::spawn(|name: String| wait_for_word(&name), Meeting::new("unused").name);
    let first = first.unwrap();
    first.on_exit(|| panic!("not so quick"));
    first.kill().unwrap();
    eventually("the process has ended", || !first.is_alive());
    let second = Process::spawn(|(): ()| {}, ()).unwrap();
    second.on_exit(move || _ = report.send(()));
    reported.recv_timeout(DEADLINE).expect("the supervisor still watches");
}

#[test]
fn unreported_failures_hold_no_descriptors() {
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let fail = || {
        let child = Process::spawn(|(): ()| Err::<(), _>("it went wrong"), ()).unwrap();
        assert!(child.wait_timeout(DEADLINE));
    };
    fail();
    let before = open();
    (0..60).for_each(|_| fail());
    // Other tests may hold a few descriptors at the same time.
    eventually("the descriptors are closed", || {
        _ = active_children();
        open() < before + 30
    });
}

#[test]
fn exit_status_is_known_after_the_sentinel_fires() {
    for round in 0..200 {
        let child = Process::spawn(|(): ()| {}, ()).unwrap();
        assert_eq!(mp_spawn::wait(&[&child], Some(DEADLINE)).unwrap(), [0]);
        match round % 2 {
            0 => assert_eq!(child.exit(), Some(ExitStatus::Code(0))),
            _ => assert!(!child.is_alive()),
        }
    }
}

#[test]
fn context_sentinels_report_the_end_of_each_rank() {
    let meeting = Meeting::new("sentinels");
    let worker = |rank: usize, meeting: String| -> Outcome {
        if rank == 2 {
            // SAFETY: this installs no handler.
            unsafe { libc::signal(libc::SIGTERM, libc::SIG_IGN) };
        }
        say(&meeting, "here")?;
        if rank == 1 { wait_for_word(&format!("{meeting}-go")) } else { wait_for_the_end() }
    };
    let options = SpawnOptions::nprocs(4).on_failure(OnFailure::Continue);
    let context = start_processes(worker, meeting.name.clone(), options).unwrap();
    (0..4).for_each(|_| assert_eq!(meeting.recv(), "here"));
    let ends: Vec<_> = context.sentinels().into_iter().map(Descriptor).collect();
    let ended = |time| {
        let things: Vec<_> = ends.iter().map(|end| end as &dyn Waitable).collect();
        wait(&things, Some(time)).unwrap()
    };
    assert_eq!((ends.len(), ended(Duration::ZERO)), (4, vec![]));
    eventually("the rank waits for its word", || say(&format!("{}-go", meeting.name), "go").is_ok());
    assert_eq!(ended(DEADLINE), [1]);
    assert_eq!(context.exit(1).unwrap(), Some(ExitStatus::Code(0)));
    // The running processes get a SIGTERM, and one of them ignores it.
    context.terminate_all().unwrap();
    eventually("two more have ended", || ended(Duration::ZERO) == [0, 1, 3]);
    context.kill_all().unwrap();
    eventually("all have ended", || ended(Duration::ZERO) == [0, 1, 2, 3]);
    assert!(matches!(context.join_timeout(DEADLINE), Err(SpawnError::ProcessExited(_))));
    let signals = [0, 2, 3].map(|rank| match context.exit(rank) {
        Ok(Some(ExitStatus::Signal { signal, .. })) => signal,
        other => panic!("{rank}: {other:?}"),
    });
    assert_eq!(signals, [Signal::TERM, Signal::KILL, Signal::TERM]);
    // Until now no other process could get their numbers.
    context.kill_all().unwrap();
    assert_eq!(ended(Duration::ZERO), [0, 1, 2, 3]);
}
