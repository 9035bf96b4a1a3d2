//! Retries of tasks: the failures, the delays, and the end of the wait.

mod common;

use std::time::{Duration, Instant};

use common::{Gate, eventually, got, join, kill, lost, stop_at, take};
use mp_pool::{Backoff, FailureKind, Pool, TaskError};
use mp_queue::Queue;
use mp_spawn::{Stdio, closure};
use mp_tensor::{SharedTensor, Tensor};
use serde::{Deserialize, Serialize};

/// Number of attempts at each task.
type Begun = SharedTensor<u64>;

fn begun(tasks: usize) -> Begun {
    Tensor::zeros([tasks]).unwrap().share()
}

/// Back-off that is longer than any test.
const LONG: Duration = Duration::from_secs(600);

/// Time-out that is longer than the death of a worker takes on a busy machine.
const A_WHILE: Duration = Duration::from_secs(1);

/// Arguments of a task whose first `times` attempts fail. `how` is the kind of failure: 0 for an error, 1 for
/// a panic, 2 for the death of the worker, 3 for a time-out.
#[derive(Serialize, Deserialize)]
struct Fails {
    begun: Begun,
    task: usize,
    how: u32,
    times: u64,
}

fn fragile(Fails { begun, task, how, times }: Fails) -> Result<usize, String> {
    if begun.fetch_add(task, 1) >= times {
        return Ok(task);
    }
    match how {
        0 => Err("not yet".into()),
        1 => panic!("not yet"),
        2 => std::process::abort(),
        _ => loop {
            std::thread::park();
        },
    }
}

#[test]
fn each_kind_of_task_failure_can_be_retried() {
    let pool = Pool::builder().processes(1).stderr(Stdio::Null).build().unwrap();
    let counts = begun(4);
    let all = pool.task(fragile).timeout(Duration::from_millis(200)).retry_if(2, |_| true);
    let tasks = |times| (0..4).map(move |how| (how as usize, how, times));
    let fails = |begun: &Begun| {
        let begun = begun.clone();
        move |(task, how, times)| Fails { begun: begun.clone(), task, how, times }
    };
    assert_eq!(got(all.map_async(tasks(2).map(fails(&counts)))).unwrap(), [0, 1, 2, 3]);
    assert_eq!((counts.to_vec(), pool.metrics().retried), (vec![3; 4], 8));

    // One failure more than the number of retries.
    let counts = begun(4);
    let results = all.map_async(tasks(3).map(fails(&counts))).results();
    let [error, panic, death, time] = results.try_into().unwrap();
    for raised in [error, panic] {
        assert!(
            matches!(&raised, Err(TaskError::Raised(raised)) if raised.message == "not yet"),
            "{raised:?}"
        );
    }
    assert_eq!(lost(death).attempts.count(), 3);
    assert!(matches!(time, Err(TaskError::TimedOut { .. })), "{time:?}");
    let metrics = pool.metrics();
    assert_eq!((counts.to_vec(), metrics.retried), (vec![3; 4], 16));
    assert_eq!((metrics.done, metrics.failed, metrics.lost), (4, 3, 1), "each is counted once: {metrics}");

    // `retries` applies only to deaths.
    let counts = begun(4);
    let deaths = pool.task(fragile).timeout(Duration::from_millis(200)).retries(1);
    let results = deaths.map_async(tasks(1).map(fails(&counts))).results();
    assert_eq!(results.iter().map(Result::is_ok).collect::<Vec<_>>(), [false, false, true, false]);
    assert_eq!(counts.to_vec(), [1, 1, 2, 1]);
}

/// Task that fails in a different way in each attempt.
fn varies((begun, task): (Begun, usize)) -> Result<(), String> {
    fragile(Fails { begun: begun.clone(), task, how: [2, 3, 1, 0][begun.load(task) as usize % 4], times: 9 })
        .map(drop)
}

