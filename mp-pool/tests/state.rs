//! Workers that keep a state between tasks: its creation, and failures.

mod common;

use std::collections::HashSet;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::{DEADLINE, Gate, alive, eventually, got, join, kill, lost, signal, stop_at};
use mp_pool::{Pool, PoolError, StatePool, TaskError};
use mp_spawn::SpawnError;
use mp_tensor::{SharedTensor, Tensor};
use rustix::process::Signal;
use serde::{Deserialize, Serialize, Serializer};

/// State that is neither a serde value nor `Send`. Counts its creations and drops in `life`, and its tasks in
/// `tasks`.
struct Counter {
    life: SharedTensor<u64>,
    tasks: Rc<u64>,
}

impl Counter {
    fn new(life: SharedTensor<u64>) -> Result<Counter, String> {
        life.fetch_add(0, 1);
        Ok(Counter { life, tasks: Rc::new(0) })
    }

    fn count(&mut self, _: u32) -> u64 {
        self.tasks = Rc::new(*self.tasks + 1);
        *self.tasks
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        self.life.fetch_add(1, 1);
    }
}

fn numbers(count: usize) -> SharedTensor<u64> {
    Tensor::zeros([count]).unwrap().share()
}

fn counters(processes: usize) -> (StatePool<Counter>, SharedTensor<u64>) {
    let life = numbers(2);
    let pool = Pool::builder().processes(processes).try_state(Counter::new, life.clone()).build().unwrap();
    (pool, life)
}

#[test]
fn worker_state_is_created_once_and_dropped_at_exit() {
    let (pool, life) = counters(1);
    assert_eq!(pool.map(Counter::count, 0..100).unwrap(), (1..=100).collect::<Vec<u64>>());
    assert_eq!(life.to_vec(), [1, 0]);
    let pid = pool.pool().pids()[0];
    assert!(pool.join_timeout(DEADLINE).unwrap() && !alive(pid));
    assert_eq!(life.to_vec(), [1, 1]);
}

#[test]
fn replacement_worker_creates_its_own_state() {
    let (pool, life) = counters(2);
    let gates = [Gate::new(), Gate::new()];
    let wait = |counter: &mut Counter, gate: Gate| {
        gate.pass(0);
        counter.count(0)
    };
    let results = gates.each_ref().map(|gate| pool.apply_async(wait, gate.clone()));
    let (_, victim) = gates[0].arrived();
    gates[1].arrived();
    assert_eq!(life.to_vec(), [2, 0], "one in each worker");
    kill(victim);
    let [first, second] = results;
    assert_eq!(lost(got(first)).pid, victim);
    gates[1].open(1);
    assert_eq!(got(second).unwrap(), 1);
    eventually("the replacement has a state", || life.to_vec() == [3, 0]);
    assert_eq!(pool.map(Counter::count, 0..50).unwrap().len(), 50);
    join(pool.pool());
    assert_eq!(life.to_vec(), [3, 2], "the killed worker's state was not dropped");
}

#[test]
fn worker_state_is_passed_to_each_form_of_call() {
    let pool = Pool::with_state(1, Vec::<u32>::new).unwrap();
    let keep = |kept: &mut Vec<u32>, x: u32| {
        kept.push(x);
        kept.iter().sum::<u32>()
    };
    assert_eq!(pool.apply(keep, 1).unwrap(), 1);
    assert_eq!(got(pool.apply_async(keep, 1)).unwrap(), 2);
    let mut submitted = std::pin::pin!(pool.submit_async(keep, 1));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let std::task::Poll::Ready(result) = submitted.as_mut().poll(&mut context) else { panic!("no bound") };
    assert_eq!(got(result).unwrap(), 3);
    assert_eq!(pool.map(keep, [1, 1]).unwrap(), [4, 5]);
    assert_eq!(got(pool.map_async(keep, [1])).unwrap(), [6]);
    assert_eq!(pool.imap(keep, [1, 1]).map(Result::unwrap).collect::<Vec<_>>(), [7, 8]);
    assert_eq!(pool.imap_unordered(keep, [1, 1]).map(Result::unwrap).collect::<HashSet<_>>(), [9, 10].into());
    let both = |kept: &mut Vec<u32>, x: u32, y: u32| kept.len() as u32 + x * y;
    assert_eq!(pool.starmap(both, [(2, 3), (0, 0)]).unwrap(), [16, 10]);
    let failing = |kept: &mut Vec<u32>, x: u32| if x > 0 { Ok(kept.len()) } else { Err("zero") };
    assert_eq!(pool.task(failing).apply(1).unwrap(), 10);
    assert!(matches!(pool.apply(failing, 0), Err(TaskError::Raised(raised)) if raised.message == "zero"));
    let never = |_: &mut Vec<u32>, (): ()| -> ! { panic!("as it must") };
    assert!(
        matches!(pool.apply(never, ()), Err(TaskError::Raised(raised)) if raised.message == "as it must")
    );
    assert_eq!(pool.pool().apply(|x: u32| x + 1, 1).unwrap(), 2, "tasks without a state run there, too");
    join(pool.pool());
}

