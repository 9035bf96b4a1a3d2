//! Open-ended calls: outcomes of pushed tasks and of waiting pushes when the stream or its pool is closed.

mod common;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::task::{Context, Poll, Wake, Waker};

use common::{DEADLINE, Gate, eventually, got, join, stop_at};
use mp_pool::{Pool, PushError, TaskError, TaskStream, Ticket};

/// Waits for the result of a task. Panics if it does not arrive in time.
#[track_caller]
fn of(stream: &TaskStream<(Gate, u32), u32>, ticket: Ticket) -> Result<u32, TaskError> {
    match stream.take_timeout(ticket, DEADLINE) {
        Ok(Some(result)) => result,
        other => panic!("not within {DEADLINE:?}: {}", other.is_err()),
    }
}

#[test]
fn closed_pool_finishes_earlier_pushes() {
    let pool = Pool::new(1).unwrap();
    let stream = pool.stream(stop_at);
    let gate = Gate::new();
    let push = |x: u32| stream.push((gate.clone(), x)).unwrap();
    let before = [0, 1, 2].map(push);
    // The other tasks are in no worker's queue.
    gate.arrived();
    pool.close();
    let late = push(3);
    assert!(matches!(of(&stream, late), Err(TaskError::Closed { .. })));
    gate.open(3);
    let results = before.map(|ticket| of(&stream, ticket));
    assert!(matches!(results, [Ok(0), Ok(1), Ok(2)]), "{results:?}");
    join(&pool);
}

/// Returns `true` if the thread with this name in `/proc` sleeps.
fn sleeps(thread: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{thread}/stat")).unwrap();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('S'))
}

/// Creates a pool that has room for one task, and a stream of the pool.
fn full_pool() -> (Pool, Gate, TaskStream<(Gate, u32), u32>) {
    let pool = Pool::builder().processes(1).max_waiting(1).build().unwrap();
    let (gate, stream) = (Gate::new(), pool.stream(stop_at));
    (pool, gate, stream)
}

#[test]
fn stream_close_wakes_thread_that_waits_for_room() {
    let (pool, gate, stream) = full_pool();
    let at_work = pool.apply_async(stop_at, (gate.clone(), 0));
    gate.arrived();
    std::thread::scope(|scope| {
        let (report, reported) = channel();
        let (say, said) = channel();
        let (stream, gate_of_it) = (&stream, gate.clone());
        scope.spawn(move || {
            let here = std::fs::read_link("/proc/thread-self").unwrap();
            say.send(here.to_str().unwrap().to_string()).unwrap();
            _ = report.send(stream.push((gate_of_it, 1)));
        });
        let thread = said.recv_timeout(DEADLINE).unwrap();
        eventually("the thread waits", || sleeps(&thread));
        stream.close();
        let refused = reported.recv_timeout(DEADLINE / 4);
        // The thread must end in any case.
        gate.open(2);
        assert!(matches!(refused, Ok(Err(PushError::Closed((_, 1))))), "{refused:?}");
    });
    assert_eq!(got(at_work).unwrap(), 0);
    join(&pool);
}

#[test]
fn push_to_closed_stream_of_full_pool_is_closed() {
    let (pool, gate, stream) = full_pool();
    let at_work = pool.apply_async(stop_at, (gate.clone(), 0));
    gate.arrived();
    let task = |x: u32| (gate.clone(), x);
    assert!(matches!(stream.try_push(task(1)), Err(PushError::Full(_))));
    stream.close();
    for refused in [stream.try_push(task(1)), stream.push_timeout(task(1), DEADLINE), stream.push(task(1))] {
        assert!(matches!(refused, Err(PushError::Closed((_, 1)))), "{refused:?}");
    }
    gate.open(1);
    assert_eq!(got(at_work).unwrap(), 0);
    join(&pool);
}

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn stream_close_ends_only_futures_of_its_stream() {
    let (pool, gate, stream) = full_pool();
    let other = pool.stream(stop_at);
    let at_work = pool.apply_async(stop_at, (gate.clone(), 0));
    gate.arrived();
    let wakers = [Arc::new(Woken::default()), Arc::new(Woken::default())];
    let [first, second] = wakers.clone().map(Waker::from);
    let mut closed = pin!(stream.push_async((gate.clone(), 1)));
    let mut open = pin!(other.push_async((gate.clone(), 2)));
    assert!(closed.as_mut().poll(&mut Context::from_waker(&first)).is_pending());
    assert!(open.as_mut().poll(&mut Context::from_waker(&second)).is_pending());
    stream.close();
    eventually("the future is woken", || wakers[0].0.load(Ordering::SeqCst));
    let refused = closed.as_mut().poll(&mut Context::from_waker(&first));
    assert!(matches!(refused, Poll::Ready(Err(PushError::Closed((_, 1))))), "{refused:?}");
    // The other future still waits, and is woken when there is room.
    assert!(open.as_mut().poll(&mut Context::from_waker(&second)).is_pending());
    wakers[1].0.store(false, Ordering::SeqCst);
    gate.open(2);
    assert_eq!(got(at_work).unwrap(), 0);
    eventually("the future is woken", || wakers[1].0.load(Ordering::SeqCst));
    let Poll::Ready(Ok(ticket)) = open.as_mut().poll(&mut Context::from_waker(&second)) else {
        panic!("there is room")
    };
    assert_eq!(of(&other, ticket).unwrap(), 2);
    join(&pool);
}
