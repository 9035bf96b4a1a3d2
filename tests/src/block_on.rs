//! Futures without a runtime.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Instant;

use crate::{DEADLINE, eventually};

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future to its end in this thread.
#[track_caller]
pub fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    let until = Instant::now() + DEADLINE;
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return value;
        }
        let left = until.saturating_duration_since(Instant::now());
        assert!(!left.is_zero(), "not ready within {DEADLINE:?}");
        std::thread::park_timeout(left);
    }
}

/// Polls a future once, without a waker.
pub fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    std::pin::Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Polls a pending future, calls `what`, and returns the output of the next poll. The call of `what` must
/// wake the future.
#[track_caller]
pub fn woken_by<F: Future>(future: F, what: impl FnOnce()) -> F::Output {
    let flag = Arc::new(Flag(AtomicBool::new(false)));
    let waker = Waker::from(Arc::clone(&flag));
    let (mut future, mut context) = (pin!(future), Context::from_waker(&waker));
    assert!(future.as_mut().poll(&mut context).is_pending(), "the future is pending");
    what();
    eventually("the future is woken", || flag.0.load(Ordering::SeqCst));
    match future.poll(&mut context) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("the future was woken, but is not ready"),
    }
}