static ENCODED: AtomicUsize = AtomicUsize::new(0);

#[derive(Clone, Deserialize)]
struct Table(Vec<u32>);

impl Serialize for Table {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        ENCODED.fetch_add(1, Ordering::Relaxed);
        s.serialize_newtype_struct("Table", &self.0)
    }
}

#[test]
fn worker_state_arguments_are_encoded_once() {
    let init = |Table(numbers): Table| Ok::<_, String>(numbers);
    let pool = Pool::builder().processes(3).try_state(init, Table((0..5000).collect())).build().unwrap();
    let sum = |numbers: &mut Vec<u32>, (): ()| numbers.iter().sum::<u32>();
    assert_eq!(pool.map(sum, [(); 20]).unwrap(), [12_497_500; 20]);
    let first = pool.pool().pids();
    first.iter().for_each(|pid| kill(*pid));
    eventually("all are replaced", || pool.pool().pids().iter().all(|pid| *pid != 0 && !first.contains(pid)));
    assert_eq!(pool.map(sum, [(); 20]).unwrap(), [12_497_500; 20]);
    assert_eq!(ENCODED.load(Ordering::Relaxed), 1);
}

#[test]
fn build_fails_if_state_arguments_are_not_encodable() {
    #[derive(Clone, Deserialize)]
    struct Refuses;
    impl Serialize for Refuses {
        fn serialize<S: Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
            Err(serde::ser::Error::custom("not today"))
        }
    }
    let built = Pool::builder().processes(1).try_state(|_: Refuses| Ok::<_, String>(()), Refuses).build();
    assert!(
        matches!(&built, Err(PoolError::Failed(error)) if error.to_string().contains("not today")),
        "{built:?}"
    );
}

#[test]
fn failing_state_breaks_the_pool_and_counts_failures() {
    let broken = |how: u32| {
        let init = |how: u32| match how {
            0 => Err("no licence"),
            1 => panic!("no patience"),
            _ => std::process::abort(),
        };
        let pool = Pool::builder().processes(2).try_state::<_, _, (), _>(init, how).build().unwrap();
        let result = got(pool.apply_async(|(), x: u32| x, 1));
        let Err(TaskError::Broken(broken)) = result else { panic!("it can't begin: {result:?}") };
        assert!(matches!(pool.join(), Err(PoolError::Broken(again)) if again.starts == broken.starts));
        assert!(broken.starts >= 10, "five for each worker: {broken}");
        assert!(broken.to_string().contains("starts have failed, the last one: "), "{broken}");
        broken
    };
    for (how, why) in [(0, "no licence"), (1, "no patience")] {
        let broken = broken(how);
        let Some(SpawnError::ProcessRaised(raised)) = &broken.cause else { panic!("{broken:?}") };
        assert_eq!(raised.message, why);
    }
    let broken = broken(2);
    assert!(matches!(&broken.cause, Some(SpawnError::ProcessExited(_))), "{broken:?}");
    assert!(broken.why.contains("SIGABRT"), "{broken}");
}

/// Calls `first` with the number of this call, from 0, and then creates a state.
fn init_at_first(first: fn(u64, &Gate), args: (SharedTensor<u64>, Gate)) -> Result<Counter, String> {
    let (count, gate) = args;
    let number = count.fetch_add(0, 1);
    first(number, &gate);
    Ok(Counter { life: numbers(2), tasks: Rc::new(0) })
}

#[test]
fn hanging_or_killed_state_init_is_a_failed_start() {
    let init = |args: (SharedTensor<u64>, Gate)| {
        init_at_first(
            |number, gate| {
                if number < 3 {
                    gate.pass(number as u32);
                }
            },
            args,
        )
    };
    let (count, gate) = (numbers(1), Gate::new());
    let builder = Pool::builder().processes(1).start_timeout(Duration::from_secs(1));
    let pool = builder.try_state(init, (count.clone(), gate.clone())).build().unwrap();
    let result = pool.apply_async(Counter::count, 0);
    // The first worker is killed, the second hangs, and the third is stopped.
    kill(gate.arrived().1);
    let (number, pid) = gate.arrived();
    assert_eq!(number, 1);
    let third = gate.arrived();
    assert!(!alive(pid) && third.0 == 2, "killed by the start time-out");
    signal(third.1, Signal::STOP);
    assert_eq!(got(result).unwrap(), 1);
    assert!(!alive(third.1));
    assert_eq!((count.to_vec(), pool.pool().metrics().restarts), (vec![4], 3));
    join(pool.pool());
}

