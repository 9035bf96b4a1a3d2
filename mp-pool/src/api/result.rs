//! Handles of pending results.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use mp_core::message::{Undecodable, decode_number};
use mp_core::user_code::UserValues;
use mp_core::{WaitPoint, Waitable, quantity};
use mp_reduce::{Message, MessagePack, TypeFingerprint, Unread};
use mp_spawn::CallFailure;

use crate::dispatcher::shared::PoolShared;
use crate::error::{Attempts, TaskError};
use crate::tasks::call_outcomes::{CallOutcomes, Progress};
use crate::tasks::call_state::CallState;
use crate::tasks::outcome_run::{OutcomeData, OutcomeRun};

/// Reads the outcome of task `i` of a run. A panic of the user's `Deserialize` is returned as an error.
pub(crate) fn read<T: Message>(run: &mut OutcomeRun, i: usize) -> Result<T, TaskError> {
    match &mut run.data {
        OutcomeData::Values(many, from) => read_plain(many.get(*from + i)),
        OutcomeData::Single(received) => {
            if let Err(error) = received.claim() {
                let fingerprint = TypeFingerprint::<T>::new().get();
                return Err(TaskError::unread_value(
                    error,
                    Unread::new(std::mem::take(received), fingerprint),
                ));
            }
            // The bytes before the rest are the head of the worker's message.
            let before = received.whole().len() - received.rest().len();
            decode_caught(|| T::decode::<MessagePack>(received))
                .map_err(|error| unreadable::<T>(error, received.whole().get(before..).unwrap_or_default()))
        }
        OutcomeData::Failed(error) => Err((**error).clone()),
    }
}

/// Reads a result from a message with several results.
#[inline(always)]
fn read_plain<T: Message>(bytes: Option<&[u8]>) -> Result<T, TaskError> {
    match bytes.and_then(decode_number::<T, MessagePack>) {
        Some(number) => Ok(number),
        None => read_any(bytes),
    }
}

fn read_any<T: Message>(bytes: Option<&[u8]>) -> Result<T, TaskError> {
    let Some(bytes) = bytes else {
        return Err(TaskError::value("the message is not of this pool"));
    };
    decode_caught(|| T::decode_plain::<MessagePack>(bytes)).map_err(|error| unreadable::<T>(error, bytes))
}

/// Decodes a value of the user. A panic of `Deserialize` is returned as an error.
fn decode_caught<T>(decode: impl FnOnce() -> mp_core::Result<T>) -> mp_core::Result<T> {
    CallFailure::catch(decode).unwrap_or_else(|raise| {
        Err(mp_core::Error::Malformed(format!("its `Deserialize` panicked: {}", raise.message())))
    })
}

/// Decodes the results at the given positions of a run, until `take` returns `false`.
fn read_each<T: Message>(
    run: &mut OutcomeRun,
    mut which: Range<usize>,
    mut take: impl FnMut(Result<T, TaskError>) -> bool,
) {
    let (all, from) = match &run.data {
        OutcomeData::Values(many, from) => (Some(many.all()), *from),
        _ => (None, 0),
    };
    match all {
        Some(all) => _ = which.all(|i| take(read_plain(all.get(from + i)))),
        None => _ = which.all(|i| take(read(run, i))),
    }
}

/// Decodes the results at the given positions of a run. Stops at the first error, and returns it.
pub(crate) fn read_values<T: Message>(
    run: &mut OutcomeRun,
    which: Range<usize>,
    into: &mut UserValues<T>,
) -> Option<TaskError> {
    let (mut failed, first, before) = (None, run.first + which.start, into.len());
    read_each(run, which, |result| match result {
        Ok(value) => {
            into.push_back(value);
            true
        }
        Err(error) => {
            failed = Some(error.with_index(first + into.len() - before));
            false
        }
    });
    failed
}

/// Creates the error for a result that can't be decoded from these bytes.
#[cold]
fn unreadable<T>(error: mp_core::Error, bytes: &[u8]) -> TaskError {
    let error = Undecodable::of_message::<T>(error, bytes);
    let why = error.to_string();
    let undecodable = match error {
        mp_core::Error::Undecodable(undecodable) => Some(Arc::from(undecodable)),
        _ => None,
    };
    TaskError::Value { why, undecodable, unread: None, attempts: Attempts::default() }
}

