//! Times passed to calls that wait never overflow. An available value is returned at once. A wait for an
//! unavailable value is no longer than the given time. A time beyond the clock's range does not end at once.
//!
//! The tests cover each call that takes a time with each of the boundary times, and the sizes and times of
//! sockets.

use std::fmt::Debug;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use mp::connection::{ConnectError, SocketOptions};
use mp::queue::JoinableQueueError;
use mp::sync::{AcquireError, BarrierError};
use mp::{
    Barrier, Condition, Event, GetError, JoinableQueue, Listener, Lock, LockError, Once, PutError, Queue,
    RLock, RwLock, Semaphore, connect, pipe,
};
use mp_tests::{DEADLINE, eventually, sleeps};

/// Times that expire at once.
const SHORT: [Duration; 4] =
    [Duration::ZERO, Duration::from_nanos(1), Duration::from_nanos(999), Duration::from_micros(1)];

/// Times beyond the clock's range, with seconds or nanoseconds around the limits of integers.
const ENDLESS: [Duration; 8] = [
    Duration::MAX,
    Duration::from_secs(u64::MAX),
    Duration::from_secs(i64::MAX as u64),
    Duration::from_secs(i64::MAX as u64 + 1),
    Duration::from_secs(i64::MAX as u64 - (1 << 40)),
    Duration::from_nanos(u64::MAX),
    Duration::from_nanos(i64::MAX as u64),
    Duration::from_secs(u32::MAX as u64 + 1),
];

/// Returns deadlines that have passed.
fn over() -> Vec<Instant> {
    let now = Instant::now();
    [Duration::ZERO, Duration::from_nanos(1), Duration::from_secs(3600), Duration::from_secs(1 << 31)]
        .into_iter()
        .filter_map(|ago| now.checked_sub(ago))
        .collect()
}

/// Returns deadlines in the far future, up to the last one that an `Instant` can hold.
fn far() -> Vec<Instant> {
    let mut last = Instant::now();
    let mut step = Duration::from_secs(1 << 62);
    while step > Duration::ZERO {
        last = last.checked_add(step).unwrap_or_else(|| {
            step /= 2;
            last
        });
    }
    let mut all: Vec<_> = ENDLESS.into_iter().filter_map(|long| Instant::now().checked_add(long)).collect();
    all.push(last);
    all
}

/// Returns the result of `wait` in another thread. When that thread sleeps, calls `then`, which must end the
/// wait.
#[track_caller]
fn woken<R: Send>(wait: impl FnOnce() -> R + Send, then: impl FnOnce()) -> R {
    thread::scope(|scope| {
        let (says, hears) = mpsc::channel();
        let waiter = scope.spawn(move || {
            says.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
            wait()
        });
        let thread = hears.recv().unwrap();
        // A thread that has ended did not have to wait, which its result shows.
        eventually("the thread sleeps", || waiter.is_finished() || sleeps(thread));
        then();
        waiter.join().unwrap()
    })
}

/// Checks that a call returns an available value, whatever its time-out or deadline is.
#[track_caller]
fn had<R: Debug>(is: impl Fn(&R) -> bool, timeout: impl Fn(Duration) -> R, deadline: impl Fn(Instant) -> R) {
    for time in SHORT.into_iter().chain(ENDLESS) {
        let got = timeout(time);
        assert!(is(&got), "{time:?}: {got:?}");
    }
    for until in over().into_iter().chain(far()) {
        let got = deadline(until);
        assert!(is(&got), "{until:?}: {got:?}");
    }
}

/// Checks that a call with a short time-out or a deadline in the past ends soon if the object is not ready.
#[track_caller]
fn not_had<R: Debug>(
    is: impl Fn(&R) -> bool,
    timeout: impl Fn(Duration) -> R,
    deadline: impl Fn(Instant) -> R,
) {
    let begun = Instant::now();
    for time in SHORT {
        let got = timeout(time);
        assert!(is(&got), "{time:?}: {got:?}");
    }
    for until in over() {
        let got = deadline(until);
        assert!(is(&got), "{until:?}: {got:?}");
    }
    assert!(begun.elapsed() < DEADLINE, "{:?}", begun.elapsed());
}

