//! Sleepers are woken when their object is ready, and not only when their poll interval has ended. The tests
//! detect a missing wake-up by the duration of the waits, also on a busy machine.

use std::cell::RefCell;
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use mp::queue::{JoinableQueueError, broadcast, watch};
use mp::{Barrier, Condition, Event, GetError, JoinableQueue, Lock, Queue, QueueOptions, RwLock, Semaphore};

const ROUNDS: u32 = 20;
/// Poll interval: time after which a waiting process checks its condition even if it was not woken.
const INTERVAL: Duration = mp_core::POLL_INTERVAL;
/// Time after which a waiter is certainly asleep.
const ASLEEP: Duration = Duration::from_millis(8);
const DEADLINE: Duration = Duration::from_secs(60);

/// Checks that a waiter is woken in time. In each round, another thread calls `wait`. This thread calls
/// `prepare` before the wait, and `make_ready` when the other thread is asleep. Panics if all rounds together
/// took longer than half of their poll intervals.
fn woken_in_time(name: &str, wait: impl Fn() + Sync, make_ready: impl Fn(), prepare: impl Fn()) {
    let _alone = mp_tests::alone();
    let mut took = Duration::ZERO;
    thread::scope(|scope| {
        let (send, done) = mpsc::channel();
        let (begin, begun) = mpsc::channel::<()>();
        let wait = &wait;
        scope.spawn(move || {
            for () in begun {
                wait();
                send.send(Instant::now()).unwrap();
            }
        });
        for _ in 0..ROUNDS {
            prepare();
            begin.send(()).unwrap();
            // sleep: until the other thread is asleep, which can't be observed.
            thread::sleep(ASLEEP);
            let ready = Instant::now();
            make_ready();
            took += done.recv_timeout(DEADLINE).unwrap().saturating_duration_since(ready);
        }
        drop(begin);
    });
    assert!(took < INTERVAL * ROUNDS / 2, "{name}: {took:?} for {ROUNDS} wake-ups");
}

/// Runs [`woken_in_time`] for an object that becomes ready when this thread drops a guard. `take` returns a
/// new guard for each round.
fn woken_by_the_drop_of<T>(name: &str, take: impl Fn() -> T, wait: impl Fn() + Sync) {
    let held = RefCell::new(None);
    let prepare = || *held.borrow_mut() = Some(take());
    woken_in_time(name, wait, || drop(held.take()), prepare);
}

#[test]
fn event_wakes_its_waiter_in_time() {
    let event = Event::new().unwrap();
    let wait = || event.wait().unwrap();
    woken_in_time("event", wait, || assert!(event.set().unwrap()), || _ = event.clear().unwrap());
}

#[test]
fn notification_wakes_its_waiter_in_time() {
    let (condition, lock) = (Condition::new().unwrap(), Lock::new(0_u64).unwrap());
    let wait = || drop(condition.wait(lock.lock().unwrap()).unwrap());
    woken_in_time("notify_one", wait, || assert!(condition.notify_one().unwrap()), || {});
    woken_in_time("notify_all", wait, || assert_eq!(condition.notify_all().unwrap(), 1), || {});
}

#[test]
fn permit_wakes_its_waiter_in_time() {
    let semaphore = Semaphore::new(0).unwrap();
    let wait = || semaphore.acquire().unwrap().forget();
    woken_in_time("add_permits", wait, || semaphore.add_permits(1).unwrap(), || {});
    let semaphore = Semaphore::new(1).unwrap();
    woken_by_the_drop_of("permit", || semaphore.acquire().unwrap(), || drop(semaphore.acquire().unwrap()));
}

#[test]
fn lock_wakes_its_waiter_in_time() {
    let lock = Lock::new(0_u64).unwrap();
    woken_by_the_drop_of("lock", || lock.lock().unwrap(), || drop(lock.lock().unwrap()));
}

#[test]
fn last_reader_wakes_a_writer_of_an_rwlock() {
    let lock = RwLock::new(0_u64).unwrap();
    woken_by_the_drop_of("reader", || lock.read().unwrap(), || drop(lock.write().unwrap()));
    woken_by_the_drop_of("writer", || lock.write().unwrap(), || drop(lock.read().unwrap()));
}

#[test]
fn last_arrival_wakes_the_others_at_a_barrier() {
    let barrier = Barrier::new(2).unwrap();
    let wait = || _ = barrier.wait().unwrap();
    woken_in_time("barrier", wait, || _ = barrier.wait().unwrap(), || {});
}

#[test]
fn put_and_get_wake_waiters_in_time() {
    let queue = Queue::bounded(1).unwrap();
    let get = || assert_eq!(queue.get().unwrap(), Some(7_u8));
    woken_in_time("get", get, || queue.put(7).unwrap(), || {});
    queue.put(7).unwrap();
    let put = || queue.put(7).unwrap();
    woken_in_time("put", put, || assert_eq!(queue.get().unwrap(), Some(7)), || {});
    let large = Queue::bounded(1).unwrap();
    let get = || assert!(large.get().unwrap().is_some());
    let put = || large.put("a message that needs an envelope".to_owned()).unwrap();
    woken_in_time("get, in an envelope", get, put, || {});
}

