//! Function to be called in the workers, with its options.

use std::collections::VecDeque;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use mp_core::user_code::UserValues;
use mp_reduce::Message;
use mp_spawn::Backoff;

use crate::api::imap::Imap;
use crate::api::result::{AsyncResult, MapResult};
use crate::api::stream::TaskStream;
use crate::dispatcher::shared::PoolShared;
use crate::dispatcher::submit::RoomFuture;
use crate::error::TaskError;
use crate::tasks::call_outcomes::ResultOrder;
use crate::tasks::call_state::{CallOptions, CallState, TaskFunction};
use crate::tasks::lanes::PushedTasks;
use crate::tasks::source::{ItemSource, TaskSource};
use crate::tasks::stream_outcomes::TicketOutcomes;

/// Function to be called in the workers of a pool, with options. Created by
/// [`Pool::task`](crate::Pool::task).
///
/// A `Call` borrows nothing: it can be stored in a field or a static variable, and used by several threads at
/// once. A clone has options of its own and calls the same function, which each worker stores once.
///
/// ```
/// use mp_pool::{Call, Pool, TaskError};
///
/// struct Service {
///     hash: Call<String, u64>,
/// }
///
/// let pool = Pool::new(2)?;
/// let service = Service { hash: pool.task(|text: String| text.bytes().map(u64::from).sum::<u64>()) };
/// let patient = service.hash.clone().retries(3);
/// let thread = std::thread::spawn(move || patient.apply("ab".into()));
/// assert_eq!(service.hash.apply("cd".into())?, 199);
/// assert_eq!(thread.join().unwrap()?, 195);
///
/// drop(pool); // the workers end, even while a `Call` exists
/// assert!(matches!(service.hash.apply("ef".into()), Err(TaskError::Closed { .. })));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A `Call` does not keep the pool alive. After the pool is closed, joined or dropped, each task ends with
/// [`TaskError::Closed`], or with [`TaskError::Broken`] and the reason if no worker was alive. The `Call`
/// then holds a little memory and the captures of its closure.
#[must_use = "nothing is called until `map` or another of its methods is"]
pub struct Call<A, T> {
    shared: Arc<PoolShared>,
    code: Arc<TaskFunction>,
    options: CallOptions,
    ahead: Option<usize>,
    types: PhantomData<fn(A) -> T>,
}

impl<A, T> Clone for Call<A, T> {
    fn clone(&self) -> Self {
        let Call { shared, code, options, ahead, types } = self;
        let (shared, code) = (Arc::clone(shared), Arc::clone(code));
        Call { shared, code, options: options.clone(), ahead: *ahead, types: *types }
    }
}

impl<A, T> fmt::Debug for Call<A, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call")
            .field("options", &self.options)
            .field("ahead", &self.ahead)
            .finish_non_exhaustive()
    }
}

/// Error returned when the pool has no room for a task. Contains the arguments.
#[derive(thiserror::Error)]
#[error("as many tasks wait as the pool allows")]
pub struct TryApplyError<A>(pub A);

impl<A> fmt::Debug for TryApplyError<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<A: Message + Send, T: Message + Send> Call<A, T> {
    pub(crate) fn new(shared: &Arc<PoolShared>, code: Arc<TaskFunction>) -> Self {
        let shared = Arc::clone(shared);
        Call { shared, code, options: CallOptions::default(), ahead: None, types: PhantomData }
    }

    /// Sets the number of tasks that a worker receives in one message, at most 65,535. By default, a chunk
    /// contains the tasks that run in about half a millisecond, as measured while the call runs. Chunks
    /// become smaller towards the end of the call. A task that takes longer is sent alone.
    ///
    /// A chunk is not bound to a worker. Tasks that a worker has not begun move to an idle worker, or to the
    /// replacement if the worker dies; each task begins once. Tasks whose arguments contain tensors, queues
    /// or other handles, or are longer than 64 KiB, are sent one by one.
    pub fn chunksize(mut self, tasks: usize) -> Self {
        self.options.chunk = tasks;
        self
    }

    /// Limits the run time of a task. When the time has expired, the worker is killed and replaced, the task
    /// ends with [`TaskError::TimedOut`], and the worker's other tasks continue elsewhere.
    ///
    /// The clock stops while the panic hooks of the worker describe a panic, for at most ten seconds. (With
    /// `RUST_BACKTRACE` the first panic of a process takes long, because the symbols of the program are
    /// read.) It also stops while a returned error is formatted.
    ///
    /// If a worker is stopped (SIGSTOP, a debugger) before it begins a task, an idle worker takes the task
    /// over after a tenth of a second to about a second. The stopped worker can't begin the task afterwards.
    /// If no worker is idle, the clock of the stopped worker's next task runs, although the task was not
    /// begun, and the task ends with [`TaskError::TimedOut`].
    ///
    /// While the whole program is stopped (SIGSTOP of its process group, a frozen cgroup, a paused virtual
    /// machine), the clock stops, with an error of at most an eighth of `time`. If the program is stopped
    /// while the pool's thread handles results, the deadline of a running task moves by at most `time`. User
    /// code in the pool's thread, such as callbacks, has the same effect: it delays the end of a task by at
    /// most `time`.
    ///
    /// A time of zero ends each task as soon as the pool observes that it has begun. A short task may finish
    /// before.
    pub fn timeout(mut self, time: Duration) -> Self {
        self.options.timeout = Some(time);
        self
    }