/// Checks that a wait with an endless time-out or a far deadline ends when `make` makes the object ready.
#[track_caller]
fn comes<R: Debug + Send>(
    is: impl Fn(&R) -> bool,
    timeout: impl Fn(Duration) -> R + Sync,
    deadline: impl Fn(Instant) -> R + Sync,
    make: impl Fn(),
) {
    for time in ENDLESS {
        let got = woken(|| timeout(time), &make);
        assert!(is(&got), "{time:?}: {got:?}");
    }
    for until in far() {
        let got = woken(|| deadline(until), &make);
        assert!(is(&got), "{until:?}: {got:?}");
    }
}

fn is_held<T>(got: &Result<T, LockError>) -> bool {
    matches!(got, Err(LockError::Held { .. }))
}

/// Waits for a lock in all four ways. Another thread holds the lock, because a thread that waits for a lock
/// of its own is a deadlock.
macro_rules! lock {
    ($lock:expr, $hold:ident, $timeout:ident, $deadline:ident) => {{
        let lock = $lock;
        let timeout = |time| lock.$timeout(time).map(drop);
        let deadline = |until| lock.$deadline(until).map(drop);
        had(Result::is_ok, timeout, deadline);
        let (held, is_held_now) = mpsc::channel();
        let (let_go, may_go) = mpsc::channel::<()>();
        thread::scope(|scope| {
            let other = &lock;
            scope.spawn(move || {
                let _guard = other.$hold().unwrap();
                held.send(()).unwrap();
                _ = may_go.recv_timeout(DEADLINE);
            });
            is_held_now.recv().unwrap();
            not_had(is_held, timeout, deadline);
            drop(let_go);
        });
        for time in ENDLESS {
            handed_over(
                |held| {
                    let _guard = lock.$hold().unwrap();
                    held();
                },
                || lock.$timeout(time).map(drop),
            );
        }
        for until in far() {
            handed_over(
                |held| {
                    let _guard = lock.$hold().unwrap();
                    held();
                },
                || lock.$deadline(until).map(drop),
            );
        }
    }};
}

/// Holds a lock in one thread until another thread sleeps on it.
#[track_caller]
fn handed_over<R: Debug + Send>(
    hold: impl FnOnce(&dyn Fn()) + Send,
    wait: impl FnOnce() -> Result<R, LockError> + Send,
) {
    thread::scope(|scope| {
        let (held, is_held_now) = mpsc::channel();
        let (let_go, may_go) = mpsc::channel::<()>();
        scope.spawn(move || {
            hold(&|| {
                held.send(()).unwrap();
                _ = may_go.recv_timeout(DEADLINE);
            });
        });
        is_held_now.recv().unwrap();
        let got = woken(wait, || drop(let_go));
        assert!(got.is_ok(), "{got:?}");
    });
}

#[test]
fn lock_waits_with_extreme_timeouts_end_in_time() {
    lock!(Lock::new(1).unwrap(), lock, lock_timeout, lock_deadline);
    lock!(RLock::new(1).unwrap(), lock, lock_timeout, lock_deadline);
    lock!(Lock::new(1).unwrap(), lock, lock_timeout, lock_deadline);
    lock!(RwLock::new(1).unwrap(), write, read_timeout, read_deadline);
    lock!(RwLock::new(1).unwrap(), read, write_timeout, write_deadline);
    let (lock, rlock, rw) = (Lock::new(1).unwrap(), RLock::new(1).unwrap(), RwLock::new(1).unwrap());
    for time in SHORT.into_iter().chain(ENDLESS) {
        // No holder is dead, so `recover_timeout` does the same as `lock`.
        assert!(lock.recover_timeout(time).is_ok() && rlock.recover_timeout(time).is_ok());
        assert!(rw.recover_timeout(time).is_ok());
        // This thread holds the lock itself, which is an error, whatever the time is.
        let _guard = lock.lock().unwrap();
        let again = lock.lock_timeout(time);
        assert!(matches!(again, Err(LockError::WouldDeadlock)), "{again:?}");
    }
}

