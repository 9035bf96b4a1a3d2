//! Pools that grow and shrink while they work.

mod common;

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Instant;

use common::{DEADLINE, Gate, Random, alive, eventually, got, join, kill, lost, stop_at};
use mp_pool::{Pool, PoolError, StatePool, TaskError};
use mp_spawn::Stdio;
use mp_tensor::{SharedTensor, Tensor};
use rustix::process::Signal;

/// State that counts its creations and drops.
struct Counted(SharedTensor<i64>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, 1);
    }
}

fn counted(counts: SharedTensor<i64>) -> Result<Counted, std::io::Error> {
    counts.fetch_add(0, 1);
    Ok(Counted(counts))
}

fn zeros(len: usize) -> SharedTensor<i64> {
    Tensor::zeros([len]).unwrap().share()
}

fn counted_pool(processes: usize) -> (StatePool<Counted>, SharedTensor<i64>) {
    let counts = zeros(2);
    let pool = Pool::builder().processes(processes).try_state(counted, counts.clone()).build().unwrap();
    eventually("all workers have a state", || counts.to_vec()[0] == processes as i64);
    (pool, counts)
}

#[track_caller]
fn workers_are(pool: &Pool, count: usize) {
    eventually("the pool has its size", || {
        let pids = pool.pids();
        pids.len() == count && pids.iter().all(|pid| *pid != 0)
    });
    assert_eq!(pool.processes(), count);
}

/// Records that the task ran, and stops at the gate, if any.
fn note_and_stop((ran, number, gate): (SharedTensor<i64>, u32, Option<Gate>)) -> u32 {
    ran.fetch_add(number as usize, 1);
    gate.into_iter().for_each(|gate| gate.pass(number));
    number
}

#[test]
fn grown_pool_starts_workers_with_states() {
    let (pool, counts) = counted_pool(1);
    let gate = Gate::new();
    let stop = |_: &mut Counted, args: (Gate, u32)| (stop_at(args), mp_pool::current_worker());
    let results: Vec<_> = (0..3).map(|number| pool.apply_async(stop, (gate.clone(), number))).collect();
    pool.pool().resize(3).unwrap();
    assert_eq!(pool.pool().processes(), 3);
    // Each task runs in another process: all stop at the same time.
    let pids: HashSet<u32> = (0..3).map(|_| gate.arrived().1).collect();
    assert_eq!((pids.len(), counts.to_vec()), (3, vec![3, 0]));
    assert_eq!(pool.pool().metrics().workers.len(), 3);
    gate.open(3);
    let numbers: HashSet<_> = results.into_iter().map(|result| got(result).unwrap().1).collect();
    assert_eq!(numbers, HashSet::from([Some(0), Some(1), Some(2)]));
    assert_eq!(pool.pool().metrics().restarts, 0);
    join(pool.pool());
    assert_eq!(counts.to_vec(), [3, 3]);
}

#[test]
fn surplus_workers_finish_their_running_task() {
    const TASKS: usize = 150;
    let (pool, counts) = counted_pool(3);
    let (ran, gates) = (zeros(TASKS), [Gate::new(), Gate::new(), Gate::new()]);
    // The first task of each chunk stops.
    let gate = |number: usize| number.is_multiple_of(50).then(|| gates[number / 50].clone());
    let tasks = (0..TASKS).map(|number| (ran.clone(), number as u32, gate(number)));
    let stop = |_: &mut Counted, args: (SharedTensor<i64>, u32, Option<Gate>)| note_and_stop(args);
    // Arguments with attachments, which are sent one by one.
    let results = pool.task(stop).map_async(tasks);
    let arrived = gates.each_ref().map(|gate| gate.arrived().1);
    let first = pool.pool().pids()[0];
    pool.pool().resize(1).unwrap();
    let stays = arrived.iter().position(|pid| *pid == first).unwrap();
    gates[stays].open(1);
    eventually("the remaining worker does all others", || results.progress().done == TASKS - 2);
    assert_eq!(counts.to_vec(), [3, 0], "the other workers run their tasks");
    assert_eq!(pool.pool().pids().iter().filter(|pid| **pid != 0).count(), 3);
    gates.iter().for_each(|gate| gate.open(1));
    assert_eq!(got(results).unwrap(), (0..TASKS as u32).collect::<Vec<_>>());
    assert_eq!(ran.to_vec(), [1; TASKS]);
    workers_are(pool.pool(), 1);
    assert_eq!((counts.to_vec(), pool.pool().pids()), (vec![3, 2], vec![first]));
    assert_eq!(pool.pool().metrics().lost, 0);
    join(pool.pool());
}

