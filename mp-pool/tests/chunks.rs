//! Tasks that a worker receives in one chunk: after any failure of one task, the other tasks have their
//! results, in order, and each task was begun once.
//!
//! The arguments are numbers, and shared objects are captured by the function, because arguments with
//! attachments are sent alone.

mod common;

use std::fmt;
use std::sync::mpsc;
use std::time::Duration;

use common::{DEADLINE, Gate, eventually, got, join, signal, stop_at, stopped};
use mp_pool::{Pool, TaskError, current_worker};
use mp_spawn::{RaisedKind, Stdio, closure};
use mp_tensor::{FrozenTensor, SharedTensor, Tensor};
use rustix::process::Signal;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Creates counters of how often each task was begun.
fn counts(tasks: usize) -> SharedTensor<u64> {
    Tensor::zeros([tasks]).unwrap().share()
}

#[test]
fn worker_stopped_in_a_chunk_delays_one_item() {
    const TASKS: usize = 8;
    let pool = Pool::new(2).unwrap();
    let (begun, gate, other) = (counts(TASKS), Gate::new(), Gate::new());
    // One worker is busy until the other worker is stopped.
    let busy = pool.apply_async(stop_at, (other.clone(), 0));
    other.arrived();
    let (seen, way) = (begun.clone(), gate.clone());
    let call = pool.task_closure(closure!([seen, way] |item: usize| {
        seen.fetch_add(item, 1);
        if item == 2 {
            way.pass(2);
        }
        10 * item
    }));
    let results = call.chunksize(TASKS).map_async(0..TASKS);
    let (_, pid) = gate.arrived();
    signal(pid, Signal::STOP);
    eventually("the worker is stopped", || stopped(pid));
    other.open(1);
    got(busy).unwrap();
    gate.open(1);
    eventually("all others are done", || results.progress().done == TASKS - 1);
    assert!(!results.ready());
    signal(pid, Signal::CONT);
    assert!(got(results).unwrap().into_iter().eq((0..TASKS).map(|item| 10 * item)));
    assert_eq!(begun.to_vec(), [1; TASKS]);
    assert!(pool.pids().contains(&pid));
    join(&pool);
}

#[test]
fn time_out_in_a_chunk_ends_one_item() {
    const TASKS: usize = 16;
    const TIMEOUT: Duration = Duration::from_millis(200);
    for workers in [1, 2] {
        let pool = Pool::new(workers).unwrap();
        let begun = counts(TASKS);
        let seen = begun.clone();
        let call = pool.task_closure(closure!([seen] |item: usize| {
            seen.fetch_add(item, 1);
            if item == 3 {
                loop {
                    std::thread::park();
                }
            }
            10 * item
        }));
        let results = call.timeout(TIMEOUT).chunksize(8).map_async(0..TASKS);
        assert!(results.wait_timeout(DEADLINE), "{results:?}");
        for (item, result) in results.results().into_iter().enumerate() {
            match result {
                Ok(value) => assert!(value == 10 * item && item != 3, "{item}"),
                Err(TaskError::TimedOut { timeout, .. }) => assert_eq!((item, timeout), (3, TIMEOUT)),
                Err(other) => panic!("{item}: {other}"),
            }
        }
        assert_eq!(begun.to_vec(), [1; TASKS]);
        join(&pool);
    }
}

#[test]
fn unbegun_items_of_a_chunk_are_cancelled() {
    let pool = Pool::new(1).unwrap();
    let (begun, gate) = (counts(10), Gate::new());
    let (seen, way) = (begun.clone(), gate.clone());
    let call = pool.task_closure(closure!([seen, way] |item: usize| {
        seen.fetch_add(item, 1);
        if item == 4 {
            way.pass(4);
        }
        item
    }));
    let results = call.chunksize(10).map_async(0..10);
    gate.arrived();
    assert_eq!(results.cancel(), 5);
    gate.open(1);
    assert!(results.wait_timeout(DEADLINE), "{results:?}");
    for (item, result) in results.results().into_iter().enumerate() {
        match result {
            Ok(value) => assert!(value == item && item < 5, "{item}"),
            Err(error) => assert!(matches!(error, TaskError::Cancelled) && item >= 5, "{item}: {error}"),
        }
    }
    assert_eq!(pool.apply(|x: u32| x + 1, 1).unwrap(), 2);
    join(&pool);
    assert_eq!(begun.to_vec(), [[1; 5], [0; 5]].concat());
}