#[test]
fn task_panic_recreates_state_and_task_error_does_not() {
    let (pool, life) = counters(1);
    let count = |counter: &mut Counter, x: u32| match x {
        3 => panic!("half changed"),
        5 => Err("refused"),
        _ => Ok(counter.count(x)),
    };
    let results = pool.task(count).chunksize(10).map_async(0..10).results();
    let values: Vec<Option<u64>> = results.into_iter().map(Result::ok).collect();
    let expected = [Some(1), Some(2), Some(3), None, Some(1), None, Some(2), Some(3), Some(4), Some(5)];
    assert_eq!(values, expected);
    assert_eq!(life.to_vec(), [2, 1], "created again once, and the old state dropped");
    assert!(
        matches!(pool.apply(count, 3), Err(TaskError::Raised(raised)) if raised.message == "half changed")
    );
    assert_eq!(pool.apply(count, 0).unwrap(), 1);
    assert_eq!(pool.pool().metrics().restarts, 0, "the process is the same");
    // A task without the state does not affect it.
    assert!(pool.pool().apply(|x: u32| assert_eq!(x, 1), 0).is_err());
    assert_eq!(pool.apply(count, 0).unwrap(), 2);
}

#[test]
fn failing_state_recreation_loses_no_task() {
    for how in 0..3_u32 {
        let init = |(how, count): (u32, SharedTensor<u64>)| match (count.fetch_add(0, 1), how) {
            (1, 0) => Err("not again"),
            (1, 1) => panic!("not again"),
            (1, _) => std::process::abort(),
            _ => Ok(0_u64),
        };
        let count = numbers(1);
        let pool = Pool::builder().processes(1).try_state(init, (how, count.clone())).build().unwrap();
        let task = |state: &mut u64, x: u64| {
            assert_ne!(x, 4, "a panic");
            *state += 1;
            (x, *state)
        };
        let results = pool.task(task).chunksize(20).map_async(0..20).results();
        for (x, result) in (0..20).zip(results) {
            match (x, result) {
                (4, result) => assert!(matches!(&result, Err(TaskError::Raised(_))), "{how}: {result:?}"),
                (_, result) => {
                    let state = if x < 4 { x + 1 } else { x - 4 };
                    assert_eq!(result.unwrap(), (x, state), "{how}");
                }
            }
        }
        assert_eq!((count.to_vec(), pool.pool().metrics().restarts), (vec![3], 1), "{how}");
        join(pool.pool());
    }
}

#[test]
fn other_workers_run_while_a_state_is_recreated() {
    for timeout in [None, Some(Duration::from_secs(1))] {
        let init = |(count, gate): (SharedTensor<u64>, Gate)| {
            if count.fetch_add(0, 1) == 2 {
                gate.pass(0);
            }
            Ok::<_, String>(0_u64)
        };
        let (count, gate, held) = (numbers(1), Gate::new(), Gate::new());
        let mut builder = Pool::builder().processes(2);
        if let Some(timeout) = timeout {
            builder = builder.start_timeout(timeout);
        }
        let pool = builder.try_state(init, (count.clone(), gate.clone())).build().unwrap();
        // Both workers run a task, and know the next functions.
        let pass = |_: &mut u64, (gate, x): (Gate, u32)| stop_at((gate, x));
        let both = pool.map_async(pass, [(held.clone(), 0), (held.clone(), 1)]);
        held.arrived();
        held.arrived();
        held.open(2);
        got(both).unwrap();
        let task = |_: &mut u64, x: u64| {
            assert_ne!(x, 0, "a panic");
            std::process::id()
        };
        let results = pool.task(task).chunksize(50).map_async(0..100);
        let (_, pid) = gate.arrived();
        let results = results.results();
        assert!(results[0].is_err() && results[1..].iter().all(Result::is_ok), "{results:?}");
        if timeout.is_some() {
            eventually("the worker is killed", || !alive(pid));
            eventually("the worker is replaced", || count.to_vec() == [4]);
        } else {
            gate.open(1);
        }
        assert_eq!(got(pool.map_async(task, 1..50)).unwrap().len(), 49);
        join(pool.pool());
    }
}
