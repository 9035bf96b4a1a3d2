//! Shutdown of a pool: no caller waits forever, and all resources are released.

mod common;

use std::panic::{self, AssertUnwindSafe};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use common::{DEADLINE, Gate, alive, eventually, got, in_use, join, kill, signal, stop_at};
use mp_core::Arena;
use mp_core::mutex::{Mutex, MutexGuard};
use mp_pool::{AsyncResult, Pool, PoolError, TaskError};
use mp_spawn::closure;
use mp_tensor::{FrozenTensor, Tensor};
use rustix::process::Signal;

fn square(x: u64) -> u64 {
    x * x
}

/// Prevents other tests in this program from using shared memory while the guard lives.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock()
}

/// Waits until shared memory is empty and only this process has it. Resources of other tests may still be
/// being released.
#[track_caller]
fn released() {
    let until = Instant::now() + DEADLINE;
    while in_use() != (0, 0, 1) {
        Arena::current().unwrap().reclaim().unwrap();
        assert!(Instant::now() < until, "blocks, messages, members: {:?}", in_use());
        std::thread::sleep(Duration::from_millis(1)); // sleep: the interval of checks of shared memory
    }
}

/// Runs `end` in a separate thread. Panics if it does not return in time.
fn ends(what: &str, end: impl FnOnce() + Send + 'static) {
    let (report, reported) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        end();
        report.send(()).unwrap();
    });
    assert!(reported.recv_timeout(DEADLINE).is_ok(), "not within {DEADLINE:?}: {what}");
    thread.join().unwrap();
}

#[test]
fn pool_join_waits_for_all_tasks_and_frees_resources() {
    let _alone = alone();
    released();
    let files = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let mut before = 0;
    // Resources that the first pool of a program opens are used by later ones.
    for round in 0..2 {
        before = files();
        let pool = Pool::new(2).unwrap();
        let pids = pool.pids();
        let tensor = Tensor::<u64>::full([100], 2).unwrap().freeze();
        let sum = |(tensor, x): (FrozenTensor<u64>, u64)| (tensor.iter().sum::<u64>() + x, tensor);
        let results = pool.map_async(sum, (0..5000).map(|x| (tensor.clone(), x)));
        let never_asked_for = pool.map_async(sum, (0..5000).map(|x| (tensor.clone(), x)));
        pool.close();
        assert!(matches!(got(pool.apply_async(square, 1)), Err(TaskError::Closed { .. })));
        join(&pool);
        assert!(pids.into_iter().all(|pid| !alive(pid)), "in round {round}");
        assert!(results.ready() && never_asked_for.ready());
        assert!(got(results).unwrap().into_iter().map(|(sum, _)| sum).eq(200..5200));
        pool.join().unwrap();
    }
    released();
    eventually("no file is left", || files() <= before);
}

#[test]
fn pool_drop_ends_running_and_waiting_tasks() {
    let _alone = alone();
    released();
    {
        let pool = Pool::new(2).unwrap();
        let pids = pool.pids();
        let gate = Gate::new();
        // Queues and replies are full.
        let stuck = pool.map_async(stop_at, (0..5).map(|x| (gate.clone(), x)));
        let flood = pool.task(square).chunksize(1000).map_async(0..100_000);
        let mut stream = pool.imap(square, 0..);
        gate.arrived();
        ends("dropping the pool", move || drop(pool));
        assert!(pids.into_iter().all(|pid| !alive(pid)));
        assert!(stuck.results().into_iter().all(|result| matches!(result, Err(TaskError::Terminated))));
        assert!(matches!(got(flood), Err(TaskError::Terminated)));
        assert!(matches!(stream.next(), Some(Err(TaskError::Closed { .. }))));
        assert!(stream.next().is_none());
    }
    released();
}

#[test]
fn terminate_ends_a_pool_with_stopped_workers() {
    let _alone = alone();
    let pool = Pool::builder().processes(2).grace_period(Duration::from_millis(50)).build().unwrap();
    let gate = Gate::new();
    let results = pool.map_async(stop_at, (0..4).map(|x| (gate.clone(), x)));
    let stopped = [gate.arrived().1, gate.arrived().1];
    stopped.iter().for_each(|pid| signal(*pid, Signal::STOP));
    pool.terminate();
    join(&pool);
    assert!(stopped.iter().all(|pid| !alive(*pid)));
    assert!(results.results().into_iter().all(|result| matches!(result, Err(TaskError::Terminated))));
}

