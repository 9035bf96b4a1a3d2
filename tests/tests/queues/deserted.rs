//! Waits on a queue that end with `Deserted`. They do not end while a thread or a task of this process has
//! the queue, or a message contains it, and end soon afterwards. In all tests, a process that had the queue
//! has ended.

use std::pin::pin;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use futures_core::Stream;
use mp::queue::DesertedWhen;
use mp::{GetError, JoinableQueue, PutError, Queue, QueueOptions, wait};
use mp_core::inject;
use mp_tests::block_on::{block_on, poll_once};
use mp_tests::kill::STOP;
use mp_tests::{
    DEADLINE, Outcome, alone, eventually, give, join, one_process, send, signal, sleeps, take, threads_are,
};
use rustix::process::Signal;

/// Duration of several poll intervals. A deserted wait ends within one.
const A_WHILE: Duration = Duration::from_millis(350);

fn has_it(_: usize, queue: Queue<u32>) -> Outcome {
    drop(queue);
    Ok(())
}

/// Starts a process that gets a handle of the queue, and ends.
fn left_behind(queue: &Queue<u32>) {
    let context = one_process(has_it, queue.clone());
    join(&context).unwrap();
}

fn left(when: DesertedWhen) -> Queue<u32> {
    let queue = QueueOptions::new().capacity(1).deserted_when(when).create().unwrap();
    left_behind(&queue);
    queue
}

fn is_deserted<T>(got: &Result<T, GetError>) -> bool {
    matches!(got, Err(GetError::Deserted { .. }))
}

#[track_caller]
fn deserted(queue: &Queue<u32>) {
    let got = queue.get_timeout(DEADLINE);
    assert!(is_deserted(&got), "{got:?}");
}

#[track_caller]
fn assert_empty(queue: &Queue<u32>) {
    let got = queue.get_timeout(A_WHILE);
    assert!(got.as_ref().is_err_and(GetError::is_empty), "{got:?}");
}

#[test]
fn get_waits_until_the_local_clone_is_dropped() {
    let _alone = alone();
    let queue = left(DesertedWhen::default());
    let clone = queue.clone();
    assert_empty(&queue);
    drop(clone);
    deserted(&queue);
}

#[test]
fn put_waits_until_the_local_clone_is_dropped() {
    let _alone = alone();
    let queue = left(DesertedWhen::default());
    give(&queue, 1);
    let clone = queue.clone();
    assert!(queue.put_timeout(2, A_WHILE).unwrap_err().is_full());
    drop(clone);
    let error = queue.put_timeout(2, DEADLINE).unwrap_err();
    assert!(matches!(error, PutError::Deserted { value: 2, .. }), "{error:?}");
}

#[test]
fn local_puts_arrive_after_the_peer_has_ended() {
    let _alone = alone();
    let queue = left(DesertedWhen::default());
    let (clone, (go, reported)) = (queue.clone(), mpsc::channel());
    let other = thread::spawn(move || {
        reported.recv_timeout(DEADLINE).unwrap();
        give(&clone, 7);
    });
    assert_empty(&queue);
    go.send(()).unwrap();
    assert_eq!(take(&queue), 7);
    other.join().unwrap();
    deserted(&queue);
}

#[test]
fn sleeping_get_ends_at_the_last_other_drop() {
    let _alone = alone();
    let queue = left(DesertedWhen::default());
    let clone = queue.clone();
    let (began, begins) = mpsc::channel();
    let getter = thread::spawn(move || {
        began.send(()).unwrap();
        queue.get()
    });
    begins.recv_timeout(DEADLINE).unwrap();
    drop(clone);
    eventually("the get ends", || getter.is_finished());
    assert!(is_deserted(&getter.join().unwrap()));
}

fn holds_until_killed(_: usize, (_queue, ready): (Queue<u32>, Queue<()>)) -> Outcome {
    send(&ready, ())?;
    loop {
        thread::park();
    }
}

