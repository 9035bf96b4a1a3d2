//! Handles of processes in a forked copy of the process that started them: their methods return an error at
//! once, because the processes are not children of the copy.
#![allow(unsafe_code)]

mod common;

use std::os::unix::process::parent_id;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Instant;

use common::supervised::{HOUR, after, rest, supervised, until_it_waits};
use common::{DEADLINE, Outcome, alone, eventually, wait_for_the_end};
use mp_spawn::{
    Process, ProcessContext, ProcessStatus, Restart, Result, SpawnError, SpawnOptions, StartMethod, Stdio,
    allow_fork, start_processes, wait,
};

static KEPT: Mutex<Option<(Process, ProcessContext)>> = Mutex::new(None);

fn is_refused<T>(result: Result<T>) -> bool {
    matches!(result, Err(SpawnError::OtherProcess { owner }) if owner == parent_id())
}

fn in_the_copy((): ()) -> Outcome {
    let (process, context) = KEPT.lock().map_err(|_| "poisoned")?.take().ok_or("nothing is kept")?;
    let since = Instant::now();
    assert!(!process.wait_timeout(10 * DEADLINE));
    assert!(is_refused(process.kill()) && is_refused(process.terminate()));
    assert!(is_refused(context.wait()) && is_refused(context.join_timeout(10 * DEADLINE)));
    assert!(is_refused(context.kill(0)) && is_refused(context.terminate_all()));
    assert!(is_refused(process.join()) && is_refused(context.results()));
    assert!(since.elapsed() < DEADLINE, "no call waits");
    Ok(())
}

#[test]
fn copied_process_handles_are_refused_and_end_nothing() {
    alone(|()| {
        // SAFETY: code in the copy needs no state of other threads.
        unsafe { allow_fork() };
        let process = Process::spawn(|(): ()| wait_for_the_end(), ()).unwrap();
        let options = SpawnOptions::nprocs(1);
        let context = start_processes(|_: usize, (): ()| wait_for_the_end(), (), options).unwrap();
        *KEPT.lock().unwrap() = Some((process, context));
        let copy = Process::builder().start_method(StartMethod::Fork).spawn(in_the_copy, ()).unwrap();
        assert!(copy.wait_timeout(DEADLINE));
        copy.join().unwrap();
        let (process, context) = KEPT.lock().unwrap().take().unwrap();
        assert!(process.is_alive() && matches!(context.status(0), Ok(ProcessStatus::Running)));
        process.kill().unwrap();
        assert!(process.join().is_err());
    });
}

/// Handles that are never dropped, because threads use them while copies are made.
static IN_USE: Mutex<Option<&'static (Process, ProcessContext)>> = Mutex::new(None);

/// Prints the current call of the copy, in case it blocks.
fn at(call: &str) {
    eprintln!("at {call}");
}

/// Makes all calls in a copy, although another thread of the original held a lock during the fork.
fn asks_for_everything((pid, ranks): (u32, Vec<u32>)) -> Outcome {
    let kept = IN_USE.try_lock().ok().and_then(|kept| *kept);
    let (process, context) = kept.ok_or("nothing is kept")?;
    at("the first calls");
    _ = (process.status(), process.exit(), process.is_alive(), process.restarts(), process.pid());
    _ = (format!("{process:?}"), process.stdout(), context.failures(), format!("{context:?}"));
    at("status");
    assert!(is_refused(match process.status() {
        ProcessStatus::Failed(error) => Err(error),
        other => Ok(other),
    }));
    assert!(is_refused(context.status(1)));
    at("exit");
    assert_eq!(process.exit(), None);
    assert!(is_refused(context.exit(1)));
    at("is_alive");
    assert!(!process.is_alive());
    at("pid");
    assert_eq!((process.pid(), context.pids()), (pid, ranks));
    at("restarts");
    assert_eq!(process.restarts(), 0);
    at("on_exit");
    let (report, reported) = std::sync::mpsc::channel::<()>();
    process.on_exit(move || _ = report.send(()));
    assert!(reported.recv_timeout(DEADLINE).is_err(), "the callback is dropped, and not called");
    at("sentinel");
    assert_eq!(wait(&[process], Some(DEADLINE))?, [0]);
    assert_eq!(context.sentinels().len(), 2);
    at("Debug");
    let owner = format!("children of process {}", parent_id());
    assert!(format!("{process:?}").contains(&owner), "{process:?}");
    assert_eq!(format!("{context:?}").matches(&owner).count(), 2, "{context:?}");
    at("output");
    assert_eq!((process.stdout().bytes.len(), process.stderr().bytes.len()), (0, 0));
    assert!(is_refused(context.stdout(0)) && is_refused(context.stderr(0)));
    at("failures");
    assert!(matches!(context.failures()[..], [SpawnError::OtherProcess { .. }]));
    Ok(())
}

