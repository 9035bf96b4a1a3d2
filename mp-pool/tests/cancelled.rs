//! Cancellation of calls: for tasks in any state, `cancel` returns the number of tasks that end as cancelled.

mod common;

use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use common::{DEADLINE, Gate, Random, eventually, join};
use mp_pool::{AsyncResult, MapResult, Pool, TaskError};
use serde::{Deserialize, Serialize, Serializer};

/// Maximum time for which a cancellation waits for workers.
const TAKING: Duration = Duration::from_millis(100);

#[track_caller]
fn cancelled_of<T: mp_reduce::Message>(results: MapResult<T>) -> usize {
    assert!(results.wait_timeout(DEADLINE), "{results:?}");
    let is_cancelled = |result: &Result<T, TaskError>| matches!(result, Err(TaskError::Cancelled));
    results.results().iter().filter(|result| is_cancelled(result)).count()
}

/// Two flags: the pool's thread has begun to encode an argument, and the test lets the pool's thread
/// continue.
static ENCODING: Mutex<(bool, bool)> = Mutex::new((false, false));
static CHANGED: Condvar = Condvar::new();

/// Argument whose `Serialize` blocks in the pool's thread.
#[derive(Deserialize)]
struct Slow(#[allow(dead_code, reason = "only its encoding matters")] u32);

impl Serialize for Slow {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if std::thread::current().name() == Some("mp-pool") {
            let mut state = ENCODING.lock().unwrap();
            state.0 = true;
            let (state, late) = CHANGED.wait_timeout_while(state, DEADLINE, |state| !state.1).unwrap();
            assert!(state.1 && !late.timed_out());
        }
        serializer.serialize_newtype_struct("Slow", &self.0)
    }
}

#[test]
fn cancel_counts_tasks_being_encoded() {
    let gate = Gate::new();
    let pool = Pool::builder().processes(1).initializer(|gate: Gate| gate.pass(0), gate.clone());
    let pool = pool.build().unwrap();
    gate.arrived();
    // No worker is ready, so the pool's thread assigns the tasks later.
    let results = pool.map_async(|_: Slow| (), (0..200).map(Slow));
    gate.open(1);
    eventually("the thread encodes", || ENCODING.lock().unwrap().0);
    let count = results.cancel();
    ENCODING.lock().unwrap().1 = true;
    CHANGED.notify_all();
    assert_eq!((count, results.cancel()), (200, 0));
    assert_eq!(cancelled_of(results), 200);
    join(&pool);
}

#[test]
fn cancel_returns_the_number_of_cancelled_tasks() {
    let pool = Pool::new(2).unwrap();
    let mut random = Random(5);
    let begun = Instant::now();
    for round in 0..2000 {
        if round >= 50 && begun.elapsed() > Duration::from_secs(5) {
            break;
        }
        let tasks = 1 + random.below(3000) as usize;
        let chunk = [0, 1, 7, 100][random.below(4) as usize];
        let spins = random.below(200);
        let work = |spins: u64| (0..spins).fold(1_u64, |x, y| std::hint::black_box(x.wrapping_mul(y)));
        let mut call = pool.task(work).retries(random.below(2) as u32);
        if chunk > 0 {
            call = call.chunksize(chunk);
        }
        let results = call.map_async((0..tasks).map(|_| spins));
        // Cancelled at a random point of the call.
        let done = random.below(tasks as u64) as usize;
        while results.progress().done < done {
            std::thread::yield_now();
        }
        let (count, took) = std::thread::scope(|scope| {
            let other = scope.spawn(|| results.cancel());
            let since = Instant::now();
            let count = results.cancel();
            (count + other.join().unwrap(), since.elapsed())
        });
        let cancelled = cancelled_of(results);
        let what = format!("round {round}: {tasks} tasks in chunks of {chunk}, {done} done, {took:?}");
        assert!(count <= cancelled, "{what}: {count} of {cancelled}");
        assert!(count == cancelled || took >= TAKING, "{what}: {count} of {cancelled}");
    }
    join(&pool);
}

#[test]
fn cancel_of_a_finished_pool_call_returns_zero() {
    let pool = Pool::new(1).unwrap();
    let result: AsyncResult<u32> = pool.apply_async(|x: u32| x, 3);
    result.wait();
    assert_eq!((result.cancel(), result.get().unwrap()), (0, 3));
    join(&pool);
}