#[test]
fn watch_value_and_broadcast_wake_in_time() {
    let (sender, receiver) = watch::channel(0_u8).unwrap();
    woken_in_time("watch", || receiver.wait_changed().unwrap(), || sender.send(7).unwrap(), || {});
    let (sender, receiver) = broadcast::channel(2).unwrap();
    let receive = || assert_eq!(receiver.recv().unwrap(), 7_u8);
    woken_in_time("broadcast", receive, || sender.send(7).unwrap(), || {});
}

#[test]
fn dropped_channel_side_wakes_the_other() {
    let (senders, receivers) = (Mutex::new(None), Mutex::new(None));
    let prepare = || {
        let (sender, receiver) = watch::channel(0_u8).unwrap();
        *senders.lock().unwrap() = Some(sender);
        *receivers.lock().unwrap() = Some(receiver);
    };
    let receive = || {
        let receiver = receivers.lock().unwrap().take().unwrap();
        assert!(matches!(receiver.wait_changed(), Err(GetError::Disconnected)));
    };
    woken_in_time("the last sender", receive, || drop(senders.lock().unwrap().take()), prepare);
    let send = || {
        let sender = senders.lock().unwrap().take().unwrap();
        sender.wait_closed().unwrap();
    };
    woken_in_time("the last receiver", send, || drop(receivers.lock().unwrap().take()), prepare);
}

#[test]
fn last_finished_task_wakes_a_join() {
    let queue = JoinableQueue::bounded(1).unwrap();
    let lease = RefCell::new(None);
    let prepare = || {
        queue.put(7_u8).unwrap();
        *lease.borrow_mut() = queue.get().unwrap();
    };
    let done = || _ = lease.take().unwrap().ack();
    woken_in_time("join", || queue.join().unwrap(), done, prepare);
}

#[test]
fn last_lost_task_wakes_a_join() {
    let queue = JoinableQueue::bounded(1).unwrap();
    let lease = RefCell::new(None);
    let prepare = || {
        _ = queue.dead_letter().unwrap();
        queue.put(7_u8).unwrap();
        *lease.borrow_mut() = queue.get().unwrap();
    };
    let join = || assert!(matches!(queue.join(), Err(JoinableQueueError::Lost(1))));
    woken_in_time("join, lost", join, || drop(lease.take()), prepare);
}

#[test]
fn returned_leased_message_is_ready_at_once() {
    let queue = Queue::bounded(1).unwrap();
    queue.put(7_u8).unwrap();
    drop(queue.get_lease().unwrap());
    assert_eq!(mp::wait(&[&queue], Some(Duration::ZERO)).unwrap(), [0]);
}

/// Producers of large messages sleep first, and then the producer of a small message. A get makes room for
/// the small message only. So a wake-up of the first sleeper alone would not suffice.
#[test]
fn room_in_bytes_wakes_every_waiting_producer() {
    const SMALL: usize = 1000;
    const ALL: usize = 10 * SMALL;
    const LARGE: usize = 9 * SMALL;
    let queue = QueueOptions::new().capacity(100).bytes(ALL as u64 + 500).create::<Vec<u8>>().unwrap();
    let put = |len: usize| queue.put(vec![0; len]).unwrap();
    /// Guard that ends the waiting producer, even if the test fails.
    struct Close<'a>(&'a Queue<Vec<u8>>);
    impl Drop for Close<'_> {
        fn drop(&mut self) {
            _ = self.0.close();
        }
    }
    let lengths = RefCell::new(std::collections::VecDeque::from([5 * SMALL, 5 * SMALL]));
    lengths.borrow().iter().for_each(|&len| put(len));
    thread::scope(|scope| {
        let large = [(); 3].map(|()| scope.spawn(|| put(LARGE)));
        let _close = Close(&queue);
        // sleep: until the producers are asleep, which can't be observed.
        thread::sleep(ASLEEP);
        let take = || {
            let len = lengths.borrow_mut().pop_front().unwrap();
            assert_eq!(queue.get().unwrap().unwrap().len(), len);
            // This is the message of the other producer.
            lengths.borrow_mut().push_back(SMALL);
        };
        let fill = || {
            let rest = ALL - lengths.borrow().iter().sum::<usize>();
            if rest > 0 {
                put(rest);
                lengths.borrow_mut().push_back(rest);
            }
        };
        woken_in_time("put, within bytes", || put(SMALL), take, fill);
        // The messages may arrive in any order.
        for _ in &large {
            while queue.get_timeout(DEADLINE).unwrap().expect("the queue is open").len() < LARGE {}
        }
        large.into_iter().for_each(|large| large.join().unwrap());
    });
}