/// Number of results of a call: one, or one for each item.
pub trait ResultKind<T>: sealed::SealedKind {
    /// Type of the value: `T` for one task, `Vec<T>` for several.
    type Value;

    #[doc(hidden)]
    #[track_caller]
    fn read(outcomes: &mut OutcomeReader<'_>) -> Result<Self::Value, TaskError>;
}

/// Reader of the outcomes of a call.
#[doc(hidden)]
#[expect(missing_debug_implementations, reason = "no value of it is ever seen")]
pub struct OutcomeReader<'a> {
    job: &'a CallState,
    /// Outcomes that were available at the last check.
    runs: VecDeque<OutcomeRun>,
    /// Number of tasks that were done at the last check.
    done: usize,
}

impl<'a> OutcomeReader<'a> {
    fn new(job: &'a CallState) -> Self {
        OutcomeReader { job, runs: VecDeque::new(), done: 0 }
    }

    /// Waits for the next outcomes, and returns them.
    #[track_caller]
    fn next(&mut self) -> Option<OutcomeRun> {
        while self.runs.is_empty() {
            {
                let outcomes = &mut *self.job.outcomes();
                self.runs.extend(std::iter::from_fn(|| outcomes.next()));
                if !self.runs.is_empty() || outcomes.is_empty() {
                    break;
                }
                self.done = outcomes.progress.done;
            }
            self.job.wait_for_more(self.done);
        }
        self.runs.pop_front()
    }

    #[track_caller]
    fn wait(&self) {
        self.job.wait(None, CallOutcomes::all_done);
    }
}

/// Marker for a call with one result.
#[derive(Clone, Copy, Debug)]
pub enum Single {}

/// Marker for a call of several items, with one result for each item.
#[derive(Clone, Copy, Debug)]
pub enum Multiple {}

mod sealed {
    pub trait SealedKind {}
    impl SealedKind for super::Single {}
    impl SealedKind for super::Multiple {}
}

impl<T: Message> ResultKind<T> for Single {
    type Value = T;

    #[track_caller]
    fn read(outcomes: &mut OutcomeReader<'_>) -> Result<T, TaskError> {
        outcomes.next().map_or(Err(TaskError::Terminated), |mut run| read(&mut run, 0))
    }
}

impl<T: Message> ResultKind<T> for Multiple {
    type Value = Vec<T>;

    #[track_caller]
    fn read(outcomes: &mut OutcomeReader<'_>) -> Result<Vec<T>, TaskError> {
        // If one result is an error, the values before it are dropped one by one.
        let mut values = UserValues::default();
        // Reserves for all results, so that they are not moved while the vector grows.
        values.reserve(outcomes.job.outcomes().progress.total);
        while let Some(mut run) = outcomes.next() {
            let which = 0..run.count;
            if let Some(error) = read_values(&mut run, which, &mut values) {
                outcomes.wait();
                return Err(error);
            }
        }
        Ok(std::mem::take(&mut *values).into())
    }
}

/// Handle to the pending result of a task, or to the results of many tasks ([`MapResult`]).
///
/// ```
/// use std::time::Duration;
///
/// let pool = mp_pool::Pool::new(1)?;
/// let mut result = pool.apply_async(|x: u32| x + 1, 1);
/// let value = loop {
///     match result.get_timeout(Duration::from_millis(100)) {
///         Ok(value) => break value?,
///         Err(not_yet) => result = not_yet,
///     }
/// };
/// assert_eq!(value, 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// The handle is also a future, for any runtime: `pool.apply_async(f, x).await?`. Dropping it drops the
/// result; the tasks run nevertheless, unless they are [cancelled](Self::cancel).
///
/// When the pool is dropped or breaks, unfinished tasks end with an error, so the wait ends. In a fork of the
/// process that made the call, no outcome arrives, not even of finished tasks: all methods report
/// [`TaskError::Terminated`] for each task.
#[must_use = "the result is lost unless it is asked for"]
pub struct AsyncResult<T, S = Single> {
    shared: Arc<PoolShared>,
    job: Arc<CallState>,
    /// Number of tasks of the call.
    total: usize,
    taken: bool,
    shape: PhantomData<fn() -> (T, S)>,
}