/// The arguments have no attachments, so tasks are sent in chunks, and each worker has one chunk.
#[test]
fn surplus_workers_return_the_rest_of_their_chunk() {
    static GATE: std::sync::OnceLock<Gate> = std::sync::OnceLock::new();
    let (gate, ran) = (Gate::new(), zeros(100));
    let set = |args| _ = (GATE.set(args), 0);
    let pool = Pool::builder().processes(2).initializer(set, gate.clone()).build().unwrap();
    let work = |number: u32| {
        if number.is_multiple_of(50) {
            GATE.get().unwrap().pass(number);
        }
        (number, std::process::id())
    };
    let results = pool.task(work).chunksize(50).map_async(0..100);
    let arrived = [gate.arrived(), gate.arrived()];
    let (first, second) = (pool.pids()[0], pool.pids()[1]);
    pool.resize(1).unwrap();
    gate.open(2);
    let results = got(results).unwrap();
    for (number, (result, pid)) in (0..).zip(results) {
        assert_eq!(result, number);
        let is_running = arrived.contains(&(number, second));
        assert_eq!(pid, if is_running { second } else { first }, "task {number}");
        ran.fetch_add(number as usize, 1);
    }
    workers_are(&pool, 1);
    join(&pool);
}

#[test]
fn idle_and_starting_surplus_pool_workers_end() {
    let gate = Gate::new();
    let pool = Pool::builder().processes(1).initializer(|gate: Gate| gate.pass(0), gate.clone());
    let pool = pool.build().unwrap();
    gate.arrived();
    gate.open(1);
    pool.resize(3).unwrap();
    let starting = [gate.arrived().1, gate.arrived().1];
    pool.resize(1).unwrap();
    gate.open(2);
    workers_are(&pool, 1);
    eventually("the surplus workers have ended", || !starting.iter().any(|pid| alive(*pid)));
    assert_eq!(pool.apply(|x: u32| x + 1, 1).unwrap(), 2);
    let metrics = pool.metrics();
    assert_eq!((metrics.workers.len(), metrics.failed_starts.len(), metrics.restarts), (1, 0, 0));
    join(&pool);
}

#[test]
fn re_added_slot_starts_a_new_worker() {
    let pool = Pool::new(2).unwrap();
    let gates = [Gate::new(), Gate::new()];
    let results = gates.each_ref().map(|gate| pool.apply_async(stop_at, (gate.clone(), 7)));
    let arrived = gates.each_ref().map(|gate| gate.arrived().1);
    let before = pool.pids();
    pool.resize(1).unwrap();
    pool.resize(2).unwrap();
    assert_eq!(pool.pids(), before, "both workers run their tasks");
    gates.iter().for_each(|gate| gate.open(1));
    results.into_iter().for_each(|result| assert_eq!(got(result).unwrap(), 7));
    eventually("the second slot has a new worker", || ![0, before[1]].contains(&pool.pids()[1]));
    assert!(arrived.contains(&pool.pids()[0]) && pool.pids().len() == 2);
    assert_eq!(pool.map(|x: u32| x + 1, 0..100).unwrap().len(), 100);
    join(&pool);
}