#[test]
fn permit_and_event_waits_of_any_length_end_in_time() {
    let permits = Semaphore::new(1).unwrap();
    let (timeout, deadline) =
        (|time| permits.acquire_timeout(time).map(drop), |until| permits.acquire_deadline(until).map(drop));
    had(Result::is_ok, timeout, deadline);
    permits.acquire().unwrap().keep();
    not_had(|got| matches!(got, Err(AcquireError::Held { .. })), timeout, deadline);
    comes(
        Result::is_ok,
        |time| permits.acquire_timeout(time).map(mp::sync::Permit::keep),
        |until| permits.acquire_deadline(until).map(mp::sync::Permit::keep),
        || permits.release().unwrap(),
    );
    let event = Event::new().unwrap();
    let (timeout, deadline) =
        (|time| event.wait_timeout(time).unwrap(), |until| event.wait_deadline(until).unwrap());
    not_had(|set| !set, timeout, deadline);
    for time in ENDLESS {
        event.clear().unwrap();
        assert!(woken(|| timeout(time), || _ = event.set().unwrap()), "{time:?}");
    }
    for until in far() {
        event.clear().unwrap();
        assert!(woken(|| deadline(until), || _ = event.set().unwrap()), "{until:?}");
    }
    had(|set| *set, timeout, deadline);
}

#[test]
fn condition_waits_of_any_length_end_in_time() {
    let (lock, changed) = (Lock::new(0_u32).unwrap(), Condition::new().unwrap());
    for time in SHORT {
        let (guard, notified) = changed.wait_timeout(lock.lock().unwrap(), time).unwrap();
        drop(guard);
        let (_guard, so) = changed.wait_for_timeout(lock.lock().unwrap(), time, |n| *n > 0).unwrap();
        assert!(!notified && !so, "{time:?}");
    }
    for until in over() {
        let (guard, notified) = changed.wait_deadline(lock.lock().unwrap(), until).unwrap();
        drop(guard);
        let (_guard, so) = changed.wait_for_deadline(lock.lock().unwrap(), until, |n| *n > 0).unwrap();
        assert!(!notified && !so, "{until:?}");
    }
    // If the predicate already holds, the call does not wait.
    for time in SHORT.into_iter().chain(ENDLESS) {
        let (_guard, so) = changed.wait_for_timeout(lock.lock().unwrap(), time, |n| *n == 0).unwrap();
        assert!(so, "{time:?}");
    }
    let notify = || eventually("the waiter is notified", || changed.notify_one().unwrap());
    for time in ENDLESS {
        let notified = woken(|| changed.wait_timeout(lock.lock().unwrap(), time).unwrap().1, notify);
        assert!(notified, "{time:?}");
    }
    for until in far() {
        let notified = woken(|| changed.wait_deadline(lock.lock().unwrap(), until).unwrap().1, notify);
        assert!(notified, "{until:?}");
    }
}

#[test]
fn barrier_waits_of_any_length_end_in_time() {
    let barrier = Barrier::new(2).unwrap();
    // A party whose time has expired breaks the barrier.
    let timed_out = |got: Result<usize, BarrierError>| {
        assert!(matches!(got, Err(BarrierError::TimedOut { arrived: 1, parties: 2, .. })), "{got:?}");
        barrier.reset().unwrap();
    };
    for time in SHORT {
        timed_out(barrier.wait_timeout(time));
        timed_out(barrier.wait_then_timeout(time, || panic!("a party is missing")));
    }
    for until in over() {
        timed_out(barrier.wait_deadline(until));
        timed_out(barrier.wait_then_deadline(until, || panic!("a party is missing")));
    }
    let arrives = || _ = barrier.wait_timeout(DEADLINE).unwrap();
    comes(Result::is_ok, |time| barrier.wait_timeout(time), |until| barrier.wait_deadline(until), arrives);
    let alone = Barrier::new(1).unwrap();
    had(Result::is_ok, |time| alone.wait_timeout(time), |until| alone.wait_deadline(until));
}

#[test]
fn waits_for_a_once_obey_timeouts_of_any_length() {
    let done = Once::new().unwrap();
    done.call_once(|_| ()).unwrap();
    let again = |_: &mp::sync::OnceState| panic!("the call was already done");
    had(
        Result::is_ok,
        |time| done.call_once_timeout(time, again),
        |until| done.call_once_deadline(until, again),
    );
    // Waits for the call of another thread: short times expire, and endless times last until the call is
    // done.
    let begins = |wait: &(dyn Fn(&Once) -> Result<(), LockError> + Sync), short: bool| {
        let once = Once::new().unwrap();
        thread::scope(|scope| {
            let (begun, has_begun) = mpsc::channel();
            let (end, may_end) = mpsc::channel::<()>();
            let other = &once;
            scope.spawn(move || {
                other.call_once(|_| {
                    begun.send(()).unwrap();
                    _ = may_end.recv_timeout(DEADLINE);
                })
            });
            has_begun.recv().unwrap();
            let got = if short { wait(&once) } else { woken(|| wait(&once), || drop(end)) };
            assert!(if short { is_held(&got) } else { got.is_ok() }, "{got:?}");
        });
    };
    SHORT.iter().for_each(|time| begins(&|once| once.call_once_timeout(*time, |_| ()), true));
    over().iter().for_each(|until| begins(&|once| once.call_once_deadline(*until, |_| ()), true));
    ENDLESS.iter().for_each(|time| begins(&|once| once.call_once_timeout(*time, again), false));
    far().iter().for_each(|until| begins(&|once| once.call_once_deadline(*until, again), false));
}

