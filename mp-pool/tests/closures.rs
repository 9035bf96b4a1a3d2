//! Closures in workers: closures that can't be decoded there, and many closures.

mod common;

use std::sync::Arc;
use std::sync::mpsc::channel;

use common::{DEADLINE, Gate, eventually, got, in_use, join, kill, lost, signal, stopped, take};
use mp_pool::{Pool, TaskError, current_worker};
use mp_queue::Queue;
use mp_spawn::closure;
use rustix::process::Signal;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

/// Value whose decoding succeeds in the process that owns the pool, and fails in each worker.
#[derive(Clone, Copy, Serialize)]
struct Unreadable(u8);

const REFUSES: u8 = 0;
const PANICS: u8 = 1;
const ABORTS: u8 = 2;

impl<'de> Deserialize<'de> for Unreadable {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match (u8::deserialize(deserializer)?, current_worker()) {
            (REFUSES, Some(_)) => Err(serde::de::Error::custom("not in a worker")),
            (PANICS, Some(_)) => panic!("it panics in a worker"),
            (ABORTS, Some(_)) => std::process::abort(),
            (kind, _) => Ok(Unreadable(kind)),
        }
    }
}

#[test]
fn undecodable_function_fails_its_tasks() {
    let pool = Pool::new(2).unwrap();
    assert_eq!(pool.map(|x: u32| x, 0..50).unwrap().len(), 50);
    let pids = pool.pids();
    for (kind, what) in [(REFUSES, "not in a worker"), (PANICS, "it panics in a worker")] {
        let bad = Unreadable(kind);
        let results = pool.task_closure(closure!([bad] |x: u32| x + u32::from(bad.0))).map_async(0..20);
        let error = got(results).unwrap_err();
        assert!(matches!(&error, TaskError::Arguments { why, .. } if why.contains(what)), "{error}");
    }
    assert_eq!(pool.map(|x: u32| x, 0..4).unwrap(), [0, 1, 2, 3]);
    assert_eq!(pool.pids(), pids, "no worker died");
    join(&pool);
}

#[test]
fn function_that_kills_its_readers_loses_its_tasks() {
    let pool = Pool::new(2).unwrap();
    let bad = Unreadable(ABORTS);
    let call = pool.task_closure(closure!([bad] |x: u32| x + u32::from(bad.0)));
    let results = call.map_async(0..3);
    eventually("all tasks have outcomes", || results.ready());
    for result in results.results() {
        assert!(lost(result).to_string().contains("SIGABRT"));
    }
    assert_eq!(got(pool.map_async(|x: u32| x, 0..4)).unwrap(), [0, 1, 2, 3]);
    drop(call);
    join(&pool);
}

#[test]
fn stopped_worker_with_full_queue_delays_no_task() {
    const ROOM: u64 = 1024; // in the queue of a worker
    const CLOSURES: u32 = 2200; // so that one worker learns more than `ROOM`
    let pool = Pool::new(2).unwrap();
    let add = |n: u32| pool.task_closure(closure!([n] |x: u32| (current_worker(), x + n)));
    let closures: Vec<_> = (0..CLOSURES).map(add).collect();
    let mut learnt = [0; 2];
    for (n, closure) in (0..).zip(&closures) {
        let (worker, sum) = closure.apply(1).unwrap();
        assert_eq!(sum, n + 1);
        learnt[worker.expect("in a worker")] += 1;
    }
    let most = usize::from(learnt[1] > learnt[0]);
    assert!(learnt[most] > ROOM, "{learnt:?}");
    let pid = pool.pids()[most];
    signal(pid, Signal::STOP);
    eventually("the worker is stopped", || stopped(pid));
    drop(closures);
    // Then the queue contains only requests to forget functions, and stays full.
    let mut looks = 0;
    eventually("the worker's queue is full", || {
        looks = if in_use().1 == ROOM { looks + 1 } else { 0 };
        looks == 20
    });
    let pool = Arc::new(pool);
    let (report, reported) = channel();
    let caller = Arc::clone(&pool);
    // Runs in a separate thread, because the call must not block.
    std::thread::spawn(move || _ = report.send(caller.map_async(|x: u32| x, 0..10)));
    let results = reported.recv_timeout(DEADLINE).expect("the call does not block");
    // All tasks, except one that the stopped worker may have received.
    eventually("the other worker has done the rest", || results.progress().done >= 9);
    signal(pid, Signal::CONT);
    assert_eq!(got(results).unwrap().len(), 10);
    join(&pool);
}

#[test]
fn stopped_worker_returns_tasks_of_unknown_function() {
    let pool = Pool::new(2).unwrap();
    // The function is fast, so the worker receives many tasks at once.
    pool.task(|x: u32| x).chunksize(50).map(0..1000).unwrap();
    let pid = pool.pids()[0];
    signal(pid, Signal::STOP);
    eventually("the worker is stopped", || stopped(pid));
    let results = pool.task(|x: u32| x + 1).chunksize(50).map_async(0..100);
    eventually("all but one are done", || results.progress().done >= 99);
    signal(pid, Signal::CONT);
    assert!(got(results).unwrap().into_iter().eq(1..=100));
    join(&pool);
}