#[test]
fn resize_fails_for_invalid_sizes_and_ended_pools() {
    let pool = Pool::new(1).unwrap();
    for processes in [0, 1001] {
        let (new, resized) = (Pool::new(processes).unwrap_err(), pool.resize(processes).unwrap_err());
        assert!(matches!(&resized, PoolError::Settings(_)) && resized.to_string() == new.to_string());
    }
    pool.close();
    let closed = pool.resize(2).unwrap_err();
    assert!(matches!(closed, PoolError::Closed { .. }), "{closed}");
    pool.terminate();
    assert!(matches!(pool.resize(2), Err(PoolError::Closed { .. })));
    assert_eq!(pool.processes(), 1);
    let fails = Pool::builder().processes(1).initializer(|(): ()| Err::<(), _>("no device"), ());
    let pool = fails.build().unwrap();
    assert!(matches!(pool.apply(|x: u32| x, 1), Err(TaskError::Broken(_))));
    assert!(matches!(pool.resize(2), Err(PoolError::Broken(_))));
}

#[test]
fn killed_surplus_worker_is_not_replaced() {
    let pool = Pool::new(2).unwrap();
    let gates = [Gate::new(), Gate::new()];
    let results = gates.each_ref().map(|gate| pool.apply_async(stop_at, (gate.clone(), 7)));
    let arrived = gates.each_ref().map(|gate| gate.arrived().1);
    let second = pool.pids()[1];
    pool.resize(1).unwrap();
    kill(second);
    for (result, (gate, pid)) in results.into_iter().zip(gates.iter().zip(arrived)) {
        gate.open(1);
        if pid == second {
            assert_eq!(lost(got(result)).pid, second);
        } else {
            assert_eq!(got(result).unwrap(), 7);
        }
    }
    workers_are(&pool, 1);
    assert_eq!(pool.metrics().restarts, 0);
    join(&pool);
}

/// A stopped worker does not read the request to end. Other workers run the tasks that it has not begun.
#[test]
fn stopped_surplus_worker_keeps_only_its_task() {
    let pool = Pool::new(2).unwrap();
    let gates = [Gate::new(), Gate::new()];
    let results = gates.each_ref().map(|gate| pool.apply_async(stop_at, (gate.clone(), 7)));
    gates.iter().for_each(|gate| _ = gate.arrived());
    let second = pool.pids()[1];
    common::signal(second, Signal::STOP);
    pool.resize(1).unwrap();
    gates.iter().for_each(|gate| gate.open(1));
    assert_eq!(pool.map(|x: u32| x + 1, 0..500).unwrap().len(), 500);
    assert_eq!(pool.pids()[1], second);
    common::signal(second, Signal::CONT);
    results.into_iter().for_each(|result| assert_eq!(got(result).unwrap(), 7));
    workers_are(&pool, 1);
    join(&pool);
}

#[test]
fn surplus_slot_of_ended_worker_stays_empty() {
    let pool = Pool::builder().processes(4).max_tasks_per_child(1).build().unwrap();
    let results = pool.task(|x: u32| x + 1).chunksize(1).map_async(0..40);
    pool.resize(1).unwrap();
    assert_eq!(got(results).unwrap().len(), 40);
    eventually("one worker is left", || pool.pids().len() == 1);
    assert_eq!(pool.apply(|x: u32| x + 1, 1).unwrap(), 2);
    join(&pool);
}

#[test]
fn output_file_of_a_re_added_slot_is_appended_to() {
    let logs = std::env::temp_dir().join(format!("mp-pool-resize-{}", std::process::id()));
    std::fs::create_dir_all(&logs).unwrap();
    let stdout = Stdio::file(logs.join("{rank}.txt"));
    let pool = Pool::builder().processes(1).stdout(stdout);
    let pool = pool.initializer(|(): ()| println!("begins"), ()).build().unwrap();
    for _ in 0..2 {
        pool.resize(2).unwrap();
        eventually("both are ready", || pool.metrics().to_string().matches("idle").count() == 2);
        pool.resize(1).unwrap();
        workers_are(&pool, 1);
    }
    assert_eq!(std::fs::read_to_string(logs.join("1.txt")).unwrap(), "begins\nbegins\n");
    assert_eq!(std::fs::read_to_string(logs.join("0.txt")).unwrap(), "begins\n");
    join(&pool);
    std::fs::remove_dir_all(&logs).unwrap();
}

