//! Pool whose workers die at every access to shared memory, and pool in a forked child.
#![allow(unsafe_code)]

use std::time::Duration;

use mp::pool::{MapResult, PoolError, ResultKind};
use mp::process::{ExitStatus, Signal};
use mp::{AsyncResult, FrozenTensor, Pool, TaskError, Tensor};
use mp_core::inject;
use mp_tests::kill::{each, for_every_access};
use mp_tests::{DEADLINE, alone, eventually, one_process};
use rustix::process::Signal as Sent;

use crate::{loader, streams};

fn got<T, S: ResultKind<T>>(result: AsyncResult<T, S>) -> Result<S::Value, TaskError> {
    match result.get_timeout(DEADLINE) {
        Ok(value) => value,
        Err(result) => panic!("not within {DEADLINE:?}: {result:?}"),
    }
}

type Args = (u64, Option<(u64, i32)>, FrozenTensor<u64>);

/// Task that returns its number and a tensor. It may arm a kill or stop of its process.
fn work((number, arm, all): Args) -> mp::AnyResult<(u64, FrozenTensor<u64>)> {
    assert_eq!(all.get(&[3])?, 77, "torn");
    if let Some((at, signal)) = arm {
        inject::arm(at, signal);
    }
    let own = Tensor::full([100], number)?;
    Ok((number, own.freeze()))
}

fn check(number: u64, (same, own): (u64, FrozenTensor<u64>)) {
    assert!(same == number && own.iter().all(|v| v == number), "torn: {number}, {same}, {own:?}");
}

const TASKS: u64 = 6;

/// Runs six tasks in one worker that already knows the function. The second task arms the signal. Also
/// returns the worker's process id.
fn round(at: u64, signal: Sent) -> (Pool, u32, MapResult<(u64, FrozenTensor<u64>)>) {
    let all = Tensor::full([2000], 77).unwrap().freeze();
    // A stopped worker doesn't receive the request to end.
    let pool = Pool::builder().processes(1).grace_period(Duration::from_millis(20)).build().unwrap();
    got(pool.apply_async(work, (9, None, all.clone()))).unwrap();
    // Read now, because the worker may be replaced or missing after the signal is armed.
    let pid = pool.pids()[0];
    let arm = |number| (number == 1).then_some((at, signal.as_raw()));
    let tasks = (0..TASKS).map(|number| (number, arm(number), all.clone()));
    let results = pool.task(work).chunksize(TASKS as usize).map_async(tasks);
    (pool, pid, results)
}

#[test]
fn pool_worker_killed_in_a_task_loses_only_that_task() {
    for_every_access(|at| {
        let (pool, pid, results) = round(at, Sent::KILL);
        assert!(results.wait_timeout(DEADLINE), "{at}: {results:?}");
        let mut lost = Vec::new();
        for (number, result) in (0..).zip(results.results()) {
            match result {
                Ok(value) => check(number, value),
                Err(TaskError::WorkerLost(error)) => {
                    assert_eq!(error.pid, pid);
                    assert!(matches!(error.exit, ExitStatus::Signal { signal: Signal::KILL, .. }), "{error}");
                    lost.push(number);
                }
                Err(other) => panic!("{at}, task {number}: {other}"),
            }
        }
        assert!(lost.len() <= 1, "{at}: tasks {lost:?} were lost with one worker");
        // The worker may also die at the end of the queue.
        let reached = pool.pids() != [pid] || !lost.is_empty();
        drop(pool);
        // The script has more than 400 accesses, so a kill before that must have been detected.
        reached || at <= 400
    });
}

#[test]
fn stopped_pool_worker_delays_no_other_worker() {
    let _alone = alone();
    for at in each(7, 300) {
        let (pool, pid, results) = round(at, Sent::STOP);
        eventually("the worker is stopped, or the tasks are done", || {
            results.ready() || mp_tests::threads_are(pid, 'T')
        });
        // The pool ends the worker, whether it has answered or not, and no process waits for it.
        drop(pool);
        assert!(results.wait_timeout(DEADLINE), "{at}: {results:?}");
        for (number, result) in (0..).zip(results.results()) {
            match result {
                Ok(value) => check(number, value),
                Err(error) => assert!(matches!(error, TaskError::Terminated), "{at}, task {number}: {error}"),
            }
        }
    }
}

/// The worker may also be stopped after the task and before its answer. In that case, the task is done, but
/// its answer is never sent.
#[test]
fn stopped_worker_is_killed_at_its_time_limit() {
    let _alone = alone();
    let all = Tensor::full([2000], 77).unwrap().freeze();
    for at in each(7, 150) {
        let pool = Pool::builder().processes(1).grace_period(Duration::from_millis(20)).build().unwrap();
        got(pool.apply_async(work, (9, None, all.clone()))).unwrap();
        let arm = Some((at, Sent::STOP.as_raw()));
        let task = pool.task(work).timeout(Duration::from_millis(300));
        match got(task.apply_async((1, arm, all.clone()))) {
            Ok(value) => check(1, value),
            Err(TaskError::TimedOut { .. } | TaskError::WorkerLost(_)) => {}
            Err(other) => panic!("{at}: {other}"),
        }
    }
}

#[test]
fn forked_copy_cannot_use_pools_or_loaders() {
    fn worker(_: usize, (): ()) -> mp::AnyResult<i32> {
        let pool = Pool::new(1)?;
        let result = pool.map_async(|x: u64| x, 0..10);
        result.wait();
        let loader = loader::builder(loader::When::Never, 0, 0, 1).build()?;
        let mut batches = loader.epoch(0);
        drop(batches.next());
        let shards = streams::builder(loader::When::Never, 0, 0, 1, 0).build()?;
        let mut of_shards = shards.epoch(0);
        drop(of_shards.next());
        // SAFETY: the copy has only this thread, and ends at once.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let closed =
                matches!(pool.apply(|x: u64| x, 1), Err(TaskError::Closed { .. } | TaskError::Terminated));
            let ended = matches!(result.get(), Err(TaskError::Terminated));
            let nothing = pool.imap(|x: u64| x, 0..3).all(|result| result.is_err());
            let joined = matches!(pool.join_timeout(DEADLINE), Err(PoolError::OtherProcess { .. }));
            drop(pool);
            // The loader returns results that had arrived, an error, and nothing more.
            let mut of_loader: Vec<bool> = batches.map(|batch| batch.is_err()).collect();
            let no_loader = of_loader.pop() == Some(true) && !of_loader.contains(&true);
            let mut of_shards: Vec<bool> = of_shards.map(|batch| batch.is_err()).collect();
            let no_stream = of_shards.pop() == Some(true) && !of_shards.contains(&true);
            drop((loader, shards));
            let failed = [closed, ended, nothing, joined, no_loader, no_stream].iter().position(|ok| !ok);
            // SAFETY: ends the copy at once, without running the exit handlers of the parent.
            unsafe { libc::_exit(failed.map_or(0, |i| i as i32 + 1)) };
        }
        let mut status = 0;
        eventually("the copy ends", || {
            // SAFETY: the status is valid for writes, and the process is a child of this process.
            unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) == pid }
        });
        assert_eq!(pool.apply(|x: u64| x + 1, 1)?, 2);
        assert_eq!(result.get()?, Vec::from_iter(0..10));
        assert_eq!(batches.filter(Result::is_ok).count(), 3);
        assert_eq!(of_shards.filter(Result::is_ok).count(), 4);
        Ok(status)
    }
    let _alone = alone();
    assert_eq!(one_process(worker, ()).join().unwrap(), [0]);
}
