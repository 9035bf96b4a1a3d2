//! Workers with a limit of shared memory: which memory counts, and the effects of exceeding it.

mod common;

use std::sync::Mutex;

use common::{DEADLINE, join};
use mp_pool::{Pool, PoolBuilder, TaskError};
use mp_queue::Queue;
use mp_spawn::Limits;
use mp_tensor::{FrozenTensor, Tensor};

const MIB: usize = 1 << 20;

/// Tensors that a worker keeps between tasks.
static KEPT: Mutex<Vec<FrozenTensor<u8>>> = Mutex::new(Vec::new());

fn limited(processes: usize) -> PoolBuilder {
    Pool::builder().processes(processes).limits(Limits::new().shared_memory(8 << 20))
}

fn allocate(mib: usize) -> Result<Tensor<u8>, mp_core::Error> {
    Tensor::zeros([mib * MIB])
}

/// Returns `true` if the memory of this process is counted as 0 to 2 MiB: 6 MiB can be allocated, and 3 MiB
/// more can't.
fn holds_nothing() -> bool {
    let first = allocate(6);
    first.is_ok() && allocate(3).is_err()
}

#[test]
fn allocation_beyond_limit_is_an_error_of_its_task() {
    let pool = limited(2).build().unwrap();
    let work = |mib: usize| allocate(mib).map(|tensor| tensor.len());
    let results = pool.map_async(work, [1, 9, 7]).results();
    assert!(matches!(results[..], [Ok(a), Err(_), Ok(b)] if (a, b) == (MIB, 7 * MIB)), "{results:?}");
    let Err(TaskError::Raised(raised)) = &results[1] else { panic!("{results:?}") };
    assert!(raised.message.contains("8 MiB that this process may hold"), "{raised}");
    assert_eq!(pool.metrics().restarts, 0);
    join(&pool);
}

/// The worker creates the results one by one. The memory of a result no longer counts for the worker after
/// the result was sent.
#[test]
fn sent_tensors_count_for_the_receivers_memory_limit() {
    let pool = limited(1).build().unwrap();
    let results: Vec<Tensor<u8>> = (0..4).map(|_| pool.apply(allocate, 5).unwrap()).collect();
    assert!(pool.apply(|(): ()| holds_nothing(), ()).unwrap());
    // Tensors that are kept count.
    let keep = |tensor: FrozenTensor<u8>| KEPT.lock().unwrap().push(tensor);
    let frozen: Vec<FrozenTensor<u8>> = results.into_iter().map(Tensor::freeze).collect();
    for _ in 0..3 {
        pool.apply(keep, frozen[0].clone()).unwrap();
    }
    assert!(pool.apply(|(): ()| allocate(1).is_ok() && allocate(4).is_err(), ()).unwrap(), "counted once");
    // More than the limit can be received, but then no allocation succeeds.
    pool.apply(keep, frozen[1].clone()).unwrap();
    assert!(pool.apply(|(): ()| allocate(1).is_err(), ()).unwrap());
    pool.apply(|(): ()| KEPT.lock().unwrap().clear(), ()).unwrap();
    assert!(pool.apply(|(): ()| holds_nothing(), ()).unwrap());
    join(&pool);
}

#[test]
fn dropped_tensors_do_not_count_for_the_memory_limit() {
    let work = |queue: Queue<Tensor<u8>>| -> mp_core::Result<bool> {
        let failed = |error: &dyn std::fmt::Display| mp_core::Error::Malformed(error.to_string());
        let closed = Queue::<Tensor<u8>>::bounded(1).map_err(|e| failed(&e))?;
        closed.close();
        for _ in 0..50 {
            // Sends a tensor through a queue, and one into a closed queue, which returns it.
            queue.put(allocate(2)?).map_err(|e| failed(&e))?;
            let arrived = queue.get().map_err(|e| failed(&e))?;
            let refused = closed.put(arrived.ok_or_else(|| failed(&"nothing arrived"))?);
            let frozen = refused.err().ok_or_else(|| failed(&"it was put"))?.into_value().freeze();
            let copies = [frozen.clone(), frozen.clone()];
            drop((frozen, copies));
        }
        Ok(holds_nothing())
    };
    let pool = limited(1).build().unwrap();
    assert!(pool.apply(work, Queue::bounded(1).unwrap()).unwrap());
    join(&pool);
}

#[test]
fn worker_threads_together_stay_within_memory_limit() {
    let work = |(): ()| {
        let start = std::sync::Barrier::new(16);
        let held = std::thread::scope(|scope| {
            let threads = [(); 16].map(|()| {
                scope.spawn(|| {
                    start.wait();
                    allocate(1).ok()
                })
            });
            threads.map(|thread| thread.join().ok().flatten())
        });
        held.iter().flatten().count()
    };
    let pool = limited(1).build().unwrap();
    for _ in 0..10 {
        // The queues of the pool count as well, and a block may be a quarter larger than its tensor.
        assert!((6..=7).contains(&pool.apply(work, ()).unwrap()));
    }
    join(&pool);
}

#[test]
fn long_results_are_sent_without_room_for_tensors() {
    let pool = limited(1).build().unwrap();
    let work = |len: usize| {
        let mut all = Vec::new();
        while let Ok(tensor) = Tensor::<u8>::zeros([64 << 10]) {
            all.push(tensor);
        }
        "x".repeat(len)
    };
    let results = pool.map_async(work, [10, 3 * MIB, 100]);
    assert!(results.wait_timeout(DEADLINE));
    assert_eq!(results.get().unwrap().iter().map(String::len).collect::<Vec<_>>(), [10, 3 * MIB, 100]);
    join(&pool);
}
