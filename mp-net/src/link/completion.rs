//! Outcome of a call, for the thread or task that waits for it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crate::error::NetError;
use crate::wire::messages::CallReply;
use mp_core::message::Outgoing;
use mp_core::mutex::{Condvar, Mutex};

/// Reply to a call, and its values.
pub(crate) type CallResult = Result<(CallReply, Vec<Outgoing>), NetError>;

/// Interval at which a waiting thread checks for an interrupt of its process.
const INTERRUPT_CHECK: Duration = Duration::from_millis(50);

#[derive(Default)]
struct CompletionState {
    result: Option<CallResult>,
    waker: Option<Waker>,
    /// `true` if the outcome was set, or the caller has stopped waiting.
    is_over: bool,
}

/// A call whose outcome is awaited.
#[derive(Default)]
pub(crate) struct Completion {
    state: Mutex<CompletionState>,
    set: Condvar,
}

impl Completion {
    /// Sets the outcome. Returns `false` if it was set before, or the caller has stopped waiting.
    pub(crate) fn complete(&self, result: CallResult) -> bool {
        let mut state = self.state.lock();
        if std::mem::replace(&mut state.is_over, true) {
            drop(state);
            return false;
        }
        state.result = Some(result);
        // The caller is woken without the lock, because a waker may poll or drop the future at once.
        let waker = state.waker.take();
        drop(state);
        self.set.notify_one();
        if let Some(waker) = waker {
            waker.wake();
        }
        true
    }

    /// Returns `true` if the outcome is set.
    pub(crate) fn is_over(&self) -> bool {
        self.state.lock().is_over
    }

    /// Blocks until the outcome is set, and returns it. Calls `interrupted` once if the process is
    /// interrupted during the wait. Returns `None` if the outcome is not set at `until`. An outcome that is
    /// set later is dropped.
    pub(crate) fn wait(&self, until: Option<Instant>, interrupted: impl FnOnce()) -> Option<CallResult> {
        let mut state = self.state.lock();
        let mut interrupted = Some(interrupted);
        loop {
            if let Some(result) = state.result.take() {
                return Some(result);
            }
            let now = Instant::now();
            if until.is_some_and(|until| until <= now) {
                state.is_over = true;
                return None;
            }
            if interrupted.is_some()
                && mp_core::interrupted()
                && let Some(call) = interrupted.take()
            {
                drop(state);
                call();
                state = self.state.lock();
                continue;
            }
            let check = now + INTERRUPT_CHECK;
            self.set.wait_until(&mut state, until.map_or(check, |until| until.min(check)));
        }
    }

    fn poll(&self, cx: &Context<'_>) -> Poll<CallResult> {
        let waker = cx.waker().clone();
        let mut state = self.state.lock();
        match state.result.take() {
            Some(result) => Poll::Ready(result),
            None => {
                let former = state.waker.replace(waker);
                drop(state);
                drop(former);
                Poll::Pending
            }
        }
    }

    /// Records that the caller has stopped waiting, and drops the outcome if the caller has not taken it.
    fn abandon(&self) {
        let mut state = self.state.lock();
        state.is_over = true;
        let dropped = (state.result.take(), state.waker.take());
        drop(state);
        drop(dropped);
    }
}

/// Future of a call. If the future is dropped before the outcome is set, `abandon` is called.
pub(crate) struct CallFuture<F: FnMut()> {
    pub(crate) completion: Arc<Completion>,
    pub(crate) abandon: F,
    pub(crate) is_taken: bool,
}

impl<F: FnMut() + Unpin> Future for CallFuture<F> {
    type Output = CallResult;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<CallResult> {
        let result = self.completion.poll(cx);
        self.is_taken = result.is_ready();
        result
    }
}

impl<F: FnMut()> Drop for CallFuture<F> {
    fn drop(&mut self) {
        if !self.is_taken {
            self.completion.abandon();
            (self.abandon)();
        }
    }
}
