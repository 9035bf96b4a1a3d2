//! User code that panics during operations of queues, locks and futures: the state stays consistent, and
//! everything still works. (Usage of shared memory: `message_leaks`. Barriers: `sync::barrier`. Pools and
//! processes: in their crates.)
#![allow(unsafe_code)]

use std::fmt::Debug;
use std::future::Future;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, RawWaker, RawWakerVTable, Wake, Waker};
use std::time::Duration;

use mp::wait::{Descriptor, wait_async};
use mp::{Condition, Lock, Once, Queue};
use mp_tests::{DEADLINE, eventually, give, take};
use serde::{Deserialize, Deserializer, Serialize};

/// Value whose `Drop` panics a given number of times, with a payload that panics again when it is dropped. A
/// received value does not panic.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Bomb {
    #[serde(skip)]
    times: u32,
    name: String,
}

fn bomb(times: u32) -> Bomb {
    Bomb { times, name: "a bomb".into() }
}

impl Drop for Bomb {
    fn drop(&mut self) {
        if self.times > 0 {
            resume_unwind(Box::new(bomb(self.times - 1)));
        }
    }
}

/// Returns `true` if `f` panicked.
fn panics<R>(f: impl FnOnce() -> R) -> bool {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(value) => {
            drop(value);
            false
        }
        Err(payload) => {
            std::mem::forget(payload);
            true
        }
    }
}

/// Number that can't be decoded while it is odd.
#[derive(Debug, PartialEq, Serialize)]
struct Odd(u32);

impl<'de> Deserialize<'de> for Odd {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let number = u32::deserialize(d)?;
        if number % 2 == 1 {
            resume_unwind(Box::new("odd"));
        }
        Ok(Odd(number))
    }
}

#[test]
fn values_with_panicking_drop_are_put() {
    for queue in [Queue::bounded(3).unwrap(), Queue::unbounded().unwrap()] {
        queue.put(bomb(2)).unwrap();
        queue.put(Bomb { times: 2, name: "a larger one".repeat(100) }).unwrap();
        assert_eq!(queue.put_many([bomb(2)]).unwrap(), 1);
        assert_eq!((take(&queue).name.len(), take(&queue).name.len(), take(&queue).name.len()), (6, 1200, 6));
        assert!(queue.is_empty());
    }
}

#[test]
fn panicking_iterator_keeps_its_earlier_puts() {
    let queue = Queue::bounded(10).unwrap();
    let values = (0..9_u64).inspect(|&x| {
        if x == 5 {
            resume_unwind(Box::new("no more"))
        }
    });
    assert!(panics(|| queue.put_many(values)));
    let mut got = Vec::new();
    assert_eq!(queue.get_many(&mut got, 9).unwrap(), 5);
    assert!(got.into_iter().eq(0..5));
}

#[test]
fn value_panicking_in_decode_affects_no_other() {
    let queue = Queue::bounded(8).unwrap();
    (0..4).for_each(|x| give(&queue, Odd(x)));
    assert_eq!(take(&queue), Odd(0));
    assert!(panics(|| queue.get()));
    assert_eq!(take(&queue), Odd(2));
    // A leased message is delivered again, until its deliveries are used up.
    let mut deliveries = 0;
    while panics(|| queue.get_lease_timeout(Duration::ZERO)) {
        deliveries += 1;
    }
    assert!(deliveries >= 5, "{deliveries}");
    give(&queue, Odd(4));
    let lease = queue.get_lease_timeout(DEADLINE).unwrap().unwrap();
    assert_eq!(lease.ack(), Odd(4));
}

#[test]
fn lease_is_returned_if_its_value_panics_in_drop() {
    #[derive(Debug, Serialize, Deserialize)]
    struct Everywhere(u32);
    impl Drop for Everywhere {
        fn drop(&mut self) {
            resume_unwind(Box::new("everywhere"));
        }
    }
    let queue = Queue::bounded(2).unwrap();
    queue.put(Everywhere(7)).unwrap();
    let first = queue.get_lease_timeout(DEADLINE).unwrap().unwrap();
    assert!(panics(|| drop(first)));
    let second = queue.get_lease_timeout(DEADLINE).unwrap().unwrap();
    assert_eq!(second.deliveries(), 2);
    std::mem::forget(second.ack());
}

#[test]
fn panic_with_a_guard_unlocks_each_kind_of_lock() {
    let once = Once::new().unwrap();
    assert!(panics(|| once.call_once(|_| resume_unwind(Box::new(bomb(2))))));
    let mut done = 0;
    once.call_once(|_| done += 1).unwrap();
    assert!(done == 1 && once.is_completed());

    let value = Lock::new(5_u64).unwrap();
    assert!(panics(|| {
        let _guard = value.lock().unwrap();
        resume_unwind(Box::new(bomb(2)))
    }));
    assert_eq!(*value.lock().unwrap(), 5);

    let (lock, condition) = (Lock::new(1_u64).unwrap(), Condition::new().unwrap());
    assert!(panics(|| {
        let guard = lock.lock().unwrap();
        condition.wait_for(guard, |_| resume_unwind(Box::new(bomb(2))))
    }));
    assert_eq!(*lock.try_lock().unwrap(), 1);
}