    /// Sets the number of retries after the death of a worker. Same as [`retry_if`](Self::retry_if) with a
    /// filter for [`TaskError::WorkerLost`].
    pub fn retries(self, times: u32) -> Self {
        self.retry_if(times, |error| matches!(error, TaskError::WorkerLost(_)))
    }

    /// Retries a failed task at most `times` times, while `when` returns `true` for its error: a death, a
    /// time-out, a returned error or a panic. The last error is returned, and retries are
    /// [counted](crate::PoolMetrics::retried). [`backoff`](Self::backoff) sets the delay between two
    /// attempts.
    ///
    /// ```
    /// use std::time::Duration;
    /// use mp_pool::{Backoff, Pool, TaskError};
    /// use mp_tensor::{SharedTensor, Tensor};
    ///
    /// /// Busy at first.
    /// fn fetch((asked, page): (SharedTensor<u64>, u64)) -> Result<u64, String> {
    ///     if asked.fetch_add(0, 1) < 2 { Err("busy".into()) } else { Ok(page) }
    /// }
    ///
    /// let busy = |error: &TaskError| matches!(error, TaskError::Raised(raised) if raised.message == "busy");
    /// let pool = Pool::new(1)?;
    /// let fetch = pool.task(fetch).retry_if(5, busy).backoff(Backoff::new(Duration::from_millis(5)));
    /// let asked = Tensor::zeros([1])?.share();
    /// assert_eq!(fetch.apply((asked, 7))?, 7);
    /// assert_eq!(pool.metrics().retried, 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Side effects of a failed attempt may happen again. Items of a [chunk](Self::chunksize) are retried one
    /// by one; the other items keep their results. Tasks that have not begun, or were cancelled or refused,
    /// are not retried.
    ///
    /// The arguments are kept in this process until the task is done: as bytes, or as values if tensors,
    /// queues or other handles are attached, which copies no tensor. An exclusive tensor can't be kept,
    /// because it moves to the first worker that receives it. Such a task is refused with
    /// [`TaskError::Arguments`]; freeze or share the tensor.
    ///
    /// The pool's thread calls `when` and is blocked during the call. So `when` should be short, and must not
    /// wait for a result of this pool. If `when` panics, the task is not retried. A later call of this method
    /// or of [`retries`](Self::retries) replaces the setting.
    pub fn retry_if(mut self, times: u32, when: impl Fn(&TaskError) -> bool + Send + Sync + 'static) -> Self {
        self.options.retry.set(times, when);
        self
    }

    /// Sets the delay before a retry, as a [`Duration`] or a [`Backoff`]. The default is no delay. A waiting
    /// task occupies no worker, and ends at once when it is cancelled or its pool ends.
    pub fn backoff(mut self, backoff: impl Into<Backoff>) -> Self {
        self.options.retry.backoff = backoff.into();
        self
    }

    /// Sets the number of items that [`imap`](Self::imap) takes from its source before their results are
    /// requested. The default is 64 for each worker, and more if tasks are short. For a
    /// [`stream`](Self::stream), limits the number of tasks in flight; the default is no limit.
    #[doc(alias = "buffersize")]
    pub fn max_in_flight(mut self, items: usize) -> Self {
        self.ahead = Some(items.max(1));
        self
    }

    fn job(&self, items: Arc<dyn TaskSource>, order: ResultOrder) -> Arc<CallState> {
        CallState::new(Arc::clone(&self.code), self.options.clone(), items, order)
    }

    /// Sends tasks, regardless of the limit on waiting tasks.
    fn send(&self, items: VecDeque<A>) -> Arc<CallState> {
        let (count, items) = (items.len(), UserValues::from(items));
        let source = Arc::new(ItemSource::new(self.options.retry.times > 0));
        let job = self.job(Arc::clone(&source) as _, ResultOrder::Submission);
        self.shared.submit(&job, count, || source.set_items(items));
        job
    }

    /// Calls the function in a worker, and blocks until its result is available.
    ///
    /// # Errors
    /// Any [`TaskError`] with which the task ends.
    #[track_caller]
    pub fn apply(&self, args: A) -> Result<T, TaskError> {
        self.apply_async(args).get()
    }

    /// Calls the function in a worker, without waiting for its result. Blocks while the pool is full: see
    /// [`max_waiting`](crate::PoolBuilder::max_waiting).
    #[track_caller]
    pub fn apply_async(&self, args: A) -> AsyncResult<T> {
        self.shared.wait_for_room(None, || false);
        self.submit(args)
    }

    fn submit(&self, args: A) -> AsyncResult<T> {
        AsyncResult::new(Arc::clone(&self.shared), self.send([args].into()))
    }