#[test]
fn pool_dropped_during_unwinding_ends_its_workers() {
    let _alone = alone();
    let pool = Pool::new(2).unwrap();
    let pids = pool.pids();
    let gate = Gate::new();
    let result = pool.apply_async(stop_at, (gate.clone(), 1));
    gate.arrived();
    ends("the panic", move || {
        let catch_panic = panic::catch_unwind(AssertUnwindSafe(move || {
            let _pool = pool;
            panic!("with a pool at work");
        }));
        assert!(catch_panic.is_err());
    });
    assert!(matches!(got(result), Err(TaskError::Terminated)));
    assert!(pids.into_iter().all(|pid| !alive(pid)));
}

#[test]
fn pool_dropped_in_a_callback_ends_its_worker() {
    let _alone = alone();
    let pool = Pool::new(1).unwrap();
    let (pid, gate) = (pool.pids()[0], Gate::new());
    let result = pool.apply_async(stop_at, (gate.clone(), 1));
    gate.arrived();
    let (report, reported) = mpsc::channel();
    result.on_done(move |_| {
        drop(pool);
        report.send(()).unwrap();
    });
    gate.open(1);
    reported.recv_timeout(DEADLINE).unwrap();
    eventually("the worker has ended", || !alive(pid));
}

#[test]
fn waiting_in_a_pool_callback_is_an_error() {
    let _alone = alone();
    let pool = Arc::new(Pool::new(1).unwrap());
    let pid = pool.pids()[0];
    let gate = Gate::new();
    let (report, reported) = mpsc::channel();
    let caller = Arc::clone(&pool);
    pool.apply_async(stop_at, (gate.clone(), 1)).on_done(move |_| {
        let refused = caller.join_timeout(DEADLINE);
        // The pool continues, and accepts tasks.
        let result = caller.apply_async(square, 3);
        _ = report.send((refused, result, caller));
    });
    gate.arrived();
    gate.open(1);
    let (refused, result, caller) = reported.recv_timeout(DEADLINE).expect("the callback returns");
    assert!(matches!(refused, Err(PoolError::InCallback)), "{refused:?}");
    assert_eq!(got(result).unwrap(), 9);
    drop(caller);

    // A callback that owns the pool ends it.
    let pool = Arc::into_inner(pool).unwrap();
    let (report, reported) = mpsc::channel();
    let result = pool.apply_async(stop_at, (gate.clone(), 2));
    gate.arrived();
    let waits = pool.apply_async(stop_at, (gate.clone(), 3));
    result.on_done(move |_| _ = report.send(pool.join()));
    gate.open(1);
    let refused = reported.recv_timeout(DEADLINE).expect("the callback returns");
    assert!(matches!(refused, Err(PoolError::InCallback)), "{refused:?}");
    assert!(matches!(got(waits), Err(TaskError::Terminated)));
    eventually("the worker has ended", || !alive(pid));
}

#[test]
fn pool_ends_while_its_workers_are_killed() {
    let _alone = alone();
    released();
    for round in 0..20 {
        let pool = Pool::new(3).unwrap();
        let results = pool.map_async(square, 0..2000);
        let pids = pool.pids();
        let ending = std::thread::spawn(move || {
            match round % 3 {
                0 => pool.join().unwrap(),
                1 => pool.terminate(),
                _ => {}
            };
        });
        pids.into_iter().filter(|pid| alive(*pid)).for_each(|pid| {
            // The process may have ended just now.
            _ = rustix::process::kill_process(
                rustix::process::Pid::from_raw(pid.cast_signed()).unwrap(),
                Signal::KILL,
            );
        });
        ending.join().unwrap();
        assert!(results.wait_timeout(DEADLINE), "{results:?}");
    }
    released();
}