#[test]
fn all_waiting_threads_end_when_the_peer_is_killed() {
    let _alone = alone();
    let (queue, ready) = (Queue::bounded(1).unwrap(), Queue::bounded(1).unwrap());
    let context = one_process(holds_until_killed, (queue.clone(), ready.clone()));
    take(&ready);
    let getters: Vec<_> = (0..3).map(|_| queue.clone()).map(|q| thread::spawn(move || q.get())).collect();
    let shared = Arc::new(queue);
    let by_reference = [shared.clone(), shared].map(|q| thread::spawn(move || q.get()));
    signal(context.pids()[0], Signal::KILL);
    for getter in getters.into_iter().chain(by_reference) {
        eventually("a get ends", || getter.is_finished());
        let got = getter.join().unwrap();
        assert!(is_deserted(&got), "{got:?}");
    }
    assert!(join(&context).is_err());
}

#[test]
fn timed_out_waiter_may_put_afterwards() {
    let _alone = alone();
    let queue = left(DesertedWhen::default());
    let clone = queue.clone();
    let other = thread::spawn(move || {
        // This thread may get `Deserted` if the other thread is blocked already, because only that thread
        // could put.
        let got = clone.get_timeout(A_WHILE);
        assert!(is_deserted(&got) || got.is_err_and(|e| e.is_empty()));
        give(&clone, 9);
    });
    assert_eq!(queue.get().unwrap(), Some(9));
    other.join().unwrap();
}

#[test]
fn handle_in_a_message_keeps_a_get_waiting() {
    let _alone = alone();
    let queue = left(DesertedWhen::default());
    let post = Queue::<Queue<u32>>::bounded(1).unwrap();
    give(&post, queue.clone());
    assert_empty(&queue);
    let arrived = take(&post);
    assert_empty(&queue);
    drop(arrived);
    deserted(&queue);
}

#[test]
fn joinable_queue_waits_for_local_threads() {
    let _alone = alone();
    fn has(_: usize, queue: JoinableQueue<u32>) -> Outcome {
        drop(queue);
        Ok(())
    }
    let queue = JoinableQueue::<u32>::bounded(2).unwrap();
    join(&one_process(has, queue.clone())).unwrap();
    let clone = queue.clone();
    assert!(queue.get_timeout(A_WHILE).unwrap_err().is_empty());
    clone.put(3).unwrap();
    // A task in progress does not count as a handle.
    let task = queue.get_timeout(DEADLINE).unwrap().unwrap();
    drop(clone);
    let got = queue.get_timeout(DEADLINE);
    assert!(is_deserted(&got), "{got:?}");
    assert_eq!(task.ack(), 3);
}

#[test]
fn futures_wait_while_others_have_handles() {
    let _alone = alone();
    let queue = left(DesertedWhen::default());
    let clone = queue.clone();
    let mut get = Box::pin(queue.get_async());
    assert!(poll_once(&mut get).is_pending());
    drop(clone);
    assert!(is_deserted(&block_on(get)));
    // A stream can only get. So it waits for its queue, and other waits do not count it as a handle.
    let mut stream = pin!(queue.stream());
    let mut next = std::future::poll_fn(|cx| stream.as_mut().poll_next(cx));
    assert!(poll_once(&mut next).is_pending());
    deserted(&queue);
    drop(queue);
    assert!(block_on(next).is_some_and(|got| is_deserted(&got)));
}

#[test]
fn wait_for_several_ends_only_without_handles() {
    let _alone = alone();
    let queue = left(DesertedWhen::default());
    let clone = queue.clone();
    assert!(wait(&[&queue], Some(A_WHILE)).unwrap().is_empty());
    give(&clone, 1);
    assert!(wait(&[&queue.put_ready()], Some(A_WHILE)).unwrap().is_empty());
    drop(clone);
    assert_eq!(wait(&[&queue.put_ready()], Some(DEADLINE)).unwrap(), [0]);
    take(&queue);
    assert_eq!(wait(&[&queue], Some(DEADLINE)).unwrap(), [0]);
}

#[test]
fn deserted_when_counts_only_other_processes() {
    let _alone = alone();
    let queue = left(DesertedWhen::NoOtherProcess);
    let _clone = queue.clone();
    deserted(&queue);
}