/// State of a worker. Panics on drop if `bomb` is set.
struct State {
    sum: u64,
    bomb: bool,
}

impl Drop for State {
    fn drop(&mut self) {
        assert!(!self.bomb, "in its drop");
    }
}

#[test]
fn closures_receive_the_state_of_their_worker() {
    let pool = Pool::with_state(1, || State { sum: 10, bomb: false }).unwrap();
    let factor = 3;
    let task = closure!([factor] |state: &mut State, x: u64| -> Result<u64, String> {
        state.sum += factor * x;
        match x {
            7 => return Err("it is seven".into()),
            8 => panic!("it is eight"),
            9 => {
                state.bomb = true;
                panic!("it is nine");
            }
            _ => {}
        }
        Ok(state.sum)
    });
    let call = pool.task_closure(task);
    assert_eq!(got(call.map_async([1, 2])).unwrap(), [13, 19]);
    assert_eq!(
        got(pool.task(|state: &mut State, (): ()| state.sum).apply_async(())).unwrap(),
        19,
        "the state is the same"
    );
    let raised = |x, what: &str| {
        let error = got(call.apply_async(x)).unwrap_err();
        assert!(matches!(&error, TaskError::Raised(raised) if raised.message == what), "{error}");
    };
    raised(7, "it is seven");
    assert_eq!(got(call.apply_async(0)).unwrap(), 40, "the state is kept after an error");
    // After a panic the state is created again, even if its drop panics.
    let pid = pool.pool().pids();
    for (x, what) in [(8, "it is eight"), (9, "it is nine")] {
        raised(x, what);
        assert_eq!(got(call.apply_async(1)).unwrap(), 13);
    }
    assert_eq!(pool.pool().pids(), pid, "no worker died");
    // Arguments that can't be decoded do not affect the state. Several arguments are a tuple.
    let sum = closure!([] |state: &mut State, bad: Unreadable, y: u64| state.sum + u64::from(bad.0) + y);
    let call = pool.task_closure(sum);
    let error = got(call.apply_async((Unreadable(REFUSES), 1))).unwrap_err();
    assert!(matches!(&error, TaskError::Arguments { why, .. } if why.contains("not in a worker")), "{error}");
    assert_eq!(got(call.apply_async((Unreadable(77), 1))).unwrap(), 91);
    // A worker without such a state returns an error.
    let other = pool.pool().task_closure(closure!([] |x: u64| x + 1));
    assert_eq!(got(other.apply_async(1)).unwrap(), 2);
    pool.join().unwrap();
}

/// Capture that reports the process that reads it, and waits for the test.
#[derive(Clone, Serialize)]
struct SlowCapture((Queue<u32>, Queue<()>));

impl<'de> Deserialize<'de> for SlowCapture {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (read, go) = <(Queue<u32>, Queue<()>)>::deserialize(deserializer)?;
        read.put(std::process::id()).map_err(D::Error::custom)?;
        go.get_timeout(DEADLINE).map_err(D::Error::custom)?;
        Ok(Self((read, go)))
    }
}

/// The lost task is retried in another worker that knows the function, and does not wait for the replacement.
#[test]
fn replacement_reads_the_function_before_tasks() {
    let (pool, gate) = (Pool::new(2).unwrap(), Gate::new());
    let (read, go) = (Queue::unbounded().unwrap(), Queue::unbounded().unwrap());
    let slow = SlowCapture((read.clone(), go.clone()));
    (0..2).for_each(|_| go.put(()).unwrap());
    let task = closure!([slow] |(gate, number): (Gate, u32)| -> u32 {
        _ = slow;
        gate.pass(number);
        std::process::id()
    });
    let call = pool.task_closure(task).retries(1);
    let results = [0, 1].map(|number| call.clone().apply_async((gate.clone(), number)));
    let [(lost, dead), (_, live)] = [gate.arrived(), gate.arrived()];
    let mut readers = [take(&read), take(&read)];
    readers.sort_unstable();
    assert_eq!(readers, [dead.min(live), dead.max(live)]);
    kill(dead);
    let replacement = take(&read);
    let workers = pool.metrics().workers;
    let its = workers.iter().find(|worker| worker.pid == replacement).unwrap();
    assert_eq!(its.tasks, 0, "{workers:?}");
    // The other worker ends its task, and runs the lost task while the replacement reads the function.
    gate.open(1);
    assert_eq!(gate.arrived(), (lost, live));
    gate.open(1);
    for result in results {
        assert_eq!(got(result).unwrap(), live);
    }
    // Then the replacement knows the function, and takes tasks.
    go.put(()).unwrap();
    let results = [2, 3].map(|number| call.clone().apply_async((gate.clone(), number)));
    let mut by = [gate.arrived().1, gate.arrived().1];
    by.sort_unstable();
    assert_eq!(by, [live.min(replacement), live.max(replacement)]);
    gate.open(2);
    results.into_iter().for_each(|result| _ = got(result).unwrap());
    pool.close();
    join(&pool);
}
