//! Handles of processes in a copy of the process that started them: they have no owner there, and return an error at once.
#![allow(unsafe_code)]

mod common;

use std::os::unix::process::parent_id;
use std::sync::Mutex;
use std::time::Instant;

use common::{DEADLINE, Outcome, alone, wait_for_the_end};
use mp_spawn::{
    Process, ProcessContext, ProcessStatus, Result, SpawnError, SpawnOptions, StartMethod, allow_fork,
    start_processes,
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
fn they_are_refused_and_end_no_process() {
    alone(|()| {
        // SAFETY: what runs in the copy needs nothing of other threads.
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