#[test]
fn nested_pool_ends_with_its_worker() {
    let _alone = alone();
    let outer = Pool::new(1).unwrap();
    let gate = Gate::new();
    let nested = |gate: Gate| {
        let inner = Pool::new(2)?;
        inner.map(stop_at, (0..2).map(|x| (gate.clone(), x)))?;
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    };
    let result = outer.apply_async(nested, gate.clone());
    let (first, second) = (gate.arrived().1, gate.arrived().1);
    kill(outer.pids()[0]);
    common::lost(got(result));
    eventually("the inner workers have ended", || !alive(first) && !alive(second));
    // In the opposite order: the outer pool is ended while the inner pool works.
    let result = outer.apply_async(nested, gate.clone());
    let (first, second) = (gate.arrived().1, gate.arrived().1);
    ends("dropping the outer pool", move || drop(outer));
    assert!(matches!(got(result), Err(TaskError::Terminated)));
    eventually("the inner workers have ended", || !alive(first) && !alive(second));
}

#[test]
fn submission_blocks_at_the_limit_of_waiting_tasks() {
    let _alone = alone();
    let pool = Pool::builder().processes(1).max_waiting(3).build().unwrap();
    let gate = Gate::new();
    let first: Vec<_> = (0..3).map(|x| pool.apply_async(stop_at, (gate.clone(), x))).collect();
    let back = pool.task(stop_at).try_apply_async((gate.clone(), 3)).unwrap_err();
    assert_eq!(back.0.1, 3);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| pool.apply_async(stop_at, (gate.clone(), 4)));
        gate.open(1);
        let result = waits.join().unwrap();
        assert!(first.iter().any(AsyncResult::ready), "the submission did not wait");
        gate.open(3);
        assert_eq!(got(result).unwrap(), 4);
    });
    join(&pool);
}

#[test]
fn callback_submits_to_a_full_pool_without_blocking() {
    let _alone = alone();
    let pool = Arc::new(Pool::builder().processes(1).max_waiting(1).build().unwrap());
    let (report, reported) = mpsc::channel();
    let caller = Arc::clone(&pool);
    pool.apply_async(square, 2).on_done(move |result| {
        let more = [3, 4, 5].map(|x| caller.apply_async(square, x));
        _ = report.send((result, more));
    });
    let (first, more) = reported.recv_timeout(DEADLINE).expect("the callback returns");
    assert_eq!(first.unwrap(), 4);
    assert_eq!(more.map(|result| got(result).unwrap()), [9, 16, 25]);
    join(&pool);
}

/// Waker that records its call.
#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

type Submitted = Option<AsyncResult<u32>>;

/// Future that is polled by hand.
struct Waiting {
    future: Pin<Box<dyn Future<Output = Submitted>>>,
    woken: Arc<Woken>,
}

impl Waiting {
    fn new(future: impl Future<Output = Submitted> + 'static) -> Waiting {
        Waiting { future: Box::pin(future), woken: Arc::default() }
    }

    fn is_woken(&self) -> bool {
        self.woken.0.load(Ordering::SeqCst)
    }

    fn poll(&mut self) -> Submitted {
        self.woken.0.store(false, Ordering::SeqCst);
        let waker = Waker::from(Arc::clone(&self.woken));
        match self.future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(result) => result,
            Poll::Pending => None,
        }
    }
}

#[test]
fn futures_wait_for_room_in_a_pools_queue() {
    let _alone = alone();
    let pool = Pool::builder().processes(1).max_waiting(1).build().unwrap();
    let call = pool.task(stop_at);
    let gates: Vec<_> = (0..4).map(|_| Gate::new()).collect();
    let submit = |x: u32| {
        let (call, gate) = (call.clone(), gates[x as usize].clone());
        Waiting::new(async move { Some(call.submit_async((gate, x)).await) })
    };
    let first = submit(0).poll().expect("there is room");
    let [mut a, mut b, mut c] = [submit(1), submit(2), submit(3)];
    assert!(a.poll().is_none() && b.poll().is_none() && c.poll().is_none() && b.poll().is_none());
    assert!(!a.is_woken() && !b.is_woken() && !c.is_woken());
    gates[0].open(1);
    assert_eq!(got(first).unwrap(), 0);
    eventually("the oldest future is woken", || a.is_woken());
    assert!(!b.is_woken() && !c.is_woken(), "one at a time");
    // The future is dropped: its wake-up is passed on to the next future.
    drop(a);
    eventually("the next future is woken", || b.is_woken());
    // Another caller takes the room: the future keeps its position.
    let Ok(between) = call.try_apply_async((gates[1].clone(), 9)) else { panic!("there is no room") };
    assert!(b.poll().is_none());
    gates[1].open(1);
    assert_eq!(got(between).unwrap(), 9);
    eventually("the future is woken again", || b.is_woken());
    let second = b.poll().expect("there is room");
    assert!(!c.is_woken());
    gates[2].open(1);
    assert_eq!(got(second).unwrap(), 2);
    eventually("the last future is woken", || c.is_woken());
    let last = c.poll().expect("there is room");
    // Calls of dropped futures were not begun, and the end of a pool ends each wait.
    let mut too_late = submit(1);
    assert!(too_late.poll().is_none());
    pool.close();
    assert!(too_late.is_woken());
    let refused = too_late.poll().expect("the pool is closed");
    assert!(matches!(got(refused), Err(TaskError::Closed { .. })));
    gates[3].open(1);
    assert_eq!(got(last).unwrap(), 3);
    join(&pool);
}