/// Copies are made while threads hold the locks of the handles nearly all the time, because the threads
/// describe processes with long names.
#[test]
fn calls_in_a_forked_copy_never_wait_for_lost_threads() {
    alone(|()| {
        // SAFETY: code in the copy needs no state of other threads.
        unsafe { allow_fork() };
        let name = "n".repeat(50_000);
        let process =
            Process::builder().name(&name).daemon(true).spawn(|(): ()| wait_for_the_end(), ()).unwrap();
        let options = SpawnOptions::nprocs(2).name(&name).daemon(true);
        let context = start_processes(|_: usize, (): ()| wait_for_the_end(), (), options).unwrap();
        let kept: &'static _ = Box::leak(Box::new((process, context)));
        let (process, context) = kept;
        *IN_USE.lock().unwrap() = Some(kept);
        static OVER: AtomicBool = AtomicBool::new(false);
        static TURNS: [AtomicU32; 2] = [const { AtomicU32::new(0) }; 2];
        let threads = [0, 1].map(|which| {
            std::thread::spawn(move || {
                while !OVER.load(Ordering::Relaxed) {
                    let long = if which == 0 { format!("{process:?}") } else { format!("{context:?}") };
                    assert!(long.len() > 50_000);
                    TURNS[which].fetch_add(1, Ordering::Relaxed);
                }
            })
        });
        for round in 0..20 {
            let before = [0, 1].map(|which: usize| TURNS[which].load(Ordering::Relaxed));
            eventually("both threads continue", || {
                [0, 1].iter().all(|which| TURNS[*which].load(Ordering::Relaxed) > before[*which])
            });
            let copy = Process::builder().start_method(StartMethod::Fork).stderr(Stdio::Capture);
            let copy = copy.spawn(asks_for_everything, (process.pid(), context.pids())).unwrap();
            if !copy.wait_timeout(DEADLINE) {
                panic!("copy {round} waits: {}", copy.stderr().text());
            }
            copy.join().unwrap();
        }
        OVER.store(true, Ordering::Relaxed);
        for thread in threads {
            thread.join().unwrap();
        }
        assert!(process.is_alive() && matches!(context.status(1), Ok(ProcessStatus::Running)));
        process.kill().unwrap();
        context.kill_all().unwrap();
        assert!(process.join().is_err() && context.results().unwrap().iter().all(Result::is_err));
    });
}

static SUPERVISED: Mutex<Option<Process>> = Mutex::new(None);

fn drops_a_supervised_process((): ()) -> Outcome {
    let process = SUPERVISED.lock().map_err(|_| "poisoned")?.take().ok_or("nothing is kept")?;
    assert!(is_refused(process.kill()) && !process.is_alive());
    drop(process);
    // A new supervision, because the thread that supervises for the original does not exist here.
    let (builder, events) =
        supervised(Restart::OnFailure { max: 1, backoff: std::time::Duration::ZERO.into() });
    let own = builder.spawn(|(): ()| Err::<(), _>("no"), ())?;
    assert!(own.wait_timeout(DEADLINE) && matches!(own.join(), Err(SpawnError::GaveUp(_))));
    assert_eq!(rest(&events).len(), 6, "two starts, two ends, one restart, one end of the supervision");
    Ok(())
}

#[test]
fn drop_in_a_forked_copy_keeps_a_supervised_process() {
    alone(|()| {
        // SAFETY: code in the copies needs no state of other threads.
        unsafe { allow_fork() };
        let (builder, events) = supervised(after(HOUR));
        let process = builder.spawn(|(): ()| Err::<(), _>("no"), ()).unwrap();
        until_it_waits(&events);
        *SUPERVISED.lock().unwrap() = Some(process);
        for _ in 0..3 {
            let fork = Process::builder().start_method(StartMethod::Fork);
            let copy = fork.spawn(drops_a_supervised_process, ()).unwrap();
            assert!(copy.wait_timeout(DEADLINE), "{copy:?}");
            copy.join().unwrap();
        }
        let process = SUPERVISED.lock().unwrap().take().unwrap();
        assert!(matches!(process.status(), ProcessStatus::Restarting { attempt: 2, .. }), "{process:?}");
        process.kill().unwrap();
        assert!(process.wait_timeout(DEADLINE) && matches!(process.join(), Err(SpawnError::GaveUp(_))));
        assert_eq!(rest(&events).len(), 1, "the supervision ended without a start");
    });
}
