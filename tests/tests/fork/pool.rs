//! Pools whose workers are forked from the process that owns the pool.
#![allow(unsafe_code)]

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Mutex, OnceLock};
use std::task::{Context, Poll, Waker};

use mp::pool::{MapResult, PoolBuilder, PoolError};
use mp::process::{ExitStatus, Signal};
use mp::{
    Bundle, FrozenTensor, Pool, Queue, SharedTensor, SpawnOptions, StartMethod, TaskError, Tensor,
    start_processes,
};
use mp_tests::{DEADLINE, Outcome, alone, eventually, eventually_in_use, in_use, join, one_process};
use rustix::process::{Pid, getpid, kill_process, test_kill_process};

fn allow() {
    // SAFETY: what the tasks of these tests do needs nothing of other threads, and nothing that is there
    // once.
    unsafe { mp::process::allow_fork() };
}

fn copies(processes: usize) -> PoolBuilder {
    Pool::builder().processes(processes).start_method(StartMethod::Fork)
}

/// Id of the process that computed this value. Only its forked children inherit it.
static COMPUTED_BY: OnceLock<u32> = OnceLock::new();

fn compute() -> u32 {
    *COMPUTED_BY.get_or_init(std::process::id)
}

/// Returns `true` in a worker that was forked from the process `original`.
fn is_copy_of(original: u32) -> bool {
    COMPUTED_BY.get() == Some(&original) && std::process::id() != original
}

/// Runs a test in a separate process, which is allowed to fork. Checks that the process leaves nothing in
/// shared memory.
fn in_an_original(test: impl Fn(usize, ()) -> Outcome + Copy + Send + 'static) {
    let _alone = alone();
    // Only a process that has used a queue can release messages in the queues of other processes.
    drop(Queue::<u8>::bounded(1).unwrap());
    let before = in_use();
    join(&one_process(test, ())).unwrap();
    left(before);
}

/// Waits until usage of shared memory is back to `before`.
fn left(before: (u64, u64, u64)) {
    eventually_in_use(before, "nothing is left");
}

#[test]
fn pool_without_fork_permission_is_refused() {
    fn original(_: usize, (): ()) -> Outcome {
        let refused = copies(2).build();
        assert!(
            matches!(&refused, Err(PoolError::Start(e)) if e.to_string().contains("allow_fork")),
            "{refused:?}"
        );
        Ok(())
    }
    in_an_original(original);
}

#[test]
fn tensors_reach_forked_workers_without_a_copy() {
    type Args = (u32, u64, FrozenTensor<u64>, SharedTensor<i64>);
    fn work((original, number, rows, sums): Args) -> mp::AnyResult<Bundle<(FrozenTensor<u64>, Tensor<u64>)>> {
        assert!(is_copy_of(original), "a worker is a copy");
        let row = rows.select(0, number as usize)?;
        sums.fetch_add(number as usize, row.iter().sum::<u64>() as i64);
        Ok(Bundle((row, Tensor::full([1000], number)?)))
    }
    fn original(_: usize, (): ()) -> Outcome {
        allow();
        let original = compute();
        let before = in_use();
        {
            let values: Vec<u64> = (0..8 * 5000).collect();
            let rows = Tensor::from_slice(&values, [8, 5000])?.freeze();
            let sums = Tensor::<i64>::zeros([8])?.share();
            let here = rows.as_slice()?.as_ptr_range();
            // The start method is chosen for the pool first, and then for the whole process.
            mp::set_start_method(StartMethod::Fork);
            for pool in [copies(2).build()?, Pool::new(2)?] {
                let tasks = (0..8).map(|number| (original, number, rows.clone(), sums.clone()));
                for (number, Bundle((row, own))) in (0..).zip(pool.map(work, tasks)?) {
                    // The result uses the memory of this process's own handle, without a copy.
                    let at = row.as_slice()?.as_ptr();
                    assert!(here.contains(&at) && row.get(&[0])? == 5000 * number, "row {number}");
                    assert!(own.iter().all(|x| x == number));
                }
                pool.join()?;
            }
            for number in 0..8 {
                let sum: u64 = values[number * 5000..][..5000].iter().sum();
                assert_eq!(sums.get(&[number])?, 2 * sum as i64);
            }
        }
        left(before);
        Ok(())
    }
    in_an_original(original);
}