#[test]
fn task_errors_list_all_attempts() {
    let pool = Pool::builder().processes(1).stderr(Stdio::Null).build().unwrap();
    let call = pool.task(varies).timeout(A_WHILE).retry_if(9, |error| {
        // The filter gets the attempts, too.
        error.attempts().count() < 4
    });
    let error = got(call.apply_async((begun(1), 0))).unwrap_err();
    use FailureKind::{Death, Error, Panic, TimeOut};
    assert_eq!(error.attempts().failures(), [Death, TimeOut, Panic, Error]);
    let text = error.to_string();
    assert!(
        text.contains("not yet") && text.ends_with("(attempt 4, after a panic, a death and a time-out)"),
        "{text}"
    );
    for (retries, last, said) in [
        (0, Death, None),
        (1, TimeOut, Some("attempt 2, after a death")),
        (2, Panic, Some("attempt 3, after a death and a time-out")),
    ] {
        let call = pool.task(varies).timeout(A_WHILE).retry_if(retries, |_| true);
        let error = got(call.apply_async((begun(1), 0))).unwrap_err();
        assert_eq!(error.attempts().failures().last(), Some(&last));
        assert_eq!(error.attempts().count(), retries as usize + 1);
        let text = error.to_string();
        assert!(said.map_or(!text.contains("attempt"), |said| text.contains(said)), "{text}");
    }
    // A task that was not begun has no attempts.
    let waiting = pool.task(fragile).retry_if(1, |_| true).backoff(LONG);
    let result = waiting.apply_async(Fails { begun: begun(1), task: 0, how: 0, times: 1 });
    eventually("the task waits for its retry", || pool.metrics().queued == 1 && pool.metrics().retried > 5);
    result.cancel();
    assert_eq!(got(result).unwrap_err().attempts().count(), 0);
}

#[test]
fn failed_chunk_item_is_retried_alone() {
    let pool = Pool::new(2).unwrap();
    let counts = begun(100);
    // In a closure, because arguments with a tensor are sent alone.
    let begun = counts.clone();
    let task = pool.task_closure(closure!([begun] |task: usize| match begun.fetch_add(task, 1) {
        0 | 1 if task % 10 == 7 => Err("twice"),
        _ => Ok(task),
    }));
    let call = task.chunksize(50).retry_if(2, |error| matches!(error, TaskError::Raised(_)));
    assert!(got(call.map_async(0..100)).unwrap().into_iter().eq(0..100));
    assert!(
        counts.to_vec().into_iter().enumerate().all(|(i, count)| count == if i % 10 == 7 { 3 } else { 1 })
    );
    assert_eq!(pool.metrics().retried, 20);
}

#[test]
fn retry_backoff_uses_no_worker_and_ends_with_call() {
    for close in [false, true] {
        let pool = Pool::new(1).unwrap();
        let fails = pool.task(|x: u32| Err::<u32, _>(format!("{x}"))).retry_if(9, |_| true).backoff(LONG);
        let (first, second) = (fails.apply_async(1), fails.map_async(0..10));
        eventually("all tasks wait for their retry", || pool.metrics().retried == 11);
        // The only worker is free, and so is its replacement.
        assert_eq!(got(pool.apply_async(|x: u32| x, 5)).unwrap(), 5);
        let pid = pool.pids()[0];
        kill(pid);
        eventually("the worker is replaced", || ![0, pid].contains(&pool.pids()[0]));
        assert_eq!(got(pool.apply_async(|x: u32| x, 6)).unwrap(), 6);
        assert!(!first.ready() && pool.metrics().queued == 11 && pool.metrics().running == 0);
        assert_eq!(second.cancel(), 10);
        assert!(second.results().iter().all(|result| matches!(result, Err(TaskError::Cancelled))));
        if close {
            pool.close();
            assert!(!pool.join_timeout(Duration::from_millis(50)).unwrap(), "a task is left");
        }
        drop(pool);
        assert!(matches!(got(first), Err(TaskError::Terminated)));
    }
}