#[test]
fn failed_starts_of_removed_slots_break_no_pool() {
    let begin = |(): ()| match mp_pool::current_worker() {
        Some(0) => Ok(()),
        _ => Err("no device"),
    };
    let pool = Pool::builder().processes(1).initializer(begin, ()).build().unwrap();
    assert_eq!(pool.apply(|x: u32| x + 1, 1).unwrap(), 2);
    pool.resize(2).unwrap();
    eventually("a start fails", || pool.metrics().failed_starts.iter().any(|failed| failed.worker == 1));
    pool.resize(1).unwrap();
    eventually("the slot is removed", || pool.pids().len() == 1);
    assert!(pool.metrics().failed_starts.is_empty());
    assert_eq!(pool.apply(|x: u32| x + 1, 1).unwrap(), 2);
    join(&pool);
}

#[test]
fn callback_of_a_task_can_resize_its_pool() {
    let pool = std::sync::Arc::new(Pool::new(1).unwrap());
    let (report, reported) = channel();
    let resized = std::sync::Arc::clone(&pool);
    pool.apply_async(|x: u32| x, 1).on_done(move |_| _ = report.send(resized.resize(2).is_ok()));
    assert!(reported.recv_timeout(DEADLINE).unwrap());
    workers_are(&pool, 2);
    join(&pool);
}

#[test]
fn concurrent_resizes_lose_or_repeat_no_task() {
    const TASKS: usize = 4000;
    let pool = Pool::new(2).unwrap();
    let stop = AtomicBool::new(false);
    let ran = zeros(TASKS);
    std::thread::scope(|scope| {
        for seed in 0..2 {
            let (pool, stop) = (&pool, &stop);
            scope.spawn(move || {
                let mut random = Random(seed);
                while !stop.load(Ordering::Relaxed) {
                    pool.resize(1 + random.below(4) as usize).unwrap();
                }
            });
        }
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                pool.recycle().unwrap();
            }
        });
        let since = Instant::now();
        let quick = pool.map_async(|x: u64| x + 1, 0..100_000);
        let attached = pool.map_async(note_and_stop, (0..TASKS as u32).map(|x| (ran.clone(), x, None)));
        let (quick, attached) = (quick.get_timeout(DEADLINE), attached.get_timeout(DEADLINE));
        stop.store(true, Ordering::Relaxed);
        let took = since.elapsed();
        let sums =
            quick.unwrap_or_else(|left| panic!("{left:?} after {took:?}: {}", pool.metrics())).unwrap();
        assert!(sums.into_iter().eq(1..=100_000));
        let numbers = attached.unwrap_or_else(|left| panic!("{left:?} after {took:?}: {}", pool.metrics()));
        assert!(numbers.unwrap().into_iter().eq(0..TASKS as u32));
    });
    assert_eq!(ran.to_vec(), [1; TASKS]);
    assert_eq!(pool.metrics().lost, 0);
    pool.resize(3).unwrap();
    workers_are(&pool, 3);
    pool.resize(1).unwrap();
    workers_are(&pool, 1);
    join(&pool);
}

#[test]
fn resizes_with_dying_workers_settle_each_task() {
    const TASKS: u32 = 3000;
    let pool = Pool::new(3).unwrap();
    let stop = AtomicBool::new(false);
    let work = |x: u64| {
        if x % 301 == 300 {
            kill(std::process::id());
        }
        (0..20_000).fold(x, |x, y| std::hint::black_box(x ^ y))
    };
    let results = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = Random(3);
            while !stop.load(Ordering::Relaxed) {
                pool.resize(1 + random.below(4) as usize).unwrap();
            }
        });
        let results = pool.task(work).map_async((0..TASKS).map(u64::from));
        let in_time = results.wait_timeout(DEADLINE);
        stop.store(true, Ordering::Relaxed);
        assert!(in_time, "{results:?}: {}", pool.metrics());
        results.results()
    });
    for (number, result) in (0..).zip(&results) {
        let is_lost = matches!(result, Err(TaskError::WorkerLost(_)));
        assert!(if number % 301 == 300 { is_lost } else { result.is_ok() }, "{number}: {result:?}");
    }
    pool.resize(2).unwrap();
    workers_are(&pool, 2);
    join(&pool);
}
