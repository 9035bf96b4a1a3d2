//! Snapshots of queues, pools, tensors and failures, of programs with several processes.

use std::time::{Duration, Instant};

use mp::inspect::{PoolSnapshot, Snapshot};
use mp::{Arena, Event, Pool, Process, Queue, Tensor};
use mp_harness::{DEADLINE, eventually, signal};
use rustix::process::Signal;

fn snapshot() -> Snapshot {
    Snapshot::of(Arena::current().unwrap())
}

/// A get and a put wait for a message that is sent or taken every 30 ms.
#[test]
fn waits_of_both_sides_are_counted_at_the_queue() {
    let queue = Queue::<u32>::bounded(1).unwrap().named("slow results");
    let ring = || {
        let found = snapshot().queues.into_iter().find(|found| found.name == "slow results");
        found.unwrap().ring.unwrap()
    };
    let worker = Process::spawn(
        |queue: Queue<u32>| -> mp::AnyResult<()> {
            for i in 0..3 {
                // sleep: the length of the consumer's wait is what this test measures.
                std::thread::sleep(Duration::from_millis(30));
                queue.put(i)?;
            }
            Ok(())
        },
        queue.clone(),
    )
    .unwrap();
    let began = Instant::now();
    for _ in 0..3 {
        queue.get_timeout(DEADLINE).unwrap();
    }
    let took = began.elapsed();
    worker.join().unwrap();
    let gets = ring().get_waits;
    assert_eq!(gets.count(), 3);
    assert!(gets.total() > Duration::from_millis(80) && gets.total() <= took, "{gets:?}, {took:?}");
    assert!(gets.percentile(1).unwrap() > Duration::from_millis(15), "{gets:?}");
    // Waits that time out, and calls that do not wait, are not counted.
    queue.get_timeout(Duration::from_millis(5)).unwrap_err();
    queue.put(1).unwrap();
    queue.get().unwrap();
    assert_eq!(ring().get_waits.count(), 3);
    assert_eq!(ring().put_waits.count(), 0);

    queue.put(1).unwrap();
    let producer = Process::spawn(|queue: Queue<u32>| queue.put(2), queue.clone()).unwrap();
    let waits =
        || snapshot().processes.iter().flat_map(|its| &its.waits).any(|wait| wait.call == "Queue::put");
    eventually("the put waits", waits);
    queue.get().unwrap();
    producer.join().unwrap();
    let puts = ring().put_waits;
    assert_eq!(puts.count(), 1);
    assert!(puts.total() > Duration::from_millis(90), "a wait is shown after 100 ms: {puts:?}");
}

#[test]
fn pool_publishes_its_tasks_and_workers() {
    let pool = Pool::builder().processes(2).name("published").build().unwrap();
    let found =
        || -> PoolSnapshot { snapshot().pools.into_iter().find(|pool| pool.name == "published").unwrap() };
    let doubled = pool.map(|x: u32| x * 2, 0..100).unwrap();
    assert_eq!(doubled[99], 198);
    let idle = found();
    assert_eq!((idle.wanted_workers, idle.pending, idle.done, idle.failed), (2, 0, 100, 0));
    let metrics = snapshot().prometheus();
    assert!(metrics.contains("mp_pool_tasks_total{pool=\"published\",outcome=\"done\"} 100\n"), "{metrics}");
    assert!(idle.workers.iter().all(|worker| worker.pid > 0 && worker.chunks == 0), "{idle:?}");

    let stop = Event::new().unwrap();
    let noted = |stop: Event| -> mp::AnyResult<()> {
        mp::pool::note(17);
        Ok(stop.wait()?)
    };
    let waiting = pool.apply_async(noted, stop.clone());
    eventually("the task runs", || {
        found().workers.iter().any(|worker| worker.note == Some(17) && worker.busy_ms > 20)
    });
    let busy = found();
    assert_eq!((busy.pending, busy.workers.iter().filter(|worker| worker.chunks > 0).count()), (1, 1));
    let pids: Vec<_> = pool.running().iter().map(|task| task.pid).collect();
    let worker = busy.workers.iter().find(|worker| worker.chunks > 0).unwrap();
    assert_eq!(pids, [worker.pid]);

    signal(worker.pid, Signal::KILL);
    waiting.get().unwrap_err();
    eventually("the worker is replaced", || {
        let after = found();
        (after.lost, after.restarts, after.pending) == (1, 1, 0) && after.workers.iter().all(|w| w.ready)
    });
    let (pid, failures) = (format!("pid {}", worker.pid), snapshot().failures);
    let is_its = |error: &str| error.contains(&pid) && error.contains("SIGKILL");
    assert!(failures.iter().any(|failure| is_its(&failure.error)), "{failures:?}");
    pool.resize(1).unwrap();
    assert_eq!(found().wanted_workers, 1);
    drop(pool);
    assert!(snapshot().pools.iter().all(|pool| pool.name != "published"));
}

#[test]
fn tensor_is_listed_with_its_holders() {
    let weights = Tensor::<f32>::zeros([5 << 20]).unwrap().share();
    let queue = Queue::bounded(1).unwrap();
    queue.put(weights.clone()).unwrap();
    let storages = snapshot().storages;
    let found = storages.iter().find(|found| found.bytes >= 20 << 20 && found.kind == "shared").unwrap();
    assert_eq!((&*found.holders.processes, found.holders.messages), (&[std::process::id()][..], 1));
    assert!(storages.is_sorted_by_key(|found| std::cmp::Reverse(found.bytes)), "{storages:?}");
}