#[test]
fn message_waits_of_any_length_end_in_time() {
    let queue = Queue::bounded(1).unwrap();
    let empty = |got: &Result<Option<u32>, GetError>| matches!(got, Err(GetError::Empty));
    let (get, get_until) = (|time| queue.get_timeout(time), |until| queue.get_deadline(until));
    not_had(empty, get, get_until);
    comes(|got| matches!(got, Ok(Some(7))), get, get_until, || queue.put(7).unwrap());
    let full = |got: &Result<(), PutError<u32>>| matches!(got, Err(PutError::Full(8)));
    let (put, put_until) = (|time| queue.put_timeout(8, time), |until| queue.put_deadline(8, until));
    had(
        Result::is_ok,
        |time| put(time).inspect(|()| _ = queue.get().unwrap()),
        |until| put_until(until).inspect(|()| _ = queue.get().unwrap()),
    );
    queue.put(7).unwrap();
    not_had(full, put, put_until);
    comes(Result::is_ok, put, put_until, || _ = queue.get().unwrap());
    let mut several = Vec::new();
    for time in SHORT.into_iter().chain(ENDLESS) {
        assert_eq!(queue.get_many_timeout(&mut several, 5, time).unwrap(), 1, "{time:?}");
        queue.put(7).unwrap();
    }
}

#[test]
fn task_waits_of_any_length_end_in_time() {
    let tasks = JoinableQueue::bounded(1).unwrap();
    let (join, join_until) = (|time| tasks.join_timeout(time), |until| tasks.join_deadline(until));
    had(Result::is_ok, join, join_until);
    let (get, get_until) =
        (|time| tasks.get_timeout(time).map(drop), |until| tasks.get_deadline(until).map(drop));
    not_had(|got| matches!(got, Err(GetError::Empty)), get, get_until);
    tasks.put(7).unwrap();
    let again = |got: Result<Option<mp::Lease<u32>>, GetError>| {
        got.map(|lease| tasks.try_put(lease.unwrap().ack()).unwrap())
    };
    had(Result::is_ok, |time| again(tasks.get_timeout(time)), |until| again(tasks.get_deadline(until)));
    not_had(|got| matches!(got, Err(JoinableQueueError::Unfinished { .. })), join, join_until);
    let (put, put_until) = (|time| tasks.put_timeout(8, time), |until| tasks.put_deadline(8, until));
    not_had(|got| matches!(got, Err(PutError::Full(8))), put, put_until);
    let done = || _ = tasks.get().unwrap().unwrap().ack();
    comes(Result::is_ok, put, put_until, done);
    for time in ENDLESS {
        assert!(woken(|| join(time), done).is_ok(), "{time:?}");
        tasks.put(7).unwrap();
    }
    for until in far() {
        assert!(woken(|| join_until(until), done).is_ok(), "{until:?}");
        tasks.put(7).unwrap();
    }
    done();
}

#[test]
fn pipe_waits_of_any_length_end_in_time() {
    let (here, there) = pipe().unwrap();
    ends_of_a_connection(&here, &there);
    let name = format!("@mp-test-times-{}", std::process::id());
    let listener = Listener::bind(name.clone()).unwrap();
    for time in SHORT {
        assert!(listener.accept_timeout(time).unwrap().is_none(), "{time:?}");
    }
    for time in ENDLESS {
        let accepted =
            woken(|| listener.accept_timeout(time), || drop(connect(name.clone()).unwrap().send(1)));
        assert!(accepted.unwrap().is_some(), "{time:?}");
    }
    let here = connect(name).unwrap();
    let there = listener.accept_timeout(Duration::MAX).unwrap().unwrap();
    ends_of_a_connection(&here, &there);
}