/// Even a chunk that the worker took while it was sending the answer to the previous chunk is cancelled.
#[test]
fn worker_begins_no_item_after_a_cancel() {
    const QUICK: usize = 3000;
    let pool = Pool::new(1).unwrap();
    for round in 0..100 {
        let (begun, gate) = (counts(1), Gate::new());
        let (seen, way) = (begun.clone(), gate.clone());
        let call = pool.task_closure(closure!([seen, way] |item: usize| {
            seen.fetch_add(0, 1);
            if item == QUICK {
                way.pass(0);
            }
        }));
        let results = call.map_async(0..2 * QUICK);
        gate.arrived();
        results.cancel();
        gate.open(1);
        assert!(results.wait_timeout(DEADLINE), "{results:?}");
        assert_eq!(begun.get(&[0]).unwrap(), QUICK as u64 + 1, "in round {round}");
    }
    join(&pool);
}

#[test]
fn worker_ends_at_its_task_limit_within_a_chunk() {
    const TASKS: usize = 20;
    for most in [3, 5] {
        let pool = Pool::builder().processes(2).max_tasks_per_child(most).build().unwrap();
        let begun = counts(TASKS);
        let seen = begun.clone();
        let call = pool.task_closure(closure!([seen] |item: usize| {
            seen.fetch_add(item, 1);
            (item, std::process::id())
        }));
        let results = got(call.chunksize(8).map_async(0..TASKS)).unwrap();
        let mut times = std::collections::HashMap::<u32, u64>::new();
        for (at, (item, pid)) in results.into_iter().enumerate() {
            assert_eq!(at, item);
            *times.entry(pid).or_default() += 1;
        }
        assert!(times.values().all(|count| *count <= most), "{times:?}");
        assert_eq!(begun.to_vec(), [1; TASKS]);
        join(&pool);
    }
}

/// Value that can be sent only if its number is even.
#[derive(Debug)]
struct Even(usize);

impl Serialize for Even {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        if self.0.is_multiple_of(2) {
            self.0.serialize(s)
        } else {
            Err(serde::ser::Error::custom("it is odd"))
        }
    }
}

impl<'de> Deserialize<'de> for Even {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        usize::deserialize(d).map(Even)
    }
}

#[derive(Debug)]
struct Refused(usize);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "task {} is refused", self.0)
    }
}

impl std::error::Error for Refused {}

/// An error, a panic, a result with a tensor, and a result that can't be sent each need a reply of their own.
#[test]
fn mixed_results_in_a_chunk_keep_their_order() {
    type Answer = (usize, Even, Option<FrozenTensor<u64>>);
    let answer = |item: usize| -> Result<Answer, Box<dyn std::error::Error + Send + Sync>> {
        match item % 10 {
            2 => Err(Refused(item).into()),
            3 => panic!("task {item} panics"),
            4 | 7 => Ok((item, Even(0), Some(Tensor::full([4], item as u64)?.freeze()))),
            5 => Ok((item, Even(1), None)),
            6 => Ok((item, Even(1), Some(Tensor::full([4], 0)?.freeze()))),
            _ => Ok((item, Even(2 * item), None)),
        }
    };
    let pool = Pool::builder().processes(2).stderr(Stdio::Null).build().unwrap();
    let check = |item: usize, result: Result<Answer, TaskError>| match (item % 10, result) {
        (2, Err(TaskError::Raised(raised))) => {
            assert_eq!((raised.kind, raised.message.clone()), (RaisedKind::Error, Refused(item).to_string()));
        }
        (3, Err(TaskError::Raised(raised))) => {
            assert_eq!(
                (raised.kind, raised.message.clone()),
                (RaisedKind::Panic, format!("task {item} panics"))
            );
        }
        (4 | 7, Ok((number, Even(0), Some(tensor)))) => {
            assert!(number == item && tensor.iter().eq([item as u64; 4]));
        }
        (5 | 6, Err(TaskError::Value { why, .. })) => assert!(why.contains("it is odd"), "{why}"),
        (0 | 1 | 8 | 9, Ok((number, Even(twice), None))) => assert_eq!((number, twice), (item, 2 * item)),
        (_, other) => panic!("{item}: {other:?}"),
    };
    let call = pool.task(answer).chunksize(10);
    let results = call.map_async(0..30);
    assert!(results.wait_timeout(DEADLINE), "{results:?}");
    results.results().into_iter().enumerate().for_each(|(item, result)| check(item, result));
    call.imap(0..30).enumerate().for_each(|(item, result)| check(item, result));
    join(&pool);
}

/// Number, some values of which can't be encoded.
#[derive(Debug, PartialEq, Deserialize)]
struct Touchy(usize);

impl Serialize for Touchy {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self.0 % 50 {
            27 => Err(serde::ser::Error::custom("it is refused")),
            37 => panic!("it panics"),
            _ => self.0.serialize(s),
        }
    }
}

/// Number, some values of which panic when a worker drops them.
#[derive(Debug, Serialize, Deserialize)]
struct Unstable(usize);