#[test]
fn killed_fork_worker_costs_one_task_and_is_replaced() {
    const TASKS: u64 = 40;
    type Args = (u32, u64, bool, FrozenTensor<u64>);
    fn work((original, number, dies, tensor): Args) -> mp::AnyResult<(u32, FrozenTensor<u64>)> {
        assert!(is_copy_of(original), "each worker is a copy, and so is its replacement");
        if dies {
            kill_process(getpid(), rustix::process::Signal::KILL)?;
        }
        assert_eq!(tensor.get(&[2])?, 77);
        Ok((std::process::id(), Tensor::full([300], number)?.freeze()))
    }
    fn original(_: usize, (): ()) -> Outcome {
        allow();
        let original = compute();
        let before = in_use();
        {
            let tensor = Tensor::full([1000], 77)?.freeze();
            let pool = copies(2).build()?;
            let mut killed = Vec::new();
            for fatal in [0, 7, 39] {
                let before = killed.clone();
                let task = |number| (original, number, number == fatal, tensor.clone());
                let results = pool.map_async(work, (0..TASKS).map(task));
                assert!(results.wait_timeout(DEADLINE), "{results:?}");
                for (number, result) in (0..).zip(results.results()) {
                    match result {
                        Ok((pid, own)) => {
                            assert!(number != fatal && !before.contains(&pid));
                            assert!(own.iter().all(|x| x == number));
                        }
                        Err(TaskError::WorkerLost(lost)) => {
                            assert_eq!(number, fatal, "another task was lost with it: {lost}");
                            assert!(
                                matches!(lost.exit, ExitStatus::Signal { signal: Signal::KILL, .. }),
                                "{lost}"
                            );
                            killed.push(lost.pid);
                        }
                        Err(other) => panic!("task {number}: {other}"),
                    }
                }
            }
            assert_eq!(killed.len(), 3);
            eventually("all workers are replaced", || {
                pool.pids().iter().all(|pid| *pid != 0 && !killed.contains(pid))
            });
            pool.join()?;
        }
        left(before);
        Ok(())
    }
    in_an_original(original);
}

#[test]
fn dropped_pool_ends_its_forked_workers() {
    fn stay((ignore, begun): (bool, Queue<u32>)) -> Outcome {
        if ignore {
            // SAFETY: no handler is installed, and no memory is involved.
            unsafe { libc::signal(libc::SIGTERM, libc::SIG_IGN) };
        }
        mp_tests::send(&begun, std::process::id())?;
        // This panics if no other process ends this process.
        eventually("another process ends this one", || false);
        Ok(())
    }
    fn original(_: usize, (): ()) -> Outcome {
        allow();
        let before = in_use();
        {
            let begun = Queue::bounded(4)?;
            // The workers of two pools inherit no descriptors from each other that would keep one of them
            // alive.
            let pools = [copies(2).build()?, copies(2).build()?];
            let stays: Vec<_> = pools
                .iter()
                .map(|pool| pool.map_async(stay, [(false, begun.clone()), (true, begun.clone())]))
                .collect();
            let pids = [(); 4].map(|()| mp_tests::take(&begun));
            let [first, second] = pools;
            drop(first);
            assert!(stays[0].ready() && !stays[1].ready());
            drop(second);
            for stay in stays {
                assert!(stay.results().iter().all(|r| matches!(r, Err(TaskError::Terminated))));
            }
            for pid in pids {
                let gone =
                    Pid::from_raw(pid.cast_signed()).is_some_and(|pid| test_kill_process(pid).is_err());
                assert!(gone, "the process {pid} still exists");
            }
        }
        left(before);
        Ok(())
    }
    in_an_original(original);
}