    /// Waits for room without blocking a thread, calls the function in a worker, and returns a handle of the
    /// result. The handle is a future, too. A program on an async runtime can thus respect the
    /// [limit](crate::PoolBuilder::max_waiting) of the pool while its other tasks run. Without a limit, the
    /// returned future is ready at once.
    ///
    /// ```
    /// # fn block_on<F: Future>(future: F) -> F::Output {
    /// #     let mut future = std::pin::pin!(future);
    /// #     let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    /// #     loop {
    /// #         match future.as_mut().poll(&mut context) {
    /// #             std::task::Poll::Ready(value) => return value,
    /// #             _ => std::thread::yield_now(),
    /// #         }
    /// #     }
    /// # }
    /// let pool = mp_pool::Pool::builder().processes(1).max_waiting(2).build()?;
    /// let square = pool.task(|x: u64| x * x);
    /// let sum = async {
    ///     let mut results = Vec::new();
    ///     for x in 0..10 {
    ///         results.push(square.submit_async(x).await); // two have no result yet at most
    ///     }
    ///     let mut sum = 0;
    ///     for result in results {
    ///         sum += result.await?;
    ///     }
    ///     Ok::<u64, mp_pool::TaskError>(sum)
    /// };
    /// assert_eq!(block_on(sum)?, 285); // on any runtime
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Waiting futures get room in the order in which they began to wait, unless a call that does not wait
    /// takes the room first. If the future is dropped before there is room, the function is not called and
    /// the arguments are dropped. When the pool is closed or broken, the wait ends, and the result is the
    /// error.
    pub async fn submit_async(&self, args: A) -> AsyncResult<T> {
        RoomFuture::new(&self.shared).await;
        self.submit(args)
    }

    /// Calls the function in a worker unless the pool is full.
    ///
    /// ```
    /// let pool = mp_pool::Pool::builder().processes(1).max_waiting(1).build()?;
    /// let (_peer, socket) = std::os::unix::net::UnixStream::pair()?;
    /// let name = |x: u32| std::thread::sleep(std::time::Duration::from_millis(u64::from(x)));
    /// let first = pool.task(name).try_apply_async(50).unwrap();
    /// assert_eq!(pool.task(name).try_apply_async(7).unwrap_err().0, 7);
    /// first.get()?;
    /// # drop(socket);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `TryApplyError` with the arguments if the pool is full.
    pub fn try_apply_async(&self, args: A) -> Result<AsyncResult<T>, TryApplyError<A>> {
        if self.shared.is_full() { Err(TryApplyError(args)) } else { Ok(self.submit(args)) }
    }

    /// Calls the function for each item, and blocks until all are done: see [`Pool::map`](crate::Pool::map).
    ///
    /// # Errors
    /// The error of the first failed item, in the order of the items.
    #[track_caller]
    pub fn map(&self, items: impl IntoIterator<Item = A>) -> Result<Vec<T>, TaskError> {
        self.map_async(items).get()
    }

    /// Calls the function for each item, without waiting for the results. Blocks while the pool is full.
    #[track_caller]
    pub fn map_async(&self, items: impl IntoIterator<Item = A>) -> MapResult<T> {
        let items = items.into_iter().collect();
        self.shared.wait_for_room(None, || false);
        MapResult::new(Arc::clone(&self.shared), self.send(items))
    }

    /// Calls the function for each item. The results are in the order of the items: see
    /// [`Pool::imap`](crate::Pool::imap).
    pub fn imap<I: IntoIterator<Item = A>>(&self, items: I) -> Imap<I::IntoIter, T> {
        self.imap_in(items, ResultOrder::Submission)
    }

    /// Calls the function for each item. The results are in the order of completion.
    pub fn imap_unordered<I: IntoIterator<Item = A>>(&self, items: I) -> Imap<I::IntoIter, T> {
        self.imap_in(items, ResultOrder::Completion)
    }

    /// Calls the function for each item that is pushed, until the stream is closed: see [`TaskStream`].
    /// [`max_in_flight`](Self::max_in_flight) limits the number of tasks in flight.
    pub fn stream(&self) -> TaskStream<A, T> {
        let pushed = Arc::new(PushedTasks::new(self.options.retry.times > 0));
        let job = self.job(Arc::clone(&pushed) as _, ResultOrder::Completion);
        job.outcomes().tickets = Some(TicketOutcomes::new(self.ahead.unwrap_or(usize::MAX)));
        TaskStream::new(Arc::clone(&self.shared), job, pushed)
    }

    fn imap_in<I: IntoIterator<Item = A>>(&self, items: I, order: ResultOrder) -> Imap<I::IntoIter, T> {
        let sent = Arc::new(ItemSource::new(self.options.retry.times > 0));
        let job = self.job(Arc::clone(&sent) as _, order);
        let workers = self.shared.workers();
        let ahead =
            self.ahead.unwrap_or(workers.saturating_mul(self.options.chunk.saturating_mul(2).max(64)));
        let chosen = self.ahead.is_some();
        Imap::new((Arc::clone(&self.shared), job), (items.into_iter(), sent), (ahead, chosen))
    }
}