/// Handle to the results of [`Pool::map_async`](crate::Pool::map_async), in the order of the items.
///
/// ```
/// let pool = mp_pool::Pool::new(2)?;
/// let halves = pool.map_async(|x: u32| if x % 2 == 0 { Ok(x / 2) } else { Err("odd") }, 1..=4);
/// let halves: Vec<Option<u32>> = halves.results().into_iter().map(Result::ok).collect();
/// assert_eq!(halves, [None, Some(1), None, Some(2)]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub type MapResult<T> = AsyncResult<T, Multiple>;

impl<T, S> fmt::Debug for AsyncResult<T, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Progress { done, total, .. } = self.progress();
        write!(f, "AsyncResult({done} of {total} done)")
    }
}

impl<T, S: ResultKind<T>> AsyncResult<T, S> {
    pub(crate) fn new(shared: Arc<PoolShared>, job: Arc<CallState>) -> Self {
        let total = job.outcomes().progress.total;
        AsyncResult { shared, job, total, taken: false, shape: PhantomData }
    }

    /// Blocks until the result is available. For a call of several items, blocks until all are done; if some
    /// failed, the error is that of the first in the order of the items.
    ///
    /// # Errors
    /// Any [`TaskError`] with which the task ends.
    #[track_caller]
    pub fn get(self) -> Result<S::Value, TaskError> {
        self.take()
    }

    /// Like [`get`](Self::get), but waits for at most `timeout`.
    ///
    /// # Errors
    /// The handle itself, if the result is not available in time. The inner errors are those of
    /// [`get`](Self::get).
    #[track_caller]
    pub fn get_timeout(self, timeout: Duration) -> Result<Result<S::Value, TaskError>, Self> {
        if self.wait_timeout(timeout) { Ok(self.take()) } else { Err(self) }
    }

    #[track_caller]
    fn take(&self) -> Result<S::Value, TaskError> {
        if !self.job.is_ours() {
            return Err(TaskError::Terminated);
        }
        S::read(&mut OutcomeReader::new(&self.job))
    }

    /// Calls `call` with the result when it is available. If the result is already available, `call` runs
    /// before this method returns.
    ///
    /// ```
    /// let pool = mp_pool::Pool::new(1)?;
    /// let (sender, receiver) = std::sync::mpsc::channel();
    /// pool.apply_async(|x: u32| x + 1, 1).on_done(move |result| _ = sender.send(result));
    /// assert_eq!(receiver.recv()??, 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// The callback runs in the pool's thread, which it blocks, or in the thread that calls this method,
    /// cancels the task or ends the pool. It should be short, and must not wait for a result of this pool. A
    /// panic in the callback reaches the panic hook and is then caught.
    #[doc(alias("callback", "error_callback"))]
    pub fn on_done(self, call: impl FnOnce(Result<S::Value, TaskError>) + Send + 'static)
    where
        T: 'static,
        S: 'static,
    {
        if !self.job.is_ours() {
            return call(Err(TaskError::Terminated));
        }
        let job = Arc::clone(&self.job);
        job.on_done(Box::new(move || call(self.take())));
    }
}

impl<T, S> AsyncResult<T, S> {
    /// Returns `true` in a fork of the process that made the call.
    pub(super) fn is_forked(&self) -> bool {
        !self.job.is_ours()
    }

    /// Calls `call` when the result is available. Calls it before returning if the result is already
    /// available, and in a forked process.
    pub(crate) fn when_done(&self, call: impl FnOnce() + Send + 'static) {
        if self.job.is_ours() {
            self.job.on_done(Box::new(call));
        } else {
            call();
        }
    }

    /// Blocks until the result or error is available.
    #[track_caller]
    pub fn wait(&self) {
        if self.job.is_ours() {
            self.job.wait(None, CallOutcomes::all_done);
        }
    }

    /// Blocks until the result or error is available, or for at most `timeout`. Returns `true` if it is
    /// available.
    #[track_caller]
    pub fn wait_timeout(&self, timeout: Duration) -> bool {
        !self.job.is_ours() || self.job.wait(Instant::now().checked_add(timeout), CallOutcomes::all_done)
    }

