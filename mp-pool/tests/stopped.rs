//! Workers that are stopped (SIGSTOP, a debugger), and may resume at any time: tasks that they have not begun
//! run in another worker, once, and tasks with a time-out end.

mod common;

use std::time::Duration;

use common::{Gate, eventually, got, join, signal, stop_at, stopped};
use mp_pool::{Pool, TaskError, current_worker};
use mp_spawn::closure;
use mp_tensor::{SharedTensor, Tensor};
use rustix::process::Signal;

const TIMEOUT: Duration = Duration::from_millis(500);

/// Counts how often a task was begun. Returns the worker that ran it.
fn counts((begun, task): (SharedTensor<u64>, usize)) -> Option<usize> {
    begun.fetch_add(task, 1);
    current_worker()
}

fn stop(pool: &Pool, worker: usize) -> u32 {
    let pid = pool.pids()[worker];
    signal(pid, Signal::STOP);
    eventually("the worker is stopped", || stopped(pid));
    pid
}

/// Waits until all workers are ready and know the function.
fn warm(pool: &Pool, begun: &SharedTensor<u64>) {
    let mut seen = vec![false; pool.processes()];
    eventually("each worker has had a task", || {
        let results = pool.map(counts, (0..16).map(|_| (begun.clone(), 0))).unwrap();
        results.into_iter().flatten().for_each(|worker| seen[worker] = true);
        seen.iter().all(|seen| *seen)
    });
}

#[test]
fn unbegun_tasks_of_a_stopped_worker_run_once() {
    const TASKS: usize = 40;
    let pool = Pool::new(2).unwrap();
    let begun: SharedTensor<u64> = Tensor::zeros([TASKS + 1]).unwrap().share();
    let count = |task: usize| (begun.clone(), TASKS.min(task));
    let unused: SharedTensor<u64> = Tensor::zeros([1]).unwrap().share();
    warm(&pool, &unused);
    for round in 0..2 {
        let pid = stop(&pool, round);
        // One by one: the stopped worker receives the first task, and no second one.
        for task in 0..TASKS / 4 {
            assert_eq!(
                got(pool.apply_async(counts, count(round * TASKS / 2 + task))).unwrap(),
                Some(1 - round)
            );
        }
        let rest = (TASKS / 4..TASKS / 2).map(|task| count(round * TASKS / 2 + task));
        got(pool.map_async(counts, rest)).unwrap();
        signal(pid, Signal::CONT);
        // The resumed worker has no task left, and continues to work.
        eventually("the resumed worker receives tasks", || {
            pool.map(counts, (0..8).map(|_| (unused.clone(), 0))).unwrap().contains(&Some(round))
        });
    }
    join(&pool);
    assert_eq!(begun.to_vec(), [vec![1; TASKS], vec![0]].concat());
}

#[test]
fn stopped_worker_delays_no_new_function_or_timeout() {
    let pool = Pool::new(2).unwrap();
    let unused: SharedTensor<u64> = Tensor::zeros([1]).unwrap().share();
    warm(&pool, &unused);
    let pid = stop(&pool, 0);
    let n = 5;
    let closure = pool.task_closure(closure!([n] |x: u32| (current_worker(), x + n)));
    for x in 0..5 {
        assert_eq!(got(closure.apply_async(x)).unwrap(), (Some(1), x + 5));
    }
    let call = pool.task(|x: u32| (current_worker(), x + 1)).timeout(Duration::from_secs(30));
    for x in 0..5 {
        assert_eq!(got(call.apply_async(x)).unwrap(), (Some(1), x + 1));
    }
    signal(pid, Signal::CONT);
    assert_eq!(pool.pids()[0], pid);
    join(&pool);
}

#[test]
fn unbegun_tasks_of_stopped_workers_time_out() {
    for workers in [1, 2] {
        let pool = Pool::new(workers).unwrap();
        let unused: SharedTensor<u64> = Tensor::zeros([1]).unwrap().share();
        warm(&pool, &unused);
        let begun: SharedTensor<u64> = Tensor::zeros([10]).unwrap().share();
        let pids: Vec<u32> = (0..workers).map(|worker| stop(&pool, worker)).collect();
        let call = pool.task(counts).timeout(TIMEOUT);
        let results = call.map_async((0..10).map(|task| (begun.clone(), task)));
        assert!(results.wait_timeout(common::DEADLINE), "{results:?}");
        let results = results.results();
        let timed_out = |result: &Result<_, TaskError>| match result {
            Err(TaskError::TimedOut { pid, timeout, .. }) if pids.contains(pid) && *timeout == TIMEOUT => {
                Some(*pid)
            }
            Ok(_) => None,
            Err(other) => panic!("{other:?}"),
        };
        // A task of each stopped worker timed out, and the worker was killed. The other tasks ran in a
        // replacement. It may start before the time of the other stopped worker has ended, and then takes all
        // tasks that this worker has not begun.
        let killed: Vec<u32> = results.iter().filter_map(timed_out).collect();
        assert!((1..=workers).contains(&killed.len()), "{results:?}");
        let times: Vec<u64> = results.iter().map(|result| u64::from(result.is_ok())).collect();
        assert_eq!(begun.to_vec(), times);
        // A replacement may have run all remaining tasks before the other worker has one.
        eventually("the killed workers are replaced", || pool.pids().iter().all(|pid| !killed.contains(pid)));
        let stays: Vec<u32> = pids.into_iter().filter(|pid| !killed.contains(pid)).collect();
        assert!(stays.iter().all(|pid| pool.pids().contains(pid)), "{stays:?} {killed:?} {pool:?}");
        stays.into_iter().for_each(|pid| signal(pid, Signal::CONT));
        join(&pool);
    }
}

#[test]
fn running_task_of_a_stopped_worker_times_out() {
    let pool = Pool::new(2).unwrap();
    let gate = Gate::new();
    let result = pool.task(stop_at).timeout(TIMEOUT).apply_async((gate.clone(), 1));
    let (_, pid) = gate.arrived();
    signal(pid, Signal::STOP);
    assert!(matches!(got(result), Err(TaskError::TimedOut { pid: killed, .. }) if killed == pid));
    assert_eq!(got(pool.apply_async(|x: u32| x + 1, 1)).unwrap(), 2);
    join(&pool);
}