/// Waker that reports a wake-up, and then panics.
struct Rude(mpsc::Sender<()>);

impl Wake for Rude {
    fn wake(self: Arc<Self>) {
        _ = self.0.send(());
        resume_unwind(Box::new(bomb(2)));
    }
}

/// Polls the future with a [`Rude`] waker, makes the future ready, and polls again after the wake-up.
fn woken<F: Future<Output: Debug>>(future: F, make_ready: impl FnOnce()) {
    let (report, reported) = mpsc::channel();
    let waker = Waker::from(Arc::new(Rude(report)));
    let mut future = pin!(future);
    assert!(future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    make_ready();
    reported.recv_timeout(DEADLINE).expect("the future is woken");
    eventually("the future is ready", || {
        matches!(future.as_mut().poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(_))
    });
}

#[test]
fn panicking_wakers_end_no_waking_thread() {
    let queue = Queue::bounded(1).unwrap();
    for x in 0..2_u32 {
        woken(queue.get_async(), || give(&queue, x));
        let (mut there, here) = UnixStream::pair().unwrap();
        let here = Descriptor(here);
        woken(wait_async(here), || there.write_all(b"x").unwrap());
    }
}

/// Action that runs when a waker is cloned.
struct Clones(Box<dyn Fn() + Send + Sync>);

/// Returns a waker whose `Clone` runs the action. The clones wake nothing.
fn cloning(clones: &'static Clones) -> Waker {
    const VTABLE: RawWakerVTable = RawWakerVTable::new(clone, |_| (), |_| (), |_| ());

    unsafe fn clone(data: *const ()) -> RawWaker {
        // SAFETY: the pointer was made of such a reference, just below.
        let clones = unsafe { &*data.cast::<Clones>() };
        (clones.0)();
        RawWaker::new(data, &VTABLE)
    }

    // SAFETY: the data lives as long as the program, and may be used by all threads. Nothing is released.
    unsafe { Waker::new(std::ptr::from_ref(clones).cast(), &VTABLE) }
}

#[test]
fn panicking_waker_clone_costs_only_its_future() {
    let waker = cloning(Box::leak(Box::new(Clones(Box::new(|| resume_unwind(Box::new(bomb(2))))))));
    let polled = |future: &mut dyn FnMut(&mut Context<'_>) -> bool| {
        assert!(panics(|| future(&mut Context::from_waker(&waker))), "the waker was not cloned");
    };
    let queue = Queue::bounded(1).unwrap();
    for x in 0..2_u32 {
        let mut future = Box::pin(queue.get_async());
        polled(&mut |context| future.as_mut().poll(context).is_pending());
        // Both while the failed future exists, and after it was dropped.
        woken(queue.get_async(), || give(&queue, x));
        drop(future);
        woken(queue.get_async(), || give(&queue, x));
        let (mut there, here) = UnixStream::pair().unwrap();
        let mut future = Box::pin(wait_async(Descriptor(here.try_clone().unwrap())));
        polled(&mut |context| future.as_mut().poll(context).is_pending());
        woken(wait_async(Descriptor(here)), || there.write_all(b"x").unwrap());
        drop(future);
    }
}

/// Runs `poll` in a thread, with a waker whose clone does not return. Checks that futures of other threads
/// are woken meanwhile.
fn holds_up_no_other_task(poll: impl FnOnce(&mut Context<'_>) + Send + 'static) {
    let ((begun, begins), (end, ends)) = (mpsc::channel(), mpsc::channel::<()>());
    let ends = std::sync::Mutex::new(ends);
    let clones = move || {
        _ = begun.send(());
        // Waits until the channel is disconnected, but not forever if the test fails meanwhile.
        _ = ends.lock().map(|ends| ends.recv_timeout(2 * DEADLINE));
    };
    let clones: &'static Clones = Box::leak(Box::new(Clones(Box::new(clones))));
    let poller = std::thread::spawn(move || poll(&mut Context::from_waker(&cloning(clones))));
    begins.recv_timeout(DEADLINE).expect("the waker is cloned");
    let queue = Queue::bounded(1).unwrap();
    woken(queue.get_async(), || give(&queue, 7_u32));
    let (mut there, here) = UnixStream::pair().unwrap();
    woken(wait_async(Descriptor(here)), || there.write_all(b"x").unwrap());
    assert!(!poller.is_finished(), "the clone has not returned yet");
    drop(end);
    eventually("the poll ends", || poller.is_finished());
    poller.join().unwrap();
}

#[test]
fn slow_waker_clone_delays_no_other_task() {
    let queue = Queue::<u32>::bounded(1).unwrap();
    holds_up_no_other_task(move |context| assert!(pin!(queue.get_async()).poll(context).is_pending()));
    let (_there, here) = UnixStream::pair().unwrap();
    holds_up_no_other_task(move |context| {
        assert!(pin!(wait_async(Descriptor(here))).poll(context).is_pending())
    });
}