/// A future that was not woken takes the room, and the woken future continues to wait.
#[test]
fn future_that_finds_room_leaves_the_wait_queue() {
    let _alone = alone();
    let pool = Pool::builder().processes(1).max_waiting(1).build().unwrap();
    let call = pool.task(stop_at);
    let gates: Vec<_> = (0..4).map(|_| Gate::new()).collect();
    let submit = |x: u32| {
        let (call, gate) = (call.clone(), gates[x as usize].clone());
        Waiting::new(async move { Some(call.submit_async((gate, x)).await) })
    };
    let first = submit(0).poll().expect("there is room");
    let [mut a, mut b, mut c] = [submit(1), submit(2), submit(3)];
    assert!(a.poll().is_none() && b.poll().is_none() && c.poll().is_none());
    gates[0].open(1);
    assert_eq!(got(first).unwrap(), 0);
    eventually("the oldest future is woken", || a.is_woken());
    let second = b.poll().expect("there is room");
    assert!(a.poll().is_none());
    gates[2].open(1);
    assert_eq!(got(second).unwrap(), 2);
    eventually("the future is woken again", || a.is_woken());
    let third = a.poll().expect("there is room");
    gates[1].open(1);
    assert_eq!(got(third).unwrap(), 1);
    eventually("the last future is woken", || c.is_woken());
    let last = c.poll().expect("there is room");
    gates[3].open(1);
    assert_eq!(got(last).unwrap(), 3);
    join(&pool);
}

#[test]
fn cloned_call_does_not_keep_its_pool() {
    let _alone = alone();
    fn is_kept<T: Clone + Send + Sync + 'static>(call: T) -> T {
        call
    }
    let pool = Pool::new(2).unwrap();
    let factor = 3;
    let calls =
        [is_kept(pool.task(square)), is_kept(pool.task_closure(closure!([factor] |x: u64| factor * x)))];
    let threads = [0, 1, 2, 3].map(|thread: u64| {
        let calls = calls.clone();
        std::thread::spawn(move || {
            let [square, triple] = calls.map(|call| call.chunksize(1 + thread as usize));
            for x in 0..50 {
                assert_eq!(square.apply(x).unwrap(), x * x);
                assert_eq!(triple.map([x, 1]).unwrap(), [3 * x, 3]);
            }
        })
    });
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let pids = pool.pids();
    drop(pool);
    eventually("the workers end", || !pids.iter().any(|pid| alive(*pid)));
    for call in calls {
        assert!(matches!(call.apply(2), Err(TaskError::Closed { .. })));
        assert!(matches!(call.imap([2]).next(), Some(Err(TaskError::Closed { .. }))));
    }
    released();
}

#[test]
fn largest_chunk_size_is_accepted() {
    let _alone = alone();
    let pool = Pool::new(1).unwrap();
    let squares = pool.task(square).chunksize(usize::MAX).imap(0..3);
    assert_eq!(squares.map(Result::unwrap).collect::<Vec<_>>(), [0, 1, 4]);
    join(&pool);
}

#[test]
fn invalid_pool_settings_are_refused() {
    let _alone = alone();
    for processes in [0, 100_000] {
        let error = Pool::new(processes).unwrap_err();
        assert!(
            matches!(&error, PoolError::Settings(_)) && error.to_string().contains(&processes.to_string()),
            "{error}"
        );
    }
    let nowhere =
        Pool::builder().processes(2).per_worker(|_, process| process.executable("/nowhere/at all")).build();
    let error = nowhere.unwrap_err();
    assert!(matches!(error, PoolError::Start(_)) && error.to_string().contains("/nowhere/at all"), "{error}");
}