#[test]
fn copied_task_results_survive_use_by_other_threads() {
    type Stream = mp::pool::Imap<std::ops::Range<u32>, u32>;
    static HELD: OnceLock<(MapResult<u32>, MapResult<u32>)> = OnceLock::new();
    static GIVEN_AWAY: Mutex<Option<(Vec<MapResult<u32>>, Stream)>> = Mutex::new(None);
    static STOP: AtomicBool = AtomicBool::new(false);
    fn copy(_: usize, (): ()) -> Outcome {
        // None of these calls waits for a lock that a thread of the parent held, and all return the same.
        let (waits, done) = HELD.get().ok_or("they were copied along")?;
        for result in [waits, done] {
            result.wait();
            assert!(result.wait_timeout(DEADLINE) && result.ready());
            assert_eq!((result.successful(), result.cancel()), (Some(false), 0));
            let progress = result.progress();
            assert_eq!((progress.done, progress.failed, progress.total), (3, 3, 3));
            assert_eq!(format!("{result:?}"), "AsyncResult(3 of 3 done)");
        }
        let (results, mut stream) =
            GIVEN_AWAY.lock().unwrap().take().ok_or("no other task has taken them")?;
        let [first, second, third, fourth] = results.try_into().map_err(|_| "there are four")?;
        assert!(matches!(first.get(), Err(TaskError::Terminated)));
        assert!(
            second.results().iter().map(|result| matches!(result, Err(TaskError::Terminated))).eq([true; 3])
        );
        let mut third = pin!(third);
        let mut context = Context::from_waker(Waker::noop());
        assert!(matches!(third.as_mut().poll(&mut context), Poll::Ready(Err(TaskError::Terminated))));
        assert!(third.as_mut().poll(&mut context).is_pending());
        let (report, reported) = channel();
        fourth.on_done(move |result| _ = report.send(result));
        assert!(matches!(reported.try_recv()?, Err(TaskError::Terminated)));
        assert!(matches!(stream.next(), Some(Err(TaskError::Terminated))));
        assert_eq!((stream.next().is_none(), stream.size_hint()), (true, (0, Some(0))));
        Ok(())
    }
    fn original(_: usize, (): ()) -> Outcome {
        allow();
        let pool = copies(1).build()?;
        let gate = Queue::<()>::bounded(4)?;
        let stay = |(gate, x): (Queue<()>, u32)| {
            // If no message arrives, the pool ends this worker.
            _ = gate.get_timeout(DEADLINE);
            x
        };
        let same = |x: u32| x;
        let done = pool.map_async(same, 0..3);
        done.wait();
        let mut stream = pool.imap(same, 0..100);
        assert_eq!(stream.next().ok_or("it has a result")??, 0);
        let waits = pool.map_async(stay, (0..3).map(|x| (gate.clone(), x)));
        let _ = HELD.set((waits, done));
        *GIVEN_AWAY.lock().unwrap() = Some(((0..4).map(|_| pool.map_async(same, 0..3)).collect(), stream));
        let (waits, done) = HELD.get().ok_or("just set")?;
        let busy: Vec<_> = [waits, done]
            .into_iter()
            .map(|result| {
                std::thread::spawn(move || {
                    while !STOP.load(Ordering::Relaxed) {
                        assert_eq!(result.progress().total, 3);
                    }
                })
            })
            .collect();
        for _ in 0..20 {
            join(&start_processes(copy, (), SpawnOptions::nprocs(2).start_method(StartMethod::Fork))?)?;
        }
        STOP.store(true, Ordering::Relaxed);
        busy.into_iter().for_each(|thread| thread.join().unwrap());
        // In the parent, the results arrive as usual.
        (0..3).try_for_each(|_| gate.put(()))?;
        assert!(waits.wait_timeout(DEADLINE) && waits.successful() == Some(true));
        let (results, stream) = GIVEN_AWAY.lock().unwrap().take().ok_or("it was taken in copies alone")?;
        assert_eq!(stream.collect::<Result<Vec<_>, _>>()?, (1..100).collect::<Vec<_>>());
        for result in results {
            assert_eq!(result.get()?, [0, 1, 2]);
        }
        pool.join()?;
        Ok(())
    }
    in_an_original(original);
}

#[test]
fn pool_in_a_forked_copy_is_closed() {
    static COPIED: OnceLock<Pool> = OnceLock::new();
    static STOP: AtomicBool = AtomicBool::new(false);
    fn copy(_: usize, (): ()) -> Outcome {
        let pool = COPIED.get().ok_or("it was copied along")?;
        // None of these calls waits for a lock that a thread of the parent held.
        assert!(matches!(pool.apply(|x: u32| x, 1), Err(TaskError::Closed { .. } | TaskError::Terminated)));
        assert!(pool.imap(|x: u32| x, 0..3).all(|result| result.is_err()));
        assert_eq!((pool.processes(), pool.pids()), (2, vec![0, 0]));
        assert!(format!("{pool:?}").contains("forked"), "{pool:?}");
        assert!(matches!(pool.join_timeout(DEADLINE), Err(PoolError::OtherProcess { .. })));
        pool.terminate();
        // The child can have its own pool.
        let own = copies(1).build()?;
        assert_eq!(own.apply(|x: u32| x + 1, 1)?, 2);
        Ok(own.join()?)
    }
    fn original(_: usize, (): ()) -> Outcome {
        allow();
        let pool = copies(2).build()?;
        let pool = COPIED.get_or_init(|| pool);
        let busy: Vec<_> = (0..2)
            .map(|_| {
                std::thread::spawn(|| {
                    while !STOP.load(Ordering::Relaxed) {
                        assert!(pool.map(|x: u64| 2 * x, 0..50).unwrap().into_iter().eq((0..100).step_by(2)));
                    }
                })
            })
            .collect();
        for _ in 0..20 {
            join(&start_processes(copy, (), SpawnOptions::nprocs(2).start_method(StartMethod::Fork))?)?;
        }
        STOP.store(true, Ordering::Relaxed);
        busy.into_iter().for_each(|thread| thread.join().unwrap());
        // The parent's pool works as before.
        assert_eq!(pool.apply(|x: u32| x + 1, 1)?, 2);
        Ok(())
    }
    in_an_original(original);
}