#[test]
fn closed_pool_retries_before_it_ends() {
    let pool = Pool::new(2).unwrap();
    let counts = begun(1);
    let call = pool.task(fragile).retry_if(3, |_| true).backoff(Duration::from_millis(30));
    let result = call.apply_async(Fails { begun: counts.clone(), task: 0, how: 0, times: 3 });
    join(&pool);
    assert_eq!((got(result).unwrap(), counts.to_vec()), (0, vec![4]));
}

#[test]
fn retry_attempts_are_spaced_by_the_backoff() {
    let pool = Pool::new(1).unwrap();
    let times = Queue::unbounded().unwrap();
    let task = |times: Queue<Duration>| {
        times.put(mp_core::monotonic()).map_err(|error| error.to_string())?;
        Err::<(), _>("again".to_owned())
    };
    let wait = Duration::from_millis(40);
    let backoff = Backoff::new(wait).factor(3.0).jitter(0.0);
    let result = pool.task(task).retry_if(2, |_| true).backoff(backoff).apply_async(times.clone());
    let [first, second, third] = [(); 3].map(|()| take(&times));
    assert!(got(result).is_err());
    assert!(second - first >= wait && third - second >= 3 * wait, "{first:?} {second:?} {third:?}");

    // The upper bound fails if the pool's thread retries only at its periodic check, once a second.
    let counts = begun(1);
    let task = Fails { begun: counts.clone(), task: 0, how: 0, times: 12 };
    let began = Instant::now();
    let result =
        pool.task(fragile).retry_if(12, |_| true).backoff(Duration::from_millis(20)).apply_async(task);
    assert_eq!((got(result).unwrap(), counts.to_vec()), (0, vec![13]));
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}

#[test]
fn panicking_retry_filter_does_not_retry() {
    let pool = Pool::new(1).unwrap();
    let fails = |x: u32| Err::<u32, _>(format!("{x}"));
    let result = got(pool.task(fails).retry_if(3, |_| panic!("undecided")).apply_async(7));
    assert!(matches!(&result, Err(TaskError::Raised(raised)) if raised.message == "7"), "{result:?}");
    assert_eq!(pool.metrics().retried, 0);
    // The worker is killed in each attempt, and in between.
    let gate = Gate::new();
    let call = pool.task(stop_at).retry_if(2, |error| matches!(error, TaskError::WorkerLost(_)));
    let result = call.backoff(Duration::from_millis(100)).apply_async((gate.clone(), 3));
    let began = Instant::now();
    kill(gate.arrived().1);
    eventually("the task waits for its retry", || pool.metrics().retried == 1);
    pool.pids().into_iter().filter(|pid| *pid != 0).for_each(kill);
    kill(gate.arrived().1);
    gate.arrived();
    gate.open(1);
    assert_eq!(got(result).unwrap(), 3);
    assert!(began.elapsed() >= Duration::from_millis(200));
}

#[test]
fn attachments_are_kept_for_retry_unless_moved() {
    let pool = Pool::builder().processes(1).stderr(Stdio::Null).build().unwrap();
    // Not `Clone`, and with tensors: the value itself is kept.
    #[derive(Serialize, Deserialize)]
    struct Args {
        begun: Begun,
        numbers: mp_tensor::FrozenTensor<u32>,
    }
    let sum = |args: Args| {
        if args.begun.fetch_add(0, 1) < 2 {
            std::process::abort();
        }
        args.numbers.iter().sum::<u32>()
    };
    let (counts, numbers) = (begun(1), Tensor::full([1000], 3_u32).unwrap().freeze());
    let result = pool.task(sum).retries(2).apply_async(Args { begun: counts.clone(), numbers });
    assert_eq!((got(result).unwrap(), counts.to_vec()), (3000, vec![3]));

    let take = |tensor: Tensor<u32>| tensor.len();
    let refused = got(pool.task(take).retries(2).apply_async(Tensor::zeros([5]).unwrap()));
    let Err(TaskError::Arguments { why, .. }) = refused else { panic!("{refused:?}") };
    assert!(why.contains("exclusive tensor") && why.contains("freeze"), "{why}");
    assert_eq!(got(pool.task(take).apply_async(Tensor::zeros([5]).unwrap())).unwrap(), 5);
}