impl Drop for Unstable {
    fn drop(&mut self) {
        assert!(self.0 % 50 != 47 || current_worker().is_none(), "a drop panics");
    }
}

/// Short items run in a row. A failure affects only its own item, and each item was begun once.
#[test]
fn failure_among_quick_items_affects_only_one_item() {
    const TASKS: usize = 3000;
    let pool = Pool::builder().processes(1).stderr(Stdio::Null).build().unwrap();
    let begun = counts(TASKS);
    let seen = begun.clone();
    let call = pool.task_closure(closure!([seen] |item: usize| -> Result<Touchy, Refused> {
        seen.fetch_add(item, 1);
        match item % 50 {
            7 => panic!("task {item} panics"),
            17 => Err(Refused(item)),
            _ => Ok(Touchy(item)),
        }
    }));
    let results = call.chunksize(TASKS).map_async(0..TASKS);
    assert!(results.wait_timeout(DEADLINE), "{results:?}");
    for (item, result) in results.results().into_iter().enumerate() {
        match (item % 50, result) {
            (7, Err(TaskError::Raised(raised))) => assert_eq!(raised.message, format!("task {item} panics")),
            (17, Err(TaskError::Raised(raised))) => assert_eq!(raised.message, Refused(item).to_string()),
            (27, Err(TaskError::Value { why, .. })) => assert!(why.contains("it is refused"), "{why}"),
            (37, Err(TaskError::Value { why, .. })) => assert!(why.contains("it panics"), "{why}"),
            (7 | 17 | 27 | 37, other) => panic!("{item}: {other:?}"),
            (_, result) => assert_eq!(result.unwrap(), Touchy(item)),
        }
    }
    assert_eq!(begun.to_vec(), [1; TASKS]);
    // Each result is sent, and then dropped.
    let unstable = got(pool.task(Ok::<_, Refused>).chunksize(TASKS).map_async((0..TASKS).map(Unstable)));
    assert!(unstable.unwrap().into_iter().map(|result| result.0).eq(0..TASKS));
    join(&pool);
}

/// Hundreds of items may run between two reads of the clock.
#[test]
fn death_among_short_items_loses_one_item() {
    const TASKS: usize = 3000;
    let pool = Pool::builder().processes(2).stderr(Stdio::Null).build().unwrap();
    for deadly in [700, 1999] {
        let begun = counts(TASKS);
        let seen = begun.clone();
        let call = pool.task_closure(closure!([seen, deadly] |item: usize| {
            if seen.fetch_add(item, 1) == 0 && item == *deadly {
                std::process::abort();
            }
            10 * item
        }));
        let results = call.chunksize(TASKS).map_async(0..TASKS);
        assert!(results.wait_timeout(DEADLINE), "{results:?}");
        for (item, result) in results.results().into_iter().enumerate() {
            match result {
                Ok(value) => assert!(value == 10 * item && item != deadly, "{item}"),
                Err(error) => {
                    assert!(matches!(error, TaskError::WorkerLost(_)) && item == deadly, "{item}: {error}")
                }
            }
        }
        assert_eq!(begun.to_vec(), [1; TASKS]);
    }
    join(&pool);
}

#[test]
fn running_tasks_name_the_long_item_of_a_chunk() {
    const TASKS: usize = 3000;
    let pool = Pool::new(1).unwrap();
    for long in [700, 1999] {
        let (begun, gate) = (counts(TASKS), Gate::new());
        let (seen, way) = (begun.clone(), gate.clone());
        let call = pool.task_closure(closure!([seen, way, long] |item: usize| {
            seen.fetch_add(item, 1);
            if item == *long {
                way.pass(1);
            }
            item
        }));
        let results = call.chunksize(TASKS).map_async(0..TASKS);
        gate.arrived();
        assert_eq!(pool.running().iter().map(|task| task.task).collect::<Vec<_>>(), [long]);
        eventually("the earlier items are done", || results.progress().done == long);
        assert_eq!(pool.running().iter().map(|task| task.task).collect::<Vec<_>>(), [long]);
        // All later items can be withdrawn.
        let cancelled = results.cancel();
        assert_eq!(cancelled, TASKS - long - 1);
        gate.open(1);
        assert!(results.wait_timeout(DEADLINE), "{results:?}");
        assert_eq!(results.results().iter().filter(|result| result.is_ok()).count(), TASKS - cancelled);
        assert_eq!(begun.to_vec().iter().filter(|begun| **begun == 1).count(), TASKS - cancelled);
    }
    join(&pool);
}