    /// Returns `true` if the result or error is available.
    #[must_use]
    pub fn ready(&self) -> bool {
        !self.job.is_ours() || self.job.outcomes().all_done()
    }

    /// Returns `true` if all tasks succeeded, or `None` while some are not done.
    #[must_use]
    pub fn successful(&self) -> Option<bool> {
        let Progress { done, failed, total } = self.progress();
        (done == total).then_some(failed == 0)
    }

    /// Returns the number of tasks that are done, failed and in total.
    #[must_use]
    pub fn progress(&self) -> Progress {
        if !self.job.is_ours() {
            return Progress { done: self.total, failed: self.total, total: self.total };
        }
        self.job.outcomes().progress
    }

    /// Cancels the tasks that have not begun, and returns their number. They end with
    /// [`TaskError::Cancelled`]. Running tasks are not stopped.
    ///
    /// If a worker has received a chunk of these tasks and not begun the chunk, this method waits for the
    /// worker, for at most a tenth of a second. If the worker is stopped at that time, tasks of its chunk are
    /// cancelled later and are not counted. (A task that was just sent to a worker together with a function
    /// that is new to the worker may not be cancellable.)
    ///
    /// Tasks on another host are cancelled when the request arrives on that host, unless they have
    /// begun. They are counted by the next call of `cancel`, not by this one. A pool that was closed or
    /// withdrawn on that host receives no request.
    pub fn cancel(&self) -> usize {
        self.shared.cancel_all(&self.job)
    }
}

impl<T: Message> AsyncResult<T, Multiple> {
    /// Waits for all tasks, and returns the result or the error of each item.
    #[must_use]
    #[track_caller]
    pub fn results(self) -> Vec<Result<T, TaskError>> {
        if !self.job.is_ours() {
            return (0..self.total).map(|_| Err(TaskError::Terminated)).collect();
        }
        let mut taking = OutcomeReader::new(&self.job);
        let mut all = Vec::with_capacity(self.total);
        while let Some(mut run) = taking.next() {
            let (first, count) = (run.first, run.count);
            let of = |i| read(&mut run, i).map_err(|error| error.with_index(first + i));
            all.extend((0..count).map(of));
        }
        all
    }
}

/// The handle is ready when the result, or all results, are available: [`mp_core::wait`] and
/// [`mp_core::select`] wait for it together with queues, processes and sockets. In a fork of the process that
/// made the call it is always ready.
///
/// ```
/// use mp_core::{Waitable, wait};
/// use mp_queue::Queue;
///
/// let pool = mp_pool::Pool::new(1)?;
/// let news: Queue<u32> = Queue::unbounded()?;
/// let result = pool.apply_async(|x: u32| x + 1, 1);
/// let things: [&dyn Waitable; 2] = [&news, &result];
/// assert_eq!(wait(&things, None)?, [1]);
/// assert_eq!(result.get()?, 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// The first wait opens a pipe, which is closed with the handle. If no descriptor is left, a waiter checks
/// every 100 ms.
impl<T, S> Waitable for AsyncResult<T, S> {
    fn wait_point(&self) -> WaitPoint<'_> {
        match self.job.done_pipe() {
            Some(pipe) => WaitPoint::Readable(pipe),
            None if self.is_forked() => WaitPoint::Nowhere,
            None => self.shared.replies.wait_point(),
        }
    }

    fn is_ready(&self) -> bool {
        self.ready()
    }

    fn description(&self) -> Option<String> {
        if !self.job.is_ours() {
            return None;
        }
        let Progress { done, total, .. } = self.progress();
        let tasks = quantity(total, "task");
        Some(format!("results of {} ({done} of {tasks} done)", self.shared.settings.pool_name()))
    }
}

impl<T, S: ResultKind<T>> Future for AsyncResult<T, S> {
    type Output = Result<S::Value, TaskError>;

    /// Polls for the result. Stays pending forever after it was ready once.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let waits = || self.job.register_waker(context.waker(), CallOutcomes::all_done);
        if self.taken || self.job.is_ours() && waits() {
            return Poll::Pending;
        }
        self.taken = true;
        Poll::Ready(self.take())
    }
}
