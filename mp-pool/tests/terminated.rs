//! Pools that are terminated or dropped: workers drop their states, however they handle SIGTERM.

mod common;

use std::time::{Duration, Instant};

use common::{DEADLINE, Gate, eventually, got, join};
use mp_pool::{Pool, StatePool, TaskError};
use mp_spawn::StartMethod;
use mp_tensor::{SharedTensor, Tensor};

/// Duration that exceeds every other wait of the tests.
const LONG: Duration = Duration::from_secs(30);

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

/// Creates a pool of two workers, and the counts of their states. `ignores` makes the workers ignore SIGTERM.
fn pool(ignores: bool, finish: Duration) -> (StatePool<Counted>, SharedTensor<i64>) {
    let counts = Tensor::full([2], 0).unwrap().share();
    let mut builder = Pool::builder().processes(2).grace_period(LONG).finish_period(finish);
    if ignores {
        let program = std::env::current_exe().unwrap();
        let command = move || ["env".into(), "--ignore-signal=TERM".into(), program.clone()];
        builder = builder.start_method(StartMethod::Spawn).per_worker(move |_, p| p.command(command()));
    }
    let pool = builder.try_state(counted, counts.clone()).build().unwrap();
    eventually("both workers have a state", || counts.to_vec()[0] == 2);
    let squares = pool.map(|_: &mut Counted, x: u64| x * x, 0..10).unwrap();
    assert_eq!(squares[9], 81);
    (pool, counts)
}

#[test]
fn terminate_ends_idle_workers_and_drops_their_states() {
    for ignores in [true, false] {
        for dropped in [true, false] {
            let (pool, counts) = pool(ignores, Duration::ZERO);
            let since = Instant::now();
            if dropped {
                drop(pool);
            } else {
                pool.pool().terminate();
                join(pool.pool());
            }
            assert!(since.elapsed() < LONG, "{ignores} {dropped}: {:?}", since.elapsed());
            assert_eq!(counts.to_vec(), [2, 2], "{ignores} {dropped}");
        }
    }
}

#[test]
fn worker_that_ignores_sigterm_ends_after_its_task() {
    let (pool, counts) = pool(true, Duration::ZERO);
    let gate = Gate::new();
    let stop = |_: &mut Counted, (gate, number): (Gate, u32)| gate.pass(number);
    // One chunk whose first task runs, and many that no worker has begun.
    let call = pool.task(stop).chunksize(50);
    let results = call.map_async((0..500).map(|number| (gate.clone(), number)));
    gate.arrived();
    gate.arrived();
    let since = Instant::now();
    pool.pool().terminate();
    // Otherwise a worker may claim one more task before the pool's thread withdraws it.
    eventually("tasks that have not begun are settled", || results.progress().done == 498);
    gate.open(2);
    join(pool.pool());
    assert!(since.elapsed() < LONG, "{:?}", since.elapsed());
    assert_eq!(counts.to_vec(), [2, 2]);
    let left = results.results().into_iter().filter(|result| matches!(result, Err(TaskError::Terminated)));
    assert!(left.count() >= 498);
}

#[test]
fn task_finished_in_the_finish_period_succeeds() {
    let (pool, counts) = pool(false, DEADLINE);
    let gate = Gate::new();
    let stop = |_: &mut Counted, (gate, number): (Gate, u32)| {
        gate.pass(number);
        number
    };
    let result = pool.apply_async(stop, (gate.clone(), 7));
    gate.arrived();
    pool.pool().terminate();
    gate.open(1);
    assert_eq!(got(result).unwrap(), 7);
    join(pool.pool());
    assert_eq!(counts.to_vec(), [2, 2]);
}

/// The time counts from the start of the task, so a time-out of zero expires at once.
#[test]
fn task_timeout_of_zero_ends_a_running_task() {
    let pool = Pool::new(1).unwrap();
    let gate = Gate::new();
    let call = pool.task(common::stop_at).timeout(Duration::ZERO);
    let error = got(call.apply_async((gate.clone(), 3))).unwrap_err();
    assert!(matches!(error, TaskError::TimedOut { .. }), "{error}");
    join(&pool);
}

/// Between the termination and the withdrawal of tasks by the pool's thread, workers answer parts of their
/// chunks.
#[test]
fn tasks_of_a_terminated_pool_are_never_cancelled() {
    for round in 0..20 {
        let pool = Pool::new(2).unwrap();
        let nap = |x: u64| {
            let until = Instant::now() + Duration::from_micros(700);
            while Instant::now() < until {
                std::hint::spin_loop();
            }
            x
        };
        let results = pool.task(nap).chunksize(500).map_async(0..20_000);
        eventually("some tasks are done", || results.progress().done > 2 + round % 5);
        pool.terminate();
        let cancelled = results.cancel();
        assert!(results.wait_timeout(DEADLINE), "{results:?}");
        let unexpected: Vec<_> = results
            .results()
            .into_iter()
            .filter(|result| !matches!(result, Ok(_) | Err(TaskError::Terminated)))
            .collect();
        assert!(cancelled == 0 && unexpected.is_empty(), "round {round}: {cancelled} {:?}", unexpected[0]);
        join(&pool);
    }
}