fn ends_of_a_connection(here: &mp::Connection, there: &mp::Connection) {
    let (recv, recv_until) =
        (|time| there.recv_timeout::<u32>(time), |until| there.recv_deadline::<u32>(until));
    not_had(|got| matches!(got, Err(GetError::Empty)), recv, recv_until);
    not_had(
        |got| matches!(got, Err(GetError::Empty)),
        |time| there.recv_bytes_timeout(time),
        |until| there.recv_bytes_deadline(until),
    );
    comes(|got| matches!(got, Ok(7)), recv, recv_until, || here.send(7_u32).unwrap());
    had(
        |got| matches!(got, Ok(8)),
        |time| {
            here.send_timeout(8_u32, time).unwrap();
            there.recv_timeout::<u32>(time.max(DEADLINE))
        },
        |until| {
            here.send_deadline(8_u32, until).unwrap();
            there.recv::<u32>()
        },
    );
    SHORT.iter().for_each(|time| assert!(!there.poll(*time).unwrap(), "{time:?}"));
    for time in ENDLESS {
        assert!(woken(|| there.poll(time), || here.send(9_u32).unwrap()).unwrap(), "{time:?}");
        assert_eq!(there.recv::<u32>().unwrap(), 9);
        // A wait for several objects behaves like a wait for one.
        let ready = woken(|| mp::wait(&[there], Some(time)), || here.send(9_u32).unwrap());
        assert_eq!((ready.unwrap(), there.recv::<u32>().unwrap()), (vec![0], 9), "{time:?}");
    }
    SHORT.iter().for_each(|time| assert!(mp::wait(&[there], Some(*time)).unwrap().is_empty(), "{time:?}"));
}

#[test]
fn sockets_accept_extreme_options() {
    for (i, backlog) in
        [0, 1, 2, 127, 128, 1 << 16, i32::MAX as u32, 1 << 31, u32::MAX].into_iter().enumerate()
    {
        let name = format!("@mp-test-options-{i}-{}", std::process::id());
        let options = SocketOptions::new().backlog(backlog);
        let listener = options.listen(name.clone()).unwrap();
        // At least one client may wait, regardless of the backlog.
        let client = options.clone().handshake_timeout(Duration::ZERO).connect(name.clone()).unwrap();
        let server = listener.accept_timeout(DEADLINE).unwrap().unwrap();
        client.send(5_u8).unwrap();
        assert_eq!(server.recv_timeout::<u8>(DEADLINE).unwrap(), 5, "{backlog}");
        if backlog <= 1 {
            // A second client finds no room, and its call ends at its deadline.
            let first = options.connect(name.clone()).unwrap();
            for time in SHORT {
                let refused = options.clone().handshake_timeout(time).connect(name.clone()).unwrap_err();
                assert!(
                    matches!(refused, ConnectError::TimedOut(after) if after == time),
                    "{time:?}: {refused:?}"
                );
            }
            for time in ENDLESS {
                let connected = woken(
                    || options.clone().handshake_timeout(time).connect(name.clone()),
                    || {
                        assert!(listener.accept_timeout(DEADLINE).unwrap().is_some());
                    },
                );
                assert!(connected.is_ok(), "{time:?}: {connected:?}");
            }
            drop(first);
        }
    }
    for (i, most) in [0, 1, 2, 16, usize::MAX / 2, usize::MAX - 1, usize::MAX].into_iter().enumerate() {
        let name = format!("@mp-test-sizes-{i}-{}", std::process::id());
        let options = SocketOptions::new().max_message(most);
        let listener = options.listen(name.clone()).unwrap();
        let client = options.connect(name).unwrap();
        let server = listener.accept_timeout(DEADLINE).unwrap().unwrap();
        for len in [0_usize, 1, 2, 16, 17, 1000] {
            let bytes = vec![7_u8; len];
            let sent = client.send_bytes_timeout(&bytes, DEADLINE);
            if len <= most {
                assert!(sent.is_ok(), "{len} of {most}: {sent:?}");
                assert_eq!(server.recv_bytes_timeout(DEADLINE).unwrap(), bytes, "{len} of {most}");
            } else {
                let Err(PutError::Failed { value, error }) = sent else {
                    panic!("{len} of {most}: {sent:?}")
                };
                assert_eq!(value, bytes, "{len} of {most}");
                assert!(
                    error.to_string().contains(&format!("{len} bytes, and {most} is the limit")),
                    "{error}"
                );
            }
        }
    }
}