#[test]
fn shared_handle_of_a_queue_can_be_never_deserted() {
    let _alone = alone();
    let queue = left(DesertedWhen::Never);
    assert_empty(&queue);
    thread::scope(|threads| {
        threads.spawn(|| give(&queue, 5));
        assert_eq!(queue.get().unwrap(), Some(5));
    });
}

#[test]
fn handle_overrides_the_desertion_rule_of_its_queue() {
    let _alone = alone();
    let queue = left(DesertedWhen::Never);
    deserted(&queue.clone().deserted_when(DesertedWhen::NoOtherProcess));
    assert_empty(&queue);
}

/// Call with which a thread waits for a put of another process. The wait ends when that process has dropped
/// the queue.
type Waits = fn(&Queue<u32>) -> Result<Option<u32>, GetError>;

const GETS: Waits = Queue::get;
const WAITS_FOR_SEVERAL: Waits = |queue| {
    let other = Queue::<u32>::bounded(1).unwrap();
    loop {
        assert_eq!(wait(&[&other, queue], Some(DEADLINE)).unwrap(), [1]);
        // Two calls, between which the test may send the queue to another process.
        match queue.get_timeout(Duration::ZERO) {
            Err(e) if e.is_empty() => {}
            got => return got,
        }
    }
};
const WAITS_AS_A_TASK: Waits = |queue| block_on(queue.get_async());

/// Starts a thread that waits, and returns its handle and its id.
fn waiter(queue: Queue<u32>, waits: Waits) -> (thread::JoinHandle<()>, i32) {
    let (begins, began) = mpsc::channel();
    let waiter = thread::spawn(move || {
        begins.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
        let got = waits(&queue);
        assert!(is_deserted(&got), "{got:?}");
    });
    (waiter, began.recv_timeout(DEADLINE).unwrap())
}

/// Takes queues out of `queues`, and drops each after a message from `go`.
fn drops_them((queues, go): (Queue<Queue<u32>>, Queue<()>)) -> Outcome {
    while let Some(queue) = queues.get()? {
        go.get()?;
        drop(queue);
    }
    Ok(())
}

/// Drops the last other handle of a queue while a waiter checks its condition. The waiter must be woken, and
/// not sleep until its poll interval ends. (The test counts such sleeps, because a busy machine makes
/// durations unreliable.)
fn detects_the_last_drop(rounds: usize, asleep: bool, waits: Waits) {
    let _alone = alone();
    let (queues, go) = (Queue::unbounded().unwrap(), Queue::unbounded().unwrap());
    let child = mp::Process::spawn(drops_them, (queues.clone(), go.clone())).unwrap();
    let before = inject::slept_through();
    for _ in 0..rounds {
        let queue = Queue::<u32>::unbounded().unwrap();
        give(&queues, queue.clone());
        let (waiter, thread) = waiter(queue, waits);
        if asleep {
            eventually("the thread sleeps", || sleeps(thread) || waiter.is_finished());
        }
        give(&go, ());
        waiter.join().unwrap();
    }
    queues.close();
    child.join().unwrap();
    assert_eq!(inject::slept_through() - before, 0, "of {rounds} waits");
}

#[test]
fn get_ends_within_a_poll_interval_of_the_last_drop() {
    detects_the_last_drop(3000, false, GETS);
}

#[test]
fn wait_ends_within_a_poll_interval_of_the_last_drop() {
    detects_the_last_drop(300, true, WAITS_FOR_SEVERAL);
}

#[test]
fn task_ends_within_a_poll_interval_of_the_last_drop() {
    detects_the_last_drop(300, true, WAITS_AS_A_TASK);
}

/// Drops a queue, and stops in the drop, before its access `at` to shared memory. The process ends only on
/// request, because its end would be detected.
fn stops_while_it_drops(
    _: usize,
    (queue, order, dropped, at): (Queue<u32>, Queue<()>, Queue<()>, u64),
) -> Outcome {
    order.get()?;
    inject::arm(at, STOP);
    drop(queue);
    inject::arm(u64::MAX, 0);
    send(&dropped, ())?;
    order.get()?;
    Ok(())
}

