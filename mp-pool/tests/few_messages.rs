//! Pool in an arena with few messages: tasks wait for room, and none fails for lack of it.

mod common;

use common::{DEADLINE, alive, eventually, got, join, kill};
use mp_core::{Arena, ArenaOptions, Error};
use mp_pool::{Pool, TaskError};
use mp_queue::{PutError, Queue};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Serializes the tests: they share one arena with 1,024 messages.
fn few_messages() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    match Arena::configure(ArenaOptions::new().messages(1024)) {
        Ok(()) | Err(Error::ArenaExists(_)) => alone,
        Err(error) => panic!("{error}"),
    }
}

/// Creates queues that hold all messages, including messages reserved for queues with few messages.
fn all_messages() -> Vec<Queue<String>> {
    let mut full = Vec::new();
    loop {
        let queue = Queue::unbounded().unwrap();
        let mut count = 0;
        loop {
            match queue.put("too long for a slot".into()) {
                Ok(()) => count += 1,
                Err(PutError::Failed { error, .. }) => {
                    assert!(error.to_string().contains("too many are in flight"), "{error}");
                    break;
                }
                Err(error) => panic!("{error}"),
            }
        }
        if count == 0 {
            return full;
        }
        full.push(queue);
    }
}

/// Short tasks in chunks of one are assigned far in advance; the tests of `slots::slot` check how far.
#[test]
fn short_tasks_finish_with_few_messages() {
    let _alone = few_messages();
    let pool = Pool::new(4).unwrap();
    // A pool that knows the duration of a task assigns many more tasks in advance.
    for _ in 0..3 {
        let sums = got(pool.task(|x: u64| x + 1).chunksize(1).map_async(0..20_000)).unwrap();
        assert!(sums.into_iter().eq(1..=20_000));
    }
    join(&pool);
}

/// Tasks are submitted while other queues have all messages. They run after these messages were received,
/// with any attachments, and with functions that the workers know or don't know. No task fails.
#[test]
fn tasks_wait_while_other_queues_have_all_messages() {
    let _alone = few_messages();
    let pool = Pool::new(2).unwrap();
    let (known, new) = (pool.task(|x: u64| x + 1), pool.task(|x: u64| x + 2));
    // A queue is attached to its message.
    let attached = pool.task(|queue: Queue<u64>| queue.capacity());
    assert_eq!(known.map(0..4).unwrap(), [1, 2, 3, 4]);
    assert_eq!(attached.apply(Queue::bounded(7).unwrap()).unwrap(), 7);
    let queues: Vec<Queue<u64>> = (1..=50).map(|n| Queue::bounded(n).unwrap()).collect();
    // The first task finds no room. The others don't try until the next attempt is due.
    let full = all_messages();
    let new = new.map_async(0..1000);
    let known = known.map_async(0..1000);
    drop(full);
    assert!(got(new).unwrap().into_iter().eq(2..=1001));
    assert!(got(known).unwrap().into_iter().eq(1..=1000));
    let full = all_messages();
    let attached = attached.map_async(queues);
    drop(full);
    assert!(got(attached).unwrap().into_iter().eq(1..=50));
    join(&pool);
}

/// Takes all free messages, first in the pool's thread, which keeps some messages for later use, then in this
/// thread.
fn all_messages_beside(pool: &Pool) -> [Vec<Queue<String>>; 2] {
    let (report, reported) = std::sync::mpsc::channel();
    pool.task(|x: u64| x).map_async(0..1).on_done(move |_| _ = report.send(all_messages()));
    [reported.recv_timeout(DEADLINE).unwrap(), all_messages()]
}

/// Tasks that wait for room can be cancelled. Other tasks survive the death of the worker.
#[test]
fn tasks_waiting_for_room_survive_worker_death() {
    let _alone = few_messages();
    let pool = Pool::new(1).unwrap();
    let (pid, task) = (pool.apply(|_: u64| std::process::id(), 0).unwrap(), pool.task(|x: u64| x + 1));
    let full = all_messages_beside(&pool);
    let (cancelled, kept) = (task.map_async(0..1000), task.map_async(0..1000));
    assert_eq!(cancelled.cancel(), 1000, "no task has found room");
    assert!(matches!(got(cancelled), Err(TaskError::Cancelled)));
    kill(pid);
    eventually("the worker has ended", || !alive(pid));
    let kept = kept.get_timeout(Duration::ZERO).expect_err("no task has found room");
    drop(full);
    assert!(got(kept).unwrap().into_iter().eq(1..=1000));
    assert_eq!(pool.apply(|x: u64| x + 1, 1).unwrap(), 2);
    join(&pool);
}