#[test]
fn time_of_a_failed_item_is_not_added_to_later_items() {
    let pool = Pool::new(1).unwrap();
    let gate = Gate::new();
    let way = gate.clone();
    let slow_first = pool.task_closure(closure!([way] |item: u64| {
        match item {
            0 => std::thread::sleep(Duration::from_millis(400)), // sleep: a task that takes its time
            1 => way.pass(1),
            _ => {}
        }
        if item == 0 { Err("no") } else { Ok(item) }
    }));
    let results = slow_first.chunksize(16).map_async(0..16);
    eventually("the error has arrived", || results.progress().failed == 1);
    gate.open(1);
    assert!(results.wait_timeout(DEADLINE), "{results:?}");
    assert_eq!(results.results().iter().filter(|result| result.is_ok()).count(), 15);
    let times = pool.metrics().running_time;
    // Only one item took longer than `least`.
    let least = Duration::from_millis(200);
    assert!(times.count == 16 && times.max >= least && times.p90 < least, "{times:?}");
    join(&pool);
}

#[test]
fn idle_worker_steals_half_of_a_chunk() {
    const TASKS: usize = 64;
    let pool = Pool::new(2).unwrap();
    let (begun, gate) = (counts(TASKS), Gate::new());
    let (seen, way) = (begun.clone(), gate.clone());
    let call = pool.task_closure(closure!([seen, way] |item: usize| {
        seen.fetch_add(item, 1);
        way.pass(item as u32);
        current_worker()
    }));
    let results = call.chunksize(TASKS).map_async(0..TASKS);
    // The worker that steals may begin before the other worker's first item does.
    let mut items = [gate.arrived().0, gate.arrived().0];
    items.sort_unstable();
    let [first, stolen] = items.map(|item| item as usize);
    assert_eq!(first, 0);
    assert!((TASKS / 4..3 * TASKS / 4).contains(&stolen), "{stolen}");
    gate.open(TASKS);
    let by = got(results).unwrap();
    assert_ne!(by[0], by[stolen]);
    assert_eq!(begun.to_vec(), [1; TASKS]);
    join(&pool);
}

#[test]
fn chunk_results_arrive_while_the_next_item_runs() {
    let pool = Pool::new(1).unwrap();
    let gate = Gate::new();
    let way = gate.clone();
    let call = pool.task_closure(closure!([way] |item: usize| {
        if item == 5 {
            way.pass(5);
        }
        10 * item
    }));
    let (report, reported) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| call.chunksize(8).imap(0..8).for_each(|result| _ = report.send(result)));
        gate.arrived();
        for item in 0..5 {
            assert_eq!(reported.recv_timeout(DEADLINE).expect("while item 5 runs").unwrap(), 10 * item);
        }
        assert!(reported.try_recv().is_err());
        gate.open(1);
        for item in 5..8 {
            assert_eq!(reported.recv_timeout(DEADLINE).expect("item 5 is done").unwrap(), 10 * item);
        }
    });
    join(&pool);
}

/// Number that can't be cloned.
#[derive(Serialize, Deserialize)]
struct Single(usize);

impl Clone for Single {
    fn clone(&self) -> Single {
        panic!("{} is copied", self.0)
    }
}

/// Task that kills its worker in the first attempt at some items.
fn fragile(begun: &SharedTensor<u64>, item: usize) -> usize {
    if begun.fetch_add(item, 1) == 0 && item % 8 == 3 {
        std::process::abort();
    }
    10 * item
}

#[test]
fn chunk_item_is_retried_from_bytes_or_copy() {
    const TASKS: usize = 16;
    let pool = Pool::builder().processes(2).stderr(Stdio::Null).build().unwrap();
    let begun_once = |item: usize| if item % 8 == 3 { 2 } else { 1 };
    let begun = counts(TASKS);
    let seen = begun.clone();
    let plain = pool.task_closure(closure!([seen] |item: Single| fragile(seen, item.0)));
    let results = got(plain.retries(1).chunksize(8).map_async((0..TASKS).map(Single))).unwrap();
    assert!(results.into_iter().eq((0..TASKS).map(|item| 10 * item)));
    assert!(begun.to_vec().into_iter().eq((0..TASKS).map(begun_once)));

    let begun = counts(TASKS);
    let seen = begun.clone();
    let of_tensors = pool.task_closure(closure!([seen] |tensor: FrozenTensor<u64>| {
        fragile(seen, tensor[[0]] as usize)
    }));
    let tensors = (0..TASKS).map(|item| Tensor::full([1], item as u64).unwrap().freeze());
    let results = got(of_tensors.retries(1).chunksize(8).map_async(tensors)).unwrap();
    assert!(results.into_iter().eq((0..TASKS).map(|item| 10 * item)));
    assert!(begun.to_vec().into_iter().eq((0..TASKS).map(begun_once)));
    join(&pool);
}