/// Time at which a waiter begins, relative to the drop of the queue by another process.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Begins {
    /// Begins before the drop. While the dropping process is stopped, a third process drops its handle.
    Before,
    /// Begins while the dropping process is stopped within the drop.
    Meanwhile,
    /// Begins during the drop, after a third process has completely dropped its handle.
    BehindAnother,
}

/// Stops the last other process at each access of the drop of its handle, and then continues it. Checks that
/// the waiter detects the drop.
fn detects_a_drop_that_is_stopped(begins: Begins, waits: Waits) {
    let _alone = alone();
    mp_tests::kill::until_the_end(5, |at| {
        let queue = QueueOptions::new().deserted_when(DesertedWhen::NoOtherProcess).create().unwrap();
        let (order, dropped) = (Queue::bounded(1).unwrap(), Queue::bounded(1).unwrap());
        let context = one_process(stops_while_it_drops, (queue.clone(), order.clone(), dropped.clone(), at));
        let pid = context.pids()[0];
        let before = inject::slept_through();
        let begin = || {
            let (waiter, thread) = waiter(queue.clone(), waits);
            eventually("the thread sleeps", || sleeps(thread) || waiter.is_finished());
            waiter
        };
        let waiting = (begins == Begins::Before).then(begin);
        give(&order, ());
        eventually("the process stops, or has dropped the queue", || {
            threads_are(pid, 'T') || !dropped.is_empty()
        });
        let stopped = dropped.is_empty();
        if stopped && begins == Begins::BehindAnother {
            left_behind(&queue);
        }
        let waiting = waiting.unwrap_or_else(begin);
        if stopped {
            if begins == Begins::Before {
                left_behind(&queue);
            }
            signal(pid, Signal::CONT);
        }
        waiting.join().unwrap();
        assert_eq!(inject::slept_through() - before, 0, "stopped before access {at}");
        give(&order, ());
        join(&context).unwrap();
        stopped
    });
}

#[test]
fn get_begun_during_the_last_handle_drop_ends() {
    detects_a_drop_that_is_stopped(Begins::Meanwhile, GETS);
}

#[test]
fn wait_begun_during_the_last_handle_drop_ends() {
    detects_a_drop_that_is_stopped(Begins::Meanwhile, WAITS_FOR_SEVERAL);
}

#[test]
fn task_begun_during_the_last_handle_drop_ends() {
    detects_a_drop_that_is_stopped(Begins::Meanwhile, WAITS_AS_A_TASK);
}

#[test]
fn waiters_end_when_two_processes_leave_at_once() {
    for waits in [GETS, WAITS_FOR_SEVERAL, WAITS_AS_A_TASK] {
        detects_a_drop_that_is_stopped(Begins::Before, waits);
    }
}

#[test]
fn waiter_begun_between_two_departures_ends() {
    for waits in [GETS, WAITS_FOR_SEVERAL, WAITS_AS_A_TASK] {
        detects_a_drop_that_is_stopped(Begins::BehindAnother, waits);
    }
}

/// Waits for a put that only the parent could do. Returns `true` if the wait ended because the parent has
/// dropped the queue.
fn detects_desertion(_: usize, (queue, begun): (Queue<u32>, Queue<u32>)) -> mp::AnyResult<bool> {
    begun.put(0)?;
    Ok(is_deserted(&queue.get_timeout(20 * A_WHILE)))
}

/// The most common case: one other process has the queue, and the process that created the queue drops it.
#[test]
fn creator_dropping_its_last_handle_ends_a_get() {
    let _alone = alone();
    for before_it_begins in [false, true] {
        let (queue, begun) = (Queue::bounded(4).unwrap(), Queue::bounded(1).unwrap());
        let context = one_process(detects_desertion, (queue.clone(), begun.clone()));
        if !before_it_begins {
            assert_eq!(take(&begun), 0);
        }
        drop(queue);
        assert!(context.join_timeout(DEADLINE).unwrap());
        assert_eq!(context.join().unwrap(), [true], "dropped before it began: {before_it_begins}");
    }
}
